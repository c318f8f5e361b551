"""H22: threads of LangGraph are listed like runs, and nothing but LangGraph executes or changes them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("langgraph")

from limpet import DamagedRecord, ForeignRun, MemoryStore, Runs, StateGraph, StoreError, open_store, supervise
from limpet.cli.main import main
from limpet.integrations.langgraph import LimpetSaver
from limpet.journal.export import ExportedRun
from limpet.journal.store import ENDED, Store
from limpet.server.application import ENDPOINTS
from limpet.server.routes import questions
from support.http_api import api, asking, filled
from support.http_server import API
from support.langgraph_threads import SavedThread

ID = "langgraph:customer-7"


def with_thread(store: Any) -> Any:
    """A store with a thread of three checkpoints, and writes."""
    thread = SavedThread(LimpetSaver(store), "customer-7")
    for number in range(3):
        thread.save({"items": ["item"] * number}, source="input" if number == 0 else "loop")
    thread.saver.put_writes(thread.config, [("items", "pending")], "task")
    return store


def small() -> StateGraph:
    graph = StateGraph(name="langgraph").add_node("a", run=lambda state: {})
    return graph.set_entry_point("a").set_finish_point("a")


REFUSED: dict[str, Callable[[Any, StateGraph], Any]] = {
    "state": lambda runs, graph: runs.state(ID),
    "state at a step": lambda runs, graph: runs.state(ID, 1),
    "diff": lambda runs, graph: runs.diff(ID, 0, 1),
    "secrets": lambda runs, graph: runs.secrets(ID),
    "fork": lambda runs, graph: runs.fork(ID),
    "rollback": lambda runs, graph: runs.rollback(ID, 1),
    "cancel": lambda runs, graph: runs.cancel(ID),
    "retry": lambda runs, graph: runs.retry(ID),
    "answer": lambda runs, graph: runs.answer(ID, "yes"),
    "approve": lambda runs, graph: runs.answer(ID),
    "send": lambda runs, graph: runs.send(ID, "note", 1),
    "prune": lambda runs, graph: runs.prune_checkpoints(ID, 1),
    "result": lambda runs, graph: runs.get(ID).result(1),
    "handle's fork": lambda runs, graph: runs.get(ID).fork(),
    "handle's rollback": lambda runs, graph: runs.get(ID).rollback(1),
    "resume": lambda runs, graph: graph.resume(ID),
    "resume with an answer": lambda runs, graph: graph.resume(ID, "yes"),
    "graph's fork": lambda runs, graph: graph.fork(ID),
    "graph's state": lambda runs, graph: graph.state_at(ID, 1),
    "graph's history": lambda runs, graph: graph.history(ID),
    "from a checkpoint": lambda runs, graph: graph.invoke(None, checkpoint=ID).wait(),
    "as a new run": lambda runs, graph: graph.execute({}, run_id=ID),
    "started": lambda runs, graph: graph.start({}, run_id=ID),
}


def test_what_only_our_own_runs_can_do_is_refused_with_one_error(any_store: Store) -> None:
    """H22, F10: it says what the run is and what to use, and nothing changes."""
    runs = Runs(with_thread(any_store))
    before = any_store.read(ID, first=1)
    graph = small().compile(store=any_store)
    for name, call in REFUSED.items():
        with pytest.raises(ForeignRun, match="is a thread of LangGraph") as raised:
            call(runs, graph)
        assert raised.value.run_id == ID, name
        assert "use LangGraph for it" in raised.value.advice, name
    assert any_store.read(ID, first=1) == before
    assert any_store.inbox(ID) == []


def test_a_thread_is_never_ready_waiting_expired_or_retried(any_store: Store) -> None:
    """H22: workers, retention and changes of many runs pass it by."""
    runs = Runs(with_thread(any_store))
    assert any_store.ready(any_store.lanes(), 10) == []
    assert all(lane.graph != "langgraph" for lane in any_store.lanes())
    assert any_store.expire(-1, ENDED) == 0
    assert runs.cleanup_expired(0) == 0
    for outcomes in (runs.retry(all_runs=True), runs.cancel(all_runs=True)):
        (outcome,) = outcomes
        assert (outcome.run_id, outcome.result) == (ID, "skipped")
        assert outcome.reason == "it is a thread of LangGraph"
    graph = small().compile(store=any_store)
    with supervise(any_store, [graph], poll=0.01):
        done = graph.start({"n": 1}, run_id="ours")
        done.result(60)
    assert any_store.head(ID).fence == 1
    assert [info.run_id for info in runs.list(status="thread")] == [ID]
    assert [info.run_id for info in runs.list(status="waiting")] == []
    assert runs.delete(ID).done == 1


def test_lists_and_looks_say_what_it_is(tmp_path: Path) -> None:
    """H22, P12: `Runs`, the command line, and following."""
    url = f"sqlite:///{tmp_path}/runs.db"
    runs = Runs(with_thread(url))
    (info,) = runs.list()
    assert (info.run_id, info.graph, info.kind) == (ID, "langgraph", "langgraph")
    assert (info.status, info.shown_status, info.step) == ("paused", "thread", 2)
    assert info.reason == "a thread of LangGraph, 3 checkpoints"
    assert info.tags == ("thread:customer-7",)
    assert runs.get(ID).info == info == runs.get(ID).wait(1)
    history = runs.history(ID)
    assert [(each.step, each.node, each.keys) for each in history] == [
        (0, "input", ("items",)),
        (1, "loop", ("items",)),
        (2, "loop", ("items",)),
    ]
    events = runs.get(ID).events()
    first = next(events)
    assert (first["type"], first["step"], first["node"], first["keys"]) == ("step", 0, "input", ["items"])
    assert "values" not in first
    for words, expected in (
        (["list"], ["thread", "3 checkpoints"]),
        (["list", "--status", "thread"], [ID]),
        (["show", ID], ["a thread of LangGraph, 3 checkpoints", "thread:customer-7"]),
        (["history", ID], ["input", "loop"]),
        (["export", ID, f"{tmp_path}/t.run"], []),
    ):
        code, text = limpet("runs", *words, "--store", url)
        assert (code, [each for each in expected if each not in text]) == (0, []), text
    _, text = limpet("runs", "history", ID, "--store", url)
    assert "end" not in text.split(), text  # LangGraph knows what is next
    assert "runs state" not in text
    for refused in (
        ("runs", "state", ID),
        ("runs", "diff", ID, "0", "1"),
        ("runs", "fork", ID),
        ("runs", "rollback", ID, "1"),
        ("runs", "retry", ID),
        ("runs", "send", ID, "note", "1"),
        ("runs", "cancel", ID),
        ("answer", ID, "yes"),
        ("resume", ID),
    ):
        code, text = limpet(*refused, "--store", url)
        assert code != 0
        assert "is a thread of LangGraph" in text, refused
        assert f"limpet runs history {ID} --store" in text, refused
    code, text = limpet("store", "verify", ID, "--store", url)
    assert code == 0
    assert "intact" in text


def limpet(*words: str) -> tuple[int, str]:
    out = StringIO()
    with redirect_stdout(out), redirect_stderr(out):
        try:
            code = main(list(words))
        except SystemExit as exit:
            code = int(exit.code or 0)
    return code, out.getvalue()


def test_the_http_api_and_the_page_show_it() -> None:
    """H22: opening one says what it is, and doesn't fail."""
    with api(asking, MemoryStore()) as client:
        with_thread(client.store)
        (listed,) = client.read("/runs")["runs"]
        assert (listed["run_id"], listed["status"], listed["step"]) == (ID, "thread", 2)
        shown = client.read(f"/runs/{ID}")
        assert shown["reason"] == "a thread of LangGraph, 3 checkpoints"
        timeline = client.read(f"/runs/{ID}/timeline")
        assert [(row["label"], row["step"]) for row in timeline["rows"]] == [
            ("input", 0),
            ("loop", 1),
            ("loop", 2),
        ]
        assert len(client.read(f"/runs/{ID}/history")["steps"]) == 3
        assert client.read(f"/runs/{ID}/state", 400)["code"] == "foreign-run"
        assert client.act(f"/runs/{ID}/answer", 400, value="yes")["code"] == "foreign-run"
        assert client.act(f"/runs/{ID}/retry", 400)["code"] == "foreign-run"
        assert ExportedRun.from_bytes(client.get(f"{API}/runs/{ID}/export").content, "it").run_id == ID
        assert client.read("/counts")["counts"] == {"thread": 1}
        assert client.read("/questions")["runs"] == []
        for endpoint in ENDPOINTS:
            if endpoint.method == "GET" and "{run_id}" in endpoint.path and not endpoint.streams:
                answer = client.get(API + filled(endpoint, run_id=ID))
                assert answer.status_code < 500, (endpoint.path, answer.text)


