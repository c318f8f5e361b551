"""Parallel sections at the edges: small pools, locks of the user's, saves that fail, tasks that go away."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any

import pytest

from limpet import (
    BranchResult,
    DefinitionError,
    ExecutionError,
    MemoryStore,
    RunPaused,
    State,
    StateGraph,
    StoreUnavailable,
    UsageError,
    once,
    pause,
)
from limpet import run as runs
from support.graphs import SOON, gather


def mapped(node: Any, count: int = 20, **options: Any) -> StateGraph:
    """A map over `count` numbers."""
    graph = StateGraph(name="mapped").add_node("begin", run=lambda state: {"items": list(range(count))})
    graph.add_node("each", run=node).add_map("begin", "each", "items", "join")
    graph.add_fanin_node("join", run=lambda parallel_results: {"sum": sum(r["n"] for r in parallel_results)})
    return graph.set_entry_point("begin").set_finish_point("join").compile(**options)


@pytest.mark.parametrize("how", ["sync", "async"])
def test_a_cancelled_run_calls_nothing_that_still_waits_for_a_thread_of_the_pool(how: str) -> None:
    """F12, G12: the pool is smaller than what may run at once."""
    begun, proceed = [], threading.Event()

    def work(state: State) -> dict[str, Any]:
        begun.append(state["item"])
        run.cancel()
        proceed.wait(SOON)
        return {"n": 1}

    with ThreadPoolExecutor(2) as pool:
        graph = mapped(work, store=MemoryStore(), executor=pool)
        if how == "sync":
            run = graph.invoke({})
            threading.Timer(0.2, proceed.set).start()
            assert run.wait().status == "cancelled"
        else:
            run = graph.ainvoke({})

            async def main() -> None:
                asyncio.get_running_loop().call_later(0.2, proceed.set)
                await run.wait()

            asyncio.run(main())
            assert run.status == "cancelled"
    assert len(begun) <= 2


def test_a_run_that_was_left_calls_nothing_that_still_waits_for_a_thread_of_the_pool() -> None:
    """F12: another process may hold it by then."""
    begun, proceed = [], threading.Event()

    def work(state: State) -> dict[str, Any]:
        begun.append(state["item"])
        if len(begun) > 1:
            proceed.wait(SOON)
        return {"n": 1}

    with ThreadPoolExecutor(1) as pool:
        run = mapped(work, store=MemoryStore(), executor=pool).stream({})
        assert next(event for event in run if event["type"] == "branch")["status"] == "completed"
        run.close()
        proceed.set()
    assert len(begun) <= 2


def test_a_node_may_run_a_graph_with_the_pool_that_it_is_in_itself() -> None:
    """F12: it would wait for its own thread."""
    with ThreadPoolExecutor(2) as pool:
        inner = mapped(lambda state: {"n": 1}, 3, executor=pool)
        outer = mapped(lambda state: {"n": inner.execute({})["sum"]}, 2, executor=pool)
        assert outer.execute({})["sum"] == 6


@pytest.mark.parametrize("what", ["predicate", "over", "reducer", "observer"])
def test_functions_of_the_user_may_wait_for_what_a_node_holds_that_keeps_something(what: str) -> None:
    """F12: a lock around `once()` in a node, and in what the loop calls."""
    lock = threading.Lock()

    def look(*given: Any) -> Any:
        with lock:
            return given[-1] if what == "reducer" else [1] if what == "over" else True

    def work(state: State) -> dict[str, Any]:
        with lock:
            return {"n": once("n", lambda: 1), "kept": 1}

    schema = {"kept": Annotated[int, look]} if what == "reducer" else None
    graph = StateGraph(schema, name="g", observer=look if what == "observer" else None)
    graph.add_node("begin", run=lambda state: {"items": list(range(20))}).add_node("each", run=work)
    graph.add_map("begin", "each", "items", "join").add_node("more", run=work)
    graph.add_edge("each", "more", look if what == "predicate" else None)
    if what == "over":
        graph.add_map("more", lambda state: None, lambda state: look(state), "inner").add_fanin_node("inner")
    graph.add_fanin_node("join", run=lambda parallel_results: {"count": len(parallel_results)})
    graph.set_entry_point("begin").set_finish_point("join").compile(store=MemoryStore())
    done: list[Any] = []
    thread = threading.Thread(target=lambda: done.append(graph.execute({"kept": 0})["count"]), daemon=True)
    thread.start()
    thread.join(SOON)
    assert done == [20]


class Failing(MemoryStore):
    """A MemoryStore that refuses one of its commits."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.left = number

    def append(self, commits: Any) -> Any:
        self.left -= 1
        if self.left == 0:
            raise StoreUnavailable("the disk is full")
        return super().append(commits)


@pytest.mark.parametrize("how", ["sync", "async"])
def test_what_runs_when_a_save_fails_is_waited_for_and_kept_if_it_can_be(how: str) -> None:
    """F12, G9: the run fails, no node runs on unheard, and a resume doesn't run again what was saved after all."""
    calls, both = [], threading.Barrier(2)

    def work(state: State) -> dict[str, Any]:
        calls.append(state["item"])
        if len(calls) <= 2:
            both.wait(SOON)
        return {"n": 1}

    graph = mapped(work, 4, store=Failing(2), max_concurrency=2)
    with pytest.raises(
        ExecutionError, match="checkpoint save failed: StoreUnavailable: the disk is full"
    ) as caught:
        graph.execute({}, run_id="r") if how == "sync" else asyncio.run(graph.aexecute({}, run_id="r"))
    assert caught.value.node == "join"
    assert sorted(calls) == [0, 1]
    assert graph.resume("r")["sum"] == 4
    assert sorted(calls) == [0, 1, 2, 3]


