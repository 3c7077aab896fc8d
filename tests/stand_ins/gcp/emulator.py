"""The stand-in for GCP: a double of Google's REST APIs with faults on order. For tests; client.py says how to use it.

    python -m tests.stand_ins.gcp.emulator      prints its port on 127.0.0.1 and serves until its standard input closes

Every request needs a token from our /token, which takes only assertions that the fixture's own key signed. Then: faults
that a test ordered; the published discovery document (unknown field, wrong type, wrong enum, unknown parameter); the
rules in rules.py and instance_rules.py; and the answer. One project, everybody in it may do everything.

It can't: auto-mode and shared networks, default network, GPUs on N1, managed groups, bulkInsert, snapshots, batch
requests, field masks, and any method that isn't named in compute.py or other_apis.py: those answer 400
notImplementedByStandIn, never 5xx, which clients would repeat.
"""

from __future__ import annotations

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from google.auth import jwt

from tests.stand_ins.gcp import compute, other_apis, schemas
from tests.stand_ins.gcp.cloud import Cloud
from tests.stand_ins.gcp.controls import Controls
from tests.stand_ins.gcp.errors import GcpError
from tests.stand_ins.gcp.schemas import Request

HOST = "127.0.0.1"


def to_bytes(body: Any) -> bytes:
    return json.dumps(body).encode()


class Emulator:
    """The server and what it serves; `reset` gives a new, empty cloud on the same port."""

    def __init__(self) -> None:
        self.lock = threading.RLock()  # one request at a time; what hangs does so outside
        self.cloud = Cloud()
        emulator = self

        class Handler(_Handler):
            owner = emulator

        self._server = ThreadingHTTPServer((HOST, 0), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self.cloud.faults.release(execute=False)
        self._server.shutdown()
        self._server.server_close()

    def reset(self) -> None:
        with self.lock:
            self.cloud.faults.release(execute=False)
            key = self.cloud.public_key
            self.cloud = Cloud()
            self.cloud.public_key = key

    # -- one request ------------------------------------------------------------------------------------------------

    def token(self, form: dict[str, str]) -> tuple[int, Any]:
        """OAuth for service accounts: an assertion signed with the key that the fixture registered."""
        faults = self.cloud.faults
        if form.get("grant_type") != "urn:ietf:params:oauth:grant-type:jwt-bearer":
            return 400, {"error": "unsupported_grant_type", "error_description": "Invalid grant_type"}
        try:
            if faults.key_revoked:
                raise ValueError("key revoked")
            claims = jwt.decode(form.get("assertion", ""), certs=self.cloud.public_key)
            if not claims.get("scope"):
                return 400, {"error": "invalid_scope", "error_description": "Invalid OAuth scope or ID token audience"}
        except ValueError:
            return 400, {"error": "invalid_grant", "error_description": "Invalid JWT Signature."}
        token = f"ya29.stand-in-{len(faults.tokens) + 1}"
        faults.tokens[token] = faults.generation
        return 200, {"access_token": token, "expires_in": 3599, "token_type": "Bearer"}

    def call(self, verb: str, target: str, authorization: str, raw: bytes) -> tuple[int, bytes] | None:
        """Google's answer to one request; None when the connection is to be dropped."""
        cloud = self.cloud
        url = urlsplit(target)
        query = dict(parse_qsl(url.query, keep_blank_values=True))
        try:
            method, arguments = schemas.find_method(verb, url.path)
        except GcpError as error:
            return error.code, to_bytes(error.to_json())
        arguments = {key: unquote(value) for key, value in arguments.items()}
        try:
            body = json.loads(raw) if raw else {}
        except ValueError:
            body = None
        entry = cloud.faults.note(method.id, arguments, query, body)
        if not cloud.faults.hang(method.id, entry["number"], "before"):
            entry["outcome"] = "dropped"
            return None
        code, answer = self._answer(
            cloud, Request(method=method, arguments=arguments, query=query, body=body), authorization
        )
        entry["outcome"] = code
        if not cloud.faults.hang(method.id, entry["number"], "after"):
            return None
        with self.lock:
            spoilt = cloud.faults.spoils(method.id)
        return code, {"malformed": b'{"kind": "compute#', "empty": b""}.get(spoilt or "", answer)

    def _answer(self, cloud: Cloud, request: Request, authorization: str) -> tuple[int, bytes]:
        with self.lock:
            try:
                cloud.faults.authorise(authorization.removeprefix("Bearer "), request.method.id)
                cloud.faults.api(request.method.api)
                cloud.faults.error_for(request.method.id)
                schemas.check(request.method, request.query, request.body)
                of = compute if request.method.api == "compute" else other_apis
                answer = of.answer(cloud, request)
            except GcpError as error:
                return error.code, to_bytes(error.to_json())
            return (204, b"") if answer is None else (200, to_bytes(answer))


class _Handler(BaseHTTPRequestHandler):
    owner: Emulator
    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16  # head and body in one packet

    def _serve(self) -> None:
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path == "/token":
            code, answer = self.owner.token(dict(parse_qsl(raw.decode())))
            self._send(code, to_bytes(answer))
        elif self.path.startswith("/_stand_in/"):
            try:
                done = Controls(self.owner).apply(self.path.removeprefix("/_stand_in/"), json.loads(raw or b"{}"))
                self._send(200, to_bytes(done))
            except (AttributeError, KeyError, TypeError, ValueError) as error:
                self._send(400, to_bytes({"error": f"{type(error).__name__}: {error}"}))
        else:
            answered = self.owner.call(self.command, self.path, self.headers.get("Authorization", ""), raw)
            if answered is None:
                self.close_connection = True
                return
            self._send(*answered)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve

    def _send(self, code: int, body: bytes) -> None:
        try:
            self.send_response(code)
            self.send_header("Content-Type", "application/json; charset=UTF-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            self.wfile.flush()
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True  # the client was killed meanwhile, as tests do

    def log_message(self, *_: Any) -> None:
        """The call log is what there is."""


if __name__ == "__main__":
    emulator = Emulator()
    emulator.start()
    print(emulator.port, flush=True)
    sys.stdin.read()