def test_many_threads_hide_no_question(monkeypatch: pytest.MonkeyPatch) -> None:
    """H22: a list of what waits for a person looks through some runs only, and threads hardly count."""
    monkeypatch.setattr(questions, "MAX_PAUSED", 2)
    with api(asking, MemoryStore()) as client:
        client.run_until_it_stops("asks")
        saver = LimpetSaver(client.store)
        for number in range(10):
            SavedThread(saver, f"thread {number}").save({"x": 1})
        assert [run["run_id"] for run in client.read("/questions")["runs"]] == ["asks"]


def test_a_thread_is_exported_verified_and_imported(any_store: Store, tmp_path: Path) -> None:
    """H22: into another store, where LangGraph continues it; a damaged or crafted file is refused."""
    runs = Runs(with_thread(any_store))
    assert runs.verify(ID).ok
    assert runs.verify(ID).steps == [0, 1, 2]
    assert runs.verify(ID).restorable
    runs.export(ID, tmp_path / "t.run")
    other = MemoryStore()
    assert Runs(other).import_(tmp_path / "t.run") == ID
    newest: Any = {"configurable": {"thread_id": "customer-7"}}
    saver = LimpetSaver(other)
    assert saver.get_tuple(newest) == LimpetSaver(any_store).get_tuple(newest)
    thread = SavedThread(saver, "customer-7")
    thread.save({"items": ["on"]})
    assert thread.values() == {"items": ["on"]}
    assert Runs(other).verify(ID).ok
    # Under another id it is kept, and LangGraph doesn't find it.
    Runs(other).import_(tmp_path / "t.run", "copy")
    assert Runs(other).get("copy").info.kind == "langgraph"
    assert Runs(other).verify("copy").ok
    assert {each.config["configurable"]["thread_id"] for each in saver.list(None)} == {"customer-7"}
    exported = ExportedRun.from_bytes((tmp_path / "t.run").read_bytes(), "t.run")
    for crafted in (
        exported._replace(status="running"),
        exported._replace(records=[]),
        exported._replace(plan="other:1"),
        exported._replace(note=b"\xc1"),
        exported._replace(plan=""),
    ):
        (tmp_path / "crafted.run").write_bytes(crafted.to_bytes())
        with pytest.raises(DamagedRecord):
            Runs(other).import_(tmp_path / "crafted.run", "crafted")
    (tmp_path / "crafted.run").write_bytes(exported._replace(plan="nothing").to_bytes())
    with pytest.raises(StoreError, match="its plan isn't the format of a thread"):
        Runs(other).import_(tmp_path / "crafted.run", "crafted")


