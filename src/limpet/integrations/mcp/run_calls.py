"""A call that follows a run: it waits, has the client ask its user, and says what has become of the run.

The run is in the store before anything is answered, and nothing here executes it: a supervisor does. So a call that
is cancelled, or whose client is gone, leaves its run as it is.

What a run asks reaches a person in one of three ways. A client of the present protocol gets the forms as a request
for input, and calls the tool again with the replies. An older one that takes forms is asked while the call waits. Any
other gets the questions as data, and the tool that answers them.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

from anyio.to_thread import run_sync
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS, ElicitResult, InputRequiredResult
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from limpet.engine.following.follow import await_for
from limpet.engine.operations.run_info import RunInfo
from limpet.errors import AnswerRefused, RunNotFound
from limpet.handle import RunHandle
from limpet.integrations.mcp.forms import Form, forms_of
from limpet.integrations.mcp.progress import reporting
from limpet.integrations.mcp.request_states import RequestState, is_first_use, read_state, state_for
from limpet.integrations.mcp.results import result_of
from limpet.integrations.mcp.run_answers import Replies, elicitation, form_message, read_replies, store_answer
from limpet.integrations.mcp.run_outcomes import is_error, outcome_of
from limpet.integrations.mcp.tasks import created_task, takes_tasks
from limpet.integrations.mcp.tools.offered_tool import Answer, ToolCall
from limpet.journal.store import ENDED, PAUSED, RunHead

TASK_AFTER: Final = 1.0
"""Seconds after which a call becomes a task, for clients that know tasks."""


async def follow(call: ToolCall, run_id: str, wait: float | None = None) -> Answer:
    """Follow a run until it stops, or as long as a call waits, and say what has become of it."""
    seconds = call.served.options.wait if wait is None else min(max(wait, 0.0), call.served.options.wait)
    handle = await run_sync(call.served.handle, run_id)
    if takes_tasks(call.context) and wait is None:
        run = await _stopped(handle, min(TASK_AFTER, seconds))
        if run.status in ENDED:
            return await _outcome(call, run)
        return await run_sync(created_task, call.served, run)
    return await _follow(call, handle, seconds, Replies())


async def resume_call(call: ToolCall) -> Answer:
    """Take in what the client hands back, once, and follow the run that it is about."""
    state = read_state(call.params.request_state or "")
    run = await run_sync(_run_of, call, state)
    forms = {form.question_id: form for form in forms_of(run)}
    replied = call.params.input_responses or {}
    replies = Replies(declined=state.declined)
    if await run_sync(is_first_use, call.served.client, state, call.served.options.state_lasts):
        given = {id: each for id, each in replied.items() if isinstance(each, ElicitResult) and id in forms}
        replies = await _take_in(call, run, read_replies(forms, given, state.declined))
    handle = await run_sync(call.served.handle, run.run_id)
    return await _follow(call, handle, call.served.options.wait, replies)


def _run_of(call: ToolCall, state: RequestState) -> RunInfo:
    try:
        return call.served.run(state.run_id, state.created)
    except RunNotFound:
        raise MCPError(INVALID_PARAMS, "the run of this requestState is no longer there") from None


async def _follow(call: ToolCall, handle: RunHandle[Any], seconds: float, replies: Replies) -> Answer:
    async with reporting(call.context, handle):
        return await _until_known(call, handle, seconds, replies)


async def _until_known(call: ToolCall, handle: RunHandle[Any], seconds: float, replies: Replies) -> Answer:
    """What has become of a run, or a request for input. A client that takes forms is asked whenever the run asks."""
    while True:
        if replies.answers and not await _takes_in(call, handle.run_id, seconds):
            run = await handle.ainfo()
            return await _outcome(call, run, "an answer waits until a worker of the store takes it in")
        run = await _stopped(handle, seconds)
        asked = [form for form in forms_of(run) if form.question_id not in replies.declined]
        if not asked:
            note = "the user didn't answer: the run stays as it is" if replies.declined else ""
            return await _outcome(call, run, note)
        way = _way_to_ask(call)
        if way == _REQUESTS:
            return _request_for_input(run, asked, replies)
        if way != _ASKS:
            return await _outcome(call, run)
        # One after the other: an answer may make other questions needless.
        form = asked[0]
        try:
            reply = await _ask(call, form, replies.refused)
        except MCPError as problem:  # it takes forms, and not this one
            return await _outcome(call, run, f"the client didn't ask the user: {problem.message}")
        replies = await _take_in(
            call, run, read_replies({form.question_id: form}, {form.question_id: reply}, replies.declined)
        )


async def _takes_in(call: ToolCall, run_id: str, seconds: float) -> bool:
    """Whether the run takes in, within this time, what was posted to it.

    An answer is posted to a run that another process holds, maybe just to answer it, too. Until a worker has taken it
    in, the run seems to ask still, and a client would have its user answer again.
    """

    def has_taken_in(head: RunHead) -> bool:
        return head.status != PAUSED or head.taken == head.posted

    return await await_for(call.served.client, run_id, seconds, has_taken_in) is not None


async def _stopped(handle: RunHandle[Any], seconds: float) -> RunInfo:
    """The run once it has stopped or asks; or as it is when the time is over."""
    with suppress(TimeoutError):
        return await handle.await_(max(seconds, 0.001))
    return await handle.ainfo()


async def _outcome(call: ToolCall, run: RunInfo, note: str = "") -> Answer:
    def made() -> Answer:
        data = outcome_of(call.served, run, note)
        return result_of(data, call.context.protocol_version, is_error(data))

    return await run_sync(made)


_REQUESTS: Final = "requests"
_ASKS: Final = "asks"


def _way_to_ask(call: ToolCall) -> str:
    """How the client has a person fill in a form: by calling again, while the call waits, or not at all."""
    session = call.context.session
    known = session.client_capabilities
    takes = None if known is None else known.elicitation
    if call.served.options.read_only or takes is None or (takes.form is None and takes.url is not None):
        return ""
    if call.context.protocol_version in MODERN_PROTOCOL_VERSIONS:
        return _REQUESTS
    return _ASKS if session.can_send_request else ""


def _request_for_input(run: RunInfo, asked: list[Form], replies: Replies) -> InputRequiredResult:
    return InputRequiredResult(
        input_requests={form.question_id: elicitation(form, replies.refused) for form in asked},
        request_state=state_for(run, replies.declined),
    )


async def _ask(call: ToolCall, form: Form, note: str) -> ElicitResult:
    session = call.context.session
    return await session.elicit_form(form_message(form, note), form.schema, call.context.request_id)


async def _take_in(call: ToolCall, run: RunInfo, replies: Replies) -> Replies:
    """Store the answers, each by itself. What can't be one is asked for again; what has one already keeps it."""
    for question_id, answer in replies.answers.items():
        try:
            await run_sync(store_answer, call.served, run, question_id, answer, call.answers_as)
        except AnswerRefused as problem:
            replies = replies._replace(refused=problem.message)
    return replies
