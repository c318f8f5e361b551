"""What a resume brings along, and whether it fits what the run waits for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from holdfast.engine.questions import check_answer
from holdfast.errors import RunPaused, UsageError
from holdfast.journal.progress import Progress
from holdfast.journal.store import PAUSED


class NotGiven:
    """Stands for an argument that wasn't given, where None could be one."""

    def __repr__(self) -> str:
        return "NOT_GIVEN"


NOT_GIVEN: Any = NotGiven()


class Given(NamedTuple):
    """What a resume brings along: answers to open questions, updates of the state, settings."""

    value: Any = NOT_GIVEN
    answers: Mapping[str, Any] | None = None
    update: Mapping[str, Any] | None = None
    config: Mapping[str, Any] | None = None

    @property
    def answers_any(self) -> bool:
        """Whether it may answer something."""
        return self.value is not NOT_GIVEN or bool(self.answers)

    def answers_to(self, progress: Progress) -> dict[str, Any]:
        """The answers by question id, each checked. Raises if one is wrong or unknown, or if nothing could go on.

        Where several branches ask, some may be answered before others.
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
            check_answer(open_ones[question_id], answer)
        if asked and not given and _only_asks(progress):
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


def _only_asks(progress: Progress) -> bool:
    """Whether a paused run has stopped for nothing but questions."""
    return progress.status == PAUSED and all(branch.questions for _, branch in progress.stops())
