"""Workflows as data flow: a task begins when what it needs is there, and sees what the tasks before it have added."""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import time
from typing import Any

import pytest

from limpet import (
    DefinitionError,
    ExecutionError,
    MemoryStore,
    NodeContext,
    Retry,
    RunPaused,
    RunWaiting,
    TaskResult,
    UsageError,
    Workflow,
    pause,
    receive,
    sleep,
)
from limpet.journal.open_parallel_section import OpenFlow
from limpet.journal.reader import read_progress
from support.waiting import until

PATIENCE = 30.0


class Gates:
    """Events by name: tasks open and await them, so that a test knows which of them were under way at once."""

    def __init__(self) -> None:
        self.events: dict[str, threading.Event] = {}
        self.lock = threading.Lock()

    def __getitem__(self, name: str) -> threading.Event:
        with self.lock:
            return self.events.setdefault(name, threading.Event())

    def wait(self, name: str) -> None:
        assert self[name].wait(PATIENCE), f"{name} didn't happen"

    def task(self, *, awaits: str = "", opens: str = "") -> Callable[[], None]:
        def run() -> None:
            if opens:
                self[opens].set()
            if awaits:
                self.wait(awaits)

        return run


def statuses(state: Any) -> dict[str, str]:
    return {name: record.status for name, record in state.tasks.items()}


@pytest.mark.parametrize("store", [None, "memory"])
def test_a_task_begins_when_what_it_needs_is_there(store: str | None) -> None:
    """H13: each chain's second task runs while the first of the other chain does; with barriers, none would end."""
    gates = Gates()
    flow = Workflow("chains", store=store)
    flow.add_task("a1", gates.task(awaits="b3"))
    flow.add_task("a2", gates.task(), depends_on=["a1"])
    flow.add_task("b1", gates.task())
    flow.add_task("b2", gates.task(), depends_on=["b1"])
    flow.add_task("b3", gates.task(opens="b3"), depends_on=["b2"])
    assert set(statuses(flow.execute())) == {"a1", "a2", "b1", "b2", "b3"}


@pytest.mark.parametrize("barriers", [{"layers": True}, {"handler": True}])
def test_with_barriers_a_layer_begins_when_the_one_before_is_done(barriers: dict[str, Any]) -> None:
    """H13: by the setting, or because of a handler after layers."""
    order: list[str] = []
    flow = Workflow("layers", layers="layers" in barriers)
    if "handler" in barriers:
        flow.after_layer(lambda layer: order.append(f"layer {layer}"))
    first_is_done = threading.Event()

    def slow() -> None:
        assert not first_is_done.wait(0.05), "the next layer has begun"
        order.append("slow")

    def quick_then() -> None:
        first_is_done.set()
        order.append("quick then")

    flow.add_task("slow", slow).add_task("quick", lambda: order.append("quick"))
    flow.add_task("then", quick_then, depends_on=["quick"])
    flow.execute()
    assert [each for each in order if not each.startswith("layer")] == ["quick", "slow", "quick then"]


def test_a_question_holds_up_only_what_depends_on_it() -> None:
    """H13, P3: the run pauses when nothing else can run; all else is done and saved by then."""
    flow = Workflow("asks", store=MemoryStore())
    flow.add_task("ask", lambda: pause("Go?"))
    flow.add_task("after_ask", lambda ask: ask, depends_on=["ask"])
    for number in range(5):
        flow.add_task(f"n{number}", lambda: 1, depends_on=[f"n{number - 1}"] if number else [])
    with pytest.raises(RunPaused):
        flow.execute(run_id="r")
    assert statuses(flow.state_at("r")) == {f"n{number}": "completed" for number in range(5)}
    assert flow.resume("r", "yes").results["after_ask"] == "yes"


def test_a_question_can_be_answered_while_other_tasks_run() -> None:
    """H13, P3: what depends on the answer runs at once, too."""
    gates = Gates()
    flow = Workflow("answered", store=MemoryStore(), lease=2.0)
    flow.add_task("ask", lambda: pause("Go?"))
    flow.add_task("then", gates.task(opens="then"), depends_on=["ask"])
    flow.add_task("busy", gates.task(opens="busy", awaits="then"))
    run = flow.invoke({}, run_id="r")
    thread = threading.Thread(target=run.wait)
    thread.start()
    gates.wait("busy")
    until(lambda: bool(flow.get("r").questions))
    flow.get("r").answer("yes")
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert run.status == "completed"


