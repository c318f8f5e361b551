"""`CompiledGraph`: a plan, and how its runs are saved and executed. `compile()` makes it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from time import time
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from limpet.defaults import LEASE, MAX_NODES_AT_ONCE
from limpet.durations import Moment
from limpet.engine.leases.lease_client import LeaseClient, client_for
from limpet.engine.node_context.call_scope import CURRENT
from limpet.engine.sessions.step_retention import BackgroundCleanup
from limpet.errors import DamagedRecord, DefinitionError, UsageError, WrongGraph
from limpet.graphs.limits import Limit
from limpet.graphs.plan import Plan
from limpet.journal.store import RunHead, Store
from limpet.journal.threads.kinds import refuse_thread
from limpet.observe.events import ObserverLike
from limpet.observe.hub import Emit, both, gather
from limpet.stores.user_stores.checkpointer import Checkpointer

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from limpet.engine.leases.lease_client import HeldRun
    from limpet.journal.progress import Progress
    from limpet.observe.opentelemetry.spans import Stretch
    from limpet.observe.opentelemetry.telemetry import Telemetry

OnSaveError = Literal["fail", "continue", "wait"]


MAX_COUNT: Final = 2**31
"""The largest number that a setting may have."""


def _is_count(value: Any) -> bool:
    return type(value) is int and 1 <= value <= MAX_COUNT


RUN_SETTINGS: Final[dict[str, Callable[[Any], bool]]] = {
    "max_concurrency": _is_count,
    "preserve": lambda value: type(value) is bool,
    "keep_result": lambda value: type(value) is bool,
    "on_save_error": lambda value: value in ("fail", "continue", "wait"),
    "keep": lambda value: value is None or _is_count(value),
    "interval": lambda value: type(value) is int and (value == 0 or _is_count(value)),
}
"""The settings that belong to a run and not to the process: they are stored with it, and a resume restores them.

Each has a check, as what is stored may come from an imported file. `docs/how-to/recovery.md` has the table for users.
"""


class CompiledGraph(NamedTuple):
    """A plan and everything that a run of it needs."""

    plan: Plan
    client: LeaseClient | None
    """Where runs are saved; None if they aren't."""
    interval: int
    """After how many steps a run is saved; 0 saves it only where it stops."""
    preserve: bool
    """Whether the whole journal of a run is kept when it completes."""
    emit: Emit | None
    """Where events go; None if no observer watches."""
    checkpointer: Checkpointer | None = None
    """Keeps runs where they stop, in place of a store; the user wrote it."""
    scratch_store: bool = False
    """Whether the store holds a run only until a checkpointer gets it, so that its runs may be replaced."""
    executor: Executor | None = None
    """What calls sync nodes of parallel branches; None for threads of our own."""
    max_concurrency: int = MAX_NODES_AT_ONCE
    """How many nodes of one run are called at the same time."""
    on_save_error: OnSaveError = "fail"
    """Whether a run that can't be saved fails, continues unsaved, or waits until the store can be reached."""
    keep: int | None = None
    """How many of a run's newest checkpoints are kept; None keeps all."""
    cleanup: BackgroundCleanup | None = None
    """Deletes expired runs of this graph."""
    has_secrets: bool = False
    """Whether anything in the plan is secret."""
    stores_plain_text: bool = False
    """Whether secrets would be stored unencrypted, which the user hasn't allowed."""
    allows_plain_text: bool = False
    """Whether the user has allowed that."""
    keep_result: bool = True
    """Whether the result of a run is kept when it completes: its journal, from the newest snapshot on."""
    is_detailed: bool = False
    """Whether a caller that streams a run also gets the calls that begin, and the steps that are saved."""
    given: frozenset[str] = frozenset()
    """The names of the run settings that `compile()` was given. These hold for runs that have others stored, too."""

    shares_loop: bool = False
    """Whether async nodes of its synchronous runs are awaited on the event loop of the process, where resources are
    open."""
    deadline: Moment | None = None
    """When a run fails that hasn't ended, unless its caller gives another deadline."""
    queue: str | None = None
    """The queue of runs whose caller gives none; None if the graph has none either."""
    limits: tuple[Limit, ...] = ()
    """The limits that its runs, as a whole, need slots of."""
    queue_limits: tuple[Limit, ...] = ()
    """The limits that it declares for all runs of some queues, whatever their graph."""
    telemetry: Telemetry | None = None
    """What traces and measures its runs; None if nothing does."""

    def watched_by(self, observers: Iterable[ObserverLike]) -> CompiledGraph:
        """The same with more observers."""
        return self._replace(emit=both(self.emit, gather(observers, time)))

    def for_run(self, stored: Any) -> CompiledGraph:
        """The same with the settings that are stored with a run, except those that `compile()` was given.

        A process may wait where the run would fail, if it can't be saved: a worker does.
        """
        restored = {}
        for name, is_valid in RUN_SETTINGS.items():
            if name in self.given or not isinstance(stored, dict) or name not in stored:
                continue
            value = stored[name]
            unsaved_interval = name == "interval" and (self.scratch_store or not value)
            if is_valid(value) and not unsaved_interval and (name, value) != ("on_save_error", "fail"):
                restored[name] = value
        return self._replace(**restored) if restored else self

    def settings_after(self, stored: Any) -> dict[str, Any]:
        """What is stored with a run that is resumed: its settings, with those that `compile()` was given."""
        known = stored if isinstance(stored, dict) else {}
        return {**known, **{name: getattr(self, name) for name in self.given}}

    def need_client(self, call: str) -> LeaseClient:
        """The client of the store. Raises `UsageError`, which names the call, if the graph has no store."""
        if self.client is None:
            raise UsageError(
                f"{call} needs a store, and {kind_of(self.plan)} {self.plan.name!r} has none: compile(store=…)"
            )
        return self.client

    def own_run(self, run_id: str, call: str) -> RunHead:
        """The head of a run of this graph, for a call about it. Raises `RunNotFound`, and what `check_own` does."""
        head = self.need_client(call).head(run_id)
        if head.kind:
            refuse_thread(head)
        check_own(self.plan, run_id, head.graph)
        return head

    def check_own_run(self, run_id: str, call: str) -> None:
        """The same for a call that may only read what can be read of a run whose newest commits are damaged."""
        try:
            self.own_run(run_id, call)
        except DamagedRecord:
            from limpet.journal.verify import readable_head  # late, as it is hardly ever needed

            check_own(self.plan, run_id, readable_head(self.need_client(call).store, run_id).graph)

    def begin_stretch(
        self,
        progress: Progress,
        head: RunHead | None = None,
        held: HeldRun | None = None,
        is_worker: bool = False,
    ) -> Stretch | None:
        """Begin the span of a run that this process executes from now on; None if runs aren't traced."""
        if self.telemetry is None:
            return None
        from limpet.engine.leases.run_span import begin_stretch

        return begin_stretch(self, progress, head, held, is_worker)

    def on_store(self, store: Store) -> CompiledGraph:
        """The same graph with its runs in this store.

        Checkpoint files stay in use; another checkpointer doesn't, as it would keep runs elsewhere. Raises
        `DefinitionError` if the store would keep secrets in plain text.
        """
        from limpet.stores.user_stores.checkpoint_files import CheckpointFiles

        lease = LEASE
        if self.client is not None:
            if self.client.store is store:
                return self
            lease = self.client.ttl
        files = None
        if isinstance(self.checkpointer, CheckpointFiles):
            files = self.checkpointer
        stores_plain_text = not (self.allows_plain_text or store.abilities.keeps_secrets)
        if stores_plain_text:
            refuse_secrets(self.plan, repr(store))
        return self._replace(
            client=client_for(store, lease),
            interval=self.interval or 1,
            checkpointer=files,
            scratch_store=False,
            stores_plain_text=stores_plain_text,
        )


