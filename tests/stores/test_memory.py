"""The store in memory, held to the suite."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from limpet.journal.store import Store
from limpet.stores import MemoryStore
from limpet.testing.conformance import ManualClock, StoreConformance


class TestMemoryStore(StoreConformance):
    @pytest.fixture
    def store(self, clock: ManualClock) -> Iterator[Store]:
        store = MemoryStore(clock=clock)
        yield store
        store.close()

    def damage(self, store: MemoryStore, run_id: str, sequence: int) -> None:
        records = store._open()[run_id].records
        records[sequence - 1] = b"?" + records[sequence - 1][1:]
