"""Defining a graph: its shapes, its mistakes, what its functions are handed, and how it is compiled."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from limpet import (
    END,
    START,
    CheckpointConfig,
    DefinitionError,
    Event,
    ExecutionError,
    GraphConfig,
    MemoryCheckpointer,
    MemoryStore,
    NodeContext,
    State,
    StateGraph,
    UnknownName,
    UsageError,
    always,
    key_equals,
    key_exists,
    open_store,
    register_observer,
    register_store,
)
from limpet.observe import observer_registry as observers
from limpet.stores import opening as stores
from support.graphs import chain, single, stored_chain


@pytest.fixture(autouse=True)
def fresh_registries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observers, "_registered", dict(observers._registered))
    monkeypatch.setattr(stores, "_names", dict(stores._names))


def note(state: State, node: str) -> dict[str, Any]:
    """A node that says it ran."""
    return {"path": [*state.get("path", []), node]}


def one(run: Callable[..., Any], **policy: Any) -> StateGraph:
    """A graph of one node."""
    return single(run, name="graph", **policy)


def line(*names: str) -> StateGraph:
    """A graph of nodes that come one after the other."""
    return chain(*[note] * len(names), names=names, name="graph")


def mistakes_of(graph: StateGraph) -> list[str]:
    with pytest.raises(DefinitionError) as caught:
        graph.validate()
    return caught.value.mistakes


# Shapes


def test_a_chain_runs_in_the_order_of_its_edges() -> None:
    """F1: `add_node`, `add_edge`, `set_entry_point`, `set_finish_point`."""
    graph = StateGraph({"path": list})
    graph.add_node("b", run=note)
    graph.add_node("a", run=note)
    graph.set_finish_point("b")
    graph.add_edge("a", "b")
    graph.set_entry_point("a")
    assert graph.execute({})["path"] == ["a", "b"]


def test_start_and_end_say_the_same_as_entry_and_finish_point() -> None:
    """F1: `START` and `END` may stand in edges."""
    graph = StateGraph()
    graph.add_edge(START, "a").add_node("a", run=note).add_node("b", run=note)
    graph.add_edge("a", "b").add_edge("b", END)
    assert graph.execute({})["path"] == ["a", "b"]


def test_an_edge_to_the_end_may_have_a_predicate() -> None:
    """F1, G3: a run ends there when it holds, and continues when it doesn't."""
    graph = StateGraph().add_node("a", run=note).add_node("b", run=note)
    graph.set_entry_point("a").set_finish_point("b")
    graph.add_edge("a", END, key_exists("enough")).add_edge("a", "b")
    assert graph.execute({"enough": 1})["path"] == ["a"]
    assert graph.execute({})["path"] == ["a", "b"]


def test_exit_point_is_another_word_for_finish_point_and_there_may_be_several() -> None:
    """G2: one or more finish points."""
    graph = StateGraph()
    for name in "abc":
        graph.add_node(name, run=note)
    graph.set_entry_point("a").set_exit_point("b").set_finish_point("c")
    graph.add_edge("a", "b", key_equals("left", True)).add_edge("a", "c")
    assert graph.execute({"left": True}).checkpoint_node == "b"
    assert graph.execute({"left": False}).checkpoint_node == "c"


def test_an_exit_point_with_edges_ends_the_run_only_when_none_of_them_is_taken() -> None:
    """G2: a loop may leave by its own finish point."""

    def count(state: State) -> dict[str, Any]:
        return {"n": state.get("n", 0) + 1}

    graph = one(count).add_edge("only", "only", lambda state: state["n"] < 4)
    assert graph.execute({})["n"] == 4


@pytest.mark.parametrize(("value", "target"), [(1, "odd"), (2, "even"), (3, "odd")])
def test_a_choice_is_looked_up_in_its_outcomes(value: int, target: str) -> None:
    """F1: `add_conditional_edges(node, fn, {result: target})`; a result may be any hashable value."""
    graph = StateGraph({"value": int})
    for name in ("look", "odd", "even"):
        graph.add_node(name, run=note)
    graph.set_entry_point("look").set_finish_point("odd").set_finish_point("even")
    graph.add_conditional_edges("look", lambda state: state["value"] % 2 == 0, {True: "even", False: "odd"})
    assert graph.execute({"value": value})["path"] == ["look", target]


