"""What is shown of a dataset's path: where it is, and nothing that lets anybody in."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.core.paths import shown

SECRET = "S3cr3t"
HARMLESS = st.text("ab/:.&=", max_size=8)
ANY = st.text("ab/:.&=?#@", max_size=8)


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("/data/imagenet", "/data/imagenet"),
        ("/data/a@2x", "/data/a@2x"),
        ("", ""),
        ("s3://bucket/key", "s3://bucket/key"),
        ("s3://AKIA:secret@bucket/key", "s3://***@bucket/key"),
        ("s3://AKIA:se/cr@et@bucket/key", "s3://***@bucket/key"),
        ("https://host/file?X-Signature=secret", "https://host/file?***"),
        ("https://host/file#token=secret", "https://host/file#***"),
        ("host/file?sig=secret", "host/file?***"),
        ("https://user:secret@host/file?sig=secret", "https://***@host/file?***"),
        ("https://host/o?GoogleAccessId=svc@project.iam&Signature=secret", "https://***"),
        ("https://host/o?by=svc@project&to=/a/b@c&Signature=secret", "https://***"),
        ("https://user:se?cret@host/file", "https://***"),
        ("https://user:se?cr/et@host/file", "https://***"),
        ("https://user:se/cr?et@host/file", "https://***"),
        ("https://user:se#cret@host/file?sig=secret", "https://***"),
        ("s3://a:b@one/x\nhttps://two/y?sig=c\n/three", "s3://***@one/x\nhttps://two/y?***\n/three"),
    ],
)
def test_credentials_in_a_path_are_not_shown(path: str, told: str) -> None:
    assert shown(path) == told


@given(ANY, ANY, HARMLESS)
def test_what_stands_before_an_at_sign_is_never_shown(before: str, after: str, host: str) -> None:
    assert SECRET not in shown(f"https://{before}{SECRET}{after}@{host}")


@given(ANY, ANY, ANY, st.sampled_from("?#"))
def test_what_is_asked_for_is_never_shown(url: str, before: str, after: str, mark: str) -> None:
    assert SECRET not in shown(f"https://{url}{mark}{before}{SECRET}{after}")
