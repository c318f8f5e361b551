"""A store that fails while a run is under way: the run stops, or continues as degraded."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import pytest

from limpet import (
    Conflict,
    DefinitionError,
    ExecutionError,
    MemoryStore,
    NodeContext,
    RunNotFound,
    StateGraph,
    StoreUnavailable,
    Workflow,
    once,
    pause,
    receive,
)
from limpet.engine.leases import inbox_checks
from limpet.journal.inbox import answer_post
from limpet.journal.store import Commit, Post
from limpet.observe.events import Event
from support.graphs import chain


class Failing(MemoryStore):
    """A store whose saves with these numbers fail, counted from 1 when a run begins."""

    def __init__(self, *numbers: int) -> None:
        super().__init__()
        self.numbers, self.count = set(numbers), 0

    def append(self, commits: Sequence[Commit]) -> list[Exception | None]:
        self.count += 1
        if self.count in self.numbers:
            raise StoreUnavailable("no space left")
        return super().append(commits)


def four(store: Any, on_save_error: Any, length: int = 4, **options: Any) -> StateGraph:
    def record(state: Any, node: str) -> dict[str, Any]:
        return {"done": [*state.get("done", []), node]}

    names = [f"n{number}" for number in range(length)]
    graph = chain(*[record] * length, names=names, schema={"done": list})
    return graph.compile(store=store, on_save_error=on_save_error, preserve=True, **options)


def flow(store: Any, on_save_error: Any, layers: int = 4, **options: Any) -> Workflow:
    made = Workflow("layers", store=store, on_save_error=on_save_error, preserve=True, **options)
    for layer in range(layers):
        for number in range(3):
            needs = [f"t{layer - 1}{other}" for other in range(3)] if layer else []
            made.add_task(f"t{layer}{number}", lambda **results: 1 + sum(results.values()), needs)
    return made


ALL = ["n0", "n1", "n2", "n3"]


def test_a_failed_save_stops_a_run_by_default() -> None:
    """D6, G9: what wasn't saved isn't built upon."""
    store = Failing(2)
    graph = four(store, "fail")
    with pytest.raises(ExecutionError, match="checkpoint save failed"):
        graph.execute({}, run_id="r")
    assert graph.state_at("r")["done"] == ["n0"]
    store.numbers.clear()
    assert graph.resume("r")["done"] == ALL


def test_with_continue_a_run_continues_and_the_next_save_brings_all() -> None:
    """D6: the run's status shows it, and no longer when a save works."""
    graph = four(Failing(2, 3), "continue")
    run = graph.stream({}, run_id="r")
    seen = [(event["type"], run.status) for event in run]
    assert seen == [
        ("state", "running"),
        ("checkpoint_failed", "degraded"),
        ("state", "degraded"),
        ("checkpoint_failed", "degraded"),
        ("state", "degraded"),
        ("state", "running"),
        ("final", "running"),
    ]
    assert run.status == "completed"
    assert graph.state_at("r")["done"] == ALL
    assert [graph.state_at("r", step)["done"] for step in range(1, 5)] == [ALL[:n] for n in range(1, 5)]


def test_a_run_that_ends_unsaved_still_gives_its_state() -> None:
    """D6: it is degraded to the end, and a resume does what isn't saved."""
    store = Failing(*range(2, 100))
    graph = four(store, "continue")
    run = graph.invoke({}, run_id="r")
    assert [event["type"] for event in run] == ["final"]
    assert run.status == "degraded"
    assert run.state["done"] == ALL
    store.numbers.clear()
    assert graph.runs()[0].status == "running"
    assert graph.resume("r")["done"] == ALL


@pytest.mark.parametrize("failures", [1, 2, 3])
def test_a_run_that_continues_unsaved_says_so_once_in_the_log(
    failures: int, caplog: pytest.LogCaptureFixture
) -> None:
    """D6: also without observers; at the first save that fails, and not again at the next."""
    with caplog.at_level(logging.WARNING):
        four(Failing(*range(1, failures + 1)), "continue").execute({}, run_id="r")
    told = [record.getMessage() for record in caplog.records if "can't be saved" in record.getMessage()]
    assert told == ["run r continues although it can't be saved: StoreUnavailable: no space left"]


def test_observers_hear_of_each_save_that_failed() -> None:
    """D6, G11: with the node, the step and the error."""
    heard: list[Event] = []
    graph = StateGraph(name="one", observer=heard.append)
    graph.add_node("a", lambda state: {"a": 1})
    graph.add_node("b", lambda state: {"b": 1})
    graph.add_edge("a", "b")
    graph.set_entry_point("a")
    graph.set_finish_point("b")
    graph.compile(store=Failing(1), on_save_error="continue").execute({})
    failed = [event for event in heard if event.type == "checkpoint.fail"]
    assert [(event.data["node"], event.data["step"]) for event in failed] == [("a", 1)]
    assert failed[0].data["error"] == "StoreUnavailable: no space left"


