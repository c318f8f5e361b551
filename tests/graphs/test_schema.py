"""What the state is described with, and what the description does: keys, starting values, reducers."""

from __future__ import annotations

import operator
import re
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import InitVar, dataclass, field
from typing import Annotated, Any, NotRequired, TypedDict

import pydantic
import pytest

from limpet import DefinitionError, ExecutionError, State, StateGraph, UsageError, append, merge, secret
from limpet.graphs.schema import read_schema
from support.graphs import Crash, chain, crash_once


class Typed(TypedDict, total=False):
    value: int
    log: Annotated[list[str], append]


@dataclass
class Record:
    topic: str
    depth: int = 3
    notes: list[str] = field(default_factory=list)
    log: Annotated[list[str], append] = field(default_factory=lambda: ["started"])


class Model(pydantic.BaseModel):
    topic: str
    depth: int = 3
    notes: list[str] = pydantic.Field(default_factory=list)
    log: Annotated[list[str], append] = ["started"]


def graph_of(schema: Any, *nodes: Callable[..., Any]) -> StateGraph:
    return chain(*nodes, schema=schema)


def live_and_resumed(schema: Any, given: Any, *nodes: Callable[..., Any]) -> State:
    """The final state, after making sure that a run that crashed behind each node comes to the same."""
    straight = graph_of(schema, *nodes).execute(given)
    for place in range(len(nodes)):
        crashing = crash_once(lambda state: None)
        graph = graph_of(schema, *nodes[: place + 1], crashing, *nodes[place + 1 :]).compile(
            store="memory://"
        )
        with pytest.raises(Crash):
            graph.execute(given, run_id="r")
        assert graph.resume("r") == straight
    return straight


def test_a_dict_of_types_names_the_keys() -> None:
    """F1: `StateGraph({"value": int, …})`; it describes and doesn't fence in."""
    graph = graph_of(
        {"value": int, "approved": bool}, lambda state: {"value": state["value"] + 1, "extra": "fine"}
    )
    assert list(graph.schema.keys) == ["value", "approved"]
    assert graph.execute({"value": 1, "more": 2}) == {"value": 2, "more": 2, "extra": "fine"}


def test_a_typed_dict_names_keys_and_reducers() -> None:
    """F1: annotations are read with their extras, also under postponed evaluation."""
    final = live_and_resumed(Typed, {"value": 1}, lambda state: {"log": ["a"]}, lambda state: {"log": ["b"]})
    assert final == {"value": 1, "log": ["a", "b"]}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"topic": "kelp"}, {"topic": "kelp", "depth": 3, "notes": [], "log": ["started", "ran"]}),
        (Record("kelp", 5), {"topic": "kelp", "depth": 5, "notes": [], "log": ["started", "ran"]}),
        ({"topic": "kelp", "log": []}, {"topic": "kelp", "depth": 3, "notes": [], "log": ["ran"]}),
        (None, {"depth": 3, "notes": [], "log": ["started", "ran"]}),
    ],
    ids=["dict", "instance", "default given", "nothing"],
)
def test_a_dataclass_gives_its_defaults(given: Any, expected: dict[str, Any]) -> None:
    """F1: plain ones and those of a factory; a run may start from an instance."""
    assert live_and_resumed(Record, given, lambda state: {"log": ["ran"]}) == expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"topic": "kelp"}, {"topic": "kelp", "depth": 3, "notes": [], "log": ["started", "ran"]}),
        (
            {"topic": "kelp", "depth": "5"},
            {"topic": "kelp", "depth": 5, "notes": [], "log": ["started", "ran"]},
        ),
        (
            Model(topic="kelp", notes=["x"]),
            {"topic": "kelp", "depth": 3, "notes": ["x"], "log": ["started", "ran"]},
        ),
        (
            {"topic": "kelp", "extra": 1},
            {"topic": "kelp", "depth": 3, "notes": [], "log": ["started", "ran"], "extra": 1},
        ),
    ],
    ids=["defaults", "coerced", "instance", "other keys"],
)
def test_a_pydantic_model_validates_the_input_and_gives_its_defaults(
    given: Any, expected: dict[str, Any]
) -> None:
    """F1: what comes out is what the model made of it; keys that it doesn't know are let through."""
    assert live_and_resumed(Model, given, lambda state: {"log": ["ran"]}) == expected


@pytest.mark.parametrize("given", [{}, {"topic": 5}, {"topic": "kelp", "depth": "deep"}])
def test_an_input_that_does_not_fit_the_pydantic_model_is_refused(given: dict[str, Any]) -> None:
    """F1: before any node runs, and nothing is stored."""
    graph = graph_of(Model, lambda state: pytest.fail("ran")).compile(store="memory://")
    with pytest.raises(UsageError, match="the input doesn't fit Model"):
        graph.execute(given)
    assert graph.runs() == []


