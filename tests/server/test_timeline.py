"""H19, H20: the timeline of a run has a row for each node that ran, wherever the run stops and however it is read."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from limpet import (
    END,
    LimpetError,
    MemoryStore,
    Retry,
    Runs,
    StateGraph,
    StoreUnavailable,
    Workflow,
    emit,
    open_store,
    progress,
    supervise,
)
from limpet import sleep as rest
from limpet.engine.following.cursor import EventCursor
from limpet.engine.following.event_feed import EventFeed
from limpet.engine.leases.lease_client import client_for
from limpet.journal.store import ENDED, FAILED, PAUSED, RUNNING, Store
from limpet.server import app
from limpet.server.timeline import rows as timeline_rows
from limpet.server.timeline.event_rows import EventRows
from limpet.server.timeline.timelines import EVENTS_OF_PLACE, KEPT_TIMELINES, Timelines
from limpet.server.timeline_stream import timeline_stream
from limpet.testing.faults import FaultyStore
from support.crafted_exports import crafted, examples
from support.graphs import SOON, asking, chain, fan, loop, single
from support.http_api import Client
from support.http_server import TOKEN
from support.timeline_runs import RUN, SHAPES, kept, mapped, nothing, run
from support.waiting import until

Event = dict[str, Any]
Rows = dict[int, dict[str, Any]]

BETWEEN_STEPS = "mark"


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """An empty store."""
    if request.param == "memory":
        yield MemoryStore()
        return
    opened = open_store(f"sqlite:///{tmp_path}/runs.db")
    yield opened
    opened.close()


class Reader:
    """A client that reads a timeline as the page does: each time what changed since."""

    def __init__(self, store: Store) -> None:
        self.rows: Rows = {}
        self._store = store
        self._timelines = Timelines(store)
        self._version = ""

    def read(self, run_id: str, limit: int = 5000) -> dict[str, Any]:
        """Read until there is no more; the last answer."""
        info = Runs(self._store).get(run_id).info
        now = time.time() if info.shown_status == RUNNING else None
        while True:
            answer = self._timelines.changes(run_id, info.created, frozenset(), self._version, limit, now)
            self._version = answer["version"]
            if answer["reset"]:
                self.rows = {}
            self.rows |= {row["id"]: row for row in answer["rows"]}
            assert len(answer["rows"]) <= limit
            if not answer["more"]:
                return answer


def events_of(store: Store, run_id: str) -> list[Event]:
    """What happened in a run so far."""
    feed = EventFeed(store, run_id, EventCursor(), frozenset())
    found: list[Event] = []
    while True:
        batch = feed.read()
        found += [entry.event for entry in batch.entries]
        if not batch.has_more:
            return found


def check_rows(store: Store, run_id: str, rows: Rows) -> None:
    """What holds of all timelines."""
    events = events_of(store, run_id)
    check_steps(events, rows)
    check_times(rows)
    check_parents(rows)
    check_statuses(store, run_id, rows)


def check_steps(events: list[Event], rows: Rows) -> None:
    """Each node that completed has one row, in its branch, with its step."""
    completed = [
        (event["step"], event["node"], event.get("branch") or "")
        for event in events
        if event["type"] == "step"
    ]
    shown = [
        (row["step"], row["label"], row.get("branch") or "")
        for row in rows.values()
        if row["kind"] != BETWEEN_STEPS and "step" in row
    ]
    assert sorted(shown) == sorted(completed)


def check_times(rows: Rows) -> None:
    """Nothing ends before it begins, and all of it happens while its row lasts."""
    for row in rows.values():
        end = row.get("end", float("inf"))
        assert row["start"] <= end, row
        for began, ended, _ in row.get("attempts", []):
            assert row["start"] <= began <= ended <= end, row
        for began, ended, _ in row.get("waits", []):
            assert row["start"] <= began <= (began if ended is None else ended), row
            assert ended is None or ended <= end, row
        if "end" in row:
            assert all(ended is not None for _, ended, _ in row.get("waits", [])), row


def check_parents(rows: Rows) -> None:
    """A row is inside of that of its branch or task, whose names lead to it."""
    for row in rows.values():
        names = []
        outer = row
        while "parent" in outer:
            assert outer["parent"] < outer["id"]
            assert rows[outer["parent"]]["start"] <= outer["start"], (rows[outer["parent"]], outer)
            outer = rows[outer["parent"]]
            names.append(outer["label"])
        assert "/".join(reversed(names)) == row.get("branch", ""), row


def check_statuses(store: Store, run_id: str, rows: Rows) -> None:
    """Rows are as their run is."""
    info = Runs(store).get(run_id).info
    having = {row["status"] for row in rows.values()}
    if info.status in ENDED:
        allowed = {"paused"} if info.status == FAILED and info.questions else set()
        assert not having & {"running", "paused", "retrying", "sleeping", "waiting"} - allowed, rows
    if info.status == FAILED:
        notes = [row.get("note", "") for row in rows.values() if row["status"] == "failed"]
        assert any((info.error or {}).get("message", info.reason) in note for note in notes)
    if info.status == PAUSED and rows and (info.questions or info.waits_for_approval):
        waiting = [row for row in rows.values() if row["status"] == "paused"]
        asked = [question.prompt for question in info.questions]
        assert sorted(row["note"] for row in waiting) == sorted(asked) or not asked
        assert waiting
        assert all(row["waits"][-1][1] is None for row in waiting)
    if info.status == RUNNING and info.waits:
        assert [row for row in rows.values() if row["status"] == "waiting"]


@pytest.mark.parametrize("shape", SHAPES)
def test_each_node_that_ran_has_one_row_wherever_the_run_stops(shape: str, store: Store) -> None:
    """H19: in its branch, with its attempts and waits; and reading on gives what reading from the beginning gives."""
    client = Reader(store)
    slow = Reader(store)
    stops = 0
    for run_id in SHAPES[shape](store):
        client.read(run_id)
        slow.read(run_id, limit=1)
        fresh = Reader(store)
        fresh.read(run_id)
        if "emit" not in shape:  # when output is written isn't certain
            assert client.rows == slow.rows == fresh.rows
        check_rows(store, run_id, fresh.rows)
        stops += 1
    assert stops


@cache
def events_of_shape(shape: str) -> list[Event]:
    """All events of a run of this shape."""
    store = MemoryStore()
    run_ids = list(SHAPES[shape](store))
    return events_of(store, run_ids[-1])


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(sorted(SHAPES)), st.data())
def test_however_a_timeline_is_read_in_parts_it_has_the_same_rows_in_the_end(
    shape: str, data: st.DataObject
) -> None:
    """H19: each part begins at the version that the one before ended with, and has as many rows as a client wants."""
    events = events_of_shape(shape)
    timeline = EventRows()
    seen: Rows = {}
    version = 0
    for event in events:
        timeline.take(event)
        if data.draw(st.integers(0, 3)) == 0:
            limit = data.draw(st.integers(1, 4))
            for row in list(timeline.log.since(version))[:limit]:
                seen[row.id] = row.facts()
                version = row.version
    seen |= {row.id: row.facts() for row in timeline.log.since(version)}
    at_once = EventRows()
    for event in events:
        at_once.take(event)
    assert seen == {row.id: row.facts() for row in at_once.log.since(0)}


def test_a_row_has_a_parent_a_step_and_a_start_that_are_0() -> None:
    """H19: what is 0 isn't left out where that means something."""
    row = timeline_rows.Row("step", "a", 0.0, timeline_rows.Row("branch", "b", 0.0, None, ""), "b")
    row.step = 0
    row.has_completed = True
    row.stop(0.0, "done")
    assert row.facts() == {
        "id": 0,
        "kind": "step",
        "label": "a",
        "start": 0.0,
        "status": "done",
        "step": 0,
        "end": 0.0,
        "parent": 0,
        "branch": "b",
    }


