"""Questions that can be answered until a certain time, and what comes then. H9, G12."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import pytest

from limpet import (
    AlreadyAnswered,
    AnswerRefused,
    DeadlinePassed,
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
from support.graphs import fan, single

AN_HOUR = 3600.0


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def on_clock(clock: ManualClock) -> MemoryStore:
    """A store whose time passes when the test says so."""
    return MemoryStore(clock=clock)


def asking_graph(store: Any, ask: Callable[[], Any], **policy: Any) -> StateGraph:
    """A graph of one node that keeps the answer it got."""
    schema = {"log": Annotated[list, append]}
    graph = single(lambda state: {"log": [ask()]}, "ask", schema, "asking", **policy)
    return graph.compile(store=store, preserve=True)


def paused(graph: Any, run_id: str = "r") -> RunPaused:
    """Run it until it asks."""
    with pytest.raises(RunPaused) as caught:
        graph.execute(run_id=run_id)
    return caught.value


def bring(graph: Any, run_id: str, answers: dict[str, Any] | None = None) -> None:
    """Answer, or approve, and leave the run to the supervisor of the store."""
    entry.resume(graph.compiled(), run_id, ResumeInput(answers=answers), None, False).close()


def test_an_answer_in_time_counts(clock: ManualClock, on_clock: MemoryStore) -> None:
    """G12: also just before the deadline, and when the node runs long after it."""
    graph = asking_graph(on_clock, lambda: pause("Well?", deadline=AN_HOUR, default="no answer"))
    (question,) = paused(graph).questions
    assert question.deadline == clock.now + AN_HOUR
    clock.advance(AN_HOUR - 0.001)
    bring(graph, "r", {question.id: "yes"})
    clock.advance(10 * AN_HOUR)
    assert graph.recover() == ["r"]
    assert graph.state_at("r")["log"] == ["yes"]


def test_the_default_counts_without_an_answer_in_time(clock: ManualClock, on_clock: MemoryStore) -> None:
    """H9: no process runs meanwhile; the next one applies it."""
    graph = asking_graph(on_clock, lambda: pause("Well?", deadline=AN_HOUR, default="no answer"))
    paused(graph)
    head = on_clock.head("r")
    assert (head.status, head.holder, head.due) == ("paused", None, clock.now + AN_HOUR)
    clock.advance(AN_HOUR - 1)
    assert graph.recover() == []
    clock.advance(1000 * AN_HOUR)
    assert graph.recover() == ["r"]
    assert graph.state_at("r")["log"] == ["no answer"]


def test_none_is_a_default(clock: ManualClock, on_clock: MemoryStore) -> None:
    """H9."""
    graph = asking_graph(on_clock, lambda: pause("Well?", deadline=AN_HOUR, default=None))
    paused(graph)
    clock.advance(AN_HOUR)
    graph.recover()
    assert graph.state_at("r")["log"] == [None]


def test_a_function_says_what_counts_without_an_answer(clock: ManualClock, on_clock: MemoryStore) -> None:
    """H9: it is called when the deadline has passed, not before."""
    calls: list[float] = []

    def no_answer() -> str:
        calls.append(clock.now)
        return "no answer"

    graph = asking_graph(on_clock, lambda: pause("Well?", deadline=AN_HOUR, on_timeout=no_answer))
    began, _ = clock.now, paused(graph)
    clock.advance(AN_HOUR)
    graph.recover()
    assert calls == [began + AN_HOUR]
    assert graph.state_at("r")["log"] == ["no answer"]


def test_without_a_default_the_node_hears_of_the_deadline(clock: ManualClock, on_clock: MemoryStore) -> None:
    """H9: it may catch that."""

    def ask() -> str:
        try:
            return pause("Well?", deadline=AN_HOUR)
        except DeadlinePassed as passed:
            return f"{passed.run_id}: {passed}"

    graph = asking_graph(on_clock, ask)
    paused(graph)
    clock.advance(AN_HOUR)
    graph.recover()
    assert graph.state_at("r")["log"] == ["r: 'Well?' was not answered in time"]


def test_a_node_that_does_not_catch_it_fails_the_run(clock: ManualClock, on_clock: MemoryStore) -> None:
    """H9: with the reason; a resume then asks the question no more."""
    graph = asking_graph(on_clock, lambda: pause("Well?", deadline=AN_HOUR))
    paused(graph)
    clock.advance(AN_HOUR)
    with pytest.raises(ExecutionError, match="'Well\\?' was not answered in time") as caught:
        graph.resume("r")
    assert isinstance(caught.value.cause, DeadlinePassed)
    (info,) = graph.runs()
    assert (info.status, info.questions) == ("failed", [])


def test_an_error_of_the_function_is_one_of_the_node(clock: ManualClock, on_clock: MemoryStore) -> None:
    """H9: it is tried again as the node says, with the deadline still passed."""
    calls: list[int] = []

    def no_answer() -> str:
        calls.append(1)
        if len(calls) < 3:
            raise ValueError("not yet")
        return "no answer"

    graph = asking_graph(
        on_clock,
        lambda: pause("Well?", deadline=AN_HOUR, on_timeout=no_answer),
        retry=Retry(attempts=3, backoff=0),
    )
    paused(graph)
    clock.advance(AN_HOUR)
    graph.recover()
    assert graph.state_at("r")["log"] == ["no answer"]


def test_a_late_answer_is_refused(clock: ManualClock, on_clock: MemoryStore) -> None:
    """H9: by the store's clock, whether or not a process has applied the default; the run can still continue."""
    graph = asking_graph(on_clock, lambda: pause("Well?", deadline=AN_HOUR, default="no answer"))
    paused(graph)
    clock.advance(AN_HOUR)
    with pytest.raises(AnswerRefused, match="its deadline passed 0 s ago"):
        graph.resume("r", "yes")
    clock.advance(60)
    with pytest.raises(AnswerRefused, match="its deadline passed 60 s ago"):
        graph.resume("r", "yes")
    assert graph.runs()[0].status == "paused"
    assert graph.resume("r")["log"] == ["no answer"]


