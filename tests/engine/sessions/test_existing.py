"""The same start twice is one run: `execute`, `invoke` and `stream` with the id of a run that exists. H10."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest

from limpet import (
    END,
    Conflict,
    ExecutionError,
    MemoryStore,
    RunCancelled,
    RunExists,
    RunNotFound,
    RunPaused,
    StateGraph,
    UsageError,
    Workflow,
    pause,
    register_type,
)
from limpet.engine.following import elsewhere
from limpet.engine.leases.lease_client import client_for
from support.graphs import Via, chain, fan
from support.posts import post_cancel
from support.waiting import until

LONG = 30.0


def add(state: Any) -> dict[str, Any]:
    return {"n": state["n"] + 1}


def counting(store: Any, calls: list[int], **compiled: Any) -> StateGraph:
    """A graph of two nodes; the first notes that it was called."""

    def note(state: Any) -> dict[str, Any]:
        calls.append(state["n"])
        return add(state)

    return chain(note, add).compile(store=store, **compiled)


def test_a_completed_run_gives_its_result_again(store: Any, via: Via) -> None:
    """H10: also in another process, which has another object for the graph; nothing is executed twice."""
    calls: list[int] = []
    first = via.execute(counting(store, calls), {"n": 1}, run_id="r")
    again = counting(store, calls)
    assert dict(via.execute(again, {"n": 1}, run_id="r")) == dict(first) == {"n": 3}
    assert [event["type"] for event in via.events(again, {"n": 1}, run_id="r")] == ["final"]
    assert via.events(again, {"n": 1}, run_id="r", stream=False)[-1]["state"]["n"] == 3
    assert calls == [1]


def test_a_result_is_kept_although_its_caller_crashed(store: Any) -> None:
    """H10: nothing more is written for it than the run's own commits."""
    graph = counting(store, [])
    graph.execute({"n": 1}, run_id="r")
    assert dict(graph.get("r").result(0)) == {"n": 3}
    assert graph.state_at("r")["n"] == 3


@pytest.mark.parametrize("other", [{"n": 2}, {"n": 1.0}, {"n": 1, "m": None}, {}])
def test_another_input_is_another_start(store: Any, via: Via, other: dict[str, Any]) -> None:
    """H10: the run stays as it is."""
    graph = counting(store, [])
    via.execute(graph, {"n": 1}, run_id="r")
    with pytest.raises(RunExists, match="started with another input"):
        via.execute(graph, other, run_id="r")
    assert graph.state_at("r")["n"] == 3


def test_the_order_of_keys_does_not_matter(store: Any) -> None:
    """H10: equal inputs are one start."""
    calls: list[int] = []
    graph = counting(store, calls)
    graph.execute({"n": 1, "more": {"a": 1, "b": [1, {"x": 1, "y": 2}]}}, run_id="r")
    graph.execute({"more": {"b": [1, {"y": 2, "x": 1}], "a": 1}, "n": 1}, run_id="r")
    assert calls == [1]


def test_what_is_not_the_same_start_is_refused(store: Any, via: Via) -> None:
    """H10: another graph, a run whose id was generated, and `if_exists="error"`."""
    graph = counting(store, [])
    via.execute(graph, {"n": 1}, run_id="r")
    with pytest.raises(RunExists, match="it is a run of graph"):
        via.execute(chain(add, name="other").compile(store=store), {"n": 1}, run_id="r")
    with pytest.raises(RunExists):
        via.execute(graph, {"n": 1}, run_id="r", if_exists="error")
    with pytest.raises(UsageError, match='"resume" or "error"'):
        via.execute(graph, {"n": 1}, run_id="r", if_exists="replace")
    generated = via.execute(graph, {"n": 1}).run_id
    with pytest.raises(RunExists, match="wasn't chosen"):
        via.execute(graph, {"n": 1}, run_id=generated)


def test_a_run_whose_journal_was_deleted_is_refused(store: Any) -> None:
    """H10: its result isn't there to be given."""
    graph = counting(store, [], keep_result=False)
    graph.execute({"n": 1}, run_id="r")
    with pytest.raises(RunExists, match=r"keep_result=False; delete it, or choose another id"):
        graph.execute({"n": 1}, run_id="r")


