"""Goto: a node says itself which node is next. The targets are declared, so that they can be checked and drawn."""

from __future__ import annotations

import asyncio
import pickle
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial, wraps
from multiprocessing import get_context
from typing import Annotated, Any, Literal

import pytest

from limpet import (
    END,
    DefinitionError,
    ExecutionError,
    Goto,
    MemoryStore,
    Retry,
    RunPaused,
    StateGraph,
    UsageError,
    Workflow,
    append,
)


def log(name: str) -> Any:
    return lambda state: {"log": name}


def three(run: Any, goto: Any = ("b", "c", END), **settings: Any) -> StateGraph:
    """a, which may go anywhere, an edge to b, and c after b."""
    graph = StateGraph({"log": Annotated[list, append], "x": int}, name="three")
    graph.add_node("a", run, goto=goto).add_node("b", log("b")).add_node("c", log("c"))
    graph.add_edge("a", "b").add_edge("b", "c").set_entry_point("a").set_finish_point("c")
    return graph.compile(**settings)


@pytest.mark.parametrize(("target", "visited"), [("b", ["b", "c"]), ("c", ["c"]), (END, [])])
def test_a_node_goes_where_it_says_and_its_update_is_applied(target: str, visited: list[str]) -> None:
    """Goto: it takes precedence over the edges; sync and async."""
    graph = three(lambda state: Goto(target, {"x": 1}), store=MemoryStore())
    assert graph.execute({}) == {"log": visited, "x": 1}

    async def later(state: Any) -> Goto[Any]:
        await asyncio.sleep(0)
        return Goto(target, {"x": 2})

    graph = three(later)
    assert graph.execute({}) == {"log": visited, "x": 2}
    assert asyncio.run(_executed(graph)) == {"log": visited, "x": 2}


async def _executed(graph: StateGraph) -> Any:
    return await graph.aexecute({})


def test_a_node_that_returns_no_goto_follows_its_edges() -> None:
    """Goto: the declaration alone changes nothing; changes in place and reducers work as ever."""

    def run(state: Any) -> Any:
        state["x"] = 5
        if state["log"]:
            return Goto("c", {"log": "jump"})
        return {"log": "edge"}

    assert three(run).execute({}) == {"log": ["edge", "b", "c"], "x": 5}
    assert three(run).execute({"log": ["given"]}) == {"log": ["given", "jump", "c"], "x": 5}
    assert three(lambda state: Goto("c")).execute({}) == {"log": ["c"]}


def test_the_annotation_of_the_function_declares_targets() -> None:
    """Goto: alone, in a union, and as text; `goto=` has precedence."""

    def alone(state: Any) -> Goto[Literal["c"]]:
        return Goto("c")

    def union(state: Any) -> dict[str, Any] | Goto[Literal["b", "c"]]:
        return Goto("c")

    for run in (alone, union):
        assert three(run, goto=None).execute({}) == {"log": ["c"]}
    assert three(alone, goto=None).compiled().plan.nodes["a"].goto == ("c",)
    with pytest.raises(ExecutionError, match="isn't one of its targets: 'b'"):
        three(alone, goto=["b"]).execute({})


Next = Goto[Literal["b", "c"]]


def test_the_annotation_is_found_on_whatever_can_be_called() -> None:
    """Goto: on a method, an object, what is wrapped; whatever the other annotations name."""

    class Elsewhere:
        """Known inside of this test only, as what is imported for type checkers is."""

    def plain(state: Elsewhere) -> Goto[Literal["b", "c"]]:
        return Goto("c")

    def with_more(more: int, state: Any) -> Goto[Literal["b", "c"]]:
        return Goto("c")

    def by_alias(state: Any) -> Next | None:
        return Goto("c")

    class Node:
        def __call__(self, state: Any) -> Goto[Literal["b", "c"]]:
            return Goto("c")

        def method(self, state: Any) -> Goto[Literal["b"]] | Goto[Literal["c"]]:
            return Goto("c")

    @wraps(plain)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return plain(*args, **kwargs)

    for run in (plain, partial(with_more, 1), by_alias, Node(), Node().method, wrapped):
        graph = three(run, goto=None)
        assert graph.compiled().plan.nodes["a"].goto == ("b", "c"), run
        assert graph.execute({}) == {"log": ["c"]}