def test_a_question_from_before_a_resume_can_be_answered_while_other_tasks_run() -> None:
    """H13, P3: a resume that brings one of two answers listens for the other, and for messages."""
    gates = Gates()
    flow = Workflow("two", store=MemoryStore(), lease=2.0)
    flow.add_task("first", lambda: pause("First?"))
    flow.add_task("second", lambda: pause("Second?"))
    flow.add_task("third", lambda: receive("third"))
    flow.add_task("then", gates.task(opens="then"), depends_on=["second"])
    flow.add_task("last", gates.task(opens="last"), depends_on=["third"])
    flow.add_task("busy", gates.task(opens="busy", awaits="last"), depends_on=["first"])
    with pytest.raises(RunPaused) as paused:
        flow.execute(run_id="r")
    ids = {question.node: question.id for question in paused.value.questions}
    run = flow.invoke({ids["first"]: "yes"}, checkpoint="r")
    thread = threading.Thread(target=run.wait)
    thread.start()
    gates.wait("busy")
    flow.get("r").answer(answers={ids["second"]: "yes"})
    gates.wait("then")
    flow.get("r").send("third", 3)
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert run.status == "completed"


def test_the_deadline_of_a_question_passes_while_other_tasks_run() -> None:
    """H13, H9: what depends on the question runs then, and the question isn't shown any more."""
    gates = Gates()
    flow = Workflow("late", store=MemoryStore(), lease=2.0)
    flow.add_task("ask", lambda: pause("Go?", deadline=0.05, default="no"))
    flow.add_task("then", gates.task(opens="then"), depends_on=["ask"])

    def busy(ctx: NodeContext) -> list[Any]:
        gates.wait("then")
        return list(flow.get(ctx.run_id).questions)

    flow.add_task("busy", busy)
    state = flow.execute(run_id="r")
    assert state.results["ask"] == "no"
    assert state.results["busy"] == []


def test_a_failure_holds_up_only_what_depends_on_it() -> None:
    """H13: the run fails when nothing else can run; a resume runs only what failed, and what depends on it."""
    calls: list[str] = []
    broken = {"bad"}

    def work(ctx: NodeContext) -> None:
        calls.append(ctx.node)
        if ctx.node in broken:
            raise ValueError("no")

    flow = Workflow("fails", store=MemoryStore(), max_concurrency=1)
    flow.add_task("bad", work).add_task("after_bad", work, depends_on=["bad"])
    flow.add_task("good", work).add_task("after_good", work, depends_on=["good"])
    with pytest.raises(ExecutionError) as caught:
        flow.execute(run_id="r")
    assert caught.value.node == "bad"
    assert calls == ["bad", "good", "after_good"]
    broken.clear()
    calls.clear()
    flow.resume("r")
    assert calls == ["bad", "after_bad"]


def test_nothing_new_begins_after_a_failure_where_that_is_wanted() -> None:
    """H13: on_error="stop"; what has begun ends and is kept."""
    gates = Gates()

    def bad() -> None:
        gates.wait("busy")
        raise ValueError("no")

    flow = Workflow("stops", store=MemoryStore(), on_error="stop")

    def busy() -> None:
        gates["busy"].set()
        until(lambda: any(branch.status == "failed" for branch in branches()))

    def branches() -> list[Any]:
        progress = flow.compiled().need_client("test").store.read("r")
        section = read_progress(progress).section
        return [] if section is None else [*section.children.values()]

    flow.add_task("bad", bad).add_task("busy", busy).add_task("later", lambda: 1, depends_on=["busy"])
    with pytest.raises(ExecutionError):
        flow.execute(run_id="r")
    assert statuses(flow.state_at("r")) == {"busy": "completed"}


def test_settings_that_dont_exist_are_refused() -> None:
    """H13."""
    with pytest.raises(DefinitionError, match="on_error"):
        Workflow("x", on_error="never")  # type: ignore[arg-type]  # that is the mistake
    with pytest.raises(DefinitionError, match="layers"):
        Workflow("x", layers="yes")  # type: ignore[arg-type]  # likewise


def test_waits_for_time_hold_up_only_what_depends_on_them() -> None:
    """H13, H9, H8: a sleep, and the delay before the next attempt."""
    gates = Gates()

    def nap() -> None:
        sleep(0.3)
        assert gates["done"].is_set(), "the other tasks waited"

    attempts: list[int] = []

    def again() -> None:
        attempts.append(1)
        if len(attempts) == 1:
            raise ConnectionError("not now")
        assert gates["done"].is_set(), "the other tasks waited"

    flow = Workflow("naps", store=MemoryStore())
    flow.add_task("nap", nap).add_task("again", again, retry=Retry(2, backoff=0.3, jitter=0))
    flow.add_task("one", gates.task()).add_task("two", gates.task(opens="done"), depends_on=["one"])
    flow.execute()
    assert len(attempts) == 2


