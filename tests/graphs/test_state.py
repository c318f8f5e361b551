"""The state: what it knows of itself, what a node may do to it, and what comes back after a resume."""

from __future__ import annotations

import copy
import pickle
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from pathlib import PurePosixPath
from typing import Annotated, Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest

from limpet import (
    ExecutionError,
    MemoryStore,
    State,
    StateGraph,
    UnknownKey,
    UnstorableValue,
    UsageError,
    append,
    merge,
)
from support.graphs import Crash, chain, crash_once

MOMENT = datetime(2024, 2, 29, 12, 30, tzinfo=UTC)


def resumed(
    node: Callable[..., Any],
    given: dict[str, Any],
    schema: Any = None,
    reader: Callable[..., Any] | None = None,
) -> State:
    """What the state is after `node` when the run crashes right behind it and is resumed from what was saved."""
    store = MemoryStore()
    crashing = crash_once(reader or nothing)
    with pytest.raises(Crash):
        chain(node, crashing, schema=schema).compile(store=store).execute(given, run_id="r")
    return chain(node, crashing, schema=schema).compile(store=store, preserve=True).resume("r")


def nothing(state: State) -> None:
    """A node that changes nothing."""


@pytest.fixture
def state() -> State:
    return State({"a": 1}, run_id="run", checkpoint_node="draft", timestamp=MOMENT)


# What a State is


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda state: state.set("b", 2), {"a": 1, "b": 2}),
        (lambda state: state.set("a", 2), {"a": 2}),
        (lambda state: state.merge({"a": 0, "c": 3}), {"a": 0, "c": 3}),
        (lambda state: state.clone(), {"a": 1}),
        (lambda state: state.copy(), {"a": 1}),
    ],
    ids=["set a new key", "set a known key", "merge", "clone", "copy"],
)
def test_a_method_returns_a_new_state_of_the_same_provenance(
    state: State, make: Callable[[State], State], expected: dict[str, Any]
) -> None:
    """G1: `set`, `merge` and `clone` return new states and keep run id, node and timestamp."""
    made = make(state)
    assert type(made) is State
    assert made is not state
    assert made == expected
    assert state == {"a": 1}
    assert (made.run_id, made.checkpoint_node, made.timestamp) == ("run", "draft", MOMENT)


def test_a_new_state_and_the_old_one_do_not_share_keys(state: State) -> None:
    """G1: what is done to the one isn't seen in the other."""
    made = state.clone()
    made["b"] = 2
    del made["a"]
    assert (state, made) == ({"a": 1}, {"b": 2})


def test_get_gives_the_value_or_the_default(state: State) -> None:
    """G1: `get` is that of a mapping."""
    assert (state.get("a"), state.get("b"), state.get("b", 7)) == (1, None, 7)


def test_a_state_is_a_mapping_that_equals_a_dict_of_the_same_data(state: State) -> None:
    """G1: a State is a mapping of application data; its provenance is next to the data, not in it."""
    assert isinstance(state, dict)
    assert state == {"a": 1}
    assert list(state) == ["a"]
    assert repr(state) == "State({'a': 1})"


def test_a_fresh_state_has_an_id_and_a_time_but_no_node() -> None:
    """G1: a state that no node has produced knows its run and when it was made."""
    before = datetime.now(UTC)
    made = State({"a": 1})
    assert made.checkpoint_node is None
    assert before <= made.timestamp <= datetime.now(UTC)
    assert made.timestamp.tzinfo is UTC


def test_ids_of_fresh_states_can_not_be_guessed() -> None:
    """P6: 128 random bits, none alike."""
    ids = {State().run_id for _ in range(500)}
    assert len(ids) == 500
    assert all(len(each) == 32 and int(each, 16) >= 0 for each in ids)
    assert all(len({each[place] for each in ids}) > 4 for place in range(32))


def test_a_timestamp_may_be_given_as_seconds_or_as_a_datetime() -> None:
    """G1: both mean the same moment."""
    elsewhere = MOMENT.astimezone(timezone(timedelta(hours=5)))
    assert State(timestamp=MOMENT.timestamp()).timestamp == State(timestamp=elsewhere).timestamp == MOMENT


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda state: pickle.loads(pickle.dumps(state))]
)
def test_a_copied_or_pickled_state_keeps_its_provenance(state: State, copied: Any) -> None:
    """G1: a State knows where it came from wherever it goes."""
    made = copied(state)
    assert type(made) is State
    assert made == state
    assert (made.run_id, made.checkpoint_node, made.timestamp) == ("run", "draft", MOMENT)


