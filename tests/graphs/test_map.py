"""Maps: one branch for each item, however many there are, in threads, tasks or processes."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Annotated, Any

import pytest

from limpet import (
    BranchResult,
    DefinitionError,
    ExecutionError,
    MemoryStore,
    NodeContext,
    NodeTimeout,
    Retry,
    RunPaused,
    State,
    StateGraph,
    UnstorableValue,
    UsageError,
    append,
    pause,
)
from support.graphs import AT_ONCE, SOON, Run, Via, add_chain, gather, single


def mapping(
    each: Any,
    over: Any = "items",
    join: Run = gather,
    *,
    schema: Any = None,
    source: Run = None,
    policy: dict[str, Any] | None = None,
    **options: Any,
) -> StateGraph:
    """src → a branch for each item → join. `each` may be functions for nodes each → each2 → …; `policy` is theirs."""
    graph = StateGraph(schema, name="map").add_node("src", run=source).add_fanin_node("join", run=join)
    if isinstance(each, list):
        add_chain(graph, "each", each, **(policy or {}))
        each = "each"
    graph.add_map("src", each, over, "join", **options)
    return graph.set_entry_point("src").set_finish_point("join")


def one_node(run: Run, schema: Any = None, name: str = "sub") -> StateGraph:
    """A graph of one node."""
    return single(run, "x", schema, name)


# Items


def double(state: State) -> dict[str, Any]:
    return {"twice": state["item"] * 2}


@pytest.mark.parametrize("over", ["key", "function"])
def test_a_branch_runs_for_each_item(over: str, place: dict[str, Any], via: Via) -> None:
    """F12: of a list in the state, or of what a function makes of the state."""
    graph = mapping(
        [double], "items" if over == "key" else lambda state: [each for each in state["items"] if each]
    )
    start = {"items": [3, 1, 2], "k": "v"}
    assert via.execute(graph.compile(**place), start) == {
        **start,
        "results": [{**start, "item": item, "twice": item * 2} for item in start["items"]],
    }


def test_a_branch_knows_its_item_and_its_place(place: dict[str, Any], via: Via) -> None:
    """F12: `ctx.index`, `ctx.branch`, and the name of the result; in every node of the branch."""
    seen: list[Any] = []

    def work(state: State, ctx: NodeContext) -> None:
        seen.append((ctx.index, ctx.branch, ctx.node, state["item"]))

    names: list[Any] = []
    graph = mapping(
        [work, work],
        join=lambda parallel_results: names.extend((r.branch, r.index) for r in parallel_results),
    )
    via.execute(graph.compile(**place), {"items": ["a", "b"]})
    assert sorted(seen) == [
        (index, f"each[{index}]", node, item) for index, item in enumerate("ab") for node in ("each", "each2")
    ]
    assert names == [("each[0]", 0), ("each[1]", 1)]


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        ([], []), ((), []), (("a", "b"), ["a", "b"]), ({"x": 1, "y": 2}, ["x", "y"]), ({5}, [5]), (frozenset(), []),
        (range(3), [0, 1, 2]), ([None, 0, ""], [None, 0, ""]), ([[1], {"k": (2,)}], [[1], {"k": (2,)}]),
    ],
    ids=["empty list", "empty tuple", "tuple", "dict", "set", "empty set", "range", "false ones", "nested"],
)  # fmt: skip
@pytest.mark.parametrize("over", ["key", "function"])
def test_anything_that_has_items_can_be_gone_over(
    items: Any, expected: list[Any], over: str, place: dict[str, Any]
) -> None:
    """F12: with no items at all, the fan-in runs with no results."""
    if isinstance(items, range):
        over = "function"  # it can't be stored
    graph = mapping([None], "items" if over == "key" else lambda state: items)
    final = graph.compile(**place).execute({"items": items} if over == "key" else {})
    assert [each["item"] for each in final["results"]] == expected


def test_what_a_generator_yields_is_gone_over_once(store: Any) -> None:
    """F12, H3: the items are stored; the function isn't asked again when the run is resumed."""
    asked: list[int] = []

    def over(state: State) -> Iterator[int]:
        asked.append(1)
        yield from (random.random() for _ in range(3))

    graph = mapping([None, None], over).compile(store=store, interrupt_before=["each2"])
    run = graph.stream({})
    first = [event["state"]["item"] for event in run if event["type"] == "interrupt"]
    assert [each["item"] for each in graph.resume(run.id)["results"]] == first
    assert asked == [1]


@pytest.mark.parametrize("items", [None, 5, "text", b"bytes", object, print])
def test_what_has_no_items_fails_after_its_source_and_loses_nothing(items: Any, store: Any, via: Via) -> None:
    """F12, G6: the error says so; a resume finds out again, without running the source again."""
    calls: list[int] = []

    def source(state: State) -> dict[str, Any]:
        calls.append(1)
        return {"made": [1]}

    given = [items]
    graph = mapping([None], lambda state: given[0], source=source).compile(store=store)
    with pytest.raises(ExecutionError, match=r"the map after 'src' is over .*, which has no items") as caught:
        via.execute(graph, {}, run_id="r")
    assert isinstance(caught.value.cause, UsageError)
    assert (caught.value.node, caught.value.state) == ("src", {"made": [1]})
    given[0] = [1, 2]
    assert [each["item"] for each in via.resume(graph, "r")["results"]] == [1, 2]
    assert calls == [1]


