"""`Workflow`: tasks and what they depend on, run in layers, saved after each, resumed anywhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Self, TypedDict, Unpack

from limpet.async_twins import twin
from limpet.compile_options import CompileOptions, OnSaveError, keys_given
from limpet.defaults import KEPT_CHECKPOINTS, MAX_LAYERS
from limpet.engine.node_context.questions import NOT_GIVEN, ResumeInput
from limpet.engine.operations import workflow_checkpoints as checkpoints
from limpet.engine.operations.stored_state import progress_of
from limpet.engine.operations.workflow_checkpoints import WorkflowCheckpoint
from limpet.engine.sessions import checkpoint_refs as references
from limpet.engine.sessions import compatibility as fitting
from limpet.engine.sessions import resume as entry
from limpet.engine.sessions.session import CompiledGraph, Session
from limpet.errors import DefinitionError, did_you_mean
from limpet.graph_methods import Config, GraphMethods, resume_input
from limpet.graphs.plan import Plan
from limpet.graphs.workflow.builder import OnMismatch, WorkflowBuilder
from limpet.graphs.workflow.redefinition import ResumePlan, plan_resume
from limpet.graphs.workflow.state import WorkflowState
from limpet.journal.reader import Checkpoint
from limpet.journal.store import COMPLETED
from limpet.observe.registry import resolve_observer
from limpet.run import AsyncRun, Run

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from limpet.stores.retention import Retention


class WorkflowOptions(TypedDict, total=False):
    """How a workflow runs: what `Workflow(…)` and `compile(…)` take besides the store."""

    preserve: bool
    lease: float
    executor: Executor | None
    max_concurrency: int
    on_save_error: OnSaveError
    on_mismatch: OnMismatch
    keep: int | None
    encryption: Any
    allow_plain_text_secrets: bool
    retention: Retention | None


class Workflow(WorkflowBuilder, GraphMethods[WorkflowState]):
    """Tasks with dependencies, run in layers: those of a layer beside each other, each with what it depends on.

    `store` saves every run after each layer and each task of it. `observer` and `observers` watch all runs, by name
    or as objects. `max_layers` is a budget for runs that add tasks to themselves. `secrets` names inputs and keys of
    the context that are never in events, logs or summaries. See `compile` for the other settings.
    """

    def __init__(
        self,
        name: str = "workflow",
        *,
        store: Any = None,
        max_layers: int = MAX_LAYERS,
        observer: Any = None,
        observers: Iterable[Any] = (),
        secrets: Iterable[str] = (),
        **settings: Unpack[WorkflowOptions],
    ) -> None:
        super().__init__(name, max_layers=max_layers, secrets=secrets)
        watching = [*([] if observer is None else [observer]), *observers]
        self._observers = [resolve_observer(each) for each in watching]
        self._given = self._known({"store": store, **settings})
        self._compiled: CompiledGraph | None = None

    def compile(self, *, store: Any = None, **settings: Unpack[WorkflowOptions]) -> Self:
        """Check the workflow, fix how it runs, and return it. What isn't given stays as it was.

        `store` (an object, a registered name, a URL or a file) saves each run; `preserve` keeps what is saved of
        one that completed, and `keep` how many of its newest checkpoints, 5 if you don't say (None keeps all).
        `lease` is how many seconds another process waits before it takes over a run whose process has gone silent.
        At most `max_concurrency` tasks of a run are called at once: sync ones in threads, or by the `executor` (any
        of `concurrent.futures`), async ones on the event loop.

        `on_save_error` says what a save that fails does: "fail" the run before anything more is done, or let it
        "continue", degraded. `on_mismatch` says what becomes of a run whose tasks aren't those in the code any more:
        "fail" with an account of it, or "warn" and go on with what is kept. `encryption` is the key, or `Keys`, that
        all in the store is encrypted with; a workflow with secrets needs one where the store isn't in memory, unless
        `allow_plain_text_secrets` allows them to be stored as they are. `retention` says how long runs of this
        workflow are kept that have stopped. Raises `DefinitionError`.
        """
        before, more = self._given, {} if store is None else {"store": store}
        self._given, self._compiled = {**before, **self._known({**more, **settings})}, None
        try:
            self.compiled()
        except BaseException:
            self._given = before
            raise
        return self

    def compiled(self) -> CompiledGraph:
        """The plan and its settings; what was added since the last `compile` is taken in."""
        if self._compiled is None:
            given = {"keep": KEPT_CHECKPOINTS, **self._given}
            on_mismatch = given.pop("on_mismatch", "fail")
            if on_mismatch not in ("fail", "warn"):
                raise DefinitionError(
                    f"on_mismatch is 'fail' or 'warn', not {on_mismatch!r}", self.name, "workflow"
                )
            self._compiled = CompileOptions(**given).compiled(self.freeze(on_mismatch), self._observers)
        return self._compiled

    def resume_from_checkpoint(
        self,
        checkpoint_id: str,
        response: Any = NOT_GIVEN,
        *,
        answers: Mapping[str, Any] | None = None,
        update: Mapping[str, Any] | None = None,
        config: Config = None,
        wait: float | None = None,
    ) -> WorkflowState:
        """Go on with the run that a checkpoint belongs to, to its end; what is finished doesn't run again.

        That includes what the run finished after this checkpoint: to do it again, `fork` or `rollback`. The state,
        the tasks as they were by then, and the config are those that were saved. `response` answers the open
        question, `answers` several by id. Raises what `resume` does, and `WorkflowChanged`.
        """
        given = resume_input(NOT_GIVEN, response, answers, update, config)
        opening = self._from_checkpoint(checkpoint_id, given, wait)
        run: Run[WorkflowState] = Run(references.run_of(checkpoint_id), opening)
        return run.result()

    async def aresume_from_checkpoint(
        self,
        checkpoint_id: str,
        response: Any = NOT_GIVEN,
        *,
        answers: Mapping[str, Any] | None = None,
        update: Mapping[str, Any] | None = None,
        config: Config = None,
        wait: float | None = None,
    ) -> WorkflowState:
        """`resume_from_checkpoint` without blocking the event loop."""
        given = resume_input(NOT_GIVEN, response, answers, update, config)
        opening = self._from_checkpoint(checkpoint_id, given, wait)
        run: AsyncRun[WorkflowState] = AsyncRun(references.run_of(checkpoint_id), opening)
        return await run.result()

    def plan_resume(self, id: str) -> ResumePlan:
        """What a resume of this run, or from this checkpoint, would do. Nothing is run, and nothing changed.

        It says which tasks are kept, which would run, and what is different in the code from what was saved.
        """
        compiled = self.compiled()
        run_id, step = references.located(compiled, id)
        client = compiled.need_client("plan_resume")
        head = client.head(run_id)
        if head.status == COMPLETED and not head.snapshot:
            return ResumePlan(
                run_id, "", COMPLETED, 0, [], [], [], {}, [], [], [], ["its journal went with that"]
            )
        progress = progress_of(client, run_id, None)
        references.check_step(progress, step)
        assert compiled.plan.layers is not None
        under_way = fitting.workflows_in(compiled.plan, progress)
        plans = {place: plan_resume(layers, inner) for layers, inner, _, place in under_way}
        plan = plans.pop("") if plans else plan_resume(compiled.plan.layers, progress)
        return plan._replace(inside={place: each for place, each in plans.items() if each.differs})

    aplan_resume = twin(plan_resume)

    def checkpoint(self, id: str) -> WorkflowCheckpoint:
        """A checkpoint by its id, or the newest of a run by the run's: state, layers, tasks, questions, and more.

        Raises `RunNotFound`, and `UsageError` for a step that the run's journal doesn't have.
        """
        compiled = self.compiled()
        return checkpoints.load(compiled, *references.located(compiled, id))

    acheckpoint = twin(checkpoint)

    def checkpoints(self, run_id: str) -> list[Checkpoint]:
        """The checkpoints of a run that are kept, oldest first: one for each layer. `history` has every step."""
        compiled = self.compiled()
        return checkpoints.newest(compiled, references.located(compiled, run_id)[0])

    acheckpoints = twin(checkpoints)

    def _resuming(self, run_id: str, given: ResumeInput, wait: float | None) -> Callable[[], Session]:
        return self._from_checkpoint(run_id, given, wait)

    def _from_checkpoint(self, id: str, given: ResumeInput, wait: float | None) -> Callable[[], Session]:
        compiled = self.compiled()

        def opening() -> Session:
            run_id, step = references.located(compiled, id)
            return entry.resume(compiled, run_id, given, wait, False, step)

        return opening

    def _plan_inside(self, interrupt_before: list[str], interrupt_after: list[str]) -> Plan:
        """The plan of this workflow inside of a graph: with its own policy for runs that were saved with another."""
        plan = super()._plan_inside(interrupt_before, interrupt_after)
        assert plan.layers is not None
        plan.layers.on_mismatch = self._given.get("on_mismatch", "fail")
        return plan

    def _known(self, settings: dict[str, Any]) -> dict[str, Any]:
        names = ["store", *WorkflowOptions.__annotations__]
        unknown = [
            f"there is no setting {name!r}{did_you_mean(name, names)}"
            for name in settings
            if name not in names
        ]
        if unknown:
            raise DefinitionError(unknown, self.name, "workflow")
        if "encryption" in settings:
            settings = {**settings, "encryption": keys_given(settings["encryption"])}
        return settings

    def _changed(self) -> Self:
        self._compiled = None
        return self

    def __repr__(self) -> str:
        return f"<Workflow {self.name!r}: {', '.join(self._specs) or 'no tasks'}>"
