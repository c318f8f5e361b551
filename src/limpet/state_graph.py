"""`StateGraph`: define it, compile it, run it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Self

from limpet.compile_options import CompileOptions, OnSaveError, keys_given
from limpet.defaults import LEASE, MAX_CONCURRENCY, MAX_ITERATIONS
from limpet.engine.node_context.questions import ResumeInput
from limpet.engine.sessions import checkpoint_refs as references
from limpet.engine.sessions import resume as entry
from limpet.engine.sessions.session import CompiledGraph
from limpet.errors import UsageError
from limpet.graph_methods import GraphMethods
from limpet.graphs.builder import GraphBuilder, stop_names
from limpet.graphs.config import CheckpointConfig, GraphConfig
from limpet.graphs.plan import Plan
from limpet.graphs.state import State
from limpet.observe.registry import resolve_observer
from limpet.run import AsyncRun, Run
from limpet.stores.opening import open_store
from limpet.stores.user_stores.checkpointer import Checkpointer

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from limpet.stores.retention import Retention


class StateGraph(GraphBuilder, GraphMethods[State]):
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
        max_iterations: int = MAX_ITERATIONS,
        observer: Any = None,
        observers: Iterable[Any] = (),
        checkpoint: CheckpointConfig | Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(schema, name=name, max_iterations=max_iterations)
        watching = [*([] if observer is None else [observer]), *observers]
        self._observers = [resolve_observer(each) for each in watching]
        self._checkpoint = _checkpoint_config(checkpoint)
        if self._checkpoint.interval:
            opened = open_store(self._checkpoint.store, encryption=False)  # that is for compile() to say
            self._checkpoint = CheckpointConfig(opened, self._checkpoint.interval, self._checkpoint.preserve)
        self._settings = CompileOptions(checkpoint=self._checkpoint)
        self._stops: tuple[list[str], list[str]] = ([], [])
        self._compiled: CompiledGraph | None = None

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
        checkpoint_dir: str | os.PathLike[str] | None = None,
        interval: int | None = None,
        preserve: bool | None = None,
        lease: float = LEASE,
        executor: Executor | None = None,
        max_concurrency: int = MAX_CONCURRENCY,
        on_save_error: OnSaveError = "fail",
        keep: int | None = None,
        encryption: Any = None,
        allow_plain_text_secrets: bool = False,
        retention: Retention | None = None,
    ) -> StateGraph:
        """Check the graph, fix how it runs, and return it.

        `store` (an object, a registered name, a URL or a file) saves every run after each node, or after
        every `interval`-th, and always when it stops; `preserve` keeps what is saved of a run that completed.
        `interrupt_before` and `interrupt_after` stop a run at nodes, for which there must be somewhere to
        save: a store, a `checkpoint_dir`, or a `checkpointer` with `save` and `load`. In a `checkpoint_dir` a file is
        written wherever a run stops, before you are told, and its path is the event's `checkpoint_path`.

        `lease` is how many seconds another process waits before it takes over a run whose process has gone silent.
        `keep` is how many of a run's newest steps can be gone back to, at least; None keeps all.

        A save that fails stops the run, so that nothing is done that might be lost. With `on_save_error="continue"`
        it goes on: its status is `degraded` until a save works again, which then saves all that wasn't.

        Nodes of parallel branches run at once, at most `max_concurrency` of a run: sync ones in threads, or by the
        `executor` (any of `concurrent.futures`; you end it yourself), async ones on the event loop.

        `encryption` is the key, or `Keys`, that all in the store is encrypted with; without, that of the environment,
        if there is one, unless this is False. A graph with secrets needs it where the store isn't in memory, unless
        `allow_plain_text_secrets` allows them to be stored as they are. `retention` says how long runs of
        this graph are kept that have stopped: old ones go in the background now and then, when one stops; `cleanup()`
        does it at once.
        Raises `DefinitionError` that lists all mistakes.
        """
        self._settings = CompileOptions(
            store, checkpointer, interval, preserve, lease, executor, max_concurrency, on_save_error, keep,
            self._checkpoint, checkpoint_dir, keys_given(encryption), allow_plain_text_secrets, retention,
        )  # fmt: skip
        self._stops = (
            stop_names("interrupt_before", interrupt_before),
            stop_names("interrupt_after", interrupt_after),
        )
        self._compiled = self._compile()
        return self

    def save_checkpoint(
        self,
        path: str | os.PathLike[str],
        state: Mapping[str, Any],
        node: str,
        config: Mapping[str, Any] | None = None,
    ) -> str:
        """Write a checkpoint file by hand, whole or not at all; a resume from it runs `node` with this state.

        Directories on the way are made. Returns the path. Raises `UnstorableValue` with the way to a value that
        can't be kept, and `StoreUnavailable` where nothing can be written. The file isn't encrypted: a state with
        secrets is a `UsageError`, unless `compile(allow_plain_text_secrets=True)` allows it.
        """
        secrets = [key for key in self.schema.secrets if key in state]
        if secrets and not self._settings.allow_plain_text_secrets:
            raise UsageError(
                f"a checkpoint file would keep {', '.join(map(repr, sorted(secrets)))} in plain text, which is "
                "secret; leave it out, or allow it with compile(allow_plain_text_secrets=True)"
            )
        from limpet.stores.user_stores.checkpoint_files import write_checkpoint

        return write_checkpoint(path, state, node, config)

    @classmethod
    def load_checkpoint(cls, path: str | os.PathLike[str]) -> dict[str, Any]:
        """What is in a checkpoint file: `state`, `node`, `config`, `timestamp`, `version`, and more at times.

        Nothing that the file names is imported or run. Raises `CheckpointNotFound`, `DamagedCheckpoint`,
        `ForbiddenType` for a class that is neither a standard one nor registered, `UnsupportedFormat`.
        """
        from limpet.stores.user_stores.checkpoint_files import read_checkpoint

        return read_checkpoint(path)

    def resume_from_checkpoint(
        self,
        path: str | os.PathLike[str],
        config: Mapping[str, Any] | None = None,
        state_update: Mapping[str, Any] | None = None,
    ) -> Run[State]:
        """Go on from a checkpoint file; iterate what this returns for its events.

        `state_update` is merged into the saved state and `config` over the saved one. Where the run stopped by
        itself, it goes on exactly there; a file that was saved by hand, or by another program, runs its node.
        Raises, when it begins, what `load_checkpoint` does, and `DefinitionError` for a node that is gone.
        """
        compiled, given = self.compiled(), ResumeInput(update=state_update, config=config)
        return Run(
            references.run_of(path), lambda: entry.recall(compiled, path, given, stream=False, file=True)
        )

    def aresume_from_checkpoint(
        self,
        path: str | os.PathLike[str],
        config: Mapping[str, Any] | None = None,
        state_update: Mapping[str, Any] | None = None,
    ) -> AsyncRun[State]:
        """`resume_from_checkpoint` for `async for`."""
        compiled, given = self.compiled(), ResumeInput(update=state_update, config=config)
        return AsyncRun(
            references.run_of(path), lambda: entry.recall(compiled, path, given, stream=False, file=True)
        )

    def compiled(self) -> CompiledGraph:
        """The plan and its settings; what was added since the last `compile` is taken in."""
        if self._compiled is None:
            self._compiled = self._compile()
        return self._compiled

    def _plan_inside(self, interrupt_before: list[str], interrupt_after: list[str]) -> Plan:
        """The plan of this graph where it runs inside another one: with its own interrupts and those of the other."""
        before, after = self._stops
        return self.freeze([*before, *interrupt_before], [*after, *interrupt_after])

    def __repr__(self) -> str:
        return f"<StateGraph {self.name!r}: {', '.join(self._draft.nodes) or 'no nodes'}>"

    def _compile(self) -> CompiledGraph:
        return self._settings.compiled(self.freeze(*self._stops), self._observers)

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
