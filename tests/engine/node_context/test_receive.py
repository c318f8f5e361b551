"""Messages that nodes receive: in which order, what a node that is called again gets, and how a run waits. H16."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from datetime import timedelta
from time import time
from typing import Annotated, Any

import pytest

from limpet import (
    DeadlinePassed,
    ExecutionError,
    MemoryCheckpointer,
    MemoryStore,
    NodeContext,
    Retry,
    RunCancelled,
    RunPaused,
    Runs,
    RunWaiting,
    State,
    StateGraph,
    StoreUnavailable,
    UsageError,
    Workflow,
    append,
    pause,
    receive,
    secret,
    sleep,
)
from limpet.engine.drivers import sync_driver
from limpet.engine.leases.inbox_checks import InboxChecks
from limpet.engine.node_context.questions import ResumeInput
from limpet.engine.sessions import resume as entry
from limpet.journal.inbox import letter_post
from limpet.journal.waits import MESSAGE
from limpet.testing.conformance.store_calls import ManualClock
from support.graphs import Crash, fan, loop, single
from support.waiting import SOON, until

LOG = {"log": Annotated[list, append]}


def receiving(take: Callable[..., Any], store: Any = None, **policy: Any) -> StateGraph:
    """A graph of one node that logs what it received."""
    graph = single(lambda state: {"log": [take()]}, "take", LOG, "receiving", **policy)
    return graph.compile(store=store or MemoryStore(), preserve=True)


def waits(graph: Any, run_id: str = "r") -> RunWaiting:
    """Run it until it waits."""
    with pytest.raises(RunWaiting) as caught:
        graph.execute(run_id=run_id)
    return caught.value


def waits_again(graph: Any, run_id: str = "r", **given: Any) -> RunWaiting:
    """Resume it until it waits."""
    with pytest.raises(RunWaiting) as caught:
        graph.resume(run_id, **given)
    return caught.value


def resume_when_due(graph: Any, run_id: str = "r") -> None:
    """What a supervisor does with a run that is due."""
    from limpet.engine.drivers.sync_driver import drive

    for _ in drive(entry.resume(graph.compiled(), run_id, ResumeInput(timed=True), None, False)):
        pass


def test_a_run_waits_without_a_process_and_gets_the_message_when_it_is_resumed() -> None:
    """H16: no process holds a run that waits, and the node is called again with the message."""
    store = MemoryStore()
    graph = receiving(lambda: receive("note"), store)
    waiting = waits(graph)
    assert [(wait.kind, wait.name, wait.node) for wait in waiting.waits] == [("message", "note", "take")]
    info = graph.get("r").info
    assert (info.status, info.shown_status, info.holder, info.due) == ("running", "waiting", None, None)
    assert [info.run_id for info in Runs(store).list(status="waiting")] == ["r"]
    assert graph.send("r", "note", "hurry") is True
    assert graph.get("r").shown_status == "queued"
    assert graph.resume("r")["log"] == ["hurry"]


def test_messages_sent_before_the_first_step_are_received_in_the_order_of_sending() -> None:
    """H16: each name has its own order, and a name that isn't asked for keeps waiting."""
    graph = receiving(lambda: [receive("a"), receive("b"), receive("a")])
    handle = graph.start(run_id="r")
    for name, value in (("a", 1), ("other", 0), ("a", 2), ("b", 3), ("a", 4)):
        handle.send(name, value)
    assert graph.resume("r")["log"] == [[1, 3, 2]]
    assert handle.info.messages == {"a": 1, "other": 1}


def test_a_message_sent_while_the_node_runs_is_received_without_another_call() -> None:
    """H16: a node that receives looks for what came since the last commit."""
    calls: list[int] = []

    def take(state: State, ctx: NodeContext) -> dict[str, Any]:
        calls.append(1)
        graph.send("r", "note", "late")
        return {"log": [ctx.receive("note")]}

    graph = single(take, "take", LOG).compile(store=MemoryStore())
    assert graph.execute(run_id="r")["log"] == ["late"]
    assert len(calls) == 1


