"""Arrays as bytes and back, and what tells two lists of arrays apart."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from strata.demo.layout import Layout, Total
from strata.errors import InvalidInput

arrays = hnp.arrays(
    st.sampled_from(["<f2", "<f4", "<f8", ">f4", ">f8"]),
    hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
)


@given(st.lists(arrays, max_size=4))
def test_what_is_packed_is_found_again(given_arrays: list[np.ndarray]) -> None:
    layout = Layout.of(given_arrays)
    packed = layout.pack(given_arrays)
    assert len(packed) == layout.total_bytes == sum(each.nbytes for each in given_arrays)
    for view, array in zip(layout.views(packed), given_arrays, strict=True):
        assert view.shape == array.shape
        assert view.tobytes() == array.astype(array.dtype.newbyteorder("<")).tobytes()


def test_arrays_that_are_no_rows_of_memory_are_packed_as_they_read() -> None:
    array = np.arange(12, dtype=np.float32).reshape(3, 4).T[::2]
    layout = Layout.of([array])
    np.testing.assert_array_equal(layout.views(layout.pack([array]))[0], array)


def test_layouts_differ_in_shapes_types_and_order() -> None:
    def digest(*items: tuple[tuple[int, ...], str]) -> bytes:
        return Layout.of([np.zeros(shape, kind) for shape, kind in items]).digest

    different = [
        digest(),
        digest(((4,), "<f4")),
        digest(((2, 2), "<f4")),
        digest(((2,), "<f8")),
        digest(((2,), "<f4"), ((2,), "<f4")),
        digest(((), "<f4")),
        digest(((0,), "<f4")),
    ]
    assert len(set(different)) == len(different)
    assert digest(((4,), ">f4")) == digest(((4,), "<f4")), "how a machine keeps its numbers is its own affair"


@pytest.mark.parametrize("wrong", [np.zeros(2, np.int64), np.zeros(2, np.longdouble), np.zeros(2, complex), [1.0], 3.0])
def test_what_has_no_mean_of_floats_is_refused(wrong: object) -> None:
    with pytest.raises(InvalidInput, match="array 1 is"):
        Layout.of([np.zeros(1), wrong])  # type: ignore[list-item]


def test_a_layout_says_what_it_is() -> None:
    layout = Layout.of([np.zeros((2, 3), np.float32), np.zeros(()), np.zeros(1), np.zeros(1)])
    assert str(layout) == "4 arrays of 48 bytes (float32[2, 3], float64[], float64[1], …)"


def test_what_has_no_weight_is_left_out_whatever_it_is() -> None:
    numbers = np.array([1.0, 2.0], np.float32)
    layout = Layout.of([numbers])
    total = Total(layout)
    total.add(layout.pack([np.array([np.nan, np.inf], np.float32)]), 0.0)
    total.add(layout.pack([numbers]), 3.0)
    np.testing.assert_array_equal(layout.views(total.mean())[0], numbers)


def test_what_overflows_is_infinite_and_no_warning() -> None:
    large = np.array([60000.0, np.inf, -np.inf], np.float16)
    layout = Layout.of([large])
    total = Total(layout)
    total.add(layout.pack([large]), 1.0)
    total.add(layout.pack([np.array([60000.0, -np.inf, -np.inf], np.float16)]), 1.0)
    assert layout.views(total.mean())[0].tolist() == pytest.approx([60000.0, np.nan, -np.inf], nan_ok=True)
