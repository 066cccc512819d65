"""The measuring itself. Everything is kept: what each save of each way cost, and the limits measured beside them."""

import gc
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.distributed as dist

from benchmarks import Row, Table
from benchmarks.checkpoint_gpu.savers import DCP_MODES, Dcp, Pinned, Strata, bare_write
from benchmarks.checkpoint_gpu.training import LAYERS, Run

STEPS_SECONDS = (0.020, 0.130, 1.0)
ALL_MODES_SECONDS = 0.130
"""Steps at which every mode of DCP is measured; at the others those that stall least."""
ROUNDS = 3
DCP_ROUNDS = 2


class Save(msgspec.Struct):
    """One save. The stall is how much later the loop is for the call and the two steps after it; `slower` is by how
    much steps take longer from then on until it is durable."""

    way: str
    step_ms: float
    number: int
    call_ms: float = 0.0
    stall_ms: float = 0.0
    slower_percent: float | None = None
    durable_s: float = 0.0
    disk_s: float | None = None
    """What bare writes of as many bytes took just before."""
    problem: str = ""


class Load(msgspec.Struct):
    way: str
    temperature: str
    seconds: float
    problem: str = ""


class Report(msgspec.Struct):
    machine: str
    state_bytes: int
    tensors: int
    copy_ms: list[float]
    """Of the whole state, bare, to pinned memory."""
    disk_s: list[float]
    """Of as many bytes, bare."""
    saves: list[Save]
    loads: list[Load]
    prepare_s: float = 0.0
    same: str = ""
    """Whether what was saved while training went on is what it was."""


def log(message: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {message}", file=sys.stderr, flush=True)


def measure(
    layers: int = LAYERS, modes: tuple[str, ...] = DCP_MODES, steps: tuple[float, ...] = STEPS_SECONDS
) -> Report:
    with tempfile.TemporaryDirectory(dir=os.environ.get("STRATA_BENCH_DIR", ".")) as name:
        folder = Path(name)
        _process_group()
        run = Run(layers)
        report = Report(_machine(), run.bytes, len(run.tensors()), [], [], [], [])
        _limits(report, run, folder)
        _strata_first(report, run, folder)
        for seconds in steps:
            usual = run.last(seconds)
            log(f"steps of {1000 * usual:.1f} ms ({run.tokens} tokens)")
            chosen = modes if seconds == ALL_MODES_SECONDS else tuple(mode for mode in modes if "pinned" in mode)
            for make in _ways(folder, chosen):
                _saves(report, run, usual, make)
        _loads(report, run, folder)
        with suppress(Exception):
            dist.destroy_process_group()
        return report


def _ways(folder: Path, modes: tuple[str, ...]) -> Iterator[Callable[[], Any]]:
    yield lambda: Strata(folder, "none")
    yield lambda: Strata(folder, "optimizer")
    for mode in modes:
        yield lambda mode=mode: Dcp(folder, mode)  # type: ignore[misc]


def _limits(report: Report, run: Run, folder: Path) -> None:
    pinned = Pinned(run.tensors())
    for _ in range(5):
        began = time.perf_counter()
        pinned.copy()
        report.copy_ms.append(1000 * (time.perf_counter() - began))
    del pinned
    report.disk_s += [_disk(report.state_bytes, folder) for _ in range(3)]
    log(
        f"bare copy {min(report.copy_ms):.0f} ms, bare disk {min(report.disk_s):.2f} s for {report.state_bytes:,} bytes"
    )


def _disk(size: int, folder: Path) -> float:
    began = time.perf_counter()
    bare_write(folder / "bare", size)
    took = time.perf_counter() - began
    (folder / "bare").unlink()
    return took


def _strata_first(report: Report, run: Run, folder: Path) -> None:
    """What `prepare` takes, and whether an overlapped save is of the moment it was asked for."""
    way = Strata(folder, "optimizer")
    began = time.perf_counter()
    way.manager.prepare(run.state)
    report.prepare_s = time.perf_counter() - began
    run.last(0.02)
    expected = [tensor.clone() for tensor in run.tensors()]
    going = way.save(run.state, 1)
    for _ in range(3):
        run.step()
    going.durable()
    way.manager.load(into=run.state)
    differ = sum(not torch.equal(one, other) for one, other in zip(run.tensors(), expected, strict=True))
    report.same = "yes" if not differ else f"no: {differ} of {len(expected)} tensors differ"
    log(f"prepare {report.prepare_s:.2f} s, first overlapped save is what it was: {report.same}")
    way.close()


def _saves(report: Report, run: Run, usual: float, make: Callable[[], Any]) -> None:
    gc.collect()
    way = None
    try:
        way = make()
        ours = isinstance(way, Strata)
        for number in range(1, (ROUNDS if ours else DCP_ROUNDS) + 1):
            save = Save(way.name, 1000 * usual, number)
            report.saves.append(save)
            if ours:
                save.disk_s = _disk(report.state_bytes, way.folder.parent)
            _one(save, run, way)
            log(str(save))
    except Exception as error:  # noqa: BLE001  that a way fails is a finding
        problem = f"{type(error).__name__}: {str(error).splitlines()[0][:200] if str(error) else ''}"
        log(f"{'?' if way is None else way.name}: {problem}")
        if report.saves and way is not None and report.saves[-1].way == way.name:
            report.saves[-1].problem = problem
    finally:
        run.before_update = lambda: None
        if way is not None:
            with suppress(Exception):
                way.close()


def _one(save: Save, run: Run, way: Any) -> None:
    usual = run.usual(4 if save.step_ms < 500 else 2)
    began = time.perf_counter()
    going = way.save(run.state, save.number)
    save.call_ms = 1000 * (time.perf_counter() - began)
    run.before_update = going.before_update
    first = [run.step()]
    run.before_update = lambda: None
    first.append(run.step())
    save.stall_ms = save.call_ms + 1000 * sum(took - usual for took in first)
    later = []
    while not going.is_durable():
        later.append(run.step())
    going.durable()
    save.durable_s = time.perf_counter() - began
    if len(later) > 1:
        save.slower_percent = 100 * (statistics.mean(later[:-1]) / usual - 1)


def _loads(report: Report, run: Run, folder: Path) -> None:
    for make in (lambda: Strata(folder, "none"), lambda: Dcp(folder, "blocking")):
        way = make()
        try:
            way.save(run.state, 1).durable()
            for temperature in ("cold", "warm", "warm"):
                (_drop_caches if temperature == "cold" else _fill_caches)(way.folder)
                began = time.perf_counter()
                way.load(run.state)
                torch.cuda.synchronize()
                report.loads.append(Load(way.name, temperature, time.perf_counter() - began))
                log(str(report.loads[-1]))
        except Exception as error:  # noqa: BLE001  as above
            report.loads.append(Load(way.name, "?", 0.0, f"{type(error).__name__}: {error}"[:300]))
            log(str(report.loads[-1]))
        way.close()


def _drop_caches(folder: Path) -> None:
    os.sync()
    for path in folder.rglob("*"):
        if path.is_file():
            fd = os.open(path, os.O_RDONLY)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)