def test_a_key_makes_sending_idempotent_for_each_name() -> None:
    """H16: of messages with the same name and key the first counts, whatever the others say."""
    graph = receiving(lambda: [receive("a"), receive("b"), receive("a", deadline=0, default=None)])
    handle = graph.start(run_id="r")
    assert handle.send("a", 1, key="k") is True
    assert handle.send("a", 2, key="k") is False
    assert handle.send("b", 3, key="k") is True
    assert graph.resume("r")["log"] == [[1, 3, None]]
    with pytest.raises(UsageError, match="key"):
        handle.send("a", 1, key="")


def test_a_node_that_is_tried_again_gets_the_same_messages() -> None:
    """H16: what was received is kept until the step completes, by order."""
    attempts: list[Any] = []

    def take() -> Any:
        attempts.append([receive("a"), receive("a")])
        if len(attempts) < 3:
            raise ValueError("not yet")
        return attempts[-1]

    graph = receiving(take, retry=Retry(attempts=3, backoff=0))
    handle = graph.start(run_id="r")
    for value in range(4):
        handle.send("a", value)
    assert graph.resume("r")["log"] == [[0, 1]]
    assert attempts == [[0, 1]] * 3
    assert handle.info.messages == {"a": 2}


def test_a_node_whose_process_crashed_gets_the_same_messages_by_key() -> None:
    """H16: the order of the calls doesn't matter where each has a key."""
    crashed: list[int] = []

    def take() -> Any:
        if not crashed:
            crashed.append(receive("a", key="first"))
            raise Crash
        second = receive("a", key="second")
        return [receive("a", key="first"), second]

    graph = receiving(take)
    handle = graph.start(run_id="r")
    handle.send("a", 1)
    handle.send("a", 2)
    with pytest.raises(Crash):
        graph.resume("r")
    assert graph.resume("r")["log"] == [[1, 2]]


def test_the_next_step_gets_the_next_message() -> None:
    """H16: what was kept for a step is gone when it completes."""

    def take(state: State) -> dict[str, Any]:
        return {"n": state.get("n", 0) + 1, "log": [*state.get("log", []), receive("a")]}

    graph = loop(3, take).compile(store=MemoryStore())
    handle = graph.start(run_id="r")
    for value in "xyz":
        handle.send("a", value)
    assert graph.resume("r")["log"] == ["x", "y", "z"]


def test_a_key_is_used_once_in_a_call() -> None:
    """H16: two calls with one key would get the same message."""
    graph = receiving(lambda: [receive("a", key="k"), receive("a", key="k")])
    graph.start(run_id="r").send("a", 1)
    with pytest.raises(ExecutionError, match="'k' before"):
        graph.resume("r")


@pytest.mark.parametrize("name", ["", 5, "a\nb", "x" * 201])
def test_a_name_is_a_short_printable_text(name: Any) -> None:
    """H16: names are shown, and part of keys."""
    graph = receiving(lambda: receive(name))
    with pytest.raises(ExecutionError, match="printable"):
        graph.execute(run_id="r")
    with pytest.raises(UsageError, match="printable"):
        graph.send("r", name, 1)


# Deadlines


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.mark.parametrize("deadline", [60, timedelta(minutes=1)])
def test_after_the_deadline_the_node_gets_the_default(clock: ManualClock, deadline: Any) -> None:
    """H16: a supervisor resumes the run when the deadline has passed, and no message changes that afterwards."""
    calls: list[Any] = []

    def take() -> Any:
        calls.append(receive("a", deadline=deadline, default="none"))
        if len(calls) == 1:
            raise ValueError
        return [calls[-1], receive("a", deadline=0, default="nothing")]

    graph = receiving(take, MemoryStore(clock=clock), retry=Retry(attempts=2, backoff=0))
    waits(graph)
    assert graph.get("r").info.due == clock() + 60
    clock.advance(61)
    assert graph.get("r").shown_status == "queued"
    graph.send("r", "a", "late")
    resume_when_due(graph)
    assert graph.get("r").state["log"] == [["none", "late"]]
    assert calls == ["none", "none"]


def test_without_a_default_the_deadline_raises(clock: ManualClock) -> None:
    """H16: the node may catch it, else it fails."""
    graph = receiving(lambda: receive("a", deadline=60), MemoryStore(clock=clock))
    waits(graph)
    clock.advance(61)
    with pytest.raises(ExecutionError, match="no message 'a' came in time") as failed:
        graph.resume("r")
    assert isinstance(failed.value.cause, DeadlinePassed)


