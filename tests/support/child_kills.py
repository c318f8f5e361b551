"""Runs with children, or with a deadline, whose process is killed before each of its writes to the store.

`python -m support.child_kills URL WAY STEP` forks a process for each write: the process counts what it writes and is
gone before the write of that number. Another process then has to bring the run to its end. What each found is
printed, as a line of JSON, until a process isn't killed any more because it has nothing left to write.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial, wraps
from importlib import import_module
from threading import Lock
from time import monotonic, sleep
from typing import Any
from urllib.parse import urlsplit

from limpet import DeadlinePassed, LimpetError, Runs, State, StateGraph, open_store, supervise

WRITES = ("create", "append", "post", "claim", "claim_ready", "release")
PATIENCE = 60.0
KILLED = 9


def child_graph() -> StateGraph:
    """Two steps."""
    graph = StateGraph({"n": int}, name="child")
    graph.add_node("double", run=lambda state: {"n": state["n"] * 2})
    graph.add_node("add", run=lambda state: {"n": state["n"] + 1}).add_edge("double", "add")
    return graph.set_entry_point("double").set_finish_point("add")


CHILD = child_graph()


def parent_graph() -> StateGraph:
    """A node that starts two children and joins one, and a later one that joins the other."""

    def begin(state: State, ctx: Any) -> dict[str, Any]:
        other = ctx.start(CHILD, {"n": 10}, key="other")
        return {"other": other.run_id, "n": ctx.join(ctx.start(CHILD, {"n": 1}))["n"]}

    def end(state: State, ctx: Any) -> dict[str, Any]:
        return {"n": state["n"] + ctx.join(state["other"], CHILD)["n"]}

    graph = StateGraph({"n": int, "other": str}, name="parent")
    graph.add_node("begin", run=begin).add_node("end", run=end).add_edge("begin", "end")
    return graph.set_entry_point("begin").set_finish_point("end")


def timed_graph() -> StateGraph:
    """A run that waits for longer than its deadline, and then has one more step."""
    graph = StateGraph({"n": int}, name="timed")
    graph.add_node("first", run=lambda state: {"n": 1}).add_node(
        "last", run=lambda state: {"n": state["n"] + 1}
    )
    graph.add_edge("first", "last", delay=0.5)
    return graph.set_entry_point("first").set_finish_point("last")


def killing(store: Any, at: int) -> Any:
    """The store, which is gone with its process before the write of this number."""
    written = [0]
    lock = Lock()

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(call)
        def write(*args: Any, **kwargs: Any) -> Any:
            with lock:
                written[0] += 1
                if written[0] == at:
                    os._exit(KILLED)
            return call(*args, **kwargs)

        return write

    for name in WRITES:
        setattr(store, name, counted(getattr(store, name)))
    return store


def execute(store: Any, run_id: str, at: int) -> None:
    """The caller of the run executes it and its children."""
    parent_graph().compile(store=killing(store, at), preserve=True).execute({}, run_id=run_id)


def work(store: Any, run_id: str, at: int) -> None:
    """A worker executes the run and its children. It learns the graph of these from the run."""
    graph = parent_graph().compile(store=store, preserve=True)
    handle = graph.start({}, run_id=run_id)
    with supervise(killing(store, at), [graph], poll=0.02):
        wait_for(lambda: handle.status == "completed")


def miss(store: Any, run_id: str, at: int) -> None:
    """A worker fails the run at its deadline, and the run then gets another one."""
    graph = timed_graph().compile(store=killing(store, at), preserve=True)
    handle = graph.start({}, run_id=run_id, deadline=0.15)
    with supervise(store, [graph], poll=0.02, max_sleep=0.01):
        wait_for(lambda: handle.status == "failed")


WAYS = {"execute": execute, "work": work, "miss": miss}


def wait_for(is_done: Callable[[], bool]) -> None:
    """Wait until that is so."""
    limit = monotonic() + PATIENCE
    while not is_done():
        if monotonic() > limit:
            raise TimeoutError("it never ends")
        sleep(0.01)


def finish(store: Any, run_id: str, way: str) -> dict[str, Any]:
    """Bring the run to its end in a new process, and say how all runs ended."""
    if way == "miss":
        return finish_late(store, run_id)
    graph = parent_graph().compile(store=store, preserve=True)
    if way == "execute":
        graph.execute({}, run_id=run_id)
    else:
        handle = graph.start({}, run_id=run_id)
        with supervise(store, [graph], poll=0.02):
            wait_for(lambda: handle.status == "completed")
    children = graph.get(run_id).children()
    return {
        "n": graph.get(run_id).state["n"],
        "children": len(children),
        "statuses": sorted({info.status for info in Runs(store).list()}),
    }


def finish_late(store: Any, run_id: str) -> dict[str, Any]:
    """The same for the run with a deadline: it fails, and then gets another one."""
    graph = timed_graph().compile(store=store, preserve=True)
    handle = graph.start({}, run_id=run_id, deadline=0.15)
    with supervise(store, [graph], poll=0.02, max_sleep=0.01):
        wait_for(lambda: handle.status == "failed")
    found: dict[str, Any] = {}
    try:
        handle.result()
    except DeadlinePassed as error:
        found["error"] = error.code
    found["n"] = graph.resume(run_id, deadline="1h")["n"]
    return found


def in_process(call: Callable[[], Any]) -> int:
    """Do it in a process of its own; returns how that ended."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            call()
            code = 0
        except LimpetError as error:
            print(json.dumps({"error": str(error)}), flush=True)
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def main(url: str, way: str, step: str = "1") -> None:
    """Kill before the first write, and before each that comes `step` later, until there are no more."""
    with suppress(ImportError):  # once, and not in each process
        import_module(f"limpet.stores.{urlsplit(url).scheme}.store")
    for at in range(1, 200, int(step)):
        run_id = f"{way}-{at}"
        killed = in_process(partial(kill_at, url, way, run_id, at))
        in_process(partial(report, url, way, run_id))
        if killed == 0:
            return


def kill_at(url: str, way: str, run_id: str, at: int) -> None:
    WAYS[way](open_store(url), run_id, at)


def report(url: str, way: str, run_id: str) -> None:
    print(json.dumps(finish(open_store(url), run_id, way)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
