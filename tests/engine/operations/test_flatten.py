"""D12: the runs of any store as plain tables, for any SQL tool."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Annotated, Any

import pytest

from limpet import (
    ExecutionError,
    MemoryStore,
    RunPaused,
    Runs,
    StateGraph,
    StoreUnavailable,
    UsageError,
    Workflow,
    open_store,
    pause,
    register_type,
    secret,
)
from limpet.defaults import QUEUE
from limpet.engine.operations.flat_files import COLUMNS
from limpet.testing import FaultyStore

Tables = dict[str, list[dict[str, Any]]]


def survey(store: Any) -> StateGraph:
    graph = StateGraph({"n": int, "key": Annotated[str, secret]}, name="survey")
    graph.add_node(
        "count", run=lambda state: {"n": state.get("n", 0) + 1, "note": f"with {state.get('key')}"}
    )
    graph.add_node("ask", run=lambda state: {"word": pause("which?")})
    graph.add_edge("count", "ask").set_entry_point("count").set_finish_point("ask")
    return graph.compile(store=store, preserve=True, allow_plain_text_secrets=True)


def asked(store: Any, run_id: str = "r", **input: Any) -> StateGraph:
    graph = survey(store)
    with pytest.raises(RunPaused):
        graph.execute(input, run_id=run_id, tags=["t"])
    return graph


def in_database(path: Path) -> Tables:
    """What a SQL tool finds."""
    with closing(sqlite3.connect(path)) as connection:
        connection.row_factory = sqlite3.Row
        return {
            table: [dict(row) for row in connection.execute(f"SELECT * FROM {table} ORDER BY rowid")]
            for table in ("runs", "steps", "states")
        }


def in_lines(path: Path) -> Tables:
    """What a reader of JSON lines finds, as the database has it: with JSON as text, and the last line of each row."""
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for line in path.read_text().splitlines():
        row = json.loads(line)
        names = {
            "runs": ["run_id"],
            "steps": ["run_id", "step"],
            "states": ["run_id", "step", "branch", "key"],
        }
        rows[row["table"], *(row[name] for name in names[row["table"]])] = row
    found: Tables = {"runs": [], "steps": [], "states": []}
    for row in rows.values():
        table = row.pop("table")
        for name in ("tags", "error", "questions", "keys", "value"):
            if name in row and (row[name] is not None or (name == "value" and not row["removed"])):
                row[name] = json.dumps(row[name], ensure_ascii=False)
        if "removed" in row:
            row["removed"] = int(row["removed"])
        found[table].append(row)
    return found


READERS: dict[str, Callable[[Path], Tables]] = {".db": in_database, ".jsonl": in_lines}


@pytest.fixture(params=READERS)
def out(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return tmp_path / f"flat{request.param}"


def tables(out: Path) -> Tables:
    return READERS[out.suffix](out)


@pytest.fixture(params=["memory", "sqlite", "files", "postgres"])
def any_store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    if request.param == "postgres":
        return open_store(request.getfixturevalue("database"))
    urls = {"memory": "memory://", "sqlite": f"sqlite:///{tmp_path}/r.db", "files": f"file://{tmp_path}/r"}
    return open_store(urls[request.param])


def test_runs_steps_and_states_are_plain_rows(any_store: Any, out: Path) -> None:
    """D12: from any store."""
    asked(any_store, n=4)
    runs = Runs(any_store)
    assert runs.flatten(out) == (1, 2, 3)
    found = tables(out)
    (run,) = found["runs"]
    shown = {name: run[name] for name in ("run_id", "graph", "status", "step", "node", "tags", "problem")}
    assert list(shown.values()) == ["r", "survey", "paused", 1, "ask", '["t"]', None]
    assert json.loads(run["questions"])[0]["prompt"] == "which?"
    assert [(step["step"], step["node"], step["next"]) for step in found["steps"]] == [
        (0, None, "count"),
        (1, "count", "ask"),
    ]
    assert [(row["step"], row["key"], row["value"]) for row in found["states"]] == [
        (0, "n", "4"),
        (1, "n", "5"),
        (1, "note", '"with None"'),
    ]
    any_store.close()


def test_a_file_of_an_earlier_version_gets_the_columns_that_it_lacks(tmp_path: Path) -> None:
    """D12, H18: and keeps its rows."""
    out = tmp_path / "out.db"
    store = MemoryStore()
    asked(store, "old")
    Runs(store).flatten(out)
    with closing(sqlite3.connect(out)) as connection, connection:
        names = ", ".join(name for name in COLUMNS["runs"] if name != "queue")
        connection.execute("ALTER TABLE runs RENAME TO present")
        connection.execute(f"CREATE TABLE runs AS SELECT {names} FROM present")
        connection.execute("DROP TABLE present")
    asked(store, "new")
    Runs(store).flatten(out)
    assert [(row["run_id"], row["queue"]) for row in in_database(out)["runs"]] == [
        ("old", None),
        ("new", QUEUE),
    ]


def test_a_second_call_adds_only_what_is_new(out: Path) -> None:
    """D12: nothing for a store that hasn't changed, and the new steps of a run that has."""
    store = MemoryStore()
    graph = asked(store)
    runs = Runs(store)
    runs.flatten(out)
    before = out.read_bytes()
    assert runs.flatten(out) == (0, 0, 0)
    assert out.read_bytes() == before
    asked(store, "s")
    graph.resume("r", "kelp")
    added = runs.flatten(out)
    assert (added.runs, added.values) == (2, 1 + 2)
    found = tables(out)
    assert {row["run_id"]: row["status"] for row in found["runs"]} == {"r": "completed", "s": "paused"}
    assert [row["value"] for row in found["states"] if row["key"] == "word"] == ['"kelp"']
    assert len([row for row in found["steps"] if row["run_id"] == "r"]) == 3
    fresh = out.with_name(f"fresh{out.suffix}")
    runs.flatten(fresh)
    for table in ("runs", "steps", "states"):
        assert sorted(map(str, tables(fresh)[table])) == sorted(map(str, found[table]))


