"""Time that passes durably: `sleep` in a node, `delay=` on an edge, the wait between two attempts. H9."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import pytest

from limpet import (
    END,
    START,
    BranchResult,
    DefinitionError,
    ExecutionError,
    MemoryStore,
    Retry,
    RunPaused,
    State,
    StateGraph,
    UsageError,
    Workflow,
    append,
    once,
    pause,
    sleep,
)
from limpet.engine.node_context.questions import ResumeInput
from limpet.engine.sessions import resume as entry
from limpet.testing.conformance.store_calls import ManualClock
from support.graphs import AT_ONCE, Via, chain, fan

A_DAY = 86_400.0
Node = Callable[..., Any]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def on_clock(clock: ManualClock) -> MemoryStore:
    """A store whose time passes when the test says so."""
    return MemoryStore(clock=clock)


def line(*nodes: Node, store: Any = None, name: str = "line", **compiled: Any) -> StateGraph:
    """Nodes one after the other, each named by its function."""
    names = [node.__name__ for node in nodes]
    graph = chain(*nodes, names=names, schema={"log": Annotated[list, append]}, name=name)
    return graph.compile(store=store, **compiled) if store is not None else graph


def say(*words: str) -> dict[str, Any]:
    return {"log": list(words)}


def bring(graph: Any, run_id: str, answers: dict[str, Any] | None = None) -> None:
    """Answer, or approve, and leave the run to the supervisor of the store."""
    entry.resume(graph.compiled(), run_id, ResumeInput(answers=answers), None, False).close()


def test_a_sleeping_run_lies_in_the_store_until_it_is_time(clock: ManualClock, on_clock: MemoryStore) -> None:
    """H9: no process holds it, no thread waits for it, and it wakes once."""
    calls: list[float] = []

    def rest(state: State) -> dict[str, Any]:
        calls.append(clock.now)
        sleep(A_DAY)
        return say("rested")

    graph = line(rest, store=on_clock)
    began, run = clock.now, graph.start()
    assert graph.recover() == [run.id]
    head = on_clock.head(run.id)
    assert (head.status, head.holder, head.due) == ("running", None, began + A_DAY)
    for _ in range(3):
        clock.advance(A_DAY / 4)
        assert graph.recover() == []
    clock.advance(A_DAY / 4)
    assert graph.recover() == [run.id]
    assert calls == [began, began + A_DAY]
    assert run.result(0)["log"] == ["rested"]
    assert graph.recover() == []


def test_a_short_sleep_is_waited_for(store: Any, via: Via) -> None:
    """H9: whichever API runs the graph, sync or async, with a store or without."""
    calls: list[str] = []

    def rest(state: State) -> dict[str, Any]:
        calls.append("rest")
        sleep(0.02)
        return say("rested")

    graph = line(rest)
    assert via.execute(graph)["log"] == ["rested"]
    graph.compile(store=store)
    assert via.execute(graph)["log"] == ["rested"]
    assert calls == ["rest"] * 4


def test_an_async_node_sleeps_alike(via: Via, clock: ManualClock, on_clock: MemoryStore) -> None:
    """H9."""

    async def rest(state: State) -> dict[str, Any]:
        sleep(0.01 if state.get("short") else A_DAY)
        return say("rested")

    graph = line(rest)
    assert via.execute(graph, {"short": True})["log"] == ["rested"]
    graph.compile(store=on_clock)
    run = graph.start()
    graph.recover()
    assert run.status == "running"
    clock.advance(A_DAY)
    graph.recover()
    assert run.result(0)["log"] == ["rested"]


def test_several_sleeps_of_a_node_are_distinguished_by_their_order(
    clock: ManualClock, on_clock: MemoryStore
) -> None:
    """H9: each ends when it should, and what was kept isn't done again."""
    effects: list[str] = []

    def rest(state: State) -> dict[str, Any]:
        once("first", effects.append, "first")
        sleep(100)
        once("second", effects.append, "second")
        sleep(timedelta(seconds=200))
        once("third", effects.append, "third")
        return say("rested")

    graph = line(rest, store=on_clock)
    run = graph.start()
    graph.recover()
    assert effects == ["first"]
    clock.advance(99.9)
    assert graph.recover() == []
    clock.advance(0.1)
    graph.recover()
    assert effects == ["first", "second"]
    clock.advance(199.9)
    assert graph.recover() == []
    clock.advance(0.1)
    graph.recover()
    assert effects == ["first", "second", "third"]
    assert run.status == "completed"


