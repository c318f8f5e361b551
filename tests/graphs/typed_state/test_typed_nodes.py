"""Nodes that take the state as an instance of the class that describes it, and what they change."""

from __future__ import annotations

import asyncio
import copy
import operator
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Any, Generic, TypedDict, TypeVar

import pytest
from pydantic import BaseModel

from limpet import (
    END,
    DefinitionError,
    ExecutionError,
    Goto,
    InvalidValue,
    NodeContext,
    State,
    StateGraph,
    UsageError,
    append,
    merge,
)
from support.graphs import Crash, chain, crash_once, single


@dataclass
class Author:
    name: str


@dataclass
class Review:
    topic: str
    score: int = 0
    tags: list[str] = field(default_factory=list)
    author: Author | None = None
    log: Annotated[list[str], append] = field(default_factory=list)
    counts: Annotated[dict[str, int], merge] = field(default_factory=dict)


T = TypeVar("T")


@dataclass
class Box(Generic[T]):
    content: T


@dataclass
class Line:
    text: str

    def __post_init__(self) -> None:
        self.size = len(self.text)

    @cached_property
    def length(self) -> int:
        return self.size


class Order(BaseModel):
    item: str
    count: int = 1
    tags: list[str] = []
    author: Author | None = None
    log: Annotated[list[str], operator.add] = []
    counts: Annotated[dict[str, int], merge] = {}


@dataclass(frozen=True, slots=True)
class Scored:
    """A part of a review: a node that takes it reads no more than this."""

    topic: str
    score: int = 0


class Unfit(BaseModel):
    topc: str


EACH_WAY = [
    lambda graph, given: graph.execute(given),
    lambda graph, given: asyncio.run(graph.aexecute(given)),
]
STORES = [None, "memory://"]


def final_of(schema: Any, given: Any, *nodes: Callable[..., Any]) -> State[Any]:
    """The final state: the same without a store, with one, and after a crash behind each node."""
    straight = chain(*nodes, schema=schema).execute(given)
    stored = chain(*nodes, schema=schema).compile(store="memory://")
    assert stored.execute(given) == straight
    assert asyncio.run(chain(*nodes, schema=schema).aexecute(given)) == straight
    for place in range(1, len(nodes) + 1):
        crashing = crash_once(lambda state: None)
        graph = chain(*nodes[:place], crashing, *nodes[place:], schema=schema).compile(store="memory://")
        with pytest.raises(Crash):
            graph.execute(given, run_id="r")
        assert graph.resume("r") == straight
    return straight


@pytest.mark.parametrize("schema", [Review, Order])
def test_a_node_gets_an_instance_and_returns_one(schema: Any) -> None:
    """H14: the fields that differ from what it got are its update."""
    first = "topic" if schema is Review else "item"

    def grade(state: Any) -> Any:
        assert type(state) is schema
        if schema is Review:
            return replace(state, score=3, author=Author("Ann"))
        return state.model_copy(update={"count": 3, "author": Author("Ann")})

    async def look(state: Any) -> None:
        assert type(state) is schema
        assert (getattr(state, first), state.author) == ("kelp", Author("Ann"))

    grade.__annotations__["state"] = look.__annotations__["state"] = schema
    final = final_of(schema, {first: "kelp"}, grade, look)
    assert final["author"] == Author("Ann")
    assert type(final.model) is schema
    assert final.model == schema(**final)


def test_a_returned_instance_changes_no_more_than_what_differs() -> None:
    """H14: two branches that return instances don't overwrite each other."""

    def left(review: Review) -> Review:
        return replace(review, score=5, tags=list(review.tags))

    def right(review: Review) -> Review:
        review.tags.append("read")
        return review

    def join(review: Review, parallel_results: list[Any]) -> dict[str, Any]:
        changed = [sorted(result.changes) for result in parallel_results]
        assert changed == [["score"], ["tags"]]
        return {"score": parallel_results[0]["score"], "tags": parallel_results[1]["tags"]}

    for store in STORES:
        graph = StateGraph(Review).add_node("src").add_node(left).add_node(right).add_fanin_node(join)
        graph.set_entry_point("src").set_finish_point("join")
        graph.add_parallel_edge("src", "left", "join").add_parallel_edge("src", "right", "join")
        final = graph.compile(store=store).execute({"topic": "kelp", "tags": ["new"]})
        assert final.model == Review("kelp", 5, ["new", "read"])


