"""What a run or a branch waits for (answers, approvals, retries, time), and how it continues.

`Progress` has the questions and timers. The functions here change it when the wait ends. `Progress.move` calls them
for the names below, live and when the journal is read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from limpet.journal.store import CANCELLED, FAILED, PAUSED, RUNNING

if TYPE_CHECKING:
    from limpet.journal.progress import Progress

BEFORE = "before"
AFTER = "after"
FAILED_PHASE = "failed"

INTERRUPTED = "interrupted"
"""How the reason of a run begins that waits for an approval."""

ARRIVAL = ""
"""The timer before which nothing happens at a position."""
NEXT_ATTEMPT = "again"
"""The timer before which a node isn't retried. A resume by a user doesn't wait for it."""

# Names in a MOVE record that aren't fields of a `Progress`. They are part of the stored format.
RESUME = "going_on"
"""A run is resumed; the value has the answers to its questions by id. See `resume`."""
ANSWER = "answered"
"""Questions are answered while the run is under way; the value has the answers by id. See `answer`."""
EXPIRE = "time_passed"
"""Deadlines have passed; the value lists the ids of the questions. See `expire_questions`."""
RETRY_BRANCHES = "section_again"
"""A node that runs a graph is retried: the failed branches of its section are, too. See `retry_branches`."""


class Question(NamedTuple):
    """A question that a paused run waits for: the id that an answer names, and what is a valid answer."""

    id: str
    prompt: str
    node: str
    choices: list[Any] | None = None
    schema: dict[str, Any] | None = None
    deadline: float | None = None
    """Until when it can be answered, by the store's clock. After that it is withdrawn."""
    secret: bool = False
    """Whether the answer must not be shown anywhere."""

    def to_data(self) -> dict[str, Any]:
        """The question as plain data."""
        data = self._asdict()
        if self.deadline is None:
            del data["deadline"]
        if not self.secret:
            del data["secret"]
        return data


def resume(progress: Progress, answers: Mapping[str, Any]) -> None:
    """What has stopped, here and in all branches, runs again: failed nodes are retried, questions have answers.

    A branch that waits for an approval is approved only if the run was paused: otherwise no caller has seen that it
    waits. If the run itself had stopped, no node waits for its next attempt any longer.
    """
    if progress.status != RUNNING:
        _drop_retry_timers(progress)
    if progress.status == CANCELLED:
        # The node that asked runs again, and asks again. A branch that asked still waits.
        progress.questions = [question for question in progress.questions if question.id in answers]
    _wake(progress, answers, approved=progress.status == PAUSED, resumed=True)


def answer(progress: Progress, answers: Mapping[str, Any]) -> None:
    """The branches whose questions are answered run again. Nothing else changes: what failed isn't retried."""
    _wake(progress, answers, approved=False, retries=False)


def expire_questions(progress: Progress, expired: Sequence[str]) -> None:
    """Withdraw questions, here and in branches. What waits for no other answer runs again."""
    _wake(progress, {}, approved=False, expired=expired)
    if progress.status == PAUSED and progress.section is not None and progress.continues_at() is not None:
        progress.status = RUNNING
        progress.reason = None


def retry_branches(progress: Progress) -> None:
    """Failed branches run again."""
    _wake_branches(progress, {}, approved=False)


def _drop_retry_timers(progress: Progress) -> None:
    progress.timers = {name: until for name, until in progress.timers.items() if name != NEXT_ATTEMPT}
    if progress.section is not None:
        for child in progress.section.children.values():
            _drop_retry_timers(child)


def _wake(
    progress: Progress,
    answers: Mapping[str, Any],
    approved: bool,
    resumed: bool = False,
    expired: Sequence[str] = (),
    retries: bool = True,
) -> None:
    """Let what has stopped here and in branches run again, as far as its wait is over.

    `resumed` is for the run itself, which a resume wakes whatever it waits for. Of branches, only those that failed,
    that are `approved`, or one of whose questions is answered or expired run again.
    """
    answered = [question for question in progress.questions if question.id in answers]
    closed = [question for question in progress.questions if question.id in expired or question.id in answers]
    retried = retries and progress.status == FAILED
    if closed or (not progress.questions and (resumed or approved or retried)):
        _close_questions(progress, answered, closed)
        progress.answers = {**progress.answers, **{each.id: answers[each.id] for each in answered}}
        if progress.status != RUNNING:
            progress.status = RUNNING
            progress.reason = None
            progress.questions = []
        if progress.phase == FAILED_PHASE:
            progress.phase = BEFORE
            progress.attempts = 0
    graph_had_failed = _wake_branches(progress, answers, approved, expired, retries)
    if graph_had_failed:
        progress.attempts = 0


def _close_questions(progress: Progress, answered: list[Question], closed: list[Question]) -> None:
    """Keep what the node will need of its questions when it runs again: prompts, deadlines, which are secret."""
    deadlines = {each.id: each.deadline for each in closed if each.deadline is not None}
    if deadlines:
        progress.timers = {**progress.timers, **deadlines}
    progress.asked |= {question.id: question.prompt for question in answered}
    progress.hidden = [*progress.hidden, *(question.id for question in answered if question.secret)]


def _wake_branches(
    progress: Progress,
    answers: Mapping[str, Any],
    approved: bool,
    expired: Sequence[str] = (),
    retries: bool = True,
) -> bool:
    """The same for all branches. Returns whether this is a node that runs a graph, which had failed."""
    section = progress.section
    if section is None:
        return False
    # Asked before the branches wake: afterwards none is failed.
    failed = section.inside and any(branch.status == FAILED for _, branch in progress.stopped_branches())
    for child in section.children.values():
        if not child.done:
            _wake(child, answers, approved, expired=expired, retries=retries)
    return failed and retries
