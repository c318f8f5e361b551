"""Error edges: a node that fails for good leads to another node, which finds the error."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Annotated, Any

import pytest

from limpet import (
    END,
    CaughtError,
    DeadlinePassed,
    DefinitionError,
    ExecutionError,
    MemoryStore,
    NodeTimeout,
    ResourceFailed,
    Retry,
    RunCancelled,
    RunPaused,
    StateGraph,
    append,
    pause,
)


class Odd(Exception):
    """An error of the user's own."""


def handle(state: Any, error: CaughtError | None) -> dict[str, Any]:
    return {"log": f"handled {error}"}


def risky(run: Any, *on: Any, observer: Any = None, retry: Any = None, **settings: Any) -> StateGraph:
    """a, with an edge to b and error edges to h, and b after h."""
    graph = StateGraph({"log": Annotated[list, append], "x": int}, name="risky", observer=observer)
    graph.add_node("a", run, retry=retry).add_node("h", handle).add_node("b", lambda state: {"log": "b"})
    graph.add_edge("a", "b").add_edge("h", "b").set_entry_point("a").set_finish_point("b")
    for kinds in on or [Exception]:
        graph.add_error_edge("a", "h", on=kinds)
    return graph.compile(**settings)


def fail(state: Any) -> None:
    state["x"] = 1
    state["log"].append("lost")
    raise ValueError("no number")


async def fail_async(state: Any) -> None:
    await asyncio.sleep(0)
    fail(state)


@pytest.mark.parametrize("run", [fail, fail_async])
def test_the_handler_follows_and_what_the_failed_call_changed_is_discarded(run: Any) -> None:
    """Error edges: with and without a store, sync and async; the run completes."""
    expected = {"log": ["handled ValueError: no number", "b"]}
    assert risky(run).execute({"log": []}) == expected
    graph = risky(run, ValueError, store=MemoryStore(), preserve=True)
    assert graph.execute({"log": []}, run_id="r") == expected
    assert [each.node for each in graph.history("r")] == [None, "a", "h", "b"]
    assert graph.state_at("r", 1) == {"log": []}

    async def execute() -> Any:
        return await graph.aexecute({"log": []})

    assert asyncio.run(execute()) == expected


@pytest.mark.parametrize("store", [None, MemoryStore()])
def test_what_the_failed_call_altered_in_place_is_discarded(store: Any) -> None:
    """Error edges: also where neither a store nor a reducer needs to know what changed."""

    def alter(state: Any) -> None:
        state["words"].append("lost")
        raise Odd("late")

    graph = StateGraph({"words": list}, name="g").add_node("a", alter).add_node("h").add_edge("a", END)
    graph.add_error_edge("a", "h").set_entry_point("a").set_finish_point("h").compile(store=store)
    assert graph.execute({"words": ["kept"]}) == {"words": ["kept"]}


def test_the_error_has_type_message_node_attempts_and_time() -> None:
    """Error edges: after the retries are used up; as a parameter and as ctx.error; None without an error."""
    found: list[Any] = []
    calls = []

    def broken(state: Any) -> None:
        calls.append(1)
        raise Odd("again")

    def look(ctx: Any, error: Any) -> None:
        found.append((ctx.error, error))

    graph = StateGraph(name="g").add_node("a", broken, retry=Retry(3, backoff=0)).add_node("h", look)
    graph.add_node("b").add_edge("a", "b").add_edge("h", "b").add_error_edge("a", "h", on=Odd)
    graph.set_entry_point("a").set_finish_point("b").compile(store=MemoryStore())
    before = time.time()
    graph.execute({})
    [(of_ctx, error)] = found
    assert of_ctx == error
    assert (error.type, error.message, error.node, error.attempts) == (f"{__name__}.Odd", "again", "a", 3)
    assert before <= error.at <= time.time()
    assert str(error) == "Odd: again"
    assert len(calls) == 3
    direct = StateGraph(name="d").add_node("h", look).set_entry_point("h").set_finish_point("h")
    direct.execute({})
    assert found[-1] == (None, None)


