"""What only a local folder can get wrong: its filesystem, its locks, its room. One function for each."""

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from strata.storage import filelock
from strata.storage.backend import MIB
from strata.storage.direct import DIRECT_FROM_BYTES, FileSink, sync
from strata.storage.mounts import caution_about, mount_of, read_mountinfo
from strata.texts import readable_bytes

LITTLE_ROOM_BYTES = 1024 * MIB


class Remark(NamedTuple):
    """What is to be said of a step that passed; `warns` if it should not go unread."""

    words: str = ""
    warns: bool = False


class Broken(Exception):
    """A promise is not kept; the message says which, and what to do."""


def filesystem(root: Path) -> Remark:
    mountinfo = read_mountinfo()
    mount = None if mountinfo is None else mount_of(os.path.realpath(root), mountinfo)
    if mount is None:
        return Remark("of which type is not known on this system")
    where = f"{mount.kind}, mounted at {mount.point}"
    caution = caution_about(mount.kind)
    return Remark(f"{where}: {caution}", warns=True) if caution else Remark(where)


def free_space(root: Path) -> Remark:
    room = shutil.disk_usage(root)
    words = f"{readable_bytes(room.free)} of {readable_bytes(room.total)}"
    if room.free < LITTLE_ROOM_BYTES:
        return Remark(f"only {words}: checkpoints will not fit for long", warns=True)
    return Remark(words)


def direct_writes(root: Path) -> Remark:
    with _probe(root) as fd:
        sink = FileSink(fd, direct=True)
        sink.write(memoryview(bytes(2 * DIRECT_FROM_BYTES)), lambda _: None)
        sink.finish(lambda _: None)
        direct = sink.direct
    if direct:
        return Remark("O_DIRECT is in effect")
    return Remark("no O_DIRECT here: it works, but large writes push other data out of the page cache", warns=True)


def syncs(root: Path) -> Remark:
    with _probe(root) as fd:
        os.write(fd, b"strata")
        sync(fd)
    if os.name == "nt":
        return Remark("of files; Windows needs none of folders")
    folder = os.open(root, os.O_RDONLY)
    try:
        sync(folder)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
        return Remark("of files, not of folders: a new object may be gone after a power failure", warns=True)
    finally:
        os.close(folder)
    return Remark("of files and folders")


def file_locks(root: Path) -> Remark:
    with tempfile.TemporaryDirectory(prefix="strata-check-", dir=root) as folder:
        path = os.path.join(folder, "lock")
        with open(path, "wb") as first, open(path, "wb") as second:
            held, again = filelock.try_lock(first.fileno()), filelock.try_lock(second.fileno())
    if held is None:
        raise Broken(
            "files cannot be locked here, so compare-and-swap cannot work: mount the filesystem with locks "
            "(NFS: without `nolock`; Lustre: with `flock`), or use another"
        )
    if not held or again is not False:
        raise Broken("two holders got one lock, so compare-and-swap is not safe here: use another filesystem")
    return Remark("they exclude each other")


@contextmanager
def _probe(root: Path) -> Iterator[int]:
    """A new file on that filesystem, which has no name any more when this is over."""
    fd, path = tempfile.mkstemp(prefix="strata-check-", dir=root)
    try:
        yield fd
    finally:
        os.close(fd)
        os.unlink(path)
