"""What nodes emit while they run: who gets it, when, and what it says."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Annotated, Any

import pytest

from limpet import (
    END,
    START,
    ExecutionError,
    MemoryStore,
    NodeContext,
    Runs,
    State,
    StateGraph,
    UnstorableValue,
    UsageError,
    Workflow,
    emit,
    pause,
    progress,
    register_type,
    secret,
    sleep,
)
from limpet.engine.leases import run_output
from limpet.testing import FaultyStore
from support.graphs import AT_ONCE, Via, chain, single
from support.waiting import SOON, until

Event = dict[str, Any]


class Reply:
    """What a node waits for after it has emitted: the consumer sets it when it has got the item."""

    def __init__(self) -> None:
        self.given = threading.Event()

    def wait(self) -> None:
        assert self.given.wait(SOON), "the consumer didn't get the item while the node ran"
        self.given.clear()

    async def await_(self) -> None:
        await asyncio.to_thread(self.wait)


def talking(reply: Reply) -> Callable[..., Any]:
    def talk(state: State, ctx: NodeContext) -> dict[str, Any]:
        for word in ("one", "two"):
            ctx.emit(word)
            reply.wait()
        return {"said": 2}

    return talk


def talking_by_module_function(reply: Reply) -> Callable[..., Any]:
    def talk(state: State) -> dict[str, Any]:
        for word in ("one", "two"):
            say(word)
            reply.wait()
        return {"said": 2}

    return talk


def say(word: str) -> None:
    emit(word)


def talking_async(reply: Reply) -> Callable[..., Any]:
    async def talk(state: State) -> dict[str, Any]:
        for word in ("one", "two"):
            emit(word)
            await reply.await_()
        return {"said": 2}

    return talk


def consume(via: Via, graph: Any, reply: Reply) -> list[Event]:
    """The events of a run; each item of output is replied to when it is given."""
    found: list[Event] = []

    def on(event: Event) -> None:
        found.append(event)
        if event["type"] == "output":
            reply.given.set()

    if via.api == "sync":
        for event in graph.stream({}):
            on(event)
    else:

        async def follow() -> None:
            async for event in graph.astream({}):
                on(event)

        asyncio.run(follow())
    return found


def words(events: list[Event]) -> list[Any]:
    return [event["data"] for event in events if event["type"] == "output"]


@pytest.mark.parametrize("node", [talking, talking_by_module_function, talking_async])
@pytest.mark.parametrize("timeout", [None, SOON])
def test_a_caller_gets_an_item_while_the_node_still_runs(
    via: Via, place: dict[str, Any], node: Any, timeout: float | None
) -> None:
    """H12: sync and async nodes, by both APIs, with and without a store."""
    reply = Reply()
    graph = StateGraph(name="talk")
    graph.add_node("talk", run=node(reply), timeout=timeout)
    graph.add_edge(START, "talk")
    graph.add_edge("talk", END)
    events = consume(via, graph.compile(**place), reply)
    assert words(events) == ["one", "two"]
    assert [event["type"] for event in events] == ["output", "output", "state", "final"]


@pytest.mark.parametrize("node", [talking, talking_async])
def test_a_caller_gets_items_of_branches_maps_and_graphs_inside(via: Via, node: Any) -> None:
    """H12: with the branch that the call is in."""
    reply = Reply()
    inner = single(node(reply), name="inner")
    graph = StateGraph({"items": list}, name="outer")
    graph.add_node("begin", run=lambda state: {"items": [1]})
    graph.add_node("work", run=node(reply))
    graph.add_fanin_node("join", run=lambda state: {})
    graph.add_node("sub", run=inner)
    graph.add_edge(START, "begin")
    graph.add_map("begin", "work", "items", "join")
    graph.add_edge("work", "join")
    graph.add_edge("join", "sub")
    graph.add_edge("sub", END)
    events = consume(via, graph.compile(store=MemoryStore()), reply)
    found = [(event["branch"], event["node"], event["data"]) for event in events if event["type"] == "output"]
    assert found == [
        ("work[0]", "work", "one"),
        ("work[0]", "work", "two"),
        ("sub", "only", "one"),
        ("sub", "only", "two"),
    ]


def test_a_caller_gets_items_of_tasks_that_run_together(via: Via) -> None:
    """H12: a task waits for what the other one emits, by way of the caller."""
    replies = {"left": Reply(), "right": Reply()}
    flow = Workflow("pair", store=MemoryStore())
    for name in replies:

        def talk(ctx: NodeContext, name: str = name) -> None:
            ctx.emit(name)
            replies[name].wait()

        flow.add_task(name, talk)
    found: list[Event] = []
    names = {"left": "right", "right": "left"}

    def on(event: Event) -> None:
        found.append(event)
        if event["type"] == "output":
            replies[names[event["data"]]].given.set()

    if via.api == "sync":
        for event in flow.stream({}):
            on(event)
    else:

        async def follow() -> None:
            async for event in flow.astream({}):
                on(event)

        asyncio.run(follow())
    emitted = [event for event in found if event["type"] == "output"]
    assert sorted((event["task"], event["node"], event["index"]) for event in emitted) == [
        ("left", "left", 0),
        ("right", "right", 0),
    ]
    assert found[-1]["type"] == "workflow_complete"


def test_an_item_says_which_call_emitted_it() -> None:
    """H12: step, attempt and index; and a call that is made again has another number."""
    tries: list[int] = []

    def flaky(state: State, ctx: NodeContext) -> None:
        ctx.emit("a")
        ctx.emit("b")
        tries.append(1)
        if len(tries) == 1:
            raise ConnectionError

    graph = StateGraph(name="flaky").add_node("first", run=lambda state: None)
    graph.add_node("flaky", run=flaky, retry=AT_ONCE)
    graph.add_edge(START, "first").add_edge("first", "flaky").add_edge("flaky", END)
    graph.compile(store=MemoryStore())
    found = [event for event in graph.stream({}, run_id="r") if event["type"] == "output"]
    keys = ("step", "attempt", "call", "index", "data")
    expected = [
        (2, 1, "1.1", 0, "a"),
        (2, 1, "1.1", 1, "b"),
        (2, 2, "1.2", 0, "a"),
        (2, 2, "1.2", 1, "b"),
    ]
    assert [tuple(event[key] for key in keys) for event in found] == expected
    followed = [event for event in graph.get("r").events() if event["type"] == "output"]
    assert [tuple(event[key] for key in keys) for event in followed] == expected
    assert [event["number"] for event in followed] == [1, 2, 3, 4]


def test_the_second_visit_of_branches_has_other_steps() -> None:
    """H12: else what a branch emits when the run comes to it again would be taken for a repeated call."""
    graph = StateGraph({"n": int}, name="visits")
    graph.add_node("begin", run=lambda state: {"n": state.get("n", 0) + 1})
    graph.add_node("side", run=lambda state: emit(state["n"]))
    graph.add_fanin_node("join", run=lambda state: {})
    graph.add_edge(START, "begin")
    graph.add_parallel_edge("begin", "side", "join")
    graph.add_edge("side", "join")
    graph.add_conditional_edges("join", lambda state: state["n"] < 2, {True: "begin", False: END})
    graph.compile(store=MemoryStore())
    found = [event for event in graph.stream({}) if event["type"] == "output"]
    assert [(event["branch"], event["step"], event["data"]) for event in found] == [
        ("side", 2, 1),
        ("side", 5, 2),
    ]


def test_followers_get_the_items_before_the_end_of_the_run(any_store: Any) -> None:
    """H12: on every store, in order, with the cursor to continue after each; and none of a run that isn't kept."""

    def talk(state: State, ctx: NodeContext) -> dict[str, Any]:
        for number in range(5):
            ctx.emit({"number": number})
        ctx.progress(1, 2, "half")
        ctx.progress(2, 2, "whole")
        return {"done": True}

    with closing(any_store):
        graph = single(talk, name="talk").compile(store=any_store)
        graph.execute({}, run_id="r")
        events = list(Runs(any_store).get("r").events())
        kinds = [event["type"] for event in events]
        assert kinds == ["start", *["output"] * 5, "progress", "step", "complete"]
        assert words(events) == [{"number": number} for number in range(5)]
        assert (events[6]["done"], events[6]["total"], events[6]["message"]) == (2, 2, "whole")
        rest = Runs(any_store).get("r").events(after=events[3]["cursor"])
        assert words(list(rest)) == [{"number": 3}, {"number": 4}]
        graph.compile(store=any_store, keep_result=False).execute({}, run_id="unkept")
        assert not any(item.body for item in any_store.output("unkept"))
        assert [event["type"] for event in graph.get("unkept").events()] == ["skipped", "skipped", "complete"]


