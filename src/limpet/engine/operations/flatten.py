"""Write the runs of a store as plain tables: runs, steps, and the states after them. Secrets are left out.

A run that hasn't changed since the last time isn't read again, and of one that has only the new steps are written.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any, NamedTuple

from limpet.engine.leases.lease_client import LeaseClient
from limpet.engine.operations.flat_files import FlatFile, FlatRun, Row, open_flat_file
from limpet.engine.operations.run_info import RunInfo, list_all, run_info
from limpet.engine.operations.stored_state import secrets_of
from limpet.errors import (
    DamagedRecord,
    KeyMissing,
    LimpetError,
    RunNotFound,
    UnsupportedFormat,
    UsageError,
)
from limpet.graphs.secrets import mask_text, masked, secret_values, text_forms
from limpet.journal.encoding.json_values import to_json_value
from limpet.journal.progress import Progress
from limpet.journal.reader import StepChange, ViewedTail, changes_by_step
from limpet.journal.run_filter import RunFilter
from limpet.journal.store import RunHead


class Flattened(NamedTuple):
    """How many rows were written: runs that are new or have changed, their new steps, and values of their states."""

    runs: int
    steps: int
    values: int


def flatten(client: LeaseClient, path: str | os.PathLike[str]) -> Flattened:
    """Bring a file of plain tables up to date with the store.

    Raises `UsageError` for a file of another kind, and `StoreUnavailable` if it can't be written.
    """
    counts = [0, 0, 0]
    with open_flat_file(path) as file:
        for head, problem in list_all(client.store, RunFilter()):
            if file.has_run(_version_of(head, head.sequence)):
                continue
            run = _flat_run(client, file, head, problem)
            if run is None or file.has_run(run.run):
                continue
            file.write(run)
            counts[0] += 1
            counts[1] += len(run.steps)
            counts[2] += len(run.values)
    return Flattened(*counts)


def _version_of(head: RunHead, records: int) -> Row:
    """What shows whether a run has changed. `records` is how many records the rows of the run are made of."""
    return {
        "run_id": head.run_id,
        "created": _time(head.created),
        "updated": _time(head.updated),
        "status": head.status,
        "records": records,
    }


def _flat_run(
    client: LeaseClient, file: FlatFile, head: RunHead, problem: Exception | None
) -> FlatRun | None:
    """The rows of a run that the file doesn't have; None if the run was deleted meanwhile."""
    known = file.records_of(head.run_id, _time(head.created))
    read = known
    steps: list[Row] = []
    values: list[Row] = []
    info = run_info(head._replace(note=b""))
    try:
        if problem is not None:
            raise problem
        tail = client.store.read(head.run_id, first=1)
        # The run may have been advanced since it was listed.
        head = tail.head
        info = run_info(head)
        if tail.records:
            for change in changes_by_step(ViewedTail(*tail)):
                info = info._replace(step=change.checkpoint.step, node=change.progress.current_node())
                if change.last > known:
                    steps.append(_step_row(change))
                    values += _value_rows(change, known)
                    read = change.last
        read = head.sequence
    except RunNotFound:
        return None
    except (DamagedRecord, KeyMissing, UnsupportedFormat, UsageError) as found:
        # What could be read until there is written, with the reason why there is no more.
        problem = found
    row = {**_version_of(head, read), **_about(head, info, problem)}
    return FlatRun(row, steps, values, is_new=known == 0)


def _about(head: RunHead, info: RunInfo, problem: Exception | None) -> Row:
    error = info.error or {}
    return {
        "graph": head.graph,
        "tags": list(head.tags),
        "parent": head.parent,
        "queue": head.queue,
        "step": info.step,
        "node": info.node,
        "reason": info.reason,
        "error": {name: error[name] for name in ("type", "message", "node") if name in error} or None,
        "questions": [{"id": each.id, "node": each.node, "prompt": each.prompt} for each in info.questions],
        "problem": problem.message if isinstance(problem, LimpetError) else None,
    }


def _step_row(change: StepChange) -> Row:
    step = change.checkpoint
    return {
        "run_id": step.run_id,
        "step": step.step,
        "branch": step.branch,
        "node": step.node,
        "at": _time(step.timestamp),
        "next": step.next,
        "status": step.status,
        "reason": step.reason,
        "keys": list(step.keys),
    }


def _value_rows(change: StepChange, known: int) -> Iterator[Row]:
    """The values that the records of a step after number `known` changed, each as it is after the step."""
    root = change.progress
    names = secrets_of(root)
    forms = _secret_texts(root, names)
    for branch, key, value, is_removed, record in change.values:
        if record <= known:
            continue
        shown = None
        if not is_removed:
            shown = _without_texts(to_json_value(masked({key: value}, names)[key]), forms)
        yield {
            "run_id": root.run_id,
            "step": change.checkpoint.step,
            "branch": branch,
            "key": key,
            "value": shown,
            "removed": is_removed,
        }


def _secret_texts(root: Progress, names: Iterable[str]) -> set[str]:
    """What the secrets of a run look like in texts, so that they aren't found under other keys either."""
    wanted = frozenset(names)
    if not wanted:
        return set()
    states = [root.config, root.state, *(branch.state for _, branch in root.branches_under_way())]
    return text_forms(value for state in states for value in secret_values(state, wanted))


def _without_texts(value: Any, forms: set[str]) -> Any:
    if not forms:
        return value
    if isinstance(value, str):
        return mask_text(value, forms)
    if isinstance(value, list):
        return [_without_texts(each, forms) for each in value]
    if isinstance(value, dict):
        return {mask_text(key, forms): _without_texts(each, forms) for key, each in value.items()}
    return value


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")
