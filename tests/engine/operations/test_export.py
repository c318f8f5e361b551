"""Runs carried from store to store by a file: they resume as if they had always been there, or nothing happens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from hashlib import sha256
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from limpet import (
    Conflict,
    DamagedRecord,
    ExecutionError,
    MemoryStore,
    NodeContext,
    RunExists,
    RunNotFound,
    RunPaused,
    State,
    StateGraph,
    StoreError,
    StoreUnavailable,
    UnsupportedFormat,
    UsageError,
    Workflow,
    once,
    open_store,
    pause,
)
from limpet.journal.run_filter import RunFilter
from limpet.journal.store import Store
from limpet.stores.composite.tiered import TieredStore
from support.checkpoint_stores import InMemoryCheckpointStore
from support.damage import changed_at_its_end
from support.redis_servers import RedisServer, redis_server

KINDS = ("memory", "sqlite", "file", "redis")
MORE = ("postgres", "tiered", "encrypted", "five methods")
"""Each of these with the next, and with SQLite both ways: all pairs would take too long."""
PAIRS = [
    *product(KINDS, KINDS),
    *((source, MORE[place - 1]) for place, source in enumerate(MORE)),
    *(pair for kind in MORE for pair in ((kind, "sqlite"), ("sqlite", kind))),
]
Opener = Callable[[str, str], Store]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("carried")) as server:
        yield server


@pytest.fixture
def opened(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Opener]:
    """A function from a kind of store and a name to such a store."""
    stores: list[Store] = []

    def opening(kind: str, name: str) -> Store:
        target: Any
        if kind == "redis":
            server = request.getfixturevalue("server")
            target = f"{server.url}?prefix={tmp_path.name}-{name}:"
        elif kind == "postgres":
            target = f"{request.getfixturevalue('database')}&schema={name}"
        elif kind == "tiered":
            target = TieredStore(opening("redis", name), opening("postgres", name))
        elif kind == "five methods":
            target = InMemoryCheckpointStore()
        elif kind == "encrypted":
            stores.append(open_store(f"{tmp_path}/{name}-sealed.db", encryption=b"k" * 32))
            return stores[-1]
        else:
            target = {
                "memory": "memory://",
                "sqlite": f"{tmp_path}/{name}.db",
                "file": f"file://{tmp_path}/{name}",
            }[kind]
        stores.append(open_store(target))
        return stores[-1]

    yield opening
    for store in stores:
        store.close()


def survey(store: Store, **settings: Any) -> StateGraph:
    """Counts, asks, and adds what was answered."""

    def ask(state: State, ctx: NodeContext) -> dict[str, Any]:
        dived = once("dive", lambda: state.get("dives", 0) + 1)
        return {"dives": dived, "depth": pause("How deep?", schema=int), "key": ctx.idempotency_key}

    graph = StateGraph(name="survey")
    graph.add_node("count", run=lambda state: {"kelp": [1, (2, 3), {4}], "large": "x" * 20_000})
    graph.add_node("ask", run=ask)
    graph.add_node("add", run=lambda state: {"sum": state["depth"] + len(state["kelp"])})
    graph.set_entry_point("count").add_edge("count", "ask").add_edge("ask", "add").set_finish_point("add")
    return graph.compile(store=store, preserve=True, **settings)


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_a_run_resumes_in_any_other_store(source: str, target: str, opened: Opener, tmp_path: Path) -> None:
    """P5, P10: a paused run is answered after the journey; a completed one keeps its history."""
    here, there = survey(opened(source, "here")), survey(opened(target, "there"))
    here.invoke({"given": 1}, run_id="r", tags=["x", "y"]).wait()
    here.export_run("r", tmp_path / "r.run")
    assert there.import_run(tmp_path / "r.run") == "r"
    (old,), (new,) = here.runs(), there.runs()
    assert new._replace(created=0, updated=0) == old._replace(created=0, updated=0)
    assert (new.questions[0].prompt, new.tags, new.status) == ("How deep?", ("x", "y"), "paused")
    assert there.resume("r", 5) == here.resume("r", 5)
    there.export_run("r", tmp_path / "done.run")
    assert survey(opened(source, "back")).import_run(tmp_path / "done.run", "again") == "again"
    back = survey(open_store("memory://"))
    back.import_run(tmp_path / "done.run")
    assert back.history("r") == there.history("r")
    assert [back.state_at("r", step) for step in range(4)] == [here.state_at("r", step) for step in range(4)]
    assert back.verify("r").ok
    assert back.fork("r", 1, new_run_id="f").wait().status == "paused"


def test_a_run_may_get_another_id(tmp_path: Path) -> None:
    """P6: it is then a run of its own, next to the old one, with idempotency keys of its own."""
    graph = survey(MemoryStore())
    graph.invoke({}, run_id="r").wait()
    graph.export_run("r", tmp_path / "r.run")
    with pytest.raises(RunExists):
        graph.import_run(tmp_path / "r.run")
    assert graph.import_run(tmp_path / "r.run", "s") == "s"
    assert graph.resume("s", 5)["key"] == "s/2/ask"
    assert (graph.runs("paused")[0].run_id, graph.state_at("r").run_id) == ("r", "r")
    assert graph.resume("r", 1)["key"] == "r/2/ask"
    assert [each.run_id for each in graph.history("s")] == ["s"] * 4
    with pytest.raises(UsageError, match="a run id must be"):
        graph.import_run(tmp_path / "r.run", "")


def test_what_was_known_of_a_run_is_exported_with_it(tmp_path: Path) -> None:
    """P5: forks know their parents, failed runs their errors, and purged ones that they are complete."""

    def fragile(state: State) -> dict[str, Any]:
        return {"n": 10 // state["by"]}

    made, other = (
        StateGraph(name="f").add_node("only", run=fragile).set_entry_point("only").set_finish_point("only")
        for _ in range(2)
    )
    made.compile(store=MemoryStore(), keep_result=False)
    other.compile(store=f"sqlite:///{tmp_path}/other.db")
    with pytest.raises(ExecutionError):
        made.execute({"by": 0}, run_id="failed")
    made.fork("failed", update={"by": 5}, new_run_id="fork")
    made.execute({"by": 1}, run_id="purged")
    for run_id in ("failed", "fork", "purged"):
        made.export_run(run_id, tmp_path / "file")
        other.import_run(tmp_path / "file")
    infos = {info.run_id: info for info in other.runs()}
    assert infos["fork"].forked_from == "failed@0"
    assert (infos["failed"].error or {})["type"] == "ZeroDivisionError"
    assert other.resume("fork")["n"] == 2
    assert other.resume("failed", {"by": 2})["n"] == 5
    assert infos["purged"].status == "completed"
    assert other.verify("purged").purged


def test_a_crashed_run_resumes_elsewhere_and_one_that_is_running_is_refused(tmp_path: Path) -> None:
    """P5, P8: crashes that it had where it came from count once, and never as fewer attempts."""
    here, there = survey(MemoryStore()), survey(MemoryStore())
    run = here.stream({}, run_id="r")
    next(run)
    with pytest.raises(Conflict):
        here.export_run("r", tmp_path / "r.run")
    assert not (tmp_path / "r.run").exists()
    run.close()
    here.export_run("r", tmp_path / "r.run")
    there.import_run(tmp_path / "r.run")
    with pytest.raises(RunPaused):
        there.resume("r")
    assert there.resume("r", 1)["sum"] == 4


def test_crashes_elsewhere_are_no_attempts_here(tmp_path: Path) -> None:
    """P5: nor do they make attempts here fewer, although this store knows of none."""
    attempts: list[int] = []
    store = MemoryStore()

    def made(store: MemoryStore) -> StateGraph:
        graph = StateGraph(name="line")
        for name in ("a", "b", "c"):
            graph.add_node(name, run=lambda state, ctx: attempts.append(ctx.attempt))
        graph.set_entry_point("a").add_edge("a", "b").add_edge("b", "c").set_finish_point("c")
        return graph.compile(store=store, preserve=True)

    here, there = made(store), made(MemoryStore())
    for checkpoint in (None, "r@1"):
        given: dict[str, Any] = {"checkpoint": checkpoint} if checkpoint else {"run_id": "r"}
        with suppress(StopIteration), closing(here.stream(**given)) as run:
            next(run)
        for _ in range(3):  # holders that never come back
            store.claim("r", "other", -1.0)
    assert store.head("r").crashes > 3
    here.export_run("r", tmp_path / "r.run")
    there.import_run(tmp_path / "r.run")
    attempts.clear()
    there.resume("r")
    assert attempts == [1]
    assert there.verify("r").ok


def test_a_workflow_is_carried_too(tmp_path: Path) -> None:
    """P5: with the layers that are done."""
    ran: list[str] = []

    def made() -> Workflow:
        flow = Workflow("tasks", store=MemoryStore())
        flow.add_task("first", lambda: ran.append("first") or 2)
        flow.add_task("ask", lambda first: first * pause("How many?", schema=int), ["first"])
        return flow

    here, there = made(), made()
    here.invoke({}, run_id="w").wait()
    here.export_run("w", tmp_path / "w.run")
    there.import_run(tmp_path / "w.run", "v")
    assert there.resume("v", 21).results["ask"] == 42
    assert ran == ["first"]


def test_a_file_that_is_damaged_anywhere_is_refused_as_a_whole(tmp_path: Path) -> None:
    """H5: every byte changed, every length cut; nothing is imported."""
    graph = survey(MemoryStore())
    graph.invoke({}, run_id="r").wait()
    graph.export_run("r", tmp_path / "r.run")
    data = (tmp_path / "r.run").read_bytes()
    store = MemoryStore()
    other, path = survey(store), tmp_path / "damaged.run"
    for place in range(len(data)):
        for damaged in (data[:place], data[:place] + bytes([data[place] ^ 0x20]) + data[place + 1 :]):
            path.write_bytes(damaged)
            with pytest.raises(StoreError, match=r"not an exported run|is damaged"):
                other.import_run(path)
    path.write_bytes(data + b"more")
    with pytest.raises(StoreError, match="is damaged"):
        other.import_run(path)
    assert store.list(RunFilter()) == []


def resealed(data: bytes, version: int, contents: bytes) -> bytes:
    """A file whose checksum is right."""
    start = data[:12] + bytes([version]) + len(contents).to_bytes(8, "big")
    return start + sha256(start + contents).digest() + contents


def test_a_file_that_is_whole_but_not_to_be_read_is_refused(tmp_path: Path) -> None:
    """P10: a newer format, invalid contents, records of another run, a file that isn't there."""
    from limpet.journal.encoding.codec import decode, encode

    graph, path = survey(MemoryStore()), tmp_path / "r.run"
    graph.invoke({}, run_id="r").wait()
    graph.export_run("r", path)
    data = path.read_bytes()
    contents = decode(data[53:])
    store = MemoryStore()
    other = survey(store)
    path.write_bytes(resealed(data, 2, data[53:]))
    with pytest.raises(UnsupportedFormat, match="newer Limpet"):
        other.import_run(path)
    for change in ({"status": "odd"}, {"tags": None}, {"records": ["text"]}, {"graph": 5}, {"note": None}):
        path.write_bytes(resealed(data, 1, encode({**contents, **change})))
        with pytest.raises(StoreError, match="contents are invalid"):
            other.import_run(path)
    path.write_bytes(resealed(data, 1, encode([])))
    with pytest.raises(StoreError, match="contents are invalid"):
        other.import_run(path)
    for change in ({"run_id": "s"}, {"records": contents["records"][1:]}):
        path.write_bytes(resealed(data, 1, encode({**contents, **change})))
        with pytest.raises(DamagedRecord):
            other.import_run(path)
    with pytest.raises(StoreUnavailable, match="can't be read: it doesn't exist"):
        other.import_run(tmp_path / "missing.run")
    with pytest.raises(StoreUnavailable, match="can't be written"):
        graph.export_run("r", tmp_path / "missing" / "r.run")
    with pytest.raises(RunNotFound):
        graph.export_run("missing", path)
    assert store.list(RunFilter()) == []


def test_damage_is_not_carried_any_further(tmp_path: Path) -> None:
    """H5: the run is named, no file is written, and a fork of what is sound can be carried."""
    store = MemoryStore()
    graph = survey(store)
    graph.invoke({}, run_id="r").wait()
    records = store._runs["r"].records  # type: ignore[index]  # it is open
    records[-1] = changed_at_its_end(records[-1])
    with pytest.raises(DamagedRecord, match="of run 'r'"):
        graph.export_run("r", tmp_path / "r.run")
    assert list(tmp_path.iterdir()) == []


def test_a_pruned_run_is_carried_from_its_first_whole_record_on(tmp_path: Path) -> None:
    """P9: what is left of it."""
    store = MemoryStore()
    graph = survey(store)
    graph.invoke({}, run_id="r").wait()
    graph.rollback("r", 1)
    store.prune("r", 2)
    assert not (found := graph.verify("r")).damaged
    graph.export_run("r", tmp_path / "r.run")
    other = survey(MemoryStore())
    other.import_run(tmp_path / "r.run")
    assert other.state_at("r") == graph.state_at("r")
    assert other.verify("r").steps == found.steps
    with pytest.raises(RunPaused):
        other.resume("r")
    assert other.resume("r", 3)["depth"] == 3