def test_what_is_added_step_by_step_is_what_is_written_at_once(out: Path) -> None:
    """D12: a long run, with a rollback, branches and removed keys, flattened after each event."""
    store = MemoryStore()
    graph = StateGraph(name="long").add_node("split", run=lambda state: {"round": state.get("round", 0) + 1})
    graph.add_node("a", run=lambda state: {"a": [state["round"]]}).add_node(
        "b", run=lambda state: {"b": pause("b?")}
    )
    graph.add_fanin_node("join", run=lambda state, parallel_results: {"all": len(parallel_results)})
    graph.add_parallel_edge("split", "a", "join").add_parallel_edge("split", "b", "join")
    graph.add_edge("join", "split", lambda state: state["round"] < 3)
    graph.set_entry_point("split").set_finish_point("join").compile(store=store, preserve=True)
    runs = Runs(store)
    for event in graph.stream({}, run_id="r"):
        assert event
        runs.flatten(out)
    for answer in ("x", "y"):
        with pytest.raises(RunPaused):
            graph.resume("r", answer)
        runs.flatten(out)
    graph.rollback("r", 1)
    runs.flatten(out)
    with pytest.raises(RunPaused):
        graph.resume("r")
    runs.flatten(out)
    fresh = out.with_name(f"fresh{out.suffix}")
    runs.flatten(fresh)
    found, expected = tables(out), tables(fresh)
    for table in ("runs", "steps", "states"):
        assert sorted(map(str, found[table])) == sorted(map(str, expected[table]))
    assert any(row["branch"] for row in found["states"])
    assert any(row["removed"] for row in found["states"])


def test_the_states_add_up_to_those_of_the_run(tmp_path: Path) -> None:
    """D12: the newest value of each key, by a view or by a query of one's own."""
    store = MemoryStore()
    graph = asked(store)
    graph.resume("r", "kelp")
    Runs(store).flatten(tmp_path / "flat.db")
    with closing(sqlite3.connect(tmp_path / "flat.db")) as connection:
        rows = connection.execute("SELECT key, value FROM newest_states WHERE run_id = 'r'").fetchall()
    assert {key: json.loads(value) for key, value in rows} == dict(graph.state_at("r"))


