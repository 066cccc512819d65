"""No process outlives the test, or the fixture, that started it; and none is deaf because this run was started so."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import leftovers

pytestmark = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="processes are found by /proc")

SUITE = """
    import subprocess
    import pytest

    @pytest.fixture(scope="session")
    def server_of_all():
        with subprocess.Popen(["sleep", "605"]) as process:
            yield process
            process.kill()

    def test_asks_for_one_of_the_session(server_of_all):
        pass

    def test_finds_that(server_of_all):
        assert server_of_all.poll() is None

    @pytest.fixture(scope="module")
    def server():
        with subprocess.Popen(["sleep", "600"]) as process:
            yield process
            process.kill()

    def test_leaves_one():
        subprocess.Popen(["sleep", "601"])

    def test_leaves_one_with_children():
        subprocess.Popen(["sh", "-c", "sleep 602 & wait"])

    def test_fails_and_leaves_one():
        subprocess.Popen(["sleep", "603"])
        assert False

    def test_asks_for_a_server_late(request):
        request.getfixturevalue("server")

    def test_finds_it(server):
        assert server.poll() is None

    def test_leaves_an_orphan():
        subprocess.run(["sh", "-c", "setsid sleep 604 >/dev/null 2>&1 &"], check=True)
"""


@pytest.fixture
def suite(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makepyfile(**{"tests/conftest": Path(__file__).with_name("conftest.py").read_text("utf-8")})
    pytester.makepyfile(**{"tests/test_suite": SUITE})
    pytester.makeini("[pytest]")  # the root is above the conftest, as here
    return pytester


def test_what_a_test_leaves_is_ended_and_told(suite: pytest.Pytester) -> None:
    result = suite.runpytest("-p", "no:cacheprovider", "-p", "no:xdist", "-rE", "-W", "ignore")
    result.assert_outcomes(passed=7, failed=1, errors=3)
    told = result.stdout.str()
    for seconds, said in ((601, True), (602, True), (603, False), (604, True)):
        assert (f": sleep {seconds}" in told or f"sleep {seconds} & wait" in told) == said, seconds
    assert "ERROR at teardown of test_leaves_one " in told
    assert "left behind at the end of the run" in told
    assert not [each for each in _all_commands() if each in {f"sleep {number}" for number in range(600, 606)}]


def _all_commands() -> list[str]:
    return [leftovers.Process(int(each.name), 0).command for each in Path("/proc").glob("[0-9]*")]


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM, signal.SIGINT])
def test_what_tests_start_hears_signals_however_the_run_was_started(number: signal.Signals) -> None:
    """As under `nohup`, or in the background of a shell: what is ignored there is ignored by every child."""
    asks = (
        "import signal, sys; print(signal.getsignal(int(sys.argv[1])) in (signal.SIG_DFL, signal.default_int_handler))"
    )
    runs = (
        "import signal, subprocess, sys; from tests import leftovers; leftovers.hear_all_signals();"
        "subprocess.run([sys.executable, '-c', *sys.argv[1:]], check=True)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    told = subprocess.run(
        [sys.executable, "-c", runs, asks, str(int(number))],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env=environment,
        preexec_fn=lambda: signal.signal(number, signal.SIG_IGN),
    )
    assert told.stdout == "True\n"
