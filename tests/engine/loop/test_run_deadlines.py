"""A run that hasn't ended by its deadline fails, wherever it is. H16."""

from __future__ import annotations

import asyncio
import multiprocessing
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from limpet import (
    DeadlinePassed,
    ExecutionError,
    MemoryStore,
    Retry,
    RunPaused,
    Runs,
    State,
    StateGraph,
    StoreUnavailable,
    UsageError,
    Workflow,
    once,
    pause,
    sleep,
    supervise,
)
from limpet.engine.node_context.node_context import NodeContext
from limpet.testing import FakeClock
from limpet.testing.conformance.store_calls import ManualClock
from support.graphs import Via, chain, fan, single
from support.waiting import until

AN_HOUR = 3600.0
SHORT = 0.4
"""Seconds: the deadline of runs that would never end."""


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def on_clock(clock: ManualClock) -> MemoryStore:
    """A store whose time passes when the test says so."""
    return MemoryStore(clock=clock)


@pytest.fixture
def never() -> Iterator[threading.Event]:
    """What isn't set before the test has ended."""
    event = threading.Event()
    yield event
    event.set()


def block(event: threading.Event) -> Callable[[State], dict[str, Any]]:
    """A sync node that nothing can interrupt."""

    def run(state: State) -> dict[str, Any]:
        event.wait(60)
        return {"n": -1}

    return run


async def hang(state: State) -> dict[str, Any]:
    """An async node that never ends."""
    await asyncio.sleep(60)
    return {"n": -1}


def doze(state: State) -> dict[str, Any]:
    """A node that sleeps for longer than any deadline here."""
    sleep(2 * AN_HOUR)
    return {"n": 1}


def one(state: State) -> dict[str, Any]:
    return {"n": 1}


def overdue(via: Via, graph: Any, **more: Any) -> DeadlinePassed:
    with pytest.raises(DeadlinePassed) as caught:
        via.execute(graph, {"n": 0}, deadline=SHORT, **more)
    return caught.value


def graph_with(function: Any, store: dict[str, Any], **policy: Any) -> StateGraph:
    graph = StateGraph({"n": int}, name="timed").add_node("first", run=one)
    graph.add_node("last", run=function, **policy).add_edge("first", "last")
    return graph.set_entry_point("first").set_finish_point("last").compile(**store)


def test_a_sync_node_isn_t_waited_for_beyond_the_deadline(
    via: Via, place: dict[str, Any], never: threading.Event
) -> None:
    """H16: as with a timeout. What it does later has no effect; what was done before is kept."""
    error = overdue(via, graph_with(block(never), place))
    assert (error.node, error.code) == ("last", "deadline-passed")
    assert error.state is not None
    assert error.state["n"] == 1
    assert "its deadline passed at" in str(error)


def test_an_async_node_is_cancelled_at_the_deadline(via: Via, place: dict[str, Any]) -> None:
    """H16: and may clean up."""
    seen = []

    async def node(state: State) -> dict[str, Any]:
        try:
            return await hang(state)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    assert overdue(via, graph_with(node, place)).node == "last"
    assert seen == ["cancelled"]


@pytest.mark.parametrize(
    ("function", "policy"),
    [(doze, {}), (lambda state: 1 / 0, {"retry": Retry(attempts=3, backoff=AN_HOUR, jitter=0)})],
    ids=["sleeping", "retrying"],
)
def test_a_run_that_waits_fails_at_the_deadline(
    function: Any, policy: dict[str, Any], via: Via, place: dict[str, Any]
) -> None:
    """H16."""
    assert overdue(via, graph_with(function, place, **policy)).node == "last"


def test_a_clock_that_skips_what_a_run_waits_for_doesnt_skip_its_deadline(via: Via) -> None:
    """H16: with a `FakeClock` that skips by itself, the run fails at its deadline as it does with any other clock."""
    clock = FakeClock(1e9, auto=True)
    graph = single(doze).compile(store=MemoryStore(clock=clock))
    with pytest.raises(DeadlinePassed):
        via.execute(graph, {}, deadline=60)
    assert clock() == pytest.approx(1e9 + 60)


def test_parallel_branches_end_at_the_deadline(
    via: Via, place: dict[str, Any], never: threading.Event
) -> None:
    """H16: whatever each of them does."""
    graph = fan({"blocks": block(never), "hangs": hang, "sleeps": doze, "ends": one}).compile(**place)
    error = overdue(via, graph)
    assert isinstance(error, ExecutionError)


def test_a_task_of_a_workflow_ends_at_the_deadline(via: Via, never: threading.Event, store: Any) -> None:
    """H16."""
    flow = Workflow("timed", store=store)
    flow.add_task("fetch", lambda: 1)
    flow.add_task("wait", lambda fetch: never.wait(60), depends_on=["fetch"])
    with pytest.raises(DeadlinePassed):
        via.execute(flow, {}, deadline=SHORT, run_id="r")
    assert flow.get("r").info.status == "failed"


