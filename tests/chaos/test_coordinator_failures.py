"""What a coordinator survives: kill -9 under load, a full disk, a disk that fails, being stopped; and zombies."""

import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from strata.errors import BarrierFailed, Expired, StrataError
from strata.rpc import RpcError
from tests.servers.coordinator import Client, CoordinatorProcess, coordinator
from tests.until import until

ROOT = Path(__file__).parents[2]


# -- kill -9 -----------------------------------------------------------------------------------------------------------


class Load:
    """One client that does a little of everything, and remembers what it was told."""

    def __init__(self, process: CoordinatorProcess, number: int, stop: threading.Event) -> None:
        self.job = f"job-{number}"
        self.workers: dict[str, Any] = {}
        self.epoch = 0
        self.steps: dict[int, int] = {}
        self.rounds = 0
        self.events: dict[str, str] = {}
        self.terms: list[int] = []
        self.unexpected: list[BaseException] = []
        self._process, self._stop = process, stop
        self._random = random.Random(number)
        self._arrival = 0
        self._unanswered = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def join(self) -> None:
        self._thread.join()

    def _run(self) -> None:
        with Client(self._process.address, self.job) as client:
            self._client = client
            watching = threading.Thread(target=self._watch, daemon=True)
            watching.start()
            while not self._stop.is_set():
                try:
                    self._something()
                except RpcError:
                    time.sleep(0.02)  # it is down: ask again
                except BaseException as error:  # noqa: BLE001  told by the test
                    self.unexpected.append(error)
                    return

    def _something(self) -> None:
        client = self._client
        if len(self.workers) < 2 or self._unanswered or self._random.random() < 0.3:
            name = f"w{len(self.workers)}"
            self._unanswered = True  # it may have joined all the same, and then takes part in saves
            told = client.register(name)
            self._unanswered = False
            self.workers[name] = told
            self.terms.append(told.term)
            if len(self.workers) == 1:
                client.call("ConfigureJob", recovery="carry_on")
                client.call("RegisterDataset", dataset_id="d", total_samples=1000, shard_size=10)
        elif self._random.random() < 0.4:
            self.epoch = client.call("AdvanceEpoch", dataset_id="d", from_epoch=self.epoch).epoch
        elif self._random.random() < 0.5:
            self._save(client)
        else:
            self._meet(client)

    def _save(self, client: Client) -> None:
        step = max(self.steps, default=0) + 1
        begun = client.call("BeginCheckpoint", **_from(self.workers["w0"]), step=step)
        if begun.skipped:
            self.steps[step] = -1
            return
        for who in self.workers.values():
            try:
                client.call("AckCheckpoint", **_from(who), attempt=begun.attempt, digest="d", part_bytes=1)
            except StrataError as error:
                if "takes no part" not in str(error):
                    raise
        client.call("CommitCheckpoint", **_from(self.workers["w0"]), attempt=begun.attempt)
        self.steps[step] = begun.attempt

    def _meet(self, client: Client) -> None:
        self._arrival += 1
        fields = {"barrier_id": "sync", "arrival": self._arrival, "settled": self._arrival - 1}
        while not self._stop.is_set():
            waits = [
                client.start("WaitBarrier", **_from(self.workers[name]), **fields, expected_participants=2, timeout=5)
                for name in ("w0", "w1")
            ]
            try:
                rounds = {client.result(wait).round for wait in waits}
            except RpcError:
                time.sleep(0.02)
                continue
            assert len(rounds) == 1, f"one was released in round {rounds}"
            self.rounds = max(self.rounds, *rounds)
            return

    def _watch(self) -> None:
        """Events that were shown are never taken back, nor told otherwise."""
        last = "0-0"
        while not self._stop.is_set():
            request, watch = self._client.prepared("WatchEvents", after=last)
            try:
                for event in watch(request, timeout=30):
                    self.events[event.id] = event.message
                    last = event.id
            except (grpc.RpcError, ValueError):
                time.sleep(0.05)

    def check(self, client: Client) -> None:
        """Everything acknowledged or shown is there."""
        for who in self.workers.values():
            client.heartbeat(who)
        assert self.terms == sorted(self.terms)
        (dataset,) = client.call("ListDatasets").datasets
        assert dataset.epoch >= self.epoch
        listed: dict[int, int] = {}
        token = "0"
        while token:
            page = client.call("ListCheckpoints", page_size=1000, page_token="" if token == "0" else token)
            listed |= {each.step: each.attempt for each in page.checkpoints if each.status == 3}
            token = page.next_page_token
        kept = {step: attempt for step, attempt in self.steps.items() if attempt > 0}
        assert kept.items() <= listed.items()
        seen = dict(self.events)
        request, watch = client.prepared("WatchEvents", after="0-0")
        told: dict[str, str] = {}
        last = max(seen, key=lambda event: int(event.partition("-")[2]))
        for event in watch(request, timeout=30):
            told[event.id] = event.message
            if event.id == last:
                break
        oldest = min(int(event.partition("-")[2]) for event in told)
        still = {event: message for event, message in seen.items() if int(event.partition("-")[2]) >= oldest}
        assert still.items() <= told.items()


