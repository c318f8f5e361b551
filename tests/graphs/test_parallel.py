"""Parallel edges: branches that run in parallel on private copies, and the fan-in that comes after all of them."""

from __future__ import annotations

import asyncio
import contextvars
import os
import pickle
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from copy import copy, deepcopy
from operator import add
from random import randbytes
from typing import Annotated, Any

import pytest

from limpet import (
    END,
    BranchResult,
    Conflict,
    DefinitionError,
    ExecutionError,
    MemoryStore,
    NodeContext,
    NodeTimeout,
    Retry,
    RunCancelled,
    RunPaused,
    State,
    StateGraph,
    StoreUnavailable,
    UnstorableValue,
    UsageError,
    append,
    merge,
    once,
)
from limpet.journal import snapshots
from limpet.journal.store import Commit
from support.graphs import AT_ONCE, SOON, Calls, Crash, Run, Via, fan, gather
from support.posts import post_cancel


@pytest.fixture(params=["records", "snapshots"])
def journal(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Whether a run is read back from what happened, or from a snapshot made after each thing that did."""
    if request.param == "snapshots":
        snapshots_always(monkeypatch)
    return str(request.param)


def snapshots_always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a snapshot written after every record, as happens in long runs now and then."""
    monkeypatch.setattr(snapshots, "MIN_WEIGHT", 0)
    monkeypatch.setattr(snapshots, "SNAPSHOT_FACTOR", 0)


# Branches and their fan-in


def own(state: State) -> dict[str, Any]:
    """The state that a fan-in was given, without the results of the branches."""
    return {key: value for key, value in state.items() if key != "parallel_results"}


def test_a_fan_in_is_given_the_result_of_each_branch(place: dict[str, Any], via: Via) -> None:
    """F12: and its return value alone changes the state."""
    graph = fan({"a": lambda state: {"x": state["n"] + 1}, "b": lambda state: {"y": state["n"] + 2}})
    final = via.execute(graph.compile(**place), {"n": 1})
    assert final == {"n": 1, "results": [{"n": 1, "x": 2}, {"n": 1, "y": 3}]}


def test_results_are_in_the_order_of_declaration_whatever_finishes_first(
    place: dict[str, Any], via: Via
) -> None:
    """F12, invariant 8: each branch here waits for the one declared after it."""
    names = list("edcba")
    done = {name: threading.Event() for name in names}

    def work(state: State, node: str) -> dict[str, Any]:
        later = names[names.index(node) + 1 :]
        assert not later or done[later[0]].wait(SOON)
        done[node].set()
        return {"by": node}

    seen: list[Any] = []

    def join(parallel_results: list[BranchResult]) -> None:
        seen.extend((each.branch, each.index, each["by"]) for each in parallel_results)

    via.execute(fan(dict.fromkeys(names, work), join).compile(**place), {})
    assert seen == [(name, index, name) for index, name in enumerate(names)]


def test_a_result_is_a_dict_that_knows_its_branch_and_times(place: dict[str, Any]) -> None:
    """F12: name, place, state, start and end."""
    seen: list[BranchResult] = []
    graph = fan(
        {"a": [lambda state: {"x": 1}, None], "b": None},
        lambda parallel_results: seen.extend(parallel_results),
    )
    graph.compile(**place).execute({"k": [1]}, run_id="r")
    first, second = seen
    assert isinstance(first, dict)
    assert (first["x"], first.get("k"), first.get("none", 5), "x" in first, len(first)) == (
        1,
        [1],
        5,
        True,
        2,
    )
    assert {**first} == dict(first) == dict(first.items()) == first.state == {"k": [1], "x": 1}
    assert sorted(first) == ["k", "x"]
    assert first | {"z": 1} == {"k": [1], "x": 1, "z": 1}
    assert (first.branch, first.index, first.error) == ("a", 0, None)
    assert (second.branch, second.index, second.state) == ("b", 1, {"k": [1]})
    assert type(first.state) is State
    assert (first.run_id, first.checkpoint_node, first.state.checkpoint_node) == ("r", "a2", "a2")
    for each in seen:
        assert 0 < each.started <= each.ended
        assert each.duration == each.ended - each.started
        assert each.timestamp.timestamp() == pytest.approx(each.ended)
    assert repr(second) == "<BranchResult b {'k': [1]}>"


def test_results_can_be_stored_as_they_are(store: Any) -> None:
    """F12, H4: what a fan-in kept is what is read after a resume, with the names and times."""
    kept: list[Any] = []

    def join(parallel_results: list[BranchResult]) -> dict[str, Any]:
        kept.extend((each.branch, each.started, each.ended, each.error) for each in parallel_results)
        return {"kept": parallel_results}

    def fails(state: State) -> None:
        raise ValueError("no")

    seen: list[Any] = []
    graph = fan({"a": lambda state: {"x": (1, 2)}, "b": fails}, join, on_error="collect")
    graph.add_node("after", run=lambda state: seen.extend(state["kept"]))
    graph._draft.exits.clear()
    graph.add_edge("join", "after").set_finish_point("after")
    graph.compile(store=store, interrupt_after=["join"])
    run = graph.invoke({}).wait()
    graph.resume(run.id)
    assert [(each.branch, each.started, each.ended, each.error) for each in seen] == kept
    assert [type(each) for each in seen] == [BranchResult] * 2
    assert [dict(each) for each in seen] == [{"x": (1, 2)}, {}]
    assert seen[1].error["message"] == "no"


@pytest.mark.parametrize("ending", ["at the fan-in", "at END", "at a choice of END", "nowhere", "at an exit"])
def test_a_branch_ends_in_any_of_these_ways(ending: str, place: dict[str, Any]) -> None:
    """F12: where it comes to the fan-in, to END, to a node that leads nowhere, or to a finish point."""
    graph = fan({"a": [lambda state: {"x": 1}, lambda state: {"x": state["x"] + 1}], "b": None})
    if ending == "at the fan-in":
        graph.add_edge("a2", "join")
    elif ending == "at END":
        graph.add_edge("a2", END)
    elif ending == "at a choice of END":
        graph.add_conditional_edges("a2", lambda state: "stop", {"stop": END, "go": "b"})
    elif ending == "at an exit":
        graph.set_finish_point("a2").add_edge("a2", "b", lambda state: False)
    assert graph.compile(**place).execute({})["results"] == [{"x": 2}, {}]


def test_a_fan_in_need_not_look_at_the_results(place: dict[str, Any], via: Via) -> None:
    """F12: it may take nothing of them, or be no function at all; the branches ran."""
    calls = Calls()
    assert via.execute(fan({"a": calls, "b": calls}, None).compile(**place), {"k": 1}) == {"k": 1}
    assert calls.take() == ["a/a", "b/b"]
    assert via.execute(fan({"a": calls}, lambda state: {"seen": own(state)}).compile(**place), {"k": 1}) == {
        "k": 1,
        "seen": {"k": 1},
    }


def test_a_node_that_follows_no_branches_has_no_results() -> None:
    """F12, F2: also the one after a fan-in."""
    seen: list[Any] = []

    def look(parallel_results: list[BranchResult]) -> None:
        seen.append([each.branch for each in parallel_results])

    graph = fan({"a": None, "b": None}, look, source=look)
    graph._draft.exits.clear()
    graph.add_node("after", run=look).add_edge("join", "after").set_finish_point("after")
    graph.execute({})
    assert seen == [[], ["a", "b"], []]


def test_sections_may_follow_each_other_and_be_come_to_again(place: dict[str, Any], via: Via) -> None:
    """F12: each time the branches start from the state as it is then."""
    graph = StateGraph(name="rounds").add_node("src")
    for name in ("a", "b", "c", "d"):
        graph.add_node(
            name, run=lambda state, node: {"n": state["n"] * 2 if node in "ab" else state["n"] + 1}
        )
    graph.add_fanin_node(
        "first", run=lambda parallel_results: {"n": sum(each["n"] for each in parallel_results)}
    )
    graph.add_fanin_node(
        "second", run=lambda parallel_results: {"n": sum(each["n"] for each in parallel_results)}
    )
    graph.add_parallel_edge("src", "a", "first").add_parallel_edge("src", "b", "first")
    graph.add_parallel_edge("first", "c", "second").add_parallel_edge("first", "d", "second")
    graph.set_entry_point("src").set_finish_point("second").add_edge(
        "second", "src", lambda state: state["n"] < 100
    )
    # 1 → 4 → 10 → 40 → 82 → 328 → 658
    assert via.execute(graph.compile(**place), {"n": 1}) == {"n": 658}


def test_sync_branches_run_in_parallel(place: dict[str, Any], via: Via) -> None:
    """F12: all of them have to arrive for any of them to continue."""
    barrier = threading.Barrier(8)
    graph = fan({f"n{number}": lambda state: {"met": barrier.wait(SOON) >= 0} for number in range(8)})
    assert via.execute(graph.compile(**place), {})["results"] == [{"met": True}] * 8


def test_async_branches_run_in_parallel(place: dict[str, Any], via: Via) -> None:
    """F12, H7: in a sync run too."""
    came: list[str] = []

    async def meet(state: State, node: str) -> dict[str, Any]:
        came.append(node)
        async with asyncio.timeout(SOON):
            while len(came) < 8:
                await asyncio.sleep(0)
        return {"met": True}

    graph = fan({f"n{number}": meet for number in range(8)})
    assert via.execute(graph.compile(**place), {})["results"] == [{"met": True}] * 8


def test_sync_and_async_branches_run_in_parallel(place: dict[str, Any], via: Via) -> None:
    """F12, H7: also a plain function that returns something to be awaited."""
    sync_came, async_came = threading.Event(), threading.Event()

    def sync(state: State) -> dict[str, Any]:
        sync_came.set()
        return {"met": async_came.wait(SOON)}

    async def wait(state: State) -> dict[str, Any]:
        async_came.set()
        async with asyncio.timeout(SOON):
            while not sync_came.is_set():
                await asyncio.sleep(0.001)
        return {"met": True}

    graph = fan({"a": sync, "b": wait, "c": lambda state: wait(state)})
    assert via.execute(graph.compile(**place), {})["results"] == [{"met": True}] * 3


@pytest.mark.parametrize("limit", [1, 3])
def test_no_more_nodes_run_at_once_than_max_concurrency(limit: int, via: Via) -> None:
    """F12: `compile(max_concurrency=…)`, over all branches and nested ones."""
    lock, now, most = threading.Lock(), [0], [0]
    enough = threading.Barrier(limit)

    def work(state: State) -> None:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        enough.wait(SOON)  # and no fewer: 12 nodes, in rounds of 1 or 3
        with lock:
            now[0] -= 1

    graph = fan({f"n{number}": work for number in range(9)})
    for name in ("x", "y", "z"):
        graph.add_node(name, run=work).add_parallel_edge("n0", name, "inner")
    graph.add_fanin_node("inner")
    via.execute(graph.compile(store=MemoryStore(), max_concurrency=limit), {})
    assert most[0] == limit


def test_more_branches_than_may_run_at_once_all_run(via: Via) -> None:
    """F12: the limit is 32 unless it is said otherwise."""
    names = [f"n{number}" for number in range(75)]
    final = via.execute(fan({name: lambda state, node: {"by": node} for name in names}), {})
    assert [each["by"] for each in final["results"]] == names


def test_branches_see_the_context_variables_of_who_started_the_run(via: Via) -> None:
    """F12: as nodes do that run alone; what one sets, no other sees."""
    var: contextvars.ContextVar[str] = contextvars.ContextVar("var", default="unset")

    def sync(state: State, node: str) -> dict[str, Any]:
        seen = var.get()
        var.set(node)
        return {"seen": seen}

    async def wait(state: State, node: str) -> dict[str, Any]:
        return sync(state, node)

    def main() -> State:
        var.set("given")
        return via.execute(fan({"a": [sync, sync], "b": [wait, sync], "c": sync}), {})

    final = contextvars.copy_context().run(main)
    assert [each["seen"] for each in final["results"]] == ["given"] * 3


# Private copies


def test_what_a_branch_does_to_its_state_is_seen_nowhere_else(
    place: dict[str, Any], via: Via, journal: str
) -> None:
    """F12, invariant 8: assigned, appended, nested, deleted, returned; for siblings, the parent and the fan-in."""
    start = {"log": ["s"], "deep": {"x": [{"y": 1}]}, "gone": [1], "n": 1, "set": {1}, "pair": ([1], 2)}
    ready = threading.Barrier(2)

    def spoil(state: State) -> dict[str, Any]:
        state["log"].append("a")
        state["deep"]["x"][0]["y"] = 2
        state["deep"]["new"] = []
        state["set"].add(2)
        state["pair"][0].append(3)
        del state["gone"]
        state["n"] = 5
        ready.wait(SOON)
        return {"more": [1]}

    def spoil_again(state: State) -> None:
        state["log"].append("a2")
        state["deep"]["x"].clear()
        state["more"].append(2)

    def look(state: State) -> None:
        ready.wait(SOON)
        assert state == start

    def join(state: State, parallel_results: list[BranchResult]) -> dict[str, Any]:
        assert own(state) == start
        return gather(state, parallel_results)

    graph = fan(
        {
            "a": [spoil, spoil_again],
            "b": [look, look_again := lambda state: {"saw": dict(state)}],
            "c": look_again,
        },
        join,
    )
    final = via.execute(graph.compile(**place), start)
    assert {key: final[key] for key in start} == start
    a, b, c = final["results"]
    assert a == {
        "log": ["s", "a", "a2"], "deep": {"x": [], "new": []}, "n": 5, "set": {1, 2}, "pair": ([1, 3], 2),
        "more": [1, 2],
    }  # fmt: skip
    assert b == c == {**start, "saw": start}


def test_branches_that_alter_the_same_value_at_once_do_not_meet(place: dict[str, Any], via: Via) -> None:
    """F12: each has its own, though none of them assigned it."""
    barrier = threading.Barrier(6)

    def grow(state: State, node: str) -> None:
        barrier.wait(SOON)
        for number in range(50):
            state["log"].append((node, number))

    graph = fan({f"n{number}": [grow, grow] for number in range(6)})
    final = via.execute(graph.compile(**place), {"log": []})
    assert final["log"] == []
    for index, each in enumerate(final["results"]):
        assert each["log"] == [(node, number) for node in (f"n{index}", f"n{index}2") for number in range(50)]


def test_deleted_keys_are_gone_in_the_branch_alone(store: Any, journal: str) -> None:
    """F12: also one that is None, one that comes back, and after a stop in the middle."""

    def delete(state: State) -> None:
        for key in ("none", "number", "list", "back"):
            del state[key]

    def look(state: State) -> dict[str, Any]:
        return {"saw": sorted(state), "back": "again"}

    start = {"none": None, "number": 1, "list": [1], "back": 1}
    graph = fan({"a": [delete, look], "b": [None, look]}).compile(store=store, interrupt_before=["a2", "b2"])
    run = graph.invoke(start).wait()
    final = graph.resume(run.id)
    a, b = final.pop("results")
    assert a == {"saw": [], "back": "again"}
    assert b == {**start, "saw": sorted(start), "back": "again"}
    assert final == start


def test_a_branch_may_set_what_was_there_before(place: dict[str, Any]) -> None:
    """F12: an equal value, None, and another type that is equal."""
    graph = fan({"a": lambda state: {"x": 1, "none": None, "one": True}, "b": lambda state: {"one": 1.0}})
    first, second = graph.compile(**place).execute({"x": 1, "one": 1})["results"]
    assert first == {"x": 1, "one": True, "none": None}
    assert [type(each["one"]) for each in (first, second)] == [bool, float]


def test_one_value_under_two_keys_is_two_values_for_a_branch(place: dict[str, Any]) -> None:
    """F12, H4: as it would be after a resume."""
    shared: list[int] = []

    def grow(state: State) -> None:
        state["x"].append(1)

    final = fan({"a": grow, "b": None}).compile(**place).execute({"x": shared, "y": shared})
    assert final["results"][0]["x"] == [1]
    assert final["results"][1] == {"x": [], "y": []}
    assert shared == []


def test_what_a_node_does_to_its_state_after_it_returned_has_no_effect(via: Via) -> None:
    """F12: no code can reach into a branch that has continued."""
    kept: list[Any] = []

    def keep(state: State) -> dict[str, Any]:
        state["log"].append(1)
        new = [1]
        kept.extend((state, state["log"], new))
        return {"new": new}

    def later(state: State) -> dict[str, Any]:
        kept[0]["late"] = 1
        kept[1].append("late")
        kept[2].append("late")
        return {"saw": [state["log"], state["new"]]}

    final = via.execute(fan({"a": [keep, later], "b": None}).compile(store=MemoryStore()), {"log": []})
    assert final["results"] == [{"log": [1], "new": [1], "saw": [[1], [1]]}, {"log": []}]


@pytest.mark.parametrize("stop", [False, True], ids=["straight", "resumed"])
def test_a_list_that_a_branch_appended_to_shares_no_items(store: Any, stop: bool) -> None:
    """F12, invariant 8: the items that were there before, altered after a resume."""

    def grow(state: State) -> None:
        state["log"].append({"n": 1})
        state["by key"]["new"] = {}

    def alter(state: State) -> None:
        state["log"][0]["n"] = 99
        state["by key"]["old"]["n"] = 99

    start = {"log": [{"n": 0}], "by key": {"old": {"n": 0}}}
    graph = fan({"a": [grow, alter], "b": [None, lambda state: {"saw": dict(state)}]})
    graph.compile(store=store, interrupt_before=["a2", "b2"] if stop else [])
    run = graph.invoke(start).wait()
    final = graph.resume(run.id) if stop else run.result()
    assert final["results"][1] == {**start, "saw": start}
    assert {key: final[key] for key in start} == start
    assert final["results"][0]["log"] == [{"n": 99}, {"n": 1}]


def test_what_is_inside_a_reduced_value_is_a_branch_s_own(place: dict[str, Any]) -> None:
    """F12, invariant 8: a change in place has no effect there, and certainly none on others."""

    def alter(state: State) -> None:
        state["log"][0]["n"] = 99

    schema = {"log": Annotated[list, append]}
    final = fan({"a": alter, "b": None}, schema=schema).compile(**place).execute({"log": [{"n": 0}]})
    assert final["log"] == [{"n": 0}]
    assert final["results"][1] == {"log": [{"n": 0}]}


def test_what_a_fan_in_does_to_a_result_changes_nothing_else(store: Any, journal: str) -> None:
    """F12, invariant 8: not the state, not the other results, and not what it is given when it is tried again."""
    seen: list[Any] = []

    def join(state: State, parallel_results: list[BranchResult]) -> dict[str, Any]:
        seen.append(deepcopy([dict(each) for each in parallel_results]))
        for each in parallel_results:
            each["log"].append("x")
            each["deep"]["y"]["z"] = 1
            each["new"] = 1
            del each["n"]
        parallel_results.reverse()
        assert own(state) == {"log": ["s"], "deep": {"y": {}}, "n": 1}
        if len(seen) < 3:
            raise ValueError
        return {"done": True}

    def grow(state: State) -> None:
        state["log"].append("a")

    graph = fan({"a": grow, "b": None}, join, policy={"retry": Retry(2, backoff=0)}).compile(store=store)
    with pytest.raises(ExecutionError):
        graph.execute({"log": ["s"], "deep": {"y": {}}, "n": 1}, run_id="r")
    assert graph.resume("r") == {"log": ["s"], "deep": {"y": {}}, "n": 1, "done": True}
    assert (
        seen
        == [[{"log": ["s", "a"], "deep": {"y": {}}, "n": 1}, {"log": ["s"], "deep": {"y": {}}, "n": 1}]] * 3
    )


def test_what_a_fan_in_does_to_the_state_is_not_in_results_it_reads_afterwards(place: dict[str, Any]) -> None:
    """F12, invariant 8: the plain way to put lists together."""

    def join(state: State, parallel_results: list[BranchResult]) -> None:
        for each in parallel_results:
            state["log"].extend(each["log"])

    def grow(state: State) -> None:
        state["log"].append("a")

    final = fan({"a": grow, "b": None}, join).compile(**place).execute({"log": ["s"]})
    assert final == {"log": ["s", "s", "a", "s"]}


@pytest.mark.parametrize("stop", [False, True], ids=["straight", "resumed"])
def test_what_a_failed_attempt_of_a_fan_in_did_to_the_state_is_not_in_the_next_ones_results(
    store: Any, stop: bool
) -> None:
    """F12, H8: what it altered in place is taken back, everywhere."""
    seen: list[Any] = []

    def join(state: State, parallel_results: list[BranchResult]) -> None:
        seen.append([each["log"] for each in parallel_results])
        state["log"].append("x")
        if len(seen) < 3:
            raise ValueError

    graph = fan({"a": None, "b": None}, join, policy={"retry": AT_ONCE})
    graph.compile(store=store, interrupt_before=["join"] if stop else [])
    run = graph.invoke({"log": ["s"]}).wait()
    final = graph.resume(run.id) if stop else run.result()
    assert final == {"log": ["s", "x"]}
    assert seen == [[["s"], ["s"]]] * 3


def test_what_a_fan_in_does_to_an_error_is_not_there_when_it_is_tried_again() -> None:
    """F12, invariant 8: an error is a copy too."""
    seen: list[str] = []

    def fails(state: State) -> None:
        raise ValueError("boom")

    def join(parallel_results: list[BranchResult]) -> None:
        error = parallel_results[0].error
        assert error is not None
        seen.append(error["message"])
        error["message"] = "changed"
        if len(seen) == 1:
            raise ValueError

    fan({"a": fails}, join, on_error="collect", policy={"retry": AT_ONCE}).compile(
        store=MemoryStore()
    ).execute({})
    assert seen == ["boom", "boom"]


def test_a_large_state_is_not_stored_again_for_each_branch(store: Any) -> None:
    """F12, H2: branches cost what they change, also when they read it all."""
    size = 500_000
    graph = fan(
        {
            f"n{number}": [
                lambda state: print(end=str(state["big"])[:0]),
                lambda state: {"x": len(state["big"][0])},
            ]
            for number in range(8)
        },
        None,
    )
    graph.compile(store=store, preserve=True).execute({"big": [randbytes(size)]}, run_id="r")
    client = graph.compiled().client
    assert client is not None
    assert size < sum(map(len, client.store.read("r", first=1).records)) < 2 * size


def test_the_state_of_the_run_is_the_main_one_while_branches_are_under_way(store: Any) -> None:
    """F12, G1: a reader of the run sees what the fan-in will start from."""
    graph = fan({"a": [lambda state: {"x": 1}, None], "b": None}, source=lambda state: {"k": [1]})
    graph.compile(store=store, interrupt_before=["a2"])
    run = graph.invoke({}).wait()
    assert run.state == graph.state_at(run.id) == {"k": [1]}
    assert run.state.checkpoint_node == "src"


def test_results_that_are_kept_stay_as_they_are(
    place: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    """F12, invariant 8: also when what they share with the state grows afterwards, and without a store."""
    schema = {"log": Annotated[list, append]}
    graph = fan(
        {"a": None, "b": None}, lambda parallel_results: {"log": "x", "kept": parallel_results}, schema=schema
    )
    final = graph.compile(**place).execute({"log": ["s"]})
    assert final["log"] == ["s", "x"]
    assert [dict(each) for each in final["kept"]] == [{"log": ["s"]}] * 2


def test_a_copy_of_a_result_knows_its_branch_too(place: dict[str, Any]) -> None:
    """F12: however it is copied; what `set`, `merge` and `clone` give is a State."""
    copies: list[Any] = []

    def join(parallel_results: list[BranchResult]) -> None:
        (result,) = parallel_results
        copies.extend((copy(result), deepcopy(result), pickle.loads(pickle.dumps(result))))

    fan({"a": None}, join).compile(**place).execute({"k": [1]})
    assert [(type(each), each.branch, each.index, dict(each)) for each in copies] == [
        (BranchResult, "a", 0, {"k": [1]})
    ] * 3


# Reducers


def test_reducers_work_within_a_branch_and_at_the_fan_in(
    place: dict[str, Any], via: Via, journal: str
) -> None:
    """F12: append, merge, operator.add and a function of the user's."""
    schema = {
        "log": Annotated[list, append], "by": Annotated[dict, merge], "sum": Annotated[int, add],
        "most": Annotated[int, lambda old, new: max(old, new)], "tags": Annotated[list, add],
    }  # fmt: skip

    def work(state: State, node: str) -> dict[str, Any]:
        return {"log": node, "by": {node: 1}, "sum": 2, "most": len(state["log"]), "tags": [node]}

    def join(state: State, parallel_results: list[BranchResult]) -> dict[str, Any]:
        assert own(state) == {"log": ["s"], "by": {"s": 0}, "sum": 1, "most": 1, "tags": []}
        a, b = parallel_results
        assert a == {
            "log": ["s", "a", "a2"], "by": {"s": 0, "a": 1, "a2": 1}, "sum": 5, "most": 2, "tags": ["a", "a2"],
        }  # fmt: skip
        assert b == {"log": ["s", "b"], "by": {"s": 0, "b": 1}, "sum": 3, "most": 1, "tags": ["b"]}
        return {"log": a["log"][1:] + b["log"][1:], "by": b["by"], "sum": 10, "most": 0}

    graph = fan({"a": [work, work], "b": work}, join, schema=schema).compile(**place)
    assert via.execute(graph, {"log": ["s"], "by": {"s": 0}, "sum": 1, "most": 1}) == {
        "log": ["s", "a", "a2", "b"], "by": {"s": 0, "b": 1}, "sum": 11, "most": 1, "tags": []
    }  # fmt: skip


def test_what_reducers_made_in_a_branch_is_there_after_a_stop(store: Any, journal: str) -> None:
    """F12: whether a record or a snapshot is read."""
    schema = {"log": Annotated[list, append], "by": Annotated[dict, merge], "sum": Annotated[int, add]}

    def work(state: State, node: str) -> dict[str, Any]:
        return {"log": [node], "by": {node: [node]}, "sum": 1}

    names = ["a", "a2", "a3", "b", "b2", "b3"]
    graph = fan({"a": [work] * 3, "b": [work] * 3}, schema=schema)
    graph.compile(store=store, interrupt_before=names[1::3], interrupt_after=names[1::3])
    run = graph.invoke({"log": ["s"]}).wait()
    with pytest.raises(RunPaused):
        graph.resume(run.id)
    assert graph.resume(run.id) == {
        "log": ["s"], "by": {}, "sum": 0,
        "results": [
            {"log": ["s", *part], "by": {name: [name] for name in part}, "sum": 3} for part in (names[:3], names[3:])
        ],
    }  # fmt: skip


# What is in a branch


def test_a_branch_may_have_conditions_and_cycles(place: dict[str, Any], via: Via) -> None:
    """F12: a choice, predicates, and a loop whose visits are counted for the branch alone."""
    visits: dict[str | None, list[int]] = {"a": [], "b": []}

    def count(state: State, ctx: NodeContext) -> dict[str, Any]:
        visits[ctx.branch].append(ctx.visit)
        return {"n": state["n"] + 1}

    graph = StateGraph(name="loops").add_node("src")
    for name, most in (("a", 3), ("b", 5)):
        graph.add_node(name, run=lambda state, most=most: {"most": most}).add_edge(name, "count")
        graph.add_parallel_edge("src", name, "join")
    graph.add_node("count", run=count).add_edge("count", "count", lambda state: state["n"] < state["most"])
    graph.add_conditional_edges("count", lambda state: state["most"] > 3, {True: "large", False: "small"})
    graph.add_node("large", run=lambda state: {"size": "large"}).add_node(
        "small", run=lambda state: {"size": "small"}
    )
    graph.add_edge("small", "join").add_fanin_node("join", run=gather)
    graph.set_entry_point("src").set_finish_point("join")
    final = via.execute(graph.compile(**place), {"n": 0})
    assert final["results"] == [{"n": 3, "most": 3, "size": "small"}, {"n": 5, "most": 5, "size": "large"}]
    assert visits == {"a": [1, 2, 3], "b": [1, 2, 3, 4, 5]}


def test_nodes_of_branches_are_tried_again(place: dict[str, Any], via: Via) -> None:
    """F12, H8: each on its own; what a failed attempt did to the state is taken back."""
    attempts: list[tuple[str | None, int]] = []

    def work(state: State, ctx: NodeContext) -> dict[str, Any]:
        attempts.append((ctx.branch, ctx.attempt))
        state["log"].append(ctx.attempt)
        if ctx.attempt < (3 if ctx.branch == "a" else 2):
            raise ValueError
        return {"tries": ctx.attempt}

    graph = StateGraph(name="tries").add_node("src").add_fanin_node("join", run=gather)
    for name in ("a", "b"):
        graph.add_node(name, run=work, retry=AT_ONCE).add_parallel_edge("src", name, "join")
    graph.set_entry_point("src").set_finish_point("join").compile(**place)
    final = via.execute(graph, {"log": []})
    assert final["results"] == [{"log": [3], "tries": 3}, {"log": [2], "tries": 2}]
    assert sorted(attempts) == [("a", 1), ("a", 2), ("a", 3), ("b", 1), ("b", 2)]
    assert final["log"] == []


def test_a_branch_that_waits_for_its_next_attempt_doesnt_delay_others(via: Via) -> None:
    """F12, H8: the others continue meanwhile, to their ends."""
    ended = threading.Event()

    def flaky(state: State, ctx: NodeContext) -> dict[str, Any]:
        if ctx.attempt == 1:
            raise ValueError
        return {"waited": ended.wait(SOON)}

    def last(state: State) -> None:
        ended.set()

    graph = StateGraph(name="waits").add_node("src").add_fanin_node("join", run=gather)
    graph.add_node("a", run=flaky, retry=Retry(2, backoff=0.05)).add_parallel_edge("src", "a", "join")
    for name, run in (("b", None), ("b2", None), ("b3", last)):
        graph.add_node(name, run=run)
    graph.add_parallel_edge("src", "b", "join").add_edge("b", "b2").add_edge("b2", "b3")
    graph.set_entry_point("src").set_finish_point("join").compile(store=MemoryStore())
    assert via.execute(graph, {})["results"] == [{"waited": True}, {}]


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_node_of_a_branch_has_a_timeout(kind: str, via: Via) -> None:
    """F12, H8: the others are kept, and what is left behind changes nothing."""
    left, calls = threading.Event(), Calls()

    def slow(state: State) -> dict[str, Any]:
        if not left.is_set():
            left.wait(SOON)
            state["log"].append("late")
        return {"slow": True}

    async def aslow(state: State) -> dict[str, Any]:
        if not left.is_set():
            await asyncio.sleep(SOON)
        return {"slow": True}

    store = MemoryStore()

    def make(timeout: float) -> StateGraph:
        graph = (
            StateGraph(name="slow")
            .add_node("src")
            .add_fanin_node("join", run=gather)
            .add_node("b", run=calls)
        )
        graph.add_node("a", run=slow if kind == "sync" else aslow, timeout=timeout)
        graph.add_parallel_edge("src", "a", "join").add_parallel_edge("src", "b", "join")
        return graph.set_entry_point("src").set_finish_point("join").compile(store=store)

    with pytest.raises(ExecutionError, match=r"node 'a' took longer than its timeout of 0.05 s") as caught:
        via.execute(make(0.05), {"log": []}, run_id="r")
    assert isinstance(caught.value.cause, NodeTimeout)
    left.set()
    final = via.resume(make(SOON), "r")
    assert final["results"] == [{"log": [], "slow": True}, {"log": [], "b": True}]
    assert calls.take() == ["b/b"]


def test_a_branch_has_the_budget_of_a_run(place: dict[str, Any], via: Via) -> None:
    """F12, G2: `max_iterations` counts each branch by itself, and what all of them do isn't the run's."""
    seen: list[BranchResult] = []
    branches: dict[str, Any] = {"a": None, "b": [None] * 4, "c": [None] * 4}
    graph = fan(
        branches, lambda parallel_results: seen.extend(parallel_results), on_error="collect", max_iterations=5
    )
    via.execute(graph.add_edge("a", "a").compile(**place), {})
    assert [each.error and each.error["message"] for each in seen] == [
        "max_iterations (5) exceeded; a resume needs a graph that allows more",
        None,
        None,
    ]


def test_a_branch_that_used_up_its_budget_continues_in_a_graph_that_allows_more(store: Any) -> None:
    """F12, G2, G7: from where it was; the other branch is kept."""
    calls = Calls()

    def looping(most: int) -> StateGraph:
        graph = fan({"a": lambda state: {"n": state.get("n", 0) + 1}, "b": calls}, max_iterations=most)
        graph.add_edge("a", "a", lambda state: state["n"] < 8)
        return graph.set_finish_point("a").compile(store=store)

    with pytest.raises(ExecutionError, match=r"max_iterations \(5\) exceeded") as caught:
        looping(5).execute({}, run_id="r")
    assert (caught.value.node, caught.value.state) == ("a/a", {"n": 5})
    with pytest.raises(ExecutionError, match=r"max_iterations \(5\) exceeded"):
        looping(5).resume("r")
    assert looping(20).resume("r")["results"] == [{"n": 8}, {"b": True}]
    assert calls.take() == ["b/b"]


def nested_graph(run: Run = None, join: Run = gather) -> StateGraph:
    """src → (a → (x, y → (p, q) → deepest) → inner | b) → join."""
    graph = fan({"a": run, "b": run}, join)
    for source, names, fan_in in (("a", "xy", "inner"), ("y", "pq", "deepest")):
        for name in names:
            graph.add_node(name, run=run).add_parallel_edge(source, name, fan_in)
        graph.add_fanin_node(fan_in, run=gather)
    return graph


def test_sections_may_be_inside_of_branches(place: dict[str, Any], via: Via, journal: str) -> None:
    """F12: three deep, each fan-in with the results of its own."""
    graph = nested_graph(lambda state, node: {"way": [*state["way"], node]}).compile(**place)
    final = via.execute(graph, {"way": []})
    deepest = [{"way": ["a", "y", "p"]}, {"way": ["a", "y", "q"]}]
    inner = [{"way": ["a", "x"]}, {"way": ["a", "y"], "results": deepest}]
    assert final == {"way": [], "results": [{"way": ["a"], "results": inner}, {"way": ["b"]}]}


@pytest.mark.parametrize("failing", ["a/a", "a/x/x", "a/y/q/q", "b/b"])
def test_a_failure_deep_inside_names_its_way_and_only_that_is_done_again(
    failing: str, store: Any, via: Via
) -> None:
    """F12, H3: branches at all depths are kept."""
    calls = Calls()
    calls.fail.add(failing)
    graph = nested_graph(calls).compile(store=store)
    with pytest.raises(ExecutionError, match=f"no {failing} today") as caught:
        via.execute(graph, {}, run_id="r")
    assert caught.value.node == failing
    first = calls.take()
    calls.fail.clear()
    final = via.resume(graph, "r")
    assert final == nested_graph(Calls()).execute({})
    everything = ["a/a", "a/x/x", "a/y/p/p", "a/y/q/q", "a/y/y", "b/b"]
    assert calls.take() == sorted([failing, *(set(everything) - set(first))])


def test_branches_inside_of_a_branch_are_there_after_a_snapshot(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F12, H3: with the state they started from, and the run's id."""
    snapshots_always(monkeypatch)
    seen: list[tuple[str, str]] = []

    def leaf(state: State, ctx: NodeContext) -> dict[str, Any]:
        seen.append((ctx.run_id, ctx.idempotency_key))
        return {"sum": state["k"] + state["a"]}

    graph = fan({"a": lambda state: {"a": 10}, "b": None})
    for name in "xy":
        graph.add_node(name, run=leaf).add_parallel_edge("a", name, "inner")
    graph.add_fanin_node("inner", run=gather).compile(store=store, interrupt_before=["x", "y"])
    run = graph.invoke({"k": 1}, run_id="r").wait()
    assert graph.resume(run.id)["results"] == [
        {"k": 1, "a": 10, "results": [{"k": 1, "a": 10, "sum": 11}] * 2},
        {"k": 1},
    ]
    assert sorted(seen) == [("r", "r/1.1.1/a/x/x"), ("r", "r/1.1.1/a/y/y")]


def test_a_fan_in_may_be_the_node_that_branches_left_from(store: Any, via: Via, journal: str) -> None:
    """F12: a planner that sends workers out and reads what they found, until it has enough."""
    log: list[Any] = []

    def plan(state: State, parallel_results: list[BranchResult]) -> dict[str, Any]:
        log.append([each["found"] for each in parallel_results])
        return {
            "round": state["round"] + 1,
            "total": state["total"] + sum(each["found"] for each in parallel_results),
        }

    graph = StateGraph(name="planner").add_node("plan", run=plan)
    graph.add_edge("plan", END, lambda state: state["total"] >= 6)
    for number, name in enumerate(("one", "two")):
        graph.add_node(name, run=lambda state, number=number: {"found": state["round"] + number})
        graph.add_parallel_edge("plan", name, "plan")
    graph.set_entry_point("plan").compile(store=store, preserve=True)
    assert via.execute(graph, {"round": 0, "total": 0}, run_id="r") == {"round": 3, "total": 8}
    assert log == [[], [1, 2], [2, 3]]
    steps = [(each.branch, each.node) for each in graph.history("r")]
    assert steps[:2] == [(None, None), (None, "plan")]
    assert sorted(steps[2:4]) == sorted(steps[5:7]) == [("one", "one"), ("two", "two")]
    assert steps[4] == steps[7] == (None, "plan")


def test_a_planner_stops_before_and_after_itself(store: Any) -> None:
    """F12, F5: the same node as source and as fan-in, each time."""
    graph = StateGraph(name="planner")
    graph.add_node("plan", run=lambda state, parallel_results: {"n": [*state["n"], len(parallel_results)]})
    graph.add_edge("plan", END, lambda state: len(state["n"]) == 3)
    for name in ("one", "two"):
        graph.add_node(name).add_parallel_edge("plan", name, "plan")
    graph.set_entry_point("plan").compile(store=store, interrupt_before=["plan"], interrupt_after=["plan"])
    run = graph.invoke({"n": []}).wait()
    lengths = []
    while graph.runs()[0].status == "paused":
        lengths.append(len(graph.state_at(run.id)["n"]))
        try:
            final = graph.resume(run.id)
        except RunPaused:
            continue
    assert lengths == [0, 1, 1, 2, 2, 3]
    assert final == {"n": [0, 2, 2]}


def test_a_condition_decides_whether_there_are_branches(place: dict[str, Any], via: Via) -> None:
    """F12, G3: ways out are tried in order, and the branches are the last of them."""
    calls = Calls()
    graph = (
        StateGraph(name="perhaps")
        .add_node("src")
        .add_node("alone", run=calls)
        .add_edge("src", "alone", lambda state: state["n"] == 1)
    )
    for name in ("a", "b"):
        graph.add_node(name, run=calls).add_parallel_edge("src", name, "join")
    graph.add_fanin_node("join", run=gather).set_entry_point("src")
    graph.set_finish_point("join").set_finish_point("alone").compile(**place)
    assert via.execute(graph, {"n": 1}) == {"n": 1, "alone": True}
    assert calls.take() == ["alone"]
    assert "results" in via.execute(graph, {"n": 2})
    assert calls.take() == ["a/a", "b/b"]


def test_a_branch_that_comes_back_to_its_source_leaves_a_journal_that_can_be_read() -> None:
    """F12, invariant 2: a choice that may lead anywhere, which no check can foresee, leads to the source."""
    graph = fan({"a": None}, source=lambda state: {"n": state.get("n", 0) + 1})
    graph.add_conditional_edges("a", lambda state: "src" if state["n"] < 3 else "join")
    graph.compile(store=MemoryStore(), preserve=True)
    with suppress(ExecutionError):
        graph.execute({}, run_id="r")
    assert [each.step for each in graph.history("r")]


# Errors


def test_a_failed_branch_fails_the_run_once_the_others_are_done(store: Any, via: Via, journal: str) -> None:
    """F12, H3: they are kept; a resume runs the failed branch, from its failed node, and the fan-in."""
    calls, failed = Calls(), threading.Event()

    def fails(state: State, ctx: NodeContext) -> dict[str, Any]:
        failed.set()
        return calls(state, ctx)

    def waits(state: State, ctx: NodeContext) -> dict[str, Any]:
        assert failed.wait(SOON)
        return calls(state, ctx)

    calls.fail.add("a/a2")
    graph = fan({"a": [calls, fails, calls], "b": [waits, calls, calls], "c": calls}).compile(store=store)
    with pytest.raises(ExecutionError, match="ValueError: no a/a2 today") as caught:
        via.execute(graph, {"k": 1}, run_id="r")
    error = caught.value
    assert (error.node, error.state, error.path) == ("a/a2", {"k": 1, "a": True}, ["src", "a/a", "a/a2"])
    assert isinstance(error.cause, ValueError)
    assert error.run_id == "r"
    assert calls.take() == ["a/a", "a/a2", "b/b", "b/b2", "b/b3", "c/c"]
    (info,) = graph.runs()
    assert (info.status, info.node, info.error and info.error["node"]) == ("failed", "a/a2", "a/a2")
    calls.fail.clear()
    assert via.resume(graph, "r")["results"] == [
        {"k": 1, "a": True, "a2": True, "a3": True},
        {"k": 1, "b": True, "b2": True, "b3": True},
        {"k": 1, "c": True},
    ]
    assert calls.take() == ["a/a2", "a/a3"]


def test_no_branch_begins_after_one_has_failed(store: Any, via: Via) -> None:
    """F12: those that had not begun begin at the resume."""
    calls = Calls()
    calls.fail.add("b/b")
    graph = fan({"a": calls, "b": calls, "c": calls, "d": calls}).compile(store=store, max_concurrency=1)
    with pytest.raises(ExecutionError):
        via.execute(graph, {}, run_id="r")
    assert calls.take() == ["a/a", "b/b"]
    calls.fail.clear()
    assert via.resume(graph, "r")["results"] == [{name: True} for name in "abcd"]
    assert calls.take() == ["b/b", "c/c", "d/d"]


def test_several_branches_fail(store: Any, via: Via) -> None:
    """F12: the first in declaration order is reported, and how many more; all are tried again."""
    calls, barrier = Calls(), threading.Barrier(3)
    calls.fail.update(("a/a", "c/c"))

    def together(state: State, ctx: NodeContext) -> dict[str, Any]:
        barrier.wait(SOON)
        return calls(state, ctx)

    graph = fan(dict.fromkeys("abc", together)).compile(store=store)
    with pytest.raises(ExecutionError, match=r"no a/a today \(the first of 2 branches that failed\)"):
        via.execute(graph, {}, run_id="r")
    assert calls.take() == ["a/a", "b/b", "c/c"]
    barrier = threading.Barrier(2)
    calls.fail.discard("a/a")
    with pytest.raises(ExecutionError, match=r"no c/c today \(path"):
        via.resume(graph, "r")
    assert calls.take() == ["a/a", "c/c"]
    barrier = threading.Barrier(1)
    calls.fail.clear()
    assert len(via.resume(graph, "r")["results"]) == 3
    assert calls.take() == ["c/c"]


def test_a_failed_branch_without_a_store_fails_the_run(via: Via) -> None:
    """F12: with the same error."""
    calls = Calls()
    calls.fail.add("a/a2")
    with pytest.raises(ExecutionError) as caught:
        via.execute(fan({"a": [calls, calls], "b": calls}), {})
    assert (caught.value.node, caught.value.state) == ("a/a2", {"a": True})
    assert calls.take() == ["a/a", "a/a2", "b/b"]


def test_collected_errors_are_for_the_fan_in_to_see(place: dict[str, Any], via: Via, journal: str) -> None:
    """F12: which branch failed, where and why, with the state it had then."""
    calls, seen = Calls(), []
    calls.fail.update(("a/a2", "c/c"))

    def join(parallel_results: list[BranchResult]) -> dict[str, Any]:
        seen.extend(parallel_results)
        return {"ok": [each.branch for each in parallel_results if each.error is None]}

    graph = fan({"a": [calls, calls, calls], "b": [calls, calls], "c": calls}, join, on_error="collect")
    assert via.execute(graph.compile(**place), {}) == {"ok": ["b"]}
    a, b, c = seen
    assert (a.error["type"], a.error["message"], a.error["node"]) == ("ValueError", "no a/a2 today", "a/a2")
    assert "raise ValueError" in a.error["traceback"]
    assert repr(a) == "<BranchResult a failed: no a/a2 today {'a': True}>"
    assert (dict(a), dict(b), dict(c)) == ({"a": True}, {"b": True, "b2": True}, {})
    assert (b.error, c.error["node"]) == (None, "c/c")
    assert calls.take() == ["a/a", "a/a2", "b/b", "b/b2", "c/c"]


def test_a_branch_that_failed_at_once_has_times_too() -> None:
    """F12: `started`, `ended` and `duration` of each entry."""
    calls, seen = Calls(), []
    calls.fail.add("a/a")
    fan({"a": calls}, lambda parallel_results: seen.extend(parallel_results), on_error="collect").execute({})
    assert 0 < seen[0].started <= seen[0].ended


def test_every_branch_may_fail_where_errors_are_collected(via: Via) -> None:
    """F12: the fan-in runs all the same; nodes are tried as often as they may before."""
    calls = Calls()
    calls.fail.update(("a/a", "b/b"))
    graph = StateGraph(name="all").add_node("src")
    for name in "ab":
        graph.add_node(name, run=calls, retry=AT_ONCE).add_parallel_edge(
            "src", name, "join", on_error="collect"
        )
    graph.add_fanin_node(
        "join",
        run=lambda parallel_results: {"failed": sum(each.error is not None for each in parallel_results)},
    )
    graph.set_entry_point("src").set_finish_point("join").compile(store=MemoryStore())
    assert via.execute(graph, {}) == {"failed": 2}
    assert calls.take() == ["a/a"] * 3 + ["b/b"] * 3


def test_a_collected_error_stays_over_a_resume(store: Any, journal: str) -> None:
    """F12: the branch isn't tried again, and the fan-in sees the same."""
    calls, seen = Calls(), []
    calls.fail.add("a/a")

    def join(parallel_results: list[BranchResult]) -> None:
        seen.append([each.error and each.error["message"] for each in parallel_results])
        if len(seen) == 1:
            raise ValueError

    graph = fan({"a": calls, "b": calls}, join, on_error="collect").compile(store=store)
    with pytest.raises(ExecutionError) as caught:
        graph.execute({}, run_id="r")
    assert caught.value.node == "join"
    assert calls.take() == ["a/a", "b/b"]
    calls.fail.clear()
    graph.resume("r")
    assert seen == [["no a/a today", None]] * 2
    assert calls.take() == []


def test_errors_are_collected_from_any_depth(via: Via) -> None:
    """F12: a section that fails inside of a branch fails the branch."""
    calls, seen = Calls(), []
    calls.fail.add("a/x/x")
    graph = fan(
        {"a": calls, "b": calls}, lambda parallel_results: seen.extend(parallel_results), on_error="collect"
    )
    for name in "xy":
        graph.add_node(name, run=calls).add_parallel_edge("a", name, "inner")
    graph.add_fanin_node("inner", run=calls).compile(store=MemoryStore())
    via.execute(graph, {})
    assert [each.error and each.error["node"] for each in seen] == ["a/x/x", None]
    assert calls.take() == ["a/a", "a/x/x", "a/y/y", "b/b"]


def test_a_value_that_can_not_be_stored_fails_its_branch_alone(store: Any, via: Via) -> None:
    """F12, H4: with the path to it; the siblings are kept."""
    calls, value = Calls(), [object()]
    graph = fan({"a": lambda state: {"x": {"y": value[0]}}, "b": [calls, calls]}).compile(store=store)
    with pytest.raises(ExecutionError, match=r"the value at x\.y can't be stored") as caught:
        via.execute(graph, {}, run_id="r")
    assert isinstance(caught.value.cause, UnstorableValue)
    assert caught.value.node == "a/a"
    value[0] = 1
    assert via.resume(graph, "r")["results"] == [{"x": {"y": 1}}, {"b": True, "b2": True}]
    assert calls.take() == ["b/b", "b/b2"]


def test_any_value_may_be_in_branches_without_a_store(via: Via) -> None:
    """F12: nothing is stored then; what can't be copied is handed on as it is."""
    lock = threading.Lock()
    look = [lambda state: {"x": lock}, lambda state: {"same": state["x"] is lock}]
    final = via.execute(fan({"a": look, "b": None}), {"f": print})
    assert final["results"][0]["same"] is True
    assert final["results"][1] == {"f": print}


def test_what_isnt_an_update_fails_the_branch(via: Via) -> None:
    """F12, F2: as anywhere."""
    with pytest.raises(ExecutionError, match="a node must return a dict of updates or None, not list"):
        via.execute(fan({"a": lambda state: [1], "b": None}).compile(store=MemoryStore()), {})
    with pytest.raises(ExecutionError, match="a state key must be a str, not int"):
        via.execute(fan({"a": lambda state: {1: 1}, "b": None}), {})


def test_an_error_without_a_text_is_collected(via: Via) -> None:
    """F12: whatever was raised."""

    class Odd(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    def fails(state: State) -> None:
        raise Odd

    seen: list[Any] = []
    graph = fan(
        {"a": fails, "b": None}, lambda parallel_results: seen.extend(parallel_results), on_error="collect"
    )
    via.execute(graph.compile(store=MemoryStore()), {})
    assert seen[0].error["message"] == "(its text can't be read)"


def test_a_predicate_that_fails_in_a_branch_does_not_run_its_node_again(store: Any, via: Via) -> None:
    """F12, G6: what follows is chosen at the resume."""
    calls, fixed = Calls(), []

    def choose(state: State) -> bool:
        if not fixed:
            raise ValueError("which way?")
        return True

    graph = fan({"a": [calls, calls], "b": calls}).add_node("other", run=calls)
    graph._draft.edges = [way for way in graph._draft.edges if way.source != "a"]
    graph.add_edge("a", "a2", choose).add_edge("a", "other").compile(store=store)
    with pytest.raises(
        ExecutionError, match=r"choosing the next node failed: ValueError: which way\?"
    ) as caught:
        via.execute(graph, {}, run_id="r")
    assert (caught.value.node, caught.value.path) == ("a/a", ["src", "a/a"])
    fixed.append(1)
    assert via.resume(graph, "r")["results"] == [{"a": True, "a2": True}, {"b": True}]
    assert calls.take() == ["a/a", "a/a2", "b/b"]


def test_a_fan_in_that_fails_is_all_that_is_done_again(store: Any, via: Via, journal: str) -> None:
    """F12, H3: with the results as they were, though the graph has gone to another process meanwhile."""
    calls, seen = Calls(), []

    def join(state: State, parallel_results: list[BranchResult]) -> dict[str, Any]:
        seen.append([(each.branch, dict(each), each.started, each.ended) for each in parallel_results])
        if len(seen) == 1:
            raise ValueError
        return {"done": True}

    def make() -> StateGraph:
        return fan({"a": [calls, calls], "b": calls}, join).compile(store=store)

    with pytest.raises(ExecutionError) as caught:
        via.execute(make(), {}, run_id="r")
    assert (caught.value.node, caught.value.path) == ("join", ["src", "join"])
    assert calls.take() == ["a/a", "a/a2", "b/b"]
    assert via.resume(make(), "r") == {"done": True}
    assert calls.take() == []
    assert seen[0] == seen[1]


class FailingStore(MemoryStore):
    """Refuses the commits after the first `good`, until it is repaired."""

    def __init__(self, good: int) -> None:
        super().__init__()
        self.good = good

    def append(self, commits: Sequence[Commit]) -> list[Exception | None]:
        self.good -= 1
        if self.good < 0:
            raise StoreUnavailable("the disk is full")
        return super().append(commits)


@pytest.mark.parametrize("good", range(6))
def test_a_failed_save_in_a_section_fails_the_run_and_loses_nothing_that_was_saved(
    good: int, via: Via
) -> None:
    """F12, G9, invariant 2: whichever of the saves it is."""
    store, calls = FailingStore(good), Calls()
    graph = fan({"a": [calls, calls], "b": [calls, calls]}, source=calls).compile(
        store=store, max_concurrency=1
    )
    with pytest.raises(ExecutionError, match="the disk is full"):
        via.execute(graph, {}, run_id="r")
    store.good = 1000
    first = calls.take()
    final = via.resume(graph, "r")
    assert final == {
        "src": True,
        "results": [{"src": True, "a": True, "a2": True}, {"src": True, "b": True, "b2": True}],
    }
    again = set(calls.take()) & set(first)
    assert len(again) <= 1  # what ran and couldn't be saved


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, Crash])
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_what_ends_a_process_ends_the_run_and_not_what_was_saved(
    error: type[BaseException], kind: str, store: Any, via: Via
) -> None:
    """F12, H3: raised by a node of a branch, it comes out of the run; a resume continues from what is durable."""
    calls, ended, crashed = Calls(), threading.Event(), []

    def last(state: State, ctx: NodeContext) -> dict[str, Any]:
        return calls(state, ctx)

    def crash(state: State, ctx: NodeContext) -> dict[str, Any]:
        if not crashed:
            assert ended.wait(SOON)
            crashed.append(1)
            raise error
        return calls(state, ctx)

    async def acrash(state: State, ctx: NodeContext) -> dict[str, Any]:
        while not (crashed or ended.is_set()):
            await asyncio.sleep(0.001)
        return crash(state, ctx)

    def third(state: State, ctx: NodeContext) -> dict[str, Any]:
        ended.set()  # both nodes before it are durable
        return calls(state, ctx)

    graph = fan({"a": crash if kind == "sync" else acrash, "b": [last, last, third]}).compile(store=store)
    with pytest.raises(error):
        via.execute(graph, {}, run_id="r")
    before = calls.take()
    assert before in (["b/b", "b/b2"], ["b/b", "b/b2", "b/b3"])
    assert [info.status for info in graph.runs()] == ["running"]
    assert via.resume(graph, "r")["results"] == [{"a": True}, {"b": True, "b2": True, "b3": True}]
    assert set(calls.take()) <= {"a/a", "b/b3"}


@pytest.mark.usefixtures("ctrl_c")
def test_an_interrupt_from_the_keyboard_comes_out_of_a_section(store: Any) -> None:
    """F12, H3: while the run waits for nodes in threads; a resume continues."""
    if threading.current_thread() is not threading.main_thread():
        pytest.skip("signals come to the main thread")
    calls, over = Calls(), threading.Event()

    def busy(state: State, ctx: NodeContext) -> dict[str, Any]:
        if not over.is_set():
            os.kill(os.getpid(), signal.SIGINT)
            over.wait(SOON)
        return calls(state, ctx)

    graph = fan({"a": busy, "b": [calls, calls]}).compile(store=store)
    try:
        with pytest.raises(KeyboardInterrupt):
            graph.execute({}, run_id="r")
    finally:
        over.set()
    assert graph.resume("r")["results"] == [{"a": True}, {"b": True, "b2": True}]


def test_a_task_that_is_cancelled_in_a_section_can_be_resumed(store: Any) -> None:
    """F12, H7: its async nodes are cancelled with it; sync ones can keep nothing more."""
    cancelled: list[str | None] = []
    over, began = threading.Event(), threading.Event()

    async def wait(state: State, ctx: NodeContext) -> dict[str, Any]:
        if not over.is_set():
            try:
                await asyncio.sleep(SOON)
            except asyncio.CancelledError:
                cancelled.append(ctx.branch)
                raise
        return {"done": ctx.branch}

    def busy(state: State, ctx: NodeContext) -> dict[str, Any]:
        if not over.is_set():
            began.set()
            over.wait(SOON)
        return {"done": ctx.branch}

    graph = fan({"a": wait, "b": wait, "c": busy}).compile(store=store)

    async def main() -> State:
        running = asyncio.create_task(graph.aexecute({}, run_id="r"))
        await asyncio.to_thread(began.wait, SOON)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        over.set()
        return await graph.aresume("r")

    assert asyncio.run(main())["results"] == [{"done": name} for name in "abc"]
    assert sorted(map(str, cancelled)) == ["a", "b"]


def test_a_section_whose_run_another_process_claimed_writes_nothing_more(via: Via) -> None:
    """F12, P8: what the new holder finds is as it was when it took the run."""
    store, calls = MemoryStore(), Calls()

    def lose(state: State, ctx: NodeContext) -> dict[str, Any]:
        store.claim(ctx.run_id, "thief", 10.0, store.head(ctx.run_id).fence)
        return calls(state, ctx)

    graph = fan({"a": [lose, calls], "b": [None, calls]}).compile(store=store, max_concurrency=1)
    with pytest.raises(Conflict, match="held by thief"):
        via.execute(graph, {}, run_id="r")
    assert calls.take() == ["a/a"]
    assert [each.branch for each in graph.history("r")] == [None, None]


def test_an_async_node_that_cancels_its_own_task_fails(via: Via) -> None:
    """F12, H7: no caller asked for the run to stop, so it fails, and doesn't hang."""

    async def cancel(state: State) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    outcome: list[Any] = []

    def work() -> None:
        try:
            via.execute(
                fan({"a": cancel, "b": lambda state: asyncio.sleep(0.01)}).compile(store=MemoryStore()), {}
            )
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(SOON)
    assert isinstance(outcome[0], ExecutionError)


# Cancelling, leaving, many at once


@pytest.mark.parametrize("how", ["run", "graph"])
def test_a_cancelled_run_lets_its_nodes_finish_and_begins_no_other(how: str, store: Any, via: Via) -> None:
    """F12, G12: what they did is saved; a resume runs the rest."""
    calls, running, cancelled = Calls(), threading.Barrier(3), threading.Event()

    def busy(state: State, ctx: NodeContext) -> dict[str, Any]:
        if not cancelled.is_set():
            running.wait(SOON)
            assert cancelled.wait(SOON)
        return calls(state, ctx)

    graph = fan({"a": [busy, calls], "b": [busy, calls], "c": calls}, gather).compile(
        store=store, max_concurrency=2
    )
    run = graph.invoke({}, run_id="r") if via.api == "sync" else graph.ainvoke({}, run_id="r")

    def cancel() -> None:
        running.wait(SOON)
        run.cancel() if how == "run" else graph.cancel("r")
        cancelled.set()

    thread = threading.Thread(target=cancel)
    thread.start()
    with pytest.raises(RunCancelled):
        run.result() if via.api == "sync" else asyncio.run(run.result())  # type: ignore[arg-type]
    thread.join()
    assert calls.take() == ["a/a", "b/b"]
    assert [info.status for info in graph.runs()] == ["cancelled"]
    assert via.resume(graph, "r")["results"] == [
        {"a": True, "a2": True},
        {"b": True, "b2": True},
        {"c": True},
    ]
    assert calls.take() == ["a/a2", "b/b2", "c/c"]


def test_a_run_can_be_cancelled_while_a_branch_waits_for_its_next_attempt(via: Via) -> None:
    """F12, G12: the wait is cut short."""
    waiting = threading.Event()

    def flaky(state: State, ctx: NodeContext) -> dict[str, Any]:
        waiting.set()
        if ctx.attempt == 1:
            raise ValueError
        return {"tries": ctx.attempt}

    graph = StateGraph(name="waits").add_node("src").add_node("b").add_fanin_node("join", run=gather)
    graph.add_node("a", run=flaky, retry=Retry(2, backoff=3600))
    graph.add_parallel_edge("src", "a", "join").add_parallel_edge("src", "b", "join")
    graph.set_entry_point("src").set_finish_point("join").compile(store=MemoryStore())

    def cancel() -> None:
        assert waiting.wait(SOON)
        graph.cancel("r")

    thread = threading.Thread(target=cancel)
    thread.start()
    with pytest.raises(RunCancelled):
        via.execute(graph, {}, run_id="r")
    thread.join()
    assert via.resume(graph, "r")["results"] == [{"tries": 2}, {}]


@pytest.mark.parametrize("how", ["here", "another process"])
def test_a_run_cancelled_by_its_last_branches_does_not_come_to_the_fan_in(how: str, via: Via) -> None:
    """F12, G12: nothing new begins, whichever process asked."""
    store, calls, both = MemoryStore(), Calls(), threading.Barrier(2)

    def cancel(state: State, ctx: NodeContext) -> None:
        both.wait(SOON)
        graph.cancel(ctx.run_id) if how == "here" else post_cancel(store, ctx.run_id)

    graph = fan({"a": cancel, "b": cancel}, calls).compile(store=store)
    with pytest.raises(RunCancelled):
        via.execute(graph, {}, run_id="r")
    assert calls.take() == []
    via.resume(graph, "r")
    assert calls.take() == ["join"]


def test_a_cancelled_run_whose_branch_fails_can_be_resumed(via: Via) -> None:
    """F12, G12: what failed is tried again; the other branch goes no further before that."""
    store, calls, both = MemoryStore(), Calls(), threading.Barrier(2)

    def cancel(state: State, ctx: NodeContext) -> dict[str, Any]:
        if both.n_waiting < 2 and calls.fail:
            both.wait(SOON)
            graph.cancel(ctx.run_id)
        return calls(state, ctx)

    calls.fail.add("a/a")
    graph = fan({"a": cancel, "b": [cancel, calls]}).compile(store=store)
    with pytest.raises((ExecutionError, RunCancelled)):
        via.execute(graph, {}, run_id="r")
    assert graph.runs()[0].status in ("failed", "cancelled")
    assert calls.take() == ["a/a", "b/b"]
    calls.fail.clear()
    assert via.resume(graph, "r")["results"] == [{"a": True}, {"b": True, "b2": True}]
    assert calls.take() == ["a/a", "b/b2"]


@pytest.mark.parametrize("api", ["sync", "async"])
def test_a_run_left_in_the_middle_of_a_section_can_be_resumed(api: str, store: Any) -> None:
    """F12, H3: what was reported is durable; what still runs can keep nothing more."""
    calls, proceed, left, late = Calls(), threading.Event(), threading.Event(), []
    begun = threading.Event()

    def other(state: State, ctx: NodeContext) -> dict[str, Any]:
        assert begun.wait(SOON)
        return calls(state, ctx)

    def busy(state: State, ctx: NodeContext) -> dict[str, Any]:
        begun.set()
        if not left.is_set():
            assert proceed.wait(SOON)
            try:
                once("late", lambda: 1)
            except UsageError as error:
                late.append(str(error))
            left.set()
        return calls(state, ctx)

    graph = fan({"a": [busy, calls], "b": [other, calls]}).compile(store=store)

    async def leave() -> list[str]:
        run = graph.astream({}, run_id="r")
        seen = []
        async for event in run:
            seen.append(f"{event.get('branch', '')}/{event.get('node')}")
            if seen[-1] == "b/b":
                break
        await run.aclose()
        return seen

    if api == "sync":
        run = graph.stream({}, run_id="r")
        seen: list[str] = []
        for event in run:
            seen.append(f"{event.get('branch', '')}/{event.get('node')}")
            if seen[-1] == "b/b":
                break
        run.close()
    else:
        seen = asyncio.run(leave())
    assert seen == ["/src", "b/b"]
    proceed.set()
    assert left.wait(SOON)
    deadline = threading.Event()
    for _ in range(1000):
        if "a/a" in calls.nodes:
            break
        deadline.wait(0.01)
    assert late == ["once(): the call of node 'a' that this belongs to is over"]
    calls.nodes = [node for node in calls.nodes if node == "b/b2"]
    assert graph.resume("r")["results"] == [{"a": True, "a2": True}, {"b": True, "b2": True}]
    assert sorted(set(calls.take())) == ["a/a", "a/a2", "b/b2"]


def test_many_runs_of_one_graph_at_once_do_not_meet(store: Any) -> None:
    """F12, P6: from threads, and from one event loop."""
    graph = fan(
        {
            name: [lambda state, node: {"x": (state["n"], node)}, lambda state: {"y": state["x"]}]
            for name in "abc"
        }
    ).compile(store=store)

    def expected(number: int) -> list[Any]:
        return [{"n": number, "x": (number, name), "y": (number, name)} for name in "abc"]

    found: dict[int, Any] = {}

    def one(number: int) -> None:
        found[number] = graph.execute({"n": number})["results"]

    threads = [threading.Thread(target=one, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SOON * 3)
    assert found == {number: expected(number) for number in range(6)}

    async def main() -> list[State]:
        return await asyncio.gather(*(graph.aexecute({"n": number}) for number in range(12)))

    assert [each["results"] for each in asyncio.run(main())] == [expected(number) for number in range(12)]


def test_a_run_may_be_started_inside_of_a_branch(via: Via) -> None:
    """F12: by a node that uses another graph for itself."""
    inner = fan({"x": lambda state: {"v": state["n"] + 1}, "y": None}).compile(store=MemoryStore())

    def work(state: State) -> dict[str, Any]:
        found = inner.execute({"n": state["n"]})["results"][0]["v"]
        return {"v": once("k", lambda: found)}

    graph = fan({"a": work, "b": work}).compile(store=MemoryStore())
    assert [each["v"] for each in via.execute(graph, {"n": 1})["results"]] == [2, 2]


@pytest.mark.parametrize("interval", [2, 3, 100])
def test_sections_work_with_any_interval(interval: int, via: Via) -> None:
    """F12, G5: fewer saves, the same outcome; stops are always saved."""
    calls = Calls()
    calls.fail.add("a/a3")
    graph = fan({"a": [calls] * 4, "b": [calls] * 3}).compile(store=MemoryStore(), interval=interval)
    with pytest.raises(ExecutionError):
        via.execute(graph, {}, run_id="r")
    assert calls.take() == ["a/a", "a/a2", "a/a3", "b/b", "b/b2", "b/b3"]
    calls.fail.clear()
    assert via.resume(graph, "r")["results"] == [
        dict.fromkeys(("a", "a2", "a3", "a4"), True), dict.fromkeys(("b", "b2", "b3"), True)
    ]  # fmt: skip
    assert calls.take() == ["a/a3", "a/a4"]


# Snapshots while nodes run


@pytest.fixture
def held() -> Iterator[threading.Event]:
    """Release nodes that are held, when the test is over."""
    event = threading.Event()
    yield event
    event.set()


@pytest.mark.parametrize("kind", ["branch", "graph"])
def test_a_snapshot_has_nothing_of_nodes_that_have_not_finished(
    kind: str, monkeypatch: pytest.MonkeyPatch, held: threading.Event
) -> None:
    """F12, invariant 5: written for one branch while a node of another is at work."""
    snapshots_always(monkeypatch)
    altered, crashed = threading.Event(), []

    def grow(state: State) -> None:
        state["log"].append("a")

    def held_up(state: State) -> None:
        state["log"].append("a2")
        if not crashed:
            altered.set()
            held.wait(SOON)

    def crash(state: State) -> None:
        if not crashed:
            crashed.append(1)
            raise Crash

    def wait(state: State) -> None:
        assert altered.wait(SOON)

    if kind == "branch":
        graph = fan({"a": [grow, held_up], "b": [wait, crash]})
    else:
        sub = StateGraph({"log": list}, name="sub").add_node("x", run=grow).add_node("y", run=held_up)
        sub.add_edge("x", "y").set_entry_point("x").set_finish_point("y")
        graph = StateGraph(name="fan").add_node("src").add_node("a", sub).add_node("b", run=wait)
        graph.add_node("b2", run=crash).add_edge("b", "b2").add_fanin_node("join", run=gather)
        graph.add_parallel_edge("src", "a", "join").add_parallel_edge("src", "b", "join")
        graph.set_entry_point("src").set_finish_point("join")
    graph.compile(store=MemoryStore())
    with pytest.raises(Crash):
        graph.execute({"log": []}, run_id="r")
    held.set()
    assert graph.resume("r")["results"] == [{"log": ["a", "a2"]}, {"log": []}]


def test_a_snapshot_made_for_a_once_has_nothing_of_the_node_that_called_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """H3, invariant 5: the node hasn't finished; also where no branch is."""
    snapshots_always(monkeypatch)
    calls: list[int] = []

    def work(state: State) -> None:
        state["log"].append("x")
        once("k", lambda: 1)
        calls.append(1)
        if len(calls) == 1:
            raise Crash

    graph = StateGraph(name="one").add_node("work", run=work).set_entry_point("work").set_finish_point("work")
    graph.compile(store=MemoryStore())
    with pytest.raises(Crash):
        graph.execute({"log": []}, run_id="r")
    assert graph.resume("r") == {"log": ["x"]}


# Definitions


def section() -> StateGraph:
    graph = StateGraph(name="g").add_node("src").add_node("a").add_node("b").add_fanin_node("join")
    return graph.set_entry_point("src").set_finish_point("join")


def both(graph: StateGraph, other: tuple[str, str, str], **options: Any) -> StateGraph:
    return graph.add_parallel_edge("src", "a", "join").add_parallel_edge(*other, **options)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda g: g.add_parallel_edge("src", "a", "jion"), "no node 'jion'; did you mean 'join'"),
        (lambda g: g.add_parallel_edge("src", "aa", "join"), "no node 'aa'"),
        (lambda g: g.add_parallel_edge("nowhere", "a", "join"), "an edge from nowhere: there is no node 'nowhere'"),
        (lambda g: g.add_parallel_edge("src", "a", END), "there is no node '__end__'"),
        (lambda g: g.add_parallel_edge("src", END, "join"), "there is no node '__end__'"),
        (lambda g: g.add_parallel_edge("src", "join", "join"), "'join' can't be a branch and the fan-in"),
        (lambda g: both(g, ("src", "b", "a")), "opens several sections"),
        (lambda g: both(g, ("a", "b", "join")), "needs a fan-in of its own"),
        (lambda g: both(g, ("src", "a", "join")), "already"),
        (lambda g: g.add_parallel_edge("src", "a", "join", on_error="x"), "must be 'fail' or 'collect', not 'x'"),
        (
            lambda g: both(g, ("src", "b", "join"), on_error="collect"),
            "differ in on_error",
        ),
        (lambda g: g.add_node("x/y"), "can't contain '/'"),
        (lambda g: g.add_parallel_edge("src", "a", "join").set_finish_point("src"), "an edge that is always taken"),
        (lambda g: g.add_parallel_edge("src", "a", "join"), "node 'b' can't be reached"),
    ],
)  # fmt: skip
def test_mistakes_in_sections_are_explained(build: Callable[[StateGraph], StateGraph], message: str) -> None:
    """F12, G2: before anything runs."""
    with pytest.raises(DefinitionError, match=message):
        build(section()).validate()


