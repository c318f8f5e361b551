"""Nodes with limits: what a slot covers, and runs whose calls wait for one. H18."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic
from typing import Any
from weakref import ref

import pytest

from limpet import (
    DefinitionError,
    ExecutionError,
    Limit,
    Limits,
    MemoryStore,
    NodeContext,
    Retry,
    RunCancelled,
    RunNotFound,
    RunPaused,
    Runs,
    RunWaiting,
    State,
    StateGraph,
    Workflow,
    pause,
    receive,
    sleep,
    supervise,
)
from limpet.engine.leases.lease_client import client_for
from limpet.engine.leases.limit_slots import SlotRequest, limits_of
from limpet.journal.store import NewRun, Store
from limpet.stores.user_stores.checkpointer import MemoryCheckpointer
from limpet.testing import FaultyStore
from support.graphs import Via, gather, single
from support.waiting import until

ONE = Limit("one", concurrency=1)


def test_a_store_whose_limit_was_waited_for_can_be_freed() -> None:
    """H18: nothing in the process keeps it."""
    store = MemoryStore()
    graph = StateGraph({"items": list, "n": int}, name="g")
    graph.add_node("begin")
    graph.add_node("each", run=lambda state: {"n": 1}, limits=[ONE])
    graph.add_fanin_node("join", lambda state, parallel_results: {"n": len(parallel_results)})
    graph.add_map("begin", "each", "items", "join")
    graph.set_entry_point("begin").set_finish_point("join").compile(store=store)
    assert graph.execute({"items": [1, 2, 3]})["n"] == 3
    kept = ref(store)
    del store, graph

    def is_freed() -> bool:
        gc.collect()
        return kept() is None

    until(is_freed)


class Gate:
    """A node function that notes who is inside, and holds up each call until it is let through."""

    def __init__(self, open_for: str = "") -> None:
        self.inside: list[str] = []
        self.calls: list[tuple[str, int, int]] = []
        self.most = 0
        self._open = set(open_for)
        self._changed = threading.Condition()

    def __call__(self, state: State, ctx: NodeContext) -> dict[str, Any]:
        name = ctx.run_id
        with self._changed:
            self.inside.append(name)
            self.calls.append((name, ctx.attempt, ctx.visit))
            self.most = max(self.most, len(self.inside))
            self._changed.wait_for(lambda: name in self._open or "*" in self._open, 60)
            self.inside.remove(name)
        return {"done": name}

    def let(self, *names: str) -> None:
        """Let the calls of these runs through, now or when they come; of all, if one is a star."""
        with self._changed:
            self._open.update(names)
            self._changed.notify_all()


class Meter:
    """A node function that takes a moment, and notes how many calls were under way at once."""

    def __init__(self) -> None:
        self.now = 0
        self.most = 0
        self.calls = 0
        self._lock = threading.Lock()

    def __call__(self, *args: Any, **given: Any) -> dict[str, Any]:
        with self._lock:
            self.now += 1
            self.calls += 1
            self.most = max(self.most, self.now)
        threading.Event().wait(0.01)
        with self._lock:
            self.now -= 1
        return {}


@contextmanager
def executed(graph: StateGraph, *names: str) -> Iterator[dict[str, Any]]:
    """Execute runs of these names in threads; at the end of the block, all of them have ended."""
    results: dict[str, Any] = {}

    def execute(name: str) -> None:
        try:
            results[name] = graph.execute({}, run_id=name)
        except Exception as error:
            results[name] = error

    threads = []
    for name in names:
        threads.append(threading.Thread(target=execute, args=(name,), daemon=True))
        threads[-1].start()
    yield results
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


def waits_for_slot(runs: Runs, run_id: str) -> bool:
    with suppress(RunNotFound):  # it hasn't begun
        return runs.get(run_id).info.waits_for == "slot"
    return False


def held(store: Any, name: str = "one") -> list[str]:
    """The runs that have slots."""
    return [slot.run_id for slot in Limits(store).get(name).held]


def in_line(store: Any) -> list[str]:
    """The runs that stand in line, in order."""
    return [each.run_id for each in Limits(store).waiting("one")]


def gated(gate: Callable[..., Any], store: Any, **policy: Any) -> StateGraph:
    return single(gate, limits=[ONE], **policy).compile(store=store)


# How many calls are under way


def test_a_slot_that_couldnt_be_released_is_released_while_its_run_continues() -> None:
    """H18: also without a supervisor, which would do so."""
    store = FaultyStore(MemoryStore())
    gate = Gate()

    def fail_next(state: State) -> dict[str, Any]:
        store.fail("put_document")
        return {"n": 1}

    graph = StateGraph(name="owes").add_node("a", fail_next, limits=[ONE]).add_node("b", gate)
    graph.add_edge("a", "b").set_entry_point("a").set_finish_point("b").compile(store=store)
    with ThreadPoolExecutor(1) as threads:
        result = threads.submit(graph.execute, {}, run_id="r")
        until(lambda: gate.inside)
        until(lambda: Limits(store).get("one").held == ())
        gate.let("r")
        result.result(60)


def test_no_more_calls_are_under_way_than_the_limit_allows(any_store: Store) -> None:
    """H18: over all runs in the process, on every store; those that wait get their turn."""
    meter = Meter()
    graph = single(meter, limits=[Limit("few", concurrency=2)]).compile(store=any_store)
    with executed(graph, *"abcdef") as results:
        pass
    assert all(isinstance(state, State) for state in results.values())
    assert meter.calls == 6
    assert meter.most <= 2
    assert held(any_store, "few") == []


def test_branches_of_a_map_share_a_limit(store: Any, via: Via) -> None:
    """H18: one run with many branches is held to the limit, and its results are in order."""
    meter = Meter()

    def square(state: State) -> dict[str, Any]:
        meter()
        return {"square": state["item"] ** 2}

    graph = (
        StateGraph(name="map")
        .add_node("src")
        .add_node("square", square, limits=[Limit("few", concurrency=2)])
    )
    graph.add_fanin_node(
        "join", lambda state, parallel_results: {"all": [each["square"] for each in parallel_results]}
    )
    graph.add_map("src", "square", "items", "join").set_entry_point("src").set_finish_point("join")
    graph.compile(store=store)
    assert via.execute(graph, {"items": [*range(7)]})["all"] == [each**2 for each in range(7)]
    assert meter.most <= 2


def test_an_executor_and_async_nodes_hold_to_the_limit(store: Any, via: Via) -> None:
    """H18: whichever thread or event loop calls the node."""
    meter = Meter()

    async def ameter(state: State) -> dict[str, Any]:
        return meter()

    with ThreadPoolExecutor(4) as executor:
        graph = StateGraph(name="both").add_node("src").add_fanin_node("join", gather)
        for number in range(6):
            graph.add_node(f"n{number}", ameter if number % 2 else meter, limits=[ONE])
            graph.add_parallel_edge("src", f"n{number}", "join")
        graph.set_entry_point("src").set_finish_point("join").compile(store=store, executor=executor)
        via.execute(graph, {})
    assert meter.calls == 6
    assert meter.most == 1


def test_tasks_of_a_workflow_and_of_a_run_share_a_limit(store: Any, via: Via) -> None:
    """H18: tasks, tasks that a run adds from a template, and a task with a condition."""
    meter = Meter()
    flow = Workflow("flow")

    @flow.task(limits=[ONE])
    def first(ctx: NodeContext) -> int:
        meter()
        for number in range(3):
            ctx.add_task(f"more{number}", run="more")
        return 1

    flow.add_task("second", lambda: meter() or 2, limits=["one"], condition=lambda: True)
    flow.add_task("third", lambda: meter() or 3, limits=["one"])
    flow.add_template("more", lambda: meter() or 4, limits=["one"])
    flow.compile(store=store)
    state = via.execute(flow, {})  # type: ignore[arg-type]  # a workflow has the same methods
    assert state.results["first"] == 1
    assert {name for name in state.results if name.startswith("more")} == {"more0", "more1", "more2"}
    assert meter.calls == 6
    assert meter.most == 1


def test_a_node_that_runs_a_graph_has_its_slot_meanwhile(store: Any) -> None:
    """H18: from before the first node of the inner graph until after its last."""
    gate = Gate()
    inner = single(gate, "in", name="inner")
    graph = single(inner, limits=[ONE]).compile(store=store)
    with executed(graph, "a", "b"):
        until(lambda: gate.inside)
        until(lambda: len(held(store)) == 1 and Limits(store).get("one").waiting == 1)
        gate.let("*")
    assert gate.most == 1
    assert held(store) == []


def test_a_rate_is_kept_in_any_period(store: Any) -> None:
    """H18: no more calls begin in any period, in whichever run."""
    times: list[float] = []
    graph = single(lambda state: times.append(monotonic()), limits=[Limit("slow", rate="2/0.4s")])
    graph.compile(store=store)
    with executed(graph, *"abcde"):
        pass
    assert len(times) == 5
    times.sort()
    assert all(later - earlier > 0.39 for earlier, later in zip(times, times[2:], strict=False))


# Waiting


def test_a_supervised_run_that_waits_takes_no_place_of_its_worker(any_store: Store) -> None:
    """H18: it is stored as waiting, shows what for, and the post makes it due."""
    gate = Gate()
    graph = gated(gate, any_store)
    runs = Runs(any_store)
    with supervise(any_store, [graph], poll=0.2) as supervisor:
        handles = {name: graph.start({}, run_id=name) for name in "ab"}
        (first,) = until(lambda: gate.inside)
        other = "b" if first == "a" else "a"
        until(lambda: waits_for_slot(runs, other) and supervisor.running == [first])
        info = runs.get(other).info
        assert (info.shown_status, info.holder) == ("waiting", None)
        assert [(wait.kind, wait.name, wait.node) for wait in info.waits] == [("slot", "one", "only")]
        gate.let("*")
        for handle in handles.values():
            handle.result(timeout=60)
    assert gate.most == 1
    assert sorted(gate.calls) == [("a", 1, 1), ("b", 1, 1)]


def test_a_run_that_a_caller_executes_waits_in_place(store: Any, via: Via) -> None:
    """H18: without any supervisor; the wait is neither a visit nor an attempt, and takes nothing of the timeout."""
    gate = Gate()
    graph = gated(gate, store, timeout=0.5, retry=Retry(attempts=1))
    holder = single(gate, limits=[ONE], name="holder").compile(store=store)
    runs = Runs(graph.compiled().client.store)  # type: ignore[union-attr]  # it has a store
    with executed(holder, "a"):
        until(lambda: gate.inside)
        waiting = ThreadPoolExecutor(1).submit(via.execute, graph, {}, run_id="b")
        until(lambda: waits_for_slot(runs, "b"))
        since = monotonic()
        until(lambda: monotonic() - since > 0.6)
        gate.let("*")
        assert waiting.result(60)["done"] == "b"
    assert gate.calls[-1] == ("b", 1, 1)


def test_those_that_wait_are_called_in_the_order_in_which_they_came(store: Any) -> None:
    """H18: the line is fair."""
    gate = Gate()
    graph = gated(gate, store)
    runs = Runs(graph.compiled().client.store)  # type: ignore[union-attr]  # it has a store
    with executed(graph, "a"):
        until(lambda: gate.inside)
        with executed(graph, "b"):
            until(lambda: waits_for_slot(runs, "b"))
            with executed(graph, "c"):
                until(lambda: waits_for_slot(runs, "c"))
                gate.let("*")
    assert [name for name, *_ in gate.calls] == ["a", "b", "c"]


@pytest.mark.parametrize(("had_waited", "line"), [(True, ["a", "c"]), (False, ["c", "a"])])
def test_a_call_whose_worker_crashed_keeps_its_number_if_it_had_waited(
    had_waited: bool, line: list[str]
) -> None:
    """H18: it is before those that came later. One that had its slot at once has no number, and asks as a new one."""
    store = MemoryStore()
    gate = Gate()
    crash = threading.Event()

    def crash_first(state: State, ctx: NodeContext) -> dict[str, Any]:
        if ctx.run_id == "a" and not crash.is_set():
            gate.inside.append("a")
            assert crash.wait(60)
            raise SystemExit(1)  # which a worker counts as a crash of the run's process
        return gate(state, ctx)

    graph = gated(crash_first, store)
    limits = limits_of(client_for(store))
    limits.declare([ONE])
    lease = store.create(NewRun("other", "g", [b"x"], holder="h", ttl=1000.0))
    assert lease is not None
    first = SlotRequest(lease, "", ("one",))
    if had_waited:
        assert limits.acquire([first], stands_in_line=False) == [None]
    with supervise(store, [graph], poll=0.05):
        graph.start({}, run_id="a")
        if had_waited:
            until(lambda: in_line(store) == ["a"])
            limits.release([first])
        until(lambda: gate.inside == ["a"])
        for name in "bc":
            graph.start({}, run_id=name)
            until(lambda name=name: in_line(store)[-1:] == [name])
        crash.set()
        until(lambda: gate.inside[-1] == "b" and Runs(store).get("a").info.holder is None)
        with ThreadPoolExecutor(1) as pool:
            resumed = pool.submit(graph.resume, "a")
            until(lambda: len(in_line(store)) == 2)
            assert in_line(store) == line
            gate.let("*")
            resumed.result(60)
        until(lambda: len(gate.calls) == 3)
    assert [name for name, *_ in gate.calls] == ["b", *line]


def test_several_limits_are_taken_together(store: Any) -> None:
    """H18: calls that need two limits in either order of naming never wait for each other in a circle."""
    meter = Meter()
    graph = StateGraph(name="two").add_node("src").add_fanin_node("join", gather)
    graph.add_node("ab", meter, limits=[Limit("a", concurrency=1), Limit("b", concurrency=1)])
    graph.add_node("ba", meter, limits=["b", "a"])
    graph.add_node("b", meter, limits=["b"])
    for branch in ("ab", "ba", "b"):
        graph.add_parallel_edge("src", branch, "join")
    graph.set_entry_point("src").set_finish_point("join").compile(store=store)
    with executed(graph, *"uvwxyz") as results:
        pass
    assert not [each for each in results.values() if isinstance(each, Exception)]
    assert meter.calls == 18
    assert meter.most == 1
    assert held(store, "a") == held(store, "b") == []


def test_a_waiting_run_can_be_cancelled(store: Any) -> None:
    """H18: in place and in the store; it is never called, and the next in line gets its turn."""
    gate = Gate()
    graph = gated(gate, store)
    runs = Runs(graph.compiled().client.store)  # type: ignore[union-attr]  # it has a store
    with executed(graph, "a", "b", "c") as results:
        (first,) = until(lambda: gate.inside)
        second, third = [name for name in "abc" if name != first]
        until(lambda: waits_for_slot(runs, second) and waits_for_slot(runs, third))
        runs.get(second).cancel()
        until(lambda: isinstance(results.get(second), RunCancelled))
        gate.let("*")
    assert isinstance(results[third], State)
    assert [name for name, *_ in gate.calls] == [first, third]
    assert held(store) == []


def test_the_deadline_of_a_run_passes_while_it_waits(store: Any) -> None:
    """H18: the wait counts for the deadline of the run."""
    gate = Gate()
    graph = gated(gate, store)
    with executed(graph, "a"):
        until(lambda: gate.inside)
        with pytest.raises(ExecutionError, match="deadline"):
            graph.execute({}, run_id="b", deadline=0.3)
        gate.let("*")
    assert [name for name, *_ in gate.calls] == ["a"]


def test_a_user_can_resume_a_run_that_waits(store: Any) -> None:
    """H18: the worker has gone; the resume keeps the place in line, waits there, and gets the slot."""
    gate = Gate()
    graph = gated(gate, store)
    opened = graph.compiled().client.store  # type: ignore[union-attr]  # it has a store
    runs = Runs(opened)
    with executed(graph, "a"):
        until(lambda: gate.inside)
        with supervise(opened, [graph], poll=0.1):
            graph.start({}, run_id="b")
            until(lambda: waits_for_slot(runs, "b"))
        before = Limits(opened).waiting("one")
        resumed = ThreadPoolExecutor(1).submit(graph.resume, "b")
        until(lambda: runs.get("b").info.holder is not None and waits_for_slot(runs, "b"))
        assert Limits(opened).waiting("one") == before
        gate.let("*")
        assert resumed.result(60)["done"] == "b"


def test_a_waiting_run_can_be_forked_rolled_back_and_exported(store: Any, tmp_path: Path) -> None:
    """H18: a copy asks for a slot of its own, and so does the run itself."""
    gate = Gate()
    graph = (
        StateGraph(name="steps")
        .add_node("before", lambda state: {"n": 1})
        .add_node("only", gate, limits=[ONE])
    )
    graph.add_edge("before", "only").set_entry_point("before").set_finish_point("only")
    graph.compile(store=store, preserve=True)
    opened = graph.compiled().client.store  # type: ignore[union-attr]  # it has a store
    runs = Runs(opened)
    with executed(graph, "a"):
        until(lambda: gate.inside)
        with supervise(opened, [graph], poll=0.1):
            graph.start({}, run_id="b")
            until(lambda: waits_for_slot(runs, "b") and runs.get("b").info.holder is None)
        runs.export("b", tmp_path / "b.run")
        elsewhere = MemoryStore()
        assert Runs(elsewhere).import_(tmp_path / "b.run") == "b"
        graph.fork("b", new_run_id="c")
        assert not waits_for_slot(runs, "c")
        graph.rollback("b", 1)
        assert not waits_for_slot(runs, "b")
        gate.let("*")
    assert graph.resume("c")["done"] == "c"
    assert graph.resume("b")["done"] == "b"
    assert held(store) == []
    graph.compile(store=elsewhere)
    assert graph.resume("b")["done"] == "b"


def test_a_failed_run_that_is_retried_asks_again_for_the_slots_that_it_waited_for(store: Any) -> None:
    """H18: when a run ends, it loses its places in line."""
    gate = Gate()
    broken = [True]

    def fails(state: State) -> dict[str, Any]:
        if broken:
            until(lambda: Limits(opened).get("one").waiting == 1)
            raise ValueError("no")
        return {}

    graph = StateGraph(name="fan")
    graph.add_node("src").add_node("limited", gate, limits=[ONE]).add_node("fails", fails)
    graph.add_fanin_node("join", gather).set_entry_point("src").set_finish_point("join")
    graph.add_parallel_edge("src", "limited", "join").add_parallel_edge("src", "fails", "join")
    graph.compile(store=store)
    holder = single(gate, limits=[ONE], name="holder").compile(store=store)
    opened = graph.compiled().client.store  # type: ignore[union-attr]  # it has a store
    with executed(holder, "a"):
        until(lambda: gate.inside)
        with pytest.raises(ExecutionError):
            graph.execute({}, run_id="b")
        broken.clear()
        with supervise(opened, [graph], poll=0.1):
            graph.get("b").retry()
            until(lambda: waits_for_slot(Runs(opened), "b"))
            gate.let("*")
            graph.get("b").result(timeout=60)


def test_the_slot_of_a_dead_holder_comes_back_without_a_supervisor(any_store: Store) -> None:
    """H18: a process that waits in place finds out itself that a holder's lease has ended."""
    client = client_for(any_store, 0.4)
    graph = single(lambda state: {"n": 1}, limits=[ONE]).compile(store=any_store, lease=0.4)
    graph.execute({}, run_id="first")  # which declares the limit
    lease = any_store.create(NewRun("dead", "g", [b"x"], holder="another machine", ttl=0.4))
    assert lease is not None
    assert limits_of(client).acquire([SlotRequest(lease, "call", ("one",))], stands_in_line=False) == [None]
    assert graph.execute({}, run_id="b")["n"] == 1


