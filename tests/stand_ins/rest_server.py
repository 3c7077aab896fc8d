"""What stand-ins for REST APIs share: a server on loopback, faults on order, calls that hang, a list of the calls."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

HANGS, CLOSES = -1, 0
"""Statuses of no answer: none until the stand-in goes, and a connection that closes."""


@dataclass
class Fault:
    method: str
    path: re.Pattern[str]
    times: int
    status: int
    body: bytes
    executes: bool
    """Whether the call is carried out before the fault."""


class RestServer:
    """`with` serves it. `perform` is the API; it is called by one thread at a time."""

    def __init__(self, *, address: str = "127.0.0.1") -> None:
        self.calls: list[tuple[str, str]] = []
        """Method and path, without its query."""
        self.faults: list[Fault] = []
        self._lock = threading.RLock()
        self._gone, self._hanging = threading.Event(), threading.Event()
        self._server = ThreadingHTTPServer((address, 0), _handler(self))
        self._server.daemon_threads = True

    @property
    def url(self) -> str:
        return f"http://{self._server.server_address[0]!s}:{self._server.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._gone.set()
        self._server.shutdown()
        self._server.server_close()

    def perform(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> tuple[int, Any]:
        """Status, and what the answer's JSON (bytes: the answer itself) is. `target` has the query."""
        raise NotImplementedError

    def fail(
        self,
        method: str,
        path: str,
        *,
        status: int = 500,
        body: bytes = b'{"error": "As ordered."}',
        times: int = 1,
        executes: bool = False,
    ) -> None:
        """The next `times` such calls (`path`: a pattern) are answered so."""
        self.faults.append(Fault(method, re.compile(path), times, status, body, executes))

    def hang(self, method: str, path: str, *, executes: bool) -> None:
        """The next such call isn't answered, until the stand-in goes."""
        self._hanging.clear()
        self.fail(method, path, status=HANGS, executes=executes)

    def wait_until_hanging(self) -> None:
        assert self._hanging.wait(timeout=120), "no call came to hang"

    def answer(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> tuple[int, bytes]:
        path = target.partition("?")[0]
        with self._lock:
            self.calls.append((method, path))
            fault = next((f for f in self.faults if f.method == method and f.path.fullmatch(path)), None)
            if fault is None:
                status, told = self.perform(method, target, headers, body)
                return status, told if isinstance(told, bytes) else json.dumps(told).encode()
            fault.times -= 1
            if fault.times == 0:
                self.faults.remove(fault)
            if fault.executes:
                self.perform(method, target, headers, body)
        if fault.status == HANGS:
            self._hanging.set()
            self._gone.wait()
            return CLOSES, b""
        return fault.status, fault.body


def _handler(server: RestServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # the body would wait 40 ms for the head to be acknowledged

        def _any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, content = server.answer(self.command, self.path, self.headers, body)
            if status == CLOSES:
                self.close_connection = True
                return
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _any

        def log_message(self, *_: object) -> None:
            """Nothing: tests look at `calls`."""

    return Handler
