"""H19: a stream for lists says that runs have changed, and costs nothing while no client reads it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from limpet import MemoryStore, Runs, StateGraph, open_store
from limpet.errors import StoreUnavailable
from limpet.journal.run_filter import RunFilter
from limpet.journal.store import RunHead, Store
from limpet.server import run_changes
from limpet.server.run_changes import RunChanges
from support.http_api import plain
from support.http_server import Events, Served, served
from support.redis_servers import redis_server
from support.waiting import SOON, dying_thread, until

THREAD = "limpet-run-changes"


def one(store: Any) -> StateGraph:
    return plain(lambda state: {"x": 1})(store)


def watches() -> bool:
    return any(thread.name == THREAD for thread in threading.enumerate())


@contextmanager
def listening(server: Served, **headers: str) -> Iterator[Events]:
    """A client of the stream that is connected."""
    events = Events(server, "/live", **headers)
    until(lambda: events.last_id or events.messages, "the beginning of the stream")
    yield events
    events.leave()


class Unmarked(MemoryStore):
    """A store of an earlier version, which doesn't mark changes."""

    @property
    def change_mark(self) -> Callable[[], object]:  # type: ignore[override]  # it is missing
        raise AttributeError


class Counted(MemoryStore):
    """A store that counts the looks at it, can be out of order, and can have the thread die that looks at it."""

    looks = 0
    is_broken = False
    is_dying = False
    hanging: threading.Event | None = None

    def change_mark(self) -> object:
        self.looks += 1
        if self.is_dying:
            self.is_dying = False
            raise SystemExit  # ends the thread that looks, and no other
        if self.hanging:
            self.hanging.wait()
        if self.is_broken:
            raise StoreUnavailable("it is out of order")
        return super().change_mark()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks and messages come more often than users want them."""
    monkeypatch.setattr(run_changes, "LOOK_INTERVAL", 0.02)
    monkeypatch.setattr(run_changes, "MESSAGE_INTERVAL", 0.05)


@pytest.fixture(params=["memory", "unmarked", "sqlite", "files", "postgres", "redis"])
def watched(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """A store, of each kind."""
    match request.param:
        case "memory":
            return MemoryStore()
        case "unmarked":
            return Unmarked()
        case "sqlite":
            return open_store(f"sqlite:///{tmp_path}/runs.db")
        case "files":
            return open_store(f"file://{tmp_path}/runs")
        case "postgres":
            return open_store(request.getfixturevalue("database"))
        case _:
            return open_store(request.getfixturevalue("redis_url"))


@pytest.fixture
def redis_url(tmp_path: Path) -> Iterator[str]:
    with redis_server(tmp_path) as server:
        yield server.url


def test_every_client_hears_of_changes(watched: Store) -> None:
    """H19: of a run that is created, that is queued, that ends, and that is deleted; on each kind of store."""
    graph = one(watched)
    with served(watched, [graph]) as server, listening(server) as first, listening(server) as second:
        for change in (
            lambda: graph.execute({}, run_id="a"),
            lambda: graph.start({}, run_id="b"),
            lambda: graph.get("b").cancel(),
            lambda: Runs(watched).delete("a"),
        ):
            heard = [len(each.messages) for each in (first, second)]
            change()
            until(lambda heard=heard: len(first.messages) > heard[0], "a message")
            until(lambda heard=heard: len(second.messages) > heard[1], "a message to the other")
        assert set(first.kinds) == {"changed"}
        assert first.messages[-1]["data"]["at"] > 0


def test_the_answer_begins_when_no_change_can_be_missed() -> None:
    """H19: not before the first look at the store, however long that takes; so a list is loaded in time."""
    store = Counted()
    graph = one(store)
    store.hanging = threading.Event()
    with served(store, [graph]) as server:
        events = Events(server, "/live")
        until(lambda: store.looks, "the look")
        time.sleep(0.1)
        assert events.status == 0
        store.hanging.set()
        until(lambda: events.status == 200, "the answer")
        graph.execute({}, run_id="a")
        until(lambda: events.messages, "a message")
        events.leave()


def test_a_client_that_leaves_while_the_store_hangs_is_not_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """H19: so clients that come and go while it does leave nothing behind."""
    left = threading.Event()
    leave = RunChanges._leave

    def note_leave(*given: Any) -> None:
        leave(*given)
        left.set()

    monkeypatch.setattr(RunChanges, "_leave", note_leave)
    store = Counted()
    store.hanging = threading.Event()
    with served(store, [one(store)]) as server:
        events = Events(server, "/live")
        until(lambda: store.looks, "the look")
        events.leave()
        until(left.is_set, "the end of the client")
        store.hanging.set()
        until(lambda: not watches(), "the end of the thread")


def test_a_client_that_stops_following_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """H19: at once, and not when its messages are garbage."""
    kept: list[Any] = []
    messages = RunChanges.messages

    def keep(self: RunChanges, after: str | None) -> Any:
        kept.append(messages(self, after))
        return kept[-1]

    monkeypatch.setattr(RunChanges, "messages", keep)

    async def follow(changes: RunChanges) -> None:
        following: Any = await changes.begin(None)
        await anext(following)
        assert changes._clients
        await following.aclose()
        assert not changes._clients

    asyncio.run(follow(RunChanges(MemoryStore())))
    until(lambda: not watches(), "the end of the thread")


def test_nothing_is_said_while_nothing_changes() -> None:
    """H19: also when runs are looked at."""
    store = Counted()
    graph = one(store)
    graph.execute({}, run_id="a")
    with served(store, [graph]) as server, listening(server) as events, server.client() as client:
        looks = store.looks
        for _ in range(5):
            client.get("/api/v1/runs/a/state")
            client.get("/api/v1/counts")
        until(lambda: store.looks > looks + 2, "some looks")
        assert events.messages == []


def test_a_store_is_left_alone_while_there_is_no_client() -> None:
    """H19: the thread ends with the last client, and starts again with the next."""
    store = Counted()
    with served(store, [one(store)]) as server:
        assert store.looks == 0
        for _ in range(2):
            with listening(server), listening(server):
                # One that starts late may have been replaced: then it ends at once.
                until(lambda: [each.name for each in threading.enumerate()].count(THREAD) == 1, "one thread")
            until(lambda: not watches(), "the end of the thread")
        assert store.looks > 0


def test_a_client_that_comes_back_hears_what_it_has_missed() -> None:
    """H19: at once, also of what happened while there was no client; and nothing if nothing happened."""
    store = Counted()
    graph = one(store)
    with served(store, [graph]) as server:
        with listening(server) as events:
            known = events.last_id
        until(lambda: not watches(), "the end of the thread")
        graph.execute({}, run_id="a")
        with listening(server, **{"last-event-id": known}) as again:
            assert again.kinds == ["changed"]
            known = again.last_id
        later = Events(server, "/live", **{"last-event-id": known})
        looks = store.looks
        until(lambda: store.looks > looks + 2, "some looks")
        assert later.messages == []
        later.leave()
        with listening(server, **{"last-event-id": "of.another-server"}) as other:
            assert other.kinds == ["changed"]
            assert other.last_id == known


def test_who_comes_as_the_last_client_leaves_waits_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """H19: though a thread was started for the one that has left, and ends without a look."""
    start = run_changes.start_thread
    left = threading.Event()

    def start_late(target: Callable[[], object], name: str) -> None:
        monkeypatch.setattr(run_changes, "start_thread", start)
        start(lambda: left.wait(60) and target(), name)

    monkeypatch.setattr(run_changes, "start_thread", start_late)
    monkeypatch.setattr(run_changes, "KEEP_ALIVE", 1e6)
    changes = RunChanges(MemoryStore())

    async def follow() -> None:
        first = asyncio.ensure_future(anext(changes.messages(None)))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.wait([first])
        second = asyncio.ensure_future(anext(changes.messages(None)))
        await asyncio.sleep(0)
        left.set()
        assert (await asyncio.wait_for(second, SOON)).startswith(b"id: ")

    asyncio.run(follow())


def test_many_changes_are_few_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """H19: one a second at most, as a client asks for its list after each."""
    monkeypatch.setattr(run_changes, "MESSAGE_INTERVAL", 0.5)
    store = MemoryStore()
    graph = one(store)
    with served(store, [graph]) as server, listening(server) as events:
        began = time.monotonic()
        for _ in range(100):
            graph.execute({})
        until(lambda: events.messages, "a message")
        assert len(events.messages) <= 1 + (time.monotonic() - began) / 0.5


def test_a_store_that_fails_for_a_while_is_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    """H19: the log says so once, and clients hear of changes afterwards."""
    store = Counted()
    graph = one(store)
    with served(store, [graph]) as server, listening(server) as events:
        store.is_broken = True
        looks = store.looks
        until(lambda: store.looks > looks + 3, "some looks")
        assert sum("couldn't look for changes" in record.message for record in caplog.records) == 1
        graph.execute({}, run_id="a")
        assert events.messages == []
        store.is_broken = False
        until(lambda: events.messages, "a message")


def test_a_silent_stream_is_kept_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    """H19: by comments."""
    monkeypatch.setattr(run_changes, "KEEP_ALIVE", 0.01)

    async def first_two() -> list[bytes]:
        messages = RunChanges(MemoryStore()).messages(None)
        found = [await anext(messages), await anext(messages)]
        await messages.aclose()  # type: ignore[attr-defined]  # it is a generator
        return found

    identity, comment = asyncio.run(first_two())
    assert identity.startswith(b"id: ")
    assert comment == b": nothing new\n\n"


def test_a_look_at_a_store_that_marks_changes_lists_no_runs(tmp_path: Path) -> None:
    """H19: however many there are."""
    store = open_store(f"sqlite:///{tmp_path}/runs.db")
    listed: list[RunFilter] = []
    list_runs = store.list

    def counting(which: RunFilter) -> list[RunHead]:
        listed.append(which)
        return list_runs(which)

    store.list = counting  # type: ignore[method-assign]  # counts only
    graph = one(store)
    with served(store, [graph]) as server, listening(server) as events:
        graph.execute({}, run_id="a")
        until(lambda: events.messages, "a message")
        assert listed == []


@pytest.mark.parametrize("failure", ["refused", "lost", "dies"])
def test_a_thread_that_could_not_start_or_has_died_is_replaced(
    failure: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H19: so a moment without memory for a thread doesn't end the stream for good."""
    monkeypatch.setattr(run_changes, "KEEP_ALIVE", 0.05)
    monkeypatch.setattr(run_changes, "START_TIME", 0.0)
    store = Counted()
    graph = one(store)
    start = run_changes.start_thread
    failures = []

    def fail_once(target: Callable[[], None], name: str) -> None:
        if failures:
            start(target, name)
            return
        failures.append(failure)
        if failure == "refused":
            raise RuntimeError("can't start new thread")
        if failure == "dies":
            store.is_dying = True
            start(target, name)

    monkeypatch.setattr(run_changes, "start_thread", fail_once)
    death = dying_thread(SystemExit) if failure == "dies" else nullcontext()
    with death, served(store, [graph]) as server:
        if failure == "refused":
            Events(server, "/live").join(60)
        with listening(server) as events:
            assert failures == [failure]
            graph.execute({}, run_id="a")
            until(lambda: events.messages, "a message")


