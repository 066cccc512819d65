"""How large the states are."""

import os

MIB = 1 << 20
STATE_BYTES = int(os.environ.get("BENCH_MIB", "1024")) * MIB
"""What is saved to a disk."""
OBJECT_STATE_BYTES = STATE_BYTES // 4
"""What is saved to S3, which is that much slower here."""
SMALL_TENSORS = 100_000
"""Of which a gibibyte is made, where there are very many."""
