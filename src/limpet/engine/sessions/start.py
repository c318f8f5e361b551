"""Create a run: to execute it here and now, or to queue it for a supervisor."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from time import time
from typing import Any

from limpet.engine.leases.process_identity import this_process
from limpet.engine.sessions.compiled_graph import RUN_SETTINGS, CompiledGraph
from limpet.engine.sessions.provenance import environment
from limpet.engine.sessions.session import Session, SessionOptions
from limpet.errors import RunExists, UnstorableValue, UsageError
from limpet.graphs.plan import Plan
from limpet.graphs.secrets import hide_secret_path
from limpet.graphs.state import new_id
from limpet.journal.encoding.codec import detached_value, encode
from limpet.journal.encoding.envelope import Envelope
from limpet.journal.progress import Progress
from limpet.journal.records import snapshot_record
from limpet.journal.store import RUNNING, Labels, NewRun
from limpet.journal.writer import JournalWriter, summary
from limpet.observe import events

MAX_ID_LENGTH = 200
"""Characters that a run id may have."""


def start(
    compiled: CompiledGraph,
    input: Any,
    config: Mapping[str, Any] | None,
    run_id: str,
    tags: tuple[str, ...],
    stream: bool,
) -> Session:
    """Create a run and open it. Raises `RunExists`, `UnstorableValue`, `UsageError`."""
    client = compiled.client
    progress = _initial_progress(compiled.plan, input, config, run_id)
    writer = None
    lease = None
    if client is not None:
        encode(progress.config, "config")
        progress.meta = run_metadata(compiled, tags)
        try:
            snapshot = snapshot_record(progress)
        except UnstorableValue as problem:
            raise hide_secret_path(problem, compiled.plan.secrets) from None
        lease = client.create(new_run(progress, tags, this_process(), client.ttl, due=0.0, snapshot=snapshot))
        writer = JournalWriter(run_id, lease.lease.fence, 1, size=len(snapshot))
    emit_start(compiled, run_id)
    return Session(compiled, progress, writer, lease, SessionOptions(stream, resumed=False))


def enqueue(
    compiled: CompiledGraph,
    input: Any,
    config: Mapping[str, Any] | None,
    run_id: str,
    tags: tuple[str, ...],
    priority: int,
    delay: float,
) -> bool:
    """Create a run for a supervisor of the store. False if this run already exists.

    Raises `RunExists` if the id is that of a run of another graph, `UnstorableValue`, `UsageError`.
    """
    client = compiled.need_client("start")
    if not client.store.abilities.leases:
        unfit = UsageError(
            f"{client.store} can't keep two processes apart, so no other process can execute the run"
        )
        raise unfit.with_advice("execute() it here")
    progress = _initial_progress(compiled.plan, input, config, run_id)
    encode(progress.config, "config")
    progress.meta = {**run_metadata(compiled, tags), "queued": True}
    # The delay is by the store's clock, which a holder learns with its lease. So a run with a delay is created with
    # this process as its holder, which then commits when the run is due, and releases it.
    holder = this_process() if delay else None
    try:
        run = new_run(progress, tags, holder, client.ttl, due=0.0, priority=priority)
    except UnstorableValue as problem:
        raise hide_secret_path(problem, compiled.plan.secrets) from None
    try:
        if not delay:
            client.store.create(run)
            return True
        lease = client.create(run)
    except RunExists:
        if client.head(run_id).graph != compiled.plan.name:
            raise
        return False
    with client.releasing(lease) as held:
        writer = JournalWriter(run_id, held.fence, 1)
        held.commit(writer.commit(RUNNING, ignores_posts=True, due=held.now() + delay))
    return True


def new_run(
    progress: Progress,
    tags: tuple[str, ...],
    holder: str | None,
    ttl: float,
    due: float | None = None,
    priority: int = 0,
    snapshot: bytes | None = None,
) -> NewRun:
    """The run that starts with this progress, as a store takes it; `snapshot` is its first record, if it is made."""
    first = Envelope(progress.run_id).close(1, snapshot or snapshot_record(progress))
    note = b""
    labels = Labels()
    if progress.status != RUNNING:
        note, labels = summary(progress)
    return NewRun(
        run_id=progress.run_id,
        graph=progress.graph,
        records=[first],
        status=progress.status,
        holder=holder,
        ttl=ttl,
        tags=tags,
        parent=progress.parent,
        note=note,
        due=due,
        priority=priority,
        labels=labels,
    )


def run_metadata(compiled: CompiledGraph, tags: tuple[str, ...]) -> dict[str, Any]:
    """What is stored with a new run about where it was created, and how."""
    settings = {name: getattr(compiled, name) for name in RUN_SETTINGS}
    metadata: dict[str, Any] = {**environment(), "tags": list(tags), "settings": settings}
    if compiled.plan.secrets:
        metadata["secrets"] = sorted(compiled.plan.secrets)
    return metadata


def emit_start(compiled: CompiledGraph, run_id: str) -> None:
    """Notify the observers that a run starts."""
    if compiled.emit is None:
        return
    plan = compiled.plan
    # The entry of a workflow is its planner, which isn't a node of the user's.
    entry = plan.entry if plan.layers is None else None
    compiled.emit(events.GRAPH_START, plan.name, {"run_id": run_id, "entry": entry})


def choose_id(given: str | None) -> str:
    """The id of a new run: the given one, checked, or a new one. Raises `UsageError`."""
    if given is None:
        return new_id()
    return check_id(given)


def check_id(run_id: Any) -> str:
    """A valid run id: a str of 1 to 200 printable characters. Raises `UsageError` for another."""
    if not isinstance(run_id, str) or not 0 < len(run_id) <= MAX_ID_LENGTH or not run_id.isprintable():
        raise UsageError(
            f"a run id must be a str of 1 to {MAX_ID_LENGTH} printable characters, not {run_id!r}"
        )
    return run_id


def tag_names(tags: Iterable[str]) -> tuple[str, ...]:
    """Tags as a run is stored with them; a single one may be a str. Raises `UsageError`."""
    found = (tags,) if isinstance(tags, str) else tuple(tags)
    if not all(isinstance(tag, str) and tag for tag in found):
        raise UsageError(f"tags must be non-empty strs, not {found!r}")
    return found


def _initial_progress(plan: Plan, input: Any, config: Mapping[str, Any] | None, run_id: str) -> Progress:
    """A run before its first node. Its state shares nothing with the caller's input."""
    if plan.layers is not None:
        # The state of a workflow is made of the inputs, so these are copied.
        state = plan.schema.initial(detached_value(input))
    else:
        state = detached_value(plan.schema.initial(input))
    return Progress(
        run_id, plan.name, plan.fingerprint, plan.entry, state, at=time(), config=dict(config or {})
    )