class Gates:
    """Nodes that wait until the test lets them end."""

    def __init__(self) -> None:
        self.begun: set[str] = set()
        self._open: dict[str, threading.Event] = {}

    def node(self, name: str) -> Any:
        self._open[name] = threading.Event()

        def wait(state: Any) -> dict[str, Any]:
            self.begun.add(name)
            assert self._open[name].wait(SOON)
            return {}

        return wait

    def let(self, *names: str) -> None:
        for name in names:
            self._open[name].set()


def active(reader: Reader) -> list[tuple[str, str]]:
    """What is under way without a row, in which branch."""
    return [(each["branch"], each["label"]) for each in reader.read(RUN)["active"]]


def test_nodes_under_way_are_listed_as_long_as_they_have_no_row(store: Store) -> None:
    """H20: in the run itself and in its branches, so that the page can draw a bar for each."""
    gates = Gates()
    nodes = {name: gates.node(name) for name in ("src", "a", "b", "b2", "join", "z")}
    graph = fan(
        {"a": nodes["a"], "b": [nodes["b"], nodes["b2"]]},
        nodes["join"],
        source=nodes["src"],
        then={"z": nodes["z"]},
    )
    graph = kept(graph, store)
    reader = Reader(store)
    with supervise(store, [graph], poll=0.01):
        graph.start({}, run_id=RUN)
        for let, expected in (
            ([], [("", "src")]),
            (["src"], [("a", "a"), ("b", "b")]),
            (["b"], [("a", "a"), ("b", "b2")]),
            (["a"], [("b", "b2")]),
            (["b2"], [("", "join")]),
            (["join"], [("", "z")]),
        ):
            gates.let(*let)
            until(lambda expected=expected: active(reader) == expected, str(expected))
            assert all(each["since"] > 0 for each in reader.read(RUN)["active"])
        gates.let("z")
        until(lambda: graph.get(RUN).status == "completed")
    assert active(reader) == []


