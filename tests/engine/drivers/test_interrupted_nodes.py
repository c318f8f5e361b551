"""A cancel interrupts async nodes at once, and sync ones where they call `ctx.check()`. H3, H7."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from time import monotonic, sleep
from typing import Any

import pytest

from limpet import MemoryStore, Retry, RunCancelled, StateGraph, Workflow, once, supervise
from support.posts import post_cancel
from support.waiting import SOON, until

PLACES = ["single", "branch", "map", "subgraph", "task"]
Node = Callable[..., Any]


def in_place(place: str, node: Node, store: Any, **options: Any) -> Any:
    """A graph with the node by itself, beside a branch, in a map, in a graph inside a node, or in a workflow."""
    if place == "task":
        flow = Workflow("flow")
        flow.add_task("node", node, **options)
        flow.add_task("other", lambda ctx: None)
        return flow.compile(store=store)
    graph = StateGraph({"log": list, "items": list}, name="g")
    if place == "single":
        graph.add_node("node", run=node, **options).add_node("after", run=lambda state: None)
        graph.set_entry_point("node").add_edge("node", "after").set_finish_point("after")
    elif place == "subgraph":
        inner = StateGraph({"log": list}, name="inner").add_node("node", run=node, **options)
        inner.set_entry_point("node").set_finish_point("node")
        graph.add_node("outer", run=inner).set_entry_point("outer").set_finish_point("outer")
    else:
        graph.add_node("src", run=lambda state: {"items": [1, 2]}).set_entry_point("src")
        graph.add_node("node", run=node, **options)
        graph.add_fanin_node("join").set_finish_point("join")
        if place == "map":
            graph.add_map("src", "node", over="items", fan_in="join")
        else:
            graph.add_node("other", run=lambda state: None)
            graph.add_parallel_edge("src", "node", "join").add_parallel_edge("src", "other", "join")
    return graph.compile(store=store)


class Bench:
    """A run whose node waits, until it is cancelled or, at the second try, returns."""

    def __init__(self, place: str, api: str) -> None:
        self.place = place
        self.api = api
        self.store = MemoryStore()
        self.begun = 0
        self.attempts: list[int] = []
        self.seen: list[str] = []
        self.may_end = False
        self.run: Any = None

    def graph(self, node: Node, **options: Any) -> Any:
        return in_place(self.place, node, self.store, **options)

    def cancel_when_begun(self, graph: Any, times: int = 1) -> None:
        """Run it, and ask it to stop this many times once its node is in progress. With 0, the node does that."""
        expected = 2 if self.place == "map" else 1
        run = graph.invoke({}, run_id="r") if self.api == "sync" else graph.ainvoke({}, run_id="r")
        self.run = run

        def cancel() -> None:
            until(lambda: self.begun >= expected or not times)
            for _ in range(times):
                run.cancel()
                sleep(0.01)

        canceller = threading.Thread(target=cancel)
        canceller.start()
        if self.api == "sync":
            run.wait()
        else:
            asyncio.run(self._wait(run))
        canceller.join()
        assert run.status == "cancelled"
        assert self.store.head("r").status == "cancelled"

    async def _wait(self, run: Any) -> None:
        async with asyncio.timeout(SOON):
            await run.wait()
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0, "the task that awaits the run isn't cancelled"
        await asyncio.sleep(0)

    def resume(self, graph: Any) -> None:
        self.may_end = True
        if self.api == "sync":
            graph.resume("r")
        else:
            asyncio.run(graph.aresume("r"))
        assert self.store.head("r").status == "completed"


@pytest.fixture(params=["sync", "async"])
def api(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=PLACES)
def bench(request: pytest.FixtureRequest, api: str) -> Bench:
    return Bench(request.param, api)


def test_an_async_node_sees_a_cancelled_error_and_runs_again_after_a_resume(bench: Bench) -> None:
    """H3: the run is cancelled at once, that isn't a failure, and no attempt is used up."""

    async def node(ctx: Any) -> None:
        bench.attempts.append(ctx.attempt)
        bench.begun += 1
        try:
            await asyncio.sleep(0 if bench.may_end else SOON)
        except asyncio.CancelledError:
            bench.seen.append("cancelled")
            raise

    graph = bench.graph(node, retry=Retry(attempts=2, backoff=0.0))
    began = monotonic()
    bench.cancel_when_begun(graph)
    assert monotonic() - began < SOON / 2
    calls = 2 if bench.place == "map" else 1
    assert bench.seen == ["cancelled"] * calls
    bench.resume(graph)
    assert bench.attempts == [1] * (2 * calls)


