"""What a node did to its state is found out, stored as little as possible, and taken back: H2 and H4.

`Step` is one node call as the loop makes it: a private state is handed out, something is done to it, and the
changes are collected or undone. Every collected delta is also applied to a copy that is built from the
journal's bytes alone, which has to stay equal to the live state.
"""

from __future__ import annotations

import copy
import json
import operator
import pickle
from collections import ChainMap, OrderedDict, UserDict, defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from types import MappingProxyType
from typing import Annotated, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from limpet import StateGraph
from limpet.engine.loop.state_changes import Changes
from limpet.errors import UnstorableValue, UsageError
from limpet.graphs.reducers import append, merge
from limpet.graphs.state import NodeState, State, detached
from limpet.journal.delta import Delta, read_delta
from limpet.journal.encoding.codec import decode
from limpet.journal.encoding.user_types import register_type
from support.graphs import chain, stored_chain

REDUCERS = {"log": append, "book": merge, "total": operator.add, "grown": operator.add}


class Watched:
    """A live state, its watcher, and what its journal would rebuild."""

    def __init__(self, live: Mapping[str, Any], durable: bool = True, **reducers: Any) -> None:
        self.live = State(copy.deepcopy(dict(live)))
        self.rebuilt = copy.deepcopy(dict(live))
        self.changes = Changes(self.live, reducers, durable)

    def hand_out(self) -> NodeState:
        return self.changes.hand_out(tracked=True)

    def step(self, act: Callable[[NodeState], Any] = lambda state: None) -> Delta:
        """A node that does `act` and returns what that returns; gives the delta as it is stored."""
        private = self.hand_out()
        data = self.changes.collect(private, act(private))
        if not self.changes.durable:
            return Delta()
        read_delta(decode(data)).apply(self.rebuilt)
        assert told_apart(self.rebuilt) == told_apart(self.live)
        return read_delta(decode(data))

    def fail(self, act: Callable[[NodeState], Any]) -> None:
        """A node that does `act` and then doesn't complete."""
        private = self.hand_out()
        act(private)
        self.changes.undo(private)


def told_apart(state: Mapping[str, Any]) -> list[tuple[str, str]]:
    """A state, written so that 1 isn't True, a tuple isn't a list, and the order of keys counts."""
    return [(key, repr(value)) for key, value in dict.items(state)]  # type: ignore[arg-type]


def none(*done: Any) -> None:
    """What a node returns that only does things."""


def alone(delta: Delta, kind: str) -> Any:
    """What a delta has of one kind of change, if it has no other."""
    found = {name: getattr(delta, name) for name in ("sets", "appends", "merges", "deletes")}
    assert not any(value for name, value in found.items() if name != kind), found
    return found[kind]


# Reading


def _matched(state: Any) -> Any:
    match state:
        case {"xs": found}:
            return found


READS: dict[str, Callable[[Any], Any]] = {
    "[]": lambda s: s["xs"],
    "get": lambda s: s.get("xs"),
    "get with default": lambda s: s.get("xs", []),
    "items": lambda s: dict(s.items())["xs"],
    "an item of items": lambda s: next(value for key, value in s.items() if key == "xs"),
    "values": lambda s: list(s.values())[1],
    "iteration": lambda s: [s[key] for key in s][1],
    "keys": lambda s: {key: s[key] for key in s.keys()}["xs"],  # noqa: SIM118  # this is about keys()
    "dict()": lambda s: dict(s)["xs"],
    "{**}": lambda s: {**s}["xs"],
    "|": lambda s: (s | {"new": 1})["xs"],
    "| from the left": lambda s: ({"new": 1} | s)["xs"],
    "f(**)": lambda s: (lambda xs, **others: xs)(**s),
    "update of another": lambda s: _updated({}, s)["xs"],
    "match": _matched,
    "setdefault": lambda s: s.setdefault("xs", []),
    "copy": lambda s: s.copy()["xs"],
    "clone": lambda s: s.clone()["xs"],
    "set": lambda s: s.set("n", 5)["xs"],
    "merge": lambda s: s.merge({"n": 5})["xs"],
    "copy.copy": lambda s: copy.copy(s)["xs"],
    "State()": lambda s: State(s)["xs"],
    "OrderedDict()": lambda s: OrderedDict(s)["xs"],
    "defaultdict()": lambda s: defaultdict(list, s)["xs"],
    "ChainMap()": lambda s: ChainMap({}, s)["xs"],
    "UserDict()": lambda s: UserDict(s)["xs"],
    "a proxy": lambda s: MappingProxyType(s)["xs"],
    "itemgetter": operator.itemgetter("xs"),
    "map": lambda s: list(map(s.get, ["n", "xs"]))[1],
    "sorted": lambda s: dict(sorted(s.items(), key=lambda item: item[0]))["xs"],
    "deep": lambda s: s["deep"][0]["xs"],
}


