"""Graphs in YAML files at the command line: shown, run, resumed, and resumed from a checkpoint."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from support.command_line import Command

AGENT = """
name: agent
state: {ran: {type: list, reducer: append}, verdict: str}
nodes:
  - {name: draft, run: "steps:note", retry: 2}
  - {name: review, run: "steps:note"}
  - {name: ask, prompt: {text: "Ship it?", choices: [yes, no]}, output: verdict}
edges:
  - {from: START, to: draft}
  - {from: draft, to: review}
  - {from: review, to: ask}
  - {from: ask, to: END}
config:
  checkpoint_dir: ./stops
  interrupt_before: [review]
"""


@pytest.fixture
def agent(limpet: Command, here: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """A project with a YAML file, and the module that it names beside it; neither is on the path."""
    (here / "agents").mkdir()
    (here / "agents" / "agent.yaml").write_text(AGENT)
    (here / "agents" / "steps.py").write_text("def note(state, node):\n    return {'ran': [node]}\n")
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each != str(here)])
    monkeypatch.delitem(sys.modules, "steps", raising=False)
    return limpet


def test_a_file_is_run_resumed_and_answered(agent: Command) -> None:
    """F13: each with the command that was printed; modules beside the file are found."""
    done = agent("run", "agents/agent.yaml", "--id", "r")
    assert done.code == 3
    printed, approval = (line.split() for line in done.err.splitlines() if line.startswith("  limpet"))
    assert printed == ["limpet", "resume", "r", "--graph", "agents/agent.yaml"]
    assert approval == ["limpet", "answer", "r", "--detach", "--graph", "agents/agent.yaml"]
    done = agent(*printed[1:])
    printed = done.err.strip().splitlines()[-1].split()
    assert (done.code, printed[1:4]) == (3, ["answer", "r", "yes"])
    done = agent(*printed[1:], "--json")
    assert (done.code, done.data["state"]) == (0, {"ran": ["draft", "review"], "verdict": "yes"})


def test_a_run_resumes_from_the_checkpoint_file_that_is_named(agent: Command, here: Path) -> None:
    """F13: by --checkpoint, or by the file's own config."""
    agent("run", "agents/agent.yaml")
    (stop,) = (here / "stops").iterdir()
    done = agent(
        "run", "agents/agent.yaml", "--checkpoint", str(stop), "--store", "sqlite:///new.db", "--json"
    )
    assert (done.code, done.data["state"]["ran"]) == (3, ["draft", "review"])
    named = AGENT.replace("checkpoint_dir: ./stops", f"checkpoint: {stop}")
    (here / "agents" / "more.yaml").write_text(named.replace("interrupt_before: [review]", ""))
    done = agent("run", "agents/more.yaml", "--store", "sqlite:///newer.db", "--json")
    assert (done.code, done.data["state"]["ran"]) == (3, ["draft", "review"])


@pytest.mark.parametrize(
    ("more", "code", "said"),
    [
        (["--checkpoint", "nope.pkl"], 4, "the file doesn't exist"),
        (["--checkpoint", "nope.pkl", "--id", "r"], 2, "not both"),
        (["--checkpoint", "nope.pkl", "--detach"], 2, "leave out --detach"),
    ],
)
def test_a_checkpoint_that_cant_be_used_is_refused(
    agent: Command, more: list[str], code: int, said: str
) -> None:
    done = agent("run", "agents/agent.yaml", *more)
    assert done.code == code
    assert said in done.err


def test_a_file_is_looked_at_without_importing_its_code(agent: Command, here: Path) -> None:
    """F13: with where it stops."""
    done = agent("graph", "show", "agents/agent.yaml")
    assert [line.split() for line in done.out.splitlines()[-3:]] == [
        ["draft", "review", "2", "attempts"], ["review", "ask", "before"], ["ask", "end"],
    ]  # fmt: skip
    data = agent("graph", "show", "agents/agent.yaml", "--json").data
    assert [node["stops"] for node in data["nodes"]] == ["", "before", ""]
    assert agent("graph", "check", "agents/agent.yaml").out == "agent is valid\n"
    assert "review" in agent("graph", "draw", "agents/agent.yaml").out
    assert "steps" not in sys.modules


@pytest.mark.parametrize("kind", ["nodes", "tasks"])
def test_the_queue_and_the_limits_of_a_file_are_shown(limpet: Command, here: Path, kind: str) -> None:
    """F13, H18: of its runs, though no code is imported."""
    (here / "ask.yaml").write_text(
        f"limits: {{tenant: {{concurrency: 1}}}}\n{kind}: [{{name: ask, run: 'nowhere:ask'}}]\n"
        "config: {queue: gpu, limits: [tenant], store: 'sqlite:///own.db'}\n"
    )
    shown = [line.split() for line in limpet("graph", "show", "ask.yaml").out.splitlines()]
    assert ["queue", "gpu"] in shown
    assert ["limits", "tenant"] in shown
    data = limpet("graph", "show", "ask.yaml", "--json").data
    assert (data["queue"], data["limits"]) == ("gpu", ["tenant"])
    assert not (here / "own.db").exists()


def test_mistakes_in_a_file_are_reported_all_at_once_with_their_places(agent: Command, here: Path) -> None:
    """F13, G2."""
    wrong = AGENT.replace("retry: 2", "retyr: 2").replace("to: ask}", "to: akk}")
    (here / "wrong.yaml").write_text(wrong)
    done = agent("graph", "check", "wrong.yaml")
    assert (done.code, done.out) == (2, "")
    assert "wrong.yaml:5:38: " in done.err
    assert "did you mean 'retry'?" in done.err
    assert "'akk'" in done.err
    assert len(agent("graph", "check", "wrong.yaml", "--json").data["mistakes"]) >= 2
    assert agent("run", "wrong.yaml").code == 2
    assert agent("graph", "draw", "nope.yaml").code == 2


STORED = """
name: stored
state: {n: int}
nodes: [{name: add, run: "steps:note"}]
edges: [{from: START, to: add}, {from: add, to: END}]
config: {store: "sqlite:///own.db"}
"""


def test_the_picture_of_a_run_comes_from_the_store_of_its_file(agent: Command, here: Path) -> None:
    """F13, P5: the code that the file names isn't imported for it, and no other store is made."""
    (here / "agents" / "stored.yaml").write_text(STORED)
    assert agent("run", "agents/stored.yaml", "--id", "r").code == 0
    sys.modules.pop("steps", None)
    done = agent("graph", "draw", "agents/stored.yaml", "--run", "r")
    assert (done.code, "✓ add" in done.out) == (0, True)
    assert "steps" not in sys.modules
    assert not (here / "limpet.db").exists()


def test_the_picture_of_a_run_makes_no_store(agent: Command, here: Path) -> None:
    """P5: neither the one that the file names, nor a new one where it names none."""
    (here / "agents" / "stored.yaml").write_text(STORED)
    done = agent("graph", "draw", "agents/stored.yaml", "--run", "r")
    assert (done.code, "own.db" in done.err) == (6, True)
    done = agent("graph", "draw", "agents/agent.yaml", "--run", "r")
    assert (done.code, "no store named" in done.err) == (2, True)
    assert not list(here.glob("*.db"))