@pytest.mark.parametrize("outcomes", [["b", END], None], ids=["listed", "open"])
def test_a_choice_may_name_the_node_itself(outcomes: Any) -> None:
    """F1: with a list of names, or without outcomes, the result is the next node; END ends the run."""
    graph = (
        StateGraph()
        .add_node("a", run=note)
        .add_node("b", run=note)
        .set_entry_point("a")
        .set_finish_point("b")
    )
    graph.add_conditional_edges("a", lambda state: state["next"], outcomes)
    assert graph.execute({"next": "b"})["path"] == ["a", "b"]
    assert graph.execute({"next": END})["path"] == ["a"]


@pytest.mark.parametrize(
    ("outcomes", "message"),
    [({"yes": "b"}, r"was 'maybe', not one of 'yes'"), (None, r"was 'maybe', which isn't a node")],
)
def test_a_choice_that_leads_nowhere_fails_the_run_and_can_be_fixed(outcomes: Any, message: str) -> None:
    """F1: the error names the choice; the node before it isn't run again when the run is resumed."""
    graph = (
        StateGraph()
        .add_node("a", run=note)
        .add_node("b", run=note)
        .set_entry_point("a")
        .set_finish_point("b")
    )
    graph.add_conditional_edges("a", lambda state: state["next"], outcomes)
    graph.compile(store="memory://")
    with pytest.raises(ExecutionError, match=message) as caught:
        graph.execute({"next": "maybe"}, run_id="r")
    assert (caught.value.node, caught.value.path) == ("a", ["a"])
    with pytest.raises(ExecutionError, match=message) as caught:
        graph.resume("r")
    assert (caught.value.node, caught.value.path) == ("a", ["a"])
    assert graph.resume("r", {"next": "yes" if outcomes else "b"})["path"] == ["a", "b"]


def test_a_node_without_a_function_just_passes_on() -> None:
    """F1: a place to branch from."""
    graph = (
        StateGraph().add_node("gate").add_node("b", run=note).set_entry_point("gate").set_finish_point("b")
    )
    graph.add_edge("gate", "b")
    assert graph.execute({"x": 1}) == {"x": 1, "path": ["b"]}


def test_a_function_given_alone_names_its_node() -> None:
    """F1: `add_node(fn)`."""
    graph = StateGraph().add_node(note).set_entry_point("note").set_finish_point("note")
    assert graph.execute({})["path"] == ["note"]


def test_what_defines_a_graph_can_be_chained_and_compile_returns_the_graph() -> None:
    """F1: each call returns the graph."""
    graph = StateGraph()
    assert graph.add_node("a") is graph
    assert graph.add_node("b") is graph
    assert graph.add_edge("a", "b", key_exists("x")) is graph
    assert graph.add_conditional_edges("a", lambda state: "b", ["b"]) is graph
    assert graph.set_entry_point("a") is graph
    assert graph.set_finish_point("b") is graph
    assert graph.compile() is graph


def test_a_graph_runs_without_being_compiled() -> None:
    """F1: compiling is for settings; what is added after a run counts for the next."""
    graph = line("a", "b")
    assert graph.execute({"more": 1})["path"] == ["a", "b"]
    graph.add_node("c", run=note).add_edge("b", "c", key_exists("more")).set_finish_point("c")
    assert graph.execute({"more": 1})["path"] == ["a", "b", "c"]


def test_what_is_added_after_compile_is_taken_in_and_the_settings_stay() -> None:
    """F1: the next run knows the new node, and still stops at its interrupts."""
    graph = line("a", "b").compile(store=MemoryStore(), interrupt_before=["b"])
    assert [event["type"] for event in graph.invoke({})] == ["interrupt"]
    graph.add_node("c", run=note).add_edge("b", "c", key_exists("more")).set_finish_point("c")
    run = graph.invoke({"more": 1})
    assert [event["type"] for event in run] == ["interrupt"]
    assert graph.resume(run.id)["path"] == ["a", "b", "c"]


# Mistakes


def test_every_mistake_is_listed_at_once() -> None:
    """G2: unknown nodes, edges from nowhere, no exit, several entries, dead ends, what can't be reached."""
    graph = StateGraph(name="broken")
    graph.add_node("draft").add_node("review").add_node("island").add_node("harbour")
    graph.add_edge("draft", "revew").add_edge("ghost", "review")
    graph.add_edge("harbour", "island", key_exists("x"))
    graph.add_conditional_edges("draft", lambda state: "x", {"x": "missing"})
    graph.set_entry_point("draft").set_entry_point("start")
    with pytest.raises(DefinitionError) as caught:
        graph.validate()
    assert caught.value.graph == "broken"
    assert sorted(caught.value.mistakes) == sorted(
        [
            "the entry point: there is no node 'start'",
            "an edge from 'draft': there is no node 'revew'; did you mean 'review'?",
            "an edge from nowhere: there is no node 'ghost'",
            "an edge from 'draft': there is no node 'missing'",
            "several entry points ('draft', 'start'); a graph has one",
            "no finish point: say where the run may end with set_finish_point(name)",
            "node 'review' leads nowhere: add an edge from it, declare its goto=[…], or set_finish_point('review')",
            "node 'island' leads nowhere: add an edge from it, declare its goto=[…], or set_finish_point('island')",
            "node 'review' can't be reached from the entry point",
            "node 'island' can't be reached from the entry point",
            "node 'harbour' can't be reached from the entry point",
        ]
    )
    assert str(caught.value).startswith("graph 'broken': 11 mistakes:\n  - ")
    assert all(mistake in str(caught.value) for mistake in caught.value.mistakes)


