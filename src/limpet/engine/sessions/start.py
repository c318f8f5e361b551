"""How a run comes to be: begun here and now, or left in the store for a supervisor to begin."""

from __future__ import annotations

from collections.abc import Mapping
from time import time
from typing import Any

from limpet.engine.leases.process_identity import this_process
from limpet.engine.sessions.provenance import environment
from limpet.engine.sessions.session import CompiledGraph, Session
from limpet.errors import (
    RunExists,
    UnstorableValue,
    UsageError,
)
from limpet.graphs.plan import Plan
from limpet.graphs.secrets import refused_discreetly
from limpet.journal.encoding.codec import encode
from limpet.journal.encoding.copies import detached_value
from limpet.journal.encoding.envelope import Envelope
from limpet.journal.progress import Progress
from limpet.journal.store import (
    RUNNING,
    NewRun,
    OnSignal,
)
from limpet.journal.writer import JournalWriter, summary
from limpet.observe import events


def start(
    compiled: CompiledGraph,
    given: Any,
    config: Mapping[str, Any] | None,
    run_id: str,
    tags: tuple[str, ...],
    stream: bool,
) -> Session:
    """Open a new run. Raises `RunExists`, `UnstorableValue`, `UsageError`."""
    client, progress = compiled.client, _new(compiled.plan, given, config, run_id)
    writer, held = None, None
    if client is not None:
        encode(progress.config, "config")
        progress.meta = made_with(compiled, tags)
        try:
            made = new_run(progress, tags, this_process(), client.ttl, due=0.0)
        except UnstorableValue as problem:
            raise refused_discreetly(problem, compiled.plan.secrets) from None
        held = client.create(made)
        writer = JournalWriter(run_id, held.lease.fence, 1)
    tell_start(compiled, run_id)
    return Session(compiled, progress, writer, held, stream=stream, resumed=False)


def enqueue(
    compiled: CompiledGraph,
    given: Any,
    config: Mapping[str, Any] | None,
    run_id: str,
    tags: tuple[str, ...],
    priority: int,
    delay: float,
) -> bool:
    """Create a run for whoever supervises the store. False if this run is there already.

    Raises `RunExists` if the id is that of a run of another graph, `UnstorableValue`, `UsageError`.
    """
    client = compiled.need_client("start")
    if not client.store.abilities.leases:
        raise UsageError(
            f"{client.store!r} can't keep two processes apart, so nobody could take the run up: execute() it here"
        )
    progress = _new(compiled.plan, given, config, run_id)
    encode(progress.config, "config")
    progress.meta = {**made_with(compiled, tags), "queued": True}
    holder = this_process() if delay else None
    try:
        run = new_run(progress, tags, holder, client.ttl, due=0.0, priority=priority)
    except UnstorableValue as problem:
        raise refused_discreetly(problem, compiled.plan.secrets) from None
    try:
        if not delay:
            client.store.create(run)
            return True
        lease = client.create(run)  # so that the delay is one by the store's clock
    except RunExists:
        if client.head(run_id).graph != compiled.plan.name:
            raise
        return False
    with client.releasing(lease) as held:
        writer = JournalWriter(run_id, held.fence, 1)
        held.commit(writer.commit(RUNNING, on_signal=OnSignal.IGNORE, due=held.now() + delay))
    return True


def _new(plan: Plan, given: Any, config: Mapping[str, Any] | None, run_id: str) -> Progress:
    """A run at its beginning."""
    initial = plan.schema.initial(given if plan.layers is None else detached_value(given))
    return Progress(
        run_id, plan.name, plan.fingerprint, plan.entry,
        initial if plan.layers is not None else detached_value(initial),
        at=time(), config=dict(config or {}),
    )  # fmt: skip


def tell_start(compiled: CompiledGraph, run_id: str) -> None:
    plan = compiled.plan
    if compiled.emit is not None:
        entry = plan.entry if plan.layers is None else None
        compiled.emit(events.GRAPH_START, plan.name, {"run_id": run_id, "entry": entry})


def made_with(compiled: CompiledGraph, tags: tuple[str, ...]) -> dict[str, Any]:
    """What is stored with a new run of where it was made, and how."""
    settings = {} if compiled.plan.layers is None else {"settings": compiled.settings}
    secrets = {"secrets": sorted(compiled.plan.secrets)} if compiled.plan.secrets else {}
    return {**environment(), "tags": list(tags), **settings, **secrets}


def new_run(
    progress: Progress,
    tags: tuple[str, ...],
    holder: str | None,
    ttl: float,
    due: float | None = None,
    priority: int = 0,
) -> NewRun:
    """The run that begins with this progress, as a store takes it."""
    first = Envelope(progress.run_id).close(1, progress.snapshot_record())
    return NewRun(
        progress.run_id,
        progress.graph,
        [first],
        progress.status,
        holder,
        ttl,
        tags,
        progress.parent,
        b"" if progress.status == RUNNING else summary(progress),
        due,
        priority,
    )


def check_id(run_id: Any) -> str:
    """A run id as it may be: a str of 1 to 200 printable characters. Raises `UsageError`."""
    if not isinstance(run_id, str) or not 0 < len(run_id) <= 200 or not run_id.isprintable():
        raise UsageError(f"a run id is a str of 1 to 200 printable characters, not {run_id!r}")
    return run_id
