"""A program whose nodes fork, in each way a node can be called: `python -m support.forking_nodes SHAPE STORE`.

Each child leaves its node in another way. The program fails if its runs aren't as if no child had existed, or if a
child ended otherwise than it should.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from time import monotonic, sleep
from typing import Any

from limpet import StateGraph, once, pause, supervise

EXIT_CODES = {"returns": 1, "raises": 1, "asks": 1, "keeps": 1, "exits": 5, "executes": 9}
"""How a child leaves its node, and the exit code that it ends with."""

CHILD_DEADLINE = 20.0
"""Seconds after which a child hangs."""

PARENT = os.getpid()


def report_child(what: str) -> None:
    """Fail this test if this is a child."""
    if os.getpid() != PARENT:
        os.write(2, f"A CHILD {what}\n".encode())


atexit.register(report_child, "did what is to be done at exit")


def forks(state: Any) -> dict[str, Any]:
    child = os.fork()
    if child == 0:
        leave(state["way"], state["store"])
        return {"by": "child"}
    return {"by": "parent", "code": code_of(child)}


async def aforks(state: Any) -> dict[str, Any]:
    """Another task of the event loop is about to continue when the child is forked."""
    other = asyncio.get_running_loop().create_task(report_next())
    child = os.fork()
    if child == 0:
        if state["way"] == "returns":
            await other
        leave(state["way"], state["store"])
        return {"by": "child"}
    code = code_of(child)
    await other
    return {"by": "parent", "code": code}


async def report_next() -> None:
    await asyncio.sleep(0)
    report_child("continued a task of the event loop")


def leave(way: str, store: str) -> None:
    """Leave a node in this way, or return to do it."""
    if way == "raises":
        raise ValueError("raised in the child")
    if way == "exits":
        sys.exit(5)
    if way == "asks":
        pause("Really?")
    if way == "keeps":
        once("kept by the child", str)
    if way == "executes":
        # Runs of its own are the child's to write.
        graph = StateGraph(name="own").add_node("own", run=own).set_entry_point("own").set_finish_point("own")
        assert graph.compile(store=store).execute({})["own"]
        os._exit(9)


def own(state: Any) -> dict[str, Any]:
    return {"own": True}


def code_of(child: int) -> int | str:
    """The exit code of a child."""
    deadline = monotonic() + CHILD_DEADLINE
    while monotonic() < deadline:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        sleep(0.005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "hangs"


def after(state: Any) -> dict[str, Any]:
    report_child("called the next node")
    return {"after": state["by"]}


def combine(state: Any, parallel_results: Any) -> dict[str, Any]:
    report_child("called the fan-in")
    results = {(each["by"], each["code"]) for each in parallel_results}
    assert len(results) == 1, results
    by, code = results.pop()
    return {"by": by, "code": code}


def graph_of(shape: str, store: str) -> StateGraph:
    """A graph in which the node `fork`, or two of them in parallel, forks, and another one comes after it."""
    run = aforks if "async node" in shape else forks
    timeout = 60.0 if "timeout" in shape else None
    graph = StateGraph(name="g").add_node("after", run=after).set_finish_point("after")
    if "branches" in shape:
        graph.add_node("begin", run=own).add_node("combine", run=combine).set_entry_point("begin")
        for name in ("fork", "fork too"):
            graph.add_node(name, run=run, timeout=timeout).add_parallel_edge("begin", name, "combine")
        graph.add_edge("combine", "after")
    else:
        graph.add_node("fork", run=run, timeout=timeout).set_entry_point("fork").add_edge("fork", "after")
    executor = ThreadPoolExecutor(2) if "executor" in shape else None
    interval = 0 if "interval" in shape else 1
    return graph.compile(store=store, preserve=True, interval=interval, executor=executor)


def execute_all(shape: str, graph: StateGraph, store: str) -> None:
    """Execute one run for each way to leave a node; its id is the way."""
    inputs = {way: {"way": way, "store": store} for way in EXIT_CODES}
    if "supervisor" not in shape:
        for way, given in inputs.items():
            if "aexecute" in shape:
                asyncio.run(graph.aexecute(given, run_id=way))
            else:
                graph.execute(given, run_id=way)
        return
    for way, given in inputs.items():
        graph.enqueue(given, run_id=way)
    if "event loop" in shape:
        asyncio.run(supervise_on_loop(graph, store))
    else:
        with supervise(store, [graph], poll=0.02, concurrency=2):
            wait_until_completed(graph)


async def supervise_on_loop(graph: StateGraph, store: str) -> None:
    async with supervise(store, [graph], poll=0.02, concurrency=2):
        await asyncio.to_thread(wait_until_completed, graph)


def wait_until_completed(graph: StateGraph) -> None:
    deadline = monotonic() + 3 * CHILD_DEADLINE
    while len(list(graph.runs(status="completed"))) < len(EXIT_CODES):
        assert monotonic() < deadline, list(graph.runs())
        sleep(0.02)


def main(shape: str, store: str) -> None:
    graph = graph_of(shape, store)
    try:
        execute_all(shape, graph, store)
    finally:
        report_child("did the cleanup of its parent")
    for way, code in EXIT_CODES.items():
        final = graph.state_at(way)
        found = final["by"], final["code"], final["after"]
        assert found == ("parent", code, "parent"), (way, found)
        assert graph.verify(way).ok


if __name__ == "__main__":
    main(*sys.argv[1:])