@pytest.mark.parametrize(
    ("graph", "mistake"),
    [
        (StateGraph().add_node("a").set_finish_point("a"), "no entry point"),
        (StateGraph().add_node("a").add_edge("a", "a").set_entry_point("a"), "no finish point"),
        (line("a", "b").add_node("c").set_finish_point("c"), "node 'c' can't be reached from the entry point"),
        (line("a", "b").add_edge("x", "b"), "an edge from nowhere: there is no node 'x'"),
        (line("a", "b").add_edge("a", "bb"), "an edge from 'a': there is no node 'bb'; did you mean 'b'?"),
        (line("a", "b").set_finish_point("q"), "a finish point: there is no node 'q'"),
        (line("a", "b").set_entry_point("b"), "several entry points ('a', 'b'); a graph has one"),
        (line("a", "b").add_edge("b", "a"), "node 'b' is a finish point, but it has an edge that is always taken"),
    ],
    ids=["no entry", "no exit", "unreachable", "from nowhere", "unknown target", "unknown exit", "two entries",
         "exit never taken"],
)  # fmt: skip
def test_each_kind_of_mistake_is_explained(graph: StateGraph, mistake: str) -> None:
    """G2: unknown node, no entry, no exit, unreachable node, edge from nowhere."""
    (found,) = mistakes_of(graph)
    assert found.startswith(mistake)


@pytest.mark.parametrize(
    ("source", "target"), [(["a", "b"], "c"), ("a", ["b", "c"]), (["a", "b"], END), ("a", None)]
)
def test_an_edge_leads_from_one_node_to_one(source: Any, target: Any) -> None:
    """G2: several at once, as elsewhere, is a mistake that is explained."""
    with pytest.raises(DefinitionError, match="must lead from one node to another: add an edge for each"):
        StateGraph().add_edge(source, target)
    with pytest.raises(DefinitionError, match="must lead from one node to another: add an edge for each"):
        StateGraph().add_parallel_edge(source, target, "end")


@pytest.mark.parametrize("call", ["compile", "execute", "invoke"])
def test_a_wrong_graph_does_not_run(call: str) -> None:
    """G2: whatever uses the graph checks it first."""
    graph = StateGraph().add_node("a")
    with pytest.raises(DefinitionError, match="no entry point"):
        getattr(graph, call)()


def test_a_right_graph_validates() -> None:
    """G2: no mistake, no error."""
    assert line("a", "b", "c").validate() is None
    assert StateGraph().add_node("a").set_entry_point("a").set_finish_point("a").validate() is None


@pytest.mark.parametrize("name", ["", START, END, 3, None, "new\nline"])
def test_what_can_not_name_a_node_is_refused(name: Any) -> None:
    """G2: nodes are named."""
    with pytest.raises(DefinitionError, match="a node's name must be"):
        StateGraph().add_node(name)


def test_the_name_of_the_step_between_layers_is_reserved() -> None:
    """G2: a node of that name would be taken for a workflow's own: its steps would make no events."""
    with pytest.raises(
        DefinitionError, match="a node can't be named 'after_layer': that is the name of the step"
    ):
        StateGraph().add_node("after_layer")


def test_a_name_that_is_taken_is_refused() -> None:
    """G2: a second node of the same name would hide the first."""
    with pytest.raises(DefinitionError, match="a node named 'a' already exists"):
        StateGraph().add_node("a").add_node("a")


@pytest.mark.parametrize(
    "settings",
    [{"name": ""}, {"name": 3}, {"max_iterations": 0}, {"max_iterations": True}, {"max_iterations": 2.5}],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any]) -> None:
    """G2: a graph has a name and a budget of iterations."""
    with pytest.raises(DefinitionError):
        StateGraph(**settings)