def test_a_call_in_another_process_isn_t_waited_for(via: Via, tmp_path: Path) -> None:
    """H16."""
    proceed = tmp_path / "proceed"
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        graph = fan({"ends": one, "waits": wait_for_file}).compile(executor=pool)
        with pytest.raises(DeadlinePassed):
            via.execute(graph, {"n": 0, "path": str(proceed)}, deadline=SHORT)
        assert not proceed.exists()
        proceed.touch()


def wait_for_file(state: State) -> dict[str, Any]:
    """A node that a process pool can be sent."""
    until(Path(state["path"]).exists, "the file")
    return {}


def test_what_an_abandoned_node_does_has_no_effect(store: Any) -> None:
    """H16: it can't save anything any more."""
    proceed = threading.Event()
    ended: list[str] = []

    def node(state: State, ctx: NodeContext) -> dict[str, Any]:
        proceed.wait(60)
        try:
            once("paid", lambda: 1)
        except BaseException as error:
            ended.append(type(error).__name__)
            raise
        return {}

    graph = graph_with(node, {"store": store})
    with pytest.raises(DeadlinePassed):
        graph.execute({"n": 0}, deadline=SHORT, run_id="r")
    sequence = graph.compiled().client.store.head("r").sequence  # type: ignore[union-attr]
    proceed.set()
    until(lambda: ended, "the node ends")
    assert graph.compiled().client.store.head("r").sequence == sequence  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "given",
    [
        AN_HOUR,
        timedelta(hours=1),
        "1h",
        "3600s",
        datetime.fromtimestamp(1_000_000 + AN_HOUR, UTC),
        datetime.fromtimestamp(1_000_000 + AN_HOUR, UTC).isoformat(),
    ],
    ids=repr,
)
def test_a_deadline_is_given_in_any_form(given: Any) -> None:
    """H16: seconds, a timedelta, a text, a datetime."""
    clock = ManualClock(1_000_000.0)
    graph = single(lambda state: {"n": pause("Well?")}, "ask", {"n": int}).compile(store=MemoryStore(clock))
    handle = graph.start(deadline=given)
    assert handle.info.deadline == 1_000_000 + AN_HOUR


@pytest.mark.parametrize("given", ["soon", "5 minutes", -1, float("nan"), datetime(2030, 1, 1), True])
def test_a_deadline_that_makes_no_sense_is_refused_before_a_run_exists(given: Any, on_clock: Any) -> None:
    """H16."""
    graph = chain(one).compile(store=on_clock)
    for call in (graph.execute, graph.start, graph.invoke, graph.stream):
        with pytest.raises(UsageError, match="deadline"):
            call({"n": 0}, deadline=given)
    assert graph.runs() == []


def test_a_run_that_ends_in_time_has_no_trouble(via: Via, store: Any) -> None:
    """H16."""
    graph = chain(one, one).compile(store=store)
    assert via.execute(graph, {"n": 0}, deadline="1h")["n"] == 1
    (info,) = graph.runs()
    assert (info.status, info.deadline is not None) == ("completed", True)


def ask(state: State) -> dict[str, Any]:
    return {"n": pause("How many?")}


def test_a_supervisor_fails_a_paused_run_at_its_deadline(clock: ManualClock, on_clock: MemoryStore) -> None:
    """H16: also when nothing else is there; and its question is asked again after a retry."""
    graph = single(ask, "ask", {"n": int}).compile(store=on_clock, preserve=True)
    with pytest.raises(RunPaused):
        graph.execute({"n": 0}, run_id="r", deadline=AN_HOUR)
    clock.advance(AN_HOUR - 1)
    assert graph.recover() == []
    clock.advance(2)
    assert graph.recover() == ["r"]
    info = graph.get("r").info
    assert (info.status, info.error["type"], info.questions) == ("failed", "DeadlinePassed", [])  # type: ignore[index]
    with pytest.raises(DeadlinePassed, match="its deadline passed"):
        graph.get("r").result()
    for again in (graph.resume, lambda run_id: graph.get(run_id).retry()):
        with pytest.raises(DeadlinePassed, match="give it a new one") as caught:
            again("r")
        assert caught.value.next_operation == "retry"
    graph.get("r").retry(deadline=AN_HOUR)
    assert graph.recover() == ["r"]
    assert [question.prompt for question in graph.get("r").questions] == ["How many?"]
    assert graph.resume("r", 7)["n"] == 7


