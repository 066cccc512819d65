"""A file cut into stretches that can be verified, each before it goes on."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata import background
from strata.checkpoint import uploading
from strata.checkpoint.manifest import File, digest_of
from strata.checkpoint.store import Store
from strata.checkpoint.uploading import Span, verified
from strata.errors import CheckpointDamaged
from strata.storage import BlockingStorage, MemoryStorage

DATA = np.random.default_rng(1).bytes(1000)


@pytest.fixture(autouse=True)
def _short_stretches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploading, "STRETCH_BYTES", 64)


def span(at: int, size: int, data: bytes = DATA) -> Span:
    return Span(at, size, digest_of(data[at : at + size]), "tensor 'w'")


def read(data: bytes, spans: list[Span]) -> list[bytes]:
    storage = MemoryStorage()
    store = Store(storage, "job")
    BlockingStorage(storage).write(store.key("step_1/part-x"), data)

    async def pieces() -> list[bytes]:
        return [bytes(piece) async for piece in verified(store, File("step_1/part-x", len(DATA)), spans)]

    return background.run(pieces())


spans_of_data = st.lists(
    st.tuples(st.integers(0, len(DATA) - 1), st.integers(1, 200)).map(
        lambda pair: span(pair[0], min(pair[1], len(DATA) - pair[0]))
    ),
    max_size=20,
)


@given(spans_of_data)
def test_all_of_the_file_comes_in_order_and_no_span_is_cut(spans: list[Span]) -> None:
    pieces = read(DATA, spans)
    assert b"".join(pieces) == DATA
    edges = {0, *np.cumsum([len(piece) for piece in pieces]).tolist()}
    assert not any(span.at < edge < span.end for span in spans for edge in edges)


@given(spans_of_data, st.integers(0, len(DATA) - 1))
def test_a_bit_that_flips_in_any_span_is_noticed_before_it_goes_on(spans: list[Span], at: int) -> None:
    bad = DATA[:at] + bytes([DATA[at] ^ 1]) + DATA[at + 1 :]
    if any(span.at <= at < span.end for span in spans):
        with pytest.raises(CheckpointDamaged, match=r"memory:///job/checkpoints/step_1/part-x is damaged: tensor 'w'"):
            read(bad, spans)
    else:
        assert b"".join(read(bad, spans)) == bad


@pytest.mark.parametrize("data", [DATA[:-1], DATA + b"x", b""])
def test_a_file_of_another_length_is_damaged(data: bytes) -> None:
    with pytest.raises(CheckpointDamaged, match="is not 1,000 bytes long"):
        read(data, [])
