"""`Progress`: the state, the position and the counters of a run, as its journal has them.

A `Progress` is restored from a snapshot and the records after it: `records.apply_record` applies one record. The
engine advances the live one by the same methods. That is why a resumed run equals a run that was never interrupted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from limpet.journal import open_parallel_section, waits
from limpet.journal.delta import Delta, read_delta
from limpet.journal.encoding.codec import detached_value
from limpet.journal.open_parallel_section import Key, OpenSection
from limpet.journal.store import CANCELLED, PAUSED, RUNNING
from limpet.journal.waits import AFTER, ARRIVAL, BEFORE, DONE, INTERRUPTED, NEXT_ATTEMPT, PostWait, Question

PATH_KEPT = 256
"""How many of the newest node names `path` keeps. `iterations` counts them all."""


@dataclass(slots=True, eq=False, repr=False)
class Progress:
    """The progress of a run, of a branch, or of a graph that a node runs: a state and a position.

    `node` and `phase` are the position: the node that runs next (`before`), that has run while its next node isn't
    chosen yet (`after`), or that failed and will be retried (`failed`). `cleared` means that the interrupts
    at this position have been taken. `made_by` is the node that completed last, `step` its number. `attempts` counts
    the ended attempts of the node at this position. `answers`, the prompts that were `asked` for them, the ids of
    those to be `hidden`, and `memos` belong to the same node. `timers` are the times until which the node sleeps or
    its questions can be answered: nothing happens at the position before the `ARRIVAL` timer, nor before the
    `NEXT_ATTEMPT` timer, which a resume doesn't wait for. `caught` is the error of another node, if an error edge led
    here, and `goto` the next node that a node has named before the run stopped after it. `waits` is what the node
    waits for besides that, and `received` what it has received, by call, as a `waits.Letter`; None where none came in
    time. The run itself has a `mailbox`: by box, the numbers and values of letters that no node has received, in
    order; `letters` is the number of the newest. `crashes` is how many holders had crashed when the last record was
    written. `parent` is the checkpoint that it was forked from, and `child_of` the run that started it: these names
    are part of the stored format. `deadline` is when a run that hasn't ended fails, by the store's clock.

    `section` has the branches at this position. Before a branch begins, `start` is what it will start with: its
    whole state, or what is put over a copy of its `base`, the state of the run that it branches from. Values are
    shared with `base` until they change; `changed` names the keys that differ, deleted ones included. When such a
    branch is done, its `state` holds only these.
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
    waits: list[PostWait] = field(default_factory=list)
    received: dict[str, Any] = field(default_factory=dict)
    mailbox: dict[str, list[list[Any]]] = field(default_factory=dict)
    letters: int = 0
    error: dict[str, Any] | None = None
    goto: str | None = None
    caught: list[Any] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)
    meta: dict[str, Any] = field(default_factory=dict)
    parent: str | None = None
    child_of: str | None = None
    deadline: float | None = None
    began: float = 0.0
    section: OpenSection | None = None
    base: dict[str, Any] | None = None
    start: dict[str, Any] | None = None
    changed: dict[str, None] = field(default_factory=dict)

    @property
    def done(self) -> bool:
        """Whether no node comes next."""
        return self.node == DONE

    @property
    def is_queued(self) -> bool:
        """Whether it was started for a worker, and no process has begun with it."""
        return bool(self.meta.get("queued")) and not self.has_begun

    @property
    def has_begun(self) -> bool:
        """Whether a call of its first node has left something behind, at least."""
        left_behind = (self.attempts, self.asked, self.memos, self.waits, self.received)
        return bool(self.iterations) or self.section is not None or any(left_behind)

    @property
    def checkpoint_id(self) -> str:
        """The id of the run's checkpoint as it is now. Of two pauses in one step, each has its own."""
        closed = self.closed_questions()
        if not closed:
            return f"{self.run_id}@{self.step}"
        return f"{self.run_id}@{self.step}.{closed}"

    def complete(self, node: str, at: float, following: str | None) -> None:
        """A node completed and `following` is next. None means that the next node isn't chosen yet."""
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
        # Most nodes leave nothing to reset. One test is cheaper than eight assignments at every step.
        if (
            self.attempts
            or self.answers
            or self.memos
            or self.error
            or self.section
            or self.timers
            or self.received
            or self.caught
        ):
            section = self.section
            self.attempts = 0
            self.error = None
            self.caught = []
            self._forget_node()
            if section is not None and section.flow is not None and following == node:
                # A layer of a data flow is done. Tasks of later layers have begun and stay open.
                section.next_layer()
                self.section = section

    def move(self, changes: Mapping[str, Any]) -> None:
        """Something other than a completed node happened: set the named fields.

        Some names aren't fields but events of the run and its branches: see `waits.EVENTS`.
        """
        for name, value in changes.items():
            if name == "questions":
                self.questions = [Question(**each) for each in value]
            elif name == "waits":
                self.waits = [PostWait(**each) for each in value]
            elif name in waits.EVENTS:
                waits.EVENTS[name](self, value)
            elif name == waits.ADVANCE:
                open_parallel_section.advance(self, value)
            else:
                setattr(self, name, value)

    def change_state(self, delta: Any) -> None:
        """Apply a decoded delta that comes from outside of any node. Branches under way don't see the change.

        The tasks of an open layer do. Entries that the delta merges into dicts stay newer than what those tasks
        return.
        """
        change = read_delta(delta)
        section = self.section
        if section is not None:
            if section.layer is not None and (section.flow is not None or not section.folded):
                section.note_addition(change)
            section.keep_inherited(change.keys, self.state)
            # A branch may share these values: copy them, as they grow in place.
            for key in (*change.appends, *change.merges, *change.replaces):
                if key in self.state:
                    dict.__setitem__(self.state, key, self.state[key].copy())
        self.apply_delta(change)

    def apply_delta(self, delta: Delta) -> None:
        """Change the state, and note which keys differ from `base`."""
        delta.apply(self.state, self.base)
        if self.base is not None:
            self.changed.update(dict.fromkeys(delta.keys))

    def count_crashes(self, crashes: int) -> None:
        """Set how many holders have crashed. Each new crash counts as an attempt of the node that was running.

        It counts only where one node alone was running: in a section with several branches under way, the journal
        doesn't say which of them took the process down.
        """
        # Fewer than before where the run was imported from another store: then none is new.
        new_crashes = max(crashes - self.crashes, 0)
        self.crashes = crashes
        scope: Progress | None = self
        while new_crashes and scope is not None and scope.status == RUNNING and not scope.waits:
            if scope.section is not None:
                scope = scope.section.only_unfinished
                continue
            # The branch may have begun before the crash. Begin it, so that the attempt is stored.
            scope.begin_branch()
            scope.attempts += new_crashes
            return

    # Branches

    def open_section(self, opening: dict[str, Any]) -> OpenSection:
        """Branches begin here, as described by `opening` (see `OpenSection`)."""
        section = OpenSection(opening, self.state, self.step)
        self.section = section
        base = None if section.own_state else self.state
        for key, node, start in section.branch_starts(opening):
            child = Progress(self.run_id, "", "", node, {}, base=base, start=start)
            section.children[key] = child
            if section.inside:
                child.attempts = self.attempts
        return section

    def begin_branch(self, make: Callable[[Any], dict[str, Any]] = dict) -> dict[str, Any]:
        """The state of a branch that is about to run: its own, or a copy that shares its values with `base`."""
        if self.start is None:
            return self.state
        if self.base is None:
            self.state = make(self.start)
        else:
            self.state = make(self.base)
            if self.start:
                dict.update(self.state, detached_value(self.start))
            self.changed = dict.fromkeys(self.start)
        self.start = None
        return self.state

    def end_branch(self) -> None:
        """A branch is done: keep only what its fan-in needs."""
        if self.base is not None:
            self.state = self.changed_values()
        self.visits = {}
        self.path.clear()
        # A node that completed left nothing to forget. One whose failure ends the branch may have.
        if self.answers or self.memos or self.section or self.timers or self.received:
            answers = self.answers
            self._forget_node()
            # The section's step isn't over, so its closed questions still count.
            self.answers = answers

    def changed_values(self) -> dict[str, Any]:
        """The keys of a branch that differ from `base`, with their values. Deleted keys aren't among them."""
        state = self.state
        return {key: state[key] for key in self.changed if key in state}

    def branch_state(self, base: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The whole state of a branch. `base` can replace the state that it was copied from."""
        if self.base is None or not self.done:
            return dict(self.state)
        if base is None:
            base = self.base
        state = {**base, **self.state}
        for key in self.changed:
            if key not in self.state:
                state.pop(key, None)
        return state

    def branch_at(self, path: Sequence[Key]) -> Progress:
        """The branch that `path` leads to."""
        scope = self
        for key in path:
            if scope.section is None:
                raise LookupError(f"there is no branch {key!r}")
            scope = scope.section.children[key]
        return scope

    def path_name(self, path: Sequence[Key], node: str | None = None) -> str:
        """The name of the branch that `path` leads to, or of a node there: the names of all branches on the path.

        A task of a workflow is a branch of one node with the same name: that name appears once.
        """
        names = []
        scope = self
        in_task = False
        for key in path:
            section = scope.section
            assert section is not None
            if not in_task:
                names.append(section.label(key))
            scope = section.children[key]
            in_task = section.layer is not None
        if node is not None and not in_task:
            names.append(node)
        return "/".join(names)

    def branches_under_way(self, path: tuple[Key, ...] = ()) -> Iterator[tuple[tuple[Key, ...], Progress]]:
        """The branches that have begun and aren't done, at any depth, with the path to each."""
        if self.section is None:
            return
        for key, child in self.section.children.items():
            if not child.done and child.start is None:
                yield (*path, key), child
                yield from child.branches_under_way((*path, key))

    def stopped_branches(self) -> Iterator[tuple[tuple[Key, ...], Progress]]:
        """The branches that wait for an answer, an approval, a retry or a letter, with the path to each."""
        for path, branch in self.branches_under_way():
            if branch.status != RUNNING or branch.waits:
                yield path, branch

    def current_node(self) -> str:
        """The name of the current node. Where exactly one branch has stopped: its node, with the path to it."""
        stopped = list(self.stopped_branches())
        if len(stopped) != 1:
            return self.node
        path, branch = stopped[0]
        return self.path_name(path, branch.node)

    # The layers of a workflow

    def fold_layer(self) -> None:
        """All tasks of a layer are done: fold what they returned into the state, in the order of the tasks."""
        section = self.section
        if section is not None and section.layer is not None and not section.folded:
            section.fold_layer(self.state)

    def state_so_far(self) -> dict[str, Any]:
        """The state with what the finished tasks of open layers returned, although other tasks aren't done."""
        section = self.section
        if section is None or section.layer is None or section.folded:
            return self.state
        state = {}
        for key, value in self.state.items():
            state[key] = value.copy() if type(value) in (list, dict) else value
        section.fold_done(state)
        return state

    # What it waits for

    def due(self) -> float | None:
        """When the run needs a process, by the store's clock: to continue, or to fail at its deadline.

        None if it has no deadline and waits for an answer, or for a letter.
        """
        continues = self.continues_at()
        if self.deadline is None or continues is None:
            return self.deadline if continues is None else continues
        return min(continues, self.deadline)

    def continues_at(self) -> float | None:
        """From when on the run can continue by itself, by the store's clock; None if it waits for others."""
        times: list[float | None]
        if self.section is not None and any(not child.done for child in self.section.children.values()):
            times = [child.continues_at() for child in self.section.children.values() if not child.done]
        elif self.waits:
            times = [wait.deadline for wait in self.waits]
        elif self.status == RUNNING:
            times = [0.0]
        else:
            times = [question.deadline for question in self.questions]
        known = [time for time in times if time is not None]
        return max(min(known), self.sleeps_until) if known else None

    def can_run(self) -> bool:
        """Whether a node can be called here or in a branch, now or after a sleep: not all of it waits for others."""
        if self.section is not None and any(not child.done for child in self.section.children.values()):
            return any(child.can_run() for child in self.section.children.values() if not child.done)
        return self.status == RUNNING and not self.waits

    def due_when_released(self) -> float | None:
        """The due time of a run that its process leaves as it is: at once, unless it waits for a time or a letter."""
        if self.continues_at() is None and not self.all_waits():
            return 0.0
        return self.due()

    def all_waits(self) -> list[PostWait]:
        """What nodes wait for besides answers, here and in branches."""
        found = list(self.waits)
        for _, branch in self.branches_under_way():
            found += branch.waits
        return found

    @property
    def sleeps_until(self) -> float:
        """Until when nothing happens at this position, by the store's clock."""
        return max(self.timers.get(ARRIVAL, 0.0), self.timers.get(NEXT_ATTEMPT, 0.0))

    def open_questions(self) -> list[Question]:
        """All questions that can be answered now, here and in branches: none while the run is cancelled."""
        if self.status == CANCELLED:
            return []
        return self.unanswered_questions()

    def unanswered_questions(self) -> list[Question]:
        """All questions without an answer, here and in branches. A cancelled run asks them again once it runs."""
        questions = list(self.questions)
        for _, branch in self.stopped_branches():
            questions += branch.questions
        return questions

    @property
    def waits_for_approval(self) -> bool:
        """Whether the run was interrupted before or after a node, and asks nothing."""
        is_interrupted = (self.reason or "").startswith(INTERRUPTED)
        return self.status == PAUSED and is_interrupted and not self.open_questions()

    @property
    def is_at_interrupt(self) -> bool:
        """Whether the run waits for an approval where it is itself, not in a branch or in an inner graph."""
        return self.waits_for_approval and not any(self.stopped_branches())

    def answered_questions(self) -> list[str]:
        """The ids of the questions that were answered, here and in branches, by nodes that haven't completed."""
        answered = list(self.answers)
        if self.section is not None:
            for child in self.section.children.values():
                answered += child.answered_questions()
        return answered

    def closed_questions(self) -> int:
        """How many questions were answered or withdrawn, here and in branches, by nodes that haven't completed.

        The number only grows until the next step. So the step and this number distinguish all pauses of a run.
        """
        # A question that was withdrawn at its deadline has a timer with its id.
        withdrawn = [name for name in self.timers if name.count(":") > 1 and name not in self.answers]
        closed = len(self.answers) + len(withdrawn)
        if self.section is not None:
            closed += sum(child.closed_questions() for child in self.section.children.values())
        return closed

    def expired_questions(self, now: float) -> list[str]:
        """The ids of the open questions whose deadline has passed."""
        expired = []
        for question in self.unanswered_questions():
            if question.deadline is not None and question.deadline <= now:
                expired.append(question.id)
        return expired

    def _forget_node(self) -> None:
        """Forget what belonged to the node at the last position."""
        self.answers = {}
        self.asked = {}
        self.hidden = []
        self.memos = {}
        self.timers = {}
        self.waits = []
        self.received = {}
        self.section = None