# In a run


def test_the_final_state_knows_its_run_and_the_node_that_produced_it() -> None:
    """G1, G6: the State that `execute` returns names its run and the last node."""
    final = chain(lambda state: {"a": 1}, lambda state: {"b": 2}).execute({}, run_id="mine")
    assert type(final) is State
    assert final == {"a": 1, "b": 2}
    assert (final.run_id, final.checkpoint_node) == ("mine", "n2")


def test_the_timestamp_moves_when_a_node_completes() -> None:
    """G1: each node sees when the one before it completed; while it runs, the time stands still."""
    seen: list[tuple[str | None, datetime]] = []

    def look(state: State) -> dict[str, Any]:
        began = state.timestamp
        while time.time() <= began.timestamp():
            pass
        assert state.set("x", 1).timestamp == began
        seen.append((state.checkpoint_node, state.timestamp))
        return {}

    final = chain(look, look, look).execute({})
    assert [node for node, _ in seen] == [None, "n1", "n2"]
    times = [moment for _, moment in seen] + [final.timestamp]
    assert times == sorted(set(times))


def test_a_node_that_fails_moves_neither_the_timestamp_nor_the_node() -> None:
    """G1: the state of a failure is the last good one."""
    at_n2: list[datetime] = []

    def fail(state: State) -> None:
        at_n2.append(state.timestamp)
        state["a"] = 2
        raise ValueError("no")

    with pytest.raises(ExecutionError) as caught:
        chain(lambda state: {"a": 1}, fail).execute({})
    last = caught.value.state
    assert isinstance(last, State)
    assert (dict(last), last.checkpoint_node, [last.timestamp]) == ({"a": 1}, "n1", at_n2)


def test_a_state_that_was_run_already_starts_another_run() -> None:
    """G1: a fresh State brings its run id along; one that a node has produced is only data."""
    graph = chain(lambda state: {"n": state.get("n", 0) + 1})
    fresh = State({"n": 5})
    first = graph.execute(fresh)
    assert (first.run_id, first["n"]) == (fresh.run_id, 6)
    second = graph.execute(first)
    assert (second.run_id == first.run_id, second["n"]) == (False, 7)
    assert fresh == {"n": 5}


# What a node did is noticed, and comes back after a resume


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda state: state.__setitem__("k", 2), {"k": 2, "z": 0}),
        (lambda state: state.__delitem__("k"), {"z": 0}),
        (lambda state: state.update({"k": 3}, more=4), {"k": 3, "z": 0, "more": 4}),
        (lambda state: state.update([("k", 3)]), {"k": 3, "z": 0}),
        (lambda state: state.__ior__({"k": 5}), {"k": 5, "z": 0}),
        (lambda state: state.setdefault("k", 9), {"k": 1, "z": 0}),
        (lambda state: state.setdefault("new", 9), {"k": 1, "z": 0, "new": 9}),
        (lambda state: state.pop("k"), {"z": 0}),
        (lambda state: state.pop("missing", None), {"k": 1, "z": 0}),
        (lambda state: state.popitem(), {"k": 1}),
        (lambda state: state.clear(), {}),
    ],
    ids=["[]=", "del", "update", "update pairs", "|=", "setdefault kept", "setdefault new", "pop", "pop default",
         "popitem", "clear"],
)  # fmt: skip
@pytest.mark.parametrize("durable", [False, True], ids=["no store", "resumed"])
def test_assigning_and_deleting_keys_is_a_change_of_the_state(
    change: Callable[[State], Any], expected: dict[str, Any], durable: bool
) -> None:
    """H4: whichever way a node assigns or deletes a key, it is part of its update, live and resumed."""

    def node(state: State) -> None:
        change(state)

    given = {"k": 1, "z": 0}
    final = resumed(node, given) if durable else chain(node).execute(given)
    assert dict(final) == expected
    assert given == {"k": 1, "z": 0}


