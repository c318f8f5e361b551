"""Lists of runs: the statuses that are shown, and all filters. H11."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from time import monotonic
from typing import Any

import pytest

from limpet import ExecutionError, MemoryStore, Retry, Runs, State, StateGraph, UsageError, pause, sleep
from limpet.engine.leases.process_identity import this_process
from limpet.engine.operations import run_query
from limpet.engine.operations.run_query import QUERY_STATUSES
from limpet.journal.encoding.codec import encode
from limpet.journal.run_filter import LeaseState, RunFilter
from limpet.journal.store import FAILED, Labels, NewRun, Store, Tail
from support.graphs import SOON, chain, count, single

DEAD = "|".join([*this_process().split("|")[:4], "1"])
"""A process of this host that no longer runs: its id now belongs to a process that started at another time."""

ELSEWHERE = "elsewhere|boot|namespace|1|2"


SHOWN = {
    "queued": "queued",
    "sleeping": "sleeping",
    "retrying": "retrying",
    "waiting": "waiting",
    "held": "running",
    "dead": "abandoned",
    "cut-off": "abandoned",
    "paused": "paused",
    "completed": "completed",
    "failed": "failed",
    "quarantined": "quarantined",
    "cancelled": "cancelled",
}
"""The runs of `one_of_each`, and the status that each is shown with."""


def one_of_each(store: Store) -> None:
    """A run of each status that is shown."""
    graph = StateGraph(name="g").add_node("act", _act, retry=Retry(2, backoff=3600, max_delay=3600))
    graph.set_entry_point("act").set_finish_point("act").compile(store=store)
    for run_id in ("sleeping", "retrying", "paused", "completed"):
        graph.start({"does": run_id}, run_id=run_id)
    graph.recover()
    graph.start({}, run_id="queued")
    graph.start({}, run_id="cancelled").cancel()
    with pytest.raises(ExecutionError):
        single(_fail, name="once").compile(store=store).execute({}, run_id="failed")
    record = store.read("queued").records
    note = encode({"error": {"type": "RunQuarantined", "message": "it crashed"}})
    labels = Labels("act", "RunQuarantined")
    store.create(NewRun("quarantined", "g", record, FAILED, note=note, labels=labels))
    for run_id, holder, ttl in (
        ("held", ELSEWHERE, 60.0),
        ("dead", DEAD, 60.0),
        ("cut-off", ELSEWHERE, 0.001),
    ):
        store.create(NewRun(run_id, "g", record, holder=holder, ttl=ttl, due=0.0))
    store.create(NewRun("waiting", "g", record, labels=Labels("act", waits_for="message")))
    deadline = monotonic() + SOON
    while not store.list(RunFilter(lease_states=(LeaseState.EXPIRED,))):
        assert monotonic() < deadline


def _act(state: State) -> dict[str, Any]:
    match state.get("does"):
        case "sleeping":
            sleep(3600)
        case "retrying":
            raise ValueError("not yet")
        case "paused":
            pause("Well?")
    return {}


def _fail(state: State) -> dict[str, Any]:
    raise ValueError("no luck with Müller")


def ids(listed: list[Any]) -> set[str]:
    return {info.run_id for info in listed}


def test_each_run_is_shown_with_its_status_and_found_by_it(any_store: Store) -> None:
    """H11: queued, sleeping, retrying, waiting, abandoned and quarantined runs are told apart, on every store."""
    one_of_each(any_store)
    runs = Runs(any_store)
    assert {info.run_id: info.shown_status for info in runs.list()} == SHOWN
    assert {run_id: runs.get(run_id).shown_status for run_id in SHOWN} == SHOWN
    for status in set(SHOWN.values()) - {"running", "failed"}:
        assert ids(runs.list(status)) == {run_id for run_id, shown in SHOWN.items() if shown == status}
    # These are stored statuses too, and mean all runs that are stored with them.
    assert ids(runs.list("failed")) == {"failed", "quarantined"}
    stopped = {"paused", "completed", "failed", "quarantined", "cancelled"}
    assert ids(runs.list("running")) == SHOWN.keys() - stopped
    assert ids(runs.list(["sleeping", "quarantined", "failed"])) == {"sleeping", "quarantined", "failed"}
    assert ids(runs.list(QUERY_STATUSES)) == SHOWN.keys()


def test_a_list_of_several_statuses_is_in_order_and_has_pages(any_store: Store) -> None:
    """H11."""
    one_of_each(any_store)
    runs = Runs(any_store)
    statuses = ["queued", "abandoned", "failed", "paused", "waiting", "running"]
    whole = [info.run_id for info in runs.list(statuses)]
    assert whole == [info.run_id for info in runs.list() if info.run_id in whole]
    assert whole == list(dict.fromkeys(whole))
    found: list[str] = []
    page = runs.list(statuses, limit=2)
    while True:
        found += [info.run_id for info in page]
        if page.next is None:
            break
        assert len(page) == 2
        page = runs.list(statuses, limit=2, after=page.next)
    assert found == whole
    assert runs.list(statuses, limit=len(whole)).next is None


def test_runs_are_found_by_tags_graph_node_error_and_its_text(any_store: Store) -> None:
    """H11."""
    graph = chain(lambda state: {}, _fail, names=["first", "second"], name="a").compile(store=any_store)
    other = single(lambda state: {}["missing"], name="b").compile(store=any_store)
    for made, run_id, tags in ((graph, "both", ["x", "y"]), (graph, "one", ["x"]), (other, "key", ["y"])):
        with pytest.raises(ExecutionError):
            made.execute({}, run_id=run_id, tags=tags)
    runs = Runs(any_store)
    assert ids(runs.list(tag=["x", "y"])) == {"both"}
    assert ids(runs.list(tag="x")) == ids(runs.list(graph="a")) == ids(graph.runs()) == {"both", "one"}
    assert ids(runs.list(node="second")) == ids(runs.list(error="ValueError")) == {"both", "one"}
    assert ids(runs.list("failed", error="KeyError", node="only")) == ids(graph.runs(error="KeyError")) | {
        "key"
    }
    assert ids(runs.list(text="MÜLLER")) == ids(graph.runs(text="no luck", tag="x")) == {"both", "one"}
    assert ids(runs.list(text="keyerror")) == {"key"}
    assert (
        runs.list("completed", text="luck") == runs.list(error="OSError") == runs.list(tag=["x", "z"]) == []
    )


def test_runs_are_found_by_the_time_of_their_creation_and_last_change(any_store: Store) -> None:
    """H11."""
    graph = single(_pause).compile(store=any_store)
    for run_id in ("old", "new"):
        graph.invoke({}, run_id=run_id).wait()
    runs = Runs(any_store)
    middle = runs.get("new").info.created
    graph.resume("old", "yes")
    assert ids(runs.list(created_since=middle)) == {"new"}
    assert ids(runs.list(created_before=middle)) == {"old"}
    changed = runs.get("old").info.updated
    assert ids(runs.list(since=changed)) == {"old"}
    assert ids(runs.list(before=changed)) == {"new"}
    assert ids(runs.list(since=datetime(2001, 1, 1, tzinfo=UTC))) == {"old", "new"}
    assert ids(runs.list(since="2h")) == ids(runs.list(created_since=timedelta(hours=2))) == {"old", "new"}
    assert runs.list(before="2h") == runs.list(created_before="1d") == []
    assert ids(runs.list(since="2001-01-01T12:00Z", before="2101-01-01")) == {"old", "new"}


def test_a_search_for_a_text_says_how_many_runs_it_looked_through(monkeypatch: pytest.MonkeyPatch) -> None:
    """H11: the search is bounded, and the next page begins where it ended."""
    monkeypatch.setattr(run_query, "TEXT_SEARCH_BOUND", 3)
    store = MemoryStore()
    graph = single(lambda state: {}[state["key"]]).compile(store=store)
    for number in range(8):
        with pytest.raises(ExecutionError):
            graph.execute({"key": f"k{number}"}, run_id=f"r{number}")
    runs = Runs(store)
    first = runs.list(text="'k3'")
    assert (list(first), first.searched) == ([], 3)
    second = runs.list(text="'k3'", after=first.next)
    assert (ids(second), second.searched) == ({"r3"}, 3)
    third = runs.list(text="'k3'", after=second.next)
    assert (list(third), third.searched, third.next) == ([], None, None)
    assert runs.list("failed", limit=2).searched is None


@pytest.mark.parametrize(
    ("filters", "message"),
    [
        ({"status": "fialed"}, "status is one of .* not 'fialed'; did you mean 'failed'"),
        ({"status": ["failed", "que"]}, "did you mean 'queued'"),
        ({"status": 5}, "status is one of .* not 5"),
        ({"status": b"failed"}, "status is one of .* not b'failed'"),
        ({"status": []}, "status has no status in it: leave it out to mean all runs"),
        ({"graph": StateGraph(name="g")}, "graph must be a non-empty str, .*; did you mean 'g'"),
        ({"since": "2 hours"}, "since is a time, not '2 hours': give how long ago .*; did you mean '2h'"),
        ({"since": "3 months"}, "since is a time, not '3 months': give .*00Z'; a datetime"),
        ({"since": date(2026, 1, 1)}, "did you mean '2026-01-01'"),
        ({"since": 7200}, "since is a time, not 7200"),
        ({"since": 10**400}, "since is a time, not 1000"),
        ({"before": datetime(2026, 1, 1)}, "before: .* has no time zone"),
        ({"created_since": float("nan")}, "created_since is a time"),
        ({"created_before": -1}, "created_before is a time"),
        ({"error": ValueError}, "error must be a non-empty str, .*; did you mean 'ValueError'"),
        ({"error": ValueError("no")}, "did you mean 'ValueError'"),
        ({"node": ["ask"]}, "node must be a non-empty str"),
        ({"text": ""}, "text must be a non-empty str"),
        ({"tag": 5}, "a tag must be a non-empty str, not 5; did you mean '5'"),
        ({"tag": ["a", None]}, "a tag must be a non-empty str, not None"),
        ({"tag": {"a": "b"}}, "a tag must be a non-empty str, not {'a': 'b'}"),
        ({"tag": ""}, "a tag must be a non-empty str, not ''"),
        ({"after": "r1"}, "after='r1' isn't a place in a list"),
        ({"after": "nan:r1"}, "isn't a place in a list"),
        ({"after": "-inf:r1"}, "isn't a place in a list"),
        ({"after": timedelta(hours=2)}, "isn't a place in a list"),
        ({"limit": "5"}, "limit must be a whole number"),
        ({"limit": -1}, "limit must be a whole number"),
        ({"limit": 2**63 - 1}, "at least 0 and at most 1,000,000,000, not 9223372036854775807"),
    ],
)
def test_a_filter_that_makes_no_sense_is_refused(filters: dict[str, Any], message: str) -> None:
    """H11."""
    with pytest.raises(UsageError, match=message):
        Runs(MemoryStore()).list(**filters)


def test_a_filter_that_does_not_exist_is_refused_with_the_one_that_was_meant() -> None:
    with pytest.raises(TypeError, match="no filter 'created_sinse'; did you mean 'created_since'"):
        Runs(MemoryStore()).list(created_sinse="2h")  # type: ignore[call-arg]


def _pause(state: State) -> dict[str, Any]:
    return {"said": pause("Well?")}


def test_a_list_shows_where_runs_are_and_reads_no_journal_of_those_at_rest() -> None:
    """H10, H11: an `info` says the same wherever it comes from, and so does the filter by node."""
    store = JournalsRead()
    graph = chain(lambda state: {"said": pause("well?")}, count, count).compile(store=store)
    graph.start({}, run_id="moves")
    graph.start({}, run_id="asks")
    graph.recover()
    graph.start({}, run_id="waits")
    run = graph.stream("yes", checkpoint="moves@0")
    next(run)
    runs = Runs(store)
    store.read_ids.clear()
    listed = runs.list()
    places = [(each.run_id, each.step, each.node) for each in listed]
    assert places == [("waits", 0, "n1"), ("asks", 0, "n1"), ("moves", 1, "n2")]
    assert store.read_ids == ["moves"]
    assert [runs.get(each.run_id).info for each in listed] == listed
    assert [each.run_id for each in runs.list(node="n1")] == ["waits", "asks"]
    run.close()
    assert runs.list()[-1].node == "n2"


class JournalsRead(MemoryStore):
    """A store that notes whose journals are read."""

    def __init__(self) -> None:
        super().__init__()
        self.read_ids: list[str] = []

    def read(self, run_id: str, first: int | None = None, last: int | None = None) -> Tail:
        self.read_ids.append(run_id)
        return super().read(run_id, first, last)
