"""D12: pruning the checkpoints of a run as a call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from limpet import (
    MemoryStore,
    RunNotFound,
    RunPaused,
    Runs,
    StateGraph,
    UsageError,
    Workflow,
    open_store,
    pause,
)
from limpet.engine.operations import prune as operation
from limpet.journal.store import Store


def counting(store: Any, steps: int = 9) -> StateGraph:
    graph = StateGraph({"n": int, "seen": list}, name="count")
    graph.add_node(
        "count", run=lambda state: {"n": state["n"] + 1, "seen": [*state.get("seen", []), state["n"]]}
    )
    graph.add_node("ask", run=lambda state: {"said": pause("more?")})
    graph.add_edge("count", "count", lambda state: state["n"] < steps)
    graph.add_edge("count", "ask").set_entry_point("count").set_finish_point("ask")
    return graph.compile(store=store, preserve=True)


def paused(store: Any) -> StateGraph:
    graph = counting(store)
    with pytest.raises(RunPaused):
        graph.execute({"n": 0}, run_id="r")
    return graph


def steps(graph: Any, run_id: str = "r") -> list[int]:
    return [each.step for each in graph.history(run_id)]


@pytest.fixture(params=["memory", "sqlite", "files", "postgres"])
def any_store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    urls: dict[str, Callable[[], str]] = {
        "memory": lambda: "memory://",
        "sqlite": lambda: f"sqlite:///{tmp_path}/runs.db",
        "files": lambda: f"file://{tmp_path}/runs",
        "postgres": lambda: request.getfixturevalue("database"),
    }
    return open_store(urls[request.param]())


def test_the_newest_checkpoints_stay_and_the_run_is_as_it_was(any_store: Store) -> None:
    """D12, D5: exactly as many as were asked for, although there was no snapshot there."""
    graph = paused(any_store)
    info = graph.runs()[0]
    before = {step: graph.state_at("r", step) for step in steps(graph)[-3:]}
    assert graph.prune_checkpoints("r", keep=3) == len(range(10)) - 3
    assert steps(graph) == sorted(before)
    assert {step: graph.state_at("r", step) for step in steps(graph)} == before
    assert graph.verify("r").ok
    after = graph.runs()[0]
    assert after._replace(updated=0) == info._replace(updated=0)
    assert graph.prune_checkpoints("r", keep=3) == 0
    with pytest.raises(UsageError, match="has no step 1 "):
        graph.state_at("r", 1)
    assert graph.resume("r", "no") == {"n": 9, "seen": list(range(9)), "said": "no"}
    any_store.close()


def test_a_pruned_run_can_be_forked_and_rolled_back_where_it_was_kept() -> None:
    """D12, H6: a rollback writes a snapshot of its own, which is kept in its place."""
    graph = paused(MemoryStore())
    graph.rollback("r", 7)
    with pytest.raises(RunPaused):
        graph.resume("r")
    assert graph.prune_checkpoints("r", keep=5) > 0
    kept = steps(graph)
    assert len(kept) == 5
    assert graph.verify("r").ok
    assert graph.fork("r", kept[0]).wait().status == "paused"
    assert graph.rollback("r", kept[1])["n"] == graph.state_at("r", kept[1])["n"]


def test_a_completed_run_keeps_its_result() -> None:
    """D12: and stays complete."""
    graph = paused(MemoryStore())
    graph.resume("r", "no")
    assert graph.prune_checkpoints("r", 1) == 10
    assert (graph.runs()[0].status, graph.state_at("r")["said"]) == ("completed", "no")
    assert len(steps(graph)) == 1


def test_the_layers_of_a_workflow_are_its_checkpoints() -> None:
    """D12, D5."""
    flow = Workflow("w", store=MemoryStore(), preserve=True, keep=None)
    for number in range(6):
        flow.add_task(f"t{number}", lambda number=number: number, [f"t{number - 1}"] if number else [])
    flow.execute(run_id="r")
    assert len(flow.checkpoints("r")) == 6
    assert flow.prune_checkpoints("r", keep=2) == 4
    assert len(flow.checkpoints("r")) == 2
    assert flow.checkpoint("r").state.results == {f"t{number}": number for number in range(6)}
    assert flow.verify("r").ok


def test_while_a_process_advances_the_run_only_what_a_snapshot_replaces_is_deleted() -> None:
    """D12: the run isn't disturbed, and nothing is written to it."""
    store = MemoryStore()
    graph = counting(store)
    run = graph.stream({"n": 0}, run_id="r")
    for _ in range(5):
        next(run)
    sequence = store.head("r").sequence
    assert Runs(store).prune_checkpoints("r", keep=2) == 0
    assert store.head("r").sequence == sequence
    assert [event["type"] for event in run][-1] == "pause"
    assert graph.prune_checkpoints("r", keep=2) == 8


def test_a_crash_between_the_two_writes_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """D12: the records are there twice then, and the next call deletes them."""
    store = MemoryStore()
    graph = paused(store)
    before = {step: graph.state_at("r", step) for step in steps(graph)}
    monkeypatch.setattr(operation, "_prune_to_snapshot", lambda *_: 0)
    graph.prune_checkpoints("r", keep=3)
    assert {step: graph.state_at("r", step) for step in steps(graph)} == before
    assert graph.verify("r").ok
    graph.prune_checkpoints("r", keep=3)
    graph.prune_checkpoints("r", keep=2)
    monkeypatch.undo()
    assert graph.prune_checkpoints("r", keep=3) == 7
    assert {step: graph.state_at("r", step) for step in steps(graph)} == dict(list(before.items())[-3:])
    assert graph.resume("r", "no")["n"] == 9


def test_branches_in_progress_survive_pruning() -> None:
    """D12, F12."""
    graph = StateGraph(name="fan").add_node("split", run=lambda state: {})
    graph.add_node("a", run=lambda state: {"a": 1}).add_node("b", run=lambda state: {"b": pause("b?")})
    graph.add_fanin_node("join", run=lambda state, parallel_results: {"n": len(parallel_results)})
    graph.add_parallel_edge("split", "a", "join").add_parallel_edge("split", "b", "join")
    graph.set_entry_point("split").set_finish_point("join").compile(store=MemoryStore(), preserve=True)
    with pytest.raises(RunPaused):
        graph.execute({}, run_id="r")
    graph.prune_checkpoints("r", keep=1)
    assert len(steps(graph)) == 1
    assert graph.resume("r", "yes")["n"] == 2


def test_bad_calls_are_refused() -> None:
    """D12."""
    graph = paused(MemoryStore())
    for keep in (0, -1, 1.5, None, True):
        with pytest.raises(UsageError, match="keep must be a whole number"):
            graph.prune_checkpoints("r", keep)  # type: ignore[arg-type]
    with pytest.raises(RunNotFound):
        graph.prune_checkpoints("gone")
    purged = counting(MemoryStore()).compile(store=MemoryStore(), keep_result=False)
    with pytest.raises(RunPaused):
        purged.execute({"n": 0}, run_id="r")
    purged.resume("r", "no")
    assert purged.prune_checkpoints("r") == 0


def test_it_is_a_call_of_graphs_and_of_runs_with_async_versions() -> None:
    """D12, H7."""
    graph = paused(MemoryStore())
    assert asyncio.run(graph.aprune_checkpoints("r", keep=6)) == 4
    runs = Runs(graph.compiled().need_client("test").store)
    assert asyncio.run(runs.aprune_checkpoints("r")) == 1
    assert len(steps(graph)) == 5
