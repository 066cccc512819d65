"""What concurrent clients see under faults can be explained by one thing happening after the other."""

import random
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from strata.errors import Refused
from strata.rpc import RpcError
from strata.testing.linearizability import Operation, check
from tests.servers.coordinator import Client, CoordinatorProcess, coordinator

EPOCH = ("read", 0)
CLIENTS = 5

Epoch = Operation[tuple[str, int], int]
Rank = Operation[tuple[str, str], bool]


def epoch_model(state: int, question: tuple[str, int], answer: int | None, known: bool) -> int | None:
    """An epoch advances from the one it is in, once; -1 is the answer to one who is ahead of it."""
    kind, origin = question
    after = state + 1 if kind == "advance" and origin == state else state
    right = -1 if kind == "advance" and origin > state else after
    return after if not known or answer == right else None


def rank_model(state: str, question: tuple[str, str], answer: bool | None, known: bool) -> str | None:
    """A rank has one holder at a time."""
    kind, worker = question
    if kind == "take":
        right, after = state in ("", worker), worker if state in ("", worker) else state
    else:
        right, after = True, "" if state == worker else state
    return after if not known or answer == right else None


class Recorder:
    """The histories of all clients, on one clock."""

    def __init__(self) -> None:
        self.epochs: list[Epoch] = []
        self.ranks: list[Rank] = []
        self.unexpected: list[BaseException] = []
        self.stop = threading.Event()

    def timed(self, history: list[Any], client: int, question: Any, call: Callable[[], Any]) -> Any:
        began = time.monotonic()
        try:
            answer = call()
        except RpcError:
            history.append(Operation(client, question, None, began, None))
            raise
        history.append(Operation(client, question, answer, began, time.monotonic()))
        return answer


def play(recorder: Recorder, process: CoordinatorProcess, number: int) -> None:
    chance = random.Random(number)
    worker, nonce, holds = f"player-{number}", 0, None
    epoch = 0
    with Client(process.address, "game", patient=True) as client:
        while not recorder.stop.is_set():
            time.sleep(chance.random() * 0.01)
            try:
                if chance.random() < 0.3:
                    epoch = recorder.timed(recorder.epochs, number, EPOCH, lambda: _read(client))
                elif chance.random() < 0.4:
                    origin = max(0, epoch + chance.choice((-1, 0, 0, 0, 1)))
                    question = ("advance", origin)
                    told = recorder.timed(recorder.epochs, number, question, partial(_advance, client, origin))
                    epoch = max(epoch, told)
                elif holds is None:
                    nonce += 1
                    holds = _try_to_take(recorder, client, number, f"{worker}-{nonce}")
                else:
                    recorder.timed(recorder.ranks, number, ("free", worker), partial(_free, client, holds))
                    holds = None
            except RpcError:
                time.sleep(0.02)
            except BaseException as error:  # noqa: BLE001  told by the test
                recorder.unexpected.append(error)
                return


def _try_to_take(recorder: Recorder, client: Client, number: int, nonce: str) -> Any:
    """The registration, if there was one."""
    worker = f"player-{number}"
    taken: list[Any] = []
    recorder.timed(recorder.ranks, number, ("take", worker), lambda: _take(client, worker, nonce, taken))
    return taken[0] if taken else None


def _read(client: Client) -> int:
    return int(client.call("ListDatasets", timeout=3).datasets[0].epoch)


def _advance(client: Client, origin: int) -> int:
    try:
        return int(client.call("AdvanceEpoch", dataset_id="d", from_epoch=origin, timeout=3).epoch)
    except Refused:
        return -1


def _take(client: Client, worker: str, nonce: str, taken: list[Any]) -> bool:
    try:
        taken.append(client.register(worker, nonce=nonce, rank=0, world_size=2, timeout=3))
    except Refused:
        return False
    return True


def _free(client: Client, who: Any) -> bool:
    client.call("Deregister", worker_id=who.worker_id, incarnation=who.incarnation, timeout=3)
    return True


def disturb(process: CoordinatorProcess, seconds: float) -> None:
    """Kill it and stop it, again and again."""
    chance = random.Random(7)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(0.3 + chance.random() * 0.7)
        if chance.random() < 0.6:
            process.kill()
            process.start()
        else:
            process.signal(signal.SIGSTOP)
            time.sleep(chance.random() * 0.5)
            process.signal(signal.SIGCONT)


def record(folder: Path, seconds: float) -> Recorder:
    with coordinator(folder, "--no-http", "--lease-seconds", "600") as process:
        with Client(process.address, "game") as client:
            client.register("anchor", rank=1, world_size=2)  # so that the world never begins anew
            client.call("RegisterDataset", dataset_id="d", total_samples=10, shard_size=1)
        recorder = Recorder()
        players = [threading.Thread(target=play, args=(recorder, process, number)) for number in range(CLIENTS)]
        for player in players:
            player.start()
        disturb(process, seconds)
        recorder.stop.set()
        for player in players:
            player.join()
    return recorder


def look_at(recorder: Recorder) -> None:
    assert not recorder.unexpected, recorder.unexpected
    assert sum(one.ended is None for one in recorder.epochs) > 0, "no fault was noticed"
    assert len(recorder.epochs) > 100
    assert len(recorder.ranks) > 50
    epochs = check(recorder.epochs, 0, epoch_model)
    assert epochs.holds, f"explained {len(epochs.longest)}, then stuck: {epochs.stuck}"
    ranks = check(recorder.ranks, "", rank_model)
    assert ranks.holds, f"explained {len(ranks.longest)}, then stuck: {ranks.stuck}"


def test_what_clients_see_under_faults_is_linearizable(tmp_path: Path) -> None:
    look_at(record(tmp_path, 8.0))


@pytest.mark.long
def test_for_two_minutes(tmp_path: Path) -> None:
    look_at(record(tmp_path, 120.0))


def test_a_lost_update_would_be_noticed(tmp_path: Path) -> None:
    """The test of the test: take back one thing that was shown."""
    recorder = record(tmp_path, 2.0)
    known = [
        one for one in recorder.epochs if one.ended is not None and one.question == EPOCH and (one.answer or 0) > 2
    ]
    last = max(known, key=lambda one: one.began)
    assert last.ended is not None
    stale = Operation(99, EPOCH, 0, last.ended + 0.001, last.ended + 0.002)
    assert not check([*recorder.epochs, stale], 0, epoch_model).holds


def test_the_models_themselves() -> None:
    assert epoch_model(3, ("advance", 3), 4, True) == 4
    assert epoch_model(3, ("advance", 2), 3, True) == 3
    assert epoch_model(3, ("advance", 5), -1, True) == 3
    assert epoch_model(3, ("read", 0), 2, True) is None
    assert rank_model("", ("take", "a"), True, True) == "a"
    assert rank_model("b", ("take", "a"), True, True) is None
    assert rank_model("b", ("take", "a"), False, True) == "b"
