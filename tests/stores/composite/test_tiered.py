"""A hot store in front of a cold one: whatever becomes of the hot one, all is as if there were only the cold."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from limpet.journal.store import Store
from limpet.stores import MemoryStore
from limpet.stores.composite.tiered import TieredStore
from limpet.stores.redis.store import RedisStore
from limpet.stores.sqlite.store import SQLiteStore
from limpet.testing.conformance import ManualClock, StoreConformance
from support.redis_servers import RedisServer, redis_server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("hot")) as server:
        yield server


@pytest.mark.parametrize("kind", ["memory", "redis"])
class TestTieredStore(StoreConformance):
    """P5."""

    @pytest.fixture
    def hot(self, kind: str, request: pytest.FixtureRequest) -> Store:
        if kind == "memory":
            return MemoryStore()
        self.server = server = request.getfixturevalue("server")
        with server.client() as client:
            client.flushall()
        return RedisStore(server.url)

    @pytest.fixture
    def store(self, hot: Store, tmp_path: Path, clock: ManualClock) -> Iterator[Store]:
        store = TieredStore(hot, SQLiteStore(tmp_path / "runs.db", level="process", clock=clock))
        yield store
        store.close()

    def reopen(self, store: TieredStore) -> Store:
        """What a MemoryStore had is gone then; what a server has is not."""
        cold, hot = store.cold, store.hot
        assert isinstance(cold, SQLiteStore)
        store.close()
        again = RedisStore(self.server.url) if isinstance(hot, RedisStore) else MemoryStore()
        return TieredStore(again, SQLiteStore(cold.path, level="process", clock=cold.clock))

    def damage_document(self, store: TieredStore, name: str) -> None:
        assert isinstance(store.cold, SQLiteStore)
        with closing(sqlite3.connect(store.cold.path)) as connection, connection:
            connection.execute("UPDATE documents SET body = x'00' WHERE name = ?", (name,))

    def damage(self, store: TieredStore, run_id: str, sequence: int) -> None:
        """In both of them."""
        assert isinstance(store.cold, SQLiteStore)
        with closing(sqlite3.connect(store.cold.path)) as connection, connection:
            connection.execute(
                "UPDATE records SET data = CAST('?' || substr(data, 2) AS BLOB) "
                "WHERE id = ? + ((SELECT id FROM runs WHERE run_id = ?) << 32)",
                (sequence, run_id),
            )
        store.hot.delete(f"copy of {run_id}")
