"""What `compile()` takes, checked, and made into the `CompiledGraph` that runs need."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from time import time
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

from limpet.defaults import LEASE, MAX_NODES_AT_ONCE
from limpet.durations import Moment, moment_of, span_mistake
from limpet.engine.leases.lease_client import client_for
from limpet.engine.sessions.compiled_graph import (
    RUN_SETTINGS,
    CompiledGraph,
    OnSaveError,
    kind_of,
    refuse_limits,
    refuse_secrets,
)
from limpet.engine.sessions.step_retention import BackgroundCleanup
from limpet.errors import DefinitionError, UsageError
from limpet.graphs.graph_config import CheckpointConfig
from limpet.graphs.habits.langgraph import STORE_INSTEAD, is_checkpointer
from limpet.graphs.names import checked_name
from limpet.graphs.node_options import LimitLike, merged_limits, read_limits
from limpet.graphs.plan import Plan, all_functions, functions_in_branches
from limpet.journal.optional_calls import provides
from limpet.journal.store import Store
from limpet.observe.events import ObserverLike
from limpet.observe.hub import gather
from limpet.observe.observer_registry import resolve_observer
from limpet.stores.memory import MemoryStore
from limpet.stores.opening import open_default_store, open_store
from limpet.stores.user_stores.checkpointer import Checkpointer, MemoryCheckpointer

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from limpet.graphs.limits import Limit
    from limpet.graphs.resources.graph_resources import Resources
    from limpet.graphs.workflow.builder import OnMismatch
    from limpet.observe.opentelemetry.options import OpenTelemetry
    from limpet.observe.opentelemetry.telemetry import Telemetry
    from limpet.stores.retention import Retention


class WorkflowOptions(TypedDict, total=False):
    """How a workflow runs: what `Workflow(…)` and its `compile(…)` take besides the store."""

    preserve: bool
    keep_result: bool
    lease: float
    executor: Executor | None
    max_concurrency: int
    on_save_error: OnSaveError
    on_mismatch: OnMismatch
    keep: int | None
    encryption: Any
    allow_plain_text_secrets: bool
    retention: Retention | None
    resources: Mapping[str, Any] | None
    deadline: Moment | None
    queue: str | None
    limits: Iterable[LimitLike]
    opentelemetry: bool | OpenTelemetry | None


class CompileOptions(NamedTuple):
    """The options of `compile()` that every kind of graph has; `StateGraph.compile` documents them.

    An `interval` or `preserve` that is None is taken from `checkpoint`. Of the settings that belong to a run, those
    that aren't None are given, and hold for runs that have others stored.
    """

    store: Any = None
    checkpointer: Checkpointer | None = None
    interval: int | None = None
    preserve: bool | None = None
    keep_result: bool | None = None
    lease: float = LEASE
    executor: Executor | None = None
    max_concurrency: int | None = None
    on_save_error: OnSaveError | None = None
    keep: int | None = None
    checkpoint: CheckpointConfig = CheckpointConfig()
    checkpoint_dir: str | os.PathLike[str] | None = None
    encryption: Any = None
    allow_plain_text_secrets: bool = False
    retention: Retention | None = None
    resources: Resources | None = None
    deadline: Moment | None = None
    queue: str | None = None
    limits: Iterable[LimitLike] = ()
    opentelemetry: bool | OpenTelemetry | None = None

    observers: Sequence[ObserverLike] = ()

    def compiled(self, plan: Plan, observers: Iterable[ObserverLike]) -> CompiledGraph:
        """The plan and all that a run of it needs. Raises `DefinitionError` for wrong options."""
        mistakes = list(self._mistakes())
        if mistakes:
            raise DefinitionError(mistakes, plan.name, kind_of(plan))
        if self.executor is not None:
            _check_resources_for(self.executor, plan)
        store, interval = self._open_store()
        if self.interval is not None:
            interval = CheckpointConfig(interval=self.interval).interval
        client = None
        if store is None:
            self._refuse_what_needs_a_store(plan)
        else:
            client = client_for(store, self.lease)
        limits = self._checked_limits(plan, store)
        preserve = self.preserve
        if preserve is None:
            preserve = self.checkpoint.preserve
        plain_text_place = ""
        if not self.allow_plain_text_secrets:
            plain_text_place = self._plain_text_place(store)
        if plain_text_place:
            refuse_secrets(plan, plain_text_place)
        checkpointer = self._open_checkpointer()
        files = None if self.checkpoint_dir is None else checkpointer
        return CompiledGraph(
            plan=plan,
            client=client,
            interval=interval,
            preserve=preserve,
            keep_result=self.keep_result is not False,
            emit=gather([*observers, *self.observers], time),
            checkpointer=checkpointer,
            scratch_store=self.store is None and self._uses_checkpointer,
            executor=self.executor,
            max_concurrency=self.max_concurrency or MAX_NODES_AT_ONCE,
            on_save_error=self.on_save_error or "fail",
            keep=self.keep,
            cleanup=None if self.retention is None else BackgroundCleanup(self.retention, plan.name, files),
            has_secrets=plan.holds_secrets,
            stores_plain_text=bool(plain_text_place),
            allows_plain_text=self.allow_plain_text_secrets,
            given=frozenset(self._given_run_settings()),
            shares_loop=_shares_loop(plan),
            deadline=self.deadline,
            queue=self.queue,
            limits=tuple(limit for limit in limits if not limit.queues),
            queue_limits=tuple(limit for limit in limits if limit.queues),
            telemetry=self._telemetry(plan),
        )

    def _telemetry(self, plan: Plan) -> Telemetry | None:
        """What traces and measures the runs; None if neither this nor the environment asks for it."""
        if self.opentelemetry is None and not os.environ.get("LIMPET_OTEL"):
            return None  # the module isn't imported by programs that don't use it
        from limpet.observe.opentelemetry.switch import telemetry_for

        return telemetry_for(self.opentelemetry, plan.name, kind_of(plan))

    def _given_run_settings(self) -> Iterator[str]:
        """The names of the settings that belong to a run and were given here."""
        yield from (name for name in RUN_SETTINGS if getattr(self, name) is not None)
        if self.checkpoint.preserve:
            yield "preserve"
        if self.checkpoint.interval:
            yield "interval"

    @property
    def _uses_checkpointer(self) -> bool:
        return self.checkpointer is not None or self.checkpoint_dir is not None

    def _open_store(self) -> tuple[Store | None, int]:
        """The store, if there is one, and after how many steps runs are saved to it."""
        interval = self.checkpoint.interval
        if self.store is not None:
            return open_store(self.store, self.encryption), interval or 1
        if self._uses_checkpointer:
            # The checkpointer gets a run only where it stops. Until then it is kept in memory.
            return MemoryStore(), 0
        if interval:
            return open_store(self.checkpoint.store, self.encryption), interval
        default = open_default_store(self.encryption)
        if default is None:
            return None, 0
        return default, 1

    def _open_checkpointer(self) -> Checkpointer | None:
        if self.checkpoint_dir is None:
            return self.checkpointer
        from limpet.stores.user_stores.checkpoint_files import CheckpointFiles

        return CheckpointFiles(self.checkpoint_dir, self.keep)

    def _refuse_what_needs_a_store(self, plan: Plan) -> None:
        if plan.interrupts:
            raise DefinitionError(
                "interrupts need somewhere to save the run: compile(store=…), compile(checkpoint_dir=…) "
                "or compile(checkpointer=…)",
                plan.name,
            )
        needing = (
            ("an interval", self.interval),
            ("retention", self.retention),
            ("encryption", self.encryption),
        )
        for name, given in needing:
            if given:
                raise DefinitionError(f"{name} needs a store: compile(store=…)", plan.name)

    def _checked_limits(self, plan: Plan, store: Store | None) -> tuple[Limit, ...]:
        """The limits of whole runs: of the graph, and of queues. Raises `DefinitionError` if they can't be kept."""
        limits = merged_limits(read_limits(self.limits, "compile()"))
        if not (limits or plan.limits):
            return ()
        of_graph = {each.name for each in limits if not each.queues}
        for name in of_graph & {each.name for each in plan.limits}:
            raise DefinitionError(
                f"the limit {name!r} is that of whole runs and of a node, which would wait for the slot that its run "
                "has: name it in one place",
                plan.name,
                kind_of(plan),
            )
        # Without a store, it may still get one: a worker has its own. If not, its runs are refused.
        if store is not None and (self._uses_checkpointer or not _keeps_limits(store)):
            refuse_limits(plan)
        return limits

    def _plain_text_place(self, store: Store | None) -> str:
        """Where runs would be stored unencrypted, in words; empty if nowhere."""
        if self.checkpoint_dir is not None:
            return f"checkpoint files in {os.fspath(self.checkpoint_dir)!r}"
        if self.checkpointer is not None:
            if isinstance(self.checkpointer, MemoryCheckpointer):
                return ""
            return f"{self.checkpointer!r}"
        if store is None or store.abilities.keeps_secrets:
            return ""
        return f"{store!r}"

    def _mistakes(self) -> Iterator[str]:
        """Everything that is wrong with single options, and with those that exclude each other."""
        yield from self._wrong_values()
        if self.store is not None and self.checkpointer is not None:
            yield "give a store or a checkpointer, not both"
        if self.checkpointer is not None and self.checkpoint_dir is not None:
            yield "give a checkpointer or a checkpoint_dir, not both"
        if self.checkpoint_dir is not None and self.store is None and self.interval:
            yield "a checkpoint_dir keeps a run when it stops; an interval needs a store"
        if self.checkpointer is not None and self.interval:
            yield "a checkpointer keeps a run when it stops; an interval needs a store"
        if self.encryption not in (None, False) and self._uses_checkpointer:
            yield "encryption is for a store; what a checkpointer or checkpoint_dir keeps isn't encrypted"
        for name, given in (("retention", self.retention), ("keep", self.keep)):
            if given is not None and self.checkpointer is not None:
                yield f"{name} is for a store or a checkpoint_dir; a checkpointer has no delete()"

    def _wrong_values(self) -> Iterator[str]:
        folder = self.checkpoint_dir
        if folder is not None and not (folder and isinstance(folder, str | os.PathLike)):
            yield f"checkpoint_dir must be the path of a directory, not {folder!r}"
        if is_checkpointer(self.checkpointer):
            yield f"{self.checkpointer!r} keeps checkpoints of LangGraph; {STORE_INSTEAD}"
        elif self.checkpointer is not None and not provides(self.checkpointer, Checkpointer):
            yield f"a checkpointer has save() and load(); {self.checkpointer!r} doesn't"
        if mistake := span_mistake(self.lease, positive=True):
            yield f"lease {mistake}"
        if self.executor is not None and not callable(getattr(self.executor, "submit", None)):
            yield f"an executor has submit(); {self.executor!r} doesn't"
        if self.max_concurrency is not None and not RUN_SETTINGS["max_concurrency"](self.max_concurrency):
            yield f"max_concurrency must be a whole number of at least 1, not {self.max_concurrency!r}"
        if self.on_save_error not in (None, "fail", "continue", "wait"):
            yield f"on_save_error must be 'fail', 'continue' or 'wait', not {self.on_save_error!r}"
        if self.keep is not None and (type(self.keep) is not int or self.keep < 1):
            yield f"keep must be a whole number of at least 1, or None for all, not {self.keep!r}"
        if self.retention is not None and not hasattr(self.retention, "statuses"):
            yield f"retention must be a Retention, such as Retention(completed='7d'), not {self.retention!r}"
        if self.opentelemetry is not None:
            from limpet.observe.opentelemetry.switch import option_mistake

            if wrong := option_mistake(self.opentelemetry):
                yield wrong
        if self.deadline is not None:
            try:
                moment_of(self.deadline, 0.0, "deadline")
            except UsageError as mistake:
                yield str(mistake)
        if self.queue is not None:
            try:
                checked_name("queue", self.queue)
            except UsageError as mistake:
                yield str(mistake)


