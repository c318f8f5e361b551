"""Runs that are queued for the supervisors of a store: `start`, and one sweep with `recover`. H1, P7."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Annotated, Any

import pytest

from limpet import (
    ExecutionError,
    MemoryStore,
    RunCancelled,
    RunExists,
    RunNotFound,
    RunPaused,
    RunQuarantined,
    State,
    StateGraph,
    StoreUnavailable,
    UnstorableValue,
    UsageError,
    Workflow,
    append,
    pause,
)
from limpet.engine.node_context.questions import ResumeInput
from limpet.engine.sessions.resume import resume
from limpet.engine.sessions.trials import CrashLimits
from limpet.journal.store import NewRun, RunHead
from limpet.testing.conformance.store_calls import ManualClock
from support.graphs import chain


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def on_clock(clock: ManualClock) -> MemoryStore:
    """A store whose time passes when the test says so."""
    return MemoryStore(clock=clock)


def noting(store: Any, name: str = "noting", calls: list[Any] | None = None, **compiled: Any) -> StateGraph:
    """A graph of one node that notes which runs it was called for."""

    def note(state: State, ctx: Any) -> dict[str, Any]:
        if calls is not None:
            calls.append(ctx.run_id)
        return {"log": [state.get("word", "hello")]}

    graph = StateGraph({"log": Annotated[list, append]}, name=name).add_node("note", run=note)
    graph.set_entry_point("note").set_finish_point("note")
    return graph.compile(store=store, **compiled)


def test_a_queued_run_is_durable_and_begins_later(store: Any) -> None:
    """H1: nothing of it is called before a supervisor takes it on, and its result is kept."""
    calls: list[str] = []
    graph = noting(store, calls=calls)
    run = graph.start({"word": "hi"}, tags=["t"])
    assert (run.status, calls) == ("running", [])
    assert (run.info.tags, run.info.holder) == (("t",), None)
    assert dict(run.state) == {"log": [], "word": "hi"}
    assert graph.recover() == [run.id]
    assert run.result(0)["log"] == ["hi"]
    assert run.state["log"] == ["hi"]
    assert calls == [run.id]
    assert repr(run) == f"<RunHandle {run.id}>"


def test_the_same_id_twice_is_one_run(store: Any) -> None:
    """H1, H10: the first counts; also while it runs, when it has ended, and from another process."""
    calls: list[str] = []
    graph = noting(store, calls=calls)
    first = graph.start({"word": "one"}, run_id="r")
    second = graph.start({"word": "one"}, run_id="r", priority=9)
    assert first.id == second.id
    graph.recover()
    assert noting(store, calls=calls).start({"word": "one"}, run_id="r").result(0)["log"] == ["one"]
    assert graph.recover() == []
    assert calls == ["r"]


def test_another_start_with_the_same_id_is_refused(store: Any) -> None:
    """H10: another input is another start, and an existing run is never changed."""
    graph = noting(store)
    graph.start({"word": "one"}, run_id="r")
    with pytest.raises(RunExists, match="started with another input"):
        graph.start({"word": "two"}, run_id="r")
    with pytest.raises(RunExists):
        graph.start({"word": "one"}, run_id="r", if_exists="error")
    with pytest.raises(UsageError, match="if_exists is"):
        graph.start({"word": "one"}, run_id="r", if_exists="ignore")
    assert dict(graph.state_at("r")) == {"log": [], "word": "one"}


def test_the_id_of_another_graphs_run_is_refused(store: Any) -> None:
    """H1."""
    noting(store).start(run_id="r")
    with pytest.raises(RunExists):
        noting(store, name="other").start(run_id="r")


def test_a_workflow_is_queued_alike(store: Any) -> None:
    """H1."""
    flow = Workflow("flow").add_task("a", lambda: 1).add_task("b", lambda a: a + 1, depends_on=["a"])
    flow.compile(store=store)
    run = flow.start(run_id="w")
    assert flow.recover() == ["w"]
    assert run.result(0).results["b"] == 2


def test_what_cannot_be_queued_is_refused(store: Any) -> None:
    """H1: before anything is stored."""
    with pytest.raises(UsageError, match="needs a store"):
        noting(None).start()
    graph = noting(store)
    for wrong in (1.5, "1", True, None):
        with pytest.raises(UsageError, match="priority is a whole number"):
            graph.start(priority=wrong)
    for delay in (-1, "soon", float("inf"), None):
        with pytest.raises(UsageError, match="delay"):
            graph.start(delay=delay)
    for name in ("", "x" * 201, "a\nb", 5):
        with pytest.raises(UsageError, match="run id"):
            graph.start(run_id=name)
    with pytest.raises(UnstorableValue):
        graph.start({"word": object()})
    with pytest.raises(UnstorableValue):
        graph.start(config={"word": object()})
    with pytest.raises(UsageError, match="a tag must be"):
        graph.start(tags=[""])
    assert graph.runs() == []


def test_a_delayed_run_begins_when_it_is_time(clock: ManualClock, on_clock: MemoryStore) -> None:
    """H9: by the store's clock, and no process holds it until then."""
    graph = noting(on_clock)
    run = graph.start(delay=timedelta(hours=1))
    head = on_clock.head(run.id)
    assert (head.due, head.holder, head.status) == (clock.now + 3600, None, "running")
    clock.advance(3599)
    assert graph.recover() == []
    clock.advance(1)
    assert graph.recover() == [run.id]
    assert on_clock.head(run.id).crashes == 0


