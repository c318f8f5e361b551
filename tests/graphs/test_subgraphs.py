"""Graphs inside of graphs: what passes in and out, where they stop, and how they look in the parent's journal."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from operator import add
from typing import Annotated, Any

import pydantic
import pytest

from limpet import (
    END,
    DefinitionError,
    ExecutionError,
    MemoryStore,
    NodeContext,
    RunPaused,
    Runs,
    State,
    StateGraph,
    UnstorableValue,
    UsageError,
    append,
    merge,
    once,
    pause,
)
from limpet.journal import snapshots as policy
from limpet.journal.records import snapshot_record
from limpet.journal.writer import JournalWriter
from support.graphs import AT_ONCE, Calls, Crash, Via, chain, gather


def line(
    *runs: Any, name: str = "sub", schema: Any = None, names: str = "xyz", **settings: Any
) -> StateGraph:
    """A graph of nodes x → y → …, one for each function or graph."""
    return chain(*runs, names=names, schema=schema, name=name, **settings)


def around(sub: StateGraph, *, schema: Any = None, name: str = "outer", **options: Any) -> StateGraph:
    """before → review (the graph) → after."""
    graph = (
        StateGraph(schema, name=name).add_node("before").add_node("review", sub, **options).add_node("after")
    )
    graph.add_edge("before", "review").add_edge("review", "after")
    return graph.set_entry_point("before").set_finish_point("after")


# What passes in and out


@pytest.mark.parametrize("kind", ["mappings", "functions"])
def test_what_passes_in_and_out_can_be_said(kind: str, place: dict[str, Any], via: Via) -> None:
    """F12: `{its key: our key}`, `{our key: its key}`, or functions of the one state and of the other."""
    sub = line(lambda state: {"total": state["n"] * 2, "keys": sorted(state)})
    if kind == "mappings":
        options: Any = {"inputs": {"n": "number"}, "outputs": {"twice": "total", "seen": "keys"}}
    else:
        options = {
            "inputs": lambda state: {"n": state["number"]},
            "outputs": lambda state: {"twice": state["total"], "seen": state["keys"]},
        }
    final = via.execute(around(sub, **options).compile(**place), {"number": 3, "k": 1})
    assert final == {"number": 3, "k": 1, "twice": 6, "seen": ["n"]}


def test_nothing_passes_where_nothing_is_said_to(place: dict[str, Any]) -> None:
    """F12: an empty mapping is one."""
    sub = line(lambda state: {"keys": sorted(state)})
    assert around(sub, inputs={}, outputs={}).compile(**place).execute({"k": 1}) == {"k": 1}
    assert around(sub, inputs={}).compile(**place).execute({"k": 1}) == {"k": 1, "keys": []}


@pytest.mark.parametrize(
    ("inner", "outer", "expected"),
    [
        (None, None, {"a": 1, "b": 2, "seen": ["a", "b"], "own": 1}),
        ({"a": int, "seen": list}, None, {"a": 1, "b": 2, "seen": ["a"], "own": 1}),
        (None, {"a": int, "b": int, "seen": list}, {"a": 1, "b": 2, "seen": ["a", "b"]}),
        ({"a": int, "seen": list}, {"b": int, "seen": list}, {"a": 1, "b": 2, "seen": ["a"]}),
    ],
    ids=["no schemas", "inner schema", "outer schema", "both"],
)
def test_by_default_the_keys_that_both_know_pass(
    inner: Any, outer: Any, expected: dict[str, Any], place: dict[str, Any], via: Via
) -> None:
    """F12: a graph without a schema knows all keys; one with a schema those that it names."""
    sub = line(lambda state: {"seen": sorted(state), "own": 1}, schema=inner)
    assert via.execute(around(sub, schema=outer).compile(**place), {"a": 1, "b": 2}) == expected


def test_a_graph_has_the_defaults_and_reducers_of_its_own_schema(place: dict[str, Any], via: Via) -> None:
    """F12: they start again at each visit."""

    @dataclass
    class Own:
        n: int = 0
        limit: int = 3
        log: Annotated[list[int], append] = field(default_factory=list)

    sub = line(lambda state: {"log": state["n"], "n": state["n"] + 1}, schema=Own)
    sub.add_edge("x", "x", lambda state: state["n"] < state["limit"])
    graph = StateGraph({"log": list, "rounds": int}, name="outer")
    graph.add_node("review", sub, inputs={}, outputs={"log": "log"})
    graph.add_node("count", run=lambda state: {"rounds": state["rounds"] + 1}).add_edge("review", "count")
    graph.add_edge("count", "review", lambda state: state["rounds"] < 2)
    graph.set_entry_point("review").set_finish_point("count").compile(**place)
    assert via.execute(graph, {"rounds": 0}) == {"rounds": 2, "log": [0, 1, 2]}


def test_a_pydantic_schema_checks_what_comes_in(store: Any, via: Via) -> None:
    """F12: with the error of the graph's node; fixed at the resume."""

    class Own(pydantic.BaseModel):
        n: int
        word: str = "w"

    calls = Calls()
    graph = around(line(lambda state: {"got": (state["n"], state["word"])}, schema=Own)).compile(store=store)
    with pytest.raises(ExecutionError, match="the input doesn't fit Own") as caught:
        via.execute(graph, {"n": "many"}, run_id="r")
    assert isinstance(caught.value.cause, UsageError)
    assert caught.value.node == "review"
    assert via.resume(graph, "r", {"n": 5})["got"] == (5, "w")
    assert calls.take() == []