@pytest.mark.parametrize("schema", [Review, Order])
def test_what_a_node_assigns_and_alters_in_place_counts(schema: Any) -> None:
    """H14: as it does in the plain state, whatever the node returns."""
    first = "topic" if schema is Review else "item"

    def assign(state: Any) -> None:
        setattr(state, first, "algae")
        state.tags.append("a")

    async def both(state: Any) -> dict[str, Any]:
        setattr(state, first, getattr(state, first) + "!")
        return {"tags": [*state.tags, "b"]}

    def newer(state: Any) -> Any:
        state.author = Author("Ann")
        state.tags.append("c")
        return state

    for node in (assign, both, newer):
        node.__annotations__["state"] = schema
    final = final_of(schema, {first: "kelp"}, assign, both, newer)
    assert (final[first], final["tags"], final["author"]) == ("algae!", ["a", "b", "c"], Author("Ann"))


@pytest.mark.parametrize("schema", [Review, Order])
def test_of_a_key_with_a_reducer_an_instance_has_the_whole_value_and_a_dict_what_is_new(schema: Any) -> None:
    """H14: so an instance that is returned doesn't add to itself."""
    first = "topic" if schema is Review else "item"

    def in_place(state: Any) -> Any:
        state.log.append("a")
        state.counts["a"] = 1
        return state

    def new_list(state: Any) -> Any:
        state.log = [*state.log, "b"]
        return state

    def update(state: Any) -> dict[str, Any]:
        return {"log": ["c"], "counts": {"c": 3}}

    def unchanged(state: Any) -> Any:
        return state

    def dropped(state: Any) -> Any:
        state.log = state.log[1:]
        return state

    nodes = (in_place, new_list, update, unchanged, dropped)
    for node in nodes:
        node.__annotations__["state"] = schema
    final = final_of(schema, {first: "kelp"}, *nodes)
    assert (final["log"], final["counts"]) == (["b", "c"], {"a": 1, "c": 3})


def test_a_key_with_a_reducer_cant_be_assigned_without_returning_the_instance() -> None:
    """H14, F2: as in the plain state."""

    def assign(review: Review) -> None:
        review.log = ["x"]

    with pytest.raises(ExecutionError, match="'log' has a reducer") as caught:
        single(assign, schema=Review).execute({"topic": "kelp"})
    assert isinstance(caught.value.cause, UsageError)


def test_a_growing_list_of_a_returned_instance_is_stored_by_what_is_new(tmp_path: Any) -> None:
    """H14, H4: the journal grows with the items, not with the lists."""
    sizes = []
    for count in (50, 200):

        def note(review: Review) -> Review:
            review.log.append(f"{review.score:04}" * 100)
            return replace(review, score=review.score + 1)

        def choose(review: Review, limit: int = count) -> str:
            return "note" if review.score < limit else END

        graph = StateGraph(Review, name="g").add_node("note", note).set_entry_point("note")
        graph.add_conditional_edges("note", choose)
        path = tmp_path / f"{count}.db"
        graph.compile(store=f"sqlite:///{path}?level=process", preserve=True).execute({"topic": "kelp"})
        sizes.append(sum(each.stat().st_size for each in tmp_path.glob(f"{count}.db*")))
    assert sizes[1] < 6 * sizes[0]


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("run", EACH_WAY)
def test_predicates_choices_items_and_passing_functions_get_instances_too(run: Any, store: Any) -> None:
    """H14: each is annotated with the class of the state that it gets."""

    def is_new(review: Review) -> bool:
        return review.score == 0

    def items(review: Review) -> list[str]:
        return [review.topic, *review.tags]

    def pick(review: Review) -> str:
        return "inner" if review.score else "again"

    def passed(review: Review) -> dict[str, Any]:
        return {"item": review.topic, "count": review.score}

    def result(order: Order) -> dict[str, Any]:
        return {"tags": [f"{order.item} {order.count}"]}

    inner = single(lambda state: {"count": state["count"] + 1}, schema=Order, name="order")
    graph = StateGraph(Review).add_node("a").add_node("each", lambda state: {"score": 1})
    graph.add_fanin_node("join", lambda parallel_results: {"score": len(parallel_results)})
    graph.add_node("again").add_node("inner", inner, inputs=passed, outputs=result)
    graph.set_entry_point("a").add_edge("a", "again", is_new)
    graph.add_map("again", "each", items, "join").add_conditional_edges("join", pick, ["inner", "again"])
    graph.set_finish_point("inner")
    final = run(graph.compile(store=store), Review("kelp", tags=["x"]))
    assert (final["score"], final["tags"]) == (2, ["kelp 3"])


