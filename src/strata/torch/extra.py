"""What else a run wants to keep: plain values and arrays, and objects that can be restored in place."""

from typing import Any

from strata.checkpoint.stateful import ArraySpec
from strata.torch.components import ABSENT, Component, Fit, Found, all_new, is_same
from strata.torch.given import module_or_object
from strata.torch.objects import is_stateful_object


class ExtraValues:
    """The values of a dict. Those that a checkpoint has take the place of those that are there; no other is touched."""

    kind = None

    def __init__(self, values: dict[str, Any]) -> None:
        self._values = values

    def components(self) -> dict[str, Component]:
        """The objects among them."""
        objects = {name: each for name, each in self._values.items() if is_stateful_object(each)}
        return {name: module_or_object(each, f"extra {name}") for name, each in objects.items()}

    def state(self) -> Any:
        return {name: each for name, each in self._values.items() if not is_stateful_object(each)}

    def fit(self, found: Found) -> Fit:
        """A tensor that is there is filled if it is of the same shape and type, and else replaced."""
        objects = self.components()
        stored = {} if found.tree is ABSENT else {k: each for k, each in found.tree.items() if k not in objects}
        targets = {n: each for key, value in stored.items() for n, each in self._targets(key, value).items()}

        def apply(tree: Any) -> None:
            self._values.update({key: tree[key] for key in stored})

        return Fit(targets, apply)

    def _targets(self, key: str, stored: Any) -> dict[str, Any]:
        own = self._values.get(key)
        if isinstance(stored, ArraySpec) and is_same(own, stored):
            return {stored.name: own}
        return all_new(stored)
