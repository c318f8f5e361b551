"""Running a graph: to the end, over a crash, within its budget, until it is cancelled."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from limpet import (
    AlreadyCompleted,
    CheckpointConfig,
    Conflict,
    DefinitionError,
    Event,
    ExecutionError,
    MemoryStore,
    NodeContext,
    Retry,
    Run,
    RunCancelled,
    RunExists,
    RunNotFound,
    RunPaused,
    Runs,
    State,
    StateGraph,
    StoreUnavailable,
    UsageError,
    key_exists,
    pause,
)
from limpet.journal.run_filter import RunFilter
from limpet.journal.store import Commit
from support.graphs import Crash, asking, chain, count, loop, stored_chain

SOON = 10.0
"""Seconds within which what is waited for has happened, on any machine."""


class Nodes:
    """Nodes that note that they ran, and do once what the test asks for."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.once: dict[str, Callable[[], Any]] = {}

    def __call__(self, state: State, node: str) -> dict[str, Any]:
        action = self.once.pop(node, None)
        if action is not None:
            action()
        self.ran.append(node)
        return {"path": [*state.get("path", []), node]}


class FailingStore(MemoryStore):
    """A store in memory whose `fail_at`-th append fails, and that works before and after."""

    def __init__(self, fail_at: int, raises: bool = True) -> None:
        super().__init__()
        self.fail_at, self.raises, self.appends = fail_at, raises, 0

    def append(self, commits: Sequence[Commit]) -> list[Exception | None]:
        self.appends += 1
        if self.appends != self.fail_at:
            return super().append(commits)
        if self.raises:
            raise StoreUnavailable("the disk is full")
        return [StoreUnavailable("the disk is full") for _ in commits]


def throw(error: BaseException) -> Callable[[], None]:
    def action() -> None:
        raise error

    return action


def line(length: int, nodes: Callable[..., Any], **settings: Any) -> StateGraph:
    """A graph of nodes n1 → n2 → … that all call `nodes`."""
    return chain(*[nodes] * length, name="line", **settings)


def saves(events: Sequence[Event]) -> list[str]:
    return [event.data["node"] for event in events if event.type == "checkpoint.save"]


def names(*numbers: int) -> list[str]:
    return [f"n{number}" for number in numbers]


# To the end


def test_execute_returns_the_final_state_which_holds_the_run_id() -> None:
    """G6: with or without a store."""
    nodes = Nodes()
    final = line(3, nodes).execute({"given": 1})
    assert final == {"given": 1, "path": names(1, 2, 3)}
    assert len(final.run_id) == 32
    graph = line(3, nodes).compile(store="memory://")
    assert graph.runs() == []
    stored = graph.execute({})
    assert [info.run_id for info in graph.runs()] == [stored.run_id]


def test_invoke_yields_one_final_event() -> None:
    """F4: `{"type": "final", "state"}`."""
    (event,) = line(2, Nodes()).invoke({"a": 1})
    assert event["type"] == "final"
    assert event["state"] == {"a": 1, "path": names(1, 2)}
    assert event["run_id"] == event["state"].run_id


def test_stream_yields_the_state_after_every_node() -> None:
    """F4: `{"type": "state", "node", "state"}` per node, then the final one."""
    events = list(line(3, Nodes()).stream({}))
    assert [event["type"] for event in events] == ["state", "state", "state", "final"]
    assert [event["node"] for event in events[:3]] == names(1, 2, 3)
    assert [event["state"]["path"] for event in events[:3]] == [names(1), names(1, 2), names(1, 2, 3)]
    assert [event["state"].checkpoint_node for event in events] == names(1, 2, 3, 3)


@pytest.mark.parametrize("store", [None, "memory://"])
def test_what_an_event_holds_does_not_alias_the_live_state(store: str | None) -> None:
    """F4, H12: it can't be altered, what it holds is a copy, and it doesn't move on with the run."""

    def grow(state: State) -> None:
        state["items"].append(len(state["items"]))

    graph = line(3, grow).compile(store=store)
    kept = []
    for event in graph.stream({"items": []}):
        kept.append(event["state"])
        if event["type"] == "state":
            event["state"]["items"].append("altered")
            for part in (event["state"], event["update"]):
                with pytest.raises(UsageError, match="can't be changed"):
                    part["new"] = 1
    assert kept[-1] == {"items": [0, 1, 2]}
    before = [event["state"]["items"] for event in graph.stream({"items": []})]
    assert before == [[0], [0, 1], [0, 1, 2], [0, 1, 2]]


@pytest.mark.parametrize("stop", ["interrupt", "pause", "error", "cancelled"])
def test_what_the_event_of_a_stop_holds_is_a_copy(stop: str) -> None:
    """F4: altering it, at the top or deep inside, reaches neither the run nor what is stored."""
    tell: dict[str, Callable[[], Any]] = {
        "interrupt": lambda: None,
        "pause": lambda: pause("Go on?"),
        "error": throw(ValueError()),
        "cancelled": lambda: run.cancel(),
    }

    def act(state: State, node: str) -> None:
        if node == ("n1" if stop == "cancelled" else "n2"):
            tell[stop]()

    graph = line(3, act).compile(store="memory://", interrupt_before=["n3"] if stop == "interrupt" else [])
    run = graph.invoke({"items": [[]]})
    (event,) = run
    assert event["type"] == stop
    event["state"]["items"][0].append("altered")
    event["state"]["new"] = 1
    assert run.state == graph.state_at(run.id) == {"items": [[]]}