@pytest.mark.parametrize("given", [5, "text", ["topic"], Record])
def test_an_input_that_isnt_a_mapping_is_refused(given: Any) -> None:
    """F1: the input of a run is a dict of state values."""
    with pytest.raises(UsageError, match="the input of a run must be a dict of state values"):
        graph_of(Record, lambda state: None).execute(given)


@pytest.mark.parametrize("schema", [5, "text", ["value"], int, Record("x")])
def test_what_describes_no_state_is_refused(schema: Any) -> None:
    """F1: a schema is one of the four kinds."""
    with pytest.raises(
        DefinitionError, match="a schema must be a dict of types, a TypedDict, a dataclass or a pydantic"
    ):
        StateGraph(schema)


@dataclass
class Scaled:
    value: int
    scale: InitVar[int]


@dataclass
class ScaledByDefault:
    value: int
    scale: InitVar[int] = 2

    def __post_init__(self, scale: int) -> None:
        self.value *= scale


def test_a_class_that_needs_more_than_its_fields_is_refused() -> None:
    """H14: an instance couldn't be made of the state. What has a default isn't needed."""
    with pytest.raises(DefinitionError, match="Scaled can't describe a state: its constructor needs 'scale'"):
        StateGraph(Scaled)
    with pytest.raises(DefinitionError, match="it has one value, and no fields"):
        StateGraph(pydantic.RootModel[list[int]])
    assert graph_of(ScaledByDefault, lambda state: None).execute({"value": 2}) == {"value": 4}


@pytest.mark.parametrize("schema", [None, dict, {}])
def test_no_schema_is_fine(schema: Any) -> None:
    """F1: any keys will do."""
    assert graph_of(schema, lambda state: {"a": 1}).execute({"b": 2}) == {"b": 2, "a": 1}


# Reducers


def newest(old: Any, new: Any) -> Any:
    return new


def at_most_three(old: list[Any], new: Any) -> list[Any]:
    return [*old, new][-3:]


def in_place(old: list[Any], new: list[Any]) -> list[Any]:
    old.extend(new)
    return old


class Sum:
    def __call__(self, old: int, new: int) -> int:
        return old + new


@pytest.mark.parametrize(
    ("hint", "start", "updates", "expected"),
    [
        (Annotated[list, append], ["a"], [["b", "c"], "d", [["e"]]], ["a", "b", "c", "d", ["e"]]),
        (Annotated[list[int], operator.add], [1], [[2], [3, 4]], [1, 2, 3, 4]),
        (Annotated[int, operator.add], 1, [2, 3], 6),
        (Annotated[str, operator.add], "a", ["b", "c"], "abc"),
        (Annotated[tuple, operator.add], (1,), [(2,), ()], (1, 2)),
        (Annotated[dict, merge], {"a": 1}, [{"b": 2}, {"a": 3}], {"a": 3, "b": 2}),
        (Annotated[dict, operator.or_], {"a": 1}, [{"b": 2}, {"a": 3}], {"a": 3, "b": 2}),
        (Annotated[set, operator.or_], {1}, [{2}, {1, 3}], {1, 2, 3}),
        (Annotated[int, max], 5, [3, 9], 9),
        (Annotated[list, newest], [1], [[2], []], []),
        (Annotated[list, at_most_three], [], [1, 2, 3, 4], [2, 3, 4]),
        (Annotated[list, in_place], [1], [[2], [3]], [1, 2, 3]),
        (Annotated[int, "a note", Sum()], 1, [2], 3),
    ],
    ids=["append", "operator.add list", "operator.add int", "operator.add str", "operator.add tuple", "merge",
         "operator.or_ dict", "operator.or_ set", "max", "custom", "custom that drops", "custom in place",
         "callable object behind a note"],
)  # fmt: skip
def test_a_reducer_combines_each_update_with_what_is_there(
    hint: Any, start: Any, updates: list[Any], expected: Any
) -> None:
    """F1, H4: live and after a resume behind each node."""
    nodes = [lambda state, update=update: {"key": update} for update in updates]
    final = live_and_resumed({"key": hint}, {"key": start}, *nodes)
    assert (final["key"], type(final["key"])) == (expected, type(expected))


def test_the_input_is_not_altered_by_reducing() -> None:
    """F1: what the caller holds stays as it is, even under a reducer that works in place."""
    given = {"a": [1], "b": [1], "c": {"x": 1}}
    schema = {"a": Annotated[list, append], "b": Annotated[list, in_place], "c": Annotated[dict, merge]}
    for store in (None, "memory://"):
        graph_of(schema, lambda state: {"a": 2, "b": [2], "c": {"y": 2}}).compile(store=store).execute(given)
        assert given == {"a": [1], "b": [1], "c": {"x": 1}}


@pytest.mark.parametrize(
    ("hint", "expected"),
    [
        (Annotated[list, append], []),
        (Annotated[list[str], append], []),
        (Annotated[dict[str, int], merge], {}),
        (Annotated[int, operator.add], 0),
        (Annotated[float, operator.add], 0.0),
        (Annotated[str, operator.add], ""),
        (Annotated[set, operator.or_], set()),
        (Annotated[tuple, operator.add], ()),
    ],
)
def test_a_reduced_key_starts_empty(hint: Any, expected: Any) -> None:
    """F1: the first node may read it, and the first update is combined with nothing."""
    read: list[Any] = []
    graph_of({"key": hint}, lambda state: read.append(state["key"])).execute({})
    assert read == [expected]
    assert type(read[0]) is type(expected)


