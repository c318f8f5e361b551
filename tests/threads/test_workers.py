"""Threads that are started where an interrupt can't be lost, and what happens when none can be started."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from threading import Event, Thread, current_thread

import pytest

from limpet.threads.workers import Workers, start_threads
from support.waiting import SOON, until


class Refused(Thread):
    """A thread that Python refuses to start."""

    def __init__(self, why: str) -> None:
        super().__init__()
        self.why = why

    def start(self) -> None:
        raise RuntimeError(self.why)


def test_a_process_that_ends_starts_no_threads_and_says_nothing() -> None:
    """G12: it would end them at once. Other reasons are errors."""
    with ThreadPoolExecutor(1) as other:
        other.submit(start_threads, [Refused("can't create new thread at interpreter shutdown")]).result()
        with pytest.raises(RuntimeError, match="can't start new thread"):
            other.submit(start_threads, [Refused("can't start new thread")]).result()


def test_a_worker_takes_the_next_job_and_a_forked_child_starts_with_none() -> None:
    """P7: a thread is started only where none waits. A child has none of the threads that its parent had."""
    pool = Workers("test-worker", 1)
    done: SimpleQueue[Thread] = SimpleQueue()

    def job() -> None:
        done.put(current_thread())

    pool.do(job)
    first = done.get(timeout=SOON)
    until(lambda: pool._idle)
    pool.do(job)
    assert done.get(timeout=SOON) is first
    pool.end_idle()
    until(lambda: not first.is_alive())
    # As a child finds it: it waits here, but it is a thread of the parent.
    pool._idle.append(None)
    pool._process -= 1
    pool.do(job)
    assert done.get(timeout=SOON) is not first
    pool.end_idle()


def test_workers_without_a_job_end_on_request() -> None:
    """P7: none is left of a supervisor that was stopped."""
    pool = Workers("test-worker", 8)
    done: SimpleQueue[Thread] = SimpleQueue()
    proceed = Event()

    def job() -> None:
        assert proceed.wait(SOON)
        done.put(current_thread())

    for _ in range(4):
        pool.do(job)
    until(lambda: len(pool._alive) >= 4)
    pool.end_idle()
    proceed.set()
    threads = [done.get(timeout=SOON) for _ in range(4)]
    until(lambda: not any(thread.is_alive() for thread in threads))
    pool.do(job)
    last = done.get(timeout=SOON)
    until(lambda: pool._idle)
    pool.end_idle()
    until(lambda: not last.is_alive())
