"""What a user's store gets to know about a run: its inputs, its waves, its context, and the checkpoint's id.

It is read from the records, so that it is true; what can't be read, such as encrypted records, is left out. Values
are given as JSON can hold them. The run itself is resumed from its records, which are exact, and not from this.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, time
from graphlib import TopologicalSorter
from math import isfinite
from typing import Any, NamedTuple

from limpet.journal.progress import Progress
from limpet.journal.reader import read_progress, read_records
from limpet.journal.store import RunHead, Tail

TASK_COMPLETED = "completed"
"""The status of a task's record that has a result."""


class Contents(NamedTuple):
    """What is known about a run at its newest record."""

    checkpoint_id: str
    inputs: dict[str, Any] | None
    """What the run was started with; None if its first record isn't kept any more."""
    waves: list[list[str]]
    completed_waves: int
    context: dict[str, Any]


def read_contents(head: RunHead, records: Sequence[bytes]) -> Contents | None:
    """What a run's newest records say about it; None if they can't be read."""
    first = head.sequence - len(records) + 1
    try:
        newest = list(records[head.snapshot - first :])
        progress = read_progress(Tail(head, head.snapshot, newest))
        return _contents(progress, _first_state(head, first, records))
    except Exception:  # records that are encrypted, damaged, or of something that isn't a run of ours
        return None


def _first_state(head: RunHead, first: int, records: Sequence[bytes]) -> dict[str, Any] | None:
    """The state in the first record, which is a snapshot, if that is kept."""
    if first != 1:
        return None
    for _, record in read_records(Tail(head, 1, list(records[:1]))):
        state: dict[str, Any] = record[5]
        return state
    return None


def _contents(progress: Progress, first_state: dict[str, Any] | None) -> Contents:
    state = progress.state_so_far()
    if "dag" in state and "tasks" in state:
        return _workflow_contents(progress, state)
    done = list(progress.path)
    waves = [[name] for name in done]
    if not progress.done:
        waves.append([progress.current_node()])
    inputs = None if first_state is None else _as_json(first_state)
    return Contents(progress.checkpoint_id, inputs, waves, len(done), _as_json(state))


def _workflow_contents(progress: Progress, state: Mapping[str, Any]) -> Contents:
    records = state["tasks"]
    section = progress.section
    completed = max(0, sum(progress.visits.values()) - 1)
    if section is not None and section.layer is not None:
        completed = section.layer
    waves: list[list[str]] = [[] for _ in range(completed)]
    current = [] if section is None else [str(name) for name in section.children]
    if section is not None and section.flow is not None:
        waves = _waves_of_flow(state, section.layer or 0)
    else:
        for name, record in records.items():
            if record["layer"] < completed:
                waves[record["layer"]].append(name)
            elif name not in current:
                current.append(name)
        if current:
            waves.append(current)
        waves += _waves_to_come(state["dag"], {*records, *current})
    results = {name: each["result"] for name, each in records.items() if each["status"] == TASK_COMPLETED}
    known = {
        "messages": state["messages"],
        "decisions": state["decisions"],
        "results": results,
        **state["context"],
    }
    return Contents(progress.checkpoint_id, _as_json(state["inputs"]), waves, completed, _as_json(known))


def _waves_of_flow(state: Mapping[str, Any], first: int) -> list[list[str]]:
    """The waves of a data flow: tasks that are done have their layers, each other one comes after what it needs."""
    dag = state["dag"]
    layers: dict[str, int] = {}
    for name in TopologicalSorter({name: _dependencies(data) for name, data in dag.items()}).static_order():
        record = state["tasks"].get(name)
        if record is not None:
            layers[name] = record["layer"]
        else:
            layers[name] = max(
                first, 1 + max((layers[each] for each in _dependencies(dag[name])), default=-1)
            )
    waves: list[list[str]] = [[] for _ in range(1 + max(layers.values(), default=-1))]
    for name in dag:
        waves[layers[name]].append(name)
    return waves


def _dependencies(data: Mapping[str, Any]) -> list[str]:
    return [*data.get("depends_on", ()), *data.get("optional", ())]


def _waves_to_come(dag: Mapping[str, Any], known: set[str]) -> list[list[str]]:
    """The tasks that haven't begun, in waves: each comes after all that it depends on."""
    needed = {}
    for name, data in dag.items():
        if name not in known:
            needed[name] = [each for each in _dependencies(data) if each not in known]
    order = {name: place for place, name in enumerate(dag)}
    sorter = TopologicalSorter(needed)
    sorter.prepare()
    waves = []
    while sorter.is_active():
        ready = sorted(sorter.get_ready(), key=order.__getitem__)
        waves.append(ready)
        sorter.done(*ready)
    return waves


def _as_json(value: Any) -> Any:
    """A copy of the value that can be written as JSON: equal, where JSON has the type, and else as text."""
    if isinstance(value, Mapping):
        return {key if type(key) is str else str(key): _as_json(each) for key, each in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_as_json(each) for each in value]
    if isinstance(value, float):
        return value if isfinite(value) else repr(value)
    if value is None or type(value) in (str, int, bool):
        return value
    if isinstance(value, (date, time)):
        return value.isoformat()
    return repr(value)
