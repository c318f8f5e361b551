"""The pages for users of other programs: what they name in Limpet exists, and their code is executed."""

from __future__ import annotations

import builtins
import inspect
import re
from pathlib import Path

import pytest

import limpet
from limpet import State
from limpet.observe.events import EVENT_TYPES

HOW_TO = Path(__file__).parents[2] / "docs" / "how-to"
PAGES = (
    "coming-from-the-edge-agent.md",
    "coming-from-a-go-state-graph.md",
    "coming-from-workflows-mcp.md",
    "coming-from-a-layered-dag.md",
)
CLASSES = (
    limpet.StateGraph, limpet.Workflow, limpet.Run, limpet.RunHandle, limpet.Runs, limpet.State, limpet.WorkflowState,
    limpet.NodeContext, limpet.TaskRecord, limpet.WorkflowCheckpoint, limpet.CheckpointState, limpet.Event,
    limpet.ExecutionError, limpet.Limits, limpet.Schedules,
)  # fmt: skip
COMMANDS = (HOW_TO.parent / "reference" / "cli.md").read_text(encoding="utf-8")
CALLED = re.compile(r"(?:^|[ .(])([a-z_]\w+)\(")


def known_names() -> set[str]:
    """What can be called: public names, and members of the classes that users see."""
    names = {*limpet.__all__, "on_event"}
    for cls in CLASSES:
        names |= {name for name, _ in inspect.getmembers(cls)}
    return names


@pytest.mark.parametrize("page", PAGES)
def test_a_page_for_users_of_another_program_names_what_exists(page: str) -> None:
    """F15, F16, G14, P11, D12: all that it has users call, catch or watch; and all of its code is executed."""
    text = (HOW_TO / page).read_text(encoding="utf-8")
    assert f"]({page})" in (HOW_TO / "coming-from.md").read_text(encoding="utf-8")
    assert text.count("<!-- output -->") == text.count("```python\n")
    rows = [line.rstrip("| ") for line in text.splitlines() if line.startswith("| ")]
    spans = [span for row in rows for span in re.findall(r"`([^`]+)`", row.rpartition(" | ")[2])]
    called = {name for span in spans for name in CALLED.findall(span)}
    assert called
    assert called - known_names() == set()
    classes = {span for span in spans if re.fullmatch(r"(?:[A-Z][a-z]+){2,}", span)}
    assert {name for name in classes if not (hasattr(limpet, name) or hasattr(builtins, name))} == set()
    commands = {words for span in spans for words in re.findall(r"^limpet ((?:[a-z]+ ?){1,2})\b", span)}
    assert {each for each in commands if f"## limpet {each.strip()}" not in COMMANDS} <= {"mcp"}
    watched = {span for span in spans if re.fullmatch(r"(?:state|graph|node|edge|cycle)\.[a-z_]+", span)}
    assert {each for each in watched if each not in EVENT_TYPES and not hasattr(State, each[6:])} == set()
