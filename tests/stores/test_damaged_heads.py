"""A run whose head can't be read: it is listed, its journal is read, no other run is hidden by it. In every store."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from limpet import Conflict, DamagedRecord, RunNotFound, Runs, StateGraph, WrongGraph, open_store
from limpet.cli.main import main
from limpet.journal.run_filter import RunFilter
from limpet.journal.store import DAMAGED, NewRun
from limpet.stores.files.run_names import file_name_of
from limpet.testing.conformance.store_calls import ready_runs
from support.damaged_places import Place, local_place
from support.graphs import chain, count
from support.postgres import Server
from support.redis_servers import redis_server


def sqlite_damage(path: Path) -> Callable[[str], None]:
    def damage(run_id: str) -> None:
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("UPDATE runs SET fence = fence + 7 WHERE run_id = ?", (run_id,))

    return damage


def file_damage(path: Path) -> Callable[[str], None]:
    def damage(run_id: str) -> None:
        head = path / "runs" / f"{file_name_of(run_id)}.head"
        data = bytearray(head.read_bytes())
        data[5] ^= 0xFF
        head.write_bytes(data)

    return damage


@pytest.fixture(params=["sqlite", "files", "redis", "encrypted", "tiered"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    path = tmp_path / "store"
    if request.param == "redis":
        with redis_server(tmp_path) as server, server.client() as client:
            yield Place(server.url, lambda run_id: client.hset(f"limpet:run:{run_id}", "fence", "9"), {})
    else:
        yield local_place(request.param, path, sqlite_damage(path), file_damage(path))


def line(store: Any, name: str = "line") -> StateGraph:
    return chain(*[count] * 3, name=name).compile(store=store, preserve=True)


def test_a_list_shows_every_run_and_says_which_are_damaged(place: Place) -> None:
    """H5: by the ids that they have, with the reason; for all runs, those of a graph, and those that are damaged."""
    with place.opened() as store:
        for run_id in ("a", "b", "c"):
            line(store).execute({}, run_id=run_id, tags=["t"])
        line(store, "other").execute({}, run_id="d")
    place.damage("b")
    with place.opened() as store:
        runs = Runs(store)
        listed = {info.run_id: info for info in runs.list()}
        assert sorted(listed) == ["a", "b", "c", "d"]
        assert [info.status for info in map(listed.get, "abcd") if info] == [
            "completed", "damaged", "completed", "completed",
        ]  # fmt: skip
        damaged = listed["b"]
        assert "the head of run 'b' is damaged" in str(damaged.problem)
        assert (damaged.graph, damaged.step, damaged.tags) == ("line", 3, ("t",))
        assert damaged.created == pytest.approx(listed["a"].created, abs=60)
        assert [info.run_id for info in runs.list(status="damaged")] == ["b"]
        assert {info.run_id for info in runs.list(status="completed")} == {"a", "c", "d"}
        assert {info.run_id for info in line(store).runs()} == {"a", "b", "c"}
        assert [info.run_id for info in line(store).runs(status="damaged", tag="t")] == ["b"]
        assert [info.run_id for info in line(store).runs(status="damaged", tag="u")] == []
        assert [info.run_id for info in line(store, "other").runs()] == ["d"]
        assert [info.run_id for info in line(store, "other").runs(status="damaged")] == []
        assert runs.list(status="damaged", limit=0) == []
        assert runs.get("b").info._replace(created=0, updated=0) == damaged._replace(created=0, updated=0)


def test_the_store_itself_lists_a_damaged_run_by_no_other_status(place: Place) -> None:
    """H5: so that nothing is resumed, counted or cleaned up because of what a damaged head says."""
    with place.opened() as store:
        for run_id in ("a", "b"):
            store.create(NewRun(run_id, "g", [b"1"], due=0.0))
    place.damage("b")
    with place.opened() as store:
        assert {head.run_id: head.status for head in store.list(RunFilter())} == {
            "a": "running",
            "b": DAMAGED,
        }
        assert [head.run_id for head in store.list(RunFilter(statuses=("running",)))] == ["a"]
        assert [head.run_id for head in store.list(RunFilter(statuses=(DAMAGED,)))] == ["b"]
        both = RunFilter(statuses=(DAMAGED, "running"))
        assert {head.run_id for head in store.list(both)} == {"a", "b"}
        (first,) = store.list(both._replace(limit=1))
        assert len(store.list(both._replace(after=first.cursor))) == 1
        assert store.expire(-1, ("running",)) == 1
        assert [head.run_id for head in store.list(RunFilter())] == ["b"]


def test_damaged_runs_hide_no_run_behind_them_from_workers(place: Place) -> None:
    """H1, H5: however urgent they are, and however few runs are asked for."""
    with place.opened() as store:
        for number in range(5):
            store.create(NewRun(f"bad{number}", "g", [b"1"], due=0.0, priority=5))
        store.create(NewRun("good", "g", [b"1"], due=0.0))
    for number in range(5):
        place.damage(f"bad{number}")
    with place.opened() as store:
        for limit in (1, 2, 5, 16):
            assert [head.run_id for head in ready_runs(store, ["g"], limit)] == ["good"]


def test_what_the_journal_of_a_damaged_head_has_can_be_read(place: Place, tmp_path: Path) -> None:
    """H5, H6: verify, state_at, history, diff and fork; not what needs the head."""
    with place.opened() as store:
        graph = line(store)
        graph.execute({}, run_id="r")
        steps = graph.history("r")
        states = [graph.state_at("r", each.step) for each in steps]
    place.damage("r")
    with place.opened() as store:
        graph = line(store)
        found = graph.verify("r")
        assert (found.ok, found.status, found.restorable, found.missing) == (False, None, False, [])
        assert [damage.sequence for damage in found.damaged] == [0]
        assert found.steps == [0, 1, 2, 3]
        assert "damaged: the head: " in str(found)
        assert graph.history("r") == steps
        assert [graph.state_at("r", step) for step in found.steps] == states
        assert graph.state_at("r") == states[-1]
        assert graph.diff("r", 1, 3).changed == {"n": (1, 3)}
        assert graph.fork("r", 1, new_run_id="s").result() == states[-1]
        with pytest.raises(DamagedRecord, match="the head of run 'r'"):
            graph.resume("r")
        with pytest.raises(DamagedRecord, match="the head of run 'r'"):
            graph.rollback("r", 1)
        with pytest.raises(WrongGraph):
            line(store, "other").state_at("r", 1)


def test_a_damaged_head_is_made_new_by_an_export_a_deletion_and_an_import(
    place: Place, tmp_path: Path
) -> None:
    """H5: the way out for a run whose journal is intact."""
    path = tmp_path / "r.run"
    with place.opened() as store:
        line(store).execute({}, run_id="r", tags=["t"])
        before = store.head("r")
    place.damage("r")
    with place.opened() as store:
        graph = line(store)
        graph.export_run("r", path)
        Runs(store).delete("r")
        with pytest.raises(RunNotFound):
            store.head("r")
        assert Runs(store).list() == []
        graph.import_run(path)
        head = store.head("r")
        kept = ("run_id", "graph", "status", "tags", "parent", "note")
        assert [getattr(head, name) for name in kept] == [getattr(before, name) for name in kept]
        assert graph.verify("r").ok


def test_a_head_and_a_record_that_are_both_damaged_leave_the_steps_before(tmp_path: Path) -> None:
    """H5, H6: an export would lose the rest, so it is refused."""
    path = tmp_path / "runs.db"
    with closing(open_store(path)) as store:
        graph = line(store)
        graph.execute({}, run_id="r")
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("UPDATE records SET data = x'00' WHERE id & 0xFFFFFFFF = 4")
        sqlite_damage(path)("r")
        found = graph.verify("r")
        assert ([damage.sequence for damage in found.damaged], found.steps) == ([0, 4], [0, 1])
        assert graph.state_at("r", 1)["n"] == 1
        for call in (graph.state_at, graph.history, lambda run_id: graph.export_run(run_id, tmp_path / "x")):
            with pytest.raises(DamagedRecord, match="record 4"):
                call("r")
        (info,) = graph.runs()
        assert (info.status, info.graph) == ("damaged", "line")


def test_a_summary_that_is_damaged_in_postgresql_is_a_damaged_head(postgres: Server, database: str) -> None:
    """H5: it is all of a head that Limpet can check there."""
    with closing(open_store(database)) as store:
        for run_id in ("a", "b"):
            line(store).execute({}, run_id=run_id)
        with postgres.psycopg.connect(database, autocommit=True) as connection:
            connection.execute("UPDATE limpet.runs SET note = '\\x00ff' WHERE run_id = 'b'")
        runs = Runs(store)
        assert {info.run_id: info.status for info in runs.list()} == {"a": "completed", "b": "damaged"}
        assert [info.run_id for info in runs.list(status="damaged")] == ["b"]
        assert [info.run_id for info in runs.list(status="completed")] == ["a"]
        assert "summary" in str(runs.get("b").info.problem)
        assert line(store).state_at("b")["n"] == 3


@pytest.mark.parametrize("run_id", ["plain", "odd/id with spaces", "l" * 60])
def test_the_id_of_a_damaged_head_file_is_found(tmp_path: Path, run_id: str) -> None:
    """H5: by the file's name, or by what the file still has."""
    path = tmp_path / "store"
    with closing(open_store(f"file://{path}")) as store:
        line(store).execute({}, run_id=run_id)
    file_damage(path)(run_id)
    with closing(open_store(f"file://{path}")) as store:
        assert [(info.run_id, info.status) for info in Runs(store).list()] == [(run_id, "damaged")]
        assert Runs(store).verify(run_id).steps == [0, 1, 2, 3]