@pytest.mark.parametrize("timeout", [0, -1, float("nan")])
def test_a_timeout_is_above_zero(timeout: float) -> None:
    """H8: or there is none."""
    with pytest.raises(DefinitionError, match="timeout must be a number of seconds above 0"):
        StateGraph().add_node("a", timeout=timeout)


def test_a_graph_has_a_name_and_a_budget_of_a_thousand_iterations() -> None:
    """G2: the defaults, and that both can be said."""
    assert (StateGraph().name, StateGraph().max_iterations) == ("graph", 1000)
    graph = StateGraph(name="essay", max_iterations=7)
    assert (graph.name, graph.max_iterations) == ("essay", 7)


# Edges


def test_edges_are_tried_in_the_order_they_were_added_up_to_the_first_that_holds() -> None:
    """G3: the first whose predicate holds is taken; those after it aren't asked."""
    asked: list[str] = []

    def says(name: str, result: Any) -> Callable[[Mapping[str, Any]], Any]:
        return lambda state: asked.append(name) or result

    graph = StateGraph()
    for name in "abcd":
        graph.add_node(name, run=note)
    graph.set_entry_point("a")
    graph.add_edge("a", "b", says("b", False)).add_edge("a", "c", says("c", "truthy")).add_edge(
        "a", "d", says("d", 1)
    )
    for name in "bcd":
        graph.set_finish_point(name)
    assert graph.execute({})["path"] == ["a", "c"]
    assert asked == ["b", "c"]


@pytest.mark.parametrize("observed", [False, True])
def test_an_edge_without_a_predicate_holds_in_its_place(observed: bool) -> None:
    """G3: it is taken if none before it was, and none after it is, watched or not."""
    seen: list[Event] = []
    graph = StateGraph(observers=[seen.append] if observed else [])
    for name in "abcd":
        graph.add_node(name, run=note)
    graph.set_entry_point("a")
    graph.add_edge("a", "b", key_exists("b")).add_edge("a", "c").add_edge("a", "d", key_exists("d"))
    for name in "bcd":
        graph.set_finish_point(name)
    assert graph.execute({"d": 1})["path"] == ["a", "c"]
    assert graph.execute({"d": 1, "b": 1})["path"] == ["a", "b"]


def test_edges_and_choices_are_tried_in_one_order() -> None:
    """G3: a choice that comes after an edge is made only if the edge isn't taken."""
    graph = StateGraph()
    for name in "abc":
        graph.add_node(name, run=note)
    graph.set_entry_point("a").set_finish_point("b").set_finish_point("c")
    graph.add_edge("a", "b", key_exists("b")).add_conditional_edges("a", lambda state: "c", ["c"])
    assert graph.execute({"b": 1})["path"] == ["a", "b"]
    assert graph.execute({})["path"] == ["a", "c"]


def test_a_node_none_of_whose_edges_holds_fails_the_run_unless_it_is_an_exit() -> None:
    """G3: the error names the node, and says that no edge holds."""
    graph = StateGraph().add_node("a", run=note).add_node("b").set_entry_point("a").set_finish_point("b")
    graph.add_edge("a", "b", key_exists("x"))
    with pytest.raises(ExecutionError, match="no edge condition of node 'a' is true in this state") as caught:
        graph.execute({})
    assert (caught.value.node, caught.value.state) == ("a", {"path": ["a"]})


def test_a_predicate_that_raises_fails_the_run_after_its_node() -> None:
    """G3: the node is done; the cause is what the predicate raised."""
    graph = StateGraph().add_node("a", run=note).add_node("b").set_entry_point("a").set_finish_point("b")
    graph.add_edge("a", "b", lambda state: state["missing"] > 1)
    with pytest.raises(
        ExecutionError, match="next node failed: UnknownKey: the state has no 'missing'"
    ) as caught:
        graph.execute({})
    assert isinstance(caught.value.cause, KeyError)
    assert caught.value.path == ["a"]


@pytest.mark.parametrize("place", ["predicate", "choice"])
@pytest.mark.parametrize("store", [None, "memory://"])
def test_a_predicate_or_a_choice_can_not_change_the_state(place: str, store: str | None) -> None:
    """G3: it would be a change that isn't saved; the error says where it is allowed."""

    def meddle(state: State) -> str:
        state["x"] = 1
        return "b"

    graph = StateGraph().add_node("a", run=note).add_node("b").set_entry_point("a").set_finish_point("b")
    if place == "predicate":
        graph.add_edge("a", "b", meddle)
    else:
        graph.add_conditional_edges("a", meddle, ["b"])
    with pytest.raises(ExecutionError, match="can't change the state; a node changes it") as caught:
        graph.compile(store=store).execute({})
    assert caught.value.state == {"path": ["a"]}