def test_a_failed_run_is_continued(store: Any, via: Via) -> None:
    """H10: from where it failed."""
    calls: list[int] = []
    broken = [True]

    def fail(state: Any) -> dict[str, Any]:
        if broken:
            raise ValueError("broken")
        return add(state)

    def note(state: Any) -> dict[str, Any]:
        calls.append(state["n"])
        return add(state)

    graph = chain(note, fail).compile(store=store)
    with pytest.raises(ExecutionError, match="broken"):
        via.execute(graph, {"n": 1}, run_id="r")
    broken.clear()
    assert via.execute(graph, {"n": 1}, run_id="r")["n"] == 3
    assert calls == [1]


def test_a_run_that_was_left_is_continued(store: Any) -> None:
    """H10: no process holds it."""
    calls: list[int] = []
    graph = counting(store, calls)
    run = graph.stream({"n": 1}, run_id="r")
    next(run)
    run.close()
    assert graph.execute({"n": 1}, run_id="r")["n"] == 3
    assert calls == [1]


def test_a_queued_run_is_executed_here(store: Any) -> None:
    """H10."""
    calls: list[int] = []
    graph = counting(store, calls)
    handle = graph.start({"n": 1}, run_id="r")
    assert graph.execute({"n": 1}, run_id="r")["n"] == 3
    assert (handle.result(0)["n"], graph.recover(), calls) == (3, [], [1])


def test_a_paused_run_reports_its_pause(store: Any, via: Via) -> None:
    """H10: as the error of `execute`, and as the event of `invoke` and `stream`; the node isn't called again."""
    calls: list[str] = []

    def ask(state: Any) -> dict[str, Any]:
        calls.append("ask")
        return {"said": pause("well?")}

    graph = chain(add, ask).compile(store=store)
    with pytest.raises(RunPaused) as first:
        via.execute(graph, {"n": 1}, run_id="r")
    with pytest.raises(RunPaused) as second:
        via.execute(graph, {"n": 1}, run_id="r")
    assert [each.id for each in first.value.questions] == [each.id for each in second.value.questions]
    (event,) = via.events(graph, {"n": 1}, run_id="r")
    assert (event["type"], event["state"]["n"]) == ("pause", 2)
    assert calls == ["ask"]
    assert via.resume(graph, "r", "yes")["said"] == "yes"


@pytest.mark.parametrize("reference", ["run", "checkpoint"])
def test_resuming_without_an_answer_reports_the_pause_again(store: Any, via: Via, reference: str) -> None:
    """H10: `invoke` and `stream` take the id of a run where they take that of a checkpoint."""
    graph = chain(add, lambda state: {"said": pause("well?")}).compile(store=store)
    (paused,) = via.events(graph, {"n": 1}, run_id="r", stream=False)
    named = "r" if reference == "run" else paused["checkpoint_path"]
    (again,) = via.events(graph, checkpoint=named, stream=False)
    assert {key: again[key] for key in ("type", "node", "state", "checkpoint_path")} == {
        key: paused[key] for key in ("type", "node", "state", "checkpoint_path")
    }
    assert via.events(graph, "yes", checkpoint=named)[-1]["state"]["said"] == "yes"


def test_the_pause_of_branches_is_reported_again(store: Any, via: Via) -> None:
    """H10, P3: each question, with its branch."""
    flow = Workflow("flow")
    for name in ("a", "b"):
        flow.add_task(name, lambda: pause("well?"))
    flow.compile(store=store)
    first = via.events(flow, {}, run_id="r", stream=False)
    again = via.events(flow, {}, run_id="r", stream=False)
    assert [_comparable(event) for event in again] == [_comparable(event) for event in first]
    assert len(flow.get("r").questions) == 2


def _comparable(event: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in event.items() if key not in ("state", "timestamp")}


def test_a_cancelled_run_names_retry(store: Any, via: Via) -> None:
    """H10: it was stopped on purpose, so it doesn't start again by itself."""
    graph = chain(add, lambda state: {"said": pause("well?")}).compile(store=store)
    with pytest.raises(RunPaused):
        via.execute(graph, {"n": 1}, run_id="r")
    graph.cancel("r")
    with pytest.raises(RunCancelled, match="retry"):
        via.execute(graph, {"n": 1}, run_id="r")


