"""What a run, or a branch of it, waits for: answers, approvals, a mended node, or time alone; and how it wakes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from limpet.journal.open_section import Key, OpenSection
from limpet.journal.store import FAILED, PAUSED, RUNNING

if TYPE_CHECKING:
    from limpet.journal.progress import Progress

BEFORE = "before"
AFTER = "after"
FAILED_PHASE = "failed"

ARRIVAL = ""
"""The timer before which nothing happens at a position."""
NEXT_ATTEMPT = "again"
"""The timer before which a node isn't tried again, unless somebody resumes the run."""


class Question(NamedTuple):
    """What a paused run waits to be told: the id that an answer names, and what the answer must be like."""

    id: str
    prompt: str
    node: str
    choices: list[Any] | None = None
    schema: dict[str, Any] | None = None
    deadline: float | None = None
    """Until when it can be answered, by the store's clock; then it is taken back."""
    secret: bool = False
    """Whether the answer is to be shown nowhere."""

    def to_data(self) -> dict[str, Any]:
        """It as plain data."""
        data = self._asdict()
        if self.deadline is None:
            del data["deadline"]
        if not self.secret:
            del data["secret"]
        return data


class Waiting:
    """The part of a progress that knows what it waits for. See `Progress` for what these are."""

    if not TYPE_CHECKING:
        __slots__ = ()
    else:
        node: str
        status: str
        phase: str
        reason: str | None
        attempts: int
        questions: list[Question]
        answers: dict[str, Any]
        asked: dict[str, str]
        hidden: list[str]
        timers: dict[str, float]
        section: OpenSection | None
        way_to: Callable[[Sequence[Key], str], str]

    def due(self) -> float | None:
        """From when on something can go on by itself, by the store's clock; None if it waits for somebody."""
        if self.section is not None and any(not child.done for child in self.section.children.values()):
            moments = [child.due() for child in self.section.children.values() if not child.done]
        elif self.status == RUNNING:
            moments = [0.0]
        else:
            moments = [question.deadline for question in self.questions]
        known = [moment for moment in moments if moment is not None]
        return max(min(known), self.rests_until) if known else None

    @property
    def rests_until(self) -> float:
        """Until when nothing happens at this position, by the store's clock."""
        return max(self.timers.get(ARRIVAL, 0.0), self.timers.get(NEXT_ATTEMPT, 0.0))

    def overdue(self, now: float) -> list[str]:
        """The questions that nobody can answer any more."""
        asked = self.open_questions()
        return [each.id for each in asked if each.deadline is not None and each.deadline <= now]

    def open_questions(self) -> list[Question]:
        """All questions that wait for an answer, here and in branches."""
        return [*self.questions, *(each for _, child in self.stops() for each in child.questions)]

    def under_way(self, path: tuple[Key, ...] = ()) -> Iterator[tuple[tuple[Key, ...], Progress]]:
        """The branches that have begun and aren't done, with the way to each."""
        for key, child in self.section.children.items() if self.section is not None else ():
            if not child.done and child.start is None:
                yield (*path, key), child
                yield from child.under_way((*path, key))

    def stops(self) -> Iterator[tuple[tuple[Key, ...], Progress]]:
        """The branches that have stopped by themselves, and wait for an answer, an approval or a mended node."""
        return ((path, branch) for path, branch in self.under_way() if branch.status != RUNNING)

    def place(self) -> str:
        """The node that it stands at; where one branch alone has stopped, that branch's, by the whole way there."""
        stopped = list(self.stops())
        if len(stopped) != 1:
            return self.node
        path, branch = stopped[0]
        return self.way_to(path, branch.node)

    def go_on(self, answers: Mapping[str, Any]) -> None:
        """What has stopped, here and in all branches, runs again: what failed is tried, and what was asked has an
        answer. A branch that stopped for an approval has it if the run was paused: else nobody has seen it wait.
        Where the run had stopped, nothing waits for its next attempt any more.
        """
        if self.status != RUNNING:
            self._hurry()
        self._wake(answers, self.status == PAUSED, own=True)

    def _hurry(self) -> None:
        self.timers = {name: until for name, until in self.timers.items() if name != NEXT_ATTEMPT}
        for child in self.section.children.values() if self.section is not None else ():
            child._hurry()

    def _pass_time(self, overdue: Sequence[str]) -> None:
        """Questions are taken back, here and in branches; what waits for nobody else runs again."""
        self._wake({}, approved=False, overdue=overdue)
        if self.status == PAUSED and self.section is not None and self.due() is not None:
            self.status, self.reason = RUNNING, None

    def _wake(
        self, answers: Mapping[str, Any], approved: bool, own: bool = False, overdue: Sequence[str] = ()
    ) -> None:
        mine = {question.id: answers[question.id] for question in self.questions if question.id in answers}
        over = [question for question in self.questions if question.id in overdue or question.id in mine]
        if over or (not self.questions and (own or approved or self.status == FAILED)):
            limits = {each.id: each.deadline for each in over if each.deadline is not None}
            self.timers = {**self.timers, **limits} if limits else self.timers
            self.asked |= {question.id: question.prompt for question in self.questions if question.id in mine}
            self.hidden = [
                *self.hidden,
                *(each.id for each in self.questions if each.secret and each.id in mine),
            ]
            if self.status != RUNNING:
                self.status, self.reason, self.questions = RUNNING, None, []
            if self.phase == FAILED_PHASE:
                self.phase, self.attempts = BEFORE, 0
            self.answers = {**self.answers, **mine}
        if self._wake_branches(answers, approved, overdue):
            self.attempts = 0

    def _wake_branches(self, answers: Mapping[str, Any], approved: bool, overdue: Sequence[str] = ()) -> bool:
        """The same for all branches. Says whether this is a node that runs a graph, which had failed."""
        section = self.section
        if section is None:
            return False
        failed = section.inside and any(branch.status == FAILED for _, branch in self.stops())
        for child in section.children.values():
            if not child.done:
                child._wake(answers, approved, overdue=overdue)
        return failed
