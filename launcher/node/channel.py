"""How the nodes of one run tell each other that it is over: one TCP connection from each supervisor to the head's.

Without it a failure on one node leaves the others waiting in a collective until a time-out of minutes. It needs
neither the user's machine (which may sleep) nor torch. A connection that breaks, or that is silent, is a failure too.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import selectors
import socket
import time
from typing import Any

SILENCE_S = 60.0
"""A peer that says nothing for so long is gone (power, network): its machine can't close the connection."""
_BEAT_S = 10.0
_MAX_MESSAGE = 64 * 1024

Message = dict[str, Any]


class Link:
    """One connection: JSON objects, one a line, both ways. Never blocks longer than one small message takes."""

    def __init__(self, connection: socket.socket, peer: str) -> None:
        connection.setblocking(False)
        self.connection = connection
        self.peer = peer
        self.trusted = False
        self.heard = time.monotonic()
        self._received = b""

    def send(self, message: Message) -> None:
        """Best effort: a peer that can't be told will see the connection end."""
        with contextlib.suppress(OSError):
            self.connection.send(json.dumps(message).encode() + b"\n")

    def receive(self) -> list[Message] | None:
        """New messages; None when the connection has ended."""
        try:
            data = self.connection.recv(65536)
        except (BlockingIOError, InterruptedError):
            return []
        except OSError:
            return None
        if not data or len(self._received) > _MAX_MESSAGE:
            return None
        self.heard = time.monotonic()
        *lines, self._received = (self._received + data).split(b"\n")
        messages = []
        for line in lines:
            try:
                value = json.loads(line)
            except ValueError:
                return None
            if isinstance(value, dict):
                messages.append(value)
        return messages


class Channel:
    """The links of one supervisor. The head listens and passes on; the others connect to it."""

    def __init__(self, node: str, token: str) -> None:
        self._node = node
        self._token = token
        self._selector = selectors.DefaultSelector()
        self._listener: socket.socket | None = None
        self._links: list[Link] = []
        self._ended: set[str] = set()
        self.met: set[str] = set()
        """Peers that have ever said hello."""
        self._last_beat = time.monotonic()

    def listen(self, address: str) -> int:
        """Opens the head's door on its private address; returns the port that the kernel chose."""
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._listener = socket.create_server((address, 0), family=family)
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ, None)
        return int(self._listener.getsockname()[1])

    def connect(self, address: str, port: int) -> None:
        """Raises OSError when the head can't be reached."""
        link = Link(socket.create_connection((address, port), timeout=20), "the head")
        link.trusted = True
        self._add(link)
        link.send({"kind": "hello", "node": self._node, "token": self._token})

    def step(self, timeout_s: float) -> list[Message]:
        """Waits at most so long; returns what peers said. A lost peer is `{"kind": "lost", "node": …}`."""
        messages: list[Message] = []
        for key, _ in self._selector.select(timeout_s):
            if key.data is None:
                self._accept()
            else:
                messages += self._read(key.data)
        now = time.monotonic()
        for link in [link for link in self._links if now - link.heard > SILENCE_S]:
            messages += self._lose(link)
        if now - self._last_beat > _BEAT_S:
            self._last_beat = now
            self._tell({"kind": "beat", "node": self._node})
        return messages

    def tell(self, message: Message) -> None:
        """To every peer (from a node that isn't the head: to the head, which passes it on)."""
        self._tell({**message, "node": self._node, "head": self._listener is not None})

    def close(self) -> None:
        for link in self._links:
            link.connection.close()
        self._links.clear()
        if self._listener is not None:
            self._listener.close()
        self._selector.close()

    def _tell(self, message: Message, *, but: Link | None = None) -> None:
        for link in self._links:
            if link is not but and link.trusted:
                link.send(message)

    def _add(self, link: Link) -> None:
        self._links.append(link)
        self._selector.register(link.connection, selectors.EVENT_READ, link)

    def _accept(self) -> None:
        assert self._listener is not None  # noqa: S101 - only a listener is registered without a link
        with contextlib.suppress(OSError):
            connection, address = self._listener.accept()
            self._add(Link(connection, str(address[0])))

    def _read(self, link: Link) -> list[Message]:
        received = link.receive()
        if received is None:
            return self._lose(link)
        messages = []
        for message in received:
            if not link.trusted:
                if not hmac.compare_digest(str(message.get("token")), self._token):
                    return self._lose(link)
                link.trusted, link.peer = True, str(message.get("node"))
                self.met.add(link.peer)
            elif message.get("kind") in ("ended", "lost"):
                messages.append(message)
                if self._listener is not None:
                    self._ended.add(link.peer)
                    self._tell({**message, "head": False}, but=link)
                elif message.get("head"):
                    self._ended.add(link.peer)
        return messages

    def _lose(self, link: Link) -> list[Message]:
        self._selector.unregister(link.connection)
        link.connection.close()
        self._links.remove(link)
        if not link.trusted or link.peer in self._ended:
            return []
        message = {"kind": "lost", "node": link.peer}
        if self._listener is not None:
            self._tell(message)
        return [message]