def test_a_retry_asks_again_in_branches_long_before_the_new_deadline(
    clock: ManualClock, on_clock: MemoryStore
) -> None:
    """H16: the run is due at once, although all of its branches wait for answers."""
    graph = StateGraph({"n": int}, name="fan").add_node("src").add_fanin_node("join", lambda state: {})
    for name in ("left", "right"):
        graph.add_node(name, ask).add_parallel_edge("src", name, "join")
    graph.set_entry_point("src").set_finish_point("join").compile(store=on_clock, preserve=True)
    with pytest.raises(RunPaused):
        graph.execute({"n": 0}, run_id="r", deadline=AN_HOUR)
    clock.advance(AN_HOUR)
    assert graph.recover() == ["r"]
    graph.get("r").retry(deadline=AN_HOUR)
    assert graph.recover() == ["r"]
    assert len(graph.get("r").questions) == 2


def test_a_worker_fails_a_run_that_waits(store_url: str) -> None:
    """H16: by the clock of every store."""
    graph = single(ask, "wait", {"n": int}, "timed").compile(store=store_url)
    handle = graph.start({"n": 0}, deadline=0.5)
    with supervise(store_url, [graph], poll=0.1):
        until(lambda: handle.status == "failed", "it fails")
    assert handle.info.error["type"] == "DeadlinePassed"  # type: ignore[index]


def test_a_run_that_was_interrupted_wants_its_approval_after_a_retry(
    clock: ManualClock, on_clock: MemoryStore
) -> None:
    """H16: a deadline approves nothing."""
    graph = chain(one, one).compile(store=on_clock, interrupt_before=["n2"], preserve=True)
    with pytest.raises(RunPaused):
        graph.execute({"n": 0}, run_id="r", deadline=AN_HOUR)
    clock.advance(AN_HOUR)
    assert graph.recover() == ["r"]
    with pytest.raises(RunPaused):
        graph.resume("r", deadline=AN_HOUR)
    assert graph.resume("r")["n"] == 1


def test_a_queued_run_whose_deadline_passes_calls_no_node(clock: ManualClock, on_clock: MemoryStore) -> None:
    """H16: neither one that no worker took, nor one whose delay is longer."""
    called = []
    graph = single(lambda state: called.append(1), "work", {"n": int}).compile(store=on_clock)
    late = graph.start(deadline=AN_HOUR, run_id="late")
    delayed = graph.start(deadline=AN_HOUR, delay=2 * AN_HOUR, run_id="delayed")
    clock.advance(AN_HOUR)
    assert sorted(graph.recover()) == ["delayed", "late"]
    assert (late.status, delayed.status, called) == ("failed", "failed", [])


