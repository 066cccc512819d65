"""Element types by the name that a checkpoint uses for them, which is numpy's and torch's own.

Where safetensors has no such type, the bytes are stored as U8 and the manifest alone knows better.
"""

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from strata.errors import InvalidInput


class Dtype(NamedTuple):
    """What an element takes, and what safetensors calls it."""

    name: str
    bytes: int
    stored: str


KNOWN = {
    dtype.name: dtype
    for dtype in (
        Dtype("bool", 1, "BOOL"),
        Dtype("uint8", 1, "U8"),
        Dtype("int8", 1, "I8"),
        Dtype("int16", 2, "I16"),
        Dtype("uint16", 2, "U16"),
        Dtype("int32", 4, "I32"),
        Dtype("uint32", 4, "U32"),
        Dtype("int64", 8, "I64"),
        Dtype("uint64", 8, "U64"),
        Dtype("float16", 2, "F16"),
        Dtype("bfloat16", 2, "BF16"),
        Dtype("float32", 4, "F32"),
        Dtype("float64", 8, "F64"),
        Dtype("float8_e4m3fn", 1, "F8_E4M3"),
        Dtype("float8_e5m2", 1, "F8_E5M2"),
        Dtype("float8_e8m0fnu", 1, "F8_E8M0"),
        Dtype("complex64", 8, "C64"),
        Dtype("float8_e4m3fnuz", 1, "U8"),
        Dtype("float8_e5m2fnuz", 1, "U8"),
        Dtype("complex32", 4, "U8"),
        Dtype("complex128", 16, "U8"),
    )
}
_NUMPY = "numpy:"
"""Begins the name of a type that only numpy has: a date, a text of fixed length, another byte order."""


def dtype_of(name: str) -> Dtype:
    """The type of this name; InvalidInput if there is none."""
    known = KNOWN.get(name)
    if known is not None:
        return known
    if name.startswith(_NUMPY):
        return Dtype(name, numpy_dtype(name).itemsize, "U8")
    raise InvalidInput(f"{name!r} is no element type that this version of Strata knows: a newer one wrote it")


def raw(item: int) -> "np.dtype[np.generic]":
    """Something of as many bytes: they are copied, and mean nothing."""
    return np.dtype(_RAW.get(item, f"V{item}"))


_RAW = {1: "u1", 2: "u2", 4: "u4", 8: "u8", 16: "c16"}
"""Those that numpy copies fastest."""


def name_of_numpy(dtype: "np.dtype[np.generic]") -> str | None:
    """The name of numpy's type; None for one whose elements are no plain bytes, or differ from machine to machine."""
    return _name_of_numpy(dtype, dtype.char)


@lru_cache(maxsize=1024)
def _name_of_numpy(dtype: "np.dtype[np.generic]", char: str) -> str | None:
    """numpy makes the name anew each time. Types that are equal may still differ in their letters."""
    if dtype.hasobject or dtype.fields is not None:
        return None
    if dtype.kind in "fc" and char in "gG":  # types of other packages may have these letters, too
        return None
    if dtype.isnative and dtype.name in KNOWN:
        return dtype.name
    return f"{_NUMPY}{dtype.str}" if dtype.kind in "biufcmMSU" else None


def numpy_dtype(name: str) -> "np.dtype[np.generic]":
    """numpy's own type; those it lacks are in the package ml_dtypes. Only what `name_of_numpy` gives, or is known: any
    other name could be that of Python objects, whose addresses a file would then choose."""
    if name.startswith(_NUMPY):
        return _only_numpys(name)
    if name not in KNOWN:
        raise InvalidInput(f"{name!r} is no element type that this version of Strata knows: a newer one wrote it")
    try:
        return np.dtype(name)
    except TypeError:
        pass
    try:
        import ml_dtypes

        found: np.dtype[np.generic] = np.dtype(getattr(ml_dtypes, name))
    except (ImportError, AttributeError):
        raise InvalidInput(f"numpy has no {name}: install ml_dtypes, or load into torch or JAX arrays") from None
    return found


def _only_numpys(name: str) -> "np.dtype[np.generic]":
    try:
        found = np.dtype(name[len(_NUMPY) :])
    except (TypeError, ValueError, SyntaxError) as error:
        raise InvalidInput(f"{name!r} is no type of numpy's") from error
    if name_of_numpy(found) != name:
        raise InvalidInput(f"{name!r} is no type that a checkpoint holds")
    return found
