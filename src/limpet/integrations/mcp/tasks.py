"""The tasks extension: a call whose run takes long becomes a task, which the client looks at, answers and cancels.

A run is a task, and its id is the task's. It is in the store before the client gets it, so another server of the
store knows the task, too. The SDK has the place for extensions, and leaves what they do to them. This is
`io.modelcontextprotocol/tasks` for the protocol of 2026-07-28. The tasks of 2025-11-25 were an experiment in the core
of that version: the SDK neither announces them nor lets a tool answer with one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, Final

from anyio.to_thread import run_sync
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    ElicitResult,
    GetTaskRequestParams,
    InputResponses,
    RequestParams,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from limpet.engine.operations.run_info import RunInfo
from limpet.errors import AnswerRefused, LimpetError, RunNotFound, UsageError
from limpet.integrations.mcp.forms import Form, forms_of
from limpet.integrations.mcp.results import as_wire, result_of
from limpet.integrations.mcp.run_answers import elicitation, read_replies, store_answer, who_answers
from limpet.integrations.mcp.run_outcomes import is_error, next_step, outcome_of
from limpet.integrations.mcp.served_runs import ServedRuns
from limpet.journal.store import CANCELLED, COMPLETED, DAMAGED, FAILED

TASKS: Final = "io.modelcontextprotocol/tasks"

POLL_INTERVAL: Final = 1000
"""Milliseconds between two looks at a task, for clients."""

Context = ServerRequestContext[Any, Any]
Handler = Callable[[ServedRuns, Context, Any], dict[str, Any]]


class UpdateTaskRequestParams(RequestParams):
    """What `tasks/update` brings: replies to the forms of a task."""

    task_id: str
    input_responses: InputResponses


def takes_tasks(context: Context) -> bool:
    """Whether the client of a request knows tasks."""
    known = context.session.client_capabilities
    extensions = None if known is None else known.extensions
    return context.protocol_version in MODERN_PROTOCOL_VERSIONS and TASKS in (extensions or {})


def add_tasks(server: Server[Any], served: ServedRuns) -> None:
    """Have a server announce the extension, and answer its methods."""
    server.extensions[TASKS] = {}
    handlers: tuple[tuple[str, type[RequestParams], Handler], ...] = (
        ("tasks/get", GetTaskRequestParams, _get),
        ("tasks/update", UpdateTaskRequestParams, _update),
        ("tasks/cancel", GetTaskRequestParams, _cancel),
    )
    for method, params, handler in handlers:
        server.add_request_handler(method, params, _handling(served, handler))


def created_task(served: ServedRuns, run: RunInfo) -> dict[str, Any]:
    """What a call answers whose run has become a task."""
    return {**_task(served, run), "resultType": "task"}


def _handling(served: ServedRuns, handler: Handler) -> Callable[[Context, Any], Awaitable[dict[str, Any]]]:
    async def handle(context: Context, params: Any) -> dict[str, Any]:
        if context.protocol_version not in MODERN_PROTOCOL_VERSIONS:
            raise MCPError(METHOD_NOT_FOUND, "Method not found", context.method)
        if not takes_tasks(context):
            needed: dict[str, Any] = {"requiredCapabilities": {"extensions": {TASKS: {}}}}
            raise MCPError(MISSING_REQUIRED_CLIENT_CAPABILITY, "Missing required client capability", needed)
        try:
            return await run_sync(handler, served, context, params)
        except (RunNotFound, UsageError) as problem:
            raise MCPError(INVALID_PARAMS, problem.message) from problem
        except LimpetError as problem:
            raise MCPError(INTERNAL_ERROR, problem.message) from problem

    return handle


def _get(served: ServedRuns, context: Context, params: GetTaskRequestParams) -> dict[str, Any]:
    run = served.run(params.task_id)
    task = _task(served, run)
    forms = _forms(run, context)
    if task["status"] == "completed":
        outcome = outcome_of(served, run)
        task["result"] = as_wire(result_of(outcome, context.protocol_version, is_error(outcome)))
    elif task["status"] == "working" and forms:
        task["status"] = "input_required"
        task["inputRequests"] = {
            key: elicitation(form).model_dump(by_alias=True, mode="json", exclude_none=True)
            for key, form in forms.items()
        }
    return task


def _update(served: ServedRuns, context: Context, params: UpdateTaskRequestParams) -> dict[str, Any]:
    """Take in replies. One that can't be an answer is an error, and its form stays open; old ones are ignored."""
    _check_may_change(served)
    run = served.run(params.task_id)
    forms = _forms(run, context)
    given = {
        key: reply
        for key, reply in params.input_responses.items()
        if key in forms and isinstance(reply, ElicitResult)
    }
    replies = read_replies(forms, given)
    by = who_answers(context)
    refused = replies.refused
    for key, answer in replies.answers.items():
        try:
            store_answer(served, run, forms[key].question_id, answer, by)
        except AnswerRefused as problem:
            refused = problem.message
    if refused:
        raise MCPError(INVALID_PARAMS, refused)
    return {}


def _cancel(served: ServedRuns, context: Context, params: GetTaskRequestParams) -> dict[str, Any]:
    """Cancel the run. One that has ended stays as it is."""
    _check_may_change(served)
    run = served.run(params.task_id)
    if run.status not in (COMPLETED, FAILED, CANCELLED, DAMAGED):
        served.runs.cancel(run.run_id)
    return {}


def _check_may_change(served: ServedRuns) -> None:
    if served.options.read_only:
        raise UsageError("this server is read-only")


def _task(served: ServedRuns, run: RunInfo) -> dict[str, Any]:
    """A run as a task. A run that failed is a completed task: the tool was called, and its result is an error."""
    status = "working"
    if run.status in (COMPLETED, FAILED, DAMAGED):
        status = "completed"
    elif run.status == CANCELLED:
        status = "cancelled"
    task = {
        "taskId": run.run_id,
        "status": status,
        "createdAt": _time(run.created),
        "lastUpdatedAt": _time(run.updated),
        "ttlMs": None,
        "pollIntervalMs": POLL_INTERVAL,
    }
    if run.status != COMPLETED:
        shown = run.shown_at(served.shown.now())
        task["statusMessage"] = f"{shown}: {run.reason or run.node}; {next_step(served, run)}"
    return task


def _forms(run: RunInfo, context: Context) -> dict[str, Form]:
    """What the run asks, by keys of which each is for one request, if the client has persons fill in forms."""
    known = context.session.client_capabilities
    if known is None or known.elicitation is None:
        return {}
    return {_key(form): form for form in forms_of(run)}


def _key(form: Form) -> str:
    """A question that is asked again, as its answer was refused by the code that asked, has another prompt."""
    asked = hashlib.sha256(form.message.encode("utf-8", "replace")).hexdigest()[:8]
    return f"{form.question_id}#{asked}"


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