def test_of_a_list_that_both_append_to_only_what_is_new_passes_out(place: dict[str, Any], via: Via) -> None:
    """F12: likewise with operator.add; a dict that both merge has the new entries."""
    schema = {"log": Annotated[list, append], "more": Annotated[list, add], "by": Annotated[dict, merge]}

    def work(state: State, node: str) -> dict[str, Any]:
        return {"log": node, "more": [node], "by": {node: 1}}

    final = via.execute(
        around(line(work, work, schema=schema), schema=schema).compile(**place),
        {"log": ["s"], "more": ["s"], "by": {"s": 0}},
    )
    assert final == {"log": ["s", "x", "y"], "more": ["s", "x", "y"], "by": {"s": 0, "x": 1, "y": 1}}


def test_what_follows_a_graph_is_reduced_as_ever(place: dict[str, Any], via: Via) -> None:
    """F12: a graph passes the whole list out once; nodes after it append again."""
    schema = {"log": Annotated[list, append], "by": Annotated[dict, merge]}

    def work(state: State, node: str) -> dict[str, Any]:
        return {"log": node, "by": {node: 1}}

    graph = StateGraph(schema, name="outer").add_node("review", line(work, schema=schema))
    graph.add_node("after", run=work).add_node("last", run=work)
    graph.add_edge("review", "after").add_edge("after", "last")
    graph.set_entry_point("review").set_finish_point("last").compile(**place)
    assert via.execute(graph, {"log": ["s"], "by": {"s": 0}}) == {
        "log": ["s", "x", "after", "last"],
        "by": {"s": 0, "x": 1, "after": 1, "last": 1},
    }


def test_what_is_reduced_inside_from_its_own_beginning_is_added_outside(
    place: dict[str, Any], via: Via
) -> None:
    """F12: a list that didn't pass in is all new, and takes nothing away from the one outside."""
    schema = {"n": int, "log": Annotated[list, append]}
    graph = around(line(lambda state: {"log": state["n"]}, schema=schema), schema=schema, inputs={"n": "n"})
    assert via.execute(graph.compile(**place), {"n": 1, "log": ["s"]}) == {"n": 1, "log": ["s", 1]}


def test_a_list_that_did_not_change_inside_is_not_appended_again(place: dict[str, Any]) -> None:
    """F12: neither one that only the outer schema appends to."""
    schema = {"log": Annotated[list, append]}
    assert around(line(None), schema=schema).compile(**place).execute({"log": [1, 2]}) == {"log": [1, 2]}
    sub = line(lambda state: {"log": [*state["log"], 3]})
    assert around(sub, schema=schema).compile(**place).execute({"log": [1, 2]}) == {"log": [1, 2, 3]}


@pytest.mark.parametrize(
    ("reducer", "start", "inside", "expected"),
    [(add, 5, 3, 8), (add, "a", "b", "ab"), (lambda old, new: old + new, (1,), (2,), (1, 2))],
    ids=["number", "text", "function"],
)
def test_what_both_reduce_is_reduced_once(
    reducer: Any, start: Any, inside: Any, expected: Any, via: Via
) -> None:
    """F12: whatever the reducer is, the outcome inside is the outcome."""
    schema = {"n": Annotated[type(start), reducer]}
    graph = around(line(lambda state: {"n": inside}, schema=schema), schema=schema)
    assert via.execute(graph, {"n": start}) == {"n": expected}


def test_what_a_graph_does_inside_is_not_seen_outside_before_it_is_done(store: Any, via: Via) -> None:
    """F12, invariant 8: nor if it fails, whatever it altered in place."""
    fixed: list[int] = []

    def alter(state: State) -> None:
        state["log"].append("x")
        state["deep"]["k"].append(1)
        state["new"] = 1

    def fails(state: State) -> None:
        if not fixed:
            raise ValueError

    graph = around(line(alter, fails)).compile(store=store)
    start = {"log": [], "deep": {"k": []}}
    with pytest.raises(ExecutionError) as caught:
        via.execute(graph, start, run_id="r")
    assert caught.value.state == {"log": ["x"], "deep": {"k": [1]}, "new": 1}
    assert graph.state_at("r") == start
    fixed.append(1)
    assert via.resume(graph, "r") == {"log": ["x"], "deep": {"k": [1]}, "new": 1}


@pytest.mark.parametrize("side", ["inputs", "outputs"])
@pytest.mark.parametrize("how", ["raises", "no dict", "missing key", "odd key"])
def test_passing_that_goes_wrong_fails_at_the_node_and_can_be_fixed(side: str, how: str, via: Via) -> None:
    """F12, H3: what is finished inside doesn't run again."""
    calls, store = Calls(), MemoryStore()

    def wrong(state: State) -> Any:
        if how == "raises":
            raise OSError("no disk")
        return {1: 2} if how == "odd key" else 5

    message = {
        "raises": "OSError: no disk",
        "no dict": f"the function for the {side} of graph 'sub' must return a dict, not int",
        "missing key": f"the {side} of graph 'sub' take 'ghost', which the state doesn't have",
        "odd key": "a state key must be a str, not int",
    }[how]
    given: Any = {"v": "ghost"} if how == "missing key" else wrong
    graph = around(line(calls, calls), **{side: given}).compile(store=store)
    with pytest.raises(ExecutionError, match=message) as caught:
        via.execute(graph, {"k": 1}, run_id="r")
    assert caught.value.node == "review"
    assert calls.take_in_order() == ([] if side == "inputs" else ["review/x", "review/y"])
    graph = around(line(calls, calls), **{side: {"v": "k"}}).compile(store=store)
    assert via.resume(graph, "r")["v" if side == "outputs" else "x"] in (1, True)
    assert calls.take_in_order() == (["review/x", "review/y"] if side == "inputs" else [])


