"""Whether the stored state of a workflow has the shape that its readers rely on.

The journal checks the shape of records, and doesn't know what a state means. That of a workflow has its tasks and
their outcomes. A file to import may hold anything there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from graphlib import CycleError
from typing import Any

from limpet.errors import DamagedRecord
from limpet.graphs.plan import PLANNER
from limpet.journal.progress import Progress


def is_workflow(progress: Progress) -> bool:
    """Whether this is the progress of a workflow, and not of another graph."""
    return "dag" in progress.state and PLANNER in (progress.node, *progress.visits)


def check_workflows(progress: Progress) -> None:
    """Raise `DamagedRecord` if a run, or a graph inside of it, is a workflow and its state can't be that of one."""
    if is_workflow(progress):
        wrong = next(_wrong_parts(progress.state), None) or next(_wrong_results(progress), None)
        if wrong is not None:
            raise DamagedRecord(progress.run_id, 0, f"the state of its workflow is invalid: {wrong}")
    if progress.section is not None:
        for child in progress.section.children.values():
            check_workflows(child)


def _wrong_parts(state: Mapping[str, Any]) -> Iterator[str]:
    # Imported here, so that a process without workflows doesn't import what they need.
    from limpet.graphs.workflow.layers import layers_of

    for key, kind in _KINDS.items():
        if type(state.get(key)) is not kind:
            yield f"{key!r} is {type(state.get(key)).__name__}, not {kind.__name__}"
            return
    for name, data in state["dag"].items():
        if type(name) is not str or not _is_spec(data, state["dag"]):
            yield f"its task {name!r} isn't described as one"
            return
    try:
        layers_of(state["dag"])
    except CycleError:
        yield "its tasks depend on each other in a circle"
    for name, data in state["tasks"].items():
        if type(name) is not str or not _is_task_record(name, data):
            yield f"the record of its task {name!r} isn't one"
    for decision in state["decisions"]:
        if not _is_decision(decision):
            yield "one of its decisions isn't one"


def _wrong_results(progress: Progress) -> Iterator[str]:
    """What the tasks of an open layer have returned and can't be folded into the state of the workflow."""
    section = progress.section
    if section is None or section.layer is None or section.folded:
        return
    for name, task in section.children.items():
        for key, value in task.state.items():
            if type(value) is not _KINDS.get(key):
                yield f"its task {name!r} has a {key!r} that can't be added to it"
        records = task.state.get("tasks", {})
        if not all(_is_task_record(each, records[each]) for each in records):
            yield f"the record of its task {name!r} isn't one"
    for added in section.later:
        for key, value in added.items():
            if key != "layer" and type(value) is not _KINDS.get(key):
                yield f"a {type(value).__name__} was added to its {key!r}"


def _is_spec(data: Any, dag: Mapping[str, Any]) -> bool:
    """Whether this is a task as `TaskSpec.to_data` has it, that depends on tasks which exist."""
    if type(data) is not dict or not all(type(key) is str for key in data):
        return False
    for key in ("depends_on", "optional"):
        names = data.get(key, [])
        if type(names) is not list or not all(type(name) is str and name in dag for name in names):
            return False
    for key in ("named", "arguments"):
        if type(data.get(key, {})) is not dict or not all(type(name) is str for name in data.get(key, {})):
            return False
    return all(type(data.get(key, "")) is str for key in ("run", "added_by"))


def _is_task_record(name: str, data: Any) -> bool:
    """Whether this is what `TaskRecord` takes."""
    from limpet.graphs.workflow.state import TASK_STATUSES, TaskRecord

    return (
        type(data) is dict
        and {"id", "status", "layer"} <= data.keys() <= set(TaskRecord._fields)
        and data["id"] == name
        and data["status"] in TASK_STATUSES
        and all(type(data[key]) in kinds for key, kinds in _RECORD_KINDS.items() if key in data)
        and data["layer"] >= 0
    )


def _is_decision(data: Any) -> bool:
    """Whether this is a decision, and an answer has what is shown of one."""
    from limpet.graphs.workflow.task_report import ANSWER

    if type(data) is not dict or type(data.get("by")) is not str or type(data.get("kind")) is not str:
        return False
    return data["kind"] != ANSWER or {"question", "prompt", "answer"} <= data.keys()


_KINDS: dict[str, type] = {
    "inputs": dict,
    "messages": list,
    "tasks": dict,
    "decisions": list,
    "context": dict,
    "dag": dict,
}
_RECORD_KINDS: dict[str, tuple[type, ...]] = {
    "status": (str,),
    "timestamp": (int, float),
    "duration": (int, float),
    "attempts": (int,),
    "layer": (int,),
    "reason": (str, type(None)),
    "error": (dict, type(None)),
    "secret": (bool,),
}
