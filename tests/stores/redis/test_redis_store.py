"""The Redis store: the conformance suite on real servers, with the server's clock and with one that is set."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from limpet.journal.store import Store
from limpet.stores.redis.store import RedisStore
from limpet.testing.conformance import ManualClock, StoreConformance
from support.redis_servers import RedisServer, redis_server

SETTINGS = {
    "disk": {"appendonly": "yes", "appendfsync": "always"},
    "process": {"appendonly": "yes", "appendfsync": "everysec"},
    "memory": {},
}


@pytest.fixture(scope="module", params=SETTINGS)
def level(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def server(level: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp(level), **SETTINGS[level]) as server:
        yield server


class ServerClock:
    """The server's own clock, which runs; `advance` sets it forward for one store."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def advance(self, seconds: float) -> None:
        self.ahead += seconds

    def set_by(self, seconds: float) -> None:
        self.ahead += seconds

    def moment(self) -> bytes:
        return b"+%r" % self.ahead


class RedisClaims(StoreConformance):
    def damage(self, store: RedisStore, run_id: str, sequence: int) -> None:
        name = f"limpet:journal:{run_id}"
        with self.server.client() as client:
            data = client.lindex(name, sequence - 1)
            client.lset(name, sequence - 1, b"?" + data[1:])

    def damage_document(self, store: RedisStore, name: str) -> None:
        with self.server.client() as client:
            client.hset("limpet:documents", f"d:{name}", b"damaged")

    def reopen(self, store: RedisStore) -> Store:
        store.close()
        again = RedisStore(self.server.url)
        again._clock = store._clock
        return again

    @pytest.fixture
    def store(self, server: RedisServer, level: str, moment: Callable[[], bytes]) -> Iterator[Store]:
        self.server = server
        with server.client() as client:
            client.flushall()
        store = RedisStore(server.url)
        assert store.abilities.level == level
        store._clock = moment
        yield store
        store.close()


class TestWithTheServersClock(RedisClaims):
    """P5, P8: as users have it."""

    @pytest.fixture
    def clock(self) -> ServerClock:  # type: ignore[override]
        return ServerClock()

    @pytest.fixture
    def moment(self, clock: ServerClock) -> Callable[[], bytes]:
        return clock.moment


@pytest.mark.parametrize("level", ["memory"], indirect=True, scope="module")
class TestWithAClockThatIsSet(RedisClaims):
    """P5, P8: exact to the last digit."""

    @pytest.fixture
    def moment(self, clock: ManualClock) -> Callable[[], bytes]:
        return lambda: b"%r" % clock()
