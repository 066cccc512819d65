"""Whether any rank was given notice, agreed on by all of them without a coordinator: over torch.distributed, where each
rank is one of its processes.

    step n:    each rank casts whether it has a notice, and hears what came of step n - 1
    step n+1:  all hear of the notice that one of them had at n, and stop here, at the same step

The law: what comes of a step's vote is the same on all ranks, and each of them acts on it at the same step. A vote is
heard one step later than it is cast, so that nobody waits for those who are slower. The group is one of its own, on the
CPU: it does not get in the way of the training's collectives. Where ranks cannot vote any more, each is on its own.
"""

import sys
from contextlib import suppress
from datetime import timedelta
from typing import Any

from strata.logs import get_logger
from strata.worker.preemption import Notice

logger = get_logger("strata.worker")

NO_NOTICE, TIME_TO_SAVE, NO_TIME = 0, 1, 2
"""The greatest counts: where one rank has no time to save, none does."""
CLOSE_TIME = timedelta(seconds=10)


class Votes:
    """Of one process of the group, after each of its steps."""

    def __init__(self, torch: Any, group: Any) -> None:
        self._torch, self._group = torch, group
        self._cast: tuple[Any, Any] | None = None
        """The vote of the step before: what came of it, and when that is known."""
        self.is_over = False
        """Whether each rank is on its own."""

    def after_step(self, own: Notice | None, seconds: float) -> Notice | None:
        """The notice that all ranks act on now, if any of them had one at the step before."""
        if self.is_over:
            return own
        try:
            heard, self._cast = self._heard(), self._casting(own)
        except RuntimeError as error:
            logger.warning("ranks cannot tell each other of a notice any more, and each is on its own: %s", error)
            self.is_over = True
            return own
        if heard == NO_NOTICE:
            return None
        return (own or Notice("another rank was given notice", seconds, True))._replace(is_enough=heard == TIME_TO_SAVE)

    def close(self) -> None:
        """The last vote is waited for, which all have cast: a process that ended meanwhile would be torn down with
        gloo's threads at work."""
        if self._cast is not None and not self.is_over:
            with suppress(RuntimeError):  # one is lost, and nobody votes any more
                self._cast[1].wait(CLOSE_TIME)
        self._cast, self.is_over = None, True
        with suppress(RuntimeError, ValueError):  # whoever made torch's group may have ended it already
            self._torch.distributed.destroy_process_group(self._group)

    def _casting(self, own: Notice | None) -> tuple[Any, Any]:
        said = NO_NOTICE if own is None else TIME_TO_SAVE if own.is_enough else NO_TIME
        vote, distributed = self._torch.tensor([said], dtype=self._torch.int32), self._torch.distributed
        how = {"op": distributed.ReduceOp.MAX, "group": self._group, "async_op": True}
        return vote, distributed.all_reduce(vote, **how)

    def _heard(self) -> int:
        if self._cast is None:
            return NO_NOTICE
        vote, work = self._cast
        work.wait()
        return int(vote.item())


def votes_of(size: int) -> Votes | None:
    """Of as many ranks, all of which call this together; None where they are not the processes of torch's group."""
    torch = sys.modules.get("torch")
    if size < 2 or torch is None or not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return None
    if torch.distributed.get_world_size() != size or not torch.distributed.is_gloo_available():
        return None
    try:
        return Votes(torch, torch.distributed.new_group(backend="gloo"))
    except RuntimeError as error:
        logger.warning("ranks cannot agree where to stop when one is given notice, and each is on its own: %s", error)
        return None
