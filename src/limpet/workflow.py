"""`Workflow`: tasks and what they depend on, run in layers, saved after each, resumed anywhere."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Self, Unpack

from limpet.compile_options import (
    CompileOptions,
    WorkflowOptions,
    read_encryption,
    read_resources,
    resolve_observers,
)
from limpet.defaults import KEPT_CHECKPOINTS, MAX_LAYERS
from limpet.durations import Moment
from limpet.engine.node_context.questions import NOT_GIVEN, ResumeInput
from limpet.engine.operations import workflow_checkpoints as checkpoints
from limpet.engine.operations.stored_state import progress_of
from limpet.engine.operations.workflow_checkpoints import WorkflowCheckpoint
from limpet.engine.sessions.checkpoint_refs import located, run_of
from limpet.engine.sessions.compatibility import check_point, check_same_graph, workflows_in
from limpet.engine.sessions.compiled_graph import CompiledGraph, warn_of_change_in_run
from limpet.engine.sessions.resume import resume
from limpet.engine.sessions.session import Session
from limpet.errors import DefinitionError, did_you_mean
from limpet.graph_methods import Config, GraphMethods
from limpet.graphs.habits.langgraph import STORE_INSTEAD, is_checkpointer
from limpet.graphs.plan import Plan
from limpet.graphs.workflow.builder import OnError, WorkflowBuilder
from limpet.graphs.workflow.redefinition import ResumePlan, plan_resume
from limpet.graphs.workflow.state import WorkflowState
from limpet.journal.reader import Checkpoint
from limpet.journal.store import COMPLETED
from limpet.run import AsyncRun, OpenSession, Run
from limpet.threads.async_methods import async_version

if TYPE_CHECKING:
    from limpet.graphs.resources.graph_resources import Resources


class Workflow(WorkflowBuilder, GraphMethods[WorkflowState]):
    """Tasks with dependencies, run as data flow: each begins when all that it depends on is done.

    `layers=True` makes layers barriers: each begins when the one before is done. After a failure, tasks that don't
    depend on the failed one still run, unless `on_error` is "stop". `store` saves every run after each task and each
    layer. `observer` and `observers` watch all runs, by name
    or as objects. `max_layers` is a budget for runs that add tasks to themselves. `secrets` names inputs and keys of
    the context that are never shown in events, logs or summaries.

    `compile` explains the other settings, and changes them. By default a completed run is kept with its result, but
    not its steps (`keep_result=True`, `preserve=False`), a lease is 10 seconds long, at most 32 tasks of a run are
    called at once (`max_concurrency`), 5 checkpoints are kept (`keep`), and `on_save_error` and `on_mismatch` are
    "fail".
    """

    def __init__(
        self,
        name: str = "workflow",
        *,
        store: Any = None,
        max_layers: int = MAX_LAYERS,
        layers: bool = False,
        on_error: OnError = "continue",
        observer: Any = None,
        observers: Iterable[Any] = (),
        secrets: Iterable[str] = (),
        **settings: Unpack[WorkflowOptions],
    ) -> None:
        super().__init__(name, max_layers=max_layers, layers=layers, on_error=on_error, secrets=secrets)
        self._observers = resolve_observers(observer, observers)
        self._options = self._checked_options({"store": store, **settings})
        self._compiled: CompiledGraph | None = None

    def compile(
        self,
        *,
        store: Any = None,
        observers: Iterable[Any] | None = None,
        **settings: Unpack[WorkflowOptions],
    ) -> Self:
        """Check the workflow, set how it runs, and return it. Settings that you don't give stay as they were.

        `store` (an object, a registered name, a URL or a file) saves each run, and `keep` is how many of its newest
        checkpoints are kept, 5 by default (None keeps all). Of a run that completed, the result is kept until it is
        deleted or expires, and its earlier steps are deleted in the background. `preserve` keeps these, too;
        `keep_result=False` deletes the whole journal at once.
        `lease` is how many seconds another process waits before it takes over a run whose process doesn't answer.
        At most `max_concurrency` tasks of a run are called concurrently: sync ones in threads, or by the `executor`
        (any of `concurrent.futures`), async ones on the event loop.

        `on_save_error` says what a save that fails does: "fail" the run before anything more is done, let it
        "continue", degraded, or "wait" until the store can be reached. `on_mismatch` says what happens to a run whose
        tasks are no longer those in the code: "fail" with a list of the differences, or "warn" and resume with the
        tasks that are left.

        `encryption` is the key, or `Keys`, that everything in the store is encrypted with. A workflow with secrets
        needs a key, except in memory, unless `allow_plain_text_secrets` allows them to be stored as they are.
        `retention` says how long runs of this workflow are kept after they have stopped. `resources` are live objects
        by name, or factories that make them, for tasks that name them as parameters; they are never stored.
        `deadline` and `queue` are those of runs which are started without their own; workers may serve only some
        queues.

        `limits` are those that each run needs a slot of while a process executes it, over all processes: each a
        `Limit`, or the name of one. With `opentelemetry`, True or an `OpenTelemetry`, runs are traced and measured.

        `preserve`, `keep_result`, `keep`, `max_concurrency` and `on_save_error` belong to a run: they are stored with
        it, and hold when another process resumes it, unless that process's workflow is given other ones.

        `observers` watch all runs, besides those that the workflow was made with.

        Raises `DefinitionError` that lists all mistakes.
        """
        given: dict[str, Any] = {**settings}
        if store is not None:
            given["store"] = store
        if observers is not None:
            given["observers"] = observers
        before = self._options
        self._options = {**before, **self._checked_options(given)}
        self._compiled = None
        try:
            self.compiled()
        except BaseException:
            self._options = before
            raise
        return self

    def _use_resources(self, resources: Mapping[str, Any] | None) -> None:
        """Set the resources without compiling it: for a workflow that runs inside of a graph."""
        self._options = {**self._options, **self._checked_options({"resources": resources or None})}
        self._changed()

    def compiled(self) -> CompiledGraph:
        """The plan and its settings, compiled again if the workflow has changed since."""
        if self._compiled is None:
            options = {"keep": KEPT_CHECKPOINTS, **self._options}
            on_mismatch = options.pop("on_mismatch", "fail")
            if on_mismatch not in ("fail", "warn"):
                raise DefinitionError(
                    f"on_mismatch must be 'fail' or 'warn', not {on_mismatch!r}", self.name, "workflow"
                )
            compiled = CompileOptions(**options).compiled(self.freeze(on_mismatch), self._observers)
            given = compiled.given - {"keep"}
            if "keep" in self._options:
                given |= {"keep"}
            self._compiled = compiled._replace(given=given)
        return self._compiled

    def resume_from_checkpoint(
        self,
        checkpoint_id: str,
        response: Any = NOT_GIVEN,
        *,
        answers: Mapping[str, Any] | None = None,
        update: Mapping[str, Any] | None = None,
        config: Config = None,
        deadline: Moment | None = None,
        wait: float | None = None,
    ) -> WorkflowState:
        """Resume the run that a checkpoint belongs to and run it to its end; finished tasks don't run again.

        That includes tasks that the run finished after this checkpoint: to run them again, `fork` or `rollback`. The
        state, the tasks and the config are those that were saved last. `response` answers the open question,
        `answers` several by id. An answer counts only for a question that was open at the checkpoint (or, if none
        was, at the first pause after it), and once: sent again, it is refused with `AlreadyAnswered`. Raises what
        `resume` does, and `WorkflowChanged`.
        """
        given = ResumeInput(response, answers, update, config, deadline=deadline)
        run: Run[WorkflowState] = Run(run_of(checkpoint_id), self._resuming(checkpoint_id, given, wait))
        return run.result()

    async def aresume_from_checkpoint(
        self,
        checkpoint_id: str,
        response: Any = NOT_GIVEN,
        *,
        answers: Mapping[str, Any] | None = None,
        update: Mapping[str, Any] | None = None,
        config: Config = None,
        deadline: Moment | None = None,
        wait: float | None = None,
    ) -> WorkflowState:
        """`resume_from_checkpoint` without blocking the event loop."""
        given = ResumeInput(response, answers, update, config, deadline=deadline)
        run: AsyncRun[WorkflowState] = AsyncRun(
            run_of(checkpoint_id), self._resuming(checkpoint_id, given, wait)
        )
        return await run.result()

    def plan_resume(self, id: str) -> ResumePlan:
        """What a resume of this run, or from this checkpoint, would do. Nothing is run, and nothing changes.

        It lists the tasks whose results are kept, the tasks that would run, and how the code differs from what was
        saved.
        """
        compiled = self.compiled()
        run_id, point = located(compiled, id)
        client = compiled.need_client("plan_resume")
        head = client.head(run_id)
        if head.status == COMPLETED and not head.snapshot:
            return _plan_without_journal(run_id)
        progress = progress_of(client, run_id, None)
        check_same_graph(compiled.plan, progress)
        check_point(progress, point)
        assert compiled.plan.layers is not None
        unfinished = workflows_in(compiled.plan, progress)
        plans = {place: plan_resume(layers, inner) for layers, inner, _, place in unfinished}
        plan = plans.pop("") if plans else plan_resume(compiled.plan.layers, progress)
        return plan._replace(inside={place: each for place, each in plans.items() if each.differs})

    aplan_resume = async_version(plan_resume)

    def checkpoint(self, id: str) -> WorkflowCheckpoint:
        """A checkpoint by its id, or a run's newest one by the run's id: state, layers, tasks, questions and more.

        Raises `RunNotFound`, and `UsageError` for a step that the run's journal doesn't have.
        """
        compiled = self.compiled()
        return checkpoints.load(compiled, *located(compiled, id))

    acheckpoint = async_version(checkpoint)

    def checkpoints(self, run_id: str) -> list[Checkpoint]:
        """The checkpoints of a run that are kept, oldest first: one for each layer. `history` has every step."""
        compiled = self.compiled()
        return checkpoints.newest(compiled, located(compiled, run_id)[0])

    acheckpoints = async_version(checkpoints)

    def _resuming(
        self, run_id: str, given: ResumeInput, wait: float | None, observers: Iterable[Any] = ()
    ) -> OpenSession:
        """Resume a run by its id, or by that of one of its checkpoints."""
        compiled = self._watched(observers)

        def open_session(_: bool) -> Session:
            named_run, point = located(compiled, run_id)
            return resume(compiled, named_run, given, wait, stream=False, point=point)

        return open_session

    def _resources(self) -> Mapping[str, Any]:
        return self._own_resources() or super()._resources()

    def _own_resources(self) -> Resources | None:
        return self._options.get("resources")

    def _plan_inside(
        self, interrupt_before: list[str], interrupt_after: list[str], resources: Mapping[str, Any]
    ) -> Plan:
        """The plan of this workflow inside of a graph: with its own `on_mismatch`."""
        plan = super()._plan_inside(interrupt_before, interrupt_after, resources)
        assert plan.layers is not None
        plan.layers.on_mismatch = self._options.get("on_mismatch", "fail")
        return plan

    def _checked_options(self, settings: dict[str, Any]) -> dict[str, Any]:
        names = ["store", "observers", *WorkflowOptions.__annotations__]
        unknown = [
            f"unknown setting {name!r}{_instead_of(name, settings[name]) or did_you_mean(name, names)}"
            for name in settings
            if name not in names
        ]
        if unknown:
            raise DefinitionError(unknown, self.name, "workflow")
        if "observers" in settings:
            settings = {**settings, "observers": resolve_observers(None, settings["observers"])}
        if "encryption" in settings:
            settings = {**settings, "encryption": read_encryption(settings["encryption"])}
        if "resources" in settings:
            found = read_resources(settings["resources"], self.name, "workflow")
            settings = {**settings, "resources": found}
        return settings

    def _changed(self) -> Self:
        self._compiled = None
        warn_of_change_in_run(self)
        return self

    def __repr__(self) -> str:
        return f"<Workflow {self.name!r}: {', '.join(self._specs) or 'no tasks'}>"


def _instead_of(name: str, value: Any) -> str:
    """What to give in place of a setting that a workflow doesn't have, where that is known."""
    if name == "checkpointer" or is_checkpointer(value):
        return f": {STORE_INSTEAD}"
    return ""


def _plan_without_journal(run_id: str) -> ResumePlan:
    """The plan for a run that is complete and whose journal was deleted then: there is nothing to resume."""
    return ResumePlan(
        run_id=run_id,
        checkpoint_id="",
        status=COMPLETED,
        completed_layers=0,
        kept=[],
        layers=[],
        new=[],
        changed={},
        gone=[],
        dropped=[],
        questions=[],
        notes=["it is complete, and its journal was deleted then"],
    )
