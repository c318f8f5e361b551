"""Routes about the states of a run: at any step, how two differ, and the records of a workflow's tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from limpet.errors import UsageError, did_you_mean
from limpet.frontends.shown_runs import StoredState
from limpet.frontends.values import (
    check_size,
    incomplete,
    not_json,
    shown_value,
    shown_values,
    size_of,
    without_large,
)
from limpet.journal.encoding.codec import encode
from limpet.server.endpoint import INTEGER, TEXT, ApiRequest, Endpoint, Parameter, limit_of

TASK_FACTS: Final = (
    "task",
    "id",
    "depends_on",
    "status",
    "timestamp",
    "duration",
    "attempts",
    "layer",
    "secret",
)
"""The fields of a task's record that are never large."""

MAX_TASKS: Final = 2000
USUAL_TASKS: Final = 200
"""Tasks in one page: at most, and if that isn't said."""


def state(request: ApiRequest) -> dict[str, Any]:
    """The state after a step, or the newest; large values only if their key is asked for."""
    stored = _stored_state(request)
    values = stored.values
    key = request.values.get("key")
    if key is not None:
        if key not in values:
            raise UsageError(f"the state has no key {key[:200]!r}{did_you_mean(key[:200], values)}")
        values = {key: values[key]}
    foreign = not_json({name: value for name, value in values.items() if name not in stored.secrets})
    shown = shown_values(values, stored.secrets)
    facts = {"not_json": foreign, "incomplete": incomplete(shown)}
    if key is not None:
        return {"values": _checked(shown), "large": {}, **facts}
    small, large = without_large(shown)
    return {"values": small, "large": large, **facts}


def sizes(request: ApiRequest) -> dict[str, Any]:
    """How large each value of the state is, in bytes of JSON."""
    stored = _stored_state(request)
    return {
        "sizes": {key: size_of(value) for key, value in shown_values(stored.values, stored.secrets).items()}
    }


def difference(request: ApiRequest) -> dict[str, Any]:
    """How the state after one step differs from that after another; large values only if their key is asked for."""
    service = request.service
    values = request.values
    found = service.runs.diff(request.run_id, values["a"], values["b"], branch=values.get("branch"))
    secrets = service.secrets(request.run_id)
    changes: dict[str, dict[str, Any]] = {}
    for key, value in shown_values(found.added, secrets).items():
        changes[key] = {"change": "added", "after": value}
    for key, value in shown_values(found.removed, secrets).items():
        changes[key] = {"change": "removed", "before": value}
    before = shown_values({key: old for key, (old, _) in found.changed.items()}, secrets)
    after = shown_values({key: new for key, (_, new) in found.changed.items()}, secrets)
    for key in before:
        changes[key] = {"change": "changed", "before": before[key], "after": after[key]}
    return {"changes": _without_large_values(changes, request.values.get("key"))}


def _stored_state(request: ApiRequest) -> StoredState:
    values = request.values
    return request.service.state(request.run_id, values.get("step"), values.get("branch"))


def compare(request: ApiRequest) -> dict[str, Any]:
    """How the states of two runs differ, as `difference` says it. What is stored is compared, not what is shown."""
    service = request.service
    values = request.values
    mine = service.state(request.run_id, values.get("step"))
    other = service.state(values["with"], values.get("with_step"))
    secrets = mine.secrets | other.secrets
    old = shown_values(mine.values, secrets)
    new = shown_values(other.values, secrets)
    changes: dict[str, dict[str, Any]] = {}
    same: list[str] = []
    for key in sorted({*old, *new}):
        if key not in old:
            changes[key] = {"change": "added", "after": new[key]}
        elif key not in new:
            changes[key] = {"change": "removed", "before": old[key]}
        elif not _is_same(mine.values[key], other.values[key]):
            changes[key] = {"change": "changed", "before": old[key], "after": new[key]}
        else:
            same.append(key)
    return {"changes": _without_large_values(changes, values.get("key")), "same": same}


def _is_same(value: Any, other: Any) -> bool:
    """Whether two stored values are the same, to the type: 1 and True aren't, nor are a list and a set."""
    return encode(value) == encode(other) or encode(_in_order(value)) == encode(_in_order(other))


def _in_order(value: Any) -> Any:
    """The value with its sets in an order: which one they were stored in depends on how they were made."""
    kind = type(value)
    if kind is dict:
        return {key: _in_order(each) for key, each in value.items()}
    if kind is list:
        return [_in_order(each) for each in value]
    if kind in (set, frozenset):
        return kind.__name__, sorted(encode(each) for each in value)
    return value


