"""Whose claim it is: the number of a process may be another's by now."""

import os
import subprocess
import sys

import pytest

from strata.checkpoint import claims
from strata.checkpoint.claims import is_alive, own_name


def test_one_knows_itself_and_nobody_else_of_its_number() -> None:
    assert is_alive(own_name())
    assert own_name() == own_name()
    assert not is_alive(f"{os.getpid()} 1")
    assert not is_alive(str(os.getpid()))


def test_another_is_there_until_it_ends() -> None:
    program = "from strata.checkpoint.claims import own_name; print(own_name(), flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=-1, stdout=-1, text=True) as other:
        try:
            assert other.stdout is not None
            name = other.stdout.readline().strip()
            assert is_alive(name)
            if os.path.exists("/proc/self/stat"):
                assert not is_alive(f"{other.pid} 1")  # one that had its number before
            other.communicate("\n")
        finally:
            other.kill()
    assert not is_alive(name)


def test_where_the_system_does_not_say_when_a_process_began_it_has_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "began_at", lambda process: "")
    assert is_alive(own_name())
    assert not is_alive(f"{os.getpid()} of the one before")
    assert is_alive(f"{os.getppid()} of its own")


@pytest.mark.parametrize("name", ["", " ", "nobody", "-1 2", "²"])
def test_what_is_no_name_is_nobodys(name: str) -> None:
    assert not is_alive(name)