def test_a_fan_in_can_not_run_a_graph() -> None:
    """F12: it takes results, which a graph can't."""
    inner = StateGraph(name="inner").add_node("x").set_entry_point("x").set_finish_point("x")
    graph = StateGraph(name="g").add_node("src").add_node("a").add_node("join", inner)
    graph.add_parallel_edge("src", "a", "join").set_entry_point("src").set_finish_point("join")
    with pytest.raises(DefinitionError, match="'join' runs a graph, which can't be a fan-in"):
        graph.validate()


@pytest.mark.parametrize("settings", [{"max_concurrency": 0}, {"max_concurrency": True}, {"executor": 3}])
def test_settings_of_sections_are_checked(settings: dict[str, Any]) -> None:
    """F12: when they are given."""
    with pytest.raises(
        DefinitionError, match=r"max_concurrency must be a whole number of at least 1|an executor has submit"
    ):
        fan({"a": None}).compile(**settings)


def test_a_run_whose_branch_is_no_longer_in_the_graph_says_so(store: Any) -> None:
    """F12, F10: rather than forget it."""
    graph = fan({"a": [None, None], "b": None}).compile(store=store, interrupt_before=["a2"])
    run = graph.invoke({}).wait()
    with pytest.raises(DefinitionError, match="is at node 'a/a2', which is no longer in the graph"):
        fan({"a": None, "b": None}).compile(store=store).resume(run.id)
    alone = StateGraph(name="fan").add_node("src").add_node("join").add_edge("src", "join")
    alone.set_entry_point("src").set_finish_point("join").compile(store=store)
    with pytest.raises(DefinitionError, match="in branches that node 'src' no longer opens"):
        alone.resume(run.id)
    assert graph.resume(run.id)["results"] == [{}, {}]


def test_branches_that_a_newer_graph_adds_are_not_part_of_a_section_that_is_open(store: Any) -> None:
    """F12: which branches there are was decided when it was opened."""
    calls = Calls()
    fan({"a": [None, calls], "b": None}).compile(store=store, interrupt_before=["a2"]).invoke(
        {}, run_id="r"
    ).wait()
    newer = fan({"c": calls, "b": None, "a": [None, calls]}).compile(store=store)
    assert newer.resume("r")["results"] == [{"a2": True}, {}]
    assert calls.take() == ["a/a2"]