@pytest.mark.parametrize("value", [None, 5, "text"])
def test_a_key_that_has_no_items_is_named_and_can_be_fixed(value: Any, store: Any) -> None:
    """F12: with the next resume."""
    graph = mapping([None]).compile(store=store)
    with pytest.raises(
        ExecutionError, match=f"is over a value of type {type(value).__name__}, which has no items"
    ):
        graph.execute({"items": value}, run_id="r")
    with pytest.raises(ExecutionError):
        graph.resume("r")
    assert [each["item"] for each in graph.resume("r", {"items": [1]})["results"]] == [1]


def test_a_key_that_is_not_there_is_named(place: dict[str, Any], via: Via) -> None:
    """F12: rather than taken for none."""
    with pytest.raises(ExecutionError, match="is over 'items', which the state doesn't have"):
        via.execute(mapping([None]).compile(**place), {})


def test_a_function_that_fails_to_find_items_fails_the_run_after_its_source(store: Any, via: Via) -> None:
    """F12: with what it raised; generators too."""
    fixed: list[int] = []

    def over(state: State) -> Iterator[int]:
        yield 1
        if not fixed:
            raise OSError("no disk")

    graph = mapping([None], over).compile(store=store)
    with pytest.raises(ExecutionError, match="choosing the next node failed: OSError: no disk") as caught:
        via.execute(graph, {}, run_id="r")
    assert isinstance(caught.value.cause, OSError)
    fixed.append(1)
    assert len(via.resume(graph, "r")["results"]) == 1


def test_an_item_that_can_not_be_stored_fails_the_run_after_its_source(store: Any, via: Via) -> None:
    """F12, H4: with the path to it, before any branch has begun."""
    ran: list[int] = []
    items: list[Any] = [1, {"x": object()}]
    graph = mapping([lambda state: ran.append(1)], lambda state: items).compile(store=store)
    with pytest.raises(ExecutionError, match=r"items\[1\]\.x can't be stored") as caught:
        via.execute(graph, {}, run_id="r")
    assert isinstance(caught.value.cause, UnstorableValue)
    assert ran == []
    items[1] = 2
    assert [each["item"] for each in via.resume(graph, "r")["results"]] == [1, 2]


def test_any_item_may_be_gone_over_without_a_store(via: Via) -> None:
    """F12: also what can't be copied."""
    things = [threading.Lock(), object(), print]
    final = via.execute(mapping([lambda state: {"kind": type(state["item"]).__name__}], lambda state: things))
    assert [each["kind"] for each in final["results"]] == [type(each).__name__ for each in things]


def test_a_branch_has_a_copy_of_its_item(place: dict[str, Any], via: Via) -> None:
    """F12, invariant 8: whatever it does to it, the list in the state, and a same item, are as they were."""
    shared: list[int] = []

    def grow(state: State, ctx: NodeContext) -> None:
        state["item"].append(ctx.index)
        state["items"].append("x")

    def check(state: State) -> None:
        assert len(state["item"]) == 1
        state["item"].append("again")

    final = via.execute(mapping([grow, check]).compile(**place), {"items": [shared, shared, []]})
    assert [each["item"] for each in final["results"]] == [[0, "again"], [1, "again"], [2, "again"]]
    assert final["items"] == [[], [], []]
    assert shared == []


def test_the_item_is_under_the_key_that_is_asked_for(place: dict[str, Any], via: Via) -> None:
    """F12: also one that the state has already, even that of the items; the main state keeps its own."""
    graph = mapping([lambda state: {"saw": state["n"]}], "n", item="n").compile(**place)
    assert via.execute(graph, {"n": [1, 2], "saw": 0}) == {
        "n": [1, 2], "saw": 0, "results": [{"n": 1, "saw": 1}, {"n": 2, "saw": 2}]
    }  # fmt: skip


def test_the_list_that_is_gone_over_may_change_in_branches(store: Any) -> None:
    """F12: which items there are was decided before."""

    def spoil(state: State) -> dict[str, Any]:
        if state["item"] == 1:
            del state["items"]
        return {"items": []}

    graph = mapping([spoil, None]).compile(store=store, interrupt_before=["each2"])
    run = graph.invoke({"items": [1, 2, 3]}).wait()
    final = graph.resume(run.id)
    assert final["items"] == [1, 2, 3]
    assert final["results"] == [{"items": [], "item": item} for item in (1, 2, 3)]


