"""What happens in a simulation of saves: drawn from a seed, and all of it in here."""

from random import Random

import msgspec

from strata.core.ids import check_int
from strata.core.settings import Policy, Retention
from strata.errors import InvalidInput
from strata.testing.simulation.plan import Chaos, Fault

RANK_FAULTS = ("kill", "freeze", "cut")
STORAGE_FAULTS = ("storage", "slow")
COORDINATOR_FAULTS = ("crash", "silence")
_WEIGHTS = {"kill": 6, "freeze": 4, "cut": 3, "storage": 4, "slow": 2, "crash": 4, "silence": 2}
MOST_RANKS = 10_000


class SavesPlan(msgspec.Struct, frozen=True):
    """One run: a job of so many ranks that save at every step, with a coordinator or without, and what strikes it.

    storage: the share of calls to the storage that fail, in each of three ways; a quarter as many are stuck. `trouble`
    is the same for while the storage is in trouble.
    """

    seed: int
    ranks: int = 3
    coordinator: bool = True
    seconds: float = 90.0
    chaos: Chaos = Chaos(lost=0.01, doubled=0.02, late=0.01, late_seconds=2.0)
    policy: Policy = Policy(lease_seconds=5.0, heartbeat_seconds=1.5, sweep_seconds=0.5, attempt_seconds=40.0)
    storage: float = 0.002
    trouble: float = 0.03
    latency_seconds: float = 0.02
    start_seconds: float = 0.3
    step_seconds: tuple[float, float] = (0.3, 2.5)
    stuck_seconds: float = 12.0
    ranks_seconds: float = 60.0
    coordinator_seconds: float = 3.0
    retention: Retention = Retention()
    faults: tuple[Fault, ...] = ()
    is_open: bool = False
    """Whether whoever joins is of the world, as where ranks have orchestrators and say nothing of its size."""

    def __post_init__(self) -> None:
        check_int(self.ranks, "ranks", least=1, most=MOST_RANKS)
        if not 0 < self.seconds <= 1e6:
            raise InvalidInput(f"seconds must be above 0 and at most a million, not {self.seconds}")
        for fault in self.faults:
            if fault.kind not in _WEIGHTS or not 0 <= fault.at <= self.seconds or not fault.seconds >= 0:
                raise InvalidInput(f"{fault} is not a fault that can strike within {self.seconds:g} seconds")

    @classmethod
    def of(
        cls, seed: int, ranks: int = 3, *, coordinator: bool = True, seconds: float = 90.0, faults: int | None = None
    ) -> "SavesPlan":
        """The run that belongs to this seed."""
        rng = Random(f"saves {seed}")
        keep = Retention(keep_count=rng.choice((0, 2, 3)))
        storage = rng.choice((0.0, 0.002, 0.01))
        plan = cls(seed, ranks, coordinator, seconds, storage=storage, retention=keep)
        count = rng.randrange(2, 9) if faults is None else faults
        return msgspec.structs.replace(plan, faults=_drawn(rng, plan, count))


def _drawn(rng: Random, plan: SavesPlan, count: int) -> tuple[Fault, ...]:
    kinds = [kind for kind in _WEIGHTS if plan.coordinator or kind not in (*COORDINATOR_FAULTS, "cut")]
    faults = []
    for _ in range(count):
        kind = rng.choices(kinds, [_WEIGHTS[each] for each in kinds])[0]
        at = rng.uniform(0.5, plan.seconds * 0.8)
        faults.append(Fault(round(at, 3), kind, rng.randrange(plan.ranks), round(rng.uniform(0.1, 30.0), 3)))
    return tuple(sorted(faults, key=lambda fault: fault.at))
