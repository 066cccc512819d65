"""Which files a dataset's path means: a file, a folder, a pattern, or a list of those, local or URLs of any storage.

A folder is taken with all below it, a pattern (`*`, `?`, `[a-c]`, and `**` for any depth) with what it matches, each in
the order of names; a list in its own order. Hidden names (`.` or `_` first, of files or folders) are left out
unless they were named. Names are relative to what all of the dataset has in common, so that a copy
elsewhere has the same.
"""

import asyncio
import fnmatch
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from stat import S_ISDIR, S_ISREG
from typing import NamedTuple

from strata import background
from strata.core.ids import check_path
from strata.data.files import File, Folder, LocalFolder, RemoteFolder, Seen, seen_locally
from strata.errors import AccessDenied, InvalidInput, NotFound, ObjectNotFound, StorageError
from strata.storage.backend import StorageOptions
from strata.storage.urls import Location, locate

LOOKED_AT_ONCE = 64
_WILD = re.compile(r"[*?\[]")

PathLike = str | os.PathLike[str]


class _Entry(NamedTuple):
    """What one path of a list has: files below `base`, which is in `place` (this machine, or a bucket)."""

    place: str
    base: str
    files: list[tuple[str, Seen]]


class _Absent(NotFound):
    """There is nothing at a path."""


def find_files(
    path: PathLike | Sequence[PathLike],
    *,
    suffixes: Sequence[str] = (),
    options: StorageOptions | None = None,
    absent: Callable[[str, NotFound], None] | None = None,
) -> list[File]:
    """The files, in the dataset's order.

    Of a folder only those with one of the suffixes count, if any has one: what else lies there (a README, a licence) is
    no data. `absent` is told of paths of a list that have nothing, which is an error otherwise.
    """
    if not isinstance(path, str | os.PathLike | Iterable):
        raise InvalidInput(f"path must be a path or a list of paths, not {type(path).__name__}")
    paths = [check_path(each, "path") for each in ([path] if isinstance(path, str | os.PathLike) else path)]
    if not paths:
        raise InvalidInput("a dataset's path must name a file, a folder, a pattern, or a list of those: it is empty")
    entries = []
    for each in paths:
        try:
            entries.append(_entry(each, suffixes, options))
        except _Absent as error:
            if absent is None:
                raise
            absent(each, error)
    folders: dict[str, tuple[str, Folder]] = {}
    for place in dict.fromkeys(entry.place for entry in entries):
        base = _common([entry.base for entry in entries if entry.place == place], local=not place)
        url = place + f"/{base}" * bool(base) if place else base
        folders[place] = base, (RemoteFolder(url, options) if place else LocalFolder(url))
    found = [
        File(folders[entry.place][1], _relative(entry.base, folders[entry.place][0], not entry.place) + name, *seen)
        for entry in entries
        for name, seen in entry.files
    ]
    _check_once(found)
    return found


def _check_once(found: list[File]) -> None:
    seen: set[str] = set()
    for file in found:
        if file.path in seen:
            raise InvalidInput(f"{file.path} is named twice in the dataset's path: each sample comes once")
        seen.add(file.path)
        if not _is_text(file.name):
            raise InvalidInput(f"{file.path!r} has a name that is not valid text: rename it")


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _entry(path: str, suffixes: Sequence[str], options: StorageOptions | None) -> _Entry:
    if "://" not in path:
        entry = _local(locate(path, "local", os.environ).path, suffixes)
    else:
        # Before the URL is understood: it must not have a `?`, nor a `[` in some places.
        start, pattern = _split_pattern(path, "/") if _WILD.search(path) else (path, [])
        location = locate(start, None, os.environ)
        if location.scheme == "file":
            entry = _local(os.path.join(location.path, *pattern), suffixes)
        else:
            entry = _remote(location, pattern, suffixes, options)
    if not entry.files:
        raise _Absent(f"there are no files for a dataset in {path}")
    return entry


def _chosen(names: list[tuple[str, Seen]], suffixes: Sequence[str]) -> list[tuple[str, Seen]]:
    # Also `train.tfrecord-00000-of-00010`.
    fitting = [each for each in names if any(_fits(each[0].lower(), suffix) for suffix in suffixes)]
    return sorted(fitting or names)


def _fits(name: str, suffix: str) -> bool:
    return name.endswith(suffix) or f"{suffix}-" in name


# -- this machine ----------------------------------------------------------------------------------------------------


def _local(path: str, suffixes: Sequence[str]) -> _Entry:
    path = os.path.abspath(os.path.expanduser(path))
    try:
        stat = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        if not _WILD.search(path):
            raise _Absent(f"there is no file or folder {path}") from None
        base, pattern = _split_pattern(path, os.sep)
        depth = None if "**" in pattern else len(pattern)
        return _Entry("", base, sorted(each for each in _walk(base, depth) if _matches(pattern, each[0].split("/"))))
    except PermissionError as error:
        raise _denied(path, error) from error
    except OSError as error:
        raise InvalidInput(f"path {path[:200]!r} cannot be looked at: {error.strerror}") from error
    if S_ISREG(stat.st_mode):
        return _Entry("", os.path.dirname(path), [(os.path.basename(path), seen_locally(stat))])
    if not S_ISDIR(stat.st_mode):
        raise InvalidInput(f"{path} is neither a file nor a folder")
    return _Entry("", path, _chosen([*_walk(path, None)], suffixes))