@pytest.mark.parametrize("side", ["inputs", "outputs"])
def test_what_passes_must_be_storable(side: str, store: Any, via: Via) -> None:
    """F12, H4: the error has the path."""
    graph = around(line(None), **{side: lambda state: {"x": [object()]}}).compile(store=store)
    with pytest.raises(ExecutionError, match=r"x\[0\] can't be stored") as caught:
        via.execute(graph, {}, run_id="r")
    assert isinstance(caught.value.cause, UnstorableValue)
    assert caught.value.node == "review"


def test_anything_passes_without_a_store(via: Via) -> None:
    """F12: nothing is stored then."""
    lock = threading.Lock()
    final = via.execute(
        around(line(lambda state: {"same": state["lock"] is lock, "f": print})), {"lock": lock}
    )
    assert (final["same"], final["f"]) == (True, print)


# Names, context and errors


def test_graphs_may_be_nested_and_their_nodes_have_the_whole_path(place: dict[str, Any], via: Via) -> None:
    """F12: `outer/review/inner`; the graph that a node is handed is its own."""
    seen: list[Any] = []

    def look(
        state: State, ctx: NodeContext, config: dict[str, Any], graph: StateGraph, node: str
    ) -> dict[str, Any]:
        seen.append((ctx.branch, node, graph.name, config, ctx.run_id, ctx.index))
        return {"n": state["n"] + 1}

    deep = line(look, name="deep", names="pq")
    middle = line(look, deep, name="middle")
    final = via.execute(around(middle).compile(**place), {"n": 0}, config={"c": 1}, run_id="r")
    assert final == {"n": 2}
    assert seen == [
        ("review", "x", "middle", {"c": 1}, "r", None),
        ("review/y", "p", "deep", {"c": 1}, "r", None),
    ]


@pytest.mark.parametrize("failing", ["review/x", "review/y/p", "review/z"])
def test_a_failure_inside_names_its_path_and_only_that_is_done_again(
    failing: str, store: Any, via: Via
) -> None:
    """F12, H3: at every depth."""
    calls = Calls()
    calls.fail.add(failing)
    graph = around(line(calls, line(calls, name="deep", names="pq"), calls)).compile(store=store)
    with pytest.raises(ExecutionError, match=f"no {failing} today") as caught:
        via.execute(graph, {}, run_id="r")
    assert caught.value.node == failing
    assert caught.value.path[0] == "before"
    assert caught.value.path[-1] == failing
    everything = ["review/x", "review/y/p", "review/z"]
    assert calls.take_in_order() == everything[: everything.index(failing) + 1]
    (info,) = graph.runs()
    assert (info.node, info.error and info.error["node"]) == (failing, failing)
    calls.fail.clear()
    assert via.resume(graph, "r") == {"x": True, "p": True, "z": True}
    assert calls.take_in_order() == everything[everything.index(failing) :]


def test_one_graph_may_be_used_in_several_places(place: dict[str, Any], via: Via) -> None:
    """F12: in one graph, in parallel, in two graphs, and by itself."""
    sub = line(lambda state: {"n": state["n"] + 1}, lambda state: {"n": state["n"] * 10})
    graph = StateGraph(name="outer").add_node("one", sub).add_node("two", sub).add_edge("one", "two")
    for name in ("a", "b"):
        graph.add_node(name, sub).add_parallel_edge("two", name, "join")
    graph.add_fanin_node("join", run=gather).set_entry_point("one").set_finish_point("join").compile(**place)
    assert via.execute(graph, {"n": 0}) == {"n": 110, "results": [{"n": 1110}, {"n": 1110}]}
    assert via.execute(around(sub).compile(**place), {"n": 1}) == {"n": 20}
    assert via.execute(sub.compile(**place), {"n": 2}) == {"n": 30}


def test_what_a_graph_was_compiled_with_for_itself_is_not_used_inside() -> None:
    """F12: its steps are in the parent's journal."""
    own, outer = MemoryStore(), MemoryStore()
    sub = line(None).compile(store=own, preserve=True)
    around(sub).compile(store=outer, preserve=True).execute({}, run_id="r")
    assert Runs(own).list() == []
    assert [info.run_id for info in around(sub).compile(store=outer).runs()] == ["r"]


def test_a_graph_inside_has_its_own_budget_each_time(place: dict[str, Any], via: Via) -> None:
    """F12, G2: `max_iterations` of the inner graph counts inside; the outer's counts the node once."""
    sub = line(lambda state: {"n": state["n"] + 1}, max_iterations=10)
    sub.add_edge("x", "x", lambda state: state["n"] % 10)
    graph = StateGraph(name="outer", max_iterations=3).add_node("review", sub)
    graph.add_edge("review", "review", lambda state: state["n"] < 30)
    graph.set_entry_point("review").set_finish_point("review").compile(**place)
    assert via.execute(graph, {"n": 0}) == {"n": 30}
    with pytest.raises(ExecutionError, match=r"max_iterations \(10\) exceeded") as caught:
        via.execute(graph, {"n": 0.5})
    assert caught.value.node == "review/x"


