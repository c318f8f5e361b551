"""What to type next: after an error, and where a run has stopped. Every command has the run's id and the store in it.

The library's own advice names Python calls. Here the operation that it advises becomes a command.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from limpet import Question, RunInfo, Runs
from limpet.cli.output import NextCommand, Output, shortened
from limpet.cli.project import can_be_typed, command_line, find_store, project_targets
from limpet.cli.run_display import MAX_SHOWN_TEXT, why_abandoned
from limpet.cli.values import utc_time
from limpet.errors import (
    DamagedDocument,
    DeadlinePassed,
    ForeignRun,
    LimitNotFound,
    LimpetError,
    Operation,
    RunCancelled,
    RunExists,
    RunNotFound,
    RunPaused,
    ScheduleNotFound,
    UsageError,
    WrongGraph,
)
from limpet.graphs.names import LIMITS, SCHEDULES
from limpet.journal.waits import MESSAGE, SLOT, PostWait

MAX_SHOWN_PROMPT = 2000
"""How many characters of a question, or of its choices, are shown; `runs show --json` has all."""

WAITED_FOR = "60"
"""How many seconds a command is suggested to wait for another process."""

GRAPH = "GRAPH"
"""Stands for the place of a graph's code, where that isn't known."""

HAND_BACK = "Hand it back to the workers with:"

LATER_DEADLINE = "Retry it here, with a later deadline:"

NEW_DEADLINE = ("--deadline", "1h")

RETRY_HERE = "After fixing the problem, retry it here with:"

_NO_PROCESS = {
    "queued": "It is queued",
    "sleeping": "It sleeps until {due} UTC",
    "retrying": "Its next attempt is due at {due} UTC",
    "abandoned": "Its process {lapse}",
}
"""Why no process advances a run, by its shown status."""


class _Remedy(NamedTuple):
    """The command for an operation that an error advises. `needs_graph` if it needs the code of the run's graph."""

    purpose: str
    words: str
    arguments: tuple[str, ...] = ()
    needs_graph: bool = False


_REMEDIES: dict[Operation, _Remedy] = {
    "cancel": _Remedy("Cancel it first:", "runs cancel"),
    "delete": _Remedy("To remove it:", "runs delete"),
    "export": _Remedy("Export a run with:", "runs export", ("FILE",)),
    "fork": _Remedy("A new run can be forked from one of its steps. List them with:", "runs history"),
    "history": _Remedy("List its steps with:", "runs history"),
    "send": _Remedy("Send what it waits for with:", "runs send", ("NAME", "VALUE")),
    "result": _Remedy("Look at its result with:", "runs state"),
    "resume": _Remedy("Resume it with:", "resume", needs_graph=True),
    "retry": _Remedy(RETRY_HERE, "resume", needs_graph=True),
    "rollback": _Remedy(
        "Put it back, or roll the run back to an earlier step. List its steps with:", "runs history"
    ),
    "verify": _Remedy("List the damage with:", "store verify"),
    "wait": _Remedy("Wait for it with:", "resume", ("--wait", WAITED_FOR), needs_graph=True),
    "watch": _Remedy("Follow it with:", "runs watch"),
}