# What functions are handed


def test_a_node_takes_what_it_names() -> None:
    """F2: `state`, `config`, `node`, `graph`, `parallel_results` and `ctx`, in any order."""
    seen: dict[str, Any] = {}

    def everything(
        ctx: NodeContext, parallel_results: Any, graph: StateGraph, node: str, config: dict, state: State
    ) -> None:
        seen.update(locals())

    graph = one(everything)
    graph.execute({"a": 1}, {"depth": 2}, run_id="r")
    assert seen["state"] == {"a": 1}
    assert seen["config"] == {"depth": 2}
    assert seen["node"] == "only"
    assert seen["graph"] is graph
    assert seen["parallel_results"] == []
    assert isinstance(seen["ctx"], NodeContext)
    assert seen["ctx"].run_id == "r"


class _Counter:
    def method(self, state: State) -> dict[str, Any]:
        return {"seen": state["a"]}

    def __call__(self, state: State, config: dict[str, Any]) -> dict[str, Any]:
        return {"seen": state["a"] + config["b"]}

    @classmethod
    def of_class(cls, state: State) -> dict[str, Any]:
        return {"seen": state["a"]}


def _keyword_only(*, state: State) -> dict[str, Any]:
    return {"seen": state["a"]}


def _positional_only(anything: State, /) -> dict[str, Any]:
    return {"seen": anything["a"]}


def _defaults(state: State, factor: int = 2) -> dict[str, Any]:
    return {"seen": state["a"] * factor}


def _star(state: State, *more: Any, **others: Any) -> dict[str, Any]:
    return {"seen": (state["a"], more, others)}


def _nothing() -> dict[str, Any]:
    return {"seen": "nothing"}


def _config_first(config: dict[str, Any]) -> dict[str, Any]:
    return {"seen": config["b"]}


def _add(factor: int, state: State) -> dict[str, Any]:
    return {"seen": state["a"] * factor}


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda s: {"seen": s["a"]}, 1),
        (lambda anything, config: {"seen": (anything["a"], config["b"])}, (1, 2)),
        (_keyword_only, 1),
        (_positional_only, 1),
        (_defaults, 2),
        (_star, (1, (), {})),
        (_nothing, "nothing"),
        (_config_first, 2),
        (_Counter().method, 1),
        (_Counter.of_class, 1),
        (_Counter(), 3),
        (functools.partial(_add, 5), 5),
        (functools.partial(_defaults, factor=7), 7),
    ],
    ids=["first of another name", "first and config", "keyword only", "positional only", "default kept", "star",
         "nothing", "config first", "method", "classmethod", "callable object", "partial", "partial by name"],
)  # fmt: skip
def test_all_shapes_of_functions_are_called_with_what_they_take(function: Any, expected: Any) -> None:
    """F2: an unnamed first parameter is the state; what has a default and isn't offered keeps its default."""
    assert one(function).execute({"a": 1}, {"b": 2})["seen"] == expected


def test_a_builtin_without_a_signature_is_handed_the_state() -> None:
    """F2: `dict` has none that can be read; it copies the state."""
    with pytest.raises(ValueError, match="no signature found"):
        inspect.signature(dict)
    assert one(dict).execute({"a": 1}) == {"a": 1}


def two_nodes() -> StateGraph:
    return StateGraph().add_node("b").set_entry_point("a").set_finish_point("a").set_finish_point("b")


PLACES = {
    "node": lambda function: two_nodes().add_node("a", run=function).add_edge("a", "b", always),
    "predicate": lambda function: two_nodes().add_node("a").add_edge("a", "b", function),
    "choice": lambda function: two_nodes().add_node("a").add_conditional_edges("a", function, {1: "b"}),
}


@pytest.mark.parametrize(
    "function",
    [lambda state, other: None, lambda state, *, other: None, lambda state, config, /: None],
    ids=["second", "keyword only", "positional only next to the state"],
)
@pytest.mark.parametrize("place", PLACES)
def test_a_function_that_asks_for_something_else_is_a_definition_error(function: Any, place: str) -> None:
    """F2: it is found out when the graph is compiled, not when the function is called."""
    with pytest.raises(DefinitionError, match=r"has an unknown parameter '\w+'|positional-only"):
        PLACES[place](function).compile()


@pytest.mark.parametrize("place", PLACES)
def test_what_can_not_be_called_is_a_definition_error(place: str) -> None:
    """F2: and so is what isn't a function at all."""
    with pytest.raises(DefinitionError, match="is not callable: 'not a function'"):
        PLACES[place]("not a function")


