"""How a command ends: the exit codes."""

from __future__ import annotations

from limpet.errors import (
    CheckpointNotFound,
    Conflict,
    DefinitionError,
    LimitNotFound,
    LimpetError,
    RunExists,
    RunNotFound,
    RunPaused,
    ScheduleNotFound,
    StoreError,
    UsageError,
)

OK, FAILED, USAGE, PAUSED, NOT_FOUND, CONFLICT, UNAVAILABLE = range(7)
INTERRUPTED = 130

_CODES: list[tuple[type[LimpetError], int]] = [
    (RunPaused, PAUSED),
    (RunNotFound, NOT_FOUND),
    (CheckpointNotFound, NOT_FOUND),
    (ScheduleNotFound, NOT_FOUND),
    (LimitNotFound, NOT_FOUND),
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
    "waiting": PAUSED,
    "failed": FAILED,
    "cancelled": FAILED,
    "running": OK,
    "damaged": FAILED,
}


def code_for(problem: LimpetError) -> int:
    """The exit code for an error of the library."""
    return next((code for kind, code in _CODES if isinstance(problem, kind)), FAILED)
