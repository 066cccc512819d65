"""The objects in a folder of the filesystem, in the order of their keys, as they are come upon."""

import errno
import os
from collections.abc import Iterator
from stat import S_ISREG

from strata.storage.backend import ObjectInfo
from strata.storage.keys import STAGING, join


class Tree:
    """What is under a root.

    No objects are: what a storage has not finished, here or in a folder below; entries that vanish meanwhile; broken
    links, and links that lead out.
    """

    def __init__(self, root: str) -> None:
        self._root = root

    def walk(self, folder: str) -> Iterator[ObjectInfo]:
        """Every object under a folder. Links to folders are not followed."""
        for entry in self._scan(folder):
            key = join(folder, entry.name)
            if entry.is_dir(follow_symlinks=False):
                yield from self.walk(key)
            elif found := self._info(key, entry):
                yield found

    def folder(self, folder: str) -> Iterator[ObjectInfo]:
        """What is directly in it; a folder without objects is none."""
        for entry in self._scan(folder):
            key = join(folder, entry.name)
            if not entry.is_dir(follow_symlinks=False):
                if found := self._info(key, entry):
                    yield found
            elif self._holds_objects(key):
                yield ObjectInfo(f"{key}/", 0, 0.0)

    def _holds_objects(self, folder: str) -> bool:
        try:
            return next(self.walk(folder), None) is not None
        except PermissionError:  # not ours to look into, and no reason not to name it
            return True

    def holds(self, real: str) -> bool:
        """Whether a path without links is the root or below it."""
        return real == self._root or real.startswith(self._root.rstrip(os.sep) + os.sep)

    def _scan(self, folder: str) -> list["os.DirEntry[str]"]:
        """Sorted as their keys are; a folder that is not there, or went meanwhile, is empty."""
        try:
            with os.scandir(os.path.join(self._root, folder)) as entries:
                found = [entry for entry in entries if entry.name != STAGING]
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted(found, key=lambda entry: f"{entry.name}/" if entry.is_dir(follow_symlinks=False) else entry.name)

    def _info(self, key: str, entry: "os.DirEntry[str]") -> ObjectInfo | None:
        try:
            if entry.is_symlink() and not self.holds(os.path.realpath(entry.path)):
                return None
            stat = entry.stat()
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ELOOP):
                return None
            raise
        return ObjectInfo(key, stat.st_size, stat.st_mtime) if S_ISREG(stat.st_mode) else None


def remove_if_empty(folder: str) -> bool:
    """Remove a folder that holds nothing but such folders: somebody died before putting an object there."""
    with os.scandir(folder) as entries:
        if not all(entry.is_dir(follow_symlinks=False) and remove_if_empty(entry.path) for entry in entries):
            return False
    os.rmdir(folder)
    return True
