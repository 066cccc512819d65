"""What cannot be read, where the user asked to go on without it: told once each, and counted.

A block that could not be read once is left out from then on, also if it could be later: what an epoch has does not
depend on when it was tried. A storage that does not answer, or memory that is short, is no damage: that is an error
always. So is a folder that is empty or gone, since a disk that is not mounted looks like that.
"""

import multiprocessing
import os
import threading
from collections.abc import Mapping
from typing import Literal, NamedTuple, TypeAlias

from strata.core.ids import check_choice
from strata.data.files import File
from strata.errors import DataChanged, DataDamaged, DataError, DataMismatch, StorageUnavailable
from strata.logs import get_logger

logger = get_logger("strata.data")

OnDamage: TypeAlias = Literal["raise", "skip"]

COUNTING_WORKERS = 1024
BATCHES_ON_THEIR_WAY = 1 << 14
"""No more than so many batches lie between those that workers make and those that their DataLoader gives out."""

UNREADABLE = (DataDamaged, DataChanged, DataMismatch)


class SkippedFile(NamedTuple):
    """A file that is no part of an index: what it holds cannot be known."""

    file: str
    code: str
    """Of the error: data_damaged, data_changed, data_mismatch or not_found."""
    why: str


class SkippedBlock(NamedTuple):
    """Samples of a file, from the first to before the last, that cannot be read."""

    file: str
    samples: tuple[int, int]
    code: str
    why: str
    left_out: int
    """How many were missing from batches that were given out; a sample counts again in each epoch."""


class Skipped(NamedTuple):
    """What was left out."""

    samples: int
    """Of batches that were given out here, or made by the workers of a DataLoader."""
    blocks: list[SkippedBlock]
    """Those that were found in this process."""
    files: tuple[SkippedFile, ...]
    """Those that the index was made without."""


class Skips:
    """The blocks that cannot be read, as far as one process knows. Safe between threads."""

    def __init__(self) -> None:
        self._found: dict[int, SkippedBlock] = {}
        self._lock = threading.Lock()

    def __contains__(self, block: int) -> bool:
        return block in self._found

    def note(self, block: int, file: File, samples: tuple[int, int], error: DataError) -> None:
        if file.is_local:
            check_there(file.folder.url)
        found = SkippedBlock(file.path, samples, error.code, str(error), 0)
        with self._lock:
            is_new = self._found.setdefault(block, found) is found
        if is_new:
            logger.warning("samples %d to %d of %s are left out: %s", samples[0], samples[1] - 1, file.path, found.why)

    def count(self, blocks: Mapping[int, int]) -> int:
        """So many samples of each of these blocks were missing from a batch that is given out: how many that are."""
        with self._lock:
            for block, samples in blocks.items():
                found = self._found[block]
                self._found[block] = found._replace(left_out=found.left_out + samples)
        return sum(blocks.values())

    def blocks(self) -> list[SkippedBlock]:
        with self._lock:
            return [found for _, found in sorted(self._found.items())]


class MissedByWorkers:
    """How many samples the workers of a DataLoader left out, in memory that all share. Goes to workers only, when they
    are started."""

    def __init__(self) -> None:
        self._missed = multiprocessing.RawArray("q", COUNTING_WORKERS)
        self._of_batch = multiprocessing.RawArray("i", BATCHES_ON_THEIR_WAY)

    def add(self, worker: int, samples: int) -> None:
        """Each has a place of its own, since nothing is locked."""
        if worker < COUNTING_WORKERS:
            self._missed[worker] += samples

    def put(self, batch: int, samples: int) -> None:
        """So many samples a batch lacks that is made now."""
        self._of_batch[batch % BATCHES_ON_THEIR_WAY] = samples

    def take(self, batch: int) -> int:
        """How many samples a batch lacks that is given out now."""
        place = batch % BATCHES_ON_THEIR_WAY
        samples: int = self._of_batch[place]
        self._of_batch[place] = 0
        return samples

    @property
    def samples(self) -> int:
        return sum(self._missed)


def check_on_damage(on_damage: OnDamage) -> None:
    check_choice(on_damage, "on_damage", ("raise", "skip"))


def check_there(folder: str) -> None:
    """StorageUnavailable unless something is in it."""
    try:
        with os.scandir(folder) as entries:
            if any(True for _ in entries):
                return
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as error:
        raise StorageUnavailable(f"cannot look into {folder}: {error.strerror}", storage=folder) from error
    raise StorageUnavailable(
        f"{folder} is empty, or not there: is the disk mounted that it should be on? A whole folder is not skipped",
        storage=folder,
    )