def test_two_threads_that_execute_the_same_run_both_get_its_result(store: Any) -> None:
    """H10: one runs it, the other waits."""
    calls: list[int] = []
    begun = threading.Event()
    proceed = threading.Event()

    def slow(state: Any) -> dict[str, Any]:
        calls.append(state["n"])
        begun.set()
        assert proceed.wait(LONG)
        return add(state)

    graph = chain(slow, add).compile(store=store)
    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(graph.execute, {"n": 1}, run_id="r")
        assert begun.wait(LONG)
        other = pool.submit(graph.execute, {"n": 1}, run_id="r")
        proceed.set()
        assert (first.result(LONG)["n"], other.result(LONG)["n"]) == (3, 3)
    assert calls == [1]


def test_a_stream_of_a_run_that_another_executes_follows_it(store: Any, via: Via) -> None:
    """H10: what is durable is reported, and then its end as that of any run."""
    begun = threading.Event()
    proceed = threading.Event()

    def slow(state: Any) -> dict[str, Any]:
        begun.set()
        assert proceed.wait(LONG)
        return add(state)

    graph = chain(add, slow, add).compile(store=store)
    followed: list[dict[str, Any]] = []

    async def iterate() -> None:
        async for event in graph.astream({"n": 1}, run_id="r"):
            followed.append(event)
            proceed.set()

    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(graph.execute, {"n": 1}, run_id="r")
        assert begun.wait(LONG)
        if via.api == "async":
            asyncio.run(asyncio.wait_for(iterate(), LONG))
        else:
            for event in graph.stream({"n": 1}, run_id="r"):
                followed.append(event)
                proceed.set()
        assert first.result(LONG)["n"] == 4
    steps = [event["node"] for event in followed if event["type"] == "step"]
    assert (steps, followed[-1]["type"], followed[-1]["state"]["n"]) == (["n1", "n2", "n3"], "final", 4)


@pytest.mark.parametrize("how", ["completes", "fails", "pauses", "is cancelled"])
@pytest.mark.parametrize("kind", ["graph", "workflow"])
def test_the_end_of_a_run_that_another_executes_is_reported_at_once_as_any_end(
    via: Via, monkeypatch: pytest.MonkeyPatch, kind: str, how: str
) -> None:
    """H10: by `stream`, `invoke` and `execute`, without a last look some time later."""
    monkeypatch.setattr(elsewhere, "LONGEST_WAIT", 2 * LONG)
    store = MemoryStore()
    begun = threading.Event()
    proceed = threading.Event()

    def work(*given: Any) -> Any:
        begun.set()
        assert proceed.wait(LONG)
        if how == "fails":
            raise ValueError("broken")
        return {"n": pause("well?") if how == "pauses" else 1}

    graph: Any = chain(work, lambda state: {}).compile(store=store)
    if kind == "workflow":
        graph = Workflow("flow").add_task("work", work).add_task("then", lambda work: 1, depends_on=["work"])
        graph.compile(store=store)

    def end(call: Any) -> list[Any]:
        """What a caller gets of a run that another executes, and what that one gets."""
        begun.clear()
        proceed.clear()
        with ThreadPoolExecutor(2) as pool:
            first = pool.submit(lambda: list(graph.invoke({}, run_id=call.__name__)))
            assert begun.wait(LONG)
            run = call({}, run_id=call.__name__)
            told = pool.submit(_told, run)
            until(lambda: run._slot.has_waited)
            if how == "is cancelled":
                graph.cancel(call.__name__)
            proceed.set()
            return [told.result(LONG), first.result(LONG)]

    is_async = via.api == "async"
    told, first = end(graph.ainvoke if is_async else graph.invoke)
    assert [_comparable_end(event) for event in told] == [_comparable_end(event) for event in first]
    streamed, first = end(graph.astream if is_async else graph.stream)
    assert _comparable_end(streamed[-1]) == _comparable_end(first[-1])
    assert [event["type"] for event in streamed].count("pause") == (how == "pauses" and kind == "graph")
    if how == "pauses":
        with pytest.raises(RunPaused):
            via.execute(graph, {}, run_id="stream" if not is_async else "astream")


