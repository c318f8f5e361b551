"""Questions that pause a run, what counts as an answer, and what a resume brings.

What an answer must be like is stored with the question as data (choices, and a JSON Schema), so any
process can refuse a wrong answer without the code that asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypedDict

from limpet.durations import Moment
from limpet.engine.node_context.answer_schemas import (
    as_plain_data,
    equal,
    json_schema_of,
    read_answer,
    why_unfit,
)
from limpet.errors import AlreadyAnswered, AnswerRefused, DeadlinePassed, RunPaused, UsageError
from limpet.graphs.habits.langgraph import refuse_command, refuse_thread_id
from limpet.graphs.secrets import MASK
from limpet.journal.encoding.codec import detached_value
from limpet.journal.progress import Progress
from limpet.journal.store import PAUSED
from limpet.journal.waits import PostWait, Question

Choices = Iterable[Any] | None


class NotGiven:
    """Stands for an argument that wasn't given, where None could be one."""

    def __repr__(self) -> str:
        return "NOT_GIVEN"


NOT_GIVEN: Any = NotGiven()


class PauseOptions(TypedDict, total=False):
    """The arguments of `pause` that don't change the type of the answer."""

    key: str | None
    deadline: Moment | None
    secret: bool


class Pause(BaseException):
    """Carries a question out of a node. Not an `Exception`, so that a node's own `except` doesn't catch it."""

    def __init__(self, question: Question, note: str = "") -> None:
        self.question = question
        self.note = note
        super().__init__(question.prompt)


class Sleep(BaseException):
    """Ends a call of a node that is to be called again at a certain time. Not an `Exception` either."""

    def __init__(self, timer: str, until: float) -> None:
        self.timer = timer
        self.until = until
        super().__init__(timer)


class PostAwaited(BaseException):
    """Ends a call of a node that is to be called again when a post has come. Not an `Exception` either."""

    def __init__(self, wait: PostWait) -> None:
        self.wait = wait
        super().__init__(wait.name)


class CallAbandoned(BaseException):
    """Ends a call whose result isn't wanted, because its run was asked to stop. Not an `Exception` either."""


def check_timeout_arguments(has_deadline: bool, default: Any, on_timeout: Any) -> None:
    """Raise `UsageError` for arguments of `pause` that don't go together."""
    if not has_deadline and (default is not NOT_GIVEN or on_timeout is not None):
        raise UsageError("pause(default=…) and pause(on_timeout=…) are for when a deadline= has passed")
    if default is not NOT_GIVEN and on_timeout is not None:
        raise UsageError("pause(): give default= or on_timeout=, not both")


def check_can_keep_answer(has_store: bool, in_plain_text: bool) -> None:
    """Raise `UsageError` where the run can't be stored, or a secret answer would be stored in plain text."""
    if not has_store:
        raise UsageError(
            "pause() needs a store to keep the run in: compile(store=…), or a CheckpointConfig with an interval"
        )
    if in_plain_text:
        raise UsageError(
            "pause(secret=True): the store would keep the answer in plain text; give compile(encryption=…), set "
            "LIMPET_ENCRYPTION_KEY, or allow it with compile(allow_plain_text_secrets=True)"
        )


def question_id_of(place: str, step: str, name: str) -> str:
    """The id of a question: the node that asks it, its step, and the question's key or number."""
    # A colon separates the parts, so those inside of a part are doubled: no two questions have the same id.
    return f"{place.replace(':', '::')}:{step}:{name.replace(':', '::')}"


def is_question_id(key: Any) -> bool:
    """Whether this looks like the id of a question, as `question_id_of` makes it."""
    return _place_and_steps(key) is not None


def _place_and_steps(key: Any) -> tuple[str, list[int]] | None:
    """The node that asks, and the numbers of its step and of the steps around it; None for what isn't an id."""
    from re import DOTALL, fullmatch

    found = None
    if isinstance(key, str):
        found = fullmatch(r"(.+):(\d{1,18}(?:\.\d{1,18})*):.+", key, DOTALL)
    if found is None:
        return None
    return found[1].replace("::", ":"), [int(number) for number in found[2].split(".")]


