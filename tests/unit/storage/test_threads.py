"""Threads for a filesystem: as many as needed, never more than allowed, and all gone when told so."""

import threading
from concurrent.futures import CancelledError, wait

import pytest

from strata.storage.threads import DaemonThreads

MOST = 3


def test_results_and_errors_come_back() -> None:
    threads = DaemonThreads(MOST, "test")
    assert threads.submit(divmod, 7, 2).result(timeout=10) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        threads.submit(divmod, 7, 0).result(timeout=10)
    threads.shutdown()


def test_there_are_as_many_as_there_is_work_and_no_more() -> None:
    threads = DaemonThreads(MOST, "test-most")
    for _ in range(5):
        threads.submit(int).result(timeout=10)
    full, go = threading.Barrier(MOST + 1), threading.Event()

    def work() -> None:
        full.wait(timeout=10)
        go.wait(timeout=10)

    running = [threads.submit(work) for _ in range(MOST)]
    waiting = threads.submit(threading.get_ident)
    full.wait(timeout=10)
    assert not waiting.done()
    assert sum(thread.name.startswith("test-most") for thread in threading.enumerate()) == MOST
    go.set()
    wait(running, timeout=10)
    wait([waiting], timeout=10)
    threads.shutdown()
    assert not any(thread.name.startswith("test-most") for thread in threading.enumerate())


def test_what_was_given_is_done_and_nothing_more_is_taken() -> None:
    threads = DaemonThreads(1, "test")
    go = threading.Event()
    threads.submit(go.wait, 10)
    last, dropped = threads.submit(lambda: "done"), threads.submit(lambda: "dropped")
    assert dropped.cancel()
    threads.shutdown(wait=False)
    with pytest.raises(RuntimeError, match="told to end"):
        threads.submit(int)
    go.set()
    assert last.result(timeout=10) == "done"
    with pytest.raises(CancelledError):
        dropped.result(timeout=10)
    threads.shutdown()


def test_threads_that_nobody_has_any_more_end_once_their_work_is_done() -> None:
    threads, go = DaemonThreads(MOST, "test-dropped"), threading.Event()
    waiting = [threads.submit(go.wait, 10) for _ in range(MOST)]
    last = threads.submit(lambda: "done")
    running = [thread for thread in threading.enumerate() if thread.name.startswith("test-dropped")]
    assert len(running) == MOST
    del threads
    go.set()
    assert last.result(timeout=10) == "done"
    wait(waiting, timeout=10)
    for thread in running:
        thread.join(10)
    assert not any(thread.is_alive() for thread in running)