def test_an_annotation_that_cannot_be_read_declares_nothing() -> None:
    """Goto: a class that only type checkers know, or no targets at all."""

    def unknown(state: Any) -> Goto[Literal["c"]] | Unheard:  # type: ignore[name-defined]  # noqa: F821
        return None

    def unnamed(state: Any) -> Goto[Any]:
        return Goto("c")

    for run in (unknown, unnamed, len):
        assert three(run, goto=None).compiled().plan.nodes["a"].goto == ()


def test_an_undeclared_target_fails_the_node_and_nothing_is_lost() -> None:
    """Goto: it isn't retried, as it would fail again; a resume calls the node again."""
    targets = ["nowhere", "c"]
    graph = StateGraph(name="g").add_node("a", lambda state: Goto(targets.pop(0), {"x": 1}), retry=Retry(5))
    graph.add_node("b").add_node("c").add_edge("a", "b").add_edge("b", "c").set_entry_point("a")
    graph.set_finish_point("c").compile(store=MemoryStore())
    with pytest.raises(ExecutionError) as caught:
        graph.execute({"n": 1}, run_id="r")
    assert "node 'a' returned Goto('nowhere'), which isn't one of its targets: none" in str(caught.value)
    assert "declare it with add_node('a', …, goto=[…, 'nowhere'])" in str(caught.value)
    assert graph.state_at("r") == {"n": 1}
    with pytest.raises(ExecutionError, match=r"Goto\('c'\)"):
        graph.resume("r")


@pytest.mark.parametrize(
    ("goto", "reason"),
    [
        ("b", "must be a list"),
        ([1], "must be a list"),
        (5, "must be a list"),
        (["bb"], "the goto of 'a': there is no node 'bb'; did you mean 'b'"),
        (["inner/x"], "there is no node 'inner/x'"),
    ],
)
def test_wrong_targets_are_a_definition_error(goto: Any, reason: str) -> None:
    """Goto: a target is a node of the same graph, or END."""
    with pytest.raises(DefinitionError, match=reason):
        three(lambda state: None, goto=goto)


def test_a_goto_needs_a_function() -> None:
    """Goto: neither an empty node nor a graph inside can return one."""
    for run in (None, StateGraph(name="inner").add_node("x").set_entry_point("x").set_finish_point("x")):
        with pytest.raises(
            DefinitionError, match="node 'a' has a goto, and no function that could return one"
        ):
            StateGraph().add_node("a", run, goto=[END])
    with pytest.raises(UsageError, match="the target is the name of a node, or END, not None"):
        Goto(None)  # type: ignore[type-var]


def test_targets_count_as_edges() -> None:
    """Goto: nodes are reached by them, a graph ends by them, and a node that has them leads somewhere."""
    graph = StateGraph(name="g").add_node("a", lambda state: Goto("b"), goto=["b"])
    graph.add_node("b", lambda state: Goto(END, {"end": True}), goto=["a", END]).set_entry_point("a")
    assert graph.execute({}) == {"end": True}
    one_print = graph.compiled().plan.fingerprint
    graph.add_node("c").set_finish_point("c")
    with pytest.raises(DefinitionError, match="node 'c' can't be reached"):
        graph.compile()
    graph.add_edge("a", "c")
    assert graph.compiled().plan.fingerprint != one_print
    lost = StateGraph(name="lost").add_node("a", lambda state: None, goto=[END]).set_entry_point("a")
    with pytest.raises(ExecutionError, match="node 'a' returned no Goto, and no edge leads on from it"):
        lost.execute({})


