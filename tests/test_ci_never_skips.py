"""Where CI=true, a test that lacks a component fails; elsewhere, and for any other reason, it skips."""

from pathlib import Path

import pytest

LACKING_IN_TESTS = """
    import pytest

    @pytest.fixture
    def server():
        pytest.skip("missing component: server")

    def test_lacks_in_fixture(server): ...

    def test_lacks_in_body():
        pytest.skip("missing component: server")

    @pytest.mark.skipif(True, reason="missing component: server")
    def test_lacks_by_mark(): ...

    def test_lacks_a_package():
        pytest.importorskip("no_such_package")

    def test_skips_for_another_reason():
        pytest.skip("only on Windows")

    @pytest.mark.xfail(reason="missing component: server")
    def test_fails_as_expected():
        assert False

    def test_passes(): ...
"""

LACKING_IN_MODULE = """
    import pytest

    pytest.importorskip("no_such_package")

    def test_never_collected(): ...
"""

PLAIN = ("-p", "no:cacheprovider", "-p", "no:xdist")


@pytest.fixture
def suite(pytester: pytest.Pytester) -> pytest.Pytester:
    """An empty suite under Strata's own conftest."""
    pytester.makeconftest(Path(__file__).with_name("conftest.py").read_text("utf-8"))
    pytester.makeini(f"[pytest]\npythonpath = {Path(__file__).parents[1]}")
    return pytester


# Each suite runs in a process of its own: its conftest sets Hypothesis up for the whole process.
def test_in_ci_a_missing_component_fails_the_test(suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    suite.makepyfile(LACKING_IN_TESTS)
    result = suite.runpytest_subprocess(*PLAIN)
    result.assert_outcomes(passed=1, skipped=1, xfailed=1, failed=2, errors=2)
    result.stdout.fnmatch_lines(["*missing component: server (in CI this is a failure)"])


def test_in_ci_a_missing_component_fails_the_module(suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    suite.makepyfile(LACKING_IN_MODULE)
    result = suite.runpytest_subprocess(*PLAIN)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*could not import 'no_such_package'*"])


@pytest.mark.parametrize("ci", ["", "false"])
def test_elsewhere_a_missing_component_skips(suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, ci: str) -> None:
    monkeypatch.setenv("CI", ci)
    suite.makepyfile(test_tests=LACKING_IN_TESTS, test_module=LACKING_IN_MODULE)
    result = suite.runpytest_subprocess(*PLAIN)
    result.assert_outcomes(passed=1, skipped=6, xfailed=1)
