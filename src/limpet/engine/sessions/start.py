"""Create a run: to execute it here and now, or to queue it for a supervisor."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from hashlib import blake2b
from operator import itemgetter
from time import time
from typing import Any, NamedTuple

from limpet.defaults import QUEUE
from limpet.durations import Moment, moment_of
from limpet.engine.leases.lease_client import LeaseClient
from limpet.engine.leases.process_identity import this_process
from limpet.engine.sessions.compiled_graph import RUN_SETTINGS, CompiledGraph, SessionOptions, refuse_limits
from limpet.engine.sessions.provenance import environment
from limpet.engine.sessions.session import Session, config_of
from limpet.errors import RunExists, RunNotFound, UnstorableValue, UsageError
from limpet.graphs.names import checked_name
from limpet.graphs.plan import Plan
from limpet.graphs.secrets import hide_secret_path
from limpet.graphs.state import new_id
from limpet.journal.encoding.codec import IMMUTABLE_TYPES, detached_value, encode
from limpet.journal.encoding.envelope import Envelope
from limpet.journal.encoding.unknown_values import UnknownValue
from limpet.journal.encoding.user_types import TYPES
from limpet.journal.progress import Progress
from limpet.journal.records import snapshot_record
from limpet.journal.store import RUNNING, Labels, NewRun
from limpet.journal.waits import ARRIVAL
from limpet.journal.writer import JournalWriter, summary
from limpet.observe import events

MAX_CLOCK_ERROR = 0.5
"""Seconds by which a run's deadline may be wrong because this machine's clock is."""

MAX_ID_LENGTH = 200
"""Characters that a run id may have."""


class StartRequest(NamedTuple):
    """What a caller wants to start: the input, the config, and how the run is called.

    `named` says that the caller chose the run's id. Then the same start may come twice, so a digest of the input is
    stored with the run. `deadline` is when the run fails if it hasn't ended, `child_of` the run whose
    node starts it. `queue` says which workers may execute it.
    """

    input: Any
    config: Mapping[str, Any] | None
    run_id: str
    tags: tuple[str, ...] = ()
    named: bool = False
    deadline: Moment | None = None
    child_of: str | None = None
    queue: str = QUEUE


class HeldElsewhere(Exception):
    """Another process executes the run. The caller waits for it, or follows it there, and then opens it again."""

    def __init__(self, client: LeaseClient, run_id: str, secrets: frozenset[str], stream: bool) -> None:
        self.client = client
        self.run_id = run_id
        self.secrets = secrets
        self.stream = stream
        super().__init__(f"another process executes run {run_id!r}")


def start(compiled: CompiledGraph, request: StartRequest, stream: bool) -> Session:
    """Create a run and open it. Raises `RunExists`, `UnstorableValue`, `UsageError`."""
    client = compiled.client
    run_id = request.run_id
    tags = request.tags
    progress = _initial_progress(compiled.plan, request)
    writer = None
    lease = None
    if request.deadline is not None:
        progress.deadline = deadline_of(request.deadline, time() if client is None else client.now())
    if client is None and (compiled.limits or compiled.plan.limits):
        refuse_limits(compiled.plan)
    if client is not None:
        encode(progress.config, "config")
        progress.meta = _new_metadata(compiled, request, progress.state)
    # Before the run is created, as its trace context is stored with it.
    stretch = None if compiled.telemetry is None else compiled.begin_stretch(progress)
    if client is not None:
        try:
            snapshot = snapshot_record(progress)
        except UnstorableValue as problem:
            raise hide_secret_path(problem, compiled.plan.secrets) from None
        run = new_run(
            progress, tags, this_process(), client.ttl, due=0.0, snapshot=snapshot, queue=request.queue
        )
        lease = client.create(run)
        writer = JournalWriter(run_id, lease.lease.fence, 1, size=len(snapshot))
        _correct_deadline(request, progress, writer, lease.now())
    emit_start(compiled, run_id)
    return Session(compiled, progress, writer, lease, SessionOptions(stream, resumed=False, stretch=stretch))


def start_or_open(compiled: CompiledGraph, request: StartRequest, stream: bool, has_waited: bool) -> Session:
    """Create a run and open it, or open the run that this same start has created before.

    `has_waited` says that the caller has waited for another process that executed it. Raises what `start` and
    `open_existing` raise.
    """
    while True:
        with suppress(RunExists):
            return start(compiled, request, stream)
        from limpet.engine.sessions.existing import open_existing

        with suppress(RunNotFound):  # it was deleted meanwhile
            return open_existing(compiled, request, stream, has_waited)


def enqueue_or_find(compiled: CompiledGraph, request: StartRequest, priority: int, delay: float) -> None:
    """Create a run for a supervisor, unless this same start has created it before: then it stays as it is.

    Raises what `enqueue` raises, and `RunExists` for another start.
    """
    while True:
        with suppress(RunExists):
            return enqueue(compiled, request, priority, delay)
        from limpet.engine.sessions.existing import check_same_start

        with suppress(RunNotFound):
            return check_same_start(compiled, request)


def enqueue_child(compiled: CompiledGraph, request: StartRequest, priority: int, delay: float) -> None:
    """Create a child run for a supervisor, unless its parent has created it before, with whatever input.

    Raises what `enqueue` raises, and `RunExists` for a run of another graph.
    """
    try:
        enqueue(compiled, request, priority, delay)
    except RunExists:
        head = compiled.need_client("start").head(request.run_id)
        if head.graph != compiled.plan.name:
            raise RunExists(request.run_id, f"it is a run of graph {head.graph!r}") from None


def enqueue(compiled: CompiledGraph, request: StartRequest, priority: int, delay: float) -> None:
    """Create a run for a supervisor of the store. Raises `RunExists`, `UnstorableValue`, `UsageError`."""
    run_id = request.run_id
    tags = request.tags
    client = compiled.need_client("start")
    progress = queued_progress(compiled, request)
    # The delay is by the store's clock, which a holder learns with its lease. So a run with a delay is created with
    # this process as its holder, which then commits when the run is due, and releases it.
    holder = None
    if delay or request.deadline is not None:
        holder = this_process()
    if request.deadline is not None:
        progress.deadline = deadline_of(request.deadline, client.now())
    try:
        run = new_run(progress, tags, holder, client.ttl, due=0.0, priority=priority, queue=request.queue)
    except UnstorableValue as problem:
        raise hide_secret_path(problem, compiled.plan.secrets) from None
    if holder is None:
        client.store.create(run)
        return
    with client.releasing(client.create(run)) as held:
        writer = JournalWriter(run_id, held.fence, 1)
        _correct_deadline(request, progress, writer, held.now())
        if delay:
            # In the journal, too: a message makes the run due, and it is to begin in time all the same.
            writer.add_move(progress, {"timers": {ARRIVAL: held.now() + delay}}, time())
        held.commit(writer.commit(RUNNING, summary(progress), ignores_posts=True, due=progress.due()))


def queued_progress(compiled: CompiledGraph, request: StartRequest) -> Progress:
    """A run that a supervisor is to begin, without its deadline. Raises `UnstorableValue`, `UsageError`."""
    store = compiled.need_client("start").store
    if not store.abilities.leases:
        unfit = UsageError(f"{store} can't keep two processes apart, so no other process can execute the run")
        raise unfit.with_advice("execute() it here")
    progress = _initial_progress(compiled.plan, request)
    encode(progress.config, "config")
    # With a digest in any case: the id that a caller gets may be started again.
    named = request._replace(named=True)
    progress.meta = {**_new_metadata(compiled, named, progress.state), "queued": True}
    return progress


def deadline_of(given: Moment, now: float) -> float:
    """The deadline of a run in seconds since the epoch. Raises `UsageError`."""
    # None is stored for a 0, so a deadline before the epoch is one just after it.
    return max(moment_of(given, now, "deadline"), 1.0)


def deadline_for(compiled: CompiledGraph, given: Moment | None) -> Moment | None:
    """The deadline of a new run: the one that its caller gives, or that of the graph."""
    if given is None:
        return compiled.deadline
    return given


def queue_for(compiled: CompiledGraph, given: str | None) -> str:
    """The queue of a new run: the one that its caller gives, or that of the graph. Raises `UsageError`."""
    if given is None:
        return compiled.queue or QUEUE
    return checked_name("queue", given)


def check_deadline(given: Moment | None) -> None:
    """Raise `UsageError` for what can't be a deadline."""
    if given is not None:
        deadline_of(given, 0.0)


