"""Routes about one run: look at it, and answer, send, cancel, retry, fork, roll back, export or delete it."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from limpet.engine.leases.lease_client import client_for
from limpet.engine.node_context.questions import NOT_GIVEN, ResumeInput
from limpet.engine.operations.answer import answer_run
from limpet.engine.operations.export import create_exported, exported_run
from limpet.engine.operations.run_info import ABANDONED
from limpet.errors import StoreError, StoreUnavailable
from limpet.frontends.problems import HttpProblem
from limpet.frontends.shown_runs import QUESTIONS_FOLLOWED, shown_run
from limpet.frontends.values import all_parts, shown_value
from limpet.graphs.secrets import MASK
from limpet.journal.export import ExportedRun
from limpet.journal.reader import ViewedTail, read_records
from limpet.journal.store import RUNNING
from limpet.journal.threads.kinds import kind_of
from limpet.server.endpoint import (
    ANSWERS_AS,
    ANYTHING,
    FLAG,
    INTEGER,
    OBJECT,
    TEXT,
    TEXTS,
    ApiRequest,
    Endpoint,
    FileOnDisk,
    Parameter,
    checked_for_urls,
    limit_of,
)
from limpet.server.timeline import MAX_ROWS

RUN_FILE: Final = "application/octet-stream"


def show(request: ApiRequest) -> dict[str, Any]:
    """What the store knows of the run."""
    service = request.service
    return shown_run(service.runs.get(request.run_id).info, service.now())


def timeline(request: ApiRequest) -> dict[str, Any]:
    """What changed in the timeline of a run since a version, and what the store knows of the run."""
    service = request.service
    info = service.runs.get(request.run_id).info
    known_secrets = service.known_secrets(info.graph)
    version = request.values.get("after") or ""
    limit = limit_of(request, MAX_ROWS, MAX_ROWS)
    now = service.now()
    working = now if info.shown_at(now) in (RUNNING, ABANDONED) else None
    changes = service.timelines.changes(request.run_id, info.created, known_secrets, version, limit, working)
    return {**changes, "run": shown_run(info, now, QUESTIONS_FOLLOWED)}


def answer(request: ApiRequest) -> dict[str, Any]:
    """Answer what a run asks, or approve it."""
    values = request.values
    value = values.get("value", NOT_GIVEN)
    given = ResumeInput(value, values.get("answers"), by=request.answers_as, is_json=True)
    answer_run(client_for(request.service.store), request.run_id, given)
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
        new_run_id=checked_for_urls(values.get("new_run_id")),
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


def export(request: ApiRequest) -> FileOnDisk:
    """The run with its whole journal, as a file. A run with secrets is refused, as the file would have them."""
    if not request.service.secrets(request.run_id):
        exported = exported_run(client_for(request.service.store), request.run_id)
        if not _has_secrets(exported):
            return _file_of(exported)
    refused = HttpProblem(
        403, "has-secrets", f"run {request.run_id!r} has secrets, which an exported file has in plain text"
    )
    raise refused.with_advice("export it where its store is: limpet runs export, or Runs(store).export(…)")


def _file_of(exported: ExportedRun) -> FileOnDisk:
    """The file, which is sent in parts: in memory, a large one would be there for as long as its client takes."""
    with ExitStack() as deleting:
        path = Path(deleting.enter_context(tempfile.TemporaryDirectory(prefix="limpet-")), "exported.run")
        path.write_bytes(exported.to_bytes())
        return FileOnDisk(path, RUN_FILE, f"{exported.run_id}.run", deleting.pop_all().close)


def _has_secrets(exported: ExportedRun) -> bool:
    """Whether a run has anything that is masked wherever it is shown, or has asked a secret question."""
    if not exported.records:
        return False
    if kind_of(exported.plan):
        return False  # Limpet masks nothing of what another library keeps
    tail = ViewedTail(exported.head(), 1, exported.records)
    parts = (part for _, record in read_records(tail) for part in all_parts(shown_value(record)))
    return any(part == MASK or _is_secret_question(part) for part in parts)


def _is_secret_question(part: Any) -> bool:
    return isinstance(part, dict) and part.get("secret") is True and "prompt" in part


def import_(request: ApiRequest) -> dict[str, Any]:
    """Put an exported run into the store."""
    client = client_for(request.service.store)
    try:
        exported = ExportedRun.from_bytes(request.body, "the file")
        run_id = request.values.get("run_id", exported.run_id)
        checked_for_urls(run_id)
        create_exported(client, exported, run_id)
    except StoreUnavailable:
        raise
    except StoreError as problem:  # with the file, not with the store
        raise HttpProblem(422, problem.code, problem.message) from problem
    return show(request._replace(path={"run_id": run_id}))


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
        f"{_RUN}/timeline",
        timeline,
        "The steps, branches, tasks and attempts of a run on a time axis: what changed since a version",
        "Timeline",
        query=(
            Parameter("after", TEXT, "`version` of the answer before"),
            Parameter("limit", INTEGER, f"rows in the answer, at most {MAX_ROWS}"),
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
            ANSWERS_AS,
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
