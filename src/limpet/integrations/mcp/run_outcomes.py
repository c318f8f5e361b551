"""What has become of a run, as data for a client: its result, its error, or what it waits for and how to continue."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from limpet.engine.operations.run_info import QUARANTINED, RunInfo
from limpet.frontends.values import check_size, shown_value, shown_values, size_of
from limpet.integrations.mcp.served_runs import ServedRuns
from limpet.journal.store import CANCELLED, COMPLETED, DAMAGED, FAILED, PAUSED
from limpet.journal.waits import MESSAGE, Question

OUTCOME: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {
        "run_id": {"type": "string", "description": "the run: with it, other tools find it at any time"},
        "graph": {"type": "string"},
        "status": {
            "type": "string",
            "description": "completed, failed, paused, cancelled, running, queued …",
        },
        "result": {"description": "the final state of a graph, or the results of the tasks of a workflow"},
        "questions": {"type": "array", "description": "what the run asks"},
        "next": {"type": "string", "description": "what to do next"},
    },
}
"""The schema of what `outcome_of` gives."""

ERROR: Final = ("type", "message", "node")
"""What is said of the last error of a run. Its traceback is for the log."""

ENDED_BADLY: Final = (FAILED, CANCELLED, DAMAGED)


def outcome_of(served: ServedRuns, run: RunInfo, note: str = "") -> dict[str, Any]:
    """What has become of a run, and what to do next. `note` is more that the client is to know."""
    now = served.shown.now()
    data: dict[str, Any] = {"run_id": run.run_id, "graph": run.graph, "status": run.shown_at(now)}
    if run.status == COMPLETED:
        return data | {"result": result_data(served, run)}
    if run.error is not None:
        data["error"] = shown_value({name: run.error[name] for name in ERROR if name in run.error})
    if run.reason:
        data["reason"] = run.reason
    if run.problem:
        data["problem"] = run.problem
    if run.questions:
        data["questions"] = [shown_question(each) for each in run.questions]
    if note:
        data["note"] = note
    data["next"] = next_step(served, run)
    return data


def is_error(data: Mapping[str, Any]) -> bool:
    """Whether the outcome of a run is an error of its tool."""
    return data.get("status") in (*ENDED_BADLY, QUARANTINED)


def result_data(served: ServedRuns, run: RunInfo) -> Any:
    """The result of a completed run as JSON, without secrets. Raises `HttpProblem` for one that is too large."""
    stored = served.shown.state(run.run_id)
    shown = shown_values(stored.values, stored.secrets)
    result: Any = shown
    if served.plan_of(run).layers is not None:
        tasks = shown.get("tasks", {})
        result = {name: record.get("result") for name, record in tasks.items() if isinstance(record, dict)}
    check_size(size_of(result))
    return result


def shown_question(question: Question) -> dict[str, Any]:
    """A question as a client sees it."""
    facts: dict[str, Any] = {"id": question.id, "prompt": question.prompt, "node": question.node}
    if question.choices is not None:
        facts["choices"] = shown_value(question.choices)
    if question.schema is not None:
        facts["schema"] = shown_value(question.schema)
    if question.deadline is not None:
        facts["deadline"] = question.deadline
    if question.secret:
        facts["secret"] = True
    return facts


def next_step(served: ServedRuns, run: RunInfo) -> str:
    """What to do about a run that hasn't completed, in the words of the tools."""
    quoted = repr(run.run_id)
    if run.status in (FAILED, CANCELLED):
        return f"retry_run(run_id={quoted}) hands it back to the workers, once what is wrong is repaired"
    if run.status == DAMAGED:
        return f"`limpet store verify {run.run_id}` lists what is damaged"
    if run.questions:
        return _how_to_answer(run, quoted)
    if run.waits_for_approval:
        return f"answer_run(run_id={quoted}) without a value approves it"
    if run.status == PAUSED:
        return f"retry_run(run_id={quoted}) hands it to the workers"
    names = [wait.name for wait in run.waits if wait.kind == MESSAGE]
    if names:
        return f"send_message(run_id={quoted}, name={names[0]!r}, value=…) sends what it waits for"
    elsewhere = "" if served.executes else ", as soon as a worker of the store executes it"
    return f"it continues by itself{elsewhere}: get_run(run_id={quoted}, wait=30) waits for it"


def _how_to_answer(run: RunInfo, quoted: str) -> str:
    plain = [question for question in run.questions if not question.secret]
    steps = []
    if len(plain) == 1 and len(run.questions) == 1:
        steps.append(
            f"answer_run(run_id={quoted}, value=…) answers it, once the user has said what the answer is"
        )
    elif plain:
        steps.append(
            f"answer_run(run_id={quoted}, answers={{id: value}}) answers by the ids of the questions"
        )
    if len(plain) < len(run.questions):
        steps.append(
            f"a secret answer isn't taken here: the user gives it in a terminal, limpet answer {run.run_id}, or on "
            "the page of limpet serve"
        )
    return "; ".join(steps)
