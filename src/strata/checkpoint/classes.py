"""Named tuples of your own: a checkpoint names no class, but what it is loaded into, or like, has one."""

from typing import Any

from strata.checkpoint.skeleton import kind_of, nodes
from strata.checkpoint.tree import Node


def in_classes_of(template: Any, tree: Any, skeleton: Node) -> Any:
    """The tree, whose named tuples are of the template's classes wherever that has one of the same name and fields.
    Dicts and lists of the tree are changed in place."""
    has_named = any(kind_of(node) == "named" for node in nodes(skeleton))
    return _fitted(template, tree) if has_named else tree


def _fitted(template: Any, tree: Any) -> Any:
    if isinstance(tree, dict) and isinstance(template, dict):
        for key, value in tree.items():
            if key in template:
                tree[key] = _fitted(template[key], value)
    elif isinstance(tree, list) and isinstance(template, list):
        tree[: len(template)] = map(_fitted, template, tree[: len(template)])
    elif isinstance(tree, tuple) and isinstance(template, tuple) and len(tree) == len(template):
        values = list(map(_fitted, template, tree))
        own = _class_for(template, tree)
        return tuple(values) if own is None else own._make(values)
    return tree


def _class_for(template: Any, tree: Any) -> Any:
    """None for a plain tuple."""
    there, here = type(tree), type(template)
    if not hasattr(there, "_fields"):
        return None
    is_same = there.__name__ == here.__name__ and there._fields == getattr(here, "_fields", None)
    return here if is_same else there
