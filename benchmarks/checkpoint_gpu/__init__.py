"""Checkpoints from a GPU: what a training run pays for them, beside every way that torch.distributed.checkpoint has.

One state of weights and Adam's moments, trained for real at steps of about 20, 130 and 1,000 ms. Of each save: how
long the call blocks, how much later the loop is for it, how much slower steps are while it is written, and when it is
durable. Beside them the limits: the bare copy to pinned memory, and bare writes to the disk.

    python -m benchmarks.checkpoint_gpu --json FILE        needs a CUDA GPU, torch, msgspec, xxhash and obstore

Without a GPU there is nothing to measure, and `make bench` says so.
"""

from collections.abc import Iterator

from benchmarks import About, Missing, Table, measured

ABOUT = About("10 minutes", (), "a CUDA GPU, and torch for it")


def run() -> Iterator[Table]:
    return measured(_tables)


def _tables() -> list[Table]:
    import torch

    if not torch.cuda.is_available():
        raise Missing("there is no CUDA GPU here")
    from benchmarks.checkpoint_gpu.measure import measure, tables

    return tables(measure())