def test_a_config_is_queued_with_the_run(store: Any) -> None:
    """H1."""
    graph = StateGraph(name="g").add_node("a", run=lambda state, config: {"who": config["who"]})
    graph.set_entry_point("a").set_finish_point("a").compile(store=store)
    run = graph.start(config={"who": "ann"})
    graph.recover()
    assert run.result(0)["who"] == "ann"


def test_urgent_runs_come_first(clock: ManualClock, on_clock: MemoryStore) -> None:
    """H1: then those that have waited longest."""
    calls: list[str] = []
    graph = noting(on_clock, calls=calls)
    for name, priority in (("b", 0), ("idle", -5), ("urgent", 9), ("c", 0)):
        graph.start(run_id=name, priority=priority)
        clock.advance(1)
    assert graph.recover(concurrency=1) == ["urgent", "b", "c", "idle"]
    assert calls == ["urgent", "b", "c", "idle"]


def test_a_queued_run_that_asks_can_be_waited_for(store: Any) -> None:
    """G12: `wait` ends with the question, and `result` raises it."""
    graph = StateGraph(name="g").add_node("a", run=lambda state: {"said": pause("Well?")})
    graph.set_entry_point("a").set_finish_point("a").compile(store=store)
    run = graph.start()
    graph.recover()
    assert run.wait(0).questions[0].prompt == "Well?"
    with pytest.raises(RunPaused) as caught:
        run.result(0)
    assert [each.prompt for each in caught.value.questions] == ["Well?"]
    graph.resume(run.id, "yes")
    assert run.result(0)["said"] == "yes"


def test_a_queued_run_that_fails_says_why(store: Any) -> None:
    """H1: it is failed in the store, no supervisor tries it again by itself, and a resume does."""
    calls: list[int] = []

    def flaky(state: State) -> dict[str, Any]:
        calls.append(1)
        if len(calls) == 1:
            raise ValueError("no")
        return {"done": True}

    graph = StateGraph(name="g").add_node("a", run=flaky).set_entry_point("a").set_finish_point("a")
    graph.compile(store=store)
    run = graph.start()
    assert graph.recover() == [run.id]
    with pytest.raises(ExecutionError, match="no") as caught:
        run.result(0)
    assert (caught.value.node, caught.value.run_id) == ("a", run.id)
    assert graph.recover() == []
    assert graph.resume(run.id)["done"] is True
    assert run.status == "completed"


