"""Routes about many runs: list and count them, and do something with all that match."""

from __future__ import annotations

from typing import Any, Final

from limpet.engine.leases.lease_client import client_for
from limpet.engine.node_context.questions import NOT_GIVEN, ResumeInput
from limpet.engine.operations.answer import answer_run, check_answers
from limpet.engine.operations.bulk import Change, Outcomes, change_chosen, chosen_runs
from limpet.engine.operations.rollback import check_rollback
from limpet.engine.operations.run_info import RunInfo
from limpet.engine.operations.run_query import RunQuery
from limpet.errors import UsageError
from limpet.frontends.shown_runs import listed_run
from limpet.journal.store import ENDED, RUNNING
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
    Parameter,
    limit_of,
)
from limpet.server.run_counts import count_newest

MAX_PAGE: Final = 500
"""Runs in one page, at most."""

DEFAULT_PAGE: Final = 50

MAX_CHANGED: Final = 10_000
"""Runs that one request changes, at most."""

FILTERS: Final = (
    Parameter("status", TEXTS, "the run has one of these statuses, stored or shown ones"),
    Parameter("graph", TEXT, "the name of its graph"),
    Parameter("tag", TEXTS, "it has all of these tags"),
    Parameter("since", TEXT, "it last changed then or later: a time, or how long ago, such as 2h"),
    Parameter("before", TEXT, "it last changed earlier"),
    Parameter("created_since", TEXT, "it was created then or later"),
    Parameter("created_before", TEXT, "it was created earlier"),
    Parameter("error", TEXT, "the type of its last error"),
    Parameter("node", TEXT, "the node where it is"),
    Parameter("parent", TEXT, "the run that started it"),
    Parameter("queue", TEXT, "its queue"),
    Parameter("unserved", FLAG, "it is due, and no live worker can continue it"),
    Parameter("text", TEXT, "a text in its last error"),
)

_CHOICE: Final = (
    Parameter("run_ids", TEXTS, "the runs, by id; else those that match the filters"),
    Parameter("all_runs", FLAG, "all runs are meant, without a filter"),
    Parameter("limit", INTEGER, f"how many are dealt with, newest first, at most {MAX_CHANGED:,}"),
    Parameter("dry_run", FLAG, "change nothing, and say what would be changed"),
    *FILTERS,
)


def list_runs(request: ApiRequest) -> dict[str, Any]:
    """A page of the runs that match, newest first."""
    values = dict(request.values)
    limit = limit_of(request, MAX_PAGE, DEFAULT_PAGE)
    values.pop("limit", None)
    found = request.service.runs.list(limit=limit, **values)
    now = request.service.now()
    return {
        "runs": [listed_run(info, now) for info in found],
        "next": found.next,
        "searched": found.searched,
    }


def children(request: ApiRequest) -> dict[str, Any]:
    """A page of the runs that nodes of a run have started, newest first."""
    values = {**request.values, "parent": request.run_id}
    return list_runs(request._replace(values=values))


def counts(request: ApiRequest) -> dict[str, Any]:
    """How many runs that match have each status, as people see it: up to `COUNTED` of each."""
    client = client_for(request.service.store)
    query = RunQuery.of(client.now(), **request.values)
    key = tuple(sorted((name, str(value)) for name, value in request.values.items()))
    return request.service.counts.get(key, lambda: count_newest(client, query))._asdict()


def retry(request: ApiRequest) -> dict[str, Any]:
    """Hand runs back to the workers."""
    values = _chosen(request)
    for name in ("update", "deadline"):
        if name in request.values:
            values[name] = request.values[name]
    return _outcomes(request.service.runs.retry(**values))


def cancel(request: ApiRequest) -> dict[str, Any]:
    """Cancel runs."""
    return _outcomes(request.service.runs.cancel(**_chosen(request)))


def delete(request: ApiRequest) -> dict[str, Any]:
    """Delete runs."""
    return _outcomes(request.service.runs.delete(**_chosen(request)))


def answer(request: ApiRequest) -> dict[str, Any]:
    """Give the same answer to runs that each ask one question, or approve them."""
    given = ResumeInput(request.values.get("value", NOT_GIVEN), by=request.answers_as, is_json=True)
    client = client_for(request.service.store)

    def do(run_id: str) -> None:
        answer_run(client, run_id, given)

    def unfit(info: RunInfo) -> str:
        if info.questions or info.waits_for_approval:
            return ""
        return f"it is {info.shown_status}, and asks nothing"

    def check(info: RunInfo) -> str:
        check_answers(client, info.run_id, given)
        return ""

    return _change(request, Change("answer", do, unfit, check))


def send(request: ApiRequest) -> dict[str, Any]:
    """Send the same message to runs."""
    runs = request.service.runs
    values = request.values

    def do(run_id: str) -> str:
        is_new = runs.send(run_id, values["name"], values["value"], key=values.get("key"))
        return "" if is_new else "it has a message with this key"

    return _change(request, Change("send", do, _unfit_if_ended))


def fork(request: ApiRequest) -> dict[str, Any]:
    """Fork runs where they are, with the same edits; `created` has the new runs by the old."""
    runs = request.service.runs
    created: dict[str, str] = {}

    def do(run_id: str) -> str:
        tags = request.values.get("tags") or ()
        created[run_id] = runs.fork(run_id, None, request.values.get("update"), tags=tags)
        if request.values.get("begin"):
            runs.retry(created[run_id])
        return ""

    def check(info: RunInfo) -> str:
        return _graph_missing(request, info)

    return {**_change(request, Change("fork", do, lambda info: "", check)), "created": created}