def test_secrets_are_masked_wherever_they_are(out: Path) -> None:
    """D12: under their keys, in other texts, in inputs of workflows and results of secret tasks."""
    store = MemoryStore()
    asked(store, key="xyzzy-1")
    flow = Workflow("flow", store=store, preserve=True, secrets=["password"])
    flow.add_task("login", lambda password: f"session of {password}", secret=True)
    flow.add_task("use", lambda login: len(login), ["login"])
    flow.execute({"password": "xyzzy-2"}, run_id="w")
    Runs(store).flatten(out)
    content = out.read_bytes()
    assert b"xyzzy" not in content
    assert b"session of" not in content
    assert (
        json.loads(next(row for row in tables(out)["states"] if row["key"] == "key")["value"]) == "‹secret›"
    )


def test_a_run_that_cant_be_read_has_the_reason_and_is_completed_later(out: Path, tmp_path: Path) -> None:
    """D12: its key is missing at first. The other runs are written, and nothing is written again without news."""
    pytest.importorskip("cryptography")
    url = f"sqlite:///{tmp_path}/runs.db"
    asked(open_store(url, encryption=b"k" * 32), "hidden")
    asked(open_store(url, encryption=False), "plain")
    assert Runs(open_store(url, encryption=False)).flatten(out).runs == 2
    problems = {row["run_id"]: row["problem"] for row in tables(out)["runs"]}
    assert problems["plain"] is None
    assert "without a key" in problems["hidden"]
    assert Runs(open_store(url, encryption=False)).flatten(out) == (0, 0, 0)
    assert Runs(open_store(url, encryption=b"k" * 32)).flatten(out).steps == 2
    found = tables(out)
    assert {row["run_id"] for row in found["steps"]} == {"hidden", "plain"}


def test_a_run_that_was_deleted_and_made_again_has_its_own_rows(tmp_path: Path) -> None:
    """D12."""
    out = tmp_path / "flat.db"
    store = MemoryStore()
    asked(store, n=1).resume("r", "kelp")
    runs = Runs(store)
    runs.flatten(out)
    runs.delete("r")
    asked(store, n=7)
    runs.flatten(out)
    found = tables(out)
    assert [row["value"] for row in found["states"] if row["key"] == "n"] == ["7", "8"]
    assert not [row for row in found["states"] if row["key"] == "word"]


def test_a_call_that_fails_leaves_the_file_as_it_was(out: Path) -> None:
    """D12: and the next one completes it."""
    store = FaultyStore(MemoryStore())
    asked(store, "a")
    asked(store, "b")
    runs = Runs(store)
    fault = store.fail("read", after=1)
    with pytest.raises(StoreUnavailable):
        runs.flatten(out)
    assert fault
    store.heal()
    runs.flatten(out)
    assert {row["run_id"] for row in tables(out)["runs"]} == {"a", "b"}
    assert len(tables(out)["steps"]) == 4


def test_a_torn_line_is_cut_off_before_more_is_added(tmp_path: Path) -> None:
    """D12: the process was killed while it wrote."""
    out = tmp_path / "flat.jsonl"
    store = MemoryStore()
    asked(store, "a")
    Runs(store).flatten(out)
    whole = out.read_bytes()
    asked(store, "b")
    Runs(store).flatten(out)
    both = out.read_bytes()
    for cut in range(len(whole), len(both), 7):
        out.write_bytes(both[:cut])
        Runs(store).flatten(out)
        assert out.read_bytes() == both


