"""Following runs while they run, and waiting for them: in threads, on event loops, many at once. H10."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
from typing import Any

import pytest

from limpet import END, ExecutionError, MemoryStore, RunNotFound, Runs, StateGraph
from limpet.engine.following import event_feed, watcher, window
from limpet.handle import RunHandle
from limpet.journal.store import Tail
from support.followers import Client, Event
from support.graphs import SOON, asking, chain, count, loop
from support.waiting import until


@pytest.fixture(autouse=True)
def nothing_is_followed() -> None:
    """What an earlier test has left in frames of exceptions is no longer followed."""
    gc.collect()
    until(lambda: not watching_threads())


def watching_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "limpet-watcher"]


def stepwise(store: Any, steps: int = 20) -> tuple[StateGraph, Any]:
    """A graph that counts, and a run of it that advances when it is iterated."""
    graph = loop(steps).compile(store=store, preserve=True)
    return graph, graph.stream({"n": 0}, run_id="r")


def test_two_clients_see_each_event_once_in_order_though_one_reconnects(any_store: Any) -> None:
    graph, run = stepwise(any_store)
    next(run)
    handle = graph.get("r")
    one = Client(handle)
    two = Client(Runs(any_store).get("r"), stop_after=5)
    for _ in range(6):
        next(run)
    two.join(SOON)
    again = Client(Runs(any_store).get("r"), after=two.events[-1]["cursor"])
    run.wait()
    events = one.all()
    assert [event["type"] for event in events] == ["start", *["step"] * 20, "complete"]
    assert [event["update"]["n"] for event in events[:-1]] == list(range(21))
    assert [without_cursor(each) for each in [*two.events, *again.all()]] == [*map(without_cursor, events)]
    assert list(handle.events(events[-1]["cursor"])) == []


def without_cursor(event: Event) -> Event:
    return {key: value for key, value in event.items() if key != "cursor"}


def test_async_clients_see_the_same(any_store: Any) -> None:
    graph = chain(count, asking(), count).compile(store=any_store, preserve=True)

    async def follow(handle: RunHandle[Any], after: str | None = None) -> list[Event]:
        return [event async for event in handle.aevents(after)]

    async def main() -> tuple[list[list[Event]], list[Event]]:
        run = graph.ainvoke({"n": 0}, run_id="r")
        await run.wait()
        handle = await graph.aget("r")
        first: list[Event] = []
        async for event in handle.aevents():
            first.append(event)
            if event["type"] == "pause":
                break
        clients = [asyncio.create_task(follow(handle)) for _ in range(3)]
        rest = asyncio.create_task(follow(handle, first[-1]["cursor"]))
        await handle.aanswer("yes")
        state = await graph.aresume("r")
        assert await handle.aresult(SOON) == state
        assert (await handle.await_(SOON)).status == "completed"
        return [await client for client in clients], [*first, *await rest]

    full, joined = asyncio.run(main())
    assert full[0] == full[1] == full[2]
    assert [*map(without_cursor, joined)] == [*map(without_cursor, full[0])]
    kinds = [event["type"] for event in joined if event["type"] != "resume"]
    assert kinds == ["start", "step", "pause", "answer", "step", "step", "complete"]


class CountingStore(MemoryStore):
    """A store that counts what is asked of it."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0
        self.asked: list[int] = []

    def read(self, run_id: str, first: int | None = None, last: int | None = None) -> Tail:
        self.reads += 1
        return super().read(run_id, first, last)

    def heads(self, run_ids: Any) -> Any:
        self.asked.append(len(run_ids))
        return super().heads(run_ids)


def test_a_hundred_followers_of_a_run_cost_about_as_much_as_one() -> None:
    """Records are read and decoded once for all, and the store is asked once for all runs."""
    store = CountingStore()
    graph, run = stepwise(store, 40)
    next(run)
    handle = graph.get("r")
    clients = [Client(handle) for _ in range(100)]
    until(lambda: all(len(client.events) >= 2 for client in clients))
    settled = len(store.asked)
    until(lambda: len(store.asked) > settled + 2)
    before = store.reads
    for _ in run:
        time.sleep(0.005)
    events = [client.all() for client in clients]
    assert all(each == events[0] for each in events)
    assert len(events[0]) == 42
    assert store.reads - before <= 41 + len(clients) * 0.1
    assert set(store.asked) == {1}


