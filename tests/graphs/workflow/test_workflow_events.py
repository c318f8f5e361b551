"""What a workflow tells while it runs, and what runs it: threads, processes, the event loop, other graphs."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any

import pytest

from limpet import (
    ExecutionError,
    MemoryStore,
    NodeContext,
    Retry,
    State,
    StateGraph,
    StoreUnavailable,
    TaskResult,
    Workflow,
    WorkflowState,
)
from support.graphs import AT_ONCE, SOON, Via

Event = dict[str, Any]


def one() -> int:
    return 1


def diamond(**settings: Any) -> Workflow:
    """a → b, c → d, where c isn't to run."""
    flow = Workflow("diamond", **settings).add_task("a", one).add_task("b", lambda a: a + 1, ["a"])
    flow.add_task("c", one, ["a"], condition=lambda: False)
    return flow.add_task("d", lambda b, c: (b, c), ["b"], optional=["c"])


def inside() -> Workflow:
    """x → y, from an input n."""
    return Workflow("inside").add_task("x", lambda n: n + 1).add_task("y", lambda x: x * 2, ["x"])


def brief(event: Event) -> tuple[Any, ...]:
    """An event's type, and who or what it is about."""
    who = [event[key] for key in ("task", "layer", "branch") if key in event]
    return (event["type"], *who)


def timeless(event: Event) -> Event:
    return {key: value for key, value in event.items() if key not in ("timestamp", "duration", "state")}


def test_stream_reports_all_in_order(via: Via, place: dict[str, Any]) -> None:
    """D1, D6: with the data of each; without a store nothing is said of checkpoints."""
    told = via.events(diamond(**place), run_id="r")
    done = {"type": "task_complete", "status": "completed", "attempts": 1}
    expected: list[Event] = [
        {"type": "layer_start", "layer": 0, "tasks": ["a"]},
        {"type": "task_start", "task": "a", "layer": 0, "attempt": 1},
        {**done, "task": "a", "layer": 0, "result": 1},
        {"type": "checkpoint_saved", "checkpoint_id": "r@3", "layer": 0, "run_id": "r"},
        {"type": "layer_start", "layer": 1, "tasks": ["b", "c"]},
        {"type": "task_start", "task": "b", "layer": 1, "attempt": 1},
        {**done, "task": "b", "layer": 1, "result": 2},
        {"type": "task_skipped", "task": "c", "layer": 1, "reason": "its condition '<lambda>' doesn't hold"},
        {"type": "checkpoint_saved", "checkpoint_id": "r@6", "layer": 1, "run_id": "r"},
        {"type": "layer_start", "layer": 2, "tasks": ["d"]},
        {"type": "task_start", "task": "d", "layer": 2, "attempt": 1},
        {**done, "task": "d", "layer": 2, "result": (2, None)},
        {"type": "checkpoint_saved", "checkpoint_id": "r@8", "layer": 2, "run_id": "r"},
        {"type": "workflow_complete", "run_id": "r"},
    ]
    if not place:
        expected = [event for event in expected if event["type"] != "checkpoint_saved"]
    assert [timeless(event) for event in told] == expected
    times = [event["timestamp"] for event in told if "timestamp" in event]
    assert times == sorted(times)
    assert times[0] > 0
    assert isinstance(told[-1]["state"], WorkflowState)
    assert told[-1]["state"].results["d"] == (2, None)


def test_invoke_reports_only_how_it_ended(via: Via, place: dict[str, Any]) -> None:
    """D1"""
    (event,) = via.events(diamond(**place), stream=False, run_id="r")
    assert timeless(event) == {"type": "workflow_complete", "run_id": "r"}


def test_each_attempt_is_reported_with_its_error_and_the_wait(via: Via, place: dict[str, Any]) -> None:
    """H8, D1: the record of a task that is safe to fail comes after its last error."""

    def fail(ctx: NodeContext) -> None:
        raise ValueError(f"no {ctx.attempt}")

    flow = Workflow("f", **place).add_task("a", fail, retry=Retry(2, backoff=0), safe_to_fail=True)
    told = [timeless(event) for event in via.events(flow) if event["type"].startswith("task_")]
    error = told[-1].pop("error")
    task = {"task": "a", "layer": 0}
    assert told == [
        {"type": "task_start", **task, "attempt": 1},
        {"type": "task_error", **task, "error": "ValueError: no 1", "attempt": 1, "retry_in": 0.0},
        {"type": "task_start", **task, "attempt": 2},
        {"type": "task_error", **task, "error": "ValueError: no 2", "attempt": 2, "retry_in": None},
        {"type": "task_complete", **task, "status": "failed", "attempts": 2},
    ]
    assert (error["type"], error["message"], error["node"]) == ("ValueError", "no 2", "a")


