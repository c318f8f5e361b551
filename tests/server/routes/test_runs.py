"""H19: many runs: lists, counts, and changes of all that match."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from time import time
from typing import Any

import pytest

from limpet import StateGraph, open_store, pause
from limpet.engine.leases.lease_client import LeaseClient
from limpet.engine.operations import bulk
from limpet.frontends import shown_runs
from limpet.journal.store import NewRun
from limpet.server import run_counts
from limpet.server.routes import questions
from limpet.server.routes import run as run_routes
from limpet.server.routes import runs as routes
from limpet.server.run_counts import RecentAnswers
from support.graphs import asking, chain, fan
from support.http_api import Client, api, plain
from support.http_server import API
from support.waiting import until


def fill(client: Client, number: int = 3) -> None:
    """Some runs that failed, and one that asks."""
    for each in range(number):
        client.run_until_it_stops(f"run-{each}", topic="broken")
    client.run_until_it_stops("kelp", topic="kelp")


def ids(found: dict[str, Any]) -> list[str]:
    return [each["run_id"] for each in found["runs"]]


def test_a_list_has_pages_newest_first() -> None:
    """H19: a cursor leads from page to page, whatever is created meanwhile."""
    with api() as client:
        fill(client)
        first = client.read("/runs", limit=2)
        assert ids(first) == ["kelp", "run-2"]
        client.run_until_it_stops("later", topic="broken")
        second = client.read("/runs", limit=2, after=first["next"])
        assert ids(second) == ["run-1", "run-0"]
        assert second["next"] is None


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        ({"status": "paused"}, ["kelp"]),
        ({"status": ["paused", "completed"]}, ["kelp"]),
        ({"status": "failed", "error": "ValueError"}, ["run-0"]),
        ({"error": "KeyError"}, []),
        ({"graph": "article"}, ["kelp", "run-0"]),
        ({"graph": "other"}, []),
        ({"tag": "none"}, []),
        ({"node": "rate"}, ["run-0"]),
        ({"text": "RATING"}, ["run-0"]),
        ({"since": "1h"}, ["kelp", "run-0"]),
        ({"before": "1h"}, []),
        ({"created_since": "1h", "created_before": "0s"}, ["kelp", "run-0"]),
        ({"queue": "default"}, ["kelp", "run-0"]),
        ({"parent": "kelp"}, []),
        ({"unserved": "true"}, []),
    ],
)
def test_each_filter_of_a_list_can_be_asked_for(filters: dict[str, Any], found: list[str]) -> None:
    """H19: those of `Runs.list`."""
    with api() as client:
        fill(client, 1)
        assert ids(client.read("/runs", **filters)) == found


def test_runs_are_counted_by_the_status_that_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """H19: of very many it is only said that there are more."""
    with api() as client:
        fill(client)
        client.act("/graphs/article/runs", input={"topic": "x"})
        assert client.read("/counts") == {"counts": {"failed": 3, "paused": 1, "queued": 1}, "more": []}
        assert client.read("/counts", graph="other") == {"counts": {}, "more": []}
        monkeypatch.setattr(run_counts, "COUNTED", 2)
        assert client.read("/counts", graph="article") == {
            "counts": {"failed": 2, "paused": 1, "queued": 1},
            "more": ["failed"],
        }


def test_a_status_of_many_runs_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """H19: though stores have one status for runs that are queued, sleeping, held and so on."""
    monkeypatch.setattr(run_counts, "COUNTED", 2)
    with api() as client:
        for number, delay in enumerate(("1h", None, None, None)):
            body = {"run_id": f"r{number}", "input": {"topic": "x"}, "delay": delay}
            client.act("/graphs/article/runs", **body)
        for run_id in ("held", "crashed", "held-too"):
            holder = "a process on another host"
            assert client.store.create(NewRun(run_id, "article", [b"x"], holder=holder, ttl=3600.0))
        assert client.read("/counts") == {
            "counts": {"queued": 2, "sleeping": 1, "running": 2},
            "more": ["abandoned", "queued", "running"],
        }


def test_runs_that_match_are_counted() -> None:
    """H19: by the filters of a list, but for the status and what only a search finds."""
    with api() as client:
        fill(client)
        client.act("/graphs/article/runs", input={"topic": "x"}, run_id="late", tags=["sea"], queue="slow")
        failed = {"failed": 3}
        for filters, counts in (
            ({"error": "ValueError"}, failed),
            ({"node": "rate"}, failed),
            ({"tag": "sea"}, {"queued": 1}),
            ({"tag": ["sea", "night"]}, {}),
            ({"queue": "slow"}, {"queued": 1}),
            ({"since": "1h", "queue": "default"}, {**failed, "paused": 1}),
            ({"before": "1h"}, {}),
            ({"parent": "kelp"}, {}),
        ):
            assert client.read("/counts", **filters)["counts"] == counts, filters
        for name in ("status", "text", "unserved"):
            assert client.read("/counts", 400, **{name: "failed"})["code"] == "usage"


def test_a_status_is_that_by_the_clock_of_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """H19: in a list as in the numbers, wherever the server is."""
    with api() as client:
        client.act("/graphs/article/runs", input={"topic": "x"}, run_id="r", delay="2h")
        assert client.read("/counts")["counts"] == {"sleeping": 1}
        monkeypatch.setattr(LeaseClient, "now", lambda self: time() + 3 * 3600)
        monkeypatch.setattr(RecentAnswers, "get", lambda self, key, find: find())
        assert client.read("/counts")["counts"] == {"queued": 1}
        assert client.read("/runs")["runs"][0]["status"] == "queued"
        assert client.read("/runs/r")["status"] == "queued"
        assert client.read("/runs/r/timeline")["run"]["status"] == "queued"


def test_tags_in_a_list_are_few_and_short() -> None:
    """H19: a run may have any number of any length; its own route has all of them."""
    with api() as client:
        tags = [f"{number:03}{'x' * 300}" for number in range(80)]
        client.act("/graphs/article/runs", input={"topic": "x"}, run_id="r", tags=tags)
        (listed,) = client.read("/runs")["runs"]
        assert listed["tags"] == [f"{tag[:200]}…" for tag in tags[:50]]
        assert client.read("/runs/r")["tags"] == tags


def test_many_runs_are_changed_with_an_outcome_each() -> None:
    """H19: each of what can be done with one run."""
    with api() as client:
        fill(client)
        planned = client.act("/runs/retry", status=["failed"], dry_run=True)
        assert (planned["planned"], planned["done"]) == (3, 0)
        assert client.read("/counts")["counts"]["failed"] == 3
        retried = client.act("/runs/retry", run_ids=["run-0", "kelp"])
        assert (retried["done"], retried["skipped"]) == (1, 1)
        assert "paused" in retried["runs"][1]["reason"]
        assert client.act("/runs/answer", status=["paused"], value="no")["done"] == 1
        assert client.act("/runs/answer", run_ids=["run-1"], value="no")["skipped"] == 1
        forked = client.act("/runs/fork", run_ids=["run-1"], update={"topic": "moss"}, tags=["f"], begin=True)
        created = forked["created"]["run-1"]
        assert client.read(f"/runs/{created}/state")["values"]["topic"] == "moss"
        assert client.read(f"/runs/{created}")["status"] == "queued"
        assert client.act("/runs/send", run_ids=["kelp"], name="note", value=1, key="k")["done"] == 1
        assert client.act("/runs/send", run_ids=["kelp"], name="note", value=1, key="k")["skipped"] == 1
        assert client.act("/runs/rollback", run_ids=["run-2"], step=0)["done"] == 1
        assert client.act("/runs/cancel", status=["queued"])["done"] == 3
        assert client.act("/runs/delete", run_ids=["run-2", "none"])["failed"] == 1
        assert client.act("/runs/delete", graph="article", all_runs=False)["done"] == 4
        assert client.read("/runs")["runs"] == []


@pytest.mark.parametrize(
    ("verb", "body"),
    [
        ("answer", {"value": "yes"}),
        ("answer", {"value": "maybe"}),
        ("answer", {"value": {"b": 1}}),
        ("answer", {"value": {"a": 1}}),
        ("answer", {}),
        ("send", {"name": "note", "value": 1}),
        ("fork", {}),
        ("rollback", {"step": 0}),
        ("rollback", {"step": 1}),
        ("rollback", {"step": -1}),
        ("rollback", {"step": 77}),
        ("retry", {}),
        ("cancel", {}),
        ("delete", {}),
    ],
)
def test_what_is_planned_is_what_is_done(verb: str, body: dict[str, Any]) -> None:
    """H19: for runs of every kind, also those of graphs that the server doesn't know."""
    others: list[tuple[StateGraph, dict[str, Any]]] = [
        (chain(asking(deadline=0.001)), {}),
        (chain(asking(schema={"type": "object", "required": ["a"]})), {}),
        (chain(None, None), {"interrupt_before": ["n2"]}),
        (fan({"left": asking(), "right": asking()}), {}),
        (fan({"left": asking(), "right": None}), {"interrupt_before": ["right"]}),
    ]
    with api() as client:
        for number, (graph, settings) in enumerate(others):
            compiled = graph.compile(store=client.store, preserve=True, **settings)
            list(compiled.stream({}, run_id=f"other-{number}"))
        fill(client, 1)
        client.run_until_it_stops("done", topic="kelp")
        client.graph.resume("done", "yes")
        client.act("/graphs/article/runs", input={"topic": "x"}, run_id="queued")
        client.run_until_it_stops("cancelled", topic="kelp")
        client.act("/runs/cancelled/cancel")
        planned = client.act(f"/runs/{verb}", **body, all_runs=True, dry_run=True)
        assert len(planned["runs"]) == 10
        assert all(each["reason"] for each in planned["runs"] if each["result"] == "skipped")
        done = client.act(f"/runs/{verb}", **body, all_runs=True)
        assert with_result(planned, "planned") == with_result(done, "done")


