"""A program with traced runs, which other processes continue: see `test_opentelemetry_processes.py`.

`python traced_runs.py STORE` leaves three runs behind, and prints the span of each: one that is paused, one that was
started inside of a span, and one whose process is killed in its second node.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from opentelemetry import trace

from limpet import NodeContext, State, StateGraph, pause
from support.telemetry import Telemetry, in_memory


def ask(state: State, ctx: NodeContext) -> dict[str, Any]:
    """Ask, be killed, or neither."""
    if state["does"] == "ask":
        return {"answer": pause("Well?")}
    return {}


def end(state: State, ctx: NodeContext) -> None:
    """The second node."""
    if state["does"] == "crash" and ctx.attempt == 1:
        span = trace.get_current_span().get_span_context()
        print("crash", f"{span.trace_id:x}", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)


def traced(telemetry: Telemetry, store: str) -> StateGraph:
    """The graph of all these runs."""
    graph = StateGraph(name="traced").add_node("ask", run=ask).add_node("end", run=end)
    graph.set_entry_point("ask").add_edge("ask", "end").set_finish_point("end")
    return graph.compile(store=store, opentelemetry=telemetry.option)


def main(store: str) -> None:
    """Leave the runs behind."""
    telemetry = in_memory()
    graph = traced(telemetry, store)
    graph.invoke({"does": "ask"}, run_id="paused").wait()
    context = telemetry.run().context
    print("paused", f"{context.trace_id:x}", f"{context.span_id:x}", flush=True)
    with telemetry.tracer.start_as_current_span("caller") as caller:
        graph.start({"does": "nothing"}, run_id="started")
        context = caller.get_span_context()
        print("started", f"{context.trace_id:x}", f"{context.span_id:x}", flush=True)
    graph.execute({"does": "crash"}, run_id="crashed")


if __name__ == "__main__":
    main(sys.argv[1])