def test_a_failed_run_yields_an_error_event_and_execute_raises_it() -> None:
    """F4: `{"type": "error", …}` with node, message, exception and the last good state."""
    nodes = Nodes()
    nodes.once["n2"] = throw(ValueError("no kelp"))
    run = line(3, nodes).compile(store="memory://").invoke({})
    (event,) = run
    assert (event["type"], event["node"], event["error"]) == ("error", "n2", "ValueError: no kelp")
    assert event["state"] == {"path": names(1)}
    assert isinstance(event["exception"], ExecutionError)
    assert (run.status, run.error) == ("failed", event["exception"])
    with pytest.raises(ExecutionError) as caught:
        run.result()
    assert caught.value is event["exception"]
    assert isinstance(caught.value.cause, ValueError)
    assert caught.value.__cause__ is caught.value.cause
    assert (caught.value.node, caught.value.path, caught.value.run_id) == ("n2", names(1, 2), run.id)
    assert nodes.ran == names(1)


def test_a_failed_run_that_was_saved_can_be_resumed_by_its_checkpoint() -> None:
    """F4, G6: the error event of a stored run has a `checkpoint_path`, too."""
    nodes = Nodes()
    nodes.once["n2"] = throw(ValueError("no kelp"))
    graph = line(3, nodes).compile(store="memory://")
    (event,) = graph.invoke({})
    (final,) = graph.invoke({"more": 1}, checkpoint=event["checkpoint_path"])
    assert final["state"] == {"path": names(1, 2, 3), "more": 1}
    (unsaved,) = line(1, throw(ValueError())).invoke({})
    assert "checkpoint_path" not in unsaved


@pytest.mark.parametrize("store", [None, "memory://"])
def test_what_a_run_was_given_stays_as_it_is(store: str | None) -> None:
    """P6: a run works on its own copy, so that two runs of the same input don't meet."""

    def alter(state: State) -> None:
        state["items"][0]["x"].append(1)

    given = {"items": [{"x": []}]}
    graph = line(2, alter).compile(store=store)
    assert graph.execute(given) == graph.execute(given) == {"items": [{"x": [1, 1]}]}
    assert given == {"items": [{"x": []}]}


def test_a_run_can_be_read_instead_of_iterated() -> None:
    """F4: reading the state or the status runs it to its next stop."""
    run = line(2, Nodes()).invoke({})
    assert "not begun" in repr(run)
    assert run.status == "completed"
    assert run.state == {"path": names(1, 2)}
    assert run.result() == run.state
    assert (run.error, run.questions, list(run)) == (None, [], [])


def test_a_run_begins_with_its_first_event() -> None:
    """F4: nothing runs, and nothing is stored, before the first event is asked for."""
    nodes = Nodes()
    graph = line(2, nodes).compile(store="memory://")
    run = graph.stream({})
    assert (nodes.ran, graph.runs()) == ([], [])
    assert next(run)["node"] == "n1"
    assert (nodes.ran, run.status, run.state["path"]) == (names(1), "running", names(1))
    assert [event["type"] for event in run] == ["state", "final"]


def test_a_run_that_is_closed_early_can_be_resumed_at_once() -> None:
    """F4, G6: leaving gives the run back."""
    nodes = Nodes()
    graph = line(4, nodes).compile(store="memory://")
    run = graph.stream({})
    next(run)
    next(run)
    run.close()
    with pytest.raises(UsageError, match="was closed before it stopped"):
        run.result()
    assert graph.resume(run.id)["path"] == names(1, 2, 3, 4)
    assert nodes.ran == names(1, 2, 3, 4)


def test_the_run_id_may_be_chosen_and_is_taken_only_once() -> None:
    """P6: two runs never share an id, and the first is left as it is."""
    graph = line(2, Nodes()).compile(store="memory://", preserve=True)
    graph.execute({"who": "first"}, run_id="mine")
    with pytest.raises(RunExists) as caught:
        graph.execute({"who": "second"}, run_id="mine")
    assert caught.value.run_id == "mine"
    assert graph.state_at("mine")["who"] == "first"


@pytest.mark.parametrize("run_id", ["x" * 201, "a\nb", 5])
def test_what_can_not_be_a_run_id_is_refused(run_id: Any) -> None:
    """P6: a str of 1 to 200 printable characters."""
    graph = line(1, Nodes()).compile(store="memory://")
    with pytest.raises(UsageError, match="a run id must be a text of 1 to 200 printable characters"):
        graph.execute({}, run_id=run_id)


def test_the_state_of_an_active_run_is_a_copy() -> None:
    """H4: also when it is read in the middle."""
    graph = stored_chain(lambda state: {"xs": [1]}, lambda state: {"n": len(state["xs"])})
    run = graph.stream({}, run_id="r")
    next(run)
    run.state["xs"].append(2)
    assert run.result() == graph.state_at("r") == {"xs": [1], "n": 1}


@pytest.mark.parametrize("config", [5, "fast", [("fast", True)]])
def test_a_config_is_a_dict(config: Any) -> None:
    """Invariant 9: wherever one is given; an empty one and None are none."""
    graph = stored_chain(lambda state, ctx: {"config": ctx.config})
    calls: list[Any] = [graph.execute, graph.start, lambda _, config: list(graph.stream({}, config))]
    waiting = graph.start({})
    calls.append(lambda _, config: graph.resume(waiting.run_id, config=config))
    for call in calls:
        with pytest.raises(UsageError, match="config is a dict of settings that nodes read, not "):
            call({}, config)
    assert graph.execute({}, None) == graph.execute({}, {}) == {"config": {}}