def test_a_run_in_which_a_task_failed_ends_when_the_sleeping_ones_have_woken() -> None:
    """H13: a worker leaves such a run until they are due, retries nothing by itself, and then fails it."""
    calls: list[str] = []
    hours = [0]

    def work(ctx: NodeContext) -> None:
        calls.append(ctx.node)
        if ctx.node == "bad":
            raise ValueError("no")
        if ctx.node == "nap":
            sleep(3600)

    flow = Workflow("mixed", store=MemoryStore(clock=lambda: time() + 3600 * hours[0]))
    flow.add_task("bad", work).add_task("nap", work).add_task("then", work, depends_on=["nap"])
    flow.start(run_id="r")
    flow.recover()
    assert flow.get("r").shown_status == "sleeping"
    hours[0] = 2
    flow.recover()
    failed = flow.get("r").info
    assert failed.status == "failed"
    assert failed.error is not None
    assert (failed.error["type"], failed.error["node"]) == ("ValueError", "bad")
    assert calls == ["bad", "nap", "nap", "then"]


def shares(**values: Any) -> Callable[[], TaskResult]:
    return lambda: TaskResult(None, context=values, messages=[*values])


def test_a_task_sees_what_the_tasks_before_it_have_added_and_nothing_else() -> None:
    """H13: results, context, messages and decisions, in the order of declaration, whichever was first."""
    seen: dict[str, Any] = {}

    def look(ctx: NodeContext, context: Any, state: Any) -> None:
        seen[ctx.node] = (context, state.messages, [*state.tasks], [each["by"] for each in state.decisions])
        ctx.add_decision("looked")

    flow = Workflow("views", max_concurrency=1)
    flow.add_task("left", shares(side="left", left=1)).add_task("right", shares(side="right", right=1))
    flow.add_task("sees_left", look, depends_on=["left"])
    flow.add_task("sees_both", look, depends_on=["sees_left", "right"])
    flow.add_task("sees_none", look)
    state = flow.execute()
    assert seen["sees_none"] == ({}, [], [], [])
    assert seen["sees_left"] == ({"side": "left", "left": 1}, ["side", "left"], ["left"], [])
    assert seen["sees_both"] == (
        {"side": "right", "left": 1, "right": 1},
        ["side", "left", "side", "right"],
        ["left", "right", "sees_left"],
        ["sees_left"],
    )
    assert state.context["side"] == "right"


def test_decisions_reach_only_tasks_that_depend_on_the_one_that_decides() -> None:
    """H13, D3: any other may have begun; with barriers, all of later layers are reached."""

    def refused(action: Callable[[NodeContext], None]) -> Callable[[NodeContext], str]:
        def run(ctx: NodeContext) -> str:
            with pytest.raises(UsageError, match=r"depend|data flow") as caught:
                action(ctx)
            return str(caught.value)

        return run

    flow = Workflow("reach").add_template("note", lambda: 1)
    flow.add_task("skips", refused(lambda ctx: ctx.skip("other")))
    flow.add_task("adds", refused(lambda ctx: ctx.add_task("n", "note", before=["other"])))
    flow.add_task("layers", refused(lambda ctx: ctx.skip_layers()))
    flow.add_task("other", lambda: 1)

    def decide(ctx: NodeContext) -> None:
        ctx.skip("child", reason="enough")
        ctx.add_task("extra", "note", before=["last"])

    flow.add_task("decides", decide).add_task("child", lambda: 1, depends_on=["decides"])
    flow.add_task("last", lambda results: [*results], depends_on=["decides"])
    state = flow.execute()
    assert "Workflow(layers=True)" in state.results["layers"]
    assert state.tasks["child"].reason == "'decides' decided so: enough"
    assert state.results["last"] == ["decides", "extra"]
    assert state.tasks["extra"].layer == 1
    assert state.tasks["last"].layer == 2


def test_layers_are_checkpoints_when_all_up_to_them_are_done() -> None:
    """D1, D3, H13: whichever order tasks end in; each can be loaded and resumed from."""
    gates = Gates()
    flow = Workflow("points", store=MemoryStore(), preserve=True, keep=None)
    flow.add_task("slow", gates.task(awaits="c"))
    flow.add_task("a", gates.task()).add_task("b", gates.task(), depends_on=["a"])
    flow.add_task("c", gates.task(opens="c"), depends_on=["b"])
    events = list(flow.stream({}, run_id="r"))
    saved = [event for event in events if event["type"] == "checkpoint_saved"]
    assert [event["layer"] for event in saved] == [0, 1, 2]
    done = [event["task"] for event in events if event["type"] == "task_complete"]
    assert done == ["a", "b", "c", "slow"]
    for event in saved:
        point = flow.checkpoint(event["checkpoint_id"])
        assert point.completed_layers == event["layer"] + 1
        assert point.layers == [["slow", "a"], ["b"], ["c"]]


