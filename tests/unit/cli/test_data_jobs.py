"""`strata data ls` and `show`: what is told of a dataset's path."""

from strata.cli.data_jobs import told_path


def test_a_path_is_one_line_and_tells_nothing_secret() -> None:
    assert told_path("s3://key:secret@bucket/a\n/b\n/c") == "s3://***@bucket/a and 2 more"
