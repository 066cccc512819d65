"""What obstore's errors are taken for, and that neither names nor secrets confuse or leak."""

import pytest

from strata.errors import AccessDenied, ObjectCorrupt, ObjectNotFound, StorageError, StorageFull, StorageUnavailable
from strata.storage.azure import AzureStorage
from strata.storage.gcs import GCSStorage
from strata.storage.objectstore import ObjectStorage
from strata.storage.obstore_errors import translated
from strata.storage.s3 import S3Storage


class GenericError(Exception):
    pass


class PermissionDeniedError(Exception):
    pass


def told(error: Exception, path: str = "a") -> StorageError:
    return translated(error, "s3://bucket", path, "read", S3Storage.hints)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (FileNotFoundError("Object at location a not found"), ObjectNotFound),
        (PermissionDeniedError("403 Forbidden"), AccessDenied),
        (GenericError("status code: 416"), ObjectCorrupt),
        (GenericError("<Error><Code>BadDigest</Code></Error>"), ObjectCorrupt),
        (GenericError("status code: 507"), StorageFull),
        (GenericError("error sending request for url"), StorageUnavailable),
        (GenericError("something new"), StorageUnavailable),
    ],
)
def test_kinds(error: Exception, kind: type[StorageError]) -> None:
    assert type(told(error)) is kind


@pytest.mark.parametrize("path", ["step-416/x", "507", "connect/credential-403", "NoSuchBucket"])
def test_a_name_says_nothing_about_the_error(path: str) -> None:
    error = told(GenericError(f"Error performing GET http://127.0.0.1:1/bucket/{path} at {path}: timed out"), path)
    assert type(error) is StorageUnavailable
    assert error.key == path
    missing = told(FileNotFoundError(f"Object at location {path} not found"), path)
    assert str(missing) == f"cannot read {path!r} in s3://bucket: there is no such object"


@pytest.mark.parametrize("storage", [S3Storage, GCSStorage, AzureStorage])
@pytest.mark.parametrize("took", ["101.24037ms", "1.401ms", "403.1ms", "2.4031s", "416.507ms", "507µs"])
def test_how_long_it_took_says_nothing_about_the_error(storage: type[ObjectStorage], took: str) -> None:
    error = GenericError(
        f"Error performing GET http://127.0.0.1:1/a in {took}, after 1 retries - error sending request"
    )
    assert "Nothing answers there" in str(translated(error, "az://bucket", "a", "read", storage.hints))
    denied = PermissionDeniedError(f"Error performing GET http://127.0.0.1:1/a in {took} - status code: 403 Forbidden")
    assert "Nothing answers there" not in str(translated(denied, "az://bucket", "a", "read", storage.hints))


def test_xml_is_told_in_words_and_the_debug_dump_is_left_out() -> None:
    body = (
        'Server returned 503: <?xml version="1.0"?>\n<Error><Code>SlowDown</Code><Message>Reduce your rate</Message>'
        "<RequestId>1</RequestId></Error>\n\nDebug source:\nRetryError { secret }"
    )
    said = str(told(GenericError(body)))
    assert said == "cannot read 'a' in s3://bucket: Server returned 503: SlowDown: Reduce your rate"


def test_secrets_are_masked() -> None:
    said = str(told(GenericError("GET https://x/y?X-Amz-Signature=abcdef&sig=ghijkl failed")))
    assert "abcdef" not in said
    assert "ghijkl" not in said
