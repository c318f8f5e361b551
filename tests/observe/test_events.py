"""What observers see of runs and states."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest

from limpet import (
    CheckpointConfig,
    Event,
    ExecutionError,
    MemoryStore,
    Retry,
    RunPaused,
    State,
    StateGraph,
    Workflow,
    key_exists,
    pause,
    sleep,
)
from limpet.engine.sessions import session
from limpet.journal.reader import read_progress
from limpet.observe import EVENT_TYPES
from limpet.testing import FakeClock
from support.graphs import AT_ONCE, Crash, Via, asking, chain, count, fan, gather
from support.timed_calls import TimedCalls, run_timed


class Recorder:
    def __init__(self) -> None:
        self.events: list[Event] = []

    def on_event(self, event: Event) -> None:
        self.events.append(event)

    def of(self, *types: str) -> list[dict[str, Any]]:
        return [dict(event.data) for event in self.events if event.type in types]

    @property
    def types(self) -> list[str]:
        return [event.type for event in self.events]


def two_node_loop(times: int, function: Callable[..., Any] = count, **settings: Any) -> StateGraph:
    """a → b → a → b …, until `n` is `times`, and then the exit c."""
    graph = StateGraph(name="loop", **settings)
    graph.add_node("a", run=function).add_node("b", run=function).add_node("c", run=function)
    graph.add_edge("a", "b", key_exists("n"))
    graph.add_edge("b", "a", lambda state: state["n"] < times)
    graph.add_edge("b", "c", key_exists("n"))
    return graph.set_entry_point("a").set_finish_point("c")


def branch(recorder: Any, function: Callable[..., Any] = count, **policy: Any) -> StateGraph:
    """One node with two conditional edges, to b and to c."""
    graph = StateGraph(name="branch", observer=recorder).add_node("a", run=function, **policy)
    graph.add_node("b", run=count).add_node("c", run=count).set_entry_point("a")
    graph.add_edge("a", "b", key_exists("never")).add_edge("a", "c", key_exists("n"))
    return graph.set_finish_point("b").set_finish_point("c")


def matches(found: dict[str, Any], **expected: Any) -> bool:
    """Whether the data has all of these; events may gain keys."""
    return expected.items() <= found.items()


# Cycles


def test_each_revisit_has_an_event_with_visit_count_iteration_and_path_length() -> None:
    """G4: cycles are legal; the first visit of a node isn't a cycle."""
    recorder = Recorder()
    assert two_node_loop(6, observer=recorder).execute({})["n"] == 7
    found = recorder.of("cycle.detected")
    expected = [("a", 2, 3, 3), ("b", 2, 4, 4), ("a", 3, 5, 5), ("b", 3, 6, 6)]
    assert [
        (each["node"], each["visit_count"], each["iteration"], each["path_length"]) for each in found
    ] == expected


def test_a_graph_without_a_revisit_has_no_cycle_event() -> None:
    """G4: only revisits are cycles."""
    recorder = Recorder()
    two_node_loop(1, observer=recorder).execute({})
    assert recorder.of("cycle.detected") == []


def test_a_revisit_after_a_resume_counts_on() -> None:
    """G4, G7: the visits, iterations and path from before the crash count."""
    recorder = Recorder()
    calls = []

    def crash_at_five(state: State) -> dict[str, Any]:
        calls.append(1)
        if len(calls) == 5:
            raise Crash
        return count(state)

    graph = two_node_loop(6, crash_at_five, observer=recorder).compile(store="memory://")
    with pytest.raises(Crash):
        graph.execute({}, run_id="r")
    recorder.events.clear()
    graph.resume("r")
    found = recorder.of("cycle.detected")
    assert [
        (each["node"], each["visit_count"], each["iteration"], each["path_length"]) for each in found
    ] == [
        ("a", 3, 5, 5),
        ("b", 3, 6, 6),
    ]


