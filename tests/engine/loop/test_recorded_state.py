"""What the events of a streamed run have of its state: exact, apart from it, and at the cost of what changed."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable
from typing import Annotated, Any

import pytest

from limpet import END, START, MemoryStore, State, StateGraph, UsageError, append, merge, secret
from limpet.journal.encoding.codec import encode
from support.call_counts import calls_of
from support.graphs import Via, chain, single


def looping(node: Callable[..., Any], times: int, **more: Any) -> StateGraph:
    graph = StateGraph(
        {"n": int, "items": Annotated[list, append], "by": Annotated[dict, merge]}, name="loop"
    )
    graph.max_iterations = 10**6
    graph.add_node("again", run=node)
    graph.add_edge(START, "again")
    graph.add_conditional_edges("again", lambda state: state["n"] < times, {True: "again", False: END})
    return graph.compile(**more)


def grow(state: State) -> dict[str, Any]:
    n = state["n"]
    return {"n": n + 1, "items": [{"text": f"line {n}"}], "by": {str(n): [n]}}


BEGIN: dict[str, Any] = {"n": 0, "items": [], "by": {}}


def test_events_that_are_read_late_have_the_state_of_their_step(via: Via, place: dict[str, Any]) -> None:
    """H12: kept unread while lists and dicts grow, and read from the last one to the first."""
    events = [
        event for event in via.events(looping(grow, 6, **place), dict(BEGIN)) if event["type"] == "state"
    ]
    for step, event in reversed(list(enumerate(events, 1))):
        assert event["state"] == {
            "n": step,
            "items": [{"text": f"line {n}"} for n in range(step)],
            "by": {str(n): [n] for n in range(step)},
        }
        assert event["update"] == {
            "n": step,
            "items": [{"text": f"line {step - 1}"}],
            "by": {str(step - 1): [step - 1]},
        }


@pytest.mark.parametrize("store", [None, "memory"])
def test_changes_in_place_are_in_the_state_and_the_update(store: str | None) -> None:
    """H12: and what a node only reads isn't."""

    def node(state: State) -> dict[str, Any]:
        len(state["other"])
        state["deep"]["list"].append(state["n"])
        state["log"].append("x")
        return {"n": state["n"] + 1}

    graph = chain(node, node).compile(**({} if store is None else {"store": MemoryStore()}))
    given = {"n": 0, "other": [1], "deep": {"list": []}, "log": []}
    first, second, *_ = list(graph.stream(given))
    assert first["state"] == {"n": 1, "other": [1], "deep": {"list": [0]}, "log": ["x"]}
    assert second["state"] == {"n": 2, "other": [1], "deep": {"list": [0, 1]}, "log": ["x", "x"]}
    assert set(first["update"]) == {"n", "deep", "log"}
    assert second["update"]["deep"] == {"list": [0, 1]}


def test_removed_keys_are_named() -> None:
    """H12."""

    def node(state: State) -> None:
        del state["old"]

    event = next(single(node).stream({"old": 1, "kept": 2}))
    assert (event["state"], event["update"], event["removed"]) == ({"kept": 2}, {}, ["old"])


def test_values_that_cannot_be_stored_are_in_the_events_of_a_run_without_a_store() -> None:
    """H12: a copy, where they can be copied."""

    class Tool:
        pass

    tool = Tool()
    event = next(single(lambda state: {"tools": [tool]}).stream({}))
    assert isinstance(event["state"]["tools"][0], Tool)
    assert event["state"]["tools"] is not event["update"]["tools"]