def _keeps_limits(store: Store) -> bool:
    return store.abilities.leases and store.abilities.takes_part


def read_encryption(given: Any) -> Any:
    """The `encryption` option of `compile()`, with a key read into `Keys`, so that nothing else holds the key."""
    if given is None or given is False:
        return given
    from limpet.stores.composite.keys import read_keys

    return read_keys(given)


def read_resources(given: Any, graph: str, kind: str = "graph") -> Resources | None:
    """The `resources` option of `compile()`. Raises `DefinitionError`."""
    if given is None:
        return None
    from limpet.graphs.resources.graph_resources import read_resources as read

    try:
        return read(given)
    except DefinitionError as problem:
        raise DefinitionError(problem.mistakes, graph, kind) from None


def _shares_loop(plan: Plan) -> bool:
    """Whether an async node takes resources. The module that has them is imported by graphs that use them."""
    if "limpet.graphs.resources.graph_resources" not in sys.modules:
        return False
    from limpet.graphs.resources.graph_resources import AsyncCallWithResources

    return any(isinstance(function, AsyncCallWithResources) for function in all_functions(plan))


def _check_resources_for(executor: Executor, plan: Plan) -> None:
    """Raise `DefinitionError` for a resource that an executor can't have in its other processes."""
    from limpet.engine.drivers.node_call import uses_threads

    if uses_threads(executor) or "limpet.graphs.resources.graph_resources" not in sys.modules:
        return
    from limpet.graphs.resources.graph_resources import AsyncCallWithResources, unsendable

    mistakes = []
    for function in functions_in_branches(plan):
        if isinstance(function, AsyncCallWithResources):
            continue
        mistakes += [
            f"resource {name!r}, which {function.__name__!r} takes, can't be sent to the processes of "
            f"{type(executor).__name__}: give a factory that is a function at the top of a module"
            for name in unsendable(function)
        ]
    if mistakes:
        raise DefinitionError(mistakes, plan.name, kind_of(plan))


def resolve_observers(observer: Any, observers: Iterable[Any]) -> list[ObserverLike]:
    """The observers of a graph, by name or as objects: `observer`, unless it is None, and `observers`."""
    given: list[Any] = [observers]
    if isinstance(observers, Iterable) and not isinstance(observers, str):
        given = list(observers)
    if observer is not None:
        given.insert(0, observer)
    return [resolve_observer(each) for each in given]
