"""Runs of earlier versions of Limpet: the graph that made them, and the states that they must have.

`tests/data` has them as each version of a format wrote them. Those files are never changed, and neither are this
graph and the states expected of it. When a format gets a new version, `python -m support.older_runs <directory>`, run
with `src` and `tests` on the path, writes the files of it; they are added to the old ones.
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

from limpet import NodeContext, RunPaused, StateGraph, append, pause

DATA = Path(__file__).parent.parent / "data"
INPUT = {"seen": ["input"], "when": datetime(2026, 1, 31, 8, tzinfo=timezone(timedelta(hours=2)))}
BEGUN = {
    **INPUT,
    "seen": ["input", "begin"],
    "pair": (1, 2**70),
    "sum": Decimal("1.10"),
    "text": "kelp " * 5000,
}
RESULTS = [{"fee": 7, "ship": "yes"}, {"fish": b"eel"}]
ENDED = {**BEGUN, "seen": ["input", "begin", "join"], "results": RESULTS}


def example(store: Any, **settings: Any) -> StateGraph:
    """A graph whose run has every kind of record: it asks a question in one branch while the other is done."""

    def ask(ctx: NodeContext) -> dict[str, Any]:
        fee = ctx.once("fee", lambda: 7)
        return {"fee": fee, "ship": pause("Ship it?", choices=["yes", "no"])}

    graph = StateGraph({"seen": Annotated[list, append]}, name="example")
    begun = {key: BEGUN[key] for key in ("pair", "sum", "text")}
    graph.add_node("begin", run=lambda state: {"seen": "begin", **begun})
    graph.add_node("ask", run=ask).add_node("fish", run=lambda state: {"fish": b"eel"})
    graph.add_parallel_edge("begin", "ask", "join").add_parallel_edge("begin", "fish", "join")
    graph.add_fanin_node(
        "join",
        run=lambda state, parallel_results: {
            "seen": "join",
            "results": [each.changes for each in parallel_results],
        },
    )
    graph.set_entry_point("begin").set_finish_point("join")
    return graph.compile(store=store, **settings)


def begin_all(store: Any) -> None:
    """Put three runs into a store: one that waits, one that is complete, and one whose journal was purged."""
    for run_id, preserve in (("waits", True), ("complete", True), ("gone", False)):
        graph = example(store, preserve=preserve)
        try:
            graph.execute(INPUT, run_id=run_id, tags=["golden"])
        except RunPaused:
            if run_id != "waits":
                graph.resume(run_id, "yes")


def check_all(store: Any) -> None:
    """Check that all runs are as they were, and that the one that waits can be resumed to its end."""
    graph = example(store, preserve=True)
    found = {run.run_id: run for run in graph.runs(tag="golden")}
    assert {run_id: run.status for run_id, run in found.items()} == {
        "waits": "paused",
        "complete": "completed",
        "gone": "completed",
    }
    assert [question.prompt for question in found["waits"].questions] == ["Ship it?"]
    for run_id in found:
        verified = graph.verify(run_id)
        assert verified.ok, str(verified)
    for run_id, expected in (("waits", BEGUN), ("complete", ENDED)):
        assert exact(graph.state_at(run_id)) == exact(expected)
        assert exact(graph.state_at(run_id, 0)) == exact(INPUT)
        assert graph.history(run_id)[0].step == 0
    assert exact(graph.resume("waits", "yes")) == exact(ENDED)


def exact(state: Any) -> list[tuple[str, type, str]]:
    """A state in a form in which 1 and True, or a tuple and a list, are different."""
    return [(key, type(value), repr(value)) for key, value in dict(state).items()]


def write_examples(folder: Path) -> None:
    """Write the runs in the present format of each store that keeps them in files."""
    from limpet.stores.files.store import FileStore
    from limpet.stores.sqlite.store import SQLiteStore

    folder.mkdir(parents=True)
    with closing(SQLiteStore(folder / "runs.db")) as store:
        begin_all(store)
        example(store).export_run("waits", folder / "exported.run")
        (folder / "sqlite.sql").write_text("\n".join(_dumped(folder / "runs.db")) + "\n")
    (folder / "runs.db").unlink()
    with closing(FileStore(folder / "files")) as files:
        begin_all(files)
    for lock in (folder / "files" / "locks").iterdir():
        lock.unlink()
    (folder / "files" / "locks").rmdir()


def _dumped(path: Path) -> Iterator[str]:
    with closing(sqlite3.connect(path)) as connection:
        for name in ("application_id", "user_version"):
            yield f"PRAGMA {name} = {connection.execute(f'PRAGMA {name}').fetchone()[0]};"
        yield from connection.iterdump()


def write_postgres(url: str) -> str:
    """The rows of the same runs in a PostgreSQL database, as statements."""
    import psycopg

    from limpet.stores.postgres.store import PostgresStore

    with closing(PostgresStore(url)) as store:
        begin_all(store)
    statements = []
    with psycopg.connect(url) as connection:
        for table in ("runs", "records"):
            cursor = connection.execute(f"SELECT * FROM limpet.{table} ORDER BY 1, 2")  # type: ignore[arg-type]
            names = ", ".join(column.name for column in cursor.description or ())
            for row in cursor:
                values = ", ".join(psycopg.sql.Literal(value).as_string(connection) for value in row)
                override = " OVERRIDING SYSTEM VALUE" if table == "runs" else ""
                statements.append(f"INSERT INTO limpet.{table} ({names}){override} VALUES ({values});")
    return "\n".join(statements) + "\n"


if __name__ == "__main__":
    write_examples(Path(sys.argv[1]))
