"""Short ways to create runs and commit, for the tests of the conformance suite, and a clock to advance."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, TypeVar

import pytest

from limpet.journal.store import Commit, Lease, NewRun, RunHead, Store

Refusal = TypeVar("Refusal", bound=Exception)


class ManualClock:
    """A clock that stands still until it is advanced. Pass it to the store under test."""

    def __init__(self, now: float = 1_750_000_000.0) -> None:
        self.now = now
        self._set_by = 0.0

    def __call__(self) -> float:
        return self.now

    def monotonic(self) -> float:
        """The time that has passed, whatever the clock was set to. Stores measure leases by it."""
        return self.now - self._set_by

    def set_by(self, seconds: float) -> None:
        """Set the clock forward, or back by a number below 0. No time passes."""
        self.now += seconds
        self._set_by += seconds

    def advance(self, seconds: float) -> None:
        """Let this many seconds pass, for the store."""
        self.now += seconds


def create(store: Store, run_id: str = "run-1", *records: bytes, **more: Any) -> Lease:
    """A new run of the graph "g" with a lease of 10 seconds for "ann", unless `more` says otherwise."""
    more = {"graph": "g", "holder": "ann", **more}
    lease = store.create(NewRun(run_id, records=records or (b"first",), **more))
    return lease or Lease(run_id, 1, 0.0)


def commit(lease: Lease, expected: int, *records: bytes, **more: Any) -> Commit:
    """A commit by the holder of `lease` to its run."""
    return Commit(lease.run_id, lease.fence, expected, list(records), **more)


def ready_runs(store: Store, graphs: Collection[str], limit: int) -> list[RunHead]:
    """The runs of these graphs that are ready, in all their lanes."""
    return store.ready([lane for lane in store.lanes() if lane.graph in graphs], limit)


def expect_accepted(store: Store, *commits: Commit) -> None:
    """Append, and expect that all commits are accepted."""
    assert store.append(commits) == [None] * len(commits)


def expect_refused(store: Store, commit: Commit, why: type[Refusal]) -> Refusal:
    """Append one commit; expect that it is refused and that nothing changed; return the refusal."""
    before = store.read(commit.run_id, first=1)
    (outcome,) = store.append([commit])
    assert isinstance(outcome, why), f"expected {why.__name__}, got {outcome!r}"
    assert store.read(commit.run_id, first=1) == before
    return outcome


def needs_leases(store: Store) -> None:
    """Skip the test for a store that can't keep two holders apart."""
    if not store.abilities.leases:
        pytest.skip("the store declares abilities.leases = False")


def needs_results(store: Store) -> None:
    """Skip the test for a store that deletes a run when it completes."""
    if not store.abilities.keeps_results:
        pytest.skip("the store declares abilities.keeps_results = False")


def needs_posts(store: Store) -> None:
    """Skip the test for a store to whose runs only their holder can write."""
    if not store.abilities.takes_part:
        pytest.skip("the store declares abilities.takes_part = False")


def needs_deltas(store: Store) -> None:
    """Skip the test for a store that can't append records."""
    if not store.abilities.deltas:
        pytest.skip("the store declares abilities.deltas = False")