def next_command(problem: LimpetError, args: Namespace) -> NextCommand | None:
    """The command that helps after an error, if one does."""
    if isinstance(problem, RunNotFound):
        return NextCommand("List the runs with:", command_line("runs list", args))
    if isinstance(problem, ScheduleNotFound):
        return NextCommand("List the schedules with:", command_line("schedules list", args))
    if isinstance(problem, LimitNotFound):
        return NextCommand("List the limits with:", command_line("limits list", args))
    if isinstance(problem, WrongGraph | RunExists):
        return NextCommand("Look at it with:", command_line("runs show", args, problem.run_id))
    if isinstance(problem, ForeignRun):
        return NextCommand(
            "Its own library continues it. List its checkpoints with:",
            command_line("runs history", args, problem.run_id),
        )
    if isinstance(problem, RunCancelled) and hasattr(args, "answer"):
        return NextCommand(HAND_BACK, command_line("runs retry", args, problem.run_id or "RUN"))
    if isinstance(problem, DamagedDocument):
        return _command_to_delete(problem, args)
    run_id = getattr(problem, "run_id", None) or getattr(args, "run", None) or "RUN"
    if isinstance(problem, DeadlinePassed):
        return graph_command(LATER_DEADLINE, "resume", args, run_id, *NEW_DEADLINE)
    operation = problem.next_operation
    if operation == "replace":
        return NextCommand("Look at the schedule with:", command_line("schedules show", args, args.name))
    if operation == "work":
        return worker_command("A worker takes it. If none is running, start one:", args)
    if operation == "answer":
        return _command_to_answer(problem, run_id, args)
    if operation == "wait" and not hasattr(args, "wait"):
        operation = "watch"
    remedy = _REMEDIES.get(operation)
    if remedy is None:
        return None
    if remedy.needs_graph:
        return graph_command(remedy.purpose, remedy.words, args, run_id, *remedy.arguments)
    return NextCommand(remedy.purpose, command_line(remedy.words, args, run_id, *remedy.arguments))


def _command_to_delete(damage: DamagedDocument, args: Namespace) -> NextCommand | None:
    for prefix, words in ((LIMITS, "limits delete"), (SCHEDULES, "schedules delete")):
        if damage.name.startswith(prefix):
            name = damage.name.removeprefix(prefix)
            return NextCommand("Delete it with:", command_line(words, args, name))
    return None


def suggest_next(info: RunInfo, args: Namespace, output: Output) -> None:
    """The exact commands that continue a run that no process advances."""
    for each in _next_commands(info, args):
        output.hint(each.purpose, each.command)


def graph_command(purpose: str, words: str, args: Namespace, *more: str) -> NextCommand:
    """A command that needs the code of a graph, with a placeholder that is explained where its place isn't known."""
    if _knows_graphs(args):
        return NextCommand(purpose, command_line(words, args, *more))
    return NextCommand(_with_graph_explained(purpose), command_line(words, args, *more, "--graph", GRAPH))


def worker_command(purpose: str, args: Namespace, *more: str) -> NextCommand:
    """The command that starts a worker."""
    if _knows_graphs(args):
        return NextCommand(purpose, command_line("worker", args, *more))
    return NextCommand(_with_graph_explained(purpose), command_line("worker", args, GRAPH, *more))


def _next_commands(info: RunInfo, args: Namespace) -> list[NextCommand]:
    run_id = info.run_id
    if info.questions and (info.status == "paused" or info.shown_status == "running"):
        return [
            _answer_command(_describe(question), run_id, info.questions, args, number)
            for number, question in enumerate(info.questions)
        ]
    if info.shown_status == "waiting":
        return [_command_for_wait(wait, run_id, args) for wait in info.waits]
    if info.status == "damaged":
        return [NextCommand("What of it can be read:", command_line("store verify", args, run_id))]
    if info.status == "failed" and (info.error or {}).get("type") == DeadlinePassed.__name__:
        here = graph_command(LATER_DEADLINE, "resume", args, run_id, *NEW_DEADLINE)
        return [here, _hand_back(run_id, args, *NEW_DEADLINE)]
    if info.status == "failed":
        return [graph_command(RETRY_HERE, "resume", args, run_id), _hand_back(run_id, args)]
    if info.kind:
        return []  # another library continues it
    if info.status == "paused":
        here = graph_command(f"{info.reason or 'It is paused'}. Resume it with:", "resume", args, run_id)
        return [here, _command_for_worker(info, args)]
    purpose = ""
    if info.shown_status in _NO_PROCESS:
        why = _NO_PROCESS[info.shown_status].format(due=utc_time(info.due), lapse=why_abandoned(info))
        purpose = f"{why}. A worker resumes it, or resume it with:"
    elif info.status == "cancelled":
        here = graph_command("To resume it anyway:", "resume", args, run_id)
        return [here, _hand_back(run_id, args)]
    return [graph_command(purpose, "resume", args, run_id)] if purpose else []


