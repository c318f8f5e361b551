"""Workflows that change: while they run, by what their tasks decide; and between a stop and a resume, in the code."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from limpet import (
    ExecutionError,
    MemoryStore,
    NodeContext,
    RunPaused,
    TaskResult,
    UsageError,
    Workflow,
    WorkflowChanged,
    WorkflowState,
    pause,
)
from limpet.journal.encoding.codec import encode
from limpet.journal.store import Commit
from support.graphs import AT_ONCE, Crash, Via

NOT_COMPARED = ("timestamp", "duration", "attempts")
"""What is different about the records of a run that was cut: what the clock says, and how often it was begun."""


class CutStore(MemoryStore):
    """A store whose process ends before, or after, a commit that is counted down to."""

    def __init__(self, ahead: int, when: str) -> None:
        super().__init__()
        self.ahead, self.when = ahead, when

    def append(self, commits: Sequence[Commit]) -> list[Exception | None]:
        self.ahead -= 1
        if self.ahead == 0 and self.when == "before":
            raise Crash
        answers = super().append(commits)
        if self.ahead == 0:
            raise Crash
        return answers


class Calls:
    """A function for tasks: it counts its calls by task, and fails or asks where the test says."""

    def __init__(self, *bad: str) -> None:
        self.ran: Counter[str] = Counter()
        self.bad = set(bad)
        self.asking: set[str] = set()

    def __call__(self, ctx: NodeContext, **given: Any) -> Any:
        self.ran[ctx.node] += 1
        ctx.add_message(ctx.node)
        if ctx.node in self.bad:
            raise ValueError(f"no {ctx.node} today")
        if ctx.node in self.asking:
            pause(f"{ctx.node}?")
        return (ctx.node, sorted(given))

    def take(self) -> dict[str, int]:
        """The calls since the last look."""
        taken, self.ran = dict(self.ran), Counter()
        return taken


def told(state: WorkflowState) -> bytes:
    """All of a state, with types and the order of keys, but for what differs by nature."""
    tasks = {
        name: {key: value for key, value in record.items() if key not in NOT_COMPARED}
        for name, record in state["tasks"].items()
    }
    return encode({**state, "tasks": tasks})


def stopped(made: Workflow, **more: Any) -> Exception:
    """Run "r" until it fails or pauses."""
    with pytest.raises((ExecutionError, RunPaused)) as caught:
        made.execute(run_id="r", **more)
    return caught.value


def stored(store: MemoryStore, run_id: str = "r") -> Any:
    """All that a store has of a run."""
    tail = store.read(run_id, first=1)
    return tail.head, list(tail.records)


# Changes that tasks decide on


def lively(store: Any, calls: Calls, **settings: Any) -> Workflow:
    """A workflow that adds tasks, before others and by added ones, skips tasks and a layer, and has a handler."""
    flow = Workflow("lively", store=store, **{"preserve": True, "max_concurrency": 1, **settings})

    def plan(ctx: NodeContext) -> Any:
        for number in range(3):
            ctx.add_task(f"n{number}", "work", ["plan"], arguments={"number": (number,)}, before=["end"])
        ctx.skip("never", reason="not today")
        return (calls(ctx), 1.0)

    def work(ctx: NodeContext, number: tuple[int]) -> Any:
        if number == (1,):
            ctx.add_task("deep", "work", ["n0"], optional=["n1"], arguments={"number": (9,)}, before=["end"])
        ctx.add_context({f"of {ctx.node}": number})
        return [calls(ctx), number]

    def last(ctx: NodeContext, **given: Any) -> Any:
        return TaskResult(
            (calls(ctx, **given),),
            add_tasks=[{"name": "more", "run": "note", "depends_on": ["last"]}],
            skip=["no"],
        )

    flow.add_template("work", work).add_template("note", calls)
    flow.add_task("plan", plan).add_task("side", calls).add_task("never", calls, ["plan"])
    flow.add_task("end", calls, ["plan"]).add_task("last", last, ["end", "side"])
    flow.add_task("no", calls, ["last"]).add_task("skipped", calls, ["no"])
    flow.add_task("hop", calls, ["last"]).add_task("after", calls, optional=["hop"])

    @flow.after_layer
    def handler(layer: int, ctx: NodeContext) -> None:
        ctx.add_decision(f"layer {layer} is done")
        if layer == 1:
            ctx.add_task("by handler", "note", before=["last"])

    return flow


def whole() -> WorkflowState:
    return lively(MemoryStore(), Calls()).execute(run_id="r")


def test_a_changed_run_has_what_its_tasks_decided() -> None:
    """D3: the layers as they came to be, what was skipped and why, and the DAG in the checkpoint."""
    store = MemoryStore()
    final = lively(store, Calls()).execute(run_id="r")
    point = lively(store, Calls()).checkpoint("r")
    assert point.layers == [
        ["plan", "side"], ["never", "n0", "n1", "n2"], ["deep", "by handler"], ["end"], ["last"],
        ["no", "skipped", "hop", "more"], ["after"],
    ]  # fmt: skip
    assert {name: record.reason for name, record in final.tasks.items() if record.reason} == {
        "never": "'plan' decided so: not today", "no": "'last' decided so",
        "skipped": "'no', which it depends on, was skipped",
    }  # fmt: skip
    assert point.dag["end"]["depends_on"] == ["plan", "n0", "n1", "n2", "deep"]
    assert point.dag["deep"] == {
        "depends_on": ["n0"], "optional": ["n1"], "arguments": {"number": (9,)}, "run": "work", "added_by": "n1",
    }  # fmt: skip
    assert final.results["end"] == ("end", ["deep", "n0", "n1", "n2", "plan"])
    assert final.check() is None


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_crash_at_any_commit_leaves_a_run_with_the_same_result(when: str) -> None:
    """D3, D4, H3: the changed DAG resumes; what was durable isn't done again."""
    expected, ahead = told(whole()), 0
    while True:
        ahead += 1
        calls, store = Calls(), CutStore(ahead, when)
        try:
            lively(store, calls).execute(run_id="r")
        except Crash:
            pass
        else:
            break
        made = lively(store, calls)
        if made.runs()[0].status == "completed":
            assert told(made.state_at("r")) == expected
            continue
        durable = set(made.state_at("r").results)
        calls.take()
        assert told(made.resume("r")) == expected, ahead
        assert durable.isdisjoint(calls.take())
    assert ahead > 15


