"""H19: one run: what is known of it, and what can be done with it."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import pytest

from limpet import MemoryStore, Runs, StateGraph, pause, receive
from support.http_api import api, asking, plain
from support.http_server import API, served
from support.waiting import until


def test_a_run_is_started_answered_and_inspected() -> None:
    """H19: the same start twice is one run, and its id may have a slash."""
    with api() as client:
        start = {"input": {"topic": "kelp"}, "run_id": "kelp/1", "tags": ["nightly"]}
        assert client.act("/graphs/article/runs", **start) == client.act("/graphs/article/runs", **start)
        other = {**start, "input": {"topic": "moss"}}
        assert client.act("/graphs/article/runs", 409, **other)["code"] == "run-exists"
        client.run_until_it_stops("kelp/1", topic="kelp")
        shown = client.read("/runs/kelp%2F1")
        assert (shown["status"], shown["graph"], shown["tags"]) == ("paused", "article", ["nightly"])
        assert shown["questions"][0]["prompt"] == "Publish?"
        assert client.read("/runs/kelp%2F1/questions")["questions"][0]["choices"] == ["yes", "no"]
        answered = client.act("/runs/kelp%2F1/answer", value="yes", by="Ann")
        assert (answered["status"], answered["questions"]) == ("queued", [])
        client.graph.resume("kelp/1")
        assert client.read("/runs/kelp%2F1")["status"] == "completed"
        (event,) = client.read("/runs/kelp%2F1/events", type="answer")["events"]
        assert list(event["by"].values()) == ["Ann"]


def test_an_answer_that_does_not_fit_leaves_the_question_open() -> None:
    """H19: and one that was given can't be given again."""
    with api(asking) as client:
        client.run_until_it_stops("r")
        question = client.read("/runs/r/questions")["questions"][0]["id"]
        refused = client.act("/runs/r/answer", 422, value="maybe")
        assert (refused["code"], refused["status"]) == ("answer-refused", 422)
        assert client.act("/runs/r/answer", 409)["code"] == "paused"
        client.act("/runs/r/answer", answers={question: "no"})
        assert client.act("/runs/r/answer", 409, value="yes")["code"] == "already-answered"
        client.graph.resume("r")
        assert client.act("/runs/r/answer", 409, value="yes")["code"] == "already-completed"


def test_a_checkpoint_is_not_a_run_that_can_be_answered() -> None:
    """H19: so nothing is answered by a request that says that there is no such run."""
    with api(asking) as client:
        client.run_until_it_stops("r")
        for answered in ("r@0", "r@1"):
            assert client.act(f"/runs/{answered}/answer", 404, value="yes")["code"] == "run-not-found"
            assert client.act("/runs/answer", run_ids=[answered], value="yes")["done"] == 0
        assert len(client.read("/runs/r")["questions"]) == 1


@pytest.mark.parametrize(
    ("choices", "sent", "got"),
    [
        ([1.0, 2.5], 1, 1.0),
        ([1, 2], 1.0, 1),
        ([True, 1.0], 1, 1.0),
        ([1, 1.0], 1.0, 1.0),
        ([1.0, 2.5], 2.5, 2.5),
    ],
)
def test_a_number_that_is_sent_is_the_choice_of_its_value(choices: Any, sent: Any, got: Any) -> None:
    """H19, H4: JavaScript has one kind of numbers, and the node gets what it offered."""
    with api(plain(lambda state: {"price": pause("How much?", choices=choices)})) as client:
        client.run_until_it_stops("r")
        assert client.act("/runs/r/answer", 422, value=not got)["code"] == "answer-refused"
        client.run_until_it_stops("s")
        client.run_until_it_stops("t")
        link = client.act("/runs/t/link")["path"].removeprefix("/answer/")
        client.act("/runs/r/answer", value=sent)
        assert client.act("/runs/answer", run_ids=["s"], value=sent)["done"] == 1
        client.act(f"/questions/{link}/answer", value=sent)
        client.graph.recover()
        assert {repr(client.graph.get(run_id).state["price"]) for run_id in "rst"} == {repr(got)}


@pytest.mark.parametrize("run_id", [".", ".."])
def test_no_run_gets_an_id_that_no_url_can_name(run_id: str, tmp_path: Path) -> None:
    """H19: clients take it for another path; also not from a file that is imported. Nor is a schedule named so."""
    with api(asking) as client:
        client.run_until_it_stops("r")
        content = client.get(f"{API}/runs/r/export").content
        assert "URL" in client.act("/graphs/asking/runs", 400, run_id=run_id)["detail"]
        assert "URL" in client.act("/runs/r/fork", 400, new_run_id=run_id)["detail"]
        imported = client.post(f"{API}/runs/import", params={"run_id": run_id}, content=content)
        assert (imported.status_code, imported.json()["code"]) == (400, "usage")
        assert [each["run_id"] for each in client.read("/runs")["runs"]] == ["r"]
    with api(asking) as elsewhere, api(asking) as client:
        elsewhere.run_until_it_stops(run_id)
        Runs(elsewhere.store).export(run_id, tmp_path / "r.run")
        content = (tmp_path / "r.run").read_bytes()
        assert client.post(f"{API}/runs/import", content=content).status_code == 400
        assert client.read("/runs")["runs"] == []
        assert client.post(f"{API}/runs/import", params={"run_id": "r"}, content=content).status_code == 200
        assert "URL" in client.act("/schedules", 400, name=run_id, graph="asking", every="1h")["detail"]


