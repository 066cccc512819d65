"""What every backend refuses in the same words."""

from strata.errors import ObjectChanged, ObjectExists, StorageError


def exists_already(url: str, path: str) -> ObjectExists:
    return ObjectExists(f"{path!r} is already in {url}: another writer was first", storage=url, key=path)


def changed_meanwhile(url: str, path: str) -> ObjectChanged:
    return ObjectChanged(
        f"{path!r} in {url} is no longer the version that was read: read it again, then decide", storage=url, key=path
    )


def was_closed(url: str, path: str) -> StorageError:
    return StorageError(f"{url} was closed; open it again", storage=url, key=path)


def writer_ended(url: str, path: str) -> StorageError:
    return StorageError("the writer was ended already", storage=url, key=path)


def has_a_hole(url: str, path: str) -> StorageError:
    return StorageError(
        f"a piece of {path!r} could not be written: the rest would make an object with a hole", storage=url, key=path
    )