def _updated(one: dict[str, Any], other: Any) -> dict[str, Any]:
    one.update(other)
    return one


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_a_change_in_place_is_noticed_however_the_value_was_read(read: Callable[[Any], Any]) -> None:
    """H2, H4"""
    watched = Watched({"n": 1, "xs": [1, [2]], "deep": ({"xs": []}, 0), "other": [3]})
    watched.step(lambda state: read(state).append("new"))
    assert "new" in watched.live["xs"] + watched.live["deep"][0]["xs"]
    watched.step(lambda state: read(state).append("newer"))
    assert watched.live["xs"][2:] + watched.live["deep"][0]["xs"] == ["new", "newer"]


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_a_change_in_place_is_taken_back_however_the_value_was_read(read: Callable[[Any], Any]) -> None:
    """H4: with and without a store."""
    before = {"n": 1, "xs": [1, [2]], "deep": ({"xs": []}, 0), "other": [3]}
    for durable in (True, False):
        watched = Watched(before, durable)
        watched.fail(lambda state: read(state).append("new"))
        assert told_apart(watched.live) == told_apart(before)


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_reading_changes_nothing(read: Callable[[Any], Any]) -> None:
    """H2: and so nothing is stored."""
    watched = Watched({"n": 1, "xs": [1, [2]], "deep": ({"xs": []}, 0), "other": [3]})
    assert watched.step(lambda state: none(read(state))).keys == []


def test_what_only_looks_at_a_state_sees_what_a_dict_would_show() -> None:
    """H4: json, format_map, comparisons, len, in, repr, pickle."""
    data = {"n": 1, "xs": [1, {"k": None}], "t": "text"}
    state = Watched(data).hand_out()
    assert json.loads(json.dumps(state)) == data
    assert "{n} {xs} {t}".format_map(state) == "{n} {xs} {t}".format_map(data)
    assert "{n} {t}".format(**state) == "1 text"
    assert state == data
    assert data == state
    assert (len(state), list(state), list(reversed(state)), "xs" in state, "no" in state) == (
        3, ["n", "xs", "t"], ["t", "xs", "n"], True, False,
    )  # fmt: skip
    assert repr(state) == f"State({data!r})"
    assert pickle.loads(pickle.dumps(state)) == data
    assert copy.deepcopy(state) == data
    assert (state.keys() & {"n"}, len(state.values()), ("n", 1) in state.items()) == ({"n"}, 3, True)


# Writing

