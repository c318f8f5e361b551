"""How a command ends: the exit codes, and the words for what went wrong."""

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
"""The first that fits counts."""

BY_STATUS = {"completed": OK, "paused": PAUSED, "failed": FAILED, "cancelled": FAILED, "running": OK}


def code_for(problem: LimpetError) -> int:
    """The exit code that says what kind of problem it was."""
    return next((code for kind, code in _CODES if isinstance(problem, kind)), FAILED)


def explain(problem: LimpetError, given: Namespace) -> str:
    """The problem in words, with what to do next where the words of the library speak of Python."""
    text = str(problem)
    if isinstance(problem, RunNotFound):
        from limpet.cli.project import command

        return f"{text}\nWhat there is: {command('runs list', given)}"
    return text
