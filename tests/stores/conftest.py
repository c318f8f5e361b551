"""A Redis server for the tests of a module, and a client that finds it empty."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from support.redis_servers import RedisServer, redis_server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A server with default settings: no append-only file."""
    with redis_server(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def client(server: RedisServer) -> Iterator[Any]:
    with server.client() as client:
        client.flushall()
        yield client