def test_a_message_within_the_deadline_is_received(clock: ManualClock) -> None:
    """H16: what counts is when it was sent, not when the run is resumed."""
    graph = receiving(lambda: receive("a", deadline=60, default="none"), MemoryStore(clock=clock))
    waits(graph)
    clock.advance(59)
    graph.send("r", "a", "in time")
    clock.advance(60)
    assert graph.resume("r")["log"] == ["in time"]


def test_a_default_needs_a_deadline() -> None:
    """H16: without one the default would never be used."""
    with pytest.raises(ExecutionError, match="deadline="):
        receiving(lambda: receive("a", default=1)).execute()


def test_another_message_leaves_the_run_waiting(clock: ManualClock) -> None:
    """H16: a supervisor that resumes a run for a message it doesn't wait for leaves it as it was."""
    calls: list[int] = []

    def take() -> Any:
        calls.append(1)
        return [receive("a", deadline=60), receive("b")]

    graph = receiving(take, MemoryStore(clock=clock))
    waits(graph)
    due = graph.get("r").info.due
    graph.send("r", "b", 2)
    with pytest.raises(Exception, match="no longer due"):
        resume_when_due(graph)
    info = graph.get("r").info
    assert (info.shown_at(clock()), info.due, info.messages, info.inbox) == ("waiting", due, {"b": 1}, 0)
    graph.send("r", "a", 1)
    resume_when_due(graph)
    assert graph.get("r").state["log"] == [[1, 2]]
    assert len(calls) == 2


def test_a_resume_of_a_run_that_waits_calls_no_node() -> None:
    """H16: nothing has come, so there is nothing to do; an update is merged all the same."""
    calls: list[int] = []

    def take() -> Any:
        calls.append(1)
        return receive("a")

    graph = receiving(take)
    waits(graph)
    waits_again(graph, update={"log": ["more"]})
    assert len(calls) == 1
    graph.send("r", "a", 1)
    assert graph.resume("r")["log"] == ["more", 1]


# Where runs can wait


def test_a_branch_receives_while_another_is_under_way() -> None:
    """H16: messages are received in a branch while another branch is under way in the same process."""
    proceed = threading.Event()

    def slow(state: State) -> dict[str, Any]:
        assert proceed.wait(30)
        return {}

    def take(state: State) -> dict[str, Any]:
        got = receive("a")
        proceed.set()
        return {"log": [got]}

    store = MemoryStore()
    graph = fan({"take": take, "slow": slow}, schema=LOG, join=collect).compile(store=store)
    run = threading.Thread(target=graph.execute, kwargs={"run_id": "r"})
    run.start()
    until(lambda: Runs(store).list() and graph.get("r").info.waits, "the wait")
    graph.send("r", "a", "hello")
    run.join(30)
    assert graph.get("r").state["log"] == ["hello"]


def collect(state: State, parallel_results: Any) -> dict[str, Any]:
    return {"log": sorted(each for result in parallel_results for each in result["log"])}


@pytest.mark.parametrize("waiting_first", [True, False])
def test_each_message_goes_to_one_of_the_branches_that_receive(waiting_first: bool) -> None:
    """H16: none is received twice, and none is lost; what is left waits."""

    def take(state: State) -> dict[str, Any]:
        return {"log": [receive("a")]}

    graph = fan({"b1": take, "b2": take, "b3": take}, schema=LOG, join=collect).compile(store=MemoryStore())
    if waiting_first:
        waits(graph)
    handle = graph.get("r") if waiting_first else graph.start(run_id="r")
    for value in range(4):
        handle.send("a", value)
    assert graph.resume("r")["log"] == [0, 1, 2]
    assert handle.info.messages == {"a": 1}