def test_an_update_of_the_list_at_a_resume_changes_no_items(store: Any) -> None:
    """F12, F6: of branches that wait, of those that are done, and of those that have not begun."""
    fail: list[int] = [1]

    def work(state: State) -> dict[str, Any]:
        if state["item"] == "b" and fail:
            raise ValueError
        return {"saw": state["item"]}

    graph = mapping([work], max_concurrency=1).compile(store=store)
    with pytest.raises(ExecutionError):
        graph.execute({"items": ["a", "b", "c"]}, run_id="r")
    fail.clear()
    final = graph.resume("r", update={"items": ["x"]})
    assert final["items"] == ["x"]
    assert [each["saw"] for each in final["results"]] == ["a", "b", "c"]


def test_items_may_be_appended_to_a_list_under_a_reducer(store: Any) -> None:
    """F12: the items are those of the moment, and a later map has more."""
    schema = {"items": Annotated[list, append]}
    graph = mapping([lambda state: {"items": [state["item"] + 1]}], schema=schema)
    graph._draft.nodes.pop("join")
    graph.add_fanin_node(
        "join", run=lambda parallel_results: {"items": [each["items"][-1] for each in parallel_results]}
    )
    graph.add_edge("join", "src", lambda state: len(state["items"]) < 5).compile(store=store)
    assert graph.execute({"items": [0, 10]})["items"] == [0, 10, 1, 11, 1, 11, 2, 12]


# Branches


@pytest.mark.parametrize("kind", ["node", "function", "graph"])
def test_each_item_may_run_a_node_a_function_or_a_graph(kind: str, place: dict[str, Any], via: Via) -> None:
    """F12: the branch is named after it."""
    each: Any = {"node": [double], "function": double, "graph": one_node(double)}[kind]
    names: list[str] = []

    def join(state: State, parallel_results: list[BranchResult]) -> dict[str, Any]:
        names.extend(each.branch for each in parallel_results)
        return {"twice": [each["twice"] for each in parallel_results]}

    assert via.execute(mapping(each, join=join).compile(**place), {"items": [1, 2]})["twice"] == [2, 4]
    word = {"node": "each", "function": "double", "graph": "sub"}[kind]
    assert names == [f"{word}[0]", f"{word}[1]"]


def test_a_branch_may_be_several_nodes_with_conditions_and_cycles(place: dict[str, Any], via: Via) -> None:
    """F12: each item goes its own way."""
    graph = mapping([lambda state: {"n": state.get("n", 0) + 1}])
    graph.add_node("odd", run=lambda state: {"kind": "odd"})
    graph.add_edge("each", "each", lambda state: state["n"] < state["item"])
    graph.add_edge("each", "odd", lambda state: state["item"] % 2).add_edge("each", "join")
    final = via.execute(graph.compile(**place), {"items": [1, 2, 3, 4]})
    assert [(each["n"], each.get("kind")) for each in final["results"]] == [
        (1, "odd"),
        (2, None),
        (3, "odd"),
        (4, None),
    ]


def test_results_are_in_the_order_of_the_items_whatever_finishes_first(
    place: dict[str, Any], via: Via
) -> None:
    """F12, invariant 8: async nodes that end in a shuffled order."""
    order = random.Random(5).sample(range(30), 30)
    ended: list[int] = []

    async def work(state: State) -> dict[str, Any]:
        async with asyncio.timeout(SOON):
            while order[len(ended)] != state["item"]:
                await asyncio.sleep(0)
        ended.append(state["item"])
        return {"by": state["item"]}

    final = via.execute(mapping([work]).compile(**place), {"items": list(range(30))})
    assert ended == order
    assert [each["by"] for each in final["results"]] == list(range(30))


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_at_most_max_concurrency_branches_are_under_way(kind: str, via: Via) -> None:
    """F12: of the map; a branch counts from its first node to its last."""
    lock, now, most = threading.Lock(), [0], [0]
    enough = threading.Barrier(3)

    def enter(state: State) -> None:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])

    def meet(state: State) -> None:
        enough.wait(SOON)

    def leave(state: State) -> None:
        with lock:
            now[0] -= 1

    async def aenter(state: State) -> None:
        enter(state)
        await asyncio.sleep(0)

    graph = mapping([enter if kind == "sync" else aenter, meet, leave], max_concurrency=3)
    via.execute(graph.compile(store=MemoryStore()), {"items": list(range(12))})
    assert most == [3]
    assert now == [0]


def test_a_map_in_a_map_has_limits_of_its_own(via: Via) -> None:
    """F12: results of results, in order."""
    graph = mapping([None], max_concurrency=2)
    graph.add_map("each", "inner", "item", "inner join", item="one", max_concurrency=2)
    graph.add_node("inner", run=lambda state: {"sum": state["one"] + state["base"]})
    graph.add_fanin_node(
        "inner join", run=lambda parallel_results: {"sums": [each["sum"] for each in parallel_results]}
    )
    final = via.execute(graph.compile(store=MemoryStore()), {"items": [[1, 2, 3], [], [4]], "base": 10})
    assert [each["sums"] for each in final["results"]] == [[11, 12, 13], [], [14]]


