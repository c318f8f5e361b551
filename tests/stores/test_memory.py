"""The store in memory, held to the suite."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from typing import Any

import pytest

from limpet.errors import RunNotFound
from limpet.journal.run_filter import RunFilter
from limpet.journal.store import COMPLETED, PAUSED, Commit, Labels, NewRun, Store
from limpet.stores import MemoryStore, heads, indexes, memory
from limpet.testing.conformance import ManualClock, StoreConformance
from limpet.testing.interrupts import hunt_at_every_point


class TestMemoryStore(StoreConformance):
    @pytest.fixture
    def store(self, clock: ManualClock) -> Iterator[Store]:
        store = MemoryStore(clock=clock)
        yield store
        store.close()

    def damage(self, store: MemoryStore, run_id: str, sequence: int) -> None:
        records = store._open()[run_id].records
        records[sequence - 1] = b"?" + records[sequence - 1][1:]


def test_a_post_that_is_interrupted_anywhere_is_there_or_can_be_sent_again() -> None:
    """H16: after Ctrl-C, its key isn't taken without its post."""
    store = MemoryStore()
    posted: list[str] = []

    def work() -> None:
        posted.append(f"k{len(posted)}")
        store.post("r", posted[-1], b"")

    def check() -> None:
        store.post("r", posted[-1], b"")
        assert [post.key for post in store.inbox("r")] == posted
        assert store.head("r").posted == len(posted)

    store.create(NewRun("r", "g", [b""]))
    report = hunt_at_every_point(work, check, ["limpet/stores/memory"])
    assert report.interrupts
    assert not report.problems, report


class Looks:
    """How many runs and documents a store in memory has looked at since this was last asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        for place, name in (
            (heads, "is_held"),
            (heads, "is_ready"),
            (heads, "matches"),
            (memory._Run, "current_head"),
            (indexes.RunIndex, "put"),
            (indexes.DocumentIndex, "put"),
        ):
            monkeypatch.setattr(place, name, self._counted(getattr(place, name)))
        since = indexes.SortedEntries.since

        def counted_entries(entries: indexes.SortedEntries[Any], start: Any) -> Iterator[Any]:
            for entry in since(entries, start):
                self.count += 1
                yield entry

        monkeypatch.setattr(indexes.SortedEntries, "since", counted_entries)

    def _counted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*given: Any, **more: Any) -> Any:
            self.count += 1
            return function(*given, **more)

        return counted

    def since(self) -> int:
        count = self.count
        self.count = 0
        return count


def test_a_look_costs_what_changed_and_what_it_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    """H18: however many runs wait."""
    store = MemoryStore()
    for number in range(2000):
        store.create(NewRun(f"r{number:04}", "g", [b""], due=0.0, queue=f"q{number % 4}"))
    lanes = store.lanes()
    assert len(lanes) == 4
    looks = Looks(monkeypatch)
    assert [head.run_id for head in store.ready(lanes, 8)] == [f"r{number:04}" for number in range(8)]
    # Each run is looked at in its line, for its lease, and when it is copied; and the next of each line is known.
    assert looks.since() <= 3 * 8 + len(lanes)
    leases = store.claim_ready(store.ready(lanes, 8), "ann", 60)
    ended = [Commit(lease.run_id, lease.fence, 1, [], status=COMPLETED) for lease in leases[:4] if lease]
    assert store.append(ended) == [None] * 4
    looks.since()
    assert [head.run_id for head in store.ready(lanes, 2)] == ["r0008", "r0009"]
    assert looks.since() <= 4 + 2 * 4 + 3 * 2 + len(lanes)
    store.lanes()
    assert looks.since() == 0


def test_the_first_documents_of_a_prefix_cost_what_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """H18: a line may be long, and the first in it are asked for often."""
    store = MemoryStore()
    for number in range(1000):
        for limit in "ab":
            store.put_document(f"line/{limit}/{number:04}", b"", 0)
    store.put_document("limit/a", b"", 0, due=0.0)
    store.list_documents()
    looks = Looks(monkeypatch)
    found = store.list_documents("line/b/", limit=3)
    assert [each.name for each in found] == ["line/b/0000", "line/b/0001", "line/b/0002"]
    assert looks.since() <= 3 + 1
    assert store.delete_document(found[0].name, found[0].version)
    assert [each.name for each in store.list_documents("line/b/", limit=1)] == ["line/b/0001"]
    assert [each.name for each in store.list_documents("limit/", due=True)] == ["limit/a"]
    assert looks.since() <= 2 + 2


def test_runs_are_found_as_they_are_after_an_interrupt_anywhere() -> None:
    """H16, H18: after Ctrl-C, no run that is due is missing among the ready ones, and none is that has ended."""
    store = MemoryStore()
    numbers = count()

    def work() -> None:
        run_id = f"r{next(numbers)}"
        store.create(NewRun(run_id, "g", [b""], due=0.0, labels=Labels(plan="p")))
        lease = store.claim(run_id, "ann", 0)
        store.ready(store.lanes(), 5)
        later = Labels(plan="q")
        store.append([Commit(run_id, lease.fence, 1, [b""], status=PAUSED, due=None, labels=later)])
        store.ready(store.lanes(), 5)
        store.post(run_id, "k", b"")
        store.ready(store.lanes(), 5)
        store.put_document(run_id, b"", 0)
        store.list_documents()
        with suppress(RunNotFound):  # its creation was interrupted
            store.delete(f"r{int(run_id[1:]) - 3}")

    def check() -> None:
        with_due = [head for head in store.list(RunFilter()) if head.due is not None]
        lease_now = store._lease_clock()
        free = [head for head in with_due if not heads.is_held(head, lease_now)]
        assert store.ready(store.lanes(), 10_000) == heads.most_urgent_first(free)
        assert set(store.lanes()) >= {head.lane for head in with_due}
        assert [each.name for each in store.list_documents()] == sorted(store._documents)

    for _ in range(3):
        store.create(NewRun(f"r{next(numbers)}", "g", [b""], due=0.0))
    report = hunt_at_every_point(work, check, ["limpet/stores/memory", "limpet/stores/indexes"])
    assert report.interrupts
    assert not report.problems, report
