"""Checkpoints: states copied aside and written behind, committed whole or not at all, verified when they are read.

tree, ties, frameworks     a state as a skeleton and its arrays
plan, snapshot, arena      where its bytes go, and the copy of them
writing, saving, saver     to the storage, and the commit
store, lineage, manifest   what lies in the storage, and what it means
reading, loading           and back again
locating, overview         what a person who looks after a storage must see of them
removal, differences
drafting, copying          checkpoints made beside a job: copies, and what other formats hold
exporting, importing
tiers, terms, uploader     a local disk before another storage
"""

from strata.checkpoint.handle import SaveHandle
from strata.checkpoint.manager import CheckpointManager, CheckpointReader
from strata.checkpoint.settings import CheckpointManagerConfig

__all__ = ["CheckpointManager", "CheckpointManagerConfig", "CheckpointReader", "SaveHandle"]
