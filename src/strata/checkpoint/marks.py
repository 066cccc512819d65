"""What a job of many ranks says of its state, where the state itself does not tell.

    Replicated(x)    the same on every rank: each writes a share of it
    PerRank(x)       of its own on every rank, such as the state of a random generator: each gets its own back

Both stand for what they hold, an array or any part of a tree, and are loaded as that.
"""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, eq=False)
class Replicated:
    """The same on every rank."""

    value: Any


@dataclass(frozen=True, eq=False)
class ReplicatedOver:
    """The same on so many ranks: replicated, if those are all that save. For who knows of a state which processes share
    it, and not who saves it."""

    value: Any
    ranks: int


@dataclass(frozen=True, eq=False)
class PerRank:
    """Of its own on every rank."""

    value: Any