def with_result(outcomes: dict[str, Any], result: str) -> set[str]:
    return {each["run_id"] for each in outcomes["runs"] if each["result"] == result}


CRASHING_PROCESS = """
import sys, time
from limpet import StateGraph

graph = StateGraph({"n": int}, name="counting")
graph.add_node("count", run=lambda state: time.sleep(600) if state["n"] == 5 else {"n": state["n"] + 1})
graph.set_entry_point("count").add_edge("count", "count", lambda state: state["n"] < 9).set_finish_point("count")
graph.compile(store=sys.argv[1], preserve=True).execute({"n": 0}, run_id="r")
"""


def test_a_run_whose_process_executes_it_or_has_crashed_is_planned_as_it_is_now(tmp_path: Path) -> None:
    """H19: not as at its last stop, which is all that a list knows of it."""
    url = f"sqlite:///{tmp_path}/runs.db"
    store = open_store(url)

    def counting(store: Any) -> StateGraph:
        graph = StateGraph({"n": int}, name="counting").add_node("count", run=lambda state: {"n": 9})
        graph.set_entry_point("count").add_edge("count", "count", lambda state: state["n"] < 9)
        return graph.set_finish_point("count").compile(store=store, preserve=True)

    process = subprocess.Popen([sys.executable, "-c", CRASHING_PROCESS, url])
    try:
        with api(counting, store=store) as client:
            until(lambda: client.read("/runs")["runs"], "the run")
            until(lambda: client.read("/runs/r")["step"] == 5, "its steps")
            assert client.act("/runs/rollback", step=3, run_ids=["r"], dry_run=True)["skipped"] == 1
            process.kill()
            process.wait()
            for step, done in ((6, 0), (3, 1)):
                planned = client.act("/runs/rollback", step=step, run_ids=["r"], dry_run=True)
                assert planned["planned"] == done
                assert client.act("/runs/rollback", step=step, run_ids=["r"])["done"] == done
            assert client.read("/runs/r/state")["values"]["n"] == 3
    finally:
        process.kill()
        process.wait()
        store.close()


