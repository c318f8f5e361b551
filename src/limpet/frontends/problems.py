"""Errors as problem details (RFC 9457): a status, our stable `code`, what happened, and what to do next."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from limpet.errors import (
    AlreadyAnswered,
    AnswerRefused,
    CheckpointNotFound,
    Conflict,
    DamagedDocument,
    DamagedRecord,
    DefinitionError,
    InvalidValue,
    LimitNotFound,
    LimpetError,
    RunError,
    RunNotFound,
    ScheduleNotFound,
    StoreUnavailable,
    TooLarge,
    UnstorableValue,
    UnsupportedFormat,
    UsageError,
)

MEDIA_TYPE: Final = "application/problem+json"

LONGEST_DETAIL: Final = 4000
"""Characters of what happened that are sent: it may quote what the client has sent."""

_STATUSES: Final[list[tuple[type[LimpetError], int]]] = [
    (RunNotFound, 404),
    (ScheduleNotFound, 404),
    (LimitNotFound, 404),
    (CheckpointNotFound, 404),
    (AlreadyAnswered, 409),
    (RunError, 409),
    (Conflict, 409),
    (AnswerRefused, 422),
    (InvalidValue, 422),
    (UnstorableValue, 422),
    (UsageError, 400),
    (DefinitionError, 409),
    (TooLarge, 413),
    (StoreUnavailable, 503),
    (UnsupportedFormat, 501),
    (DamagedRecord, 500),
    (DamagedDocument, 500),
]
"""The first class that matches decides."""

TITLES: Final = {
    400: "The request can't be carried out as it was made",
    401: "A token is needed",
    403: "The request isn't allowed",
    404: "Not found",
    405: "The method isn't allowed here",
    409: "The run isn't in a state for this",
    410: "It is no longer there",
    413: "The request is too large",
    415: "The content type isn't supported",
    421: "The server isn't reached under this name",
    422: "A value doesn't fit",
    500: "The server failed",
    501: "The server can't read this",
    503: "The store is unavailable",
}


class HttpProblem(LimpetError):
    """A request is refused for a reason that only HTTP knows, such as a missing token."""

    code = "http"

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


def status_of(problem: LimpetError) -> int:
    """The HTTP status for an error of the library."""
    if isinstance(problem, HttpProblem):
        return problem.status
    return next((status for kind, status in _STATUSES if isinstance(problem, kind)), 500)


def problem_details(problem: LimpetError) -> dict[str, Any]:
    """The error as data."""
    status = status_of(problem)
    details: dict[str, Any] = {
        "type": "about:blank",
        "title": TITLES.get(status, "The request failed"),
        "status": status,
        "code": problem.code,
        "detail": problem.message[:LONGEST_DETAIL],
    }
    if problem.advice:
        details["advice"] = problem.advice[:LONGEST_DETAIL]
    if problem.next_operation:
        details["next"] = problem.next_operation
    run_id = getattr(problem, "run_id", None)
    if isinstance(run_id, str):
        details["run_id"] = run_id
    return details


@contextmanager
def store_problems_hidden(is_public: bool = True) -> Iterator[None]:
    """Have problems of the store tell neither where it is nor why, in an answer that needs no token."""
    try:
        yield
    except LimpetError as problem:
        if not is_public or status_of(problem) < 500:
            raise
        raise HttpProblem(503, StoreUnavailable.code, "the store doesn't answer") from problem


def internal_problem() -> dict[str, Any]:
    """What is said of an error that isn't ours: nothing of what it was about. The log has it."""
    return {
        "type": "about:blank",
        "title": TITLES[500],
        "status": 500,
        "code": "internal",
        "detail": "an unexpected error; the server's log has it",
    }