@pytest.mark.parametrize("api", ["sync", "async"])
def test_thousands_of_items_are_gone_over(api: str, tmp_path: Path) -> None:
    """F12: with a store; no thread for each, and one record each."""
    threads: set[int] = set()

    def work(state: State) -> dict[str, Any]:
        threads.add(threading.get_ident())
        return {"n": state["item"] + 1}

    graph = mapping(
        [work], join=lambda parallel_results: {"sum": sum(each["n"] for each in parallel_results)}
    )
    graph.compile(
        store=f"sqlite:///{tmp_path}/runs.db" if api == "sync" else MemoryStore(), max_concurrency=8
    )
    final = Via(api).execute(graph, {"items": list(range(3000))}, run_id="r")
    assert final["sum"] == 3000 * 3001 // 2
    assert len(threads) <= 9


def test_only_the_items_that_failed_are_done_again(store: Any, via: Via) -> None:
    """F12, H3: of many, after all that had begun are done."""
    calls: list[int] = []
    bad = {7, 50}

    def work(state: State) -> dict[str, Any]:
        calls.append(state["item"])
        if state["item"] in bad:
            raise ValueError(state["item"])
        return {"n": state["item"]}

    graph = mapping([work]).compile(store=store)
    with pytest.raises(ExecutionError, match="ValueError: 7") as caught:
        via.execute(graph, {"items": list(range(100))}, run_id="r")
    assert caught.value.node == "each[7]/each"
    assert caught.value.state == {"items": list(range(100)), "item": 7}
    done = set(calls) - bad
    calls.clear()
    bad.clear()
    assert [each["n"] for each in via.resume(graph, "r")["results"]] == list(range(100))
    assert sorted(calls) == sorted(set(range(100)) - done)