def test_sleeps_with_keys_may_come_in_another_order(clock: ManualClock, on_clock: MemoryStore) -> None:
    """H9: a node that takes another way the second time doesn't take one sleep for another."""
    turn: list[int] = []

    def rest(state: State) -> dict[str, Any]:
        turn.append(1)
        if len(turn) == 1:
            sleep(50, key="a")
        sleep(70, key="b")
        sleep(50, key="a")
        return say("rested")

    graph = line(rest, store=on_clock)
    run = graph.start()
    graph.recover()
    clock.advance(50)
    graph.recover()
    assert on_clock.head(run.id).due == clock.now + 70
    clock.advance(70)
    graph.recover()
    assert run.result(0)["log"] == ["rested"]


def test_a_sleep_until_a_moment_ends_then(clock: ManualClock, on_clock: MemoryStore) -> None:
    """H9: in any zone."""
    moment = datetime.fromtimestamp(clock.now + 1000, UTC)

    def rest(state: State) -> dict[str, Any]:
        sleep(until=moment.astimezone())
        return say("rested")

    graph = line(rest, store=on_clock)
    run = graph.start()
    graph.recover()
    assert on_clock.head(run.id).due == clock.now + 1000
    clock.advance(1000)
    graph.recover()
    assert run.status == "completed"


def test_a_moment_that_has_passed_doesnt_sleep(on_clock: MemoryStore) -> None:
    """H9: nor are 0 seconds."""
    calls: list[int] = []

    def rest(state: State) -> dict[str, Any]:
        calls.append(1)
        sleep(until=datetime(2000, 1, 1, tzinfo=UTC))
        sleep(0)
        sleep(timedelta(0))
        return say("rested")

    assert line(rest, store=on_clock).execute()["log"] == ["rested"]
    assert calls == [1]


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ({}, "give one of them"),
        ({"duration": 1, "until": datetime(2030, 1, 1, tzinfo=UTC)}, "give one of them"),
        ({"duration": -1}, r"a number of seconds \(at least 0\)"),
        ({"duration": "1"}, r"a number of seconds \(at least 0\)"),
        ({"duration": True}, r"a number of seconds \(at least 0\)"),
        ({"duration": float("nan")}, r"a number of seconds \(at least 0\)"),
        ({"duration": float("inf")}, "at most 3153600000 seconds"),
        ({"duration": timedelta(seconds=-1)}, r"a number of seconds \(at least 0\)"),
        ({"until": datetime(2030, 1, 1)}, "has no time zone"),
        ({"until": 5}, "datetime"),
    ],
)
def test_a_sleep_that_makes_no_sense_is_refused(arguments: dict[str, Any], what: str) -> None:
    """H9: with what is wrong about it."""

    def rest(state: State) -> None:
        sleep(**arguments)

    with pytest.raises(ExecutionError, match=what) as caught:
        line(rest).execute()
    assert isinstance(caught.value.cause, UsageError)


def test_a_sleep_outside_of_a_node_is_refused() -> None:
    """H9."""
    with pytest.raises(UsageError, match="inside a running node"):
        sleep(1)


def test_a_sleep_gets_through_a_nodes_own_except(clock: ManualClock, on_clock: MemoryStore) -> None:
    """H9: as a question does."""

    def rest(state: State) -> dict[str, Any]:
        try:
            sleep(A_DAY)
        except Exception:
            return say("caught")
        return say("rested")

    graph = line(rest, store=on_clock)
    run = graph.start()
    graph.recover()
    clock.advance(A_DAY)
    graph.recover()
    assert run.result(0)["log"] == ["rested"]


