"""P12: at the command line, too, a graph reaches its own runs, and a command without a graph reaches all."""

from __future__ import annotations

from pathlib import Path

import pytest

from limpet import Runs, WrongGraph
from limpet.yaml_files.loading import loads
from support.command_line import Command


@pytest.mark.parametrize(
    "arguments",
    [
        ("graph", "draw", "flows:plain", "--run", "waits"),
        ("run", "flows:plain", "--checkpoint", "waits@1"),
    ],
    ids=["draw", "run --checkpoint"],
)
def test_a_command_with_a_graph_refuses_another_graphs_run(runs: Command, arguments: tuple[str, ...]) -> None:
    """P12: and says how to look at it."""
    done = runs(*arguments)
    assert done.code == 2
    assert "run 'waits' belongs to graph 'article', not to 'plain'" in done.err
    assert "limpet runs show waits" in done.err


@pytest.mark.parametrize("verb", ["resume", "answer", "runs fork", "runs rollback"])
def test_a_command_that_needs_the_graph_takes_the_runs_own(runs: Command, verb: str) -> None:
    """P12: a graph that is named but isn't the run's is refused."""
    more = {"answer": ["yes"], "runs rollback": ["1"]}.get(verb, [])
    done = runs(*verb.split(), "waits", *more, "--graph", "flows:plain")
    assert (done.code, "the code of graph 'article' wasn't found (known: plain" in done.err) == (2, True)


def test_commands_without_a_graph_reach_all_runs(runs: Command, here: Path) -> None:
    """P12: as `Runs(store)` does, whichever graph is named with them."""
    for arguments in (
        ["runs", "show", "waits"],
        ["runs", "history", "waits"],
        ["runs", "state", "waits"],
        ["runs", "export", "waits", "w.run"],
        ["runs", "import", "w.run", "--id", "copy"],
        ["runs", "cancel", "waits"],
        ["runs", "delete", "copy", "--yes"],
        ["store", "verify", "waits"],
    ):
        assert runs(*arguments, "--graph", "flows:plain").code == 0, arguments


def test_a_yaml_file_reaches_its_own_runs(runs: Command, here: Path) -> None:
    """P12, F13: also by the checkpoint that the file names."""
    text = "name: other\nnodes: [{name: a, run: 'flows:publish'}]\nentry: a\nfinish: a\n"
    store = f"sqlite:///{here}/limpet.db"
    graph = loads(text, store=store)
    for call in (
        lambda: graph.state_at("waits"),
        lambda: graph.cancel("waits"),
        lambda: graph.resume("waits"),
    ):
        with pytest.raises(WrongGraph):
            call()
    resuming = loads(text, store=store, checkpoint="waits@1")
    with pytest.raises(WrongGraph):
        resuming.execute({})
    assert Runs(store).get("waits").status == "paused"