def _told(run: Any) -> list[dict[str, Any]]:
    async def collect() -> list[dict[str, Any]]:
        return [event async for event in run]

    return asyncio.run(collect()) if hasattr(run, "__aiter__") else list(run)


def _comparable_end(event: dict[str, Any]) -> dict[str, Any]:
    """What doesn't differ between two ends of equal runs, or in what only their own process knows."""
    found = {key: value for key, value in event.items() if key not in ("timestamp", "cursor")}
    return {**found, "state": dict(event.get("state", {})), "exception": type(event.get("exception"))}


def test_errors_of_branches_elsewhere_are_shown_though_that_of_the_run_is_raised(store: Any) -> None:
    """H10, A12: with `raise_exceptions`."""
    begun = threading.Event()
    proceed = threading.Event()

    def fail(state: Any) -> dict[str, Any]:
        begun.set()
        assert proceed.wait(LONG)
        raise ValueError("broken")

    graph = fan({"one": fail}, raise_exceptions=True).compile(store=store)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(graph.execute, {}, run_id="r")
        assert begun.wait(LONG)
        followed: list[str] = []

        def follow() -> None:
            for event in graph.stream({}, run_id="r"):
                followed.append(event["type"])
                proceed.set()

        with pytest.raises(ExecutionError, match="broken"):
            follow()
        assert followed[-2:] == ["error", "fail"]
        with pytest.raises(ExecutionError, match="broken"):
            first.result(LONG)


def test_a_run_that_this_thread_has_open_is_not_waited_for(store: Any) -> None:
    """H10: it would wait for itself for ever."""
    graph = counting(store, [])
    run = graph.stream({"n": 1}, run_id="r")
    next(run)
    with pytest.raises(Conflict, match=r"run\.close\(\) releases it"):
        graph.execute({"n": 1}, run_id="r")
    run.close()


def test_a_caller_that_waits_can_be_cancelled(store: Any) -> None:
    """H10, H7: the run stays with the process that executes it."""
    begun = threading.Event()
    proceed = threading.Event()

    def slow(state: Any) -> dict[str, Any]:
        begun.set()
        assert proceed.wait(LONG)
        return add(state)

    graph = chain(slow, add).compile(store=store)

    async def give_up() -> None:
        waiting = asyncio.create_task(graph.aexecute({"n": 1}, run_id="r"))
        await asyncio.sleep(0.2)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(graph.execute, {"n": 1}, run_id="r")
        assert begun.wait(LONG)
        asyncio.run(give_up())
        proceed.set()
        assert first.result(LONG)["n"] == 3


def test_nothing_to_start_with_is_said(store: Any) -> None:
    """H10: other libraries resume with None."""
    graph = counting(store, [])
    for call in (graph.invoke, graph.stream, graph.ainvoke, graph.astream):
        with pytest.raises(UsageError, match="checkpoint= to resume a run"):
            call(None)
    with pytest.raises(RunNotFound):
        list(graph.invoke(checkpoint="nowhere"))
    assert graph.runs() == []


def test_a_run_that_is_never_iterated_warns() -> None:
    """H10: it didn't run; a fork is stored, so it may be dropped."""
    graph = counting(MemoryStore(), [])
    with pytest.warns(RuntimeWarning, match="was never iterated"):
        graph.invoke({"n": 1}, run_id="r")
    with pytest.warns(RuntimeWarning, match=r"iterate an AsyncRun, or call aexecute\(\)"):
        graph.astream({"n": 1})
    assert graph.runs() == []
    graph.execute({"n": 1}, run_id="r")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        graph.fork("r", new_run_id="f")
        for _ in graph.invoke({"n": 1}):
            pass
        list(graph.stream({"n": 1}))


def test_a_run_is_not_its_state() -> None:
    """H10: indexing it names what returns the state."""
    graph = counting(MemoryStore(), [])
    run = graph.invoke({"n": 1})
    with pytest.raises(UsageError, match=r"execute\(\) returns the final state"):
        run["n"]
    run.wait()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it would warn as it is dropped
        with pytest.raises(UsageError, match=r"^a Run is a run to iterate.*; execute\(\) returns"):
            graph.invoke({"n": 1})["n"]
        with pytest.raises(UsageError, match=r"^an AsyncRun is a run to iterate.*; aexecute\(\) returns"):
            graph.ainvoke({"n": 1})["n"]
        gc.collect()