def _correct_deadline(request: StartRequest, progress: Progress, writer: JournalWriter, now: float) -> None:
    """Set the deadline by the store's clock, which a process learns with its lease, if its own clock is wrong."""
    if request.deadline is None or progress.deadline is None:
        return
    deadline = deadline_of(request.deadline, now)
    if abs(deadline - progress.deadline) > MAX_CLOCK_ERROR:
        writer.add_move(progress, {"deadline": deadline}, time())


def new_run(
    progress: Progress,
    tags: tuple[str, ...],
    holder: str | None,
    ttl: float,
    due: float | None = None,
    priority: int = 0,
    snapshot: bytes | None = None,
    queue: str = QUEUE,
) -> NewRun:
    """The run that starts with this progress, as a store takes it; `snapshot` is its first record, if it is made."""
    first = Envelope(progress.run_id).close(1, snapshot or snapshot_record(progress))
    note = b""
    labels = Labels(plan=progress.fingerprint)
    is_executed = holder is not None and progress.status == RUNNING
    # Of a run that is executed at once, it would soon be wrong. But these are shown from the start.
    if not is_executed or progress.deadline is not None or progress.child_of is not None:
        described = summary(progress)
        note = described.note(sequence=1)
        labels = described.labels
    return NewRun(
        run_id=progress.run_id,
        graph=progress.graph,
        records=[first],
        status=progress.status,
        holder=holder,
        ttl=ttl,
        tags=tags,
        parent=progress.child_of or progress.parent,
        note=note,
        due=due,
        priority=priority,
        labels=labels,
        queue=queue,
    )


