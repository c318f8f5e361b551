"""What to do next about a run, with code to copy: how to answer its questions, to approve it, or to retry it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from limpet.drawing.notebook import MAX_LINE, NextStep, utc_time_text
from limpet.drawing.shown_values import Secrets
from limpet.drawing.text_width import shortened
from limpet.engine.loop.stop_errors import error_of_stopped
from limpet.engine.operations.run_info import RunInfo, way_on
from limpet.graphs.secrets import without_secrets
from limpet.journal.store import CANCELLED, COMPLETED, FAILED, PAUSED, RUNNING
from limpet.journal.waits import Question

MAX_CHOICES: Final = 20
"""How many choices of a question are listed."""

MAX_CHOICE: Final = 100
"""How many characters of a choice are shown; a longer one isn't an example."""

ANSWER: Final = "..."
"""Stands for an answer in code. It is valid Python, and no question takes it."""


class CallStyle(NamedTuple):
    """How the call is written that answers, or continues, a run. `names_run` if the run's id is an argument."""

    call: str
    names_run: bool = True

    def code(self, run_id: str, *arguments: str) -> str:
        """The call, with these arguments."""
        if self.names_run:
            return f"{self.call}({', '.join((repr(run_id), *arguments))})"
        return f"{self.call.format(repr(run_id))}({', '.join(arguments)})"


RESUME: Final = CallStyle("graph.resume")
ARESUME: Final = CallStyle("await graph.aresume")
ANSWER_STORED: Final = CallStyle("Runs(store).get({}).answer", names_run=False)


def steps_to_answer(run_id: str, questions: Sequence[Question], style: CallStyle) -> list[NextStep]:
    """The questions of a run, and the call that answers them, all at once if there are several."""
    if not questions:
        return []
    steps = [NextStep(_described(question)) for question in questions]
    examples = [_example(question) for question in questions]
    if len(questions) == 1:
        arguments = examples[0]
    else:
        pairs = ", ".join(
            f"{each.id!r}: {example}" for each, example in zip(questions, examples, strict=True)
        )
        arguments = f"answers={{{pairs}}}"
    code = style.code(run_id, arguments)
    if any(question.secret for question in questions):
        code = f"from getpass import getpass\n\n{code}"
    return [*steps, NextStep("Answer with:", code)]


def masked_questions(questions: Sequence[Question], secrets: Secrets) -> list[Question]:
    """The questions with a mask in place of each secret in a choice. Their prompts are stored without secrets."""
    return [
        question._replace(choices=without_secrets(question.choices, secrets.names, secrets.hide))
        for question in questions
    ]


def step_to_approve(run_id: str, reason: str, style: CallStyle) -> NextStep:
    """What to do about a run that was interrupted before or after a node."""
    return NextStep(f"It was {reason}. Approve it with:", style.code(run_id))


def steps_of_stored(info: RunInfo, style: CallStyle) -> list[NextStep]:
    """What to do about a stored run, by what its store knows of it; nothing for one that is complete."""
    if info.questions and info.status in (PAUSED, RUNNING):
        return steps_to_answer(info.run_id, info.questions, style)
    if info.waits_for_approval:
        return [step_to_approve(info.run_id, info.reason or "interrupted", style)]
    if info.status in (FAILED, CANCELLED):
        error = info.error or {}
        node = error.get("node", info.node)
        stopped = error_of_stopped(info.run_id, info.status, info.reason, error.get("type"), node)
        return [NextStep(_sentence(stopped.advice))]
    if info.status == COMPLETED:
        return []
    return [NextStep(_sentence(way_on(info).advice))]


def step_of_error(advice: str) -> list[NextStep]:
    """What an error advises."""
    if not advice:
        return []
    return [NextStep(_sentence(advice))]


def _sentence(advice: str) -> str:
    if advice.endswith("?"):
        return f"What to do: {advice}"
    return f"What to do: {advice}."


def _described(question: Question) -> str:
    """Who asks what, which answers there are to choose from, and until when."""
    prompt = shortened(question.prompt[: 2 * MAX_LINE], MAX_LINE)
    parts = [f"{question.node} asks: {prompt}"]
    if question.choices:
        shown = [shortened(repr(choice)[:1000], MAX_CHOICE) for choice in question.choices[:MAX_CHOICES]]
        if len(question.choices) > MAX_CHOICES:
            shown.append("…")
        parts.append(f"(choices: {', '.join(shown)})")
    elif kind := (question.schema or {}).get("type"):
        parts.append(f"(an answer of the type {kind})")
    if question.deadline is not None:
        parts.append(f"(until {utc_time_text(question.deadline)})")
    return " ".join(parts)


def _example(question: Question) -> str:
    """An answer as code: the first choice, an instance of the schema, or something to replace."""
    if question.secret:
        return "getpass()"
    for choice in question.choices or ():
        if isinstance(choice, (str, int, float, bool)) and len(repr(choice)) <= MAX_CHOICE:
            return repr(choice)
    if question.choices:
        return ANSWER
    return _of_schema(question.schema or {})


def _of_schema(schema: Mapping[str, Any]) -> str:
    """What fits a JSON Schema, as far as that is plain: true or false, one of an enum, or an object's keys."""
    allowed = schema.get("enum")
    if isinstance(allowed, list) and allowed and isinstance(allowed[0], (str, int, bool)):
        return repr(allowed[0])
    if schema.get("type") == "boolean":
        return "True"
    properties = schema.get("properties")
    if schema.get("type") != "object" or not isinstance(properties, dict):
        return ANSWER
    pairs = [f"{name!r}: {ANSWER}" for name in list(properties)[:MAX_CHOICES]]
    return f"{{{', '.join(pairs)}}}"