def rollback(request: ApiRequest) -> dict[str, Any]:
    """Set runs back to where they were after the same step."""
    service = request.service
    step = request.values["step"]

    def do(run_id: str) -> str:
        service.runs.rollback(run_id, step)
        return ""

    def check(info: RunInfo) -> str:
        if missing := _graph_missing(request, info):
            return missing
        if info.shown_at(service.now()) == RUNNING:
            return f"{info.held_by} executes it"
        plan = service.graphs[info.graph].compiled().plan
        check_rollback(client_for(service.store), plan, info.run_id, step)
        return ""

    return _change(request, Change("rollback", do, lambda info: "", check))


def _graph_missing(request: ApiRequest, info: RunInfo) -> str:
    if info.graph in request.service.graphs:
        return ""
    return f"the server doesn't have the code of its graph, {info.graph!r}"


def _unfit_if_ended(info: RunInfo) -> str:
    return f"it is {info.shown_status}" if info.status in ENDED else ""


def _change(request: ApiRequest, change: Change) -> dict[str, Any]:
    """Do something with the runs of a request, each with an outcome of its own."""
    values = _chosen(request)
    client = client_for(request.service.store)
    filters = {each.name: values[each.name] for each in FILTERS if each.name in values}
    chosen = chosen_runs(
        client, values.get("run_id"), filters, bool(values.get("all_runs")), values.get("limit"), change.name
    )
    return _outcomes(change_chosen(client, change, chosen, None, bool(values.get("dry_run")), None))


def _chosen(request: ApiRequest) -> dict[str, Any]:
    """Which runs are meant, and what is only to be planned. Raises `UsageError` for too many."""
    names = [each.name for each in _CHOICE]
    values = {name: request.values[name] for name in names if request.values.get(name) is not None}
    run_ids = values.pop("run_ids", None)
    limit = values.get("limit", MAX_CHANGED)
    if limit > MAX_CHANGED or len(run_ids or ()) > MAX_CHANGED:
        raise UsageError(f"one request changes at most {MAX_CHANGED:,} runs")
    if run_ids is not None:
        values["run_id"] = run_ids
    else:
        values["limit"] = limit
    return values


def _outcomes(outcomes: Outcomes) -> dict[str, Any]:
    return {
        "done": outcomes.done,
        "planned": outcomes.planned,
        "skipped": outcomes.skipped,
        "failed": outcomes.failed,
        "runs": [
            {name: value for name, value in each._asdict().items() if name != "error"} for each in outcomes
        ],
    }


_PAGE: Final = (
    Parameter("after", TEXT, "`next` of the page before"),
    Parameter("limit", INTEGER, f"runs in the page ({DEFAULT_PAGE}), at most {MAX_PAGE}"),
)

ENDPOINTS: Final = (
    Endpoint(
        "GET",
        "/runs",
        list_runs,
        "The runs that match, newest first",
        "RunPage",
        query=(*FILTERS, *_PAGE),
    ),
    Endpoint(
        "GET",
        "/runs/{run_id}/children",
        children,
        "The runs that a run has started, newest first",
        "RunPage",
        query=_PAGE,
    ),
    Endpoint(
        "GET",
        "/counts",
        counts,
        "How many runs have each status",
        "Counts",
        query=tuple(each for each in FILTERS if each.name not in ("status", "text", "unserved")),
        is_costly=True,
    ),
    Endpoint(
        "POST",
        "/runs/retry",
        retry,
        "Hand many runs back to the workers",
        "Outcomes",
        body=(
            Parameter("update", OBJECT, "values that are merged into their states"),
            Parameter("deadline", TEXT, "their new deadline: a time, or how long from now"),
            *_CHOICE,
        ),
    ),
    Endpoint("POST", "/runs/cancel", cancel, "Cancel many runs", "Outcomes", body=_CHOICE),
    Endpoint("POST", "/runs/delete", delete, "Delete many runs", "Outcomes", body=_CHOICE),
    Endpoint(
        "POST",
        "/runs/answer",
        answer,
        "Give many runs the same answer; without a value, approve them",
        "Outcomes",
        body=(Parameter("value", ANYTHING, "the answer"), ANSWERS_AS, *_CHOICE),
    ),
    Endpoint(
        "POST",
        "/runs/send",
        send,
        "Send many runs the same message",
        "Outcomes",
        body=(
            Parameter("name", TEXT, "the name that a node receives", True),
            Parameter("value", ANYTHING, "what is sent", True),
            Parameter("key", TEXT, "of several messages with this key, the first counts"),
            *_CHOICE,
        ),
    ),
    Endpoint(
        "POST",
        "/runs/fork",
        fork,
        "Fork many runs where they are; `created` has the new ones",
        "Outcomes",
        body=(
            Parameter("update", OBJECT, "values that are merged into their states"),
            Parameter("begin", FLAG, "hand the new runs to the workers at once"),
            Parameter("tags", TEXTS, "the tags of the new runs"),
            *_CHOICE,
        ),
    ),
    Endpoint(
        "POST",
        "/runs/rollback",
        rollback,
        "Set many runs back to where they were after a step",
        "Outcomes",
        body=(Parameter("step", INTEGER, "the step", True), *_CHOICE),
    ),
)
