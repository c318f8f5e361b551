"""What careful readers and new users ran into: each of these went wrong once."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from typing import Annotated, Any

import pytest

from limpet import (
    CheckpointConfig,
    DefinitionError,
    ExecutionError,
    MemoryCheckpointer,
    MemoryStore,
    NodeTimeout,
    RunNotFound,
    StateGraph,
    UsageError,
    append,
    once,
    pause,
)
from limpet.engine.leases.lease_client import client_for
from limpet.engine.leases.process_identity import is_dead, this_process
from limpet.journal.store import Commit, NewRun
from support.graphs import chain


def line(*functions: Any, schema: Any = None, **options: Any) -> StateGraph:
    return chain(*functions, schema=schema, name="line").compile(
        store=MemoryStore(), preserve=True, **options
    )


def test_a_key_of_once_stands_for_one_result_in_one_call() -> None:
    """P1: else the first result would be taken for all of them."""
    graph = line(lambda state: {"got": [once("llm", str.upper, prompt) for prompt in "ab"]})
    with pytest.raises(ExecutionError, match="has used the key 'llm' before"):
        graph.execute({})


def test_a_key_of_once_is_free_again_when_its_function_raised() -> None:
    """P1, H8: a node may try again by itself; there is no result yet."""
    tries: list[int] = []

    def flaky() -> str:
        tries.append(1)
        if len(tries) < 3:
            raise ConnectionError
        return "got it"

    def node(state: Any) -> dict[str, Any]:
        while True:
            try:
                return {"text": once("call", flaky)}
            except ConnectionError:
                continue

    assert line(node).execute({}) == {"text": "got it"}
    assert len(tries) == 3


def test_a_fork_and_a_rollback_pay_again() -> None:
    """H6: what was kept belongs to the run, and to what it knew, when it was paid for."""
    paid: list[int] = []

    def price(state: Any) -> dict[str, Any]:
        return {"price": once("quote", lambda: paid.append(state["quantity"]) or 10 * state["quantity"])}

    graph = line(lambda state: {"quantity": 1}, price)
    graph.execute({}, run_id="r")
    assert graph.fork("r", 1, {"quantity": 7}).result()["price"] == 70
    graph.rollback("r", 1)
    assert graph.resume("r", {"quantity": 3})["price"] == 30
    assert paid == [1, 7, 3]


def test_a_step_saved_while_a_result_is_kept_is_not_lost() -> None:
    """Invariant 1: a once() that isn't awaited ends on its own time, and harms no run."""

    async def slow() -> str:
        await asyncio.sleep(0)
        return "late"

    async def first(state: Any) -> dict[str, Any]:
        state["task"] = 0
        first.task = asyncio.ensure_future(once("k", slow))  # type: ignore[attr-defined]  # kept alive
        return {"v": 1}

    async def later(state: Any) -> dict[str, Any]:
        await asyncio.gather(first.task, return_exceptions=True)  # type: ignore[attr-defined]  # as above
        return {"w": 2}

    graph = line(first, later, lambda state: {"x": 3}, interval=2)
    final = asyncio.run(graph.aexecute({}, run_id="r"))
    assert graph.state_at("r") == final == {"task": 0, "v": 1, "w": 2, "x": 3}
    assert [step.step for step in graph.history("r")] == [0, 1, 2, 3]


def test_a_holder_that_can_not_be_inspected_is_not_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    """P8: a process without file handles left, or one that hides others, declares no process dead."""
    monkeypatch.setattr("limpet.engine.leases.process_identity._first_line", lambda path: "")
    host, boot, space, _, began = this_process().split("|")
    me = "|".join([host, boot, space, str(os.getpid()), began or "1"])
    monkeypatch.setattr("limpet.engine.leases.process_identity._place", lambda: (host, boot or "b", space))
    assert not is_dead(me.replace(f"|{boot}|", f"|{boot or 'b'}|", 1))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_child_that_was_forked_off_neither_hangs_nor_releases_its_parents_runs() -> None:
    """P8: it has links of its own, whatever other threads were about."""
    store = MemoryStore()
    client = client_for(store, 60.0)
    held = client.create(NewRun("r", "g", [b"1"], holder=this_process(), ttl=60.0))
    client.group_commit._write_lock.acquire()
    child = os.fork()
    if child == 0:
        client.release(held)
        ok = client.commit(Commit("r", 1, 1, [b"2"])) is None and store.head("r").holder is not None
        os._exit(0 if ok else 1)
    client.group_commit._write_lock.release()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_an_async_node_that_blocks_is_timed_out_as_any_other() -> None:
    """H8: in a sync run too, and the lease is released."""
    proceed = threading.Event()

    async def blocks(state: Any) -> None:
        proceed.wait(30)

    graph = StateGraph(name="line").add_node("n1", run=blocks, timeout=0.1)
    graph.set_entry_point("n1").set_finish_point("n1").compile(store=MemoryStore())
    try:
        with pytest.raises(ExecutionError) as caught:
            graph.execute({}, run_id="r")
    finally:
        proceed.set()
    assert isinstance(caught.value.cause, NodeTimeout)
    assert graph.runs()[0].holder is None