def _walk(folder: str, depth: int | None) -> Iterator[tuple[str, Seen]]:
    """The files below a folder, through links too; at most so deep."""
    try:
        stat = os.stat(folder)
    except (FileNotFoundError, NotADirectoryError):
        return
    stack: list[tuple[str, str, tuple[tuple[int, int], ...]]] = [("", folder, ((stat.st_dev, stat.st_ino),))]
    while stack:
        prefix, path, above = stack.pop()
        for name, stat in _listed(path):
            inside = os.path.join(path, name)
            if S_ISREG(stat.st_mode):
                yield prefix + name, seen_locally(stat)
            elif S_ISDIR(stat.st_mode) and (depth is None or len(above) < depth):
                identity = (stat.st_dev, stat.st_ino)
                if identity in above and identity[1]:
                    raise InvalidInput(f"{inside} leads back to a folder that it is in: remove that link")
                stack.append((f"{prefix}{name}/", inside, (*above, identity)))


def _listed(folder: str) -> list[tuple[str, os.stat_result]]:
    try:
        with os.scandir(folder) as entries:
            return [(entry.name, entry.stat()) for entry in entries if not _is_hidden(entry.name)]
    except PermissionError as error:
        raise _denied(folder, error) from error
    except FileNotFoundError as error:
        why = f"{error.filename or folder} is a link to nothing, or was removed meanwhile"
        raise NotFound(why) from error
    except OSError as error:
        raise StorageError(f"cannot list {folder}: {error.strerror}", storage=folder) from error


def _denied(path: str, error: OSError) -> AccessDenied:
    return AccessDenied(f"cannot look at {path}: {error.strerror}. Whoever runs this must be allowed to", storage=path)


# -- storages --------------------------------------------------------------------------------------------------------


def _remote(location: Location, pattern: list[str], suffixes: Sequence[str], options: StorageOptions | None) -> _Entry:
    place = f"{location.scheme}://{location.bucket}"
    bucket = RemoteFolder(place, options)
    base = location.path
    if base and not pattern:
        try:
            seen = bucket.look(base)
        except ObjectNotFound:
            pass
        else:
            base, _, name = base.rpartition("/")
            return _Entry(place, base, [(name, seen)])
    start = len(base) + 1 if base else 0
    listed = [(entry.path[start:], Seen(entry.size, "")) for entry in bucket.storage.list_all(base)]
    names = [each for each in _without_folders(listed) if _counts(each[0].split("/"), pattern)]
    chosen = sorted(names) if pattern else _chosen(names, suffixes)
    versions = background.run(_versions(bucket, base, chosen))
    return _Entry(
        place,
        base,
        [
            (name, Seen(seen.size, version))
            for (name, seen), version in zip(chosen, versions, strict=True)
            if version is not None
        ],
    )


def _without_folders(listed: list[tuple[str, Seen]]) -> list[tuple[str, Seen]]:
    """Some tools put an object without bytes in the place of a folder, of the folder's name: it is no file."""
    folders = {name[:end] for name, _ in listed for end, sign in enumerate(name) if sign == "/"}
    return [(name, seen) for name, seen in listed if seen.size or name not in folders]


def _counts(segments: list[str], pattern: list[str]) -> bool:
    return not any(map(_is_hidden, segments)) and (not pattern or _matches(pattern, segments))


async def _versions(bucket: RemoteFolder, base: str, listed: list[tuple[str, Seen]]) -> list[str | None]:
    """None for one that is the place of an empty folder: its name ends with a slash, which the listing does not tell,
    and so nothing is there under the name that it does tell."""
    lanes = asyncio.Semaphore(LOOKED_AT_ONCE)

    async def version(name: str, seen: Seen) -> str | None:
        async with lanes:
            try:
                return await bucket.storage.storage.version(f"{base}/{name}" if base else name)
            except ObjectNotFound:
                if seen.size:
                    raise
                return None

    return await asyncio.gather(*(version(*each) for each in listed))


# -- names -----------------------------------------------------------------------------------------------------------


def _is_hidden(name: str) -> bool:
    return name.startswith((".", "_"))


def _split_pattern(path: str, separator: str) -> tuple[str, list[str]]:
    """The folder before the first wildcard, and the segments from there on."""
    segments = path.split(separator)
    first = next(index for index, segment in enumerate(segments) if _WILD.search(segment))
    return separator.join(segments[:first]) or (separator if path.startswith(separator) else ""), segments[first:]


def _matches(pattern: list[str], segments: list[str]) -> bool:
    if not pattern:
        return not segments
    first, *rest = pattern
    if first == "**":
        return any(_matches(rest, segments[skipped:]) for skipped in range(len(segments) + 1))
    return bool(segments) and fnmatch.fnmatchcase(segments[0], first) and _matches(rest, segments[1:])


def _common(bases: list[str], *, local: bool) -> str:
    if local:
        return os.path.commonpath(bases)
    first, *others = [base.split("/") for base in bases]
    while any(other[: len(first)] != first for other in others):
        first = first[:-1]
    return "/".join(first)


def _relative(base: str, common: str, local: bool) -> str:
    """What to put before names below `base` to have them below `common`."""
    if base == common:
        return ""
    if local:
        return os.path.relpath(base, common).replace(os.sep, "/") + "/"
    return (base[len(common) :].strip("/")) + "/"