def test_a_plan_is_right_about_damaged_runs(tmp_path: Path) -> None:
    """H19: a rollback is a way out of damage, unless that is in what all steps need."""
    path = tmp_path / "runs.db"

    def made(store: Any) -> StateGraph:
        return chain(*[lambda: {"x": 1}] * 3).compile(store=store, preserve=True)

    with closing(open_store(f"sqlite:///{path}")) as store:
        for run_id in ("record", "head"):
            made(store).execute({}, run_id=run_id)
    with closing(sqlite3.connect(path)) as database, database:
        first = "(SELECT min(id) FROM records)"
        database.execute(f"UPDATE records SET data = zeroblob(length(data)) WHERE id = {first} + 2")
        database.execute("UPDATE runs SET note = zeroblob(length(note)) WHERE run_id = 'head'")
    with closing(open_store(f"sqlite:///{path}")) as store, api(made, store=store) as client:
        assert "damaged" in client.read("/runs/record/events")["problem"]
        outcomes = set()
        for run_id, step in (("record", 0), ("record", 3), ("head", 1)):
            body = {"run_ids": [run_id], "step": step}
            planned = client.act("/runs/rollback", **body, dry_run=True)["planned"]
            assert client.act("/runs/rollback", **body)["done"] == planned
            outcomes.add(planned)
        assert outcomes == {0, 1}