def test_a_changed_run_that_is_left_after_any_event_has_the_same_result(via: Via) -> None:
    """D3, D4, H3: nothing that was reported as complete runs twice."""
    expected = told(whole())
    events = via.events(lively(MemoryStore(), Calls()))
    for count in range(1, len(events)):
        calls, store = Calls(), MemoryStore()
        run = lively(store, calls).stream(run_id="r")
        done = {
            event["task"] for event in (next(run) for _ in range(count)) if event["type"] == "task_complete"
        }
        run.close()
        assert told(via.resume(lively(store, calls), "r")) == expected, count
        assert {calls.ran[task] for task in done} <= {1}


@pytest.mark.parametrize("bad", ["plan", "n1", "deep", "by handler", "end", "more", "after"])
def test_whichever_task_fails_the_changed_run_resumes(bad: str, store: Any, via: Via) -> None:
    """D4, H3: what a task decided before it failed doesn't count, and can be decided again."""
    calls = Calls(bad)
    stopped(lively(store, calls, max_concurrency=32))
    calls.bad.clear()
    final = via.resume(lively(store, calls), "r")
    assert told(final) == told(whole())
    assert {task: count for task, count in calls.take().items() if count > 1} == {bad: 2}


def test_forks_and_rollbacks_have_the_tasks_of_their_step() -> None:
    """D3: a fork from before a decision takes it again, one from after it has it."""
    store = MemoryStore()
    made, expected = lively(store, Calls()), told(whole())
    made.execute(run_id="r")
    for step in range(made.history("r")[-1].step + 1):
        assert told(made.fork("r", step).result()) == expected
    for step in (8, 3, 12, 0):
        made.rollback("r", step)
        assert told(made.resume("r")) == expected
    assert "n0" not in made.checkpoint("r@3").dag
    assert "n0" in made.checkpoint("r@4").dag


def test_many_tasks_may_be_added_at_once(store: Any) -> None:
    """D3, H3: all of them run, once, over a stop in the middle of them."""
    calls = Calls("n150")

    def made() -> Workflow:
        flow = Workflow("many", store=store, max_concurrency=8).add_template("note", calls)

        @flow.task
        def plan(ctx: NodeContext) -> None:
            for number in range(300):
                ctx.add_task(f"n{number}", "note", before=["end"])

        return flow.add_task("end", calls, ["plan"])

    stopped(made())
    calls.bad.clear()
    left = made().plan_resume("r")
    assert len(left.kept) + len(left.layers[0]) == 301
    assert not left.differs
    final = made().resume("r")
    assert final.results["end"] == ("end", sorted(["plan", *(f"n{number}" for number in range(300))]))
    assert set(calls.take().items()) == {
        ("n150", 2),
        ("end", 1),
        *((f"n{n}", 1) for n in range(300) if n != 150),
    }


def test_tasks_may_be_added_by_tasks_that_were_added(store: Any, via: Via) -> None:
    """D3, D4: a chain that grows as it goes, stopped at every link; the budget of layers is the run's."""
    calls = Counter[int]()

    def link(ctx: NodeContext, n: int) -> int:
        calls[n] += 1
        if n < 12:
            ctx.add_task(f"link {n + 1}", "link", [ctx.node], arguments={"n": n + 1})
        if calls[n] == 1:
            raise ValueError
        return n

    def made(**more: Any) -> Workflow:
        flow = Workflow("chain", store=store, **more).add_template("link", link)
        return flow.add_task("start", lambda ctx: ctx.add_task("link 0", "link", arguments={"n": 0}))

    stopped(made())
    for _ in range(12):
        with pytest.raises(ExecutionError):
            via.resume(made(), "r")
    assert set(calls.values()) == {1, 2}
    with pytest.raises(ExecutionError):
        made(max_layers=5).resume("r")
    final = made().resume("r")
    assert list(final.tasks) == ["start", *(f"link {n}" for n in range(13))]
    assert set(calls.values()) == {2}