@pytest.mark.parametrize("stream", [True, False])
def test_a_run_that_fails_says_so_last(stream: bool, via: Via, place: dict[str, Any]) -> None:
    """D1: after what its siblings came to; no layer is said to be saved that isn't done."""
    flow = Workflow("f", **place).add_task("a", one).add_task("b", lambda: [][0])
    told = via.events(flow, stream=stream, run_id="r")
    assert told[-1]["type"] == "error"
    assert (told[-1]["node"], told[-1]["run_id"]) == ("b", "r")
    assert "IndexError" in told[-1]["error"]
    if not stream:
        assert len(told) == 1
        return
    assert sorted(map(brief, told[1:-1]))[-4:] == [
        ("task_complete", "a", 0), ("task_error", "b", 0), ("task_start", "a", 0), ("task_start", "b", 0)
    ]  # fmt: skip
    assert "checkpoint_saved" not in {event["type"] for event in told}


@pytest.mark.parametrize("stream", [True, False])
def test_each_open_question_is_reported_with_an_id_to_answer_it_by(
    stream: bool, via: Via, store: Any
) -> None:
    """P3, D6: siblings are done by then, and the checkpoint can be loaded."""
    flow = Workflow("f", store=store).add_task("a", lambda ctx: ctx.pause("A?", choices=["y", "n"]))
    flow.add_task("b", lambda ctx: ctx.pause("B?", key="k", schema=int)).add_task("c", one)
    told = via.events(flow, stream=stream, run_id="r")
    asked = [event for event in told if event["type"] == "decision_required"]
    assert told[-2:] == asked
    assert [(each["task"], each["prompt"], each["choices"]) for each in asked] == [
        ("a", "A?", ["y", "n"]),
        ("b", "B?", None),
    ]
    for each in asked:
        point = flow.checkpoint(each["checkpoint_id"])
        assert (point.status, point.state.results) == ("paused", {"c": 1})
        assert each["id"] in {info.question_id for info in point.pauses}
    answers = {asked[0]["id"]: "y", asked[1]["id"]: 5}
    assert via.resume(flow, asked[0]["checkpoint_id"], answers=answers).results == {"a": "y", "b": 5, "c": 1}


@pytest.mark.parametrize("keep", [1, 2, None])
def test_a_checkpoint_can_be_loaded_when_it_is_reported(keep: int | None, via: Via, store: Any) -> None:
    """D6, D3, D5: the last one too, before the run is purged; ids are never told twice."""
    flow, seen = diamond(store=store, keep=keep), []

    def look(event: Event) -> None:
        if event["type"] == "checkpoint_saved":
            point = flow.checkpoint(event["checkpoint_id"])
            assert point.checkpoint_id == event["checkpoint_id"]
            assert point.completed_layers == event["layer"] + 1
            seen.append((event["checkpoint_id"], sorted(point.state.results)))

    async def watch() -> None:
        async for event in flow.astream({}):
            await asyncio.to_thread(look, event)

    if via.api == "sync":
        for event in flow.stream({}):
            look(event)
    else:
        asyncio.run(watch())
    assert [results for _, results in seen] == [["a"], ["a", "b"], ["a", "b", "d"]]
    assert len({id for id, _ in seen}) == 3


def test_what_was_reported_as_complete_is_durable(via: Via, store: Any) -> None:
    """D4, H3: at the moment it is reported, while the layer is still open."""
    flow = Workflow("f", store=store)
    told: list[str] = []
    for n in range(6):
        flow.add_task(f"t{n}", lambda: 1)

    def look(event: Event) -> None:
        if event["type"] == "task_complete":
            told.append(event["task"])
            assert set(told) <= set(flow.checkpoint("r").state.results)

    async def watch() -> None:
        async for event in flow.astream(run_id="r"):
            look(event)

    if via.api == "sync":
        for event in flow.stream(run_id="r"):
            look(event)
    else:
        asyncio.run(watch())
    assert len(told) == 6


