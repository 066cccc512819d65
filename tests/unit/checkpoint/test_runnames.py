"""The name of one start of all ranks: whence it comes, and where it is not to be had."""

from collections.abc import Iterator

import pytest
import torch.distributed as dist

from strata.checkpoint.runnames import common_run
from strata.errors import InvalidInput


@pytest.fixture
def group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("group")
def test_a_process_group_of_another_size_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes of it that are no ranks would never answer; those that are would wait, and disturb its other calls."""
    for name in ("STRATA_RUN_ID", "SLURM_JOB_ID"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(InvalidInput, match="one process for each of the 2 ranks"):
        common_run(None, 0, 2)
    assert common_run("mine", 0, 2) == "mine"
    assert common_run(None, 0, 1) == "alone"
