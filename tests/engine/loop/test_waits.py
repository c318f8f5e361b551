"""A run that waits: until a moment of the store's clock, and only while the run is this process's. H2, H3, F11."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from limpet import Conflict, MemoryStore, NodeContext, Retry, RunNotFound, StateGraph
from limpet.engine.drivers.node_call import call_node
from limpet.engine.loop.driver_commands import Begin, Gather, Wait
from limpet.journal.store import Commit
from limpet.testing import FakeClock

SOON = 60.0


class Calls:
    """Which process called which node, in order. The test plays both processes."""

    def __init__(self) -> None:
        self.made: list[tuple[str, str]] = []
        self.process = "stopped"

    def note(self, node: str) -> None:
        self.made.append((self.process, node))


class StoppingClock(FakeClock):
    """A clock by which a process waits that is stopped meanwhile, as by SIGSTOP, until the test continues it."""

    def __init__(self) -> None:
        super().__init__()
        self.waited = threading.Event()
        self.goes_on = threading.Event()

    def wait(self, seconds: float, stop: threading.Event) -> None:
        self.waited.set()
        assert self.goes_on.wait(SOON)


def sleeping(calls: Calls) -> Callable[..., Any]:
    def node(ctx: NodeContext) -> None:
        ctx.sleep(100)
        calls.note("slept")

    return node


def failing(calls: Calls) -> Callable[..., Any]:
    def node(ctx: NodeContext) -> None:
        if ctx.attempt == 1:
            raise OSError("not yet")
        calls.note("retried")

    return node


def waiting_graph(kind: str, calls: Calls, store: MemoryStore, preserve: bool) -> StateGraph:
    """A graph whose run waits for 100 seconds and then calls a node once."""
    retry = Retry(2, backoff=100, jitter=0)
    graph = StateGraph(name="g").add_node("source")
    match kind:
        case "sleep":
            graph.add_node("node", run=sleeping(calls)).add_edge("source", "node")
        case "delay":
            graph.add_node("node", run=lambda state: calls.note("delayed")).add_edge(
                "source", "node", delay=100
            )
        case "retry":
            graph.add_node("node", run=failing(calls), retry=retry).add_edge("source", "node")
    if kind != "branches":
        return (
            graph.set_entry_point("source").set_finish_point("node").compile(store=store, preserve=preserve)
        )
    graph.add_node("a", run=sleeping(calls)).add_node("b", run=failing(calls), retry=retry)
    graph.add_fanin_node("join").set_entry_point("source").set_finish_point("join")
    graph.add_parallel_edge("source", "a", "join").add_parallel_edge("source", "b", "join")
    return graph.compile(store=store, preserve=preserve)


@pytest.mark.parametrize("preserve", [True, False])
@pytest.mark.parametrize("api", ["sync", "async"])
@pytest.mark.parametrize("kind", ["sleep", "delay", "retry", "branches"])
def test_a_process_that_was_stopped_while_it_waited_calls_no_node_of_a_run_it_lost(
    kind: str, api: str, preserve: bool
) -> None:
    """H2, H3: another process has claimed the run and completed it meanwhile."""
    clock = StoppingClock()
    store = MemoryStore(clock=clock)
    calls = Calls()
    graph = waiting_graph(kind, calls, store, preserve)
    errors: list[BaseException] = []

    def execute() -> None:
        try:
            if api == "sync":
                graph.execute({}, run_id="r")
            else:
                asyncio.run(graph.aexecute({}, run_id="r"))
        except BaseException as error:
            errors.append(error)

    stopped = threading.Thread(target=execute, daemon=True)
    stopped.start()
    assert clock.waited.wait(SOON)
    clock.skip(200)
    calls.process = "other"
    waiting_graph(kind, calls, store, preserve).resume("r")
    calls.process = "stopped"
    clock.goes_on.set()
    stopped.join(SOON)
    assert not stopped.is_alive()
    assert {process for process, _ in calls.made} == {"other"}
    assert len(calls.made) == (2 if kind == "branches" else 1)
    assert [type(error) for error in errors] in ([Conflict], [RunNotFound])


def test_a_skip_of_the_clock_is_not_lost_between_a_branch_and_its_runner() -> None:
    """F11: a branch waits until a moment, whatever happens to the clock before its runner sees that."""
    clock = FakeClock()

    def wake(ctx: NodeContext) -> None:
        ctx.sleep(100)

    graph = StateGraph(name="g").add_node("source").add_fanin_node("join")
    for name in ("a", "b"):
        graph.add_node(name, run=wake).add_parallel_edge("source", name, "join")
    graph.set_entry_point("source").set_finish_point("join").compile(store=MemoryStore(clock=clock))
    session = graph.invoke({})._slot.begin()
    loop = session.loop()
    answer: Any = None
    while not isinstance(command := loop.send(answer), Wait):
        answer = None
        if isinstance(command, Begin):
            begun = command.tasks
        elif isinstance(command, Gather):
            answer = [(task, call_node(task)) for task in begun]
        elif isinstance(command, NodeContext):
            answer = call_node(command)
        elif isinstance(command, Commit):
            answer = session.write(command)
            clock.skip(7)
    section = session.progress.section
    assert section is not None
    assert command.until == min(child.sleeps_until for child in section.children.values())
    session.close()