WRITES: dict[str, Callable[[Any], Any]] = {
    "[]=": lambda s: s.__setitem__("n", 9),
    "[]= new": lambda s: s.__setitem__("new", [9]),
    "+=": lambda s: s.__setitem__("xs", s["xs"] + [9]),
    "in place +=": lambda s: operator.setitem(s, "xs", operator.iadd(s["xs"], [9])),
    "del": lambda s: s.__delitem__("xs"),
    "pop": lambda s: s.pop("xs"),
    "pop a missing one": lambda s: s.pop("no", None),
    "pop and alter": lambda s: s.pop("xs").append(9),
    "pop, alter and put back": lambda s: s.__setitem__("xs", [*s.pop("xs"), 9]),
    "popitem": lambda s: s.popitem(),
    "setdefault": lambda s: s.setdefault("new", []).append(9),
    "setdefault of one that is there": lambda s: s.setdefault("xs", []).append(9),
    "update": lambda s: s.update({"n": 9, "new": 1}),
    "update with pairs": lambda s: s.update([("n", 9), ("new", 1)]),
    "update with names": lambda s: s.update(n=9, new=1),
    "update with both": lambda s: s.update({"n": 9}, new=1),
    "update with itself": lambda s: s.update(s),
    "|=": lambda s: operator.ior(s, {"n": 9, "new": 1}),
    "|= pairs": lambda s: operator.ior(s, [("n", 9)]),
    "clear": lambda s: s.clear(),
    "clear and start again": lambda s: (s.clear(), s.update(n=1, xs=[1])),
    "delete what was just made": lambda s: (s.update(new=1), s.pop("new")),
    "delete and make again": lambda s: (s.pop("n"), s.update(n=1)),
    "swap": lambda s: s.update(xs=s["d"], d=s["xs"]),
    "alter and put back what was there": lambda s: (s["xs"].append(9), s.update(xs=[1, [2]])),
    "alter and restore": lambda s: (s["xs"].append(9), s["xs"].pop()),
    "alter, then delete": lambda s: (s["xs"].append(9), s.pop("xs")),
    "alter through another key": lambda s: (s.update(new=s["xs"]), s["new"].append(9)),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_change_by_assignment_is_what_it_would_be_for_a_dict(write: Callable[[Any], Any]) -> None:
    """H2, H4"""
    before = {"n": 1, "xs": [1, [2]], "d": {"k": [3]}}
    plain, watched = copy.deepcopy(before), Watched(before)
    expected = write(plain)
    found: list[Any] = []
    watched.step(lambda state: found.append(write(state)))
    assert found == [expected]
    assert dict(watched.live) == plain
    watched.step()
    assert dict(watched.live) == plain


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_change_by_assignment_is_taken_back(write: Callable[[Any], Any]) -> None:
    """H4"""
    before = {"n": 1, "xs": [1, [2]], "d": {"k": [3]}}
    for durable in (True, False):
        watched = Watched(before, durable)
        watched.fail(write)
        assert told_apart(watched.live) == told_apart(before)
        assert watched.step().keys == []


atoms = st.sampled_from([0, 1, True, 1.0, "x", None, (), 2**70])
nested = st.recursive(
    atoms,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("kl"), inner, max_size=2),
    max_leaves=5,
)
deeds = st.one_of(
    st.tuples(st.just("do"), st.sampled_from(sorted(WRITES))),
    st.tuples(st.just("set"), st.sampled_from(["xs", "d", "new"]), nested),
    st.tuples(st.just("grow"), st.sampled_from(["xs", "new"]), nested),
    st.tuples(st.just("alter"), st.sampled_from(["xs", "d", "new"]), nested),
    st.tuples(st.just("read"), st.sampled_from(["xs", "d", "new"])),
)
returned = st.none() | st.dictionaries(st.sampled_from(["n", "xs", "d", "new"]), nested, max_size=2)
steps = st.lists(st.tuples(st.lists(deeds, max_size=3), returned, st.booleans()), max_size=6)


@settings(max_examples=200, deadline=None)
@given(steps, st.booleans())
def test_over_many_steps_the_live_state_is_what_plain_dicts_would_be(history: Any, durable: bool) -> None:
    """H2, H4: steps that complete and steps that don't; with a store, the journal's bytes say the same.

    Without a store, a value that is put under two keys stays one value, so there it isn't done.
    """
    expected: dict[str, Any] = {"n": 1, "xs": [1, [2]], "d": {"k": [3]}}
    watched = Watched(expected, durable)
    for done, update, completes in history:
        draft = copy.deepcopy(expected)
        private = watched.hand_out()
        for deed in done:
            if not durable and deed == ("do", "alter through another key"):
                continue
            assert _outcome(deed, private) == _outcome(deed, draft)
        if completes:
            data = watched.changes.collect(private, copy.deepcopy(update))
            expected = _unshared({**draft, **(update or {})})
            if durable:
                read_delta(decode(data)).apply(watched.rebuilt)
                assert told_apart(watched.rebuilt) == told_apart(watched.live)
        else:
            watched.changes.undo(private)
        assert sorted(told_apart(watched.live)) == sorted(told_apart(expected))
        expected = {
            key: expected[key] for key in watched.live
        }  # where a key that was made again stands is open


@pytest.mark.parametrize("isolated", [False, True])
def test_a_key_that_was_read_and_then_reduced_is_read_as_it_is_now(isolated: bool) -> None:
    """H2: also where each node works on copies, as it does next to others."""
    watched = Watched({"log": [1], "book": {"k": 1}, "total": 1}, **REDUCERS)
    watched.changes.isolated = isolated
    seen: list[Any] = []
    for _ in range(3):
        watched.step(lambda state: seen.append((list(state["log"]), dict(state["book"]), state["total"])))
        watched.step(lambda state: {"log": 2, "book": {"l": 2}, "total": 1})
    assert seen == [
        ([1], {"k": 1}, 1),
        ([1, 2], {"k": 1, "l": 2}, 2),
        ([1, 2, 2], {"k": 1, "l": 2}, 3),
    ]


@pytest.mark.parametrize("replace", ["returned", "assigned", "deleted and assigned"])
def test_a_change_in_place_back_to_what_a_value_once_was_is_stored(replace: str) -> None:
    """H2, H4: a change is one from the value that the state has, not from one that was replaced since."""

    def put(state: NodeState) -> Any:
        if replace == "returned":
            return {"xs": [1, 2], "d": {"k": 1, "l": 2}}
        if replace != "assigned":
            del state["xs"]
        state["xs"] = [1, 2]
        state["d"] = {"k": 1, "l": 2}
        return None

    def take_back(state: NodeState) -> None:
        state["xs"].pop()
        del state["d"]["l"]

    watched = Watched({"xs": [1], "d": {"k": 1}})
    watched.step(lambda state: none(state["xs"], state["d"]))
    watched.step(put)
    watched.step(take_back)
    assert watched.live == watched.rebuilt == {"xs": [1], "d": {"k": 1}}


