"""What a process runs on."""

import mmap
import os
import sys
from types import SimpleNamespace

import pytest

from strata.worker import machine


@pytest.mark.parametrize(("host", "found"), [("127.0.0.1", "127.0.0.1"), ("no.such.host.invalid", "")])
def test_the_address_is_that_on_the_way_to_the_coordinator(host: str, found: str) -> None:
    assert machine.address_towards(host) == found


@pytest.mark.parametrize(("visible", "count"), [("0,1,2", 3), ("", 0), ("-1", 0), ("GPU-1, GPU-2", 2)])
def test_gpus_are_those_that_may_be_used(monkeypatch: pytest.MonkeyPatch, visible: str, count: int) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert machine.gpu_count() == count


def test_there_is_memory_and_no_more_than_the_machine_has() -> None:
    assert 0 < machine.memory_bytes() <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def test_what_this_process_takes_grows_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.cuda", None)
    before = machine.taken()
    held = mmap.mmap(-1, 64 << 20)  # new memory, whatever others have given back
    held.write(bytes(len(held)))
    while os.times().user + os.times().system == before["cpu_seconds"]:
        held[0] = 1
    after = machine.taken()
    assert after["cpu_seconds"] > before["cpu_seconds"]
    if sys.platform == "linux":
        assert after["resident_memory_bytes"] - before["resident_memory_bytes"] >= len(held) // 2
        assert after["resident_memory_bytes"] < machine.memory_bytes()
    assert "gpu_memory_bytes" not in after


def test_the_memory_of_gpus_is_told_once_they_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """And CUDA is not started for that; nor is it a matter which GPU is the current one of the thread that asks."""
    cuda = SimpleNamespace()
    monkeypatch.setitem(sys.modules, "torch.cuda", cuda)
    assert "gpu_memory_bytes" not in machine.taken(), "it is being imported"
    is_used = False
    cuda.is_initialized, cuda.device_count = lambda: is_used, lambda: 2
    cuda.memory_allocated = lambda device: [1000, 24][device]
    assert "gpu_memory_bytes" not in machine.taken()
    is_used = True
    assert machine.taken()["gpu_memory_bytes"] == 1024

    def fails(device: int) -> int:
        raise RuntimeError("CUDA error: device-side assert triggered")

    cuda.memory_allocated = fails
    assert "gpu_memory_bytes" not in machine.taken()
