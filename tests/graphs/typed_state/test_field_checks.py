"""Values are checked where they enter a state that a dataclass or a pydantic model describes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Annotated, Any, Literal, NewType, Protocol, TypedDict, TypeVar

import pytest
from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.dataclasses import dataclass as pydantic_dataclass

from limpet import END, ExecutionError, InvalidValue, State, StateGraph, append, merge, pause, secret
from limpet.graphs.typed_state.type_check import why_unfit
from support.graphs import chain, single

STORES = [None, "memory://"]


@dataclass
class Data:
    topic: str
    score: float = 0.0
    tags: list[str] = field(default_factory=list)
    log: Annotated[list[str], append] = field(default_factory=list)
    counts: Annotated[dict[str, int], merge] = field(default_factory=dict)
    best: Annotated[int, max] = 0


class Model(BaseModel):
    topic: str
    score: float = 0.0
    tags: list[str] = Field(default=[], max_length=3)
    log: Annotated[list[str], append] = Field(default=[], min_length=0)
    counts: Annotated[dict[str, int], merge] = {}
    best: Annotated[int, max] = 0


BOTH = pytest.mark.parametrize("schema", [Data, Model])
WRONG = [
    {"score": "high"},
    {"tags": ["a", 5]},
    {"tags": 5},
    {"log": [5]},
    {"counts": {"a": "many"}},
    {"topic": None},
]


def wrong_fields(error: InvalidValue) -> str:
    return error.field.partition(".")[0]


@BOTH
@pytest.mark.parametrize("update", WRONG)
def test_an_input_that_does_not_fit_is_refused(schema: Any, update: dict[str, Any]) -> None:
    """H14: before any node runs, and nothing is stored."""
    graph = single(lambda state: pytest.fail("ran"), schema=schema).compile(store="memory://")
    with pytest.raises(InvalidValue, match="the input doesn't fit") as caught:
        graph.execute({"topic": "kelp", **update})
    assert wrong_fields(caught.value) == next(iter(update))
    assert graph.runs() == []


@BOTH
@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("update", WRONG)
def test_an_update_of_a_node_that_does_not_fit_is_refused(
    schema: Any, store: str | None, update: dict[str, Any]
) -> None:
    """H14: the error names the node and the field, and nothing of the update counts."""
    key = next(iter(update))

    def returned(state: Any) -> Any:
        return {"topic": "other", **update}

    def assigned(state: Any) -> None:
        state["topic"] = "other"
        state.update(update)

    def attribute(state: Any) -> Any:
        setattr(state, key, update[key])
        return state

    async def later(state: Any) -> Any:
        return {"topic": "other", **update}

    attribute.__annotations__["state"] = schema
    nodes = [returned, attribute, later]
    if key not in ("log", "counts"):
        nodes.append(assigned)
    for node in nodes:
        graph = chain(lambda state: {"score": 1.5}, node, schema=schema, names=["first", "bad"])
        with pytest.raises(
            ExecutionError, match=r"node 'bad'.*InvalidValue: the update doesn't fit"
        ) as caught:
            asyncio.run(graph.compile(store=store).aexecute({"topic": "kelp"}))
        assert caught.value.node == "bad"
        assert isinstance(caught.value.cause, InvalidValue)
        assert wrong_fields(caught.value.cause) == key
        assert caught.value.state == {**schema(topic="kelp").__dict__, "score": 1.5}


@BOTH
def test_what_a_node_changes_in_place_is_checked(schema: Any) -> None:
    """H14: with a store, where changes in place are found by comparing."""
    graph = single(lambda state: state["tags"].append(5), schema=schema).compile(store="memory://")
    with pytest.raises(ExecutionError, match="InvalidValue"):
        graph.execute({"topic": "kelp", "tags": ["a"]})


@BOTH
def test_updates_that_a_user_brings_are_checked_and_change_nothing_if_they_are_wrong(schema: Any) -> None:
    """H14: resume, invoke with a checkpoint, retry and fork."""
    graph = chain(
        lambda state: {"topic": "a"}, lambda state: {"topic": pause("Topic?", schema=str)}, schema=schema
    ).compile(store="memory://")
    graph.invoke({"topic": "kelp"}, run_id="r").wait()
    for update in WRONG:
        with pytest.raises(InvalidValue):
            graph.resume("r", "b", update=update)
        with pytest.raises(InvalidValue):
            graph.fork("r", update=update)
    stopped = single(lambda state: {"topic": "c"}, node="last", schema=schema)
    stopped.compile(store="memory://", interrupt_before=["last"]).invoke({"topic": "kelp"}, run_id="s").wait()
    with pytest.raises(InvalidValue):
        stopped.invoke({"score": "high"}, checkpoint="s").result()
    assert stopped.resume("s", update={"score": 2})["score"] == 2
    assert graph.get("r").status == "paused"
    assert graph.resume("r", "b", update={"score": 2})["score"] == 2
    assert len(graph.runs()) == 1


@BOTH
@pytest.mark.parametrize("store", STORES)
def test_updates_in_branches_maps_and_graphs_inside_are_checked(schema: Any, store: str | None) -> None:
    """H14."""
    bad = {"score": "high"}
    fan = StateGraph(schema).add_node("src").add_node("left", lambda state: bad).add_fanin_node("join")
    fan.add_parallel_edge("src", "left", "join").set_entry_point("src").set_finish_point("join")
    mapped = StateGraph(schema).add_node("src").add_node("each", lambda state: bad).add_fanin_node("join")
    mapped.add_map("src", "each", lambda state: [1], "join").set_entry_point("src").set_finish_point("join")
    inner = single(lambda state: bad, name="inner", schema={"topic": str, "score": Any})
    outer = single(inner, schema=schema, name="outer")
    inside = single(single(lambda state: bad, name="inner", schema=schema), name="outer")
    for graph in (fan, mapped, outer, inside):
        with pytest.raises(ExecutionError, match=r"InvalidValue: the update doesn't fit .*score"):
            graph.compile(store=store).execute({"topic": "kelp"})


def test_a_model_converts_what_enters() -> None:
    """H14: and a resumed run has the same."""
    for store in STORES:
        graph = chain(
            lambda state: {"score": "2.5", "log": "a", "counts": {"a": "1"}, "best": 7},
            lambda state: {"best": 3, "tags": ("x", "y")},
            schema=Model,
        ).compile(store=store)
        final = graph.execute({"topic": "kelp", "score": "1"})
        expected = Model(topic="kelp", score=2.5, tags=["x", "y"], log=["a"], counts={"a": 1}, best=7)
        assert final.model == expected
        assert type(final["tags"]) is list


class Range(BaseModel):
    model_config = ConfigDict(extra="forbid")

    low: int = 0
    high: int = 10
    seen: Annotated[list[int], append] = []

    @model_validator(mode="after")
    def check(self) -> Range:
        if self.low > self.high or len(self.seen) > 2:
            raise ValueError("low is above high, or too much was seen")
        return self


@dataclass
class Span:
    low: int = 0
    high: int = 10
    seen: Annotated[list[int], append] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.low > self.high or len(self.seen) > 2:
            raise ValueError("low is above high, or too much was seen")


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True)
    low: int = 0


@pytest.mark.parametrize("schema", [Range, Span])
@pytest.mark.parametrize("store", STORES)
def test_what_a_class_checks_as_a_whole_is_checked_after_each_update(schema: Any, store: str | None) -> None:
    """H14: two fields may change together although each alone would not fit."""
    good = single(lambda state: {"low": 20, "high": 30}, schema=schema).compile(store=store)
    assert good.execute({})["low"] == 20
    for update in ({"low": 20}, {"seen": [1, 2, 3]}):
        bad = single(lambda state, update=update: update, schema=schema).compile(store=store)
        with pytest.raises(ExecutionError, match="low is above high, or too much was seen"):
            bad.execute({})
    with pytest.raises(InvalidValue, match="low is above high"):
        good.execute({"low": 11})


def test_a_model_may_forbid_other_keys_or_be_frozen() -> None:
    """H14: frozen means that its instances don't change, not that the state doesn't."""
    with pytest.raises(ExecutionError, match="'hihg' isn't one of its fields; did you mean 'high'"):
        single(lambda state: {"hihg": 3}, schema=Range).execute({})

    def raised(state: Frozen) -> Frozen:
        return state.model_copy(update={"low": state.low + 1})

    assert single(raised, schema=Frozen).execute({"low": "4"}).model == Frozen(low=5)
    with pytest.raises(ExecutionError, match="'topic' can't be deleted"):
        single(lambda state: state.pop("topic") and None, schema=Model).execute({"topic": "kelp"})


@dataclass
class Square:
    side: int
    area: int = field(init=False)

    def __post_init__(self) -> None:
        self.area = self.side**2


@dataclass
class Counted:
    topic: str
    count: int = field(init=False, default=0)


@pydantic_dataclass
class Converted:
    number: int = 1


def test_a_field_that_isnt_an_argument_is_computed_or_kept() -> None:
    """H14: by `__post_init__`, if the class has one; else it is a value like any other."""

    def grow(square: Square) -> Square:
        assert square.area == square.side**2
        return replace(square, side=square.side + 1)

    def count(state: Counted) -> None:
        state.count += 1

    for store in STORES:
        squares = chain(grow, lambda state: {"side": state["area"] + 1}, grow, schema=Square)
        assert squares.compile(store=store).execute({"side": 1}) == {"side": 6, "area": 36}
        assert chain(count, count, schema=Counted, names=["a", "b"]).execute({"topic": "x"})["count"] == 2
        converted = single(lambda state: {"number": "5"}, schema=Converted).compile(store=store)
        assert converted.execute({"number": "4"}) == {"number": 5}
        with pytest.raises(InvalidValue, match="the input doesn't fit Converted: number"):
            converted.execute({"number": "x"})


class Renamed(BaseModel):
    topic: str = Field(alias="topicName")
    tags: list[str] = Field(default=[], validation_alias="labels")


def test_fields_with_aliases_keep_their_own_names_in_the_state() -> None:
    """H14: the state has the names of the fields."""

    def note(state: Renamed) -> dict[str, Any]:
        return {"tags": [state.topic]}

    final = single(note, schema=Renamed).compile(store="memory://").execute({"topic": "kelp"})
    assert final == {"topic": "kelp", "tags": ["kelp"]}
    assert (final.model.topic, final.model.tags) == ("kelp", ["kelp"])
    for given, where in (({"topicName": "kelp"}, "topic"), ({"topic": "kelp", "tags": [5]}, "tags.0")):
        with pytest.raises(InvalidValue, match=f"the input doesn't fit Renamed: {where}: ") as caught:
            single(note, schema=Renamed).execute(given)
        assert caught.value.field == where


@dataclass
class WithSecret:
    token: Annotated[str, secret]
    score: int = 0


class ModelWithSecret(BaseModel):
    token: Annotated[str, secret]
    score: int = 0


@pytest.mark.parametrize("schema", [WithSecret, ModelWithSecret])
def test_a_refusal_shows_no_secret(schema: Any) -> None:
    """H14, H8: nor any other value, as it may hold one."""
    with pytest.raises(InvalidValue) as caught:
        single(lambda state: None, schema=schema).execute({"token": ["hunter22"], "score": "hunter22"})
    assert "hunter22" not in str(caught.value)
    graph = single(lambda state: {"score": state["token"]}, schema=schema)
    with pytest.raises(ExecutionError) as failed:
        graph.execute({"token": "hunter22"})
    assert "hunter22" not in str(failed.value)


def test_a_journal_still_grows_by_what_is_new_when_it_is_checked() -> None:
    """H14, H4: a check of a list that grows doesn't store it whole."""
    for schema in (Data, Model):

        def note(state: State) -> dict[str, Any]:
            return {"log": ["x" * 1000], "score": state["score"] + 1}

        graph = StateGraph(schema).add_node("note", note).set_entry_point("note")
        graph.add_conditional_edges("note", lambda state: "note" if state["score"] < 60 else END)
        graph.compile(store="memory://", preserve=True).execute({"topic": "kelp"}, run_id="r")
        tail = graph.compiled().need_client("test").store.read("r", 1)
        assert sum(len(record) for record in tail.records) < 200_000


