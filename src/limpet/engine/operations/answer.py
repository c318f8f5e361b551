"""Answer what a run asks, and leave it to the process that executes the run, or to a supervisor, to continue it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import count
from time import time
from typing import Any, NamedTuple

from limpet.durations import patience_of
from limpet.engine.leases.inbox_checks import take_in_all
from limpet.engine.leases.interrupted_calls import releases_if_interrupted
from limpet.engine.leases.lease_client import HeldRun, LeaseClient, held_in_this_process, nudge_supervisors
from limpet.engine.loop.run_lifecycle import ANSWER, next_status
from limpet.engine.node_context.questions import ResumeInput, unanswered
from limpet.engine.operations.run_info import info_at_last_stop, way_on
from limpet.engine.sessions.checkpoint_refs import asked_at, run_and_point
from limpet.engine.sessions.compatibility import check_point, refuse_cancelled, refuse_completed
from limpet.errors import AlreadyAnswered, Conflict, LimpetError, RunNotFound, UsageError
from limpet.journal.encoding.codec import encode
from limpet.journal.inbox import answer_post, is_answer_to, is_cancel
from limpet.journal.progress import Progress
from limpet.journal.reader import Point, ViewedTail, read_progress_and_weight
from limpet.journal.store import CANCELLED, PAUSED, PostsWaiting, Tail
from limpet.journal.waits import ANSWERED_BY, APPROVAL, EXPIRE, RESUME
from limpet.journal.writer import JournalWriter, summary


@releases_if_interrupted
def answer(client: LeaseClient, id: str, given: ResumeInput, wait: float | None = None) -> None:
    """Store answers to a run's questions. Needs no plan.

    If a process executes the run, the answers are posted, and it takes them in. Otherwise a supervisor of the store
    resumes the run. `id` is that of the run, or of its checkpoint: then only what was asked there can be answered.
    Nothing given approves a run that was interrupted. `wait` is for an approval, and for a store to which nothing can
    be posted. Raises `RunNotFound`, `Conflict`, `AnswerRefused`, `AlreadyAnswered`, `AlreadyCompleted`,
    `RunCancelled`, `RunPaused` if nothing was answered, `UsageError` if the run asks nothing, `DamagedRecord`.
    """
    if wait is not None:
        wait = patience_of(wait, "wait")
    if given.by is not None and type(given.by) is not str:
        raise UsageError(f"by is who answers, as a text, not {given.by!r}")
    run_id, point = run_and_point(client, id)
    _answer(client, Asked(run_id, point), given, wait)


@releases_if_interrupted
def answer_run(client: LeaseClient, run_id: str, given: ResumeInput, created: float | None = None) -> None:
    """The same for an id that can only be that of a run; of the one that was created then, if that is given."""
    _answer(client, Asked(run_id, None, created), given, None)


def check_answers(client: LeaseClient, run_id: str, given: ResumeInput) -> None:
    """Raise what `answer_run` would raise for this, as far as that can be known without claiming the run."""
    _answers_as_of_now(client, Asked(run_id), given)


class Asked(NamedTuple):
    """What an answer is for: a run, at a point of it, created at this time, if these matter."""

    run_id: str
    point: Point | None = None
    created: float | None = None


def _answer(client: LeaseClient, asked: Asked, given: ResumeInput, wait: float | None) -> None:
    run_id = asked.run_id
    # Refused before the run is claimed, which would change it.
    answers = _answers_as_of_now(client, asked, given)
    takes_posts = client.store.abilities.takes_part
    try:
        holding = client.holding(run_id, None if takes_posts and answers else wait)
    except Conflict:
        # There is no post for an approval: a run that waits for one is held for a moment only, by a call like this.
        if not (takes_posts and answers):
            raise
        _post(client, run_id, answers, given.by)
        return
    try:
        with holding as held:
            while not _commit_answers(client, held, asked, given):
                pass  # something was posted meanwhile, and came first
    finally:
        # Also if another answer was posted while the run was held: a supervisor takes it in.
        nudge_supervisors(client.store)


def _answers_as_of_now(client: LeaseClient, asked: Asked, given: ResumeInput) -> dict[str, Any]:
    """The answers by question id; none for an approval. Raises if one isn't valid, or if nothing is asked."""
    tail = client.store.read(asked.run_id)
    progress, weight = _read(tail, asked)
    # As the process that executes the run will do: what was posted before has been answered.
    _take_in(client, tail, progress, JournalWriter(asked.run_id, 0, tail.head.sequence, weight), client.now)
    return _answers(client, progress, asked.point, given, client.now())


def _commit_answers(client: LeaseClient, held: HeldRun, asked: Asked, given: ResumeInput) -> bool:
    """Commit the answers to a run that this process holds; False if posts arrived that have to be taken in before."""
    tail = held.read()
    progress, weight = _read(tail, asked)
    writer = JournalWriter(progress.run_id, held.fence, tail.head.sequence, weight)
    _take_in(client, tail, progress, writer, held.now)
    answers = _answers(client, progress, asked.point, given, held.now())
    overdue = progress.expired_questions(held.now())
    progress.count_crashes(held.crashes)
    changes: dict[str, Any] = {EXPIRE: overdue, RESUME: answers}
    if given.by is not None:
        changes[ANSWERED_BY] = dict.fromkeys(answers or [APPROVAL], given.by)
    writer.add_move(progress, changes, time())
    # Due at once, or when the next timer is: that is when a supervisor finds the run.
    due = progress.due() or 0.0
    status = next_status(tail.head.status, ANSWER)
    # A post that can't be read here waits for a process that can.
    leaves_posts = tail.head.posted > max(tail.head.taken, writer.takes)
    try:
        held.commit(writer.commit(status, summary(progress), ignores_posts=leaves_posts, due=due))
    except PostsWaiting:
        return False
    return True


