"""What a SQLite file has beside journals: posts, output, documents, and the indexes of lists."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from limpet.defaults import QUEUE
from limpet.errors import DamagedDocument, DamagedRecord, StoreUnavailable
from limpet.journal.encoding.codec import encode
from limpet.journal.run_filter import LeaseState, RunFilter
from limpet.journal.store import COMPLETED, FAILED, PAUSED, RUNNING, Commit, Labels, Lane, NewRun, Post
from limpet.stores.sqlite import lists
from limpet.stores.sqlite.schema import FIRST_CHECKSUMS, VERSION
from limpet.stores.sqlite.store import SQLiteStore

DATA = Path(__file__).parent.parent.parent / "data"
FIRST_WITH_LABELS = 7


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


def restored(path: Path, version: int, *changes: str) -> None:
    """Make the file that an earlier version wrote, and change it."""
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript((DATA / f"sqlite_{version}.sql").read_text())
        for change in changes:
            connection.execute(change)
        connection.commit()


def changed(path: Path, statement: str) -> None:
    """Change the file as damage would: past the store."""
    with closing(sqlite3.connect(path)) as connection, connection:
        assert connection.execute(statement).rowcount > 0


def test_a_request_to_cancel_in_an_older_file_becomes_a_post(path: Path) -> None:
    """D10: with the body that such a request has, and nothing for runs without one."""
    restored(path, 6)
    with closing(SQLiteStore(path)) as store:
        assert list(store.inbox("asked to stop")) == [Post(1, "cancel", encode({"kind": "cancel"}))]
        assert not store.post("asked to stop", "cancel", b"again")
        assert {head.run_id: head.posted for head in store.list(RunFilter())} == {
            "asked to stop": 1,
            "waits": 0,
            "complete": 0,
            "gone": 0,
        }
    with closing(sqlite3.connect(path)) as connection:
        asked = connection.execute("SELECT run_id FROM limpet_runs WHERE cancel_requested").fetchall()
        assert asked == [("asked to stop",)]


@pytest.mark.parametrize("version", range(1, VERSION))
def test_the_runs_of_an_older_file_are_listed_by_their_tags_and_graphs(path: Path, version: int) -> None:
    """D10."""
    restored(path, version)
    with closing(SQLiteStore(path)) as store:
        for which in (RunFilter(tags=("golden",)), RunFilter(graph="example")):
            assert {head.run_id for head in store.list(which)} == {"waits", "complete", "gone"}
        head = store.head("waits")
        assert (head.posted, head.taken, head.output, head.plan, head.queue) == (0, 0, 0, "", QUEUE)
        if version < FIRST_WITH_LABELS:
            assert head.labels == Labels()


@pytest.mark.parametrize("version", range(FIRST_CHECKSUMS, VERSION))
def test_damage_in_an_older_file_is_still_known_after_its_migration(path: Path, version: int) -> None:
    """D10, H5: a new checksum isn't made for a head that wasn't what was written."""
    restored(path, version, "UPDATE runs SET status = 'paused' WHERE run_id = 'complete'")
    with closing(SQLiteStore(path)) as store:
        with pytest.raises(DamagedRecord, match="checksum"):
            store.head("complete")
        assert list(store.heads(["complete", "waits"])) == [None, store.head("waits")]
        assert len(store.list(RunFilter(statuses=("damaged",)))) == 1


def test_a_process_of_an_earlier_version_can_not_append_after_a_migration(path: Path) -> None:
    """D10: it would not see that posts wait, so its statement fails instead."""
    SQLiteStore(path).close()
    with pytest.raises(sqlite3.OperationalError, match="no such column: signal"):
        changed(path, "INSERT INTO records SELECT 1, x'' FROM runs WHERE signal IS NULL")


def test_a_process_of_an_earlier_version_can_not_change_a_head_after_a_migration(path: Path) -> None:
    """D10, H18: its checksums would lack the queue, so the statement by which it reads heads fails instead."""
    SQLiteStore(path).close()
    with pytest.raises(sqlite3.OperationalError, match="no such column: checksum"):
        changed(path, "UPDATE runs SET checksum = 1")


@pytest.mark.parametrize("damage", ["CAST(x'ff' AS TEXT)", "x'6b'", "CAST(x'00' AS TEXT)"])
@pytest.mark.parametrize("column", ["queue", "graph", "plan"])
def test_a_damaged_lane_hides_no_other(path: Path, column: str, damage: str) -> None:
    """H5, H18: neither what isn't text nor what isn't UTF-8 ends the search for lanes."""
    with closing(SQLiteStore(path)) as store:
        lanes = {Lane(*"abc"), Lane(*"mno"), Lane(*"xyz")}
        for lane in sorted(lanes):
            labels = Labels(plan=lane.plan)
            store.create(NewRun(lane.queue, lane.graph, [b"1"], due=0.0, queue=lane.queue, labels=labels))
            store.create(NewRun(f"{lane.queue}2", "g", [b"1"], due=0.0, queue=lane.queue, labels=labels))
        changed(path, f"UPDATE runs SET {column} = {damage} WHERE run_id = 'm2'")
        assert lanes <= set(store.lanes())
        assert [head.run_id for head in store.ready(sorted(lanes), 10)] == ["a", "m", "x"]
        assert len(store.ready(store.lanes(), 10)) == 5


def test_a_deleted_run_leaves_nothing_behind(path: Path) -> None:
    """P7: neither posts nor output nor tags."""
    with closing(SQLiteStore(path)) as store:
        for run_id in ("deleted", "expired"):
            store.create(NewRun(run_id, "g", [b"1"], tags=("t",), status=FAILED))
            store.post(run_id, "k", b"body")
            store.add_output(run_id, 1, [b"a"], 10)
        store.delete("deleted")
        assert store.expire(-1) == 1
    with closing(sqlite3.connect(path)) as connection:
        for table in ("runs", "records", "posts", "output", "tagged"):
            assert connection.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,)


def test_the_body_of_a_post_that_was_taken_in_takes_no_space(path: Path) -> None:
    with closing(SQLiteStore(path)) as store:
        store.create(NewRun("r", "g", [b"1"]))
        for key in "abc":
            store.post("r", key, key.encode())
        taking = Commit("r", 1, 1, [b"2"], takes=2, ignores_posts=True)
        assert store.append([taking]) == [None]
    with closing(sqlite3.connect(path)) as connection:
        rows = connection.execute("SELECT key, body FROM posts ORDER BY number").fetchall()
        assert rows == [("a", None), ("b", None), ("c", b"c")]


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE posts SET body = x'00' WHERE number = 2",
        "UPDATE posts SET body = NULL WHERE number = 2",
        "UPDATE posts SET key = 'other' WHERE number = 1",
        "DELETE FROM posts WHERE number = 1",
        "DELETE FROM posts WHERE number = 2",
    ],
)
def test_a_damaged_post_is_reported(path: Path, damage: str) -> None:
    """H5: it is neither skipped nor given as something else."""
    with closing(SQLiteStore(path)) as store:
        store.create(NewRun("r", "g", [b"1"]))
        store.post("r", "a", b"one")
        store.post("r", "b", b"two")
        changed(path, damage)
        with pytest.raises(DamagedRecord, match=r"post [12]"):
            store.inbox("r")


def test_a_damaged_document_is_reported_and_hides_no_other(path: Path) -> None:
    """H5."""
    with closing(SQLiteStore(path)) as store:
        for name in ("a", "b"):
            store.put_document(name, b"body", 0, due=1.0)
        changed(path, "UPDATE documents SET body = x'00' WHERE name = 'a'")
        with pytest.raises(DamagedDocument, match="document 'a'"):
            store.get_document("a")
        assert [each.name for each in store.list_documents()] == ["b"]
        assert [each.name for each in store.list_documents(due=True)] == ["b"]


def test_output_is_written_without_a_flush(path: Path) -> None:
    """H12: at both levels, and what it leaves open is closed with the store."""
    for level in ("disk", "process"):
        with closing(SQLiteStore(path, level=level)) as store:  # type: ignore[arg-type]
            store.create(NewRun(level, "g", [b"1"]))
            store.add_output(level, 1, [b"a"], 10)
            synchronous = store._output_connections().write(
                lambda cursor: cursor.execute("PRAGMA synchronous").fetchone()
            )
            assert synchronous == (1,)
        assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_documents_are_found_by_any_prefix(path: Path) -> None:
    """H17: whatever characters it has."""
    names = ["", "%", "_", "a", "a\x00b", "ab", "a\U0010ffff", "a\U0010ffffz", "b", "\ue000", "\U0010ffff"]
    with closing(SQLiteStore(path)) as store:
        for name in names:
            assert store.put_document(name, b"", 0) is not None
        for prefix in names:
            found = [each.name for each in store.list_documents(prefix)]
            assert found == sorted(name for name in names if name.startswith(prefix))


FILTERS = [
    RunFilter(),
    RunFilter(statuses=(FAILED,)),
    RunFilter(statuses=(PAUSED, FAILED)),
    RunFilter(graph="usual"),
    RunFilter(graph="rare"),
    RunFilter(graph="usual", statuses=(PAUSED,)),
    RunFilter(tags=("usual",)),
    RunFilter(tags=("rare",)),
    RunFilter(tags=("rare", "usual")),
    RunFilter(parent="r1"),
    RunFilter(node="usual"),
    RunFilter(node="rare", statuses=(RUNNING,)),
    RunFilter(error="KeyError"),
    RunFilter(queue="rare"),
    RunFilter(queue="rare", plan="p"),
    RunFilter(queue=QUEUE),
    RunFilter(has_error=True),
    RunFilter(is_waiting=True),
    RunFilter(is_due=True),
    RunFilter(lease_states=(LeaseState.HELD,)),
]


def fill(store: SQLiteStore, numbers: range) -> None:
    """Completed runs, and a few early ones that each filter is for."""
    for number in numbers:
        is_rare = number < 20
        store.create(
            NewRun(
                f"r{number}",
                "rare" if is_rare else "usual",
                [b"1"],
                (PAUSED, FAILED, RUNNING)[number % 3] if number < 60 else COMPLETED,
                holder="ann" if is_rare else None,
                ttl=1e6,
                tags=("usual", "rare") if is_rare else ("usual",),
                parent="r1" if is_rare else None,
                due=0.0 if is_rare else None,
                labels=Labels("rare", "KeyError", "message", "p") if is_rare else Labels("usual"),
                queue="rare" if is_rare else QUEUE,
            )
        )


def test_a_page_of_a_list_is_found_without_reading_all_runs(path: Path) -> None:
    """H11: whatever the filter is, the steps that SQLite takes for 10 runs don't grow with the number of runs."""
    with closing(SQLiteStore(path, level="process")) as store:
        fill(store, range(200))
        few = [steps_of(store, which) for which in FILTERS]
        fill(store, range(200, 3000))
        many = [steps_of(store, which) for which in FILTERS]
    grown = [
        str(which) for which, *steps in zip(FILTERS, few, many, strict=True) if steps[1] > steps[0] * 1.5
    ]
    assert grown == []


