"""The side of a contender, in a process and an environment of its own: lines of JSON are asked and answered."""

import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any


def play(acts: Mapping[str, Callable[..., object]]) -> None:
    """Until nothing more is asked. What libraries print goes elsewhere."""
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)
        for line in sys.stdin:
            asked = json.loads(line)
            print(json.dumps(acts[asked.pop("act")](**asked)), file=answers, flush=True)


STARTING = 16


def counted(batches: Iterable[Any], count: Callable[[Any], int], seconds: float, workers: int = 0) -> tuple[int, float]:
    """How many come in how many seconds, until there are no more or the time is over. The clock starts when the first
    batch is there, and that one is not counted; with workers, when so many are that each worker has begun."""
    rest = iter(batches)
    for _ in range(STARTING if workers else 1):
        next(rest)
    found, began = 0, time.perf_counter()
    for batch in rest:
        found += count(batch)
        if time.perf_counter() - began > seconds:
            break
    return found, time.perf_counter() - began


def first_after(make: Callable[[], Iterator[Any]]) -> float:
    """Milliseconds from there to the first batch. What else was begun by then is no part of that, nor is its end."""
    began = time.perf_counter()
    batches = make()
    next(batches)
    return (time.perf_counter() - began) * 1000


def row_numbers(batches: Iterable[Any], first_column: Callable[[Any], Any], most: int) -> list[list[int]]:
    """Which rows the first batches are of."""
    return [[int(number) for number in first_column(batch)] for batch in itertools.islice(batches, most)]
