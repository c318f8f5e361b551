"""The file store, held to the suite at both levels, and what is peculiar to it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.journal.store import Level, Store
from holdfast.stores.files import FileStore
from holdfast.testing.conformance import ManualClock, StoreConformance


@pytest.mark.parametrize("level", ["disk", "process"])
class TestFileStore(StoreConformance):
    @pytest.fixture
    def store(self, tmp_path: Path, clock: ManualClock, level: Level) -> Iterator[Store]:
        store = FileStore(tmp_path / "runs", level=level, clock=clock)
        assert store.abilities.level == level
        yield store
        store.close()

    def reopen(self, store: FileStore) -> Store:
        store.close()
        return FileStore(store.path, level=store.abilities.level, clock=store._clock)

    def damage(self, store: FileStore, run_id: str, sequence: int) -> None:
        (path,) = (path for path in store.path.glob("runs/*.log") if path.name.startswith(f"{run_id}."))
        data = path.read_bytes()
        place = data.rindex(b"two" * 10)
        path.write_bytes(data[:place] + b"?" + data[place + 1 :])
