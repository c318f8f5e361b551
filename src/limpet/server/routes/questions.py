"""Routes about questions: which runs wait for a person, and links with which one question can be answered."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Final

from limpet.durations import moment_of
from limpet.engine.leases.lease_client import LeaseClient, client_for
from limpet.engine.node_context.questions import ResumeInput
from limpet.engine.operations.answer import answer_run
from limpet.engine.operations.run_info import (
    ABANDONED,
    QUEUED,
    RETRYING,
    SLEEPING,
    WAITING,
    RunInfo,
    list_all,
    listed_info,
    with_position,
)
from limpet.engine.operations.run_query import Found, RunQuery, Search
from limpet.errors import AlreadyAnswered, Conflict, LimpetError, RunError, RunNotFound, UsageError
from limpet.frontends.problems import HttpProblem
from limpet.frontends.shown_runs import listed_run
from limpet.frontends.values import shown_value
from limpet.journal.store import PAUSED, RUNNING
from limpet.journal.waits import Question
from limpet.server.endpoint import ANYTHING, INTEGER, TEXT, ApiRequest, Endpoint, Parameter, limit_of
from limpet.server.question_links import QuestionLink, no_such_link, open_link, seal_link

MAX_WAITING: Final = 200
"""Runs in an answer, at most."""

MAX_PAUSED: Final = 500
MAX_RUNNING: Final = 200
MAX_QUEUED: Final = 2000
"""Runs that are looked through for questions, at most, the newest: those that are paused, under way, and queued."""

NEVER_BEGUN: Final = 1
"""Records of a run that no process has begun. Most queued runs are such runs, and these ask nothing."""

LINK_LASTS: Final = "7d"

GONE: Final = "the run of this link is no longer there"


def waiting(request: ApiRequest) -> dict[str, Any]:
    """The runs that wait for an answer or an approval of a person, those that are paused first."""
    limit = limit_of(request, MAX_WAITING, 50)
    client = client_for(request.service.store)
    paused = _search(client, RunQuery(statuses=(PAUSED,)), MAX_PAUSED)
    under_way = _search(client, _UnderWay(statuses=(ABANDONED, SLEEPING, RETRYING, WAITING)), MAX_RUNNING)
    found: dict[str, RunInfo] = {}
    for runs in (paused, under_way, _begun_and_queued(client)):
        found |= {info.run_id: info for info in _that_wait(runs, client)}
    now = client.now()
    return {
        "runs": [listed_run(info, now) for info in islice(found.values(), limit)],
        "total": len(found),
        "more": any(search.stopped_at is not None for search in (paused, under_way)),
    }


class _UnderWay(RunQuery):
    """The running runs that are found by the statuses: what finds abandoned ones finds all that a process holds."""

    def has_status(self, info: RunInfo, now: float) -> bool:
        """Whether it is one of them."""
        return info.status == RUNNING


def _search(client: LeaseClient, query: RunQuery, bound: int) -> Search:
    search = Search(client, query, bound=bound)
    search.page_size = bound + 1  # one more says whether there are more
    return search


def _begun_and_queued(client: LeaseClient) -> Iterator[Found]:
    """The queued runs that a process has begun: one of them may have been answered, and ask something else."""
    (which,) = RunQuery(statuses=(QUEUED,)).filters()
    for head, problem in list_all(client.store, which._replace(limit=MAX_QUEUED)):
        if head.sequence > NEVER_BEGUN:
            yield Found(head, listed_info(client.store, head, problem))


def _that_wait(runs: Iterable[Found], client: LeaseClient) -> Iterator[RunInfo]:
    """The runs among those found that wait for a person, without the questions that were answered meanwhile."""
    for head, info in runs:
        if waits_for_person(info):
            now = with_position(client, head, info)
            if waits_for_person(now):
                yield now


def waits_for_person(info: RunInfo) -> bool:
    """Whether a run needs an answer or an approval."""
    return bool(info.questions) or info.waits_for_approval


def make_link(request: ApiRequest) -> dict[str, Any]:
    """A link with which one question of a run can be answered, without the token of the server."""
    values = request.values
    info = request.service.runs.get(request.run_id).info
    question = _asked(info, values.get("question"))
    now = client_for(request.service.store).now()
    expires = moment_of(values.get("expires") or LINK_LASTS, now, "expires")
    if expires <= now:
        raise UsageError(f"expires={values['expires']!r} isn't in the future: the link would be of no use")
    name = values.get("name") or ""
    link = QuestionLink(info.run_id, info.created, question.id, expires, name, request.user)
    return {"path": f"/answer/{seal_link(request.service.store, link)}", "expires": expires}


def show(request: ApiRequest) -> dict[str, Any]:
    """The question that a link is about."""
    link = _link(request)
    info = _run_of(request, link)
    question = next((each for each in info.questions if each.id == link.question), None)
    return {
        "graph": info.graph,
        "run_id": info.run_id,
        "is_open": question is not None,
        "expires": link.expires,
        "question": question and shown_value(question._asdict()),
    }


def answer(request: ApiRequest) -> dict[str, Any]:
    """Answer the question that a link is about."""
    link = _link(request)
    info = _run_of(request, link)
    by = request.user or link.answers_as
    answers = {link.question: request.values["value"]}
    try:
        client = client_for(request.service.store)
        answer_run(client, info.run_id, ResumeInput(answers=answers, by=by, is_json=True), link.created)
    except LimpetError as problem:
        if shown := _for_strangers(problem):
            raise shown from problem
        raise
    return {"answered": link.question, "run_id": info.run_id}


def _asked(info: RunInfo, question_id: str | None) -> Question:
    for question in info.questions:
        if question_id in (None, question.id):
            return question
    raise UsageError(f"run {info.run_id!r} doesn't ask {question_id or 'anything'}")


def _for_strangers(problem: LimpetError) -> HttpProblem | None:
    """What is said to who has a link in place of an error; None for one that may be shown.

    It doesn't say what else the run asks, who holds it, nor where it is stored.
    """
    if isinstance(problem, RunNotFound):
        return no_such_link(GONE)
    if isinstance(problem, Conflict):
        return HttpProblem(409, Conflict.code, "the answer can't be saved at the moment; try again")
    if isinstance(problem, AlreadyAnswered | RunError) or type(problem) is UsageError:
        return HttpProblem(409, AlreadyAnswered.code, "this question is no longer open")
    return None


def _link(request: ApiRequest) -> QuestionLink:
    now = client_for(request.service.store).now()
    try:
        return open_link(request.service.store, request.path["link"], now)
    except UsageError as problem:  # the store keeps no documents, so no link was ever made
        raise no_such_link() from problem


def _run_of(request: ApiRequest, link: QuestionLink) -> RunInfo:
    try:
        info = request.service.runs.get(link.run_id).info
        if info.created != link.created:  # a later run has got its id
            raise RunNotFound(link.run_id)
    except RunNotFound as problem:
        raise no_such_link(GONE) from problem
    return info


ENDPOINTS: Final = (
    Endpoint(
        "GET",
        "/questions",
        waiting,
        "The runs that wait for a person",
        "WaitingRuns",
        query=(Parameter("limit", INTEGER, f"at most {MAX_WAITING}"),),
        is_costly=True,
    ),
    Endpoint(
        "POST",
        "/runs/{run_id}/link",
        make_link,
        "Make a link with which one question can be answered, without the token",
        "Link",
        body=(
            Parameter("question", TEXT, "the id of the question; the first open one, if it is left out"),
            Parameter("expires", TEXT, f"when it ends: a time, or how long from now ({LINK_LASTS})"),
            Parameter("name", TEXT, "whom it is for: that is who will have answered"),
        ),
    ),
    Endpoint(
        "GET",
        "/questions/{link}",
        show,
        "The question that a link is about",
        "LinkedQuestion",
        is_public=True,
    ),
    Endpoint(
        "POST",
        "/questions/{link}/answer",
        answer,
        "Answer the question that a link is about",
        "Answered",
        body=(Parameter("value", ANYTHING, "the answer", True),),
        is_public=True,
    ),
)