def test_small_mistakes_are_reported_at_once(caplog: pytest.LogCaptureFixture) -> None:
    """Invariant 9: an empty id, choices in one str, an interval without a store, an edge that is never taken."""
    graph = stored_chain(lambda state: pause("ok?", choices="yes"))
    with pytest.raises(UsageError):
        graph.execute({}, run_id="")
    with pytest.raises(ExecutionError, match="choices is a list"):
        graph.execute({})
    with pytest.raises(DefinitionError, match="an interval needs a store"):
        StateGraph().add_node("a").set_entry_point("a").set_finish_point("a").compile(interval=2)
    twice = StateGraph().add_node("a").add_node("b").add_node("c").set_entry_point("a")
    twice.add_edge("a", "b").add_edge("a", "c").add_edge("b", "c").set_finish_point("c").compile()
    assert "never taken" in caplog.text
    assert CheckpointConfig(interval=2).interval == 2


# Saving


def test_interval_one_saves_after_every_node_that_succeeded() -> None:
    """G5: node.complete, then checkpoint.save, then the next node."""
    events: list[Event] = []
    checkpoint = CheckpointConfig(MemoryStore(), interval=1)
    line(3, Nodes(), observer=events.append, checkpoint=checkpoint).execute({})
    order = [(event.type, event.data["node"]) for event in events if event.data.get("node")]
    assert order == [
        (kind, node) for node in names(1, 2, 3) for kind in ("node.start", "node.complete", "checkpoint.save")
    ]


@pytest.mark.parametrize(
    ("interval", "saved", "run_again"),
    [(1, (1, 2, 3, 4, 5), ()), (2, (2, 4), (5,)), (3, (3,), (4, 5)), (5, (5,), ()), (6, (), (1, 2, 3, 4, 5))],
)
def test_interval_n_saves_after_every_nth_node_and_a_resume_runs_again_what_was_not_saved(
    interval: int, saved: tuple[int, ...], run_again: tuple[int, ...]
) -> None:
    """G5, G6: seven nodes, a crash in the sixth; no saved node runs again, every other one does."""
    store, nodes, events = MemoryStore(), Nodes(), []
    checkpoint = CheckpointConfig(store, interval)
    nodes.once["n6"] = throw(Crash())
    with pytest.raises(Crash):
        line(7, nodes, observer=events.append, checkpoint=checkpoint).execute({}, run_id="r")
    assert saves(events) == names(*saved)
    assert nodes.ran == names(1, 2, 3, 4, 5)
    nodes.ran.clear()
    final = line(7, nodes, checkpoint=checkpoint).resume("r")
    assert nodes.ran == names(*run_again, 6, 7)
    assert final["path"] == names(1, 2, 3, 4, 5, 6, 7)


def test_interval_zero_saves_nothing() -> None:
    """G5: checkpointing is off: the store isn't touched, and there is nothing to resume."""
    store, events = MemoryStore(), []
    checkpoint = CheckpointConfig(store, interval=0)
    graph = line(3, Nodes(), observer=events.append, checkpoint=checkpoint)
    run_id = graph.execute({}).run_id
    assert saves(events) == []
    assert store.list(RunFilter()) == []
    with pytest.raises(UsageError, match="resume needs a store, and graph 'line' has none"):
        graph.resume(run_id)


def test_a_store_with_interval_zero_saves_a_run_only_where_it_stops() -> None:
    """G5: what `compile(store=…, interval=0)` means: a crash loses the nodes, a failure doesn't."""
    nodes = Nodes()
    graph = line(4, nodes).compile(store="memory://", interval=0)
    nodes.once["n3"] = throw(Crash())
    with pytest.raises(Crash):
        graph.execute({}, run_id="r")
    nodes.once["n3"] = throw(ValueError())
    with pytest.raises(ExecutionError):
        graph.resume("r")
    assert nodes.ran == names(1, 2, 1, 2)
    assert graph.resume("r")["path"] == names(1, 2, 3, 4)
    assert nodes.ran == names(1, 2, 1, 2, 3, 4)


def test_a_stop_is_saved_together_with_the_step_before_it() -> None:
    """G5: whether it is an interrupt, a failure or the end: one save, not two."""
    for settings, broken in (
        ({"interrupt_before": ["n3"]}, False),
        ({"interrupt_after": ["n2"]}, False),
        ({}, True),
    ):
        events: list[Event] = []
        nodes = Nodes()
        if broken:
            nodes.once["n3"] = throw(ValueError())
        graph = line(3, nodes, observer=events.append).compile(
            store="memory://", interval=3 if broken else 1, **settings
        )
        run = graph.invoke({}).wait()
        assert saves(events) == (names(2) if broken else names(1, 2))
        events.clear()
        graph.resume(run.id)
        assert saves(events) == names(3)


def test_a_run_that_fails_keeps_what_was_done_since_the_last_save() -> None:
    """G5, G6: a stop is always saved, so only the failed node runs again."""
    nodes = Nodes()
    graph = line(5, nodes).compile(store="memory://", interval=100)
    nodes.once["n5"] = throw(ValueError())
    with pytest.raises(ExecutionError):
        graph.execute({}, run_id="r")
    assert graph.state_at("r")["path"] == names(1, 2, 3, 4)
    graph.resume("r")
    assert nodes.ran == names(1, 2, 3, 4, 5)


