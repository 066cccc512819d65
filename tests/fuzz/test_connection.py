"""The conversations that a fuzzer found worth keeping, played again; and a short search for new ones."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from strata.rpc.connection import Connection
from strata.rpc.inbox import Inbox
from strata.rpc.stream import Stream
from tests.fuzz.connection import Harm, player

CORPUS = Path(__file__).with_name("corpus.zip")
ROOT = Path(__file__).parents[2]
SECONDS = 10


def conversations() -> list[bytes]:
    with zipfile.ZipFile(CORPUS) as kept:
        return [kept.read(name) for name in kept.namelist()]


def play_all() -> int:
    found = conversations()
    with player([]) as play:
        for conversation in found:
            play(conversation)
    return len(found)


def test_what_was_found_before_does_no_harm() -> None:
    assert play_all() > 100


def test_harm_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that forgets to give room back, and one that keeps what is closed."""

    def keep(self: Connection, stream: Stream) -> None:
        stream.open = False

    for broken in ((Inbox, "_release", lambda self, stream: None), (Connection, "_remove", keep)):
        with monkeypatch.context() as patched:
            patched.setattr(*broken)
            with pytest.raises(Harm):
                play_all()


@pytest.mark.parametrize(
    "seconds", [SECONDS, pytest.param(60, marks=pytest.mark.long), pytest.param(600, marks=pytest.mark.soak)]
)
@pytest.mark.timeout(900)
def test_a_search_finds_no_harm(seconds: int, tmp_path: Path) -> None:
    pytest.importorskip("atheris", reason="missing component: atheris")
    corpus = tmp_path / "corpus"
    with zipfile.ZipFile(CORPUS) as kept:
        kept.extractall(corpus)
    search = [f"-max_total_time={seconds}", "-max_len=2048", f"-artifact_prefix={tmp_path}/", str(corpus)]
    # libFuzzer limits the most memory that its process ever had. Linux counts in what a process had before exec: here
    # the gigabytes of a process that runs tests. The child of a shell begins with the shell's.
    done = subprocess.run(
        ["sh", "-c", '"$@"; exit $?', "sh", sys.executable, "-m", "tests.fuzz.connection", *search],
        cwd=ROOT,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=seconds + 120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