def test_what_a_node_changed_before_it_slept_is_undone(clock: ManualClock, on_clock: MemoryStore) -> None:
    """H9: the call counts when it returns."""

    def rest(state: State) -> None:
        state["times"] = state.get("times", 0) + 1
        state["list"].append(1)
        sleep(A_DAY)

    graph = StateGraph(name="g").add_node("rest", run=rest).set_entry_point("rest").set_finish_point("rest")
    run = graph.compile(store=on_clock).start({"list": []})
    graph.recover()
    assert dict(run.state) == {"list": []}
    clock.advance(A_DAY)
    graph.recover()
    assert dict(run.result(0)) == {"list": [1], "times": 1}


def test_the_same_node_sleeps_again_at_its_next_visit(clock: ManualClock, on_clock: MemoryStore) -> None:
    """H9: a sleep belongs to the step."""

    def rest(state: State) -> dict[str, Any]:
        sleep(10)
        return say("rested")

    graph = line(rest)
    graph.add_edge("rest", "rest", lambda state: len(state["log"]) < 3).compile(store=on_clock)
    run = graph.start()
    for turn in range(3):
        graph.recover()
        assert run.status == "running", turn
        clock.advance(10)
    graph.recover()
    assert run.result(0)["log"] == ["rested"] * 3


def test_branches_sleep_each_for_itself(clock: ManualClock, on_clock: MemoryStore) -> None:
    """H9: the run is due when the first of them is."""
    woke: list[tuple[str, float]] = []

    def resting(name: str, seconds: float) -> Node:
        def rest(state: State) -> dict[str, Any]:
            sleep(seconds)
            woke.append((name, clock.now))
            return {name: seconds}

        return rest

    graph = fan({"a": resting("a", 100), "b": resting("b", 300), "c": resting("c", 100)})
    graph.compile(store=on_clock)
    began, run = clock.now, graph.start()
    graph.recover()
    assert on_clock.head(run.id).due == began + 100
    clock.advance(100)
    graph.recover()
    assert sorted(woke) == [("a", began + 100), ("c", began + 100)]
    assert on_clock.head(run.id).due == began + 300
    clock.advance(200)
    graph.recover()
    assert run.result(0)["results"] == [{"a": 100}, {"b": 300}, {"c": 100}]
    assert len(woke) == 3


def test_items_of_a_map_sleep_each_for_itself(clock: ManualClock, on_clock: MemoryStore) -> None:
    """H9: also those that have to wait for their turn."""

    def each(state: State) -> dict[str, Any]:
        sleep(10 * (state["item"] + 1))
        return {"out": state["item"]}

    def join(state: State, parallel_results: Sequence[BranchResult]) -> dict[str, Any]:
        return {"all": [one["out"] for one in parallel_results]}

    graph = StateGraph(name="g").add_node("src").add_node("each", run=each).add_fanin_node("join", run=join)
    graph.add_map("src", "each", "items", "join", max_concurrency=2)
    graph.set_entry_point("src").set_finish_point("join").compile(store=on_clock)
    run = graph.start({"items": [0, 1, 2, 3]})
    for _ in range(12):
        graph.recover()
        if run.status == "completed":
            break
        clock.advance(10)
    assert run.result(0)["all"] == [0, 1, 2, 3]


def test_a_graph_inside_of_a_node_sleeps(clock: ManualClock, on_clock: MemoryStore) -> None:
    """H9: however deep."""

    def rest(state: State) -> dict[str, Any]:
        sleep(A_DAY)
        return say("deep")

    deepest = line(rest, name="deepest")
    middle = StateGraph({"log": Annotated[list, append]}, name="middle").add_node("deepest", run=deepest)
    middle.set_entry_point("deepest").set_finish_point("deepest")
    graph = StateGraph({"log": Annotated[list, append]}, name="outer").add_node("middle", run=middle)
    graph.set_entry_point("middle").set_finish_point("middle").compile(store=on_clock)
    run = graph.start()
    graph.recover()
    assert on_clock.head(run.id).due == clock.now + A_DAY
    clock.advance(A_DAY)
    graph.recover()
    assert run.result(0)["log"] == ["deep"]


