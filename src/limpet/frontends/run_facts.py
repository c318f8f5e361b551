"""Runs and their steps as plain data for programs: for `--json` on the command line, and for the server."""

from __future__ import annotations

from typing import Any

from limpet.engine.operations.run_info import RunInfo
from limpet.graphs.edges import END
from limpet.graphs.plan import PLANNER
from limpet.journal.reader import Checkpoint


def run_facts(info: RunInfo, now: float | None = None) -> dict[str, Any]:
    """A run as data for a program: at a time by the store's clock, or now by that of this machine."""
    status = info.shown_status if now is None else info.shown_at(now)
    return {
        **info._asdict(),
        "status": status,
        "shown_status": status,
        "stored_status": info.status,
        "cursor": info.cursor,
        "node": node_of(info),
        "questions": [question._asdict() for question in info.questions],
        "waits": [wait._asdict() for wait in info.waits],
        "messages": dict(info.messages),
        "waits_for_approval": info.waits_for_approval,
        "held_by": info.held_by,
    }


def step_facts(step: Checkpoint) -> dict[str, Any]:
    """A step as data for a program. What plans the layers of a workflow isn't a node of the user's."""
    return {
        "id": step.id,
        "step": step.step,
        "node": shown_node(step.node),
        "branch": step.branch,
        "at": step.timestamp,
        "next": shown_node(step.next),
        "status": step.status,
    }


def node_of(info: RunInfo) -> str | None:
    """The node that a run is at; None at its end, and between the layers of a workflow."""
    return shown_node(info.node)


def shown_node(node: str | None, planner: str | None = None) -> str | None:
    """A node by the name that users know: the end has none, and `planner` stands for what plans layers."""
    if node is None or node == END:
        return None
    return planner if node == PLANNER else node
