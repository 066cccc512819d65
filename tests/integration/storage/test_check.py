"""What `check` finds: on storages that work, and on those that do not, in each way that it knows of."""

import asyncio
import os
import secrets
import socket
import threading
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import aclosing, asynccontextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from strata.storage import BlockingStorage, LocalStorage, MemoryStorage, StorageBackend, StorageOptions
from strata.storage.backend import Data, Progress
from strata.storage.check import Finding, check
from strata.storage.s3 import S3Storage
from tests.servers.processes import BUCKET, S3_KEY, S3_SECRET, Server

pytestmark = pytest.mark.xdist_group("seaweedfs")

OPTIONS = StorageOptions(part_bytes=8 << 20, connect_seconds=2, retries=1, retry_seconds=5)
LOCAL_ONLY = ["filesystem", "free space", "direct writes", "sync", "file locks"]


def checked(storage: StorageBackend) -> list[Finding]:
    async def run() -> list[Finding]:
        async with aclosing(check(storage)) as findings:
            return [finding async for finding in findings]

    return asyncio.run(run())


def failed(findings: list[Finding]) -> list[str]:
    return [finding.name for finding in findings if finding.ok is False]


def s3(endpoint: str, bucket: str = BUCKET, key: str = S3_KEY, secret: str = S3_SECRET) -> S3Storage:
    return S3Storage(
        bucket,
        prefix=secrets.token_hex(8),
        endpoint=endpoint,
        access_key_id=key,
        secret_access_key=secret,
        options=OPTIONS,
    )


def assert_nothing_is_left(storage: StorageBackend) -> None:
    assert list(BlockingStorage(storage).list_all()) == []


# -- storages that work ----------------------------------------------------------------------------------------------


def test_memory_passes() -> None:
    storage = MemoryStorage()
    findings = checked(storage)
    assert failed(findings) == []
    assert {"write", "race 8 writers", "compare and swap", "clean up"} <= {finding.name for finding in findings}
    assert not {finding.name for finding in findings} & set(LOCAL_ONLY)
    assert_nothing_is_left(storage)


def test_s3_passes(s3_server: Server) -> None:
    storage = s3(s3_server.endpoint)
    assert failed(checked(storage)) == []
    assert_nothing_is_left(storage)


def test_a_folder_passes_and_more_is_said_of_it(tmp_path: Path) -> None:
    findings = checked(LocalStorage(tmp_path, options=OPTIONS))
    assert failed(findings) == []
    assert [finding.name for finding in findings][-6:] == [*LOCAL_ONLY, "clean up"]
    assert os.listdir(tmp_path) == []


def test_a_folder_that_was_not_there_is_not_there_afterwards(tmp_path: Path) -> None:
    assert failed(checked(LocalStorage(tmp_path / "new" / "deep", options=OPTIONS))) == []
    assert os.listdir(tmp_path) == []


def test_a_storage_in_use_keeps_what_it_has(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path, options=OPTIONS)
    BlockingStorage(storage).write("run/model", b"weights")
    before = sorted(tmp_path.rglob("*"))
    assert failed(checked(storage)) == []
    assert sorted(tmp_path.rglob("*")) == before
    assert BlockingStorage(storage).read("run/model") == b"weights"


@pytest.mark.parametrize("seen", [1, 4, 7])
def test_a_check_that_is_given_up_leaves_nothing(tmp_path: Path, seen: int) -> None:
    async def give_up(storage: StorageBackend) -> None:
        async with aclosing(check(storage)) as findings:
            for _ in range(seen):
                await anext(findings)

    memory = MemoryStorage()
    for storage in (memory, LocalStorage(tmp_path, options=OPTIONS)):
        asyncio.run(give_up(storage))
    assert_nothing_is_left(memory)
    assert os.listdir(tmp_path) == []


@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="missing component: /dev/shm")
def test_memory_in_the_place_of_a_disk_is_warned_of() -> None:
    root = Path("/dev/shm") / f"strata-{secrets.token_hex(8)}"
    findings = {finding.name: finding for finding in checked(LocalStorage(root, options=OPTIONS))}
    assert findings["filesystem"].ok
    assert findings["filesystem"].warns
    assert "tmpfs" in findings["filesystem"].message
    assert not root.exists()


# -- storages that cannot be used ------------------------------------------------------------------------------------