def _fill_caches(folder: Path) -> None:
    """Strata writes, and reads what is cold, past the page cache: by itself nothing would be warm."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb", buffering=0) as file:
                while file.read(16 << 20):
                    pass


def _process_group() -> None:
    """DCP's background process asks for one."""
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29511")
    if not dist.is_initialized():
        dist.init_process_group("cpu:gloo,cuda:nccl", rank=0, world_size=1)


def _machine() -> str:
    free = shutil.disk_usage(".").free
    return (
        f"{torch.cuda.get_device_name()}, {os.cpu_count()} cores, torch {torch.__version__}, "
        f"Python {sys.version.split()[0]}, {free >> 30} GiB of disk free"
    )


# -- for people --------------------------------------------------------------------------------------------------------


def tables(report: Report) -> list[Table]:
    """Medians and best; what the first save of each way cost is a row of its own."""
    copy, disk = statistics.median(report.copy_ms), statistics.median(report.disk_s)
    found = [
        Table(
            f"Limits for {report.state_bytes / 1e9:.1f} GB in {report.tensors} tensors: {report.machine}",
            [
                Row("bare copy to pinned memory", copy, min(report.copy_ms), "ms"),
                Row("bare writes to the disk", disk, min(report.disk_s), "s"),
            ],
        )
    ]
    for step in sorted({save.step_ms for save in report.saves}):
        rows = []
        for way in dict.fromkeys(save.way for save in report.saves):
            rows += _rows([s for s in report.saves if s.way == way and s.step_ms == step], step, copy)
        found.append(Table(f"Saves at steps of {step:.0f} ms", rows))
    loads = [
        Row(f"{way}, {temperature}", statistics.median(times), min(times), "s")
        for way in dict.fromkeys(load.way for load in report.loads)
        for temperature in ("cold", "warm")
        if (times := [x.seconds for x in report.loads if (x.way, x.temperature) == (way, temperature)])
    ]
    return [*found, Table("Loads to the GPU", loads)]


def _rows(saves: list[Save], step: float, copy: float) -> list[Row]:
    good = [save for save in saves if not save.problem]
    if not good:
        return []
    way, later = good[0].way, [save for save in good if save.number > 1]
    rows = [Row(f"{way}: stall of the first", good[0].stall_ms, good[0].stall_ms, "ms")]
    if not later:
        return rows
    stalls, durable = [save.stall_ms for save in later], [save.durable_s for save in later]
    target = {"Strata": 1.2 * copy, 'Strata, overlap="optimizer"': 65.0 if 100 < step < 200 else None}.get(way)
    rows.append(Row(f"{way}: stall", statistics.median(stalls), min(stalls), "ms", target))
    rows.append(Row(f"{way}: durable", statistics.median(durable), min(durable), "s"))
    shares = [100 * save.disk_s / save.durable_s for save in later if save.disk_s is not None]
    if shares:
        share = statistics.median(shares)
        rows.append(Row(f"{way}: of the bare disk's rate", share, max(shares), "%", 80.0, at_least=True))
    slower = [save.slower_percent for save in later if save.slower_percent is not None]
    if slower:
        rows.append(Row(f"{way}: steps slower by", statistics.median(slower), min(slower), "%"))
    return rows
