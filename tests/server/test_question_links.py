"""H19: a link answers one question until it expires, and does nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from limpet import Conflict, MemoryStore, RunNotFound, RunPaused, Runs, StateGraph, open_store, pause
from limpet.frontends.problems import HttpProblem
from limpet.graphs.names import SERVER_KEY
from limpet.server import app
from limpet.server.question_links import LONGEST_LINK, QuestionLink, open_link, seal_link
from limpet.server.routes import questions
from support.checkpoint_stores import InMemoryCheckpointStore
from support.graphs import fan
from support.http_api import Client, api, article, asking, plain
from support.http_server import API

LINK = QuestionLink("kelp/1", 1.5, "ask:1:1", 2e9, "Bö")


def link_of(client: Client, run_id: str = "r", **body: Any) -> str:
    made = client.act(f"/runs/{run_id}/link", **body)
    return str(made["path"].removeprefix("/answer/"))


def test_a_link_answers_one_question_and_nothing_else() -> None:
    """H19: without the token."""
    with api() as client:
        client.run_until_it_stops("r", topic="kelp")
        link = link_of(client, name="Bo", expires="1h")
        client.forget_token()
        shown = client.read(f"/questions/{link}")
        assert shown["question"]["choices"] == ["yes", "no"]
        assert (shown["run_id"], shown["is_open"]) == ("r", True)
        assert client.act(f"/questions/{link}/answer", 422, value="maybe")["code"] == "answer-refused"
        assert client.act(f"/questions/{link}/answer", value="yes")["run_id"] == "r"
        assert client.act(f"/questions/{link}/answer", 409, value="yes")["code"] == "already-answered"
        assert client.read(f"/questions/{link}")["is_open"] is False
        assert client.read("/runs/r", 401)["code"] == "no-token"
        assert client.act("/runs/r/link", 401)["code"] == "no-token"


def test_a_stranger_may_send_less_than_who_has_the_token() -> None:
    """H19: the server would have to hold it for as many clients as come."""
    with api(plain(lambda state: {"said": pause("?")})) as client:
        client.run_until_it_stops("r")
        link = link_of(client)
        kept = client.headers["authorization"]
        client.forget_token()
        for wrong in (
            client.post(f"{API}/questions/{link}/answer", json={"value": "x" * 100_000}),
            client.post(
                f"{API}/questions/{link}/answer",
                content=iter([b" " * 60_000] * 2),
                headers={"content-type": "application/json"},
            ),
        ):
            assert (wrong.status_code, wrong.json()["code"]) == (413, "too-large")
        assert client.read(f"/questions/{link}")["is_open"] is True
        client.headers["authorization"] = kept
        client.act(f"/questions/{link}/answer", value="x" * 100_000)


def test_who_answered_by_a_link_is_known() -> None:
    """H19: the name that the link is for."""
    with api(asking) as client:
        client.run_until_it_stops("r")
        client.act(f"/questions/{link_of(client, name='Bo')}/answer", value="yes")
        client.graph.resume("r")
        (event,) = client.read("/runs/r/events", type="answer")["events"]
        assert list(event["by"].values()) == ["Bo"]


def test_who_made_a_link_is_known_where_the_server_knows_users() -> None:
    """H19: the name that the link is for is one that its maker has chosen."""

    def made_by(maker: str, name: str) -> str:
        return QuestionLink("r", 1.5, "ask:1:1", 2e9, name, maker).answers_as

    assert [made_by("", ""), made_by("Ann", "")] == ["a link", "a link by Ann"]
    assert [made_by("", "Bo"), made_by("Ann", "The Boss")] == ["Bo", "The Boss (link by Ann)"]
    store = MemoryStore()
    graph = asking(store)
    list(graph.stream({}, run_id="r"))
    users = {"session=ann": "Ann"}
    application = app(store, [graph], authenticate=lambda headers: users.get(headers.get("cookie", "")))
    with Client(application, store, graph) as client:
        client.forget_token()
        client.headers["cookie"] = "session=ann"
        link = link_of(client, name="The Boss")
        del client.headers["cookie"]
        client.act(f"/questions/{link}/answer", value="yes")
        graph.resume("r")
        client.headers["cookie"] = "session=ann"
        (event,) = client.read("/runs/r/events", type="answer")["events"]
        assert list(event["by"].values()) == ["The Boss (link by Ann)"]


def test_a_link_of_an_older_server_is_still_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """H19: it has no maker."""
    store = MemoryStore()
    with monkeypatch.context() as older:
        older.setattr(QuestionLink, "__iter__", lambda link: iter(link[:5]))
        sealed = seal_link(store, LINK)
    assert open_link(store, sealed, 0.0) == LINK


def test_a_link_that_was_changed_is_refused() -> None:
    """H19: in any part; and one that is too long isn't looked at."""
    store = MemoryStore()
    sealed = seal_link(store, LINK)
    assert open_link(store, sealed, 0.0) == LINK
    for place in range(0, len(sealed), 7):
        changed = sealed[:place] + ("A" if sealed[place] != "A" else "B") + sealed[place + 1 :]
        with pytest.raises(HttpProblem, match="isn't one of this server"):
            open_link(store, changed, 0.0)
    for wrong in ("", ".", "x", "é.é", sealed + "x", sealed.replace(".", ""), "x" * (LONGEST_LINK + 1)):
        with pytest.raises(HttpProblem) as refused:
            open_link(store, wrong, 0.0)
        assert (refused.value.status, refused.value.code) == (404, "no-such-link")


