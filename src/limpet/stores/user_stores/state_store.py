"""A user's object that keeps States by run id: `save(state)`, `load(run_id)`, `delete(run_id)`, `list()`.

`StatesAsCheckpoints` gives it the five methods of a `CheckpointStore`, so that `AdaptedStore` makes a store of it.
Each State that it is handed is the run's state, and has the run itself as text under one more key. A State without
that key was saved by hand: its run continues after the node that it names.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from importlib import import_module
from inspect import Parameter, iscoroutinefunction, signature
from typing import Any, Protocol

from limpet.errors import UsageError
from limpet.journal.encoding.codec import detached_value
from limpet.journal.encoding.envelope import Envelope
from limpet.journal.progress import Progress
from limpet.journal.reader import read_progress
from limpet.journal.records import snapshot_record
from limpet.journal.store import PAUSED, RunHead, Tail
from limpet.journal.waits import AFTER
from limpet.stores.user_stores.checkpoint_state import KEY, CheckpointState, PackedRun, checkpoint_of, run_of

STATE_METHODS = ("save", "load", "delete", "list")


class StateStore(Protocol):
    """Keeps the newest State of each run. Any object with these methods is one."""

    def save(self, state: Any, /) -> object:
        """Keep a State, in place of that with the same `run_id`."""
        ...

    def load(self, run_id: str, /) -> Any:
        """The State of this run, equal to what was saved. None, or a LookupError, if there is none."""
        ...

    def delete(self, run_id: str, /) -> object:
        """Remove the State of a run. A missing one is not an error."""
        ...

    def list(self) -> Iterable[Any]:
        """The ids of all runs, or their States."""
        ...


def is_state_store(target: Any) -> bool:
    """Whether an object keeps States: it has the four methods and no fifth, and its `save` takes one argument."""
    if isinstance(target, type) or hasattr(target, "cleanup_expired"):
        return False
    if not all(callable(getattr(target, name, None)) for name in STATE_METHODS):
        return False
    try:
        parameters = signature(target.save).parameters.values()
    except (TypeError, ValueError):
        return False
    required = [each for each in parameters if each.default is Parameter.empty]
    return len([each for each in required if each.kind is not Parameter.VAR_KEYWORD]) == 1


class StatesAsCheckpoints:
    """The five methods of a `CheckpointStore` over a `StateStore`. Raises `UsageError` for async methods."""

    def __init__(self, states: StateStore) -> None:
        awaited = [name for name in STATE_METHODS if iscoroutinefunction(getattr(states, name))]
        self.kind = type(states).__qualname__
        if awaited:
            raise UsageError(f"the methods of a store can't be async: {', '.join(awaited)} of {self.kind}")
        self.states = states
        self.level = getattr(states, "level", "memory")

    def save(self, checkpoint: CheckpointState) -> None:
        """Save the State that this checkpoint of a run is."""
        run = run_of(checkpoint.checkpoint_id, checkpoint)
        progress = _progress_of(run)
        data: dict[str, Any] = {}
        node = None
        at = run.head.updated
        if progress is not None:
            data = progress.state_so_far()
            node = progress.made_by
            at = progress.at
        data = {**data, KEY: checkpoint.context[KEY]}
        state = _state_class()(data, run_id=run.head.run_id, checkpoint_node=node, timestamp=at)
        self.states.save(state)

    def load(self, run_id: str) -> CheckpointState | None:
        """The checkpoint of a run, if the object has a State of it."""
        try:
            state = self.states.load(run_id)
        except (LookupError, FileNotFoundError):
            return None
        except Exception:
            if run_id in self._run_ids():
                raise
            return None  # its way to say that there is none
        return None if state is None else as_checkpoint(state)

    def delete(self, run_id: str) -> None:
        """Delete the State of a run."""
        self.states.delete(run_id)

    def list(self, workflow_name: str | None = None) -> Sequence[CheckpointState]:
        """The checkpoints of all runs. Which graph a run belongs to is in the checkpoint."""
        found = [self.load(run_id) for run_id in self._run_ids()]
        return [each for each in found if each is not None]

    def cleanup_expired(self, max_age_hours: int = 24) -> int:
        """Nothing: a StateStore has no clean-up of its own."""
        return 0

    def _run_ids(self) -> Sequence[str]:
        return [each if isinstance(each, str) else each.run_id for each in self.states.list()]


def as_checkpoint(state: Any) -> CheckpointState:
    """A State as a checkpoint of its run: of the run that it has in it, or of one that begins with it."""
    run_id: str = state.run_id
    blob = dict.get(state, KEY)
    if blob is not None:
        return CheckpointState(run_id, "", context={KEY: blob})
    progress = saved_by_hand(state)
    first = Envelope(run_id).close(1, snapshot_record(progress))
    head = RunHead(
        run_id=run_id,
        graph="",
        status=PAUSED,
        sequence=1,
        snapshot=1,
        fence=1,
        created=progress.at,
        updated=progress.at,
    )
    return checkpoint_of(run_id, PackedRun(head, [first]), None, progress.at)


def saved_by_hand(state: Any) -> Progress:
    """A run that stands after the node of a State, or before its first, and that belongs to no graph yet.

    The graph that resumes it adopts it. Its state shares nothing with the State.
    """
    node: str | None = state.checkpoint_node
    moment = state.timestamp
    at = moment.replace(tzinfo=moment.tzinfo or UTC) if isinstance(moment, datetime) else datetime.now(UTC)
    data = {key: value for key, value in dict.items(state) if key != KEY}
    progress = Progress(state.run_id, "", "", node or "", detached_value(data), at=at.timestamp())
    progress.status = PAUSED
    progress.reason = "saved by hand"
    # There is no interrupt at the node, since this is where the user wants to continue.
    progress.cleared = True
    if node is not None:
        progress.phase = AFTER
        progress.made_by = node
        progress.step = 1
        progress.iterations = 1
        progress.visits = {node: 1}
        progress.path.append(node)
    return progress


def _progress_of(run: PackedRun) -> Progress | None:
    """How far a run has come; None if its records can't be read, as when they are encrypted."""
    head, records = run
    try:
        newest = list(records[head.snapshot - (head.sequence - len(records)) - 1 :])
        return read_progress(Tail(head, head.snapshot, newest))
    except Exception:
        return None


def _state_class() -> Any:
    """The class `State`. It belongs to a layer above the stores, so it is looked up by its name."""
    return import_module("limpet.graphs.state").State