def test_a_map_and_a_graph_inside_of_a_node_are_listed_while_they_are_under_way(store: Store) -> None:
    """H20: of a map it isn't known how many branches are under way, only that some may be."""
    gates = Gates()
    box = chain(nothing, gates.node("inner"), names=["in", "inner"])
    graph = kept(mapped(2, [gates.node("one")], then={"box": box}), store)
    reader = Reader(store)
    with supervise(store, [graph], poll=0.01):
        graph.start({}, run_id=RUN)
        until(lambda: active(reader) == [("", "one")])
        gates.let("one")
        until(lambda: active(reader) == [("box", "inner")])
        gates.let("inner")
        until(lambda: graph.get(RUN).status == "completed")
    assert active(reader) == []


def test_tasks_under_way_have_rows(store: Store) -> None:
    """H20: a journal says when tasks begin."""
    gates = Gates()
    flow = Workflow("flow", store=store, preserve=True)
    for name in ("a", "b"):
        wait = gates.node(name)
        flow.add_task(name, lambda wait=wait: wait({}))
    reader = Reader(store)
    with supervise(store, [flow], poll=0.01):
        flow.start({}, run_id=RUN)
        until(lambda: gates.begun == {"a", "b"})
        gates.let("a")

        def statuses() -> dict[str, str]:
            reader.read(RUN)
            return {row["label"]: row["status"] for row in reader.rows.values()}

        until(lambda: statuses() == {"a": "done", "b": "running"})
        gates.let("b")
        until(lambda: statuses() == {"a": "done", "b": "done"})


def test_what_a_node_emits_is_shown_in_its_row_while_it_runs(store: Store) -> None:
    """H20: how many items of output there are, and how far it is."""
    gates = Gates()
    wait = gates.node("tells")

    def tells(state: Any) -> dict[str, Any]:
        emit("one")
        emit("two")
        progress(1, 4, "words")
        return wait(state)

    graph = kept(chain(nothing, tells), store)
    reader = Reader(store)

    def row() -> dict[str, Any]:
        reader.read(RUN)
        return reader.rows.get(1, {})

    with supervise(store, [graph], poll=0.01):
        graph.start({}, run_id=RUN)
        until(lambda: row().get("progress") == {"done": 1, "total": 4, "message": "words"})
        assert (row()["label"], row()["status"], row()["output"]) == ("n2", "running", 2)
        gates.let("tells")
        until(lambda: row()["status"] == "done")
    assert "progress" not in row()
    assert row()["output"] == 2
    check_rows(store, RUN, reader.rows)


def test_each_row_of_a_long_run_has_its_own_update_and_output() -> None:
    """H19: also where one node runs again and again, and where output was emitted between all steps."""
    steps = 3 * EVENTS_OF_PLACE

    def talk(state: Any) -> dict[str, int]:
        emit(state["n"])
        return {"n": state["n"] + 1}

    store = MemoryStore()
    graph = kept(loop(steps, talk, max_iterations=steps + 1), store)
    graph.execute({"n": 0}, run_id=RUN)
    created = graph.get(RUN).info.created
    timelines = Timelines(store)
    rows = timelines.changes(RUN, created, frozenset(), "", 5000)["rows"]
    assert [(row["step"], row.get("output")) for row in rows] == [
        (number, 1) for number in range(1, steps + 1)
    ]
    for row in rows[::5]:
        found = timelines.row_events(RUN, created, frozenset(), row["id"])
        assert found is not None
        assert found.step is not None
        assert found.step["update"] == {"n": row["step"]}
        assert [each["data"] for each in found.output] == [row["step"] - 1]


