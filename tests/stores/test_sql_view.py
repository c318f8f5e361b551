"""D12: runs can be read with plain SQL, through a view that is the same in SQLite and PostgreSQL."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from time import time
from typing import Annotated, Any

import pytest

from limpet import RunPaused, StateGraph, open_store, pause, secret
from limpet.defaults import QUEUE
from limpet.journal.store import Commit, NewRun
from limpet.stores.migrations import migrations_of
from support.older_runs import DATA
from support.postgres import Server

COLUMNS = [
    "run_id", "graph", "status", "created_at", "updated_at", "due_at", "priority", "tags", "parent", "holder",
    "crashes", "cancel_requested", "records", "bytes", "queue",
]  # fmt: skip
"""A promise to those who wrote queries: columns are added at the end, and none is removed or renamed."""

Query = Callable[[str], list[dict[str, Any]]]


class Database:
    """A database with a store in it, and a client that knows nothing of Limpet."""

    def __init__(self, url: str, query: Query) -> None:
        self.url = url
        self.query = query


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    if request.param == "sqlite":
        return Database(f"sqlite:///{tmp_path}/runs.db", lambda sql: in_sqlite(tmp_path / "runs.db", sql))
    url: str = request.getfixturevalue("database")
    return Database(url, lambda sql: in_postgres(url, sql))


def in_sqlite(path: Path, sql: str) -> list[dict[str, Any]]:
    with closing(sqlite3.connect(path)) as connection:
        cursor = connection.execute(sql.replace("limpet.limpet_runs", "limpet_runs"))
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor]


def in_postgres(url: str, sql: str) -> list[dict[str, Any]]:
    import psycopg

    with psycopg.connect(url) as connection:
        cursor = connection.execute(sql.encode())
        assert cursor.description is not None
        names = [column.name for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor]


def asking(url: str, **options: Any) -> StateGraph:
    graph = StateGraph({"n": int, "key": Annotated[str, secret]}, name="survey")
    graph.add_node("count", run=lambda state: {"n": 1}).add_node(
        "ask", run=lambda state: {"word": pause("which?")}
    )
    graph.add_edge("count", "ask").set_entry_point("count").set_finish_point("ask")
    return graph.compile(store=open_store(url, **options), preserve=True, allow_plain_text_secrets=True)


def as_time(value: Any) -> float:
    if isinstance(value, datetime):
        return value.timestamp()
    return datetime.strptime(value, "%Y-%m-%d %H:%M:%S.%f").replace(tzinfo=UTC).timestamp()


def test_the_view_has_a_row_for_each_run(place: Database) -> None:
    """D12: with the same columns in both."""
    began = time()
    graph = asking(place.url)
    with pytest.raises(RunPaused):
        graph.execute({}, run_id="asks", tags=["x", "y"])
    graph.start({}, run_id="queued", priority=3, delay=3600)
    fork = graph.fork("asks", 1, new_run_id="fork")
    rows = {row["run_id"]: row for row in place.query("SELECT * FROM limpet.limpet_runs")}
    assert set(rows) == {"asks", "queued", fork.id}
    assert list(rows["asks"])[: len(COLUMNS)] == COLUMNS
    asks, queued = rows["asks"], rows["queued"]
    assert (asks["graph"], asks["status"], asks["due_at"], asks["holder"]) == ("survey", "paused", None, None)
    tags = asks["tags"]
    assert (json.loads(tags) if isinstance(tags, str) else tags) == ["x", "y"]
    assert rows["fork"]["parent"] == "asks@1"
    assert (queued["status"], queued["priority"]) == ("running", 3)
    assert 3500 < as_time(queued["due_at"]) - began < 3700
    assert began - 5 < as_time(asks["created_at"]) <= as_time(asks["updated_at"]) < time() + 5
    assert (asks["crashes"], bool(asks["cancel_requested"])) == (0, False)
    assert asks["queue"] == QUEUE
    assert asks["records"] == graph.verify("asks").records
    assert asks["bytes"] == graph.verify("asks").size


def test_the_view_can_be_asked_as_any_table(place: Database) -> None:
    """D12."""
    graph = asking(place.url)
    for number in range(3):
        graph.start({}, run_id=f"r{number}")
    graph.cancel("r0")
    found = place.query(
        "SELECT status, count(*) AS runs FROM limpet.limpet_runs GROUP BY status ORDER BY status"
    )
    assert [tuple(row.values()) for row in found] == [("cancelled", 1), ("running", 2)]


def test_the_view_shows_which_runs_were_asked_to_stop(place: Database) -> None:
    """D12: until their holder has taken that in. No other post counts."""
    with closing(open_store(place.url)) as store:
        store.create(NewRun("r", "g", [b"1"]))
        for key, is_asked in (("answer:cancel", False), ("cancel:1", True), ("message", True)):
            store.post("r", key, b"")
            (row,) = place.query("SELECT cancel_requested FROM limpet.limpet_runs")
            assert bool(row["cancel_requested"]) is is_asked
        assert store.append([Commit("r", 1, 1, [b"2"], takes=2, ignores_posts=True)]) == [None]
        (row,) = place.query("SELECT cancel_requested FROM limpet.limpet_runs")
        assert not row["cancel_requested"]


def test_neither_secrets_nor_states_are_in_the_view(place: Database) -> None:
    """D12: with and without encryption, the bodies aren't shown; ids, graphs and tags are."""
    pytest.importorskip("cryptography")
    with pytest.raises(RunPaused):
        asking(place.url, encryption=False).execute({"key": "xyzzy"}, run_id="plain")
    with pytest.raises(RunPaused):
        asking(place.url, encryption=b"k" * 32).execute({"key": "xyzzy"}, run_id="hidden", tags=["t"])
    rows = place.query("SELECT * FROM limpet.limpet_runs ORDER BY run_id")
    assert [(row["run_id"], row["graph"], row["status"]) for row in rows] == [
        ("hidden", "survey", "paused"),
        ("plain", "survey", "paused"),
    ]
    assert "xyzzy" not in repr(rows)
    assert not any(isinstance(value, bytes) for row in rows for value in row.values())


