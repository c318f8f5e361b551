"""The SQLite store: the conformance suite at both levels, and what only this store does."""

from __future__ import annotations

import gc
import os
import sqlite3
import stat
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from limpet.errors import Conflict, RunNotFound, StoreUnavailable, UsageError
from limpet.journal.run_filter import RunFilter
from limpet.journal.store import COMPLETED, Commit, Lane, Level, NewRun, Store
from limpet.stores.sqlite import connections as sqlite_connections
from limpet.stores.sqlite import rows as sqlite_rows
from limpet.stores.sqlite import store as sqlite_store
from limpet.stores.sqlite.connections import Connections
from limpet.stores.sqlite.errors import is_busy
from limpet.stores.sqlite.lanes import all_lanes, ready_heads
from limpet.stores.sqlite.rows import head_of
from limpet.stores.sqlite.schema import APPLICATION_ID, VERSION
from limpet.stores.sqlite.store import SQLiteStore
from limpet.testing.conformance import ManualClock, StoreConformance


@pytest.mark.parametrize("level", ["disk", "process"])
class TestSQLiteStore(StoreConformance):
    @pytest.fixture
    def store(self, tmp_path: Path, clock: ManualClock, level: Level) -> Iterator[Store]:
        store = SQLiteStore(tmp_path / "runs.db", level=level, clock=clock)
        assert store.abilities.level == level
        yield store
        store.close()

    def reopen(self, store: SQLiteStore) -> Store:
        store.close()
        return SQLiteStore(store.path, level=store.abilities.level, clock=store.clock)

    def damage(self, store: SQLiteStore, run_id: str, sequence: int) -> None:
        with closing(sqlite3.connect(store.path)) as connection, connection:
            connection.execute(
                "UPDATE records SET data = CAST('?' || substr(data, 2) AS BLOB) "
                "WHERE id = ? + ((SELECT id FROM runs WHERE run_id = ?) << 32)",
                (sequence, run_id),
            )

    def damage_document(self, store: SQLiteStore, name: str) -> None:
        with closing(sqlite3.connect(store.path)) as connection, connection:
            connection.execute("UPDATE documents SET body = x'00' WHERE name = ?", (name,))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


def test_the_level_decides_whether_each_commit_is_flushed(path: Path) -> None:
    """Invariant 1: FULL is an fsync for each commit, NORMAL none; both keep a write-ahead log."""
    for level, synchronous in (("disk", 2), ("process", 1)):
        with closing(SQLiteStore(path, level=level)) as store:
            for use in (store._connections.write, store._connections.read):
                pragmas = use(
                    lambda cursor: [_pragma(cursor, "synchronous"), _pragma(cursor, "journal_mode")]
                )
                assert pragmas == [synchronous, "wal"]


def test_a_common_commit_is_one_statement(path: Path) -> None:
    """H2: no transaction around it, no head that is written again with every record."""
    with closing(SQLiteStore(path)) as store:
        store.create(NewRun("r", "g", [b"1"], holder="ann"))
        statements: list[str] = []
        writer = store._connections._writer
        assert writer is not None
        writer.connection.set_trace_callback(statements.append)
        assert store.append([Commit("r", 1, 1, [b"2"])]) == [None]
        assert [statement.split()[0] for statement in statements] == ["INSERT"]


@pytest.mark.parametrize("path", ["", ":memory:", "somewhere/:memory:"])
def test_a_database_in_memory_is_refused(path: str) -> None:
    with pytest.raises(UsageError, match='"memory"'):
        SQLiteStore(path)


@pytest.mark.parametrize("options", [{"level": "memory"}, {"level": "best"}, {"timeout": -1}])
def test_invalid_options_are_refused(path: Path, options: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        SQLiteStore(path, **options)
    assert not path.exists()


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match=r"create the directory .*missing"):
        SQLiteStore(tmp_path / "missing" / "runs.db")
    with pytest.raises(StoreUnavailable, match="is a directory"):
        SQLiteStore(tmp_path)