def test_a_run_that_is_left_while_it_reports_can_be_resumed_without_doing_anything_twice(store: Any) -> None:
    """D4, H3"""
    calls: list[str] = []
    flow = Workflow("f", store=store)
    for n in range(4):
        flow.add_task(f"t{n}", lambda ctx: calls.append(ctx.node), [f"t{n - 1}"] if n else ())
    run = flow.stream(run_id="r")
    for event in run:
        if event["type"] == "checkpoint_saved" and event["layer"] == 1:
            break
    run.close()
    state = flow.resume_from_checkpoint(event["checkpoint_id"])
    assert len(state.results) == 4
    assert calls == ["t0", "t1", "t2", "t3"]


def test_a_resume_begins_a_layer_with_what_is_left_of_it(via: Via, store: Any) -> None:
    """D3, H3"""
    broken, layers = [True], []

    def flaky() -> int:
        if broken:
            raise ValueError("no")
        return 1

    def watch(event: Any) -> None:
        if event.type == "layer.start":
            layers.append((event.data["layer"], event.data["tasks"]))

    flow = Workflow("f", store=store, observer=watch).add_task("a", one).add_task("b", flaky)
    flow.add_task("c", one, ["a", "b"])
    assert via.events(flow, run_id="r")[-1]["type"] == "error"
    broken.clear()
    assert via.resume(flow, "r").results == {"a": 1, "b": 1, "c": 1}
    assert layers == [(0, ["a", "b"]), (0, ["b"]), (1, ["c"])]


def test_observers_get_the_calls_of_tasks_and_of_nothing_else(via: Via, place: dict[str, Any]) -> None:
    """D6, G11: what plans the layers isn't a task."""
    seen: list[Any] = []
    flow = Workflow("f", observer=seen.append, **place).add_task("a", one)
    via.execute(flow.add_task("b", one, ["a"]))
    calls = [(event.type, event.data["node"]) for event in seen if event.type.startswith("node.")]
    assert calls == [(kind, task) for task in "ab" for kind in ("node.start", "node.complete")]


def test_observers_get_the_beginning_and_the_end_of_each_layer(via: Via, place: dict[str, Any]) -> None:
    """D6, G11: with its number, and its tasks when it begins."""
    seen: list[Any] = []
    flow = Workflow("f", observer=seen.append, **place).add_task("a", one).add_task("b", one)
    via.execute(flow.add_task("c", one, ["a", "b"]))
    layers = [event for event in seen if event.type.startswith("layer.")]
    assert [(event.type, event.data["layer"], event.data.get("tasks")) for event in layers] == [
        ("layer.start", 0, ["a", "b"]),
        ("layer.complete", 0, None),
        ("layer.start", 1, ["c"]),
        ("layer.complete", 1, None),
    ]


def test_what_is_done_to_an_event_is_done_to_nothing_else(via: Via, place: dict[str, Any]) -> None:
    """D6: events are the reader's own."""
    flow = Workflow("f", **place).add_task("a", lambda: [1]).add_task("b", lambda a: a, ["a"])

    def spoil(event: Event) -> None:
        for value in event.values():
            if isinstance(value, list):
                value.append("x")
        event.clear()

    async def watch() -> Any:
        run = flow.astream()
        async for event in run:
            spoil(event)
        return await run.result()

    if via.api == "async":
        state = asyncio.run(watch())
    else:
        run = flow.stream()
        for event in run:
            spoil(event)
        state = run.result()
    assert state.results == {"a": [1], "b": [1]}


class Refusing(MemoryStore):
    """A MemoryStore that is away for some of its commits."""

    def __init__(self, *numbers: int) -> None:
        super().__init__()
        self.count, self.numbers = 0, numbers

    def append(self, commits: Any) -> Any:
        self.count += 1
        if self.count in self.numbers:
            raise StoreUnavailable("away")
        return super().append(commits)