def test_error_edges_are_tried_in_the_order_in_which_they_were_added() -> None:
    """Error edges: the first that catches the error; one that none catches fails the run."""
    graph = StateGraph(name="g")

    def raise_it(state: Any) -> None:
        raise state["error"]()

    kinds = {"key": KeyError, "look": LookupError, "odd": (Odd, TypeError)}
    graph.add_node("a", lambda state: raise_it({"error": ERRORS[state["error"]]})).add_edge("a", END)
    for name, kind in kinds.items():
        graph.add_node(name, lambda state, node: {"went": node}).set_finish_point(name)
        graph.add_error_edge("a", name, on=kind)
    graph.set_entry_point("a").compile(store=MemoryStore())
    went = {name: graph.execute({"error": name}).get("went") for name in ERRORS if name != "os"}
    assert went == {"key": "key", "index": "look", "odd": "odd", "type": "odd"}
    with pytest.raises(ExecutionError, match="OSError"):
        graph.execute({"error": "os"}, run_id="r")
    assert graph.get("r").status == "failed"


ERRORS: dict[str, type[Exception]] = {
    "key": KeyError,
    "index": IndexError,
    "odd": Odd,
    "type": TypeError,
    "os": OSError,
}


def test_a_handler_that_is_called_again_finds_the_same_error() -> None:
    """Error edges: it asks, is retried and resumed; through rollback too; then it is gone."""
    seen: list[Any] = []
    attempts: list[int] = []

    def ask(state: Any, error: Any, ctx: Any) -> dict[str, Any]:
        seen.append(error)
        answer = pause("what now?")
        attempts.append(ctx.attempt)
        if len(attempts) == 1:
            raise Odd("once more")
        return {"answer": answer}

    graph = StateGraph(name="g").add_node("a", fail_plain).add_node("h", ask, retry=Retry(3, backoff=0))
    graph.add_node("b", lambda state, error: {"left": error}).add_edge("a", END).add_edge("h", "b")
    graph.add_error_edge("a", "h").set_entry_point("a").set_finish_point("b")
    graph.compile(store=MemoryStore(), preserve=True)
    with pytest.raises(RunPaused):
        graph.execute({}, run_id="r")
    assert graph.resume("r", "go") == {"answer": "go", "left": None}
    assert len(set(seen)) == 1
    assert seen[0].message == "plain"
    graph.rollback("r", 1)
    with pytest.raises(RunPaused):
        graph.resume("r")
    assert graph.resume("r", "again")["answer"] == "again"
    assert len(set(seen)) == 1


def fail_plain(state: Any) -> None:
    raise ValueError("plain")


def test_a_handler_may_fail_and_have_a_handler() -> None:
    """Error edges: each finds the last error; a circle of them ends at max_iterations."""
    graph = StateGraph(name="g", max_iterations=10).add_node("a", fail_plain).add_node("h", fail_plain)
    graph.add_node("g", lambda state, error: {"by": error.node}).add_edge("a", END).add_edge("h", END)
    graph.add_error_edge("a", "h").add_error_edge("h", "g").set_entry_point("a").set_finish_point("g")
    assert graph.execute({}) == {"by": "h"}
    circle = StateGraph(name="c", max_iterations=10).add_node("a", fail_plain).add_node("h", fail_plain)
    circle.add_edge("a", END).add_edge("h", END).add_error_edge("a", "h").add_error_edge("h", "a")
    with pytest.raises(ExecutionError, match=r"max_iterations \(10\) exceeded"):
        circle.set_entry_point("a").execute({})


def test_a_timeout_and_an_invalid_update_are_caught() -> None:
    """Error edges: both are failures of the node, and so is a resource that can't be opened."""

    def slow(state: Any) -> None:
        release.wait(10)

    release = threading.Event()
    graph = StateGraph(name="g").add_node("a", slow, timeout=0.05).add_edge("a", END)
    graph.add_node("h", lambda state, error: {"type": error.type}).add_error_edge("a", "h", on=NodeTimeout)
    graph.set_entry_point("a").set_finish_point("h")
    assert graph.execute({}) == {"type": "limpet.errors.NodeTimeout"}
    release.set()
    assert risky(lambda state: 3, TypeError, ValueError).execute({})["log"][0].startswith("handled ")

    def connect() -> None:
        raise ConnectionError("no route")

    for kind in (ConnectionError, ResourceFailed):
        graph = risky(lambda state, db: None, kind, resources={"db": connect})
        assert "resource 'db' couldn't be opened" in graph.execute({})["log"][0]