def test_sync_and_async_nodes_work_inside(place: dict[str, Any], via: Via) -> None:
    """F12, H7: with choices and an END inside."""

    async def wait(state: State) -> dict[str, Any]:
        await asyncio.sleep(0)
        return {"n": state["n"] + 1}

    sub = line(wait, lambda state: wait(state), lambda state: pytest.fail("ran"))
    sub._draft.edges = [way for way in sub._draft.edges if way.source != "y"]
    sub.add_conditional_edges("y", lambda state: state["n"] > 1, {True: END, False: "z"})
    assert via.execute(around(sub).compile(**place), {"n": 0}) == {"n": 2}


# Retries


def test_a_graph_that_is_tried_again_continues_where_it_failed(place: dict[str, Any], via: Via) -> None:
    """F12, H8: what it finished isn't done again; the node's policy counts the attempts."""
    calls: list[str] = []

    def work(state: State, node: str) -> dict[str, Any]:
        calls.append(node)
        if node == "y" and calls.count("y") < 3:
            raise ValueError
        return {node: True}

    final = via.execute(around(line(work, work, work), retry=AT_ONCE).compile(**place), {})
    assert final == {"x": True, "y": True, "z": True}
    assert calls == ["x", "y", "y", "y", "z"]


def test_graphs_in_branches_are_tried_again_each_by_itself(place: dict[str, Any], via: Via) -> None:
    """F12, H8: in parallel."""
    calls: list[tuple[str, str]] = []

    def work(state: State, ctx: NodeContext) -> dict[str, Any]:
        where = (str(ctx.branch), ctx.node)
        calls.append(where)
        if ctx.node == "y" and calls.count(where) < 3:
            raise ValueError
        return {ctx.node: calls.count(where)}

    sub = line(work, work)
    graph = StateGraph(name="g").add_node("src").add_fanin_node("join", run=gather)
    for name in "ab":
        graph.add_node(name, sub, retry=AT_ONCE).add_parallel_edge("src", name, "join")
    final = via.execute(graph.set_entry_point("src").set_finish_point("join").compile(**place), {})
    assert final["results"] == [{"x": 1, "y": 3}] * 2
    assert len(calls) == 8


def test_branches_inside_of_a_graph_that_is_tried_again_are_kept(store: Any, via: Via) -> None:
    """F12, H8, H3: the failed one alone."""
    calls = Calls()
    calls.fail.add("review/p/p")
    sub = line(None, name="sub")
    for name in "pq":
        sub.add_node(name, run=calls).add_parallel_edge("x", name, "join")
    sub.add_fanin_node("join", run=gather)
    sub._draft.exits.clear()
    graph = around(sub.set_finish_point("join"), retry=AT_ONCE).compile(store=store)
    with pytest.raises(ExecutionError):
        via.execute(graph, {}, run_id="r")
    assert calls.take() == ["review/p/p"] * 3 + ["review/q/q"]
    calls.fail.clear()
    assert via.resume(graph, "r")["results"] == [{"p": True}, {"q": True}]
    assert calls.take() == ["review/p/p"]


def test_a_resume_gives_a_graph_all_its_attempts_again(store: Any, via: Via) -> None:
    """F12, H8: as it does a node."""
    calls = Calls()
    calls.fail.add("review/x")
    graph = around(line(calls), retry=AT_ONCE).compile(store=store)
    with pytest.raises(ExecutionError):
        via.execute(graph, {}, run_id="r")
    assert len(calls.take()) == 3
    with pytest.raises(ExecutionError):
        via.resume(graph, "r")
    assert len(calls.take()) == 3


def test_an_answer_gives_a_graph_no_attempt_back(store: Any, via: Via) -> None:
    """F12, H8: it counts as many attempts as the policy allows, whether it asks in between or not."""
    calls: list[bool] = []

    def work(state: State, ctx: NodeContext) -> None:
        calls.append(True)
        if len(calls) > 1:
            ctx.pause("go on?")
        raise ValueError("never")

    graph = around(line(work), retry=AT_ONCE).compile(store=store)
    via.paused(graph, {})
    with pytest.raises(ExecutionError, match="never"):
        via.resume(graph, "r", True)
    assert len(calls) == 4, "the second attempt was called twice: before the answer and with it"


@pytest.mark.parametrize("what", ["inputs", "outputs"])
def test_what_passes_in_and_out_of_a_graph_is_not_tried_again(
    what: str, place: dict[str, Any], via: Via
) -> None:
    """F12, H8: a function that fails on a state fails on the same state again."""
    calls: list[str] = []

    def fails(state: State) -> dict[str, Any]:
        calls.append(what)
        raise ValueError("no such key")

    graph = around(line(None), retry=AT_ONCE, **{what: fails}).compile(**place)
    with pytest.raises(ExecutionError, match="no such key"):
        via.execute(graph, {})
    assert calls == [what]


def test_an_interrupted_process_leaves_a_graph_where_it_was(store: Any, via: Via) -> None:
    """F12, H3: with what its once() kept."""
    calls: list[str] = []

    def work(state: State, node: str) -> dict[str, Any]:
        once("k", calls.append, f"once {node}")
        calls.append(node)
        if calls.count("y") == 1 and node == "y":
            raise Crash
        return {node: True}

    graph = around(line(work, work)).compile(store=store)
    with pytest.raises(Crash):
        via.execute(graph, {}, run_id="r")
    assert via.resume(graph, "r") == {"x": True, "y": True}
    assert calls == ["once x", "x", "once y", "y", "y"]


# Stops