@pytest.mark.parametrize("numbers", [(1,), (2,), (3,), (4,), (2, 3, 4, 5), tuple(range(1, 100))], ids=str)
def test_a_save_that_failed_is_reported_and_no_id_that_cant_be_loaded(
    numbers: tuple[int, ...], via: Via
) -> None:
    """D6: with on_save_error="continue"; the run ends all the same."""
    flow = diamond(store=Refusing(*numbers), on_save_error="continue", preserve=True)
    told: list[Event] = []

    def look(event: Event) -> None:
        told.append(event)
        if event["type"] == "checkpoint_saved":
            point = flow.checkpoint(event["checkpoint_id"])
            assert point.completed_layers == event["layer"] + 1

    async def watch() -> None:
        async for event in flow.astream(run_id="r"):
            look(event)

    if via.api == "sync":
        for event in flow.stream(run_id="r"):
            look(event)
    else:
        asyncio.run(watch())
    types = [event["type"] for event in told]
    assert types[-1] == "workflow_complete"
    assert "checkpoint_failed" in types
    assert all("away" in event["error"] for event in told if event["type"] == "checkpoint_failed")
    ids = [event["checkpoint_id"] for event in told if event["type"] == "checkpoint_saved"]
    assert len(ids) == len(set(ids))


def test_a_save_that_fails_ends_the_run_by_default(via: Via) -> None:
    """D6, G9: before the next layer."""
    flow = diamond(store=Refusing(3))
    told = via.events(flow, run_id="r")
    assert told[-1]["type"] == "error"
    assert "away" in told[-1]["error"]
    assert ("layer_start", 2) not in map(brief, told)


def test_cancelling_is_reported_last(via: Via, place: dict[str, Any]) -> None:
    """D1"""
    flow = Workflow("f", **place).add_task("a", one).add_task("b", one, ["a"]).add_task("c", one, ["b"])
    told: list[Event] = []

    async def watch() -> None:
        run = flow.astream()
        async for event in run:
            told.append(event)
            if brief(event) == ("task_complete", "a", 0):
                run.cancel()

    if via.api == "async":
        asyncio.run(watch())
    else:
        run = flow.stream()
        for event in run:
            told.append(event)
            if brief(event) == ("task_complete", "a", 0):
                run.cancel()
    assert told[-1]["type"] == "cancelled"
    assert ("task_start", "c", 2) not in map(brief, told)


def test_observers_see_tasks_as_nodes(via: Via, place: dict[str, Any]) -> None:
    """D1: and layers."""
    seen: list[tuple[str, Mapping[str, Any]]] = []
    via.execute(diamond(observer=lambda event: seen.append((event.type, event.data)), **place))
    nodes = [(kind, data["node"]) for kind, data in seen if kind.startswith("node.")]
    assert nodes == [(kind, name) for name in "abd" for kind in ("node.start", "node.complete")]
    assert [kind for kind, _ in seen if kind.startswith("graph.")] == ["graph.start", "graph.complete"]
    assert "cycle.detected" not in {kind for kind, _ in seen}
    assert "(planner)" not in {data.get("node") for kind, data in seen if kind.startswith("node.")}
    saved = [data["step"] for kind, data in seen if kind == "checkpoint.save"]
    assert saved == sorted(saved)
    assert bool(saved) == bool(place)


def test_an_observer_that_fails_does_no_harm(via: Via, place: dict[str, Any]) -> None:
    """D1"""

    def broken(event: Any) -> None:
        raise RuntimeError("observer")

    assert via.execute(diamond(observers=[broken, broken], **place)).results["d"] == (2, None)


def test_a_large_checkpoint_is_warned_of(via: Via, store: Any, caplog: pytest.LogCaptureFixture) -> None:
    """D8: one of more than 500 KB, once in a run."""
    flow = Workflow("f", store=store).add_task("a", lambda: os.urandom(300_000))
    flow.add_task("b", lambda: os.urandom(300_000)).add_task("c", lambda a: len(a), ["a", "b"])
    flow.add_task("d", lambda: b"x" * 5_000_000, ["c"])
    with caplog.at_level(logging.WARNING, logger="limpet"):
        via.execute(flow, run_id="big")
    warned = [record.getMessage() for record in caplog.records]
    assert len(warned) == 1
    assert "big" in warned[0]
    assert "large" in warned[0]