def test_one_watcher_asks_once_for_all_runs_and_ends_when_nothing_is_followed() -> None:
    store = CountingStore()
    graph = chain(asking()).compile(store=store, preserve=True)
    for number in range(5):
        graph.invoke({}, run_id=f"r{number}").wait()
    clients = [Client(graph.get(f"r{number}")) for number in range(5)]
    until(lambda: store.asked[-1:] == [5])
    until(lambda: len(watching_threads()) == 1)
    for number in range(5):
        graph.resume(f"r{number}", "yes")
    for client in clients:
        assert client.all()[-1]["type"] == "complete"
    until(lambda: not watching_threads())


def test_a_follower_that_stops_leaves_nothing_behind() -> None:
    """By a break, a close, an exception, a task that is cancelled, or by being forgotten."""
    graph = chain(asking()).compile(store=MemoryStore(), preserve=True)
    graph.invoke({}, run_id="r").wait()
    handle = graph.get("r")
    for event in handle.events():
        if event["type"] == "pause":
            break
    events = handle.events()
    next(events)
    events.close()  # type: ignore[attr-defined]
    forgotten = handle.events()
    next(forgotten)
    del forgotten
    gc.collect()

    async def cancelled() -> None:
        async def follow() -> None:
            async for _ in handle.aevents():
                pass

        tasks = [asyncio.create_task(follow()), asyncio.create_task(wait_for_answer(handle))]
        while not watching_threads():
            await asyncio.sleep(0.01)
        for task in tasks:
            task.cancel()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(each) for each in found] == [asyncio.CancelledError] * 2

    asyncio.run(cancelled())
    until(lambda: not watching_threads())


async def wait_for_answer(handle: RunHandle[Any]) -> None:
    async for event in handle.aevents():
        if event["type"] == "answer":
            return


def test_a_slow_follower_holds_up_no_other_and_nothing_is_kept_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What it hasn't taken is read again when it comes to that."""
    monkeypatch.setattr(window, "MAX_WINDOW", 8)
    monkeypatch.setattr(event_feed, "FIRST_PAGE", 4)
    monkeypatch.setattr(event_feed, "LARGEST_PAGE", 4)
    store = MemoryStore()
    graph, run = stepwise(store, 200)
    next(run)
    handle = graph.get("r")
    slow = handle.events()
    told = [next(slow), next(slow)]
    fast = Client(handle)
    followed = next(each for each in gc.get_objects() if isinstance(each, watcher.FollowedRun))
    windows = [followed.newest, *followed._catching_up]
    largest = 0
    for _ in run:
        largest = max(largest, *[len(each) for each in windows if each is not None])
    events = fast.all()
    assert [event["step"] for event in events] == [*range(201), 200]
    assert largest <= 8 + 4
    told += list(slow)
    assert told == events


def test_an_event_is_reported_within_a_tenth_of_a_second_or_so() -> None:
    graph = chain(asking()).compile(store=MemoryStore(), preserve=True)
    graph.invoke({}, run_id="r").wait()
    client = Client(graph.get("r"))
    until(lambda: len(client.events) == 2)
    assert max(watcher.WATCH_INTERVAL, watcher.QUIET_INTERVAL) <= 0.1
    graph.get("r").cancel()
    assert client.all()[-1]["type"] == "cancel"


def test_runs_are_looked_at_less_often_while_nothing_happens_in_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """H10: and as often as before when something has."""
    monkeypatch.setattr(watcher, "QUIET_TIME", 0.2)
    graph = chain(asking(), asking()).compile(store=MemoryStore(), preserve=True)
    graph.invoke({}, run_id="r").wait()
    client = Client(graph.get("r"))
    watching = watcher.watcher_for(graph.compiled().need_client("it").store)
    until(lambda: watching._pause() == watcher.QUIET_INTERVAL)
    quiet_since = watching._changed
    graph.get("r").answer("yes")
    until(lambda: watching._changed > quiet_since)
    graph.get("r").cancel()
    assert client.all()[-1]["type"] == "cancel"


