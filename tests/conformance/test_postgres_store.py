"""The PostgreSQL store, held to the suite at both levels, and what is peculiar to it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from support.postgres import Server, ServerClock, new_schema

from holdfast.journal.store import Level, Store
from holdfast.testing.conformance import StoreConformance


@pytest.mark.parametrize("level", ["disk", "process"])
class TestPostgresStore(StoreConformance):
    @pytest.fixture
    def store(self, postgres: Server, level: Level) -> Iterator[Store]:
        from holdfast.stores.postgres import PostgresStore

        schema = new_schema()
        store = PostgresStore(postgres.of("postgres"), schema=schema, level=level)
        assert store.abilities.level == level
        yield store
        store.close()
        postgres.sql(f"DROP SCHEMA {schema} CASCADE")

    @pytest.fixture
    def clock(self, postgres: Server, store: Any) -> ServerClock:
        return ServerClock(postgres, store.schema)

    def reopen(self, store: Any) -> Store:
        store.close()
        return type(store)(store._address.conninfo, schema=store.schema, level=store.abilities.level)

    def damage(self, store: Any, run_id: str, sequence: int) -> None:
        import psycopg

        with closing(psycopg.connect(store._address.conninfo, autocommit=True)) as connection:
            connection.execute(
                f"UPDATE {store.schema}.records SET data = '?' || substr(data, 2) WHERE sequence = %s AND run = "
                f"(SELECT id FROM {store.schema}.runs WHERE run_id = %s)",
                (sequence, run_id),
            )