def _command_for_wait(wait: PostWait, run_id: str, args: Namespace) -> NextCommand:
    """How to bring a run on that waits: by sending the message, or by looking at its child run, or at the limit."""
    waiting = f"{wait.node} waits for {wait.described(str)}."
    if wait.kind == MESSAGE:
        return NextCommand(
            f"{waiting} Send it with:", command_line("runs send", args, run_id, wait.name, "VALUE")
        )
    if wait.kind == SLOT:
        return NextCommand(f"{waiting} Look at its slots with:", command_line("limits show", args, wait.name))
    return NextCommand(f"{waiting} Look at it with:", command_line("runs show", args, wait.name))


def _hand_back(run_id: str, args: Namespace, *more: str) -> NextCommand:
    return NextCommand(
        "Or hand it back to the workers with:", command_line("runs retry", args, run_id, *more)
    )


def _command_for_worker(info: RunInfo, args: Namespace) -> NextCommand:
    """The command that leaves a paused run, which asks nothing, to a worker."""
    if info.waits_for_approval:
        command = command_line("answer", args, info.run_id, "--detach")
        return NextCommand("Or approve it, for a worker to continue it:", command)
    return NextCommand("Or hand it to the workers with:", command_line("runs retry", args, info.run_id))


def _knows_graphs(args: Namespace) -> bool:
    try:
        return bool(project_targets(args))
    except UsageError:
        return False


def _with_graph_explained(purpose: str) -> str:
    return f"{purpose.removesuffix(':')} ({GRAPH} is file.yaml, file.py:attribute or module:attribute):"


def _command_to_answer(problem: LimpetError, run_id: str, args: Namespace) -> NextCommand:
    """The command that answers, or approves, the run that an error is about, as far as it can be known."""
    questions: Sequence[Question] = ()
    if isinstance(problem, RunPaused):
        questions = problem.questions
    else:
        with suppress(LimpetError):
            info = Runs(find_store(args, must_exist=True)).get(run_id).info
            if info.waits_for_approval:
                return NextCommand("Approve it with:", command_line("answer", args, run_id))
            questions = info.questions
    return _answer_command("Answer with:", run_id, questions, args)


def _answer_command(
    purpose: str, run_id: str, questions: Sequence[Question], args: Namespace, number: int = 0
) -> NextCommand:
    """The command that answers one of the questions, which it names where there are several."""
    name = []
    example = "ANSWER"
    if questions:
        question = questions[number]
        example = _example(question)
        if len(questions) > 1:
            name = [question.id if can_be_typed(question.id) else "QUESTION"]
    # Without the place of the code it can be typed as well: then a worker continues the run.
    return NextCommand(purpose, command_line("answer", args, run_id, *name, example))


def _describe(question: Question) -> str:
    deadline = ""
    if question.deadline is not None:
        deadline = f" (until {utc_time(question.deadline)} UTC)"
    prompt = shortened(question.prompt, MAX_SHOWN_PROMPT)
    return f"{question.node} asks: {prompt}{_allowed_answers(question)}{deadline}\nAnswer with:"


def _allowed_answers(question: Question) -> str:
    if question.choices:
        return f" ({shortened(' / '.join(map(str, question.choices)), MAX_SHOWN_PROMPT)})"
    kind = (question.schema or {}).get("type")
    return f" ({kind})" if isinstance(kind, str) else ""


def _example(question: Question) -> str:
    """A possible answer to be typed; a placeholder where there is none."""
    texts = [str(choice) for choice in question.choices or ()]
    return next((text for text in texts if can_be_typed(text) and len(text) <= MAX_SHOWN_TEXT), "ANSWER")