def test_damage_is_found_and_never_given_as_data(tmp_path: Path) -> None:
    """H22, R4: also where records are right in themselves, and don't follow from each other."""
    store = with_thread(MemoryStore())
    tail = store.read(ID, first=1)
    store.delete(ID)
    exported = ExportedRun.from_tail(tail)
    store.create(exported.to_new_run(ID)._replace(records=[exported.records[2], *exported.records[1:]]))
    verification = Runs(store).verify(ID)
    assert not verification.ok
    assert not verification.restorable
    assert [number for number, _ in verification.damaged] == [1]
    with pytest.raises(DamagedRecord):
        LimpetSaver(store).get_tuple({"configurable": {"thread_id": "customer-7"}})
    store.delete(ID)


def test_an_encrypted_store_encrypts_threads(tmp_path: Path) -> None:
    """H22: nothing of a thread is in the file in plain text."""
    store = open_store(f"sqlite:///{tmp_path}/runs.db", encryption="11" * 32)
    thread = SavedThread(LimpetSaver(store), "customer-7")
    thread.save({"items": ["confidential"]})
    assert thread.values() == {"items": ["confidential"]}
    assert Runs(store).get(ID).info.reason == "a thread of LangGraph, 1 checkpoint"
    assert (
        b"confidential" not in (tmp_path / "runs.db").read_bytes() + (tmp_path / "runs.db-wal").read_bytes()
    )


def test_flat_files_list_it(tmp_path: Path) -> None:
    """H22: without its values, which are LangGraph's."""
    runs = Runs(with_thread(MemoryStore()))
    assert runs.flatten(tmp_path / "flat.jsonl").runs == 1
    assert "is a thread of LangGraph" in (tmp_path / "flat.jsonl").read_text()
