"""A kind word for those who come to the wrong door: HTTP/1 on a port that speaks HTTP/2."""

_METHODS = (b"GET ", b"POST", b"PUT ", b"HEAD", b"DELE", b"OPTI", b"PATC", b"CONN", b"TRAC")
_WORDS = b"This port speaks gRPC: HTTP/2 from the first byte, not HTTP/1.\n"
_HEAD = b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"


def answer_to_http1(hello: bytes) -> bytes | None:
    """What to say, if it is HTTP/1 at all."""
    return _HEAD % len(_WORDS) + _WORDS if hello.startswith(_METHODS) else None
