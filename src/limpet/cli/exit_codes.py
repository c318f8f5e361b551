"""How a command ends: the exit codes, and for an error the command that helps."""

from __future__ import annotations

from argparse import Namespace
from typing import NamedTuple

from limpet.errors import (
    CheckpointNotFound,
    Conflict,
    DefinitionError,
    LimpetError,
    Operation,
    RunExists,
    RunNotFound,
    RunPaused,
    StoreError,
    UsageError,
    WrongGraph,
)

OK, FAILED, USAGE, PAUSED, NOT_FOUND, CONFLICT, UNAVAILABLE = range(7)
INTERRUPTED = 130

_CODES: list[tuple[type[LimpetError], int]] = [
    (RunPaused, PAUSED),
    (RunNotFound, NOT_FOUND),
    (CheckpointNotFound, NOT_FOUND),
    (RunExists, CONFLICT),
    (Conflict, CONFLICT),
    (StoreError, UNAVAILABLE),
    (DefinitionError, USAGE),
    (UsageError, USAGE),
]
"""The first class that matches decides."""

BY_STATUS = {
    "completed": OK,
    "paused": PAUSED,
    "failed": FAILED,
    "cancelled": FAILED,
    "running": OK,
    "damaged": FAILED,
}


def code_for(problem: LimpetError) -> int:
    """The exit code for an error of the library."""
    return next((code for kind, code in _CODES if isinstance(problem, kind)), FAILED)


class NextCommand(NamedTuple):
    """What to type after an error, and what it is for."""

    purpose: str
    command: str


class _Remedy(NamedTuple):
    """The command for an operation that an error advises. `needs_graph` if it needs the code of the run's graph."""

    purpose: str
    words: str
    arguments: tuple[str, ...] = ()
    needs_graph: bool = False


_REMEDIES: dict[Operation, _Remedy] = {
    "answer": _Remedy("Answer with:", "answer", ("VALUE",), needs_graph=True),
    "cancel": _Remedy("Cancel it first:", "runs cancel"),
    "export": _Remedy("Export a run with:", "runs export", ("FILE",)),
    "fork": _Remedy("Fork it from one of its steps with:", "runs fork", ("--step", "STEP"), needs_graph=True),
    "history": _Remedy("List its steps with:", "runs history"),
    "resume": _Remedy("Resume it with:", "resume", needs_graph=True),
    "retry": _Remedy("After fixing the problem, retry with:", "resume", needs_graph=True),
    "rollback": _Remedy(
        "Put it back, or roll the run back to an earlier step with:",
        "runs rollback",
        ("STEP",),
        needs_graph=True,
    ),
    "verify": _Remedy("List the damage with:", "store verify"),
    "wait": _Remedy("Wait for it with:", "resume", ("--wait", "SECONDS"), needs_graph=True),
}


def next_command(problem: LimpetError, args: Namespace) -> NextCommand | None:
    """The command that helps after an error, if one does: the error's own advice names Python calls instead."""
    from limpet.cli.project import command_line, command_line_with_graph

    if isinstance(problem, RunNotFound):
        return NextCommand("List the runs with:", command_line("runs list", args))
    if isinstance(problem, WrongGraph):
        return NextCommand("Look at it with:", command_line("runs show", args, problem.run_id))
    remedy = _REMEDIES.get(problem.next_operation)
    if remedy is None or (problem.next_operation == "wait" and not hasattr(args, "wait")):
        return None  # only some commands can wait
    run_id = getattr(problem, "run_id", None) or getattr(args, "run", None) or "RUN"
    arguments = remedy.arguments
    if isinstance(problem, RunPaused) and len(problem.questions) > 1:
        arguments = ("QUESTION", *arguments)
    make_command = command_line
    if remedy.needs_graph:
        make_command = command_line_with_graph
    return NextCommand(remedy.purpose, make_command(remedy.words, args, run_id, *arguments))