def test_a_node_sees_its_own_assignments() -> None:
    """H4: the private state is a dict like any other."""

    def node(state: State) -> dict[str, Any]:
        state["b"] = [1]
        state["b"].append(2)
        del state["a"]
        return {"seen": (list(state), "a" in state, len(state))}

    final = resumed(node, {"a": 1})
    assert final == {"b": [1, 2], "seen": (["b"], False, 1)}


def test_what_is_returned_wins_over_what_was_assigned() -> None:
    """H4: the returned update is the node's last word on a key."""

    def node(state: State) -> dict[str, Any]:
        state["a"] = "assigned"
        del state["b"]
        return {"a": "returned", "b": "back"}

    assert resumed(node, {"a": 0, "b": 0}) == {"a": "returned", "b": "back"}


def _through_match(state: State) -> Any:
    match state:
        case {"items": found}:
            return found


@pytest.mark.parametrize(
    "read",
    [
        lambda state: state["items"],
        lambda state: state.get("items"),
        lambda state: next(iter(state.values())),
        lambda state: next(value for _, value in state.items()),
        lambda state: dict(state)["items"],
        lambda state: {**state}["items"],
        lambda state: (state | {"x": 1})["items"],
        lambda state: ({"x": 1} | state)["items"],
        lambda state: state.setdefault("items", []),
        lambda state: state.clone()["items"],
        lambda state: state.set("x", 1)["items"],
        lambda state: state.merge({})["items"],
        lambda state: copy.copy(state)["items"],
        lambda state: State(state)["items"],
        _through_match,
    ],
    ids=["[]", "get", "values", "items", "dict()", "**", "|", "reversed |", "setdefault", "clone", "set", "merge",
         "copy.copy", "State()", "match"],
)  # fmt: skip
def test_a_nested_change_in_place_is_noticed_however_the_value_was_read(read: Callable[[State], Any]) -> None:
    """H4: a list that a node altered in place is saved altered."""

    def node(state: State) -> None:
        read(state)[0]["deep"].append("new")

    assert resumed(node, {"items": [{"deep": ["old"]}]}) == {"items": [{"deep": ["old", "new"]}]}


@pytest.mark.parametrize(
    ("value", "alter"),
    [
        ([1, 2], lambda items: items.append(3)),
        ([1, 2], lambda items: items.insert(0, 3)),
        ([1, 2], lambda items: items.clear()),
        ([1, 2], lambda items: items.__setitem__(0, True)),
        ({"x": 1}, lambda entries: entries.update(y=2)),
        ({"x": 1, "y": 2}, lambda entries: entries.update(x=entries.pop("x"))),
        ({1, 2}, lambda elements: elements.add(3)),
        (bytearray(b"ab"), lambda data: data.extend(b"c")),
        (([1],), lambda pair: pair[0].append(2)),
        ({"x": [{"y": (1, [2])}]}, lambda deep: deep["x"][0]["y"][1].append(3)),
    ],
    ids=["append", "insert", "clear", "1 to True", "dict", "order of a dict", "set", "bytearray", "in a tuple",
         "deep"],
)  # fmt: skip
def test_every_kind_of_change_in_place_is_saved(value: Any, alter: Callable[[Any], Any]) -> None:
    """H4: what a resumed node reads is what the node before it left, to the type and the order."""
    expected = copy.deepcopy(value)
    alter(expected)

    def node(state: State) -> None:
        alter(state["value"])

    found = resumed(node, {"value": copy.deepcopy(value)})["value"]
    assert (found, repr(found)) == (expected, repr(expected))


def test_a_change_in_place_is_noticed_at_each_step_again() -> None:
    """H4: a list that grows in place step by step is saved at each of them."""
    store = MemoryStore()

    def grow(state: State) -> None:
        state["items"].append(len(state["items"]))

    graph = chain(grow, grow, grow).compile(store=store, preserve=True)
    graph.execute({"items": []}, run_id="r")
    assert [graph.state_at("r", step)["items"] for step in range(4)] == [[], [0], [0, 1], [0, 1, 2]]