def assert_stopped_at_once(findings: list[Finding], *said: str) -> None:
    first, rest = findings
    assert (first.name, first.ok, rest.name) == ("write", False, "the rest")
    for words in said:
        assert words in first.message
    assert "not tried" in rest.message


def test_a_wrong_secret_key(s3_server: Server) -> None:
    assert_stopped_at_once(checked(s3(s3_server.endpoint, secret="wrong")), "AWS_SECRET_ACCESS_KEY")


def test_an_unknown_access_key(s3_server: Server) -> None:
    assert_stopped_at_once(checked(s3(s3_server.endpoint, key="nobody")), "AWS_ACCESS_KEY_ID")


def test_a_bucket_that_is_not_there(no_such_bucket: str) -> None:
    assert_stopped_at_once(checked(s3(no_such_bucket)), "there is no such bucket")


def test_nothing_listens() -> None:
    with socket.socket() as closed:  # bound and not listening: nobody else gets the port meanwhile
        closed.bind(("127.0.0.1", 0))
        findings = checked(s3(f"http://127.0.0.1:{closed.getsockname()[1]}"))
    assert_stopped_at_once(findings, "AWS_ENDPOINT_URL")
    assert "strata-check-" in findings[1].message


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    assert_stopped_at_once(checked(LocalStorage(tmp_path / "file" / "x", options=OPTIONS)), "cannot be a folder")


@pytest.fixture
def no_such_bucket() -> Iterator[str]:
    """SeaweedFS makes a bucket that is missing; Amazon answers like this."""

    class NoSuchBucket(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            answer = b"<Error><Code>NoSuchBucket</Code></Error>"
            self.send_response(404)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), NoSuchBucket) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


# -- storages that break a promise -----------------------------------------------------------------------------------


class ReadsWrong(MemoryStorage):
    async def read(self, path: str, *, progress: Progress | None = None) -> bytes:
        return (await super().read(path))[::-1]


class CutsShort(MemoryStorage):
    async def read_ranges(
        self, path: str, ranges: Iterable[tuple[int, int]], *, version: str | None = None
    ) -> list[memoryview]:
        data = memoryview(await super().read(path))
        return [data[start : start + length] for start, length in ranges]


class LosesLargeObjects(MemoryStorage):
    async def write(self, path: str, data: Data, *, progress: Progress | None = None) -> None:
        view = memoryview(data)  # type: ignore[arg-type]
        await super().write(path, view if view.nbytes < 1 << 20 else bytes(view.nbytes))


class CommitsWhatIsAborted(MemoryStorage):
    @asynccontextmanager
    async def open_writer(
        self, path: str, *, size: int | None = None, progress: Progress | None = None
    ) -> AsyncIterator[Any]:
        async with super().open_writer(path) as writer:
            try:
                yield writer
            except BaseException:
                await writer.commit()
                raise


class IgnoresConditions(MemoryStorage):
    async def put_if_absent(self, path: str, data: Data) -> None:
        await self.write(path, data)

    async def compare_and_swap(self, path: str, data: Data, version: str | None) -> str:
        await self.write(path, data)
        return (await self.read_versioned(path))[1]


class KeepsWhatIsDeleted(MemoryStorage):
    async def delete(self, path: str) -> None:
        pass


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (ReadsWrong, ["read back"]),
        (CutsShort, ["read a range"]),
        (LosesLargeObjects, ["stream 24.0 MiB"]),
        (CommitsWhatIsAborted, ["abort a stream"]),
        (IgnoresConditions, ["put if absent", "race 8 writers", "compare and swap"]),
        (KeepsWhatIsDeleted, ["delete"]),
    ],
)
def test_a_broken_promise_is_found_and_only_that(kind: type[MemoryStorage], names: list[str]) -> None:
    storage = kind()
    findings = checked(storage)
    assert failed(findings) == names
    assert all(finding.message for finding in findings if not finding.ok)
    assert_nothing_is_left(storage)


def test_what_cannot_be_removed_is_named() -> None:
    class Locked(MemoryStorage):
        async def delete_many(self, paths: Iterable[str]) -> None:
            raise PermissionError("locked")

    last = checked(Locked())[-1]
    assert (last.name, last.ok) == ("clean up", False)
    assert "Remove memory:///strata-check-" in last.message