def test_a_reduced_key_of_another_type_starts_absent_and_takes_the_first_update_as_it_is() -> None:
    """F1: there is nothing to combine it with."""
    schema = {"best": Annotated[Any, max]}
    final = live_and_resumed(
        schema, {}, lambda state: {"seen": "best" in state, "best": 3}, lambda state: {"best": 2}
    )
    assert final == {"seen": False, "best": 3}


def test_two_runs_do_not_share_their_starting_values() -> None:
    """F1, P6: each run has its own empty list."""
    graph = graph_of(Record, lambda state: {"log": ["x"], "notes": [*state["notes"], "y"]})
    assert graph.execute({"topic": "a"}) == graph.execute({"topic": "a"})
    mutable = graph_of(Record, lambda state: state["notes"].append("z"))
    assert mutable.execute({"topic": "a"})["notes"] == mutable.execute({"topic": "a"})["notes"] == ["z"]


def test_a_reducer_that_raises_fails_the_node() -> None:
    """F1: the state is as it was; the error names the key, and the cause is the reducer's."""
    graph = graph_of({"n": Annotated[int, operator.add]}, lambda state: {"n": "text", "other": 1})
    with pytest.raises(ExecutionError) as caught:
        graph.execute({"n": 1})
    assert "in the reducer of 'n', given int and str" in str(caught.value)
    assert isinstance(caught.value.cause, TypeError)
    assert caught.value.state == {"n": 1}


@pytest.mark.parametrize(
    ("hint", "why"),
    [
        (Annotated[list, "append"], "the text 'append' isn't a reducer; write the function itself, Annotated[list"),
        (NotRequired[Annotated[list, "operator.add"]], "the text 'operator.add' isn't a reducer"),
        (Annotated[list, list], "the class list isn't a reducer"),
        (Annotated[int, 5], "5 isn't a reducer: that is a function (old, new)"),
        (Annotated[int, None], "None isn't a reducer"),
        (Annotated[list, len], "len isn't a reducer: it can't be called with (old, new)"),
        (Annotated[list, append, merge], "the key 'key' has two reducers: append, merge"),
        (Annotated[list, append] | None, "put Annotated around the whole, as in Annotated[list | None, append]"),
    ],
)  # fmt: skip
def test_what_is_meant_as_a_reducer_and_isnt_one_is_refused(hint: Any, why: str) -> None:
    """H14: it isn't ignored, and the error says what to write."""
    with pytest.raises(DefinitionError, match=re.escape(why)):
        StateGraph({"fine": int, "key": hint})


@pytest.mark.parametrize(
    "extra",
    ["the topic of it", pydantic.Field(max_length=3), pydantic.AfterValidator(str.strip), secret, pydantic.Strict],
)  # fmt: skip
def test_what_an_annotation_says_to_others_isnt_a_reducer(extra: Any) -> None:
    """H14: a note of several words, and what other libraries read, is left alone."""
    assert read_schema({"a": Annotated[str, extra], "c": int}).reducers == {}


class Optional(TypedDict):
    log: NotRequired[Annotated[list[str], append]]


def test_a_key_that_isnt_required_can_have_a_reducer() -> None:
    """H14: `NotRequired` around the annotation changes nothing."""
    assert live_and_resumed(Optional, {}, lambda state: {"log": "a"}, lambda state: {"log": "b"}) == {
        "log": ["a", "b"]
    }


@pytest.mark.parametrize("make", [OrderedDict, lambda **values: type("Sub", (dict,), {})(values)])
def test_any_mapping_that_a_node_returns_is_reduced(make: Any) -> None:
    """F2: an OrderedDict, or another dict, of updates is one as a dict is."""
    graph = chain(lambda state: make(log=["b"]), schema={"log": Annotated[list, append]})
    assert graph.execute({"log": ["a"]}) == {"log": ["a", "b"]}


def test_a_reducer_that_alters_what_it_is_given_is_saved_as_it_left_it() -> None:
    """H4: a reducer that updates an old item in place counts, after a resume too."""

    def upsert(old: list[dict[str, Any]], new: dict[str, Any]) -> list[dict[str, Any]]:
        for each in old:
            if each["id"] == new["id"]:
                each.update(new)
                return old
        return [*old, new]

    graph = chain(
        lambda state: {"m": {"id": 1, "text": "a"}},
        lambda state: {"m": {"id": 1, "text": "b"}},
        schema={"m": Annotated[list, upsert]},
    ).compile(store="memory://", preserve=True)
    assert graph.execute({}, run_id="r") == {"m": [{"id": 1, "text": "b"}]} == graph.state_at("r")
