"""`RunHandle`: any run by its id, with the graph or without, in any process. H10."""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import pytest

from limpet import (
    AlreadyCompleted,
    ExecutionError,
    MemoryStore,
    Retry,
    RunCancelled,
    RunHandle,
    RunNotFound,
    RunPaused,
    RunQuarantined,
    Runs,
    RunWaiting,
    State,
    StateGraph,
    UnknownValue,
    UsageError,
    WrongGraph,
    append,
    open_store,
    receive,
)
from limpet.journal.encoding.codec import decode, encode
from limpet.journal.encoding.json_values import to_json_value
from support.graphs import asking, asking_workflow, chain, count, fan


def test_every_call_has_an_async_form_that_takes_the_same() -> None:
    members = inspect.getmembers(RunHandle, inspect.isfunction)
    methods = {name for name, _ in members if not name.startswith("_")}
    plain = {name for name in methods if not name.startswith("a") or name == "answer"}
    assert methods - plain == {f"a{name}" for name in plain - {"wait"}} | {"await_", "ainfo", "astate"}
    for name in plain - {"wait"}:
        other = getattr(RunHandle, f"a{name}")
        assert inspect.signature(getattr(RunHandle, name)).parameters == inspect.signature(other).parameters


def test_a_wait_that_takes_too_long_says_what_the_run_waits_for() -> None:
    """H16: a message that isn't sent, for example."""
    graph = StateGraph(name="waiter").add_node("node", run=lambda state: {"x": receive("user")})
    graph.set_entry_point("node").set_finish_point("node").compile(store=MemoryStore())
    with pytest.raises(RunWaiting):
        graph.execute({}, run_id="r")
    said = "run 'r' is still waiting after 0.01 s: 'node' waits for the message 'user'"
    for wait in (graph.get("r").wait, graph.get("r").result):
        with pytest.raises(TimeoutError) as late:
            wait(timeout=0.01)
        assert str(late.value) == said


def test_a_handle_knows_what_the_store_knows(store: Any) -> None:
    graph = chain(count, asking()).compile(store=store, preserve=True)
    graph.invoke({"n": 1}, run_id="r", tags=["weekly"]).wait()
    for handle in (graph.get("r"), Runs(store).get("r"), asyncio.run(Runs(store, graph).aget("r"))):
        assert (handle.run_id, handle.id, handle.info.run_id) == ("r", "r", "r")
        shown = (handle.graph, handle.status, handle.shown_status, handle.tags)
        assert shown == ("chain", "paused", "paused", ("weekly",))
        assert [question.prompt for question in handle.questions] == ["Ship it?"]
        assert handle.state == {"n": 2}
        assert asyncio.run(handle.astate()) == {"n": 2}
        assert asyncio.run(handle.ainfo()) == handle.info
        assert [step.node for step in handle.history()] == [None, "n1"]
        assert handle.verify().ok
        with pytest.raises(RunPaused):
            handle.result(1)


def test_a_handle_is_only_given_for_a_run_that_exists_and_by_its_own_graph(store: Any) -> None:
    graph = chain(count).compile(store=store)
    with pytest.raises(RunNotFound):
        graph.get("missing")
    with pytest.raises(RunNotFound):
        Runs(store).get("missing")
    chain(asking(), name="other").compile(store=store).invoke({}, run_id="theirs").wait()
    with pytest.raises(WrongGraph):
        graph.get("theirs")


def test_every_store_refuses_what_isnt_an_id(any_store: Any) -> None:
    """H10: in the same words, whatever is asked about the run."""
    graph = chain(count).compile(store=any_store)
    runs = Runs(any_store, graph)
    calls: list[Any] = [graph.get, runs.get, runs.history, runs.state, runs.verify, runs.answer, graph.answer]
    for call, wrong in product(calls, (None, 5, b"x", Path("x"))):
        with pytest.raises(UsageError, match="is named by its id, a str, not"):
            call(wrong)


def test_start_returns_a_handle_and_the_run_can_be_answered_to_its_result(store: Any) -> None:
    graph = chain(count, asking()).compile(store=store)
    handle = graph.start({"n": 1})
    assert isinstance(handle, RunHandle)
    assert (handle.shown_status, repr(handle)) == ("queued", f"<RunHandle {handle.id}>")
    again = graph.start({"n": 1}, run_id=handle.run_id, tags=["other"], priority=7)
    assert (again.info, again.tags) == (handle.info, ())
    graph.recover()
    handle.answer("yes")
    graph.recover()
    assert handle.result(1) == {"n": 2, "answer": "yes"}
    with pytest.raises(AlreadyCompleted):
        handle.retry()


