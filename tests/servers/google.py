"""What Google documents of conditional writes, played back: no emulator that can be had here enforces generations.

`x-goog-if-generation-match: 0` means that there must be no object; another number, that this generation must be there;
anything else is 412. Each write has a new generation, told in `x-goog-generation`.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from typing import NamedTuple

MATCH, GENERATION, META = "x-goog-if-generation-match", "x-goog-generation", "x-goog-meta-"


class _Kept(NamedTuple):
    data: bytes
    generation: int
    meta: dict[str, str]


class Google:
    """The objects, and the conditions that were asked for."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.objects: dict[str, _Kept] = {}
        self.generations = count(1_700_000_000_000_001)
        self.conditions: list[str | None] = []


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    google: Google

    def do_PUT(self) -> None:
        data = self.rfile.read(int(self.headers["content-length"]))
        wanted = self.headers.get(MATCH)
        with self.google.lock:
            self.google.conditions.append(wanted)
            now = self.google.objects.get(self.path)
            if wanted is not None and int(wanted) != (now.generation if now else 0):
                self._answer(412, {}, b"<Error><Code>PreconditionFailed</Code></Error>")
                return
            meta = {name.lower(): value for name, value in self.headers.items() if name.lower().startswith(META)}
            kept = self.google.objects[self.path] = _Kept(data, next(self.google.generations), meta)
        self._answer(200, self._headers_of(kept), b"")

    def do_GET(self) -> None:
        kept = self.google.objects.get(self.path)
        if kept is None:
            self._answer(404, {}, b"<Error><Code>NoSuchKey</Code></Error>")
            return
        first, _, last = self.headers.get("range", "bytes=0-").removeprefix("bytes=").partition("-")
        data = kept.data[int(first) : int(last) + 1 if last else None]
        headers = self._headers_of(kept)
        if "range" in self.headers:
            headers["content-range"] = f"bytes {first}-{int(first) + len(data) - 1}/{len(kept.data)}"
        self._answer(206 if "range" in self.headers else 200, headers, data)

    do_HEAD = do_GET  # noqa: N815

    def do_DELETE(self) -> None:
        found = self.google.objects.pop(self.path, None)
        self._answer(204 if found else 404, {}, b"")

    def _headers_of(self, kept: _Kept) -> dict[str, str]:
        told = {"etag": f'"{kept.generation}"', GENERATION: str(kept.generation), **kept.meta}
        return {**told, "last-modified": "Sun, 15 Nov 2026 12:00:00 GMT"}

    def _answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def google() -> Iterator[tuple[Google, str]]:
    played = Google()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"google": played}))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield played, f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
