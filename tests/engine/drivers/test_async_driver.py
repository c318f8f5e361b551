"""Sync and async nodes in one graph, the sync and the async API, from one loop."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, suppress
from typing import Any

import pytest

from limpet import (
    AlreadyCompleted,
    AsyncRun,
    Conflict,
    Event,
    ExecutionError,
    MemoryStore,
    NodeContext,
    Retry,
    RunCancelled,
    RunNotFound,
    RunPaused,
    State,
    StateGraph,
    UsageError,
)
from limpet.journal.store import Abilities, Commit, NewRun
from support.graphs import chain, stored_chain

SOON = 10.0
"""Seconds within which what is waited for has happened, on any machine."""


def note(state: State, node: str) -> dict[str, Any]:
    return {"path": [*state.get("path", []), node]}


async def anote(state: State, node: str) -> dict[str, Any]:
    await asyncio.sleep(0)
    return note(state, node)


class AsyncCall:
    async def __call__(self, state: State, node: str) -> dict[str, Any]:
        return note(state, node)


def line(*functions: Callable[..., Any], **settings: Any) -> StateGraph:
    """A graph of nodes n1 → n2 → …, one for each function."""
    return chain(*functions, name="line", **settings)


def names(*numbers: int) -> list[str]:
    return [f"n{number}" for number in numbers]


async def soon(awaitable: Awaitable[Any]) -> Any:
    return await asyncio.wait_for(awaitable, SOON)


MIXES = {
    "sync": (note, note, note, note),
    "async": (anote, anote, anote, anote),
    "mixed": (note, anote, note, AsyncCall()),
    "mixed the other way": (anote, note, lambda state, node: anote(state, node), note),
}


@pytest.mark.parametrize("store", [None, "memory://"])
@pytest.mark.parametrize("mix", MIXES)
def test_any_mix_of_nodes_gives_the_same_through_either_api(mix: str, store: str | None) -> None:
    """H7: also a plain function that returns something to be awaited."""
    graph = line(*MIXES[mix]).compile(store=store)
    expected = {"given": 1, "path": names(1, 2, 3, 4)}
    assert graph.execute({"given": 1}) == expected
    assert asyncio.run(graph.aexecute({"given": 1})) == expected


@pytest.mark.parametrize("mix", MIXES)
def test_both_apis_yield_the_same_events(mix: str) -> None:
    """H7, F4: `ainvoke` and `astream` for `async for`."""
    graph = line(*MIXES[mix]).compile(store="memory://", interrupt_before=["n3"])

    async def collect(run: AsyncRun) -> list[dict[str, Any]]:
        return [event async for event in run]

    def shape(events: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
        return [(event["type"], event.get("node"), dict(event["state"])) for event in events]

    stopped = list(graph.stream({}))
    astopped = asyncio.run(collect(graph.astream({})))
    assert shape(stopped) == shape(astopped)
    assert [event["type"] for event in astopped] == ["state", "state", "interrupt"]
    resumed = list(graph.invoke({"ok": 1}, checkpoint=stopped[-1]["checkpoint_path"]))
    aresumed = asyncio.run(collect(graph.ainvoke({"ok": 1}, checkpoint=astopped[-1]["checkpoint_path"])))
    assert shape(resumed) == shape(aresumed)
    assert resumed[-1]["state"] == {"ok": 1, "path": names(1, 2, 3, 4)}


def test_observers_get_the_same_events_from_both_apis() -> None:
    """H7, G11: one loop."""
    seen: list[Event] = []
    graph = line(note, anote, note, observer=seen.append).compile(store="memory://")
    graph.execute({})
    sync = [event.type for event in seen]
    seen.clear()
    asyncio.run(graph.aexecute({}))
    assert [event.type for event in seen] == sync


@pytest.mark.parametrize("crashed", ["sync", "async"])
@pytest.mark.parametrize("resumed", ["sync", "async"])
def test_a_run_of_one_api_can_be_resumed_through_the_other(crashed: str, resumed: str) -> None:
    """H7, G6: and no finished node runs again."""
    ran: list[str] = []
    fail = [True]

    async def node(state: State, node: str) -> dict[str, Any]:
        if node == "n2" and fail:
            fail.clear()
            raise ValueError
        ran.append(node)
        return note(state, node)

    graph = line(node, node, node).compile(store="memory://")
    with pytest.raises(ExecutionError) as caught:
        graph.execute({}, run_id="r") if crashed == "sync" else asyncio.run(graph.aexecute({}, run_id="r"))
    assert (caught.value.node, caught.value.path) == ("n2", names(1, 2))
    final = graph.resume("r") if resumed == "sync" else asyncio.run(graph.aresume("r"))
    assert final["path"] == ran == names(1, 2, 3)


def test_the_async_api_raises_what_the_sync_one_does() -> None:
    """H7: paused, completed, unknown, refused."""
    graph = line(note, note).compile(store="memory://", interrupt_before=["n2"])

    async def main() -> None:
        with pytest.raises(RunPaused):
            await graph.aexecute({}, run_id="r")
        assert (await graph.aresume("r"))["path"] == names(1, 2)
        with pytest.raises(AlreadyCompleted):
            await graph.aresume("r")
        with pytest.raises(RunNotFound):
            await graph.aresume("ghost")
        with pytest.raises(UsageError, match="a state key must be a str"):
            await graph.aexecute({1: 2})

    asyncio.run(main())


def test_an_async_run_can_be_read() -> None:
    """H7: its id at once, its state once it has begun."""
    graph = line(anote, note).compile(store="memory://")

    async def main() -> None:
        run = graph.ainvoke({}, run_id="mine")
        assert (run.id, run.status) == ("mine", "running")
        with pytest.raises(UsageError, match="has not begun"):
            _ = run.state
        await run.wait()
        assert (run.status, run.state["path"], run.error, run.questions) == (
            "completed",
            names(1, 2),
            None,
            [],
        )
        assert await run.result() == run.state

    asyncio.run(main())


# The event loop is never blocked


async def heartbeat(beats: list[int], enough: int, then: Callable[[], Any]) -> None:
    """Beat on the event loop; after `enough` beats, call `then`."""
    while len(beats) < enough:
        beats.append(1)
        await asyncio.sleep(0)
    then()


def test_a_sync_node_in_an_async_run_does_not_block_the_event_loop() -> None:
    """H7: the node waits for beats that only a free event loop can make."""
    enough = threading.Event()
    beats = []

    def wait(state: State) -> dict[str, Any]:
        return {"free": enough.wait(SOON), "thread": threading.current_thread() is threading.main_thread()}

    async def main() -> State:
        beating = asyncio.create_task(heartbeat(beats, 50, enough.set))
        final = await line(wait).aexecute({})
        await beating
        return final

    assert asyncio.run(main()) == {"free": True, "thread": False}
    assert len(beats) == 50


class SlowStore(MemoryStore):
    """A store that claims to reach a disk, and whose appends wait for an event."""

    abilities = Abilities(level="process", shared=False)

    def __init__(self) -> None:
        super().__init__()
        self.free = threading.Event()
        self.waited = []

    def append(self, commits: Sequence[Commit]) -> list[Exception | None]:
        self.waited.append(self.free.wait(SOON))
        return super().append(commits)


def test_a_save_in_an_async_run_does_not_block_the_event_loop() -> None:
    """H7: the store waits for beats that only a free event loop can make."""
    store = SlowStore()
    beats = []

    async def main() -> State:
        beating = asyncio.create_task(heartbeat(beats, 50, store.free.set))
        final = await line(anote, note).compile(store=store).aexecute({})
        await beating
        return final

    assert asyncio.run(main())["path"] == names(1, 2)
    assert store.waited
    assert all(store.waited)


def test_async_runs_run_concurrently() -> None:
    """H7: each waits for all the others to have begun."""

    async def main() -> list[State]:
        begun = []
        everyone = asyncio.Event()

        async def meet(state: State) -> dict[str, Any]:
            begun.append(1)
            if len(begun) == 20:
                everyone.set()
            await soon(everyone.wait())
            return {"met": len(begun)}

        graph = line(meet, anote).compile(store="memory://")
        return await asyncio.gather(*(graph.aexecute({"who": who}) for who in range(20)))

    assert asyncio.run(main()) == [{"who": who, "met": 20, "path": ["n2"]} for who in range(20)]


def test_commits_of_many_async_runs_go_to_the_store_together() -> None:
    """H7: those that gather while one is being written."""
    sizes: list[int] = []

    class Gathering(SlowStore):
        def append(self, commits: Sequence[Commit]) -> list[Exception | None]:
            sizes.append(len(commits))
            return super().append(commits)

    store = Gathering()
    begun = []
    beating = []

    async def main() -> list[State]:
        async def begin(state: State) -> dict[str, Any]:
            begun.append(1)
            if len(begun) == 10:
                beating.append(asyncio.create_task(heartbeat([], 50, store.free.set)))
            return {}

        graph = line(begin, anote).compile(store=store)
        return await asyncio.gather(*(graph.aexecute({"who": who}) for who in range(10)))

    finals = asyncio.run(main())
    assert [final["who"] for final in finals] == list(range(10))
    assert max(sizes) > 1


# Sync calls with async nodes


def test_a_sync_call_inside_a_running_event_loop_runs_async_nodes() -> None:
    """H7: a notebook or a callback may call `execute` although a loop is running in its thread."""
    graph = line(anote, note, anote).compile(store="memory://", interrupt_before=["n2"])

    async def main() -> State:
        run = graph.invoke({}).wait()
        return graph.resume(run.id)

    assert asyncio.run(main())["path"] == names(1, 2, 3)


def test_the_async_nodes_of_a_sync_run_share_one_event_loop() -> None:
    """H7: what one opened on it, the next may use; when the run is over, its thread is gone."""
    loops: list[Any] = []
    threads: list[threading.Thread] = []

    async def remember(state: State) -> None:
        loops.append(asyncio.get_running_loop())
        threads.append(threading.current_thread())

    line(remember, note, remember).execute({})
    assert loops[0] is loops[1]
    assert loops[0].is_closed()
    assert threads[0] is threads[1]
    threads[0].join(SOON)
    assert not threads[0].is_alive()


def test_what_an_async_node_left_running_is_cancelled_when_a_sync_run_ends() -> None:
    """H7: no task outlives the loop it was started on."""
    ended: list[str] = []

    async def forever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cancelled")

    async def leave(state: State) -> dict[str, Any]:
        asyncio.get_running_loop().left = asyncio.create_task(forever())  # type: ignore[attr-defined]  # kept alive
        await asyncio.sleep(0)
        return {}

    line(leave).execute({})
    assert ended == ["cancelled"]


@pytest.mark.parametrize("how", ["sync", "async"])
def test_context_variables_of_the_caller_reach_every_node(how: str) -> None:
    """H7: in threads and on event loops."""
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")
    seen: list[str] = []

    def look(state: State) -> None:
        seen.append(variable.get())

    async def alook(state: State) -> None:
        seen.append(variable.get())

    def call() -> None:
        variable.set("caller's")
        graph = line(look, alook)
        graph.add_node("timed", run=look, timeout=SOON).add_edge("n2", "timed", lambda state: True)
        graph.set_finish_point("timed")
        graph.execute({}) if how == "sync" else asyncio.run(graph.aexecute({}))

    contextvars.copy_context().run(call)
    assert seen == ["caller's"] * 3


def test_an_exception_of_an_async_node_is_its_own() -> None:
    """H7: the cause is what it raised, with where."""

    async def fail(state: State) -> None:
        await asyncio.sleep(0)
        raise KeyError("mine")

    for call in (line(fail).execute, lambda given: asyncio.run(line(fail).aexecute(given))):
        with pytest.raises(ExecutionError, match="KeyError: 'mine'") as caught:
            call({})
        assert isinstance(caught.value.cause, KeyError)
        assert caught.value.cause.__traceback__ is not None


# Cancelling


@pytest.mark.parametrize("how", ["run", "graph", "observer"])
def test_an_async_run_can_be_cancelled_between_two_nodes(how: str) -> None:
    """G12: from another task or an observer; the last good state stays, and it can be resumed."""
    cancelled: list[int] = []

    def watch(event: Event) -> None:
        if how == "observer" and event.type == "node.complete" and not cancelled:
            cancelled.append(1)
            graph.cancel(event.data["run_id"])

    async def main() -> None:
        running = asyncio.Event()
        proceed = asyncio.Event()
        if how == "observer":
            proceed.set()

        async def wait(state: State, node: str) -> dict[str, Any]:
            running.set()
            with suppress(asyncio.CancelledError):  # it ends all the same
                await soon(proceed.wait())
            return note(state, node)

        nonlocal graph
        graph = line(wait, anote, note, observer=watch).compile(store="memory://")
        run = graph.ainvoke({})
        waiting = asyncio.create_task(run.wait())
        await soon(running.wait())
        if how == "run":
            run.cancel()
        elif how == "graph":
            graph.cancel(run.id)
        proceed.set()
        await soon(waiting)
        assert (run.status, run.state["path"]) == ("cancelled", names(1))
        assert isinstance(run.error, RunCancelled)
        with pytest.raises(RunCancelled):
            await run.result()
        assert (await graph.aresume(run.id))["path"] == names(1, 2, 3)

    graph = StateGraph()
    asyncio.run(main())


def test_an_async_run_that_waits_to_be_tried_again_can_be_cancelled() -> None:
    """G12, H8: the wait of an hour ends at once."""

    async def main() -> None:
        retrying = asyncio.Event()
        attempts: list[int] = []

        async def fail(state: State, ctx: NodeContext) -> dict[str, Any]:
            attempts.append(ctx.attempt)
            if len(attempts) == 1:
                raise ValueError
            return {"done": True}

        def watch(event: Event) -> None:
            if event.type == "node.retry":
                retrying.set()

        graph = StateGraph(observer=watch).add_node("a", run=fail, retry=Retry(backoff=3600, max_delay=3600))
        graph.set_entry_point("a").set_finish_point("a").compile(store="memory://")
        run = graph.ainvoke({})
        waiting = asyncio.create_task(run.wait())
        await soon(retrying.wait())
        for _ in range(5):
            await asyncio.sleep(0)
        threading.Thread(target=run.cancel).start()
        await soon(waiting)
        assert run.status == "cancelled"
        assert await graph.aresume(run.id) == {"done": True}
        assert attempts == [1, 2]

    asyncio.run(main())


def test_an_async_run_that_is_cancelled_when_it_is_about_to_wait_does_not_wait() -> None:
    """G12, H8: by the observer that gets the event of the wait."""

    async def fail(state: State) -> None:
        raise ValueError

    def watch(event: Event) -> None:
        if event.type == "node.retry":
            run.cancel()

    graph = StateGraph(observer=watch).add_node("a", run=fail, retry=Retry(backoff=3600, max_delay=3600))
    run = graph.set_entry_point("a").set_finish_point("a").compile(store="memory://").ainvoke({})
    asyncio.run(soon(run.wait()))
    assert run.status == "cancelled"


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_cancelling_the_task_that_awaits_a_run_gives_the_run_back(kind: str) -> None:
    """G12, H7: what was saved can be resumed at once, by the same process."""

    async def main() -> None:
        running = asyncio.Event()
        release = threading.Event()
        calls = []
        loop = asyncio.get_running_loop()

        async def wait(state: State, node: str) -> dict[str, Any]:
            calls.append(1)
            if len(calls) == 1:
                running.set()
                await asyncio.Event().wait()
            return note(state, node)

        def wait_in_thread(state: State, node: str) -> dict[str, Any]:
            calls.append(1)
            if len(calls) == 1:
                loop.call_soon_threadsafe(running.set)
                release.wait(SOON)
            return note(state, node)

        graph = line(anote, wait if kind == "async" else wait_in_thread, note).compile(store="memory://")
        task = asyncio.create_task(graph.aexecute({}, run_id="r"))
        await soon(running.wait())
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        release.set()
        assert (await graph.aresume("r"))["path"] == names(1, 2, 3)

    asyncio.run(main())


def test_an_async_run_that_is_closed_early_can_be_resumed() -> None:
    """H7, F4: leaving `async for` and closing gives the run back."""

    async def main() -> None:
        graph = line(anote, note, anote).compile(store="memory://")
        run = graph.astream({})
        async with aclosing(run):
            async for event in run:
                assert event["node"] == "n1"
                break
        assert (await graph.aresume(run.id))["path"] == names(1, 2, 3)

    asyncio.run(main())


def test_a_run_whose_event_loop_was_closed_can_be_resumed() -> None:
    """G12: its driver waits for ever, but holds nothing, although something still refers to it."""
    graph = line(anote, note, anote).compile(store="memory://")
    run = graph.astream({})
    loop = asyncio.new_event_loop()
    assert loop.run_until_complete(anext(run))["node"] == "n1"
    with pytest.raises(Conflict, match="this process"):
        graph.resume(run.id)
    loop.close()
    assert graph.resume(run.id)["path"] == names(1, 2, 3)


def test_a_run_whose_event_loop_was_closed_before_it_was_open_can_be_resumed() -> None:
    """G12: a thread opens it, and nothing drives it then."""
    creating = threading.Event()
    closed = threading.Event()

    class SlowStore(MemoryStore):
        def create(self, run: Any) -> Any:
            if not closed.is_set():
                creating.set()
                assert closed.wait(SOON)
            return super().create(run)

    graph = line(anote, note).compile(store=SlowStore())
    loop = asyncio.new_event_loop()

    async def main() -> None:
        tasks.append(asyncio.create_task(graph.aexecute({}, run_id="r")))
        await asyncio.to_thread(creating.wait, SOON)

    tasks: list[asyncio.Task[Any]] = []
    loop.run_until_complete(main())
    loop.close()
    closed.set()
    ends = time.monotonic() + SOON
    while not graph.runs():
        assert time.monotonic() < ends
        time.sleep(0.001)
    assert graph.resume("r", wait=SOON / 2)["path"] == names(1, 2)
    assert not tasks[0].done()


def test_a_cancelled_inner_task_fails_the_node_and_not_the_driver() -> None:
    """H7: only the cancellation of the run itself is passed on."""

    async def node(state: Any) -> None:
        inner = asyncio.ensure_future(asyncio.sleep(60))
        inner.cancel()
        await inner

    graph = stored_chain(node)
    for run in (lambda: graph.execute({}), lambda: asyncio.run(graph.aexecute({}))):
        with pytest.raises(ExecutionError, match="CancelledError"):
            run()
    assert {each.status for each in graph.runs()} == {"failed"}


@pytest.mark.parametrize("call", ["aexecute", "ainvoke"])
def test_a_task_that_is_cancelled_before_its_run_begins_creates_none(call: str) -> None:
    """H7: the thread that would open it was still waiting for its turn."""
    store = MemoryStore()
    graph = line(note).compile(store=store)

    async def main() -> None:
        threads = ThreadPoolExecutor(1)
        asyncio.get_running_loop().set_default_executor(threads)
        go = threading.Event()
        threads.submit(go.wait, SOON)
        run = graph.aexecute({}) if call == "aexecute" else graph.ainvoke({}).wait()
        task = asyncio.create_task(run)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await soon(task)  # although the thread is still busy
        go.set()
        threads.shutdown()

    asyncio.run(main())
    assert graph.runs() == []


def test_a_task_that_is_cancelled_while_its_run_is_created_ends_after_that() -> None:
    """H7: no run appears later, and the one that was created can be resumed."""
    creating = threading.Event()
    go = threading.Event()

    class SlowStore(MemoryStore):
        def create(self, run: NewRun) -> Any:
            creating.set()
            assert go.wait(SOON)
            return super().create(run)

    store = SlowStore()
    graph = line(note).compile(store=store, preserve=True)

    async def main() -> None:
        task = asyncio.create_task(graph.aexecute({}, run_id="r"))
        await soon(asyncio.to_thread(creating.wait, SOON))
        task.cancel()
        for _ in range(5):
            await asyncio.sleep(0)
        assert not task.done()
        go.set()
        with pytest.raises(asyncio.CancelledError):
            await soon(task)
        assert store.head("r").holder is None
        assert (await graph.aresume("r"))["path"] == names(1)

    asyncio.run(main())
