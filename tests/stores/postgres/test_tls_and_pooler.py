"""PostgreSQL through TLS, and through a pooler that gives each transaction another session."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from limpet import StateGraph, StoreUnavailable
from limpet.journal.run_filter import RunFilter
from limpet.journal.store import Commit, NewRun, Store
from limpet.testing.conformance import StoreConformance
from support.postgres import Server, ServerClock, needed, new_schema
from support.postgres_proxies import certificates, pgbouncer, tls_in_front_of


def counting(store: Store) -> StateGraph:
    graph = StateGraph(name="counting")
    graph.add_node("n", run=lambda state: {"n": state["n"] + 1}).set_entry_point("n")
    graph.add_conditional_edges("n", lambda state: state["n"] < 10, {True: "n", False: "__end__"})
    return graph.compile(store=store, preserve=True)


def test_a_server_is_reached_through_tls_that_is_verified(
    postgres: Server, database: str, tmp_path: Path
) -> None:
    """P5: with a certificate for the host from a trusted authority, and with no other."""
    needed("cryptography")
    from limpet.stores.postgres.store import PostgresStore

    name = database.partition("?")[0].rpartition("/")[2]
    right = certificates(tmp_path / "a", "127.0.0.1")
    wrong = certificates(tmp_path / "b", "127.0.0.1")
    elsewhere = certificates(tmp_path / "c", "elsewhere.example")

    def url(port: int, trusted: Path) -> str:
        return f"postgresql://postgres@127.0.0.1:{port}/{name}?sslmode=verify-full&sslrootcert={trusted}"

    with tls_in_front_of(postgres, *right) as port:
        with closing(PostgresStore(url(port, right[0]))) as store:
            assert counting(store).execute({"n": 0}, run_id="r") == {"n": 10}
            assert counting(store).verify("r").ok
        with pytest.raises(StoreUnavailable, match=r"certificate verify failed.*|sslrootcert"):
            PostgresStore(url(port, wrong[0]))
    with (
        tls_in_front_of(postgres, *elsewhere) as port,
        pytest.raises(StoreUnavailable, match="does not match host name"),
    ):
        PostgresStore(url(port, elsewhere[0]))


@pytest.fixture(scope="module")
def pooler(postgres: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with pgbouncer(postgres, tmp_path_factory.mktemp("pooler") / "bouncer") as port:
        yield port


class TestBehindPgBouncer(StoreConformance):
    """P5, P8: the whole suite, through a pooler."""

    @pytest.fixture
    def store(self, postgres: Server, pooler: int) -> Iterator[Store]:
        from limpet.stores.postgres.store import PostgresStore

        schema = new_schema()
        store = PostgresStore(f"postgresql://postgres@127.0.0.1:{pooler}/postgres", schema=schema)
        yield store
        store.close()
        postgres.sql(f"DROP SCHEMA {schema} CASCADE")

    @pytest.fixture
    def clock(self, postgres: Server, store: Any) -> ServerClock:
        return ServerClock(postgres, store.schema)

    def reopen(self, store: Any) -> Store:
        store.close()
        return type(store)(store._address.conninfo, schema=store.schema)

    def damage(self, store: Any, run_id: str, sequence: int) -> None:
        import psycopg

        with closing(psycopg.connect(store._address.conninfo, autocommit=True)) as connection:
            connection.execute(
                f"UPDATE {store.schema}.records SET data = '?' || substr(data, 2) WHERE sequence = {sequence} "
                f"AND run = (SELECT id FROM {store.schema}.runs WHERE run_id = '{run_id}')"
            )


def test_stores_that_share_sessions_of_a_pooler_stay_apart(postgres: Server, pooler: int) -> None:
    """P6: two schemas through the same few sessions, from many threads; no setting stays in a session."""
    from limpet.stores.postgres.store import PostgresStore

    url = f"postgresql://postgres@127.0.0.1:{pooler}/postgres"
    schemas = [new_schema(), new_schema()]
    stores = [PostgresStore(url, schema=schema, connections=4) for schema in schemas]

    def work(number: int) -> None:
        store = stores[number % 2]
        store.create(NewRun(f"r{number}", schemas[number % 2], [b"1"], holder="ann"))
        for at in range(1, 6):
            assert store.append([Commit(f"r{number}", 1, at, [b"%d" % at])]) == [None]

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(16)))
    for which, (schema, store) in enumerate(zip(schemas, stores, strict=True)):
        heads = store.list(RunFilter())
        assert {head.run_id for head in heads} == {f"r{number}" for number in range(which, 16, 2)}
        assert {(head.graph, head.sequence) for head in heads} == {(schema, 6)}
        store.close()
    with postgres.psycopg.connect(url, autocommit=True, prepare_threshold=None) as connection:
        for _ in range(6):
            assert connection.execute("SHOW search_path").fetchone() == ('"$user", public',)
    postgres.sql(*(f"DROP SCHEMA {schema} CASCADE" for schema in schemas))
