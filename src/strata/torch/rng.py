"""Generators of random numbers: those that Python, numpy and torch have for everybody, and any of your own.

Restored exactly: the next draw is the one that would have been next. A CUDA device that is not there is left out; one
that the checkpoint knows nothing of goes on as it is.
"""

import random
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
import torch

from strata.checkpoint.marks import PerRank
from strata.errors import InvalidInput
from strata.torch.components import Fit, Found, all_new

Generator: TypeAlias = torch.Generator | np.random.Generator | np.random.RandomState | random.Random
CUDA = "cuda:"


class RngState:
    """The state of all generators, by name: `python`, `numpy`, `torch`, `cuda:0`, and your own."""

    kind = None

    def __init__(self, own: Mapping[str, Generator]) -> None:
        if not isinstance(own, Mapping):
            raise InvalidInput(f"rng must be True, False, or a dict of generators by name, not {own!r}")
        self._own = dict(own)
        for name, generator in self._own.items():
            if not isinstance(generator, Generator):
                raise InvalidInput(f"rng: {name!r} must be a generator of torch, numpy or Python, not {generator!r}")
            if name in _for_everybody() or name.startswith(CUDA):
                raise InvalidInput(f"rng: {name!r} is the name of a generator that is stored anyway: choose another")

    def _all(self) -> dict[str, Generator]:
        return {**_for_everybody(), **self._own}

    def state(self) -> Any:
        return PerRank({name: {"kind": _kind(each), "state": _state(each)} for name, each in self._all().items()})

    def fit(self, found: Found) -> Fit:
        if not isinstance(found.tree, dict):
            found.report.missing.append(found.name)
            return Fit()
        if any(name.startswith(CUDA) for name in found.tree) and torch.cuda.is_available():
            torch.cuda.init()  # type: ignore[no-untyped-call]  # else there is no generator to restore yet
        here, stored, report = self._all(), found.tree, found.report
        for name, each in here.items():
            if name in stored and stored[name]["kind"] != _kind(each):
                report.mismatched.append(f"{found.under(name)} ({stored[name]['kind']} there, {_kind(each)} here)")
        report.missing += [found.under(n) for n in here if n not in stored and not n.startswith(CUDA)]
        report.unexpected += [found.under(n) for n in stored if n not in here and not n.startswith(CUDA)]
        fitting = {n: each for n, each in here.items() if n in stored and stored[n]["kind"] == _kind(each)}

        def apply(tree: Any) -> None:
            for name, each in fitting.items():
                _restore(each, tree[name]["state"])

        return Fit({n: None for name in fitting for n in all_new(stored[name])}, apply)


def remembered() -> Callable[[], None]:
    """Call what this gives, and the generators that are everybody's go on from where they are now."""
    kept = [(each, _state(each)) for each in _for_everybody().values()]

    def put_back() -> None:
        for generator, state in kept:
            _restore(generator, state)

    return put_back


def _for_everybody() -> dict[str, Generator]:
    found: dict[str, Generator] = {
        "python": random._inst,
        "numpy": np.random.mtrand._rand,
        "torch": torch.default_generator,
    }
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # before, nothing was drawn there
        found |= {f"{CUDA}{n}": each for n, each in enumerate(torch.cuda.default_generators)}
    return found


def _kind(generator: Generator) -> str:
    """Generators of the same kind take each other's state."""
    if isinstance(generator, torch.Generator):
        return f"torch {generator.device.type} of {len(generator.get_state())} bytes"
    if isinstance(generator, random.Random):
        return f"python {generator.getstate()[0]}"
    return f"numpy {_numpy_state(generator)['bit_generator']}"


def _state(generator: Generator) -> Any:
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    if isinstance(generator, random.Random):
        version, key, gauss = generator.getstate()
        return {"version": version, "key": np.array(key, np.uint32), "gauss": gauss}
    return _numpy_state(generator)


def _restore(generator: Generator, state: Any) -> None:
    if isinstance(generator, torch.Generator):
        generator.set_state(state)
    elif isinstance(generator, random.Random):
        generator.setstate((state["version"], tuple(state["key"].tolist()), state["gauss"]))
    elif isinstance(generator, np.random.RandomState):
        generator.set_state(state)
    else:
        generator.bit_generator.state = state


def _numpy_state(generator: np.random.Generator | np.random.RandomState) -> dict[str, Any]:
    if isinstance(generator, np.random.RandomState):
        return generator.get_state(legacy=False)
    return dict(generator.bit_generator.state)