def test_a_node_may_take_a_class_with_some_of_the_fields() -> None:
    """H14: it reads these alone, and changes no others."""

    def grade(scored: Scored, ctx: NodeContext) -> Scored:
        assert ctx.node == "grade"
        assert ctx.state.access_log.touched == set()  # nothing that could change in place was read
        return replace(scored, score=4)

    graph = single(grade, node="grade", schema=Review).compile(store="memory://")
    assert graph.execute({"topic": "kelp", "tags": ["x"]}).model == Review("kelp", 4, ["x"])


@pytest.mark.parametrize(
    ("node", "why"),
    [
        (lambda state: None, "'topc' the state doesn't have; did you mean 'topic'"),
        (lambda state, ctx: None, "node 'only' takes a Unfit"),
    ],
)
def test_a_class_with_other_fields_is_a_mistake(node: Any, why: str) -> None:
    """H14: it is found when the graph is compiled."""
    node.__annotations__["state"] = Unfit
    with pytest.raises(DefinitionError, match=why):
        single(node, schema=Review).compile()


def test_a_state_that_lacks_a_field_is_refused_with_its_name() -> None:
    """H14: an instance can't be made of it."""

    def grade(review: Review) -> None:
        pytest.fail("ran")

    with pytest.raises(
        ExecutionError, match="the state has no 'topic', which Review needs; give it in"
    ) as caught:
        single(grade, node="grade", schema=Review).execute({})
    assert caught.value.node == "grade"
    with pytest.raises(UsageError, match="the state has no 'topic', which Review needs"):
        _ = single(lambda state: None, schema=Review).execute({}).model


def test_a_class_that_is_defined_inside_of_a_function_is_known() -> None:
    """H14: annotations are texts under postponed evaluation, and such a class has no global name."""

    @dataclass
    class Local:
        number: int = 1

    class Later:
        def __call__(self, state: Local) -> Local:
            return replace(state, number=state.number + 1)

    def double(state: Local) -> dict[str, Any]:
        return {"number": state.number * 2}

    assert chain(double, Later(), names=["a", "b"], schema=Local).execute({"number": 5}).model == Local(11)


def test_a_generic_dataclass_is_known_with_the_types_that_it_is_of() -> None:
    """H14: the node gets an instance of the class itself."""

    def double(box: Box[int]) -> Box[int]:
        assert type(box) is Box
        return Box(box.content * 2)

    assert single(double, schema=Box).execute({"content": 2}) == {"content": 4}
    graph = single(double, schema=Box[int])
    assert graph.execute({"content": 2}).model == Box(4)
    with pytest.raises(InvalidValue, match="content is 'two', not of type int"):
        graph.execute({"content": "two"})


class Logged(TypedDict, Generic[T]):
    first: T
    log: Annotated[list[T], append]
    options: dict[str, T] | None


def test_a_generic_typed_dict_is_a_schema_with_the_types_that_it_is_of() -> None:
    """H14: with its reducers; what isn't a schema stays refused."""
    graph = single(lambda state: {"log": 2}, schema=Logged[int])
    assert graph.execute({"log": [1]}) == {"log": [1, 2]}
    assert graph.schema.keys["log"] == Annotated[list[int], append]
    assert graph.schema.keys["first"] is int
    assert graph.schema.keys["options"] == dict[str, int] | None
    with pytest.raises(DefinitionError, match="a schema must be a dict of types"):
        StateGraph(list[int])


def test_a_model_that_allows_other_keys_has_them() -> None:
    """H14: what a node gets, assigns and returns under a key that isn't a field; also in the final model."""

    class Loose(BaseModel):
        model_config = {"extra": "allow"}
        count: int = 0

    def assign(state: Loose) -> None:
        assert state.model_extra == {"more": [1]}
        state.more.append(2)  # type: ignore[attr-defined]
        state.other = 5  # type: ignore[attr-defined]

    def put_back(state: Loose) -> Loose:
        return Loose(count=1, other=[state.other])  # type: ignore[attr-defined, call-arg]

    for store in (None, "memory://"):
        graph = chain(assign, put_back, schema=Loose).compile(store=store)
        final = graph.execute({"more": [1]})
        assert final == {"count": 1, "more": [1, 2], "other": [5]}
        assert final.model == Loose(count=1, more=[1, 2], other=[5])  # type: ignore[call-arg]