def test_predicates_and_choices_take_what_they_name_too() -> None:
    """F2: `config`, `node` and `graph` as well as the state."""
    graph = StateGraph()
    for name in "abc":
        graph.add_node(name, run=note)
    graph.set_entry_point("a").set_finish_point("c")
    graph.add_edge(
        "a", "b", lambda state, config, node, graph: (config["go"], node, graph.name) == (1, "a", "graph")
    )
    graph.add_conditional_edges("b", lambda config: config["then"], ["c"])
    assert graph.execute({}, {"go": 1, "then": "c"})["path"] == ["a", "b", "c"]


def test_the_signature_is_examined_once_and_not_per_call() -> None:
    """F2: however many runs and calls there are."""

    class GraphInspection:
        looks = 0

        @property
        def __signature__(self) -> inspect.Signature:
            GraphInspection.looks += 1
            return inspect.Signature(
                [
                    inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD)
                    for name in ("state", "node")
                ]
            )

        def __call__(self, state: State, node: str) -> dict[str, Any]:
            return {"n": state.get("n", 0) + 1}

    graph = StateGraph().add_node("a", run=GraphInspection()).set_entry_point("a").set_finish_point("a")
    assert GraphInspection.looks == 1
    graph.add_edge("a", "a", lambda state: state["n"] < 20)
    graph.compile(store="memory://")
    assert graph.execute({})["n"] == graph.execute({})["n"] == 20
    assert GraphInspection.looks == 1


def test_config_is_a_copy_of_the_nodes_own() -> None:
    """F2: what a node does to it neither reaches the next node nor the store."""

    def first(config: Any) -> None:
        config["client"] = object()

    graph = stored_chain(first, lambda config: {"seen": list(config)})
    assert graph.execute({}, config={"limit": 1})["seen"] == ["limit"]


def test_a_first_parameter_is_not_the_state_when_another_is() -> None:
    """F2: `def f(factor, state)` asks for a parameter that has no source."""
    with pytest.raises(DefinitionError, match="unknown parameter 'factor'"):
        PLACES["node"](lambda factor, state: None).compile()


# Compiling


@pytest.mark.parametrize("kind", ["interrupt_before", "interrupt_after"])
def test_interrupts_without_anywhere_to_save_are_an_error_that_says_so(kind: str) -> None:
    """F3: and it says what to give."""
    with pytest.raises(
        DefinitionError, match=r"interrupts need somewhere to save the run: compile\(store=…\)"
    ):
        line("a", "b").compile(**{kind: ["b"]})


@pytest.mark.parametrize(
    "place", [{"store": "memory://"}, {"checkpointer": MemoryCheckpointer()}], ids=["store", "checkpointer"]
)
def test_a_store_or_a_checkpointer_is_somewhere_to_save(place: dict[str, Any]) -> None:
    """F3: either will do, and so does the graph's own CheckpointConfig."""
    assert line("a", "b").compile(interrupt_before=["b"], interrupt_after=["a"], **place)


def test_a_graph_with_a_checkpoint_config_has_somewhere_to_save() -> None:
    """F3, G5: interrupts may use the store that the graph was built with."""
    graph = StateGraph(checkpoint=CheckpointConfig(MemoryStore(), 1)).add_node("a", run=note)
    graph.set_entry_point("a").set_finish_point("a").compile(interrupt_before=["a"])
    assert [event["type"] for event in graph.invoke({})] == ["interrupt"]


@pytest.mark.parametrize("kind", ["interrupt_before", "interrupt_after"])
def test_an_interrupt_at_an_unknown_node_is_an_error_that_names_it(kind: str) -> None:
    """F3: with the name that was probably meant."""
    with pytest.raises(DefinitionError) as caught:
        line("draft", "review").compile(store="memory://", **{kind: ["revew", "x"]})
    assert caught.value.mistakes == [
        f"{kind}: there is no node 'revew'; did you mean 'review'?",
        f"{kind}: there is no node 'x'",
    ]


def test_one_str_isnt_a_list_of_node_names() -> None:
    """F3: the letters of a name aren't taken for names."""
    with pytest.raises(
        DefinitionError, match=r"interrupt_before must be a list of node names, not one str: write \['ab'\]"
    ):
        line("a", "b").compile(store="memory://", interrupt_before="ab")


def test_a_store_and_a_checkpointer_at_once_are_refused() -> None:
    """F3: only one of them could be right."""
    with pytest.raises(DefinitionError, match="a store or a checkpointer, not both"):
        line("a", "b").compile(store="memory://", checkpointer=MemoryCheckpointer())


