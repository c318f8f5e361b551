"""Tests of stores that notify of changes: every waiting thread is woken by a change, and none by a step."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from limpet.errors import StoreUnavailable
from limpet.journal.optional_calls import Notifying, provides
from limpet.journal.store import COMPLETED, PAUSED, Store
from limpet.testing.conformance.store_calls import commit, create, expect_accepted, needs_deltas

LONG = 30.0
"""Seconds that a wait may take before the test fails."""


class ChangeNoticeTests:
    """Part of `StoreConformance`."""

    @pytest.mark.parametrize("what", ["create", "release", "pause", "post", "delete", "expire"])
    def test_a_change_wakes_all_waiting_threads(self, store: Store, what: str) -> None:
        """P9: long before their wait times out."""
        quiet(store)
        change = prepared(store, what)
        together = threading.Barrier(4)

        def wait() -> bool:
            waiting = quiet(store)
            together.wait(LONG)
            return waiting.wait_for_change(LONG)

        with ThreadPoolExecutor(3) as pool:
            woken = [pool.submit(wait) for _ in range(3)]
            together.wait(LONG)
            change()
            assert [each.result(2 * LONG) for each in woken] == [True] * 3

    @pytest.mark.parametrize("what", ["create", "release", "pause", "post", "delete", "expire"])
    def test_a_change_between_two_calls_is_not_missed(self, store: Store, what: str) -> None:
        """P9: a thread that looks first and then waits."""
        waiting = quiet(store)
        change = prepared(store, what)
        quiet(store)
        change()
        assert waiting.wait_for_change(LONG)

    def test_each_thread_is_notified_of_each_change(self, store: Store) -> None:
        """P9: one thread doesn't consume the notice of another."""
        waiting = quiet(store)
        with ThreadPoolExecutor(1) as pool:
            pool.submit(quiet, store).result(LONG)
            create(store, "r", holder=None)
            assert waiting.wait_for_change(LONG)
            assert pool.submit(waiting.wait_for_change, LONG).result(2 * LONG)

    def test_a_step_wakes_no_waiting_thread(self, store: Store) -> None:
        """H2: a notice for each step would slow down every run."""
        needs_deltas(store)
        waiting = quiet(store)
        lease = create(store, "r")
        woken = []
        for expected in range(1, 6):
            expect_accepted(store, commit(lease, expected, b"x"))
            store.renew([lease], 10)
            woken.append(waiting.wait_for_change(0.02))
        assert False in woken

    def test_waiting_ends_when_the_store_is_closed(self, store: Store) -> None:
        """G9: with an error, like any other call."""
        waiting = quiet(store)
        with ThreadPoolExecutor(1) as pool:
            waits = pool.submit(until_closed, waiting)
            store.close()
            waits.result(LONG)
        with pytest.raises(StoreUnavailable, match="closed"):
            waiting.wait_for_change(LONG)


def quiet(store: Store) -> Notifying:
    """The store, once all notices so far are consumed; skips the test for a store without notices."""
    if not store.abilities.notifies:
        pytest.skip("the store declares abilities.notifies = False")
    assert provides(store, Notifying)
    deadline = time.monotonic() + LONG
    while store.wait_for_change(0.05):
        assert time.monotonic() < deadline, "the store notifies of changes although there are none"
    return store


def prepared(store: Store, what: str) -> Callable[[], object]:
    """A function that makes this change; what it needs is created now."""
    if what == "create":
        return lambda: create(store, "new", holder=None)
    if what in ("delete", "expire"):
        create(store, "r", holder=None, status=COMPLETED)
        return (lambda: store.delete("r")) if what == "delete" else (lambda: store.expire(-1.0))
    lease = create(store, "r")
    if what == "pause":
        return lambda: expect_accepted(store, commit(lease, 1, status=PAUSED))
    return (lambda: store.release(lease)) if what == "release" else (lambda: store.post("r", "key", b"body"))


def until_closed(store: Notifying) -> None:
    """Wait for changes until the store raises because it was closed."""
    with suppress(StoreUnavailable):
        while True:
            store.wait_for_change(LONG)