def test_a_file_from_before_has_the_view_once_it_is_opened(tmp_path: Path) -> None:
    """D12, D10: the runs in it stay."""
    path = tmp_path / "runs.db"
    with closing(sqlite3.connect(path)) as connection:
        for migration in migrations_of("sqlite")[:3]:
            connection.executescript(migration.sql)
        connection.execute(
            "INSERT INTO runs (run_id, graph, status, snapshot, fence, created, updated, tags, note)"
            " VALUES ('old', 'g', 'completed', 0, 1, 1.5, 2.5, '[]', x'')"
        )
        connection.executescript("PRAGMA user_version = 3; PRAGMA application_id = 0x4C4D4A31")
    store = open_store(f"sqlite:///{path}")
    assert store.head("old").graph == "g"
    (row,) = in_sqlite(path, "SELECT run_id, created_at, records FROM limpet_runs")
    assert tuple(row.values()) == ("old", "1970-01-01 00:00:01.500", 0)


def test_a_database_from_before_has_the_view_once_it_is_opened(
    postgres: Server, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D12, D10: the runs in it stay."""
    from limpet.stores.postgres import schema

    known = schema.migrations()
    view = next(migration for migration in known if "limpet_runs" in migration.sql)
    before = view.version - 1
    monkeypatch.setattr(schema, "migrations", lambda: known[:before])
    open_store(database).close()
    dump = (DATA / f"postgres_{before}.sql").read_text()
    postgres.sql(*dump.splitlines(), database=database.partition("?")[0].rpartition("/")[2])
    monkeypatch.undo()
    with closing(open_store(database)) as store:
        assert store.head("waits").graph == "example"
    rows = in_postgres(database, "SELECT run_id, graph FROM limpet.limpet_runs ORDER BY run_id")
    assert [tuple(row.values()) for row in rows] == [
        ("complete", "example"),
        ("gone", "example"),
        ("waits", "example"),
    ]
