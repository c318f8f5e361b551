"""How far a stored run had come: its progress, its state and its history, without running a node.

Of a long journal, only the part that is needed is read. Later records are of later steps, so the last record of a
step is found by halving. The snapshot that it needs is looked for from there backwards: snapshots are written at
least as often as reading from the one before would cost. Where the journal isn't in this order, because checkpoints
were deleted or records are damaged, the step isn't found in that part, and the whole journal is read.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final, NamedTuple

from limpet.engine.leases.lease_client import LeaseClient
from limpet.engine.sessions.compatibility import check_stored_workflows
from limpet.errors import DamagedRecord, UsageError
from limpet.graphs.edges import END
from limpet.graphs.plan import PLANNER, Plan
from limpet.graphs.secrets import MaskedDict, secret_values, text_forms
from limpet.graphs.state import LiveState, State
from limpet.journal.encoding.codec import encode
from limpet.journal.open_parallel_section import Key
from limpet.journal.progress import Progress
from limpet.journal.reader import (
    Checkpoint,
    StoredTail,
    ViewedTail,
    check_complete,
    history,
    progress_at,
    progress_at_pause,
    read_progress,
    read_records,
)
from limpet.journal.records import SNAPSHOT
from limpet.journal.store import RunHead, Store, Tail
from limpet.journal.threads.records import thread_checkpoints
from limpet.journal.verify import newest_tail, salvaged_tail, whole_tail

LONG_JOURNAL: Final = 1000
"""Records from which on searching is quicker than reading all of them."""

FIRST_PART: Final = 128
"""Records that are read at once while a snapshot is looked for. Each further part is twice as large."""


class Difference(NamedTuple):
    """How two states differ: the keys that were added, those that were removed, and `(old, new)` for the rest.

    It is false when nothing differs.
    """

    added: dict[str, Any]
    removed: dict[str, Any]
    changed: dict[str, tuple[Any, Any]]

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed)

    def _repr_html_(self) -> str | None:
        """What a notebook shows: a table of the keys, before and after. Never raises."""
        from limpet.drawing import notebook

        return notebook.quietly(lambda: notebook.difference_as_html(self.added, self.removed, self.changed))


class StepList(list[Checkpoint]):
    """Steps of a run in a list, which a notebook shows as a table."""

    __slots__ = ()

    def _repr_html_(self) -> str | None:
        """What a notebook shows: a row for each step, the newest first. Never raises."""
        from limpet.drawing import notebook

        headings = ("step", "node", "at", "changed", "next", "status")
        return notebook.quietly(lambda: notebook.rows_as_html(list(map(_step_row, self[::-1])), headings))


def _step_row(step: Checkpoint) -> tuple[str, ...]:
    from limpet.drawing.notebook import utc_time_text

    node = "" if step.node in (None, PLANNER) else str(step.node)
    if step.branch:
        node = f"{step.branch}: {node}"
    following = "" if step.next in (END, PLANNER) else step.next
    time = utc_time_text(step.timestamp)
    return str(step.step), node, time, ", ".join(step.keys), following, step.reason or step.status


def checkpoints(client: LeaseClient, run_id: str) -> list[Checkpoint]:
    """All steps of a run that its journal still has, oldest first; of a thread, its checkpoints as they were saved.

    Raises `DamagedRecord` for a damaged record.
    """
    tail = whole_tail(client.store, run_id)
    if tail.head.kind:
        return thread_checkpoints(tail)
    found = history(ViewedTail(*tail))
    check_complete(tail)
    return StepList(found)


class CheckpointPage(NamedTuple):
    """Some steps of a run, oldest first, and whether there are later ones."""

    checkpoints: list[Checkpoint]
    has_more: bool


def checkpoint_page(client: LeaseClient, run_id: str, after: int, limit: int) -> CheckpointPage:
    """The steps after one, at most `limit`; after -1 they are the first. Only a part of a long journal is read."""
    following = limit + 1
    while True:
        found, is_whole = _steps_around(client, run_id, after, following)
        page = [each for each in found if each.step > after]
        # The last step may have more records than were read.
        if is_whole or len(page) > limit:
            return CheckpointPage(page[:limit], len(page) > limit)
        following *= 2


def _steps_around(
    client: LeaseClient, run_id: str, step: int, following: int
) -> tuple[list[Checkpoint], bool]:
    """Steps of a run, from before this one on, and whether they are all that follow."""
    tail = _tail_around(client.store, run_id, step, following)
    if tail is not None:
        with suppress(DamagedRecord):
            return history(ViewedTail(*tail)), tail.first + len(tail.records) > tail.head.sequence
    return checkpoints(client, run_id), True


def progress_of(client: LeaseClient, run_id: str, step: int | None, closed: int | None = None) -> Progress:
    """How far a run had come after a step, or has come by now. `closed` is as for `progress_at_pause`."""
    if step is None:
        progress = read_progress(newest_tail(client.store, run_id))
    else:
        # An earlier step can be read although later records are damaged: damage is an error only where it matters.
        if closed is None:
            progress = _progress_at(client, run_id, step, Tail)
        else:
            progress = progress_at_pause(salvaged_tail(client.store, run_id), step, closed)
    check_stored_workflows(progress)
    return progress


def viewed_progress(client: LeaseClient, run_id: str, step: int | None = None) -> Progress:
    """The same to be looked at: values of classes that aren't known here are `UnknownValue`s."""
    if step is None:
        return viewed_tail(client, run_id)[1]
    progress = _progress_at(client, run_id, step, ViewedTail)
    check_stored_workflows(progress)
    return progress


