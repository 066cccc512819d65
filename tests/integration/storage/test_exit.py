"""Programs that end with something of a storage still in their hands: they end, and what they wait for is done."""

import subprocess
import sys
from pathlib import Path

import pytest

BEGIN = """
import sys, threading, time
from strata.storage import open_storage
from strata.storage.blocking import BlockingStorage
store = BlockingStorage(open_storage(sys.argv[1]))
store.write("a", b"1")
store.write("b", b"2")
"""
LEFT_OVER = {
    "a listing": "listing = store.list_all(); next(listing)",
    "a writer": "opened = store.open_writer('x'); opened.__enter__().write(b'1')",
    "a block": """
def block():
    with store:
        yield
held = block(); next(held)""",
    "an owner": """
class Owner:
    def __del__(self): store.close()
owner = Owner()""",
}


def ended(script: str, root: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", BEGIN + script, str(root)], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize("left_over", LEFT_OVER)
def test_a_program_ends_whatever_it_left(left_over: str, tmp_path: Path) -> None:
    done = ended(LEFT_OVER[left_over], tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_thread_that_outlives_the_main_one_can_still_write(tmp_path: Path) -> None:
    done = ended(
        """
def last_checkpoint():
    threading.main_thread().join()
    with store.open_writer("last") as writer:
        writer.write(b"safe")
threading.Thread(target=last_checkpoint).start()
""",
        tmp_path,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "last").read_bytes() == b"safe"


def test_what_comes_when_python_ends_is_refused_in_words(tmp_path: Path) -> None:
    done = ended(
        "import atexit, strata.background as b; atexit.unregister(b._end); b._end(); store.write('c', b'')", tmp_path
    )
    assert "Python is ending" in done.stderr