def test_the_phase_of_the_interval_continues_over_a_resume() -> None:
    """G7: saved after nodes 3, 6 and 9, although the run was resumed after node 4."""
    nodes, events = Nodes(), []
    graph = line(10, nodes, observer=events.append).compile(store="memory://", interval=3)
    nodes.once["n5"] = throw(ValueError())
    with pytest.raises(ExecutionError):
        graph.execute({}, run_id="r")
    assert saves(events) == names(3, 4)
    events.clear()
    graph.resume("r")
    assert saves(events) == names(6, 9, 10)


# Resuming


@pytest.mark.parametrize("place", range(1, 6))
def test_a_resume_continues_with_the_node_after_the_newest_checkpoint(place: int) -> None:
    """G6: wherever the run crashed, in a new graph object; finished nodes never run again."""
    store, nodes = MemoryStore(), Nodes()
    nodes.once[f"n{place}"] = throw(Crash())
    with pytest.raises(Crash):
        line(5, nodes).compile(store=store).execute({"given": 1}, {"setting": 2}, run_id="r")
    final = line(5, nodes).compile(store=store).resume("r")
    assert nodes.ran == names(1, 2, 3, 4, 5)
    assert final == {"given": 1, "path": names(1, 2, 3, 4, 5)}
    assert (final.run_id, final.checkpoint_node) == ("r", "n5")


def test_a_run_can_crash_at_every_node_and_still_completes() -> None:
    """G6: one resume after the other."""
    nodes = Nodes()
    nodes.once = {name: throw(Crash()) for name in names(1, 2, 3, 4)}
    graph = line(4, nodes).compile(store="memory://")
    with pytest.raises(Crash):
        graph.execute({}, run_id="r")
    for _ in range(3):
        with pytest.raises(Crash):
            graph.resume("r")
    assert graph.resume("r")["path"] == nodes.ran == names(1, 2, 3, 4)


def test_what_follows_is_decided_once_and_not_again_by_a_resume() -> None:
    """G6: the edge that was taken is stored with the step."""
    nodes, asked = Nodes(), []
    graph = StateGraph()
    for name in "abc":
        graph.add_node(name, run=nodes)
    graph.set_entry_point("a").set_finish_point("b").set_finish_point("c")
    graph.add_conditional_edges(
        "a", lambda state: asked.append(1) or ("b" if len(asked) == 1 else "c"), ["b", "c"]
    )
    graph.compile(store="memory://")
    nodes.once["b"] = throw(Crash())
    with pytest.raises(Crash):
        graph.execute({}, run_id="r")
    assert graph.resume("r")["path"] == ["a", "b"]
    assert asked == [1]


def test_a_resume_may_bring_values_and_settings() -> None:
    """G6, F6: they are merged over what was saved, and are durable."""
    nodes, seen = Nodes(), []

    def look(state: State, config: dict[str, Any], node: str) -> dict[str, Any]:
        seen.append((state.get("x"), dict(config)))
        return nodes(state, node)

    graph = line(3, look).compile(store="memory://")
    nodes.once["n2"] = throw(ValueError())
    with pytest.raises(ExecutionError):
        graph.execute({"x": 1}, {"a": 1, "b": 1}, run_id="r")
    nodes.once["n2"] = throw(Crash())
    with pytest.raises(Crash):
        graph.resume("r", {"x": 2}, config={"b": 2})
    graph.resume("r")
    assert seen == [(1, {"a": 1, "b": 1})] * 2 + [(2, {"a": 1, "b": 2})] * 3


def test_an_unknown_run_can_not_be_resumed() -> None:
    """G6: the error names it."""
    graph = line(2, Nodes()).compile(store="memory://")
    with pytest.raises(RunNotFound, match="no run 'ghost' in this store"):
        graph.resume("ghost")


def test_a_run_of_another_graph_can_not_be_resumed() -> None:
    """G6: it names both graphs."""
    store, nodes = MemoryStore(), Nodes()
    nodes.once["n1"] = throw(ValueError())
    with pytest.raises(ExecutionError):
        line(2, nodes).compile(store=store).execute({}, run_id="r")
    other = loop(3, nodes).compile(store=store)
    with pytest.raises(UsageError, match="run 'r' belongs to graph 'line', not to 'loop'"):
        other.resume("r")
    assert line(2, nodes).compile(store=store).resume("r")["path"] == names(1, 2)


def test_a_run_at_a_node_that_no_longer_exists_says_so() -> None:
    """G6, F10: and can be resumed once the node is back."""
    store, nodes = MemoryStore(), Nodes()
    nodes.once["n3"] = throw(ValueError())
    with pytest.raises(ExecutionError):
        line(3, nodes).compile(store=store).execute({}, run_id="r")
    with pytest.raises(DefinitionError, match="is at node 'n3', which is no longer in the graph"):
        line(2, nodes).compile(store=store).resume("r")
    assert line(3, nodes).compile(store=store).resume("r")["path"] == names(1, 2, 3)


def test_a_run_that_is_being_run_can_not_be_resumed_by_a_second_one() -> None:
    """G6: one writer at a time; the error names the holder."""
    graph = line(2, Nodes()).compile(store="memory://")
    run = graph.stream({})
    next(run)
    with pytest.raises(Conflict, match=r"held by process \d+ on .* \(this process\)") as caught:
        graph.resume(run.id)
    assert caught.value.run_id == run.id
    assert [event["type"] for event in run] == ["state", "final"]


def test_the_error_for_a_missing_run_says_where_it_was_looked_for(tmp_path: Path) -> None:
    """Invariant 9: the wrong directory is the usual reason."""
    graph = StateGraph(name="g").add_node("n").set_entry_point("n").set_finish_point("n")
    with pytest.raises(RunNotFound, match=r"looked in .*runs\.db"):
        graph.compile(store=tmp_path / "runs.db").resume("missing")