def test_a_small_checkpoint_is_not(via: Via, store: Any, caplog: pytest.LogCaptureFixture) -> None:
    """D8: 400 KB after several layers."""
    flow = Workflow("f", store=store)
    for n in range(4):
        flow.add_task(f"t{n}", lambda: os.urandom(100_000), [f"t{n - 1}"] if n else ())
    with caplog.at_level(logging.WARNING, logger="limpet"):
        via.execute(flow)
    assert caplog.records == []


def test_sync_and_async_tasks_are_in_one_workflow(via: Via, place: dict[str, Any]) -> None:
    """H7: in one layer, both under way at once."""
    met = threading.Event()

    def wait() -> bool:
        return met.wait(SOON)

    async def meet() -> str:
        await asyncio.sleep(0)
        met.set()
        return "met"

    flow = Workflow("f", **place).add_task("a", wait).add_task("b", meet)
    flow.add_task("c", lambda a, b: (a, b), ["a", "b"])
    assert via.execute(flow).results["c"] == (True, "met")


def test_async_tasks_speak_pause_and_are_tried_again(via: Via, store: Any) -> None:
    """H7, H8, P1"""

    async def ask(ctx: NodeContext) -> TaskResult:
        await asyncio.sleep(0)
        ctx.add_message("asked")
        answer = ctx.pause("go?")
        return TaskResult(answer, context={"answer": answer})

    async def flaky(ctx: NodeContext) -> int:
        await asyncio.sleep(0)
        if ctx.attempt < 3:
            raise OSError("busy")
        return ctx.attempt

    flow = Workflow("f", store=store).add_task("a", ask).add_task("b", flaky, retry=AT_ONCE)
    via.paused(flow)
    state = via.resume(flow, "r", "yes")
    assert (state.results, state.messages) == ({"a": "yes", "b": 3}, ["asked"])
    assert state.context == {"answer": "yes"}


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_an_async_task_that_ends_the_process_ends_the_run(error: type[BaseException]) -> None:
    """H7: through the sync API; a sync task does, and so does a node of a graph."""

    async def leave() -> None:
        raise error

    with pytest.raises(error):
        Workflow("f").add_task("a", leave).execute()


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_a_task_that_ends_the_process_ends_the_run_and_can_be_done_again(
    error: type[BaseException], store: Any
) -> None:
    """H3: its siblings are kept, as after a crash."""
    calls: list[str] = []

    def leave(ctx: NodeContext) -> None:
        calls.append(ctx.node)
        if calls.count("b") == 1:
            raise error

    flow = Workflow("f", store=store, max_concurrency=1).add_task("a", lambda ctx: calls.append(ctx.node))
    flow.add_task("b", leave).add_task("c", one, ["a", "b"])
    with pytest.raises(error):
        flow.execute(run_id="r")
    assert flow.resume("r").results["c"] == 1
    assert calls == ["a", "b", "b"]


def test_a_thread_pool_of_ones_own_runs_the_tasks(via: Via, place: dict[str, Any]) -> None:
    """D1: also one that is smaller than the layer."""
    with ThreadPoolExecutor(2, thread_name_prefix="mine") as pool:
        flow = Workflow("f", executor=pool, **place)
        for n in range(6):
            flow.add_task(
                f"t{n}", lambda ctx: (ctx.add_message(ctx.node), threading.current_thread().name)[1]
            )
        state = via.execute(flow)
    assert all(name.startswith("mine") for name in state.results.values())
    assert state.messages == [f"t{n}" for n in range(6)]


def whoami(n: int) -> tuple[int, int]:
    return n, os.getpid()


def plain(config: Any, inputs: Any, results: Any, context: Any, k: int) -> Any:
    return config, inputs, results, context, k


def speaks(**rest: Any) -> TaskResult:
    return TaskResult(rest, messages=["m"], decisions=["d"], context={"k": 1})


def fails() -> None:
    raise ValueError("far away")


def with_ctx(ctx: Any) -> None:
    return None


def with_default(n: int = 7) -> int:
    return n


def takes_twice(a: int, x: int) -> tuple[int, int]:
    return a, x


def sees_results(state: Any) -> Any:
    return {name: record["result"] for name, record in state["tasks"].items()}


@pytest.fixture(scope="module")
def processes() -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("fork")) as pool:
        pool.submit(os.getpid).result()
        yield pool