def test_many_items_are_few_writes() -> None:
    """H12: a batch at a time, and not each item."""

    class Counting(MemoryStore):
        writes = 0

        def add_output(self, *args: Any) -> int:
            self.writes += 1
            return super().add_output(*args)

    store = Counting()

    def talk(state: State, ctx: NodeContext) -> None:
        for number in range(2000):
            ctx.emit(number)

    single(talk).compile(store=store).execute({}, run_id="r")
    assert [event["data"] for event in Runs(store).get("r").events() if event["type"] == "output"] == list(
        range(2000)
    )
    assert store.writes < 50


def test_a_batch_is_written_while_the_node_runs() -> None:
    """H12: a follower needn't wait for the end of a call."""
    store = MemoryStore()

    def talk(state: State, ctx: NodeContext) -> None:
        ctx.emit("first")
        until(lambda: store.output(ctx.run_id), "the batch")

    single(talk).compile(store=store).execute({})


def test_a_run_keeps_its_newest_output(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """H12: bounded by number and by size, over several processes as well, with one warning from each."""
    monkeypatch.setattr(run_output, "MAX_KEPT_ITEMS", 10)
    store = MemoryStore()

    def talk(state: State, ctx: NodeContext) -> None:
        for number in range(8):
            ctx.emit("x" * state["size"] + str(number))
        pause("More?")

    graph = chain(talk, talk, schema={"size": int}).compile(store=store)
    graph.invoke({"size": 1}, run_id="r").wait()
    assert len(store.output("r")) == 8
    with caplog.at_level("WARNING", "limpet.run"):
        graph.invoke("yes", checkpoint="r").wait()
    assert [item.number for item in store.output("r")] == list(range(15, 25))
    assert len([record for record in caplog.records if "its output" in record.message]) == 1

    monkeypatch.setattr(run_output, "MAX_KEPT_BYTES", 5000)
    graph.fork("r", 0, {"size": 2000}, new_run_id="large").wait()
    assert len(store.output("large")) == 2
    graph.cancel("r")
    events = [event for event in Runs(store).get("r").events() if event["type"] in ("output", "skipped")]
    assert (events[0]["type"], events[0]["output"], len(events)) == ("skipped", 14, 11)


def test_an_item_is_a_copy(via: Via) -> None:
    """H12: the node may change what it emitted."""
    kept: list[Any] = []

    def talk(state: State) -> None:
        item = {"words": ["a"]}
        emit(item)
        item["words"].append("b")
        kept.append(item)

    events = via.events(single(talk), {}, stream=True)
    assert words(events) == [{"words": ["a"]}]


@pytest.mark.parametrize("place", [{}, {"store": MemoryStore()}])
def test_what_cannot_be_stored_is_refused_with_its_path(place: dict[str, Any]) -> None:
    """H12: where it is emitted, so that the node can see which it is."""

    def talk(state: State) -> None:
        emit({"parts": [1, object()]})

    with pytest.raises(ExecutionError) as failed:
        single(talk).compile(**place).execute({})
    assert isinstance(failed.value.__cause__, UnstorableValue)
    assert "data.parts[1]" in str(failed.value)


def test_an_item_that_is_too_large_is_refused() -> None:
    """H12."""
    with pytest.raises(ExecutionError, match="1,000,000 bytes"):
        single(lambda state: emit("x" * 1_000_001)).execute({})


@pytest.mark.parametrize(
    ("done", "total", "message"),
    [(-1, 2, ""), ("1", 2, ""), (1, float("inf"), ""), (1, 10**400, ""), (True, 1, ""), (1, 2, 3)],
)
def test_progress_takes_numbers_and_a_text(done: Any, total: Any, message: Any) -> None:
    """H12."""
    with pytest.raises(ExecutionError, match="progress"):
        single(lambda state: progress(done, total, message)).execute({})


def test_progress_needs_no_total() -> None:
    """H12."""
    (event, *_) = single(lambda state: progress(3)).stream({})
    assert (event["type"], event["done"], event["total"], event["message"]) == ("progress", 3, None, "")


def test_emitting_outside_of_a_node_is_an_error() -> None:
    """H12."""
    for call in (lambda: emit(1), lambda: progress(1)):
        with pytest.raises(UsageError, match="inside a running node"):
            call()


def test_a_caller_that_is_too_slow_for_what_nodes_emit_still_gets_every_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """H12: what nodes emit may be dropped, but never the event of a step that was on its way to the caller."""
    monkeypatch.setattr(run_output, "MAX_KEPT_ITEMS", 10)
    emits = threading.Event()
    has_emitted = threading.Event()
    floods = threading.Event()
    has_flooded = threading.Event()

    def talk(ctx: NodeContext) -> None:
        assert emits.wait(SOON)
        ctx.emit("first")
        has_emitted.set()
        assert floods.wait(SOON)
        for number in range(20):
            ctx.emit(number)
        has_flooded.set()

    def after_work(state: State) -> bool:
        # The loop calls this before it reports the step of `work`: so that is behind what `talk` emits here.
        emits.set()
        return has_emitted.wait(SOON)

    graph = StateGraph(name="two branches")
    graph.add_node("begin", run=lambda state: None)
    graph.add_node("talk", run=talk)
    graph.add_node("work", run=lambda state: {"worked": 1})
    graph.add_node("rest", run=lambda state: None)
    graph.add_fanin_node("join", run=lambda state: None)
    graph.add_edge(START, "begin")
    graph.add_parallel_edge("begin", "talk", "join")
    graph.add_parallel_edge("begin", "work", "join")
    graph.add_edge("talk", "join")
    graph.add_edge("work", "rest", after_work)
    graph.add_edge("rest", "join")
    graph.add_edge("join", END)
    graph.compile()

    async def nodes() -> list[str]:
        found = []
        async for event in graph.astream({}):
            if event["type"] == "state":
                found.append(event["node"])
            if event.get("data") == "first":
                floods.set()
                assert await asyncio.to_thread(has_flooded.wait, SOON)
        return found

    assert sorted(asyncio.run(nodes())) == ["begin", "join", "rest", "talk", "work"]


def test_a_call_that_is_over_emits_no_more() -> None:
    """H12: a thread that was left behind must not write into the run's later output."""
    kept: list[NodeContext] = []
    single(lambda ctx: kept.append(ctx)).execute({})
    with pytest.raises(UsageError, match="is over"):
        kept[0].emit("late")


def test_secrets_are_masked_in_output() -> None:
    """H12: under their keys, and where they occur in texts."""
    store = MemoryStore()

    def talk(state: State, ctx: NodeContext) -> None:
        emit({"token": state["token"], "note": f"used {state['token']} twice", "list": [state["token"]]})
        progress(1, 2, f"with {state['token']}")

    graph = single(talk, schema={"token": Annotated[str, secret]}).compile(store=store)
    shown = {"token": "‹secret›", "note": "used ‹secret› twice", "list": ["‹secret›"]}
    events = list(graph.stream({"token": "open sesame"}, run_id="r"))
    assert words(events) == [shown]
    assert events[1]["message"] == "with ‹secret›"
    assert words(list(graph.get("r").events())) == [shown]
    assert not any(b"sesame" in item.body for item in store.output("r"))


@register_type
@dataclass
class Note:
    text: str


@pytest.mark.parametrize(
    ("emitted", "shown"),
    [
        (lambda word: {word: 1, "n": 2}, {"‹secret›": 1, "n": 2}),
        (lambda word: {word}, {"‹secret›"}),
        (lambda word: frozenset({(word, 1)}), frozenset({("‹secret›", 1)})),
        (lambda word: [f"bearer {word}".encode(), b"plain"], ["‹secret›", b"plain"]),
        (lambda word: [Note(f"use {word}"), Note("plain")], ["‹secret›", Note("plain")]),
        (lambda word: [20261116, 7, True, 2.5, None], ["‹secret›", 7, True, 2.5, None]),
    ],
    ids=["key", "set", "tuple in a set", "bytes", "object", "number"],
)
def test_secrets_are_masked_whatever_holds_them(emitted: Callable[[str], Any], shown: Any) -> None:
    """H12: what a secret is in is masked whole, where it isn't a text."""
    store = MemoryStore()
    schema = {"token": Annotated[str, secret], "pin": Annotated[int, secret]}
    graph = single(lambda state: emit(emitted(state["token"])), schema=schema).compile(store=store)
    events = list(graph.stream({"token": "open sesame", "pin": 20261116}, run_id="r"))
    assert words(events) == [shown]
    assert not any(b"sesame" in item.body for item in store.output("r"))


@pytest.mark.parametrize("way", ["stream", "astream"])
def test_a_node_that_emits_faster_than_its_caller_reads_holds_up_no_other(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H12: what happens meanwhile is done, and told."""
    monkeypatch.setattr(run_output, "MAX_KEPT_ITEMS", 10)
    other_is_done = threading.Event()
    emitted_until = time.monotonic() + 8
    flow = Workflow("loud")

    @flow.task
    def loud() -> bool:
        while not other_is_done.is_set() and time.monotonic() < emitted_until:
            emit("la")
        return other_is_done.is_set()

    flow.add_task("first", lambda: time.sleep(0.02))
    flow.add_task("other", lambda first: first)

    def read(event: dict[str, Any]) -> None:
        time.sleep(0.001)
        if event["type"] == "task_complete" and event["task"] == "other":
            other_is_done.set()

    async def read_all() -> None:
        async for event in flow.astream({}, run_id="r"):
            read(event)

    flow.compile(store=MemoryStore())
    if way == "astream":
        asyncio.run(read_all())
    else:
        for event in flow.stream({}, run_id="r"):
            read(event)
    assert flow.get("r").result().results["loud"]


def test_output_is_not_state_and_no_resume_reads_it() -> None:
    """H12: a node that is called again emits again, and finds nothing of what it emitted."""
    store = MemoryStore()

    def talk(state: State, ctx: NodeContext) -> dict[str, Any]:
        ctx.emit("asking")
        return {"answer": pause("Go on?")}

    graph = single(talk).compile(store=store)
    graph.invoke({}, run_id="r").wait()
    assert graph.resume("r", "yes") == {"answer": "yes"}
    events = [event for event in graph.get("r").events() if event["type"] == "output"]
    assert [(event["data"], event["call"], event["index"]) for event in events] == [
        ("asking", "1.1", 0),
        ("asking", "2.1", 0),
    ]


def test_fork_and_rollback_leave_output_where_it_is() -> None:
    """H12: it says what happened in this run."""
    store = MemoryStore()
    graph = chain(lambda state: emit("a"), lambda state: emit("b")).compile(store=store)
    graph.execute({}, run_id="r")
    forked = graph.fork("r", 1)
    forked.wait()
    assert words(list(Runs(store).get(forked.id).events())) == ["b"]
    graph.rollback("r", 1)
    graph.resume("r")
    assert words(list(Runs(store).get("r").events())) == ["a", "b", "b"]


def test_an_unavailable_store_costs_output_and_no_run(caplog: pytest.LogCaptureFixture) -> None:
    """H12: a run doesn't fail because of what it emits; the batch is tried again."""
    inner = MemoryStore()
    store = FaultyStore(inner)
    tried = threading.Event()

    def talk(state: State, ctx: NodeContext) -> None:
        store.fail("add_output", times=None)
        ctx.emit("first")
        until(lambda: "couldn't be written" in caplog.text, "the warning")
        store.heal()
        tried.set()
        ctx.emit("second")

    graph = single(talk).compile(store=store)
    with caplog.at_level("WARNING", "limpet.run"):
        graph.execute({}, run_id="r")
    assert tried.is_set()
    assert words(list(Runs(inner).get("r").events())) == ["first", "second"]


def test_a_store_that_takes_no_output_still_runs_nodes_that_emit(tmp_path: Any) -> None:
    """H12: the caller in this process gets the items."""
    graph = single(lambda state: emit("a")).compile(checkpoint_dir=tmp_path)
    assert words(list(graph.stream({}))) == ["a"]


def test_items_of_a_node_that_sleeps_come_before_its_sleep(via: Via) -> None:
    """H12: and again when it is called again."""

    def talk(state: State) -> None:
        emit("tired")
        sleep(0.01)

    graph = single(talk).compile(store=MemoryStore())
    assert words(via.events(graph, {}, stream=True)) == ["tired", "tired"]


def test_a_caller_that_leaves_while_a_node_emits_releases_the_run() -> None:
    """H12: the next process can resume it at once; what the node emits then is refused."""
    store = MemoryStore()
    left = threading.Event()
    outcome: list[BaseException] = []
    calls: list[int] = []

    def talk(state: State, ctx: NodeContext) -> dict[str, Any]:
        calls.append(1)
        ctx.emit("a")
        if len(calls) > 1:
            return {"done": True}
        assert left.wait(SOON)
        try:
            ctx.emit("b")
        except UsageError as error:
            outcome.append(error)
        return {"done": False}

    graph = single(talk).compile(store=store)
    run = graph.stream({}, run_id="r")
    assert next(run)["data"] == "a"
    run.close()
    left.set()
    until(lambda: outcome, "the refusal")
    assert graph.resume("r") == {"done": True}


def test_a_node_that_emits_unexpectedly_is_given_a_thread_the_next_time() -> None:
    """H12: its code doesn't show that it emits; nothing is lost of what it emits the first time."""
    threads: list[str] = []

    def talk(state: State) -> dict[str, Any]:
        threads.append(threading.current_thread().name)
        getattr(__import__("limpet"), "em" + "it")(len(threads))
        return {"n": state.get("n", 0) + 1}

    graph = StateGraph({"n": int}, name="hidden")
    graph.add_node("talk", run=talk)
    graph.add_edge(START, "talk")
    graph.add_conditional_edges("talk", lambda state: state["n"] < 3, {True: "talk", False: END})
    assert words(list(graph.stream({}))) == [1, 2, 3]
    assert threads[0] == threading.current_thread().name
    assert threads[1] != threads[0]


def test_a_node_that_does_not_emit_runs_in_the_thread_of_the_caller() -> None:
    """H12: streaming costs no thread where none emits, and thread-bound objects of other nodes keep working."""
    threads: list[str] = []

    def plain(state: State, ctx: NodeContext) -> None:
        threads.append(threading.current_thread().name)
        ctx.once("a", len, "abc")

    list(single(plain).compile(store=MemoryStore()).stream({}))
    assert threads == [threading.current_thread().name]


class Shy:
    """An object that raises whenever it is looked at, as proxies outside of their context do."""

    @property
    def __class__(self) -> Any:
        raise RuntimeError("not now")

    @__class__.setter
    def __class__(self, kind: Any) -> None:
        raise RuntimeError("not now")


SHY = Shy()


def test_a_node_that_uses_an_object_which_cannot_be_looked_at_is_streamed() -> None:
    """H12: what Limpet can't see by the code, it learns."""
    events = list(single(lambda state: {"same": SHY is SHY}).stream({}))
    assert events[-1]["state"] == {"same": True}


def test_observers_see_what_nodes_emit() -> None:
    """H12, G11."""
    seen: list[Any] = []

    def talk(state: State) -> None:
        emit("a")
        progress(1, 4, "reading")

    graph = StateGraph(name="talk", observer=lambda event: seen.append((event.type, dict(event.data))))
    graph.add_node("talk", run=talk)
    graph.add_edge(START, "talk")
    graph.add_edge("talk", END)
    graph.execute({}, run_id="r")
    found = [each for each in seen if each[0] in ("node.output", "node.progress")]
    place = {"run_id": "r", "node": "talk", "step": 1, "attempt": 1, "call": "0.1"}
    assert found == [
        ("node.output", {**place, "index": 0, "data": "a"}),
        ("node.progress", {**place, "done": 1, "total": 4, "message": "reading"}),
    ]


def test_threads_of_a_node_emit_too() -> None:
    """H12: each item once, with an index of its own."""
    from contextvars import copy_context

    def talk(state: State, ctx: NodeContext) -> None:
        threads = [
            threading.Thread(target=copy_context().run, args=(say, str(number))) for number in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    found = [event for event in single(talk).stream({}) if event["type"] == "output"]
    assert sorted(event["index"] for event in found) == list(range(8))
    assert {event["call"] for event in found} == {"0.1"}
    assert sorted(words(found)) == [str(number) for number in range(8)]
