"""Damage of a SQLite file that looks like something else: a head without a checksum, records that seem pruned."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from limpet import DamagedRecord, Runs, StateGraph
from limpet.journal.run_filter import RunFilter
from limpet.journal.store import Commit, NewRun
from limpet.stores.sqlite.store import SQLiteStore
from support.graphs import count, loop
from support.older_runs import DATA, check_all


def changed(path: Path, statement: str) -> None:
    """Change the file as damage would: past the store."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(statement)


def counted(path: Path, times: int = 6) -> StateGraph:
    """A run "r" of this many steps."""
    graph = loop(times, count).compile(store=f"sqlite:///{path}", preserve=True)
    graph.execute({"n": 0}, run_id="r")
    return graph


def test_a_head_whose_checksum_is_gone_is_damaged(tmp_path: Path) -> None:
    """H5: a flipped byte may make the column NULL, which must not switch the check off."""
    path = tmp_path / "runs.db"
    counted(path)
    changed(path, "UPDATE runs SET head_checksum = NULL, status = 'paused'")
    with closing(SQLiteStore(path)) as store:
        with pytest.raises(DamagedRecord, match="checksum"):
            store.head("r")
        assert [(head.run_id, head.status) for head in store.list(RunFilter())] == [("r", "damaged")]
        assert not Runs(store).verify("r").ok


@pytest.mark.parametrize("lost", [1, 2, 7])
def test_oldest_records_that_were_lost_are_missing_and_not_pruned(tmp_path: Path, lost: int) -> None:
    """H5: nothing deleted them. What is left can be read as far as it reaches."""
    path = tmp_path / "runs.db"
    graph = counted(path)
    changed(path, f"DELETE FROM records WHERE id & 0xFFFFFFFF <= {lost}")
    found = graph.verify("r")
    assert not found.ok
    assert found.missing[:lost] == list(range(1, lost + 1))
    for call in (graph.history, lambda run_id: graph.export_run(run_id, tmp_path / "r.run")):
        with pytest.raises(DamagedRecord, match="record 1 of run 'r' is damaged: it is missing"):
            call("r")


def test_records_that_were_pruned_or_purged_are_not_missing(tmp_path: Path) -> None:
    """P9: what a store deleted by itself isn't damage, and what is lost after that is."""
    path = tmp_path / "runs.db"
    with closing(SQLiteStore(path)) as store:
        lease = store.create(NewRun("r", "g", [b"1", b"2"], holder="ann", ttl=1e6))
        assert lease is not None
        commit = Commit("r", lease.fence, 2, [b"3", b"4"], snapshot=3)
        assert store.append([commit]) == [None]
        assert store.prune("r", 3) == 2
        assert store.prune("r", 3) == 0
        assert store.read("r", first=1)[1:] == (3, [b"3", b"4"])
        changed(path, "DELETE FROM records WHERE id & 0xFFFFFFFF = 3")
        for first in (1, 3, None):
            with pytest.raises(DamagedRecord, match=r"record 3 .* missing"):
                store.read("r", first=first)
        assert store.read("r", first=4)[1:] == (4, [b"4"])
        assert store.read("r", first=1, last=2).records == []
        assert store.append([Commit("r", lease.fence, 4, [], purge=True)]) == [None]
        assert store.read("r", first=1)[1:] == (5, [])


def test_damage_that_the_checksums_of_an_older_file_show_survives_its_migration(tmp_path: Path) -> None:
    """D10, H5: a new checksum isn't made for a head that wasn't what was written."""
    for damaged in (True, False):
        path = tmp_path / f"{damaged}.db"
        with closing(sqlite3.connect(path)) as connection:
            connection.executescript((DATA / "sqlite_3.sql").read_text())
            if damaged:
                connection.execute("UPDATE runs SET status = 'paused' WHERE run_id = 'complete'")
                connection.commit()
        with closing(SQLiteStore(path)) as store:
            if damaged:
                with pytest.raises(DamagedRecord, match="checksum"):
                    store.head("complete")
            else:
                check_all(store)


def test_a_process_of_an_earlier_version_can_not_write_heads_after_a_migration(tmp_path: Path) -> None:
    """D10: its checksums would be wrong, so its statement fails instead."""
    path = tmp_path / "runs.db"
    counted(path)
    with pytest.raises(sqlite3.OperationalError, match="no such column"):
        changed(path, "UPDATE runs SET sequence = 1, sum = 2 WHERE id = 1")