def test_a_limit_is_raised_while_runs_wait(store: Any) -> None:
    """H18: what is set in the store counts, at once, for those in line."""
    gate = Gate()
    graph = gated(gate, store)
    with executed(graph, *"abc"):
        until(lambda: len(gate.inside) == 1 and Limits(store).get("one").waiting == 2)
        Limits(store).set("one", concurrency=3)
        until(lambda: len(gate.inside) == 3)
        gate.let("*")


# When a slot is released


def returns(state: State) -> dict[str, Any]:
    return {"n": 1}


def raises(state: State) -> None:
    raise ValueError("no")


def asks(state: State) -> dict[str, Any]:
    return {"answer": pause("Ship it?")}


def receives(state: State) -> dict[str, Any]:
    return {"said": receive("word")}


def hangs(state: State) -> None:
    threading.Event().wait(60)


def interrupts(state: State) -> None:
    raise KeyboardInterrupt


ENDINGS: list[tuple[Callable[..., Any], type[BaseException] | None, dict[str, Any]]] = [
    (returns, None, {}),
    (raises, ExecutionError, {}),
    (raises, ExecutionError, {"retry": Retry(attempts=3, backoff=0)}),
    (asks, RunPaused, {}),
    (receives, RunWaiting, {}),
    (hangs, ExecutionError, {"timeout": 0.05}),
    (interrupts, KeyboardInterrupt, {}),
]


