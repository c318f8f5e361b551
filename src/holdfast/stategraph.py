"""`StateGraph`: define it, compile it, run it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from time import time
from typing import TYPE_CHECKING, Any, Self

from holdfast.engine.core import BESIDE
from holdfast.engine.link import link_to
from holdfast.engine.runnable import Runnable
from holdfast.engine.session import Compiled
from holdfast.errors import DefinitionError, UsageError
from holdfast.graphs.config import CheckpointConfig, GraphConfig
from holdfast.graphs.definition import Definition, stop_names
from holdfast.graphs.plan import Plan
from holdfast.journal.store import Store
from holdfast.observe.hub import gather
from holdfast.observe.registry import resolve_observer
from holdfast.stores.checkpointer import Checkpointer
from holdfast.stores.memory import MemoryStore
from holdfast.stores.registry import open_store

if TYPE_CHECKING:
    from concurrent.futures import Executor

LEASE = 10.0


class StateGraph(Definition, Runnable):
    """A graph of functions over one state: nodes, edges with conditions, cycles.

    `schema` names the state's keys: a dict of types, a TypedDict, a dataclass or a pydantic model, with
    `Annotated[list, append]` for a key that is reduced. `observer` and `observers` watch all runs, by name or
    as objects. `checkpoint` is a `CheckpointConfig`; `compile(store=…)` says the same in fewer words.
    """

    def __init__(
        self,
        schema: Any = None,
        *,
        name: str = "graph",
        max_iterations: int = 1000,
        observer: Any = None,
        observers: Iterable[Any] = (),
        checkpoint: CheckpointConfig | Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(schema, name=name, max_iterations=max_iterations)
        watching = [*([] if observer is None else [observer]), *observers]
        self._observers = [resolve_observer(each) for each in watching]
        self._checkpoint = _checkpoint_config(checkpoint)
        if self._checkpoint.interval:
            opened = open_store(self._checkpoint.store)
            self._checkpoint = CheckpointConfig(opened, self._checkpoint.interval, self._checkpoint.preserve)
        self._options: dict[str, Any] = {}
        self._compiled: Compiled | None = None

    @classmethod
    def from_config(cls, config: GraphConfig | Mapping[str, Any], schema: Any = None) -> StateGraph:
        """A graph with the settings of a `GraphConfig`, or of a dict as one. Raises `DefinitionError`."""
        settings = config if isinstance(config, GraphConfig) else GraphConfig.from_dict(config)
        return cls(
            schema,
            name=settings.name,
            max_iterations=settings.max_iterations,
            observer=settings.observer,
            checkpoint=settings.checkpoint,
        )

    def compile(
        self,
        *,
        store: Any = None,
        interrupt_before: Iterable[str] = (),
        interrupt_after: Iterable[str] = (),
        checkpointer: Checkpointer | None = None,
        interval: int | None = None,
        preserve: bool | None = None,
        lease: float = LEASE,
        executor: Executor | None = None,
        max_concurrency: int = BESIDE,
    ) -> StateGraph:
        """Check the graph, fix how it runs, and return it.

        `store` (an object, a registered name, a URL or a file) saves every run after each node, or after
        every `interval`-th, and always when it stops; `preserve` keeps what is saved of a run that completed.
        `interrupt_before` and `interrupt_after` stop a run at nodes, for which there must be somewhere to
        save: a store, or a `checkpointer` with `save` and `load`. `lease` is how many seconds another process
        waits before it takes over a run whose process has gone silent.

        Nodes of parallel branches run at once, at most `max_concurrency` of a run: sync ones in threads, or by the
        `executor` (any of `concurrent.futures`; you end it yourself), async ones on the event loop.
        Raises `DefinitionError` that lists all mistakes.
        """
        self._options = {
            "store": store,
            "interrupt_before": stop_names("interrupt_before", interrupt_before),
            "interrupt_after": stop_names("interrupt_after", interrupt_after),
            "checkpointer": checkpointer,
            "interval": interval,
            "preserve": preserve,
            "lease": lease,
            "executor": executor,
            "max_concurrency": max_concurrency,
        }
        self._compiled = self._compile(**self._options)
        return self

    def compiled(self) -> Compiled:
        """The plan and its settings; what was added since the last `compile` is taken in."""
        if self._compiled is None:
            self._compiled = self._compile(**self._options)
        return self._compiled

    def _plan_inside(self, interrupt_before: list[str], interrupt_after: list[str]) -> Plan:
        """The plan of this graph where it runs inside another one: with its own interrupts and those of the other."""
        before, after = (self._options.get(kind, ()) for kind in ("interrupt_before", "interrupt_after"))
        return self.freeze([*before, *interrupt_before], [*after, *interrupt_after])

    def __repr__(self) -> str:
        return f"<StateGraph {self.name!r}: {', '.join(self._draft.nodes) or 'no nodes'}>"

    def _compile(
        self,
        store: Any = None,
        interrupt_before: Iterable[str] = (),
        interrupt_after: Iterable[str] = (),
        checkpointer: Checkpointer | None = None,
        interval: int | None = None,
        preserve: bool | None = None,
        lease: float = LEASE,
        executor: Executor | None = None,
        max_concurrency: int = BESIDE,
    ) -> Compiled:
        if store is not None and checkpointer is not None:
            raise DefinitionError("give a store or a checkpointer, not both", self.name)
        if checkpointer is not None and not isinstance(checkpointer, Checkpointer):
            raise DefinitionError(
                f"a checkpointer has save() and load(); {checkpointer!r} doesn't", self.name
            )
        if not lease > 0:
            raise DefinitionError(f"lease is a number of seconds above 0, not {lease!r}", self.name)
        if executor is not None and not callable(getattr(executor, "submit", None)):
            raise DefinitionError(f"an executor has submit(); {executor!r} doesn't", self.name)
        if type(max_concurrency) is not int or max_concurrency < 1:
            raise DefinitionError(
                f"max_concurrency is a whole number from 1, not {max_concurrency!r}", self.name
            )
        if checkpointer is not None and interval:
            raise DefinitionError(
                "a checkpointer keeps a run when it stops; an interval needs a store", self.name
            )
        plan = self.freeze(interrupt_before, interrupt_after)
        configured = self._checkpoint
        opened: Store | None = None
        every = configured.interval
        if store is not None:
            every, opened = every or 1, open_store(store)
        elif checkpointer is not None:
            every, opened = 0, MemoryStore()
        elif every:
            opened = open_store(configured.store)
        if opened is None and plan.interrupts:
            raise DefinitionError(
                "interrupts need somewhere to save the run: compile(store=…) or compile(checkpointer=…)",
                self.name,
            )
        if opened is None and interval:
            raise DefinitionError("an interval needs a store: compile(store=…)", self.name)
        every = every if interval is None else CheckpointConfig(interval=interval).interval
        return Compiled(
            plan=plan,
            link=None if opened is None else link_to(opened, lease),
            interval=every,
            preserve=configured.preserve if preserve is None else preserve,
            emit=gather(self._observers, time),
            checkpointer=checkpointer,
            executor=executor,
            max_concurrency=max_concurrency,
        )

    def _changed(self) -> Self:
        self._compiled = None
        return self


def _checkpoint_config(given: CheckpointConfig | Mapping[str, Any] | None) -> CheckpointConfig:
    if given is None:
        return CheckpointConfig()
    if isinstance(given, CheckpointConfig):
        return given
    if isinstance(given, Mapping):
        return CheckpointConfig.from_dict(given)
    raise UsageError(f"checkpoint is a CheckpointConfig or a dict, not {given!r}")