def test_tasks_run_in_processes(via: Via, place: dict[str, Any], processes: ProcessPoolExecutor) -> None:
    """D1: what is plain goes there, and what they say comes back."""
    flow = Workflow("f", executor=processes, **place).add_task("a", whoami, arguments={"n": 3})
    flow.add_task("b", plain, ["a"], arguments={"k": 2}).add_task("c", speaks, {"x": "a"}, arguments={"k": 2})
    flow.add_task("d", fails, safe_to_fail=True, retry=AT_ONCE)
    state = via.execute(flow, {"i": 1}, config={"c": 1})
    assert state.results["a"][0] == 3
    assert state.results["a"][1] != os.getpid()
    assert state.results["b"] == ({"c": 1}, {"i": 1}, {"a": state.results["a"]}, {}, 2)
    assert state.results["c"]["k"] == 2
    assert state.results["c"]["x"] == state.results["a"]
    assert (state.messages, state.context, len(state.decisions)) == (["m"], {"k": 1}, 1)
    assert (state.tasks["d"].status, state.tasks["d"].attempts) == ("failed", 3)
    state.check()


def test_a_task_that_takes_ctx_cant_go_to_a_process(via: Via, processes: ProcessPoolExecutor) -> None:
    """D1"""
    with pytest.raises(ExecutionError, match="ctx"):
        via.execute(Workflow("f", executor=processes).add_task("a", with_ctx))


def test_a_parameter_keeps_its_default_in_a_process(via: Via, processes: ProcessPoolExecutor) -> None:
    """D1"""
    assert via.execute(Workflow("f", executor=processes).add_task("a", with_default)).results == {"a": 7}


def test_two_parameters_take_one_result_in_a_process(via: Via, processes: ProcessPoolExecutor) -> None:
    """D1"""
    flow = Workflow("f", executor=processes).add_task("a", with_default, arguments={"n": 1})
    assert via.execute(flow.add_task("b", takes_twice, {"x": "a"})).results["b"] == (1, 1)


def test_a_task_sees_the_state_of_the_run_in_a_process(via: Via, processes: ProcessPoolExecutor) -> None:
    """D1, D2"""
    flow = Workflow("f", executor=processes).add_task("a", with_default, arguments={"n": 1})
    assert via.execute(flow.add_task("b", sees_results, ["a"])).results["b"] == {"a": 1}


def graph_with(node: Workflow) -> StateGraph:
    """begin → the workflow."""
    graph = StateGraph(name="g").add_node("begin", run=lambda state: {"n": 1}).add_node("w", run=node)
    return graph.add_edge("begin", "w").set_entry_point("begin").set_finish_point("w")


def branches_with(node: Workflow) -> StateGraph:
    """begin → the workflow, in parallel to a plain node → join."""
    graph = StateGraph(name="p").add_node("begin", run=lambda state: {"n": 1}).add_node("w", run=node)
    graph.add_node("other", run=lambda state: {"o": 1})
    for name in ("w", "other"):
        graph.add_parallel_edge("begin", name, "join")
    graph.add_fanin_node("join", run=gathered)
    return graph.set_entry_point("begin").set_finish_point("join")


def map_over(node: Workflow) -> StateGraph:
    """A workflow for each of two numbers."""
    graph = StateGraph(name="m").add_node("begin", run=lambda state: {"items": [1, 2]})
    graph.add_map("begin", node, "items", "join", item="n").add_fanin_node("join", run=gathered)
    return graph.set_entry_point("begin").set_finish_point("join")


def flow_with(node: Workflow) -> Workflow:
    """A task → the workflow."""
    return Workflow("f").add_task("n", one).add_task("w", node, ["n"])


def gathered(state: State, parallel_results: Any) -> dict[str, Any]:
    return {"r": [dict(each) for each in parallel_results]}


AROUND: dict[str, tuple[Callable[[Workflow], Any], Callable[[Any], Any], Any]] = {
    "node": (graph_with, lambda state: (state["x"], state["y"]), (2, 4)),
    "branch": (branches_with, lambda state: state["r"], [{"n": 1, "x": 2, "y": 4}, {"n": 1, "o": 1}]),
    "map": (map_over, lambda state: state["r"], [{"x": 2, "y": 4}, {"x": 3, "y": 6}]),
    "task": (flow_with, lambda state: state.results["w"], {"x": 2, "y": 4}),
}


