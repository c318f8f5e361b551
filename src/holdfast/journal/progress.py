"""How far a run has come: its state, its position and its counters, as its journal tells them.

There are four kinds of record. `STEP`: a node completed; what it changed and what comes next. `MOVE`:
anything else that happened (a pause, an answer, a failed attempt, the end). `MEMO`: the result of a
`once()` inside a node that hasn't completed. `SNAPSHOT`: all of it, so that nothing before is needed.

A `Progress` is built from a snapshot and the records after it, one `apply` each. The engine moves the
live one on through the same methods, which is why a resumed run equals one that was never cut.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from holdfast.journal.codec import encode
from holdfast.journal.delta import read_delta
from holdfast.journal.splice import extended
from holdfast.journal.store import RUNNING

STEP, SNAPSHOT, MOVE, MEMO = 1, 2, 3, 4
KINDS = (STEP, SNAPSHOT, MOVE, MEMO)

BEFORE = "before"
AFTER = "after"
FAILED_PHASE = "failed"

PATH_KEPT = 256
"""How many of the newest node names `path` keeps. `iterations` counts them all."""


class Question(NamedTuple):
    """What a paused run waits to be told: the id that an answer names, and what the answer must be like."""

    id: str
    prompt: str
    node: str
    choices: list[Any] | None = None
    schema: dict[str, Any] | None = None

    def to_data(self) -> dict[str, Any]:
        """It as plain data."""
        return self._asdict()


@dataclass(slots=True, eq=False, repr=False)
class Progress:
    """Where a run is.

    `node` and `phase` are the position: the node that runs next (`before`), has run and waits for the
    choice of what follows (`after`), or failed and will be tried again (`failed`). `cleared` says that
    the interrupts at this position have been taken. `made_by` is the node that completed last, `step`
    its number. `attempts` counts the ended attempts of the node at this position, and `answers` and
    `memos` belong to it. `crashes` is how many holders had been lost when the last record was written.
    """

    run_id: str
    graph: str
    fingerprint: str
    node: str
    state: dict[str, Any]
    phase: str = BEFORE
    cleared: bool = False
    step: int = 0
    at: float = 0.0
    crashes: int = 0
    made_by: str | None = None
    status: str = RUNNING
    reason: str | None = None
    iterations: int = 0
    visits: dict[str, int] = field(default_factory=dict)
    path: deque[str] = field(default_factory=lambda: deque(maxlen=PATH_KEPT))
    attempts: int = 0
    questions: list[Question] = field(default_factory=list)
    answers: dict[str, Any] = field(default_factory=dict)
    memos: dict[str, Any] = field(default_factory=dict)
    error: dict[str, Any] | None = None
    config: dict[str, Any] = field(default_factory=dict)
    meta: dict[str, Any] = field(default_factory=dict)
    parent: str | None = None

    def complete(self, node: str, at: float, following: str | None) -> None:
        """A node completed and `following` is next; None leaves that to be chosen."""
        self.step += 1
        self.iterations += 1
        self.at = at
        self.made_by = node
        visits = self.visits
        visits[node] = visits[node] + 1 if node in visits else 1
        self.path.append(node)
        if following is None:
            self.node = node
            self.phase = AFTER
        else:
            self.node = following
            self.phase = BEFORE
        self.cleared = False
        if self.attempts or self.answers or self.memos or self.error:
            self.attempts, self.answers, self.memos, self.error = 0, {}, {}, None

    def move(self, changes: Mapping[str, Any]) -> None:
        """Anything else happened: take over the named fields."""
        for name, value in changes.items():
            if name == "questions":
                self.questions = [Question(**each) for each in value]
            else:
                setattr(self, name, value)

    def apply(self, record: list[Any]) -> None:
        """Take over one decoded record of the journal."""
        kind, step, at, crashes = record[:4]
        self.lost(crashes)
        if kind == STEP:
            read_delta(record[6]).apply(self.state)
            self.complete(record[4], at, record[5])
        elif kind == MOVE:
            self.move(record[4])
            if len(record) > 5:
                read_delta(record[5]).apply(self.state)
        elif kind == MEMO:
            self.memos[record[4]] = record[5]
        else:
            self._restore(record[4], record[5])
        self.step = step

    def lost(self, crashes: int) -> None:
        """So many holders have been lost by now: what they were about counts as attempts."""
        if self.status == RUNNING:
            self.attempts += crashes - self.crashes
        self.crashes = crashes

    def step_record(self, delta: bytes, following: str | None) -> bytes:
        """The record of the node that just completed."""
        return extended(encode([STEP, self.step, self.at, self.crashes, self.made_by, following]), delta)

    def move_record(self, changes: Mapping[str, Any], at: float, delta: bytes | None = None) -> bytes:
        """The record of anything else that happened; `delta` is how it changed the state."""
        record = encode([MOVE, self.step, at, self.crashes, changes])
        return record if delta is None else extended(record, delta)

    def memo_record(self, key: str, value: Any, at: float) -> bytes:
        """The record of a result that a node wants kept before it completes."""
        return encode([MEMO, self.step, at, self.crashes, key, value])

    def snapshot_record(self) -> bytes:
        """The record of everything. Raises `UnstorableValue` with the path from the state's key on.

        What is empty is left out: it is so from the start.
        """
        whole = {name: value for name in _PLAIN if (value := getattr(self, name))}
        if self.path:
            whole["path"] = list(self.path)
        if self.questions:
            whole["questions"] = [each.to_data() for each in self.questions]
        return extended(encode([SNAPSHOT, self.step, self.at, self.crashes, whole]), encode(dict(self.state)))

    def _restore(self, whole: dict[str, Any], state: dict[str, Any]) -> None:
        blank = Progress("", "", "", "", {})
        for name in _PLAIN:
            setattr(self, name, whole.get(name, getattr(blank, name)))
        self.state = state
        self.path = deque(whole.get("path", ()), PATH_KEPT)
        self.questions = [Question(**each) for each in whole.get("questions", ())]


_PLAIN = [
    each.name
    for each in fields(Progress)
    if each.name not in ("state", "path", "questions", "step", "crashes")
]