def _outcome(deed: tuple[Any, ...], state: Any) -> Any:
    """Do it, and return the outcome, whether for a State or a dict."""
    try:
        return repr(_done(deed, state))
    except KeyError:
        return KeyError  # of a State it is an `UnknownKey`, which is one
    except (AttributeError, TypeError, ValueError, IndexError) as error:
        return type(error)


def _done(deed: tuple[Any, ...], state: Any) -> Any:
    match deed:
        case ("do", name):
            done = WRITES[name](state)
            return None if done is state else done
        case ("set", key, value):
            state[key] = copy.deepcopy(value)
        case ("grow", key, value) if isinstance(state.get(key), list):
            state[key].append(copy.deepcopy(value))
        case ("alter", key, value):
            inner = state.get(key)
            if isinstance(inner, dict):
                inner["k"] = copy.deepcopy(value)
            elif isinstance(inner, list) and inner:
                inner[0] = copy.deepcopy(value)
        case ("read", key):
            return state.get(key)
    return None


def _unshared(value: Any) -> Any:
    """A copy in which no list or dict is in two places, as nothing is that comes out of a journal."""
    if isinstance(value, dict):
        return {key: _unshared(item) for key, item in value.items()}
    return type(value)(map(_unshared, value)) if isinstance(value, (list, tuple)) else value


def test_a_state_kept_from_a_node_that_is_over_reaches_nothing() -> None:
    """G1: what a node holds is its own; assigning to it later doesn't change the run."""
    kept: list[State] = []

    def keep(state: State) -> None:
        kept.append(state)

    def meddle(state: State) -> dict[str, Any]:
        kept[0]["x"] = "meddled"
        return {"seen": "x" in state}

    final = chain(keep, meddle).compile(store="memory://").execute({"a": 1})
    assert final == {"a": 1, "seen": False}


# What it costs


class Heavy:
    """Something that counts how often it is encoded."""

    encoded = 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Heavy)

    __hash__ = None  # type: ignore[assignment]


def _heavy_to(value: Heavy) -> None:
    Heavy.encoded += 1


register_type(Heavy, name="test_changes:Heavy", to=_heavy_to, restore=lambda stored: Heavy())


def encodes(watched: Watched, act: Callable[[NodeState], Any]) -> int:
    """How often something heavy is encoded in one step."""
    before = Heavy.encoded
    private = watched.hand_out()
    watched.changes.collect(private, act(private))
    return Heavy.encoded - before


def test_a_key_that_was_not_read_is_never_encoded() -> None:
    """H2: however large it is, a step that leaves it alone doesn't pay for it."""
    watched = Watched({"n": 0, "xs": [], "big": Heavy(), "more": [Heavy(), {"k": Heavy()}]})
    for act in (
        lambda s: {"n": s["n"] + 1},
        lambda s: s["xs"].append(1),
        lambda s: s.update(new=[1]),
        lambda s: none("big" in s, len(s), list(s), s.keys(), bool(s), s.get("none")),
        lambda s: none(s.pop("new")),
        lambda s: s.__delitem__("big"),
        lambda s: State({"n": 5}),
    ):
        assert encodes(watched, act) == 0
    assert encodes(watched, lambda s: none(s["more"])) == 4


def test_a_key_that_was_read_is_encoded_once_before_and_once_after() -> None:
    """H2: and from then on once for every step that reads it."""
    watched = Watched({"big": Heavy(), "n": 0})
    assert encodes(watched, lambda s: none(s["big"])) == 2
    assert encodes(watched, lambda s: s["big"] and {"n": 1}) == 1
    assert encodes(watched, lambda s: {"n": 2}) == 0
    assert encodes(watched, lambda s: none(s["big"] and s["big"] and s.get("big"))) == 1


def test_what_a_reducer_has_gathered_is_not_encoded_again() -> None:
    """H2: only what is new is."""
    watched = Watched({"log": [Heavy()] * 5, "book": {"k": Heavy()}, "grown": [Heavy()] * 5}, **REDUCERS)
    assert encodes(watched, lambda s: {"log": [1], "book": {"l": 1}, "grown": [1]}) == 0
    assert encodes(watched, lambda s: {"log": Heavy()}) == 1
    assert encodes(watched, lambda s: {"book": {"m": Heavy()}}) == 1


