"""Ranks whose arrays lie on a GPU find out that they differ, as a program for a machine that has one:
`python -m tests.unit.checkpoint.with_cuda_ranks`."""

import sys
from collections.abc import Sequence

import torch

from strata.checkpoint import CheckpointManagerConfig
from strata.checkpoint.marks import Replicated
from strata.errors import RankFailed
from strata.storage import MemoryStorage
from tests.unit.checkpoint.crews import Crew

CONFIG = CheckpointManagerConfig(ranks_seconds=60)


def states(device: str, changed: str) -> Sequence[dict[str, object]]:
    found = []
    for rank in range(2):
        weight, same = torch.arange(3 << 20, device=device), torch.ones(5, 7, device=device)
        turned, tilted = torch.ones(9, 4, device=device), torch.ones(6, 4, device=device)
        if rank and changed:
            {"weight": weight, "same": same, "turned": turned, "tilted": tilted}[changed].view(-1)[3] += 1
        odd = torch.ones(3, dtype=torch.uint8, device=device)
        marked = {"same": Replicated(same), "tilted": Replicated(tilted.t())}
        found.append({"weight": weight, "turned": turned.t(), "odd": odd, **marked})
    return found


def notes(device: str, changed: str) -> list[str]:
    with Crew(MemoryStorage(), 2, config=CONFIG) as crew:
        crew.save(states(device, changed), 1)
        return list(crew.managers[0].saves[-1].report.notes)


def main(device: str = "cuda") -> None:
    assert notes(device, "") == []
    for name in ("weight", "turned"):
        (told,) = notes(device, name)
        assert f"rank 1 has other values than rank 0 for {name}" in told, told
    for name in ("same", "tilted"):
        try:
            notes(device, name)
        except RankFailed as error:
            assert name in str(error), error  # noqa: PT017  no pytest where this runs
        else:
            raise AssertionError("a mixture was saved")
    print(f"what differs between ranks on {device} is told")


if __name__ == "__main__":
    main(*sys.argv[1:])