def test_a_task_of_a_workflow_sleeps(clock: ManualClock, on_clock: MemoryStore) -> None:
    """H9: and parallel branches run meanwhile."""
    done: list[str] = []

    def slow(first: int) -> int:
        sleep(A_DAY)
        return first + 1

    def quick(first: int) -> int:
        done.append("quick")
        return first

    flow = Workflow("flow").add_task("first", lambda: 1).add_task("slow", slow, depends_on=["first"])
    flow.add_task("quick", quick, depends_on=["first"])
    flow.add_task("last", lambda slow, quick: slow + quick, depends_on=["slow", "quick"])
    flow.compile(store=on_clock)
    run = flow.start()
    flow.recover()
    assert (done, run.status) == (["quick"], "running")
    clock.advance(A_DAY)
    flow.recover()
    assert run.result(0).results["last"] == 3
    assert done == ["quick"]


def test_a_resume_of_a_sleeping_run_waits_for_the_rest(store: Any) -> None:
    """H9: not for all of it again, and the time that passed meanwhile counts."""
    calls: list[int] = []

    def rest(state: State) -> dict[str, Any]:
        calls.append(1)
        sleep(0.3)
        return say("rested")

    graph = line(rest, store=store)
    run = graph.start()
    assert graph.resume(run.id)["log"] == ["rested"]
    assert calls == [1, 1]


def test_a_question_after_a_sleep_is_asked_when_it_is_over(clock: ManualClock, on_clock: MemoryStore) -> None:
    """H9, G12: and answered without sleeping again."""

    def rest(state: State) -> dict[str, Any]:
        sleep(A_DAY)
        return say(pause("Well?"))

    graph = line(rest, store=on_clock)
    run = graph.start()
    graph.recover()
    assert run.info.questions == []
    clock.advance(A_DAY)
    graph.recover()
    assert [each.prompt for each in run.info.questions] == ["Well?"]
    assert graph.resume(run.id, "yes")["log"] == ["yes"]


def test_a_sleep_after_a_question_begins_with_the_answer(clock: ManualClock, on_clock: MemoryStore) -> None:
    """H9, G12."""

    def rest(state: State) -> dict[str, Any]:
        answer = pause("Well?")
        sleep(A_DAY)
        return say(answer)

    graph = line(rest, store=on_clock)
    run = graph.start()
    graph.recover()
    clock.advance(10 * A_DAY)
    assert graph.recover() == []
    (question,) = run.info.questions
    bring(graph, run.id, {question.id: "yes"})
    graph.recover()
    assert on_clock.head(run.id).due == clock.now + A_DAY
    clock.advance(A_DAY)
    graph.recover()
    assert run.result(0)["log"] == ["yes"]


def test_a_failed_attempt_does_not_sleep_again(clock: ManualClock, on_clock: MemoryStore) -> None:
    """H9: the sleep was over."""
    calls: list[int] = []

    def rest(state: State) -> dict[str, Any]:
        sleep(A_DAY)
        calls.append(1)
        if len(calls) < 3:
            raise ValueError("not yet")
        return say("rested")

    graph = StateGraph({"log": Annotated[list, append]}, name="g").add_node("rest", run=rest, retry=AT_ONCE)
    graph.set_entry_point("rest").set_finish_point("rest").compile(store=on_clock)
    run = graph.start()
    graph.recover()
    clock.advance(A_DAY)
    graph.recover()
    assert (run.status, len(calls)) == ("completed", 3)