def test_a_run_whose_id_is_lost_is_listed_by_the_name_of_its_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """H5: and `store verify` reports it."""
    path = tmp_path / "store"
    with closing(open_store(f"file://{path}")) as store:
        line(store).execute({}, run_id="an/id")
    (head,) = path.glob("runs/*.head")
    head.write_bytes(b"nothing of the kind")
    with closing(open_store(f"file://{path}")) as store:
        (info,) = Runs(store).list()
        assert (info.run_id, info.status) == (file_name_of("an/id"), "damaged")
        assert info.problem
    assert main(["store", "verify", "--store", f"file://{path}"]) == 1
    assert "damaged" in capsys.readouterr().out


def test_the_command_line_lists_shows_verifies_and_deletes_a_damaged_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """H5, C3: by its status."""
    path = tmp_path / "runs.db"
    with closing(open_store(path)) as store:
        for run_id in ("a", "b"):
            line(store).execute({}, run_id=run_id)
    sqlite_damage(path)("b")
    url = ["--store", f"sqlite:///{path}"]
    assert main(["runs", "list", "--status", "damaged", "--json", *url]) == 0
    (listed,) = json.loads(capsys.readouterr().out)
    assert (listed["run_id"], listed["status"], listed["graph"]) == ("b", "damaged", "line")
    assert main(["runs", "show", "b", *url]) == 0
    shown = capsys.readouterr()
    assert "the head of run 'b' is damaged" in shown.out
    assert "store verify b" in shown.out + shown.err
    assert main(["store", "info", *url]) == 0
    assert "damaged" in capsys.readouterr().out
    assert main(["runs", "list", "--status", "nonsense", *url]) == 2
    assert "cancelled, damaged" in capsys.readouterr().err
    assert main(["runs", "delete", "b", "--yes", *url]) == 0
    with closing(open_store(path)) as store:
        assert [info.run_id for info in Runs(store).list()] == ["a"]


def test_a_damaged_run_in_redis_that_is_deleted_leaves_nothing(tmp_path: Path) -> None:
    """H5: neither keys nor entries of the index; a sound one that is held stays."""
    with redis_server(tmp_path) as server, server.client() as client:
        with closing(open_store(server.url)) as store:
            store.create(NewRun("r", "g", [b"1"], due=0.0))
            store.create(NewRun("held", "g", [b"1"], holder="ann", ttl=1e6))
            ready_runs(store, ["g"], 1)
            client.hset("limpet:run:r", "fence", "9")
            store.delete("r")
            assert ready_runs(store, ["g"], 1) == []
            with pytest.raises(Conflict):
                store.delete("held")
        left = {key: client.type(key) for key in client.scan_iter()}
        assert not [key for key in left if key.endswith(b":r")]
        for key, kind in left.items():
            if kind == b"zset":
                assert not [member for member in client.zrange(key, 0, -1) if member.endswith(b"r")], key