def test_what_can_not_save_and_load_isnt_a_checkpointer() -> None:
    """F11, F3: it is found out when the graph is compiled."""
    with pytest.raises(DefinitionError, match=r"a checkpointer has save\(\) and load\(\)"):
        line("a", "b").compile(checkpointer=object())  # type: ignore[arg-type]  # that is the point


# Settings and names


def test_names_are_resolved_when_the_graph_is_built() -> None:
    """G5, G10: what the name stood for then is what the graph uses."""
    mine, other, seen = MemoryStore(), MemoryStore(), []
    register_store("mine", mine)
    register_observer("eye", seen.append)
    graph = StateGraph(observer="eye", checkpoint=CheckpointConfig("mine", interval=1, preserve=True))
    register_store("mine", other)
    register_observer("eye", lambda event: pytest.fail("not the observer that was meant"))
    graph.add_node("a", run=note).set_entry_point("a").set_finish_point("a")
    run_id = graph.execute({}).run_id
    assert mine.head(run_id).status == "completed"
    assert graph.runs()[0].run_id == run_id
    assert {event.type for event in seen} >= {"graph.start", "graph.complete"}


@pytest.mark.parametrize(
    ("build", "kind"),
    [
        (lambda: StateGraph(checkpoint=CheckpointConfig("attic", interval=1)), "store"),
        (lambda: StateGraph(checkpoint={"store": "attic", "interval": 3}), "store"),
        (lambda: line("a", "b").compile(store="attic"), "store"),
        (lambda: StateGraph(observer="attic"), "observer"),
        (lambda: StateGraph(observers=["log", "attic"]), "observer"),
        (lambda: StateGraph.from_config({"observer": "attic"}), "observer"),
    ],
)
def test_an_unknown_name_is_a_clear_error_when_the_graph_is_built(
    build: Callable[[], Any], kind: str
) -> None:
    """G10: it names what was asked for and what there is."""
    with pytest.raises(UnknownName, match=f"unknown {kind} 'attic'; registered: ") as caught:
        build()
    assert (caught.value.kind, caught.value.name) == (kind, "attic")
    assert ("memory" if kind == "store" else "log") in caught.value.known


def test_a_store_that_is_not_used_is_not_resolved() -> None:
    """G5: with interval 0, checkpointing is off and so the store's name doesn't matter."""
    graph = StateGraph(checkpoint=CheckpointConfig("attic")).add_node("a", run=note)
    assert graph.set_entry_point("a").set_finish_point("a").execute({})["path"] == ["a"]


@pytest.mark.parametrize(
    "build",
    [
        lambda store, eye: StateGraph(checkpoint=CheckpointConfig(store, 1), observer=eye),
        lambda store, eye: StateGraph(checkpoint={"store": store, "interval": 1}, observers=[eye]),
        lambda store, eye: StateGraph.from_config(GraphConfig("g", eye, 10, CheckpointConfig(store, 1))),
    ],
)
def test_an_object_is_accepted_wherever_a_name_is(build: Callable[..., StateGraph]) -> None:
    """G10: stores and observers alike."""
    store, seen = MemoryStore(), []
    graph = build(store, seen.append).add_node("a", run=note).set_entry_point("a").set_finish_point("a")
    run_id = graph.execute({}).run_id
    assert store.head(run_id).status == "completed"
    assert seen[-1].type == "graph.complete"


def test_graphs_that_name_the_same_store_share_it() -> None:
    """G10: a run of the one can be seen by the other."""
    register_store("shared", MemoryStore)
    one_graph, other = (line("a", "b").compile(store="shared", interrupt_before=["b"]) for _ in range(2))
    run = one_graph.invoke({}).wait()
    assert other.resume(run.id)["path"] == ["a", "b"]


def test_the_registries_can_be_used_from_many_threads_at_once() -> None:
    """G10: registering and building graphs at the same time, each gets what it registered."""
    ready, wrong = threading.Barrier(8), []

    def work(number: int) -> None:
        ready.wait(10)
        for turn in range(25):
            name, store, seen = f"s{number}-{turn}", MemoryStore(), []
            register_store(name, store)
            register_observer(name, seen.append)
            graph = StateGraph(observer=name, checkpoint=CheckpointConfig(name, 1)).add_node("a", run=note)
            run_id = graph.set_entry_point("a").set_finish_point("a").execute({}).run_id
            if open_store(name) is not store or store.head(run_id).status != "completed" or not seen:
                wrong.append(name)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    assert wrong == []