def test_an_interrupt_after_the_node_keeps_where_it_goes() -> None:
    """Goto: the choice is stored with the stop, whatever the resume changes; also through fork and rollback."""
    calls = []

    def run(state: Any) -> Goto[Any]:
        calls.append(1)
        return Goto("c", {"log": "a"})

    graph = three(run, store=MemoryStore(), interrupt_after=["a"], preserve=True)
    with pytest.raises(RunPaused, match="interrupted after 'a'"):
        graph.execute({}, run_id="r")
    fork = graph.fork("r")
    assert graph.resume("r", update={"x": 9}) == {"log": ["a", "c"], "x": 9}
    with pytest.raises(RunPaused, match="interrupted after 'a'"):
        fork.result()
    assert graph.resume(fork.id) == {"log": ["a", "c"]}
    graph.rollback("r", 1)
    assert graph.resume("r")["log"] == ["a", "c"]
    assert calls == [1]


def test_a_run_whose_target_the_graph_no_longer_has_is_refused_and_loses_nothing() -> None:
    """Goto: as a run is that is at such a node."""
    store = MemoryStore()
    graph = three(lambda state: Goto("c"), store=store, interrupt_after=["a"])
    with pytest.raises(RunPaused):
        graph.execute({}, run_id="r")
    other = StateGraph(name="three").add_node("a", lambda state: None).set_entry_point("a")
    other.set_finish_point("a").compile(store=store)
    with pytest.raises(DefinitionError, match="about to go to node 'c', which is no longer in the graph"):
        other.resume("r")
    assert graph.resume("r")["log"] == ["c"]


def test_a_run_is_at_the_target_after_a_crash(tmp_path: Any) -> None:
    """Goto, invariant 4: another process with other edges resumes it there, and the node isn't called again."""
    path = tmp_path / "runs.db"
    calls: list[str] = []

    def first(state: Any) -> Goto[Any]:
        calls.append("a")
        return Goto("c")

    def crash(state: Any) -> None:
        raise SystemExit

    graph = StateGraph(name="g").add_node("a", first, goto=["b", "c"]).add_node("b").add_node("c", crash)
    graph.add_edge("b", "c").set_entry_point("a").set_finish_point("c").compile(store=str(path))
    with pytest.raises(SystemExit):
        graph.execute({}, run_id="r")
    other = StateGraph(name="g").add_node("a", first, goto=["b", "c"]).add_node("b").add_node("c", log("c"))
    other.add_edge("b", "c").set_entry_point("a").set_finish_point("c").compile(store=str(path))
    assert other.resume("r") == {"log": "c"}
    assert calls == ["a"]


def test_in_branches_a_goto_may_lead_to_the_fan_in() -> None:
    """Goto: a branch goes its own way, and ends at its fan-in or END; a fan-in may go anywhere itself."""

    def work(state: Any) -> Any:
        return Goto([END, "join", "more"][state["item"]], {"done": state["item"]})

    def join(state: Any, parallel_results: Any) -> Any:
        assert "parallel_results" in state
        return Goto(END, {**state, "all": [each["done"] for each in parallel_results]})

    graph = StateGraph({"item": int, "done": object, "all": list}, name="g").add_node("split")
    graph.add_node("work", work, goto=[END, "join", "more"]).add_node("more", lambda state: {"done": "more"})
    graph.add_fanin_node("join", join, goto=[END]).add_node("after").add_edge("join", "after")
    graph.add_map("split", "work", lambda state: range(3), "join").set_entry_point("split")
    graph.set_finish_point("after").compile(store=MemoryStore())
    assert graph.execute({}) == {"all": [0, 1, "more"]}