# Budgets


@pytest.mark.parametrize("store", [None, "memory://"])
def test_the_budget_of_iterations_is_kept(store: str | None) -> None:
    """G2: a run of exactly that many nodes completes, and one more fails before it runs."""
    assert loop(5, count, max_iterations=5).compile(store=store).execute({})["n"] == 5
    with pytest.raises(ExecutionError, match=r"max_iterations \(5\) exceeded") as caught:
        loop(6, count, max_iterations=5).compile(store=store).execute({})
    assert caught.value.state == {"n": 5}
    assert caught.value.path == ["again"] * 6


def test_the_budget_of_iterations_continues_over_a_resume() -> None:
    """G7: five before the crash and five after it are ten."""
    calls: list[int] = []

    def crash_at_six(state: State) -> dict[str, Any]:
        calls.append(1)
        if len(calls) == 6:
            raise Crash
        return count(state)

    graph = loop(11, crash_at_six, max_iterations=10).compile(store="memory://")
    with pytest.raises(Crash):
        graph.execute({}, run_id="r")
    with pytest.raises(ExecutionError, match=r"max_iterations \(10\) exceeded") as caught:
        graph.resume("r")
    assert caught.value.state == {"n": 10}
    assert len(calls) == 11
    with pytest.raises(ExecutionError, match="max_iterations"):
        graph.resume("r")
    assert len(calls) == 11


def test_a_larger_budget_lets_a_run_that_used_it_up_continue() -> None:
    """G7: nothing that was done is done again."""
    store = MemoryStore()
    with pytest.raises(ExecutionError):
        loop(8, count, max_iterations=5).compile(store=store).execute({}, run_id="r")
    assert loop(8, count, max_iterations=8).compile(store=store).resume("r")["n"] == 8


def test_visits_steps_and_path_continue_over_a_resume() -> None:
    """G7: the node's third visit is its third, before or after a crash; the path of an error is whole."""
    seen: list[tuple[int, int]] = []

    def look(state: State, ctx: NodeContext) -> dict[str, Any]:
        seen.append((ctx.visit, ctx.step))
        if len(seen) == 3:
            raise Crash
        if len(seen) == 6:
            raise ValueError
        return count(state)

    graph = loop(9, look).compile(store="memory://")
    with pytest.raises(Crash):
        graph.execute({}, run_id="r")
    with pytest.raises(ExecutionError) as caught:
        graph.resume("r")
    assert seen == [(1, 1), (2, 2), (3, 3), (3, 3), (4, 4), (5, 5)]
    assert caught.value.path == ["again"] * 5


# The end


def test_a_run_whose_result_is_not_to_be_kept_leaves_a_summary() -> None:
    """G8, H10: `keep_result=False` deletes its journal at once; one row has the outcome of the run."""
    store = MemoryStore()
    graph = line(3, Nodes()).compile(store=store, keep_result=False)
    final = graph.execute({}, tags=["nightly"])
    (info,) = graph.runs()
    assert (info.run_id, info.graph, info.status, info.step) == (final.run_id, "line", "completed", 3)
    assert (info.tags, info.error, info.questions, info.holder) == (("nightly",), None, [], None)
    assert store.read(final.run_id, first=1).records == []
    for call in (graph.history, graph.state_at, graph.fork):
        with pytest.raises(UsageError, match=r"was deleted when it completed; keep_result=True"):
            call(final.run_id)


@pytest.mark.parametrize("say", ["checkpoint", "compile"])
def test_with_preserve_the_checkpoints_stay(say: str) -> None:
    """G8: `preserve=True`, in the config or in compile."""
    if say == "checkpoint":
        graph = line(3, Nodes(), checkpoint=CheckpointConfig(MemoryStore(), 1, preserve=True))
    else:
        graph = line(3, Nodes()).compile(store="memory://", preserve=True)
    run_id = graph.execute({}).run_id
    assert [checkpoint.node for checkpoint in graph.history(run_id)] == [None, *names(1, 2, 3)]
    assert graph.state_at(run_id)["path"] == names(1, 2, 3)
    assert graph.runs()[0].status == "completed"


@pytest.mark.parametrize("preserve", [False, True])
def test_a_completed_run_says_that_it_is_complete_and_never_runs_past_its_exit(preserve: bool) -> None:
    """G8: by run id and by checkpoint; nothing runs, and the run stays as it is."""
    nodes = Nodes()
    graph = line(3, nodes).compile(store="memory://", preserve=preserve)
    run_id = graph.execute({}).run_id
    with pytest.raises(AlreadyCompleted, match="is complete") as caught:
        graph.resume(run_id, {"more": 1})
    assert caught.value.run_id == run_id
    for checkpoint in (f"{run_id}@2", f"{run_id}@3"):
        with pytest.raises(AlreadyCompleted):
            list(graph.invoke(None, checkpoint=checkpoint))
    assert nodes.ran == names(1, 2, 3)
    assert [(info.status, info.step) for info in graph.runs()] == [("completed", 3)]


def test_what_did_not_complete_is_not_deleted() -> None:
    """G8: only success deletes."""
    nodes = Nodes()
    graph = line(3, nodes).compile(store="memory://")
    nodes.once["n3"] = throw(ValueError())
    with pytest.raises(ExecutionError):
        graph.execute({}, run_id="r")
    assert [checkpoint.node for checkpoint in graph.history("r")] == [None, *names(1, 2)]
    (info,) = graph.runs("failed")
    assert (info.node, info.reason) == ("n3", "ValueError")
    assert info.error is not None
    assert (info.error["type"], info.error["node"]) == ("ValueError", "n3")
    assert "Traceback" in info.error["traceback"]