@pytest.mark.parametrize("numbers", [(1,), (2, 3), (3, 4), tuple(range(2, 5))])
def test_a_workflow_continues_and_emits_only_ids_that_can_be_loaded(numbers: tuple[int, ...]) -> None:
    """D6: a checkpoint that wasn't saved has no id."""
    made = flow(Failing(*numbers), "continue")
    failures = 0
    for event in made.stream({}, run_id="r"):
        if event["type"] == "checkpoint_failed":
            failures += 1
            assert event["error"] == "StoreUnavailable: no space left"
            assert "checkpoint_id" not in event
        if event["type"] == "checkpoint_saved":
            loaded = made.checkpoint(event["checkpoint_id"])
            assert loaded.completed_layers == event["layer"] + 1
    assert failures
    assert made.state_at("r").results["t30"] == 40


@pytest.mark.parametrize("number", range(1, 6))
def test_a_workflow_stops_before_the_next_layer_by_default(number: int) -> None:
    """D6, G9, H3: nothing of the next layer runs, and what was saved isn't done again."""
    store = Failing(number)
    made = flow(store, "fail")
    with pytest.raises(ExecutionError, match="checkpoint save failed"):
        made.execute({}, run_id="r")
    store.numbers.clear()
    kept = made.plan_resume("r").kept
    begun = [
        event["task"]
        for event in made.stream(checkpoint=f"r@{_newest(made)}")
        if event["type"] == "task_start"
    ]
    assert not set(begun) & set(kept)
    assert sorted([*begun, *kept]) == sorted(f"t{layer}{n}" for layer in range(4) for n in range(3))


def _newest(made: Workflow) -> int:
    return made.history("r")[-1].step


def test_an_async_run_continues_too() -> None:
    """D6, H7: the same loop."""
    graph, made = four(Failing(2), "continue"), flow(Failing(2, 3), "continue")
    assert asyncio.run(graph.aexecute({}))["done"] == ALL
    assert asyncio.run(made.aexecute({})).results["t30"] == 40


def test_a_pause_that_cannot_be_saved_fails_the_run() -> None:
    """D6, P1: it couldn't be answered."""
    graph = StateGraph(name="asks")
    graph.add_node("ask", lambda state: {"answer": pause("?")})
    graph.set_entry_point("ask")
    graph.set_finish_point("ask")
    graph.compile(store=Failing(1), on_save_error="continue")
    with pytest.raises(ExecutionError, match="checkpoint save failed"):
        graph.execute({})


def test_what_once_keeps_goes_with_the_next_save() -> None:
    """D6, H8: it isn't lost while the run continues, nor by a failure after that."""
    calls = []
    store = Failing(1)
    graph = StateGraph(name="once")

    def node(state: dict[str, Any]) -> dict[str, Any]:
        kept = once("call", lambda: calls.append(1) or len(calls))
        if len(calls) == 1 and not state.get("fixed"):
            raise ValueError("later")
        return {"kept": kept}

    graph.add_node("node", node)
    graph.set_entry_point("node")
    graph.set_finish_point("node")
    graph.compile(store=store, on_save_error="continue")
    with pytest.raises(ExecutionError, match="later"):
        graph.execute({}, run_id="r")
    assert graph.resume("r", {"fixed": True})["kept"] == 1
    assert calls == [1]


def test_a_run_that_another_process_holds_stops_with_any_policy() -> None:
    """D6, invariant 5: a refusal isn't a failure to save."""
    made = flow(MemoryStore(), "continue")
    client = made.compiled().client
    assert client is not None

    def steal(**results: int) -> int:
        head = client.store.head("r")
        client.store.claim("r", "another", 60, instead_of=head.fence)
        return 0

    made.add_task("steals", steal)
    with pytest.raises(Conflict):
        made.execute({}, run_id="r")
    made = flow(MemoryStore(), "continue")
    other = made.compiled().client
    assert other is not None
    made.add_task("deletes", lambda: other.store.release(_lease(other)) or other.store.delete("r"))
    with pytest.raises(RunNotFound):
        made.execute({}, run_id="r")


def _lease(client: Any) -> Any:
    return client.held["r"].lease


