"""One node's SSH connection: opened on first use with retries until one deadline, kept, opened again after a loss.

Fabric's Connection, with three settings of ours on it and on its gateway: the Cluster's host key instead of Fabric's
AutoAddPolicy, the stack's key instead of the user's keys and agent, and no ssh_config file at all.
"""

from __future__ import annotations

import contextlib
import logging
import random
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import fabric
import paramiko
from paramiko.hostkeys import HostKeyEntry, InvalidHostKey

from bootstrap.errors import AuthenticationError, ChannelError, ConnectError, HostKeyError, Interrupted, KeyFileError
from bootstrap.hosts import check_key_file, endpoint, known_host
from infra.cluster import Node

AUTHENTICATION_WINDOW_S = 20.0
"""A machine that is starting may listen before its authorized_keys is there; longer than this it is a refusal."""
ATTEMPT_S = 15.0
"""Limit of each phase of one attempt: TCP, banner, authentication, channel."""
KEEPALIVE_S = 15
CLOSE_S = 5.0
_DEAD_LINK_MS = 45_000


class _UnknownHostKey(Exception):
    def __init__(self, key: paramiko.PKey) -> None:
        self.key = key
        super().__init__("unknown host key")


class _Refuse(paramiko.RejectPolicy):
    """RejectPolicy, with the key that was shown."""

    def missing_host_key(self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> NoReturn:  # noqa: ARG002
        raise _UnknownHostKey(key)


def load_key(path: Path) -> paramiko.PKey:
    """The stack's private key. Raises KeyFileError that says what is wrong with the file."""
    check_key_file(path)
    try:
        # None as the passphrase, so nothing here ever prompts.
        return paramiko.PKey.from_path(path)
    except (paramiko.PasswordRequiredException, TypeError):
        raise KeyFileError(
            f"{path} needs a passphrase, and nothing here asks for one: take it off with `ssh-keygen -p -f {path}` "
            "(agents aren't used: only the stack's key file counts)"
        ) from None
    except (paramiko.SSHException, ValueError) as error:
        raise KeyFileError(
            f"{path} isn't a private key that OpenSSH reads ({error}): move it away and run `pulumi up`, "
            "which makes one"
        ) from None


class Link:
    """The connection to one node; `gateway` is the head's Link for a node without a public address.

    Safe to use from several threads: they share the connection and each has its own channel.
    """

    def __init__(self, node: Node, *, key_file: Path, gateway: Link | None, deadline_s: float) -> None:
        self.node = node
        self._key_file = key_file
        self._gateway = gateway
        self._deadline_s = deadline_s
        self._connection: fabric.Connection | None = None
        self._opening = threading.Lock()
        # paramiko keeps the reason of a refusal in one place for all: of two refused at once, one would get none.
        self._asking = threading.Lock()
        self._ending = threading.Event()
        self._commands = 0
        self._changed = threading.Condition()

    @property
    def address(self) -> str:
        return known_host(endpoint(self.node))

    def transport(self) -> paramiko.Transport:
        """The open connection, opened if it isn't. Raises ConnectError (its subclasses say more) or KeyFileError."""
        with self._opening:
            if self._connection is None or not self._connection.is_connected:
                self._connection = self._open()
            transport: paramiko.Transport = self._connection.transport
            return transport

    def channel(self) -> paramiko.Channel:
        """A new session channel; a refusal (MaxSessions) is retried until the deadline. Raises ConnectError."""
        deadline = time.monotonic() + self._deadline_s
        pauses = _pauses()
        while True:
            transport = self.transport()
            try:
                with self._asking:
                    return transport.open_session(timeout=ATTEMPT_S)
            except paramiko.ChannelException as error:
                why = f"it refuses one more session ({error})"
            except (paramiko.SSHException, EOFError, OSError) as error:
                # The connection that stood is gone, or was gone for long and nobody noticed (a laptop that slept).
                transport.close()
                why = f"the connection broke ({error})"
            self._pause(next(pauses), deadline, ChannelError(f"{self.node.name}: {why}; close other connections to it"))

    @contextlib.contextmanager
    def command(self) -> Iterator[None]:
        """Around each command, so that `close` can wait until the commands are ended on the node too."""
        with self._changed:
            self._commands += 1
        try:
            yield
        finally:
            with self._changed:
                self._commands -= 1
                self._changed.notify_all()

    def check_open(self) -> None:
        """Raises Interrupted when the link is being closed."""
        if self._ending.is_set():
            raise Interrupted(f"{self.node.name}: interrupted, because the connections were closed here")

    def interrupt(self) -> None:
        """Asks every command and every wait for a connection to end."""
        self._ending.set()

    def close(self) -> None:
        """Interrupts, gives the commands a moment to be ended on the node, and ends the connection."""
        self.interrupt()
        with self._changed:
            self._changed.wait_for(lambda: self._commands == 0, CLOSE_S)
        connection = self._connection
        if connection is not None:
            connection.client.close()

    def _open(self) -> fabric.Connection:
        key = load_key(self._key_file)
        deadline = time.monotonic() + self._deadline_s
        refused_since: float | None = None
        for pause in _pauses():
            gateway = self._open_gateway()
            connection = _connection(self.node, key, gateway=gateway, timeout_s=self._attempt_s(deadline))
            error: ConnectError
            try:
                connection.open()
            except paramiko.BadHostKeyException as bad:
                connection.client.close()
                raise self._host_key_error(bad.key) from None
            except _UnknownHostKey as unknown:
                connection.client.close()
                raise self._host_key_error(unknown.key) from None
            except paramiko.AuthenticationException:
                refused_since = refused_since if refused_since is not None else time.monotonic()
                error = AuthenticationError(
                    f"{self.node.name}: {self.node.user} at {self.address} refuses the stack's key {self._key_file}: "
                    "the key or the machine is from another `pulumi up`: run `pulumi up` again"
                )
                deadline = min(deadline, refused_since + AUTHENTICATION_WINDOW_S)
            except (paramiko.SSHException, EOFError, OSError) as problem:
                error = self._connect_error(problem)
            else:
                _guard_against_silence(connection.transport)
                return connection
            connection.client.close()
            self._pause(pause, deadline, error)
        raise AssertionError("the pauses have no end")

    def _open_gateway(self) -> fabric.Connection | None:
        if self._gateway is None:
            return None
        try:
            self._gateway.transport()
        except ConnectError as error:
            raise type(error)(f"{self.node.name}: is reached through the head, and {error}") from None
        return self._gateway._connection

    def _attempt_s(self, deadline: float) -> float:
        return max(0.5, min(ATTEMPT_S, deadline - time.monotonic()))

    def _pause(self, pause_s: float, deadline: float, error: ConnectError) -> None:
        """Waits before the next attempt, or raises `error` when there is no time for one."""
        if time.monotonic() + pause_s >= deadline:
            raise error
        self._ending.wait(pause_s)
        self.check_open()

    def _host_key_error(self, got: paramiko.PKey) -> HostKeyError:
        expected = _host_key(self.node)
        return HostKeyError(
            f"{self.node.name}: the machine at {self.address} shows host key {got.get_name()} {got.fingerprint}, "
            f"expected {expected.get_name()} {expected.fingerprint}: another machine answers there, so nothing was "
            "sent; run `pulumi refresh` if it was replaced, and don't go on before you know why"
        )

    def _connect_error(self, problem: Exception) -> ConnectError:
        return ConnectError(
            f"{self.node.name}: no SSH login at {self.address} within {self._deadline_s:g} s: {_phase(problem)}; see "
            "whether the machine runs (`pulumi refresh`) and whether this network may reach it"
        )


def quiet_paramiko() -> None:
    """Keeps paramiko's own threads from printing tracebacks for what is retried or reported here."""
    for name in ("paramiko", "fabric", "invoke"):
        logger = logging.getLogger(name)
        if not logger.handlers:
            logger.addHandler(logging.NullHandler())


def _connection(
    node: Node, key: paramiko.PKey, *, gateway: fabric.Connection | None, timeout_s: float
) -> fabric.Connection:
    where = endpoint(node)
    # `lazy` and an empty SSHConfig: no fabric.yaml and no ssh_config of the user or the system is read.
    config = fabric.Config(lazy=True, ssh_config=paramiko.SSHConfig())
    connection = fabric.Connection(
        where.host,
        user=node.user,
        port=where.port,
        config=config,
        gateway=gateway if gateway is not None else False,
        forward_agent=False,
        connect_kwargs={
            "pkey": key,
            "allow_agent": False,
            "look_for_keys": False,
            "timeout": timeout_s,
            "banner_timeout": timeout_s,
            "auth_timeout": timeout_s,
            "channel_timeout": ATTEMPT_S,
        },
    )
    # Fabric has set AutoAddPolicy by now, which takes any key that anybody shows.
    connection.client.set_missing_host_key_policy(_Refuse())
    host_key = _host_key(node)
    connection.client.get_host_keys().add(known_host(where), host_key.get_name(), host_key)
    return connection


def _host_key(node: Node) -> paramiko.PKey:
    try:
        entry = HostKeyEntry.from_line(" ".join(["node", *node.host_key.split()[:2]]))
    except (InvalidHostKey, paramiko.SSHException, ValueError):
        entry = None
    if entry is None or entry.key is None:
        raise HostKeyError(
            f"{node.name}: the Cluster's host key {node.host_key!r} isn't a public key: run `pulumi up` again"
        )
    return entry.key


def _phase(problem: Exception) -> str:
    """How far the last attempt came, in words."""
    text = str(problem)
    if isinstance(problem, paramiko.ChannelException):
        return f"the head can't reach it ({text})"
    if isinstance(problem, socket.gaierror):
        return "its name can't be resolved to an address"
    if isinstance(problem, ConnectionRefusedError | paramiko.ssh_exception.NoValidConnectionsError):
        return "nothing listens there (refused or no route)"
    if isinstance(problem, TimeoutError):
        return "no answer"
    if isinstance(problem, EOFError | ConnectionResetError) or "banner" in text:
        return "it accepts the connection and then says nothing or hangs up (still starting, or MaxStartups)"
    return text or type(problem).__name__


def _pauses() -> Iterator[float]:
    """Backoff with jitter, so that many connections dropped at once don't come back at once."""
    pause = 0.1
    while True:
        yield pause * random.uniform(0.5, 1.5)  # noqa: S311
        pause = min(2.0, pause * 1.7)


def _guard_against_silence(transport: paramiko.Transport) -> None:
    """A link that died without a word is noticed within a minute: something is sent, and must be acknowledged."""
    transport.set_keepalive(KEEPALIVE_S)
    if isinstance(transport.sock, socket.socket) and hasattr(socket, "TCP_USER_TIMEOUT"):
        transport.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _DEAD_LINK_MS)