def _progress_at(client: LeaseClient, run_id: str, step: int, kind: type[Tail]) -> Progress:
    """How far a run had come after a step, from a part of a long journal if that is enough."""
    tail = _tail_around(client.store, run_id, step)
    if tail is not None:
        with suppress(DamagedRecord, UsageError):
            return progress_at(kind(*tail), step)
    return progress_at(kind(*salvaged_tail(client.store, run_id)), step)


def viewed_tail(client: LeaseClient, run_id: str) -> tuple[RunHead, Progress]:
    """A run's head and how far the run had come then, to be looked at."""
    tail = ViewedTail(*newest_tail(client.store, run_id))
    progress = read_progress(tail)
    check_stored_workflows(progress)
    return tail.head, progress


def state_in(progress: Progress, branch: str | None = None) -> dict[str, Any]:
    """The state of a run; or that of a branch, by the name that steps have it under. Raises `UsageError`.

    A branch is there from the step after which it was opened until the step that joins it.
    """
    if not branch:
        return progress.state_so_far()
    found = _open_branch(progress, branch)
    if found.done:
        return found.branch_state()
    if found.start is not None:  # it hasn't begun
        return {**(found.base or {}), **found.start}
    return found.state_so_far()


def _open_branch(progress: Progress, name: str) -> Progress:
    """The innermost branch that has this name: a task has it, and so has the graph that the task runs."""
    found: Progress | None = None
    level: list[tuple[tuple[Key, ...], Progress]] = [((), progress)]
    while level:
        inside = []
        for path, scope in level:
            if path and progress.path_name(path) == name:
                found = scope
            if scope.section is not None:
                inside += [((*path, key), child) for key, child in scope.section.children.items()]
        level = inside
    if found is None:
        raise UsageError(
            f"run {progress.run_id!r} has no branch {name!r} after step {progress.step}"
        ).with_advice("history() lists its steps, with their branches", "history")
    return found


def as_state(progress: Progress, plan: Plan | None, branch: str | None = None) -> State:
    """The state of a stored run, or of a branch: of the graph's own kind, if its plan is given."""
    data = state_in(progress, branch)
    secrets = secrets_of(progress) if plan is None else plan.secrets
    if plan is None or branch:  # a graph inside of a node has a schema of its own
        live = LiveState.from_data(data)
    else:
        live = plan.schema.live_class.from_data(data, plan.schema)
    live.run_id = progress.run_id
    live.checkpoint_node = progress.made_by
    live._at = progress.at
    live._emit = None
    live._saved = progress.checkpoint_id
    if secrets:
        live._secrets = secrets
    return live._copy()