@pytest.mark.parametrize("setting", [{"on_save_error": "ignore"}, {"keep": 0}, {"keep": 1.5}, {"keep": True}])
def test_settings_that_cannot_be_are_refused(setting: dict[str, Any]) -> None:
    """D5, D6: when the graph is compiled, with what is possible."""
    graph = StateGraph(name="one")
    graph.add_node("a", lambda state: {})
    graph.set_entry_point("a")
    graph.set_finish_point("a")
    with pytest.raises(DefinitionError, match=next(iter(setting))):
        graph.compile(store="memory", **setting)
    with pytest.raises(DefinitionError, match=next(iter(setting))):
        Workflow("w", **setting).add_task("a", lambda: 1).compile()


def test_a_store_that_is_away_for_long_is_not_tried_at_every_step() -> None:
    """D6: neither time nor memory go with the square of what waits; and where the run stops it is tried."""
    store = Failing(*range(1, 10_000))
    graph = four(store, "continue", length=200)
    run = graph.invoke({}, run_id="r")
    run.wait()
    assert run.status == "degraded"
    assert store.count < 50


def test_a_save_that_failed_inside_of_a_node_makes_the_run_degraded() -> None:
    """D6: as any other."""
    seen = []
    graph = StateGraph(name="once")
    graph.add_node("node", lambda state: {"kept": once("k", lambda: 1), "seen": seen.append(run.status)})
    graph.set_entry_point("node")
    graph.set_finish_point("node")
    run = graph.compile(store=Failing(1), on_save_error="continue").invoke({})
    next(iter(run))
    assert seen == ["degraded"]


def test_a_run_that_failed_unsaved_has_failed() -> None:
    """D6: its status says what there is to say of a run that continues, or has completed."""
    graph = StateGraph(name="fails")
    graph.add_node("a", lambda state: {"a": 1})
    graph.add_node("b", lambda state: 1 / 0)
    graph.add_edge("a", "b")
    graph.set_entry_point("a")
    graph.set_finish_point("b")
    run = graph.compile(store=Failing(1, 2, 3, 4), on_save_error="continue").invoke({})
    run.wait()
    assert run.status == "failed"


class UnreadableInbox(MemoryStore):
    """A store that can't be reached the first times that a run asks for its posts."""

    failures = 3

    def inbox(self, run_id: str) -> Sequence[Post]:
        if self.failures:
            self.failures -= 1
            raise StoreUnavailable("no route to host")
        return super().inbox(run_id)


@pytest.mark.parametrize("on_save_error", ["wait", "fail"])
def test_a_run_that_waits_for_its_store_waits_for_its_posts_too(
    on_save_error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D6, H10: a save is refused while posts wait, and they can't be read; without waiting, that fails the run."""
    monkeypatch.setattr(inbox_checks, "CHECK_INTERVAL", 0.01)
    store = UnreadableInbox()

    def first(state: Any) -> dict[str, Any]:
        post = answer_post("r", "other:1:1", "yes", 0.0)
        assert store.post("r", post.key, post.body)
        return {"first": True}

    graph = chain(first, lambda state: {"second": True}).compile(store=store, on_save_error=on_save_error)
    if on_save_error == "fail":
        with pytest.raises(ExecutionError, match="no route to host"):
            graph.execute({}, run_id="r")
        assert store.failures == 2
    else:
        assert graph.execute({}, run_id="r") == {"first": True, "second": True}
        assert (store.failures, store.inbox("r")) == (0, [])


class Unanswering(MemoryStore):
    """A store whose connection breaks after the first save was written, so that its writer doesn't know."""

    count = 0

    def append(self, commits: Sequence[Commit]) -> list[Exception | None]:
        outcomes = super().append(commits)
        self.count += 1
        if self.count == 1:
            raise StoreUnavailable("the connection broke")
        return outcomes


class Crash(BaseException):
    """Ends the process of a run."""


def test_a_message_taken_in_after_a_save_that_was_written_unnoticed_is_taken_in_once() -> None:
    """H16: the commit that saves the rest says so, too; else a resume would get the message twice."""
    store = Unanswering()
    crashes = [True]

    def first(ctx: NodeContext) -> dict[str, Any]:
        graph.send(ctx.run_id, "note", "hello", key="once")
        received = receive("note")
        if crashes:
            crashes.clear()
            raise Crash
        return {"first": received}

    def second(state: Any) -> dict[str, Any]:
        return {"second": receive("note", deadline=0, default="none")}

    graph = chain(lambda state: None, first, second, names=["begin", "first", "second"])
    graph.compile(store=store, on_save_error="continue")
    with pytest.raises(Crash):
        graph.execute({}, run_id="r")
    assert graph.resume("r") == {"first": "hello", "second": "none"}
