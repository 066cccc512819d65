"""Tests run in the same environment on every machine: what a developer, a launcher or a cloud has set there is not of
them. A test that needs a variable sets it itself."""

import locale
from collections.abc import MutableMapping

from strata.config import SETTINGS

PREFIXES = (
    *("STRATA_", "GRPC_", "RAY_"),
    *("AWS_", "AZURE_", "GOOGLE_", "GCLOUD_", "GCE_", "CLOUDSDK_"),
    *("SLURM_", "OMPI_", "PMI_", "PMIX_", "TORCHELASTIC_", "JOB_COMPLETION_"),
)
NAMES = frozenset(
    {
        *(name for setting in SETTINGS for name in setting.names_in_environment),
        "STORAGE_EMULATOR_HOST",
        *("LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_RANK", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT"),
        *(f"{kind}_PROXY" for kind in ("HTTP", "HTTPS", "ALL", "NO", "FTP")),
        *("COLUMNS", "LINES", "TERM_PROGRAM", "COLORTERM", "NO_COLOR", "FORCE_COLOR", "CLICOLOR", "CLICOLOR_FORCE"),
        *("TTY_COMPATIBLE", "TTY_INTERACTIVE", "TERMINAL_WIDTH", "PY_COLORS", "GITHUB_ACTIONS"),
        *("PYTHONIOENCODING", "PYTHONUTF8", "PYTHONCOERCECLOCALE", "LANG", "LANGUAGE", "LC_ALL"),
    }
)
KEPT = frozenset({"STRATA_TEST_PROFILE", "STRATA_CHAOS_SEED"})
"""What chooses among the tests."""
OF_THE_MACHINE = frozenset({"PATH", "PYTHONPATH", "CUDA_VISIBLE_DEVICES"})
"""Where programs and devices are, which Strata reads as well."""


def is_cleared(name: str) -> bool:
    return name not in KEPT and (name.upper() in NAMES or name.upper().startswith(PREFIXES))


def clear(environment: MutableMapping[str, str]) -> None:
    """Take away whatever could change what a test sees."""
    for name in [name for name in environment if is_cleared(name)]:
        del environment[name]


def speak_utf8(environment: MutableMapping[str, str]) -> None:
    """What tests, and the programs that they start, write and read as text: in any locale the same."""
    environment["LC_ALL"] = "C.UTF-8"
    locale.setlocale(locale.LC_ALL, "C.UTF-8")