def test_a_file_that_is_not_a_database_is_refused_and_left_alone(path: Path) -> None:
    for content in (b"not a database, but long enough for a header " * 20, b"short"):
        path.write_bytes(content)
        with pytest.raises(StoreUnavailable, match="not a SQLite database"):
            SQLiteStore(path)
        assert path.read_bytes() == content
        assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_another_programs_database_is_refused_and_left_alone(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE runs (theirs)")
    before = path.read_bytes()
    with pytest.raises(StoreUnavailable, match="another program"):
        SQLiteStore(path)
    assert path.read_bytes() == before


def test_a_newer_schema_is_refused_and_left_alone(path: Path) -> None:
    """P10: an older Limpet says what to do."""
    SQLiteStore(path).close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
        connection.execute(f"PRAGMA user_version = {VERSION + 1}")
    before = path.read_bytes()
    with pytest.raises(StoreUnavailable, match=r"newer Limpet .* upgrade"):
        SQLiteStore(path)
    assert path.read_bytes() == before


def test_an_empty_file_becomes_a_store(path: Path) -> None:
    path.touch()
    with closing(SQLiteStore(path)) as store:
        assert store.list(RunFilter()) == []
    with closing(sqlite3.connect(path)) as connection:
        assert _pragma(connection.cursor(), "user_version") == VERSION
        assert _pragma(connection.cursor(), "application_id") == APPLICATION_ID


def test_a_path_means_the_same_file_in_every_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    with closing(SQLiteStore("odd name?#%20.db")) as store:
        monkeypatch.chdir(tmp_path / "elsewhere")
        store.create(NewRun("r", "g", [b"1"]))
        assert store.head("r").run_id == "r"
    assert (tmp_path / "odd name?#%20.db").exists()
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_locked_file_is_waited_for(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store waits while another program has the file, and its caller notices nothing."""
    met: list[Exception] = []

    def free_it(error: Exception) -> bool:
        met.append(error)
        other.rollback()
        return is_busy(error)

    monkeypatch.setattr(sqlite_connections, "is_busy", free_it)
    with closing(SQLiteStore(path)) as store:
        with closing(_lock(path)) as other:
            store.create(NewRun("r", "g", [b"1"], holder="ann"))
        with closing(_lock(path)) as other:
            assert store.append([Commit("r", 1, 1, [b"2"])]) == [None]
        assert store.read("r").records == [b"1", b"2"]
    assert len(met) == 2


def test_a_file_that_stays_locked_is_named(path: Path) -> None:
    """Readers ignore the lock; writers, after `timeout`, report it and change nothing."""
    with closing(SQLiteStore(path, timeout=0.3)) as store:
        store.create(NewRun("r", "g", [b"1"], holder="ann"))
        with closing(_lock(path)):
            for call in (
                lambda: store.append([Commit("r", 1, 1, [b"2"])]),
                lambda: store.append([Commit("r", 1, 1, [b"2"], status=COMPLETED)]),
                lambda: store.post("r", "cancel", b""),
            ):
                with pytest.raises(StoreUnavailable, match=r"runs\.db was locked by another process"):
                    call()
            with closing(SQLiteStore(path, timeout=0.0)) as other:
                assert other.head("r").sequence == store.head("r").sequence == 1
        assert store.append([Commit("r", 1, 1, [b"2"])]) == [None]


def test_a_record_too_large_for_sqlite_refuses_its_own_commit_only(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (sqlite_store, sqlite_rows):
        monkeypatch.setattr(module, "LARGEST", 1000)
    with closing(SQLiteStore(path)) as store:
        for run_id in ("large", "small"):
            store.create(NewRun(run_id, "g", [b"1"], holder="ann"))
        large = Commit("large", 1, 1, [b"x" * 1001])
        for commits in ([large], [large, Commit("small", 1, 1, [b"x" * 1000])]):
            outcomes = store.append(commits)
            assert isinstance(outcomes[0], StoreUnavailable)
            assert outcomes[1:] == [None] * (len(commits) - 1)
        assert (store.head("large").sequence, store.head("small").sequence) == (1, 2)


def test_what_sqlite_itself_refuses_is_explained(path: Path) -> None:
    with closing(SQLiteStore(path)) as store:
        with pytest.raises(UsageError, match="isn't text"):
            store.head("half a surrogate \ud800")
        writer = store._connections._writer
        assert writer is not None
        writer.connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 10_000)
        with pytest.raises(StoreUnavailable, match="record of this size"):
            store.create(NewRun("r", "g", [b"x" * 20_000]))
        assert store.list(RunFilter()) == []


def test_a_deleted_run_takes_no_space(path: Path) -> None:
    """P7: a deleted, expired or purged run leaves no records behind."""
    with closing(SQLiteStore(path)) as store:
        for run_id in ("deleted", "expired", "purged", "kept"):
            store.create(NewRun(run_id, "g", [b"1", b"2"]))
        assert store.append([Commit("purged", 1, 2, [b"3"], purge=True)]) == [None]
        assert store.append([Commit("expired", 1, 2, [b"3"], status=COMPLETED)]) == [None]
        store.delete("deleted")
        assert store.expire(-1) == 1
        with closing(sqlite3.connect(path)) as connection:
            assert connection.execute("SELECT count(*) FROM records").fetchone() == (2,)


def test_what_one_store_remembers_another_may_have_deleted(path: Path) -> None:
    """P6: a row id is never used for another run, so a late write can't land in the wrong journal."""
    with closing(SQLiteStore(path)) as store, closing(SQLiteStore(path)) as other:
        store.create(NewRun("old", "g", [b"1"]))
        other.delete("old")
        other.create(NewRun("new", "g", [b"1"]))
        (outcome,) = store.append([Commit("old", 1, 1, [b"2"])])
        assert isinstance(outcome, RunNotFound)
        assert store.read("new").records == [b"1"]


def test_what_one_store_remembers_another_may_have_pruned(path: Path) -> None:
    """P8: a late write is refused even under the same fence, and where the number it asks for is free again."""
    with closing(SQLiteStore(path)) as store, closing(SQLiteStore(path)) as other:
        for run_id in ("pruned", "purged"):
            store.create(NewRun(run_id, "g", [b"1"]))
            assert store.append([Commit(run_id, 1, 1, [b"2"])]) == [None]
            assert other.append([Commit(run_id, 1, 2, [b"3"])]) == [None]
        assert other.append([Commit("pruned", 1, 3, [b"4"], snapshot=4)]) == [None]
        assert other.prune("pruned", 4) == 3
        assert other.append([Commit("purged", 1, 3, [b"4"], purge=True)]) == [None]
        for run_id in ("pruned", "purged"):
            for expected in (1, 2, 3, 5):
                (outcome,) = store.append([Commit(run_id, 1, expected, [b"late"])])
                assert isinstance(outcome, Conflict)
            assert store.append([Commit(run_id, 1, 4, [b"5"])]) == [None]


def test_a_write_that_failed_leaves_no_gap_to_step_over(path: Path) -> None:
    """Invariant 5: what was rolled back doesn't count, not even for a process that takes it for written."""
    with closing(SQLiteStore(path)) as store:
        store.create(NewRun("r", "g", [b"1"]))
        writer = store._connections._writer
        assert writer is not None
        writer.connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 10_000)
        failing = [b"x", b"y" * 20_000]
        for commits in (
            [Commit("r", 1, 1, failing)],
            [Commit("r", 1, 1, [b"2"]), Commit("r", 1, 2, failing)],
        ):
            with pytest.raises(StoreUnavailable):
                store.append(commits)
            for expected in (2, 3):
                (outcome,) = store.append([Commit("r", 1, expected, [b"x"])])
                assert isinstance(outcome, Conflict)
        assert store.read("r").records == [b"1"]


def test_no_number_leads_into_another_runs_journal(path: Path) -> None:
    """P6: the ids of records are made of the run's and their own number, which has its bounds."""
    with closing(SQLiteStore(path)) as store:
        for run_id in ("r", "s"):
            store.create(NewRun(run_id, "g", [b"1"]))
        for run_id, expected in (("r", 2**32 + 1), ("s", 1 - 2**32), ("r", 0), ("r", -1), ("r", 2**32 - 1)):
            (outcome,) = store.append([Commit(run_id, 1, expected, [b"x"])])
            assert isinstance(outcome, Conflict)
        assert store.prune("s", 0) == store.prune("s", -(2**40)) == 0
        for run_id in ("r", "s"):
            for first, last in ((None, None), (0, 2**40), (-(2**40), 2**70)):
                assert store.read(run_id, first, last).records == [b"1"]
            assert store.read(run_id, 2**33).records == []


def test_a_reader_that_outlasts_the_store_closes_its_connection(path: Path) -> None:
    store = SQLiteStore(path)
    store._connections.read(lambda cursor: store.close())
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_a_connection_that_is_dropped_is_closed_without_a_warning(path: Path) -> None:
    """G12: as after an interrupt. A warning would fail this test."""
    store = SQLiteStore(path)
    cursor = store._connections._connect()
    dropped = weakref.ref(cursor.connection)
    del cursor
    gc.collect()
    assert dropped() is None
    path.unlink()
    with pytest.raises(sqlite3.OperationalError):
        store._connections._connect()
    gc.collect()


def test_a_store_that_is_collected_closes_its_file(path: Path) -> None:
    store = SQLiteStore(path)
    store.list(RunFilter())
    reference = weakref.ref(store)
    del store
    gc.collect()
    assert reference() is None
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_many_readers_leave_few_connections(path: Path) -> None:
    with closing(SQLiteStore(path)) as store:
        together = threading.Barrier(20)

        def read() -> None:
            store._connections.read(lambda cursor: together.wait(30))

        threads = [threading.Thread(target=read) for _ in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(store._connections._idle) <= 8


def _pragma(cursor: sqlite3.Cursor, name: str) -> object:
    return cursor.execute(f"PRAGMA {name}").fetchone()[0]


def _lock(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    connection.execute("BEGIN IMMEDIATE")
    return connection


def test_a_deleted_file_accepts_nothing_once_the_leases_are_renewed(path: Path) -> None:
    """Invariant 1: what is written to a deleted file isn't saved."""
    with closing(SQLiteStore(path)) as store:
        lease = store.create(NewRun("r", "g", [b"1"], holder="me"))
        assert lease is not None
        path.unlink()
        with pytest.raises(StoreUnavailable):
            store.renew([lease], 10)
        with pytest.raises(StoreUnavailable):
            store.append([Commit("r", 1, 1, [b"2"])])


@pytest.mark.skipif(os.name != "posix", reason="the modes of files are those of POSIX")
@pytest.mark.parametrize("umask", [0o000, 0o022])
def test_only_the_owner_can_read_the_files_of_a_store(tmp_path: Path, umask: int) -> None:
    """P6: the database and its log, whatever the umask allows. A file that exists keeps its mode."""
    before = os.umask(umask)
    try:
        new = tmp_path / "new.db"
        given = tmp_path / "given.db"
        given.touch()
        given.chmod(0o640)
        for path, mode in ((new, 0o600), (given, 0o640)):
            with closing(SQLiteStore(path)) as store:
                store.create(NewRun("r", "g", [b"1"]))
                store.head("r")
                files = sorted(path.parent.glob(f"{path.name}*"))
                assert [each.suffix for each in files] == [".db", ".db-shm", ".db-wal"]
                assert {stat.S_IMODE(each.stat().st_mode) for each in files} == {mode}
            with closing(SQLiteStore(path)) as store:
                assert store.head("r").run_id == "r"
    finally:
        os.umask(before)


def test_runs_that_are_ready_are_found_without_reading_the_backlog(path: Path) -> None:
    """H2: the steps that SQLite takes for the 16 most urgent runs don't grow with the runs that wait."""
    steps = 0

    def count() -> None:
        nonlocal steps
        steps += 1

    def steps_for(lanes: list[Lane]) -> int:
        nonlocal steps
        steps = 0
        with closing(sqlite3.connect(path)) as connection:
            connection.set_progress_handler(count, 1)
            found = ready_heads(
                connection.cursor(), lanes, (1e9, 1e9), 16, lambda rows: [*map(head_of, rows)]
            )
            assert len(found) == 16 * len(lanes)
            assert all_lanes(connection.cursor()) == lanes
        return steps

    with closing(SQLiteStore(path, level="process")) as store:
        created = 0
        taken = []
        for size in (200, 4000):
            while created < size:
                later = 1e12 if created % 4 == 0 else float(created)
                graph = "g" if created % 2 else "h"
                store.create(NewRun(f"r{created}", graph, [b"1"], due=later, priority=created % 3))
                created += 1
            taken.append(steps_for([Lane("default", "g", ""), Lane("default", "h", "")]))
    assert taken[1] < taken[0] * 1.5


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_fork_finds_no_connection_open_that_a_call_has_taken_and_not_used_yet(tmp_path: Path) -> None:
    """H4: a child that inherits an open connection believes in locks of its parent, and damages the file."""
    connections = Connections(tmp_path / "runs.db", flush=True, timeout=5.0)
    connections.read(lambda cursor: None)
    taken = connections._idle_reader()
    assert taken.cursor is not None
    child = os.fork()
    if child == 0:
        os._exit(0 if taken.cursor is None else 1)
    assert os.waitpid(child, 0)[1] == 0
    connections.read(lambda cursor: None)
    connections.close()


WRITE_AND_END = """
import sys, threading, time
from limpet.journal.store import NewRun
from limpet.stores.sqlite.store import SQLiteStore

store = SQLiteStore(sys.argv[1])
store.head("r")
threading.Thread(target=store.create, args=(NewRun("late", "g", [b"x"]),), daemon=True).start()
time.sleep(0.5)
"""


def test_a_process_ends_though_a_thread_waits_for_the_lock_of_another(tmp_path: Path) -> None:
    """P8: such as that of a process which was suspended in the middle of a write."""
    path = tmp_path / "runs.db"
    with closing(SQLiteStore(path)) as store:
        store.create(NewRun("r", "g", [b"x"]))
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        # It fails after this time, if it doesn't end.
        subprocess.run([sys.executable, "-c", WRITE_AND_END, str(path)], check=True, timeout=20)
        other.execute("ROLLBACK")
    with closing(SQLiteStore(path)) as store:
        assert store.heads(["late"]) == [None]
