"""The route about one row of a run's timeline: all that is known of one step, branch or task."""

from __future__ import annotations

from typing import Any, Final

from limpet.frontends.problems import HttpProblem
from limpet.frontends.values import check_size, size_of, without_large
from limpet.server.endpoint import TEXT, ApiRequest, Endpoint, Parameter
from limpet.server.event_stream import shown_event
from limpet.server.timeline.row_events import RowEvents

UPDATED: Final = ("update", "merged", "appended", "replaced")
"""The fields of an event that have what a step changed, by key."""

OUTPUT: Final = ("number", "at", "data", "large")
"""The fields of what was emitted that are sent."""


def show(request: ApiRequest) -> dict[str, Any]:
    """What happened in a row; large values only if their key is asked for."""
    service = request.service
    info = service.runs.get(request.run_id).info
    known_secrets = service.known_secrets(info.graph)
    row_id = request.path["row"]
    if not (row_id.isascii() and row_id.isdecimal() and len(row_id) < 10):
        raise _no_row(row_id)
    found = service.timelines.row_events(request.run_id, info.created, known_secrets, int(row_id))
    if found is None:
        raise _no_row(row_id)
    # Where the code isn't known, instances of its classes have fields that only the run says are secret.
    secrets = service.secrets(request.run_id)
    return {**_update(found, secrets, request.values.get("key")), **_happened(found, secrets)}


def _no_row(row_id: str) -> HttpProblem:
    return HttpProblem(404, "no-row", f"the timeline has no row {row_id[:80]!r}, or no longer has it")


def _update(found: RowEvents, secrets: frozenset[str], key: str | None) -> dict[str, Any]:
    """What the step changed; None if it hasn't completed."""
    if found.step is None:
        return {"update": None, "large": {}, "bytes": 0}
    event = shown_event(found.step, secrets, whole=True)
    update: dict[str, Any] = {}
    for field in UPDATED:
        update |= event.get(field) or {}
    if key is not None:
        wanted = {name: value for name, value in update.items() if name == key}
        check_size(size_of(wanted))
        return {"update": wanted, "large": {}, "bytes": 0}
    small, large = without_large(update)
    return {
        "update": small,
        "large": large,
        "removed": list(event.get("removed") or ()),
        "bytes": size_of(small) + sum(large.values()),
    }


def _happened(found: RowEvents, secrets: frozenset[str]) -> dict[str, Any]:
    """The errors, questions, answers and output of the row."""
    attempts = [shown_event(each, secrets, whole=True) for each in found.errors]
    output = [shown_event(each, secrets) for each in found.output]
    return {
        "row": found.row.facts(),
        "attempts": [{"at": each["at"], "error": _error(each.get("error"))} for each in attempts],
        "error": _error(attempts[-1].get("error")) if attempts and found.row.status == "failed" else None,
        "questions": list(found.questions.values()),
        "answers": shown_event({"answers": found.answers}, secrets, whole=True)["answers"],
        "by": found.answered_by,
        "answered": found.answered_at,
        "approved_by": found.approved_by,
        "output": [{name: each[name] for name in OUTPUT if name in each} for each in output],
        "more_output": found.emitted > len(output),
    }


def _error(error: Any) -> dict[str, Any] | None:
    """An error as its type, its message, and if that is known, its node and its traceback."""
    if error is None or isinstance(error, dict):
        return error
    kind, colon, message = str(error).partition(": ")
    if not colon:
        return {"type": "error", "message": kind}
    return {"type": kind, "message": message}


ENDPOINTS: Final = (
    Endpoint(
        "GET",
        "/runs/{run_id}/timeline/{row}",
        show,
        "What happened in a row of the timeline: what it changed, its errors, questions, answers and output",
        "RowDetail",
        query=(Parameter("key", TEXT, "only what changed of this key, however large it is"),),
    ),
)