def _read(tail: Tail, asked: Asked) -> tuple[Progress, int]:
    """How far a run has come. Raises if it is complete, cancelled, or isn't what the caller means any more."""
    if asked.created not in (None, tail.head.created):
        raise RunNotFound(asked.run_id)  # that one was deleted, and a later run has got its id
    refuse_completed(tail.head)
    refuse_cancelled(tail.head.run_id, tail.head.status)
    # The state stays as it is, so its classes needn't be known here.
    progress, weight = read_progress_and_weight(ViewedTail(*tail))
    check_point(progress, asked.point)
    return progress, weight


def _take_in(
    client: LeaseClient, tail: Tail, progress: Progress, writer: JournalWriter, now: Callable[[], float]
) -> None:
    """Take in what was posted to the run before. Raises `RunCancelled` if that is a request to cancel it."""
    run_id = progress.run_id
    if tail.head.posted == tail.head.taken:
        return
    if any(is_cancel(post.key) for post in client.store.inbox(run_id)):
        refuse_cancelled(run_id, CANCELLED)
    take_in_all(client.store, progress, writer, now)


def _answers(
    client: LeaseClient, progress: Progress, point: Point | None, given: ResumeInput, now: float
) -> dict[str, Any]:
    """The answers by question id; none for an approval. Raises if one isn't valid, or if nothing is asked."""
    given = given.about(asked_at(client, progress, point))
    if progress.waits_for_approval and not given.answers_any:
        if given.asked is not None:
            raise Conflict(progress.run_id, f"it was {progress.reason} after the checkpoint that is named")
        return {}
    if not progress.open_questions() and not (given.answers or (given.asked and given.answers_any)):
        raise _nothing_asked(client, progress)
    answers = given.answers_to(progress, now)
    # Of a paused run, another branch may wait for an approval, or a question has expired: then it continues.
    if not answers and progress.status != PAUSED:
        raise unanswered(progress)
    encode(answers, "answers")
    return answers


def _nothing_asked(client: LeaseClient, progress: Progress) -> LimpetError:
    info = info_at_last_stop(client, progress.run_id)
    problem: LimpetError
    if closed := progress.answered_questions():
        problem = AlreadyAnswered(progress.run_id, closed, "none")
    elif progress.waits_for_approval:
        problem = UsageError(
            f"run {info.run_id!r} has no open question: it was {info.reason}, and waits for an approval"
        )
    else:
        problem = UsageError(f"run {info.run_id!r} has no open question: it is {info.shown_status}")
    return problem.with_advice(*way_on(info))


def _post(client: LeaseClient, run_id: str, answers: Mapping[str, Any], by: str | None) -> None:
    """Post answers to a run that a process executes: a branch of it asks, while others are under way.

    If one of the questions has an answer already, none is posted.
    """
    waiting = [question for question in answers if _has_answer_waiting(client, run_id, question)]
    if waiting:
        raise _answered(client, run_id, waiting)
    posted = [each for each, answer in answers.items() if _post_one(client, run_id, each, answer, by)]
    held_here = held_in_this_process(client.store, run_id)
    if held_here is not None:
        held_here.stop.notice_posts()
    # One that was answered before the post, in another way, takes no other answer.
    still_open = _open_questions(client, run_id)
    lost = [each for each in posted if each not in still_open and _has_answer_waiting(client, run_id, each)]
    late = [question for question in answers if question not in posted or question in lost]
    if late:
        refused = _answered(client, run_id, late)
        posted = [question for question in posted if question not in lost]
        if posted:
            refused.with_advice(f"the run takes in the other answers: {', '.join(map(repr, posted))}")
        raise refused


def _post_one(client: LeaseClient, run_id: str, question: str, answer: Any, by: str | None) -> bool:
    """Post an answer; False if another one came first.

    A store takes each key once, also that of an answer which had no effect: it was too late, or didn't fit. While the
    question is open all the same, the next key is tried.
    """
    for number in count(1):
        post = answer_post(run_id, question, answer, client.now(), number, by)
        if client.store.post(run_id, post.key, post.body):
            return True
        if _has_answer_waiting(client, run_id, question) or question not in _open_questions(client, run_id):
            return False
    raise AssertionError("unreachable")


def _has_answer_waiting(client: LeaseClient, run_id: str, question: str) -> bool:
    return any(is_answer_to(question, post.key) for post in client.store.inbox(run_id))


def _open_questions(client: LeaseClient, run_id: str) -> list[str]:
    progress, _ = read_progress_and_weight(ViewedTail(*client.store.read(run_id)))
    return [question.id for question in progress.open_questions()]


def _answered(client: LeaseClient, run_id: str, questions: Sequence[str]) -> AlreadyAnswered:
    still_open = [each for each in _open_questions(client, run_id) if each not in questions]
    return AlreadyAnswered(run_id, sorted(questions), ", ".join(map(repr, still_open)) or "none")