def _from(who: Any) -> dict[str, Any]:
    return {"worker_id": who.worker_id, "incarnation": who.incarnation}


def kill_again_and_again(folder: Path, times: int) -> None:
    # Often enough that it is killed while it writes the state whole, and after.
    often = {"STRATA_COORDINATOR_SNAPSHOT_AFTER_BYTES": "4000"}
    with coordinator(folder, "--no-http", "--lease-seconds", "60", environment=often) as process:
        stop = threading.Event()
        loads = [Load(process, number, stop) for number in range(3)]
        for number in range(times):
            time.sleep(0.05 + random.Random(number).random() * 0.5)
            process.kill()
            process.start()
        time.sleep(0.5)
        stop.set()
        for load in loads:
            load.join()
            assert not load.unexpected, load.unexpected
        process.kill()
        process.start()
        for load in loads:
            assert len(load.workers) > 2
            assert load.epoch > 0
            assert load.rounds > 0
            with Client(process.address, load.job) as client:
                load.check(client)
        assert process.stop() == 0


def test_nothing_acknowledged_or_shown_is_lost_when_it_is_killed(tmp_path: Path) -> None:
    kill_again_and_again(tmp_path, 4)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("times", [pytest.param(40, marks=pytest.mark.long), pytest.param(200, marks=pytest.mark.soak)])
def test_again_and_again(tmp_path: Path, times: int) -> None:
    kill_again_and_again(tmp_path, times)


# -- the disk ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A filesystem of a few megabytes, with a file on it that can make room."""
    folder = tmp_path / "disk"
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip("missing component: the right to mount a small disk")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=False)


def until_it_ends(client: Client, acknowledged: list[Any], **fields: Any) -> None:
    """Register one worker after the other, and keep those that were acknowledged."""
    while True:
        acknowledged.append(client.register(f"w{len(acknowledged)}", timeout=60, **fields))


def test_a_full_disk_ends_it_in_words_and_nothing_is_lost(small_disk: Path, tmp_path: Path) -> None:
    process = CoordinatorProcess(tmp_path, "--no-http", "--lease-seconds", "600")
    process.state_dir = small_disk / "state"
    process.start()
    filler = small_disk / "filler"
    free = shutil.disk_usage(small_disk).free
    filler.write_bytes(b"x" * (free - (600 << 10)))
    acknowledged: list[Any] = []
    with Client(process.address) as client:
        metadata = {f"key-{number}": "x" * 60 for number in range(50)}
        with pytest.raises(RpcError):
            until_it_ends(client, acknowledged, metadata=metadata)
    assert process.wait() == 2
    assert "no room is left for the journal" in process.log.read_text("utf-8")
    assert len(acknowledged) > 10

    _fill(filler)
    process.start(wait=False)
    assert process.wait() == 2, "there is still no room"
    assert "no room is left" in process.log.read_text("utf-8")

    filler.unlink()
    process.start()
    with Client(process.address) as client:
        for who in acknowledged:
            client.heartbeat(who)
        client.register("one-more")
    assert process.stop() == 0


