"""Lists of the Redis store: which runs are looked at to find those that match."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from limpet.journal.run_filter import Cursor, LeaseState, RunFilter
from limpet.journal.store import CANCELLED, COMPLETED, FAILED, Commit, Labels, NewRun
from limpet.stores.redis.store import RedisStore
from limpet.testing.conformance import ManualClock
from support.redis_servers import RedisServer

RUNS = 700


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(server: RedisServer, client: Any, clock: ManualClock) -> Iterator[RedisStore]:
    with closing(RedisStore(server.url, clock=clock)) as store:
        yield store


@pytest.mark.parametrize("moments", [1, 2, 5])
def test_pages_have_each_run_once_also_if_many_were_created_at_one_moment(
    store: RedisStore, clock: ManualClock, moments: int
) -> None:
    """H11: in the order of creation and id."""
    for number in range(RUNS):
        if number % (RUNS // moments) == 1:
            clock.advance(1)
        store.create(NewRun(f"r{number}", "g", [], status=FAILED if number % 2 else CANCELLED))
    expected = sorted((store.head(f"r{number}").cursor for number in range(RUNS)), reverse=True)
    for which in (RunFilter(), RunFilter(graph="g"), RunFilter(statuses=(FAILED, CANCELLED))):
        assert [head.cursor for head in store.list(which)] == expected
        found: list[Cursor] = []
        while page := store.list(which._replace(limit=33, after=found[-1] if found else None)):
            found += [head.cursor for head in page]
        assert found == expected


@pytest.mark.parametrize(
    "which",
    [
        {"graph": "rare"},
        {"queue": "rare"},
        {"tags": ("rare",)},
        {"tags": ("common", "rare")},
        {"parent": "rare"},
        {"node": "rare"},
        {"error": "rare"},
        {"has_error": True},
        {"is_waiting": True},
        {"is_due": False},
        {"lease_states": (LeaseState.HELD,)},
        {"lease_states": (LeaseState.HELD, LeaseState.EXPIRED)},
        {"statuses": (FAILED, CANCELLED)},
        {"updated_since": 1_750_001_000.0},
        {"created_since": 1_750_001_000.0},
        {"created_before": 1_750_000_000.5},
        {"updated_before": 1_750_000_000.5},
    ],
    ids=str,
)
def test_only_runs_that_may_match_are_looked_at(
    store: RedisStore, client: Any, clock: ManualClock, which: dict[str, Any]
) -> None:
    """H11: however many others there are."""
    labels = Labels("rare", "rare", "rare")
    created = 1_750_000_000.0
    store.create(NewRun("first", "common", [], status=COMPLETED, tags=("common",)))
    for number in range(RUNS):
        clock.now = created + 1 + number
        store.create(NewRun(f"r{number}", "common", [], status=COMPLETED, tags=("common",)))
    clock.now = created + 1000
    rare: dict[str, Any] = {"tags": ("common", "rare"), "parent": "rare", "labels": labels, "queue": "rare"}
    store.create(NewRun("rare", "rare", [], status=FAILED, holder="ann", ttl=1e9, due=1e12, **rare))
    store.list(RunFilter(graph="g"))  # once, it looks for runs of an earlier version
    client.config_resetstat()
    found = [head.run_id for head in store.list(RunFilter(**which))]
    assert found == ["first" if "before" in str(which) else "rare"]
    assert client.info("commandstats")["cmdstat_hmget"]["calls"] <= 2


def test_a_run_is_found_by_what_it_has_become(store: RedisStore) -> None:
    """H11: and no longer by what it was."""
    lease = store.create(NewRun("r", "g", [b"1"], holder="ann", labels=Labels("a", "", "timer"), due=5.0))
    assert lease is not None

    def found(**which: Any) -> bool:
        return bool(store.list(RunFilter(**which)))

    assert [found(node="a"), found(is_waiting=True), found(has_error=True)] == [True, True, False]
    assert [found(lease_states=(LeaseState.HELD,)), found(is_due=True)] == [True, True]
    failed = Commit("r", 1, 1, [b"2"], status=FAILED, labels=Labels("b", "KeyError"))
    assert store.append([failed]) == [None]
    assert [found(node="a"), found(node="b"), found(error="KeyError")] == [False, True, True]
    assert [found(is_waiting=True), found(has_error=True), found(is_due=True)] == [False, True, False]
    assert not found(lease_states=(LeaseState.HELD, LeaseState.EXPIRED))
    store.claim("r", "bob", 10)
    assert found(lease_states=(LeaseState.HELD,))