BAD_ADDS: dict[str, Callable[[NodeContext], Any]] = {
    "no such code": lambda ctx: ctx.add_task("n", "nothing"),
    "no code": lambda ctx: ctx.add_task("n"),
    "a task's name": lambda ctx: ctx.add_task("b", "note"),
    "a template's name": lambda ctx: ctx.add_task("note", "note"),
    "an unknown dependency": lambda ctx: ctx.add_task("n", "note", ["missing"]),
    "itself": lambda ctx: ctx.add_task("n", "note", ["n"]),
    "before an unknown one": lambda ctx: ctx.add_task("n", "note", before=["missing"]),
    "before itself": lambda ctx: ctx.add_task("n", "note", before=["n"]),
    "twice": lambda ctx: [ctx.add_task("n", "note"), ctx.add_task("n", "note", ["a"])],
    "a bad name": lambda ctx: ctx.add_task("a/b", "note"),
    "unstorable": lambda ctx: ctx.add_task("n", "note", arguments={"k": object()}),
    "unused arguments": lambda ctx: ctx.add_task("n", "plain", arguments={"k": 1}),
    "a missing input": lambda ctx: ctx.add_task("n", "wants"),
    "a result": lambda ctx: TaskResult(add_tasks=[{"name": "n", "run": "nothing"}]),
    "an unknown key": lambda ctx: TaskResult(add_tasks=[{"name": "n", "run": "note", "after": []}]),
}


@pytest.mark.parametrize("way", BAD_ADDS)
def test_a_task_that_can_not_be_is_refused_at_the_call(way: str) -> None:
    """D3: the task that asked for it fails, and nothing is added; when it is fixed, the run resumes."""
    store, add = MemoryStore(), [BAD_ADDS[way]]

    def made() -> Workflow:
        flow = Workflow("made", store=store).add_template("note", Calls()).add_template("plain", lambda: 1)
        flow.add_template("wants", lambda missing: missing)
        return flow.add_task("a", lambda ctx: add[0](ctx)).add_task("b", Calls(), ["a"])

    error = stopped(made())
    assert isinstance(error, ExecutionError)
    assert isinstance(error.cause, UsageError)
    add[0] = lambda ctx: ctx.add_task("n", "note")
    assert list(made().resume("r").results) == ["a", "b", "n"]