def test_runs_can_be_listed_by_status_tag_and_graph() -> None:
    """G8: newest first, and those of other graphs only when asked for."""
    store, nodes = MemoryStore(), Nodes()
    graph = line(1, nodes).compile(store=store)
    for name, tags in (("a", ["x"]), ("b", "x"), ("c", [])):
        graph.execute({}, run_id=name, tags=tags)
    nodes.once["n1"] = throw(ValueError())
    with pytest.raises(ExecutionError):
        graph.execute({}, run_id="d")
    loop(1, count).compile(store=store).execute({}, run_id="e")
    assert [info.run_id for info in graph.runs()] == ["d", "c", "b", "a"]
    assert [info.run_id for info in graph.runs("completed", tag="x")] == ["b", "a"]
    assert [info.run_id for info in graph.runs(limit=1)] == ["d"]
    assert [info.run_id for info in Runs(store).list(graph="loop")] == ["e"]
    assert {info.run_id for info in Runs(store).list()} == set("abcde")
    with pytest.raises(UsageError, match="a run's status is one of running, paused, completed"):
        graph.runs("done")
    with pytest.raises(UsageError, match="a tag must be a non-empty str"):
        graph.execute({}, tags=[""])


def test_an_exception_without_a_text_is_still_saved() -> None:
    """G9: whatever it does when it is asked for one."""

    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no")

    def node(state: Any) -> None:
        raise Mute

    graph = stored_chain(node)
    with pytest.raises(ExecutionError, match="Mute"):
        graph.execute({})
    assert graph.runs()[0].status == "failed"


# A save that fails


@pytest.mark.parametrize("raises", [True, False], ids=["raised", "returned"])
@pytest.mark.parametrize("place", [1, 2, 3])
def test_a_save_that_fails_stops_the_run_at_once(place: int, raises: bool) -> None:
    """G9: `ExecutionError` naming node, state, path and cause; no node runs after it."""
    store, nodes = FailingStore(place, raises), Nodes()
    graph = line(4, nodes).compile(store=store)
    with pytest.raises(
        ExecutionError, match="checkpoint save failed: StoreUnavailable: the disk is full"
    ) as caught:
        graph.execute({}, run_id="r")
    done = names(*range(1, place + 1))
    assert nodes.ran == done
    assert caught.value.node == f"n{place}"
    assert caught.value.state == {"path": done}
    assert caught.value.path == done
    assert isinstance(caught.value.cause, StoreUnavailable)
    assert caught.value.run_id == "r"


def test_what_was_saved_before_a_failed_save_can_be_resumed() -> None:
    """G9: the node whose save failed runs again, those before it don't."""
    store, nodes = FailingStore(3), Nodes()
    graph = line(4, nodes).compile(store=store)
    with pytest.raises(ExecutionError):
        graph.execute({}, run_id="r")
    assert graph.state_at("r")["path"] == names(1, 2)
    assert graph.resume("r")["path"] == names(1, 2, 3, 4)
    assert nodes.ran == names(1, 2, 3, 3, 4)


def test_a_failed_save_reports_no_checkpoint() -> None:
    """G9: no save event, no interrupt, no path: an error, and nothing else."""
    seen: list[Event] = []
    graph = line(3, Nodes(), observer=seen.append).compile(store=FailingStore(2), interrupt_before=["n3"])
    (event,) = graph.invoke({})
    assert event["type"] == "error"
    assert "checkpoint_path" not in event
    assert saves(seen) == names(1)
    assert [event.type for event in seen][-1] == "run.fail"
    assert not [event for event in seen if event.type == "run.pause"]


def test_a_final_save_that_fails_is_a_failure_too() -> None:
    """G9: a run isn't reported complete unless that is stored."""
    store, nodes = FailingStore(3), Nodes()
    graph = line(3, nodes).compile(store=store)
    with pytest.raises(ExecutionError, match="checkpoint save failed") as caught:
        graph.execute({}, run_id="r")
    assert (caught.value.node, caught.value.path) == ("n3", names(1, 2, 3))
    assert graph.runs()[0].status == "running"
    assert graph.resume("r")["path"] == names(1, 2, 3)
    assert nodes.ran == names(1, 2, 3, 3)


@pytest.mark.parametrize("stop", ["failure", "cancellation", "retry"])
def test_a_stop_that_can_not_be_saved_is_a_failed_save(stop: str) -> None:
    """G9: of a failed or cancelled run, or of an attempt; what was saved before can be resumed."""
    nodes = Nodes()
    graph = line(3, nodes).compile(store=FailingStore(1 if stop == "cancellation" else 2))
    if stop == "retry":
        graph = (
            StateGraph(name="line")
            .add_node("n1", run=nodes)
            .add_node("n2", run=nodes, retry=Retry(backoff=0))
        )
        graph.add_node("n3", run=nodes).add_edge("n1", "n2").add_edge("n2", "n3")
        graph.set_entry_point("n1").set_finish_point("n3").compile(store=FailingStore(2))
    run = graph.invoke({}, run_id="r")
    if stop == "cancellation":
        nodes.once["n1"] = run.cancel
    else:
        nodes.once["n2"] = throw(ValueError())
    (event,) = run
    assert (event["type"], event["node"], event["state"]) == ("error", "n1", {"path": names(1)})
    assert "checkpoint save failed: StoreUnavailable: the disk is full" in event["error"]
    assert graph.resume("r")["path"] == names(1, 2, 3)
    assert nodes.ran == (names(1, 1, 2, 3) if stop == "cancellation" else names(1, 2, 3))


