"""`StateGraph`: define it, compile it, run it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Self

from limpet.compile_options import CompileOptions, read_encryption, read_resources, resolve_observers
from limpet.defaults import LEASE, MAX_ITERATIONS
from limpet.durations import Moment
from limpet.engine.node_context.questions import ResumeInput
from limpet.engine.sessions.compiled_graph import CompiledGraph, OnSaveError, warn_of_change_in_run
from limpet.errors import UsageError
from limpet.graph_methods import GraphMethods
from limpet.graphs.builder import NO_RESOURCES, GraphBuilder
from limpet.graphs.graph_config import CheckpointConfig, GraphConfig
from limpet.graphs.node_options import LimitLike, interrupt_names
from limpet.graphs.plan import Plan
from limpet.graphs.secrets import text_of_values
from limpet.graphs.state import Model, State
from limpet.observe.events import CHECKPOINT_LOAD, CHECKPOINT_SAVE
from limpet.run import AsyncRun, OpenSession, Run
from limpet.stores.opening import open_store
from limpet.stores.user_stores.checkpointer import Checkpointer

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from limpet.graphs.resources.graph_resources import Resources
    from limpet.observe.opentelemetry.options import OpenTelemetry
    from limpet.stores.retention import Retention


class StateGraph(GraphBuilder, GraphMethods[State[Model]], Generic[Model]):
    """A graph of functions over one state: nodes, edges with conditions, cycles.

    `schema` names the state's keys: a dict of types, a TypedDict, a dataclass or a pydantic model, with
    `Annotated[list, append]` for a key that has a reducer. A dataclass or a model validates values, and nodes that
    are annotated with it get instances. To type checkers, the graph is a `StateGraph[S]`, where S is that class. A
    schema doesn't restrict the state: nodes may return other keys.

    `max_iterations` is how many nodes a run may complete, None for any number; each branch, and each graph inside a
    node, is counted separately. `observer` and `observers` watch all runs, by name or as objects. `checkpoint` is a
    `CheckpointConfig`; `compile(store=…)` does the same in fewer words. With `raise_exceptions`, a run that fails
    raises its `ExecutionError` to the caller that iterates it, in place of an `error` event.
    """

    def __init__(
        self,
        schema: type[Model] | Mapping[str, Any] | None = None,
        *,
        name: str = "graph",
        max_iterations: int | None = MAX_ITERATIONS,
        observer: Any = None,
        observers: Iterable[Any] = (),
        checkpoint: CheckpointConfig | Mapping[str, Any] | None = None,
        raise_exceptions: bool = False,
    ) -> None:
        super().__init__(schema, name=name, max_iterations=max_iterations)
        self._raises_errors = raise_exceptions
        self._observers = resolve_observers(observer, observers)
        self._checkpoint = _checkpoint_config(checkpoint)
        if self._checkpoint.interval:
            # Opened here, so that a mistake shows here. Not encrypted yet: that is an option of compile().
            opened = open_store(self._checkpoint.store, encryption=False)
            self._checkpoint = CheckpointConfig(opened, self._checkpoint.interval, self._checkpoint.preserve)
        self._options = CompileOptions(checkpoint=self._checkpoint)
        self._interrupts: tuple[list[str], list[str]] = ([], [])
        self._compiled: CompiledGraph | None = None

    @classmethod
    def from_config(
        cls,
        config: GraphConfig | Mapping[str, Any],
        schema: type[Model] | Mapping[str, Any] | None = None,
    ) -> StateGraph[Model]:
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
        keep_result: bool | None = None,
        lease: float = LEASE,
        executor: Executor | None = None,
        max_concurrency: int | None = None,
        on_save_error: OnSaveError | None = None,
        keep: int | None = None,
        encryption: Any = None,
        allow_plain_text_secrets: bool = False,
        retention: Retention | None = None,
        resources: Mapping[str, Any] | None = None,
        observers: Iterable[Any] = (),
        deadline: Moment | None = None,
        queue: str | None = None,
        limits: Iterable[LimitLike] = (),
        opentelemetry: bool | OpenTelemetry | None = None,
    ) -> Self:
        """Check the graph, set how it runs, and return it.

        A graph that needs none of these settings can be run without it. `store` (an object, a registered name, a
        URL or a file) saves every run after each node, or after every `interval`-th, and always when it stops. Of a
        run that completed, the result is kept until it is deleted or expires, and its earlier steps are deleted in
        the background. `preserve` keeps these, too; `keep_result=False` deletes the whole journal at once.
        `interrupt_before` and `interrupt_after` stop a run at nodes; a node inside of a graph is named by its path,
        as `"review/ask"`. They need somewhere to save the run: a store, a `checkpoint_dir`, or a `checkpointer`
        with `save` and `load`. In a `checkpoint_dir` a file is written wherever a run stops, before you get the
        event, which has the file's path as `checkpoint_path`.

        `lease` is how many seconds another process waits before it takes over a run whose process doesn't answer.
        `keep` is how many of a run's newest steps can be read and rolled back to, at least, and in a `checkpoint_dir`
        how many of its newest files are kept; None keeps all.

        A save that fails stops the run, so that no work is done that might be lost. With `on_save_error="continue"`
        the run continues: its status is `degraded` until a save succeeds, which then saves everything.
        `on_save_error="wait"` tries again until the store can be reached.

        Nodes of parallel branches run concurrently, at most `max_concurrency` of a run, 32 by default: sync ones in
        threads, or by the `executor` (any of `concurrent.futures`; shut it down yourself), async ones on the event
        loop.

        `encryption` is the key, or `Keys`, that everything in the store is encrypted with; by default that of the
        environment, if there is one, unless this is False. A graph with secrets needs a key, except in memory, unless
        `allow_plain_text_secrets` allows them to be stored as they are. `retention` says how long runs of
        this graph are kept after they have stopped: expired runs are deleted in the background when a run stops, or
        by `cleanup()`.

        `resources` are live objects by name, or factories that make them, for nodes that name them as parameters.
        They are never stored. See `docs/how-to/resources.md`. `observers` watch all runs, besides those that the
        graph was made with; in a worker, too, where the same code compiles the graph. `deadline` and `queue` are
        those of runs which are started without their own; workers may serve only some queues.

        `limits` are those that each run needs a slot of while a process executes it, over all processes: each a
        `Limit`, or the name of one.

        With `opentelemetry`, True or an `OpenTelemetry`, runs are traced and measured: see
        `docs/how-to/opentelemetry.md`. By default they are if the environment has `LIMPET_OTEL=1`.

        `interval`, `preserve`, `keep_result`, `keep`, `max_concurrency` and `on_save_error` belong to a run: they are
        stored with it, and hold when another process resumes it, unless its `compile` is given other ones.

        Raises `DefinitionError` that lists all mistakes.
        """
        self._options = CompileOptions(
            store=store,
            checkpointer=checkpointer,
            interval=interval,
            preserve=preserve,
            keep_result=keep_result,
            lease=lease,
            executor=executor,
            max_concurrency=max_concurrency,
            on_save_error=on_save_error,
            keep=keep,
            checkpoint=self._checkpoint,
            checkpoint_dir=checkpoint_dir,
            encryption=read_encryption(encryption),
            allow_plain_text_secrets=allow_plain_text_secrets,
            retention=retention,
            resources=read_resources(resources, self.name),
            observers=resolve_observers(None, observers),
            deadline=deadline,
            queue=queue,
            limits=limits,
            opentelemetry=opentelemetry,
        )
        self._interrupts = (
            interrupt_names("interrupt_before", interrupt_before),
            interrupt_names("interrupt_after", interrupt_after),
        )
        self._compiled = self._compile()
        return self

    def save_checkpoint(
        self,
        path: str | os.PathLike[str] | None = None,
        state: Mapping[str, Any] | None = None,
        node: str | None = None,
        config: Mapping[str, Any] | None = None,
        *,
        file_path: str | os.PathLike[str] | None = None,
    ) -> str:
        """Write a checkpoint file by hand, whole or not at all; a resume from it runs `node` with this state.

        `file_path` is another name of `path`. Missing directories are created. Returns the path. Raises
        `UnstorableValue` with the path to a value that can't be stored, and `StoreUnavailable` if the file can't be
        written. The file isn't encrypted: a state with secrets is a `UsageError`, unless
        `compile(allow_plain_text_secrets=True)` allows it.
        """
        target = _one_path(path, file_path, "save_checkpoint")
        if state is None or node is None:
            raise UsageError("save_checkpoint() takes a path, a state and a node")
        secrets = [key for key in self.schema.secrets if key in state]
        if secrets and not self._options.allow_plain_text_secrets:
            raise UsageError(
                f"a checkpoint file would keep {', '.join(map(repr, sorted(secrets)))} in plain text, which is "
                "secret; leave it out, or allow it with compile(allow_plain_text_secrets=True)"
            )
        from limpet.observe.log import log_checkpoint
        from limpet.stores.user_stores.checkpoint_files import write_checkpoint

        written = write_checkpoint(target, state, node, config)
        values = partial(text_of_values, state, self.schema.secrets)
        log_checkpoint(CHECKPOINT_SAVE, values, node=node, path=written)
        return written

    @classmethod
    def load_checkpoint(
        cls,
        path: str | os.PathLike[str] | None = None,
        *,
        file_path: str | os.PathLike[str] | None = None,
    ) -> dict[str, Any]:
        """The contents of a checkpoint file: `state`, `node`, `config`, `timestamp`, `version`, and sometimes more.

        That is `parallel_results` at a fan-in, and `__limpet__` if a run wrote the file. `file_path` is another
        name of `path`. Nothing that the file names is imported or run. Raises `CheckpointNotFound`,
        `DamagedCheckpoint`, `ForbiddenType` for a class that is neither a standard one nor registered,
        `UnsupportedFormat`.
        """
        from limpet.observe.log import log_checkpoint
        from limpet.stores.user_stores.checkpoint_files import read_checkpoint

        file = _one_path(path, file_path, "load_checkpoint")
        found = read_checkpoint(file)
        # Without values: which keys are secret, only a graph knows, and this is a method of the class.
        log_checkpoint(CHECKPOINT_LOAD, node=found["node"], path=os.fspath(file))
        return found

    def resume_from_checkpoint(
        self,
        path: str | os.PathLike[str] | None = None,
        config: Mapping[str, Any] | None = None,
        state_update: Mapping[str, Any] | None = None,
        *,
        file_path: str | os.PathLike[str] | None = None,
    ) -> Run[State[Model]]:
        """Resume a run from a checkpoint file; iterate what this returns for its events.

        Where the graph has a checkpointer, a text that doesn't look like a path is what its `save` returned.
        `state_update` is merged into the saved state and `config` over the saved one. A run that stopped by itself
        resumes exactly there; a file that was saved by hand, or by another program, runs its node. `file_path` is
        another name of `path`.
        Raises, when it begins, what `load_checkpoint` does, and `DefinitionError` for a node that no longer exists.
        """
        from limpet.engine.sessions.checkpoint_refs import run_of

        file = _one_path(path, file_path, "resume_from_checkpoint")
        return Run(run_of(file), self._resuming_from_file(file, config, state_update), self._raises_errors)

    def aresume_from_checkpoint(
        self,
        path: str | os.PathLike[str] | None = None,
        config: Mapping[str, Any] | None = None,
        state_update: Mapping[str, Any] | None = None,
        *,
        file_path: str | os.PathLike[str] | None = None,
    ) -> AsyncRun[State[Model]]:
        """`resume_from_checkpoint` for `async for`."""
        from limpet.engine.sessions.checkpoint_refs import run_of

        file = _one_path(path, file_path, "aresume_from_checkpoint")
        return AsyncRun(
            run_of(file), self._resuming_from_file(file, config, state_update), self._raises_errors
        )

    def _use_resources(self, resources: Mapping[str, Any] | None) -> None:
        """Set the resources without compiling it: for a graph that runs inside of another one."""
        self._options = self._options._replace(resources=read_resources(resources or None, self.name))
        self._changed()

    def compiled(self) -> CompiledGraph:
        """The plan and its settings, compiled again if the graph has changed since."""
        if self._compiled is None:
            self._compiled = self._compile()
        return self._compiled

    def _plan_inside(
        self, interrupt_before: list[str], interrupt_after: list[str], resources: Mapping[str, Any]
    ) -> Plan:
        """The plan of this graph inside of another: with its own interrupts and those that the other adds."""
        before, after = self._interrupts
        return self.freeze([*before, *interrupt_before], [*after, *interrupt_after], resources)

    def _resources(self) -> Mapping[str, Any]:
        return self._own_resources() or NO_RESOURCES

    def _own_resources(self) -> Resources | None:
        return self._options.resources

    def __repr__(self) -> str:
        return f"<StateGraph {self.name!r}: {', '.join(self._draft.nodes) or 'no nodes'}>"

    def _resuming_from_file(
        self,
        path: str | os.PathLike[str],
        config: Mapping[str, Any] | None,
        state_update: Mapping[str, Any] | None,
    ) -> OpenSession:
        from limpet.engine.sessions.checkpoint_refs import names_file
        from limpet.engine.sessions.resume import resume_checkpoint

        compiled = self.compiled()
        given = ResumeInput(update=state_update, config=config)
        is_saved_there = compiled.checkpointer is not None and isinstance(path, str)
        is_file = not is_saved_there or names_file(compiled.plan, path)
        return lambda _: resume_checkpoint(compiled, path, given, stream=False, is_file=is_file)

    def _compile(self) -> CompiledGraph:
        return self._options.compiled(self.freeze(*self._interrupts), self._observers)

    def _changed(self) -> Self:
        self._compiled = None
        warn_of_change_in_run(self)
        return self


def _checkpoint_config(given: CheckpointConfig | Mapping[str, Any] | None) -> CheckpointConfig:
    if given is None:
        return CheckpointConfig()
    if isinstance(given, CheckpointConfig):
        return given
    if isinstance(given, Mapping):
        return CheckpointConfig.from_dict(given)
    raise UsageError(f"checkpoint must be a CheckpointConfig or a dict, not {given!r}")


def _one_path(
    path: str | os.PathLike[str] | None, file_path: str | os.PathLike[str] | None, call: str
) -> str | os.PathLike[str]:
    """The path under either of its names. Raises `UsageError` for both, or neither."""
    given = [each for each in (path, file_path) if each is not None]
    if len(given) != 1:
        raise UsageError(
            f"{call}(): a checkpoint file is given by its path, once: as the first argument or as file_path="
        )
    return given[0]
