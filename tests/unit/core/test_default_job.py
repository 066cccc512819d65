"""Two runs without a job_id meet in one job: the one that must stop is told why."""

import pytest

from strata.core.events import HeartbeatReceived, RegisterRequested
from strata.core.ids import DEFAULT_JOB
from strata.core.machine import Machine
from strata.errors import Superseded

ADVICE = "All runs without a job_id"


@pytest.mark.parametrize("job", [DEFAULT_JOB, "llama"])
def test_the_superseded_run_is_told_of_the_default_job(job: str) -> None:
    machine = Machine()
    for nonce in ("first", "second"):
        machine.handle(RegisterRequested(job, "rank-0", nonce), 0.0)
    with pytest.raises(Superseded) as lived:
        machine.handle(HeartbeatReceived(job, "rank-0", 1), 1.0)
    with pytest.raises(Superseded) as came_back:
        machine.handle(RegisterRequested(job, "rank-0", "first"), 1.0)
    assert [ADVICE in str(each.value) for each in (lived, came_back)] == [job == DEFAULT_JOB] * 2
