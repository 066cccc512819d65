"""The bytes that are written."""

import numpy as np

from strata.storage.direct import Block, aligned


def source_bytes(size: int) -> Block:
    """Aligned; nothing that a disk or a server could compress away; and touched, since fresh memory is slow to come."""
    noise = np.random.default_rng(7).integers(0, 256, min(size, 32 << 20), np.uint8)
    made = aligned(size)
    for start in range(0, size, len(noise)):
        made[start : start + len(noise)] = noise[: size - start]
    return made