@pytest.mark.parametrize("length", [0, 1, 14, 15, 16, 65534, 65535, 65536])
def test_a_list_of_any_length_may_grow_in_place(length: int) -> None:
    """H4, H2: only the new item is stored, wherever the encoding of a list's length changes."""

    def node(state: State) -> None:
        state["items"].append("new")

    assert resumed(node, {"items": list(range(length))})["items"] == [*range(length), "new"]


def test_a_list_that_a_node_keeps_and_returns_again_is_saved_as_it_is() -> None:
    """H4: what is live is what is stored, also when the node altered its object before it read the key."""
    log: list[str] = []

    def work(state: State) -> dict[str, Any]:
        log.append("x")
        return {"log": log, "seen": len(state.get("log", []))}

    graph = chain(work, work, work).compile(store="memory://", preserve=True)
    final = graph.execute({}, run_id="r")
    assert final == graph.state_at("r") == {"log": ["x"] * 3, "seen": 2}
    log.append("later")
    assert final["log"] == ["x"] * 3


def test_a_value_that_was_read_and_not_altered_is_not_stored_again() -> None:
    """H2, H4: reading is free of consequences."""
    graph = chain(lambda state: {"n": len(state["items"])}).compile(store="memory://", preserve=True)
    graph.execute({"items": list(range(50))}, run_id="r")
    assert graph.history("r")[1].keys == ("n",)


@pytest.mark.parametrize(
    "value",
    [
        (1, (2, [3])),
        2**200,
        -(2**63) - 1,
        True,
        1.0,
        -0.0,
        complex(1, -2),
        b"\x00\xff",
        bytearray(b"x"),
        {1: "int", "1": "str", (1, 2): "tuple"},
        {1, 2, 3},
        frozenset({"a"}),
        datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin")),
        datetime(2024, 1, 1, tzinfo=timezone(timedelta(hours=5, minutes=45))),
        datetime(2024, 1, 1),
        date(2024, 2, 29),
        timedelta(days=-1, microseconds=1),
        Decimal("1.10"),
        Fraction(1, 3),
        UUID(int=5),
        PurePosixPath("a/b"),
        range(0, 10, 3),
        None,
        "a\ud800 lone surrogate",
        [],
    ],
    ids=repr,
)
def test_what_a_node_returned_is_what_a_resumed_node_reads(value: Any) -> None:
    """H4: equal and of the same type, through a crash and a resume."""
    read: list[Any] = []
    resumed(
        lambda state: {"value": {"inside": [value]}}, {}, reader=lambda state: read.append(state["value"])
    )
    (found,) = read[0]["inside"]
    assert type(found) is type(value)
    assert found == value
    assert repr(found) == repr(value)
    if isinstance(value, datetime):
        assert (found.tzinfo, found.fold) == (value.tzinfo, value.fold)


def test_exact_types_hold_for_the_input_and_the_config_too() -> None:
    """H4: what `execute` was given is what a resumed node reads."""
    store = MemoryStore()
    read: list[Any] = []

    @crash_once
    def node(state: State, config: dict[str, Any]) -> None:
        read.append((state["value"], config["value"]))

    with pytest.raises(Crash):
        chain(node).compile(store=store).execute({"value": (1, 2)}, {"value": {1: 2}}, run_id="r")
    chain(node).compile(store=store).resume("r")
    assert read == [((1, 2), {1: 2})]


# What can't be stored is refused


@pytest.mark.parametrize(
    ("node", "path"),
    [
        (lambda state: {"a": {"b": [1, print]}}, "a.b[1]"),
        (lambda state: state.__setitem__("a", [print]), "a[0]"),
        (lambda state: state["items"].append(print), "items[1]"),
        (lambda state: {"odd key": {"x": object()}}, '["odd key"].x'),
    ],
    ids=["returned", "assigned", "put in place", "under an odd key"],
)
def test_a_value_that_can_not_be_stored_is_refused_with_its_key_path(
    node: Callable[..., Any], path: str
) -> None:
    """H4: the run fails at the node, says where the value is, and the state is as it was before the node."""
    graph = chain(lambda state: {"before": 1}, node).compile(store="memory://")
    with pytest.raises(ExecutionError) as caught:
        graph.execute({"items": ["kept"]}, run_id="r")
    assert isinstance(caught.value.cause, UnstorableValue)
    assert caught.value.cause.path == path
    assert path in str(caught.value)
    assert caught.value.node == "n2"
    assert caught.value.state == {"items": ["kept"], "before": 1}
    assert graph.state_at("r") == {"items": ["kept"], "before": 1}