def test_a_revisit_is_reported_once_however_often_it_is_tried() -> None:
    """G4: each revisit emits one cycle.detected."""
    seen: list[Event] = []
    calls: list[int] = []

    def node(state: State) -> dict[str, Any]:
        calls.append(1)
        if len(calls) == 2:
            raise ValueError
        return {"n": state.get("n", 0) + 1}

    graph = StateGraph(observer=seen.append).add_node("a", run=node, retry=Retry(backoff=0))
    graph.set_entry_point("a").set_finish_point("a").add_edge("a", "a", lambda state: state["n"] < 2)
    graph.execute({})
    assert len([event for event in seen if event.type == "cycle.detected"]) == 1


# The events of a run


def test_a_run_has_events_from_its_start_to_its_end() -> None:
    """G11: graph, node, edge and checkpoint events, in the order in which things happen."""
    recorder = Recorder()
    run_id = branch(recorder).compile(store="memory://").execute({}).run_id
    assert recorder.types == [
        "graph.start",
        "node.start",
        "node.complete",
        "edge.evaluate",
        "edge.evaluate",
        "edge.transition",
        "checkpoint.save",
        "node.start",
        "node.complete",
        "checkpoint.save",
        "graph.complete",
    ]
    data = [dict(event.data) for event in recorder.events]
    assert matches(data[0], run_id=run_id, entry="a")
    assert matches(data[1], run_id=run_id, node="a", iteration=1, attempt=1)
    assert matches(data[2], run_id=run_id, node="a", iteration=1, error=False)
    assert data[2]["duration"] >= 0
    assert matches(data[3], **{"from": "a", "to": "b", "result": False})
    assert matches(data[4], **{"from": "a", "to": "c", "result": True})
    assert matches(data[5], **{"from": "a", "to": "c"})
    assert matches(data[6], run_id=run_id, node="a", step=1)
    assert matches(data[9], run_id=run_id, node="c", step=2)
    assert matches(data[10], run_id=run_id, exit_point="c", iterations=2)


def test_node_complete_says_how_long_the_call_took(via: Via) -> None:
    """G11: each call for itself, also one that failed and was tried again."""
    recorder = Recorder()
    calls = TimedCalls(failures=1)
    graph = StateGraph(observer=recorder).add_node("a", run=calls, retry=AT_ONCE).add_node("b", run=calls)
    graph.add_edge("a", "b").set_entry_point("a").set_finish_point("b")
    _, run = run_timed(via, graph, {})
    first, second, third = recorder.of("node.complete")
    assert [first["error"], second["error"], third["error"]] == [True, False, False]
    starts = [run.began, calls.spans[0].ended, calls.spans[1].ended]
    ends = [calls.spans[1].began, calls.spans[2].began, run.ended]
    for event, own, start, end in zip((first, second, third), calls.spans, starts, ends, strict=True):
        assert own.seconds <= event["duration"] <= end - start


def test_node_sleep_says_which_node_sleeps_until_when() -> None:
    """G11, H9: each of its sleeps."""
    recorder = Recorder()
    clock = FakeClock(now=1000.0, auto=True)

    def nap() -> None:
        sleep(60)
        sleep(600)

    graph = StateGraph(observer=recorder).add_node("nap", run=nap).set_entry_point("nap")
    graph.set_finish_point("nap").compile(store=MemoryStore(clock)).execute({})
    events = recorder.of("node.sleep")
    assert [(event["node"], event["until"]) for event in events] == [("nap", 1060.0), ("nap", 1660.0)]


def test_no_call_takes_less_than_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """G11: not even if the machine's clock is set back while a node runs."""
    recorder = Recorder()
    behind = [0.0]
    monkeypatch.setattr(session, "time", lambda: time.time() - behind[0])
    graph = StateGraph(observer=recorder).add_node("a", run=lambda: behind.insert(0, 3600.0))
    graph.set_entry_point("a").set_finish_point("a").execute({})
    assert [event["duration"] for event in recorder.of("node.complete")] == [0.0]


