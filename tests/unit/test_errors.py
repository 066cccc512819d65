"""Errors go from process to process: from a worker of a pool, or from one rank to the others."""

import pickle

import pytest

from strata.errors import (
    BarrierFailed,
    CheckpointDamaged,
    DataDamaged,
    InvalidInput,
    ObjectExists,
    Refused,
    StaleGeneration,
    StorageUnavailable,
    StrataError,
)


@pytest.mark.parametrize(
    "error",
    [
        InvalidInput("wrong"),
        CheckpointDamaged("damaged"),
        Refused("not now", retry=True),
        StaleGeneration("old", generation=7),
        BarrierFailed("ended", missing=["a", "b"]),
        StorageUnavailable("no answer", storage="s3://x", key="k"),
        ObjectExists("taken", storage="s3://x"),
        DataDamaged("cut short", file="a.tar", samples=(3, 9)),
    ],
)
def test_an_error_is_the_same_in_another_process(error: StrataError) -> None:
    found = pickle.loads(pickle.dumps(error))
    assert type(found) is type(error)
    assert (str(found), found.args, vars(found)) == (str(error), error.args, vars(error))
    assert (found.code, found.retry) == (error.code, error.retry)
