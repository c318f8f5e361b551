"""Queues: which workers execute which runs, however the runs were started. H18."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from limpet import DefinitionError, MemoryStore, Runs, State, StateGraph, UsageError, Workflow, supervise
from limpet.engine.node_context.node_context import NodeContext
from limpet.engine.supervisor import orphans
from limpet.journal.store import NewRun
from limpet.testing.conformance.store_calls import ManualClock
from support.graphs import single
from support.waiting import SOON, until


def plain(name: str = "plain", **settings: Any) -> StateGraph:
    """A graph of one node, which adds 1."""
    return single(lambda state: {"n": state["n"] + 1}, "add", {"n": int}, name).compile(**settings)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def test_a_run_is_in_the_queue_of_its_start_else_of_its_graph(store: MemoryStore) -> None:
    """H18: and else in the default one."""
    graph = plain(store=store, queue="gpu")
    assert graph.start({"n": 1}).info.queue == "gpu"
    assert graph.start({"n": 1}, queue="slow jobs").info.queue == "slow jobs"
    assert graph.start({"n": 1}, queue="late", delay=60).info.queue == "late"
    assert plain("other", store=store).start({"n": 1}).info.queue == "default"
    flow = Workflow("flow", store=store, queue="flows").add_task("t", run=lambda: 1)
    assert flow.start().info.queue == "flows"


def test_a_run_that_is_executed_here_is_in_the_queue_of_its_graph(store: MemoryStore) -> None:
    """H18: so that the right workers resume it after a crash of this process."""
    graph = plain(store=store, queue="gpu")
    graph.execute({"n": 1}, run_id="r")
    assert graph.get("r").info.queue == "gpu"


def test_a_fork_a_retry_and_an_import_keep_the_queue(store: MemoryStore, tmp_path: Path) -> None:
    """H18: whatever the queue of the graph is by then."""
    graph = plain(store=store, preserve=True)
    graph.start({"n": 1}, queue="gpu", run_id="r")
    runs = Runs(store, graph)
    with supervise(store, [graph], poll=0.02):
        graph.get("r").wait(SOON)
    forked = runs.fork("r", 0)
    assert runs.get(forked).info.queue == "gpu"
    runs.retry(forked)
    assert runs.get(forked).info.queue == "gpu"
    runs.export("r", tmp_path / "run")
    assert runs.get(runs.import_(tmp_path / "run", "copy")).info.queue == "gpu"


def test_the_first_of_two_equal_starts_counts(store: MemoryStore) -> None:
    """H18, H5: a start with another queue finds the run, and leaves it where it is."""
    graph = plain(store=store)
    graph.start({"n": 1}, run_id="r", queue="gpu")
    assert graph.start({"n": 1}, run_id="r", queue="cpu").info.queue == "gpu"


@pytest.mark.parametrize("name", ["", "a/b", "a,b", "a:b", " a", "a\n", "x" * 101, 7])
def test_names_of_queues_that_have_a_meaning_elsewhere_are_refused(store: MemoryStore, name: Any) -> None:
    """H18: where they are given."""
    graph = plain(store=store)
    with pytest.raises(UsageError, match="the name of a queue must be"):
        graph.start({"n": 1}, queue=name)
    with pytest.raises(DefinitionError, match="the name of a queue must be"):
        plain(store=store, queue=name)
    with pytest.raises(UsageError, match="the name of a queue must be"):
        supervise(store, [graph], queues=[name])


def test_a_supervisor_needs_at_least_one_queue(store: MemoryStore) -> None:
    """H18: an empty list is a mistake, and a single name is a list of one."""
    graph = plain(store=store)
    with pytest.raises(UsageError, match="leave it out to serve all"):
        supervise(store, [graph], queues=[])
    with pytest.raises(UsageError, match="must be a list of names, not 7"):
        supervise(store, [graph], queues=7)  # type: ignore[arg-type]
    assert supervise(store, [graph], queues="gpu").options.queues == ("gpu",)
    assert supervise(store, [graph], queues=["gpu", "cpu", "gpu"]).options.queues == ("gpu", "cpu")


def test_a_supervisor_executes_the_runs_of_its_queues(store: MemoryStore) -> None:
    """H18: and leaves the others, for which it isn't asked twice."""
    graph = plain(store=store)
    for queue in ("gpu", "cpu", "default"):
        graph.start({"n": 1}, run_id=queue, queue=queue)
    assert set(supervise(store, [graph], queues=["gpu", "default"]).drain()) == {"gpu", "default"}
    assert graph.get("cpu").shown_status == "queued"
    assert supervise(store, [graph]).drain() == ["cpu"]


