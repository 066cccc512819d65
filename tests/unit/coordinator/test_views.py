"""What is shown: no secrets, and no more work than is asked for."""

import pytest

from strata.coordinator.views import _CREDENTIALS


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("/data/imagenet", "/data/imagenet"),
        ("s3://bucket/key", "s3://bucket/key"),
        ("s3://AKIA:secret@bucket/key", "s3://***@bucket/key"),
        ("s3://AKIA:se/cr@et@bucket/key", "s3://***@bucket/key"),
        ("https://host/file?X-Signature=secret", "https://host/file?***"),
    ],
)
def test_credentials_in_a_path_are_not_shown(path: str, shown: str) -> None:
    assert _CREDENTIALS.sub(lambda hit: "://***@" if "@" in hit[0] else "?***", path) == shown
