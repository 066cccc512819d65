"""The Huffman code of header strings (RFC 7541, appendix B), read a byte at a time.

What a byte means depends on where in the code the one before it ended. Each such step is worked out bit by bit when it
first occurs, and kept: there are at most 65,536 of them.
"""

from typing import TypeAlias

from strata.rpc.rfc7541 import CODE_LENGTHS

_END = 256
"""The symbol that stands for the end, and must not occur."""
_PADDING_BITS = 7

Node: TypeAlias = list[int]
"""Where 0 and 1 lead: to a node, or below 0 to the symbol ~n."""


class BadCode(ValueError):
    """No string is written so."""


def _tree() -> list[Node]:
    nodes: list[Node] = [[0, 0]]
    code, before = -1, 0
    for length, symbol in sorted((length, symbol) for symbol, length in enumerate(CODE_LENGTHS)):
        code, before = (code + 1) << (length - before), length
        at = 0
        for bit in (code >> shift & 1 for shift in range(length - 1, 0, -1)):
            if not nodes[at][bit]:
                nodes.append([0, 0])
                nodes[at][bit] = len(nodes) - 1
            at = nodes[at][bit]
        nodes[at][code & 1] = ~symbol
    return nodes


_nodes = _tree()
_steps: dict[int, tuple[bytes, int]] = {}


def _padding() -> frozenset[int]:
    """Where a string may end: at a symbol's end, or within a few ones after it."""
    at, found = 0, [0]
    for _ in range(_PADDING_BITS):
        at = _nodes[at][1]
        found.append(at)
    return frozenset(found)


_ends = _padding()


def decode(coded: bytes) -> bytes:
    at, found = 0, []
    for byte in coded:
        step = _steps.get(at << 8 | byte) or _step(at, byte)
        found.append(step[0])
        at = step[1]
    if at not in _ends:
        raise BadCode("a string of header fields ends within a symbol")
    return b"".join(found)


def _step(at: int, byte: int) -> tuple[bytes, int]:
    """From one node over eight bits to another, and the symbols on the way."""
    start, found = at, bytearray()
    for shift in range(7, -1, -1):
        at = _nodes[at][byte >> shift & 1]
        if at < 0:
            if ~at == _END:
                raise BadCode("a string of header fields has the symbol that ends it")
            found.append(~at)
            at = 0
    step = _steps[start << 8 | byte] = bytes(found), at
    return step