@pytest.mark.parametrize("moment", ["opening", "opened"])
def test_a_run_that_is_cancelled_while_it_is_opened_is_given_back_or_never_made(
    moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H7, G12: also when the event loop has ended by then."""
    entered, proceed = threading.Event(), threading.Event()
    begin = runs.SessionSlot.begin

    def slowly(seen: Any) -> Any:
        if moment == "opened":
            session = begin(seen)
        entered.set()
        proceed.wait(SOON)
        return session if moment == "opened" else begin(seen)

    graph = mapped(lambda state: {"n": 1}, 2, store=f"sqlite:///{tmp_path}/runs.db", lease=60)

    async def main() -> None:
        task = asyncio.ensure_future(graph.aexecute({}, run_id="r"))
        await asyncio.to_thread(entered.wait, SOON)
        task.cancel()
        asyncio.get_running_loop().call_later(0.1, proceed.set)
        with pytest.raises(asyncio.CancelledError):
            await task

    with monkeypatch.context() as patched:
        patched.setattr(runs.SessionSlot, "begin", slowly)
        asyncio.run(main())
    if moment == "opening":
        assert graph.runs() == []
        assert graph.execute({}, run_id="r")["sum"] == 2
    else:
        assert graph.resume("r")["sum"] == 2


def test_an_update_passes_into_a_graph_as_its_inputs_do() -> None:
    """F12: a key of its own that is called the same is its own."""
    sub = StateGraph({"text": str, "ok": bool}, name="sub")
    sub.add_node("ask", run=lambda state: {"ok": pause("ok?"), "text": state["text"]})
    sub.set_entry_point("ask").set_finish_point("ask")
    graph = StateGraph(name="outer").add_node(
        "review", sub, inputs={"text": "draft"}, outputs={"final": "text"}
    )
    graph.set_entry_point("review").set_finish_point("review").compile(store=MemoryStore())
    for run_id, update, final in (("a", {"text": "other"}, "draft"), ("b", {"draft": "new"}, "new")):
        with pytest.raises(RunPaused):
            graph.execute({"draft": "draft", "text": "mine"}, run_id=run_id)
        assert graph.resume(run_id, True, update=update)["final"] == final


def test_a_result_has_what_its_branch_changed() -> None:
    """F12: without what it started with, the item included; also when it was stored."""
    graph = StateGraph(name="g").add_node("begin", run=lambda state: {"items": [[1], [2]], "k": "x" * 100})

    def work(state: State) -> dict[str, Any]:
        state["item"].append(0)
        del state["k"]
        return {"n": 1}

    graph.add_map("begin", work, "items", "join")
    graph.add_fanin_node("join", run=lambda parallel_results: {"results": parallel_results})
    graph.set_entry_point("begin").set_finish_point("join").compile(store=MemoryStore())
    results: list[BranchResult] = graph.execute({})["results"]
    assert [result.changes for result in results] == [{"item": [n, 0], "n": 1} for n in (1, 2)]


def test_small_mistakes_are_named() -> None:
    """F12: what can't be addressed, and what isn't an id."""
    graph = mapped(lambda state: {"n": 1}, store=MemoryStore())
    with pytest.raises(UsageError, match=r"of a Run, that is \.id"):
        graph.resume(graph.invoke({}))  # type: ignore[arg-type]  # the mistake
    named = mapped(lambda state: None)
    named.name = "a/b"
    with pytest.raises(DefinitionError, match="can't have '/' in its name: 'a/b'"):
        StateGraph().add_node("x", named)


def test_one_function_may_serve_two_maps() -> None:
    """F12: it is one node."""

    def work(state: State) -> dict[str, Any]:
        return {"n": state["item"]}

    graph = StateGraph(name="g").add_node("begin", run=lambda state: {"items": [1, 2]})
    graph.add_map("begin", work, "items", "middle").add_fanin_node("middle")
    graph.add_map("middle", work, "items", "join").add_fanin_node("join", run=gather)
    graph.set_entry_point("begin").set_finish_point("join")
    assert [result["n"] for result in graph.execute({})["results"]] == [1, 2]


def test_the_reason_of_many_pauses_is_short() -> None:
    """F12, P3: all questions are listed, three are quoted."""
    graph = mapped(lambda state: {"n": pause("?" * 50)}, 50, store=MemoryStore())
    with pytest.raises(RunPaused, match="and 47 more") as caught:
        graph.execute({})
    assert len(caught.value.questions) == 50
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize("number", range(1, 9))
def test_a_save_that_fails_somewhere_inside_takes_nothing_for_done(number: int) -> None:
    """F12, G9 (invariant 8): neither a graph in a graph, nor a branch in it, whatever was refused."""
    inner = StateGraph(name="inner").add_node("spread").add_node("left", run=lambda state: {"log": ["left"]})
    inner.add_parallel_edge("spread", "left", "join")
    inner.add_fanin_node("join", run=lambda parallel_results: {"log": [r["log"] for r in parallel_results]})
    inner.set_entry_point("spread").set_finish_point("join")
    middle = StateGraph(name="middle").add_node("inner", inner)
    graph = StateGraph(name="outer").add_node(
        "middle", middle.set_entry_point("inner").set_finish_point("inner")
    )
    graph.set_entry_point("middle").set_finish_point("middle").compile(store=Failing(number))
    try:
        final = graph.execute({}, run_id="r")
    except ExecutionError:
        final = graph.resume("r")
    assert final == {"log": [["left"]]}