def question_for(
    question_id: str,
    prompt: str,
    node: str,
    choices: Iterable[Any] | None,
    schema: Any,
    deadline: float | None = None,
    secret: bool = False,
) -> Question:
    """The question as data. Raises `UsageError` for choices or a schema that can't be used."""
    listed = None
    if isinstance(choices, Iterable):
        listed = list(choices)
    if choices is not None and (isinstance(choices, str) or not listed):
        raise UsageError(f"choices is a list of at least one answer, not {choices!r}")
    described = None if schema is None else json_schema_of(schema)
    return Question(question_id, str(prompt), node, listed, described, deadline, bool(secret))


def returned_answer(question: Question, answer: Any, schema: Any) -> Any:
    """A stored answer as `pause` returns it. Raises `Pause` for one that the schema refuses: it is asked again."""
    copied = detached_value(answer)
    if schema is None:
        return copied
    try:
        return read_answer(copied, schema)
    except ValueError as problem:
        why = "" if question.secret else f": {problem}"
        raise Pause(question, f" (the last answer was refused{why})") from problem


def default_answer(
    question: Question, default: Any, on_timeout: Callable[[], Any] | None, run_id: str
) -> Any:
    """What counts as the answer to a question whose deadline passed. Raises `DeadlinePassed` if nothing does."""
    if default is not NOT_GIVEN:
        return default
    if on_timeout is not None:
        return on_timeout()
    raise DeadlinePassed(f"{question.prompt!r} was not answered in time", run_id)


def choice_meant(answer: Any, choices: Sequence[Any]) -> Any:
    """The choice that a number of JSON means, if one has its value: JavaScript writes 1 for 1.0."""
    if type(answer) not in (int, float) or any(equal(answer, choice) for choice in choices):
        return answer
    return next((each for each in choices if type(each) in (int, float) and each == answer), answer)


def check_answer(question: Question, answer: Any) -> None:
    """Raise `AnswerRefused` unless the question takes this answer. A secret answer isn't quoted."""
    if question.choices is not None and not any(equal(answer, choice) for choice in question.choices):
        listed = ", ".join(map(repr, question.choices))
        shown = MASK if question.secret else repr(answer)
        raise AnswerRefused(question.id, f"{shown} is not one of {listed}")
    if question.schema is not None:
        problem = why_unfit(answer, question.schema)
        if problem and question.secret:
            problem = "it doesn't fit the question's schema; as it is secret, it isn't shown"
        if problem:
            raise AnswerRefused(question.id, problem)


PLAIN_ANSWERS: Final = frozenset({str, int, float, bool, dict, list, type(None)})
"""Types of nearly all answers: what has another one may be an object of another library."""