def test_errors_of_items_are_collected(store: Any, via: Via) -> None:
    """F12: the fan-in sees which and why, in the order of the items."""

    def work(state: State) -> dict[str, Any]:
        return {"n": 10 // state["item"]}

    def join(parallel_results: list[BranchResult]) -> dict[str, Any]:
        return {"found": [each.error["type"] if each.error else each["n"] for each in parallel_results]}

    graph = mapping([work], join=join, on_error="collect").compile(store=store)
    assert via.execute(graph, {"items": [1, 0, 5, 0]})["found"] == [
        10,
        "ZeroDivisionError",
        2,
        "ZeroDivisionError",
    ]


def test_items_are_tried_again_and_time_out(via: Via) -> None:
    """F12, H8: the policy of the node holds for each."""
    left = threading.Event()

    def work(state: State, ctx: NodeContext) -> dict[str, Any]:
        if ctx.attempt == 1:
            left.wait(SOON)
        return {"tries": ctx.attempt}

    policy = {"retry": Retry(20, backoff=0), "timeout": 0.1}
    graph = mapping([work], policy=policy).compile(store=MemoryStore())
    try:
        assert all(each["tries"] >= 2 for each in via.execute(graph, {"items": [1, 2, 3]})["results"])
    finally:
        left.set()


def test_every_item_may_ask(store: Any, via: Via) -> None:
    """F12, P3: with ids that tell them apart; answers go to their items."""
    graph = mapping([lambda state: {"answer": pause(f"{state['item']}?")}]).compile(store=store)
    with pytest.raises(RunPaused) as caught:
        via.execute(graph, {"items": ["a", "b", "c"]}, run_id="r")
    asked = caught.value.questions
    assert [(each.id, each.prompt) for each in asked] == [
        (f"each[{index}]/each:1.1:1", f"{item}?") for index, item in enumerate("abc")
    ]
    answers = {each.id: each.prompt.upper() for each in reversed(asked)}
    assert [each["answer"] for each in via.resume(graph, "r", answers=answers)["results"]] == [
        "A?",
        "B?",
        "C?",
    ]


def test_large_items_of_a_function_can_be_resumed(store: Any) -> None:
    """F12, H3: whatever they weigh compared with the state."""
    fail = [1]

    def work(state: State) -> dict[str, Any]:
        if state["item"].startswith("5 ") and fail:
            raise ValueError
        return {"size": len(state.pop("item"))}

    graph = mapping([work], lambda state: [f"{number} " + "x" * 2000 for number in range(100)]).compile(
        store=store
    )
    with pytest.raises(ExecutionError):
        graph.execute({}, run_id="r")
    fail.clear()
    assert {each["size"] for each in graph.resume("r")["results"]} <= {2002, 2003}


# Graphs


def test_a_graph_starts_with_its_item_and_what_its_schema_names(place: dict[str, Any], via: Via) -> None:
    """F12: with its own defaults and reducers; its final state is the result."""
    schema = {"base": int, "log": Annotated[list, append], "item": int}
    sub = one_node(lambda state: {"sum": state["base"] + state["item"], "log": "x"}, schema)
    final = via.execute(mapping(sub).compile(**place), {"items": [1, 2], "base": 10, "other": 1})
    assert final["results"] == [{"base": 10, "item": n, "log": ["x"], "sum": 10 + n} for n in (1, 2)]


@pytest.mark.parametrize("kind", ["mappings", "functions"])
def test_what_passes_in_and_out_of_a_graph_can_be_said(kind: str, place: dict[str, Any], via: Via) -> None:
    """F12: `{its key: our key}` and `{our key: its key}`, where the item counts as ours, or functions."""
    sub = one_node(lambda state: {"sum": state["x"] + state["y"], "keys": sorted(state)})
    if kind == "mappings":
        passing: Any = {"inputs": {"x": "item", "y": "base"}, "outputs": {"total": "sum", "keys": "keys"}}
    else:
        passing = {
            "inputs": lambda state: {"x": state["item"], "y": state["base"]},
            "outputs": lambda state: {"total": state["sum"], "keys": state["keys"]},
        }
    final = via.execute(mapping(sub, **passing).compile(**place), {"items": [1, 2], "base": 10})
    assert final["results"] == [{"total": 10 + n, "keys": ["x", "y"]} for n in (1, 2)]


@pytest.mark.parametrize("side", ["inputs", "outputs"])
@pytest.mark.parametrize("how", ["raises", "no dict", "missing key"])
def test_passing_that_goes_wrong_fails_and_can_be_fixed(side: str, how: str, via: Via) -> None:
    """F12, H3: nothing that was finished runs again."""
    calls: list[int] = []
    store = MemoryStore()

    def wrong(state: State) -> Any:
        if how == "raises":
            raise OSError("no disk")
        return 5

    def make(passing: Any) -> StateGraph:
        sub = one_node(lambda state: calls.append(1))
        return mapping(sub, source=lambda state: calls.append(0), **passing).compile(store=store)

    message = {
        "raises": "OSError: no disk",
        "no dict": f"the function for the {side} of graph 'sub' must return a dict, not int",
        "missing key": f"the {side} of graph 'sub' take 'ghost', which the state doesn't have",
    }[how]
    with pytest.raises(ExecutionError, match=message):
        via.execute(
            make({side: {"x": "ghost"} if how == "missing key" else wrong}), {"items": [1, 2]}, run_id="r"
        )
    assert calls == [0] if side == "inputs" else sorted(calls) == [0, 1, 1]
    final = via.resume(make({side: {"x": "item"}}), "r")
    assert final["results"] == ([{"x": 1}, {"x": 2}])
    assert sorted(calls) == [0, 1, 1]


def test_an_input_that_can_not_be_stored_fails_before_any_branch_begins(store: Any, via: Via) -> None:
    """F12, H4: with the path to it."""
    sub = one_node(lambda state: pytest.fail("ran"))
    graph = mapping(sub, inputs=lambda state: {"x": object()}).compile(store=store)
    with pytest.raises(ExecutionError, match=r"x can't be stored"):
        via.execute(graph, {"items": [1]}, run_id="r")


def test_what_passes_into_graphs_is_a_copy_for_each(place: dict[str, Any], via: Via) -> None:
    """F12, invariant 8: neither the others nor the state around see what one does to it."""

    def grow(state: State) -> None:
        state["log"].append(state["item"])

    sub = one_node(grow, {"log": list, "item": int})
    final = via.execute(mapping(sub).compile(**place), {"items": [1, 2], "log": []})
    assert [each["log"] for each in final["results"]] == [[1], [2]]
    assert final["log"] == []


def test_what_passes_into_graphs_is_a_copy_also_next_to_what_can_not_be_copied(via: Via) -> None:
    """F12, invariant 8: without a store, one value that has no copy doesn't make the others shared."""

    def grow(state: State) -> None:
        state["log"].append(state["item"])

    sub = one_node(grow, {"log": list, "lock": object, "item": int})
    final = via.execute(mapping(sub), {"items": [1, 2], "log": [], "lock": threading.Lock()})
    assert [each["log"] for each in final["results"]] == [[1], [2]]
    assert final["log"] == []


@pytest.mark.parametrize("side", ["inputs", "outputs", "over"])
def test_functions_that_alter_what_they_are_shown_change_nothing(side: str, store: Any) -> None:
    """F12, invariant 5: they only look, as predicates do; what isn't in the journal isn't in the state."""
    tries: list[int] = []

    def spoil(state: State) -> Any:
        state["log"].append("x")
        return state["items"] if side == "over" else {"log": list(state["log"])}

    def join(state: State, parallel_results: list[BranchResult]) -> dict[str, Any]:
        tries.append(1)
        if len(tries) < 3:
            raise ValueError
        return {"seen": [each["log"] for each in parallel_results]}

    sub = one_node(None, {"log": list, "item": int})
    graph = StateGraph(name="map").add_node("src").add_fanin_node("join", run=join, retry=AT_ONCE)
    if side == "over":
        graph.add_map("src", sub, spoil, "join")
    else:
        graph.add_map("src", sub, "items", "join", **{side: spoil})
    graph.set_entry_point("src").set_finish_point("join").compile(store=store)
    final = graph.execute({"items": [1, 2], "log": []})
    assert final["log"] == []
    assert final["seen"] == ([[], []] if side == "over" else [["x"], ["x"]])


def test_a_graph_of_a_map_stops_and_resumes_by_its_path(store: Any, via: Via) -> None:
    """F12, F5: interrupts by the graph's name, pauses with the whole way."""
    sub = StateGraph(name="sub").add_node("x").add_node("y", run=lambda state: {"answer": pause("ok?")})
    sub.add_edge("x", "y").set_entry_point("x").set_finish_point("y")
    graph = mapping(sub).compile(store=store, interrupt_before=["sub/x"])
    with pytest.raises(RunPaused):
        via.execute(graph, {"items": [1, 2]}, run_id="r")
    with pytest.raises(RunPaused) as caught:
        via.resume(graph, "r")
    assert [each.id for each in caught.value.questions] == ["sub[0]/y:1.2:1", "sub[1]/y:1.2:1"]
    answers = {each.id: index for index, each in enumerate(caught.value.questions)}
    assert [each["answer"] for each in via.resume(graph, "r", answers=answers)["results"]] == [0, 1]


# Definitions


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"each": "ghost"}, "there is no node 'ghost'"),
        ({"each": 5}, "each must be a node, a function or a graph, not 5"),
        ({"max_concurrency": 0}, "max_concurrency must be a whole number of at least 1"),
        ({"max_concurrency": True}, "max_concurrency must be a whole number of at least 1"),
        ({"item": ""}, "item must be the name of a key"),
        ({"item": 3}, "item must be the name of a key"),
        ({"on_error": "ignore"}, "on_error must be 'fail' or 'collect'"),
        ({"inputs": {"x": "y"}}, "inputs and outputs are for a graph"),
        ({"over": 5}, "not callable"),
        ({"over": lambda state, ctx: []}, "the function takes the state, and nothing else"),
        ({"fan_in": "each"}, "'each' can't be a branch and the fan-in"),
        ({"fan_in": "ghost"}, "there is no node 'ghost'"),
    ],
)
def test_mistakes_in_maps_are_explained(options: dict[str, Any], message: str) -> None:
    """F12, G2: when they are made, or when the graph is checked."""
    graph = StateGraph(name="g").add_node("src").add_node("each").add_fanin_node("join")
    graph.set_entry_point("src").set_finish_point("join")
    with pytest.raises(DefinitionError, match=message):
        graph.add_map("src", **{"each": "each", "over": "items", "fan_in": "join", **options}).validate()