def tasks(request: ApiRequest) -> dict[str, Any]:
    """A page of the tasks of a workflow's run, with the records of those that are done; none for a run of a graph."""
    limit = limit_of(request, MAX_TASKS, USUAL_TASKS)
    stored = request.service.state(request.run_id, request.values.get("step"))
    dag = stored.values.get("dag")
    records = stored.values.get("tasks")
    if not isinstance(dag, dict) or not isinstance(records, dict):
        return {"tasks": [], "next": None}
    wanted = request.values.get("task")
    after = request.values.get("after")
    for named in (wanted, after):
        if named is not None and named not in dag:
            raise UsageError(f"the run has no task {named[:200]!r}{did_you_mean(named[:200], dag)}")
    if wanted is not None:
        task = _task(wanted, dag[wanted], records.get(wanted), stored.secrets)
        return {"tasks": [_checked(task)], "next": None}
    names = list(dag)
    start = 0 if after is None else names.index(after) + 1
    page = names[start : start + limit]
    found = {name: _task(name, dag[name], records.get(name), stored.secrets) for name in page}
    return {
        "tasks": list(_without_large_fields(found, TASK_FACTS).values()),
        "next": page[-1] if start + limit < len(names) else None,
    }


def _task(name: str, described: Any, record: Any, secrets: frozenset[str]) -> dict[str, Any]:
    facts: dict[str, Any] = {"task": name, "depends_on": [], "status": None}
    if isinstance(described, dict):
        facts["depends_on"] = list(described.get("depends_on", ()))
    if isinstance(record, dict):
        facts |= shown_value({**record, "id": name}, secrets)
    return facts


def _without_large_values(
    changes: Mapping[str, dict[str, Any]], wanted: str | None
) -> dict[str, dict[str, Any]]:
    """Changes without large values; their sizes are in their place. Of a key that is wanted, all is there."""
    if wanted is not None:
        return {key: _checked(change) for key, change in changes.items() if key == wanted}
    return _without_large_fields(changes, ("change",))


def _without_large_fields(
    things: Mapping[str, dict[str, Any]], facts: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """The same things. Of all their fields but these facts, large values have their sizes in their place."""
    values = {
        (key, name): value
        for key, thing in things.items()
        for name, value in thing.items()
        if name not in facts
    }
    _, large = without_large(values)
    shown = {key: dict(thing) for key, thing in things.items()}
    for (key, name), size in large.items():
        del shown[key][name]
        shown[key][f"{name}_size"] = size
    return shown


def _checked(values: dict[str, Any]) -> dict[str, Any]:
    """The values as they are. Raises `HttpProblem` if they are too large to be sent."""
    check_size(sum(map(size_of, values.values())))
    return values


_RUN: Final = "/runs/{run_id}"
_STEP: Final = Parameter("step", INTEGER, "the step; the newest, if it is left out")
_BRANCH: Final = Parameter("branch", TEXT, "in this branch, which is open then, such as page[2]")
_KEY: Final = Parameter("key", TEXT, "only this key, however large its value is")

ENDPOINTS: Final = (
    Endpoint("GET", f"{_RUN}/state", state, "The state after a step", "State", query=(_STEP, _BRANCH, _KEY)),
    Endpoint(
        "GET",
        f"{_RUN}/sizes",
        sizes,
        "How large the values of a state are",
        "Sizes",
        query=(_STEP, _BRANCH),
    ),
    Endpoint(
        "GET",
        f"{_RUN}/diff",
        difference,
        "How the states after two steps differ",
        "Difference",
        query=(
            Parameter("a", INTEGER, "the earlier step", True),
            Parameter("b", INTEGER, "the later step", True),
            _BRANCH,
            _KEY,
        ),
    ),
    Endpoint(
        "GET",
        f"{_RUN}/compare",
        compare,
        "How the states of two runs differ",
        "Comparison",
        query=(
            Parameter("with", TEXT, "the other run", True),
            _STEP,
            Parameter("with_step", INTEGER, "the step of the other run; the newest, if it is left out"),
            _KEY,
        ),
    ),
    Endpoint(
        "GET",
        f"{_RUN}/tasks",
        tasks,
        "The tasks of a workflow's run, with results, times and durations of those that are done",
        "TaskList",
        query=(
            _STEP,
            Parameter("task", TEXT, "only this task, however large its result is"),
            Parameter("after", TEXT, "`next` of the page before, or the id of any task"),
            Parameter("limit", INTEGER, f"tasks in the page ({USUAL_TASKS}), at most {MAX_TASKS}"),
        ),
    ),
)
