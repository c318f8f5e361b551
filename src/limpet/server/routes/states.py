"""Routes about the states of a run: at any step, how two differ, and the records of a workflow's tasks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from limpet.errors import UsageError, did_you_mean
from limpet.server.endpoint import INTEGER, TEXT, ApiRequest, Endpoint, Parameter
from limpet.server.problems import HttpProblem
from limpet.server.values import not_json, shown_value, shown_values, size_of, to_bytes, without_large

MAX_VALUE: Final = 64_000_000
"""Bytes of JSON of one value that is asked for, at most."""


def state(request: ApiRequest) -> dict[str, Any]:
    """The state after a step, or the newest; large values only if their key is asked for."""
    stored = request.service.state(request.run_id, request.values.get("step"))
    values = stored.values
    key = request.values.get("key")
    if key is not None:
        if key not in values:
            raise UsageError(f"the state has no key {key[:200]!r}{did_you_mean(key[:200], values)}")
        values = {key: values[key]}
    foreign = not_json({name: value for name, value in values.items() if name not in stored.secrets})
    shown = shown_values(values, stored.secrets)
    if key is not None:
        return {"values": _checked(shown), "large": {}, "not_json": foreign}
    small, large = without_large(shown)
    return {"values": small, "large": large, "not_json": foreign}


def sizes(request: ApiRequest) -> dict[str, Any]:
    """How large each value of the state is, in bytes of JSON."""
    stored = request.service.state(request.run_id, request.values.get("step"))
    return {
        "sizes": {key: size_of(value) for key, value in shown_values(stored.values, stored.secrets).items()}
    }


def difference(request: ApiRequest) -> dict[str, Any]:
    """How the state after one step differs from that after another; large values only if their key is asked for."""
    service = request.service
    found = service.runs.diff(request.run_id, request.values["a"], request.values["b"])
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


def compare(request: ApiRequest) -> dict[str, Any]:
    """How the states of two runs differ, as `difference` says it."""
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
        elif to_bytes(old[key]) != to_bytes(new[key]):  # 1 and True are the same to Python
            changes[key] = {"change": "changed", "before": old[key], "after": new[key]}
        else:
            same.append(key)
    return {"changes": _without_large_values(changes, values.get("key")), "same": same}


def tasks(request: ApiRequest) -> dict[str, Any]:
    """The tasks of a workflow's run, with the records of those that are done; none for a run of a graph."""
    stored = request.service.state(request.run_id, request.values.get("step"))
    dag = stored.values.get("dag")
    records = stored.values.get("tasks")
    wanted = request.values.get("task")
    if not isinstance(dag, dict) or not isinstance(records, dict):
        return {"tasks": []}
    if wanted is not None and wanted not in dag:
        raise UsageError(f"the run has no task {wanted[:200]!r}{did_you_mean(wanted[:200], dag)}")
    names = [name for name in dag if wanted in (None, name)]
    return {
        "tasks": [_task(name, dag[name], records.get(name), stored.secrets, name == wanted) for name in names]
    }


def _task(name: str, described: Any, record: Any, secrets: frozenset[str], is_wanted: bool) -> dict[str, Any]:
    facts: dict[str, Any] = {"task": name, "depends_on": [], "status": None}
    if isinstance(described, dict):
        facts["depends_on"] = list(described.get("depends_on", ()))
    if isinstance(record, dict):
        shown = shown_value({**record, "id": name}, secrets)
        if is_wanted:
            facts |= _checked(shown)
        else:
            small, large = without_large(shown)
            facts |= {**small, **_size_fields(large)}
    return facts


def _without_large_values(
    changes: Mapping[str, dict[str, Any]], wanted: str | None
) -> dict[str, dict[str, Any]]:
    """Changes without large values; their sizes are in their place. Of a key that is wanted, all is there."""
    if wanted is not None:
        return {key: _checked(change) for key, change in changes.items() if key == wanted}
    shown = {}
    for key, change in changes.items():
        small, large = without_large(change)
        shown[key] = {**small, **_size_fields(large)}
    return shown


def _size_fields(large: Mapping[str, int]) -> dict[str, int]:
    return {f"{name}_size": size for name, size in large.items()}


def _checked(values: dict[str, Any]) -> dict[str, Any]:
    """The values as they are. Raises `HttpProblem` if they are too large to be sent."""
    size = sum(map(size_of, values.values()))
    if size > MAX_VALUE:
        raise HttpProblem(
            413, "value-too-large", f"the value has {size:,} bytes: read it with Runs(store).state(…)"
        )
    return values


_RUN: Final = "/runs/{run_id}"
_STEP: Final = Parameter("step", INTEGER, "the step; the newest, if it is left out")
_KEY: Final = Parameter("key", TEXT, "only this key, however large its value is")

ENDPOINTS: Final = (
    Endpoint("GET", f"{_RUN}/state", state, "The state after a step", "State", query=(_STEP, _KEY)),
    Endpoint("GET", f"{_RUN}/sizes", sizes, "How large the values of a state are", "Sizes", query=(_STEP,)),
    Endpoint(
        "GET",
        f"{_RUN}/diff",
        difference,
        "How the states after two steps differ",
        "Difference",
        query=(
            Parameter("a", INTEGER, "the earlier step", True),
            Parameter("b", INTEGER, "the later step", True),
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
        query=(_STEP, Parameter("task", TEXT, "only this task, however large its result is")),
    ),
)