def _new_metadata(compiled: CompiledGraph, request: StartRequest, state: Mapping[str, Any]) -> dict[str, Any]:
    metadata = run_metadata(compiled, request.tags)
    if request.named:
        try:
            metadata["input"] = _digest(_given(request, state))
        except UnstorableValue as problem:
            raise hide_secret_path(problem, compiled.plan.secrets) from None
    return metadata


def input_digest(plan: Plan, request: StartRequest) -> str:
    """A digest of what a run is started with: equal for equal inputs, whatever the order of their keys and sets.

    Raises `UnstorableValue`, `UsageError`.
    """
    return _digest(_given(request, _initial_progress(plan, request).state))


def _given(request: StartRequest, state: Mapping[str, Any]) -> Mapping[str, Any]:
    """The input as the caller gave it; or the state that an instance of the schema's class leads to.

    Defaults of the schema aren't part of a dict that was given: they may differ from call to call.
    """
    if request.input is None:
        return {}
    return request.input if isinstance(request.input, Mapping) else state


def _digest(state: Mapping[str, Any]) -> str:
    for key, value in state.items():
        encode(value, key)  # which raises with the path, if it can't be stored
    return blake2b(encode(_without_order(dict(state))), digest_size=16).hexdigest()


def _without_order(value: Any) -> Any:
    """A value as it is stored, with the elements of sets and the keys of dicts in one order, however deep they are.

    The order of a set differs between processes, and that of a dict between callers.
    """
    kind = type(value)
    if kind in IMMUTABLE_TYPES:
        return value
    if kind is dict:
        items = [[encode(_without_order(key)), _without_order(each)] for key, each in value.items()]
        return ["dict", sorted(items, key=itemgetter(0))]
    if kind is set or kind is frozenset:
        return [kind.__name__, sorted(encode(_without_order(each)) for each in value)]
    if kind is list or kind is tuple:
        return [kind.__name__, [_without_order(each) for each in value]]
    if kind is UnknownValue:
        return ["class", value.class_name, _without_order(value.content)]
    stored = TYPES.of_class(kind)
    if stored is not None:
        return ["class", stored.name, _without_order(stored.to(value))]
    return value


def run_metadata(compiled: CompiledGraph, tags: tuple[str, ...]) -> dict[str, Any]:
    """What is stored with a new run about where it was created, and how."""
    settings = {name: getattr(compiled, name) for name in RUN_SETTINGS}
    metadata: dict[str, Any] = {**environment(), "tags": list(tags), "settings": settings}
    if compiled.telemetry is not None and (trace := compiled.telemetry.stored_of_caller()):
        from limpet.engine.leases.run_span import TRACE

        metadata[TRACE] = trace
    if compiled.plan.secrets:
        metadata["secrets"] = sorted(compiled.plan.secrets)
    return metadata


def emit_start(compiled: CompiledGraph, run_id: str) -> None:
    """Notify the observers that a run starts."""
    if compiled.emit is None:
        return
    plan = compiled.plan
    # The entry of a workflow is its planner, which isn't a node of the user's.
    entry = None
    if plan.layers is None:
        entry = plan.entry
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
            f"a run id must be a text of 1 to {MAX_ID_LENGTH} printable characters, not {run_id!r}"
        )
    return run_id


def tag_names(tags: Iterable[str]) -> tuple[str, ...]:
    """Tags as a run is stored with them; a single one may be a str. Raises `UsageError`."""
    found: tuple[Any, ...] = (tags,)
    if isinstance(tags, Iterable) and not isinstance(tags, (str, bytes, Mapping)):
        found = tuple(tags)
    for tag in found:
        if not (isinstance(tag, str) and tag):
            number = type(tag) in (int, float)
            meant = f"; did you mean {str(tag)!r}?" if number else ""
            raise UsageError(f"a tag must be a non-empty str, not {tag!r}{meant}")
    return found


def check_priority(priority: Any) -> None:
    """Raise `UsageError` for what can't be the priority of a run."""
    if type(priority) is not int or not -(2**63) <= priority < 2**63:
        raise UsageError(f"priority is a whole number of at most 64 bits, not {priority!r}")


def _initial_progress(plan: Plan, request: StartRequest) -> Progress:
    """A run before its first node. Its state shares nothing with the caller's input."""
    input = request.input
    config = config_of(request.config)
    if plan.layers is not None:
        # The state of a workflow is made of the inputs, so these are copied.
        state = plan.schema.initial(detached_value(input))
    else:
        state = detached_value(plan.schema.initial(input))
    progress = Progress(
        request.run_id, plan.name, plan.fingerprint, plan.entry, state, at=time(), config=config
    )
    progress.child_of = request.child_of
    return progress
