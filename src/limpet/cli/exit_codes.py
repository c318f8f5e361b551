"""How a command ends: the exit codes, and the text for what went wrong."""

from __future__ import annotations

from argparse import Namespace

from limpet.errors import (
    CheckpointNotFound,
    Conflict,
    DefinitionError,
    LimpetError,
    RunExists,
    RunNotFound,
    RunPaused,
    StoreError,
    UsageError,
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

BY_STATUS = {"completed": OK, "paused": PAUSED, "failed": FAILED, "cancelled": FAILED, "running": OK}


def code_for(problem: LimpetError) -> int:
    """The exit code for an error of the library."""
    return next((code for kind, code in _CODES if isinstance(problem, kind)), FAILED)


def explain(problem: LimpetError, args: Namespace) -> str:
    """The error's text, with the command that helps where the text alone doesn't."""
    text = str(problem)
    if isinstance(problem, RunNotFound):
        from limpet.cli.project import command_line

        return f"{text}\nList the runs with: {command_line('runs list', args)}"
    return text
