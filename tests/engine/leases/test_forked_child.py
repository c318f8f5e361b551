"""A child that was forked while a run was executed writes nothing to the run of its parent. H2, P8."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

PROGRAM = textwrap.dedent(
    """
    import os, sys
    from limpet import Conflict, StateGraph

    store, way, interval = sys.argv[1:]
    parent = os.getpid()

    def first(state):
        return {"first": True}

    def second(state):
        if os.getpid() != parent:
            os.write(2, b"the child called a node\\n")
        return {"by": os.getpid()}

    graph = StateGraph(name="g").add_node("first", run=first)
    graph.add_node("second", run=second).add_edge("first", "second")
    graph.set_entry_point("first").set_finish_point("second")
    graph.compile(store=store, preserve=True, interval=int(interval))
    run = graph.stream({}, run_id="r")
    events = iter(run)
    next(events)
    child = os.fork()
    if child == 0:
        try:
            if way == "iterates":
                for event in events:
                    pass
            else:
                run.close()
                graph.resume("r")
        except Conflict:
            # Runs of its own are the child's to write.
            other = StateGraph(name="h").add_node("own", run=first).set_entry_point("own").set_finish_point("own")
            other.compile(store=store, preserve=True).execute({}, run_id="of the child")
            os._exit(7)
        os._exit(1)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    for event in events:
        pass
    assert (graph.state_at("r")["by"], code) == (parent, 7), (dict(graph.state_at("r")), code)
    assert graph.verify("r").ok
    """
)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
@pytest.mark.parametrize("interval", ["1", "0"])
@pytest.mark.parametrize("way", ["iterates", "resumes"])
@pytest.mark.parametrize("scheme", ["sqlite:///{}/runs.db", "file://{}/runs"])
def test_a_child_of_the_caller_of_a_run_cannot_write_to_the_run(
    scheme: str, way: str, interval: str, tmp_path: Path
) -> None:
    """H2: it has the newest fence, too, but only its parent executes the run; the parent completes it."""
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, scheme.format(tmp_path), way, interval]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
