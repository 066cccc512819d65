"""Deriving 64-bit keys: the one source of everything that looks random in Strata.

Integers are spread by the finaliser of splitmix64; seeds and names are folded by BLAKE2b. All of it is fixed
arithmetic modulo 2**64, so the same input gives the same key on every machine and under every version of numpy.
Nothing here may use a random number generator, a float or `hash()`. Not fit for secrets.
"""

from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from strata.errors import InvalidInput

Keys = NDArray[np.uint64]

_MASK = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB


def check_seed(value: object, what: str = "seed") -> int:
    """The seed itself, or InvalidInput. Any integer will do, negative and huge ones too; 1.0, True and "1" will not."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidInput(f"{what} must be an integer, not {type(value).__name__} ({value!r})")
    return value


def finalise(value: int) -> int:
    """The splitmix64 finaliser of an integer modulo 2**64: a bijection in which every bit touches every other."""
    value &= _MASK
    value = (value ^ (value >> 30)) * _FIRST & _MASK
    value = (value ^ (value >> 27)) * _SECOND & _MASK
    return value ^ (value >> 31)


def finalise_in_place(values: Keys) -> Keys:
    """`finalise` over an array, which it overwrites and returns."""
    # In place, because fresh memory costs more than the arithmetic; and augmented assignment keeps even a 0-d array
    # an array, where numpy's scalars would warn of the very overflow that is meant.
    values ^= values >> np.uint64(30)
    values *= np.uint64(_FIRST)
    values ^= values >> np.uint64(27)
    values *= np.uint64(_SECOND)
    values ^= values >> np.uint64(31)
    return values


def subkey(*parts: int) -> int:
    """A 64-bit key from any integers of any size; another number, order or value of parts gives an unrelated key."""
    digest = blake2b(digest_size=8)
    for part in parts:
        size = part.bit_length() // 8 + 1
        digest.update(size.to_bytes(8, "little"))
        digest.update(part.to_bytes(size, "little", signed=True))
    return int.from_bytes(digest.digest(), "little")


def subkeys(key: int | Keys, indexes: NDArray[np.int64]) -> Keys:
    """One key for each index (0 or more) under a key: a bijection of the index, so no two indexes share one.

    With an array of keys the two are broadcast against each other.
    """
    steps = indexes.astype(np.uint64)
    steps += np.uint64(1)
    steps *= np.uint64(_GOLDEN)
    return finalise_in_place(steps + np.asarray(key, dtype=np.uint64))


def keys(seed: int, count: int) -> Keys:
    """The keys of 0..count-1 under a seed, all distinct: the first `count` outputs of splitmix64 from that state."""
    return subkeys(subkey(seed), np.arange(count, dtype=np.int64))


def name_key(text: str) -> int:
    """The 64-bit key of a name."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")
