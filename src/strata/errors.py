"""Every error Strata raises on purpose, in one tree.

    StrataError
    ├── InvalidInput        an argument is wrong in itself: a bad id, a negative size, a seed of the wrong type
    │   └── Unstorable      a value that no checkpoint can hold; the message says where in the state it is
    ├── NotFound            the job, worker, dataset, attempt or checkpoint named is not known
    ├── Conflict            the name is taken by something different
    ├── Refused             a sound request that the state of the job does not allow; `retry` says whether waiting helps
    ├── StaleGeneration     the world changed since the caller last looked; go through recovery, then ask again
    ├── BarrierFailed       a wait at a barrier ended without a release; names who is missing
    ├── Fenced              the caller is no longer the process it thinks it is
    │   ├── Superseded      another process took its name: stop
    │   ├── Expired         its lease ran out, or it left: register again as a new incarnation, through recovery
    │   └── NotRegistered   it is not known here (also a NotFound): register again, through recovery
    ├── CheckpointDamaged   what is stored is not what was written; the message names the file and the tensor
    ├── CheckpointMismatch  a checkpoint does not fit what it is loaded into
    ├── DataError           a dataset cannot be read as it is; `file` and `samples` say where
    │   ├── DataDamaged     a file is not what its format says: cut short, overwritten, or of another format
    │   ├── DataChanged     a file is not as it was when the dataset was indexed, or is gone
    │   └── DataMismatch    the files do not belong together: their columns differ
    ├── SaveFailed          too many background saves in a row did not succeed
    ├── SaveAbandoned       this process gave the save up before it was committed
    ├── SaveReplaced        a later save took the place of this one
    ├── SaveSkipped         another save was under way, and this one was not to wait
    ├── RankFailed          another rank could not do its part, or did not in time; the message names it
    ├── RpcError            a call ended with anything but OK; `status` is gRPC's (in `strata.rpc`, with its codes)
    └── StorageError        a storage could not do it; `storage` and `key` say where
        ├── ObjectNotFound  no such object (also a NotFound)
        ├── ObjectExists    put-if-absent came second (also a Conflict)
        ├── ObjectChanged   compare-and-swap found another version (also a Conflict)
        ├── AccessDenied    the credentials are missing, wrong, or not allowed to do this
        ├── StorageUnavailable  no answer, or no sense in it, after all retries: later may be better
        ├── StorageFull     no room: the disk or the quota is used up
        └── ObjectCorrupt   what is there is not what was written: too short, or its digest differs

Each carries a message for a person (what happened, where, what to do next), a `code` for a program, and `retry`:
whether the same request may succeed later with nothing else changed. An error means that nothing was changed, except
that a storage that stopped answering may have done what it was asked: writing the same again is safe.
"""

from collections.abc import Sequence
from typing import Any


class StrataError(Exception):
    """The root: catch this to catch everything Strata raises on purpose."""

    code = "error"
    retry = False

    def __reduce__(self) -> Any:
        """It goes from process to process as it is, also where more than a message is needed to make one."""
        return _again, (type(self), self.args), self.__dict__


def _again(kind: type[StrataError], args: tuple[Any, ...]) -> StrataError:
    return kind.__new__(kind, *args)


class InvalidInput(StrataError, ValueError):
    """An argument is wrong in itself, whatever the state of the job."""

    code = "invalid_input"


class Unstorable(InvalidInput):
    """A value that no checkpoint can hold; the message says where it is, and why."""

    code = "unstorable"


class NotFound(StrataError, LookupError):
    """The thing that was named is not known here."""

    code = "not_found"


class Conflict(StrataError):
    """The name is taken by something that differs from what was asked for."""

    code = "conflict"


class Refused(StrataError):
    """A sound request that the state of the job does not allow now."""

    code = "refused"

    def __init__(self, message: str, *, retry: bool = False) -> None:
        super().__init__(message)
        self.retry = retry


