"""Hunt one mutant: `python -m tests.mutation.hunt NAME`. Nothing on disk is changed.

The mutated module is made as it is imported, in this process alone; then the simulation or the tests that should notice
run on it. Exit codes: 0 it survived; 1 it was noticed: a promise was broken, or a test failed; 3 it merely does not
run, as after a bad import, which proves nothing. NAME `none` hunts nothing through the simulation, and must find
nothing.
"""

import os
import sys
import traceback
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from random import Random
from types import CodeType, ModuleType
from typing import TYPE_CHECKING

from tests.mutation.mutants import MUTANTS, SIMULATION, Mutant

if TYPE_CHECKING:  # anything else would import what is yet to be mutated
    import pytest

    from strata.testing.simulation import Plan

SURVIVED, NOTICED, UNSOUND = 0, 1, 3
NONE = "none"

SEEDS = 60
SECONDS = 60.0
UNSOUND_ERRORS = (NameError, ImportError, SyntaxError)


class _MutatingLoader(SourceFileLoader):
    """Compiles the mutated source, past every cache of the sound one."""

    def __init__(self, mutant: Mutant, path: str) -> None:
        super().__init__(mutant.module, path)
        self._mutant = mutant

    def get_code(self, fullname: str) -> CodeType:
        source = self.get_data(self.path).decode()
        return compile(self._mutant.mutate(source), self.path, "exec", dont_inherit=True)


class _MutatingFinder(MetaPathFinder):
    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._mutant.module:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        assert spec is not None
        assert spec.origin is not None
        spec.loader = _MutatingLoader(self._mutant, spec.origin)
        return spec


def release(mutant: Mutant) -> None:
    """From here on, whoever imports the module gets the mutant."""
    assert mutant.module not in sys.modules, f"{mutant.module} was imported before it could be mutated"
    sys.meta_path.insert(0, _MutatingFinder(mutant))


# -- the simulation --------------------------------------------------------------------------------------------------


def simulate() -> int:
    """Seed after seed until a promise is broken."""
    from strata.testing.simulation import Simulation

    for seed in range(SEEDS):
        failure = Simulation(plan_of(seed)).run().failure
        if failure is not None:
            print(f"seed {seed}, {failure.rule}: {failure.message}")
            unsound = failure.message.startswith(("NameError", "UnboundLocalError", "ImportError", "SyntaxError"))
            return UNSOUND if unsound else NOTICED
    return SURVIVED


def plan_of(seed: int) -> "Plan":
    """By turns a run as it usually is, and a storm: bad weather, and every kind of fault once, the rare ones too."""
    import msgspec

    from strata.testing.simulation import Chaos, Plan
    from strata.testing.simulation.plan import COORDINATOR_FAULTS, JOB_FAULTS, WORKER_FAULTS

    if seed % 10 == 9:
        return Plan.of(seed, 50, SECONDS)  # long enough a journal for snapshots
    if seed % 2:
        return Plan.of(seed, (8, 16, 24)[seed // 2 % 3], SECONDS)
    kinds = (*WORKER_FAULTS, *COORDINATOR_FAULTS, *JOB_FAULTS)
    calm = Plan.of(seed, (12, 8, 16)[seed // 2 % 3], SECONDS, len(kinds))
    drawn = zip(calm.faults, Random(f"storm {seed}").sample(kinds, len(kinds)), strict=False)
    faults = tuple(msgspec.structs.replace(fault, kind=kind) for fault, kind in drawn)
    return msgspec.structs.replace(calm, faults=faults, chaos=Chaos(lost=0.02, doubled=0.1, late=0.05))


# -- the tests -------------------------------------------------------------------------------------------------------


def run_tests(path: str) -> int:
    """The file's tests until one fails, without shrinking: it is enough that one does."""
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    os.environ["STRATA_TEST_PROFILE"] = "hunt"
    import pytest
    from hypothesis import HealthCheck, Phase, settings

    settings.register_profile(
        "hunt",
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    failures = _Failures()
    options = ["-x", "-q", "--no-header", "--tb=line", "-p", "no:cacheprovider", "-p", "pytest_timeout"]
    code = pytest.main([*options, path], plugins=[failures])
    if code == pytest.ExitCode.OK:
        return SURVIVED
    return NOTICED if code == pytest.ExitCode.TESTS_FAILED and failures.are_sound else UNSOUND


class _Failures:
    """A plugin that looks at what a failing test died of."""

    def __init__(self) -> None:
        self.are_sound = True

    def pytest_exception_interact(self, call: "pytest.CallInfo[None]") -> None:
        assert call.excinfo is not None
        self.are_sound = self.are_sound and not isinstance(call.excinfo.value, UNSOUND_ERRORS)


# -- the hunt --------------------------------------------------------------------------------------------------------


def hunt(name: str) -> int:
    if name == NONE:
        return simulate()
    (mutant,) = (mutant for mutant in MUTANTS if mutant.name == name)
    release(mutant)
    return simulate() if mutant.noticed_by == SIMULATION else run_tests(mutant.noticed_by)


def main() -> int:
    try:
        return hunt(sys.argv[1])
    except Exception:  # noqa: BLE001  # whatever escapes is no notice, and must not look like one
        traceback.print_exc()
        return UNSOUND


if __name__ == "__main__":
    sys.exit(main())
