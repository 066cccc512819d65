"""Checkpoints from a GPU: what a training run pays for them, beside every way that torch.distributed.checkpoint has.

One state of weights and Adam's moments, trained for real at steps of about 20, 130 and 1,000 ms. Of each save: how
long the call blocks, how much later the loop is for it, how much slower steps are while it is written, and when it is
durable. Beside them the limits: the bare copy to pinned memory, and bare writes to the disk.

    python -m benchmarks.checkpoint_gpu --json FILE        needs a CUDA GPU, torch, msgspec, xxhash and obstore

Without a GPU there is nothing to measure, and `make bench` says so.
"""

from benchmarks import Table


def run() -> list[Table]:
    import torch

    if not torch.cuda.is_available():
        return [Table("Checkpoints from a GPU: not measured, there is none here", [])]
    from benchmarks.checkpoint_gpu.measure import measure, tables

    return tables(measure())