def test_a_link_expires() -> None:
    """H19: by the store's clock."""
    store = MemoryStore()
    with pytest.raises(HttpProblem) as refused:
        open_link(store, seal_link(store, LINK), LINK.expires + 1)
    assert (refused.value.status, refused.value.code) == (410, "link-expired")
    with api() as client:
        client.run_until_it_stops("r", topic="kelp")
        assert client.act("/runs/r/link", 400, expires="soon")["code"] == "usage"
        for past in ("0s", "2020-01-01T00:00:00Z"):
            assert "isn't in the future" in client.act("/runs/r/link", 400, expires=past)["detail"]
        expired = seal_link(client.store, LINK._replace(expires=1.0))
        assert client.read(f"/questions/{expired}", 410)["code"] == "link-expired"


def test_a_link_that_would_be_too_long_is_not_made() -> None:
    """H19: rather than be one that doesn't open."""
    run_id = "🐚" * 200
    with api() as client:
        client.run_until_it_stops(run_id, topic="kelp")
        client.read(f"/questions/{link_of(client, run_id, name='Ö' * 100)}")
        assert client.act(f"/runs/{run_id}/link", 400, name="x" * LONGEST_LINK)["code"] == "usage"


def test_all_servers_of_a_store_know_its_links(tmp_path: Path) -> None:
    """H19: also after a restart; those of another store don't."""
    url = f"sqlite:///{tmp_path}/runs.db"
    sealed = seal_link(open_store(url), LINK)
    assert open_link(open_store(f"{url}?timeout=1"), sealed, 0.0) == LINK
    with pytest.raises(HttpProblem):
        open_link(MemoryStore(), sealed, 0.0)


def test_looking_at_a_link_stores_nothing() -> None:
    """H19: it needs no token, and a server may be read-only."""
    with api(read_only=True) as client:
        client.read("/questions/x.y", 404)
        assert client.store.get_document(SERVER_KEY) is None


def test_a_link_is_of_one_run_with_this_id() -> None:
    """H19: not of a later one that got the same id."""
    with api() as client:
        client.run_until_it_stops("r", topic="kelp")
        link = link_of(client)
        client.act("/runs/delete", run_ids=["r"])
        for answer in (
            client.read(f"/questions/{link}", 404),
            client.act(f"/questions/{link}/answer", 404, value="yes"),
        ):
            assert answer["code"] == "no-such-link"
            assert (
                answer["detail"] == "the run of this link is no longer there"
            )  # and not where it was stored
        client.run_until_it_stops("r", topic="kelp")
        assert client.act(f"/questions/{link}/answer", 404, value="yes")["code"] == "no-such-link"


def test_a_run_that_is_deleted_while_its_question_is_answered_tells_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """H19: nor does one that another process holds: who has a link learns of neither the store nor the process."""
    with api() as client:
        client.run_until_it_stops("r", topic="kelp")
        link = link_of(client)
        for problem, status, code in (
            (RunNotFound("r", "looked in the store of tests"), 404, "no-such-link"),
            (Conflict("r", "process 4711 on worker-2 holds it"), 409, "conflict"),
        ):
            monkeypatch.setattr(questions, "answer_run", Mock(side_effect=problem))
            answer = client.act(f"/questions/{link}/answer", status, value="yes")
            assert answer["code"] == code
            assert answer.keys() == {"type", "title", "status", "code", "detail"}
            assert not {"tests", "4711"} & set(answer["detail"].split())


