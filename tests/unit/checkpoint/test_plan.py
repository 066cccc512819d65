"""Where tensors go in files: as safetensors wants it, aligned, and cut where they are too long."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.checkpoint.manifest import CHUNK_BYTES
from strata.checkpoint.plan import ALIGNMENT, FILE_BYTES, PIECE, Wanted, chunks_of, plan_files

SIZES = {"float64": 8, "float32": 4, "bfloat16": 2, "int8": 1, "complex128": 16}


def wanted(*tensors: tuple[str, int]) -> list[Wanted]:
    return [Wanted(f"t{n}", dtype, (count,), SIZES[dtype] * count, n) for n, (dtype, count) in enumerate(tensors)]


@given(st.lists(st.tuples(st.sampled_from(sorted(SIZES)), st.integers(0, 5000)), min_size=1, max_size=30))
def test_a_file_has_no_holes_and_every_tensor_is_aligned(tensors: list[tuple[str, int]]) -> None:
    (file,) = plan_files(wanted(*tensors))
    assert len(file.header) % ALIGNMENT == 0
    length = int.from_bytes(file.header[:8], "little")
    assert 8 + length == len(file.header)
    entries = json.loads(file.header[8:])
    assert entries.pop("__metadata__") == {"format": "pt"}
    assert len(entries) == len(tensors)
    at = len(file.header)
    for each, place in file.placed:
        assert place == at
        assert place % SIZES[each.dtype] == 0
        begin, end = entries[each.name]["data_offsets"]
        assert (begin, end) == (place - len(file.header), place - len(file.header) + each.size)
        at += each.size
    assert at == file.size


def test_a_full_file_is_followed_by_another() -> None:
    files = plan_files(wanted(*[("float32", 1000)] * 100), file_bytes=64_000)
    assert len(files) > 5
    assert all(file.size <= 64_000 for file in files)
    assert sorted(each.tensor for file in files for each, _ in file.placed) == list(range(100))


def test_a_tensor_longer_than_a_file_is_cut_at_chunks() -> None:
    count = 5 * CHUNK_BYTES // 4 + 100
    files = plan_files(wanted(("float32", count), ("int8", 3)), file_bytes=4 * CHUNK_BYTES)
    pieces = sorted(
        (each.start, each.size, each.name, each.dtype) for f in files for each, _ in f.placed if not each.tensor
    )
    assert [start for start, *_ in pieces] == [0, 3 * CHUNK_BYTES]
    assert sum(size for _, size, *_ in pieces) == 4 * count
    assert pieces[1][2:] == (f"t0@{3 * CHUNK_BYTES}", "uint8")
    assert all(file.size <= 4 * CHUNK_BYTES for file in files)


GIB = 1 << 30


def test_a_tensor_that_fits_into_a_file_is_not_cut() -> None:
    """Who reads a piece with the safetensors library does not see what it is."""
    most = FILE_BYTES - ALIGNMENT
    for size in (3 * GIB, most):
        (file,) = plan_files([Wanted("w", "float32", (size // 4,), size, 0)])
        assert [(each.name, each.dtype) for each, _ in file.placed] == [("w", "float32")]
        assert file.size <= FILE_BYTES
    assert len(plan_files([Wanted("w", "float32", (most // 4 + 1,), most + 4, 0)])) == 2


def test_the_header_counts_with_all_that_fills_it_up() -> None:
    sizes = (2 * GIB, 2 * GIB - 300)
    files = plan_files([Wanted(f"t{n}", "uint8", (size,), size, n) for n, size in enumerate(sizes)])
    assert [file.size - len(file.header) for file in files] == [*sizes]


@pytest.mark.slow
@given(
    st.lists(st.tuples(st.text(max_size=40), st.integers(0, 3 * CHUNK_BYTES), st.integers(0, 60)), max_size=30),
    st.integers(2 * CHUNK_BYTES, 4 * CHUNK_BYTES),
)
def test_no_file_is_too_long_whatever_the_names_and_shapes(
    tensors: list[tuple[str, int, int]], file_bytes: int
) -> None:
    given_ = [
        Wanted(f"{n}{text.replace(PIECE, '')}", "complex128", (1,) * ones + (size,), 16 * size, n)
        for n, (text, size, ones) in enumerate(tensors)
    ]
    files = plan_files(given_, file_bytes)
    assert all(file.size <= file_bytes for file in files)
    found = sorted((each.tensor, each.start, each.size) for file in files for each, _ in file.placed)
    assert sum(size for *_, size in found) == sum(each.size for each in given_)
    whole = {each.name for file in files for each, _ in file.placed if PIECE not in each.name}
    assert whole >= {each.name for each in given_ if each.size + 3 * ALIGNMENT <= file_bytes}


def test_chunks_cover_a_tensor() -> None:
    assert chunks_of(0) == []
    assert chunks_of(1) == [(0, 1)]
    assert chunks_of(CHUNK_BYTES + 1) == [(0, CHUNK_BYTES), (CHUNK_BYTES, 1)]