Name = NewType("Name", str)
T = TypeVar("T")


class Colour(Enum):
    RED = 1


class Entry(TypedDict, total=False):
    name: str
    size: int


class Reader(Protocol):
    def read(self) -> str: ...


@pytest.mark.parametrize(
    ("hint", "fits", "does_not"),
    [
        (int, [1, True], ["1", 1.0, None]),
        (float, [1.0, 1], ["1", None]),
        (None, [None], [0]),
        (int | None, [1, None], ["a"]),
        (Literal["a", 1], ["a", 1], ["b", True, 1.0]),
        (list[int], [[], [1]], [["a"], (1,), None]),
        (list, [[], ["a"]], [()]),
        (set[str], [set(), {"a"}], [{1}, ["a"]]),
        (tuple[int, str], [(1, "a")], [(1,), ("a", 1), [1, "a"], (1, "a", 2)]),
        (tuple[int, ...], [(), (1, 2)], [("a",)]),
        (dict[str, list[int]], [{}, {"a": [1]}], [{"a": ["b"]}, {1: [1]}, []]),
        (Mapping[str, int], [{"a": 1}], [{"a": "b"}, []]),
        (Sequence[int], [[1], (1,)], [["a"], 5]),
        (Colour, [Colour.RED], [1]),
        (Data, [Data("a")], [{"topic": "a"}]),
        (Entry, [{}, {"name": "a"}], [{"name": 1}, []]),
        (Name, ["a"], [1]),
        (Annotated[int, "a note of it"], [1], ["a"]),
        (Any, [1, None], []),
        (T, [1, None], []),
        (Reader, [1], []),
        (Callable[[int], int], [len], [1]),
        ("Unknown", [1], []),
        (type[int], [int], [1]),
    ],
)
def test_a_value_is_of_a_type_or_isnt(hint: Any, fits: list[Any], does_not: list[Any]) -> None:
    """H14: what can't be known of a value alone fits."""
    for value in fits:
        assert why_unfit(value, hint, "it") == ""
    for value in does_not:
        assert why_unfit(value, hint, "it") != ""


class Inner(BaseModel):
    colour: Colour


@dataclass
class Outer:
    inner: list[Inner] = field(default_factory=list)
    colours: dict[str, Colour] = field(default_factory=dict)


def test_an_enum_and_a_nested_class_are_stored_without_being_registered() -> None:
    """H14: the schema names them, here inside of another class."""

    def add(state: Outer) -> Outer:
        return replace(state, inner=[*state.inner, Inner(colour=Colour.RED)], colours={"a": Colour.RED})

    graph = single(add, schema=Outer).compile(store="memory://", preserve=True)
    graph.execute({}, run_id="r")
    assert graph.state_at("r").model == Outer([Inner(colour=Colour.RED)], {"a": Colour.RED})
