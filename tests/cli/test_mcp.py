"""`limpet mcp` before it serves: options that don't go together, what is missing, and what can't be listened on."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path
from socket import create_server

import pytest

from limpet.cli.exit_codes import UNAVAILABLE, USAGE
from support.command_line import Command

GRAPH = ("--graph", "flows:graph", "--store", "sqlite:///runs.db")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--port", "0"], "--port is for --http: add it, or leave both out"),
        (["--token", "x" * 20], "--token is for --http"),
        (["--http", "--host", "0.0.0.0"], "can be reached from other machines, so choose a token"),
        (["--http", "--token", ""], "--token is empty"),
        (["--http", "--allow-inline", "--read-only"], "leave one of them out"),
        (["--http", "--allow-inline", "--no-worker"], "--allow-inline executes runs"),
        (
            ["--http", "--wait", "-1"],
            "wait is for how many seconds a call follows its run, more than 0, not -1.0",
        ),
    ],
)
def test_options_that_do_not_go_together_are_refused(limpet: Command, words: list[str], said: str) -> None:
    """P13: before anything is served."""
    Path("runs.db").touch()
    refused = limpet("mcp", *GRAPH, *words)
    assert refused.code == USAGE
    assert said in refused.err


def test_graphs_have_to_be_named(limpet: Command) -> None:
    """P13."""
    refused = limpet("mcp", "--http", "--store", "sqlite:///runs.db")
    assert "no graph named" in refused.err
    assert not Path("runs.db").exists()


def test_a_port_that_is_in_use_is_an_error(limpet: Command) -> None:
    """P13: that names it."""
    with closing(create_server(("127.0.0.1", 0))) as taken:
        port = str(taken.getsockname()[1])
        refused = limpet("mcp", *GRAPH, "--http", "--port", port)
    assert (refused.code, f"port {port}" in refused.err) == (UNAVAILABLE, True)


def test_without_its_package_it_says_what_to_install(
    limpet: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P13."""
    imported = ("limpet.integrations.mcp", "limpet.cli.commands.mcp")
    for name in [name for name in sys.modules if name.startswith(imported)]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "mcp", None)
    refused = limpet("mcp", *GRAPH)
    assert (refused.code, "pip install 'limpet[mcp]'" in refused.err) == (USAGE, True)