def test_a_run_that_is_deleted_while_others_are_planned_spoils_no_plan() -> None:
    """H19: it is left out with a reason."""
    with api() as client:
        fill(client)
        client.graph.start({"topic": "x"}, run_id="queued")
        check = bulk._planned

        def deleting(info: Any, change: Any) -> Any:
            client.store.delete(info.run_id)
            return check(info, change)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(bulk, "_planned", deleting)
            planned = client.act("/runs/rollback", step=0, all_runs=True, dry_run=True)
        assert planned["skipped"] == 5
        assert all(each["reason"].startswith("no run") for each in planned["runs"])


def test_runs_that_the_store_has_no_key_for_hide_no_others(tmp_path: Path) -> None:
    """H19: neither in numbers and questions, nor from monitors and clients that follow the list."""
    url = f"sqlite:///{tmp_path}/runs.db"
    for key, run_id in ((b"1" * 32, "old"), (b"2" * 32, "new")):
        with closing(open_store(url, encryption=key)) as store, api(plain_asking, store=store) as client:
            client.run_until_it_stops(run_id)
            client.graph.start({}, run_id=f"{run_id}-queued")
            if run_id == "old":
                continue
            assert client.read("/counts")["counts"] == {"paused": 2, "queued": 2}
            assert ids(client.read("/questions")) == ["new"]
            assert 'limpet_runs{status="queued"} 2' in client.get("/metrics").text
            client.store.delete("new-queued")
            assert client.read("/questions")["total"] == 1


def plain_asking(store: Any) -> StateGraph:
    return plain(lambda state: {"said": pause("Well?")}, name="plain")(store)


@pytest.mark.parametrize("path", ["/runs", "/counts"])
def test_a_query_names_some_tags_at_most(path: str) -> None:
    """H19: a database takes no condition of any size."""
    with api() as client:
        assert client.read(path, tag=[f"t{number}" for number in range(100)]) is not None
        refused = client.read(path, 400, tag=[f"t{number}" for number in range(101)])
        assert "100 tags" in refused["detail"]