def test_a_long_wait_between_attempts_is_durable(clock: ManualClock, on_clock: MemoryStore) -> None:
    """H9: another process makes the next attempt, when it is time; attempts go on counting."""
    attempts: list[tuple[int, float]] = []

    def flaky(state: State, ctx: Any) -> dict[str, Any]:
        attempts.append((ctx.attempt, clock.now))
        if ctx.attempt < 3:
            raise ValueError("not yet")
        return say("done")

    def build() -> StateGraph:
        retry = Retry(attempts=3, backoff=3600, factor=2, max_delay=A_DAY, jitter=0)
        graph = StateGraph({"log": Annotated[list, append]}, name="g").add_node(
            "flaky", run=flaky, retry=retry
        )
        return graph.set_entry_point("flaky").set_finish_point("flaky").compile(store=on_clock)

    began, run = clock.now, build().start()
    build().recover()
    assert on_clock.head(run.id).due == began + 3600
    assert build().recover() == []
    clock.advance(3600)
    build().recover()
    assert on_clock.head(run.id).due == began + 3 * 3600
    clock.advance(2 * 3600)
    build().recover()
    assert attempts == [(1, began), (2, began + 3600), (3, began + 3 * 3600)]
    assert run.result(0)["log"] == ["done"]


def test_an_edge_takes_its_time(clock: ManualClock, on_clock: MemoryStore) -> None:
    """H9: the node before it is saved at once, the one after it runs when the time has come."""
    calls: list[tuple[str, float]] = []

    def note(name: str) -> Node:
        return lambda state: calls.append((name, clock.now)) or say(name)

    graph = StateGraph({"log": Annotated[list, append]}, name="g")
    graph.add_node("a", run=note("a")).add_node("b", run=note("b")).set_entry_point("a").set_finish_point("b")
    graph.add_edge("a", "b", delay=timedelta(days=1)).compile(store=on_clock)
    began, run = clock.now, graph.start()
    graph.recover()
    assert run.state["log"] == ["a"]
    assert on_clock.head(run.id).due == began + A_DAY
    clock.advance(A_DAY - 1)
    assert graph.recover() == []
    clock.advance(1)
    graph.recover()
    assert calls == [("a", began), ("b", began + A_DAY)]
    assert run.status == "completed"


def test_only_the_edge_that_is_taken_takes_its_time(clock: ManualClock, on_clock: MemoryStore) -> None:
    """H9: of several with conditions, and of a choice; a way to the end takes none."""
    graph = StateGraph({"log": Annotated[list, append], "go": str}, name="g")
    for name in ("a", "slow", "quick", "chosen"):
        graph.add_node(name, run=lambda state, node: say(node))
    graph.add_edge("a", "slow", lambda state: state["go"] == "slow", delay=100)
    graph.add_edge("a", "quick", lambda state: state["go"] == "quick")
    graph.add_conditional_edges("quick", lambda state: "chosen", ["chosen"], delay=200)
    graph.add_conditional_edges("chosen", lambda state: END, [END, "slow"], delay=300)
    graph.set_entry_point("a").set_finish_point("slow").compile(store=on_clock)
    slow, quick = graph.start({"go": "slow"}), graph.start({"go": "quick"})
    graph.recover()
    assert on_clock.head(slow.id).due == clock.now + 100
    assert on_clock.head(quick.id).due == clock.now + 200
    clock.advance(200)
    graph.recover()
    assert slow.result(0)["log"] == ["a", "slow"]
    assert quick.result(0)["log"] == ["a", "quick", "chosen"]


def test_an_edge_in_a_branch_takes_its_time(clock: ManualClock, on_clock: MemoryStore) -> None:
    """H9."""
    graph = fan({"a": [None], "b": [None]})
    graph.add_node("late", run=lambda state: {"late": clock.now}).add_edge("a", "late", delay=50)
    graph.compile(store=on_clock)
    began, run = clock.now, graph.start()
    graph.recover()
    assert on_clock.head(run.id).due == began + 50
    clock.advance(50)
    graph.recover()
    assert run.result(0)["results"] == [{"late": began + 50}, {}]


