"""How far a stored run had come: its progress, its state and its history, without running a node."""

from __future__ import annotations

from typing import Any, NamedTuple

from limpet.engine.leases.lease_client import LeaseClient
from limpet.engine.sessions.compatibility import check_stored_workflows
from limpet.graphs.plan import Plan
from limpet.graphs.secrets import MaskedDict
from limpet.graphs.state import LiveState, State
from limpet.journal.encoding.codec import encode
from limpet.journal.progress import Progress
from limpet.journal.reader import (
    Checkpoint,
    ViewedTail,
    check_complete,
    history,
    progress_at,
    progress_at_pause,
    read_progress,
)
from limpet.journal.store import RunHead
from limpet.journal.verify import newest_tail, salvaged_tail, whole_tail


class Difference(NamedTuple):
    """How two states differ: the keys that were added, those that were removed, and `(old, new)` for the rest."""

    added: dict[str, Any]
    removed: dict[str, Any]
    changed: dict[str, tuple[Any, Any]]

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed)


def checkpoints(client: LeaseClient, run_id: str) -> list[Checkpoint]:
    """All steps of a run that its journal still has, oldest first. Raises `DamagedRecord` for a damaged record."""
    tail = whole_tail(client.store, run_id)
    found = history(ViewedTail(*tail))
    check_complete(tail)
    return found


def progress_of(client: LeaseClient, run_id: str, step: int | None, closed: int | None = None) -> Progress:
    """How far a run had come after a step, or has come by now. `closed` is as for `progress_at_pause`."""
    if step is None:
        progress = read_progress(newest_tail(client.store, run_id))
    else:
        # An earlier step can be read although later records are damaged: damage is an error only where it matters.
        tail = salvaged_tail(client.store, run_id)
        progress = progress_at(tail, step) if closed is None else progress_at_pause(tail, step, closed)
    check_stored_workflows(progress)
    return progress


def viewed_progress(client: LeaseClient, run_id: str, step: int | None = None) -> Progress:
    """The same to be looked at: values of classes that aren't known here are `UnknownValue`s."""
    if step is None:
        return viewed_tail(client, run_id)[1]
    progress = progress_at(ViewedTail(*salvaged_tail(client.store, run_id)), step)
    check_stored_workflows(progress)
    return progress


def viewed_tail(client: LeaseClient, run_id: str) -> tuple[RunHead, Progress]:
    """A run's head and how far the run had come then, to be looked at."""
    tail = ViewedTail(*newest_tail(client.store, run_id))
    progress = read_progress(tail)
    check_stored_workflows(progress)
    return tail.head, progress


def as_state(progress: Progress, plan: Plan | None) -> State:
    """The state of a stored run as users get it: of the graph's own kind, if its plan is given."""
    data = progress.state_so_far()
    if plan is None:
        live = LiveState.from_data(data)
        secrets = secrets_of(progress)
    else:
        live = plan.schema.live_class.from_data(data, plan.schema)
        secrets = plan.secrets
    live.run_id = progress.run_id
    live.checkpoint_node = progress.made_by
    live._at = progress.at
    live._emit = None
    live._saved = progress.checkpoint_id
    if secrets:
        live._secrets = secrets
    return live._copy()


def difference(client: LeaseClient, run_id: str, a: int, b: int, plan: Plan | None) -> Difference:
    """How the state after step `b` differs from that after step `a`. Printing it masks the secrets.

    The plan knows which keys are secret; without it, they are those that were when the run was created.
    """
    tail = ViewedTail(*salvaged_tail(client.store, run_id))
    old = progress_at(tail, a).state_so_far()
    newer = progress_at(tail, b)
    new = newer.state_so_far()
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
    return Difference(MaskedDict(added, secrets), MaskedDict(removed, secrets), MaskedDict(changed, secrets))


def secrets_of(progress: Progress) -> frozenset[str]:
    """The keys that the run's graph had marked as secret when the run was created."""
    return frozenset(map(str, progress.meta.get("secrets", ())))