def test_earlier_steps_of_a_completed_run_are_deleted_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """G8, H10: after a while, in the background, by any process that completes a run; unless they are preserved."""
    from limpet.engine.sessions import step_retention

    store = MemoryStore(clock=lambda: time.time() - 3600)  # far behind that of this machine

    def grow(state: Any) -> dict[str, Any]:
        return {"n": state["n"] + 1, "text": "x" * 3000}

    def looping(**compiled: Any) -> StateGraph:
        graph = StateGraph({"n": int, "text": str}, name=f"looping-{compiled}").add_node("grow", run=grow)
        graph.add_conditional_edges("grow", lambda state: state["n"] < 40, {True: "grow", False: END})
        return graph.set_entry_point("grow").compile(store=store, **compiled)

    looping().execute({"n": 0}, run_id="old")
    looping(preserve=True).execute({"n": 0}, run_id="preserved")
    assert store.head("old").snapshot > 1
    client_for(store).upkeep.finish()
    assert store.read("old", first=1).first == 1
    monkeypatch.setattr(step_retention, "PRUNE_GRACE", -1.0)
    monkeypatch.setattr(step_retention, "PRUNE_INTERVAL", 0.0)
    runs = step_retention.CompletedRuns(store)
    runs._prune_all(store.clock())
    assert store.read("old", first=1).first == store.head("old").snapshot
    assert store.read("preserved", first=1).first == 1
    assert looping().state_at("old")["n"] == 40
    assert looping().execute({"n": 0}, run_id="old")["n"] == 40


class Hooked(MemoryStore):
    """Calls a function once, just before a run is claimed."""

    before_claim: Any = None

    def claim(self, *args: Any, **more: Any) -> Any:
        hook, self.before_claim = self.before_claim, None
        if hook is not None:
            hook()
        return super().claim(*args, **more)


@pytest.mark.parametrize("what", ["interrupt", "cancel"])
def test_a_run_that_stops_just_before_it_is_claimed_is_not_continued(what: str) -> None:
    """H10, F5: the start meant the run as it was; an approval or a retry was never given."""
    store = Hooked()
    published: list[int] = []
    graph = chain(add, lambda state: published.append(1) or {}).compile(store=store, interrupt_before=["n2"])
    graph.start({"n": 1}, run_id="r")
    store.before_claim = (lambda: graph.recover()) if what == "interrupt" else (lambda: graph.cancel("r"))
    with pytest.raises(RunPaused if what == "interrupt" else RunCancelled):
        graph.execute({"n": 1}, run_id="r")
    assert published == []


def test_tasks_of_one_event_loop_that_execute_the_same_run_all_get_its_result(store: Any) -> None:
    """H10, H7: whichever thread opened it; and other work in threads isn't held up."""
    calls: list[int] = []
    begun = threading.Event()

    async def slow(state: Any) -> dict[str, Any]:
        calls.append(1)
        begun.set()
        await asyncio.sleep(0.3)
        return add(state)

    graph = chain(slow, add).compile(store=store)

    async def run_all() -> list[int]:
        first = asyncio.create_task(graph.aexecute({"n": 1}, run_id="r"))
        await asyncio.to_thread(begun.wait, LONG)
        others = [asyncio.create_task(graph.aexecute({"n": 1}, run_id="r")) for _ in range(12)]
        await asyncio.wait_for(asyncio.to_thread(int), LONG)
        return [(await each)["n"] for each in (first, *others)]

    assert asyncio.run(run_all()) == [3] * 13
    assert calls == [1]


def test_a_node_that_executes_its_own_run_is_refused(store: Any) -> None:
    """H10: it would wait for itself."""
    graph = StateGraph({"n": int}, name="own")
    graph.add_node("n1", run=lambda state: graph.execute({"n": 1}, run_id="r"))
    graph.set_entry_point("n1").set_finish_point("n1").compile(store=store)
    with pytest.raises(ExecutionError, match="held by"):
        graph.execute({"n": 1}, run_id="r")


