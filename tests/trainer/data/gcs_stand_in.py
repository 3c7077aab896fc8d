"""The part of Google Cloud Storage's JSON API that gcsfs uses here: insert, get, list and delete of objects.

Strict: what it doesn't know is answered 400 with the request, so that a test fails instead of passing by luck.
"""

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    objects: dict[tuple[str, str], bytes]  # (bucket, name) → content
    buckets: set[str]

    def log_message(self, *_: object) -> None:
        """Quiet."""

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        bucket, name = self._place(url.path.removeprefix("/download"))
        if bucket not in self.buckets:
            self._answer(404, {"error": {"code": 404, "message": "The specified bucket does not exist."}})
        elif name is None:
            self._list(bucket, query.get("prefix", ""), query.get("delimiter"))
        elif (bucket, name) not in self.objects:
            self._answer(404, {"error": {"code": 404, "message": f"No such object: {bucket}/{name}"}})
        elif query.get("alt") == "media":
            self._answer(200, self.objects[bucket, name])
        else:
            self._answer(200, self._resource(bucket, name))

    def do_POST(self) -> None:
        url = urlsplit(self.path)
        body = self.rfile.read(int(self.headers["Content-Length"]))
        bucket, _ = self._place(url.path.removeprefix("/upload"))
        if parse_qs(url.query).get("uploadType") != ["multipart"]:
            self._answer(400, {"error": {"code": 400, "message": f"unknown here: {self.path}"}})
        elif bucket not in self.buckets:
            self._answer(404, {"error": {"code": 404, "message": "The specified bucket does not exist."}})
        else:
            _, facts, content = body.split(b"--==0==", 2)
            name = json.loads(facts.split(b"\n\n", 1)[1])["name"]
            self.objects[bucket, name] = content.split(b"\n\n", 1)[1].removesuffix(b"\n--==0==--")
            self._answer(200, self._resource(bucket, name))

    def do_DELETE(self) -> None:
        bucket, name = self._place(urlsplit(self.path).path)
        gone = self.objects.pop((bucket, name or ""), None)
        self._answer(404 if gone is None else 204, b"")

    def _place(self, path: str) -> tuple[str, str | None]:
        """/storage/v1/b/BUCKET/o[/NAME] → (bucket, name)."""
        _, _, _, _, bucket, *rest = path.split("/", 6)
        return bucket, unquote(rest[1]) if len(rest) == 2 and rest[1] else None

    def _list(self, bucket: str, prefix: str, delimiter: str | None) -> None:
        names = sorted(name for place, name in self.objects if place == bucket and name.startswith(prefix))
        items, prefixes = [], set()
        for name in names:
            head, mark, _ = name[len(prefix) :].partition(delimiter) if delimiter else (name, "", "")
            if mark:
                prefixes.add(prefix + head + mark)
            else:
                items.append(self._resource(bucket, name))
        self._answer(200, {"kind": "storage#objects", "items": items, "prefixes": sorted(prefixes)})

    def _resource(self, bucket: str, name: str) -> dict[str, Any]:
        content = self.objects[bucket, name]
        md5 = hashlib.md5(content, usedforsecurity=False).digest()
        return {
            "kind": "storage#object",
            "name": name,
            "bucket": bucket,
            "size": str(len(content)),
            "md5Hash": base64.b64encode(md5).decode(),
            "etag": md5.hex(),
            "generation": "1",
            "timeCreated": "2026-01-01T00:00:00Z",
            "updated": "2026-01-01T00:00:00Z",
        }

    def _answer(self, status: int, content: Any) -> None:
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(data)


@contextmanager
def google_storage(*buckets: str) -> Iterator[str]:
    """The address of a server with these buckets, on loopback."""
    handler = type("Handler", (_Handler,), {"objects": {}, "buckets": set(buckets)})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
