"""Stores of five methods, held to the suite."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from limpet.errors import UsageError
from limpet.journal.store import Store
from limpet.stores.user_stores.checkpoint_store import AdaptedStore
from limpet.testing.conformance import ManualClock, StoreConformance
from limpet.testing.conformance.store_calls import create
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


@pytest.mark.parametrize(
    "call",
    [
        lambda store: store.post("r", "key", b""),
        lambda store: store.inbox("r"),
        lambda store: store.add_output("r", 1, [b""], 1),
        lambda store: store.output("r"),
        lambda store: store.put_document("d", b"", 0),
        lambda store: store.get_document("d"),
        lambda store: store.list_documents(),
        lambda store: store.delete_document("d", 1),
    ],
)
def test_only_the_holder_writes_to_its_runs(call: Callable[[Store], object]) -> None:
    """H10: what such a store declares that it can't do is refused, with what can."""
    store = AdaptedStore(InMemoryCheckpointStore())
    create(store, "r")
    before = store.head("r")
    with pytest.raises(UsageError, match=r"takes_part is False.* Use a store such as SQLite"):
        call(store)
    assert store.head("r") == before
