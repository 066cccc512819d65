"""An S3 server that keeps nothing, in a process of its own: what a client can do when the server is no limit.

It takes PutObject and multipart uploads, reads every body and compares it with the digest that the request was signed
with; a wrong one gets 400. Signatures themselves are not checked, nor is anything stored. A thread for each connection,
since both receiving and hashing let other threads run.
"""

import hashlib
import multiprocessing
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from multiprocessing.connection import Connection
from typing import NamedTuple

BUFFER_BYTES = 256 << 10
"""Small enough to be hashed while still in the processor's cache."""
UNSIGNED = "UNSIGNED-PAYLOAD"
WRONG_DIGEST = hashlib.sha256(b"something else").hexdigest()


class Request(NamedTuple):
    method: str
    target: str
    headers: dict[str, str]


@contextmanager
def running() -> Iterator[str]:
    """The address of a sink, which ends with the block."""
    processes = multiprocessing.get_context("spawn")
    ours, theirs = processes.Pipe()
    process = processes.Process(target=_serve, args=(theirs,), daemon=True)
    process.start()
    theirs.close()  # so that a sink that dies at its start is an error here, and not waited for
    try:
        port: int = ours.recv()
        _check_refusal(port)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.join()


def _check_refusal(port: int) -> None:
    """A sink that accepts anything would prove nothing."""
    connection = HTTPConnection("127.0.0.1", port)
    connection.request("PUT", "/bucket/key", b"x" * 1000, {"x-amz-content-sha256": WRONG_DIGEST})
    if connection.getresponse().status != 400:
        raise RuntimeError("the sink accepted a body with a wrong digest")
    connection.close()


def _serve(ready: Connection) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
        ready.send(listener.getsockname()[1])
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=_converse, args=(connection,), daemon=True).start()


def _converse(connection: socket.socket) -> None:
    buffer = memoryview(bytearray(BUFFER_BYTES))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with connection:
        over = b""
        while request := _head(connection, over):
            head, over = request
            digest, over = _body(connection, head, over, buffer)
            connection.sendall(_answer(head, digest))


def _head(connection: socket.socket, received: bytes) -> tuple[Request, bytes] | None:
    while b"\r\n\r\n" not in received:
        more = connection.recv(64 << 10)
        if not more:
            return None
        received += more
    head, _, rest = received.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    method, target, _ = first.split(" ", 2)
    pairs = (line.partition(":") for line in lines)
    return Request(method, target, {name.lower(): value.strip() for name, _, value in pairs}), rest


def _body(connection: socket.socket, head: Request, over: bytes, buffer: memoryview) -> tuple[str, bytes]:
    """Its digest, and what was received after it; hashed only if the client did so too."""
    left = int(head.headers.get("content-length", "0"))
    if "100-continue" in head.headers.get("expect", "").lower():
        connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
    hashed, digest = head.headers.get("x-amz-content-sha256", UNSIGNED) != UNSIGNED, hashlib.sha256(over[:left])
    left, over = max(0, left - len(over)), over[left:]
    while left:
        # As a whole, since every call takes the interpreter's lock from the other connections.
        count = connection.recv_into(buffer, min(left, BUFFER_BYTES), socket.MSG_WAITALL)
        if not count:
            raise ConnectionError("the client went away within a body")
        if hashed:
            digest.update(buffer[:count])
        left -= count
    return digest.hexdigest() if hashed else UNSIGNED, over


def _answer(head: Request, digest: str) -> bytes:
    if head.headers.get("x-amz-content-sha256", UNSIGNED) != digest:
        return _response("400 Bad Request", "<Error><Code>XAmzContentSHA256Mismatch</Code></Error>")
    if head.method == "DELETE":
        return _response("204 No Content", "")
    if head.method == "POST" and "uploads" in head.target.partition("?")[2].split("&")[0]:
        return _response("200 OK", _result("InitiateMultipartUpload", "<UploadId>1</UploadId>"))
    if head.method == "POST":
        return _response("200 OK", _result("CompleteMultipartUpload", '<ETag>"1"</ETag>'))
    return _response("200 OK", "")


def _result(name: str, inside: str) -> str:
    return f"<{name}Result><Bucket>bucket</Bucket><Key>key</Key>{inside}</{name}Result>"


def _response(status: str, body: str) -> bytes:
    return f'HTTP/1.1 {status}\r\nETag: "1"\r\nContent-Length: {len(body)}\r\n\r\n{body}'.encode()