def _fill(file: Path) -> None:
    with file.open("ab", buffering=0) as output:
        try:
            while output.write(b"x" * 512):
                pass
        except OSError:
            return


def test_a_disk_that_fails_to_flush_ends_it_and_nothing_is_lost(tmp_path: Path) -> None:
    if shutil.which("strace") is None:
        pytest.skip("missing component: strace")
    with coordinator(tmp_path, "--no-http", "--lease-seconds", "600") as process:
        acknowledged: list[Any] = []
        with Client(process.address) as client:
            acknowledged += [client.register(f"w{number}") for number in range(5)]
            inject = ["-e", "trace=fsync,fdatasync", "-e", "inject=fsync,fdatasync:error=EIO:when=3+"]
            command = ["strace", "-f", "-qq", *inject, "-p", str(process.pid), "-o", str(tmp_path / "strace.log")]
            with subprocess.Popen(command) as tracer:
                try:
                    until(lambda: _is_traced(process.pid) or tracer.poll() is not None)
                    with pytest.raises(RpcError):
                        until_it_ends(client, acknowledged)
                    assert process.wait() == 2
                    tracer.wait(30)
                finally:
                    tracer.kill()
        assert "cannot be written" in process.log.read_text("utf-8")
        assert len(acknowledged) < 100
        process.start()
        with Client(process.address) as client:
            for who in acknowledged:
                client.heartbeat(who)


def _is_traced(pid: int) -> bool:
    """With all of its threads."""
    each = [(task / "status").read_text("utf-8") for task in Path(f"/proc/{pid}/task").iterdir()]
    return not any("TracerPid:\t0\n" in status for status in each)


# -- silence -----------------------------------------------------------------------------------------------------------


class Worker:
    """A worker in a process of its own."""

    def __init__(self, process: CoordinatorProcess, job: str, rank: int, world_size: int) -> None:
        program = [sys.executable, "-m", "tests.servers.beating_worker", process.address, job]
        self._process = subprocess.Popen(
            [*program, f"w{rank}", str(rank), str(world_size)], stdout=subprocess.PIPE, text=True, cwd=ROOT
        )
        assert self._process.stdout is not None
        self._lines = self._process.stdout
        assert self._lines.readline().startswith("registered")

    def signal(self, number: int) -> None:
        os.kill(self._process.pid, number)

    def rest(self) -> str:
        told, _ = self._process.communicate(timeout=30)
        return told

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


def test_a_zombie_is_given_up_named_and_refused_when_it_wakes(tmp_path: Path) -> None:
    flags = ["--lease-seconds", "3", "--heartbeat-seconds", "1"]
    with coordinator(tmp_path, *flags) as process, Client(process.address, "job") as client:
        client.call("ConfigureJob", recovery="carry_on")
        zombie = Worker(process, "job", 1, 2)
        try:
            me = client.register("w0", rank=0, world_size=2)
            client.call("RegisterDataset", dataset_id="d", total_samples=100, shard_size=10)
            before = client.call("GetShards", dataset_id="d", rank=0).shard_ids
            beating = threading.Thread(target=_keep_alive, args=(client, me), daemon=True)
            beating.start()
            wait = client.start("WaitBarrier", **_from(me), barrier_id="b", arrival=1, expected_participants=2)
            zombie.signal(signal.SIGSTOP)
            with pytest.raises(BarrierFailed, match="w1 was lost before it came: its lease ran out") as error:
                client.result(wait)
            assert error.value.missing == ("w1",)
            after = client.call("GetShards", dataset_id="d", rank=0).shard_ids
            assert len(before) == 5
            assert len(after) == 10, "its shards moved"
            assert set(before) < set(after)
            (shown,) = [each for each in process.get("/api/v1/workers?job=job")["items"] if each["worker_id"] == "w1"]
            assert shown["state"] == "failed"
            zombie.signal(signal.SIGCONT)
            told = zombie.rest()
            assert "fenced expired" in told
            assert "refused expired" in told
        finally:
            zombie.kill()