def test_a_map_a_subgraph_and_a_task_receive() -> None:
    """H16: a node receives wherever it is."""
    inner = single(lambda state: {"log": [receive("a")]}, "inner", LOG)
    graph = StateGraph(LOG, name="outer").add_node("sub", run=inner)
    graph.set_entry_point("sub").set_finish_point("sub")
    flow = Workflow("flow")
    flow.add_task("sub", run=graph)
    flow.add_task("each", run=lambda: receive("a"))
    flow.compile(store=MemoryStore(), preserve=True)
    waiting = waits(flow)
    assert sorted(wait.node for wait in waiting.waits) == ["each", "sub/sub/inner"]
    flow.send("r", "a", 1)
    waits_again(flow)
    flow.send("r", "a", 2)
    results = flow.resume("r").results
    assert sorted([results["each"], *results["sub"]["log"]]) == [1, 2]


def test_a_run_that_asks_in_one_branch_receives_in_another() -> None:
    """H16: it is paused, and a message continues the branch that waits for it."""
    graph = fan(
        {"ask": lambda state: {"log": [pause("Well?")]}, "take": lambda state: {"log": [receive("a")]}},
        schema=LOG,
        join=collect,
    ).compile(store=MemoryStore())
    with pytest.raises(RunPaused) as paused:
        graph.execute(run_id="r")
    assert not isinstance(paused.value, RunWaiting)
    assert graph.get("r").status == "paused"
    graph.send("r", "a", "1")
    resume_when_due(graph)
    assert graph.get("r").status == "paused"
    assert graph.get("r").info.waits == []
    assert graph.resume("r", "2")["log"] == ["1", "2"]


def test_a_run_that_sleeps_in_one_branch_receives_in_another(clock: ManualClock) -> None:
    """H16: it is due when the sleep is over, or when the message comes."""

    def nap(state: State) -> dict[str, Any]:
        sleep(60)
        return {"log": ["woken"]}

    graph = fan({"nap": nap, "take": lambda state: {"log": [receive("a")]}}, schema=LOG, join=collect)
    graph.compile(store=MemoryStore(clock=clock), preserve=True)
    handle = graph.start(run_id="r")
    session = entry.resume(graph.compiled(), "r", ResumeInput(timed=True), None, False, max_sleep=1.0)
    drive_to_stop(session)
    assert handle.info.due == clock() + 60
    handle.send("a", "now")
    session = entry.resume(graph.compiled(), "r", ResumeInput(timed=True), None, False, max_sleep=1.0)
    drive_to_stop(session)
    clock.advance(61)
    session = entry.resume(graph.compiled(), "r", ResumeInput(timed=True), None, False, max_sleep=1.0)
    drive_to_stop(session)
    assert handle.state["log"] == ["now", "woken"]


def drive_to_stop(session: Any) -> None:
    from limpet.engine.drivers.sync_driver import drive

    for _ in drive(session):
        pass


def test_a_branch_whose_deadline_passes_continues_while_another_runs() -> None:
    """H16: the process that executes the run looks at the deadline, too."""
    proceed = threading.Event()

    def slow(state: State) -> dict[str, Any]:
        assert proceed.wait(30)
        return {}

    def take(state: State) -> dict[str, Any]:
        got = receive("a", deadline=0.05, default="too late")
        proceed.set()
        return {"log": [got]}

    graph = fan({"take": take, "slow": slow}, schema=LOG, join=collect).compile(store=MemoryStore())
    assert graph.execute(run_id="r")["log"] == ["too late"]


def test_a_message_that_came_in_time_is_received_after_a_cancel_and_a_resume(clock: ManualClock) -> None:
    """H16: the run took nothing in any more when it was cancelled, and the deadline has passed since."""

    def slow(state: State) -> dict[str, Any]:
        if not calls:
            calls.append("slow")
            until(lambda: bool(graph.get("r").info.waits), "the other branch waits")
            graph.cancel("r")
            graph.send("r", "a", "in time")
            clock.advance(61)
        return {}

    def take(state: State) -> dict[str, Any]:
        return {"log": [receive("a", deadline=60, default="too late")]}

    calls: list[str] = []
    graph = fan({"take": take, "slow": slow}, schema=LOG, join=collect)
    graph.compile(store=MemoryStore(clock=clock), preserve=True)
    with pytest.raises(RunCancelled):
        graph.execute(run_id="r")
    assert graph.resume("r")["log"] == ["in time"]