def test_a_failed_call_costs_one_look_at_what_it_had_read() -> None:
    """H2"""
    watched = Watched({"big": Heavy(), "other": Heavy(), "n": 0})
    before = Heavy.encoded
    watched.fail(lambda s: s["big"])
    assert Heavy.encoded - before <= 2


# What is stored

GROWTH: dict[str, Callable[[Any], Any]] = {
    "append": lambda s: s["xs"].append("new"),
    "extend": lambda s: s["xs"].extend(["new"]),
    "+": lambda s: s.__setitem__("xs", [*s["xs"], "new"]),
    "in place +=": lambda s: none(operator.iadd(s["xs"], ["new"])),
    "returned": lambda s: {"xs": [*s["xs"], "new"]},
    "as a State": lambda s: s.set("xs", [*s["xs"], "new"]),
    "insert at the end": lambda s: s["xs"].insert(len(s["xs"]), "new"),
}


@pytest.mark.parametrize("grow", GROWTH.values(), ids=GROWTH)
@pytest.mark.parametrize("length", [1, 2, 14, 15, 16, 17, 1000, 65_535, 65_536])
def test_of_a_list_that_grew_only_the_new_items_are_stored(grow: Callable[[Any], Any], length: int) -> None:
    """H2: also where the length needs more bytes than before."""
    watched = Watched({"xs": list(range(length))})
    assert alone(watched.step(grow), "appends") == {"xs": ["new"]}
    assert alone(watched.step(grow), "appends") == {"xs": ["new"]}
    assert len(watched.live["xs"]) == length + 2


NO_GROWTH: dict[str, Callable[[Any], Any]] = {
    "insert": lambda s: s["xs"].insert(0, "new"),
    "change": lambda s: s["xs"].__setitem__(1, "new"),
    "shrink": lambda s: none(s["xs"].pop()),
    "reverse": lambda s: s["xs"].reverse(),
    "change and append": lambda s: none(s["xs"].append(1), s["xs"].__setitem__(0, True)),
    "change inside": lambda s: s["xs"][1].append(1),
    "another type": lambda s: s.__setitem__("xs", (*s["xs"], "new")),
    "empty": lambda s: s["xs"].clear(),
}


@pytest.mark.parametrize("change", NO_GROWTH.values(), ids=NO_GROWTH)
def test_a_list_that_changed_otherwise_is_stored_whole(change: Callable[[Any], Any]) -> None:
    """H4"""
    watched = Watched({"xs": [1, [2], 3]})
    delta = watched.step(change)
    assert alone(delta, "sets") == {"xs": watched.live["xs"]}


@settings(max_examples=150, deadline=None)
@given(st.lists(nested, max_size=5), st.lists(nested, max_size=5), st.booleans())
def test_any_change_of_a_list_is_restored_exactly(old: list[Any], new: list[Any], grown: bool) -> None:
    """H4: a beginning that is equal but of another type (1, True, 1.0) doesn't count as one."""
    new = [*copy.deepcopy(old), *new] if grown else new
    watched = Watched({"xs": old})
    delta = watched.step(lambda s: s["xs"].__setitem__(slice(None), new))
    if grown and old and len(new) > len(old):
        assert alone(delta, "appends") == {"xs": new[len(old) :]}
    assert repr(watched.live["xs"]) == repr(new)


def test_the_bytes_of_a_step_follow_the_change() -> None:
    """H2: one item more in a list of any length, one entry more in a dict of any size."""
    sizes = []
    for length in (10, 1_000, 100_000):
        state = {
            "log": list(range(length)),
            "book": dict.fromkeys(map(str, range(length)), 0),
            "xs": ["é"] * length,
        }
        watched = Watched(state, **REDUCERS)
        private = watched.hand_out()
        private["xs"].append("new")
        sizes.append(len(watched.changes.collect(private, {"log": "new", "book": {"new": 1}})))
    assert max(sizes) == min(sizes) < 60


# Reducers


def test_a_known_reducer_stores_what_is_new() -> None:
    """H2"""
    watched = Watched({"log": [1], "book": {"k": 1}, "total": 1, "grown": [1]}, **REDUCERS)
    delta = watched.step(lambda s: {"log": [2, 3], "book": {"l": 2}, "total": 2, "grown": [2]})
    assert (delta.sets, delta.appends, delta.merges) == (
        {"total": 3}, {"log": [2, 3], "grown": [2]}, {"book": {"l": 2}},
    )  # fmt: skip
    assert dict(watched.live) == {"log": [1, 2, 3], "book": {"k": 1, "l": 2}, "total": 3, "grown": [1, 2]}