def _keep_alive(client: Client, who: Any) -> None:
    try:
        while True:
            client.heartbeat(who)
            time.sleep(0.2)
    except (StrataError, ValueError):
        return  # the test is over


def _workers(process: CoordinatorProcess, job: str) -> dict[str, str]:
    """Their states, by name."""
    return {each["worker_id"]: each["state"] for each in process.get(f"/api/v1/workers?job={job}")["items"]}


def stop_it_for(folder: Path, seconds: float) -> None:
    with coordinator(folder, "--lease-seconds", "2", "--heartbeat-seconds", "0.5") as process:
        workers = [Worker(process, "job", rank, 3) for rank in range(3)]
        try:
            with Client(process.address, "job") as client:
                until(lambda: len(_workers(process, "job")) == 3)
                process.signal(signal.SIGSTOP)
                time.sleep(seconds)
                process.signal(signal.SIGCONT)
                time.sleep(4.0)
                request, watch = client.prepared("WatchEvents", after="0-0")
                kinds = [event.kind for event in _until_the_deadline(watch(request, timeout=3))]
                assert kinds.count("worker_joined") == 3
                assert "worker_lost" not in kinds
        finally:
            for worker in workers:
                worker.kill()


def _until_the_deadline(stream: Any) -> list[Any]:
    found = []
    try:
        for event in stream:
            found.append(event)  # noqa: PERF402  what came before the end counts
    except grpc.RpcError:
        pass
    return found


def test_a_coordinator_that_was_stopped_itself_fails_nobody(tmp_path: Path) -> None:
    stop_it_for(tmp_path, 6.0)


@pytest.mark.long
def test_not_even_after_a_minute(tmp_path: Path) -> None:
    stop_it_for(tmp_path, 60.0)


def test_a_restarted_coordinator_gives_everybody_one_full_lease(tmp_path: Path) -> None:
    """When that ends is a law on virtual time (`tests/unit/session/test_on_virtual_time.py`)."""
    lease = 3.0
    flags = ("--lease-seconds", str(lease), "--heartbeat-seconds", "1")
    with coordinator(tmp_path, *flags) as process, Client(process.address) as client:
        first, second = client.world(2)
        process.kill()
        time.sleep(lease + 0.5)  # away for longer than that
        process.start()
        client.heartbeat(first, timeout=10)
        client.heartbeat(second, timeout=10)
        until(lambda: client.heartbeat(first) and _workers(process, client.job)["w1"] == "failed", every=0.1)
        with pytest.raises(Expired):
            client.heartbeat(second)


def test_barriers_go_on_over_a_restart(tmp_path: Path) -> None:
    """The waiters ask again with the numbers they had, and are released together."""
    with coordinator(tmp_path) as process, Client(process.address) as client:
        workers = client.world(2)

        def wait(who: Any) -> Any:
            fields: dict[str, Any] = {"barrier_id": "b", "arrival": 1, "expected_participants": 2}
            return client.start("WaitBarrier", **_from(who), **fields)

        first = wait(workers[0])
        until(lambda: process.get(f"/api/v1/barriers?job={client.job}")["open"])
        assert process.stop() == 0
        with pytest.raises(RpcError, match="shutting down"):
            client.result(first)
        process.start()
        waits = [wait(who) for who in workers]
        assert len({client.result(each).round for each in waits}) == 1