def steps_of(store: SQLiteStore, which: RunFilter) -> int:
    """How many steps SQLite takes for the first ten runs, and for those after them."""
    steps = 0

    def count() -> None:
        nonlocal steps
        steps += 1

    first = store.list(which._replace(limit=10))
    assert first
    with closing(sqlite3.connect(store.path)) as connection:
        connection.set_progress_handler(count, 1)
        for page in (which, which._replace(after=first[-1].cursor)):
            lists.listed_rows(connection.cursor(), page._replace(limit=10), 1e9, 1e9)
    return steps


def test_many_kinds_of_error_are_listed_too(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """H11: where an index would be read in too many parts, all runs are searched."""
    with closing(SQLiteStore(path, level="process")) as store:
        for number in range(12):
            store.create(NewRun(f"r{number:02}", "g", [b"1"], labels=Labels(error=f"Error{number}")))
        found = store.list(RunFilter(has_error=True))
        monkeypatch.setattr(lists, "MAX_RANGES", 10)
        assert store.list(RunFilter(has_error=True)) == found
        assert len(found) == 12


def test_output_does_not_make_a_file_again_that_was_deleted(path: Path) -> None:
    """Invariant 1: nothing is acknowledged that no other process would find."""
    with closing(SQLiteStore(path)) as store:
        store.create(NewRun("r", "g", [b"1"]))
        path.unlink()
        with pytest.raises(StoreUnavailable):
            store.add_output("r", 1, [b"a"], 10)
        assert not path.exists()
