"""Documents in Redis: how many are looked at to find those that are wanted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from limpet.stores.redis.store import RedisStore
from support.redis_servers import RedisServer


@pytest.fixture
def store(server: RedisServer, client: Any) -> Iterator[RedisStore]:
    with closing(RedisStore(server.url)) as store:
        yield store


@pytest.mark.parametrize("few_are_due", [True, False])
def test_a_long_line_costs_nothing(store: RedisStore, client: Any, few_are_due: bool) -> None:
    """H18: the first of many documents are found, and those that are due, without looking at the others."""
    for number in range(1000):
        store.put_document(f"line/{number:04}", b"", 0, 1e12 if few_are_due else 5.0 + number % 3)
    for number in range(5):
        store.put_document(f"schedule/{number}", b"", 0, 2.0 if number % 2 else 9.0 - number)
    expected = {
        ("line/", False, 3): ["line/0000", "line/0001", "line/0002"],
        ("line/", True, 3): [] if few_are_due else ["line/0000", "line/0003", "line/0006"],
        ("schedule/", False, 2): ["schedule/0", "schedule/1"],
        ("schedule/", True, None): [f"schedule/{number}" for number in (1, 3, 4, 2, 0)],
        ("schedule/", True, 3): [f"schedule/{number}" for number in (1, 3, 4)],
        ("none/", True, 3): [],
    }
    for (prefix, due, limit), names in expected.items():
        client.config_resetstat()
        assert [document.name for document in store.list_documents(prefix, due, limit)] == names
        looked_at = client.info("commandstats").get("cmdstat_hget", {"calls": 0})["calls"]
        assert looked_at == len(names)
    assert len(store.list_documents("line/", True)) == (0 if few_are_due else 1000)
    assert len(store.list_documents("", True)) == (5 if few_are_due else 1005)
