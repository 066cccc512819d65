"""This process in the job whose datasets it reads: the session that it shares with its checkpoint manager, what is
registered there, and its files."""

import os
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from strata import background
from strata.config import Config
from strata.core.ids import check_id, check_texts
from strata.data.index import DatasetIndex
from strata.data.indexing import index_dataset
from strata.data.paths import read
from strata.data.registered import RegisteredDataset, registered
from strata.data.shardfiles import check_same, check_total
from strata.errors import InvalidInput
from strata.session import Session, Who, active, join, join_again

BEHIND_ALL = 2**62
"""A place behind every range of a ledger: of a dataset itself, not of what is consumed, is to be told."""


LOADERS = {"elastic": "strata.data.Loader", "affinity": "strata.data.AffinityLoader"}
"""Which reads what, by the order that it is registered in."""

Source: TypeAlias = DatasetIndex | str | os.PathLike[str] | Sequence[str]
"""An index of a dataset, or where it is."""


def joined(coordinator_url: str | None, whom: Callable[[Config, str], Who], **said: Any) -> Session:
    """As whom it was said (job_id, worker_id, rank, world_size); else as this process's orchestrator has joined; else
    as the environment says. In one session, whoever of this process joins first."""
    check_texts(coordinator_url=coordinator_url)
    session = active()
    if session is not None and not coordinator_url and all(value is None for value in said.values()):
        return join_again(session)
    config = Config({"coordinator_url": coordinator_url or None, **said}, os.environ)
    return join(config, whom(config, check_id(config["job_id"], "job_id")))


def registered_in(session: Session, dataset_id: str, order: str) -> RegisteredDataset:
    """The dataset as the job knows it; InvalidInput unless it is to be read in this order."""
    check_id(dataset_id, "dataset_id")
    answer = background.run(session.call("GetLedger", dataset_id=dataset_id, from_place=BEHIND_ALL))
    found = registered(answer.dataset)
    if found.order != order:
        raise InvalidInput(
            f"dataset {dataset_id!r} is registered in the {found.order} order: read it with {LOADERS[found.order]}, or "
            f'register it with order="{order}"'
        )
    return found


def files_of(known: RegisteredDataset, dataset: Source | None, format: str = "") -> DatasetIndex:
    """Where they are registered to be, or as this machine has them; DataChanged if they are others than were
    registered."""
    where = read(known.path) if dataset is None else dataset
    index = where if isinstance(where, DatasetIndex) else index_dataset(where, format or known.format)
    told = known.path if dataset is None else str(dataset)
    check_same(known.dataset_id, known.fingerprint, known.columns, index, told)
    check_total(known.dataset_id, known.total_samples, index.rows, told)
    return index
