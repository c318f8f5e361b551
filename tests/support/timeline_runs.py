"""Runs of every shape for tests of timelines. Each is a generator that yields the id of a run wherever it stops."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Annotated, Any

from limpet import (
    END,
    Goto,
    LimpetError,
    Retry,
    Runs,
    StateGraph,
    TaskResult,
    Workflow,
    emit,
    pause,
    progress,
    receive,
    secret,
    supervise,
)
from limpet import sleep as rest
from limpet.testing.faults import FaultyStore
from support.graphs import Crash, add_chain, asking, chain, crash_once, fan, loop, single
from support.waiting import until

Shape = Callable[[Any], Iterator[str]]
RUN = "r"


def nothing(state: Any) -> dict[str, Any]:
    """A node that does nothing."""
    return {}


def boom(state: Any) -> dict[str, Any]:
    """A node that fails."""
    raise ValueError("no")


class Failing:
    """A node that fails the first times it is called."""

    def __init__(self, times: int = 1) -> None:
        self.left = times

    def __call__(self, state: Any) -> dict[str, Any]:
        if self.left:
            self.left -= 1
            raise ConnectionError("busy")
        return {}


def kept(graph: Any, store: Any, **options: Any) -> Any:
    """The graph, compiled so that its runs keep their journals."""
    return graph.compile(store=store, preserve=True, **options)


def run(graph: Any, given: dict[str, Any] | None = None, **options: Any) -> str:
    """Run a graph to its next stop, whatever that is."""
    with suppress(LimpetError, Crash):
        graph.execute(given or {}, run_id=RUN, **options)
    return RUN


def resume(graph: Any, *values: Any, **options: Any) -> str:
    """Resume the run to its next stop."""
    with suppress(LimpetError, Crash):
        graph.resume(RUN, *values, **options)
    return RUN


def cycle(store: Any) -> Iterator[str]:
    yield run(kept(loop(5), store))


def conditional(store: Any) -> Iterator[str]:
    graph = StateGraph(name="conditional").add_node("n1", run=lambda state: {"n": 3})
    for name in ("odd", "even", "last"):
        graph.add_node(name, run=nothing)
    graph.add_conditional_edges("n1", lambda state: state["n"] % 2, {0: "even", 1: "odd"})
    graph.add_edge("odd", "last").add_edge("even", "last").set_entry_point("n1").set_finish_point("last")
    yield run(kept(graph, store))


def branches(store: Any) -> Iterator[str]:
    yield run(kept(fan({"a": [nothing, nothing], "b": nothing}, then={"z": nothing}), store))


def nested_branches(store: Any) -> Iterator[str]:
    graph = StateGraph(name="nested").add_node("src", run=nothing)
    for side in ("left", "right"):
        graph.add_node(side, run=nothing)
        for inner in ("x", "y"):
            add_chain(graph, side + inner, [nothing, nothing])
            graph.add_parallel_edge(side, side + inner, f"{side}join")
        graph.add_fanin_node(f"{side}join", run=nothing).add_parallel_edge("src", side, "join")
        graph.add_edge(f"{side}join", "join")
    graph.add_fanin_node("join", run=nothing).set_entry_point("src").set_finish_point("join")
    yield run(kept(graph, store))


def mapped(items: int, each: Sequence[Any], then: dict[str, Any] | None = None, **options: Any) -> StateGraph:
    """A map: src → one → one2 … for each item → join → the nodes of `then`."""
    graph = StateGraph(name="map").add_node("src", run=lambda state: {"items": list(range(items))})
    add_chain(graph, "one", each)
    graph.add_fanin_node("join", run=nothing)
    graph.add_map("src", each="one", over="items", fan_in="join", **options)
    last = "join"
    for name, function in (then or {}).items():
        graph.add_node(name, function).add_edge(last, name)
        last = name
    return graph.set_entry_point("src").set_finish_point(last)


def map_of_100(store: Any) -> Iterator[str]:
    yield run(kept(mapped(100, [nothing, nothing], max_concurrency=4), store))


def map_that_fails(store: Any) -> Iterator[str]:
    graph = kept(mapped(5, [nothing, Failing(2)]), store)
    yield run(graph)
    yield resume(graph)


def map_twice(store: Any) -> Iterator[str]:
    """The section is opened twice, as it is in a cycle."""
    graph = StateGraph(name="again").add_node("src", run=lambda state: {"n": state.get("n", 0) + 1})
    for name in ("a", "b"):
        graph.add_node(name, run=nothing).add_parallel_edge("src", name, "join")
    graph.add_fanin_node("join", run=nothing).add_edge("join", "src", lambda state: state["n"] < 3)
    yield run(kept(graph.set_entry_point("src").set_finish_point("join"), store))


def graph_in_node(store: Any) -> Iterator[str]:
    inner = chain(nothing, asking(), nothing, names=["in", "ask", "out"], name="inner")
    outer = chain(nothing, chain(inner, nothing, names=["deep", "flat"]), nothing)
    graph = kept(outer, store)
    yield run(graph)
    yield resume(graph, "yes")


def graph_in_node_fails(store: Any) -> Iterator[str]:
    graph = kept(chain(nothing, chain(nothing, Failing(), names=["in", "fails"]), nothing), store)
    yield run(graph)
    yield resume(graph)


def diamond(**options: Any) -> Workflow:
    """a → b, c → d → e, of which the last is skipped."""
    flow = Workflow("flow", **options)
    flow.add_task("a", lambda: 1)
    flow.add_task("b", lambda a: 2)
    flow.add_task("c", lambda a: 3)
    flow.add_task("d", lambda b, c: 4)
    flow.add_task("e", lambda d: 5, condition=lambda d: False)
    flow.add_task("f", lambda e: 6, ["e"])
    return flow


def flow(store: Any) -> Iterator[str]:
    yield run(diamond(store=store, preserve=True))


def layers(store: Any) -> Iterator[str]:
    yield run(diamond(store=store, preserve=True, layers=True))


def flow_that_asks_and_fails(store: Any) -> Iterator[str]:
    workflow = Workflow("flow", store=store, preserve=True)
    calls: list[None] = []

    def fails() -> int:
        calls.append(None)
        if len(calls) == 1:
            raise ValueError("no")
        return 1

    def harmless() -> int:
        raise ValueError("never mind")

    workflow.add_task("a", lambda: 1)
    workflow.add_task("asks", lambda a: pause("Well?"))
    workflow.add_task("fails", fails, [])
    workflow.add_task("harmless", harmless, safe_to_fail=True)
    workflow.add_task("end", lambda asks, fails: 2, optional=["harmless"])
    yield run(workflow)
    yield resume(workflow)
    yield resume(workflow, "yes")


def flow_of_graphs(store: Any) -> Iterator[str]:
    """Tasks that run graphs and workflows, of which one adds a task."""
    inner = Workflow("inner").add_task("x", lambda: 1).add_task("y", lambda x: 2)
    workflow = Workflow("outer", store=store, preserve=True)
    workflow.add_task("a", lambda: TaskResult(1, add_tasks=[{"name": "more", "run": "page"}]))
    workflow.add_template("page", lambda: 1)
    workflow.add_task("more_work", lambda: 1)
    workflow.add_task("steps", chain(nothing, asking(), names=["in", "ask"]), depends_on=[])
    workflow.add_task("tasks", inner, depends_on=["steps"])
    yield run(workflow)
    yield resume(workflow, "yes")


def retries(store: Any) -> Iterator[str]:
    yield run(kept(retrying(2), store))


def retrying(times: int) -> StateGraph:
    """A node that fails this many times and is tried three times."""
    return single(Failing(times), retry=Retry(3, backoff=0.005))


def retries_that_fail(store: Any) -> Iterator[str]:
    graph = kept(retrying(3), store)
    yield run(graph)
    yield resume(graph)


def failure(store: Any) -> Iterator[str]:
    graph = kept(chain(nothing, Failing(2), nothing), store)
    yield run(graph)
    yield resume(graph)
    yield resume(graph)


def failing_edge(store: Any) -> Iterator[str]:
    """Choosing the next node fails once."""
    choice = Failing()
    graph = StateGraph(name="edge").add_node("n1", run=nothing).add_node("n2", run=nothing)
    graph.add_conditional_edges("n1", lambda state: choice(state) or "next", {"next": "n2"})
    graph = kept(graph.set_entry_point("n1").set_finish_point("n2"), store)
    yield run(graph)
    yield resume(graph)


def failing_branches(store: Any) -> Iterator[str]:
    graph = kept(fan({"a": Failing(), "b": [nothing, Failing(2)], "c": nothing}), store)
    yield run(graph)
    yield resume(graph)
    yield resume(graph)


def failing_nested_branch(store: Any) -> Iterator[str]:
    graph = StateGraph(name="nested").add_node("src", run=nothing).add_node("left", run=nothing)
    add_chain(graph, "x", [nothing, Failing()])
    graph.add_node("y", run=nothing).add_parallel_edge("left", "x", "inner")
    graph.add_parallel_edge("left", "y", "inner").add_fanin_node("inner", run=nothing)
    graph.add_node("right", run=nothing).add_fanin_node("join", run=nothing).add_edge("inner", "join")
    graph.add_parallel_edge("src", "left", "join").add_parallel_edge("src", "right", "join")
    graph = kept(graph.set_entry_point("src").set_finish_point("join"), store)
    yield run(graph)
    yield resume(graph)


def collected_failures(store: Any) -> Iterator[str]:
    """A branch fails, which is its result; then the fan-in fails."""
    graph = kept(fan({"a": boom, "b": nothing}, Failing(), on_error="collect"), store)
    yield run(graph)
    yield resume(graph)


def question(store: Any) -> Iterator[str]:
    graph = kept(chain(nothing, asking(), nothing), store)
    yield run(graph)
    yield resume(graph, "yes")


def two_questions(store: Any) -> Iterator[str]:
    graph = kept(fan({"a": asking(), "b": [nothing, asking()], "c": nothing}), store)
    yield run(graph)
    first, second = graph.get(RUN).questions
    yield resume(graph, answers={second.id: "yes"})
    yield resume(graph, answers={first.id: "yes"})


def question_with_deadline(store: Any) -> Iterator[str]:
    graph = kept(chain(nothing, asking(deadline=0.01, default="none"), nothing), store)
    yield run(graph)
    until(lambda: time.time() > graph.get(RUN).questions[0].deadline, "the deadline")
    yield resume(graph)


def question_and_failure(store: Any) -> Iterator[str]:
    """The run fails in one branch while another one asks."""
    graph = kept(fan({"a": asking(), "b": Failing()}), store)
    yield run(graph)
    yield resume(graph)
    yield resume(graph, "yes")


def interrupts(store: Any) -> Iterator[str]:
    graph = kept(chain(nothing, nothing, nothing), store, interrupt_before=["n2"], interrupt_after=["n2"])
    yield run(graph)
    yield resume(graph)
    yield resume(graph)


def interrupted_branches(store: Any) -> Iterator[str]:
    graph = fan({"a": [nothing, nothing], "b": [nothing, nothing]})
    graph = kept(graph, store, interrupt_before=["a2"], interrupt_after=["b"])
    yield run(graph)
    yield resume(graph)


def sleeping(store: Any) -> Iterator[str]:
    yield run(kept(chain(nothing, lambda state: rest(0.01) or {}, nothing), store))


def message(store: Any) -> Iterator[str]:
    graph = kept(chain(nothing, lambda state: {"got": receive("word")}, nothing), store)
    yield run(graph)
    graph.send(RUN, "word", 1)
    yield resume(graph)


def messages_in_branches(store: Any) -> Iterator[str]:
    def take(state: Any, node: str) -> dict[str, Any]:
        return {node: receive(node)}

    graph = kept(fan({"a": take, "b": take}), store)
    yield run(graph)
    graph.send(RUN, "b", 1)
    yield resume(graph)
    graph.send(RUN, "a", 1)
    yield resume(graph)


def child_runs(store: Any) -> Iterator[str]:
    child = kept(chain(nothing, name="child"), store)

    def start_both(state: Any, ctx: Any) -> dict[str, Any]:
        for each in [ctx.start(child, {}) for _ in range(2)]:
            ctx.join(each)
        return {}

    yield run(kept(chain(nothing, start_both, nothing, name="parent"), store))


def jumps(store: Any) -> Iterator[str]:
    """An error edge leads to a node that says where to go."""
    graph = StateGraph(name="jumps").add_node("a", run=boom, retry=Retry(2, backoff=0))
    graph.add_node("rescue", run=lambda state: Goto("b"), goto=["b"])
    graph.add_node("b", run=nothing).add_node("c", run=nothing)
    graph.add_error_edge("a", "rescue").add_edge("a", "c").add_edge("rescue", "c")
    graph.add_edge("b", END).add_edge("c", END).set_entry_point("a")
    yield run(kept(graph, store))


def rollback(store: Any) -> Iterator[str]:
    graph = kept(chain(nothing, nothing, nothing), store)
    yield run(graph)
    graph.rollback(RUN, 1)
    yield RUN
    yield resume(graph)


def rollback_of_a_failure(store: Any) -> Iterator[str]:
    graph = kept(fan({"a": Failing(), "b": asking()}), store)
    yield run(graph)
    graph.rollback(RUN, 0)
    yield RUN
    yield resume(graph)
    yield resume(graph, "yes")


def fork(store: Any) -> Iterator[str]:
    graph = kept(chain(nothing, nothing, nothing), store)
    yield run(graph)
    new = graph.fork(RUN, 2, {"n": 1}).id
    yield new
    graph.resume(new)
    yield new


def fork_among_branches(store: Any) -> Iterator[str]:
    graph = kept(fan({"a": [nothing, nothing], "b": [nothing, nothing]}), store)
    yield run(graph)
    new = graph.fork(RUN, 3).id
    yield new
    graph.resume(new)
    yield new


def cancelled(store: Any) -> Iterator[str]:
    graph = kept(fan({"a": asking(), "b": nothing}), store)
    yield run(graph)
    graph.cancel(RUN)
    yield RUN
    graph.get(RUN).retry()
    yield resume(graph)
    yield resume(graph, "yes")


def cancelled_node(store: Any) -> Iterator[str]:
    """A run is cancelled while a node is called."""
    begun = threading.Event()

    def wait(state: Any, ctx: Any) -> dict[str, Any]:
        begun.set()
        while True:  # until it is stopped here
            ctx.check()
            time.sleep(0.001)

    graph = kept(chain(nothing, wait), store)
    with supervise(store, [graph], poll=0.01):
        graph.start({}, run_id=RUN)
        begun.wait()
        graph.cancel(RUN)
        until(lambda: graph.get(RUN).status == "cancelled", "the end")
    yield RUN


def crash(store: Any) -> Iterator[str]:
    """The process crashes, and a supervisor recovers the run."""
    graph = kept(chain(nothing, crash_once(nothing), nothing), store)
    run(graph)
    with supervise(store, [graph], poll=0.02):
        until(lambda: graph.get(RUN).status == "completed", "the end")
    yield RUN


def deadline(store: Any) -> Iterator[str]:
    graph = kept(chain(nothing, asking(), nothing), store)
    run(graph, deadline=0.05)
    until(lambda: time.time() > graph.get(RUN).info.deadline, "the deadline")
    yield resume(graph, "yes")
    yield resume(graph, deadline="1h")
    yield resume(graph, "yes")


def deadline_among_branches(store: Any) -> Iterator[str]:
    graph = kept(fan({"a": asking(), "b": asking()}), store)
    run(graph, deadline=0.05)
    until(lambda: time.time() > graph.get(RUN).info.deadline, "the deadline")
    yield resume(graph)
    yield resume(graph, deadline="1h")


def budget(store: Any) -> Iterator[str]:
    """A cycle that never ends fails."""
    yield run(kept(loop(100, max_iterations=3), store))


def degraded_saves(store: Any) -> Iterator[str]:
    """The store fails for a while, and the run continues without it."""
    faulty = FaultyStore(store)
    graph = kept(chain(*[nothing] * 6), faulty, on_save_error="continue")
    faulty.fail("append", nth=2)
    yield run(graph)


def without_a_journal(store: Any) -> Iterator[str]:
    """Only the newest checkpoints are kept."""
    run(kept(loop(400), store))
    Runs(store).prune_checkpoints(RUN, 10)
    yield RUN


def updates(store: Any) -> Iterator[str]:
    graph = kept(chain(nothing, asking(), nothing), store, interrupt_before=["n1"])
    yield run(graph)
    yield resume(graph, {"n": 1})
    yield resume(graph, "yes")


def secrets(store: Any) -> Iterator[str]:
    """A node fails with a secret in its error, and another asks with one."""

    def leak(state: Any) -> dict[str, Any]:
        raise ValueError(f"no access with {state['key']}")

    graph = chain(
        lambda state: {"key": "hunter22"},
        leak,
        nothing,
        schema={"key": Annotated[str, secret]},
        name="secrets",
    )
    yield run(kept(graph, store, allow_plain_text_secrets=True))


def emitting(store: Any) -> Iterator[str]:
    """Nodes emit output and progress, in branches, too."""

    def tell(state: Any) -> dict[str, Any]:
        for number in range(3):
            progress(number, 3, "words")
            emit(number)
        return {}

    yield run(kept(fan({"a": [tell, tell], "b": tell}, tell, source=tell), store))


def paused_again(store: Any) -> Iterator[str]:
    """A node asks twice."""

    def twice(state: Any) -> dict[str, Any]:
        return {"both": [pause("first?"), pause("second?")]}

    graph = kept(chain(nothing, twice), store)
    yield run(graph)
    yield resume(graph, 1)
    yield resume(graph, 2)


SHAPES: dict[str, Shape] = {
    each.__name__: each
    for each in list(globals().values())
    if callable(each) and getattr(each, "__annotations__", {}).get("return") == "Iterator[str]"
}
"""All of them, by name."""