def test_runs_are_listed_by_queue(store: MemoryStore) -> None:
    """H18: and changed by it."""
    graph = plain(store=store)
    for number, queue in enumerate(("gpu", "cpu", "gpu")):
        graph.start({"n": 1}, run_id=f"r{number}", queue=queue)
    runs = Runs(store)
    assert {info.run_id for info in runs.list(queue="gpu")} == {"r0", "r2"}
    assert [info.run_id for info in graph.runs(queue="cpu")] == ["r1"]
    assert runs.list(queue="none") == []
    assert runs.cancel(queue="gpu").done == 2
    assert [info.run_id for info in runs.list(status="cancelled", queue="gpu")] == ["r2", "r0"]
    with pytest.raises(UsageError, match="queue must be a non-empty str"):
        runs.list(queue="")


def test_a_crashed_run_is_left_to_the_workers_of_its_queue(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H18: also where the process is known to be dead, so that its lease isn't waited for."""
    monkeypatch.setattr(orphans, "is_dead", lambda holder: holder == "the dead")
    graph = plain(store=store)
    graph.start({"n": 1}, run_id="r", queue="gpu")
    store.claim("r", "the dead", 3600.0)
    others = supervise(store, [graph], queues=["cpu"])
    assert others.drain() == []
    assert store.head("r").holder == "the dead"
    assert others.skipped == {}
    right = supervise(store, [graph], queues=["gpu"])
    monkeypatch.setattr("limpet.engine.leases.lease_client.is_dead", lambda holder: holder == "the dead")
    assert right.drain() == ["r"]


def test_holders_in_other_queues_are_not_watched(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """H18: a dead holder that no worker of this queue replaces causes no look after the other."""
    monkeypatch.setattr(orphans, "is_dead", lambda holder: holder == "the dead")
    store.create(NewRun("r", "plain", [b"1"], holder="the dead", queue="gpu"))
    finder = supervise(store, [plain(store=store)], queues=["cpu"]).resumer.orphans
    assert [head.run_id for head in finder.find([])] == ["r"]
    assert finder.find([]) == []


def test_any_worker_fails_a_run_at_its_deadline() -> None:
    """H18, H16: it needs no code, so the queue doesn't matter."""
    clock = ManualClock()
    store = MemoryStore(clock=clock)
    graph = plain(store=store)
    graph.start({"n": 1}, run_id="r", queue="gpu", deadline=60)
    clock.advance(3600.0)
    supervise(store, [graph], queues=["cpu"]).drain()
    assert graph.get("r").status == "failed"
    assert "deadline" in (graph.get("r").info.reason or "")


def test_a_child_of_an_unknown_graph_in_another_queue_is_not_asked_for(store: MemoryStore) -> None:
    """H18, H16: its parent isn't called again for a worker that wouldn't execute the child anyway."""
    child = plain("child")

    def begin(state: State, ctx: NodeContext) -> dict[str, Any]:
        return {"n": ctx.join(ctx.start(child, {"n": 1}, queue="gpu"))["n"]}

    parent = single(begin, "begin", {"n": int}, "parent").compile(store=store)
    parent.start({"n": 0}, run_id="p")
    with supervise(store, [parent], queues=["default"], poll=0.02) as supervisor:
        until(lambda: parent.get("p").shown_status == "waiting")
        (started,) = parent.get("p").children()
        assert started.queue == "gpu"
        supervisor.resumer.stranded.look_soon()
        supervisor.resumer.stranded.look()
        assert supervisor.skipped == {}
    again = supervise(store, [single(begin, "begin", {"n": int}, "parent")], queues=["default"])
    again.drain()
    assert again.skipped == {}
    with supervise(store, [parent], queues=["default"], poll=0.02), supervise(store, [child], queues=["gpu"]):
        assert parent.get("p").result(SOON)["n"] == 2


@pytest.mark.parametrize(
    ("given", "of_graph", "expected"),
    [("given", "graph", "given"), (None, "graph", "graph"), (None, None, "parent"), ("given", None, "given")],
)
def test_a_child_is_in_the_queue_of_its_start_of_its_graph_or_of_its_parent(
    store: MemoryStore, given: str | None, of_graph: str | None, expected: str
) -> None:
    """H18, H16: in this order."""
    child = plain("child", queue=of_graph)

    def begin(state: State, ctx: NodeContext) -> dict[str, Any]:
        ctx.start(child, {"n": 1}, queue=given)
        return {"n": 1}

    parent = single(begin, "begin", {"n": int}, "parent").compile(store=store)
    run = parent.start({"n": 0}, queue="parent")
    supervise(store, [parent]).drain()
    (started,) = run.children()
    assert started.queue == expected


def test_a_worker_executes_queued_runs_when_the_clock_was_set_back() -> None:
    """H18: the store's clock is earlier by then than the creation of the run."""
    clock = ManualClock()
    store = MemoryStore(clock=clock)
    graph = plain(store=store)
    handle = graph.start({"n": 1})
    clock.set_by(-86400)
    assert handle.info.shown_at(clock()) == "queued"
    assert [info.run_id for info in Runs(store).list(status="queued")] == [handle.run_id]
    with supervise(store, [graph], poll=0.02):
        assert handle.result(SOON)["n"] == 2
