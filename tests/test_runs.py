"""`Runs`: what can be done with stored runs without running them, and without the code of their graph."""

from __future__ import annotations

import asyncio
import inspect
from pathlib import Path
from typing import Annotated, Any

import pytest

from limpet import (
    Conflict,
    MemoryStore,
    RunNotFound,
    Runs,
    StateGraph,
    UsageError,
    pause,
    secret,
)


def survey(store: Any, **settings: Any) -> StateGraph:
    """A graph that counts, then asks, then is done."""
    graph = StateGraph({"n": int, "word": str, "key": Annotated[str, secret]}, name="survey")
    graph.add_node("count", run=lambda state: {"n": state["n"] + 1, "key": "xyzzy"})
    graph.add_node("ask", run=lambda state: {"word": pause("Which word?")})
    graph.add_edge("count", "ask").set_entry_point("count").set_finish_point("ask")
    return graph.compile(store=store, preserve=True, **settings)


def asked(store: Any, run_id: str = "r", **settings: Any) -> StateGraph:
    graph = survey(store, **settings)
    graph.invoke({"n": 1}, run_id=run_id, tags=["weekly"]).wait()
    return graph


def test_runs_are_listed_and_looked_at_without_their_graph() -> None:
    store = MemoryStore()
    asked(store)
    runs = Runs(store)
    assert [info.run_id for info in runs.list()] == ["r"]
    assert [info.run_id for info in runs.list("paused", "survey", "weekly", 1)] == ["r"]
    assert runs.list("completed") == runs.list(graph="other") == runs.list(tag="daily") == []
    info = runs.get("r")
    assert (info.status, info.node, [question.prompt for question in info.questions]) == (
        "paused",
        "ask",
        ["Which word?"],
    )
    assert [each.node for each in runs.history("r")][-1] == "count"
    with pytest.raises(RunNotFound):
        runs.get("missing")
    with pytest.raises(UsageError, match="status is one of"):
        runs.list("done")


def test_states_and_differences_mask_what_was_secret_when_the_run_was_created() -> None:
    store = MemoryStore()
    graph = asked(store)
    runs = Runs(store)
    first, last = runs.history("r")[0].step, runs.history("r")[-1].step
    for found in (runs.state("r"), runs.diff("r", first, last)):
        assert "xyzzy" not in repr(found)
    assert runs.state("r")["key"] == "xyzzy"
    assert runs.diff("r", first, last) == graph.diff("r", first, last)
    assert runs.state("r", last) == graph.state_at("r", last)
    assert runs.secrets("r") == {"key"}


def test_an_answer_is_stored_for_a_supervisor_and_a_run_can_be_cancelled() -> None:
    store = MemoryStore()
    graph = asked(store)
    asked(store, "s")
    runs = Runs(store)
    runs.answer("r", "kelp")
    assert runs.get("r").status == "running"
    with pytest.raises(UsageError, match=r"has no open question; to resume it, call resume\("):
        runs.answer("r", "sponge")
    assert graph.recover() == ["r"]
    assert runs.state("r")["word"] == "kelp"
    runs.cancel("s")
    assert runs.get("s").status == "cancelled"


def test_a_fork_and_a_rollback_are_checked_against_the_graph() -> None:
    store = MemoryStore()
    graph = asked(store)
    graph.resume("r", "kelp")
    step = graph.history("r")[0].step
    for call in (lambda: Runs(store).fork("r", step), lambda: Runs(store).rollback("r", step)):
        with pytest.raises(UsageError, match=r"Runs\(store, graph=…\)"):
            call()
    runs = Runs(store, graph)
    made = runs.fork("r", step, {"n": 10}, new_run_id="f", tags="forked")
    assert (made, runs.get("f").status, runs.get("f").tags) == ("f", "paused", ("forked",))
    assert runs.state("f")["n"] == 10
    assert runs.rollback("r", step) == runs.state("r", step)
    assert runs.get("r").status == "paused"
    other = (
        StateGraph(name="other")
        .add_node("a", run=lambda state: {})
        .set_entry_point("a")
        .set_finish_point("a")
    )
    with pytest.raises(UsageError, match="belongs to graph 'survey'"):
        Runs(store, other).fork("r")


def test_a_run_is_carried_to_another_store_and_deleted(tmp_path: Path) -> None:
    store = MemoryStore()
    asked(store)
    here, there = Runs(store), Runs(f"sqlite:///{tmp_path}/there.db")
    here.export("r", tmp_path / "r.run")
    assert there.import_(tmp_path / "r.run", "s") == "s"
    assert there.verify("s").ok
    assert there.state("s") == here.state("r")
    here.delete("r")
    with pytest.raises(RunNotFound):
        here.get("r")


def test_a_running_run_is_shown_where_it_is_now() -> None:
    store = MemoryStore()
    graph = survey(store)
    run = graph.stream({"n": 1}, run_id="r")
    next(run)
    runs = Runs(store)
    info = runs.with_position(runs.get("r"))
    assert (info.status, info.node) == ("running", "ask")
    with pytest.raises(Conflict):
        runs.delete("r")
    runs.cancel("r")
    run.wait()
    assert (run.status, runs.with_position(runs.get("r"))) == ("cancelled", runs.get("r"))


def test_every_method_has_an_async_twin() -> None:
    """H7: it takes the same and gives the same."""
    methods = [name for name, _ in inspect.getmembers(Runs, inspect.isfunction) if not name.startswith("_")]
    plain = [name for name in methods if not inspect.iscoroutinefunction(getattr(Runs, name))]
    assert {f"a{name}" for name in plain} == {*methods} - {*plain}
    for name in plain:
        assert inspect.signature(getattr(Runs, f"a{name}")) == inspect.signature(getattr(Runs, name))
    store = MemoryStore()
    asked(store)
    assert asyncio.run(Runs(store).aget("r")) == Runs(store).get("r")
