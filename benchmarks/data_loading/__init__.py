"""Loading data, beside MosaicML Streaming, LitData, Grain and HF datasets: the same rows in each one's own format.

Everything is on 2 cores and in the page cache. Contenders have processes and environments of their own and take turns.
Data and peers are made on the first run, and kept in build/.
"""

import os
from collections.abc import Iterator

from benchmarks import About, Table

ABOUT = About("8 minutes", (), "5 GB of disk; 10 minutes more the first time, when it writes data and installs peers")

CORES = 2


def run() -> Iterator[Table]:
    # Here, since the processes started below import this package for one module of it.
    from benchmarks.data_loading import resumes, shuffles, sources, throughput
    from benchmarks.data_loading.contenders import available

    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[:CORES])
    try:
        peers = available()
        sources.prepare(peers)
        yield from throughput.tables(peers)
        yield resumes.resumes(peers)
        yield resumes.start()
        yield shuffles.table(peers)
    finally:
        os.sched_setaffinity(0, before)
