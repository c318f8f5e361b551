"""What a resume brings along, and whether it fits what the run waits for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from limpet.engine.node_context.questions import NOT_GIVEN, check_answer
from limpet.errors import AnswerRefused, RunPaused, UsageError
from limpet.journal.progress import Progress
from limpet.journal.store import PAUSED
from limpet.journal.waits import Question


class ResumeInput(NamedTuple):
    """What a resume brings along: answers to open questions, updates of the state, settings.

    One that is nobody's wish, since it was just time to go on, is `timed`: it approves of nothing.
    """

    value: Any = NOT_GIVEN
    answers: Mapping[str, Any] | None = None
    update: Mapping[str, Any] | None = None
    config: Mapping[str, Any] | None = None
    timed: bool = False

    @property
    def answers_any(self) -> bool:
        """Whether it may answer something."""
        return self.value is not NOT_GIVEN or bool(self.answers)

    def answers_to(self, progress: Progress, now: float) -> dict[str, Any]:
        """The answers by question id, each checked. Raises if one is wrong or unknown, or if nothing could go on.

        Where several branches ask, some may be answered before others. `now` is by the store's clock.
        """
        if self.answers is not None and not isinstance(self.answers, Mapping):
            raise UsageError(f"answers are a dict by question id, not {type(self.answers).__name__}")
        given, asked = dict(self.answers or {}), progress.open_questions()
        if asked and self.value is not NOT_GIVEN:
            if len(asked) == 1:
                if asked[0].id in given:
                    raise UsageError(
                        f"question {asked[0].id!r} is answered twice: as a value, and in answers"
                    )
                given[asked[0].id] = self.value
            elif isinstance(self.value, Mapping) and self.value:
                given |= self.value
            else:
                listed = ", ".join(repr(question.id) for question in asked)
                raise UsageError(f"several questions are open; answer them by id, {{id: answer}}: {listed}")
        open_ones = {question.id: question for question in asked}
        for question_id, answer in given.items():
            if question_id not in open_ones:
                listed = ", ".join(map(repr, open_ones)) or "none"
                raise UsageError(
                    f"run {progress.run_id!r} has no open question {question_id!r}; open: {listed}"
                )
            _check_in_time(progress, open_ones[question_id], now)
            check_answer(open_ones[question_id], answer)
        if asked and not given and _only_asks(progress, now):
            listed = "; ".join(f"{question.id}: {question.prompt}" for question in asked)
            how = "answer" if len(asked) == 1 else "{question id: answer, …}"
            raise RunPaused(
                progress.run_id,
                f"it waits for an answer to {listed}. Give it with resume({progress.run_id!r}, {how})",
                asked,
                progress.place(),
            )
        return given

    def update_for(self, progress: Progress) -> dict[str, Any]:
        """What is to be merged into the state."""
        update = dict(self.update or {})
        if not progress.open_questions() and self.value is not NOT_GIVEN and self.value is not None:
            if not isinstance(self.value, Mapping):
                raise UsageError(
                    f"run {progress.run_id!r} has no open question; what a resume brings is then a dict "
                    f"to be merged into the state, not {type(self.value).__name__}"
                )
            update = {**self.value, **update}
        return update


def _check_in_time(progress: Progress, question: Question, now: float) -> None:
    if question.deadline is not None and question.deadline <= now:
        late, way_on = now - question.deadline, f"resume({progress.run_id!r}) goes on without an answer"
        raise AnswerRefused(question.id, f"its deadline passed {late:.0f} s ago; {way_on}")


def _only_asks(progress: Progress, now: float) -> bool:
    """Whether a paused run has stopped for nothing but questions, and none of them, nor any branch, is due."""
    due = progress.due()
    if progress.status != PAUSED or (due is not None and due <= now):
        return False
    return all(branch.questions for _, branch in progress.stops())