def difference(
    client: LeaseClient, run_id: str, a: int, b: int, plan: Plan | None, branch: str | None = None
) -> Difference:
    """How the state after step `b` differs from that after step `a`; in a branch, if one is named.

    Printing it masks the secrets. The plan knows which keys are secret; without it, they are those that were when
    the run was created.
    """
    old = state_in(_progress_at(client, run_id, a, ViewedTail), branch)
    newer = _progress_at(client, run_id, b, ViewedTail)
    new = state_in(newer, branch)
    added = {key: value for key, value in new.items() if key not in old}
    removed = {key: value for key, value in old.items() if key not in new}
    # Encoded bytes are compared, as values of users' types need not have a useful `==`.
    changed = {
        key: (old[key], value)
        for key, value in new.items()
        if key in old and encode(old[key]) != encode(value)
    }
    secrets = secrets_of(newer)
    if plan is not None:
        secrets = plan.secrets
    if not secrets:
        return Difference(added, removed, changed)
    forms = text_forms(value for state in (old, new) for value in secret_values(state, secrets))
    return Difference(*(MaskedDict(part, secrets, forms) for part in (added, removed, changed)))


def secrets_of(progress: Progress) -> frozenset[str]:
    """The keys that the run's graph had marked as secret when the run was created."""
    return frozenset(map(str, progress.meta.get("secrets", ())))


def stored_secrets(client: LeaseClient, run_id: str) -> frozenset[str]:
    """The same for a stored run. They never change, so of a long journal only the newest snapshot is read.

    Raises `RunNotFound`, `DamagedRecord`, and `UsageError` if the journal was deleted when the run completed.
    """
    head = client.head(run_id)
    tail = client.store.read(run_id, head.snapshot, head.snapshot)
    for _, record in read_records(StoredTail(*tail)):
        if record[0] == SNAPSHOT:
            return frozenset(map(str, record[4].get("meta", {}).get("secrets", ())))
    return secrets_of(viewed_progress(client, run_id))  # it was deleted meanwhile, as there is a newer one


def _tail_around(store: Store, run_id: str, step: int, following: int = 0) -> Tail | None:
    """The records from a snapshot up to the end of a step, and then some more: `following` ones, if there are.

    Step -1 is before the first. None for a short journal, and for one in which the step can't be found in this way.
    Raises `RunNotFound`, and what keeps the store from being read.
    """
    try:
        head = store.head(run_id)
        if head.sequence < LONG_JOURNAL or head.kind or type(step) is not int:
            return None
        last = _last_record(store, head, step)
        if last == 0:
            found = store.read(run_id, 1, following)
        else:
            first = _snapshot_before(store, head, last)
            found = store.read(run_id, first, min(last + following, head.sequence))
    except DamagedRecord:
        return None
    if not found.records:
        return None
    return found


def _last_record(store: Store, head: RunHead, step: int) -> int:
    """The number of the last record of a step or of those before it; 0 if all are of later steps."""
    low = 0
    high = head.sequence
    while low < high:
        middle = (low + high + 1) // 2
        if _is_later(store, head, middle, step):
            high = middle - 1
        else:
            low = middle
    return low


def _is_later(store: Store, head: RunHead, number: int, step: int) -> bool:
    """Whether a record is of a later step. Those that were deleted were of earlier ones."""
    tail = store.read(head.run_id, number, number)
    steps: list[int] = [record[1] for _, record in read_records(StoredTail(*tail))]
    return bool(steps) and steps[0] > step


def _snapshot_before(store: Store, head: RunHead, last: int) -> int:
    """The number of the newest snapshot up to a record; 1 if there is none."""
    size = FIRST_PART
    while last > 0:
        first = max(last - size + 1, 1)
        tail = store.read(head.run_id, first, last)
        # Values aren't restored, as only the kinds of records matter.
        numbers = [number for number, record in read_records(StoredTail(*tail)) if record[0] == SNAPSHOT]
        if numbers:
            return numbers[-1]
        last = first - 1
        size *= 2
    return 1