def test_a_workflow_keeps_the_way_of_running_that_it_began_with() -> None:
    """H13: what is stored says how a run continues, not the settings of today."""
    store = MemoryStore()

    def made(**settings: Any) -> Workflow:
        flow = Workflow("same", store=store, **settings).add_task("a", lambda: pause("?"))
        return flow.add_task("b", lambda: 1).add_task("c", lambda: 1, depends_on=["b"])

    for number, (before, after) in enumerate([({}, {"layers": True}), ({"layers": True}, {})]):
        run_id = f"r{number}"
        with pytest.raises(RunPaused):
            made(**before).execute(run_id=run_id)
        assert ("c" in made(**before).state_at(run_id).tasks) == (not before)
        assert statuses(made(**after).resume(run_id, 1)) == dict.fromkeys("abc", "completed")


def test_a_condition_is_asked_when_it_is_the_tasks_turn_and_may_ask_a_question() -> None:
    """H13, P1: it holds up only its task; its answer isn't taken for that of the task."""
    flow = Workflow("conditions", store=MemoryStore())
    flow.add_task("a", lambda: 1)
    flow.add_task("b", lambda: pause("How many?"), depends_on=["a"], condition=lambda: pause("Run b?"))
    flow.add_task("c", lambda: 1, depends_on=["a"])
    with pytest.raises(RunPaused) as caught:
        flow.execute(run_id="r")
    assert [each.prompt for each in caught.value.questions] == ["Run b?"]
    assert statuses(flow.state_at("r")) == {"a": "completed", "c": "completed"}
    with pytest.raises(RunPaused) as caught:
        flow.resume("r", True)
    assert [each.prompt for each in caught.value.questions] == ["How many?"]
    assert flow.resume("r", 7).results["b"] == 7


def test_a_condition_that_waits_for_a_message_doesnt_hold_until_it_has_come() -> None:
    """H13, H16: its task neither runs nor is skipped meanwhile, and other tasks run."""
    flow = Workflow("mail", store=MemoryStore())
    flow.add_task("a", lambda: 1)
    flow.add_task("b", lambda: 2, condition=lambda: receive("go"))
    with pytest.raises(RunWaiting):
        flow.execute(run_id="r")
    assert statuses(flow.state_at("r")) == {"a": "completed"}
    flow.send("r", "go", False)
    assert statuses(flow.resume("r")) == {"a": "completed", "b": "skipped"}


@pytest.mark.parametrize("stops_at", ["t2", "t3", "t4"])
def test_a_message_from_outside_keeps_its_place_when_the_run_is_resumed_again(stops_at: str) -> None:
    """H13: what tasks shared is merged in the journal, and a resumed run sees it in the order of an uncut one."""
    seen: dict[str, list[Any]] = {}

    def say(ctx: NodeContext, state: Any) -> None:
        seen[ctx.node] = list(state["messages"])
        ctx.add_message(ctx.node)
        if ctx.node in ("t0", stops_at):
            pause("go?")

    flow = Workflow("chain")
    for number in range(6):
        flow.add_task(f"t{number}", say, depends_on=[f"t{number - 1}"] if number else [])
    flow.compile(store=MemoryStore())
    with pytest.raises(RunPaused):
        flow.execute(run_id="r")
    with pytest.raises(RunPaused):
        flow.resume("r", "yes", update={"messages": ["outside"], "context": {"by": "outside"}})
    final = flow.resume("r", "yes")
    assert seen["t5"] == ["outside", "t0", "t1", "t2", "t3", "t4"]
    assert final.messages == [*seen["t5"], "t5"]
    assert final.context == {"by": "outside"}


def test_the_order_of_tasks_can_be_asked_for_while_one_is_added() -> None:
    """H13: tasks ask for it in their threads, and the loop adds tasks meanwhile."""

    class Growing(dict[str, Any]):
        def items(self) -> Any:
            for number, each in enumerate(dict.items(self)):
                self[f"added{number}"] = {}
                yield each

    dag = Growing(a={}, b={})
    assert OpenFlow({}, {"context": {}, "messages": []}).places(dag) == {"a": (0, 0), "b": (0, 1)}