def test_a_request_to_cancel_that_waits_is_honoured(store: Any) -> None:
    """H10, G12: a start isn't a wish to continue what was cancelled."""
    graph = counting(store, [])
    run = graph.stream({"n": 1}, run_id="r")
    next(run)
    post_cancel(run._slot.session.compiled.client.store, "r")  # type: ignore[union-attr]  # it has begun
    run.close()
    with pytest.raises(RunCancelled):
        graph.execute({"n": 1}, run_id="r")


def test_callers_that_waited_get_the_failure_and_do_not_retry_it(store: Any) -> None:
    """H10: of several callers, one has called the node."""
    calls: list[int] = []
    begun = threading.Event()
    proceed = threading.Event()

    def fail(state: Any) -> dict[str, Any]:
        calls.append(1)
        begun.set()
        assert proceed.wait(LONG)
        raise ValueError("broken")

    graph = chain(fail).compile(store=store)
    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(graph.execute, {"n": 1}, run_id="r")
        assert begun.wait(LONG)
        others = [pool.submit(graph.execute, {"n": 1}, run_id="r") for _ in range(2)]
        with pytest.raises(TimeoutError):
            others[0].result(0.3)
        proceed.set()
        for each in (first, *others):
            with pytest.raises(ExecutionError, match="broken"):
                each.result(LONG)
    assert calls == [1]


def test_a_store_without_leases_refuses_a_second_start() -> None:
    """H10, P11: it couldn't keep two callers from executing the run."""
    kept: dict[str, Any] = {}

    class Own:
        def save(self, checkpoint: Any) -> None:
            kept[checkpoint.checkpoint_id] = checkpoint

        def load(self, checkpoint_id: str) -> Any:
            return kept.get(checkpoint_id)

        def delete(self, checkpoint_id: str) -> None:
            kept.pop(checkpoint_id, None)

        def list(self, workflow_name: str | None = None) -> list[Any]:
            return [*kept.values()]

        def cleanup_expired(self, max_age_hours: float = 24) -> int:
            return 0

    graph = chain(add, lambda state: {"said": pause("well?")}).compile(store=Own())
    with pytest.raises(RunPaused):
        graph.execute({"n": 1}, run_id="r")
    with pytest.raises(RunExists):
        graph.execute({"n": 1}, run_id="r")


def test_sets_and_defaults_do_not_make_another_input(tmp_path: Any) -> None:
    """H10: the order of a set differs from process to process, a default from call to call."""
    from dataclasses import dataclass, field
    from itertools import count

    from limpet.engine.sessions.start import StartRequest, input_digest

    numbers = count()

    @dataclass
    class Given:
        names: set[str] | frozenset[str]
        number: int = field(default_factory=lambda: next(numbers))

    graph = StateGraph(Given, name="given").add_node("a", run=lambda state: {})
    plan = graph.set_entry_point("a").set_finish_point("a").compiled().plan
    names = [f"name{number}" for number in range(50)]
    forward = input_digest(plan, StartRequest({"names": set(names)}, None, "r"))
    names.reverse()
    backward = input_digest(plan, StartRequest({"names": set(names)}, None, "r"))
    assert forward == backward
    assert forward != input_digest(plan, StartRequest({"names": frozenset(names)}, None, "r"))


DIGESTS = """
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, NamedTuple
from limpet import StateGraph, register_type
from limpet.engine.sessions.start import StartRequest, input_digest

@register_type(name="Order")
@dataclass(frozen=True)
class Order:
    tags: Any

@register_type(name="Pair")
class Pair(NamedTuple):
    left: Any
    right: Any

names = {"red", "green", "blue", "violet", "white"}
frozen = frozenset(names)
keyed = {name: number for number, name in enumerate(sorted(names))}
other_order = {name: keyed[name] for name in names}
inputs = [
    names,
    Order(names),
    [Order({"deep": (Order([names]),)})],
    Pair(names, {frozen}),
    {frozen, frozenset({frozen})},
    {frozen: 1, ("a", frozen): 2},
    {(1, frozen), (2, frozen)},
    {Order(frozen), Order(frozenset({Order(frozen)}))},
    other_order,
    Order(other_order),
    OrderedDict(other_order),
]
graph = StateGraph(name="g").add_node("a", run=dict).set_entry_point("a").set_finish_point("a")
plan = graph.compiled().plan
print([input_digest(plan, StartRequest({"v": each}, None, "r")) for each in inputs])
"""