@pytest.mark.parametrize("same_graph", [True, False], ids=["same graph", "new graph"])
def test_a_question_inside_comes_out_with_its_path(same_graph: bool, store: Any, via: Via) -> None:
    """F12, P1: readable from the list of runs, and answered like any other."""

    def make() -> StateGraph:
        deep = line(
            lambda state: {"answer": pause("Ship it?", choices=["yes", "no"])}, name="deep", names="p"
        )
        return around(line(None, deep)).compile(store=store)

    graph = make()
    with pytest.raises(RunPaused, match=r"'review/y/p' asks: Ship it\?") as caught:
        via.execute(graph, {"k": 1}, run_id="r")
    (question,) = caught.value.questions
    assert caught.value.node == question.node == "review/y/p"
    graph = graph if same_graph else make()
    (info,) = graph.runs("paused")
    assert (info.node, info.questions) == ("review/y/p", [question])
    with pytest.raises(UsageError):
        via.resume(graph, "r", "perhaps")
    assert via.resume(graph, "r", "yes") == {"k": 1, "answer": "yes"}


def test_questions_of_the_same_node_at_different_visits_have_different_ids(store: Any, via: Via) -> None:
    """F12, P1: an answer belongs to its visit."""
    sub = line(lambda state: {"log": [*state["log"], pause("Next?")]}, schema={"log": list})
    graph = StateGraph(name="outer").add_node("review", sub)
    graph.add_edge("review", "review", lambda state: len(state["log"]) < 3)
    graph.set_entry_point("review").set_finish_point("review").compile(store=store)
    ids = []
    with pytest.raises(RunPaused) as caught:
        via.execute(graph, {"log": []}, run_id="r")
    for answer in "ab":
        ids.append(caught.value.questions[0].id)
        with pytest.raises(RunPaused) as caught:
            via.resume(graph, "r", answers={ids[-1]: answer})
    ids.append(caught.value.questions[0].id)
    assert via.resume(graph, "r", "c") == {"log": ["a", "b", "c"]}
    assert len(set(ids)) == 3


@pytest.mark.parametrize("kind", ["interrupt_before", "interrupt_after"])
@pytest.mark.parametrize("by", ["path", "own compile", "both"])
def test_a_graph_inside_stops_where_either_says(kind: str, by: str, store: Any, via: Via) -> None:
    """F12, F5: the parent, by the path, or the graph's own compile; together they stop it once."""
    calls = Calls()
    sub = line(calls, calls)
    if by != "path":
        sub.compile(store=MemoryStore(), **{kind: ["y"]})
    graph = around(sub).compile(store=store, **({} if by == "own compile" else {kind: ["review/y"]}))
    with pytest.raises(RunPaused) as caught:
        via.execute(graph, {}, run_id="r")
    assert caught.value.node == "review/y"
    assert calls.take_in_order() == ["review/x"] + ["review/y"] * (kind == "interrupt_after")
    assert via.resume(graph, "r") == {"x": True, "y": True}
    assert calls.take() == ["review/y"] * (kind == "interrupt_before")


@pytest.mark.parametrize("kind", ["interrupt_before", "interrupt_after"])
def test_a_node_that_runs_a_graph_stops_as_any_other(kind: str, store: Any, via: Via) -> None:
    """F12, F5: before all of it, or after all of it."""
    calls = Calls()
    graph = around(line(calls, calls)).compile(store=store, **{kind: ["review"]})
    with pytest.raises(RunPaused) as caught:
        via.execute(graph, {}, run_id="r")
    assert caught.value.node == "review"
    inside = ["review/x", "review/y"]
    assert calls.take_in_order() == (inside if kind == "interrupt_after" else [])
    via.resume(graph, "r")
    assert calls.take_in_order() == (inside if kind == "interrupt_before" else [])


def test_stops_at_all_depths_come_one_after_the_other(store: Any, via: Via) -> None:
    """F12, F5: before and after the graph, and before and after its node, each once."""
    stops = ["review", "review/x", "review/y/p"]
    graph = around(line(None, line(None, name="deep", names="p")))
    graph.compile(store=store, interrupt_before=stops, interrupt_after=stops)
    places = []
    with pytest.raises(RunPaused) as caught:
        via.execute(graph, {}, run_id="r")
    for _ in range(5):
        places.append(caught.value.node)
        with pytest.raises(RunPaused) as caught:
            via.resume(graph, "r")
    places.append(caught.value.node)
    via.resume(graph, "r")
    assert places == ["review", "review/x", "review/x", "review/y/p", "review/y/p", "review"]


def test_an_update_at_a_resume_reaches_the_graph_that_stopped(store: Any, via: Via) -> None:
    """F12, F6: and the state around it."""
    sub = line(None, lambda state: {"seen": state["approved"]})
    graph = around(sub).compile(store=store, interrupt_before=["review/y"])
    with pytest.raises(RunPaused):
        via.execute(graph, {"k": 1}, run_id="r")
    assert via.resume(graph, "r", {"approved": True}) == {"k": 1, "approved": True, "seen": True}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("review/ghost", "there is no node 'ghost'"),
        ("before/x", "leads into 'before', which doesn't run a graph"),
        ("ghost/x", "leads into 'ghost', which doesn't run a graph"),
        ("review/x/y", "leads into 'x', which doesn't run a graph"),
        ("review/", "there is no node ''"),
    ],
)
def test_an_interrupt_at_an_unknown_path_is_an_error_that_names_it(name: str, message: str) -> None:
    """F12, F3: at compile time."""
    with pytest.raises(DefinitionError, match=message):
        around(line(None)).compile(store=MemoryStore(), interrupt_before=[name])


