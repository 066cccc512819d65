"""A proxy in front of a real HTTP server, which a test can tell to misbehave."""

import http.client
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal, NamedTuple, TypeAlias
from urllib.parse import urlsplit

Fault: TypeAlias = Literal["no such upload", "lose the answer", "fail after", "fail before", "cut", "hang"]


class Request(NamedTuple):
    method: str
    path: str
    headers: dict[str, str]


Rule: TypeAlias = Callable[[Request], Fault | None]


class Proxy:
    """Passes requests on, except where the rule says otherwise; remembers them all."""

    def __init__(self, target: str) -> None:
        self.target = urlsplit(target)
        self.rule: Rule = lambda _: None
        self.requests: list[Request] = []
        self.open_connections = 0
        self.unhang = threading.Event()
        self._lock = threading.Lock()

    def count(self, method: str, part: str = "") -> int:
        return sum(request.method == method and part in request.path for request in self.requests)

    def opened(self, change: int) -> None:
        with self._lock:
            self.open_connections += change


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else each answer waits 40 ms between its head and its body
    proxy: Proxy

    def setup(self) -> None:
        super().setup()
        self.proxy.opened(1)

    def finish(self) -> None:
        self.proxy.opened(-1)
        super().finish()

    def do_GET(self) -> None:
        request = Request(self.command, self.path, {name.lower(): value for name, value in self.headers.items()})
        self.proxy.requests.append(request)
        fault = self.proxy.rule(request)
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        if fault == "hang":
            self.proxy.unhang.wait(60)
        if fault in ("cut", "hang"):
            self.close_connection = True
            return
        if fault == "fail before":
            self._answer(503, [], b"<Error><Code>SlowDown</Code></Error>")
            return
        if fault == "no such upload":
            self._answer(404, [], b"<Error><Code>NoSuchUpload</Code></Error>")
            return
        status, headers, answer = self._pass_on(body)
        if fault == "lose the answer":
            self.close_connection = True
        elif fault == "fail after":
            self._answer(500, [], b"<Error><Code>InternalError</Code></Error>")
        else:
            self._answer(status, headers, answer)

    do_PUT = do_POST = do_DELETE = do_HEAD = do_GET  # noqa: N815

    def _pass_on(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        target = self.proxy.target
        connection = http.client.HTTPConnection(target.hostname or "", target.port, timeout=60)
        try:
            connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                connection.putheader(name, value)
            connection.endheaders(body or None)
            answer = connection.getresponse()
            return answer.status, answer.getheaders(), answer.read()
        finally:
            connection.close()

    def _answer(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                self.send_header(name, value)
        length = {name.lower(): value for name, value in headers}.get("content-length", "0")
        self.send_header("content-length", length if self.command == "HEAD" else str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def proxied(target: str) -> Iterator[tuple[Proxy, str]]:
    """The proxy and its address."""
    proxy = Proxy(target)
    handler = type("Handler", (_Handler,), {"proxy": proxy})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)  # else its end takes long
    thread.start()
    try:
        yield proxy, f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        proxy.unhang.set()
        server.shutdown()
        server.server_close()
        thread.join()