def test_a_cancel_and_an_interrupt_are_not_caught() -> None:
    """Error edges: neither is a pause, nor what ends the process."""

    def cancel(state: Any, ctx: Any, graph: Any) -> None:
        graph.cancel(ctx.run_id)
        ctx.check()

    graph = risky(cancel, store=MemoryStore())
    with pytest.raises(RunCancelled):
        graph.execute({}, run_id="c")
    for interrupt in (KeyboardInterrupt, SystemExit):

        def stop(state: Any, kind: Any = interrupt) -> None:
            raise kind

        with pytest.raises(interrupt):
            risky(stop, store=MemoryStore()).execute({})
    with pytest.raises(RunPaused):
        risky(lambda state: pause("?"), store=MemoryStore()).execute({})


def test_the_deadline_of_a_run_is_not_caught() -> None:
    """Error edges: it is about the run, not about the node that happens to be called."""
    release = threading.Event()
    graph = risky(lambda state: pause("?"), store=MemoryStore())
    with pytest.raises(RunPaused):
        graph.execute({}, run_id="asks", deadline=60)
    graph = risky(lambda state, ctx: (release.wait(10), ctx.check()), store=MemoryStore())
    timer = threading.Timer(0.3, release.set)
    timer.start()
    with pytest.raises(DeadlinePassed):
        graph.execute({}, run_id="r", deadline=0.1)
    timer.join()
    assert graph.get("r").status == "failed"


def test_a_choice_that_fails_is_not_caught() -> None:
    """Error edges: the node has completed; its update stays, and a resume chooses again."""
    graph = StateGraph(name="g").add_node("a", lambda state: {"x": 1}).add_node("h", handle)
    graph.add_conditional_edges("a", lambda state: state["nothing"], {1: END}).add_error_edge("a", "h")
    graph.set_entry_point("a").set_finish_point("h")
    with pytest.raises(ExecutionError, match="choosing the next node failed"):
        graph.execute({})


def in_branches(on_error: Any) -> StateGraph:
    def work(state: Any) -> dict[str, Any]:
        if state["item"] == 1:
            raise KeyError("one")
        if state["item"] == 2:
            raise OSError("two")
        return {"done": "fine"}

    def join(state: Any, parallel_results: Any) -> dict[str, Any]:
        return {"all": [each.error["message"] if each.error else each["done"] for each in parallel_results]}

    graph = StateGraph({"item": int, "done": str, "all": list}, name="g").add_node("split")
    graph.add_node("work", work).add_fanin_node("join", join)
    graph.add_node("rescue", lambda state, error: {"done": f"{error.node} {error}"})
    graph.add_error_edge("work", "rescue", on=KeyError)
    graph.add_map("split", "work", lambda state: range(3), "join", on_error=on_error)
    return graph.set_entry_point("split").set_finish_point("join").compile(store=MemoryStore())


def test_in_branches_error_edges_come_before_on_error() -> None:
    """Error edges: what none catches is collected, or fails the run."""
    assert in_branches("collect").execute({})["all"] == ["fine", "work[1]/work KeyError: 'one'", "two"]
    with pytest.raises(ExecutionError, match="OSError: two"):
        in_branches("fail").execute({})


def test_the_failure_of_a_graph_inside_is_caught_outside_and_inside() -> None:
    """Error edges: an inner error edge comes first; the outer handler finds the node inside that failed."""

    def outer(inner: StateGraph) -> StateGraph:
        graph = StateGraph(name="outer").add_node("in", inner, retry=Retry(2, backoff=0)).add_edge("in", END)
        graph.add_node("h", lambda state, error: {"by": [error.node, error.attempts]})
        graph.add_error_edge("in", "h", on=ValueError).set_entry_point("in").set_finish_point("h")
        return graph.compile(store=MemoryStore())

    inner = StateGraph(name="inner").add_node("x", fail_plain).set_entry_point("x").set_finish_point("x")
    assert outer(inner).execute({}) == {"by": ["in/x", 2]}
    inner.add_node("own", lambda state, error: {"own": error.node}).add_error_edge("x", "own")
    inner.set_finish_point("own")
    assert outer(inner).execute({}) == {"own": "in/x"}


def test_interrupts_stop_before_the_handler_and_not_after_the_failed_node() -> None:
    """Error edges: the node has not completed."""
    graph = risky(fail_plain, store=MemoryStore(), interrupt_after=["a"], interrupt_before=["h"])
    with pytest.raises(RunPaused, match="interrupted before 'h'"):
        graph.execute({}, run_id="r")
    assert graph.resume("r") == {"log": ["handled ValueError: plain", "b"]}


