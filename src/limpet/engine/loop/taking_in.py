"""How a run takes in what was posted to it, while it is under way.

A commit is refused while posts wait. The loop then gets them, records what they bring, and commits again: one commit
holds their records and says that they are taken in. So each post has its effect once, whatever crashes when.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

from limpet.engine.loop.driver_commands import (
    AdmitRun,
    Cancelled,
    Failed,
    GiveUpTurns,
    PostsArrived,
    StopAsked,
    Wait,
)
from limpet.engine.loop.run_context import Clocks, LoopStop, RunContext, stop_for
from limpet.engine.node_context.questions import check_answer
from limpet.errors import AnswerRefused
from limpet.journal.inbox import ANSWER, CANCEL, LETTERS, Posted
from limpet.journal.progress import Progress
from limpet.journal.store import CANCELLED, FAILED, Commit
from limpet.journal.waits import ANSWER as ANSWERED
from limpet.journal.waits import (
    ANSWERED_BY,
    ASK_AGAIN,
    CALL_AGAIN,
    CHILD_RUN,
    DELIVER,
    END_JOINS,
    EXPIRE_WAITS,
    FAILED_PHASE,
    SLOT,
    Question,
    SentLetter,
    addressed,
    box_of,
    has_expired_wait,
    joined_children,
    places_in_line,
)
from limpet.journal.writer import JournalWriter, summary

if TYPE_CHECKING:
    from limpet.engine.loop.node_loop import NodeLoop

LONGEST_RECHECK = 2.0
"""Seconds for which a run waits here until it looks at a child again that is about to end, but not executed here."""


def commit_again(
    context: RunContext, refusal: PostsArrived, make_commit: Callable[[], Commit]
) -> Generator[Any, Any, Any]:
    """Take in the posts for which a commit was refused, and commit again. Returns what the driver answers.

    With a request to cancel among them, nothing is committed: the answer is `StopAsked`.
    """
    answer: Any = refusal
    while isinstance(answer, PostsArrived):
        take_in(context, answer.posts)
        if context.cancel_requested:
            return StopAsked()
        answer = yield make_commit()
    return answer


def take_in(context: RunContext, posts: Sequence[Posted], *, stops: bool = False) -> TakenIn:
    """Record what posts bring, for the next commit: see `record_posts`. `stops` says that it stops the run."""
    writer = context.saving.writer
    assert writer is not None
    taken = record_posts(context.root, writer, posts, context.clocks, stops=stops)
    context.cancel_requested = context.cancel_requested or (taken.asks_to_cancel and not stops)
    context.summary_is_old = context.summary_is_old or taken.wakes_nodes
    context.has_answers = context.has_answers or bool(taken.answered)
    context.has_woken = context.has_woken or taken.wakes_nodes
    context.ended_children |= taken.ended_children
    context.early_slots |= taken.early_slots
    return taken


def admission(loop: NodeLoop) -> Generator[Any, Any, LoopStop | None]:
    """Wait until the run has slots of its own limits. Returns why it stops, if it does before."""
    context = loop.context
    while (answer := (yield AdmitRun())) is not None:
        if isinstance(answer, Failed):
            reason = f"its limits can't be kept: {loop.reporter.error_line(answer.error)}"
            return LoopStop(FAILED, loop, reason, answer.error, FAILED_PHASE)
        if isinstance((yield Wait(context.clocks.store() + answer, for_posts=True)), Cancelled):
            return LoopStop(CANCELLED)
        context.limits.has_posts()  # that it is its turn, maybe; what was posted is taken in later
    return None


def waits_here(context: RunContext) -> bool:
    """Whether a run whose nodes wait for posts stays in this process: for child runs, or for slots of limits."""
    limits = context.limits
    return limits.waits_for_children() or (limits.waits_for_slots and bool(places_in_line(context.root)))


def wait_here(context: RunContext, stop: LoopStop) -> Generator[Any, Any, LoopStop | None]:
    """Wait for as long as this process executes children of the run, or it stands in line for slots of limits.

    None when a node can be called again. A run that a supervisor has resumed leaves instead: a post makes it due.
    But where a caller executes a run, nothing else may be there that would resume it. Else returns why the loop
    stops: `stop` itself, when nothing of what it waits for happens here any more.
    """
    writer = context.saving.writer
    assert writer is not None
    if context.limits.needs_admission:
        # Its child runs, or those that have the slots it waits for, may need them. It gets them again afterwards.
        yield AdmitRun(wanted=False)
    while True:
        # Both before the commit, which takes in what was posted: what comes after it ends the wait.
        context.limits.has_posts()
        in_line = bool(places_in_line(context.root))
        stays = in_line or context.limits.executes_children()
        is_woken = False
        answer = yield _commit_of_wait(context, writer, in_line)
        while isinstance(answer, PostsArrived):
            is_woken = take_in(context, answer.posts).wakes_nodes or is_woken
            if context.cancel_requested:
                return LoopStop(CANCELLED)
            if is_woken and not in_line:
                return None
            answer = yield _commit_of_wait(context, writer, in_line)
        if isinstance(answer, Exception) and not context.tolerates(answer):
            return stop_for(answer)
        yield from give_up_turns(context)
        if is_woken:
            return None
        now = context.clocks.store()
        if has_expired_wait(context.root, now):
            writer.add_move(context.root, {EXPIRE_WAITS: now}, context.clocks.now())
            return None
        until = context.root.continues_at()
        if not stays and (until is None or until - now > LONGEST_RECHECK):
            return stop
        if isinstance((yield Wait(inf if until is None else until, for_posts=True)), Cancelled):
            return LoopStop(CANCELLED)


def give_up_turns(context: RunContext) -> Generator[Any, Any, None]:
    """Give up turns that no node waits for, now that no node is under way: others in line needn't wait for them.

    A process that crashed stood there before that was stored, and the call has had its slot since.
    """
    places = places_in_line(context.root)
    limits = {limit for limit, _ in (*places, *context.early_slots)}
    if limits:
        context.early_slots.clear()
        yield GiveUpTurns(sorted(limits), [ticket for _, ticket in places])


def _commit_of_wait(context: RunContext, writer: JournalWriter, in_line: bool) -> Commit:
    """A commit of a run that waits here. That it stands in line, and no longer does, shows in its summary."""
    described = None
    if in_line and context.summary_is_old:
        described = summary(context.root)
        context.summary_is_old = False
    return writer.commit(summary=described)


class TakenIn(NamedTuple):
    """What posts brought."""

    answered: set[str]
    """The ids of the questions that are answered."""
    asks_to_cancel: bool
    """Whether a request to cancel is among them."""
    newest: int
    """The number of the newest post that was looked at."""
    ended_waits: bool = False
    """Whether a node has received what it waits for."""
    ended_children: frozenset[str] = frozenset()
    """The child runs that have ended, whether a node waits for them or not."""
    early_slots: frozenset[tuple[str, str]] = frozenset()
    """The places in line for which a slot is reserved, but whose calls aren't known to wait yet."""

    @property
    def wakes_nodes(self) -> bool:
        """Whether a node that has stopped can be called again."""
        return self.ended_waits or bool(self.answered)