def test_a_deadline_is_that_of_the_first_time_it_was_asked(clock: ManualClock, on_clock: MemoryStore) -> None:
    """H9: a node that runs again for another question doesn't prolong it."""

    def ask() -> Any:
        first = pause("First?", key="first", deadline=AN_HOUR, default="late")
        return [first, pause("Second?", key="second", deadline=AN_HOUR, default="later")]

    graph = asking_graph(on_clock, ask)
    (question,) = paused(graph).questions
    clock.advance(AN_HOUR / 2)
    bring(graph, "r", {question.id: "one"})
    assert graph.recover() == ["r"]
    (second,) = graph.runs()[0].questions
    assert second.deadline == clock.now + AN_HOUR
    clock.advance(AN_HOUR)
    graph.recover()
    assert graph.state_at("r")["log"] == [["one", "later"]]


def test_one_deadline_after_another_passes(clock: ManualClock, on_clock: MemoryStore) -> None:
    """H9: each from when it was asked."""
    asked: list[float] = []

    def ask() -> Any:
        first = pause("First?", deadline=AN_HOUR, default="a")
        once("asked", asked.append, clock.now)
        return [first, pause("Second?", deadline=AN_HOUR, default="b")]

    graph = asking_graph(on_clock, ask)
    paused(graph)
    clock.advance(5 * AN_HOUR)
    graph.recover()
    assert graph.runs()[0].status == "paused"
    clock.advance(AN_HOUR)
    graph.recover()
    assert graph.state_at("r")["log"] == [["a", "b"]]
    assert len(asked) == 1


@pytest.mark.parametrize("deadline", [AN_HOUR, timedelta(hours=1), 3600])
def test_a_deadline_may_be_given_in_any_form(
    deadline: Any, clock: ManualClock, on_clock: MemoryStore
) -> None:
    """H9."""
    graph = asking_graph(on_clock, lambda: pause("Well?", deadline=deadline, default="no answer"))
    assert paused(graph).questions[0].deadline == clock.now + AN_HOUR