def test_an_update_of_a_key_that_is_not_there_is_its_first_value() -> None:
    """H4"""
    watched = Watched({}, **REDUCERS)
    watched.step(lambda s: {"log": 1, "book": {"k": 1}, "total": 2, "grown": [3]})
    assert dict(watched.live) == {"log": [1], "book": {"k": 1}, "total": 2, "grown": [3]}


def _kept_first(old: dict[Any, Any], new: dict[Any, Any]) -> dict[Any, Any]:
    return {**new, **old}


def _newest_first(old: dict[Any, Any], new: Any) -> dict[Any, Any]:
    return {key: old.get(key, new) for key in [new, *old]}


CUSTOM: dict[str, Callable[[Any, Any], Any]] = {
    "window": lambda old, new: (old + new)[-2:],
    "front": lambda old, new: new + old,
    "in place": lambda old, new: operator.iadd(old, new),
    "the same": lambda old, new: old,
    "the new": lambda old, new: new,
    "unique": lambda old, new: old + [item for item in new if item not in old],
    "tuple": lambda old, new: (*old, *new),
    "nested": lambda old, new: [[*old], [*new]],
}


@pytest.mark.parametrize("reduce", CUSTOM.values(), ids=CUSTOM)
def test_a_reducer_of_the_user_is_obeyed_exactly(reduce: Callable[[Any, Any], Any]) -> None:
    """H4: and stored so that it comes back the same."""
    expected: Any = [1, [2]]
    watched = Watched({"xs": expected}, xs=reduce)
    for update in ([3], [[2], 4], []):
        expected = reduce(copy.deepcopy(expected), update)
        watched.step(lambda s, update=update: {"xs": copy.deepcopy(update)})
        assert repr(watched.live["xs"]) == repr(expected)


@pytest.mark.parametrize("reduce", [_kept_first, _newest_first, merge])
def test_the_order_that_a_reducer_gives_a_dict_is_kept(reduce: Callable[[Any, Any], Any]) -> None:
    """H4: a cache that moves what was used to the front loses its meaning with its order."""
    old = {"k": 1, "l": 2, "m": 3}
    update: Any = "l" if reduce is _newest_first else {"z": 0, "l": 5}
    watched = Watched({"d": old}, d=reduce)
    watched.step(lambda s: {"d": update})
    assert list(watched.live["d"].items()) == list(reduce(old, update).items())


def test_a_key_with_a_reducer_is_changed_by_returning_it_only() -> None:
    """H4: assigning, deleting and clearing are refused; what a node does to its copy stays there."""
    state = {"log": [1], "book": {"k": 1}, "n": 0}
    for write in (
        lambda s: s.__setitem__("log", []),
        lambda s: s.__delitem__("log"),
        lambda s: s.update(log=[]),
        lambda s: s.pop("log"),
        lambda s: s.setdefault("total", 1),
        lambda s: s.clear(),
        lambda s: operator.ior(s, {"book": {}}),
    ):
        watched = Watched(state, **REDUCERS)
        with pytest.raises(UsageError, match="reducer"):
            watched.fail(write)
    watched = Watched(state, **REDUCERS)
    delta = watched.step(lambda s: none(s["log"].append(2), s["book"].update(l=2), s.get("log").clear()))
    assert delta.keys == []
    assert dict(watched.live) == state


@pytest.mark.parametrize("options", [{}, {"store": "memory://"}], ids=["no store", "memory"])
def test_in_a_run_a_key_with_a_reducer_is_changed_by_returning_it_only(options: dict[str, Any]) -> None:
    """H2: with a store and without one."""

    def alters(state: Any) -> dict[str, Any]:
        state["log"].append("altered")
        return {"log": "returned"}

    graph = StateGraph({"log": Annotated[list, append]}, name="g").add_node("a", run=alters)
    graph.set_entry_point("a").set_finish_point("a").compile(**options)
    assert graph.execute({"log": ["given"]}) == {"log": ["given", "returned"]}


def test_what_a_node_does_inside_an_item_of_a_reduced_key_is_never_stored() -> None:
    """H2: such keys aren't compared, however long they are; they change only by what is returned."""
    watched = Watched({"log": [{"x": 0}]}, **REDUCERS)
    private = watched.hand_out()
    private["log"][0].update(x=1)
    private["log"].append("private")
    assert read_delta(decode(watched.changes.collect(private, {"log": [2]}))).appends == {"log": [2]}
    assert watched.live["log"][1:] == [2]


