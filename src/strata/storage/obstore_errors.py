"""What obstore's errors mean. It has few kinds of them, so their words are looked at too."""

import re
from typing import TypeAlias

from strata.errors import (
    AccessDenied,
    ObjectCorrupt,
    ObjectNotFound,
    StorageError,
    StorageFull,
    StorageUnavailable,
)

Hints: TypeAlias = tuple[tuple[str, str], ...]
"""Patterns of an error's words, and what to do about it: the first that fits is told."""

_CREDENTIALS = r"(?i)InvalidAccessKeyId|credential|token request|Missing AccessKeyId|Missing SecretAccessKey"
_BODY = re.compile(r"(?s)<\?xml.*|<Error>.*")
_TOLD = re.compile(r"(?s)<Code>(.*?)</Code>(?:.*?<Message>(.*?)</Message>)?")
_TOOK = re.compile(r"\b\d+(?:\.\d+)?(?:ns|µs|ms|s)\b")
_SECRET = re.compile(r"(?i)\b(sig|signature|x-amz-signature|x-amz-credential|x-amz-security-token|token)=[^&\s\"')]+")


class LostRace(StorageError):
    """The store says that somebody else was first. Whether that was an earlier try of ours is still to be seen."""


def is_obstores(error: Exception) -> bool:
    """Whether obstore raised it. For some things it has Python's own errors, told by what is printed with them."""
    if type(error).__module__.partition(".")[0] in ("obstore", "pyo3_async_runtimes"):
        return True
    return isinstance(error, OSError | NotImplementedError) and (type(error) is OSError or "Debug source" in str(error))


def translated(error: Exception, url: str, path: str, doing: str, hints: Hints) -> StorageError:
    """The error in Strata's terms: what could not be done, why, and what to do about it."""
    said = _first_words(error)
    kind, why, hinted = _judged({kind.__name__ for kind in type(error).__mro__}, _without_names(said, path))
    hint = next((hint for pattern, hint in hints if re.search(pattern, _without_names(said, path), re.I)), "")
    where = f"cannot {doing} {path!r} in {url}" if path else f"cannot {doing} {url}"
    parts = (f"{where}: {why or said}", hint if hinted else "")
    return kind(". ".join(filter(None, parts)), storage=url, key=path)


def _judged(names: set[str], said: str) -> tuple[type[StorageError], str, bool]:
    """The kind, better words for it if there are any, and whether the backend's hints are about it."""
    if "path segment" in said:
        return StorageError, "it holds keys with empty segments, which cannot be listed: rename them", False
    if "NoSuchBucket" in said or "ContainerNotFound" in said:
        return StorageError, "there is no such bucket. Create it, or correct its name", False
    if names & {"NotFoundError", "FileNotFoundError"}:
        return ObjectNotFound, "there is no such object", False
    if names & {"AlreadyExistsError", "PreconditionError", "NotModifiedError"}:
        return LostRace, "", False
    if names & {"PermissionDeniedError", "UnauthenticatedError"} or re.search(_CREDENTIALS, said):
        return AccessDenied, "", True
    if re.search(r"InvalidRange|Wanted range|\b416\b", said):
        return ObjectCorrupt, "it ends before the bytes that were asked for", False
    if re.search(r"BadDigest|ContentSHA256Mismatch|Md5Mismatch", said):
        return ObjectCorrupt, f"the bytes that arrived are not those that were sent ({said})", False
    if re.search(r"QuotaExceeded|EntityTooLarge|InsufficientStorage|\b507\b", said):
        return StorageFull, "", True
    return StorageUnavailable, "", True


def _without_names(said: str, path: str) -> str:
    """Addresses and keys are the user's words: an object called `connect-403` says nothing about the error. Nor do
    the 403 ms that it took."""
    bare = _TOOK.sub("", re.sub(r"https?://\S+", "", said))
    return re.sub(rf"(?<![\w.-])(?:\S*/)?{re.escape(path)}(?![\w.-])", "", bare) if path else bare


def _first_words(error: Exception) -> str:
    """The message without its debug dump, and without what may be secret."""
    words = re.split(r"\n+(?:Debug source|Caused by)", str(error))[0].strip()
    told = _TOLD.search(words)
    if told:
        words = _BODY.sub(": ".join(filter(None, told.groups())), words)
    return _SECRET.sub(r"\1=***", " ".join(words.split()))[:1000]