@pytest.mark.parametrize(("function", "error", "policy"), ENDINGS)
def test_a_slot_is_released_however_the_call_ends(
    store: Any, function: Callable[..., Any], error: type[BaseException] | None, policy: dict[str, Any]
) -> None:
    """H18: with a result, a failure, a question, a wait, a timeout or an interrupt."""
    graph = gated(function, store, **policy)
    if error is None:
        graph.execute({})
    else:
        with pytest.raises(error):
            graph.execute({})
    assert held(store) == []


def test_a_node_that_sleeps_or_backs_off_has_no_slot_meanwhile(store: Any) -> None:
    """H18: each attempt, and each call after a sleep, asks for another."""
    calls: list[int] = []

    def work(state: State, ctx: NodeContext) -> dict[str, Any]:
        assert held(store) == [ctx.run_id]
        calls.append(ctx.attempt)
        sleep(0.2)
        if ctx.attempt == 1:
            raise ValueError("once more")
        return {"n": 1}

    graph = gated(work, store, retry=Retry(attempts=2, backoff=0.2))
    with executed(graph, "a") as results:
        until(lambda: calls and not held(store))
    assert results["a"]["n"] == 1
    assert calls == [1, 1, 2]


def test_a_run_that_is_cancelled_gives_its_slot_back(store: Any) -> None:
    """H18: an async node that is interrupted, too."""
    import asyncio

    inside = threading.Event()

    async def forever(state: State) -> None:
        inside.set()
        await asyncio.sleep(60)

    graph = gated(forever, store)
    with executed(graph, "a") as results:
        assert inside.wait(60)
        graph.get("a").cancel()
    assert isinstance(results["a"], RunCancelled)
    assert held(store) == []