def test_async_nodes_receive_and_send() -> None:
    """H16: `areceive` and `asend` don't block the event loop."""

    async def take(state: State, ctx: NodeContext) -> dict[str, Any]:
        return {"log": [await ctx.areceive("a"), ctx.receive("a"), receive("a", deadline=0, default="none")]}

    graph = single(take, "take", LOG).compile(store=MemoryStore(), preserve=True)

    async def both() -> Any:
        with pytest.raises(RunWaiting):
            await graph.aexecute(run_id="r")
        await graph.asend("r", "a", 1)
        await graph.get("r").asend("a", 2)
        return await graph.aresume("r")

    assert asyncio.run(both())["log"] == [1, 2, "none"]


def test_streams_say_that_the_run_waits() -> None:
    """H16, F4: a caller that iterates a run gets an event, and the run's status."""
    graph = receiving(lambda: receive("a"))
    run = graph.invoke(run_id="r")
    (event,) = [event for event in run if event["type"] == "wait"]
    assert [wait["name"] for wait in event["waits"]] == ["a"]
    assert run.status == "waiting"
    assert run.error is None


# What is refused, and what is hidden


def test_an_ended_run_refuses_messages() -> None:
    """H16: completed, failed or cancelled; one that runs again receives."""
    graph = receiving(lambda: 1 / 0 if receive("a") else receive("b"))
    waits(graph)
    graph.cancel("r")
    with pytest.raises(UsageError, match="cancelled"):
        graph.send("r", "a", 1)
    graph.get("r").retry()
    graph.send("r", "a", 1)
    with pytest.raises(ExecutionError):
        graph.resume("r")
    with pytest.raises(UsageError, match="failed"):
        graph.send("r", "b", 1)


def test_a_cancelled_run_waits_again_once_it_is_resumed() -> None:
    """H16: what it waits for, and what waits for it, stays."""
    graph = receiving(lambda: [receive("a"), receive("b")])
    waits(graph)
    graph.send("r", "b", 2)
    graph.cancel("r")
    assert graph.get("r").info.waits == []
    waits_again(graph)
    assert [wait.name for wait in graph.get("r").info.waits] == ["a"]
    graph.send("r", "a", 1)
    assert graph.resume("r")["log"] == [[1, 2]]


def test_a_run_without_a_store_that_takes_messages_says_so() -> None:
    """H16: it would wait for ever."""
    with pytest.raises(ExecutionError, match="needs a store"):
        single(lambda state: {"log": receive("a")}).compile().execute()


def test_a_run_that_a_checkpointer_keeps_says_so_too() -> None:
    """H16: nothing can be sent to it once its process has ended, and a wait isn't saved there."""
    graph = single(lambda state: {"log": receive("a")}).compile(checkpointer=MemoryCheckpointer())
    with pytest.raises(ExecutionError, match="nothing can be sent to runs in this store"):
        graph.execute()


def test_a_message_that_comes_just_before_other_branches_are_waited_for_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """H16: the process looks at what has come before it begins to wait, not only when it is woken."""
    monkeypatch.setattr(InboxChecks, "interval", 1000.0)
    order: list[str] = []
    wait = sync_driver._sleep_until_woken

    def send_and_wait(*args: Any) -> None:
        graph.send("r", "a", 1, key="once")
        wait(*args)

    def rest(state: State) -> None:
        sleep(1.0)
        order.append("slept")

    def take(state: State) -> None:
        receive("a")
        order.append("received")

    graph = fan({"rest": rest, "take": take}).compile(store=MemoryStore())
    monkeypatch.setattr(sync_driver, "_sleep_until_woken", send_and_wait)
    graph.execute(run_id="r")
    assert order == ["received", "slept"]


def both(take_a: Callable[[], Any], take_b: Callable[[NodeContext], Any]) -> StateGraph:
    """Two branches, each with a function that receives; the fan-in has the results of both."""
    branches: dict[str, Any] = {
        "a": lambda state: {"got": take_a()},
        "b": lambda state, ctx: {"got": take_b(ctx)},
    }
    graph = fan(branches, lambda state, parallel_results: {"got": [each["got"] for each in parallel_results]})
    return graph.compile(store=MemoryStore())


