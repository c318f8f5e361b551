"""H7: every method that waits for a store has an async version, which doesn't block the event loop."""

from __future__ import annotations

import asyncio
import inspect
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from limpet import MemoryStore, RunNotFound, Runs, StateGraph, Workflow
from support.graphs import SOON

LOOKING = ("history", "state_at", "diff", "verify", "runs")
CHANGING = ("cancel", "rollback", "export_run", "import_run", "cleanup_expired")
OF_WORKFLOWS = ("checkpoint", "checkpoints", "plan_resume")


class GatedStore(MemoryStore):
    """A store that is slow to answer: it waits until the event loop has had its turn."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.gate.set()

    def _wait(self) -> None:
        assert self.gate.wait(SOON), "the event loop stood still meanwhile"

    def head(self, run_id: str) -> Any:
        self._wait()
        return super().head(run_id)

    def read(self, *args: Any, **more: Any) -> Any:
        self._wait()
        return super().read(*args, **more)

    def list(self, which: Any) -> Any:
        self._wait()
        return super().list(which)

    def expire(self, *args: Any) -> Any:
        self._wait()
        return super().expire(*args)

    def create(self, run: Any) -> Any:
        self._wait()
        return super().create(run)


def counting(store: MemoryStore) -> StateGraph:
    graph = StateGraph(name="counting")
    graph.add_node("one", run=lambda state: {"n": 1}).add_node("two", run=lambda state: {"n": 2})
    graph.add_edge("one", "two").set_entry_point("one").set_finish_point("two")
    return graph.compile(store=store, preserve=True)


def while_loop_runs(store: GatedStore, call: Any) -> Any:
    """What the coroutine gives, if the loop runs while it waits for the store."""

    async def main() -> Any:
        store.gate.clear()
        asyncio.get_running_loop().call_soon(store.gate.set)
        return await call()

    try:
        return asyncio.run(main())
    finally:
        store.gate.set()


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("history", ("r",)),
        ("state_at", ("r", 1)),
        ("diff", ("r", 1, 2)),
        ("verify", ("r",)),
        ("runs", ()),
        ("rollback", ("r", 1)),
        ("cleanup_expired", (1.0,)),
    ],
)
def test_an_async_version_gives_the_same_and_doesnt_block_the_loop(name: str, args: tuple[Any, ...]) -> None:
    """H7, H6: and takes the same arguments."""
    store = GatedStore()
    graph = counting(store)
    graph.execute({}, run_id="r")
    given = while_loop_runs(store, lambda: getattr(graph, f"a{name}")(*args))
    again = MemoryStore()
    other = counting(again)
    other.execute({}, run_id="r")
    expected = getattr(other if name == "rollback" else graph, name)(*args)
    assert given == expected
    assert type(given) is type(expected)


def test_forks_are_made_and_run_without_blocking_the_loop() -> None:
    """H6, H7: what `afork` returns is for `async for`."""
    store = GatedStore()
    graph = counting(store)
    graph.execute({}, run_id="r")
    run = while_loop_runs(store, lambda: graph.afork("r", 1, {"more": True}, new_run_id="f", tags=["t"]))
    assert (run.id, graph.runs(tag="t")[0].forked_from) == ("f", "r@1")
    assert asyncio.run(run.result()) == {"n": 2, "more": True}


def test_runs_are_cancelled_without_blocking_the_loop() -> None:
    """G12, H7."""
    store = GatedStore()
    graph = counting(store).compile(store=store, interrupt_before=["two"])
    list(graph.invoke({}, run_id="r"))
    while_loop_runs(store, lambda: graph.acancel("r"))
    assert graph.runs()[0].status == "cancelled"


def test_runs_are_exported_and_imported_without_blocking_the_loop(tmp_path: Path) -> None:
    """H7: out of a store and into it."""
    store = GatedStore()
    graph = counting(store)
    graph.execute({}, run_id="r")
    while_loop_runs(store, lambda: graph.aexport_run("r", tmp_path / "r.run"))
    assert while_loop_runs(store, lambda: graph.aimport_run(tmp_path / "r.run", run_id="s")) == "s"
    assert graph.state_at("s") == graph.state_at("r")


def test_checkpoints_of_a_workflow_are_read_without_blocking_the_loop() -> None:
    """D3, D7, H7."""
    store = GatedStore()
    flow = Workflow("pair", store=store, preserve=True)
    flow.add_task("one", lambda: 1)
    flow.add_task("two", lambda one: one + 1, ["one"])
    flow.execute({}, run_id="w")
    for name in OF_WORKFLOWS:
        assert while_loop_runs(store, lambda name=name: getattr(flow, f"a{name}")("w")) == getattr(
            flow, name
        )("w")


def test_a_run_is_resumed_from_a_checkpoint_file_in_an_event_loop(tmp_path: Path) -> None:
    """F7, H7: with the same events."""
    graph = counting(MemoryStore()).compile(interrupt_before=["two"], checkpoint_dir=tmp_path)
    (stop,) = graph.invoke({})

    async def main() -> Any:
        run = graph.aresume_from_checkpoint(stop["checkpoint_path"], state_update={"more": 1})
        return [event async for event in run]

    (final,) = asyncio.run(main())
    assert (final["type"], final["state"]) == ("final", {"n": 2, "more": 1})


def test_a_twin_raises_what_the_call_raises() -> None:
    """H7: from wherever it is awaited."""
    graph = counting(MemoryStore())
    with pytest.raises(RunNotFound):
        asyncio.run(graph.astate_at("missing"))


def test_twins_can_be_found_by_their_names_and_parameters() -> None:
    """H7: for `help()` and editors; and none is missing."""
    for cls, names in ((StateGraph, (*LOOKING, *CHANGING)), (Workflow, (*OF_WORKFLOWS, *LOOKING))):
        for name in names:
            async_version = getattr(cls, f"a{name}")
            assert inspect.iscoroutinefunction(async_version)
            assert inspect.signature(async_version) == inspect.signature(getattr(cls, name))
            assert (async_version.__name__, async_version.__doc__) == (
                f"a{name}",
                f"`{name}` without blocking the event loop.",
            )


def test_a_twin_calls_what_a_subclass_made_of_the_method() -> None:
    """H7: there is one logic, also where it is the user's."""

    class Mine(StateGraph):
        def history(self, run_id: str) -> Any:
            return [run_id]

    assert asyncio.run(Mine().ahistory("r")) == ["r"]