def test_every_event_has_a_type_a_timestamp_a_source_and_data() -> None:
    """G11: the source is the graph's name."""
    recorder = Recorder()
    before = time.time()
    graph = branch(recorder).compile(store="memory://", interrupt_before=["c"])
    run = graph.invoke({}).wait()
    graph.resume(run.id)
    assert len(recorder.events) > 10
    for event in recorder.events:
        assert event.type in EVENT_TYPES
        assert event.source == "branch"
        assert isinstance(event.data, dict)
        assert before <= event.timestamp <= time.time()
    times = [event.timestamp for event in recorder.events]
    assert times == sorted(times)


def test_a_resume_has_events_with_the_loaded_and_the_next_node() -> None:
    """G11: checkpoint.load and checkpoint.resume come first, and there is no second graph.start."""
    recorder = Recorder()
    graph = branch(recorder).compile(store="memory://", interrupt_before=["c"])
    run = graph.invoke({}).wait()
    assert matches(recorder.of("run.pause")[0], run_id=run.id, node="c", reason="interrupted before 'c'")
    recorder.events.clear()
    graph.resume(run.id)
    assert recorder.types == [
        "checkpoint.load",
        "checkpoint.resume",
        "node.start",
        "node.complete",
        "checkpoint.save",
        "graph.complete",
    ]
    assert matches(recorder.of("checkpoint.load")[0], run_id=run.id, node="a")
    assert matches(recorder.of("checkpoint.resume")[0], run_id=run.id, checkpoint_node="a", resume_node="c")


def test_an_edge_without_a_predicate_has_the_same_events() -> None:
    """G11: edge.evaluate and edge.transition for every transition."""
    recorder = Recorder()
    graph = (
        StateGraph(observer=recorder).add_node("a").add_node("b").set_entry_point("a").set_finish_point("b")
    )
    graph.add_edge("a", "b").execute({})
    (evaluated,), (taken,) = recorder.of("edge.evaluate"), recorder.of("edge.transition")
    assert matches(evaluated, **{"from": "a", "to": "b", "result": True})
    assert matches(taken, **{"from": "a", "to": "b"})


def test_a_choice_has_the_events_of_the_edge_it_took() -> None:
    """G11: evaluate and transition, with its target."""
    recorder = Recorder()
    graph = (
        StateGraph(observer=recorder).add_node("a").add_node("b").set_entry_point("a").set_finish_point("b")
    )
    graph.add_conditional_edges("a", lambda state: True, {True: "b"}).execute({})
    (evaluated,), (taken,) = recorder.of("edge.evaluate"), recorder.of("edge.transition")
    assert matches(evaluated, **{"from": "a", "to": "b", "result": True})
    assert matches(taken, **{"from": "a", "to": "b"})


def test_a_failure_has_events() -> None:
    """G11: the node completes with an error, and the run fails."""
    recorder = Recorder()
    graph = branch(recorder, lambda state: {"n": 1 / 0}).compile(store="memory://")
    with pytest.raises(ExecutionError):
        graph.execute({}, run_id="r")
    assert recorder.types == ["graph.start", "node.start", "node.complete", "checkpoint.save", "run.fail"]
    assert recorder.of("node.complete")[0]["error"] is True
    assert matches(
        recorder.of("run.fail")[0], run_id="r", node="a", error="ZeroDivisionError: division by zero"
    )


def test_a_retry_and_a_question_have_events() -> None:
    """G11: node.retry and run.pause."""
    recorder = Recorder()
    calls = []

    def node(state: State) -> dict[str, Any]:
        calls.append(1)
        if len(calls) == 1:
            raise ValueError("again")
        return {"n": pause("Go on?")}

    graph = branch(recorder, node, retry=Retry(backoff=0)).compile(store="memory://")
    run = graph.invoke({}).wait()
    assert matches(
        recorder.of("node.retry")[0], run_id=run.id, node="a", attempt=1, error="ValueError: again"
    )
    assert [each["attempt"] for each in recorder.of("node.start")] == [1, 2]
    assert matches(recorder.of("run.pause")[0], run_id=run.id, node="a", reason="'a' asks: Go on?")