def test_a_map_and_parallel_edges_can_not_leave_the_same_node() -> None:
    """F12: one section after a node."""
    graph = mapping([None]).add_node("a").add_parallel_edge("src", "a", "join")
    with pytest.raises(DefinitionError, match="'src' opens several sections"):
        graph.validate()


# Executors


@pytest.fixture(scope="module")
def processes() -> Iterator[ProcessPoolExecutor]:
    pool = new_processes(2)
    yield pool
    pool.shutdown()


def new_processes(number: int) -> ProcessPoolExecutor:
    pool = ProcessPoolExecutor(number, mp_context=multiprocessing.get_context("fork"))
    pool.submit(os.getpid).result()
    return pool


def where(state: State) -> dict[str, Any]:
    return {"pid": os.getpid(), "n": state["item"] + 1}


def in_place(state: State) -> dict[str, Any]:
    state["log"].append(state["item"])
    state["new"] = (1, 2)
    del state["k"]
    return {"seen": isinstance(state, State)}


def with_things(state: State, config: dict[str, Any], node: str) -> dict[str, Any]:
    return {"got": (config, node, state["item"])}


def without_state(config: dict[str, Any]) -> dict[str, Any]:
    return {"got": config}


def with_ctx(state: State, ctx: NodeContext) -> None: ...


def with_graph(graph: StateGraph) -> None: ...


def fails(state: State) -> None:
    raise ValueError(f"no {state['item']}")


def fails_oddly(state: State) -> None:
    raise Odd(1, 2)


