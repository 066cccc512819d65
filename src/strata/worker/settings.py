"""How a worker behaves in its job."""

from dataclasses import dataclass

from strata.core.ids import check_bool, check_int, check_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class OrchestratorConfig:
    """save_every: `should_save` is true at each so manieth step; None: only when somebody asks.
    register_seconds: how long to wait for a place, or for the coordinator to be there.
    recover_seconds: how long to wait for all ranks to be there, and for what is decided to be committed.
    helper: keep heartbeats going in a small process of its own while this one holds the GIL.
    stall_seconds: a process that holds it for longer than that counts as hung.
    """

    save_every: int | None = None
    register_seconds: float = 300.0
    recover_seconds: float = 900.0
    helper: bool = True
    stall_seconds: float = 60.0

    def __post_init__(self) -> None:
        if self.save_every is not None:
            check_int(self.save_every, "save_every", least=1)
        check_bool(self.helper, "helper")
        for name in ("register_seconds", "recover_seconds", "stall_seconds"):
            check_seconds(getattr(self, name), name)