def test_a_run_whose_process_crashed_fails_at_its_deadline(tmp_path: Path) -> None:
    """H16: in the process that finds it."""
    code = f"""
import os
from limpet import StateGraph
graph = StateGraph({{"n": int}}, name="timed").add_node("work", run=lambda state: os._exit(9))
graph.set_entry_point("work").set_finish_point("work").compile(store="sqlite:///{tmp_path}/runs.db")
graph.execute({{"n": 0}}, run_id="r", deadline=0.4)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 9
    graph = single(one, "work", {"n": int}, "timed").compile(store=f"sqlite:///{tmp_path}/runs.db")
    deadline = graph.get("r").info.deadline
    assert deadline is not None
    until(lambda: graph.compiled().client.now() >= deadline, "the deadline passes")  # type: ignore[union-attr]
    with pytest.raises(DeadlinePassed):
        graph.resume("r")
    assert graph.resume("r", deadline="1h")["n"] == 1


def test_the_same_start_again_has_the_deadline_of_the_first(
    clock: ManualClock, on_clock: MemoryStore
) -> None:
    """H16: until it has passed; then the start says when the run is to end."""
    fails = [True]

    def work(state: State) -> dict[str, Any]:
        if fails:
            raise ValueError("not yet")
        return {"n": 1}

    graph = single(work, "work", {"n": int}).compile(store=on_clock, preserve=True)
    with pytest.raises(ExecutionError):
        graph.execute({"n": 0}, run_id="r", deadline=AN_HOUR)
    first = graph.get("r").info.deadline
    clock.advance(60)
    with pytest.raises(ExecutionError):
        graph.execute({"n": 0}, run_id="r", deadline=AN_HOUR)
    assert graph.get("r").info.deadline == first
    clock.advance(AN_HOUR)
    with pytest.raises(DeadlinePassed):
        graph.execute({"n": 0}, run_id="r")
    fails.clear()
    assert graph.execute({"n": 0}, run_id="r", deadline=AN_HOUR)["n"] == 1


def test_a_fork_has_no_deadline_and_a_rollback_keeps_it(clock: ManualClock, on_clock: MemoryStore) -> None:
    """H16."""
    graph = chain(one, ask).compile(store=on_clock, preserve=True)
    with pytest.raises(RunPaused):
        graph.execute({"n": 0}, run_id="r", deadline=AN_HOUR)
    assert graph.get(graph.fork("r", 1).id).info.deadline is None
    graph.rollback("r", 1)
    assert graph.get("r").info.deadline == clock.now + AN_HOUR
    clock.advance(AN_HOUR)
    assert graph.recover() == ["r"]
    graph.rollback("r", 1)
    assert graph.recover() == []
    with pytest.raises(RunPaused):
        graph.resume("r", deadline=AN_HOUR)


def test_many_failed_runs_get_a_new_deadline(clock: ManualClock, on_clock: MemoryStore) -> None:
    """H16: those that are retried without one stay as they are, and the outcome says why."""
    graph = single(one, "work", {"n": int}).compile(store=on_clock)
    for number in range(3):
        graph.start({"n": 0}, run_id=f"r{number}", deadline=1)
    clock.advance(1)
    graph.recover()
    runs = Runs(on_clock)
    refused = runs.retry(status="failed")
    assert refused.failed == 3
    assert all("its deadline passed" in each.reason for each in refused)
    assert runs.retry(status="failed", deadline="1h").done == 3
    assert len(graph.recover()) == 3
    assert {info.status for info in graph.runs()} == {"completed"}


def test_a_run_deep_in_a_graph_of_a_node_ends_at_the_deadline(
    clock: ManualClock, on_clock: MemoryStore
) -> None:
    """H16: with the path to where it is; and it ends as if nothing had happened, once it has time."""
    inner = single(ask, "ask", {"n": int}, "inner")
    graph = StateGraph({"n": int}, name="outer").add_node("deep", run=inner)
    graph.set_entry_point("deep").set_finish_point("deep").compile(store=on_clock, preserve=True)
    with pytest.raises(RunPaused):
        graph.execute({"n": 0}, run_id="r", deadline=AN_HOUR)
    clock.advance(AN_HOUR)
    assert graph.recover() == ["r"]
    assert graph.get("r").info.error["node"] == "deep/ask"  # type: ignore[index]
    with pytest.raises(RunPaused) as caught:
        graph.resume("r", deadline=AN_HOUR)
    assert [question.prompt for question in caught.value.questions] == ["How many?"]
    assert graph.resume("r", 7)["n"] == 7


@pytest.mark.parametrize("kind", ["branches", "workflow"])
def test_the_deadline_of_a_run_at_several_nodes_names_none_of_them(
    kind: str, via: Via, never: threading.Event, store: Any
) -> None:
    """H16, P5: it is the run's error. One of its nodes asks, and others run."""
    began: list[str] = []

    def slow() -> None:
        began.append("slow")
        never.wait(60)

    graph: Any
    if kind == "workflow":
        graph = Workflow("flow", store=store, preserve=True)
        graph.add_task("ask", lambda: pause("Which?")).add_task("slow", slow)
    else:
        graph = fan({"ask": ask, "slow": slow}, schema={"n": int})
        graph.compile(store=store, preserve=True)
    for deadline in (SHORT, 2.0, 20.0):  # on a busy machine, it may pass before the nodes begin
        began.clear()
        run_id = f"r-{deadline}"
        seen: list[Any] = []
        with pytest.raises(DeadlinePassed, match=f"^run '{run_id}': its deadline passed at ") as caught:
            via.execute(graph, {}, run_id=run_id, deadline=deadline, observers=[seen.append])
        events = list(graph.stream({}, deadline=deadline))
        if len(began) == 2:
            break
    assert began == ["slow", "slow"]
    assert caught.value.node is None
    for again in (graph.get(run_id).result, lambda: graph.resume(run_id)):
        with pytest.raises(DeadlinePassed, match=f"^run '{run_id}': its deadline passed at "):
            again()
    assert [event.data["node"] for event in seen if event.type == "run.fail"] == [None]
    assert [event["node"] for event in events if event["type"] == "error"] == [None]


def test_a_workflow_that_can_t_be_saved_fails_as_a_whole(via: Via) -> None:
    """P5: no node fails that its user didn't write."""

    class FullStore(MemoryStore):
        def append(self, commits: Any) -> Any:
            raise StoreUnavailable("the disk is full")

    flow = Workflow("flow", store=FullStore()).add_task("one", lambda: 1)
    with pytest.raises(ExecutionError, match=r"^run 'r': checkpoint save failed: .*is full") as caught:
        via.execute(flow, {}, run_id="r")
    assert caught.value.node is None


def test_a_workflow_that_is_cancelled_is_at_no_node_that_its_user_didn_t_write(store: Any) -> None:
    """H8: as a whole it is at none."""
    flow = Workflow("flow", store=store)
    flow.add_task("one", lambda: flow.cancel("r")).add_task("two", lambda one: 2)
    events = list(flow.stream({}, run_id="r"))
    assert [event["node"] for event in events if event["type"] == "cancelled"] == [None]
