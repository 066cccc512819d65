"""How every test runs: Hypothesis profiles, and in CI no test skips for want of a component.

A test that needs a component which may be absent says so with a reason that starts with `missing component:`, or uses
`pytest.importorskip`. On a developer's machine it skips. Where CI=true it fails, so that no test goes missing unseen.
"""

import os
import signal
from collections.abc import Generator

import pytest
from hypothesis import HealthCheck, settings

# Before any test imports grpcio, as it is in a process where Strata is the first to load it.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

_MISSING = ("Skipped: missing component:", "Skipped: could not import")


def _in_ci() -> bool:
    return os.environ.get("CI") == "true"


def _load_profile() -> None:
    # Tests measure nothing, and a busy machine is no failure: no deadline, no complaint about slow data.
    base = settings(deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
    settings.register_profile("default", base, max_examples=100, derandomize=False)
    # The same examples for the same code: a failure in CI is about the change, never about luck.
    settings.register_profile("ci", base, max_examples=100, derandomize=True, database=None)
    settings.register_profile("long", base, max_examples=2000, derandomize=False)
    settings.load_profile(os.environ.get("STRATA_TEST_PROFILE") or ("ci" if _in_ci() else "default"))


_load_profile()

# What a shell starts in its background is deaf to Ctrl-C, and so would be every command under test.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


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