def test_who_answers_and_approves_many_runs_is_in_their_history() -> None:
    """H19: as the request says; where the server knows who makes it, that counts."""

    def made(store: Any) -> StateGraph:
        return chain(asking(), None).compile(store=store, preserve=True, interrupt_before=["n2"])

    for options, by in (({}, "Ann"), ({"authenticate": lambda headers: "Bo"}, "Bo")):
        with api(made, **options) as client:
            if options:
                client.forget_token()
            client.run_until_it_stops("r")
            assert client.act("/runs/answer", run_ids=["r"], value="yes", by="Ann")["done"] == 1
            client.graph.recover()
            assert client.act("/runs/answer", run_ids=["r"], by="Ann")["done"] == 1
            (answered,) = client.read("/runs/r/events", type="answer")["events"]
            (approved,) = client.read("/runs/r/events", type="resume")["events"]
            assert [*answered["by"].values(), approved["by"]] == [by, by]
            rows = client.read("/runs/r/timeline")["rows"]
            details = [client.read(f"/runs/r/timeline/{row['id']}") for row in rows]
            assert [(*each["by"].values(), each["approved_by"]) for each in details] == [(by, None), (by,)]


def test_an_update_of_many_is_merged_by_their_graphs() -> None:
    """H19: as for one run."""
    with api() as client:
        fill(client)
        outcome = client.act("/runs/retry", status=["failed"], update={"topic": "kelp"}, deadline="1h")
        assert outcome["done"] == 3
        assert client.read("/runs/run-0/state")["values"]["topic"] == "kelp"
        assert client.read("/runs/run-0")["deadline"] is not None


def test_all_runs_are_never_meant_by_accident(monkeypatch: pytest.MonkeyPatch) -> None:
    """H19: they have to be named, and one request changes some of them at most."""
    with api() as client:
        fill(client)
        for body in (
            {},
            {"limit": 1},
            {"run_ids": ["run-0"], "status": ["failed"]},
            {"all_runs": True, "status": ["failed"]},
            {"status": ["failed"], "limit": 100_000},
            {"run_ids": [str(number) for number in range(10_001)]},
        ):
            assert client.act("/runs/delete", 400, **body)["code"] == "usage"
        assert client.act("/runs/delete", run_ids=[])["runs"] == []
        monkeypatch.setattr(routes, "MAX_CHANGED", 2)
        assert client.act("/runs/delete", all_runs=True)["done"] == 2
        assert len(client.read("/runs")["runs"]) == 2


def test_the_children_of_a_run_are_listed() -> None:
    """H19: page by page."""
    with api() as client:

        def start(state: Any, ctx: Any) -> None:
            for number in range(3):
                ctx.start(client.graph, {"topic": "x"}, key=f"child {number}")

        parent = StateGraph(name="parent").add_node("start", run=start).set_entry_point("start")
        parent.set_finish_point("start").compile(store=client.store, preserve=True)
        parent.execute({}, run_id="parent")
        first = client.read("/runs/parent/children", limit=2)
        assert [each["parent"] for each in first["runs"]] == ["parent", "parent"]
        assert len(client.read("/runs/parent/children", after=first["next"])["runs"]) == 1


def test_a_list_is_small_however_much_its_runs_ask_and_say() -> None:
    """H19: texts are cut, and a large question has no form; the run itself has all of it."""
    choices = [f"choice {number}" for number in range(10_000)]

    def fail_or_ask(state: Any) -> Any:
        if state["fails"]:
            raise ValueError("e" * 100_000)
        return {"said": pause("p" * 100_000, choices=choices)}

    with api(plain(fail_or_ask)) as client:
        client.run_until_it_stops("asks", fails=False)
        client.run_until_it_stops("fails", fails=True)
        failed, asks = client.read("/runs")["runs"]
        assert failed["error"]["message"] == "e" * 2000 + "…"
        assert len(failed["error"]["traceback"]) == 2001
        (question,) = asks["questions"]
        assert (question["prompt"], question["choices"]) == ("p" * 2000 + "…", None)
        assert client.read("/questions")["runs"] == [asks]
        assert len(client.get(f"{API}/runs").content) < 20_000
        (question,) = client.read("/runs/asks")["questions"]
        assert (len(question["prompt"]), question["choices"]) == (100_000, choices)
        assert len(client.read("/runs/fails")["error"]["message"]) == 100_000
        assert len(client.read("/runs/asks/timeline")["run"]["questions"][0]["prompt"]) == 100_000