def test_a_cancellation_has_an_event() -> None:
    """G11, G12: run.cancel names the node that isn't run any more."""
    recorder = Recorder()
    run = branch(recorder, lambda state: run.cancel() or count(state)).compile(store="memory://").invoke({})
    run.wait()
    assert recorder.types[-2:] == ["checkpoint.save", "run.cancel"]
    assert matches(recorder.of("run.cancel")[0], run_id=run.id, node="c")


def mapped(**settings: Any) -> StateGraph:
    graph = StateGraph(name="map", **settings).add_node("src", run=lambda state: {"items": [1, 2, 3]})
    graph.add_map("src", count, over="items", fan_in="join").add_fanin_node("join", run=gather)
    return graph.set_entry_point("src").set_finish_point("join")


SAVING: dict[str, Callable[..., StateGraph]] = {
    "after a node": lambda **settings: chain(count, count, **settings),
    "in branches": lambda **settings: fan(
        {"a": [count, count], "b": count}, then={"last": count}, **settings
    ),
    "at a question": lambda **settings: fan({"a": asking(), "b": [count, count]}, **settings),
    "at a failure": lambda **settings: fan(
        {"a": lambda state: 1 / 0, "b": count}, on_error="collect", **settings
    ),
    "of a map": mapped,
    "in a node": lambda **settings: chain(count, chain(count, count, name="inner"), count, **settings),
}


@pytest.mark.parametrize("where", [*SAVING, "of a workflow"])
def test_a_step_is_reported_as_saved_when_the_store_has_it(where: str) -> None:
    """G11: a program that acts on `checkpoint.save` can rely on it, wherever in the loop the save happened."""
    store, reported = MemoryStore(), []

    class Reader:
        def on_event(self, event: Event) -> None:
            if event.type == "checkpoint.save":
                stored = read_progress(store.read(event.data["run_id"])).step
                reported.append((event.data["step"], stored))

    graph: StateGraph | Workflow
    if where in SAVING:
        graph = SAVING[where](observer=Reader()).compile(store=store, preserve=True)
    else:
        graph = Workflow("flow", store=store, preserve=True, observer=Reader())
        graph.add_task("a", lambda: 1).add_task("b", lambda: 2).add_task("c", lambda a, b: a + b, ["a", "b"])
    with suppress(RunPaused):
        graph.execute({}, run_id="r")
    assert reported
    assert [step for step, stored in reported if step > stored] == []


def test_without_a_store_there_are_no_checkpoint_events() -> None:
    """G11, G5: nothing was saved, so no event reports a save."""
    recorder = Recorder()
    branch(recorder).execute({})
    assert [kind for kind in recorder.types if kind.startswith("checkpoint.")] == []


def test_checkpoint_resume_names_the_node_that_runs_next() -> None:
    """G11: also after `interrupt_after`, where it isn't the node that the checkpoint is of."""
    seen: list[Event] = []
    graph = chain(lambda state: None, lambda state: None, observer=seen.append)
    graph.compile(store="memory://", interrupt_after=["n1"])
    run = graph.invoke({}).wait()
    graph.resume(run.id)
    (event,) = [event for event in seen if event.type == "checkpoint.resume"]
    assert (event.data["checkpoint_node"], event.data["resume_node"]) == ("n1", "n2")


# The events of a state


def test_a_state_emits_what_is_done_to_it() -> None:
    """G11: state.create, state.clone, state.set and state.merge, from the source "state"."""
    recorder = Recorder()
    state = State({"a": 1}, observer=recorder)
    state.set("b", 2).merge({"c": 3, "d": 4}).clone()
    assert recorder.types == ["state.create", "state.set", "state.merge", "state.clone"]
    assert [dict(event.data) for event in recorder.events] == [
        {"keys": 1},
        {"key": "b"},
        {"keys": 2},
        {"keys": 4},
    ]
    assert {event.source for event in recorder.events} == {"state"}
    assert all(isinstance(event.timestamp, float) for event in recorder.events)


def test_the_events_of_a_state_do_not_hold_its_values() -> None:
    """G11: keys and counts, never what is under them."""
    recorder = Recorder()
    State({"password": "secret"}, observer=recorder).set("password", "secret2").merge({"x": "secret3"})
    assert "secret" not in repr(recorder.events)