def test_branches_have_their_own_states_which_share_what_they_did_not_change(via: Via) -> None:
    """H12: a branch that appends shares its beginning with the others, and no addition."""

    def node(state: State, ctx: Any) -> dict[str, Any]:
        return {"items": [f"{ctx.branch}.{state['n']}"], "n": state["n"] + 1}

    graph = StateGraph({"n": int, "items": Annotated[list, append]}, name="split")
    graph.add_node("begin", run=lambda state: {"items": ["begin"], "n": 1})
    for name in ("a", "b"):
        graph.add_node(name, run=node).add_node(f"{name}2", run=node)
        graph.add_parallel_edge("begin", name, "join")
        graph.add_edge(name, f"{name}2").add_edge(f"{name}2", "join")
    graph.add_fanin_node("join", run=lambda state: {"items": ["join"]})
    graph.add_edge(START, "begin").add_edge("join", END)
    events = via.events(graph.compile(store=MemoryStore()), {"n": 0, "items": []})
    found = {event["node"]: event["state"]["items"] for event in events if event["type"] == "state"}
    assert found == {
        "begin": ["begin"],
        "a": ["begin", "a.1"],
        "a2": ["begin", "a.1", "a.2"],
        "b": ["begin", "b.1"],
        "b2": ["begin", "b.1", "b.2"],
        "join": ["begin", "join"],
    }


def test_the_state_of_an_event_is_a_state_and_a_dict() -> None:
    """H12, F4: whatever reads a dict reads it, and finds values."""
    event = next(single(lambda state: {"a": [1], "b": {"c": 2}}, node="make").stream({}, run_id="r"))
    whole = {"a": [1], "b": {"c": 2}}
    for part in (event["state"], event["update"]):
        fresh = copy.copy(part)
        assert fresh == whole
    for make in (dict, copy.deepcopy, lambda part: {**part}, lambda part: pickle.loads(pickle.dumps(part))):
        event = next(single(lambda state: {"a": [1], "b": {"c": 2}}).stream({}, run_id="r"))
        assert make(event["state"]) == whole
        assert make(event["update"]) == whole
    event = next(single(lambda state: {"a": [1], "b": {"c": 2}}, node="make").stream({}, run_id="r"))
    state = event["state"]
    assert isinstance(state, State)
    assert (state.run_id, state.checkpoint_node, len(state), "a" in state) == ("r", "make", 2, True)
    assert json.loads(json.dumps(state)) == whole
    assert list(state.values()) == [[1], {"c": 2}]
    assert state.get("b") == {"c": 2}
    assert state.get("z", 3) == 3
    assert (state | {"d": 1}, {"d": 1} | state) == ({**whole, "d": 1}, {"d": 1, **whole})
    assert state != {"a": [1]}
    changed = state.set("a", 2)
    assert (changed["a"], state["a"]) == (2, [1])
    assert single(lambda state: {}).execute(state) == whole
    assert repr(event["update"]) == "{'a': [1], 'b': {'c': 2}}"
    assert encode(dict(state)) == encode(whole)


def test_what_an_event_holds_cannot_be_changed() -> None:
    """H12."""
    event = next(single(lambda state: {"a": 1}).stream({}))
    for part in (event["state"], event["update"]):
        for change in (lambda part: part.update(a=2), lambda part: part.pop("a"), lambda part: part.clear()):
            with pytest.raises(UsageError, match="can't be changed"):
                change(part)


def test_secrets_are_masked_when_an_event_is_printed() -> None:
    """H12: and can be read by key, as in any state."""
    graph = single(lambda state: {"token": "open sesame"}, schema={"token": Annotated[str, secret]})
    event = next(graph.stream({}))
    assert "sesame" not in repr(event)
    assert event["state"]["token"] == event["update"]["token"] == "open sesame"


@pytest.mark.parametrize("reads", [False, True])
def test_following_a_run_costs_what_its_steps_change(reads: bool) -> None:
    """H12: four times the steps are four times the work, though the history grows; also if a small key is read."""

    def follow(steps: int) -> int:
        graph = looping(grow, steps)

        def run() -> None:
            for event in graph.stream(dict(BEGIN)):
                if reads and event["type"] == "state":
                    assert event["state"]["n"]

        return calls_of(run)

    follow(10)
    assert follow(400) < 4.4 * follow(100)