def test_a_graph_can_be_made_from_a_config_or_a_dict_like_one() -> None:
    """G2, G5: name, observer, budget and checkpointing as plain data."""
    store, seen = MemoryStore(), []
    checkpoint = {"store": store, "interval": 2, "preserve": True}
    data = {"name": "essay", "observer": seen.append, "max_iterations": 9, "checkpoint": checkpoint}
    settings = GraphConfig("essay", seen.append, 9, CheckpointConfig(store, 2, True))
    for config in (data, settings):
        graph = StateGraph.from_config(config, {"path": list})
        graph.add_node("a", run=note).set_entry_point("a").set_finish_point("a")
        run_id = graph.execute({}).run_id
        assert (graph.name, graph.max_iterations) == ("essay", 9)
        assert (store.head(run_id).graph, len(graph.history(run_id))) == ("essay", 2)
        assert seen[-1].source == "essay"


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: CheckpointConfig(interval=-1), "checkpoint.interval must be a whole number of at least 0"),
        (lambda: CheckpointConfig(interval=True), "checkpoint.interval must be a whole number of at least 0"),
        (lambda: CheckpointConfig(interval=1.5), "checkpoint.interval must be a whole number of at least 0"),  # type: ignore[arg-type]
        (lambda: CheckpointConfig(preserve="yes"), "checkpoint.preserve must be True or False"),  # type: ignore[arg-type]
        (lambda: CheckpointConfig.from_dict({"intervall": 1}), "did you mean 'interval'"),
        (lambda: GraphConfig.from_dict({"nmae": "x"}), "did you mean 'name'"),
        (lambda: GraphConfig.from_dict({"checkpoint": {"stroe": "x"}}), "did you mean 'store'"),
        (lambda: GraphConfig.from_dict(["name"]), "the graph settings must be a dict"),  # type: ignore[arg-type]
        (lambda: line("a", "b").compile(store="memory://", interval=-2), "a whole number of at least 0"),
        (
            lambda: line("a", "b").compile(store="memory://", lease=0),
            "lease must be a number of seconds above 0",
        ),
        (
            lambda: line("a", "b").compile(checkpointer=MemoryCheckpointer(), interval=2),
            "an interval needs a store",
        ),
    ],
)
def test_settings_are_checked_when_they_are_given(build: Callable[[], Any], message: str) -> None:
    """G5: a wrong value or a misspelt key is an error that says so."""
    with pytest.raises(DefinitionError, match=message):
        build()


def test_what_isnt_a_checkpoint_config_is_refused() -> None:
    """G5: a name alone doesn't say how often."""
    with pytest.raises(UsageError, match="checkpoint must be a CheckpointConfig or a dict"):
        StateGraph(checkpoint="memory")  # type: ignore[arg-type]  # that is the point


def test_checkpointing_is_off_by_default() -> None:
    """G5: interval 0 is off."""
    assert CheckpointConfig() == CheckpointConfig(store="memory", interval=0, preserve=False)
    assert GraphConfig() == GraphConfig("graph", None, 1000, CheckpointConfig())


@pytest.mark.parametrize("place", ["node", "predicate", "branch"])
def test_a_change_of_a_graph_inside_its_run_is_for_later_runs_and_is_logged(
    place: str, caplog: pytest.LogCaptureFixture
) -> None:
    """F2: the run continues with the plan that it began with, and the log says so."""
    graph = StateGraph(name="growing").add_node("first").set_entry_point("first")

    def grow(state: Any) -> bool:
        if "last" not in graph.freeze().nodes:
            graph.add_node("last", run=lambda state: {"last": True}).add_edge("end", "last", always)
            graph.set_finish_point("last")
        return True

    def change(state: Any) -> None:
        grow(state)

    graph.add_node("change", run=change if place != "predicate" else None).add_node("end")
    if place == "branch":
        graph.add_parallel_edge("first", "change", "end")
    else:
        graph.add_edge("first", "change").add_edge("change", "end", grow if place == "predicate" else None)
    graph.set_finish_point("end").compile()
    assert "last" not in graph.execute({}, run_id="r")
    assert "graph 'growing' was changed inside its node 'change': that doesn't change run r" in caplog.text
    caplog.clear()
    assert graph.execute({})["last"]
    assert "was changed inside" not in caplog.text


def test_a_node_may_define_another_graph(caplog: pytest.LogCaptureFixture) -> None:
    """F2: only a change of the graph that runs is worth a warning."""

    def build(state: Any) -> Any:
        inner = StateGraph(name="inner").add_node("a", run=lambda state: {"built": True})
        return dict(inner.set_entry_point("a").set_finish_point("a").execute({}))

    graph = StateGraph(name="outer").add_node("build", run=build)
    assert graph.set_entry_point("build").set_finish_point("build").execute({})["built"]
    assert caplog.text == ""
