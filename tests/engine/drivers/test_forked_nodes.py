"""A child that a node has forked ends where it leaves the node, and its parent continues the run. H2, P8."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.redis_servers import redis_server

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")

MISTAKES = 4
"""Of the ways in which children leave their nodes, those that are mistakes: each is logged."""


@pytest.mark.parametrize(
    "shape",
    [
        "execute",
        "execute, interval 0",
        "execute, timeout",
        "execute, async node",
        "execute, branches",
        "execute, branches, executor",
        "execute, branches, async node",
        "aexecute",
        "aexecute, timeout",
        "aexecute, async node",
        "aexecute, branches",
        "aexecute, branches, async node",
        "supervisor",
        "supervisor, branches",
        "supervisor, event loop",
        "supervisor, event loop, async node",
    ],
)
def test_a_child_that_leaves_the_node_that_forked_it_ends_there(shape: str, tmp_path: Path) -> None:
    """H2: it saves nothing, calls no other node, waits for no thread, and does none of its parent's cleanup."""
    check_children(shape, f"sqlite:///{tmp_path}/runs.db")


@pytest.mark.parametrize("shape", ["aexecute", "execute, branches", "aexecute, async node", "supervisor"])
@pytest.mark.parametrize("store", ["files", "postgres", "redis"])
def test_a_forked_child_ends_on_every_store(
    shape: str, store: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """H2: whatever threads, locks and connections the store has; the child can use it for runs of its own."""
    if store == "files":
        check_children(shape, f"file://{tmp_path}/runs")
    elif store == "postgres":
        check_children(shape, request.getfixturevalue("database"))
    else:
        with redis_server(tmp_path) as server:
            check_children(shape, server.url)


def check_children(shape: str, store: str) -> None:
    command = [sys.executable, "-W", "ignore", "-m", "support.forking_nodes", shape, store]
    done = subprocess.run(
        command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=300, check=False
    )
    assert (done.returncode, "A CHILD" in done.stderr) == (0, False), done.stderr
    children = 2 if "branches" in shape else 1
    assert done.stderr.count("was forked by a node and has left it") == MISTAKES * children, done.stderr
    assert done.stderr.count("ValueError: raised in the child") == children
    assert done.stderr.count("limpet.errors.Conflict") == children
