"""S3 behind a bad network: answers lost, parts refused, servers that hang, keys that are wrong."""

import secrets
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from strata.errors import AccessDenied, InvalidInput, ObjectChanged, ObjectExists, StorageError, StorageUnavailable
from strata.storage import BlockingStorage, StorageOptions
from strata.storage.s3 import S3Storage
from tests.servers.processes import BUCKET, S3_KEY, S3_SECRET, Server, s3_client
from tests.servers.proxy import Fault, Proxy, Request, proxied
from tests.until import until

pytestmark = pytest.mark.xdist_group("seaweedfs")

PART = 5 << 20
OPTIONS = StorageOptions(part_bytes=PART, concurrency=3, timeout_seconds=20, retries=3, retry_seconds=10)
DATA = bytes(range(256)) * (4 * PART // 256) + b"the tail"


@pytest.fixture
def proxy(s3_server: Server) -> Iterator[tuple[Proxy, str]]:
    with proxied(s3_server.endpoint) as found:
        yield found


def open_s3(endpoint: str, options: StorageOptions = OPTIONS, **changes: str) -> BlockingStorage:
    keys: dict[str, Any] = {"access_key_id": S3_KEY, "secret_access_key": S3_SECRET, **changes}
    bucket = keys.pop("bucket", BUCKET)
    return BlockingStorage(S3Storage(bucket, prefix=secrets.token_hex(8), endpoint=endpoint, options=options, **keys))


def first(number: int, fault: Fault, wanted: Callable[[Request], bool]) -> Callable[[Request], Fault | None]:
    """The fault for the first so many requests of that kind."""
    left = iter(range(number))
    return lambda request: fault if wanted(request) and next(left, None) is not None else None


def is_put(request: Request) -> bool:
    return request.method == "PUT"


# -- answers that are lost ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["lose the answer", "fail after", "fail before"])
def test_a_put_if_absent_knows_its_own_work(proxy: tuple[Proxy, str], fault: Fault) -> None:
    with open_s3(proxy[1]) as store:
        proxy[0].rule = first(1, fault, is_put)
        store.put_if_absent("a", b"mine")
        assert store.read("a") == b"mine"
        for later in (fault, None):
            proxy[0].rule = first(1, later, is_put) if later else lambda _: None
            with pytest.raises(ObjectExists):
                store.put_if_absent("a", b"mine")


@pytest.mark.parametrize("fault", ["lose the answer", "fail after", "fail before"])
def test_a_swap_knows_its_own_work(proxy: tuple[Proxy, str], fault: Fault) -> None:
    with open_s3(proxy[1]) as store:
        version = store.compare_and_swap("a", b"1", None)
        proxy[0].rule = first(1, fault, is_put)
        after = store.compare_and_swap("a", b"2", version)
        assert store.read_versioned("a") == (b"2", after)
        proxy[0].rule = first(1, fault, is_put)
        with pytest.raises(ObjectChanged):
            store.compare_and_swap("a", b"3", version)


# -- parts -------------------------------------------------------------------------------------------------------------


def is_part(request: Request) -> bool:
    return "partNumber=" in request.path


@pytest.mark.parametrize("fault", ["fail before", "fail after", "cut"])
def test_a_part_that_fails_is_sent_again_by_itself(proxy: tuple[Proxy, str], fault: Fault) -> None:
    with open_s3(proxy[1]) as store:
        proxy[0].rule = first(1, fault, lambda request: "partNumber=2" in request.path)
        store.write("a", DATA)
        assert store.read("a") == DATA
        assert proxy[0].count("PUT", "partNumber=2") == 2
        assert all(proxy[0].count("PUT", f"partNumber={number}") == 1 for number in (1, 3, 4, 5))


@pytest.mark.parametrize("bad", [1, 3, 5], ids=["the first part", "one in the middle", "the last part"])
@pytest.mark.parametrize("how", ["write", "stream"])
def test_a_part_that_never_arrives_leaves_nothing(
    proxy: tuple[Proxy, str], s3_server: Server, bad: int, how: str
) -> None:
    quick = StorageOptions(part_bytes=PART, concurrency=3, timeout_seconds=20, retries=1, retry_seconds=5)
    with open_s3(proxy[1], quick) as store:
        store.write("kept", b"old")
        proxy[0].rule = lambda request: "fail before" if f"partNumber={bad}" in request.path else None
        with pytest.raises(StorageUnavailable, match="cannot write 'kept'") as raised:
            put(store, how)
        assert raised.value.retry
        proxy[0].rule = lambda _: None
        assert store.read("kept") == b"old"
        assert [entry.path for entry in store.list_all()] == ["kept"]
        uploads = s3_client(s3_server.endpoint).list_multipart_uploads(Bucket=BUCKET).get("Uploads", [])
        assert [upload for upload in uploads if store.url.endswith(upload["Key"].split("/")[0])] == []


def put(store: BlockingStorage, how: str) -> None:
    if how == "write":
        store.write("kept", DATA)
        return
    with store.open_writer("kept") as writer:
        for start in range(0, len(DATA), 1_000_000):
            writer.write(DATA[start : start + 1_000_000])


def test_a_completion_whose_answer_is_lost_is_asked_for_again(proxy: tuple[Proxy, str]) -> None:
    with open_s3(proxy[1]) as store:
        proxy[0].rule = first(1, "fail before", lambda r: r.method == "POST" and "uploadId=" in r.path)
        store.write("a", DATA)
        assert store.read("a") == DATA


@pytest.mark.parametrize("how", ["write", "stream"])
def test_a_completion_whose_answer_is_lost_and_that_is_then_unknown_was_done(
    proxy: tuple[Proxy, str], how: str
) -> None:
    """S3 forgets an upload once it is complete: asked again, it knows no such upload."""
    faults: Iterator[Fault] = iter(["fail after", "no such upload"])

    def rule(request: Request) -> Fault | None:
        return next(faults, None) if request.method == "POST" and "uploadId=" in request.path else None

    with open_s3(proxy[1]) as store:
        proxy[0].rule = rule
        put(store, how)
        assert store.read("kept") == DATA
        proxy[0].rule = lambda request: (
            "no such upload" if request.method == "POST" and "uploadId=" in request.path else None
        )
        with pytest.raises(StorageUnavailable, match="the upload is gone"):
            put(store, how)


def test_an_endpoint_without_a_scheme_is_refused() -> None:
    with pytest.raises(InvalidInput, match="must begin with http"):
        open_s3("127.0.0.1:9000")


def test_a_range_that_fails_is_read_again(proxy: tuple[Proxy, str]) -> None:
    with open_s3(proxy[1]) as store:
        store.write("a", DATA)
        proxy[0].rule = first(2, "cut", lambda request: request.method == "GET")
        assert store.read("a") == DATA


# -- limits ------------------------------------------------------------------------------------------------------------


def test_a_server_that_hangs_is_given_up(proxy: tuple[Proxy, str]) -> None:
    short = StorageOptions(timeout_seconds=0.3, retries=1, retry_seconds=2)
    with open_s3(proxy[1], short) as store:
        proxy[0].rule = lambda _: "hang"
        for call in (lambda: store.write("a/b", b"x"), lambda: store.read("a/b"), lambda: list(store.list_all())):
            with pytest.raises(StorageUnavailable) as raised:
                call()
            assert raised.value.storage == store.url
        assert proxy[0].count("PUT") == 2


def test_retries_are_limited(proxy: tuple[Proxy, str]) -> None:
    with open_s3(proxy[1]) as store:
        proxy[0].rule = lambda _: "fail before"
        with pytest.raises(StorageUnavailable, match="SlowDown"):
            store.write("a", b"x")
        assert proxy[0].count("PUT") == 1 + OPTIONS.retries


def test_after_close_no_connection_is_left(proxy: tuple[Proxy, str]) -> None:
    with open_s3(proxy[1]) as store:
        store.write("a", DATA)
        store.read("a")
        assert proxy[0].open_connections > 0
    until(lambda: not proxy[0].open_connections)


# -- what is wrong, in words -------------------------------------------------------------------------------------------


def test_a_wrong_secret_is_told(s3_server: Server) -> None:
    with open_s3(s3_server.endpoint, secret_access_key="a-wrong-secret") as store:
        with pytest.raises(AccessDenied, match="see AWS_SECRET_ACCESS_KEY") as raised:
            store.write("a", b"x")
        assert "a-wrong-secret" not in str(raised.value)
        assert raised.value.key == "a"


def test_an_unknown_key_is_told(s3_server: Server) -> None:
    with (
        open_s3(s3_server.endpoint, access_key_id="nobody") as store,
        pytest.raises(AccessDenied, match="is not known"),
    ):
        store.read("a")


def test_a_missing_bucket_is_told(s3_server: Server) -> None:
    with open_s3(s3_server.endpoint, bucket="no-such-bucket") as store:
        for call in (lambda: list(store.list_all()), lambda: list(store.list_folder())):
            with pytest.raises(StorageError, match="no such bucket"):
                call()


def test_nobody_there_is_told() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{unused.getsockname()[1]}"
    short = StorageOptions(connect_seconds=1, retries=1, retry_seconds=1)
    with open_s3(endpoint, short) as store, pytest.raises(StorageUnavailable, match="Nothing answers there"):
        store.read("a")