class ResumeInput(NamedTuple):
    """What a resume brings: answers to open questions, updates of the state, settings.

    `timed` says that a supervisor resumes the run because it is due. Such a resume approves of nothing. `is_start`
    says that a start meant this run, as it was when the caller looked. Neither withdraws a request to cancel. `asked`
    are the questions that were open at the checkpoint that the caller named: only these can be answered. None means
    those that are open now. `deadline` replaces that of the run. `by` says who answers. `is_json` says that the
    answers came as JSON, which has one kind of numbers.
    """

    value: Any = NOT_GIVEN
    answers: Mapping[str, Any] | None = None
    update: Mapping[str, Any] | None = None
    config: Mapping[str, Any] | None = None
    timed: bool = False
    asked: frozenset[str] | None = None
    is_start: bool = False
    deadline: Moment | None = None
    by: str | None = None
    is_json: bool = False

    def with_response(self, response: Any) -> ResumeInput:
        """The same with the answer as `response`, another name of `value`. Raises `UsageError` for both.

        Also for an answer or a config that are LangGraph's.
        """
        if self.value is not NOT_GIVEN and type(self.value) not in PLAIN_ANSWERS:
            refuse_command(self.value, "resume()")
        if self.config:
            refuse_thread_id(self.config)
        if response is NOT_GIVEN:
            return self
        if self.value is not NOT_GIVEN:
            raise UsageError("give the answer once: as the second argument or as response=")
        return self._replace(value=response)

    def about(self, asked: frozenset[str] | None) -> ResumeInput:
        """The same, for a caller that means a checkpoint at which these questions were open."""
        return self if asked is None else self._replace(asked=asked)

    @property
    def answers_any(self) -> bool:
        """Whether it may answer something."""
        return self.value is not NOT_GIVEN or bool(self.answers)

    def answers_to(self, progress: Progress, now: float) -> dict[str, Any]:
        """The answers by question id, each checked. `now` is by the store's clock.

        Where several branches ask, some may be answered before others. Raises `UsageError` or `AnswerRefused` if an
        answer is wrong or unknown, `AlreadyAnswered` if it is for a question that is no longer open, and `RunPaused`
        if the run could do nothing without one.
        """
        if self.answers is not None and not isinstance(self.answers, Mapping):
            raise UsageError(f"answers are a dict by question id, not {type(self.answers).__name__}")
        open_questions = {question.id: question for question in progress.open_questions()}
        given = self._by_id(progress, open_questions)
        for question_id, answer in given.items():
            if question_id not in open_questions:
                if _is_over(progress, question_id):
                    raise _already_answered(progress, [question_id], open_questions)
                listed = ", ".join(map(repr, open_questions)) or "none"
                raise UsageError(
                    f"run {progress.run_id!r} has no open question {question_id!r}; open: {listed}"
                )
            question = open_questions[question_id]
            _check_in_time(progress, question, now)
            if type(answer) not in PLAIN_ANSWERS:
                refuse_command(answer, f"question {question_id!r}")
            if question.schema is not None:
                given[question_id] = answer = as_plain_data(answer)
            if self.is_json and question.choices is not None:
                given[question_id] = answer = choice_meant(answer, question.choices)
            check_answer(question, answer)
        if open_questions and not given and _only_asks(progress, now):
            raise unanswered(progress)
        return given

    def _by_id(self, progress: Progress, open_questions: Mapping[str, Question]) -> dict[str, Any]:
        """The answers by question id: the given ones, and the value, if it is one.

        Raises `AlreadyAnswered` if what is given was meant for questions of a checkpoint that are closed by now.
        """
        given = dict(self.answers or {})
        asked = list(open_questions)
        if self.asked is not None:
            self._check_checkpoint(progress, given, open_questions)
            asked = [question_id for question_id in asked if question_id in self.asked]
        if asked and self.value is not NOT_GIVEN:
            self._add_value(given, asked)
        return given

    def _check_checkpoint(
        self, progress: Progress, given: Mapping[str, Any], open_questions: Mapping[str, Question]
    ) -> None:
        """Refuse answers to questions that were closed, or asked, after the checkpoint that the caller named."""
        asked = self.asked or frozenset()
        closed = asked.difference(open_questions)
        if answered := closed.intersection(given):
            raise _already_answered(progress, answered, open_questions)
        if later := [each for each in given if each in open_questions and each not in asked]:
            refused = UsageError(f"question {later[0]!r} was asked after the checkpoint that is named")
            raise refused.with_advice(f"answer it by resume({progress.run_id!r}, answers=…)", "answer")
        # A value is an answer where the run asks, or asked, something.
        is_answer = self.value is not NOT_GIVEN and (asked or open_questions)
        if is_answer and asked.isdisjoint(open_questions):
            raise _already_answered(progress, closed, open_questions)

    def _add_value(self, given: dict[str, Any], asked: list[str]) -> None:
        """Add the value to the given answers: it answers the one open question, or holds answers by id."""
        if isinstance(self.value, Mapping) and self.value and all(map(is_question_id, self.value)):
            # Answers by id, also if only one question is left: it must not get the answers to others as its own.
            given |= self.value
        elif len(asked) == 1:
            if asked[0] in given:
                raise UsageError(f"question {asked[0]!r} is answered twice: as a value, and in answers")
            given[asked[0]] = self.value
        elif isinstance(self.value, Mapping) and self.value:
            given |= self.value
        else:
            listed = ", ".join(map(repr, asked))
            raise UsageError(f"several questions are open; answer them by id, {{id: answer}}: {listed}")

    def update_for(self, progress: Progress) -> dict[str, Any]:
        """What is to be merged into the state."""
        check_update(self.update)
        update = dict(self.update or {})
        if progress.open_questions() or self.value is NOT_GIVEN or self.value is None:
            return update
        if isinstance(self.value, Mapping) and self.value and all(map(is_question_id, self.value)):
            raise _already_answered(progress, self.value, {})
        if not isinstance(self.value, Mapping):
            raise UsageError(
                f"run {progress.run_id!r} has no open question; what a resume brings is then a dict "
                f"to be merged into the state, not {type(self.value).__name__}"
            )
        return {**self.value, **update}