def test_an_input_has_the_same_digest_in_every_process() -> None:
    """H10: sets have another order in each, also within sets, keys, tuples and values of registered classes."""
    found = []
    for seed in ("1", "2", "3"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        run = subprocess.run([sys.executable, "-c", DIGESTS], env=environment, capture_output=True, text=True)
        assert run.returncode == 0, run.stderr
        found.append(run.stdout.split(","))
    assert found[0] == found[1] == found[2]
    assert len(set(found[0])) == len(found[0]) == 11


def test_what_differs_inside_of_a_registered_class_is_another_input() -> None:
    """H10: a mapping of one's own may hold more than its items."""

    class Labelled(dict[str, Any]):
        label = ""

    def restore(stored: Any) -> Labelled:
        made = Labelled(stored["items"])
        made.label = stored["label"]
        return made

    register_type(Labelled, to=lambda value: {"items": dict(value), "label": value.label}, restore=restore)
    graph = chain(lambda state: {}).compile(store=MemoryStore())
    given = Labelled(n=1)
    graph.execute({"v": given}, run_id="r")
    given.label = "another"
    with pytest.raises(RunExists, match="another input"):
        graph.execute({"v": given}, run_id="r")


def test_what_an_earlier_version_kept_is_not_pruned(monkeypatch: pytest.MonkeyPatch) -> None:
    """H10, D10: its summaries don't say what may be deleted; and no completed run is left out."""
    from limpet.engine.sessions import step_retention
    from limpet.journal import run_filter
    from limpet.journal.encoding.codec import encode
    from limpet.journal.store import COMPLETED, Commit, NewRun

    store = MemoryStore()
    for number in range(7):
        run_id = f"r{number}"
        lease = store.create(NewRun(run_id, "g", [b"1"], holder="me"))
        assert lease is not None
        note = encode({"step": 1} if number == 0 else {"step": 1, "prunable": True})
        assert store.append([Commit(run_id, 1, 1, [b"2", b"3"], 3, COMPLETED, note)]) == [None]
    runs = step_retention.CompletedRuns(store)
    monkeypatch.setattr(run_filter, "PAGE_SIZE", 2)
    runs._prune_before(store.clock() + 1)
    assert [store.read(f"r{number}", first=1).first for number in range(7)] == [1, 3, 3, 3, 3, 3, 3]


def test_a_process_prunes_only_what_completed_since_another_one_did(any_store: Any) -> None:
    """H10, H11: however many completed runs there are, and whatever was done with them in between."""
    from limpet.engine.sessions import step_retention
    from limpet.journal.encoding.codec import encode
    from limpet.journal.store import COMPLETED, Commit, NewRun

    looked_at: list[str] = []

    class Store:
        """Notes which runs are pruned."""

        def __getattr__(self, name: str) -> Any:
            return getattr(any_store, name)

        def prune(self, run_id: str, before: int) -> int:
            looked_at.append(run_id)
            count: int = any_store.prune(run_id, before)
            return count

    def pruned_by_a_new_process() -> list[str]:
        looked_at.clear()
        step_retention.CompletedRuns(cast(Any, Store()))._prune_before(time.time() + 60)
        return sorted(looked_at)

    def complete(run_id: str) -> None:
        any_store.create(NewRun(run_id, "g", [b"1"], holder="me"))
        note = encode({"step": 1, "prunable": True})
        assert any_store.append([Commit(run_id, 1, 1, [b"2", b"3"], 3, COMPLETED, note)]) == [None]

    for run_id in ("a", "b", "c"):
        complete(run_id)
    assert pruned_by_a_new_process() == ["a", "b", "c"]
    assert pruned_by_a_new_process() == ["c"], "the newest one is looked at again"
    complete("d")
    assert pruned_by_a_new_process() == ["c", "d"]
