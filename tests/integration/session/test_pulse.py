"""Real training processes with a helper: they hold Python's lock, hang, are stopped, are killed, fork, and leave."""

import os
import signal
from pathlib import Path

import pytest

from tests.coordinators import HASTY
from tests.integration.session.scenes import (
    ROOT,
    helper_of,
    helpers_of,
    is_there,
    lost,
    trainer,
    worker,
)
from tests.servers.coordinator import CoordinatorProcess, coordinator
from tests.until import until

HOLD = "hold 600"
"""Until it is killed."""
LEASE = 2.0
"""Of `hasty`."""
TOKEN = "a-token-that-nobody-may-see"


def spoken_for(running: CoordinatorProcess, job: str, times: int = 1, token: str = "") -> None:
    """The coordinator hears so often of w0, which can say nothing itself."""
    for _ in range(times):
        until(lambda: worker(running, job, token)["heard_seconds_ago"] > 0.3)
        until(lambda: worker(running, job, token)["heard_seconds_ago"] < 0.3)


def test_a_worker_that_holds_pythons_lock_stays_alive(hasty: CoordinatorProcess, job: str) -> None:
    with trainer(hasty, job) as made:
        incarnation = made.ask("register")
        helper_of(made.pid)
        made.ask(f"hold {2 * LEASE}")
        assert made.ask("register") == incarnation
        assert lost(hasty, job) == []


@pytest.mark.long
def test_without_a_helper_it_is_lost(hasty: CoordinatorProcess, job: str) -> None:
    """What the test above holds is Python's lock indeed."""
    with trainer(hasty, job, pulse=False) as made:
        made.ask("register")
        made.tell(HOLD)
        until(lambda: lost(hasty, job))
        assert "its lease ran out" in lost(hasty, job)[0]


def test_one_that_holds_it_for_too_long_is_given_up(hasty: CoordinatorProcess, job: str) -> None:
    with trainer(hasty, job, stall_seconds=2.0) as made:
        made.ask("register")
        helper_of(made.pid)
        made.tell(HOLD)
        until(lambda: lost(hasty, job))
        assert "its lease ran out" in lost(hasty, job)[0]
        assert is_there(made.pid)


def test_one_that_is_stopped_is_given_up_and_comes_back_as_another(hasty: CoordinatorProcess, job: str) -> None:
    with trainer(hasty, job) as made:
        incarnation = int(made.ask("register"))
        helper = helper_of(made.pid)
        os.kill(made.pid, signal.SIGSTOP)
        until(lambda: lost(hasty, job))
        os.kill(made.pid, signal.SIGCONT)
        until(lambda: worker(hasty, job)["incarnation"] > incarnation)
        made.ask("register")
        made.tell(HOLD)
        spoken_for(hasty, job, times=2)
        assert len(lost(hasty, job)) == 1
        assert helpers_of(made.pid) == [helper]


def test_one_that_is_killed_is_failed_at_once_though_a_child_of_it_lives_on(
    running: CoordinatorProcess, job: str
) -> None:
    with trainer(running, job) as made:
        made.ask("register")
        helper = helper_of(made.pid)
        child = int(made.ask("fork"))  # which said to the helper that all is over, and was not heard
        try:
            assert is_there(helper)
            made.kill()
            until(lambda: lost(running, job))
            assert "its process died" in lost(running, job)[0]
            assert worker(running, job)["state"] == "failed"
            until(lambda: not is_there(helper))
            assert is_there(child)
        finally:
            os.kill(child, signal.SIGKILL)


def test_one_that_is_killed_while_it_cannot_speak_is_told_of_too(running: CoordinatorProcess, job: str) -> None:
    with trainer(running, job) as made:
        made.ask("register")
        helper_of(made.pid)
        made.tell(HOLD)
        made.kill()
        until(lambda: lost(running, job))


def test_who_leaves_has_not_died_and_its_helper_ends(running: CoordinatorProcess, job: str) -> None:
    with trainer(running, job) as made:
        made.ask("register")
        helper = helper_of(made.pid)
        made.ask("leave")
        until(lambda: not is_there(helper))
        made.kill()
        assert worker(running, job)["state"] == "left"


def test_a_helper_that_ends_is_started_again(hasty: CoordinatorProcess, job: str) -> None:
    with trainer(hasty, job) as made:
        made.ask("register")
        first = helper_of(made.pid)
        os.kill(first, signal.SIGKILL)
        until(lambda: helpers_of(made.pid) not in ([], [first]))
        helper_of(made.pid)
        made.tell(HOLD)
        spoken_for(hasty, job, times=2)
        assert lost(hasty, job) == []


def test_whoever_waits_for_children_in_the_trainer_meets_no_helper(hasty: CoordinatorProcess, job: str) -> None:
    with trainer(hasty, job) as made:
        made.ask("register")
        helper = helper_of(made.pid)
        until(lambda: made.ask("wait") == "none")
        assert is_there(helper)


def test_it_holds_nothing_of_the_trainer_but_its_pipe_and_where_it_complains(
    hasty: CoordinatorProcess, job: str
) -> None:
    with trainer(hasty, job) as made:
        made.ask("register")
        helper = helper_of(made.pid)
        files = {int(each.name): os.readlink(each) for each in Path(f"/proc/{helper}/fd").iterdir()}
        assert files.pop(0).startswith("pipe:")
        assert files.pop(1) == os.devnull
        assert files.pop(2) == os.readlink(f"/proc/{made.pid}/fd/2")
        assert os.devnull not in files.values()  # the trainer has one open for all who are started by it
        assert [each for each in files.values() if each.startswith("pipe:")] == []
        assert os.getsid(helper) != os.getsid(made.pid)


def test_the_coordinator_is_started_again_meanwhile(own_coordinator: CoordinatorProcess, job: str) -> None:
    with trainer(own_coordinator, job) as made:
        incarnation = int(made.ask("register"))
        helper_of(made.pid)
        made.tell(HOLD)
        own_coordinator.kill()
        own_coordinator.start()
        spoken_for(own_coordinator, job, times=2)
        assert worker(own_coordinator, job)["incarnation"] == incarnation
        assert lost(own_coordinator, job) == []


def test_a_token_goes_along_and_nobody_sees_it(tmp_path: Path, job: str) -> None:
    (tmp_path / "token").write_text(TOKEN)
    flags = (*HASTY, "--token-file", str(tmp_path / "token"))
    with coordinator(tmp_path, *flags) as own, trainer(own, job, settings={"token": TOKEN}) as made:
        made.ask("register")
        helper = helper_of(made.pid)
        made.tell(HOLD)
        spoken_for(own, job, token=TOKEN)
        for name in ("cmdline", "environ"):
            assert TOKEN not in Path(f"/proc/{helper}/{name}").read_text("utf-8")


@pytest.mark.long
def test_the_file_of_a_token_goes_along_from_wherever_it_is(tmp_path: Path, job: str) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN)
    flags = (*HASTY, "--token-file", str(file))
    settings = {"token_file": os.path.relpath(file, ROOT)}
    with coordinator(tmp_path, *flags) as own, trainer(own, job, settings=settings) as made:
        made.ask("register")
        helper_of(made.pid)
        made.tell(HOLD)
        spoken_for(own, job, token=TOKEN)