def test_a_node_can_clean_up_however_often_the_run_is_cancelled(bench: Bench) -> None:
    """H3: it is interrupted once, although each renewal of the lease repeats the request."""

    async def node(ctx: Any) -> None:
        bench.begun += 1
        try:
            await asyncio.sleep(0 if bench.may_end else SOON)
        finally:
            for _ in range(10):
                await asyncio.sleep(0.01)
            bench.seen.append("clean")

    graph = bench.graph(node)
    bench.cancel_when_begun(graph, times=5)
    assert bench.seen == ["clean"] * bench.begun
    bench.resume(graph)


def test_what_a_node_raises_instead_is_not_a_failure(bench: Bench) -> None:
    """H3: libraries turn a cancellation into errors of their own, and task groups into groups of them."""

    async def stubborn() -> None:
        try:
            await asyncio.sleep(SOON)
        finally:
            raise ConnectionError("closed")

    async def node(ctx: Any) -> None:
        bench.attempts.append(ctx.attempt)
        bench.begun += 1
        if not bench.may_end:
            async with asyncio.TaskGroup() as group:
                group.create_task(stubborn())
                async with asyncio.TaskGroup() as inner:
                    inner.create_task(stubborn())

    graph = bench.graph(node, retry=Retry(attempts=3, backoff=0.0))
    bench.cancel_when_begun(graph)
    bench.resume(graph)
    assert set(bench.attempts) == {1}


def test_the_result_of_a_node_that_completes_all_the_same_is_kept(bench: Bench) -> None:
    """H3: it catches the error and completes, as a sync node does. It doesn't run again."""

    async def node(ctx: Any) -> None:
        bench.begun += 1
        try:
            await asyncio.sleep(SOON)
        except asyncio.CancelledError:
            await asyncio.sleep(0.01)

    graph = bench.graph(node)
    bench.cancel_when_begun(graph)
    calls = bench.begun
    bench.resume(graph)
    assert bench.begun == calls


def test_a_node_that_takes_too_long_to_clean_up_has_not_failed(bench: Bench) -> None:
    """H3: its timeout ends it, and it is cancelled all the same."""

    async def node(ctx: Any) -> None:
        bench.attempts.append(ctx.attempt)
        bench.begun += 1
        if bench.may_end:
            return
        # By itself, so that the cancel certainly comes before the timeout.
        bench.run.cancel()
        try:
            await asyncio.sleep(SOON)
        except asyncio.CancelledError:
            await asyncio.sleep(SOON)

    graph = bench.graph(node, timeout=1.0, retry=Retry(attempts=1))
    bench.cancel_when_begun(graph, times=0)
    bench.resume(graph)
    assert set(bench.attempts) == {1}


def test_a_sync_node_stops_where_it_checks(bench: Bench) -> None:
    """H3: no `except Exception` keeps it, `finally` is executed, and it runs again after a resume."""

    def node(ctx: Any) -> None:
        bench.attempts.append(ctx.attempt)
        bench.begun += 1
        try:
            while not bench.may_end:
                ctx.check()
                sleep(0.002)
        except Exception:
            bench.seen.append("caught")
        finally:
            bench.seen.append("left")

    graph = bench.graph(node, retry=Retry(attempts=2, backoff=0.0))
    bench.cancel_when_begun(graph)
    assert bench.seen == ["left"] * bench.begun
    bench.resume(graph)
    assert set(bench.attempts) == {1}
    assert "caught" not in bench.seen


@pytest.mark.parametrize("bench", ["single", "branch"], indirect=True)
def test_a_call_that_timed_out_ends_where_it_checks(bench: Bench) -> None:
    """H3: nothing else can end its thread, which was left behind."""

    def node(ctx: Any) -> None:
        bench.begun += 1
        try:
            while bench.begun == 1:
                ctx.check()
                sleep(0.002)
        finally:
            bench.seen.append("left")

    graph = bench.graph(node, timeout=1.0, retry=Retry(attempts=20, backoff=0.0))
    graph.execute({})
    until(lambda: len(bench.seen) == bench.begun)
    assert bench.begun > 1