def test_a_run_that_can_not_be_created_runs_nothing() -> None:
    """G9: the store's own error, before the first node."""
    store, nodes = MemoryStore(), Nodes()
    graph = line(2, nodes).compile(store=store)
    store.close()
    with pytest.raises(StoreUnavailable):
        graph.execute({})
    assert nodes.ran == []


def test_a_run_that_was_taken_over_stops_with_a_conflict() -> None:
    """G9: it isn't ours to fail any more; nothing of the new holder's is overwritten."""
    store, nodes = MemoryStore(), Nodes()
    graph = line(3, nodes).compile(store=store)
    nodes.once["n2"] = lambda: store.claim("r", "another process", 60, instead_of=store.head("r").fence)
    with pytest.raises(Conflict):
        graph.execute({}, run_id="r")
    assert nodes.ran == names(1, 2)
    head = store.head("r")
    assert (head.holder, head.status, graph.state_at("r")["path"]) == ("another process", "running", names(1))


# Cancelling


def check_cancelled(graph: StateGraph, run: Run, nodes: Nodes, done: int, length: int) -> None:
    """The run stopped after `done` nodes with the last good state, says so, and can be resumed."""
    assert nodes.ran == names(*range(1, done + 1))
    assert run.status == "cancelled"
    assert run.state.get("path", []) == names(*range(1, done + 1))
    assert isinstance(run.error, RunCancelled)
    with pytest.raises(RunCancelled, match=rf"was cancelled before 'n{done + 1}'"):
        run.result()
    assert [info.status for info in graph.runs()] == ["cancelled"]
    assert graph.resume(run.id)["path"] == nodes.ran == names(*range(1, length + 1))


@pytest.mark.parametrize("how", ["run", "graph"])
def test_a_run_can_be_cancelled_from_another_thread(how: str) -> None:
    """G12: it stops between two nodes with the last good state; what was saved can be resumed."""
    nodes, running, proceed = Nodes(), threading.Event(), threading.Event()
    nodes.once["n2"] = lambda: (running.set(), proceed.wait(SOON))
    graph = line(4, nodes).compile(store="memory://")
    run = graph.invoke({})
    with ThreadPoolExecutor(1) as pool:
        events = pool.submit(list, run)
        assert running.wait(SOON)
        run.cancel() if how == "run" else graph.cancel(run.id)
        proceed.set()
        (event,) = events.result(SOON)
    assert (event["type"], event["node"], event["state"]) == ("cancelled", "n3", {"path": names(1, 2)})
    check_cancelled(graph, run, nodes, 2, 4)


@pytest.mark.parametrize("kind", ["node.start", "node.complete", "checkpoint.save"])
def test_a_run_can_be_cancelled_by_an_observer(kind: str) -> None:
    """G12: whatever it has just seen."""
    nodes, cancelled = Nodes(), []

    def watch(event: Event) -> None:
        if event.type == kind and event.data["node"] == "n2" and not cancelled:
            cancelled.append(event)
            graph.cancel(event.data["run_id"])

    graph = line(4, nodes, observer=watch).compile(store="memory://")
    run = graph.invoke({}).wait()
    done = 1 if kind == "node.start" else 2
    check_cancelled(graph, run, nodes, done, 4)


def test_a_run_can_be_cancelled_by_its_own_node_and_before_it_begins() -> None:
    """G12: the node that asks for it still completes."""
    nodes = Nodes()
    graph = line(3, nodes).compile(store="memory://")
    run = graph.invoke({})
    nodes.once["n2"] = run.cancel
    run.wait()
    check_cancelled(graph, run, nodes, 2, 3)
    nodes.ran.clear()
    early = line(3, nodes).compile(store="memory://")
    run = early.invoke({})
    run.cancel()
    run.wait()
    check_cancelled(early, run, nodes, 0, 3)


def test_a_run_can_be_cancelled_through_the_store_by_a_process_that_does_not_hold_it() -> None:
    """G12: the request is left in the store, and found at the next save."""
    store, nodes = MemoryStore(), Nodes()
    graph = line(4, nodes).compile(store=store)
    elsewhere = line(4, nodes).compile(store=store, lease=99)
    run = graph.invoke({})
    nodes.once["n2"] = lambda: elsewhere.cancel(run.id)
    run.wait()
    check_cancelled(graph, run, nodes, 2, 4)


def test_a_run_that_no_process_holds_is_cancelled_at_once() -> None:
    """G12: a crashed or a paused one; it can be resumed all the same."""
    nodes = Nodes()
    graph = line(3, nodes).compile(store="memory://")
    nodes.once["n2"] = throw(Crash())
    with pytest.raises(Crash):
        graph.execute({}, run_id="r")
    graph.cancel("r")
    assert [info.status for info in graph.runs()] == ["cancelled"]
    assert graph.resume("r")["path"] == nodes.ran == names(1, 2, 3)


def test_a_cancelled_question_is_asked_again() -> None:
    """G12, D11: cancelling a paused run answers nothing."""
    graph = line(1, asking()).compile(store="memory://")
    run = graph.invoke({}).wait()
    graph.cancel(run.id)
    (info,) = graph.runs("cancelled")
    assert info.questions == []
    with pytest.raises(RunPaused, match=r"Ship it\?"):
        graph.resume(run.id)
    assert graph.resume(run.id, "yes") == {"answer": "yes"}