@pytest.mark.parametrize("store", [None, "memory://"])
def test_changes_of_a_state_in_a_node_reach_the_observers_of_the_graph(store: str | None) -> None:
    """G11: within a run, too."""
    recorder = Recorder()
    graph = branch(recorder, lambda state: state.set("n", 1).merge({"m": 2}).clone()).compile(store=store)
    assert graph.execute({}) == {"n": 2, "m": 2}
    found = [kind for kind in recorder.types if kind.startswith("state.")]
    assert [kind for kind in found if kind != "state.create"] == ["state.set", "state.merge", "state.clone"]


# Observers


def test_several_observers_see_the_same_events() -> None:
    """G11: by name, as objects and as functions, at once."""
    one = Recorder()
    other = Recorder()
    functions = []
    graph = StateGraph(observer=one, observers=[other, functions.append, "noop"]).add_node("a", run=count)
    graph.set_entry_point("a").set_finish_point("a").compile(store="memory://").execute({})
    assert one.events == other.events == functions
    assert len(functions) == 5


def test_an_observer_that_raises_never_breaks_a_run(caplog: pytest.LogCaptureFixture) -> None:
    """G11: whatever the event; the run continues, and the other observers get it."""
    seen: list[str] = []

    def explode(event: Event) -> None:
        seen.append(event.type)
        raise RuntimeError(f"no {event.type} please")

    recorder = Recorder()
    graph = (
        StateGraph(observers=[explode, recorder]).add_node("a", run=count, retry=2).add_node("b", run=count)
    )
    graph.set_entry_point("a").set_finish_point("b").add_edge("a", "b", key_exists("n"))
    graph.compile(store="memory://", interrupt_before=["b"])
    with caplog.at_level(logging.ERROR, logger="limpet.observe"):
        run = graph.invoke({}).wait()
        assert graph.resume(run.id) == {"n": 2}
        assert State(observer=explode).set("x", 1) == {"x": 1}
    assert recorder.types == [kind for kind in seen if not kind.startswith("state.")]
    assert {"graph.start", "run.pause", "checkpoint.resume", "graph.complete"} <= set(seen)
    assert caplog.records


@pytest.mark.parametrize("observers", [[], ["noop"], ["noop", "noop"]])
def test_no_observer_costs_nothing(observers: list[str]) -> None:
    """G11: the engine then has nothing to call: no event is built, and no clock is read for one."""
    graph = StateGraph(observers=observers, checkpoint=CheckpointConfig(MemoryStore(), 1))
    graph.add_node("a", run=count).set_entry_point("a").set_finish_point("a")
    assert graph.compiled().emit is None
    with_one = StateGraph(observers=[*observers, Recorder()]).add_node("a", run=count)
    assert with_one.set_entry_point("a").set_finish_point("a").compiled().emit is not None


def test_no_event_is_made_without_observers(monkeypatch: pytest.MonkeyPatch) -> None:
    """G11: not one, in a run in which much happens."""

    def refuse(*arguments: Any, **more: Any) -> None:
        raise AssertionError("an event was made")

    monkeypatch.setattr("limpet.observe.hub.Event", refuse)
    graph = two_node_loop(4, lambda state: state.set("n", state.get("n", 0) + 1), observer="noop")
    graph.compile(store="memory://", interrupt_before=["c"])
    run = graph.invoke({}).wait()
    assert graph.resume(run.id)["n"] == 5


def test_runs_in_many_threads_are_distinguished_by_their_run_id() -> None:
    """G11, P6: one observer of many runs sees each of them whole and in order."""
    lock = threading.Lock()
    seen = {}

    def watch(event: Event) -> None:
        if "run_id" in event.data:
            with lock:
                seen.setdefault(event.data["run_id"], []).append(event.type)

    graph = branch(watch).compile(store="memory://")
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: graph.execute({}, run_id=f"r{number}"), range(50)))
    assert len(seen) == 50
    assert len({tuple(types) for types in seen.values()}) == 1
