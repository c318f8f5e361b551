"""What nodes decide, catch and receive, and flows that are open, on each store: as another process finds them."""

from __future__ import annotations

from typing import Annotated, Any

import pytest

from limpet import (
    Goto,
    Retry,
    RunPaused,
    RunWaiting,
    StateGraph,
    Workflow,
    append,
    open_store,
    pause,
    receive,
)


def deciding() -> StateGraph:
    """A node that jumps to one that fails, until the handler of its error jumps to the last one."""

    def plan(state: Any, ctx: Any) -> Goto[Any]:
        return Goto("work", {"log": f"plan {ctx.visit}"})

    def work(state: Any, ctx: Any) -> None:
        raise ValueError(f"visit {ctx.visit}, attempt {ctx.attempt}")

    def repair(state: Any, error: Any, ctx: Any) -> Goto[Any]:
        kept = ctx.once("kept", lambda: error.message)
        target = pause("Where to?")
        return Goto(target, {"log": f"{error.node} {error.attempts} {error.message == kept} {kept}"})

    graph = StateGraph({"log": Annotated[list, append]}, name="deciding")
    graph.add_node("plan", plan, goto=["work"]).add_node("work", work, retry=Retry(2, backoff=0.001))
    graph.add_node("repair", repair, goto=["plan", "last"]).add_node("last", lambda state: {"log": "last"})
    graph.add_error_edge("work", "repair", on=ValueError).add_edge("work", "last")
    return graph.set_entry_point("plan").set_finish_point("last")


def talking() -> StateGraph:
    """Three turns; in each, there may be a hint."""

    def turn(state: Any, ctx: Any) -> dict[str, Any]:
        hint = ctx.receive("hint", deadline=0, default=None)
        return {"turns": (receive("user"), hint)}

    graph = StateGraph({"turns": Annotated[list, append]}, name="talking").add_node("turn", turn)
    graph.set_entry_point("turn").add_edge("turn", "turn", lambda state: len(state["turns"]) < 3)
    return graph.set_finish_point("turn")


def flowing() -> Workflow:
    """One chain asks, one receives, and one waits for nothing."""
    flow = Workflow("flowing")
    flow.add_task("question", lambda: pause("How many?"))
    flow.add_task("doubled", lambda question: 2 * question)
    flow.add_task("message", lambda: receive("word"))
    flow.add_task("loud", lambda message: message.upper())
    flow.add_task("free", lambda: 1)
    flow.add_task("more", lambda free: free + 1)
    flow.add_task("end", lambda doubled, loud, more: [doubled, loud, more])
    return flow


def opened_anew(graph: Any, url: str) -> Any:
    """The graph, with a store that was just opened, as in another process."""
    open_store(url).close()
    return graph.compile(store=url, preserve=True)


def test_gotos_and_caught_errors_are_found_again(store_url: str) -> None:
    """Goto, error edges: where a run goes, and the error that its handler was called with."""
    with pytest.raises(RunPaused):
        opened_anew(deciding(), store_url).execute({}, run_id="r")
    with pytest.raises(RunPaused):
        opened_anew(deciding(), store_url).resume("r", "plan")
    assert opened_anew(deciding(), store_url).resume("r", "last")["log"] == [
        "plan 1",
        "work 2 True visit 1, attempt 2",
        "plan 2",
        "work 2 True visit 2, attempt 2",
        "last",
    ]


def test_messages_are_received_once_and_come_back_with_a_rollback(store_url: str) -> None:
    """H16: those that came early, those that are waited for, and those that a fork got a copy of."""
    with pytest.raises(RunWaiting):
        opened_anew(talking(), store_url).execute({}, run_id="r")
    graph = opened_anew(talking(), store_url)
    assert graph.send("r", "user", "one", key="1")
    assert not graph.send("r", "user", "again", key="1")
    assert graph.send("r", "hint", {"later": True})
    with pytest.raises(RunWaiting):
        opened_anew(talking(), store_url).resume("r")
    graph = opened_anew(talking(), store_url)
    graph.send("r", "user", "two")
    graph.send("r", "user", "three")
    turns = [("one", None), ("two", {"later": True}), ("three", None)]
    assert graph.resume("r")["turns"] == turns
    graph = opened_anew(talking(), store_url)
    fork = graph.fork("r", step=1)
    assert opened_anew(talking(), store_url).resume(fork.run_id)["turns"] == turns
    graph = opened_anew(talking(), store_url)
    graph.rollback("r", step=2)
    assert opened_anew(talking(), store_url).resume("r")["turns"] == turns


def test_a_flow_that_is_open_is_continued_where_each_chain_is(store_url: str) -> None:
    """H13: what doesn't wait is done, and what waits isn't, whichever is served first."""
    with pytest.raises(RunPaused):
        opened_anew(flowing(), store_url).execute({}, run_id="r")
    graph = opened_anew(flowing(), store_url)
    graph.send("r", "word", "kelp")
    with pytest.raises(RunPaused):
        graph.resume("r")
    graph = opened_anew(flowing(), store_url)
    assert graph.state_at("r").results.keys() >= {"free", "more", "message", "loud"}
    assert graph.resume("r", 21).results["end"] == [42, "KELP", 2]
