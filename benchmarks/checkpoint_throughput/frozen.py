"""Incremental saves of a state of which most does not change."""

import statistics

import torch

from benchmarks import Row, Table
from benchmarks.checkpoint_throughput.places import Place
from benchmarks.checkpoint_throughput.saves import Saves
from benchmarks.checkpoint_throughput.states import State, bytes_of
from benchmarks.storage.turns import take_turns, taken, times

ROUNDS = 5
CHANGED = 0.05
MOST_WRITTEN_PERCENT = 10.0
FULL, INCREMENTAL = "Strata save, whole", "Strata save, incremental"


def table(place: Place, state: State) -> Table:
    trained = _trained(state)
    with place.manager("whole") as whole, place.manager("incremental", keep_count=2, incremental=True) as incremental:
        saves = {FULL: Saves(whole, state), INCREMENTAL: Saves(incremental, state)}

        def train() -> None:
            for each in saves.values():
                each.settle()
            for tensor in trained.values():
                tensor.view(torch.int32).bitwise_not_()

        turns = take_turns({name: each.save for name, each in saves.items()}, ROUNDS, train)
        reports = [handle.report for handle in incremental.saves[-ROUNDS:]]
    written = [100 * report.written_bytes / report.state_bytes for report in reports]
    rows = [
        Row(
            f"written of {bytes_of(state) >> 20:,} MiB",
            statistics.median(written),
            min(written),
            "%",
            MOST_WRITTEN_PERCENT,
        ),
        *(taken(name, each) for name, each in turns.items()),
        times(f"{INCREMENTAL} / {FULL}", turns[INCREMENTAL], turns[FULL]),
    ]
    changed = 100 * bytes_of(trained) / bytes_of(state)
    return Table(f"Incremental saves, {place.name}: {changed:.1f} % of the bytes change between two saves", rows)


def _trained(state: State) -> State:
    """Whole tensors, until they are the part that changes."""
    found: State = {}
    for name, tensor in sorted(state.items(), key=lambda pair: pair[1].nbytes):
        if bytes_of(found) + tensor.nbytes <= CHANGED * bytes_of(state):
            found[name] = tensor
    return found