def test_a_deadline_may_be_a_moment(clock: ManualClock, on_clock: MemoryStore) -> None:
    """H9: one that has passed already is asked all the same, and can't be answered."""
    moment = datetime.fromtimestamp(clock.now - 5, UTC)
    graph = asking_graph(on_clock, lambda: pause("Well?", deadline=moment, default="no answer"))
    assert paused(graph).questions[0].deadline == clock.now - 5
    with pytest.raises(AnswerRefused, match="deadline"):
        graph.resume("r", "yes")
    assert graph.recover() == ["r"]
    assert graph.state_at("r")["log"] == ["no answer"]


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ({"default": 1}, "a deadline="),
        ({"on_timeout": lambda: 1}, "a deadline="),
        ({"deadline": 1, "default": 1, "on_timeout": lambda: 1}, "not both"),
        ({"deadline": -1}, r"a number of seconds \(at least 0\)"),
        ({"deadline": "soon"}, "is a time, not 'soon'"),
        ({"deadline": float("nan")}, r"a number of seconds \(at least 0\)"),
        ({"deadline": datetime(2030, 1, 1)}, "has no time zone"),
    ],
)
def test_a_deadline_that_makes_no_sense_is_refused(
    arguments: dict[str, Any], what: str, on_clock: MemoryStore
) -> None:
    """H9."""
    graph = asking_graph(on_clock, lambda: pause("Well?", **arguments))
    with pytest.raises(ExecutionError, match=what) as caught:
        graph.execute()
    assert isinstance(caught.value.cause, UsageError)


def test_a_default_need_not_be_one_of_the_choices(clock: ManualClock, on_clock: MemoryStore) -> None:
    """H9: it is the node's own."""
    graph = asking_graph(
        on_clock, lambda: pause("Well?", choices=["a", "b"], deadline=AN_HOUR, default="neither")
    )
    paused(graph)
    with pytest.raises(AnswerRefused, match="not one of"):
        graph.resume("r", "c")
    clock.advance(AN_HOUR)
    graph.recover()
    assert graph.state_at("r")["log"] == ["neither"]


def test_branches_have_deadlines_of_their_own(clock: ManualClock, on_clock: MemoryStore) -> None:
    """H9, G12: one passes, another is answered, a third waits on; none disturbs the others."""

    def ask(name: str, **more: Any) -> Callable[[State], dict[str, Any]]:
        return lambda state: {"said": pause(f"{name}?", **more)}

    graph = fan(
        {
            "a": ask("a", deadline=100, default="no a"),
            "b": ask("b", deadline=300, default="no b"),
            "c": ask("c"),
        }
    ).compile(store=on_clock, preserve=True)
    questions = {each.prompt: each for each in paused(graph).questions}
    assert on_clock.head("r").due == clock.now + 100
    clock.advance(100)
    assert graph.recover() == ["r"]
    assert {each.prompt for each in graph.runs()[0].questions} == {"b?", "c?"}
    assert on_clock.head("r").due == clock.now + 200
    with pytest.raises(AlreadyAnswered):
        graph.resume("r", answers={questions["a?"].id: "late"})
    bring(graph, "r", {questions["c?"].id: "yes"})
    graph.recover()
    assert {each.prompt for each in graph.runs()[0].questions} == {"b?"}
    clock.advance(200)
    graph.recover()
    assert graph.state_at("r")["results"] == [{"said": "no a"}, {"said": "no b"}, {"said": "yes"}]


def test_a_deadline_passes_while_another_branch_sleeps(clock: ManualClock, on_clock: MemoryStore) -> None:
    """H9: and the other way round."""

    def rest(state: State) -> dict[str, Any]:
        sleep(200)
        return {"rested": True}

    graph = fan(
        {"a": rest, "b": lambda state: {"said": pause("Well?", deadline=100, default="no answer")}}
    ).compile(store=on_clock, preserve=True)
    paused(graph)
    assert on_clock.head("r").due == clock.now + 100
    clock.advance(100)
    graph.recover()
    head = on_clock.head("r")
    assert (head.status, head.due) == ("running", clock.now + 100)
    clock.advance(100)
    graph.recover()
    assert graph.state_at("r")["results"] == [{"rested": True}, {"said": "no answer"}]