def test_altering_the_copy_of_a_reduced_key_is_remarked_upon(caplog: pytest.LogCaptureFixture) -> None:
    """Invariant 9: it has no effect, so a warning says so."""
    graph = stored_chain(lambda state: state["log"].append(1), schema={"log": Annotated[list, append]})
    assert graph.execute({})["log"] == []
    assert "has no effect" in caplog.text


# What a node may return


@dataclass
class Update:
    n: int
    new: str


@pytest.mark.parametrize(
    "update",
    [{"n": 2, "new": "x"}, MappingProxyType({"n": 2, "new": "x"}), OrderedDict(n=2, new="x"), Update(2, "x"),
     State({"n": 2, "new": "x"})],
)  # fmt: skip
def test_an_update_may_be_a_dict_a_mapping_a_dataclass_or_a_state(update: Any) -> None:
    """H4"""
    watched = Watched({"n": 1, "xs": []})
    assert alone(watched.step(lambda s: update), "sets") == {"n": 2, "new": "x"}


@pytest.mark.parametrize("kind", [MappingProxyType, OrderedDict, UserDict])
def test_an_update_is_reduced_whatever_kind_of_mapping_it_is(kind: Any) -> None:
    """H4: what has been gathered isn't lost because a node returned an OrderedDict."""
    watched = Watched({"log": [1]}, **REDUCERS)
    watched.step(lambda s: kind({"log": [2]}))
    assert watched.live["log"] == [1, 2]


@pytest.mark.parametrize(
    "returned", [1, "n", ["n"], [("n", 1)], Update, {1: 2}, {"n": 1, None: 2}, State({1: 2})]
)
def test_what_isnt_an_update_is_refused_and_changes_nothing(returned: Any) -> None:
    """H4: with reducers and without, with a store and without."""
    for reducers, durable in product(({}, REDUCERS), (True, False)):
        watched = Watched({"n": 1, "xs": [1]}, durable, **reducers)
        with pytest.raises(UsageError):
            watched.step(lambda s: returned)
        assert dict(watched.live) == {"n": 1, "xs": [1]}


def test_a_returned_state_stands_for_what_is_different_in_it() -> None:
    """H2: keys that it leaves out stay, keys that are as they were cost nothing."""
    watched = Watched({"n": 1, "xs": [1], "big": [0] * 1000}, **REDUCERS)
    assert watched.step(lambda s: s).keys == []
    assert watched.step(lambda s: s.clone()).keys == []
    assert alone(watched.step(lambda s: s.set("n", 2).merge({"new": 1})), "sets") == {"n": 2, "new": 1}
    assert alone(watched.step(lambda s: State({"n": 3})), "sets") == {"n": 3}
    watched.step(lambda s: (s["xs"].append(2), s.update(m=1), s)[-1])
    assert dict(watched.live) == {"n": 3, "xs": [1, 2], "big": [0] * 1000, "new": 1, "m": 1}


def test_a_returned_state_counts_more_than_what_the_node_assigned_before() -> None:
    """H4: it is the last word, also where it says that a key is as it was when the node began."""
    watched = Watched({"n": 1, "m": 1})
    watched.step(lambda s: (s.clone(), s.update(n=2), s.pop("m"))[0])
    assert dict(watched.live) == {"n": 1, "m": 1}


def test_a_value_under_two_keys_is_two_values_from_then_on() -> None:
    """H4: as it is after a resume."""
    shared = [{"k": 1}]
    watched = Watched({"a": [1]}, **REDUCERS)
    watched.step(lambda s: {"x": shared, "y": shared, "log": [shared, shared], "book": {"k": shared}})
    shared.append("kept by the node")
    watched.step(lambda s: {"b": s["a"]})
    watched.step(lambda s: none(s["x"].append(2), s["x"][0].update(k=2), s["a"].append(2)))
    one = [{"k": 1}]
    assert dict(watched.live) == {
        "a": [1, 2], "b": [1], "x": [{"k": 2}, 2], "y": one, "log": [one, one], "book": {"k": one}
    }  # fmt: skip


# What can't be stored, and what didn't complete

SPOILS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "returned": (lambda s: {"new": {"k": [object()]}}, "new.k[0]"),
    "assigned": (lambda s: s.__setitem__("new", object()), "new"),
    "in place": (lambda s: s["xs"].append(object()), "xs[1]"),
    "deep": (lambda s: s["d"]["k"].append(object()), "d.k[1]"),
    "appended": (lambda s: {"log": [1, object()]}, "log[1]"),
    "merged": (lambda s: {"book": {"odd key": object()}}, 'book["odd key"]'),
    "reduced": (lambda s: {"grown": [object()]}, "grown[0]"),
}