def test_an_approval_comes_before_or_after_the_delay_but_both_count(
    clock: ManualClock, on_clock: MemoryStore
) -> None:
    """H9, G12: an interrupt before the node that a delayed edge leads to."""
    graph = StateGraph({"log": Annotated[list, append]}, name="g")
    graph.add_node("a", run=lambda state: say("a")).add_node("b", run=lambda state: say("b"))
    graph.add_edge("a", "b", delay=A_DAY).set_entry_point("a").set_finish_point("b")
    graph.compile(store=on_clock, interrupt_before=["b"])
    run = graph.start()
    graph.recover()
    clock.advance(A_DAY)
    graph.recover()
    assert run.status == "paused"
    assert graph.resume(run.id)["log"] == ["a", "b"]


def test_an_approval_after_the_node_before_a_delay_starts_the_delay(
    clock: ManualClock, on_clock: MemoryStore
) -> None:
    """H9, G12: the edge is chosen after the approval."""
    graph = StateGraph({"log": Annotated[list, append]}, name="g")
    graph.add_node("a", run=lambda state: say("a")).add_node("b", run=lambda state: say("b"))
    graph.add_edge("a", "b", delay=A_DAY).set_entry_point("a").set_finish_point("b")
    graph.compile(store=on_clock, interrupt_after=["a"])
    run = graph.start()
    graph.recover()
    assert run.status == "paused"
    clock.advance(5 * A_DAY)
    bring(graph, run.id)
    graph.recover()
    assert run.status == "running"
    assert on_clock.head(run.id).due == clock.now + A_DAY
    clock.advance(A_DAY)
    graph.recover()
    assert run.result(0)["log"] == ["a", "b"]


@pytest.mark.parametrize("delay", [-1, "1", float("inf"), float("nan"), True, timedelta(seconds=-1), None])
def test_a_delay_that_makes_no_sense_is_a_mistake(delay: Any) -> None:
    """H9: it is found where it is written."""
    graph = StateGraph(name="g").add_node("a").add_node("b")
    with pytest.raises(DefinitionError, match="delay"):
        graph.add_edge("a", "b", delay=delay)
    with pytest.raises(DefinitionError, match="delay"):
        graph.add_conditional_edges("a", lambda state: "b", ["b"], delay=delay)


def test_a_delay_where_nothing_can_wait_is_a_mistake() -> None:
    """H9: before the first node, after the last, at the end of a branch, and two that differ."""
    graph = StateGraph(name="g").add_node("a").add_node("b")
    with pytest.raises(DefinitionError, match="START or to END"):
        graph.add_edge(START, "a", delay=1)
    with pytest.raises(DefinitionError, match="START or to END"):
        graph.add_edge("a", END, delay=1)
    branches = fan({"a": None}).add_edge("a", "join", delay=1)
    with pytest.raises(DefinitionError, match="ends a branch"):
        branches.validate()
    graph.add_edge("a", "b", lambda state: True, delay=1).add_edge("a", "b", delay=2)
    graph.set_entry_point("a")
    with pytest.raises(DefinitionError, match="differ in their delay"):
        graph.validate()


def sleeper(store: Any, **compiled: Any) -> StateGraph:
    """a, then b, which sleeps for a day."""

    def a(state: State) -> dict[str, Any]:
        return say("a")

    def b(state: State) -> dict[str, Any]:
        sleep(A_DAY)
        return say("b")

    return line(a, b, store=store, **compiled)


def test_a_fork_of_a_sleeping_run_sleeps_on_its_own(clock: ManualClock, on_clock: MemoryStore) -> None:
    """H9, P7: it begins when a process resumes it, at the node that sleeps, which starts again."""
    graph = sleeper(on_clock, preserve=True)
    run = graph.start()
    graph.recover()
    fork = graph.fork(run.id)
    clock.advance(A_DAY)
    assert graph.recover() == [run.id]
    assert run.status == "completed"
    bring(graph, fork.id)
    assert graph.recover() == [fork.id]
    assert on_clock.head(fork.id).due == clock.now + A_DAY
    clock.advance(A_DAY)
    assert graph.recover() == [fork.id]
    assert graph.state_at(fork.id)["log"] == ["a", "b"]