def test_a_node_that_has_slept_or_is_tried_again_is_shown_as_running(store: Store) -> None:
    """H20: a journal doesn't say when a wait is over, but when it will be."""
    gates = Gates()
    wait = gates.node("again")
    left = [None]

    def fails(state: Any) -> dict[str, Any]:
        if left:
            left.clear()
            raise ConnectionError("busy")
        rest(0.01)
        return wait(state)

    graph = kept(single(fails, retry=Retry(2, backoff=0.01)), store)
    reader = Reader(store)

    def statuses() -> list[str]:
        reader.read(RUN)
        return [row["status"] for row in reader.rows.values()]

    with supervise(store, [graph], poll=0.01):
        graph.start({}, run_id=RUN)
        until(lambda: "again" in gates.begun and statuses() == ["running"])
        assert [kind for _, _, kind in reader.rows[0]["waits"]] == ["retry", "sleep"]
        gates.let("again")
        until(lambda: statuses() == ["done"])


GRAPH_OF_A_PROCESS = """
import os, sys, time
from limpet import StateGraph, supervise, END

def wait(state):
    while not os.path.exists(sys.argv[2]):
        time.sleep(0.01)
    return {}

graph = StateGraph(name="killed")
for name in ("a", "b", "c"):
    graph.add_node(name, run=wait if name == "b" else (lambda state: {}))
graph.add_edge("a", "b").add_edge("b", "c").add_edge("c", END).set_entry_point("a")
graph.compile(store=sys.argv[1], preserve=True, lease=1)
"""


def test_a_node_that_fails_after_it_has_emitted_comes_after_a_step_that_is_there(store: Store) -> None:
    """H20: so that its state can be looked at, and a fork can begin there."""

    def tells(state: Any) -> dict[str, Any]:
        emit("one")
        raise ValueError("two")

    with suppress(LimpetError):
        kept(chain(nothing, tells), store).execute({}, run_id=RUN)
    reader = Reader(store)
    reader.read(RUN)
    assert reader.rows[1]["after"] == 1
    assert Runs(store).state(RUN, reader.rows[1]["after"]) == {}


WORKER = f"{GRAPH_OF_A_PROCESS}\ngraph.execute({{}}, run_id='r')\n"


def test_a_run_whose_process_was_killed_is_shown_as_it_was_recovered(tmp_path: Path) -> None:
    """H20: each node has one row, also the one that was called again."""
    url = f"sqlite:///{tmp_path}/runs.db"
    free = tmp_path / "free"
    process = subprocess.Popen([sys.executable, "-c", WORKER, url, str(free)])
    store = open_store(url)
    reader = Reader(store)
    try:
        until(lambda: [info.step for info in Runs(store).list()] == [1])
        until(lambda: active(reader) == [("", "b")])
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert Runs(store).get(RUN).shown_status == "abandoned"
    with Client(app(store, [], token=TOKEN), store, None) as client:
        assert [row["label"] for row in client.read(f"/runs/{RUN}/timeline")["active"]] == ["b"]
    free.touch()
    graph = StateGraph(name="killed")
    for name in ("a", "b", "c"):
        graph.add_node(name, run=nothing)
    graph.add_edge("a", "b").add_edge("b", "c").add_edge("c", END).set_entry_point("a")
    graph.compile(store=store, preserve=True)
    with supervise(store, [graph], poll=0.02):
        until(lambda: graph.get(RUN).status == "completed")
    reader.read(RUN)
    assert [row["label"] for row in reader.rows.values()] == ["a", "b", "c"]
    assert [row.get("crashes", 0) for row in reader.rows.values()] == [0, 1, 0]
    check_rows(store, RUN, reader.rows)
    store.close()


def test_a_timeline_continues_after_the_store_was_unavailable() -> None:
    """H19: what was read in part before is read again, and no row is missing or there twice."""
    memory = MemoryStore()
    run(kept(loop(200), memory))
    for operation in ("read", "output"):
        for nth in (1, 2, 3):
            store = FaultyStore(memory)
            reader = Reader(store)
            store.fail(operation, nth=nth)
            with suppress(StoreUnavailable):
                reader.read(RUN, limit=50)
            reader.read(RUN, limit=50)
            assert [row["step"] for row in reader.rows.values()] == list(range(1, 201))


