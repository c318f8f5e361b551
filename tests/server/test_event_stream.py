"""H19: live events, resumed after the last one that was received; slow and broken clients hold nothing up."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from limpet import MemoryStore, StateGraph, emit, open_store
from limpet.engine.following.watcher import watcher_for
from limpet.server import event_stream
from limpet.server.routes import run as run_routes
from limpet.server.timeline.timelines import KEPT_TIMELINES
from support.graphs import loop
from support.http_api import api, asking, plain
from support.http_server import API, TOKEN, Events, Served, served
from support.waiting import SOON, until

FOLLOWERS = 100


def counting(store: Any, steps: int = 5) -> StateGraph:
    return loop(steps, max_iterations=steps + 1).compile(store=store, preserve=True)


def followers(store: Any) -> int:
    """How many follow runs of a store in this process."""
    return sum(len(run.members) for run in watcher_for(store)._runs.values())


def gated(store: Any, gate: threading.Event) -> StateGraph:
    """A graph whose second node waits for the test."""
    graph = StateGraph(name="gated").add_node("first", run=lambda state: {"a": 1})
    graph.add_node("second", run=lambda state: gate.wait(60) and {"b": 2})
    graph.add_edge("first", "second").set_entry_point("first").set_finish_point("second")
    return graph.compile(store=store, preserve=True)


@pytest.fixture
def gate() -> Any:
    """What lets gated runs end; at the latest with the test."""
    event = threading.Event()
    yield event
    event.set()


def test_events_of_a_run_that_has_ended_come_at_once_and_end() -> None:
    """H19: each once, in order."""
    store = MemoryStore()
    graph = counting(store)
    graph.execute({}, run_id="r")
    with served(store, [graph]) as server:
        events = Events(server, "/runs/r/live")
        events.join(60)
        assert events.kinds == [*["event"] * 7, "end"]
        assert [each["data"]["type"] for each in events.messages[:-1]] == ["start", *["step"] * 5, "complete"]
        assert [each["id"] for each in events.messages[:-1]] == [
            each["data"]["cursor"] for each in events.messages[:-1]
        ]


def test_a_client_that_comes_back_misses_nothing_and_gets_nothing_twice() -> None:
    """H19: by the id of the last event, in a header as browsers send it, or in the query."""
    store = MemoryStore()
    graph = counting(store)
    graph.execute({}, run_id="r")
    with served(store, [graph]) as server:
        whole = Events(server, "/runs/r/live")
        whole.join(60)
        for number, message in enumerate(whole.messages[:-2]):
            rest = Events(server, "/runs/r/live", **{"last-event-id": message["id"]})
            rest.join(60)
            assert rest.messages == whole.messages[number + 1 :]
        asked = Events(server, f"/runs/r/live?after={whole.messages[2]['id']}")
        asked.join(60)
        assert asked.messages == whole.messages[3:]


def test_a_browser_stops_coming_back_once_there_will_be_no_more() -> None:
    """H19: an empty answer says so."""
    with api(counting) as client:
        client.run_until_it_stops("r")
        last = client.read("/runs/r/events")["next"]
        assert client.get(f"{API}/runs/r/live", headers={"last-event-id": last}).status_code == 204
        for cursor in ("nonsense", "2:1.2:r", last.replace(":r", ":other")):
            answer = client.get(f"{API}/runs/r/live", headers={"last-event-id": cursor})
            assert (answer.status_code, answer.json()["code"]) == (400, "usage")
        numbers = last.split(":")[1].partition(".")[2]
        for path in ("/runs/r/live", "/runs/r/events"):
            further = client.read(path, 400, after=f"2:99.{numbers}:r")
            assert "further than this one has come" in further["detail"]
        for path in ("/runs/none/live", "/runs/none/timeline/live"):
            assert client.read(path, 404)["code"] == "run-not-found"


def test_events_come_as_they_happen(gate: threading.Event) -> None:
    """H19: while another thread, or another process, executes the run."""
    store = MemoryStore()
    graph = gated(store, gate)
    with served(store, [graph]) as server:
        graph.start({}, run_id="r")
        events = Events(server, "/runs/r/live")
        until(lambda: events.messages, "the start")
        worker = threading.Thread(target=lambda: graph.resume("r"), daemon=True)
        worker.start()
        until(lambda: any(each["data"].get("node") == "first" for each in events.messages), "the first step")
        assert events.is_alive()
        gate.set()
        events.join(60)
        worker.join(60)
        assert events.messages[-2]["data"]["type"] == "complete"


def test_a_run_that_is_deleted_ends_its_stream_with_a_problem(gate: threading.Event) -> None:
    """H19: with the code of any answer."""
    store = MemoryStore()
    graph = gated(store, gate)
    graph.start({}, run_id="r")
    with served(store, [graph]) as server:
        events = Events(server, "/runs/r/live")
        until(lambda: events.messages, "the start")
        graph.get("r").delete()
        events.join(60)
        assert (events.messages[-1]["kind"], events.messages[-1]["data"]["code"]) == (
            "problem",
            "run-not-found",
        )


def test_a_silent_stream_is_kept_alive(gate: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    """H19: by comments, which clients ignore; proxies would end it."""
    monkeypatch.setattr(event_stream, "KEEP_ALIVE", 0.01)
    store = MemoryStore()
    graph = gated(store, gate)
    graph.start({}, run_id="r")
    with served(store, [graph]) as server:
        connection = requesting(server, "/runs/r/live")
        received = b""

        def has_comments() -> bool:
            nonlocal received
            received += connection.recv(10_000)
            return received.count(b": nothing new\n\n") > 2

        until(has_comments, "a comment")
        connection.close()


def requesting(server: Served, path: str) -> socket.socket:
    """A connection on which a stream was asked for."""
    host, _, port = server.address.removeprefix("http://").partition(":")
    connection = socket.create_connection((host, int(port)), timeout=60)
    head = f"GET {API}{path} HTTP/1.1\r\nHost: {host}:{port}\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
    connection.sendall(head.encode())
    return connection


def test_large_values_are_left_out_of_live_events() -> None:
    """H19: their sizes are in their place."""

    def talk(state: Any) -> dict[str, Any]:
        emit("x" * 50_000)
        return {"text": "y" * 50_000, "small": 1}

    store = MemoryStore()
    graph = plain(talk)(store)
    graph.execute({}, run_id="r")
    with served(store, [graph]) as server:
        events = Events(server, "/runs/r/live")
        events.join(60)
        found = {each["data"].get("type"): each["data"] for each in events.messages}
        assert found["output"]["large"] == {"data": 50_000}
        assert (found["step"]["update"], found["step"]["large"]) == ({"small": 1}, {"text": 50_000})
        assert len(json.dumps(events.messages)) < 5_000


def test_large_events_do_not_hold_up_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """H19: they are made into messages in other threads, one at a time; small ones at once."""
    made: list[tuple[str, bool]] = []
    busy = threading.Lock()
    show = event_stream.shown_event

    def shown_event(event: Any, secrets: Any) -> Any:
        is_on_loop = threading.current_thread() is threading.main_thread()
        made.append((event["type"], is_on_loop))
        if is_on_loop:
            return show(event, secrets)
        assert busy.acquire(blocking=False)
        try:
            return show(event, secrets)
        finally:
            busy.release()

    async def happening() -> AsyncIterator[Any]:
        yield {"type": "small", "cursor": "1", "update": {"a": [1, "b", {"c": None}]}}
        yield {"type": "long", "cursor": "2", "data": "x" * 30_000}
        yield {"type": "many", "cursor": "3", "update": {"a": {"b": [1] * 1000}}}
        yield {"type": "unknown", "cursor": "4", "update": {"a": object()}}

    async def follow() -> list[bytes]:
        return [sent async for sent in event_stream.event_stream(happening(), ())]

    async def follow_all() -> list[list[bytes]]:
        return await asyncio.gather(*(follow() for _ in range(5)))

    monkeypatch.setattr(event_stream, "shown_event", shown_event)
    for found in asyncio.run(follow_all()):
        assert [b"id: %d" % number in sent for number, sent in enumerate(found[:-1], 1)] == [True] * 4
    assert set(made) == {("small", True), ("long", False), ("many", False), ("unknown", False)}
    assert len(made) == 20


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_many_followers_do_not_hold_up_other_requests(
    kind: str, gate: threading.Event, tmp_path: Any
) -> None:
    """H19: of runs and of lists; and those that vanish in the middle are followed no more."""
    store = MemoryStore() if kind == "memory" else open_store(f"sqlite:///{tmp_path}/runs.db")
    graph = gated(store, gate)
    for number in range(10):
        graph.start({}, run_id=f"r{number}")
    with served(store, [graph]) as server, server.client() as client:
        streams = [Events(server, f"/runs/r{number % 10}/live") for number in range(FOLLOWERS)]
        streams += [Events(server, "/live") for _ in range(FOLLOWERS)]
        until(lambda: all(each.messages for each in streams[:FOLLOWERS]), "the first events")
        until(lambda: all(each.last_id for each in streams[FOLLOWERS:]), "the first ids")
        for _ in range(20):
            assert client.get(f"{API}/runs").status_code == 200
            assert client.get(f"{API}/runs/r1").status_code == 200
        assert b"limpet_event_streams 200" in client.get("/metrics").content
        for each in streams:
            each.leave()
        until(lambda: followers(store) == 0, "the end of all followers")
        until(lambda: b"limpet_event_streams 0" in client.get("/metrics").content, "the end of all streams")
    store.close()


def test_however_many_timelines_are_followed_each_gets_only_what_changes() -> None:
    """H19, H20: none is sent again from the beginning, because of the others."""
    store = MemoryStore()
    graph = asking(store)
    runs = [f"r{number}" for number in range(2 * KEPT_TIMELINES)]
    for run_id in runs:
        list(graph.stream({}, run_id=run_id))
    with served(store, [graph]) as server:
        streams = [Events(server, f"/runs/{run_id}/timeline/live") for run_id in runs]
        until(lambda: all(each.messages for each in streams), "the first rows")
        for run_id in runs:
            graph.get(run_id).answer("yes")
        until(lambda: all(len(each.messages) > 1 for each in streams), "what has changed")
        for each in streams:
            assert [message["data"]["reset"] for message in each.messages][:2] == [True, False]
            each.leave()


def test_a_timeline_ends_with_a_message_that_there_is_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """H19: also of a long timeline that was read before."""
    monkeypatch.setattr(run_routes, "MAX_ROWS", 10)
    store = MemoryStore()
    graph = counting(store, 10)
    graph.execute({}, run_id="r")
    with served(store, [graph]) as server:
        for _ in range(3):
            stream = Events(server, "/runs/r/timeline/live")
            stream.join(SOON)
            assert stream.kinds[-2:] == ["timeline", "end"]
            *_, last = [each["data"] for each in stream.messages if each["kind"] == "timeline"]
            assert last["more"] is False
            assert last["total"] == 10


def test_a_client_that_reads_nothing_delays_no_other() -> None:
    """H19: what it doesn't take stays in its connection."""
    store = MemoryStore()

    def talk(state: Any) -> dict[str, Any]:
        emit("x" * 15_000)
        return {"n": state.get("n", 0) + 1}

    graph = loop(500, talk, max_iterations=501).compile(store=store, preserve=True)
    with served(store, [graph]) as server:
        graph.start({}, run_id="r")
        slow = requesting(server, "/runs/r/live")
        other = Events(server, "/runs/r/live")
        until(lambda: other.messages, "the start")
        worker = threading.Thread(target=lambda: graph.resume("r"), daemon=True)
        worker.start()
        other.join(60)
        worker.join(60)
        assert other.kinds[-1] == "end"
        with server.client() as client:
            assert client.get(f"{API}/runs/r").json()["status"] == "completed"
        slow.close()
        until(lambda: followers(store) == 0, "the end of the slow one")
