"""H21: traces over processes that pause, hand over and are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from opentelemetry.sdk.trace import ReadableSpan

from limpet import Runs, supervise
from observe.traced_runs import traced
from support.telemetry import Telemetry
from support.waiting import until

TESTS = Path(__file__).parents[1]


def test_traces_continue_in_other_processes(telemetry: Telemetry, tmp_path: Path) -> None:
    """H21: after a pause, through `start`, and after kill -9; what is stored links each stretch to the one before."""
    store = f"sqlite:///{tmp_path}/runs.db"
    program = [sys.executable, str(TESTS / "observe" / "traced_runs.py"), store]
    paths = {"PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS.parent / "src")])}
    done = subprocess.run(program, env={**os.environ, **paths}, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    printed = dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
    graph = traced(telemetry, store)
    stored = {run: Runs(store).history(run)[-1].metadata["trace"] for run in ("paused", "started", "crashed")}

    graph.resume("paused", "yes")
    trace_id, span_id = printed["paused"].split()
    resumed = telemetry.run()
    assert links_of(resumed) == [f"{trace_id} {span_id}"]
    assert stored["paused"]["stretch"]["traceparent"].startswith(f"00-{trace_id:0>32}-{span_id:0>16}-")
    assert f"{resumed.context.trace_id:x}" != trace_id  # no trace was around either of the two

    telemetry.exporter.clear()
    with supervise(store, [graph]):
        until(lambda: len(telemetry.spans("limpet.run")) == 2)
    runs = {str((span.attributes or {})["limpet.run.id"]): span for span in telemetry.spans("limpet.run")}
    started = runs["started"]
    trace_id, span_id = printed["started"].split()
    assert started.parent is not None
    assert f"{started.parent.trace_id:x} {started.parent.span_id:x}" == f"{trace_id} {span_id}"
    assert started.parent.is_remote
    assert stored["started"]["caller"]["traceparent"].startswith(f"00-{trace_id:0>32}-{span_id:0>16}-")
    assert "stretch" not in stored["started"]

    # The span of the process that was killed never ended. It was stored when the run was created.
    crashed = runs["crashed"]
    before = stored["crashed"]["stretch"]["traceparent"].split("-")
    assert before[1].lstrip("0") == printed["crash"]
    (link,) = crashed.links
    assert [f"{link.context.trace_id:032x}", f"{link.context.span_id:016x}"] == before[1:3]
    assert (crashed.attributes or {})["limpet.run.resumed"] is True
    assert (crashed.attributes or {})["limpet.run.status"] == "completed"
    kept = Runs(store).history("crashed")[-1].metadata["trace"]["stretch"]["traceparent"]
    assert kept.split("-")[1:3] == [f"{crashed.context.trace_id:032x}", f"{crashed.context.span_id:016x}"]


def links_of(span: ReadableSpan) -> list[str]:
    return [f"{link.context.trace_id:x} {link.context.span_id:x}" for link in span.links]