@pytest.mark.parametrize(("spoil", "path"), SPOILS.values(), ids=SPOILS)
def test_what_cannot_be_stored_is_refused_with_its_path_and_changes_nothing(
    spoil: Callable[[Any], Any], path: str
) -> None:
    """H4"""
    before = {"n": 1, "xs": [1], "d": {"k": [3]}, "log": [0], "book": {}, "grown": []}
    watched = Watched(before, **REDUCERS)
    private = watched.hand_out()
    update = {"n": 2, **(spoil(private) or {})}
    with pytest.raises(UnstorableValue) as refused:
        watched.changes.collect(private, update)
    assert refused.value.path == path
    watched.changes.undo(private)
    assert told_apart(watched.live) == told_apart(before)
    watched.step(lambda s: (s["xs"].append(2), {"n": s["n"] + 1})[1])
    assert (watched.live["xs"], watched.live["n"]) == ([1, 2], 2)


def test_a_reducer_that_raises_changes_nothing() -> None:
    """H4: not even the keys before it."""
    watched = Watched({"n": 1, "total": 1, "log": [1]}, **REDUCERS)
    with pytest.raises(TypeError):
        watched.step(lambda s: {"n": 2, "log": 2, "total": "two"})
    assert dict(watched.live) == {"n": 1, "total": 1, "log": [1]}


def test_a_step_that_was_undone_leaves_nothing_for_the_next() -> None:
    """H4: neither assignments nor what was noted of them."""
    watched = Watched({"n": 1, "xs": [1]})
    watched.fail(lambda s: (s.update(n=2, new=3), s.pop("xs")))
    assert watched.step().keys == []
    assert dict(watched.live) == {"n": 1, "xs": [1]}


@pytest.mark.parametrize("durable", [True, False])
def test_undoing_takes_back_to_the_last_step_that_completed(durable: bool) -> None:
    """H4: not to the one at which the key was first read."""
    watched = Watched({"xs": [1]}, durable)
    watched.step(lambda s: s["xs"].append(2))
    watched.fail(lambda s: s["xs"].append(3))
    assert watched.live["xs"] == [1, 2]
    watched.fail(lambda s: (s["xs"].clear(), s.update(xs=0)))
    assert watched.live["xs"] == [1, 2]


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_call_that_was_left_behind_has_no_hold_on_the_state(when: str) -> None:
    """H4, H8: a thread that timed out keeps the values it has read, and a state of its own."""
    watched = Watched({"xs": [1], "ys": [1]})
    private = watched.hand_out()
    read = private["xs"] if when == "before" else None
    watched.changes.undo(private)
    with suppress(KeyError, UsageError):  # it may as well be left with nothing
        (private["xs"] if read is None else read).append("too late")
        private["new"] = "too late"
    assert dict(watched.live) == {"xs": [1], "ys": [1]}
    assert watched.step(lambda s: none(s["xs"])).keys == []


def test_what_is_looked_at_from_outside_shares_nothing_with_the_run() -> None:
    """H4: also what can't be stored is copied, as far as it can be."""
    for odd in (None, object()):
        state = State({"xs": [[1]], "odd": odd}, run_id="r", checkpoint_node="a", timestamp=5.0)
        seen = detached(state)
        seen["xs"][0].append(2)
        assert state["xs"] == [[1]]
        assert (seen.run_id, seen.checkpoint_node, seen.timestamp) == ("r", "a", state.timestamp)


def test_without_a_store_anything_may_be_in_the_state() -> None:
    """H4: what can't be stored can be carried along, and altered."""
    thing = object()
    watched = Watched({}, durable=False)
    watched.step(lambda s: {"odd": [thing]})
    watched.step(lambda s: s["odd"].append(1))
    assert watched.live["odd"] == [thing, 1]


class CopyCounted:
    """A value that can't be stored, and counts how often it is copied."""

    def __init__(self) -> None:
        self.copies = 0

    def __deepcopy__(self, memo: Any) -> CopyCounted:
        self.copies += 1
        return self


def test_a_predicate_pays_for_the_values_that_it_reads_alone() -> None:
    """H4: it gets copies, but a large value that it doesn't read is never copied."""
    large = CopyCounted()
    small = CopyCounted()

    def count(state: Any) -> dict[str, Any]:
        large.copies = small.copies = 0  # those of the input
        return {"n": state["n"] + 1}

    def again(state: Any) -> bool:
        return "large" in state and state["small"] is small and state["n"] < 3

    graph = StateGraph(name="g").add_node("n1", run=count).add_edge("n1", "n1", again)
    graph.set_entry_point("n1").set_finish_point("n1").compile()
    assert graph.execute({"n": 0, "large": large, "small": small})["n"] == 3
    assert (small.copies, large.copies) == (1, 0)
