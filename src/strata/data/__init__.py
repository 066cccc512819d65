"""Datasets: every sample exactly once, from any format, local or on object storage.

loader                  batches for a training loop
sampler                 the same order and resume for torch's own DataLoader
mixing                  several loaders by weight
affinity                a worker's own shards, as the coordinator shares them out
grants                  what a worker may read, has given out and has consumed: decided here, without I/O
levelled                the same for ranks that take their steps together
epochs, keeper          the same for a training loop, and kept in step with the coordinator
ownbatches, behind      shards as batches; whom an epoch waits for; joining: this process in its job
attendance              a loader's part in its job: where all ranks go on from, and what the ledger learns
workers                 a loader inside of a DataLoader's workers; only this imports torch
cursor                  where one stands, counted by what was given out
making                  batches made ahead, in whichever process
runs, held, columns     many batches put together at once, from decoded blocks in memory
stretches               what a run takes of a block, and of large values in files
skipping, leavingout    what cannot be read, where it is to be left out
position, output        where a loader stands; what batches are given as
finding, files          which files a path means, and their bytes
cache, cachedfolder     what was read from remote storages, on a disk of this machine
formats                 one module for each: what blocks a file has, and a block as an Arrow table
index, indexing         all blocks of all files, and which of them holds a sample
indexfile               the index as one small file
schemas                 whether the columns of files fit together
registry, registered    what datasets a job has, and whose samples are whose: asked of the coordinator
ledger                  what is known to be consumed of an epoch, and what that proves
shardfiles, counting    which files hold which shards; paths: the path of a dataset as the coordinator keeps it
columnar                pyarrow, which only this package needs: it is imported when first used
"""

from typing import TYPE_CHECKING, Any

from strata.data.index import DatasetIndex
from strata.data.indexfile import load_index, save_index
from strata.data.indexing import index_dataset
from strata.data.loader import Loader
from strata.data.mixing import Mix
from strata.data.sampler import ResumableSampler

if TYPE_CHECKING:
    from strata.data.affinity import AffinityLoader

__all__ = [
    "AffinityLoader",
    "DatasetIndex",
    "Loader",
    "Mix",
    "ResumableSampler",
    "index_dataset",
    "load_index",
    "save_index",
]


def __getattr__(name: str) -> Any:
    """What talks to a coordinator needs gRPC's messages, and is imported when it is first wanted."""
    if name == "AffinityLoader":
        from strata.data.affinity import AffinityLoader

        return AffinityLoader
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
