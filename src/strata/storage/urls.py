"""Which storage a URL, a plain path or the environment means."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from strata.core.ids import check_text
from strata.errors import InvalidInput
from strata.storage.azure import AzureStorage
from strata.storage.backend import StorageBackend, StorageOptions
from strata.storage.gcs import GCSStorage
from strata.storage.local import LocalStorage
from strata.storage.memory import MemoryStorage, named_space
from strata.storage.s3 import S3Storage

BACKENDS = {"local": "file", "s3": "s3", "gcs": "gs", "azure": "az", "memory": "memory"}
SCHEMES = {"file": "file", "s3": "s3", "gs": "gs", "gcs": "gs", "az": "az", "azure": "az", "memory": "memory"}
DEFAULT_PATH = "/tmp/strata/checkpoints"

_NEARLY_A_URL = re.compile(rf"({'|'.join(SCHEMES)}):", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Location:
    """A storage by name: the scheme, its bucket (or the name of a memory), and the path or prefix in it."""

    scheme: str
    bucket: str
    path: str


def open_storage(
    url: str | os.PathLike[str] | None = None,
    *,
    backend: str | None = None,
    options: StorageOptions | None = None,
) -> StorageBackend:
    """The storage that a URL means (`s3://bucket/prefix`, `gs://…`, `az://…`, `file:///…`, `memory://…`).

    A plain path is a local folder; with `backend` it is a prefix in the bucket that CHECKPOINT_BUCKET names. Without a
    URL the environment decides: STORAGE_BACKEND, and LOCAL_STORAGE_PATH or CHECKPOINT_BUCKET.
    """
    if options is not None and not isinstance(options, StorageOptions):
        raise InvalidInput(f"options must be StorageOptions(...), not {type(options).__name__}")
    if url is not None and not isinstance(url, str | os.PathLike):
        raise InvalidInput(f"the URL of a storage (url) must be text or a path, not {type(url).__name__}")
    if backend is not None:
        check_text(backend, "backend")
    return _open(locate(None if url is None else os.fspath(url), backend, os.environ), options or StorageOptions())


def locate(url: str | None, backend: str | None, environment: Mapping[str, str]) -> Location:
    """What is meant, without touching anything. STRATA_* names win over unprefixed ones."""
    if url == "":
        raise InvalidInput("which storage? Its URL or path must not be empty")
    if url is not None and "://" in url:
        return _of_url(url, backend)
    if url is not None and (hit := _NEARLY_A_URL.match(url)):
        raise InvalidInput(
            f"{url!r} is nearly a URL: {hit[1]}:// has two slashes. For a local folder of that name: ./{url}"
        )
    if url is None:
        backend = backend or _setting(environment, "STORAGE_BACKEND") or "local"
    scheme = BACKENDS.get(backend or "local")
    if scheme is None:
        raise InvalidInput(f"the storage backend must be one of {', '.join(BACKENDS)}, not {backend!r}")
    if scheme == "file":
        return Location(scheme, "", url or _setting(environment, "LOCAL_STORAGE_PATH") or DEFAULT_PATH)
    if scheme == "memory":
        return Location(scheme, (url or "").strip("/"), "")
    bucket = _setting(environment, "CHECKPOINT_BUCKET")
    if not bucket:
        raise InvalidInput(
            f"which bucket? Set CHECKPOINT_BUCKET, or give a URL such as {scheme}://my-bucket/{(url or '').strip('/')}"
        )
    return Location(scheme, bucket, (url or "").strip("/"))


def is_default(url: object, backend: str | None, environment: Mapping[str, str]) -> bool:
    """Whether nobody said where: then it is a folder that a restart of the machine may clear."""
    return url is None and locate(None, backend, environment) == Location("file", "", DEFAULT_PATH)


def split_object_url(url: str) -> tuple[str, str]:
    """Where an object's folder is, as `open_storage` takes it, and the object's key there.

    The key is empty where no object can be meant: a bucket itself, or the root of the filesystem.
    """
    location = locate(url, None, os.environ)
    if location.scheme == "file":
        # Only the last segment counts, so `.` and `..` must be gone first. A path, since a URL would need quoting.
        return os.path.split(os.path.abspath(os.path.expanduser(location.path)))
    folder, _, key = location.path.rpartition("/")
    bucket = f"{location.scheme}://{location.bucket}"
    return (f"{bucket}/{folder}" if folder else bucket), key


def _of_url(url: str, backend: str | None) -> Location:
    parts = urlsplit(url)
    scheme = SCHEMES.get(parts.scheme.lower())
    if scheme is None:
        raise InvalidInput(f"{parts.scheme}:// is not a storage Strata knows: use {', '.join(SCHEMES)}, or a path")
    if backend is not None and BACKENDS.get(backend) != scheme:
        raise InvalidInput(f"the URL says {parts.scheme}:// and the backend says {backend!r}: leave out the backend")
    if parts.username or parts.password:
        raise InvalidInput("a storage's URL must not hold credentials: they belong in the environment")
    if parts.query or parts.fragment:
        raise InvalidInput(f"a storage's URL has no ? or # part: {parts.scheme}://{parts.netloc}{parts.path}")
    if scheme == "file":
        if parts.netloc not in ("", "localhost") or not parts.path:
            raise InvalidInput(f"a file URL has three slashes and an absolute path: file:///{parts.netloc}{parts.path}")
        return Location(scheme, "", unquote(parts.path))
    if not parts.netloc and scheme != "memory":
        raise InvalidInput(f"{url!r} names no bucket: {parts.scheme}://bucket/prefix")
    return Location(scheme, parts.netloc, parts.path.strip("/"))


def _setting(environment: Mapping[str, str], name: str) -> str | None:
    return environment.get(f"STRATA_{name}") or environment.get(name) or None


def _open(location: Location, options: StorageOptions) -> StorageBackend:
    scheme, bucket, path = location.scheme, location.bucket, location.path
    if scheme == "file":
        return LocalStorage(path, options=options)
    if scheme == "s3":
        return S3Storage(bucket, prefix=path, options=options)
    if scheme == "gs":
        return GCSStorage(bucket, prefix=path, options=options)
    if scheme == "az":
        return AzureStorage(bucket, prefix=path, options=options)
    return MemoryStorage(space=named_space(bucket), name=bucket, prefix=path)
