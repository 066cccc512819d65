"""How a manager saves: small, checked when it is made, and the same for every storage."""

from dataclasses import dataclass

from strata.checkpoint.retention import KEEP_ALL
from strata.checkpoint.watched import STUCK_SECONDS
from strata.core.ids import check_bool, check_choice, check_int, check_seconds
from strata.core.settings import Retention
from strata.errors import InvalidInput

OVERLAPS = ("none", "optimizer")
BUSY = ("wait", "skip", "replace")
UPLOADS = ("all", "newest")
RANKS_SECONDS = 900.0
COORDINATOR_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class CheckpointManagerConfig:
    """What is not said where a checkpoint goes.

    retention: which checkpoints are kept. All of them by default.
    memory_bytes: host memory that snapshots may take; a share of what there is if None (see `budget`).
    when_busy: what a save does that is asked for while another is being written: `wait` for it, `skip` this one, or
        `replace` the other, which is then given up.
    max_failed_saves: so many background saves in a row that fail end the training loop: the next `save_async` raises.
    incremental: whether what did not change since the checkpoint before is referred to, and not written again.
    overlap: with `optimizer`, `save_async` returns while what optimizers own is still being copied from a GPU, and
        their next step waits for it, on the GPU: see `overlap`. By default it returns when everything is copied.
    stuck_seconds: a save fails if nothing comes of a call to the storage for so long; the error names it.
    ranks_seconds: in a job of several ranks, how long one waits for the others' parts; the error names them.
    coordinator_seconds: where there is a coordinator, how long it may take to answer before a save goes on without it.
        One that cannot be reached is done without at once.
    local_keep: how many of the latest stay on the local disk, where there is a local tier; and what is not uploaded.
    upload: which checkpoints go on from there: `all` that retention would keep, or only the `newest` at each time.
    """

    retention: Retention = KEEP_ALL
    memory_bytes: int | None = None
    when_busy: str = "wait"
    max_failed_saves: int = 3
    incremental: bool = False
    overlap: str = "none"
    stuck_seconds: float = STUCK_SECONDS
    ranks_seconds: float = RANKS_SECONDS
    coordinator_seconds: float = COORDINATOR_SECONDS
    local_keep: int = 2
    upload: str = "all"

    def __post_init__(self) -> None:
        if self.memory_bytes is not None:
            check_int(self.memory_bytes, "memory_bytes", least=16 << 20)
        check_int(self.max_failed_saves, "max_failed_saves", least=1)
        if not isinstance(self.retention, Retention):
            raise InvalidInput(f"retention must be Retention(...), not {type(self.retention).__name__}")
        check_bool(self.incremental, "incremental")
        for name in ("stuck_seconds", "ranks_seconds", "coordinator_seconds"):
            check_seconds(getattr(self, name), name)
        check_choice(self.overlap, "overlap", OVERLAPS)
        check_int(self.local_keep, "local_keep", least=1)
        check_choice(self.upload, "upload", UPLOADS)
        check_choice(self.when_busy, "when_busy", BUSY)
