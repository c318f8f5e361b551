"""H19: the change mark of a SQLite file leaves the locks of the file alone, and misses no change for documents."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from limpet.journal.store import PAUSED, Commit, NewRun
from limpet.stores.sqlite.store import SQLiteStore

WRITE = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], timeout=0, isolation_level=None)
try:
    connection.execute("BEGIN IMMEDIATE")
except sqlite3.OperationalError as problem:
    print(problem)
else:
    print("writes")
"""


class SteppedClock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> SteppedClock:
    return SteppedClock()


@pytest.fixture
def store(tmp_path: Path, clock: SteppedClock) -> Iterator[SQLiteStore]:
    store = SQLiteStore(tmp_path / "runs.db", clock=clock)
    yield store
    store.close()


def test_a_look_at_the_mark_keeps_the_write_lock(store: SQLiteStore) -> None:
    """H19: a file of the database that is closed anywhere in a process would release what the process has locked."""
    store.change_mark()

    def what_another_process_may_do() -> str:
        command = [sys.executable, "-c", WRITE, str(store.path)]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    def work(_: sqlite3.Cursor) -> str:
        store.change_mark()
        return what_another_process_may_do()

    assert store._connections.write(work) == "database is locked"
    assert what_another_process_may_do() == "writes"


def test_a_status_counts_although_the_clock_was_set_back(store: SQLiteStore, clock: SteppedClock) -> None:
    """H19: the time of the change isn't the newest one then."""
    held = store.create(NewRun("held", "graph", [b"first"], holder="me"))
    assert held is not None
    store.create(NewRun("other", "graph", [b"first"]))
    before = store.change_mark()
    clock.now -= 100.0
    assert store.append([Commit("held", held.fence, 1, [b"second"], status=PAUSED)]) == [None]
    assert store.put_document("worker:a", b"1", 0) is not None
    assert store.change_mark() != before


def test_a_run_that_is_deleted_soon_after_its_creation_counts_twice(store: SQLiteStore) -> None:
    """H19: the runs are as they had been when they were looked at last, but not as at the last mark."""
    version = store.put_document("worker:a", b"1", 0)
    assert version is not None
    first = store.change_mark()
    store.create(NewRun("short", "graph", [b"first"]))
    second = store.change_mark()
    store.delete("short")
    assert store.put_document("worker:a", b"2", version) is not None
    assert len({first, second, store.change_mark()}) == 3


def test_another_connection_sees_changes_as_well(store: SQLiteStore) -> None:
    """H19: while others read, a look is through a connection that hasn't seen the last commits yet."""
    store.create(NewRun("r", "graph", [b"first"]))
    first = store.change_mark()
    second = store._connections.read(lambda _: store.change_mark())
    assert second == first
    store.create(NewRun("s", "graph", [b"first"]))
    assert store._connections.read(lambda _: store.change_mark()) != second
    third = store.change_mark()
    store.delete("s")
    assert store._connections.read(lambda _: store.change_mark()) != third
