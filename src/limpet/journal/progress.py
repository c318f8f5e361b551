"""How far a run has come: its state, its position and its counters, as its journal tells them.

There are seven kinds of record. `STEP`: a node completed; what it changed and what comes next. `MOVE`: anything
else that happened (a pause, an answer, a failed attempt, the end). `MEMO`: the result of a `once()` inside a node
that hasn't completed. `OPEN`: branches begin beside each other, or a graph inside of a node. `NESTED`: one of
these, of a branch. `SNAPSHOT`: all of it, so that nothing before is needed. `BUNDLE`: several of these that were
saved together, which is how a store sees them.

A `Progress` is built from a snapshot and the records after it, one `apply` each. The engine moves the
live one on through the same methods, which is why a resumed run equals one that was never cut.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from limpet.journal.delta import Delta, read_delta
from limpet.journal.encoding.codec import encode
from limpet.journal.encoding.copies import detached_value
from limpet.journal.encoding.splice import extended
from limpet.journal.open_section import Key, OpenSection
from limpet.journal.store import RUNNING
from limpet.journal.waits import AFTER, BEFORE, Question, Waiting

STEP, SNAPSHOT, MOVE, MEMO, OPEN, NESTED, BUNDLE = 1, 2, 3, 4, 5, 6, 7
KINDS = (STEP, SNAPSHOT, MOVE, MEMO, OPEN, NESTED)

DONE = "__end__"
"""Where a run, or a branch of it, is when nothing comes next."""


PATH_KEPT = 256
"""How many of the newest node names `path` keeps. `iterations` counts them all."""


@dataclass(slots=True, eq=False, repr=False)
class Progress(Waiting):
    """Where a run is, or a branch of it, or a graph that a node runs: whatever has a state and a position.

    `node` and `phase` are the position: the node that runs next (`before`), has run and waits for the choice of
    what follows (`after`), or failed and will be tried again (`failed`). `cleared` says that the interrupts at this
    position have been taken. `made_by` is the node that completed last, `step` its number. `attempts` counts the
    ended attempts of the node at this position, and `answers`, what was `asked` for them, which of them are
    `hidden`, and `memos` belong to it. `timers` say until when it sleeps, and until when its questions could be
    answered; nothing happens at the position before that of the `ARRIVAL` there, nor before that of the
    `NEXT_ATTEMPT`, which a resume doesn't wait for. `crashes` is how many holders had been lost when the last
    record was written.

    `section` has the branches that are under way, or done, at this position. Before a branch begins, `start` is what
    it will start with: its whole state, or what is put over a copy of its `base`, the state of which it is a branch.
    Values are shared with that until they change; `changed` names the keys that differ, whether they are still
    there or not, and when such a branch is done, its `state` holds nothing else.
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
    asked: dict[str, str] = field(default_factory=dict)
    hidden: list[str] = field(default_factory=list)
    memos: dict[str, Any] = field(default_factory=dict)
    timers: dict[str, float] = field(default_factory=dict)
    error: dict[str, Any] | None = None
    config: dict[str, Any] = field(default_factory=dict)
    meta: dict[str, Any] = field(default_factory=dict)
    parent: str | None = None
    began: float = 0.0
    section: OpenSection | None = None
    base: dict[str, Any] | None = None
    start: dict[str, Any] | None = None
    changed: dict[str, None] = field(default_factory=dict)

    @property
    def done(self) -> bool:
        """Whether nothing comes next."""
        return self.node == DONE

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
        if self.attempts or self.answers or self.memos or self.error or self.section or self.timers:
            self.attempts, self.answers, self.memos, self.error, self.section = 0, {}, {}, None, None
            self.asked, self.timers, self.hidden = {}, {}, []

    def move(self, changes: Mapping[str, Any]) -> None:
        """Anything else happened: take over the named fields. `going_on` brings answers, see `go_on`;
        `section_again` lets branches that failed try again; `time_passed` names questions that are taken back.
        """
        for name, value in changes.items():
            if name == "questions":
                self.questions = [Question(**each) for each in value]
            elif name == "going_on":
                self.go_on(value)
            elif name == "time_passed":
                self._pass_time(value)
            elif name == "section_again":
                self._wake_branches({}, approved=False)
            else:
                setattr(self, name, value)

    def change(self, delta: Any) -> None:
        """Change the state by a decoded delta, from outside of any node. Branches under way don't see it.

        The tasks of a layer do; and what it puts into dicts is newer than what they will have put there.
        """
        change = read_delta(delta)
        if self.section is not None and self.section.layer is not None and not self.section.folded:
            self.section.later.append(detached_value(change.merges))
        if self.section is not None:
            self.section.keep(change.keys, self.state)
            for key in (*change.appends, *change.merges):
                if key in self.state:
                    dict.__setitem__(self.state, key, self.state[key].copy())
        self._apply(change)

    def open(self, opening: dict[str, Any]) -> OpenSection:
        """Branches begin here, as told by `opening`."""
        self.section = section = OpenSection(opening, self.state, self.step)
        base = None if section.own else self.state
        for key, node, state in section.places(opening):
            child = section.children[key] = Progress(self.run_id, "", "", node, {}, base=base, start=state)
            if section.inside:
                child.attempts = self.attempts
        return section

    def descend(self, path: Sequence[Key]) -> Progress:
        """The branch that `path` leads to."""
        scope = self
        for key in path:
            if scope.section is None:
                raise LookupError(f"there is no branch {key!r}")
            scope = scope.section.children[key]
        return scope

    def way_to(self, path: Sequence[Key], node: str | None = None) -> str:
        """What the branch that `path` leads to is called, or a node there: the names of all branches on the way.

        A task of a workflow is a branch of one node, and both have its name: it counts once.
        """
        names, scope, in_task = [], self, False
        for key in path:
            section = scope.section
            assert section is not None
            if not in_task:
                names.append(section.label(key))
            scope, in_task = section.children[key], section.layer is not None
        return "/".join(names if node is None or in_task else [*names, node])

    def begin(self, make: Callable[[Any], dict[str, Any]] = dict) -> dict[str, Any]:
        """The state of a branch that is about to run: its own, or a copy whose values are still shared."""
        if self.start is None:
            return self.state
        if self.base is None:
            self.state = make(self.start)
        else:
            self.state = make(self.base)
            dict.update(self.state, detached_value(self.start) if self.start else ())
            self.changed = dict.fromkeys(self.start)
        self.start = None
        return self.state

    def end(self) -> None:
        """A branch is done: only what is different about it is kept, and what it was about isn't."""
        if self.base is not None:
            self.state = self._different()
        self.visits, self.memos, self.answers, self.asked, self.section = {}, {}, {}, {}, None
        self.timers, self.hidden = {}, []
        self.path.clear()

    def result(self, base: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The state that a branch came to; `base` may stand for what it was copied from."""
        if self.base is None or not self.done:
            return dict(self.state)
        state = {**(self.base if base is None else base), **self.state}
        for key in self.changed:
            if key not in self.state:
                state.pop(key, None)
        return state

    def _different(self) -> dict[str, Any]:
        """What is different from the state that it was copied from, of what is still there."""
        state = self.state
        return {key: state[key] for key in self.changed if key in state}

    def fold(self) -> None:
        """All tasks of a layer are done: take over what they came to, in the order of the tasks."""
        section = self.section
        if section is not None and section.layer is not None and not section.folded:
            section.folded = True
            section.take_over(self.state, section.children.values())

    def so_far(self) -> dict[str, Any]:
        """The state with what the tasks of a layer came to that are done, although others aren't."""
        section = self.section
        if section is None or section.layer is None or section.folded:
            return self.state
        state = {
            key: value.copy() if type(value) in (list, dict) else value for key, value in self.state.items()
        }
        section.take_over(state, (child for child in section.children.values() if child.done))
        return state

    def apply(self, record: list[Any]) -> None:
        """Take over one decoded record of the journal."""
        kind, step, at, crashes = record[:4]
        if crashes != self.crashes:
            self.lost(crashes)
        if kind == STEP:
            if self.section is not None:
                self.fold()
            delta = record[6]
            if type(delta) is dict and self.base is None:
                dict.update(self.state, delta)  # what most steps do, without more ado
            else:
                self._apply(read_delta(delta))
            self.complete(record[4], at, record[5])
        elif kind == NESTED:
            self._nest(record[4], at, record[5])
        elif kind == MOVE:
            self.move(record[4])
            if len(record) > 5:
                self.change(record[5])
        elif kind == MEMO:
            self.memos[record[4]] = record[5]
        elif kind == OPEN:
            self.open(record[4])
        else:
            self._restore(record[4], record[5])
        self.step = step

    def _nest(self, path: list[Key], began: float, record: list[Any]) -> None:
        """Take over a record of the branch that `path` leads to."""
        branch = self.descend(path)
        branch.begin()
        if record[0] == STEP:
            branch.began = branch.began or began
            self.at = record[2]
        branch.crashes = record[3]
        branch.apply(record)
        if branch.done:
            branch.end()

    def _apply(self, delta: Delta) -> None:
        delta.apply(self.state, self.base)
        if self.base is not None:
            self.changed.update(dict.fromkeys(delta.keys))

    def lost(self, crashes: int) -> None:
        """So many holders have been lost by now: what they were about counts as an attempt, if it was one thing."""
        more, self.crashes = (
            max(crashes - self.crashes, 0),
            crashes,
        )  # fewer, where it came from another store
        scope: Progress | None = self
        while more and scope is not None and scope.status == RUNNING:
            if scope.section is None:
                scope.begin()  # it may have: what it was about counts, and is to be stored
                scope.attempts += more
            scope = scope.section.only if scope.section is not None else None

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

    def open_record(self, opening: bytes, at: float) -> bytes:
        """The record of branches that begin, by the encoded opening."""
        return extended(encode([OPEN, self.step, at, self.crashes]), opening)

    def nested_record(self, path: Sequence[Key], began: float, record: bytes) -> bytes:
        """The record of what happened in a branch, by its own record; `began` is when that was begun."""
        return extended(encode([NESTED, self.step, began, self.crashes, list(path)]), record)

    def snapshot_record(self) -> bytes:
        """The record of everything. Raises `UnstorableValue` with the path from the state's key on."""
        return extended(
            encode([SNAPSHOT, self.step, self.at, self.crashes, self._whole()]), encode(dict(self.state))
        )

    def _whole(self) -> dict[str, Any]:
        """All but the state. What is empty is left out: it is so from the start."""
        whole = {name: value for name in _PLAIN if (value := getattr(self, name))}
        if self.path:
            whole["path"] = list(self.path)
        if self.questions:
            whole["questions"] = [each.to_data() for each in self.questions]
        if self.section is not None:
            branches = [[key, *child._kept()] for key, child in self.section.children.items()]
            whole["section"] = [self.section.to_data(), [each for each in branches if len(each) > 1]]
        return whole

    def _kept(self) -> tuple[Any, ...]:
        """What is to be stored of a branch: nothing if it hasn't begun, else its position and what is different."""
        if self.start is not None:
            return ()
        whole = {**self._whole(), "step": self.step}
        del whole["run_id"]
        state = dict(self.state) if self.base is None else self._different()
        return whole, state, [key for key in self.changed if key not in self.state]

    def _restore(self, whole: dict[str, Any], state: dict[str, Any]) -> None:
        blank = Progress("", "", "", "", {})
        for name in _PLAIN:
            setattr(self, name, whole.get(name, getattr(blank, name)))
        self.state = state
        self.path = deque(whole.get("path", ()), PATH_KEPT)
        self.questions = [Question(**each) for each in whole.get("questions", ())]
        self.section = None
        if "section" in whole:
            opening, branches = whole["section"]
            section = self.open(opening)
            for key, inner, different, gone in branches:
                child = section.children[key]
                child.start, child.changed = None, dict.fromkeys([*different, *gone])
                if child.base is not None and inner["node"] != DONE:
                    kept = {name: value for name, value in child.base.items() if name not in child.changed}
                    different = kept | different
                child._restore({**inner, "run_id": self.run_id}, different)
                child.step = inner["step"]


_PLAIN = [
    each.name
    for each in fields(Progress)
    if each.name
    not in ("state", "path", "questions", "step", "crashes", "section", "base", "start", "changed")
]