@pytest.mark.parametrize("api", ["sync", "async"])
def test_a_client_that_reconnects_after_a_retry_follows_what_comes(any_store: Any, api: str) -> None:
    """H10, H11: though another follower in this process has just seen that the run failed."""
    broken = [True]

    def work(state: Any) -> dict[str, Any]:
        if broken:
            raise ValueError("broken")
        return {"n": 1}

    graph = chain(work).compile(store=any_store, preserve=True)
    with pytest.raises(ExecutionError):
        graph.execute({}, run_id="r")
    handle = graph.get("r")
    first = handle.events()
    failed = [next(first), next(first)][-1]
    handle.retry()
    broken.clear()
    with pytest.raises(TimeoutError, match="queued"):
        handle.result(0)
    client = Client(handle, failed["cursor"], asynchronous=api == "async")
    until(lambda: client.events or not client.is_alive())
    graph.recover()
    assert [event["type"] for event in client.all()] == ["resume", "step", "complete"]
    assert handle.result(0)["n"] == 1
    assert failed["type"] == "fail"
    first.close()


def test_a_run_that_is_deleted_while_it_is_followed_is_not_found() -> None:
    graph = chain(asking()).compile(store=MemoryStore(), preserve=True)
    graph.invoke({}, run_id="r").wait()
    handle = graph.get("r")
    clients = [Client(handle) for _ in range(2)]
    until(lambda: all(len(client.events) == 2 for client in clients))
    handle.delete()
    for client in clients:
        client.all()
        assert isinstance(client.error, RunNotFound)
    with pytest.raises(RunNotFound):
        next(handle.events())
    with pytest.raises(RunNotFound):
        handle.wait(1)


def test_a_store_that_is_closed_ends_its_followers() -> None:
    store = MemoryStore()
    graph = chain(asking()).compile(store=store, preserve=True)
    graph.invoke({}, run_id="r").wait()
    client = Client(graph.get("r"))
    until(lambda: len(client.events) == 2)
    store.close()
    client.all()
    assert client.error is not None


def test_waiting_ends_when_the_run_stops_and_not_before(any_store: Any) -> None:
    graph = chain(asking()).compile(store=any_store, preserve=True)
    handle = graph.start({})
    with pytest.raises(TimeoutError, match=r"is still queued after 0\.15 s; is a supervisor"):
        handle.wait(0.15)
    with pytest.raises(TimeoutError, match=r"is still queued after 0\.15 s; is a supervisor"):
        asyncio.run(handle.await_(0.15))
    waiting = [threading.Thread(target=lambda: found.append(handle.wait(SOON).status)) for _ in range(3)]
    found: list[str] = []
    for thread in waiting:
        thread.start()
    graph.recover()
    for thread in waiting:
        thread.join(SOON)
    assert found == ["paused"] * 3
    handle.answer("yes")
    assert handle.status == "running"

    async def answered() -> Any:
        result = asyncio.create_task(handle.aresult(SOON))
        await graph.arecover()
        return await result

    assert asyncio.run(answered())["answer"] == "yes"


def test_many_async_waiters_hold_no_threads() -> None:
    graph = chain(asking()).compile(store=MemoryStore(), preserve=True)
    handles = [graph.start({}, run_id=f"r{number}") for number in range(200)]

    async def main() -> int:
        results = [asyncio.create_task(handle.await_(SOON)) for handle in handles]
        deadline = time.monotonic() + SOON
        while not watching_threads():
            assert time.monotonic() < deadline
            await asyncio.sleep(0.01)
        most = threading.active_count()
        await graph.arecover(concurrency=4)
        assert {info.status for info in await asyncio.gather(*results)} == {"paused"}
        return most

    assert asyncio.run(main()) < 60


@pytest.mark.parametrize(("size", "steps"), [(9_000_000, 1), (1_500_000, 5), (100_000, 60)])
def test_large_events_are_given_as_any_others(size: int, steps: int) -> None:
    """H10, H12: also more of them at once than a window has room for."""
    graph = StateGraph({"n": int, "blob": bytes}, name="large")
    graph.add_node("fill", run=lambda state: {"n": state["n"] + 1, "blob": os.urandom(size)})
    graph.add_conditional_edges("fill", lambda state: state["n"] < steps, {True: "fill", False: END})
    graph.set_entry_point("fill").compile(store=MemoryStore(), preserve=True)
    graph.execute({"n": 0}, run_id="r")
    events = list(graph.get("r").events())
    assert [event["type"] for event in events] == ["start", *["step"] * steps, "complete"]
    assert len(events[-2]["update"]["blob"]) == size
