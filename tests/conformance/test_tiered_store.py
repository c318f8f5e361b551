"""A hot store in front of a cold one: whatever becomes of the hot one, all is as if there were only the cold."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.journal.store import Store
from holdfast.stores import MemoryStore
from holdfast.stores.redis import RedisStore
from holdfast.stores.sqlite import SQLiteStore
from holdfast.stores.tiered import TieredStore
from holdfast.testing.conformance import ManualClock, StoreConformance
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
        server = request.getfixturevalue("server")
        with server.client() as client:
            client.flushall()
        return RedisStore(server.url)

    @pytest.fixture
    def store(self, hot: Store, tmp_path: Path, clock: ManualClock) -> Iterator[Store]:
        store = TieredStore(hot, SQLiteStore(tmp_path / "runs.db", level="process", clock=clock))
        yield store
        store.close()

    def reopen(self, store: TieredStore) -> Store:
        cold = store.cold
        assert isinstance(cold, SQLiteStore)
        store.close()
        hot = RedisStore(store.hot.url) if hasattr(store.hot, "url") else MemoryStore()
        return TieredStore(hot, SQLiteStore(cold.path, level="process", clock=cold._clock))
