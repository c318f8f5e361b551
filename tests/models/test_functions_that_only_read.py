"""Functions that only read a run's state can't change it, in whatever place: a resumed run equals an uncut one (H3).

Each *place* is a graph with one function of the user's that is to look at the state, and does more: it alters all
that it reads, in place. `spoil` does that. The same graph with a function that only looks is what the run has to
equal, cut or not, in its final state and in every step of its journal.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from itertools import count
from typing import Annotated, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from limpet import AlreadyCompleted, MemoryStore, RunPaused, StateGraph, Workflow
from models.bench import lean

Look = Callable[[Any], Any]
"""What a function does with something that it was given, before it does what it is for."""

values = st.recursive(
    st.integers(0, 9) | st.text("ab", max_size=2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("xyz"), inner, max_size=3),
    max_leaves=6,
)
states = st.fixed_dictionaries({"queue": st.lists(values, min_size=1, max_size=4), "data": values})


def only_look(given: Any) -> None:
    """Read all of it."""
    deepcopy(dict(given)) if isinstance(given, dict) else deepcopy(given)


def spoil(given: Any) -> None:
    """Alter all of it in place, the innermost first. What refuses to be assigned to is left as it is."""
    if isinstance(given, dict):
        for value in list(given.values()):
            spoil(value)
        with suppress(Exception):
            given.clear()
        with suppress(Exception):
            given["spoiled"] = True
    elif isinstance(given, list):
        for value in given:
            spoil(value)
        given.clear()
        given.append("spoiled")


def step(state: Any) -> dict[str, Any]:
    """A node that depends on all that could have been spoiled, and changes some of it."""
    state["queue"].append(len(state["queue"]))
    return {"seen": [*state.get("seen", ()), repr((state["queue"], state["data"]))]}


def more(state: Any) -> bool:
    return len(state.get("seen", ())) < 3


def _chain(graph: StateGraph) -> StateGraph:
    """work → rest → END, where `work` repeats itself until it was called three times."""
    return graph.add_node("work", run=step).add_node("rest", run=step).set_entry_point("work")


def predicate(look: Look) -> StateGraph:
    def again(state: Any) -> bool:
        found = more(state)
        look(state)
        return found

    graph = _chain(StateGraph(name="g"))
    return graph.add_edge("work", "work", again).add_edge("work", "rest").set_finish_point("rest")


def predicate_alone(look: Look) -> StateGraph:
    def again(state: Any) -> bool:
        found = more(state)
        look(state)
        return found

    def done(state: Any) -> bool:
        return not more(state)

    graph = _chain(StateGraph(name="g")).add_edge("work", "work", again).add_edge("work", "rest", done)
    return graph.set_finish_point("rest")


def predicate_with_config(look: Look) -> StateGraph:
    def again(state: Any, config: Any) -> bool:
        found = more(state)
        look(state)
        look(config)
        return found

    graph = _chain(StateGraph(name="g"))
    return graph.add_edge("work", "work", again).add_edge("work", "rest").set_finish_point("rest")


def predicate_under_observer(look: Look) -> StateGraph:
    def again(state: Any) -> bool:
        found = more(state)
        look(state)
        return found

    graph = _chain(StateGraph(name="g", observer=lambda event: look(event.data)))
    return graph.add_edge("work", "work", again).add_edge("work", "rest").set_finish_point("rest")


def choice(look: Look) -> StateGraph:
    def choose(state: Any) -> str:
        found = "work" if more(state) else "rest"
        look(state)
        return found

    graph = _chain(StateGraph(name="g")).add_conditional_edges("work", choose, ["work", "rest"])
    return graph.set_finish_point("rest")


def copy_of_a_choice(look: Look) -> StateGraph:
    def choose(state: Any) -> str:
        found = "work" if more(state) else "rest"
        look(state.clone())
        look(state.set("new", 1))
        look({**state})
        look(state | {"more": 1})
        look(list(state.values()))
        return found

    graph = _chain(StateGraph(name="g")).add_conditional_edges("work", choose, ["work", "rest"])
    return graph.set_finish_point("rest")


def predicate_in_branches(look: Look) -> StateGraph:
    def again(state: Any) -> bool:
        found = more(state)
        look(state)
        return found

    def join(parallel_results: Any, state: Any) -> dict[str, Any]:
        found = deepcopy([dict(result) for result in parallel_results])
        look(list(parallel_results))
        return {"joined": found, **step(state)}

    graph = StateGraph(name="g").add_node("source", run=step).set_entry_point("source")
    for name in ("left", "right"):
        graph.add_node(name, run=step).add_edge(name, name, again).add_edge(name, "join")
        graph.add_parallel_edge("source", name, "join")
    return graph.add_fanin_node("join", run=join).set_finish_point("join")


def over(look: Look) -> StateGraph:
    def items(state: Any) -> list[Any]:
        found = deepcopy(state["queue"])
        look(state)
        return found

    def each(state: Any) -> dict[str, Any]:
        return {"got": repr(state["item"]), **step(state)}

    def join(parallel_results: Any, state: Any) -> dict[str, Any]:
        return {"joined": [result["got"] for result in parallel_results], **step(state)}

    graph = StateGraph(name="g").add_node("source", run=step).add_node("each", run=each)
    graph.add_fanin_node("join", run=join).add_map("source", "each", items, "join")
    return graph.set_entry_point("source").set_finish_point("join")


def _inner(schema: Any = None) -> StateGraph:
    graph = _chain(StateGraph(schema, name="inner")).add_edge("work", "rest")
    return graph.set_finish_point("rest")


def inputs_and_outputs(look: Look) -> StateGraph:
    def inputs(state: Any) -> dict[str, Any]:
        taken = deepcopy({key: state[key] for key in ("queue", "data")})
        look(state)
        return taken

    def outputs(state: Any) -> dict[str, Any]:
        left = {"inner": repr(dict(state))}
        look(state)
        return left

    graph = StateGraph(name="g").add_node("before", run=step).add_node("after", run=step)
    graph.add_node("sub", run=predicate(look), inputs=inputs, outputs=outputs)
    graph.add_edge("before", "sub").add_edge("sub", "after")
    return graph.set_entry_point("before").set_finish_point("after")


def validator(look: Look) -> StateGraph:
    from pydantic import BaseModel, ConfigDict, field_validator

    class Checked(BaseModel):
        model_config = ConfigDict(extra="allow")
        queue: Any
        data: Any

        @field_validator("queue", "data", mode="before")
        @classmethod
        def check(cls, value: Any) -> Any:
            checked = deepcopy(value)
            look(value)
            return checked

    graph = StateGraph(name="g").add_node("before", run=step).add_node("after", run=step)
    graph.add_node("sub", run=_inner(Checked), outputs={"inner": "seen"})
    graph.add_edge("before", "sub").add_edge("sub", "after")
    return graph.set_entry_point("before").set_finish_point("after")


def reducer(look: Look) -> StateGraph:
    def combine(old: Any, new: Any) -> Any:
        combined = deepcopy([old, new])
        look(old)
        return combined

    def work(state: Any) -> dict[str, Any]:
        return {"kept": {"seen": [len(state.get("seen", ()))]}, **step(state)}

    graph = StateGraph({"kept": Annotated[Any, combine]}, name="g")
    graph.add_node("work", run=work).add_edge("work", "work", more)
    return graph.set_entry_point("work").set_finish_point("work")


PLACES = [
    predicate,
    predicate_alone,
    predicate_with_config,
    predicate_under_observer,
    choice,
    copy_of_a_choice,
    predicate_in_branches,
    over,
    inputs_and_outputs,
    validator,
    reducer,
]
NUMBERS = count(1)
few = settings(lean, max_examples=12)


def run_to_end(graph: StateGraph, start: dict[str, Any], cut: int | None, look: Look = only_look) -> str:
    """Run a graph to its end, closing it after `cut` events and resuming it after each interrupt. The run's id.

    What the run gives to its caller is looked at, too.
    """
    run_id = f"run-{next(NUMBERS)}"
    run = graph.stream(deepcopy(start), {"settings": [1, {"deep": []}]}, run_id=run_id)
    for number, event in enumerate(run):
        if event["type"] == "state":
            look(event["state"])
        look(run.state)
        if number == cut:
            run.close()
            break
    with suppress(AlreadyCompleted):
        while True:
            with suppress(RunPaused):
                graph.resume(run_id)
    return run_id


def compiled(graph: StateGraph, stops: tuple[str, ...] = ()) -> StateGraph:
    graph.compile(store=MemoryStore(), preserve=True, interrupt_after=list(stops))
    return graph


def steps_of(graph: StateGraph, run_id: str) -> list[Any]:
    """The state after each step, by the journal."""
    return [dict(graph.state_at(run_id, entry.step)) for entry in graph.history(run_id)]


@few
@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.__name__)
@given(start=states, cut=st.none() | st.integers(0, 6), stop=st.booleans())
def test_what_a_function_alters_that_only_reads_does_not_count(
    place: Callable[[Look], StateGraph], start: dict[str, Any], cut: int | None, stop: bool
) -> None:
    expected_graph = compiled(place(only_look))
    expected_id = run_to_end(expected_graph, start, None)
    graph = place(spoil)
    stops = ("work",) if stop and "work" in graph.freeze().nodes else ()
    compiled(graph, stops)
    run_id = run_to_end(graph, start, cut, spoil)
    assert dict(graph.state_at(run_id)) == dict(expected_graph.state_at(expected_id))
    assert steps_of(graph, run_id) == steps_of(expected_graph, expected_id)


@few
@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.__name__)
@given(start=states)
def test_the_state_in_memory_is_that_of_the_journal(
    place: Callable[[Look], StateGraph], start: dict[str, Any]
) -> None:
    graph = compiled(place(spoil))
    final = graph.execute(deepcopy(start), run_id="r")
    assert dict(final) == dict(graph.state_at("r"))
    without_store = place(spoil)
    without_store.compile()
    assert dict(without_store.execute(deepcopy(start))) == dict(final)


def workflow(look: Look) -> Workflow:
    """Two layers, a condition, a handler and a question: all of them read what the tasks before have left."""
    flow = Workflow("flow")

    def fetch(queue: Any, data: Any) -> list[Any]:
        result = deepcopy([queue, data])
        look(queue)
        look(data)
        return result

    def wanted(fetch: Any, state: Any, inputs: Any, context: Any) -> bool:
        for each in (fetch, state, inputs, context, list(state.tasks.values()), state.results):
            look(each)
        return True

    def use(fetch: Any, results: Any, state: Any, context: Any) -> str:
        seen = repr((fetch, results, state.results, context))
        for each in (fetch, results, state, context):
            look(each)
        return seen

    def ask(use: Any, ctx: Any) -> str:
        answer = ctx.pause("what?", choices=[["a"], ["b"]])
        seen = repr(answer)
        look(answer)
        return seen + repr(ctx.pause("and?"))

    def after_layer(results: Any, state: Any, context: Any, ctx: Any, layer: int) -> None:
        seen = repr((results, context))
        for each in (results, state, context):
            look(each)
        ctx.add_context({f"layer {layer}": [seen]})

    flow.add_task("fetch", fetch)
    flow.add_task("use", use, depends_on=["fetch"], condition=wanted)
    flow.add_task("ask", ask, depends_on=["use"])
    flow.after_layer(after_layer)
    flow.compile(store=MemoryStore(), preserve=True)
    return flow


def answers_of(flow: Workflow, start: dict[str, Any], look: Look) -> Any:
    """The final state of a run of the workflow, which asks twice. What it gives to its caller is looked at, too."""
    run = flow.stream(deepcopy(start), run_id="r")
    for event in run:
        look({key: value for key, value in event.items() if key != "exception"})
        look(run.state)
    look(run.questions[0].choices)
    with pytest.raises(RunPaused):
        flow.resume("r", ["a"])
    flow.resume("r", "second")
    final = flow.state_at("r")
    tasks = {name: (record.status, record.result) for name, record in final.tasks.items()}
    return tasks, final.context, final.decisions


@few
@given(start=states)
def test_what_the_functions_of_a_workflow_alter_does_not_count(start: dict[str, Any]) -> None:
    assert answers_of(workflow(spoil), start, spoil) == answers_of(workflow(only_look), start, only_look)
