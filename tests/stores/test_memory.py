"""The store in memory, held to the suite."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from limpet.journal.store import NewRun, Store
from limpet.stores import MemoryStore
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