def check_update(update: Any) -> None:
    """Raise `UsageError` for what can't be merged into a state."""
    if update is not None and not isinstance(update, Mapping):
        raise UsageError(f"update is a dict to be merged into the state, not {type(update).__name__}")


def _check_in_time(progress: Progress, question: Question, now: float) -> None:
    if question.deadline is not None and question.deadline <= now:
        late = now - question.deadline
        refused = AnswerRefused(question.id, f"its deadline passed {late:.0f} s ago")
        raise refused.with_advice(f"resume({progress.run_id!r}) resumes the run without an answer", "resume")


def _only_asks(progress: Progress, now: float) -> bool:
    """Whether a paused run waits for nothing but answers, and no question and no branch of it is due."""
    due = progress.due()
    if progress.status != PAUSED or (due is not None and due <= now):
        return False
    return all(branch.questions or branch.waits for _, branch in progress.stopped_branches())


def _is_over(progress: Progress, question_id: str) -> bool:
    """Whether a question that isn't open is of a step that the run has completed, or was answered or withdrawn."""
    parts = _place_and_steps(question_id)
    if parts is None:
        return False
    place, steps = parts
    scope = progress
    while True:
        if question_id in scope.answers or question_id in scope.timers:
            return True
        section = scope.section
        if len(steps) == 1 or section is None or steps[0] != section.step:
            return steps[0] <= scope.step
        around = [key for key in section.children if f"{place}/".startswith(f"{section.label(key)}/")]
        if not around:
            return False
        place = place.removeprefix(f"{section.label(around[0])}/")
        steps = steps[1:]
        scope = section.children[around[0]]


def _already_answered(
    progress: Progress, closed: Iterable[str], open_questions: Iterable[str]
) -> AlreadyAnswered:
    """The refusal of an answer to questions that aren't open any more."""
    listed = ", ".join(map(repr, open_questions))
    refused = AlreadyAnswered(progress.run_id, sorted(closed), listed or "none")
    if listed:
        answer = f"resume({progress.run_id!r}, answers={{id: answer}})"
        return refused.with_advice(f"to answer what is open now, name it: {answer}", "answer")
    return refused.with_advice(f"resume({progress.run_id!r}) resumes the run without an answer", "resume")


def unanswered(progress: Progress) -> RunPaused:
    """The refusal of a call that answers none of the open questions."""
    asked = progress.open_questions()
    listed = "; ".join(f"{question.id}: {question.prompt}" for question in asked)
    how = "answer" if len(asked) == 1 else "{question id: answer, …}"
    reason = f"it waits for an answer to {listed}"
    paused = RunPaused(progress.run_id, reason, asked, progress.current_node())
    return paused.with_advice(f"answer with resume({progress.run_id!r}, {how})", "answer")
