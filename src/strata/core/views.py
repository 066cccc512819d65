"""Views: which rank holds which slot, and so, with a dataset and its seed, who owns which shard.

A view is (slot count, stack of vacated slots, rank -> slot). A newcomer takes the slot vacated last, or a new one
when none is vacant; that makes a join the exact inverse of the leave before it, which is what keeps shards where
they are. A view is a value: it decides nothing about who may join or when.
"""

from bisect import bisect_left

import msgspec

from strata.core.ids import check_int
from strata.errors import InvalidInput


class View(msgspec.Struct, frozen=True):
    """One state of the world; `join` and `leave` give the next. `vacated` ends with the slot to be filled first."""

    slot_count: int
    vacated: tuple[int, ...]
    slots: dict[int, int]
    """rank -> slot, in any order: a restored snapshot lists keys in another order than a live machine"""

    def __post_init__(self) -> None:
        if len(self.vacated) + len(self.slots) != self.slot_count:
            raise InvalidInput(
                f"a view of {self.slot_count} slots cannot have {len(self.slots)} taken and {len(self.vacated)} vacated"
            )

    @classmethod
    def empty(cls) -> "View":
        """The world before anybody has joined."""
        return cls(0, (), {})

    @classmethod
    def declared(cls, world_size: int) -> "View":
        """The world a launcher declares: rank r has slot r, whoever comes first."""
        count = check_int(world_size, "world_size")
        return cls(count, (), {rank: rank for rank in range(count)})

    def join(self, rank: int) -> "View":
        """The view with `rank` in the slot vacated last, or in a new one."""
        check_int(rank, "rank")
        if rank in self.slots:
            raise InvalidInput(f"rank {rank} cannot join: it is in the view already, in slot {self.slots[rank]}")
        if self.vacated:
            return View(self.slot_count, self.vacated[:-1], {**self.slots, rank: self.vacated[-1]})
        return View(self.slot_count + 1, (), {**self.slots, rank: self.slot_count})

    def leave(self, rank: int) -> "View":
        """The view without `rank`, its slot on top of the stack, or gone if it was the last slot of a full world."""
        if rank not in self.slots:
            raise InvalidInput(f"rank {rank} cannot leave: it is not in the view of {len(self)} ranks")
        slots = self.slots.copy()
        slot = slots.pop(rank)
        # With nothing vacated, leaving the last slot is the exact inverse of growing it, so a world of 4 that lost
        # slot 3 is the world of 3, not something that resembles it.
        if not self.vacated and slot == self.slot_count - 1:
            return View(slot, (), slots)
        return View(self.slot_count, (*self.vacated, slot), slots)

    def position(self, rank: int) -> int:
        """How many ranks of the view are below this one: its place in the divided batch."""
        if rank not in self.slots:
            raise InvalidInput(f"rank {rank} has no position: it is not in the view of {len(self)} ranks")
        return bisect_left(self.ranks, rank)

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks present, ascending."""
        return tuple(sorted(self.slots))

    @property
    def live_slots(self) -> tuple[int, ...]:
        """The slots taken, ascending."""
        return tuple(sorted(self.slots.values()))

    def __len__(self) -> int:
        return len(self.slots)