def test_an_attribute_that_isnt_a_field_is_refused_as_it_would_be_lost() -> None:
    """H14: with the field that is meant. What the class itself keeps in an instance is its own affair."""

    def misspell(review: Review) -> None:
        review.scor = 3  # type: ignore[attr-defined]

    async def misspell_later(review: Review) -> Goto[Any]:
        misspell(review)
        return Goto(END)

    for node in (misspell, misspell_later):
        with pytest.raises(
            ExecutionError, match="'scor' was set, which isn't a field of Review; did you mean 'score'"
        ):
            single(node, schema=Review).execute({"topic": "kelp"})

    def measure(line: Line) -> dict[str, Any]:
        line._note = "scratch"  # type: ignore[attr-defined]
        return {"text": line.text[: line.length]}

    assert single(measure, schema=Line).execute({"text": "ab"}) == {"text": "ab"}


def test_a_typed_dict_and_a_state_are_the_plain_state() -> None:
    """H14."""

    def look(state: State[Review]) -> None:
        assert isinstance(state, State)
        assert state.model == Review("kelp")

    single(look, schema=Review).execute({"topic": "kelp"})
    assert type(single(lambda state: None, schema={"topic": str}).execute({"topic": "a"}).model) is dict


def test_a_node_without_an_annotation_may_return_an_instance() -> None:
    """H14: of the class that describes the state, whose values are whole, or of another, whose values are updates."""
    final = final_of(
        Review,
        {"topic": "kelp", "log": ["a"]},
        lambda state: Review("algae", log=["b"]),
        lambda state: Scored("algae", 7),
        lambda state: Order.model_construct(_fields_set={"log"}, item="-", log=["c"]),
    )
    assert (final["topic"], final["score"], final["log"]) == ("algae", 7, ["b", "c"])


def raise_score(review: Review) -> Review:
    review.tags.append("seen")
    review.log.append("raised")
    return replace(review, score=review.score + 1)


def merge_results(parallel_results: list[Any]) -> dict[str, Any]:
    (result,) = parallel_results
    return {key: result[key] for key in ("score", "tags", "log")}


def test_a_typed_node_runs_in_a_process_of_a_pool() -> None:
    """H14: the instance is made there."""
    graph = StateGraph(Review).add_node("src").add_node("raise", raise_score)
    graph.add_fanin_node("join", merge_results).set_entry_point("src").set_finish_point("join")
    graph.add_parallel_edge("src", "raise", "join")
    with ProcessPoolExecutor(1) as executor:
        final = graph.compile(executor=executor, store="memory://").execute({"topic": "kelp", "tags": ["a"]})
    assert (final["score"], final["tags"], final["log"]) == (1, ["a", "seen"], ["raised"])


def test_a_state_keeps_its_class_wherever_it_comes_from() -> None:
    """H14: `model` works for the states of runs, handles, checkpoints and events."""
    graph = single(raise_score, schema=Review, name="g").compile(store="memory://", preserve=True)
    run = graph.invoke({"topic": "kelp"}, run_id="r")
    assert [event["state"].model.score for event in run if event["type"] == "final"] == [1]
    expected = Review("kelp", 1, ["seen"], log=["raised"])
    assert run.state.model == graph.get("r").state.model == graph.state_at("r").model == expected
    assert graph.state_at("r").set("score", 2).model.score == 2
    assert [event["state"].model.score for event in graph.stream({"topic": "kelp"})] == [1, 1]


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_a_copy_of_a_state_still_knows_its_class(copied: Any) -> None:
    """H14: `model` of a copy is an instance, with values of its own if it is a deep one."""

    @dataclass
    class Note:
        topics: list[str]

    state = single(lambda state: {}, schema=Note).execute({"topics": ["kelp"]})
    found = copied(state)
    assert (type(found), found.model, found.run_id) == (State, Note(["kelp"]), state.run_id)
    assert (found["topics"] is state["topics"]) == (copied is copy.copy)
