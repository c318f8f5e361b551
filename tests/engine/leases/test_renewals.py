"""Renewing leases: few threads for many stores, and only for runs that are being run."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from time import monotonic
from typing import Any

import pytest

from limpet import MemoryStore
from limpet.engine.leases import held_lease
from limpet.engine.leases.interrupted_calls import release_unused
from limpet.engine.leases.lease_client import LeaseClient, client_for
from limpet.journal.store import Lease, NewRun
from limpet.testing import FaultyStore
from support.graphs import SOON, loop
from support.waiting import dying_thread, until


class NotingStore(MemoryStore):
    """Notes when its leases are renewed, and lets a test block that."""

    def __init__(self) -> None:
        super().__init__()
        self.renewals = 0
        self.proceed = threading.Event()
        self.proceed.set()

    def renew(self, leases: Iterable[Lease], ttl: float) -> list[str | None]:
        self.renewals += 1
        assert self.proceed.wait(SOON)
        return super().renew(leases, ttl)


@pytest.fixture
def stores() -> Iterator[list[NotingStore]]:
    made = [NotingStore() for _ in range(200)]
    yield made
    for store in made:
        store.proceed.set()
        store.close()


def new_run(run_id: str = "r") -> NewRun:
    return NewRun(run_id, "g", [b"1"], holder="me", ttl=60.0)


def library_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("limpet-")]


def test_many_stores_need_few_threads(stores: list[NotingStore]) -> None:
    """P8: one thread watches the time for all stores of the process."""
    for store in stores:
        assert loop(2).compile(store=store).execute({})["n"] == 2
    assert len(library_threads()) < 10


def test_the_leases_of_many_stores_are_renewed_by_few_threads(stores: list[NotingStore]) -> None:
    held = [client_for(store, 0.3).create(new_run()) for store in stores]
    until(lambda: all(store.renewals > 1 for store in stores))
    assert len(library_threads()) < 20
    assert len(held) == len(stores)


@pytest.mark.parametrize(("level", "has_traceback"), [("WARNING", False), ("DEBUG", True)])
def test_a_failed_renewal_is_logged_in_one_line(
    caplog: pytest.LogCaptureFixture, level: str, has_traceback: bool
) -> None:
    """P8: with the reason; a store that is away for an hour doesn't fill the log. A traceback is for debugging."""
    caplog.set_level(level, "limpet.leases")
    store = FaultyStore(MemoryStore())
    client = client_for(store, 60.0)
    held = client.create(new_run())
    assert held is not None
    store.disk_full("renew", times=1)
    client.do_regularly()
    # A store that another test has left may have something to say, too.
    begin = "couldn't renew leases; will try again: StoreUnavailable: renew: "
    (logged,) = [each for each in caplog.records if each.getMessage().startswith(begin)]
    said = logged.getMessage()
    assert "\n" not in said
    assert bool(logged.exc_info) is has_traceback


class Leases:
    """What has leases to be renewed, for as long as a test says so."""

    interval = LeaseClient(MemoryStore(), ttl=30.0).interval
    is_held = True

    def has_leases(self) -> bool:
        return self.is_held

    def do_regularly(self) -> None: ...


def test_leases_are_renewed_three_times_in_their_length() -> None:
    """P8: one renewal may fail and one be late. Not more often, since each is a call of the store."""
    renewals = held_lease.Renewals()
    renewals._is_watching = True  # it gets no thread
    leases = Leases()
    before = monotonic()
    renewals.watch(leases)
    first = renewals._next_time()
    assert before + 10 <= first <= monotonic() + 10
    assert renewals._due_now(first - 0.1) == []
    assert renewals._due_now(first + 0.5) == [leases]
    assert renewals._next_time() == first + 0.5 + 10
    assert renewals._due_now(first + 10.4) == []
    leases.is_held = False
    assert renewals._due_now(first + 11.0) == []
    assert renewals._next_time() == float("inf")


def test_a_store_that_does_not_answer_delays_the_renewals_of_no_other(stores: list[NotingStore]) -> None:
    """P8: each renewal is in time, whatever other stores do."""
    silent = stores[:5]
    for store in silent:
        store.proceed.clear()
    held = [client_for(store, 0.3).create(new_run()) for store in stores]
    until(lambda: all(store.renewals > 3 for store in stores[5:]))
    # It isn't asked again while it hasn't answered.
    assert [store.renewals for store in silent] == [1] * 5
    assert len(held) == len(stores)


def test_a_lease_that_no_driver_took_over_is_renewed_for_a_while_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """G12: a traceback of an interrupted call may refer to it, and so keep it for as long as it is shown."""
    client = client_for(NotingStore(), 60.0)
    held = client.create(new_run())
    assert client.has_leases()
    monkeypatch.setattr(held_lease, "MAX_OPENING_TIME", 0.0)
    assert not client.has_leases()
    with held.driven():
        assert client.has_leases()
    assert not client.has_leases()


def test_what_an_interrupted_thread_has_claimed_is_released() -> None:
    """G12: by the thread itself, which leaves alone what others have claimed, and what it had before."""
    store: Any = MemoryStore()
    client = client_for(store, 60.0)
    before = client.create(new_run("before"))
    time_between = time.monotonic()
    others: list[Any] = []
    other = threading.Thread(target=lambda: others.append(client.create(new_run("other"))))
    other.start()
    other.join()
    mine = client.create(new_run("mine"))
    release_unused(time_between)
    assert [store.head(run_id).holder is None for run_id in ("before", "other", "mine")] == [
        False,
        False,
        True,
    ]
    assert [before, *others, mine]


class Failing:
    """Work of which nothing is known, as it fails."""

    interval = 0.001

    def has_leases(self) -> bool:
        raise RuntimeError("as it should")

    def do_regularly(self) -> None:
        """Never called."""


def test_leases_are_renewed_again_after_the_thread_for_it_has_failed() -> None:
    """P8: the next lease starts another one."""
    renewals = held_lease.Renewals()
    with dying_thread(RuntimeError):
        renewals.watch(Failing())
    until(lambda: not renewals._is_watching and monotonic() > min(renewals._due.values()) + 0.1)
    renewals._due.clear()
    store = NotingStore()
    client = LeaseClient(store, 0.1)
    lease = client.create(new_run())
    renewals.watch(client)
    until(lambda: store.renewals >= 2)
    assert not lease.lost