def test_a_branch_of_a_fork_gets_the_message_that_the_branch_was_waiting_for() -> None:
    """H16: the fork has no wait, but the message: its node is called again, and finds it."""
    graph = both(lambda: receive("a"), lambda ctx: receive("b"))
    waits(graph)
    graph.send("r", "a", 1)
    graph.send("r", "b", 2)
    assert graph.resume(graph.fork("r").id)["got"] == [1, 2]
    assert graph.resume("r")["got"] == [1, 2]


def test_a_branch_gets_a_message_that_another_one_took_in_while_it_was_about_to_wait() -> None:
    """H16: the message is in the mailbox before the wait is recorded, so the node is called again at once."""
    is_about_to_wait = threading.Event()
    is_taken_in = threading.Event()

    def take_a() -> Any:
        try:
            return receive("a")
        except BaseException:
            is_about_to_wait.set()
            assert is_taken_in.wait(SOON)
            raise

    def take_b(ctx: NodeContext) -> Any:
        assert is_about_to_wait.wait(SOON)
        graph.send(ctx.run_id, "a", 1)
        graph.send(ctx.run_id, "b", 2)
        try:
            return receive("b")
        finally:
            is_taken_in.set()

    graph = both(take_a, take_b)
    assert graph.execute(run_id="r")["got"] == [1, 2]


def test_a_branch_continues_when_a_node_of_another_one_takes_its_message_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """H16: although that node still runs, and another process has sent it."""
    monkeypatch.setattr(InboxChecks, "interval", 1000.0)
    has_received = threading.Event()

    def take_a() -> Any:
        received = receive("a")
        has_received.set()
        return received

    def take_b(ctx: NodeContext) -> Any:
        until(lambda: graph.get("r").info.waits)
        for name, value in (("a", 1), ("b", 2)):
            message = letter_post("r", MESSAGE, name, value, time(), ".1")
            store.post("r", message.key, message.body)
        received = receive("b")
        assert has_received.wait(SOON)
        return received

    graph = both(take_a, take_b)
    store = graph.compiled().need_client("send").store
    assert graph.execute(run_id="r")["got"] == [1, 2]


def test_secret_messages_are_masked() -> None:
    """H16, G12: those of a name that is marked as secret, and secret keys in others."""
    schema = {"password": Annotated[str, secret], "log": list}

    def take(state: State) -> dict[str, Any]:
        password = receive("password")
        raise ValueError(f"{password} is wrong, {receive('data')['password']} too")

    graph = single(take, "take", schema).compile(
        store=MemoryStore(), preserve=True, allow_plain_text_secrets=True
    )
    handle = graph.start(run_id="r")
    handle.send("password", "hunter2hunter2")
    handle.send("data", {"password": "swordfish123", "name": "kelp"})
    with pytest.raises(ExecutionError) as failed:
        graph.resume("r")
    told = str([*handle.events()]) + str(failed.value) + str(handle.info)
    assert "hunter2" not in told
    assert "swordfish" not in str([event for event in handle.events() if event["type"] == "message"])
    assert "kelp" in told


class CutOff(MemoryStore):
    """A store that can't be reached as often as `failures` says."""

    failures = 0

    def head(self, run_id: str) -> Any:
        if self.failures:
            self.failures -= 1
            raise StoreUnavailable("the network is down")
        return super().head(run_id)

    def inbox(self, run_id: str) -> Any:
        if self.failures:
            self.failures -= 1
            raise StoreUnavailable("the network is down")
        return super().inbox(run_id)


@pytest.mark.parametrize("on_save_error", ["fail", "wait"])
def test_a_look_that_can_t_reach_the_store_doesn_t_say_that_nothing_came(on_save_error: Any) -> None:
    """H16, invariant 9: the run waits for the store, or fails, as `on_save_error` says for all else."""
    store = CutOff()
    calls: list[int] = []

    def look(state: State, ctx: NodeContext) -> dict[str, Any]:
        if not calls:
            graph.send(ctx.run_id, "stop", True)
            store.failures = 2
        calls.append(1)
        return {"n": ctx.receive("stop", deadline=0, default=False)}

    graph = single(look, "look", {"n": bool}).compile(store=store, on_save_error=on_save_error)
    if on_save_error == "wait":
        assert graph.execute({}, run_id="r")["n"] is True
    else:
        with pytest.raises(ExecutionError, match="the network is down"):
            graph.execute({}, run_id="r")
        assert graph.resume("r")["n"] is True