def test_a_queued_run_can_be_cancelled_before_it_begins(store: Any) -> None:
    """P7: then it never does."""
    calls: list[str] = []
    graph = noting(store, calls=calls)
    run = graph.start()
    graph.cancel(run.id)
    assert graph.recover() == []
    with pytest.raises(RunCancelled):
        run.result(0)
    assert calls == []
    assert graph.start(run_id=run.id).status == "cancelled"


def test_waiting_for_a_run_that_no_process_executes_ends(store: Any) -> None:
    """H1: with a hint."""
    run = noting(store).start()
    with pytest.raises(TimeoutError, match="is a supervisor running for its graph"):
        run.wait(0.05)


def test_a_run_that_was_deleted_is_not_found(on_clock: MemoryStore) -> None:
    """H1."""
    run = noting(on_clock).start()
    on_clock.delete(run.id)
    with pytest.raises(RunNotFound):
        run.wait(1)


def test_starting_does_not_block_an_event_loop(store: Any) -> None:
    """H1: and the async calls come to the same."""

    async def main() -> list[str]:
        graph = noting(store)
        run = await graph.astart({"word": "hi"}, run_id="r", priority=1)
        assert await graph.arecover() == ["r"]
        return list(run.result(0)["log"])

    assert asyncio.run(main()) == ["hi"]


def test_a_sweep_leaves_other_graphs_alone(store: Any) -> None:
    """H1: and runs that another process holds."""
    mine, other = noting(store), noting(store, name="other")
    other.start(run_id="o")
    mine.start(run_id="m")
    assert mine.recover() == ["m"]
    assert other.recover() == ["o"]


def test_observers_see_a_queued_run_start_once(store: Any) -> None:
    """H1: when it begins, not when it is queued."""
    seen: list[str] = []

    graph = StateGraph(name="g", observer=lambda event: seen.append(event.type)).add_node("a")
    graph.set_entry_point("a").set_finish_point("a").compile(store=store)
    graph.start()
    assert seen == []
    graph.recover()
    assert seen.count("graph.start") == 1
    assert seen.count("graph.complete") == 1


def test_a_start_that_fails_can_be_made_again(on_clock: MemoryStore) -> None:
    """H1: with the same id it is one run, whether or not the first was stored."""

    class Flaky(MemoryStore):
        def __init__(self, before: bool) -> None:
            super().__init__()
            self.before, self.fails = before, True

        def create(self, run: NewRun) -> Any:
            if self.before and self.fails:
                self.fails = False
                raise StoreUnavailable("it is away")
            lease = super().create(run)
            if self.fails:
                self.fails = False
                raise StoreUnavailable("the connection was lost")
            return lease

    for before in (True, False):
        calls: list[str] = []
        graph = noting(Flaky(before), calls=calls)
        with pytest.raises(StoreUnavailable):
            graph.start(run_id="r")
        assert graph.start(run_id="r").status == "running"
        assert graph.recover() == ["r"]
        assert calls == ["r"]


def test_a_sweep_takes_what_a_dead_holder_left(clock: ManualClock, on_clock: MemoryStore) -> None:
    """H1: when its lease has run out, and not before."""
    calls: list[str] = []
    graph = noting(on_clock, calls=calls)
    run = graph.start()
    on_clock.claim(run.id, "somewhere else", 10)
    clock.advance(9)
    assert graph.recover() == []
    clock.advance(2)
    assert graph.recover() == [run.id]
    assert (calls, on_clock.head(run.id).crashes) == ([run.id], 1)


def crash_holders(store: MemoryStore, clock: ManualClock, run_id: str, times: int) -> None:
    """`times` holders claim a run and crash."""
    for _ in range(times):
        store.claim(run_id, "somewhere else", 10)
        clock.advance(11)