def test_a_change_after_a_first_look_that_failed_is_heard_of() -> None:
    """H19: the clients have begun, and have loaded their lists."""
    store = Counted()
    store.is_broken = True
    graph = one(store)
    with served(store, [graph]) as server, listening(server) as events:
        graph.execute({}, run_id="a")
        store.is_broken = False
        until(lambda: events.messages, "a message")


def test_a_change_during_the_first_look_is_heard_of_by_who_comes_then() -> None:
    """H19: a client that comes while it is under way doesn't wait for it."""
    store = Counted()
    graph = one(store)
    store.hanging = threading.Event()
    with served(store, [graph]) as server:
        first = Events(server, "/live")
        until(lambda: store.looks, "the look")
        with listening(server) as second:
            graph.execute({}, run_id="a")
            store.hanging.set()
            until(lambda: second.messages, "a message")
        first.leave()


def test_a_change_of_which_the_store_told_before_a_look_that_failed_is_not_forgotten() -> None:
    """H19: the next look doesn't see it in the runs that are looked at where none are marked."""
    changes = RunChanges(broken := Notified())
    assert changes._look(True)
    assert not changes._look(False)
    broken.is_broken = True
    assert not changes._look(True)
    broken.is_broken = False
    assert changes._look(False)
    assert not changes._look(False)


class Notified(Unmarked):
    """A store that can't be read for a while."""

    is_broken = False

    def list(self, which: RunFilter) -> list[RunHead]:
        if self.is_broken:
            raise StoreUnavailable("it is out of order")
        return super().list(which)


def test_the_first_message_has_the_time_of_the_server() -> None:
    """H19: also to a client that comes from another server, which hears of a change at once."""
    began = time.time()
    with served(MemoryStore()) as server, listening(server, **{"last-event-id": "other.5"}) as events:
        assert events.messages[0]["data"]["at"] >= began
