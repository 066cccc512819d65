"""Arrays to be made of which this process wants boxes alone: what must be read for those, and the memory for it."""

from collections.abc import Sequence

import numpy as np

from strata.checkpoint.boxes import Box
from strata.checkpoint.frameworks import Block
from strata.checkpoint.gathering import memory_for, once, wishes_for
from strata.checkpoint.reading import Placed, Wish
from strata.checkpoint.whole import Whole


class Making:
    """The bytes of each box that is wanted, by the number of its array."""

    def __init__(self, whole: Whole) -> None:
        self._whole = whole
        self._wishes: list[Wish | Placed] = []
        self.blocks: dict[int, list[Block]] = {}

    def read(self, number: int, boxes: Sequence[Box], tensor: int) -> None:
        """Of an array that is a tensor."""
        told = self._whole.tensors[tensor]
        self.blocks[number] = [memory_for(told.dtype, box) for box in boxes]
        for box, memory in zip(boxes, self.blocks[number], strict=True):
            self._wishes += wishes_for(told, self._whole.boxes.get(tensor), box, memory)

    def cut(self, number: int, boxes: Sequence[Box], elements: Block) -> None:
        """Of one that has been read, with the bytes of each element in one more dimension."""
        whole = Box.whole(elements.shape[:-1])
        self.blocks[number] = [np.ascontiguousarray(elements[box.within(whole)]).reshape(-1) for box in boxes]

    def wishes(self) -> list[Wish | Placed]:
        """A chunk that several boxes need is read for all of them."""
        return once(self._wishes)