def test_what_is_found_out_later_is_refused_and_the_run_resumes(
    store: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """D3, D11: the refusal is a decision of its own, with a warning; the first in the order of tasks wins."""

    def made() -> Workflow:
        flow = Workflow("made", store=store, preserve=True, layers=True)
        flow.add_template("note", lambda who: who)

        def adder(ctx: NodeContext) -> None:
            ctx.add_task("same", "note", arguments={"who": ctx.node})
            ctx.skip("x", "late")
            ctx.add_task(f"by {ctx.node}", "note", arguments={"who": 1}, before=["y"])

        flow.add_task("x", adder).add_task("y", adder)
        return flow.add_task("late", Calls(), ["x"]).add_task("stop", lambda: pause("?"), ["x"])

    with caplog.at_level(logging.WARNING, "limpet"):
        stopped(made())
    final = made().resume("r", 1)
    refused = [(each["by"], each["decision"]) for each in final.decisions if each["kind"] == "refused"]
    assert Counter(refused) == {
        ("x", "skip_tasks"): 1, ("y", "skip_tasks"): 1, ("x", "add_task"): 1, ("y", "add_task"): 2,
    }  # fmt: skip
    assert len([each for each in caplog.records if "refused" in each.message]) == 5
    assert final.results["same"] == "x"
    assert final.tasks["late"].status == "skipped"
    assert not {"by x", "by y"} & set(final.tasks)


def test_skipped_layers_stay_so_over_a_stop(store: Any) -> None:
    """D3, D4: with tasks that depend on them; what optionally does runs."""
    calls = Calls("e")

    def made() -> Workflow:
        flow = Workflow("made", store=store, preserve=True, layers=True)
        flow.add_task("a", lambda ctx: ctx.skip_layers(2, "enough"))
        flow.add_task("b", calls, ["a"]).add_task("c", calls, ["b"]).add_task("d", calls, ["c"])
        return flow.add_task("e", calls, optional=["c"])

    stopped(made())
    calls.bad.clear()
    final = made().resume("r")
    assert {name: record.status for name, record in final.tasks.items()} == {
        "a": "completed", "b": "skipped", "c": "skipped", "d": "skipped", "e": "completed",
    }  # fmt: skip
    assert final.tasks["c"].reason == "'a' decided so: enough"
    assert calls.take() == {"e": 2}


def test_what_a_handler_adds_while_it_asks_is_added_once(store: Any) -> None:
    """D11, P1: it is called again with the answer."""

    def made() -> Workflow:
        flow = Workflow("made", store=store).add_template("note", Calls()).add_task("a", Calls())

        @flow.after_layer
        def handler(layer: int, ctx: NodeContext) -> TaskResult | None:
            if layer:
                return None
            ctx.add_task("always", "note")
            more = [{"name": "approved", "run": "note"}] if pause("more?") else []
            return TaskResult(add_tasks=more, messages=["handled"])

        return flow

    stopped(made())
    assert "always" not in made().checkpoint("r").dag
    final = made().resume("r", True)
    assert list(final.tasks) == ["a", "always", "approved"]
    assert final.messages.count("handled") == 1


def test_an_added_task_may_be_put_before_another_added_one(store: Any) -> None:
    """D3: the same code resumes the run; nothing is different, so nothing is gone."""
    calls = Calls("b")

    def made() -> Workflow:
        flow = Workflow("made", store=store).add_template("note", calls)

        @flow.task
        def a(ctx: NodeContext) -> None:
            ctx.add_task("n1", "note")
            ctx.add_task("n2", "note", before=["n1"])

        return flow.add_task("b", calls, ["a"])

    stopped(made())
    calls.bad.clear()
    assert not made().plan_resume("r").differs
    assert made().resume("r").results["n1"] == ("n1", ["n2"])


def test_a_task_that_would_close_a_circle_is_refused() -> None:
    """D3: at the call, or as a decision that is refused; the run doesn't end in a place it can't leave."""
    flow = Workflow("made", store=MemoryStore()).add_template("note", Calls())
    flow.add_task("a", lambda ctx: ctx.add_task("n", "note", ["c"], before=["b"]))
    flow.add_task("b", Calls(), ["a"]).add_task("c", Calls(), ["b"])
    run = flow.invoke().wait()
    if isinstance(run.error, ExecutionError):
        assert isinstance(run.error.cause, UsageError)
    else:
        assert run.state["decisions"][-1]["kind"] == "refused"


def test_a_condition_sees_what_the_handler_has_said() -> None:
    """D11: the handler is called after the layer, and the next one is planned after that."""
    flow = Workflow("made").add_task("a", Calls())
    flow.add_task("b", Calls(), ["a"], condition=lambda context: context.get("go"))
    flow.after_layer(lambda ctx: ctx.add_context(go=True))
    assert flow.execute().tasks["b"].status == "completed"


# The code is edited between a stop and a resume


Tasks = Mapping[str, Mapping[str, Any]]

BASE: Tasks = {
    "a": {}, "b": {"depends_on": ["a"]}, "c": {"depends_on": ["a"]}, "d": {"depends_on": ["b", "c"]},
    "e": {"depends_on": ["d"], "arguments": {"k": (1,)}},
}  # fmt: skip
"""A run of this stops in the layer of b and c: b is finished, c isn't."""


def edited(store: Any, calls: Calls, tasks: Tasks, **settings: Any) -> Workflow:
    flow = Workflow("edited", store=store, preserve=True, **settings)
    for name, options in tasks.items():
        flow.add_task(name, calls, **options)
    return flow


def without(*names: str, **others: Mapping[str, Any]) -> Tasks:
    """The base without some tasks, and with others (or other ones)."""
    return {**{name: options for name, options in BASE.items() if name not in names}, **others}


EDITS: dict[str, tuple[Tasks, dict[str, Any]]] = {
    "added in front": (without(x={}), {"new": ["x"]}),
    "added behind": (without(x={"depends_on": ["e"]}), {"new": ["x"]}),
    "added in parallel": (without(x={"depends_on": ["a"]}), {"new": ["x"]}),
    "first one gone": (
        without("a", b={}, c={}), {"changed": {"b", "c"}, "gone": ["a"], "dropped": ["a"]},
    ),
    "finished one of the open layer gone": (
        without("b", d={"depends_on": ["c"]}), {"changed": {"d"}, "gone": ["b"], "dropped": ["b"]},
    ),
    "failed one gone": (without("c", d={"depends_on": ["b"]}), {"changed": {"d"}, "gone": ["c"]}),
    "whole open layer gone": (
        without("b", "c", d={"depends_on": ["a"]}), {"changed": {"d"}, "gone": ["b", "c"], "dropped": ["b"]},
    ),
    "last one gone": (without("e"), {"gone": ["e"]}),
    "all but one gone": (
        {"e": {}}, {"changed": {"e"}, "gone": ["a", "b", "c", "d"], "dropped": ["a", "b"]},
    ),
    "dependency of the failed one": (
        without(x={}, c={"depends_on": ["a", "x"]}), {"new": ["x"], "changed": {"c"}},
    ),
    "dependency of a finished one": (without(x={}, b={"depends_on": ["x"]}), {"new": ["x"], "changed": {"b"}}),
    "dependency on a later one": (
        without(c={"depends_on": ["d"]}, d={"depends_on": ["b"]}), {"changed": {"c", "d"}},
    ),
    "dependency removed": (without(d={"depends_on": ["c"]}), {"changed": {"d"}}),
    "arguments": (without(e={"depends_on": ["d"], "arguments": {"k": [1]}}), {"changed": {"e"}}),
    "arguments of a finished one": (without(b={"depends_on": ["a"], "arguments": {"z": 1}}), {"changed": {"b"}}),
    "optional": (without(d={"depends_on": ["c"], "optional": ["b"]}), {"changed": {"d"}}),
    "parameter's name": (without(d={"depends_on": {"one": "b", "two": "c"}}), {"changed": {"d"}}),
    "failed one renamed": (
        without("c", z={"depends_on": ["a"]}, d={"depends_on": ["b", "z"]}),
        {"new": ["z"], "changed": {"d"}, "gone": ["c"]},
    ),
    "finished one renamed": (
        without("b", z={"depends_on": ["a"]}, d={"depends_on": ["z", "c"]}),
        {"new": ["z"], "changed": {"d"}, "gone": ["b"], "dropped": ["b"]},
    ),
}  # fmt: skip


def at_c(stop: str) -> tuple[MemoryStore, Calls]:
    """A run of the base that stopped at c."""
    store, calls = MemoryStore(), Calls()
    (calls.bad if stop == "failed" else calls.asking).add("c")
    stopped(edited(store, calls, BASE))
    assert calls.take() == {"a": 1, "b": 1, "c": 1}
    calls.bad.clear()
    return store, calls


@pytest.mark.parametrize("edit", EDITS)
def test_a_plan_lists_each_edit_and_changes_nothing(edit: str) -> None:
    """D7: what is new, changed, gone and dropped, what is kept and what would run, to read and as text."""
    tasks, different = EDITS[edit]
    store, calls = at_c("failed")
    before = stored(store)
    for policy in ("fail", "warn"):
        plan = edited(store, calls, tasks, on_mismatch=policy).plan_resume("r")
        assert (plan.new, set(plan.changed), plan.gone, plan.dropped) == (
            different.get("new", []), different.get("changed", set()), different.get("gone", []),
            different.get("dropped", []),
        )  # fmt: skip
        assert plan.differs
        assert plan.kept == [name for name in ("a", "b") if name in tasks]
        assert sorted(name for layer in plan.layers for name in layer) == sorted(set(tasks) - set(plan.kept))
        assert (plan.run_id, plan.status, plan.completed_layers) == ("r", "failed", 1)
        for name in (*plan.new, *plan.changed, *plan.gone):
            assert repr(name) in str(plan)
    assert stored(store) == before
    assert calls.take() == {}


@pytest.mark.parametrize("stop", ["failed", "paused"])
@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_is_refused_with_an_account_and_the_old_code_resumes(edit: str, stop: str) -> None:
    """D7: on_mismatch="fail" runs and changes nothing."""
    tasks, different = EDITS[edit]
    store, calls = at_c(stop)
    before = stored(store)[1]
    answer = () if stop == "failed" else (1,)
    with pytest.raises(WorkflowChanged) as caught:
        edited(store, calls, tasks).resume("r", *answer)
    for name in (*different.get("new", ()), *different.get("changed", ()), *different.get("gone", ())):
        assert repr(name) in caught.value.account
    assert ("results of 'a'" in str(caught.value)) == ("a" in different.get("dropped", ()))
    with pytest.raises(WorkflowChanged):
        edited(store, calls, tasks).fork("r")
    with pytest.raises(WorkflowChanged):
        edited(store, calls, tasks).rollback("r", 1)
    assert calls.take() == {}
    assert stored(store)[1] == before
    final = edited(store, calls, BASE).resume("r", *answer)
    assert list(final["tasks"]) == list("abcde")
    assert calls.take() == {"c": 1, "d": 1, "e": 1}


@pytest.mark.parametrize("stop", ["failed", "paused"])
@pytest.mark.parametrize("edit", EDITS)
def test_a_run_resumes_with_edited_tasks_and_keeps_what_is_finished(
    edit: str, stop: str, via: Via, caplog: pytest.LogCaptureFixture
) -> None:
    """D7, H3: on_mismatch="warn" runs what isn't finished as it is in the code now, and says what is different."""
    tasks, _ = EDITS[edit]
    store, calls = at_c(stop)
    calls.asking.clear()
    made = edited(store, calls, tasks, on_mismatch="warn")
    plan = made.plan_resume("r")
    still_asks = bool(plan.questions)
    with caplog.at_level(logging.WARNING, "limpet"):
        final = via.resume(made, "r", *((1,) if still_asks else ()))
    (warning,) = [each.getMessage() for each in caplog.records if "has changed" in each.getMessage()]
    assert all(repr(name) in warning for name in plan.gone)
    assert calls.take() == dict.fromkeys(set(tasks) - set(plan.kept), 1)
    assert isinstance(final, WorkflowState)
    final.check()
    fresh = edited(MemoryStore(), Calls(), tasks).execute()
    ran = set(tasks) - set(plan.kept)
    assert {name: final.results[name] for name in ran} == {name: fresh.results[name] for name in ran}
    assert set(final.results) == set(tasks)
    assert final["dag"] == fresh["dag"]


def test_after_a_warning_the_run_is_one_of_the_new_workflow(caplog: pytest.LogCaptureFixture) -> None:
    """D7: saved as such, so that the next resume finds nothing to warn of, and the old code is what differs."""
    store, calls = at_c("failed")
    tasks, _ = EDITS["finished one renamed"]
    calls.asking = {"e"}
    with pytest.raises(RunPaused):
        edited(store, calls, tasks, on_mismatch="warn").resume("r")
    caplog.clear()
    assert not edited(store, calls, tasks).plan_resume("r").differs
    assert edited(store, calls, BASE).plan_resume("r").gone == ["z"]
    final = edited(store, calls, tasks).resume("r", 1)
    assert set(final.results) == set("aczde")
    assert caplog.records == []
    assert calls.take() == {"c": 1, "z": 1, "d": 1, "e": 2}


def test_a_crash_right_after_a_warning_costs_nothing() -> None:
    """D7, D4: at any commit of the resume that took over the edited tasks."""
    tasks, _ = EDITS["finished one renamed"]
    for when in ("before", "after"):
        for ahead in range(1, 20):
            calls, store = Calls("c"), CutStore(0, when)
            stopped(edited(store, calls, BASE, max_concurrency=1))
            calls.bad.clear()
            store.ahead = ahead
            made = edited(store, calls, tasks, on_mismatch="warn", max_concurrency=1)
            try:
                final = made.resume("r")
            except Crash:
                store.ahead = 0
                if made.runs()[0].status == "completed":
                    continue
                final = edited(store, calls, tasks, on_mismatch="warn").resume("r")
            assert set(final.results) == set("aczde")
            assert calls.take()["a"] == 1


def test_a_fork_of_an_edited_workflow_leaves_the_run_as_it_was() -> None:
    """D7: the fork has the new tasks, and the old run the old ones."""
    store, calls = at_c("failed")
    before = stored(store)
    tasks, _ = EDITS["failed one renamed"]
    final = edited(store, calls, tasks, on_mismatch="warn").fork("r").result()
    assert list(final["dag"]) == list(tasks)
    assert calls.take() == {"z": 1, "d": 1, "e": 1}
    assert stored(store) == before
    assert edited(store, calls, BASE).resume("r")["tasks"].keys() == BASE.keys()


@pytest.mark.parametrize("policy", ["fail", "warn"])
def test_code_that_isnt_part_of_the_dag_may_change_freely(policy: str) -> None:
    """D7: functions, conditions, retries, handlers and the order of tasks are as they are now."""
    store, calls = at_c("failed")
    made = Workflow("edited", store=store, on_mismatch=policy)
    for name, options in reversed(BASE.items()):
        condition = (lambda context: False) if name == "d" else None
        made.add_task(name, calls, **options, condition=condition, retry=AT_ONCE, safe_to_fail=name == "c")
    made.add_template("t", calls)
    made.after_layer(lambda ctx: ctx.add_message("handled"))
    calls.bad = {"c"}
    assert not made.plan_resume("r").differs
    final = made.resume("r")
    assert {name: record.status for name, record in final.tasks.items()} == {
        "a": "completed", "b": "completed", "c": "failed", "d": "skipped", "e": "skipped",
    }  # fmt: skip
    assert calls.take() == {"c": 3}


# Questions, added tasks and templates, when the code is edited


def test_the_question_of_a_task_that_is_gone_or_changed_is_no_longer_open() -> None:
    """D7, D11: an answer to it is refused; a changed task asks again, and waits."""
    store, calls = at_c("paused")
    made = edited(store, calls, EDITS["dependency of the failed one"][0], on_mismatch="warn")
    with pytest.raises(UsageError, match="no longer exists, as the task that asked it has changed"):
        made.resume("r", answers={"c:3.1:1": 1})
    with pytest.raises(RunPaused) as caught:
        made.resume("r")
    assert [each.node for each in caught.value.questions] == ["c"]
    assert calls.take() == {"x": 1, "c": 1}
    gone = edited(*at_c("paused"), EDITS["failed one gone"][0], on_mismatch="warn")
    assert set(gone.resume("r").results) == set("abde")


@pytest.mark.parametrize("edit", ["failed one gone", "dependency of the failed one"])
def test_a_plan_has_no_question_that_can_not_be_answered(edit: str) -> None:
    """D7: it says what a resume would do."""
    store, calls = at_c("paused")
    assert edited(store, calls, EDITS[edit][0], on_mismatch="warn").plan_resume("r").questions == []


def test_an_edit_while_the_handler_asks_keeps_the_finished_layer() -> None:
    """D7, D11: its question is still open, and is what comes next."""
    store, calls = MemoryStore(), Calls()

    def made(tasks: Tasks, policy: str = "warn") -> Workflow:
        flow = edited(store, calls, tasks, on_mismatch=policy)
        flow.after_layer(lambda layer, ctx: ctx.add_message(pause("go?")) if layer == 1 else None)
        return flow

    stopped(made(BASE))
    calls.take()
    tasks = without("b", x={"depends_on": ["a"]}, d={"depends_on": ["c", "x"]})
    with pytest.raises(WorkflowChanged):
        made(tasks, "fail").resume("r", "yes")
    with pytest.raises(RunPaused):
        made(tasks).resume("r")
    final = made(tasks).resume("r", "yes")
    assert set(final.results) == set("acxde")
    assert final.messages.count("yes") == 1
    assert calls.take() == {"x": 1, "d": 1, "e": 1}


def growing(store: Any, calls: Calls, *templates: str, on_mismatch: Any = "fail", **tasks: Any) -> Workflow:
    """a adds two tasks by templates t and u, both before end; the second depends on the first."""
    flow = Workflow("growing", store=store, on_mismatch=on_mismatch, preserve=True)
    for name in templates:
        flow.add_template(name, calls)

    def a(ctx: NodeContext) -> Any:
        ctx.add_task("one", "t", ["a"], before=["end"])
        ctx.add_task("two", "u", ["one"], before=["end"])
        return calls(ctx)

    flow.add_task("a", a).add_task("end", calls, ["a"])
    for name, options in tasks.items():
        flow.add_task(name, calls, **options)
    return flow


@pytest.mark.parametrize(
    ("bad", "left", "gone", "dropped", "ran"),
    [
        ("one", ["t"], ["two"], [], {"one", "end"}),
        ("one", ["u"], ["one", "two"], [], {"end"}),
        ("two", ["t"], ["two"], [], {"end"}),
        ("two", ["u"], ["one", "two"], ["one"], {"end"}),
        ("end", [], ["one", "two"], ["one", "two"], {"end"}),
        ("end", ["t"], ["two"], ["two"], {"end"}),
    ],
)
def test_added_tasks_go_with_their_template_and_what_they_depend_on(
    bad: str, left: list[str], gone: list[str], dropped: list[str], ran: set[str]
) -> None:
    """D7: those that are there still run, and tasks that were to come after the others don't wait for them."""
    store, calls = MemoryStore(), Calls(bad)
    stopped(growing(store, calls, "t", "u"))
    calls.take()
    calls.bad.clear()
    with pytest.raises(WorkflowChanged, match="gone"):
        growing(store, calls, *left).resume("r")
    made = growing(store, calls, *left, on_mismatch="warn")
    plan = made.plan_resume("r")
    assert (plan.gone, plan.dropped, plan.new) == (gone, dropped, [])
    final = made.resume("r")
    assert set(calls.take()) == ran
    assert final.results["end"] == ("end", sorted({"a", "one", "two"} - set(gone)))
    assert set(final["dag"]) == {"a", "end", "one", "two"} - set(gone)


def test_added_tasks_go_with_a_task_that_they_depend_on() -> None:
    """D7: also if their template is there."""
    store, calls = MemoryStore(), Calls("two")

    def made(name: str, **more: Any) -> Workflow:
        flow = Workflow("made", store=store, **more).add_template("t", calls)
        flow.add_task(name, lambda ctx: ctx.add_task("two", "t", [name]))
        return flow.add_task("end", calls, [name])

    stopped(made("a", max_concurrency=1))
    plan = made("z").plan_resume("r")
    assert (plan.new, plan.gone, plan.dropped) == (["z"], ["a", "two"], ["a"])
    calls.bad.clear()
    final = made("z", on_mismatch="warn").resume("r")
    assert set(final.results) == {"z", "two", "end"}


def test_a_task_in_the_code_may_take_the_place_of_an_added_one() -> None:
    """D7: it is changed; finished, it is kept, and else it runs as it is in the code."""
    for bad, ran in (("one", {"one", "two", "end"}), ("two", {"two", "end"})):
        store, calls = MemoryStore(), Calls(bad)
        stopped(growing(store, calls, "t", "u"))
        calls.take()
        calls.bad.clear()
        made = growing(store, calls, "t", "u", on_mismatch="warn", one={})
        plan = made.plan_resume("r")
        assert (list(plan.changed), plan.new, plan.gone) == (["one"], [], [])
        final = made.resume("r")
        assert set(calls.take()) == ran
        assert final["dag"]["one"] == {}


def test_an_unchanged_run_with_added_tasks_isnt_a_mismatch_after_any_edit_that_is_reverted() -> None:
    """D7: adding a task to the code, and removing it again."""
    store, calls = MemoryStore(), Calls("two")
    stopped(growing(store, calls, "t", "u"))
    assert growing(store, calls, "t", "u", x={"depends_on": ["end"]}).plan_resume("r").new == ["x"]
    assert not growing(store, calls, "t", "u").plan_resume("r").differs
    calls.bad.clear()
    calls.take()
    assert set(growing(store, calls, "t", "u").resume("r").results) == {"a", "end", "one", "two"}
    assert calls.take() == {"two": 1, "end": 1}


def test_a_plan_of_a_run_that_waits_or_is_done_says_so() -> None:
    """D7, P1: what is asked, and that nothing is left to run."""
    store, calls = at_c("paused")
    made = edited(store, calls, BASE)
    plan = made.plan_resume("r")
    assert (plan.kept, plan.layers, plan.differs) == (["a", "b"], [["c"], ["d"], ["e"]], False)
    assert [each.prompt for each in plan.questions] == ["c?"]
    assert str(plan).splitlines()[0] == "run r: paused, 1 layer done"
    assert "waits for an answer: c:1.1:1: c?" in str(plan)
    made.resume("r", 1)
    done = made.plan_resume("r")
    assert (done.status, done.layers, done.questions) == ("completed", [], [])
    assert done.kept == list("abcde")


@pytest.mark.parametrize("edit", ["nothing", "added in front"])
def test_a_plan_has_the_layers_that_will_run(edit: str) -> None:
    """D7: as `stream` tells them."""
    store, calls = MemoryStore(), Calls("b")
    tasks: Tasks = {"a": {}, "b": {}, "c": {"depends_on": ["a"]}}
    stopped(edited(store, calls, tasks))
    calls.bad.clear()
    made = edited(store, calls, tasks if edit == "nothing" else {**tasks, "x": {}}, on_mismatch="warn")
    plan = made.plan_resume("r")
    run = made.stream(checkpoint=plan.checkpoint_id)
    assert [event["tasks"] for event in run if event["type"] == "layer_start"] == plan.layers


def test_an_edited_workflow_inside_of_a_task_is_noticed() -> None:
    """D7: a run whose DAG has changed doesn't go on silently without the new task."""
    store, calls = MemoryStore(), Calls("y")

    def made(*more: str) -> Workflow:
        inner = Workflow("inner").add_task("x", calls).add_task("y", calls, ["x"])
        for name in more:
            inner.add_task(name, calls, ["y"])
        return Workflow("outer", store=store).add_task("inside", inner)

    stopped(made())
    calls.bad.clear()
    with pytest.raises(WorkflowChanged):
        made("z").resume("r")


def test_arguments_that_are_not_equal_to_themselves_are_no_mismatch() -> None:
    """D7: the same code resumes its own run."""
    store, calls = MemoryStore(), Calls("b")
    tasks: Tasks = {"a": {"arguments": {"limit": float("nan")}}, "b": {"depends_on": ["a"]}}
    stopped(edited(store, calls, tasks))
    again: Tasks = {**tasks, "a": {"arguments": {"limit": float("nan")}}}
    assert not edited(store, calls, again).plan_resume("r").differs


@pytest.mark.parametrize(("one", "other"), [(1, True), (1, 1.0), (0, False)])
def test_arguments_of_another_type_are_a_change(one: Any, other: Any) -> None:
    """D7: the task would be called with something else."""
    store, calls = MemoryStore(), Calls("b")
    tasks: Tasks = {"a": {}, "b": {"depends_on": ["a"], "arguments": {"k": one}}}
    stopped(edited(store, calls, tasks))
    again: Tasks = {"a": {}, "b": {"depends_on": ["a"], "arguments": {"k": other}}}
    assert list(edited(store, calls, again).plan_resume("r").changed) == ["b"]


@pytest.mark.parametrize("policy", ["fail", "warn"])
def test_an_edit_that_closes_a_circle_with_an_added_task_is_an_error_that_says_so(policy: Any) -> None:
    """D7: of the library's own, from the plan and from the resume."""
    store, calls = MemoryStore(), Calls("stop")

    def made(tasks: Tasks) -> Workflow:
        flow = Workflow("made", store=store, on_mismatch=policy).add_template("t", calls)
        flow.add_task("a", lambda ctx: ctx.add_task("n", "t", ["b"], before=["c"]))
        flow.add_task("stop", calls, ["a"])
        for name, options in tasks.items():
            flow.add_task(name, calls, **options)
        return flow

    stopped(made({"b": {"depends_on": ["stop"]}, "c": {"depends_on": ["stop"]}}))
    calls.bad.clear()
    now = made({"c": {"depends_on": ["stop"]}, "b": {"depends_on": ["c"]}})
    assert "'n'" in str(now.plan_resume("r"))
    if policy == "fail":
        with pytest.raises(WorkflowChanged):
            now.resume("r")
    else:
        assert {"b", "c"} <= set(now.resume("r").results)
