"""Claims about stores that tell of changes: whoever waits for one hears of it, and nobody is woken by a step."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from limpet.errors import StoreUnavailable
from limpet.journal.store import COMPLETED, PAUSED, Notifying, Store
from limpet.testing.conformance.tools import commit, create, landed, needs_deltas

LONG = 30.0


class NoticeClaims:
    """Part of `StoreConformance`."""

    @pytest.mark.parametrize("what", ["create", "release", "pause", "signal", "delete", "expire"])
    def test_a_change_is_heard_by_whoever_waits(self, store: Store, what: str) -> None:
        """P9: before the time is over, which is long."""
        quiet(store)
        change = prepared(store, what)
        together = threading.Barrier(4)

        def wait() -> bool:
            waiting = quiet(store)
            together.wait(LONG)
            return waiting.wait_for_change(LONG)

        with ThreadPoolExecutor(3) as pool:
            heard = [pool.submit(wait) for _ in range(3)]
            together.wait(LONG)
            change()
            assert [each.result(2 * LONG) for each in heard] == [True] * 3

    @pytest.mark.parametrize("what", ["create", "release", "pause", "signal", "delete", "expire"])
    def test_a_change_between_two_calls_is_not_missed(self, store: Store, what: str) -> None:
        """P9: whoever looks, sees that it must wait, and then waits."""
        waiting = quiet(store)
        change = prepared(store, what)
        quiet(store)
        change()
        assert waiting.wait_for_change(LONG)

    def test_one_who_hears_takes_nothing_from_another(self, store: Store) -> None:
        """P9: each thread hears of each change."""
        waiting = quiet(store)
        with ThreadPoolExecutor(1) as pool:
            pool.submit(quiet, store).result(LONG)
            create(store, "r", holder=None)
            assert waiting.wait_for_change(LONG)
            assert pool.submit(waiting.wait_for_change, LONG).result(2 * LONG)

    def test_a_step_wakes_nobody(self, store: Store) -> None:
        """H2: it would cost every run something."""
        needs_deltas(store)
        waiting = quiet(store)
        lease = create(store, "r")
        heard = []
        for expected in range(1, 6):
            landed(store, commit(lease, expected, b"x"))
            store.renew([lease], 10)
            heard.append(waiting.wait_for_change(0.02))
        assert False in heard

    def test_waiting_ends_when_the_store_is_closed(self, store: Store) -> None:
        """G9: with an error, as any other call."""
        waiting = quiet(store)
        with ThreadPoolExecutor(1) as pool:
            waits = pool.submit(until_closed, waiting)
            store.close()
            waits.result(LONG)
        with pytest.raises(StoreUnavailable, match="closed"):
            waiting.wait_for_change(LONG)


def quiet(store: Store) -> Notifying:
    """The store as one that can be waited for, once nothing is left to be heard; skips one that can't."""
    if not store.abilities.notifies:
        pytest.skip("the store declares abilities.notifies = False")
    assert isinstance(store, Notifying)
    deadline = time.monotonic() + LONG
    while store.wait_for_change(0.05):
        assert time.monotonic() < deadline, "it tells of changes although there are none"
    return store


def prepared(store: Store, what: str) -> Callable[[], object]:
    """What makes this change; what it needs is there already."""
    if what == "create":
        return lambda: create(store, "new", holder=None)
    if what in ("delete", "expire"):
        create(store, "r", holder=None, status=COMPLETED)
        return (lambda: store.delete("r")) if what == "delete" else (lambda: store.expire(-1.0))
    lease = create(store, "r")
    if what == "pause":
        return lambda: landed(store, commit(lease, 1, status=PAUSED))
    return (lambda: store.release(lease)) if what == "release" else (lambda: store.signal("r", "cancel"))


def until_closed(store: Notifying) -> None:
    """Wait for changes until the store says that it was closed."""
    with suppress(StoreUnavailable):
        while True:
            store.wait_for_change(LONG)