def crash_alone(graph: StateGraph, clock: ManualClock, run_id: str, times: int) -> None:
    """`times` supervisors resume a run that executes alone, and crash."""
    limits = CrashLimits(max_crashes=100, suspect_from=1, has_turn=True, is_alone=True)
    for _ in range(1 + times):  # the first one makes it a suspect
        resume(graph.compiled(), run_id, ResumeInput(timed=True), limits=limits)
        clock.advance(11)


def test_a_run_that_crashes_its_process_too_often_is_quarantined(
    clock: ManualClock, on_clock: MemoryStore
) -> None:
    """H1: after this many times in a row, and not before; it says why, and a resume tries it again."""
    calls: list[str] = []
    graph = noting(on_clock, calls=calls)
    spared, run = graph.start(run_id="spared"), graph.start(run_id="poison")
    crash_alone(graph, clock, spared.id, 2)
    crash_alone(graph, clock, run.id, 3)
    assert graph.recover() == ["spared"]  # the other one isn't resumed
    assert calls == ["spared"]
    head: RunHead = on_clock.head(run.id)
    assert (head.status, head.due, head.holder) == ("failed", None, None)
    assert run.info.error == {
        "type": "RunQuarantined",
        "message": "its process crashed 3 times in a row at node 'note', so the run was quarantined",
        "node": "note",
    }
    with pytest.raises(RunQuarantined, match="crashed 3 times in a row"):
        run.result(0)
    assert graph.recover() == []
    assert graph.resume(run.id)["log"] == ["hello"]
    assert run.status == "completed"


@pytest.mark.parametrize("when", ["interrupt_before", "interrupt_after"])
def test_a_quarantine_approves_no_interrupt_and_repeats_no_finished_node(
    clock: ManualClock, on_clock: MemoryStore, when: str
) -> None:
    """F3, H1, invariant 1: a run crashes before it can stop at an interrupt, or after its approval."""
    ran: list[str] = []
    graph = chain(lambda state: ran.append("n1"), lambda state: ran.append("n2"))
    graph.compile(store=on_clock, interrupt_before=["n1"], interrupt_after=["n1"])
    run = graph.start(run_id="r")
    if when == "interrupt_after":
        graph.recover()
        run.answer()
        graph.recover()
        assert (run.status, ran) == ("paused", ["n1"])
        run.answer()
    crash_alone(graph, clock, run.run_id, 3)
    graph.recover()
    assert run.info.shown_status == "quarantined"
    run.retry()
    graph.recover()
    assert (run.status, ran) == (
        ("paused", []) if when == "interrupt_before" else ("completed", ["n1", "n2"])
    )


def test_max_crashes_says_how_often(clock: ManualClock, on_clock: MemoryStore) -> None:
    """H1."""
    graph = noting(on_clock)
    run = graph.start()
    crash_alone(graph, clock, run.id, 1)
    graph.recover(max_crashes=1)
    assert run.status == "failed"
    for wrong in (0, -1, 1.5, True):
        with pytest.raises(UsageError, match="max_crashes must be a whole number of at least 1"):
            graph.recover(max_crashes=wrong)


def test_progress_between_crashes_makes_them_no_row(clock: ManualClock, on_clock: MemoryStore) -> None:
    """H1: what counts is how often its process crashed without any progress."""

    lives: list[int] = []

    def step(state: State) -> dict[str, Any]:
        return {"log": ["x"]}

    graph = StateGraph({"log": Annotated[list, append]}, name="g").add_node("a", run=step)
    graph.add_node("ask", run=lambda state: {"log": [pause("Well?", deadline=10, default="-")]})
    graph.add_edge("a", "ask").add_edge("ask", "a", lambda state: len(state["log"]) < 6)
    graph.set_entry_point("a").set_finish_point("ask").compile(store=on_clock)
    run = graph.start()
    while run.status != "completed":
        assert len(lives) < 10
        lives.append(1)
        if run.status == "running":
            crash_holders(on_clock, clock, run.id, 2)
        graph.recover()
        clock.advance(11)
    assert run.state["log"] == ["x", "-"] * 3