def record_posts(
    root: Progress, writer: JournalWriter, posts: Sequence[Posted], clocks: Clocks, *, stops: bool
) -> TakenIn:
    """Record what posts bring, in order, and count those up to a request to cancel as taken in.

    The request itself, and what comes after it, is left to the commit that cancels the run, so that a crash before it
    doesn't lose the request. If the next commit `stops` the run, it is that one: it takes in all that is recorded
    here, up to the `newest`. It says so itself, because it may be refused: then the run hasn't stopped.
    """
    # Of a cancelled run, too: what was posted before it was cancelled counts, but only a resume runs it again.
    open_questions = {question.id: question for question in root.unanswered_questions()}
    answers: dict[str, Posted] = {}
    letters: list[SentLetter] = []
    ended_children: set[str] = set()
    called_again: set[str] = set()
    slots: list[list[str]] = []
    asks_to_cancel = False
    newest = 0
    for post in posts:
        if post.kind == CANCEL:
            asks_to_cancel = True
            if not stops:
                break
        # A commit that was refused since newer posts wait has left the records of these pending.
        is_new = post.number > writer.recorded_posts
        if post.kind in LETTERS and is_new:
            letters.append(sent_letter(post, clocks.store()))
        elif post.kind == CHILD_RUN and is_new:
            found = called_again if post.data.get("again") else ended_children
            found.add(str(post.data["name"]))
        elif post.kind == SLOT and is_new:
            slots.append([str(post.data["name"]), str(post.data["value"])])
        elif post.kind == ANSWER and is_new:
            question_id = post.data["question"]
            at = min(post.data["at"], clocks.store())
            problem = _why_dropped(open_questions.pop(question_id, None), post.data["answer"], at)
            if problem:
                _log_dropped(root.run_id, question_id, problem)
            else:
                answers[question_id] = post
        newest = post.number
        writer.recorded_posts = max(writer.recorded_posts, newest)
        if not asks_to_cancel:
            writer.takes = newest
    if answers:
        writer.add_move(root, _changes_of(answers), clocks.now())
    ended_waits = False
    if letters:
        delivered = addressed(root, letters)
        writer.add_move(root, {DELIVER: delivered}, clocks.now())
        ended_waits = any(addressee is not None for *_, addressee in delivered)
    for event, children in ((END_JOINS, ended_children), (CALL_AGAIN, called_again)):
        if joined := children.intersection(joined_children(root)):
            writer.add_move(root, {event: sorted(joined)}, clocks.now())
            ended_waits = True
    in_line = places_in_line(root) if slots else []
    if reserved := [place for place in slots if place in in_line]:
        writer.add_move(root, {ASK_AGAIN: reserved}, clocks.now())
        ended_waits = True
    early = frozenset((limit, ticket) for limit, ticket in slots if [limit, ticket] not in in_line)
    return TakenIn(set(answers), asks_to_cancel, newest, ended_waits, frozenset(ended_children), early)


def sent_letter(post: Posted, now: float = inf) -> SentLetter:
    """A post that nodes can wait for. It wasn't sent later than `now`, whatever clock its sender has."""
    return SentLetter(box_of(post.kind, post.data["name"]), post.data["value"], min(post.data["at"], now))


def _changes_of(answers: Mapping[str, Posted]) -> dict[str, Any]:
    """What the record of answers has: each with the id of its question, and who gave it, where that is known."""
    changes: dict[str, Any] = {ANSWERED: {id: post.data["answer"] for id, post in answers.items()}}
    by = {id: str(post.data["by"]) for id, post in answers.items() if "by" in post.data}
    if by:
        changes[ANSWERED_BY] = by
    return changes


def _why_dropped(question: Question | None, answer: Any, at: float) -> str:
    """Why an answer has no effect, or an empty str: it came too late, or doesn't fit the question."""
    if question is None:
        return "the question isn't open any more"
    if question.deadline is not None and question.deadline <= at:
        return "its deadline has passed"
    try:
        check_answer(question, answer)
    except AnswerRefused as refused:
        return refused.message
    return ""


def _log_dropped(run_id: str, question_id: str, problem: str) -> None:
    from logging import getLogger

    getLogger("limpet.run").warning("run %s: an answer to %r has no effect: %s", run_id, question_id, problem)
