"""Data on real object stores, behind a proxy that counts what is asked of them and can be told to misbehave."""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pyarrow as pa
import pytest

from strata.data.index import DatasetIndex
from strata.data.indexing import index_dataset
from strata.storage import BlockingStorage, StorageOptions, open_storage
from tests.servers.processes import AZURE_ACCOUNT, AZURE_KEY, BUCKET, S3_KEY, S3_SECRET
from tests.servers.proxy import Fault, Proxy, Request, proxied
from tests.unit.data.making import KINDS, Made, table

SERVERS = [
    pytest.param("s3", marks=pytest.mark.xdist_group("seaweedfs")),
    pytest.param("gs", marks=pytest.mark.xdist_group("azurite")),
    pytest.param("az", marks=pytest.mark.xdist_group("azurite")),
]
FILES, FILE_ROWS = 3, 24
ROWS = FILES * FILE_ROWS
OPTIONS = StorageOptions(timeout_seconds=20, retries=3, retry_seconds=10)
IMPATIENT = StorageOptions(timeout_seconds=5, connect_seconds=1, retries=1, retry_seconds=2)


class Place(NamedTuple):
    """A folder of an object store that is this test's own. What `storage` does is not counted."""

    url: str
    proxy: Proxy
    storage: BlockingStorage

    def put(self, kind: str) -> Made:
        """A dataset of three files."""
        made = KINDS[kind]
        for number in range(FILES):
            self.storage.write(f"part-{number}{made.suffix}", made.write(table(FILE_ROWS, number * FILE_ROWS)))
        return made

    def indexed(self, kind: str, options: StorageOptions = OPTIONS) -> DatasetIndex:
        return index_dataset(self.url, self.put(kind).format, options=options)

    def asked(self) -> list[Request]:
        """What was asked since this was last said."""
        found, self.proxy.requests = self.proxy.requests, []
        return found

    def breaks(self, fault: Fault, first: int | None = None) -> None:
        """So many requests from now on meet this; None: all of them."""
        left = iter(range(10**9 if first is None else first))
        self.proxy.rule = lambda _: None if next(left, None) is None else fault

    def works(self) -> None:
        self.proxy.rule = lambda _: None


def place_at(scheme: str, endpoint: str, name: str, patch: pytest.MonkeyPatch) -> Iterator[Place]:
    for variable, value in _settings(scheme, endpoint).items():
        patch.setenv(variable, value)
    url = f"{scheme}://{BUCKET}/{name}"
    with proxied(endpoint) as (proxy, address), BlockingStorage(open_storage(url, options=OPTIONS)) as storage:
        for variable, value in _settings(scheme, address + urlsplit(endpoint).path).items():
            patch.setenv(variable, value)
        yield Place(url, proxy, storage)


def _settings(scheme: str, endpoint: str) -> dict[str, str]:
    if scheme == "s3":
        return {"AWS_ENDPOINT_URL": endpoint, "AWS_ACCESS_KEY_ID": S3_KEY, "AWS_SECRET_ACCESS_KEY": S3_SECRET}
    if scheme == "gs":
        return {"STORAGE_EMULATOR_HOST": endpoint}
    account = {"AZURE_STORAGE_ACCOUNT_NAME": AZURE_ACCOUNT, "AZURE_STORAGE_ACCOUNT_KEY": AZURE_KEY}
    return {"AZURE_STORAGE_ENDPOINT": endpoint, **account}


def told(batch: dict[str, Any]) -> str:
    """A batch as something that compares, missing numbers and all."""
    return repr({name: array.tolist() for name, array in batch.items()})


def batches_of(loader: Iterable[Any]) -> list[str]:
    """The rest of the loader's epoch."""
    return [*map(told, loader)]


def rows_of(index: DatasetIndex) -> pa.Table:
    return pa.concat_tables([index.read(number) for number in range(index.blocks)])