@pytest.mark.parametrize("by", ["path", "own compile"])
def test_interrupts_inside_without_anywhere_to_save_are_an_error(by: str) -> None:
    """F12, F3: as they are anywhere else."""
    sub = line(None)
    if by == "own compile":
        sub.compile(store=MemoryStore(), interrupt_before=["x"])
    with pytest.raises(DefinitionError, match="interrupts need somewhere to save the run"):
        around(sub).compile(interrupt_before=["review/x"] if by == "path" else [])


# Definitions


def test_two_threads_may_make_plans_of_one_graph_at_once() -> None:
    """F12: what one of them is about to do isn't taken for a graph inside itself by the other."""
    inner = line(None, name="inner")
    outers = [around(inner, name=f"outer-{number}") for number in range(2)]
    meeting = threading.Barrier(2, timeout=30)
    frozen_node = inner._frozen_node

    def meet(*args: Any) -> Any:
        meeting.wait()  # both are in the middle of it
        return frozen_node(*args)

    inner._frozen_node = meet  # type: ignore[method-assign]
    with ThreadPoolExecutor(2) as threads:
        compiled = list(threads.map(lambda outer: outer.compile(), outers))
    assert [graph.execute({"k": 1})["k"] for graph in compiled] == [1, 1]


def test_a_graph_can_not_contain_itself() -> None:
    """F12: directly, through another one, or as the graph of a map; fixed, it runs."""
    graph = line(None, name="me")
    graph.add_node("again", graph).add_edge("x", "again", lambda state: False)
    graph.set_finish_point("again")
    with pytest.raises(DefinitionError, match="the graph contains itself"):
        graph.compile()
    one, other = line(None, name="one"), line(None, name="other")
    one.add_node("o", other).add_edge("x", "o", lambda state: False).set_finish_point("o")
    other.add_node("o", one).add_edge("x", "o", lambda state: False).set_finish_point("o")
    with pytest.raises(DefinitionError, match="the graph contains itself"):
        one.compile()
    other._draft.nodes.pop("o")
    other._draft.edges.clear()
    other._draft.exits.pop("o")
    assert one.compile().execute({"k": 1}) == {"k": 1}


def test_a_graph_can_not_contain_itself_as_the_graph_of_a_map() -> None:
    """F12: each item would run all of it."""
    graph = StateGraph(name="me").add_node("src").add_fanin_node("join")
    graph.set_entry_point("src").set_finish_point("join").add_map("src", graph, "items", "join")
    with pytest.raises(DefinitionError, match=r"contains itself|there is no node 'me'"):
        graph.compile()


def test_mistakes_in_a_graph_inside_are_found_when_the_outer_one_is_compiled() -> None:
    """F12, G2: with the name of the graph that they are in."""
    with pytest.raises(DefinitionError, match=r"graph 'sub': 3 mistakes:\n  - no entry point"):
        around(StateGraph(name="sub").add_node("x")).compile()


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: around(line(None), timeout=1), "is a graph; give its own nodes the timeout"),
        (
            lambda: StateGraph().add_node("x", run=print, inputs={"a": "b"}),
            "inputs and outputs are for a graph",
        ),
        (lambda: StateGraph().add_node("x", outputs={"a": "b"}), "inputs and outputs are for a graph"),
        (lambda: around(line(None), inputs=5), "not callable"),
        (lambda: around(line(None), inputs=lambda state, ctx: {}), "takes the state, and nothing else"),
        (lambda: around(line(None), outputs=lambda: {"a": 1}), "takes the state, and nothing else"),
    ],
)
def test_options_that_make_no_sense_are_refused(build: Callable[[], Any], message: str) -> None:
    """F12: when they are given."""
    with pytest.raises(DefinitionError, match=message):
        build()


def test_a_run_that_stands_inside_of_a_graph_that_has_changed_says_so(store: Any) -> None:
    """F12, F10: a node that is gone inside, or a node that runs no graph any more."""
    graph = around(line(None, None)).compile(store=store, interrupt_before=["review/y"])
    run = graph.invoke({}).wait()
    with pytest.raises(DefinitionError, match=r"'review/y', which is no longer in the graph"):
        around(line(None)).compile(store=store).resume(run.id)
    plain = StateGraph(name="outer").add_node("before").add_node("review").add_node("after")
    plain.add_edge("before", "review").add_edge("review", "after").set_entry_point("before").set_finish_point(
        "after"
    )
    with pytest.raises(DefinitionError, match=r"'review'"):
        plain.compile(store=store).resume(run.id)
    assert graph.resume(run.id) == {}


# History


def everything(calls: Calls, **settings: Any) -> StateGraph:
    """start → review (x → p | q → join → y) → section (a → a2 | b) → end → done."""
    sub = StateGraph({"k": int}, name="sub")
    for name in ("x", "p", "q", "y"):
        sub.add_node(name, run=calls)
    sub.add_fanin_node("join", run=gather).add_parallel_edge("x", "p", "join").add_parallel_edge(
        "x", "q", "join"
    )
    sub.add_edge("join", "y").set_entry_point("x").set_finish_point("y")
    graph = StateGraph(name="everything")
    for name in ("start", "a", "a2", "b", "done"):
        graph.add_node(name, run=calls)
    graph.add_node("review", sub, outputs={"reviewed": "y"}).add_edge("start", "review").add_edge("a", "a2")
    graph.add_parallel_edge("review", "a", "end").add_parallel_edge("review", "b", "end")
    graph.add_fanin_node("end", run=gather).add_edge("end", "done")
    graph.set_entry_point("start").set_finish_point("done")
    return graph.compile(**{"store": MemoryStore(), "preserve": True, "max_concurrency": 1, **settings})