def test_rows_of_deleted_records_are_replaced_by_a_mark(store: Store) -> None:
    """H20: it says how many there were."""
    run(kept(loop(400), store))
    Runs(store).prune_checkpoints(RUN, 10)
    reader = Reader(store)
    reader.read(RUN)
    first, *others = reader.rows.values()
    assert (first["kind"], first["label"]) == ("mark", "not kept")
    assert first["note"].endswith("records are no longer stored")
    assert first["end"] <= others[0]["start"]
    assert others[-1]["step"] == 400


def test_a_timeline_ends_before_a_damaged_record() -> None:
    """H19: what can be read is shown, and it says why there is no more."""
    store = MemoryStore()
    run(kept(loop(10), store))
    records = store._runs[RUN].records
    sound = records[5]
    records[5] = sound[:-1] + bytes([sound[-1] ^ 1])
    reader = Reader(store)
    for _ in range(2):
        assert "damaged" in reader.read(RUN)["problem"]
        assert 0 < len(reader.rows) < 10
    stream = Stream(store)
    stream.wait()
    assert "damaged" in stream.messages[-2][1]["problem"]
    assert stream.rows == reader.rows
    records[5] = sound
    again = Reader(store)
    assert again.read(RUN)["problem"] is None
    assert len(again.rows) == 10
    records[1] = records[1][:-1] + bytes([records[1][-1] ^ 1])
    early = Reader(store)
    assert "damaged" in early.read(RUN)["problem"]
    assert early.rows == {}


def test_only_the_newest_rows_of_a_very_long_run_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """H19: so the memory of the server is bounded."""
    monkeypatch.setattr(timeline_rows, "MAX_KEPT_ROWS", 100)
    monkeypatch.setattr(timeline_rows, "DROPPED_AT_ONCE", 10)
    store = MemoryStore()
    run(kept(loop(250), store))
    reader = Reader(store)
    answer = reader.read(RUN, limit=1000)
    steps = [row["step"] for row in reader.rows.values()]
    assert steps == list(range(250 - len(steps) + 1, 251))
    assert 90 <= len(steps) <= 100
    assert answer["dropped"] == 250 - len(steps)
    assert answer["total"] == len(steps)


def test_few_timelines_are_remembered_and_others_are_read_again() -> None:
    """H19: a client that comes back after its timeline was forgotten reads it from the beginning."""
    store = MemoryStore()
    graph = kept(loop(3), store)
    timelines = Timelines(store)
    for number in range(KEPT_TIMELINES + 1):
        graph.execute({}, run_id=f"r{number}")
    versions = {}
    for number in range(KEPT_TIMELINES + 1):
        created = graph.get(f"r{number}").info.created
        versions[number] = timelines.changes(f"r{number}", created, frozenset(), "", 10)["version"]
    newest = graph.get(f"r{KEPT_TIMELINES}").info.created
    again = timelines.changes(f"r{KEPT_TIMELINES}", newest, frozenset(), versions[KEPT_TIMELINES], 10)
    assert (again["reset"], again["rows"]) == (False, [])
    oldest = graph.get("r0").info.created
    again = timelines.changes("r0", oldest, frozenset(), versions[0], 10)
    assert again["reset"]
    assert len(again["rows"]) == 3
    assert len(timelines._kept) == KEPT_TIMELINES


def test_timelines_that_are_followed_are_kept_however_many_there_are() -> None:
    """H19: no follower reads all rows again because others follow other runs; afterwards few are kept."""
    store = MemoryStore()
    graph = kept(loop(3), store)
    timelines = Timelines(store)
    created = {}
    versions = {}

    def changes(run_id: str, version: str) -> dict[str, Any]:
        return timelines.changes(run_id, created[run_id], frozenset(), version, 10)

    with ExitStack() as following:
        for number in range(2 * KEPT_TIMELINES):
            run_id = f"r{number}"
            graph.execute({}, run_id=run_id)
            created[run_id] = graph.get(run_id).info.created
            for _ in range(2):
                following.enter_context(timelines.following(run_id))
            versions[run_id] = changes(run_id, "")["version"]
        graph.execute({}, run_id="other")
        created["other"] = graph.get("other").info.created
        changes("other", "")
        for run_id, version in versions.items():
            again = changes(run_id, version)
            assert (again["reset"], again["rows"]) == (False, [])
    assert len(timelines._kept) == KEPT_TIMELINES
    assert not timelines._followers