def kind_of(plan: Plan) -> str:
    """'graph' or 'workflow', for messages."""
    return "graph" if plan.layers is None else "workflow"


def refuse_limits(plan: Plan) -> None:
    """Raise `DefinitionError` for a graph with limits whose runs have no store that could keep them."""
    raise DefinitionError(
        "limits need a store that counts over all processes: compile(store='sqlite:///runs.db') or another of "
        "Limpet's own; store='memory' counts in this process alone",
        plan.name,
        kind_of(plan),
    )


def refuse_secrets(plan: Plan, where: str) -> None:
    """Raise `DefinitionError` if a plan has secrets: they would be stored in plain text there."""
    if not plan.holds_secrets:
        return
    secrets = ", ".join(map(repr, sorted(plan.secrets))) or "the results of tasks"
    raise DefinitionError(
        f"it has secrets ({secrets}), and {where} would store them in plain text: encrypt them with "
        "compile(store=…, encryption=key) or LIMPET_ENCRYPTION_KEY, or allow it with "
        "compile(allow_plain_text_secrets=True)",
        plan.name,
    )


def warn_of_change_in_run(graph: Any) -> None:
    """Log that a graph was changed inside one of its own runs, which continues with the plan that it began with."""
    ctx = CURRENT.get()
    if ctx is None or ctx.scope.plan.graph is not graph:
        return
    from logging import getLogger

    kind = kind_of(ctx.scope.plan)
    advice = ""
    if kind == "workflow":
        advice = "; to add a task to a run, call ctx.add_task()"
    getLogger("limpet.graph").warning(
        "%s %r was changed inside its node %r: that doesn't change run %s, only runs that begin later%s",
        kind,
        graph.name,
        ctx.node,
        ctx.run_id,
        advice,
    )


def check_own(plan: Plan, run_id: str, graph: str) -> None:
    """The rule for graphs that share a store: the calls of a graph reach its own runs. Raises `WrongGraph`.

    Every method of a graph that takes a run's id comes here. `Runs(store)` doesn't: it reaches the runs of all.
    """
    # A run that was saved by hand belongs to no graph, until one resumes it.
    if graph and graph != plan.name:
        raise WrongGraph(run_id, graph, plan.name)


class SessionOptions(NamedTuple):
    """How this process opened a run, and what it may do with it."""

    stream: bool = False
    """Whether the caller wants a `state` event after every node."""
    resumed: bool = True
    """Whether it ran before."""
    first_record: int = 1
    """The oldest record that its journal has, which is a snapshot."""
    max_sleep: float | None = None
    """For how many seconds it may sleep in this process; None for no limit."""
    on_trial: bool = False
    """Whether it is a suspect that executes for a trial: see `trials.py`."""
    supervised: bool = False
    """Whether a supervisor resumed it, so that no caller gets what its nodes raise."""
    has_begun: bool = False
    """Whether a process has executed it before, so that it doesn't count for the rates of its limits."""
    repeats_stop: bool = False
    """Whether it isn't run: why it has stopped is reported once more."""
    stretch: Stretch | None = None
    """Its span for as long as this process executes it, if it is traced."""