def test_a_sleeping_run_that_is_rolled_back_is_not_woken(clock: ManualClock, on_clock: MemoryStore) -> None:
    """H9: it waits until the caller that rolled it back resumes it."""
    graph = sleeper(on_clock)
    run = graph.start()
    graph.recover()
    graph.rollback(run.id, 0)
    clock.advance(2 * A_DAY)
    assert graph.recover() == []
    assert run.status == "paused"
    bring(graph, run.id)
    graph.recover()
    assert on_clock.head(run.id).due == clock.now + A_DAY


def test_a_sleeping_run_that_was_carried_elsewhere_sleeps_on(
    clock: ManualClock, on_clock: MemoryStore, tmp_path: Path
) -> None:
    """H9, P8: until a process resumes it, and then for the rest."""
    graph, there = sleeper(on_clock), sleeper(MemoryStore(clock=clock))
    run = graph.start()
    graph.recover()
    graph.export_run(run.id, tmp_path / "run")
    assert graph.recover() == []
    there.import_run(tmp_path / "run")
    assert there.state_at(run.id)["log"] == ["a"]
    clock.advance(A_DAY)
    assert there.resume(run.id)["log"] == ["a", "b"]


def test_a_sleeping_run_can_be_looked_at_and_cancelled(clock: ManualClock, on_clock: MemoryStore) -> None:
    """H9, P7."""
    graph = sleeper(on_clock)
    run = graph.start()
    graph.recover()
    assert [each.node for each in graph.history(run.id)] == [None, "a"]
    assert (run.info.status, run.info.node, run.info.holder) == ("running", "b", None)
    assert run.state["log"] == ["a"]
    graph.cancel(run.id)
    assert run.status == "cancelled"
    clock.advance(2 * A_DAY)
    assert graph.recover() == []


def test_a_run_that_was_set_up_without_a_supervisor_is_found_by_one(
    clock: ManualClock, on_clock: MemoryStore
) -> None:
    """H1, H9: a sleep of a run that `execute` began continues elsewhere when that process is gone."""

    class Gone(BaseException):
        pass

    calls: list[int] = []

    def rest(state: State) -> dict[str, Any]:
        calls.append(1)
        if len(calls) == 1:
            raise Gone
        return say("rested")

    graph = line(rest, store=on_clock)
    with pytest.raises(Gone):
        graph.execute(run_id="r")
    assert graph.recover() == ["r"]
    assert graph.runs("completed")[0].run_id == "r"


def test_a_run_paused_in_one_branch_is_woken_for_another(clock: ManualClock, on_clock: MemoryStore) -> None:
    """H9, G12: and asks on; the answer lets it end."""

    def rest(state: State) -> dict[str, Any]:
        sleep(A_DAY)
        return {"rested": True}

    graph = fan({"a": rest, "b": lambda state: {"said": pause("Well?")}}).compile(store=on_clock)
    run = graph.start()
    graph.recover()
    assert run.status == "paused"
    clock.advance(A_DAY)
    assert graph.recover() == [run.id]
    assert run.status == "paused"
    assert [each.prompt for each in run.info.questions] == ["Well?"]
    assert on_clock.head(run.id).due is None
    assert graph.resume(run.id, "yes")["results"] == [{"rested": True}, {"said": "yes"}]


def test_a_question_in_parallel_to_a_sleep_can_be_answered_while_it_sleeps(
    clock: ManualClock, on_clock: MemoryStore
) -> None:
    """H9, G12: the run keeps sleeping."""

    def rest(state: State) -> dict[str, Any]:
        sleep(A_DAY)
        return {"rested": True}

    graph = fan({"a": rest, "b": lambda state: {"said": pause("Well?")}})
    graph.compile(store=on_clock, preserve=True)
    with pytest.raises(RunPaused) as caught:
        graph.execute(run_id="r")
    (question,) = caught.value.questions
    bring(graph, "r", {question.id: "yes"})
    assert graph.recover() == ["r"]
    head = on_clock.head("r")
    assert (head.status, head.due) == ("running", clock.now + A_DAY)
    clock.advance(A_DAY)
    graph.recover()
    assert graph.state_at("r")["results"] == [{"rested": True}, {"said": "yes"}]
