"""Which storage a URL, a path and the environment mean."""

import pytest

from strata import open_storage
from strata.errors import InvalidInput
from strata.storage.urls import Location, locate


@pytest.mark.parametrize(
    ("url", "backend", "expected"),
    [
        ("s3://bucket/models/a", None, Location("s3", "bucket", "models/a")),
        ("s3://bucket", None, Location("s3", "bucket", "")),
        ("s3://bucket/models/", "s3", Location("s3", "bucket", "models")),
        ("S3://bucket/x", None, Location("s3", "bucket", "x")),
        ("gs://bucket/x", None, Location("gs", "bucket", "x")),
        ("gcs://bucket/x", None, Location("gs", "bucket", "x")),
        ("az://container/x", None, Location("az", "container", "x")),
        ("file:///data/a%20b", None, Location("file", "", "/data/a b")),
        ("memory://name/x", None, Location("memory", "name", "x")),
        ("memory://", None, Location("memory", "", "")),
        ("/checkpoints", None, Location("file", "", "/checkpoints")),
        ("relative/path", None, Location("file", "", "relative/path")),
        ("/checkpoints", "local", Location("file", "", "/checkpoints")),
        ("/checkpoints", "s3", Location("s3", "from-env", "checkpoints")),
        ("a/b", "gcs", Location("gs", "from-env", "a/b")),
        ("a/b", "azure", Location("az", "from-env", "a/b")),
    ],
)
def test_what_is_meant(url: str, backend: str | None, expected: Location) -> None:
    assert locate(url, backend, {"CHECKPOINT_BUCKET": "from-env", "STORAGE_BACKEND": "azure"}) == expected


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, Location("file", "", "/tmp/strata/checkpoints")),
        ({"LOCAL_STORAGE_PATH": "/nvme"}, Location("file", "", "/nvme")),
        ({"STORAGE_BACKEND": "s3", "CHECKPOINT_BUCKET": "b"}, Location("s3", "b", "")),
        ({"STORAGE_BACKEND": "gcs", "CHECKPOINT_BUCKET": "b"}, Location("gs", "b", "")),
        ({"STORAGE_BACKEND": "azure", "CHECKPOINT_BUCKET": "b"}, Location("az", "b", "")),
        ({"STORAGE_BACKEND": "s3", "STRATA_STORAGE_BACKEND": "local"}, Location("file", "", "/tmp/strata/checkpoints")),
        ({"LOCAL_STORAGE_PATH": "/a", "STRATA_LOCAL_STORAGE_PATH": "/b"}, Location("file", "", "/b")),
    ],
)
def test_without_a_url_the_environment_decides(environment: dict[str, str], expected: Location) -> None:
    assert locate(None, None, environment) == expected


@pytest.mark.parametrize(
    ("url", "backend", "why"),
    [
        ("", None, "must not be empty"),
        ("ftp://host/x", None, "not a storage Strata knows"),
        ("s3:///prefix", None, "names no bucket"),
        ("s3://key:secret@bucket", None, "must not hold credentials"),
        ("s3://bucket/x?versionId=1", None, "no [?] or # part"),
        ("file://host/path", None, "three slashes"),
        ("s3://bucket", "gcs", "leave out the backend"),
        ("/path", "ftp", "must be one of local, s3"),
        ("/path", "s3", "which bucket"),
        (None, "s3", "which bucket"),
    ],
)
def test_what_means_nothing_is_refused(url: str | None, backend: str | None, why: str) -> None:
    with pytest.raises(InvalidInput, match=why) as raised:
        locate(url, backend, {})
    assert "secret" not in str(raised.value)


def test_an_opened_storage_says_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert open_storage("s3://bucket/models/").url == "s3://bucket/models"
    assert open_storage("gs://bucket").url == "gs://bucket"
    assert open_storage("file:///data").url == "file:///data"
    assert open_storage("memory://x/y").url == "memory://x/y"
    with pytest.raises(InvalidInput, match="AZURE_STORAGE_ACCOUNT_NAME"):
        open_storage("az://container")
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", "AccountName=me;AccountKey=c2VjcmV0==;EndpointSuffix=x")
    assert open_storage("az://container/p").url == "az://container/p"


async def _there_and_back() -> bytes:
    async with open_storage("memory://shared/a") as one, open_storage("memory://shared") as other:
        await one.write("b", b"x")
        return await other.read("a/b")


def test_a_memory_is_shared_by_its_name() -> None:
    import asyncio

    assert asyncio.run(_there_and_back()) == b"x"
