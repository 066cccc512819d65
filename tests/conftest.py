"""How every test runs: Hypothesis profiles, no process outlives its test, in CI no test skips for want of a component.

A test that needs a component which may be absent says so with a reason that starts with `missing component:`, or uses
`pytest.importorskip`. On a developer's machine it skips. Where CI=true it fails, so that no test goes missing unseen.
"""

import os
from collections.abc import Generator, Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests import environment, leftovers

environment.clear(os.environ)
environment.speak_utf8(os.environ)
# Before anything imports grpcio, as it is in a process where Strata is the first to load it.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
# Several tests run at a time: a pool of threads for each would only make them wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

from tests.coordinators import client, guarded, hasty, job, own_coordinator, running  # noqa: E402, F401  for all tests

MOST_PROCESSES = 16

_MISSING = ("Skipped: missing component:", "Skipped: could not import")


def _in_ci() -> bool:
    return os.environ.get("CI") == "true"


def _load_profile() -> None:
    # Tests measure nothing, and a busy machine is no failure: no deadline, no complaint about slow data.
    base = settings(deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
    settings.register_profile("default", base, max_examples=100, derandomize=False)
    # The same examples for the same code: a failure in CI is about the change, never about luck.
    settings.register_profile("ci", base, max_examples=100, derandomize=True, database=None)
    settings.register_profile("quick", base, max_examples=20, derandomize=True, database=None)
    settings.register_profile("long", base, max_examples=2000, derandomize=False)
    settings.load_profile(os.environ.get("STRATA_TEST_PROFILE") or ("ci" if _in_ci() else "default"))


_load_profile()

leftovers.hear_all_signals()


# -- processes ---------------------------------------------------------------------------------------------------------


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(leftovers.Watch(), "leftovers")


@pytest.fixture(scope="session", autouse=True)
def _no_process_is_left() -> Iterator[None]:
    """Torn down last: this runs behind every other fixture."""
    run = leftovers.Run()
    yield
    if left := run.finish():
        pytest.fail("left behind at the end of the run, and ended now:\n" + "\n".join(left), pytrace=False)


# -- components --------------------------------------------------------------------------------------------------------


@pytest.hookimpl(optionalhook=True)  # mutants are hunted without xdist
def pytest_xdist_auto_num_workers() -> int:
    """How many processes `-n auto` starts: three more than there are cores, for tests wait as much as they compute."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores + 3, MOST_PROCESSES)


def _fail_if_missing(report: pytest.TestReport | pytest.CollectReport) -> None:
    # An expected failure is reported as skipped too, but with a traceback in place of (path, line, reason).
    if not (_in_ci() and report.skipped and isinstance(report.longrepr, tuple)):
        return
    path, line, reason = report.longrepr
    if reason.startswith(_MISSING):
        report.outcome = "failed"
        report.longrepr = f"{path}:{line}: {reason.removeprefix('Skipped: ')} (in CI this is a failure)"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _fail_if_missing(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _fail_if_missing(report)
    return report