def test_a_cancelled_inner_task_fails_the_node_and_not_the_driver() -> None:
    """H7: only the cancellation of the run itself is passed on."""

    async def node(state: Any) -> None:
        inner = asyncio.ensure_future(asyncio.sleep(60))
        inner.cancel()
        await inner

    graph = line(node)
    for run in (lambda: graph.execute({}), lambda: asyncio.run(graph.aexecute({}))):
        with pytest.raises(ExecutionError, match="CancelledError"):
            run()
    assert {each.status for each in graph.runs()} == {"failed"}


def test_an_exception_without_a_text_is_still_saved() -> None:
    """G9: whatever it does when it is asked for one."""

    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no")

    def node(state: Any) -> None:
        raise Mute

    graph = line(node)
    with pytest.raises(ExecutionError, match="Mute"):
        graph.execute({})
    assert graph.runs()[0].status == "failed"


def test_config_is_a_copy_of_the_nodes_own() -> None:
    """F2: what a node does to it neither reaches the next node nor the store."""

    def first(config: Any) -> None:
        config["client"] = object()

    graph = line(first, lambda config: {"seen": list(config)})
    assert graph.execute({}, config={"limit": 1})["seen"] == ["limit"]


def test_the_state_of_an_active_run_is_a_copy() -> None:
    """H4: also when it is read in the middle."""
    graph = line(lambda state: {"xs": [1]}, lambda state: {"n": len(state["xs"])})
    run = graph.stream({}, run_id="r")
    next(run)
    run.state["xs"].append(2)
    assert run.result() == graph.state_at("r") == {"xs": [1], "n": 1}


def test_rolling_back_works_past_a_damaged_newest_record() -> None:
    """H5, H6: the steps before it can be read."""
    graph = line(*[lambda state, number=number: {"n": number} for number in range(3)])
    store = graph.compiled().need_client("test").store
    graph.execute({}, run_id="r")
    records = store._runs["r"].records  # type: ignore[attr-defined]  # as a disk would damage it
    records[-1] = records[-1][:-1] + b"?"
    assert graph.rollback("r", 1) == {"n": 0}
    assert graph.resume("r") == {"n": 2}


def test_the_error_for_a_missing_run_says_where_it_was_looked_for(tmp_path: Path) -> None:
    """Invariant 9: the wrong directory is the usual reason."""
    graph = StateGraph(name="g").add_node("n").set_entry_point("n").set_finish_point("n")
    with pytest.raises(RunNotFound, match=r"looked in .*runs\.db"):
        graph.compile(store=tmp_path / "runs.db").resume("missing")


def test_small_mistakes_are_reported_at_once(caplog: pytest.LogCaptureFixture) -> None:
    """Invariant 9: an empty id, choices in one str, an interval without a store, an edge that is never taken."""
    graph = line(lambda state: pause("ok?", choices="yes"))
    with pytest.raises(UsageError):
        graph.execute({}, run_id="")
    with pytest.raises(ExecutionError, match="choices is a list"):
        graph.execute({})
    with pytest.raises(DefinitionError, match="an interval needs a store"):
        StateGraph().add_node("a").set_entry_point("a").set_finish_point("a").compile(interval=2)
    twice = StateGraph().add_node("a").add_node("b").add_node("c").set_entry_point("a")
    twice.add_edge("a", "b").add_edge("a", "c").add_edge("b", "c").set_finish_point("c").compile()
    assert "never taken" in caplog.text
    assert CheckpointConfig(interval=2).interval == 2


def test_altering_the_copy_of_a_reduced_key_is_remarked_upon(caplog: pytest.LogCaptureFixture) -> None:
    """Invariant 9: it has no effect, so a warning says so."""
    graph = line(lambda state: state["log"].append(1), schema={"log": Annotated[list, append]})
    assert graph.execute({})["log"] == []
    assert "has no effect" in caplog.text


def test_cancelling_a_cancelled_run_isnt_an_error() -> None:
    """G12."""
    graph = line(lambda state: {"a": 1}, lambda state: {"b": 1})
    run = graph.stream({}, run_id="r")
    next(run)
    run.close()
    graph.cancel("r")
    graph.cancel("r")
    assert graph.resume("r") == {"a": 1, "b": 1}


def test_a_checkpoint_that_was_damaged_elsewhere_is_refused() -> None:
    """F10, F11: what a checkpointer returns is checked before it is used."""
    keeper = MemoryCheckpointer()
    graph = StateGraph(name="g").add_node("n", run=lambda state: {"a": 1})
    graph.set_entry_point("n").set_finish_point("n").compile(interrupt_before=["n"], checkpointer=keeper)
    (event,) = graph.invoke({})
    saved = keeper.load(event["checkpoint_path"])
    for damaged in ("no base64!", "AAAA", saved["config"]["__limpet__"][:-8]):
        reference = keeper.save(saved["state"], saved["node"], {"__limpet__": damaged})
        with pytest.raises(UsageError, match="is damaged"):
            list(graph.invoke(None, checkpoint=reference))