def test_a_link_answers_no_later_run_of_the_same_id(monkeypatch: pytest.MonkeyPatch) -> None:
    """H19: not even if it takes the place of the first one while that is being answered."""
    with api(asking) as client:
        client.run_until_it_stops("r")
        link = link_of(client)
        run_of = questions._run_of

        def replaced(*given: Any) -> Any:
            info = run_of(*given)
            Runs(client.store).delete("r")
            with pytest.raises(RunPaused):
                client.graph.execute({}, run_id="r")
            return info

        monkeypatch.setattr(questions, "_run_of", replaced)
        assert client.act(f"/questions/{link}/answer", 404, value="yes")["code"] == "no-such-link"
        assert client.read("/runs/r")["status"] == "paused"


def test_a_link_to_a_run_whose_id_looks_like_that_of_a_checkpoint_works() -> None:
    """H19: also beside the run that would have it; so do answers to one, and to many."""
    with api(asking) as client:
        for run_id in ("a", "a@1", "a@2", "a@3"):
            client.run_until_it_stops(run_id)
        assert client.act(f"/questions/{link_of(client, 'a@1')}/answer", value="yes")["run_id"] == "a@1"
        assert client.act("/runs/a@2/answer", value="yes")["run_id"] == "a@2"
        both = {"run_ids": ["a@3"], "value": "yes"}
        assert client.act("/runs/answer", **both, dry_run=True)["planned"] == 1
        assert client.act("/runs/answer", **both)["done"] == 1


def test_a_store_without_documents_has_made_no_link() -> None:
    """H19: a stranger doesn't learn what kind of store it is."""
    with api(store=InMemoryCheckpointStore()) as client:
        client.forget_token()
        assert client.read("/questions/x.y", 404)["code"] == "no-such-link"


def test_of_several_questions_a_link_is_of_the_one_that_is_named() -> None:
    """H19: the first, if none is."""

    def two(store: Any) -> StateGraph:
        ask = {name: (lambda state, name=name: {name: pause(f"{name}?")}) for name in ("left", "right")}
        return fan(ask).compile(store=store, preserve=True)

    with api(two) as client:
        client.run_until_it_stops("r")
        first, second = client.read("/runs/r/questions")["questions"]
        assert client.read(f"/questions/{link_of(client)}")["question"]["id"] == first["id"]
        named = link_of(client, question=second["id"])
        assert client.read(f"/questions/{named}")["question"]["id"] == second["id"]
        client.act(f"/questions/{named}/answer", value=1)
        closed = client.act(f"/questions/{named}/answer", 409, value=1)
        assert (closed["code"], closed["detail"]) == ("already-answered", "this question is no longer open")
        assert first["id"] not in str(closed)
        assert client.read(f"/questions/{named}")["question"] is None
        left = client.read("/runs/r/questions")["questions"]
        assert [each["id"] for each in left] == [first["id"]]
        assert client.act("/runs/r/link", 400, question="none")["code"] == "usage"


@pytest.mark.parametrize("then", ["cancel", "answer", "rollback"])
def test_a_link_tells_nothing_of_a_run_that_no_longer_asks(then: str) -> None:
    """H19: only that its question isn't open."""
    with api(asking) as client:
        client.run_until_it_stops("r")
        link = link_of(client)
        client.act(f"/runs/r/{then}", **{"answer": {"value": "no"}, "rollback": {"step": 0}}.get(then, {}))
        if then == "answer":
            client.graph.resume("r")
        closed = client.act(f"/questions/{link}/answer", 409, value="yes")
        assert (closed["code"], closed["detail"]) == ("already-answered", "this question is no longer open")
        assert closed.keys() == {"type", "title", "status", "code", "detail"}


def test_runs_that_wait_for_a_person_are_listed() -> None:
    """H19: those that ask, and those that wait for an approval; not those that only paused."""

    def approving(store: Any) -> StateGraph:
        graph = StateGraph(name="approving").add_node("n", run=lambda state: None).set_entry_point("n")
        return graph.set_finish_point("n").compile(store=store, interrupt_before=["n"])

    store = MemoryStore()
    with api(article, store=store) as client, api(approving, store=store) as other:
        client.run_until_it_stops("asks", topic="kelp")
        other.run_until_it_stops("approves")
        client.run_until_it_stops("failed", topic="broken")
        client.act("/runs/failed/fork")
        found = client.read("/questions")
        assert sorted(each["run_id"] for each in found["runs"]) == ["approves", "asks"]
        assert (found["total"], found["more"]) == (2, False)
        one = client.read("/questions", limit=1)
        assert (len(one["runs"]), one["total"]) == (1, 2)