def test_a_subgraph_goes_its_own_way() -> None:
    """Goto: targets are those of the graph that the node is in; END ends that graph alone."""
    inner = StateGraph(name="inner").add_node("x", lambda state: Goto(END, {"x": 1}), goto=[END])
    inner.add_node("y", log("y")).add_edge("x", "y").set_entry_point("x").set_finish_point("y")
    outer = StateGraph(name="outer").add_node("in", inner).add_node("out", lambda state: {"y": state["x"]})
    outer.add_edge("in", "out").set_entry_point("in").set_finish_point("out")
    assert outer.execute({}) == {"x": 1, "y": 1}


def test_a_goto_takes_no_delay_of_an_edge_to_the_same_node() -> None:
    """Goto: it isn't that edge."""
    graph = StateGraph(name="g").add_node("a", lambda state: Goto("b"), goto=["b"]).add_node("b")
    graph.add_edge("a", "b", delay=3600).set_entry_point("a").set_finish_point("b")
    assert graph.compile(store=MemoryStore()).execute({}) == {}


def test_observers_see_the_transition_and_secrets_stay_hidden() -> None:
    """Goto: `edge.transition` has it; a bad update of a secret key isn't shown."""
    seen: list[Any] = []
    graph = StateGraph(name="g", observer=seen.append).add_node("a", lambda state: Goto("b"), goto=["b"])
    graph.add_node("b").set_entry_point("a").set_finish_point("b").compile().execute({})
    moves = [event.data for event in seen if event.type == "edge.transition"]
    assert [(each["from"], each["to"]) for each in moves] == [("a", "b")]


@dataclass
class Draft:
    """A state with a class."""

    text: str = ""
    size: int = 0


def test_a_typed_node_may_go_with_an_instance() -> None:
    """Goto: the update may be whatever the node could return otherwise, and is checked as that is."""

    def write(state: Draft) -> Goto[Literal["c"]]:
        return Goto("c", replace(state, text="kelp"))

    def wrong(state: Draft) -> Goto[Literal["c"]]:
        state.size = 3
        return Goto("c", {"text": 7})

    def graph(run: Any) -> StateGraph[Any]:
        built = StateGraph(Draft, name="typed").add_node("a", run).add_node("b").add_node("c")
        built.add_edge("a", "b").add_edge("b", "c").set_entry_point("a").set_finish_point("c")
        return built.compile()

    assert graph(write).execute({})["text"] == "kelp"
    with pytest.raises(ExecutionError, match="text"):
        graph(wrong).execute({})


def test_a_task_that_returns_a_goto_is_refused() -> None:
    """Goto: a workflow has dependencies in place of edges."""
    with pytest.raises(
        ExecutionError, match="task 't' returned a Goto, which is for the nodes of a StateGraph"
    ):
        Workflow("w").add_task("t", lambda: Goto("x")).execute({})


def in_pool(state: Any) -> Goto[Any]:
    return Goto("join", {"done": state["item"]})


def test_a_goto_comes_back_from_a_process_pool() -> None:
    """Goto: it can be pickled."""
    assert pickle.loads(pickle.dumps(Goto("a", {"x": 1}))) == Goto("a", {"x": 1})
    with ProcessPoolExecutor(1, mp_context=get_context("fork")) as pool:
        graph = StateGraph({"item": int, "done": int}, name="g").add_node("split")
        graph.add_node("work", in_pool, goto=["join"]).add_node("other").add_edge("work", "other")
        graph.add_fanin_node("join", lambda state, parallel_results: {"done": len(parallel_results)})
        graph.add_map("split", "work", lambda state: range(2), "join").set_entry_point("split")
        graph.set_finish_point("join").compile(executor=pool)
        assert graph.execute({}) == {"done": 2}


def test_every_picture_shows_where_a_node_may_go() -> None:
    """Goto: with lines of their own in SVG, Mermaid and text, from a draft and from a plan."""
    graph = three(lambda state: None, goto=["c", END])
    assert '-.->|"goto"|' in graph.draw(format="mermaid")
    assert graph.draw(format="text").count("goto") == 2
    assert 'class="lp-line lp-goto"' in graph.draw(format="svg")
