"""H6, F12: the state in a branch, after each step between the one that opened it and the one that joins it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated, Any

import pytest

from limpet import MemoryStore, Runs, State, StateGraph, UsageError, Workflow, secret
from limpet.graphs.secrets import MASK
from support.graphs import chain, fan


def adding(key: str) -> Callable[[State], dict[str, Any]]:
    """A node that sets a key."""
    return lambda state: {key: len(state)}


def two_branches(store: Any) -> StateGraph:
    """Branches of two nodes and of one, with a preserved run, "r"."""
    branches = {"a": [adding("first"), adding("second")], "b": adding("other")}
    graph = fan(branches, lambda state: {"joined": True}, source=adding("seen"))
    graph.compile(store=store, preserve=True).execute({}, run_id="r")
    return graph


def test_the_state_of_a_branch_is_read_at_its_steps(any_store: Any) -> None:
    """H6: with the code of the graph and without it."""
    graph = two_branches(any_store)
    steps = {each.node: each.step for each in graph.history("r")}
    for runs in (Runs(any_store), Runs(any_store, graphs=[graph])):
        assert runs.state("r", steps["src"], branch="a") == {"seen": 0}
        assert runs.state("r", steps["a"], branch="a") == {"seen": 0, "first": 1}
        assert runs.state("r", steps["a2"], branch="a") == {"seen": 0, "first": 1, "second": 2}
        assert runs.state("r", steps["b"], branch="b") == {"seen": 0, "other": 1}
        found = runs.diff("r", steps["a2"] - 1, steps["a2"], branch="a")
        assert (found.added, found.removed, found.changed) == ({"second": 2}, {}, {})
        assert runs.diff("r", steps["src"], steps["a2"], branch="b").added == {"other": 1}
    assert graph.state_at("r", steps["b"]) == {"seen": 0}
    assert graph.state_at("r", steps["b"], branch="b") == {"seen": 0, "other": 1}
    assert asyncio.run(graph.astate_at("r", steps["b"], branch="b")) == {"seen": 0, "other": 1}
    assert asyncio.run(graph.adiff("r", steps["b"] - 1, steps["b"], branch="b")).added == {"other": 1}


@pytest.mark.parametrize("step", [0, None], ids=["before", "after"])
@pytest.mark.parametrize("branch", ["a", "none", "a/b", "join"])
def test_a_branch_that_is_not_open_is_refused(step: int | None, branch: str) -> None:
    """H6: before its section, after it, and if there never was one."""
    graph = two_branches(MemoryStore())
    with pytest.raises(UsageError, match=f"run 'r' has no branch {branch!r} after step") as refused:
        graph.state_at("r", step, branch=branch)
    assert refused.value.advice == "history() lists its steps, with their branches"
    with pytest.raises(UsageError, match="has no branch"):
        graph.diff("r", 0, 1, branch=branch)


def test_items_of_a_map_are_branches_of_their_own() -> None:
    """H6: by the number of the item."""
    graph = StateGraph(name="map").add_node("src", run=lambda state: {"items": ["x", "y", "z"]})
    graph.add_node("page", run=lambda state: {"length": len(state["item"]) + ord(state["item"])})
    graph.add_map("src", each="page", over="items", fan_in="join").add_fanin_node(
        "join", run=lambda state: {}
    )
    graph.set_entry_point("src").set_finish_point("join")
    graph.compile(store=MemoryStore(), preserve=True).execute({}, run_id="r")
    for checkpoint in graph.history("r")[2:-1]:
        item = graph.state_at("r", checkpoint.step, branch=checkpoint.branch)
        assert item["length"] == 1 + ord(item["item"])
        assert checkpoint.branch == f"page[{'xyz'.index(item['item'])}]"


def test_the_graph_that_a_task_runs_has_the_name_of_the_task() -> None:
    """H6: its steps are about its own state."""
    inner = chain(adding("one"), adding("two"), names=["first", "second"])
    flow = Workflow("outer", store=MemoryStore(), preserve=True)
    flow.add_task("steps", inner, depends_on=[]).add_task("after", lambda steps: steps["two"])
    flow.execute({}, run_id="r")
    (step,) = [each for each in flow.history("r") if each.node == "second"]
    assert step.branch == "steps"
    assert flow.diff("r", step.step - 1, step.step, branch="steps").added == {
        "two": flow.state_at("r", step.step, branch="steps")["two"]
    }


def test_secrets_of_branches_stay_masked() -> None:
    """H6: in print, of a state and of a difference."""
    schema = {"seen": int, "key": Annotated[str, secret]}
    graph = fan(
        {"a": lambda state: {"key": "hunter2"}}, lambda state: {}, schema=schema, source=adding("seen")
    )
    store = MemoryStore()
    graph.compile(store=store, preserve=True, allow_plain_text_secrets=True).execute({}, run_id="r")
    (step,) = [each.step for each in graph.history("r") if each.node == "a"]
    for runs in (Runs(store), Runs(store, graphs=[graph])):
        assert runs.state("r", step, branch="a")["key"] == "hunter2"
        shown = f"{runs.state('r', step, branch='a')} {runs.diff('r', step - 1, step, branch='a')}"
        assert "hunter2" not in shown
        assert MASK in shown