def test_a_list_has_the_first_of_many_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    """H19: and their number; so has a run that is followed, which is sent again with each change."""
    monkeypatch.setattr(shown_runs, "QUESTIONS_IN_LIST", 2)
    monkeypatch.setattr(run_routes, "QUESTIONS_FOLLOWED", 3)

    def made(store: Any) -> StateGraph:
        return fan({f"b{number}": asking() for number in range(5)}).compile(store=store)

    with api(made) as client:
        client.run_until_it_stops("r")
        (listed,) = client.read("/runs")["runs"]
        (waiting,) = client.read("/questions")["runs"]
        followed = client.read("/runs/r/timeline")["run"]
        whole = client.read("/runs/r")
        found = [len(each["questions"]) for each in (listed, waiting, followed, whole)]
        assert found == [2, 2, 3, 5]
        assert {each["question_count"] for each in (listed, waiting, followed, whole)} == {5}
        assert len(client.read("/runs/r/questions")["questions"]) == 5


def test_runs_are_searched_for_questions_where_there_may_be_some(monkeypatch: pytest.MonkeyPatch) -> None:
    """H19: that many wait for a worker doesn't mean that more may ask, nor that those who do are left out."""
    monkeypatch.setattr(questions, "MAX_RUNNING", 1)
    with api() as client:
        twice = fan({"left": asking(), "right": asking()}).compile(store=client.store, preserve=True)
        list(twice.stream({}, run_id="half"))
        client.act("/runs/half/answer", answers={client.read("/runs/half")["questions"][0]["id"]: 1})
        assert client.read("/runs/half")["status"] == "queued"
        client.run_until_it_stops("kelp", topic="kelp")
        for number in range(3):
            client.act("/graphs/article/runs", input={"topic": "x"}, run_id=f"r{number}")
        client.act("/graphs/article/runs", input={"topic": "x"}, run_id="later", delay="1h")
        found = client.read("/questions")
        assert (ids(found), found["total"], found["more"]) == (["kelp", "half"], 2, False)
        client.act("/graphs/article/runs", input={"topic": "x"}, run_id="later still", delay="1h")
        assert client.read("/questions")["more"] is True


ASKING_PROCESS = """
import sys, time
from limpet import StateGraph, pause

graph = StateGraph(name="fan").add_node("src", run=lambda state: {"n": 1})
graph.add_node("ask", run=lambda state: {"said": pause("Publish?")})
graph.add_node("work", run=lambda state: time.sleep(600))
graph.add_parallel_edge("src", "ask", "join").add_parallel_edge("src", "work", "join")
graph.add_fanin_node("join", run=lambda state, parallel_results: None)
graph.set_entry_point("src").set_finish_point("join").compile(store=sys.argv[1], preserve=True)
graph.execute({}, run_id="r")
"""


def test_a_question_that_was_answered_is_no_longer_listed(tmp_path: Path) -> None:
    """H19: though the process that executes the run hasn't taken in the answer yet."""
    url = f"sqlite:///{tmp_path}/runs.db"
    store = open_store(url)
    process = subprocess.Popen([sys.executable, "-c", ASKING_PROCESS, url])
    try:
        with api(store=store) as client:
            until(lambda: client.read("/questions")["total"] == 1, "the question")
            process.send_signal(signal.SIGSTOP)
            client.act("/runs/r/answer", value="yes")
            assert client.read("/runs")["runs"][0]["questions"] == []
            assert client.read("/questions") == {"runs": [], "total": 0, "more": False}
    finally:
        process.kill()
        process.wait()
        store.close()
