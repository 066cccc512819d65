"""Which package an array belongs to, without importing any."""

import sys
from collections.abc import Callable

from strata.checkpoint.frameworks.base import Framework
from strata.checkpoint.frameworks.numpy import NumpyArrays
from strata.errors import InvalidInput

_NUMPY = NumpyArrays()
_found: dict[str, Framework] = {"numpy": _NUMPY}


def _torch() -> Framework:
    from strata.checkpoint.frameworks.torch import TorchArrays

    return TorchArrays()


def _jax() -> Framework:
    from strata.checkpoint.frameworks.jax import JaxArrays

    return JaxArrays()


def _tensorflow() -> Framework:
    from strata.checkpoint.frameworks.tensorflow import TensorflowArrays

    return TensorflowArrays()


_MAKERS: dict[str, Callable[[], Framework]] = {"torch": _torch, "jax": _jax, "tensorflow": _tensorflow}


_by_type: dict[type, Framework] = {}
known_framework = _by_type.get
"""The package whose arrays are of exactly this type, if one of them was met before."""


def framework_of(value: object) -> Framework | None:
    """The package whose array this is; None for what is no array."""
    known = known_framework(type(value))
    if known is not None:
        return known
    if _NUMPY.owns(value):
        found: Framework | None = _NUMPY
    else:
        there = (framework_named(name) for name in _MAKERS if name in sys.modules)
        found = next((package for package in there if package.owns(value)), None)
    if found is not None:
        _by_type[type(value)] = found
    return found


def know(kind: type, framework: Framework) -> None:
    """Values of this type are arrays, of that package."""
    _by_type[kind] = framework


def framework_named(name: str) -> Framework:
    """That package, which must be installed."""
    known = _found.get(name)
    if known is not None:
        return known
    if name not in _MAKERS:
        raise InvalidInput(f"arrays of {name!r} are unknown to this version of Strata: a newer one wrote them")
    try:
        made = _found[name] = _MAKERS[name]()
    except ImportError as error:
        raise InvalidInput(f"the checkpoint holds arrays of {name}, which is not installed here: {error}") from error
    return made
