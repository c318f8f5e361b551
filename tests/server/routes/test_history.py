"""H19: what happened in a run: steps, events, output and questions, page by page."""

from __future__ import annotations

from typing import Any

import pytest

from limpet import MemoryStore, State, StateGraph, emit, progress
from limpet.engine.operations import stored_state
from limpet.frontends import values
from limpet.server.routes import history as routes
from support.graphs import fan, loop
from support.http_api import Client, api, plain

STEPS = 25


def counting(store: Any) -> StateGraph:
    return loop(STEPS, max_iterations=STEPS + 1).compile(store=store, preserve=True)


def talking(store: Any) -> StateGraph:
    """A graph whose one node emits something in each of its steps."""

    def talk(state: State) -> dict[str, int]:
        emit({"word": state["n"]})
        return {"n": state["n"] + 1}

    return loop(STEPS, talk, max_iterations=STEPS + 1).compile(store=store, preserve=True)


def pages(client: Client, path: str, items: str, **params: Any) -> list[list[Any]]:
    """All pages of a route."""
    found = []
    after: Any = None
    while True:
        page = client.read(path, **params, **({} if after is None else {"after": after}))
        found.append(page[items])
        after = page["next"]
        if after is None or page.get("more") is False:
            return found


@pytest.mark.parametrize("is_long", [True, False])
def test_steps_come_in_pages_oldest_first(is_long: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """H19: of a long run, only the part that is asked for is read."""
    monkeypatch.setattr(stored_state, "LONG_JOURNAL", 1 if is_long else 1000)
    with api(counting) as client:
        client.run_until_it_stops("r")
        found = pages(client, "/runs/r/history", "steps", limit=10)
        assert [len(page) for page in found] == [10, 10, 6]
        assert [step["step"] for page in found for step in page] == list(range(STEPS + 1))
        assert found[0][1]["keys"] == ["n"]
        assert found[0][0]["node"] is None
        assert client.read("/runs/r/history", after=STEPS)["steps"] == []
        assert len(client.read("/runs/r/history", after=-5)["steps"]) == STEPS + 1
        assert client.read("/runs/none/history", 404)["code"] == "run-not-found"


def test_steps_of_branches_name_their_branch() -> None:
    """H19."""

    def forked(store: Any) -> StateGraph:
        return fan({"a": None, "b": None}).compile(store=store, preserve=True)

    with api(forked) as client:
        client.run_until_it_stops("r")
        steps = client.read("/runs/r/history")["steps"]
        assert {step["branch"] for step in steps} == {None, "a", "b"}


def test_events_come_in_pages_and_by_type(monkeypatch: pytest.MonkeyPatch) -> None:
    """H19: not more of them are looked through at once than that is quick."""
    with api(counting) as client:
        client.run_until_it_stops("r")
        found = [event for page in pages(client, "/runs/r/events", "events", limit=7) for event in page]
        assert [event["type"] for event in found] == ["start", *["step"] * STEPS, "complete"]
        assert len({event["cursor"] for event in found}) == len(found)
        last = client.read("/runs/r/events", type="complete")
        assert [event["type"] for event in last["events"]] == ["complete"]
        assert client.read("/runs/r/events", after=found[3]["cursor"])["events"] == found[4:]
        monkeypatch.setattr(routes, "MAX_SCANNED", 10)
        some = pages(client, "/runs/r/events", "events", type="complete")
        assert [len(page) for page in some] == [0, 0, 1]


@pytest.mark.parametrize("limit", [1, 7, 20])
def test_pages_of_events_miss_nothing_that_was_emitted_between_steps(limit: int) -> None:
    """H19: wherever a page ends, and whichever event a client continues after."""
    with api(talking) as client:
        client.run_until_it_stops("r", n=0)
        whole = client.read("/runs/r/events")["events"]
        assert [event["type"] for event in whole] == ["start", *["output", "step"] * STEPS, "complete"]
        parts = pages(client, "/runs/r/events", "events", limit=limit)
        assert [event for page in parts for event in page] == whole
        for number, event in enumerate(whole, 1):
            rest = client.read("/runs/r/events", after=event["cursor"])["events"]
            assert rest == whole[number:]


def test_what_is_not_a_cursor_of_the_run_is_refused() -> None:
    """H19: of another run, or made up."""
    with api() as client:
        client.run_until_it_stops("r", topic="x")
        client.run_until_it_stops("other", topic="x")
        cursor = client.read("/runs/other/events")["next"]
        for after in (cursor, "nonsense", "9:1.2:r", "2:0.0.0.0.0.0.0:r"):
            assert client.read("/runs/r/events", 400, after=after)["code"] == "usage"


def test_what_nodes_emit_comes_in_pages() -> None:
    """H19: as output of its own, and among the events."""

    def talk(state: State) -> None:
        for number in range(5):
            emit({"word": number})
        progress(1, 2, "half")

    with api(plain(talk)) as client:
        client.run_until_it_stops("r")
        found = pages(client, "/runs/r/output", "items", limit=2)
        items = [item for page in found for item in page]
        assert [item.get("data") for item in items[:5]] == [{"word": number} for number in range(5)]
        assert [item["number"] for item in items] == [1, 2, 3, 4, 5, 6]
        assert (items[5]["type"], items[5]["done"], items[5]["total"]) == ("progress", 1, 2)
        assert items[0]["node"] == "only"
        events = client.read("/runs/r/events", type="output")["events"]
        assert [event["data"] for event in events] == [item["data"] for item in items[:5]]


def test_large_events_and_items_are_sent_whole_if_asked_for() -> None:
    """H19: a few at a time."""

    def talk(state: State) -> dict[str, Any]:
        emit("x" * 50_000)
        return {"text": "y" * 50_000}

    with api(plain(talk), store=MemoryStore()) as client:
        client.run_until_it_stops("r")
        (item,) = client.read("/runs/r/output")["items"]
        assert (item["large"], "data" in item) == ({"data": 50_000}, False)
        (item,) = client.read("/runs/r/output", whole="true")["items"]
        assert len(item["data"]) == 50_000
        (step,) = client.read("/runs/r/events", type="step")["events"]
        assert (step["update"], step["large"]) == ({}, {"text": 50_000})
        (step,) = client.read("/runs/r/events", type="step", whole="true", limit=20)["events"]
        assert len(step["update"]["text"]) == 50_000
        assert "at most 20" in client.read("/runs/r/events", 400, whole="true", limit=21)["detail"]


def test_a_page_ends_before_it_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """H19: of events and of output; a client that reads on gets all of it."""
    monkeypatch.setattr(routes, "PAGE_BYTES", 50_000)

    def talk(state: State) -> dict[str, Any]:
        emit("x" * 15_000)
        return {"n": state["n"] + 1, "text": "y" * 15_000}

    def talking(store: Any) -> StateGraph:
        return loop(STEPS, talk, max_iterations=STEPS + 1).compile(store=store, preserve=True)

    with api(talking) as client:
        client.run_until_it_stops("r", n=0)
        found = pages(client, "/runs/r/events", "events", limit=2000)
        assert {len(page) for page in found[1:-1]} == {3}
        assert [event["type"] for page in found for event in page] == [
            "start",
            *["output", "step"] * STEPS,
            "complete",
        ]
        found = pages(client, "/runs/r/output", "items", limit=2000)
        assert [item["number"] for page in found for item in page] == list(range(1, STEPS + 1))
        assert {len(page) for page in found[:-1]} == {3}


def test_what_is_too_large_for_an_answer_is_alone_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """H19: also where it is asked for whole, as an event, as output, and as the update of a row."""

    def talk(state: State) -> dict[str, Any]:
        emit("x" * 60_000)
        return {"text": "y" * 60_000}

    with api(plain(talk)) as client:
        client.run_until_it_stops("r")
        monkeypatch.setattr(routes, "PAGE_BYTES", 50_000)
        found = pages(client, "/runs/r/events", "events", whole="true", limit=20)
        assert [[event["type"] for event in page] for page in found] == [
            ["start"],
            ["output"],
            ["step"],
            ["complete"],
        ]
        monkeypatch.setattr(values, "MAX_VALUE", 50_000)
        before = found[0][0]["cursor"]
        for path, asked in (
            ("events", {"whole": "true", "after": before}),
            ("events", {"whole": "true", "type": "step"}),
            ("output", {"whole": "true"}),
            ("timeline/0", {"key": "text"}),
        ):
            assert client.read(f"/runs/r/{path}", 413, **asked)["code"] == "value-too-large"
        assert len(client.read("/runs/r/events", whole="true")["events"]) == 1
        assert client.read("/runs/r/timeline/0", key="other")["update"] == {}


def test_what_is_before_a_damaged_record_is_shown() -> None:
    """H19: each route says that it ends there, however much is asked for at once."""
    store = MemoryStore()
    with api(counting, store=store) as client:
        client.run_until_it_stops("r")
        whole = client.read("/runs/r/events")
        assert whole["problem"] is None
        assert client.read("/runs/r/timeline")["problem"] is None
        damage(store, -1)
        found = client.read("/runs/r/events")
        assert found["events"] == whole["events"][:-2]
        assert (found["more"], "damaged" in found["problem"]) == (False, True)
        parts = pages(client, "/runs/r/events", "events", limit=len(found["events"]))
        assert [event for page in parts for event in page] == found["events"]
        answers = client.read("/runs/r/events", type="answer")
        assert (answers["events"], answers["problem"]) == ([], found["problem"])
    with api(counting, store=store) as client:  # which hasn't read the run before
        timeline = client.read("/runs/r/timeline")
        assert len(timeline["rows"]) == STEPS - 1
        assert timeline["problem"] == found["problem"]
        assert client.read("/runs/r/timeline", after=timeline["version"])["problem"] == found["problem"]
        for row in timeline["rows"]:
            assert client.read(f"/runs/r/timeline/{row['id']}")["update"] == {"n": row["step"]}
        damage(store, 0)
        assert client.read("/runs/r/events", 500)["code"] == "damaged"


def damage(store: MemoryStore, number: int) -> None:
    """Change a byte of a record."""
    records = store._runs["r"].records
    records[number] = records[number][:-1] + bytes([records[number][-1] ^ 1])
