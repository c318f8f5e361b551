"""Routes about one run: look at it, and answer, send, cancel, retry, fork, roll back, export or delete it."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, Final

from limpet.engine.following.cursor import EventCursor
from limpet.engine.following.event_feed import EventFeed
from limpet.engine.node_context.questions import NOT_GIVEN
from limpet.errors import UsageError
from limpet.frontends.run_facts import run_facts, step_facts
from limpet.journal.encoding.json_values import to_json_value
from limpet.journal.store import RUNNING
from limpet.server.endpoint import (
    ANYTHING,
    FLAG,
    INTEGER,
    OBJECT,
    TEXT,
    TEXTS,
    ApiRequest,
    Endpoint,
    FileAnswer,
    Parameter,
    limit_of,
)
from limpet.server.event_stream import shown_event
from limpet.server.timeline import MAX_ROWS
from limpet.server.values import shown_values, size_of, without_large

MAX_STEPS: Final = 2000
"""Steps in one page, at most."""

MAX_EVENTS: Final = 2000
"""Events in one page, at most."""

RUN_FILE: Final = "application/octet-stream"


def show(request: ApiRequest) -> dict[str, Any]:
    """What the store knows of the run."""
    facts: dict[str, Any] = to_json_value(run_facts(request.service.runs.get(request.run_id).info))
    return facts


def history(request: ApiRequest) -> dict[str, Any]:
    """A page of the steps of a run, oldest first."""
    after = request.values.get("after", -1)
    limit = limit_of(request, MAX_STEPS, MAX_STEPS)
    steps = [each for each in request.service.runs.history(request.run_id) if each.step > after]
    page = steps[:limit]
    # All records of one step are in one page, however many its branches have.
    page += [each for each in steps[limit:] if page and each.step == page[-1].step]
    return {
        "steps": [step_facts(each) for each in page],
        "next": page[-1].step if len(page) < len(steps) else None,
    }


def timeline(request: ApiRequest) -> dict[str, Any]:
    """What changed in the timeline of a run since a version, and what the store knows of the run."""
    service = request.service
    info = service.runs.get(request.run_id).info
    graph = service.graphs.get(info.graph)
    known_secrets = frozenset() if graph is None else graph.secrets
    version = request.values.get("after") or ""
    limit = limit_of(request, MAX_ROWS, MAX_ROWS)
    changes = service.timelines.changes(request.run_id, info.created, known_secrets, version, limit)
    if info.shown_status != RUNNING:
        changes["active"] = []
    return {**changes, "run": to_json_value(run_facts(info))}


def events(request: ApiRequest) -> dict[str, Any]:
    """A page of what has happened in a run so far."""
    service = request.service
    info = service.runs.get(request.run_id).info
    graph = service.graphs.get(info.graph)
    known_secrets = frozenset() if graph is None else graph.secrets
    cursor = EventCursor.from_text(request.values.get("after"), request.run_id)
    limit = limit_of(request, MAX_EVENTS, 200)
    kind = request.values.get("type")
    feed = EventFeed(service.store, request.run_id, cursor, known_secrets)
    found: list[dict[str, Any]] = []
    next = request.values.get("after")
    while True:
        batch = feed.read()
        for entry in batch.entries:
            next = entry.cursor
            if kind is None or entry.event["type"] == kind:
                found.append(shown_event({**entry.event, "cursor": entry.cursor}))
            if len(found) == limit:
                return {"events": found, "next": next, "more": True}
        if not batch.has_more:
            return {"events": found, "next": next, "more": False}


def compare(request: ApiRequest) -> dict[str, Any]:
    """How the states of two runs differ, as `difference` tells it."""
    runs = request.service.runs
    values = request.values
    other = values["with"]
    secrets = runs.secrets(request.run_id) | runs.secrets(other)
    old = shown_values(dict(runs.state(request.run_id, values.get("step"))), secrets)
    new = shown_values(dict(runs.state(other, values.get("with_step"))), secrets)
    changes: dict[str, dict[str, Any]] = {}
    for key in sorted({*old, *new}):
        if key not in old:
            changes[key] = {"change": "added", "after": new[key]}
        elif key not in new:
            changes[key] = {"change": "removed", "before": old[key]}
        elif old[key] != new[key]:
            changes[key] = {"change": "changed", "before": old[key], "after": new[key]}
    wanted = values.get("key")
    shown = {key: _cut(change, key == wanted) for key, change in changes.items() if wanted in (None, key)}
    return {"changes": shown, "same": sorted(key for key in old if key in new and old[key] == new[key])}


def state(request: ApiRequest) -> dict[str, Any]:
    """The state after a step, or the newest; large values only if their key is asked for."""
    runs = request.service.runs
    found = runs.state(request.run_id, request.values.get("step"))
    secrets = runs.secrets(request.run_id)
    key = request.values.get("key")
    if key is not None:
        if key not in found:
            raise UsageError(f"the state has no key {key!r}")
        return {"values": shown_values({key: found[key]}, secrets), "large": {}}
    small, large = without_large(shown_values(dict(found), secrets))
    return {"values": small, "large": large}


def difference(request: ApiRequest) -> dict[str, Any]:
    """How the state after one step differs from that after another; large values only if their key is asked for."""
    runs = request.service.runs
    found = runs.diff(request.run_id, request.values["a"], request.values["b"])
    secrets = runs.secrets(request.run_id)
    changes: dict[str, dict[str, Any]] = {}
    for key, value in shown_values(dict(found.added), secrets).items():
        changes[key] = {"change": "added", "after": value}
    for key, value in shown_values(dict(found.removed), secrets).items():
        changes[key] = {"change": "removed", "before": value}
    before = shown_values({key: old for key, (old, _) in found.changed.items()}, secrets)
    after = shown_values({key: new for key, (_, new) in found.changed.items()}, secrets)
    for key in found.changed:
        changes[key] = {"change": "changed", "before": before[key], "after": after[key]}
    wanted = request.values.get("key")
    if wanted is not None:
        changes = {key: change for key, change in changes.items() if key == wanted}
    return {"changes": {key: _cut(change, wanted is not None) for key, change in changes.items()}}


def _cut(change: dict[str, Any], is_wanted: bool) -> dict[str, Any]:
    """A change without large values; their sizes are in their place."""
    if is_wanted:
        return change
    small, large = without_large(change)
    return {**small, **{f"{side}_size": size for side, size in large.items()}}


def answer(request: ApiRequest) -> dict[str, Any]:
    """Answer what a run asks, or approve it."""
    values = request.values
    by = request.user or values.get("by") or None
    value = values.get("value", NOT_GIVEN)
    request.service.runs.answer(request.run_id, value, answers=values.get("answers"), by=by)
    return show(request)


def send(request: ApiRequest) -> dict[str, Any]:
    """Send a message to a run."""
    values = request.values
    is_new = request.service.runs.send(request.run_id, values["name"], values["value"], key=values.get("key"))
    return {"sent": is_new}


def cancel(request: ApiRequest) -> dict[str, Any]:
    """Stop a run."""
    request.service.runs.cancel(request.run_id)
    return show(request)


def retry(request: ApiRequest) -> dict[str, Any]:
    """Hand a run back to the workers."""
    values = request.values
    request.service.runs.retry(request.run_id, values.get("update"), deadline=values.get("deadline"))
    return show(request)


def fork(request: ApiRequest) -> dict[str, Any]:
    """Create a run that starts where this one was after a step, with edits; with `begin`, workers execute it."""
    runs = request.service.runs
    values = request.values
    new_id = runs.fork(
        request.run_id,
        values.get("step"),
        values.get("update"),
        new_run_id=values.get("new_run_id"),
        tags=values.get("tags") or (),
    )
    if values.get("begin"):
        runs.retry(new_id)
    return show(request._replace(path={"run_id": new_id}))


def rollback(request: ApiRequest) -> dict[str, Any]:
    """Set a run back to where it was after a step."""
    request.service.runs.rollback(request.run_id, request.values["step"])
    return show(request)


def delete(request: ApiRequest) -> dict[str, Any]:
    """Delete a run."""
    request.service.runs.delete(request.run_id)
    return {"deleted": request.run_id}


def export(request: ApiRequest) -> FileAnswer:
    """The run with its whole journal, as a file."""
    with tempfile.TemporaryDirectory(prefix="limpet-") as folder:
        path = Path(folder, "exported.run")
        request.service.runs.export(request.run_id, path)
        return FileAnswer(path.read_bytes(), RUN_FILE, f"{request.run_id}.run")


def import_(request: ApiRequest) -> dict[str, Any]:
    """Put an exported run into the store."""
    with tempfile.TemporaryDirectory(prefix="limpet-") as folder:
        path = Path(folder, "imported.run")
        path.write_bytes(request.body)
        run_id = request.service.runs.import_(path, request.values.get("run_id"))
    return show(request._replace(path={"run_id": run_id}))


def sizes(request: ApiRequest) -> dict[str, Any]:
    """How large each value of the newest state is, in bytes of JSON."""
    runs = request.service.runs
    found = shown_values(dict(runs.state(request.run_id)), runs.secrets(request.run_id))
    return {"sizes": {key: size_of(value) for key, value in found.items()}}


_RUN: Final = "/runs/{run_id}"
_STEP: Final = Parameter("step", INTEGER, "the step; the newest, if it is left out")
_UPDATE: Final = Parameter(
    "update", OBJECT, "values that are merged into its state; needs the code of its graph"
)

ENDPOINTS: Final = (
    Endpoint(
        "POST",
        "/runs/import",
        import_,
        "Put an exported run into the store",
        "Run",
        query=(Parameter("run_id", TEXT, "the id that it gets; its own, if this is left out"),),
        takes_file=True,
    ),
    Endpoint(
        "GET",
        f"{_RUN}/history",
        history,
        "The steps of a run, oldest first",
        "StepPage",
        query=(
            Parameter("after", INTEGER, "`next` of the page before"),
            Parameter("limit", INTEGER, f"steps in the page, at most {MAX_STEPS}"),
        ),
    ),
    Endpoint(
        "GET",
        f"{_RUN}/timeline",
        timeline,
        "The steps, branches, tasks and attempts of a run on a time axis: what changed since a version",
        "Timeline",
        query=(
            Parameter("after", TEXT, "`version` of the answer before"),
            Parameter("limit", INTEGER, f"rows in the answer, at most {MAX_ROWS}"),
        ),
    ),
    Endpoint(
        "GET",
        f"{_RUN}/events",
        events,
        "What has happened in a run so far, oldest first; with a type, such as output, only that",
        "EventPage",
        query=(
            Parameter("after", TEXT, "`next` of the page before"),
            Parameter("type", TEXT, "only events of this type"),
            Parameter("limit", INTEGER, f"events in the page, at most {MAX_EVENTS}"),
        ),
    ),
    Endpoint(
        "GET",
        f"{_RUN}/compare",
        compare,
        "How the states of two runs differ",
        "Comparison",
        query=(
            Parameter("with", TEXT, "the other run", True),
            _STEP,
            Parameter("with_step", INTEGER, "the step of the other run; the newest, if it is left out"),
            Parameter("key", TEXT, "only this key, however large its values are"),
        ),
    ),
    Endpoint(
        "GET",
        f"{_RUN}/state",
        state,
        "The state after a step",
        "State",
        query=(_STEP, Parameter("key", TEXT, "only the value of this key, however large it is")),
    ),
    Endpoint("GET", f"{_RUN}/sizes", sizes, "How large the values of the newest state are", "Sizes"),
    Endpoint(
        "GET",
        f"{_RUN}/diff",
        difference,
        "How the states after two steps differ",
        "Difference",
        query=(
            Parameter("a", INTEGER, "the earlier step", True),
            Parameter("b", INTEGER, "the later step", True),
            Parameter("key", TEXT, "only this key, however large its values are"),
        ),
    ),
    Endpoint("GET", f"{_RUN}/export", export, "The run with its whole journal, as a file", "File"),
    Endpoint(
        "POST",
        f"{_RUN}/answer",
        answer,
        "Answer what a run asks; without a value, approve it",
        "Run",
        body=(
            Parameter("value", ANYTHING, "the answer to the open question"),
            Parameter("answers", OBJECT, "answers by the ids of questions"),
            Parameter("by", TEXT, "who answers, for its history"),
        ),
    ),
    Endpoint(
        "POST",
        f"{_RUN}/send",
        send,
        "Send a message to a run",
        "Sent",
        body=(
            Parameter("name", TEXT, "the name that a node receives", True),
            Parameter("value", ANYTHING, "what is sent", True),
            Parameter("key", TEXT, "of several messages with this key, the first counts"),
        ),
    ),
    Endpoint("POST", f"{_RUN}/cancel", cancel, "Stop a run", "Run"),
    Endpoint(
        "POST",
        f"{_RUN}/retry",
        retry,
        "Hand a run back to the workers, from where it stopped",
        "Run",
        body=(_UPDATE, Parameter("deadline", TEXT, "the new deadline: a time, or how long from now")),
    ),
    Endpoint(
        "POST",
        f"{_RUN}/fork",
        fork,
        "Create a run that starts where this one was after a step",
        "Run",
        body=(
            _STEP,
            _UPDATE,
            Parameter("new_run_id", TEXT, "the id of the new run"),
            Parameter("tags", TEXTS, "the tags of the new run"),
            Parameter("begin", FLAG, "hand the new run to the workers at once"),
        ),
    ),
    Endpoint(
        "POST",
        f"{_RUN}/rollback",
        rollback,
        "Set a run back to where it was after a step",
        "Run",
        body=(Parameter("step", INTEGER, "the step", True),),
    ),
    Endpoint("DELETE", _RUN, delete, "Delete a run and its journal", "Deleted"),
    Endpoint("GET", _RUN, show, "What the store knows of a run", "Run"),
)