def test_a_run_that_has_ended_can_not_be_cancelled() -> None:
    """G12: nor an unknown one."""
    graph = line(1, Nodes()).compile(store="memory://")
    run_id = graph.execute({}).run_id
    with pytest.raises(UsageError, match=r"has already ended \(status: completed\)"):
        graph.cancel(run_id)
    with pytest.raises(RunNotFound):
        graph.cancel("ghost")


def test_a_run_that_waits_to_be_tried_again_can_be_cancelled() -> None:
    """G12, H8: the wait of an hour ends at once, and the attempts so far stay counted."""
    attempts: list[Any] = []
    waiting = threading.Event()

    def fail(ctx: NodeContext) -> dict[str, Any]:
        attempts.append(ctx.attempt)
        if len(attempts) == 1:
            raise ValueError
        return {"done": True}

    def watch(event: Event) -> None:
        if event.type == "node.retry":
            waiting.set()

    graph = StateGraph(observer=watch).add_node("a", run=fail, retry=Retry(backoff=3600, max_delay=3600))
    graph.set_entry_point("a").set_finish_point("a").compile(store="memory://")
    run = graph.invoke({})
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(run.wait)
        assert waiting.wait(SOON)
        run.cancel()
        done.result(SOON)
    assert run.status == "cancelled"
    assert graph.resume(run.id) == {"done": True}
    assert attempts == [1, 2]


def test_a_run_that_is_cancelled_when_it_is_about_to_wait_does_not_wait() -> None:
    """G12, H8: by the observer that gets the event of the wait."""

    def fail(state: State) -> None:
        raise ValueError

    def watch(event: Event) -> None:
        if event.type == "node.retry":
            run.cancel()

    graph = StateGraph(observer=watch).add_node("a", run=fail, retry=Retry(backoff=3600, max_delay=3600))
    run = graph.set_entry_point("a").set_finish_point("a").compile(store="memory://").invoke({})
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(run.wait).result(SOON).status == "cancelled"


def test_without_a_store_a_cancelled_run_still_gives_its_last_good_state() -> None:
    """G12: there is nothing to resume, but what was done can be read."""
    nodes = Nodes()
    run = line(3, nodes).invoke({})
    nodes.once["n1"] = run.cancel
    (event,) = run
    assert (event["type"], event["state"]) == ("cancelled", {"path": names(1)})
    assert nodes.ran == names(1)


# Many at once


def test_many_runs_at_once_do_not_see_one_another() -> None:
    """P6: each has its own state, in one graph, one store and many threads."""
    graph = StateGraph().add_node("a", run=lambda state: {"items": [*state.get("items", []), state["who"]]})
    graph.set_entry_point("a").set_finish_point("a").add_edge(
        "a", "a", lambda state: len(state["items"]) < 20
    )
    graph.compile(store="memory://", preserve=True)
    with ThreadPoolExecutor(8) as pool:
        finals = list(pool.map(lambda who: graph.execute({"who": who}, run_id=f"run{who}"), range(40)))
    for who, final in enumerate(finals):
        assert final == {"who": who, "items": [who] * 20}
        assert graph.state_at(f"run{who}") == final


def test_nothing_of_a_run_can_be_read_or_deleted_through_another_id() -> None:
    """P6: ids that look alike are different, and there are no wildcards."""
    nodes = Nodes()
    graph = line(2, nodes).compile(store="memory://", interrupt_before=["n2"])
    alike = ["run", "Run", "run1", "r%", "run_", "r*", "run@1", "run@1@1"]
    for name in alike:
        graph.invoke({"mine": name}, run_id=name).wait()
    graph.resume("run@1")
    for name in alike:
        if name != "run@1":
            assert graph.state_at(name)["mine"] == name
    graph.cancel("r%")
    assert {info.run_id: info.status for info in graph.runs()} == {
        **dict.fromkeys(alike, "paused"),
        "run@1": "completed",
        "r%": "cancelled",
    }
    for ghost in ("ru", "run2", "%", "*", "run@", ""):
        for call in (graph.state_at, graph.history, graph.resume, graph.cancel, graph.fork):
            with pytest.raises(RunNotFound):
                call(ghost)
    with pytest.raises(RunNotFound):
        list(graph.invoke(None, checkpoint="run2@1"))


def test_a_choice_between_runs_is_made_by_the_whole_reference() -> None:
    """P6, F4: a reference is a run id, '@' and a step, even if the id has an '@' in it."""
    graph = line(2, Nodes()).compile(store="memory://", interrupt_before=["n2"])
    for name in ("run", "run@1"):
        (event,) = graph.invoke({"mine": name}, run_id=name)
        assert event["checkpoint_path"] == f"{name}@1"
    (final,) = graph.invoke(None, checkpoint="run@1@1")
    assert final["state"]["mine"] == "run@1"
    (final,) = graph.invoke(None, checkpoint="run@1")
    assert final["state"]["mine"] == "run"


def test_a_graph_without_a_store_says_what_it_needs() -> None:
    """G6: each call that looks at stored runs."""
    graph = line(1, Nodes()).add_edge("n1", "n1", key_exists("never"))
    for what, call in {
        "resume": lambda: graph.resume("r"),
        "history": lambda: graph.history("r"),
        "state_at": lambda: graph.state_at("r"),
        "diff": lambda: graph.diff("r", 0, 1),
        "runs": graph.runs,
        "cancel": lambda: graph.cancel("r"),
        "fork": lambda: graph.fork("r"),
        "rollback": lambda: graph.rollback("r", 0),
    }.items():
        with pytest.raises(
            UsageError, match=rf"{what} needs a store, and graph 'line' has none: compile\(store=…\)"
        ):
            call()