def test_what_an_async_once_has_done_is_kept_although_the_node_is_interrupted(api: str) -> None:
    """H2: the interrupt arrives while the store keeps the result."""
    bench = Bench("single", api)
    appending = threading.Event()
    append = bench.store.append
    calls: list[int] = []

    def slow_append(commits: Any) -> Any:
        if bench.begun == 1 and not appending.is_set():
            appending.set()
            sleep(0.2)
        return append(commits)

    bench.store.append = slow_append  # type: ignore[method-assign]  # a store that is slow just then

    async def pay() -> int:
        calls.append(1)
        bench.begun += 1
        return 7

    async def node(state: Any) -> dict[str, Any]:
        return {"log": [await once("pay", pay)]}

    graph = bench.graph(node)
    run = graph.invoke({}, run_id="r") if api == "sync" else graph.ainvoke({}, run_id="r")

    def cancel() -> None:
        appending.wait(SOON)
        run.cancel()

    canceller = threading.Thread(target=cancel)
    canceller.start()
    if api == "sync":
        run.wait()
    else:
        asyncio.run(bench._wait(run))
    canceller.join()
    assert run.status == "cancelled"
    bench.resume(graph)
    assert calls == [1]


def test_the_cancellation_of_the_awaiting_task_wins(api: str) -> None:
    """H7: a run that is cancelled and whose caller is cancelled at once passes the caller's on, and is released."""
    bench = Bench("branch" if api == "sync" else "single", "async")

    async def node(ctx: Any) -> None:
        bench.begun += 1
        await asyncio.sleep(SOON)

    graph = bench.graph(node)

    async def main() -> None:
        run = graph.ainvoke({}, run_id="r")
        waiting = asyncio.ensure_future(run.wait())
        while not bench.begun:
            await asyncio.sleep(0.002)
        run.cancel()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(main())
    assert bench.store.head("r").holder is None


@pytest.mark.parametrize("on_loop", [False, True])
@pytest.mark.parametrize("kind", ["async", "sync"])
def test_a_worker_that_is_stopped_lets_its_nodes_finish(kind: str, on_loop: bool) -> None:
    """H1: a handover isn't a cancel: async nodes aren't interrupted, and `ctx.check()` does nothing."""
    bench = Bench("single", "sync")

    async def waiting(ctx: Any) -> None:
        bench.begun += 1
        while not bench.may_end:
            await asyncio.sleep(0.002)
        bench.seen.append("done")

    def checking(ctx: Any) -> None:
        bench.begun += 1
        while not bench.may_end:
            ctx.check()
            sleep(0.002)
        ctx.check()
        bench.seen.append("done")

    graph = bench.graph(waiting if kind == "async" else checking)
    graph.start(run_id="r")
    supervisor = supervise(bench.store, [graph], poll=0.02)

    def let_end_once_stopping() -> None:
        until(lambda: supervisor.resumer.stopping)
        sleep(0.05)
        bench.may_end = True

    async def main() -> None:
        async with supervisor:
            while not bench.begun:
                await asyncio.sleep(0.002)
            ending.start()

    ending = threading.Thread(target=let_end_once_stopping)
    if on_loop:
        asyncio.run(main())
    else:
        with supervisor:
            until(lambda: bench.begun)
            ending.start()
    ending.join()
    assert bench.seen == ["done"]


def test_a_graph_that_an_async_node_awaits_is_left_in_order() -> None:
    """H7: the inner run is a run of its own; it is released, and can be resumed."""
    bench = Bench("single", "async")

    async def inner_node(state: Any) -> None:
        bench.begun += 1
        await asyncio.sleep(SOON)

    inner = StateGraph(name="inner").add_node("n", run=inner_node).set_entry_point("n").set_finish_point("n")
    inner.compile(store=bench.store)

    async def node(state: Any) -> None:
        await inner.aexecute({}, run_id="inner")

    bench.cancel_when_begun(bench.graph(node))
    head = bench.store.head("inner")
    assert (head.status, head.holder) == ("running", None)


def test_execute_raises_that_the_run_was_cancelled(api: str) -> None:
    """H3: as for a cancel between two nodes; it can be resumed."""
    bench = Bench("single", api)

    async def node(state: Any, ctx: Any) -> None:
        bench.begun += 1
        if bench.begun == 1:
            threading.Thread(target=post_cancel, args=(bench.store, ctx.run_id)).start()
            await asyncio.sleep(SOON)

    graph = bench.graph(node)
    graph.compile(store=bench.store, lease=0.3)

    def execute() -> None:
        if api == "sync":
            graph.execute({}, run_id="r")
        else:
            asyncio.run(graph.aexecute({}, run_id="r"))

    with pytest.raises(RunCancelled):
        execute()
    bench.resume(graph)
