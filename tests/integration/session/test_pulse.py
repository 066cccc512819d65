"""Real training processes with a helper: they hold Python's lock, hang, are stopped, are killed, fork, and leave."""

import os
import signal
import time
from pathlib import Path

import pytest

from tests.integration.session.scenes import (
    ROOT,
    eventually,
    heartbeats,
    helper_of,
    helpers_of,
    is_there,
    lost,
    trainer,
    worker,
)
from tests.servers.coordinator import CoordinatorProcess, coordinator

HOLD = 5.0
"""More than two leases."""
TOKEN = "a-token-that-nobody-may-see"


def test_a_worker_that_holds_pythons_lock_stays_alive(running: CoordinatorProcess, job: str) -> None:
    with trainer(running, job) as made:
        incarnation = made.ask("register")
        helper_of(made.pid)
        before = heartbeats(running)
        made.ask(f"hold {HOLD}")
        assert heartbeats(running) - before >= HOLD / 2  # one each half second, if nothing else is in the way
        assert made.ask("register") == incarnation
        assert lost(running, job) == []


@pytest.mark.long
def test_without_a_helper_it_is_lost(running: CoordinatorProcess, job: str) -> None:
    """What the test above holds is Python's lock indeed."""
    with trainer(running, job, pulse=False) as made:
        made.ask("register")
        made.ask(f"hold {HOLD}")
        assert "its lease ran out" in lost(running, job)[0]


def test_one_that_holds_it_for_too_long_is_given_up(running: CoordinatorProcess, job: str) -> None:
    with trainer(running, job, stall_seconds=2.0) as made:
        made.ask("register")
        helper_of(made.pid)
        made.tell("hold 60")
        eventually(lambda: lost(running, job), "the end of its lease")
        assert "its lease ran out" in lost(running, job)[0]
        assert is_there(made.pid)


def test_one_that_is_stopped_is_given_up_and_comes_back_as_another(running: CoordinatorProcess, job: str) -> None:
    with trainer(running, job) as made:
        incarnation = int(made.ask("register"))
        helper = helper_of(made.pid)
        os.kill(made.pid, signal.SIGSTOP)
        eventually(lambda: lost(running, job), "the end of its lease")
        os.kill(made.pid, signal.SIGCONT)
        eventually(lambda: worker(running, job)["incarnation"] > incarnation, "another incarnation")
        made.ask("register")
        made.ask(f"hold {HOLD}")
        assert len(lost(running, job)) == 1
        assert helpers_of(made.pid) == [helper]


def test_one_that_is_killed_is_failed_at_once_though_a_child_of_it_lives_on(
    patient: CoordinatorProcess, job: str
) -> None:
    with trainer(patient, job) as made:
        made.ask("register")
        helper = helper_of(made.pid)
        child = int(made.ask("fork"))  # which said to the helper that all is over, and was not heard
        try:
            assert is_there(helper)
            made.kill()
            eventually(lambda: lost(patient, job), "the news of its death")
            assert "its process died" in lost(patient, job)[0]
            assert worker(patient, job)["state"] == "failed"
            eventually(lambda: not is_there(helper), "the end of the helper")
            assert is_there(child)
        finally:
            os.kill(child, signal.SIGKILL)


def test_one_that_is_killed_while_it_cannot_speak_is_told_of_too(patient: CoordinatorProcess, job: str) -> None:
    with trainer(patient, job) as made:
        made.ask("register")
        helper_of(made.pid)
        made.tell("hold 60")
        made.kill()
        eventually(lambda: lost(patient, job), "the news of its death")


def test_who_leaves_has_not_died_and_its_helper_ends(patient: CoordinatorProcess, job: str) -> None:
    with trainer(patient, job) as made:
        made.ask("register")
        helper = helper_of(made.pid)
        made.ask("leave")
        eventually(lambda: not is_there(helper), "the end of the helper")
        made.kill()
        assert worker(patient, job)["state"] == "left"


def test_a_helper_that_ends_is_started_again(running: CoordinatorProcess, job: str) -> None:
    with trainer(running, job) as made:
        incarnation = made.ask("register")
        first = helper_of(made.pid)
        os.kill(first, signal.SIGKILL)
        eventually(lambda: helpers_of(made.pid) not in ([], [first]), "another helper")
        helper_of(made.pid)
        made.ask(f"hold {HOLD}")
        assert made.ask("register") == incarnation
        assert lost(running, job) == []


def test_whoever_waits_for_children_in_the_trainer_meets_no_helper(running: CoordinatorProcess, job: str) -> None:
    with trainer(running, job) as made:
        made.ask("register")
        helper = helper_of(made.pid)
        time.sleep(0.5)  # whoever started it has ended
        assert made.ask("wait") == "none"
        assert is_there(helper)


def test_it_holds_nothing_of_the_trainer_but_its_pipe_and_where_it_complains(
    running: CoordinatorProcess, job: str
) -> None:
    with trainer(running, job) as made:
        made.ask("register")
        helper = helper_of(made.pid)
        files = {int(each.name): os.readlink(each) for each in Path(f"/proc/{helper}/fd").iterdir()}
        assert files.pop(0).startswith("pipe:")
        assert files.pop(1) == os.devnull
        assert files.pop(2) == os.readlink(f"/proc/{made.pid}/fd/2")
        assert os.devnull not in files.values()  # the trainer has one open for all who are started by it
        assert [each for each in files.values() if each.startswith("pipe:")] == []
        assert os.getsid(helper) != os.getsid(made.pid)


def test_the_coordinator_is_started_again_meanwhile(tmp_path: Path, job: str) -> None:
    flags = ("--lease-seconds", "4", "--heartbeat-seconds", "0.5")
    with coordinator(tmp_path, *flags) as running, trainer(running, job) as made:
        incarnation = made.ask("register")
        helper_of(made.pid)
        made.tell("hold 9")  # a restart, and more than a lease after it
        running.kill()
        running.start()
        made.answer()
        assert made.ask("register") == incarnation
        assert lost(running, job) == []


def test_a_token_goes_along_and_nobody_sees_it(tmp_path: Path, job: str) -> None:
    (tmp_path / "token").write_text(TOKEN)
    flags = ("--lease-seconds", "2", "--heartbeat-seconds", "0.5", "--token-file", str(tmp_path / "token"))
    with coordinator(tmp_path, *flags) as running, trainer(running, job, settings={"token": TOKEN}) as made:
        incarnation = made.ask("register")
        helper = helper_of(made.pid)
        made.ask(f"hold {HOLD}")
        assert made.ask("register") == incarnation
        for name in ("cmdline", "environ"):
            assert TOKEN not in Path(f"/proc/{helper}/{name}").read_text()


@pytest.mark.long
def test_the_file_of_a_token_goes_along_from_wherever_it_is(tmp_path: Path, job: str) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN)
    flags = ("--lease-seconds", "2", "--heartbeat-seconds", "0.5", "--token-file", str(file))
    settings = {"token_file": os.path.relpath(file, ROOT)}
    with coordinator(tmp_path, *flags) as running, trainer(running, job, settings=settings) as made:
        incarnation = made.ask("register")
        helper_of(made.pid)
        made.ask(f"hold {HOLD}")
        assert made.ask("register") == incarnation