class StaleGeneration(StrataError):
    """The membership changed since the caller last recovered; `generation` is the one in force."""

    code = "stale_generation"

    def __init__(self, message: str, *, generation: int) -> None:
        super().__init__(message)
        self.generation = generation


class BarrierFailed(StrataError):
    """A wait at a barrier ended without a release; `missing` names those who did not come or were lost."""

    code = "barrier_failed"

    def __init__(self, message: str, *, missing: Sequence[str]) -> None:
        super().__init__(message)
        self.missing = tuple(missing)


class Fenced(StrataError):
    """The caller is no longer the process it thinks it is; nothing it does counts any more."""

    code = "fenced"


class Superseded(Fenced):
    """Another process took this worker's name. Fatal: the process must stop."""

    code = "superseded"


class Expired(Fenced):
    """The worker's lease ran out, or it left. It may register again as a new incarnation, through recovery."""

    code = "expired"


class NotRegistered(Fenced, NotFound):
    """This process is not known here, perhaps because it was forgotten. It may register again, through recovery."""

    code = "not_registered"


class CheckpointDamaged(StrataError):
    """What is stored is not what was written. The message names the file, and the tensor where there is one."""

    code = "checkpoint_damaged"


class CheckpointMismatch(StrataError):
    """The checkpoint and what it is loaded into are not of the same shape."""

    code = "checkpoint_mismatch"


class DataError(StrataError):
    """A dataset cannot be read as it is.

    `file` is where. `samples` are those concerned, from the first to before the last: counted over the whole dataset if
    it is indexed, else over the file; None for all of the file's.
    """

    code = "data"

    def __init__(self, message: str, *, file: str, samples: tuple[int, int] | None = None) -> None:
        super().__init__(message)
        self.file = file
        self.samples = samples


class DataDamaged(DataError):
    """A file is not what its format says."""

    code = "data_damaged"


class DataChanged(DataError):
    """A file is not as it was when the dataset was indexed, or is gone."""

    code = "data_changed"


class DataMismatch(DataError):
    """Files, or samples, of one dataset whose columns differ."""

    code = "data_mismatch"


class SaveFailed(StrataError):
    """Too many background saves in a row did not succeed: training on would lose too much."""

    code = "save_failed"


class SaveAbandoned(StrataError):
    """This process gave the save up before it was committed: those who were to save with it are others, or it ends."""

    code = "save_abandoned"


class SaveReplaced(StrataError):
    """A later save took the place of this one before it was committed."""

    code = "save_replaced"


class SaveSkipped(StrataError):
    """Another save was under way, and this one was not to wait for it."""

    code = "save_skipped"


class RankFailed(StrataError):
    """Another rank could not do its part of a save, or has not done it in time. The message names it."""

    code = "rank_failed"


class StorageError(StrataError):
    """A storage could not do what it was asked; `storage` is its URL, `key` the object's, if there is one."""

    code = "storage"

    def __init__(self, message: str, *, storage: str, key: str = "") -> None:
        super().__init__(message)
        self.storage = storage
        self.key = key


class ObjectNotFound(StorageError, NotFound):
    """There is no such object."""

    code = "object_not_found"


class ObjectExists(StorageError, Conflict):
    """There is such an object already: another writer was first."""

    code = "object_exists"


class ObjectChanged(StorageError, Conflict):
    """The object is no longer the version that was to be replaced."""

    code = "object_changed"


class AccessDenied(StorageError):
    """The credentials are missing, wrong, or do not allow it."""

    code = "access_denied"


class StorageUnavailable(StorageError):
    """The storage did not answer, or not sensibly, within the limits on time and retries."""

    code = "storage_unavailable"
    retry = True


class StorageFull(StorageError):
    """There is no room left."""

    code = "storage_full"


class ObjectCorrupt(StorageError):
    """What is there is not what was written."""

    code = "object_corrupt"