def test_what_goes_with_a_refused_value_is_not_saved_either() -> None:
    """H4: an update is taken whole or not at all."""
    graph = chain(lambda state: {"good": 1, "bad": print}).compile(store="memory://")
    with pytest.raises(ExecutionError):
        graph.execute({}, run_id="r")
    assert graph.state_at("r") == {}
    assert [each.keys for each in graph.history("r")] == [()]


def test_a_refused_value_is_not_tried_again() -> None:
    """H4, H8: a retry wouldn't make it storable."""
    calls: list[int] = []
    graph = StateGraph()
    graph.add_node("only", run=lambda state: calls.append(1) or {"f": print}, retry=5)
    graph.set_entry_point("only").set_finish_point("only").compile(store="memory://")
    with pytest.raises(ExecutionError):
        graph.execute({})
    assert calls == [1]


def test_an_input_that_can_not_be_stored_creates_no_run() -> None:
    """H4: it is refused before anything is saved."""
    graph = chain(lambda state: {}).compile(store="memory://")
    with pytest.raises(UnstorableValue) as caught:
        graph.execute({"a": {"b": [print]}})
    assert caught.value.path == "a.b[0]"
    with pytest.raises(UnstorableValue) as caught:
        graph.execute({}, config={"hook": print})
    assert caught.value.path == "config.hook"
    assert graph.runs() == []


def test_without_a_store_any_value_will_do() -> None:
    """H4: nothing is refused where nothing is stored."""
    marker = object()

    def read(state: State) -> dict[str, Any]:
        return {"same": state["marker"] is marker}

    assert chain(lambda state: {"marker": marker}, read).execute({})["same"] is True
    watched = chain(lambda state: {"marker": marker}, read, schema={"log": Annotated[list, append]})
    assert watched.execute({})["same"] is True


def test_without_a_store_the_events_of_a_run_hold_copies_as_far_as_there_are_any() -> None:
    """F4, H4: what can't be stored is copied, and what can't be copied is handed on."""
    lock = threading.Lock()
    graph = chain(lambda state: {"f": print, "lock": lock, "deep": [[print]]}, lambda state: {"n": 1})
    first, second, final = (event["state"] for event in graph.stream({}))
    assert (first["f"], first["lock"], first["deep"]) == (print, lock, [[print]])
    assert first["deep"][0] is not second["deep"][0]
    assert final == {"f": print, "lock": lock, "deep": [[print]], "n": 1}


@pytest.mark.parametrize("node", [lambda state: {1: "x"}, lambda state: state.__setitem__(1, "x")])
def test_a_key_that_isnt_a_str_is_refused(node: Callable[..., Any]) -> None:
    """H4: the keys of a state are names."""
    graph = chain(node).compile(store="memory://")
    with pytest.raises(ExecutionError, match=r"a state key must be a str, not int: 1") as caught:
        graph.execute({})
    assert isinstance(caught.value.cause, UsageError)
    with pytest.raises(UsageError, match="a state key must be a str"):
        graph.execute({2: "y"})


# Keys with a reducer

REDUCED = {"log": Annotated[list, append], "facts": Annotated[dict, merge]}


@pytest.mark.parametrize("store", [None, "memory://"])
def test_a_key_with_a_reducer_can_not_be_assigned_or_deleted(store: str | None) -> None:
    """H4: it changes through returned updates only, and the error says how."""

    def assign(state: State) -> None:
        state["log"] = []

    def delete(state: State) -> None:
        del state["facts"]

    for node in (assign, delete):
        with pytest.raises(ExecutionError, match="has a reducer, so a node changes it by returning it"):
            chain(node, schema=REDUCED).compile(store=store).execute({"log": ["a"], "facts": {"b": 1}})


