"""A child that a node has forked writes nothing to its parent's run, however it leaves the node. H2, P8."""

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

    store, leaves, interval = sys.argv[1:]
    parent = os.getpid()

    def fork(state):
        child = os.fork()
        if child == 0:
            if leaves == "raises":
                raise ValueError("in the child")
            return {"by": "child"}
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        return {"by": "parent", "child": code}

    def after(state):
        if os.getpid() != parent:
            os.write(2, b"the child called a node\\n")
        return {"after": state["by"]}

    def own(state):
        return {"own": True}

    graph = StateGraph(name="g").add_node("fork", run=fork)
    graph.add_node("after", run=after).add_edge("fork", "after")
    graph.set_entry_point("fork").set_finish_point("after")
    graph.compile(store=store, preserve=True, interval=int(interval))
    try:
        graph.execute({}, run_id="r")
    except Conflict as conflict:
        if os.getpid() == parent:
            raise
        assert "os._exit()" in str(conflict), conflict
        # Runs of its own are the child's to write.
        other = StateGraph(name="h").add_node("own", run=own).set_entry_point("own").set_finish_point("own")
        other.compile(store=store, preserve=True).execute({}, run_id="of the child")
        os._exit(7)
    if os.getpid() != parent:
        os._exit(1)
    final = graph.state_at("r")
    assert (final["by"], final["child"], final["after"]) == ("parent", 7, "parent"), dict(final)
    assert graph.verify("r").ok
    """
)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
@pytest.mark.parametrize("interval", ["1", "0"])
@pytest.mark.parametrize("leaves", ["returns", "raises"])
@pytest.mark.parametrize("scheme", ["sqlite:///{}/runs.db", "file://{}/runs"])
def test_a_child_that_a_node_forks_cannot_write_to_the_run(
    scheme: str, leaves: str, interval: str, tmp_path: Path
) -> None:
    """H2: it has the newest fence, too, but only its parent executes the run; the parent completes it."""
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, scheme.format(tmp_path), leaves, interval]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
