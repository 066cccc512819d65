"""Anything with state_dict and load_state_dict: schedulers, scalers, loaders, averages, metrics.

A state_dict may hold functions, such as a scheduler's own. A checkpoint holds no code: they are left out, and whoever
is loaded keeps its own.
"""

import functools
import types
from typing import Any

from strata.errors import InvalidInput
from strata.torch.components import ABSENT, Fit, Found, all_new

_CODE = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    functools.partial,
    type,
)


def is_stateful_object(value: object) -> bool:
    return all(callable(getattr(value, name, None)) for name in ("state_dict", "load_state_dict"))


class ObjectState:
    """The state of one such object."""

    def __init__(self, value: Any, label: str, advice: str = "") -> None:
        if not is_stateful_object(value):
            raise InvalidInput(
                f"{label}: a {type(value).__name__} has no state_dict() and load_state_dict()"
                + (advice and f": {advice}")
            )
        self.value = value

    @property
    def kind(self) -> str:
        return type(self.value).__name__

    def state(self) -> Any:
        return self._tree()

    def _tree(self) -> Any:
        return without_code(self.value.state_dict())

    def fit(self, found: Found) -> Fit:
        if found.tree is ABSENT:
            found.report.missing.append(found.name)
            return Fit()
        why = self._why_not(found)
        if why:
            found.report.mismatched.append(f"{found.name} ({why})")
            return Fit()
        return Fit(all_new(found.tree), self.value.load_state_dict)

    def _why_not(self, found: Found) -> str:
        """Its own state is only looked at in doubt: to ask a loader for it may start its workers."""
        is_empty = isinstance(found.tree, dict) and not found.tree
        if found.kind in (None, self.kind) and not is_empty:
            return ""
        own = self._tree()
        if is_empty and own:
            return f"nothing in the checkpoint, where it was not in use; a {self.kind} here"
        if found.kind in (None, self.kind) or _outside(own) == _outside(found.tree):
            return ""
        return f"a {found.kind} in the checkpoint, a {self.kind} here"


def without_code(state: Any) -> Any:
    """The same without functions and classes, and without lists that hold any: by the entry of the dict they are in."""
    if isinstance(state, dict):
        kept = {key: without_code(value) for key, value in state.items() if not _holds_code(value)}
        same = len(kept) == len(state) and all(kept[key] is value for key, value in state.items())
        return state if same else kept
    if type(state) in (list, tuple):
        found = [without_code(each) for each in state]
        same = all(one is other for one, other in zip(found, state, strict=True))
        return state if same else type(state)(found)
    return state


def _holds_code(value: object) -> bool:
    if type(value) in (list, tuple):
        return any(map(_holds_code, value))  # type: ignore[call-overload]
    return isinstance(value, _CODE)


def _outside(state: Any) -> Any:
    """What two states of one kind have in common."""
    return set(state) if isinstance(state, dict) else type(state)