FINAL = {
    "k": 1, "start": True, "reviewed": True, "done": True,
    "results": [
        {"k": 1, "start": True, "reviewed": True, "a": True, "a2": True},
        {"k": 1, "start": True, "reviewed": True, "b": True},
    ],
}  # fmt: skip


def test_the_history_has_every_finished_node_with_its_branch(store: Any, via: Via) -> None:
    """F12, H6: of graphs and sections, in the order they were finished in, each a step of the run."""
    graph = everything(Calls(), store=store)
    assert via.execute(graph, {"k": 1}, run_id="r") == FINAL
    steps = graph.history("r")
    assert [each.step for each in steps] == list(range(13))
    found = [(each.branch, each.node) for each in steps]
    assert found[:3] == [(None, None), (None, "start"), ("review", "x")]
    assert sorted(found[3:5]) == [("review/p", "p"), ("review/q", "q")]
    assert found[5:8] == [("review", "join"), ("review", "y"), (None, "review")]
    assert sorted(found[8:11]) == [("a", "a"), ("a", "a2"), ("b", "b")]
    assert found[11:] == [(None, "end"), (None, "done")]
    by_node = {(each.branch, each.node): each for each in steps}
    assert by_node["a", "a"].next == "a2"
    assert by_node["a", "a"].keys == ("a",)
    assert by_node["b", "b"].next == END
    assert by_node[None, "review"].keys == ("reviewed",)
    assert by_node["review", "join"].keys == ("results",)
    assert all(each.timestamp for each in steps)


def test_the_state_at_a_step_inside_is_the_main_one(store: Any) -> None:
    """F12, H6: what is inside becomes part of it with the node or the fan-in; so says the difference."""
    graph = everything(Calls(), store=store)
    graph.execute({"k": 1}, run_id="r")
    states = [graph.state_at("r", step) for step in range(13)]
    assert states[0] == {"k": 1}
    assert all(state == {"k": 1, "start": True} for state in states[1:7])
    assert all(state == {"k": 1, "start": True, "reviewed": True} for state in states[7:11])
    assert states[12] == FINAL
    assert not graph.diff("r", 2, 6)
    assert graph.diff("r", 1, 7).added == {"reviewed": True}
    assert list(graph.diff("r", 8, 11).added) == ["results"]


@pytest.mark.parametrize("step", range(13))
def test_a_fork_of_any_step_keeps_what_was_finished_by_then(step: int, via: Via) -> None:
    """F12, H6: also of branches and graphs that were under way; the rest is done in the new run."""
    calls = Calls()
    graph = everything(calls)
    via.execute(graph, {"k": 1}, run_id="r")
    order = calls.take()
    fork = graph.fork("r", step, new_run_id="fork")
    assert via.resume(graph, fork.id) == FINAL
    done = [each for each in graph.history("r")[1 : step + 1] if each.node not in ("join", "end", "review")]
    kept = [f"{each.branch}/{each.node}" if each.branch else each.node for each in done]
    assert calls.take() == sorted(set(order) - set(kept))
    assert graph.runs()[0].status == "completed"


@pytest.mark.parametrize("step", range(12))
def test_a_rollback_to_any_step_continues_from_there(step: int, via: Via) -> None:
    """F12, H6: in the same run, whose history continues."""
    calls = Calls()
    calls.fail.add("done")
    graph = everything(calls)
    with pytest.raises(ExecutionError):
        via.execute(graph, {"k": 1}, run_id="r")
    calls.fail.clear()
    order = calls.take()
    before = graph.history("r")
    assert graph.rollback("r", step) == graph.state_at("r", step)
    assert via.resume(graph, "r") == FINAL
    done = [each for each in before[1 : step + 1] if each.node not in ("join", "end", "review")]
    kept = [f"{each.branch}/{each.node}" if each.branch else each.node for each in done]
    assert calls.take() == sorted(set(order) - set(kept))
    assert [each.step for each in graph.history("r")] == sorted({each.step for each in graph.history("r")})


def test_what_is_done_again_after_a_rollback_has_keys_of_its_own() -> None:
    """F12, H8, H6: in branches and graphs as outside of them."""
    keys: list[str] = []

    def note(state: State, ctx: NodeContext) -> None:
        keys.append(ctx.idempotency_key)

    sub = line(None, note)
    graph = StateGraph(name="g").add_node("src", run=note).add_node("a", run=note).add_node("b", sub)
    graph.add_fanin_node("join", run=note).add_parallel_edge("src", "a", "join").add_parallel_edge(
        "src", "b", "join"
    )
    graph.set_entry_point("src").set_finish_point("join").compile(
        store=MemoryStore(), interrupt_after=["join"]
    )
    run = graph.invoke({}).wait()
    for _ in range(2):
        graph.rollback(run.id, 1)
        with pytest.raises(RunPaused):
            graph.resume(run.id)
    assert len(keys) == 1 + 3 * 3
    assert len(set(keys)) == len(keys)