@pytest.mark.parametrize("store", [None, "memory://"])
def test_what_a_node_gets_of_a_reduced_key_is_its_own(store: str | None) -> None:
    """H4: altering it in place alters nothing, with a store or without."""

    def meddle(state: State) -> dict[str, Any]:
        state["log"].append("in place")
        state.get("facts")["x"] = "in place"
        return {"log": "returned"}

    graph = chain(meddle, lambda state: {"log": ["second"]}, schema=REDUCED)
    final = graph.compile(store=store).execute({"log": ["first"], "facts": {"y": 1}})
    assert final == {"log": ["first", "returned", "second"], "facts": {"y": 1}}


def test_reduced_keys_come_back_whole_after_a_resume() -> None:
    """H4, H2: only what was added is stored, and adding it all up gives the same."""
    final = resumed(
        lambda state: {"log": [("b", 2)], "facts": {2: "b"}},
        {"log": ["a"], "facts": {1: "a"}},
        REDUCED,
        reader=lambda state: {"log": "c"},
    )
    assert final == {"log": ["a", ("b", 2), "c"], "facts": {1: "a", 2: "b"}}


# What a node may return


def test_a_state_returned_from_a_node_stands_for_what_is_different_in_it() -> None:
    """G1: `return state.set(…)` is an update of that key, as is any chain of such calls."""

    def node(state: State) -> State:
        return state.set("a", [1, 2]).merge({"b": 2})

    assert resumed(node, {"a": 0, "same": [0]}) == {"a": [1, 2], "same": [0], "b": 2}


def test_a_state_returned_from_a_node_replaces_what_is_reduced() -> None:
    """G1: it holds whole values; adding them to what is there would double it."""

    def node(state: State) -> State:
        return state.set("log", [*state["log"], "b"])

    assert resumed(node, {"log": ["a"], "facts": {}}, REDUCED) == {"log": ["a", "b"], "facts": {}}
    untouched = resumed(lambda state: state.set("x", 1), {"log": ["a"], "facts": {}}, REDUCED)
    assert untouched == {"log": ["a"], "facts": {}, "x": 1}


def test_returning_the_state_itself_returns_what_was_done_to_it() -> None:
    """G1: `return state` after assignments and changes in place is neither lost nor doubled."""

    def node(state: State) -> State:
        state["a"] = 1
        state["items"].append("b")
        del state["gone"]
        return state

    assert resumed(node, {"items": ["a"], "gone": 0}) == {"items": ["a", "b"], "a": 1}


def test_a_dataclass_returned_from_a_node_is_its_fields() -> None:
    """F2: as a mapping of updates."""

    @dataclass
    class Update:
        a: int
        b: list[int]

    assert resumed(lambda state: Update(1, [2]), {"a": 0}) == {"a": 1, "b": [2]}


@pytest.mark.parametrize("returned", [5, "text", [("a", 1)], {1, 2}, int])
@pytest.mark.parametrize("store", [None, "memory://"])
def test_what_isnt_an_update_is_refused(returned: Any, store: str | None) -> None:
    """F2: a node must return a dict of updates or None; anything else is a mistake, named."""
    graph = chain(lambda state: returned).compile(store=store)
    with pytest.raises(
        ExecutionError, match=r"a node must return a dict of updates or None, not \w+"
    ) as caught:
        graph.execute({"a": 1})
    assert isinstance(caught.value.cause, UsageError)
    assert caught.value.state == {"a": 1}


def test_a_misspelt_key_suggests_the_one_that_was_meant() -> None:
    """H14: it is a `KeyError`, wherever the state comes from."""
    graph = StateGraph({"topic": str, "later": int}).add_node("a", run=lambda state: {"n": state["topc"]})
    graph.set_entry_point("a").set_finish_point("a")
    for store in (None, "memory://"):
        with pytest.raises(ExecutionError, match="no 'topc'; did you mean 'topic'") as caught:
            graph.compile(store=store).execute({"topic": "kelp"})
        assert isinstance(caught.value.cause, KeyError)
    state = chain(lambda state: None, schema={"topic": str, "later": int}).execute({"topic": "kelp"})
    with pytest.raises(UnknownKey, match="the state has no 'topc'; did you mean 'topic'") as missing:
        state["topc"]
    assert missing.value.key == "topc"
    with pytest.raises(KeyError, match="the state has no 'later' yet: the schema names it"):
        state["later"]
    with pytest.raises(KeyError, match=r"the state has no 'x'$"):
        State({"topic": 1})["x"]
    assert state.get("topc") is None