def test_null_is_an_answer() -> None:
    """H19: unlike a value that is left out, which approves."""
    with api(plain(lambda state: {"said": pause("Anything?")})) as client:
        client.run_until_it_stops("r")
        client.act("/runs/r/answer", value=None)
        client.graph.resume("r")
        assert client.read("/runs/r/state")["values"]["said"] is None


def test_a_message_counts_once() -> None:
    """H19: a key makes a repeated request harmless."""
    with api(plain(lambda state: {"note": receive("note")})) as client:
        client.run_until_it_stops("r")
        assert client.act("/runs/r/send", name="note", value={"a": [1]}, key="k") == {"sent": True}
        assert client.act("/runs/r/send", name="note", value=2, key="k") == {"sent": False}
        client.graph.resume("r")
        assert client.read("/runs/r/state")["values"]["note"] == {"a": [1]}


def test_a_run_is_cancelled_retried_rolled_back_and_deleted() -> None:
    """H19."""
    with api() as client:
        client.run_until_it_stops("r", topic="broken")
        failed = client.read("/runs/r")
        assert (failed["status"], failed["error"]["type"]) == ("failed", "ValueError")
        assert "Traceback" in failed["error"]["traceback"]
        assert client.act("/runs/r/cancel", 400)["code"] == "usage"
        assert client.act("/runs/r/retry", update={"topic": "kelp"})["status"] == "queued"
        assert client.act("/runs/r/cancel")["status"] == "cancelled"
        assert client.act("/runs/r/rollback", step=0)["status"] == "paused"
        assert client.act("/runs/r/rollback", 400, step=99)["code"] == "usage"
        assert client.delete(f"{API}/runs/r").json() == {"deleted": "r"}
        assert client.delete(f"{API}/runs/r").status_code == 404


def test_a_fork_continues_from_a_step_with_edits() -> None:
    """H19: a new run, which workers get if they are to."""
    with api() as client:
        client.run_until_it_stops("r", topic="kelp")
        fork = client.act("/runs/r/fork", step=1, update={"topic": "moss"}, new_run_id="f", tags=["again"])
        assert (fork["run_id"], fork["status"], fork["tags"]) == ("f", "paused", ["again"])
        assert fork["forked_from"] == "r@1"
        assert client.read("/runs/f/state")["values"]["topic"] == "moss"
        assert client.act("/runs/r/fork", step=1, begin=True)["status"] == "queued"
        assert client.act("/runs/r/fork", 409, new_run_id="f")["code"] == "run-exists"
        assert client.act("/runs/none/fork", 404)["code"] == "run-not-found"


def test_a_run_is_exported_and_imported_as_a_file() -> None:
    """H19: under its own id or another; what isn't such a file is refused."""
    with api(asking) as client, api(asking, store=MemoryStore()) as other:
        client.run_until_it_stops("r")
        content = client.get(f"{API}/runs/r/export").content
        assert other.post(f"{API}/runs/import", content=content).json()["run_id"] == "r"
        copied = other.post(f"{API}/runs/import", params={"run_id": "copy"}, content=content)
        assert copied.json()["questions"][0]["prompt"] == "Publish?"
        assert other.post(f"{API}/runs/import", content=content).json()["code"] == "run-exists"
        for damaged in (
            b"",
            b"nonsense",
            content[:-20],
            content[:50] + bytes([content[50] ^ 1]) + content[51:],
        ):
            answer = other.post(f"{API}/runs/import", content=damaged)
            assert answer.status_code == 422, answer.text
            assert "/tmp" not in answer.text
        named = other.post(f"{API}/runs/import", params={"run_id": "a\nb"}, content=content)
        assert named.status_code == 400


def test_an_exported_file_is_sent_in_parts_and_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H19: so it isn't held in memory as long as a client takes it; also if that goes away in the middle."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    store = MemoryStore()
    graph = plain(lambda state: {"data": os.urandom(60_000_000)})(store)
    list(graph.stream({}, run_id="r"))
    with served(store, [graph]) as server, server.client() as client:
        whole = client.get(f"{API}/runs/r/export")
        assert int(whole.headers["content-length"]) == len(whole.content) > 60_000_000
        assert whole.headers["content-disposition"].endswith("r.run")
        until(lambda: list(tmp_path.iterdir()) == [], "the end of the file")
        assert client.head(f"{API}/runs/r/export").content == b""
        until(lambda: list(tmp_path.iterdir()) == [], "the end of the file")
        with client.stream("GET", f"{API}/runs/r/export") as answer:
            next(answer.iter_raw())
            assert len(list(tmp_path.iterdir())) == 1
        until(lambda: list(tmp_path.iterdir()) == [], "the end of the file")
        assert client.get(f"{API}/runs/none/export").status_code == 404
        assert list(tmp_path.iterdir()) == []


def test_what_needs_the_code_of_a_graph_says_so() -> None:
    """H19: of a graph that the server doesn't know."""
    with api() as client:
        other = StateGraph(name="other").add_node("n", run=lambda state: {"x": pause("?")})
        other.set_entry_point("n").set_finish_point("n").compile(store=client.store)
        list(other.stream({}, run_id="r"))
        assert "'other'" in client.act("/runs/r/fork", 400)["detail"]
        assert client.act("/runs/r/rollback", 400, step=0)["code"] == "usage"
        assert client.read("/runs/r")["status"] == "paused"
        assert client.act("/runs/r/answer", value=1)["graph"] == "other"
