"""torch.distributed.checkpoint with Strata's storage, digests and commit. Needs torch; nobody else imports this.

    dcp.save(state_dict, storage_writer=StrataWriter("s3://bucket/run", step=1000))
    dcp.load(state_dict, storage_reader=StrataReader("s3://bucket/run"))

What is saved is a checkpoint like any other: `CheckpointManager` loads it, and what that saves is loaded here.

writer       each rank's part, and the commit
reader       any slice of any tensor, for any mesh
places       where checkpoints lie, and what this process has to do with them
stating      from the items of a save plan to a part of a checkpoint
catalogue    from a checkpoint to the names that load plans ask for
"""

from strata.extras import needs

with needs("torch", module="strata.integrations.dcp", extra="torch"):
    import torch as _torch  # noqa: F401

from strata.integrations.dcp.reader import StrataReader
from strata.integrations.dcp.writer import StrataWriter

__all__ = ["StrataReader", "StrataWriter"]