@pytest.mark.parametrize("around", AROUND)
def test_a_workflow_runs_inside_others(around: str, via: Via, place: dict[str, Any]) -> None:
    """D1: as a node, in a parallel branch, for each item of a map, and as a task."""
    build, found, expected = AROUND[around]
    assert found(via.execute(build(inside()).compile(**place), {})) == expected


@pytest.mark.parametrize("around", AROUND)
def test_a_workflow_inside_others_does_nothing_twice(around: str, via: Via, store: Any) -> None:
    """H3: the task is the durable unit there too."""
    calls: list[str] = []
    broken = [True]

    def flaky(x: int) -> int:
        calls.append("y")
        if broken:
            raise ValueError("no")
        return x * 2

    inner = Workflow("inside").add_task("x", lambda n: calls.append("x") or n + 1).add_task("y", flaky, ["x"])
    build, found, expected = AROUND[around]
    graph = build(inner).compile(store=store, max_concurrency=1)
    with pytest.raises(ExecutionError, match="ValueError: no"):
        via.execute(graph, {}, run_id="r")
    broken.clear()
    assert found(via.resume(graph, "r")) == expected
    assert calls.count("x") == (2 if around == "map" else 1)


@pytest.mark.parametrize("around", AROUND)
def test_a_workflow_inside_others_reports_its_layers_with_their_path(
    around: str, via: Via, place: dict[str, Any]
) -> None:
    """D1, D6: the last layer included."""
    build, found, expected = AROUND[around]
    graph = build(inside()).compile(**place, preserve=True, **({"keep": None} if around == "task" else {}))
    told = via.events(graph, {}, run_id="r")
    if told[-1]["type"] == "error":
        raise told[-1]["exception"]
    assert found(told[-1]["state"]) == expected
    mine = [event for event in told if event.get("task") in ("x", "y")]
    count = 2 if around == "map" else 1
    assert [event["task"] for event in mine if event["type"] == "task_complete"].count("y") == count
    assert all(event["branch"] for event in mine)
    saved = [event for event in told if event["type"] == "checkpoint_saved" and "branch" in event]
    assert len(saved) == (2 * count if place else 0)
    for event in saved:
        assert graph.state_at("r", int(event["checkpoint_id"].removeprefix("r@")))


def test_a_graph_inside_reports_its_nodes_between_start_and_end_of_its_task(
    via: Via, place: dict[str, Any]
) -> None:
    """D1"""
    graph = StateGraph(name="g").add_node("q", run=lambda state: {"got": state["a"] + state["k"]})
    graph.set_entry_point("q").set_finish_point("q")
    flow = Workflow("f", **place).add_task("a", one).add_task("g", graph, ["a"], arguments={"k": 2})
    told = [brief(event) for event in via.events(flow, {"i": 5}) if event["type"] != "checkpoint_saved"]
    assert told[3:] == [
        ("layer_start", 1),
        ("task_start", "g", 1),
        ("state", "g"),
        ("branch", "g"),
        ("task_complete", "g", 1),
        ("workflow_complete",),
    ]


def test_a_failed_attempt_at_a_graph_is_reported(via: Via) -> None:
    """H8, D1: task_error for the task itself, with the wait."""
    flow = Workflow("f").add_task("w", Workflow("in").add_task("x", fails), retry=Retry(2, backoff=0))
    told = [timeless(event) for event in via.events(flow)]
    mine = [(each["type"], each["attempt"]) for each in told if each.get("task") == "w"]
    assert mine == [("task_start", 1), ("task_error", 1), ("task_start", 2), ("task_error", 2)]


def test_a_question_inside_is_reported_with_its_path(via: Via, store: Any) -> None:
    """P3: in a workflow that is a task, and answered by that id."""
    inner = Workflow("in").add_task("x", lambda ctx: ctx.pause("inner?"))
    flow = Workflow("f", store=store).add_task("w", inner).add_task("v", lambda w: w, ["w"])
    (asked,) = via.events(flow, stream=False, run_id="r")
    assert (asked["type"], asked["task"], asked["prompt"]) == ("decision_required", "w/x", "inner?")
    assert via.resume(flow, "r", answers={asked["id"]: "yes"}).results["v"] == {"x": "yes"}
