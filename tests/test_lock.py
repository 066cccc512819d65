"""constraints.txt is a lock: each package of the development environment is in it, at the version that is installed.
The groups of pyproject.toml and its extra `dev` bring the same packages."""

import re
import sys
import sysconfig
import tomllib
from collections.abc import Iterator
from importlib.metadata import distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
OUTSIDE = {"pip", "strata-runtime"}
"""What installs, and what is installed from this folder."""


def _name(distribution: str) -> str:
    return re.sub(r"[-_.]+", "-", distribution).lower()


def _pinned() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    pins = (line.split("==") for line in lines if line and not line.startswith("#"))
    return {_name(name): version for name, version in pins}


@pytest.mark.skipif(Path(sys.prefix).name != ".venv", reason="this is not the environment that the lock is for")
def test_each_package_that_is_installed_is_pinned() -> None:
    # Not all of sys.path: other tests of this process import Ray, which puts folders of its own there.
    here = distributions(path=[sysconfig.get_path("purelib"), sysconfig.get_path("platlib")])
    installed = {_name(each.name): each.version.partition("+")[0] for each in here}
    pinned = _pinned()
    differing = {name for name, version in installed.items() if pinned.get(name) != version}
    assert not differing - OUTSIDE


def test_the_extra_dev_brings_what_make_installs() -> None:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    groups = pyproject["dependency-groups"]

    def members(group: str) -> Iterator[str]:
        for each in groups[group]:
            yield from members(each["include-group"]) if isinstance(each, dict) else [each]

    (installed,) = re.findall(r"--editable '\.(\[.*\])' --group dev", (ROOT / "Makefile").read_text("utf-8"))
    brought = pyproject["project"]["optional-dependencies"]["dev"]
    assert sorted(brought) == sorted([f"strata-runtime{installed}", *members("dev")])


def test_the_extras_that_users_were_promised_exist() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    assert extras.keys() >= {"torch", "s3", "dev"}