class Odd(Exception):
    """Can be pickled, but not read back."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__("odd")


def returns_lock(state: State) -> dict[str, Any]:
    return {"lock": threading.Lock()}


def returns_state(state: State) -> State:
    return state.set("x", state["item"])


def ends_process(state: State) -> dict[str, Any]:
    if state["item"] == 1:
        assert multiprocessing.parent_process() is not None, "this would end the whole test run"
        os._exit(9)
    return {"n": state["item"]}


def sleeps(state: State) -> dict[str, Any]:
    time.sleep(1.5 if state["item"] == 1 else 0)
    return {"n": state["item"]}


def asks(state: State) -> dict[str, Any]:
    return {"answer": pause("ok?")}


def test_nodes_run_in_the_threads_of_a_given_pool(via: Via) -> None:
    """F12: all the same as in threads of our own: pauses, ctx, context."""
    names: set[str] = set()

    def work(state: State, ctx: NodeContext) -> dict[str, Any]:
        names.add(threading.current_thread().name.split("_")[0])
        return {"n": ctx.index, "answer": pause("ok?")}

    with ThreadPoolExecutor(2, "mine") as pool:
        graph = mapping([work]).compile(store=MemoryStore(), executor=pool)
        with pytest.raises(RunPaused) as caught:
            via.execute(graph, {"items": list(range(5))}, run_id="r")
        answers = {each.id: index for index, each in enumerate(caught.value.questions)}
        final = via.resume(graph, "r", answers=answers)
    assert [(each["n"], each["answer"]) for each in final["results"]] == [(n, n) for n in range(5)]
    assert names == {"mine"}


def test_a_small_pool_is_enough_for_many_branches(via: Via) -> None:
    """F12: with nested maps, timeouts and async nodes."""

    async def wait(state: State) -> None:
        await asyncio.sleep(0)

    graph = mapping([lambda state: {"parts": [1, 2]}, None], policy={"timeout": SOON})
    graph._draft.edges = [way for way in graph._draft.edges if way.source != "each"]
    graph.add_node("part", run=wait).add_map("each", "part", "parts", "each2")
    with ThreadPoolExecutor(1) as pool:
        final = via.execute(graph.compile(store=MemoryStore(), executor=pool), {"items": list(range(20))})
    assert len(final["results"]) == 20


def test_nodes_run_in_processes(place: dict[str, Any], via: Via, processes: ProcessPoolExecutor) -> None:
    """F12: two or more at once do."""
    final = via.execute(mapping([where]).compile(executor=processes, **place), {"items": [1, 2, 3]})
    assert [each["n"] for each in final["results"]] == [2, 3, 4]


@pytest.mark.parametrize(("items", "limit"), [([1], None), ([1, 2], 1)], ids=["one item", "one at a time"])
def test_nodes_run_in_processes_also_one_at_a_time(
    items: list[int], limit: int | None, via: Via, processes: ProcessPoolExecutor
) -> None:
    """F12: who gives an executor wants nodes to run there, not to take this process with them."""
    graph = mapping([where], max_concurrency=limit).compile(executor=processes)
    assert os.getpid() not in [each["pid"] for each in via.execute(graph, {"items": items})["results"]]


def test_a_process_gives_back_what_its_node_did_to_the_state(
    place: dict[str, Any], via: Via, processes: ProcessPoolExecutor
) -> None:
    """F12, H4: returned, assigned, altered in place and deleted; for the branch alone."""
    graph = mapping([in_place]).compile(executor=processes, **place)
    start = {"items": [1, 2], "log": [], "k": 1}
    final = via.execute(graph, start)
    assert final["results"] == [
        {"items": [1, 2], "item": n, "log": [n], "new": (1, 2), "seen": True} for n in (1, 2)
    ]
    assert {key: final[key] for key in start} == start


def test_a_process_gives_back_a_state(via: Via, processes: ProcessPoolExecutor) -> None:
    """F12: what is different in it."""
    graph = mapping([returns_state]).compile(executor=processes, store=MemoryStore())
    assert [each["x"] for each in via.execute(graph, {"items": [1, 2], "k": [1]})["results"]] == [1, 2]


def test_functions_in_processes_take_what_is_plain(via: Via, processes: ProcessPoolExecutor) -> None:
    """F12, F2: state, config and node."""
    graph = mapping([with_things]).compile(executor=processes)
    final = via.execute(graph, {"items": [1, 2]}, config={"c": 1})
    assert [each["got"] for each in final["results"]] == [({"c": 1}, "each", 1), ({"c": 1}, "each", 2)]
    graph = mapping([without_state]).compile(executor=processes)
    assert [each["got"] for each in via.execute(graph, {"items": [1, 2]}, config={"c": 1})["results"]] == [
        {"c": 1}
    ] * 2


@pytest.mark.parametrize("function", [with_ctx, with_graph])
def test_what_can_not_go_to_a_process_is_refused(
    function: Callable[..., Any], via: Via, processes: ProcessPoolExecutor
) -> None:
    """F12: and not tried again."""
    graph = mapping([function], policy={"retry": Retry(3, backoff=3600)}).compile(executor=processes)
    with pytest.raises(
        ExecutionError, match="takes ctx or graph, which can't go to ProcessPoolExecutor"
    ) as caught:
        via.execute(graph, {"items": [1, 2]})
    assert isinstance(caught.value.cause, UsageError)


def test_a_function_in_a_process_can_not_pause(via: Via, processes: ProcessPoolExecutor) -> None:
    """F12: the error says that no node is running there."""
    with pytest.raises(ExecutionError, match=r"pause\(\) must be called inside a running node"):
        via.execute(mapping([asks]).compile(executor=processes, store=MemoryStore()), {"items": [1, 2]})


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda state: None, "[Pp]ickle"),
        (fails, "ValueError: no 1"),
        (returns_lock, "cannot pickle '_thread.lock' object"),
    ],
    ids=["function that can't be pickled", "error", "result that can't be pickled"],
)
def test_what_goes_wrong_in_a_process_fails_the_branch(
    function: Callable[..., Any], message: str, store: Any, via: Via, processes: ProcessPoolExecutor
) -> None:
    """F12: and the run can be resumed with a graph that is fixed."""
    with pytest.raises(ExecutionError, match=message):
        via.execute(
            mapping([function]).compile(executor=processes, store=store), {"items": [1, 2]}, run_id="r"
        )
    final = via.resume(mapping([where]).compile(executor=processes, store=store), "r")
    assert [each["n"] for each in final["results"]] == [2, 3]


@pytest.mark.parametrize("ending", [ends_process, fails_oddly])
def test_a_process_that_crashes_fails_the_run_and_loses_nothing(
    ending: Callable[..., Any], store: Any, via: Via
) -> None:
    """F12, H3: killed in the middle, or broken by what it sent back; with another pool the run resumes."""
    pool = new_processes(1)
    try:
        graph = mapping([where, ending], max_concurrency=3).compile(executor=pool, store=store)
        with pytest.raises(ExecutionError, match=r"BrokenProcessPool|each2") as caught:
            via.execute(graph, {"items": [0, 1, 2]}, run_id="r")
        assert ending is fails_oddly or isinstance(caught.value.cause, BrokenProcessPool)
    finally:
        pool.shutdown()
    calls: list[int] = []
    graph = mapping([lambda state: calls.append(1), lambda state: {"n": state["item"]}]).compile(store=store)
    assert [each["n"] for each in via.resume(graph, "r")["results"]] == [0, 1, 2]
    assert len(calls) <= 2


def test_a_node_in_a_process_times_out(via: Via) -> None:
    """F12, H8: the branch fails; the others are kept."""
    pool = new_processes(2)
    try:
        graph = mapping([sleeps], policy={"timeout": 0.7}).compile(executor=pool, store=MemoryStore())
        with pytest.raises(ExecutionError, match=r"took longer than its timeout of 0.7 s") as caught:
            via.execute(graph, {"items": [1, 2]}, run_id="r")
        assert isinstance(caught.value.cause, NodeTimeout)
        assert caught.value.node == "each[0]/each"
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def join_in_process(state: State, parallel_results: list[BranchResult]) -> dict[str, Any]:
    return {"told": [(each.branch, each.error and each.error["message"]) for each in parallel_results]}


def test_a_fan_in_that_runs_in_a_process_knows_the_branches(via: Via, processes: ProcessPoolExecutor) -> None:
    """F12: inside of a branch, fan-ins go there too."""
    graph = (
        mapping([where], max_concurrency=2)
        .add_node("part", run=fails)
        .add_fanin_node("inner", run=join_in_process)
    )
    graph.add_map("each", "part", "items", "inner", on_error="collect")
    final = via.execute(graph.compile(executor=processes), {"items": [1, 2]})
    assert [each["told"] for each in final["results"]] == [[("part[0]", "no 1"), ("part[1]", "no 2")]] * 2


def test_a_pool_that_is_shut_down_fails_the_run(via: Via) -> None:
    """F12: as any mistake in running a node does, so that it is saved and can be resumed."""
    pool = ThreadPoolExecutor(1)
    pool.shutdown()
    graph = mapping([double]).compile(executor=pool, store=MemoryStore())
    with pytest.raises(ExecutionError, match="after shutdown"):
        via.execute(graph, {"items": [1, 2]}, run_id="r")


class Inline(Executor):
    """An executor of a user, which runs things where they are submitted."""

    def __init__(self) -> None:
        self.calls = 0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.calls += 1
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


def test_any_executor_works(place: dict[str, Any], via: Via) -> None:
    """F12: it is handed a function and plain data."""
    executor = Inline()
    final = via.execute(mapping([double, where]).compile(executor=executor, **place), {"items": [1, 2, 3, 4]})
    assert [(each["twice"], each["n"]) for each in final["results"]] == [(2, 2), (4, 3), (6, 4), (8, 5)]
    assert executor.calls >= 4


def test_an_altered_reduced_value_isnt_an_error_in_a_process_either(
    via: Via, processes: ProcessPoolExecutor
) -> None:
    """F12: it has no effect, as in a thread."""
    schema = {"log": Annotated[list, append]}
    graph = mapping([in_place], schema=schema).compile(executor=processes)
    final = via.execute(graph, {"items": [1, 2], "log": [0], "k": 1})
    assert [each["log"] for each in final["results"]] == [[0], [0]]


@pytest.mark.parametrize(
    ("node", "state", "message"),
    [
        (lambda state: {}, {}, "its function <lambda> can't be pickled; define it with def at the top"),
        (double, {"lock": threading.Lock()}, "'lock', of type lock, can't be pickled"),
        (returns_lock, {}, "what it returned or raised can't be pickled"),
    ],
)
def test_what_cannot_go_to_another_process_is_named_with_its_node(
    node: Any, state: dict[str, Any], message: str, via: Via, processes: ProcessPoolExecutor
) -> None:
    """F12, F16: instead of an error of pickle; the node isn't tried again."""
    graph = mapping([node], policy={"retry": 3}).compile(executor=processes)
    with pytest.raises(ExecutionError, match=r"node 'each' can't be called by ProcessPoolExecutor") as caught:
        via.execute(graph, {"items": [1], **state})
    assert message in str(caught.value)
    assert caught.value.__cause__ is not None
