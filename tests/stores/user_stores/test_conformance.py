"""Stores of five methods, held to the suite."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from limpet.journal.store import Store
from limpet.stores.user_stores.checkpoint_store import AdaptedStore
from limpet.testing.conformance import ManualClock, StoreConformance
from support.checkpoint_stores import InMemoryCheckpointStore, JsonCheckpointStore


class TestAdaptedStore(StoreConformance):
    """P4: for what such a store declares."""

    @pytest.fixture
    def store(self, clock: ManualClock) -> Iterator[Store]:
        store = AdaptedStore(InMemoryCheckpointStore(), clock)
        yield store
        store.close()

    def reopen(self, store: AdaptedStore) -> Store:
        store.close()
        return AdaptedStore(store.user_store, store._clock)


class TestInOneProcess(TestAdaptedStore):
    """P4: among threads all claims hold, those too that it doesn't make because processes may share the object."""

    @pytest.fixture
    def store(self, clock: ManualClock) -> Iterator[Store]:
        store = AdaptedStore(InMemoryCheckpointStore(), clock)
        store.abilities = store.abilities._replace(leases=True, deltas=True)
        yield store
        store.close()


class TestAsJson(TestAdaptedStore):
    """P4: what it is given to keep can be written as JSON."""

    @pytest.fixture
    def store(self, clock: ManualClock, tmp_path: Path) -> Iterator[Store]:
        store = AdaptedStore(JsonCheckpointStore(tmp_path / "runs.json"), clock)
        yield store
        store.close()
