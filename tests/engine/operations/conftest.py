"""Stores of every kind, and what tests of many runs fill them with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from limpet import MemoryStore, open_store
from limpet.journal.store import Store
from support.redis_servers import redis_server


@pytest.fixture(params=["memory", "sqlite", "files", "postgres", "redis"])
def any_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """Each kind of store."""
    if request.param == "memory":
        yield MemoryStore()
    elif request.param == "redis":
        with redis_server(tmp_path) as server:
            yield open_store(server.url)
    elif request.param == "postgres":
        yield open_store(request.getfixturevalue("database"))
    elif request.param == "sqlite":
        yield open_store(f"sqlite:///{tmp_path}/runs.db")
    else:
        yield open_store(f"file://{tmp_path}/runs")
