"""Threads that are started where an interrupt can't be lost, and what happens when none can be started."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Thread

import pytest

from limpet.threads.workers import start_threads


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
