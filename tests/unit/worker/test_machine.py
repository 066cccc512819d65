"""What a process runs on."""

import os

import pytest

from strata.worker import machine


@pytest.mark.parametrize(("host", "found"), [("127.0.0.1", "127.0.0.1"), ("no.such.host.invalid", "")])
def test_the_address_is_that_on_the_way_to_the_coordinator(host: str, found: str) -> None:
    assert machine.address_towards(host) == found


@pytest.mark.parametrize(("visible", "count"), [("0,1,2", 3), ("", 0), ("-1", 0), ("GPU-1, GPU-2", 2)])
def test_gpus_are_those_that_may_be_used(monkeypatch: pytest.MonkeyPatch, visible: str, count: int) -> None:
    monkeypatch.setitem(machine.sys.modules, "torch", None)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert machine.gpu_count() == count


def test_there_is_memory_and_no_more_than_the_machine_has() -> None:
    assert 0 < machine.memory_bytes() <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