def test_another_file_is_never_written_to(tmp_path: Path) -> None:
    """D12: a store, a database of another program, a text."""
    store = open_store(f"sqlite:///{tmp_path}/runs.db")
    asked(store)
    with closing(sqlite3.connect(tmp_path / "mine.db")) as connection:
        connection.execute("CREATE TABLE mine (x)")
    (tmp_path / "mine.jsonl").write_text('{"mine": 1}\n')
    (tmp_path / "text.db").write_text("no database, but long enough to be taken for one by its size " * 20)
    for name in ("runs.db", "mine.db", "mine.jsonl", "text.db"):
        before = (tmp_path / name).read_bytes()
        with pytest.raises(UsageError):
            Runs(store).flatten(tmp_path / name)
        assert (tmp_path / name).read_bytes() == before
    with pytest.raises(StoreUnavailable):
        Runs(store).flatten(tmp_path / "missing" / "flat.db")


def test_the_file_is_private_and_there_is_an_async_version(out: Path) -> None:
    """D12, H7."""
    store = MemoryStore()
    asked(store)
    assert asyncio.run(Runs(store).aflatten(out)).runs == 1
    assert out.stat().st_mode & 0o777 == 0o600


def test_a_purged_run_has_its_row(out: Path) -> None:
    """D12: its journal was deleted when it completed."""
    store = MemoryStore()
    graph = survey(store).compile(store=store, allow_plain_text_secrets=True)
    with pytest.raises(RunPaused):
        graph.execute({}, run_id="r")
    graph.resume("r", "kelp")
    Runs(store).flatten(out)
    (row,) = tables(out)["runs"]
    assert (row["status"], row["problem"]) == ("completed", None)


@pytest.mark.parametrize("name", ["out.db", "out.jsonl"])
def test_text_that_no_database_can_store_is_written_with_escapes(name: str, tmp_path: Path) -> None:
    """D12: half a character, as in the name of a file with odd bytes, doesn't keep other runs out."""
    store = MemoryStore()
    graph = StateGraph(name="odd")
    graph.add_node("a", run=lambda state: {"file": "a\udcffb"})
    graph.add_node("b", run=lambda state: {})
    graph.add_edge("a", "b").set_entry_point("a").set_finish_point("b").compile(store=store, preserve=True)
    graph.execute({}, run_id="r")

    def refuse(state: Any) -> None:
        raise ValueError("x\udcff")

    failing = StateGraph(name="fails").add_node("a", run=refuse).set_entry_point("a").set_finish_point("a")
    with suppress(ExecutionError):
        failing.compile(store=store).execute({}, run_id="f")
    Runs(store).flatten(tmp_path / name)
    tables = in_database(tmp_path / name) if name.endswith("db") else None
    if tables is not None:
        assert {row["run_id"] for row in tables["runs"]} == {"r", "f"}
        assert '"a\\udcffb"' in {row["value"] for row in tables["states"]}


def test_a_number_too_long_for_decimals_is_written_as_hexadecimal_text(out: Path) -> None:
    """D12, H4: Python refuses to write more than some thousand digits, which must not keep the other runs out."""
    store = MemoryStore()
    graph = StateGraph(name="long").add_node("a", run=lambda state: {"n": 16**6000, "m": -(10**4200)})
    graph.set_entry_point("a").set_finish_point("a").compile(store=store, preserve=True).execute({})
    assert Runs(store).flatten(out).values == 2
    values = {row["key"]: json.loads(row["value"]) for row in tables(out)["states"]}
    assert values["n"] == "0x1" + "0" * 6000
    assert int(values["m"], 16) == -(10**4200)


class Unprintable:
    """A value of a user's class, which can be stored and not shown."""

    def __str__(self) -> str:
        raise ValueError("no text")


def test_a_value_that_raises_when_it_is_shown_is_written_as_its_type(out: Path) -> None:
    """D12."""
    register_type(Unprintable, to=lambda value: 1, restore=lambda data: Unprintable())
    store = MemoryStore()
    graph = StateGraph(name="odd").add_node("a", run=lambda state: {"x": Unprintable()})
    graph.set_entry_point("a").set_finish_point("a").compile(store=store, preserve=True).execute({})
    Runs(store).flatten(out)
    (row,) = tables(out)["states"]
    assert row["value"] == '"<Unprintable>"'