def test_a_fork_with_an_update_reaches_what_is_under_way(via: Via) -> None:
    """F12, H6: the main state and the branches that have begun; what is finished stays as it is."""
    graph = StateGraph(name="g").add_node("src").add_fanin_node("join", run=gather)
    for name in "ab":
        graph.add_node(name, run=lambda state: {"first": state["k"]})
        graph.add_node(f"{name}2", run=lambda state: {"second": state["k"]}).add_edge(name, f"{name}2")
        graph.add_parallel_edge("src", name, "join")
    graph.set_entry_point("src").set_finish_point("join")
    graph.compile(store=MemoryStore(), interrupt_before=["a2", "b2"])
    run = graph.invoke({"k": 1}).wait()
    fork = graph.fork(run.id, update={"k": 2})
    with pytest.raises(RunPaused):
        fork.result()
    assert via.resume(graph, fork.id) == {"k": 2, "results": [{"k": 2, "first": 1, "second": 2}] * 2}
    assert via.resume(graph, run.id) == {"k": 1, "results": [{"k": 1, "first": 1, "second": 1}] * 2}


def test_a_fork_asks_again(store: Any, via: Via) -> None:
    """F12, H6: a question counts for the run it was asked in."""
    sub = line(lambda state: {"x": pause("x?")})
    graph = StateGraph(name="g").add_node("src").add_node("a", sub).add_node("b", sub)
    graph.add_fanin_node("join", run=gather).add_parallel_edge("src", "a", "join").add_parallel_edge(
        "src", "b", "join"
    )
    graph.set_entry_point("src").set_finish_point("join").compile(store=store)
    run = graph.invoke({}).wait()
    fork = graph.fork(run.id)
    with pytest.raises(RunPaused) as caught:
        fork.result()
    answers = {each.id: "new" for each in caught.value.questions}
    assert len(answers) == 2
    assert via.resume(graph, fork.id, answers=answers)["results"] == [{"x": "new"}] * 2
    assert len(graph.runs("paused")[0].questions) == 2


def test_a_fork_of_nested_sections_has_their_states(store: Any, via: Via) -> None:
    """F12, H6: a branch in a branch, and a map in a branch, over a key of the main state."""
    graph = StateGraph(name="g").add_node("src").add_fanin_node("join", run=gather)
    for name in "ab":
        graph.add_node(name).add_parallel_edge("src", name, "join")
    for name in "pq":
        graph.add_node(name, run=lambda state: {"sum": state["k"] + 1}).add_parallel_edge("a", name, "inner")
    graph.add_node("each", run=lambda state: {"sum": state["k"] + state["item"]})
    graph.add_map("b", "each", "items", "inner b")
    graph.add_fanin_node("inner", run=gather).add_fanin_node("inner b", run=gather)
    graph.set_entry_point("src").set_finish_point("join").compile(
        store=store, interrupt_before=["p", "q", "each"]
    )
    run = graph.invoke({"k": 1, "items": [1, 2]}).wait()
    fork = graph.fork(run.id)
    with suppress(RunPaused):
        fork.result()
    final = via.resume(graph, fork.id)
    assert [[each["sum"] for each in part["results"]] for part in final["results"]] == [[2, 2], [2, 3]]


class Snapshots:
    """Has the writer add a snapshot after the n-th record, and only then."""

    def __init__(self, number: int) -> None:
        self.left, self.made = number, False

    def snapshot_if_due(self, writer: JournalWriter, progress: Any) -> None:
        self.left -= 1
        if self.left == 0:
            self.made = True
            writer._add_snapshot(snapshot_record(progress))


def test_a_snapshot_at_any_moment_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """F12, invariant 2: a run that stopped in the middle of all of it continues as it would have."""
    monkeypatch.setattr(policy, "MIN_WEIGHT", 0)

    def build() -> StateGraph:
        def work(state: State, ctx: NodeContext) -> dict[str, Any]:
            return {"log": [*state["log"], f"{ctx.branch}/{ctx.node}"]}

        deep = line(work, work, name="deep", names="uv")
        graph = StateGraph(name="g").add_node("src", run=work).add_fanin_node("join", run=gather)
        for name in ("a", "b", "c", "p", "q", "each", "each2", "c2"):
            graph.add_node(name, deep if name in ("c", "q") else work)
        for name in "abc":
            graph.add_parallel_edge("src", name, "join")
        graph.add_parallel_edge("a", "p", "inner").add_parallel_edge("a", "q", "inner").add_fanin_node(
            "inner", run=gather
        )
        graph.add_map("b", "each", "items", "inner b").add_edge("each", "each2").add_fanin_node(
            "inner b", run=gather
        )
        graph.add_edge("c", "c2").set_entry_point("src").set_finish_point("join")
        stops = ["each2", "c/v", "q/u", "p"]
        return graph.compile(
            store=MemoryStore(),
            interrupt_before=stops,
            interrupt_after=stops,
            max_concurrency=1,
            preserve=True,
        )

    def run(number: int) -> tuple[State, int, bool]:
        snapshots = Snapshots(number)
        monkeypatch.setattr(
            JournalWriter,
            "snapshot_if_due",
            lambda writer, progress: snapshots.snapshot_if_due(writer, progress),
        )
        graph, stops = build(), 0
        handle = graph.invoke({"log": [], "items": [1, 2]}, run_id="r").wait()
        assert handle.status == "paused"
        while True:
            try:
                final = graph.resume("r")
            except RunPaused:
                stops += 1
            else:
                assert len(graph.history("r")) > 15
                return final, stops, snapshots.made

    expected, stops, _ = run(0)
    number, made = 1, True
    while made:
        final, seen, made = run(number)
        assert (final, seen) == (expected, stops), f"a snapshot after record {number}"
        number += 1
    assert number > 15