def test_both_at_once_are_over(clock: ManualClock, on_clock: MemoryStore) -> None:
    """H9: a day later, in one go."""

    def rest(state: State) -> dict[str, Any]:
        sleep(200)
        return {"rested": True}

    graph = fan(
        {"a": rest, "b": lambda state: {"said": pause("Well?", deadline=100, default="no answer")}}
    ).compile(store=on_clock, preserve=True)
    paused(graph)
    clock.advance(24 * AN_HOUR)
    assert graph.recover() == ["r"]
    assert graph.state_at("r")["results"] == [{"rested": True}, {"said": "no answer"}]


def test_a_late_answer_in_one_branch_does_not_keep_one_in_another(
    clock: ManualClock, on_clock: MemoryStore
) -> None:
    """G12: all that is brought is refused together; what is in time can be brought alone."""
    graph = fan(
        {
            "a": lambda state: {"said": pause("a?", deadline=100, default="no answer")},
            "b": lambda state: {"said": pause("b?")},
        }
    ).compile(store=on_clock, preserve=True)
    questions = {each.prompt: each.id for each in paused(graph).questions}
    clock.advance(100)
    with pytest.raises(AnswerRefused, match="deadline"):
        graph.resume("r", answers={questions["a?"]: "late", questions["b?"]: "yes"})
    done = graph.resume("r", answers={questions["b?"]: "yes"})
    assert done["results"] == [{"said": "no answer"}, {"said": "yes"}]


def test_an_approval_is_never_given_by_time(clock: ManualClock, on_clock: MemoryStore) -> None:
    """G12: a branch that waits for one does so however late it is."""
    graph = fan(
        {"a": lambda state: {"said": pause("Well?", deadline=100, default="no answer")}, "b": [None, None]}
    )
    graph.compile(store=on_clock, interrupt_before=["b2"], preserve=True)
    paused(graph)
    clock.advance(10_000)
    graph.recover()
    assert graph.runs()[0].status == "paused"
    assert on_clock.head("r").due is None
    assert graph.recover() == []
    assert graph.resume("r")["results"] == [{"said": "no answer"}, {}]


def test_a_question_inside_of_a_graph_has_a_deadline(clock: ManualClock, on_clock: MemoryStore) -> None:
    """H9."""
    inner = StateGraph({"log": Annotated[list, append]}, name="inner")
    inner.add_node("ask", run=lambda state: {"log": [pause("Well?", deadline=AN_HOUR, default="no answer")]})
    inner.set_entry_point("ask").set_finish_point("ask")
    graph = StateGraph({"log": Annotated[list, append]}, name="outer").add_node("inner", run=inner)
    graph.set_entry_point("inner").set_finish_point("inner").compile(store=on_clock, preserve=True)
    paused(graph)
    clock.advance(AN_HOUR)
    assert graph.recover() == ["r"]
    assert graph.state_at("r")["log"] == ["no answer"]


def test_a_task_of_a_workflow_has_a_deadline(clock: ManualClock, on_clock: MemoryStore) -> None:
    """H9: what counted is in the run's decisions, as an answer would be."""
    flow = Workflow("flow").add_task("ask", lambda: pause("Well?", deadline=AN_HOUR, default="no answer"))
    flow.add_task("then", lambda ask: ask, depends_on=["ask"]).compile(store=on_clock, preserve=True)
    paused(flow)
    clock.advance(AN_HOUR)
    assert flow.recover() == ["r"]
    assert flow.state_at("r").results["then"] == "no answer"


