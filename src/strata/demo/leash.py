"""A process that ends with whoever started it, however that ended: it holds the other end of its standard input.

`python -m strata.demo.leash coordinator …` is `strata coordinator …` on such a leash.
"""

import os
import runpy
import sys
import threading

LET_GO = 70
"""The exit status of a process whose leash was let go."""


def hold() -> None:
    """From now on. Nothing is saved or said: nobody is left who wants it."""
    threading.Thread(target=_wait, name="strata-leash", daemon=True).start()


def _wait() -> None:
    while os.read(0, 1024):
        pass
    os._exit(LET_GO)


if __name__ == "__main__":
    hold()
    sys.argv = ["strata", *sys.argv[1:]]
    runpy.run_module("strata", run_name="__main__", alter_sys=True)