def test_a_run_that_replaces_another_of_its_id_has_a_timeline_of_its_own() -> None:
    """H19: and that of the first isn't kept."""
    store = MemoryStore()
    graph = kept(loop(3), store)
    timelines = Timelines(store)
    version = ""
    for _ in range(2):
        run(graph)
        found = timelines.changes(RUN, graph.get(RUN).info.created, frozenset(), version, 10)
        assert (found["reset"], len(found["rows"])) == (True, 3)
        version = found["version"]
        graph.get(RUN).delete()
    assert len(timelines._kept) == 1


class Stream:
    """A client of the stream of a timeline, in a thread with an event loop of its own."""

    def __init__(self, store: Store, run_id: str = RUN) -> None:
        self.messages: list[tuple[str, dict[str, Any]]] = []
        self.rows: Rows = {}
        self._store = store
        self._run_id = run_id
        self._thread = threading.Thread(target=lambda: asyncio.run(self._read()), daemon=True)
        self._thread.start()

    async def _read(self) -> None:
        timelines = Timelines(self._store)

        def changes(version: str) -> dict[str, Any]:
            info = Runs(self._store).get(self._run_id).info
            found = timelines.changes(self._run_id, info.created, frozenset(), version, 5)
            facts = {"stored_status": info.status, "shown_status": info.shown_status}
            return {**found, "run": facts}

        stream = timeline_stream(timelines, client_for(self._store), self._run_id, changes, "")
        async for sent in stream:
            if sent.startswith(b":"):
                continue
            kind, _, rest = sent.decode().partition("\n")
            data = json.loads(rest.partition("data: ")[2])
            self.rows |= {row["id"]: row for row in data.get("rows", ())}
            self.messages.append((kind.removeprefix("event: "), data))

    def has_shown(self, status: str) -> bool:
        """Whether the newest message is of a run with this status."""
        return [data["run"]["shown_status"] for kind, data in self.messages if kind == "timeline"][-1:] == [
            status
        ]

    def wait(self) -> None:
        """Wait for the end of the stream."""
        self._thread.join(SOON)
        assert not self._thread.is_alive()


def test_a_stream_tells_what_changes_in_a_timeline_until_the_run_ends(store: Store) -> None:
    """H20: also what makes no event, such as that a worker claims the run."""
    gates = Gates()
    graph = kept(chain(nothing, asking(), gates.node("last")), store)
    graph.start({}, run_id=RUN)
    stream = Stream(store)
    until(lambda: stream.has_shown("queued"))
    with supervise(store, [graph], poll=0.01):
        until(lambda: stream.has_shown("paused"))
        assert [row["status"] for row in stream.rows.values()] == ["done", "paused"]
        graph.get(RUN).answer("yes")
        until(lambda: stream.has_shown("running"))
        gates.let("last")
        stream.wait()
    assert stream.messages[-1] == ("end", {})
    assert [row["label"] for row in stream.rows.values()] == ["n1", "n2", "n3"]
    check_rows(store, RUN, stream.rows)
    again = Stream(store)
    again.wait()
    assert again.rows == stream.rows


def test_a_stream_says_why_it_ends_before_the_run_does(store: Store) -> None:
    """H19: the run was deleted."""
    graph = kept(chain(asking()), store)
    run(graph)
    stream = Stream(store)
    until(lambda: stream.has_shown("paused"))
    graph.get(RUN).delete()
    stream.wait()
    kind, data = stream.messages[-1]
    assert (kind, data["code"]) == ("problem", "run-not-found")


def test_no_run_that_an_import_accepts_makes_its_timeline_fail(tmp_path: Path) -> None:
    """H19, P5: exported runs that were changed behind right checksums have rows, or an error of ours."""
    exported = examples(tmp_path)
    file = tmp_path / "crafted.run"
    accepted = 0
    for seed in range(300):
        file.write_bytes(crafted(exported[seed % len(exported)].file, Random(seed)))
        store = MemoryStore()
        with suppress(LimpetError):
            run_id = Runs(store).import_(file)
            reader = Reader(store)
            reader.read(run_id)
            accepted += 1
            json.dumps(list(reader.rows.values()))
    assert accepted > 10