# Definitions


def test_limits_are_policy_and_not_part_of_the_fingerprint() -> None:
    """H18: a limit can be added to a graph whose runs are under way."""
    plain = single(returns).freeze()
    assert single(returns, limits=[ONE]).freeze().fingerprint == plain.fingerprint
    flow = Workflow().add_task("a", returns)
    assert Workflow().add_task("a", returns, limits=["x"]).freeze().fingerprint == flow.freeze().fingerprint


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: single(returns, limits="one"), "a list"),
        (lambda: single(returns, limits=[1]), "limit"),
        (lambda: Workflow().add_task("a", returns, limits=ONE), "a list"),
        (lambda: single(returns, limits=[ONE]).compile().execute({}), "need a store"),
        (lambda: single(returns).compile(limits=[ONE]).execute({}), "need a store"),
        (lambda: single(returns, limits=[ONE]).compile(checkpointer=MemoryCheckpointer()), "need a store"),
        (lambda: Workflow("w").add_task("a", returns, limits=[ONE]).execute({}), "need a store"),
        (
            lambda: single(single(returns, limits=["one"], name="in"), limits=[ONE]).compile(
                store=MemoryStore()
            ),
            "name the limit in one place",
        ),
        (
            lambda: single(returns, limits=["one"]).compile(store=MemoryStore(), limits=[ONE]),
            "name it in one place",
        ),
        (
            lambda: single(returns, limits=[ONE, Limit("one", concurrency=2)]).compile(store=MemoryStore()),
            "different values",
        ),
    ],
)
def test_what_limits_cannot_be_is_said_when_the_graph_is_defined(
    build: Callable[[], Any], message: str
) -> None:
    """H18: before any node is called."""
    with pytest.raises(DefinitionError, match=message):
        build()
