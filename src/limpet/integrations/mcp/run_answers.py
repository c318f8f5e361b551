"""Replies to the forms of a run, and the answers that they are."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from mcp.server.context import ServerRequestContext
from mcp_types import ElicitRequest, ElicitRequestFormParams, ElicitResult

from limpet.engine.node_context.questions import ResumeInput
from limpet.engine.operations.answer import answer_run
from limpet.engine.operations.run_info import RunInfo
from limpet.errors import AnswerRefused, RunError, UsageError
from limpet.integrations.mcp.forms import APPROVAL, Form
from limpet.integrations.mcp.http import user_of
from limpet.integrations.mcp.served_runs import ServedRuns

LONGEST_NAME: Final = 100
"""Characters of the name of a client, at most."""

NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


class Replies(NamedTuple):
    """What a person has replied to forms: the answers by question id, and the questions that were left open."""

    answers: Mapping[str, Any] = NOTHING
    declined: tuple[str, ...] = ()
    refused: str = ""
    """Why a reply can't be an answer."""


def who_answers(context: ServerRequestContext[Any, Any]) -> str:
    """Who will be known to have answered: the user, where the server knows one, else what the client calls itself."""
    known = context.session.client_params
    client = "an MCP client" if known is None else known.client_info.name[:LONGEST_NAME]
    return user_of(context) or client


def elicitation(form: Form, refused: str = "") -> ElicitRequest:
    """The request that has a person fill in a form. `refused` says what was wrong with the last reply."""
    return ElicitRequest(
        params=ElicitRequestFormParams(message=form_message(form, refused), requested_schema=form.schema)
    )


def form_message(form: Form, refused: str = "") -> str:
    """What a person reads above a form."""
    if not refused:
        return form.message
    return f"{form.message}\n(The last answer was refused: {refused})"


def read_replies(
    forms: Mapping[str, Form], given: Mapping[str, ElicitResult], declined: tuple[str, ...] = ()
) -> Replies:
    """The answers in what was filled in. `declined` are questions that were left open before."""
    answers: dict[str, Any] = {}
    refused = ""
    for question_id, reply in given.items():
        if reply.action != "accept":
            declined = (*declined, question_id)
            continue
        try:
            answers[question_id] = forms[question_id].read(reply.content or {})
        except AnswerRefused as problem:
            refused = problem.message
            if question_id == APPROVAL:
                declined = (*declined, question_id)
    return Replies(answers, declined, refused)


def store_answer(served: ServedRuns, run: RunInfo, question_id: str, answer: Any, by: str) -> None:
    """Store the answer to one question, or the approval, of a run that was asked for it. Raises `AnswerRefused`.

    Nothing happens where the question isn't open any more: it was answered in another way, or its time is over.
    """
    given = ResumeInput(by=by)
    if question_id != APPROVAL:
        given = ResumeInput(answers={question_id: answer}, by=by, is_json=True)
    try:
        answer_run(served.client, run.run_id, given, run.created)
    except AnswerRefused:
        raise
    except (RunError, UsageError):
        return  # what has become of the run says the rest