async def cancel_often(task: asyncio.Future[Any], times: int) -> None:
    """Cancel a task this many times, each time after it has had the chance to react to the one before."""
    for _ in range(times):
        task.cancel()
        for _ in range(5):
            await asyncio.sleep(0)


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("name", ["start", "fork", "import_run", "execute"])
def test_a_cancelled_call_creates_no_run_afterwards(name: str, times: int, tmp_path: Path) -> None:
    """H7: the cancellation arrives when the call is over, so a caller that looks then sees what it has made."""
    store = GatedStore()
    graph = counting(store)
    graph.execute({}, run_id="r")
    graph.export_run("r", tmp_path / "r.run")
    calls = {
        "start": lambda: graph.astart({}, run_id="new"),
        "fork": lambda: graph.afork("r", 1, new_run_id="new"),
        "import_run": lambda: graph.aimport_run(tmp_path / "r.run", run_id="new"),
        "execute": lambda: graph.aexecute({}, run_id="new"),
    }
    creating = threading.Event()
    create = store.create

    def slow_create(run: Any) -> Any:
        creating.set()
        return create(run)

    store.create = slow_create  # type: ignore[method-assign]  # a store that is slow just then

    async def main() -> set[str]:
        task = asyncio.ensure_future(calls[name]())
        await asyncio.to_thread(creating.wait, SOON)
        await cancel_often(task, times)
        asyncio.get_running_loop().call_later(0.05, store.gate.set)
        with pytest.raises(asyncio.CancelledError):
            await task
        assert store.head("new").holder is None
        return {info.run_id for info in graph.runs()}

    reading = store._wait
    # Only the creation waits: a fork and an import read first.
    store._wait = lambda: reading() if creating.is_set() else None  # type: ignore[method-assign]
    store.gate.clear()
    assert asyncio.run(main()) == {"r", "new"}


def test_a_call_that_is_cancelled_before_it_begins_never_does() -> None:
    """H7: its thread has had no turn yet."""
    graph = counting(GatedStore())

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        busy = threading.Event()
        blocked = loop.run_in_executor(None, busy.wait, SOON)
        task = asyncio.ensure_future(graph.astart({}, run_id="new"))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        busy.set()
        await blocked
        await loop.shutdown_default_executor()

    asyncio.run(main())
    assert graph.runs() == []


@pytest.mark.parametrize(
    ("owner", "name"),
    [(Runs, "cleanup_expired"), (StateGraph, "cleanup_expired"), (StateGraph, "cleanup"), (Runs, "delete")],
)
@pytest.mark.parametrize("times", [1, 3])
def test_a_cancelled_call_deletes_no_run_afterwards(owner: type, name: str, times: int) -> None:
    """H7: a caller that gets the cancellation can rely on what it sees then."""
    deleting = threading.Event()
    gate = threading.Event()
    done: list[str] = []

    def delete_slowly(self: Any, *arguments: Any) -> None:
        deleting.set()
        gate.wait(SOON)
        done.append(name)

    slow = type("Slow", (owner,), {name: delete_slowly})
    made = slow(MemoryStore()) if owner is Runs else slow(name="g")

    async def main() -> list[str]:
        task = asyncio.ensure_future(getattr(made, f"a{name}")())
        await asyncio.to_thread(deleting.wait, SOON)
        await cancel_often(task, times)
        asyncio.get_running_loop().call_later(0.05, gate.set)
        with pytest.raises(asyncio.CancelledError):
            await task
        return list(done)

    assert asyncio.run(main()) == [name]


@pytest.mark.parametrize("times", [1, 3])
def test_a_cancelled_run_has_been_released_when_its_caller_knows(times: int) -> None:
    """H7, H1: so that the caller can resume it at once, however often it was cancelled while that was under way."""
    store = GatedStore()
    begun = threading.Event()
    releasing = threading.Event()
    release = store.release

    def slow_release(lease: Any) -> None:
        releasing.set()
        store.gate.wait(SOON)
        release(lease)

    async def node(state: Any) -> None:
        begun.set()
        await asyncio.sleep(SOON)

    store.release = slow_release  # type: ignore[method-assign]  # a store that is slow just then
    graph = StateGraph(name="g").add_node("node", run=node).set_entry_point("node").set_finish_point("node")
    graph.compile(store=store)

    async def main() -> None:
        task = asyncio.ensure_future(graph.aexecute({}, run_id="r"))
        await asyncio.to_thread(begun.wait, SOON)
        store.gate.clear()
        task.cancel()
        await asyncio.to_thread(releasing.wait, SOON)
        await cancel_often(task, times - 1)
        asyncio.get_running_loop().call_later(0.05, store.gate.set)
        with pytest.raises(asyncio.CancelledError):
            await task
        head = MemoryStore.head(store, "r")
        assert (head.status, head.holder) == ("running", None)

    asyncio.run(main())
