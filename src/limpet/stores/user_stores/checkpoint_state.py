"""A run as a user's store keeps it: a `CheckpointState`, with head and journal as one text in its context."""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple
from zlib import crc32

from limpet.errors import DamagedRecord
from limpet.journal.encoding.codec import decode, encode
from limpet.journal.record_shapes import read_summary
from limpet.journal.store import PAUSED, RUNNING, RunHead
from limpet.stores.user_stores.checkpoint_contents import Contents

KEY = "__limpet__"
"""The key of a checkpoint's context under which the run itself is."""

MARK = "LMC1:"
"""How the text of a run begins: the format and its version."""


def _now() -> datetime:
    return datetime.now(UTC).replace(tzinfo=None)


@dataclass
class PauseMetadata:
    """What a paused run waits for: the node or task that asks, and its question. A `response` is never stored."""

    block_id: str
    prompt: str
    response: str | None = None


@dataclass
class CheckpointState:
    """Everything about one run, as a `CheckpointStore` keeps it.

    `checkpoint_id` is the id that events carry, such as `run id@step`; a run has one checkpoint, the newest.
    `workflow_name` is the name of its workflow or graph, `workflow_inputs` what the run was started with.
    `execution_waves` are the names of the tasks, layer by layer, of which the first `completed_waves` are done; of a
    graph, the nodes that completed and the next one. `context` is what the run knows so far: of a workflow its
    context, `messages`, `decisions` and `results`, of a graph its state. `created_at` is when this was saved, in UTC
    and without a time zone.

    All of this is for readers, and as JSON can hold it. `context` also has the run's `status`, `node` and `step`, and
    the run itself as text, from which it is resumed: store it unchanged. Of encrypted runs only these are known.
    """

    checkpoint_id: str
    workflow_name: str
    workflow_inputs: dict[str, Any] = field(default_factory=dict)
    execution_waves: list[list[Any]] = field(default_factory=list)
    completed_waves: int = 0
    context: dict[str, Any] = field(default_factory=dict)
    created_at: datetime = field(default_factory=_now)
    pause_metadata: PauseMetadata | None = None


class PackedRun(NamedTuple):
    """A head, and the newest records up to its sequence number."""

    head: RunHead
    records: list[bytes]


def checkpoint_of(
    checkpoint_id: str, run: PackedRun, contents: Contents | None, now: float
) -> CheckpointState:
    head = run.head
    data = encode([[*head[:10], list(head.tags), *head[11:]], [bytes(record) for record in run.records]])
    blob = MARK + b64encode(crc32(data).to_bytes(4, "big") + data).decode()
    note = _note_of(head)
    context: dict[str, Any] = {
        "status": head.status,
        "node": note.get("node", ""),
        "step": note.get("step", 0),
    }
    state = CheckpointState(
        checkpoint_id=checkpoint_id,
        workflow_name=head.graph,
        created_at=datetime.fromtimestamp(now, UTC).replace(tzinfo=None),
        pause_metadata=_pause(note) if head.status == PAUSED else None,
    )
    if contents is not None:
        state.workflow_inputs = contents.inputs or {}
        state.execution_waves = contents.waves
        state.completed_waves = contents.completed_waves
        context |= contents.context
    state.context = {**context, KEY: blob}
    return state


def _note_of(head: RunHead) -> dict[str, Any]:
    """The summary of a run, for people who look at a checkpoint. No code depends on it."""
    try:
        return read_summary(head.note)
    except Exception:
        return {}


def _pause(note: dict[str, Any]) -> PauseMetadata:
    for question in note.get("questions") or ():
        return PauseMetadata(question["node"], question["prompt"])
    return PauseMetadata(note.get("node", ""), note.get("reason") or "")


def is_ours(state: CheckpointState) -> bool:
    return KEY in state.context


def run_id_of(state: CheckpointState, by_run: bool) -> str:
    """The run that a checkpoint is of, by its id: `run id@step`, or the run's id. With `by_run` it is the latter."""
    run_id, _, step = state.checkpoint_id.rpartition("@")
    if by_run or not run_id or not re.fullmatch(r"[0-9.]+", step):
        return state.checkpoint_id
    try:
        run_of(state.checkpoint_id, state)
    except DamagedRecord:
        return run_id
    return state.checkpoint_id  # a run whose id has an "@"


def run_of(run_id: str, state: CheckpointState) -> PackedRun:
    try:
        blob = state.context[KEY]
        if not blob.startswith(MARK):
            raise ValueError("it isn't in a known format")
        stored = b64decode(blob[len(MARK) :], validate=True)
        if crc32(stored[4:]) != int.from_bytes(stored[:4], "big"):
            raise ValueError("its checksum doesn't match")
        data, records = decode(stored[4:])
        head = _head_from(data)
        if head.run_id != run_id:
            raise ValueError(f"it is that of run {head.run_id!r}")
    except Exception as error:
        raise DamagedRecord(run_id, 0, f"its checkpoint isn't what was saved: {error}") from error
    return PackedRun(head, records)


def _head_from(data: list[Any]) -> RunHead:
    """The head in a checkpoint, also of an older version: 15 fields, then 17 with `due` and `priority`.

    Both had, after `parent`, a signal for the holder, which is gone.
    """
    if len(data) == 15:
        due = 0.0 if data[2] == RUNNING else None
        data = [*data, due, 0]
    if len(data) == 17:
        del data[12]
    data[10] = tuple(data[10])
    return RunHead(*data)