def test_what_needs_the_code_of_the_graph_says_so() -> None:
    store = MemoryStore()
    graph = chain(count, asking()).compile(store=store, preserve=True)
    graph.invoke({"n": 1}, run_id="r").wait()
    handle = Runs(store).get("r")
    handle.cancel()
    for call in (lambda: handle.fork(), lambda: handle.rollback(1), lambda: handle.retry({"n": 5})):
        with pytest.raises(UsageError, match=r"graph.*Runs\(store, graphs=\[…\]\)"):
            call()
    known = Runs(store, [chain(count, name="other").compile(store=store), graph]).get("r")
    forked = known.fork(1, {"n": 7}, new_run_id="f", tags="forked")
    assert (forked.id, forked.state, forked.tags, forked.status) == ("f", {"n": 7}, ("forked",), "paused")
    assert known.rollback(1) == {"n": 2}


def test_a_handle_exports_and_deletes(tmp_path: Path) -> None:
    store = MemoryStore()
    graph = chain(asking()).compile(store=store)
    graph.invoke({}, run_id="r").wait()
    handle = Runs(store).get("r")
    handle.export(tmp_path / "r.run")
    handle.delete()
    with pytest.raises(RunNotFound):
        handle.status  # noqa: B018
    assert Runs(store).import_(tmp_path / "r.run") == "r"
    assert handle.status == "paused"


class Flaky:
    """A node that fails until it is fixed, and notes its calls."""

    def __init__(self) -> None:
        self.calls = 0
        self.fixed = False

    def __call__(self, state: State) -> dict[str, Any]:
        self.calls += 1
        if not self.fixed:
            raise ConnectionError("no")
        return {"done": state.get("n", 0)}


def test_a_failed_run_goes_back_to_the_workers_from_where_it_stopped(store: Any) -> None:
    """H11: finished nodes don't run again, and the node that failed gets all its attempts again."""
    flaky = Flaky()
    graph = StateGraph({"n": int, "done": int, "log": Annotated[list, append]}, name="g")
    graph.add_node("first", run=lambda state: {"log": ["first"]})
    graph.add_node("flaky", run=flaky, retry=Retry(attempts=2, backoff=0))
    graph.add_edge("first", "flaky").set_entry_point("first").set_finish_point("flaky").compile(store=store)
    handle = graph.start({"n": 1})
    graph.recover()
    for result in (lambda: handle.result(1), lambda: asyncio.run(handle.aresult(1))):
        with pytest.raises(ExecutionError, match="no") as failed:
            result()
        assert failed.value.advice.endswith(f"or hand it back to the workers with get({handle.id!r}).retry()")
    assert (handle.status, flaky.calls, graph.recover()) == ("failed", 2, [])
    handle.retry()
    assert (handle.status, handle.shown_status, handle.info.error) == ("running", "queued", None)
    graph.recover()
    assert (handle.status, flaky.calls) == ("failed", 4)
    flaky.fixed = True
    handle.retry({"n": 5, "log": ["fixed"]})
    graph.recover()
    assert handle.result(1) == {"n": 5, "done": 5, "log": ["first", "fixed"]}
    assert flaky.calls == 5


def test_branches_that_failed_are_retried_and_finished_ones_are_not(store: Any) -> None:
    flaky = Flaky()
    done: list[str] = []

    def fine(state: State) -> dict[str, Any]:
        done.append("fine")
        return {"n": 1}

    graph = fan({"a": flaky, "b": fine}, schema={"n": int, "done": int, "results": list}).compile(store=store)
    handle = graph.start({"n": 3})
    graph.recover()
    assert handle.status == "failed"
    flaky.fixed = True
    Runs(store).retry(handle.id)
    graph.recover()
    assert handle.status == "completed"
    assert done == ["fine"]


def test_a_cancelled_run_and_a_workflow_can_be_retried(store: Any) -> None:
    flow = asking_workflow().compile(store=store)
    flow.invoke({}, run_id="r").wait()
    handle = flow.get("r")
    handle.cancel()
    with pytest.raises(RunCancelled):
        handle.result(1)
    handle.retry({"context": {"hint": 1}})
    flow.recover()
    assert handle.status == "paused"
    with pytest.raises(UsageError, match="only a run that failed, or was cancelled"):
        handle.retry()
    assert handle.state["context"] == {"hint": 1}


CRASHING = """
import sys
from limpet import StateGraph
graph = StateGraph(name="crashing").add_node("a", run=lambda state: {})
graph.add_node("crash", run=lambda state: __import__("os")._exit(1) if not state.get("safe") else {"ended": True})
graph.add_edge("a", "crash").set_entry_point("a").set_finish_point("crash").compile(store=sys.argv[1])
try:
    graph.recover(max_crashes=2)
finally:
    print("alive")
"""