def test_an_async_node_has_a_deadline(clock: ManualClock, on_clock: MemoryStore) -> None:
    """H9."""

    async def ask(state: State) -> dict[str, Any]:
        return {"said": pause("Well?", deadline=AN_HOUR, default="no answer")}

    graph = StateGraph(name="g").add_node("ask", run=ask).set_entry_point("ask").set_finish_point("ask")
    graph.compile(store=on_clock, preserve=True)
    paused(graph)
    clock.advance(AN_HOUR)
    assert graph.recover() == ["r"]
    assert graph.state_at("r")["said"] == "no answer"


def test_a_fork_of_a_run_with_a_deadline_asks_again(clock: ManualClock, on_clock: MemoryStore) -> None:
    """H9, P7: and until then no process touches it."""
    graph = asking_graph(on_clock, lambda: pause("Well?", deadline=AN_HOUR, default="no answer"))
    paused(graph)
    fork = graph.fork("r")
    clock.advance(AN_HOUR)
    assert graph.recover() == ["r"]
    bring(graph, fork.id)
    assert graph.recover() == [fork.id]
    (question,) = graph.runs("paused")[0].questions
    assert question.deadline == clock.now + AN_HOUR
    assert graph.resume(fork.id, "yes")["log"] == ["yes"]


def test_a_run_with_a_deadline_that_is_rolled_back_waits(clock: ManualClock, on_clock: MemoryStore) -> None:
    """H9: the deadline is over with the question."""
    graph = asking_graph(on_clock, lambda: pause("Well?", deadline=AN_HOUR, default="no answer"))
    paused(graph)
    graph.rollback("r", 0)
    clock.advance(2 * AN_HOUR)
    assert graph.recover() == []
    with pytest.raises(RunPaused):
        graph.resume("r")
    assert graph.runs()[0].questions[0].deadline == clock.now + AN_HOUR


def test_a_run_with_a_deadline_can_be_carried_elsewhere(
    clock: ManualClock, on_clock: MemoryStore, tmp_path: Path
) -> None:
    """H9, P8: its deadline goes with it."""
    graph = asking_graph(on_clock, lambda: pause("Well?", deadline=AN_HOUR, default="no answer"))
    there = asking_graph(
        MemoryStore(clock=clock), lambda: pause("Well?", deadline=AN_HOUR, default="no answer")
    )
    deadline = paused(graph).questions[0].deadline
    graph.export_run("r", tmp_path / "run")
    there.import_run(tmp_path / "run")
    (info,) = there.runs()
    assert info.questions[0].deadline == deadline
    clock.advance(AN_HOUR)
    with pytest.raises(AnswerRefused, match="deadline"):
        there.resume("r", "yes")
    assert there.resume("r")["log"] == ["no answer"]


def test_a_deadline_is_part_of_what_is_known_of_a_run(clock: ManualClock, on_clock: MemoryStore) -> None:
    """G12: of the run, of what is raised, and of what the caller that iterates it gets."""
    graph = asking_graph(on_clock, lambda: pause("Well?", deadline=AN_HOUR, default="no answer"))
    run = graph.invoke(run_id="r")
    told = [event for event in run if event["type"] == "pause"]
    assert told
    assert graph.runs()[0].questions[0].deadline == clock.now + AN_HOUR
    assert [each.node for each in graph.history("r")] == [None]


def test_a_run_with_a_deadline_can_be_cancelled(clock: ManualClock, on_clock: MemoryStore) -> None:
    """P7: the deadline doesn't wake it then."""
    graph = asking_graph(on_clock, lambda: pause("Well?", deadline=AN_HOUR, default="no answer"))
    paused(graph)
    graph.cancel("r")
    clock.advance(AN_HOUR)
    assert graph.recover() == []
    assert graph.runs()[0].status == "cancelled"


def test_a_deadline_by_the_wall_is_the_same(store: Any) -> None:
    """H9: on a real clock, with no other process than the one that resumes."""
    graph = asking_graph(store, lambda: pause("Well?", deadline=0.0, default="no answer"))
    paused(graph)
    assert graph.resume("r")["log"] == ["no answer"]
