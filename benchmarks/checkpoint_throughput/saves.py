"""Saves until they are durable, beside the bare disk, DCP, and safetensors."""

import os
from collections.abc import Callable
from pathlib import Path

from safetensors.torch import save_file

from benchmarks import Row, Table
from benchmarks.checkpoint_throughput.dcp import Dcp, DcpSaves
from benchmarks.checkpoint_throughput.places import Place, sync_folder
from benchmarks.checkpoint_throughput.states import State, bytes_of
from benchmarks.storage.plain import bare_direct
from benchmarks.storage.turns import Turns, rate, ratio, take_turns
from strata.checkpoint import CheckpointManager, SaveHandle

ROUNDS = 7
LEAST_OF_BARE = 0.85
STRATA, BARE, DCP, SAFETENSORS = "Strata save", "bare O_DIRECT", "DCP save", "safetensors save_file + fsync"


def settling(*saves: "Saves | DcpSaves | None") -> Callable[[], None]:
    """Between turns: nobody writes or deletes any more."""

    def settle() -> None:
        for each in saves:
            if each is not None:
                each.settle()

    return settle


class Saves:
    """Saves of one state by one manager, each a step of its own."""

    def __init__(self, manager: CheckpointManager, state: object) -> None:
        self.manager, self._state = manager, state
        self._step = 0

    def save(self) -> None:
        self._step += 1
        self.manager.save(self._state, self._step)

    def save_async(self) -> SaveHandle:
        """Until the state may be changed again."""
        self._step += 1
        return self.manager.save_async(self._state, self._step)

    def settle(self) -> None:
        """Written, and the one before is deleted."""
        self.manager.wait()


def table(place: Place, state: State, how: Dcp) -> Table:
    """On a disk."""
    assert place.folder is not None
    folder, size = place.folder, bytes_of(state)
    dcp, bare, file = DcpSaves(how, state), folder / "bare", folder / "plain.safetensors"
    with place.manager("saves") as manager:
        strata = Saves(manager, state)
        settled = settling(strata, dcp)

        def settle() -> None:
            settled()
            bare.unlink(missing_ok=True)
            file.unlink(missing_ok=True)
            os.sync()

        contenders: dict[str, Callable[[], object]] = {
            STRATA: strata.save,
            BARE: lambda: bare_direct(bare, size),
            DCP: dcp.save,
            SAFETENSORS: lambda: save_safetensors(state, file),
        }
        turns = take_turns(contenders, ROUNDS, settle)
        dcp.close()
    title = f"Save of {size >> 20:,} MiB in {len(state)} tensors to a local disk, until durable (DCP: {how.setting})"
    return Table(title, _rows(turns, size))


def save_safetensors(state: State, file: Path) -> None:
    """As it is, and flushed, which it leaves to whoever calls it."""
    save_file(state, file)
    fd = os.open(file, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)
    sync_folder(file.parent)


def _rows(turns: Turns, size: int) -> list[Row]:
    own = turns[STRATA]
    return [
        *(rate(name, each, size) for name, each in turns.items()),
        ratio(f"{STRATA} / {BARE}", own, turns[BARE], target=LEAST_OF_BARE),
        ratio(f"{STRATA} / {DCP}", own, turns[DCP], target=1.0),
        ratio(f"{STRATA} / {SAFETENSORS}", own, turns[SAFETENSORS], target=1.0),
    ]