@pytest.mark.parametrize(
    ("source", "target", "reason"),
    [
        ("a", "a", "the error edge of 'a' can't lead to 'a'"),
        ("a", END, "the error edge of 'a' can't lead to '__end__'"),
        ("a", "join", "the error edge of 'a' can't lead to 'join'.*isn't a fan-in"),
        ("a", "hh", "the error edge of 'a': there is no node 'hh'; did you mean 'h'"),
        ("aa", "h", "the error edge of 'aa': there is no node 'aa'"),
    ],
)
def test_wrong_error_edges_are_a_definition_error(source: str, target: str, reason: str) -> None:
    """Error edges: all mistakes are listed with the others."""
    graph = (
        StateGraph(name="g").add_node("a").add_node("h").add_node("join").add_parallel_edge("a", "h", "join")
    )
    graph.set_entry_point("a").set_finish_point("join").add_error_edge(source, target)
    with pytest.raises(DefinitionError, match=reason):
        graph.compile()


@pytest.mark.parametrize("on", ["ValueError", (), (ValueError, 3), KeyboardInterrupt, None])
def test_only_exceptions_can_be_caught(on: Any) -> None:
    """Error edges: neither names nor what ends the process."""
    with pytest.raises(DefinitionError, match="on must be an exception class or a tuple of them"):
        StateGraph().add_error_edge("a", "h", on=on)


def test_an_error_edge_that_can_never_be_taken_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    """Error edges: those before it catch all of its errors."""
    graph = StateGraph(name="g").add_node("a").add_node("h").add_node("k").set_entry_point("a")
    graph.set_finish_point("a").set_finish_point("h").set_finish_point("k")
    graph.add_error_edge("a", "h", on=KeyError).add_error_edge("a", "k", on=(KeyError, ValueError)).compile()
    assert caplog.text == ""
    graph.add_error_edge("a", "h", on=(LookupError, UnicodeError)).compile()
    assert caplog.text == ""
    graph.add_error_edge("a", "h", on=(IndexError, UnicodeError)).compile()
    assert "the edge from 'a' to 'h' is never taken, as those added before it catch its errors" in caplog.text


def test_error_edges_count_for_reachability_and_in_the_fingerprint() -> None:
    """Error edges: a handler is reached by nothing else; a node with nothing else leads nowhere."""
    graph = risky(fail_plain)
    with_edge = graph.compiled().plan.fingerprint
    graph.add_error_edge("b", "h", on=Odd)
    assert graph.compiled().plan.fingerprint != with_edge
    lost = StateGraph(name="g").add_node("a").add_node("h").add_error_edge("a", "h")
    with pytest.raises(DefinitionError, match="node 'a' leads nowhere"):
        lost.set_entry_point("a").set_finish_point("h").compile()


def test_observers_and_followers_see_the_failure_and_the_transition() -> None:
    """Error edges: the node completes with an error, and an edge leads to the handler."""
    seen: list[Any] = []
    graph = risky(fail_plain, observer=seen.append, store=MemoryStore(), preserve=True)
    graph.execute({}, run_id="r")
    moves = [(e.data["from"], e.data["to"]) for e in seen if e.type == "edge.transition"]
    assert ("a", "h") in moves
    failed = [e.data["node"] for e in seen if e.type == "node.complete" and e.data["error"]]
    assert failed == ["a"]
    caught = [event for event in graph.get("r").events() if event["type"] == "caught"]
    assert [(each["error"]["node"], each["error"]["message"]) for each in caught] == [("a", "plain")]


def test_secrets_in_the_message_are_masked() -> None:
    """Error edges: what is stored of the error has no secret."""

    def leak(state: Any) -> None:
        raise ValueError(f"refused {state['key']}")

    from limpet import secret

    graph = StateGraph({"key": Annotated[str, secret], "text": str}, name="g").add_node("a", leak)
    graph.add_node("h", lambda state, error: {"text": error.message}).add_edge("a", END)
    graph.add_error_edge("a", "h").set_entry_point("a").set_finish_point("h").compile(store=MemoryStore())
    assert "sk-12345678" not in graph.execute({"key": "sk-12345678"})["text"]


def test_every_picture_shows_error_edges() -> None:
    """Error edges: with the names of the errors, and lines of their own."""
    graph = risky(fail_plain, (KeyError, Odd))
    assert '--x|"on KeyError or Odd"|' in graph.draw(format="mermaid")
    assert "on KeyError or Odd" in graph.draw(format="text")
    assert 'class="lp-line lp-error"' in graph.draw(format="svg")