def test_a_quarantined_run_is_retried_and_its_crashes_are_forgiven(tmp_path: Path) -> None:
    """H11, H2."""
    url = f"sqlite:///{tmp_path}/runs.db"
    graph = StateGraph(name="crashing").add_node("a", run=lambda state: {})
    graph.add_node("crash", run=lambda state: {"ended": bool(state["safe"])})
    graph.add_edge("a", "crash").set_entry_point("a").set_finish_point("crash").compile(store=url)
    handle = graph.start({"safe": False})
    for _ in range(6):
        if handle.status == "failed":
            break
        subprocess.run([sys.executable, "-c", CRASHING, url], timeout=60, capture_output=True)
    assert (handle.shown_status, handle.info.error["type"]) == ("quarantined", RunQuarantined.__name__)
    with pytest.raises(RunQuarantined, match="hand it back to the workers with"):
        handle.result()
    handle.retry()
    subprocess.run([sys.executable, "-c", CRASHING, url], timeout=60, capture_output=True)
    assert handle.status == "running", "one more crash isn't enough for a quarantine"
    handle.cancel()
    handle.retry({"safe": True})
    graph.recover(max_crashes=2)
    assert handle.result(1)["ended"] is True


WRITES_CLASSES = """
import sys
from dataclasses import dataclass
from limpet import StateGraph, pause, register_type

@register_type(name="shop.Order")
@dataclass(frozen=True)
class Order:
    number: int

graph = StateGraph(name="shop")
graph.add_node("make", run=lambda state: {"order": Order(1), "all": [Order(2), {Order(3): "x"}]})
graph.add_node("ask", run=lambda state: {"said": pause("pay?"), "order": Order(4)})
graph.add_edge("make", "ask").set_entry_point("make").set_finish_point("ask")
graph.compile(store=sys.argv[1], preserve=True)
if len(sys.argv) == 2:
    graph.invoke({}, run_id="r").wait()
else:
    graph.recover() if sys.argv[2] == "recover" else graph.resume("r")
    print(graph.get("r").result(1))
"""


def shop(url: str, *more: str) -> str:
    found = subprocess.run(
        [sys.executable, "-c", WRITES_CLASSES, url, *more],
        timeout=60,
        check=True,
        capture_output=True,
        text=True,
    )
    return found.stdout


def test_a_run_whose_graph_and_classes_are_unknown_can_be_looked_at_and_answered(tmp_path: Path) -> None:
    """Resuming it refuses, and what another process reads afterwards is exact."""
    url = f"sqlite:///{tmp_path}/runs.db"
    shop(url)
    handle = Runs(url).get("r")
    order = handle.state["order"]
    assert isinstance(order, UnknownValue)
    assert (order.class_name, order.content) == ("shop.Order", {"number": 1})
    assert repr(order) == "<shop.Order, which isn't known here: {'number': 1}>"
    assert to_json_value(order) == {"class": "shop.Order", "content": {"number": 1}}
    events = []
    for event in handle.events():
        events.append(event)
        if event["type"] == "pause":
            break
    assert events[1]["update"]["order"] == order
    assert [step.keys for step in handle.history()][-1] == ("order", "all")
    assert Runs(url).diff("r", 0, 1).added["order"] == order
    graph = chain(count, asking(), names=["make", "ask"], name="shop").compile(store=url)
    for call in (lambda: graph.resume("r", "card"), lambda: graph.get("r").fork()):
        with pytest.raises(UsageError, match=r"shop\.Order"):
            call()
    handle.answer("card")
    found = handle.verify()
    assert (found.ok, found.restorable, found.steps) == (True, True, [0, 1])
    assert found.remarks == ("class 'shop.Order' is unknown here: the run can't be resumed in this process",)
    assert "make" in graph.draw("text", run_id="r")
    copy = f"sqlite:///{tmp_path}/copy.db"
    handle.export(tmp_path / "r.run")
    Runs(copy).import_(tmp_path / "r.run", "other")
    Runs(copy).get("other").export(tmp_path / "other.run")
    Runs(copy).import_(tmp_path / "other.run", "r")
    assert Runs(copy).state("r") == handle.state
    done = (
        "State({'order': Order(number=4), 'all': [Order(number=2), {Order(number=3): 'x'}], 'said': 'card'})"
    )
    assert shop(url, "recover").strip() == done
    assert shop(copy, "resume").strip() == done


def test_an_unknown_value_is_stored_again_exactly_as_it_was(tmp_path: Path) -> None:
    """Deleting old checkpoints writes it again, and so does a run that is started with it."""
    url = f"sqlite:///{tmp_path}/runs.db"
    shop(url)
    runs = Runs(url)
    before = runs.state("r")
    runs.prune_checkpoints("r", keep=1)
    assert runs.state("r") == before
    data = encode(dict(before))
    with pytest.raises(UsageError, match=r"shop\.Order"):
        decode(data)
    store = open_store(url)
    stored = store.read("r", first=1)
    assert any(encode(before["order"]) in record for record in stored.records)
    copy = chain(asking(), name="copy").compile(store=url)
    copy.start(dict(before), run_id="copy")
    assert encode(Runs(url).state("copy")["all"]) == encode(before["all"])
