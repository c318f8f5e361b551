"""The loop. One generator runs every graph: started, resumed, forked or recovered, sync or async, and every branch.

**Theory of operation.** The loop decides, and a driver does. The loop reads no clock, file or random number and waits
for nothing. It *yields* a command and is sent the outcome:

    yields          is sent
    `NodeContext`   what the node returned, or a `Failed`, `Asked`, `Sleeping`, `Waiting`, `Cancelled`
    `Commit`        None or a checkpointer's reference when it is durable and its writer knows; or why it was refused
    `Wait`          None when the time is over; a `Cancelled` or a `WaitTooLong` before
    `Report`        None; the event is for the caller that iterates the run
    `AcquireSlots`  a list: for each call None, or its outcome if it can't be made now
    `ReleaseSlots`  None

and returns a `LoopStop`. A loop in a branch yields two more, to the `BranchRunner` that runs it in parallel
with others: `SAVE`, for a commit that may hold the records of several branches, and `RunBranches`, for branches
of its own.

Each turn of the loop is one step: arrive at a node, check what must be true before the call, call the node,
collect what it changed, complete the step, choose the next node, save, report. Start, resume, fork and recovery
differ only in the `Progress` that the loop begins with.

**Rules**, wherever the loop stops or its process crashes:

- A node's update is applied, and the position moves, only after the node returned. A step is reported only
  after it is durable, where the interval says that this step is saved.
- The next node is chosen once, and stored. Only a stop after a node leaves the choice to the resume.
- The node after branches runs when all of them are done, and gets all of their results.
"""

from __future__ import annotations

from collections.abc import Generator
from functools import partial
from math import inf
from typing import Any, Final

from limpet.engine.loop.driver_commands import SUSPENDED, Failed
from limpet.engine.loop.next_node import SectionStart, check_goto, choose_next, report_jump
from limpet.engine.loop.node_outcomes import (
    JumpTaken,
    MayStop,
    StepEnd,
    catch_error,
    delay_arrival,
    error_of,
    forgive_failure,
    handle_unfinished,
    record,
    save,
    save_refused,
    step_saved,
    wait_until_due,
    waiting_stop,
)
from limpet.engine.loop.parallel.branches import (
    call_guarded,
    enter_section,
    open_section,
    run_branches,
    run_subgraph,
)
from limpet.engine.loop.reporter import Reporter
from limpet.engine.loop.run_context import (
    DONE,
    SAVE,
    SLEEPING,
    WAITING,
    LoopStop,
    RunContext,
    changes_at_stop,
)
from limpet.engine.loop.state_changes import Changes, TaskChanges, changes_of
from limpet.engine.node_context.branch_result import PARALLEL_RESULTS, FanInState
from limpet.engine.node_context.call_scope import Scope
from limpet.engine.node_context.node_context import NodeContext
from limpet.errors import UnstorableValue
from limpet.graphs.edges import END, Goto
from limpet.graphs.parallel import COLLECT
from limpet.graphs.plan import Plan, PlanNode, budget_reason
from limpet.graphs.secrets import hide_secret_path
from limpet.graphs.state import NodeState, State
from limpet.graphs.workflow.tasks import TaskSkipped
from limpet.journal.open_parallel_section import Key, OpenSection
from limpet.journal.records import step_record
from limpet.journal.store import COMPLETED, FAILED, PAUSED, RUNNING
from limpet.journal.waits import AFTER, BEFORE, FAILED_PHASE, INTERRUPTED
from limpet.observe import events

UNFINISHED: Final = frozenset({Failed, *SUSPENDED, LoopStop})
"""The outcomes of a call that didn't complete. Anything else is what the node returned."""

NOT_AN_UPDATE: Final = UNFINISHED | {Goto}
"""These, and that of a call that says where to go. Anything else is an update."""


class NodeLoop:
    """The loop through one plan on one state: that of a run, of a branch, or of a graph inside of a node.

    `until` is the node that ends it: the fan-in, for a branch. `planning` says that it is the planner of a workflow.
    """

    __slots__ = (
        "began",
        "branch_stops",
        "changes",
        "checkpointed",
        "context",
        "nested",
        "plan",
        "planning",
        "progress",
        "reporter",
        "results_at_step",
        "scope",
        "state",
        "until",
    )

    def __init__(
        self, context: RunContext, scope: Scope, until: str = END, around: NodeLoop | None = None
    ) -> None:
        self.context = context
        self.scope = scope
        self.plan = plan = scope.plan
        self.progress = progress = scope.progress
        self.until = until
        self.nested = bool(scope.path)
        self.state = state = self._live_state()
        self.planning = plan.layers is not None and not scope.in_layer
        self.reporter = Reporter(context, scope, state, self.planning)
        self.changes: Changes | TaskChanges
        durable = context.saving.writer is not None
        if scope.in_layer:
            self.changes = TaskChanges(state, durable)
        else:
            changed = None if progress.base is None else progress.changed
            self.changes = changes_of(plan.schema, state, durable, progress.base, changed)
            # Branches share values with each other, so a node of one gets copies of what it reads.
            self.changes.isolated = self.nested
            if context.reporting.stream and not self.planning:
                self._record_state(self.changes, around)
        self.checkpointed = progress.iterations
        """How many steps were done at the last checkpoint."""
        self.began = progress.began
        """When its first node was called."""
        self.branch_stops: dict[Key, LoopStop] = {}
        """For each unfinished branch of the open section, why it stopped."""
        self.results_at_step: tuple[int, list[dict[str, Any]] | None] = (-1, None)
        """The step of the last node that the run is to stop after, and the results of the branches before it."""

    def run(self) -> Generator[Any, Any, LoopStop]:
        """Run to the next stop, and return why the loop stopped. See the module's text."""
        # A step of a plain node without a store takes two to three microseconds, so one more lookup or call per step
        # is measurable. That is why all that a step touches is bound to locals here, once, and why what every node
        # needs stands in the loop itself. What is rarer, or costs a thread anyway, is a function of its own: those of
        # this class are below, in the order of the calls.
        plan = self.plan
        p = self.progress
        state = self.state
        scope = self.scope
        reporter = self.reporter
        context = self.context
        root = context.root
        now = context.clocks.now
        writer = context.saving.writer
        interval = context.saving.interval
        emit = context.reporting.emit
        stream = context.reporting.stream
        nodes = plan.nodes
        max_iterations = inf if plan.max_iterations is None else plan.max_iterations
        before = plan.interrupt_before
        after = plan.interrupt_after
        hand_out = self.changes.hand_out
        collect = self.changes.collect
        nested = self.nested
        planning = self.planning
        detailed = context.reporting.is_detailed
        watched = emit is not None or context.reporting.stretch is not None
        announces = nested or planning or detailed or watched or bool(after)
        tracked = stream or nested or writer is not None or bool(plan.schema.reducers)
        follower_known = emit is None and not after
        reports_saves = (
            emit is not None
            or planning
            or detailed
            or (context.saving.on_checkpoint is not None and not nested)
        )
        saved_at_stop = before
        if not (nested or planning):
            # What stops the run is saved together with the stop, which is one commit instead of two.
            saved_at_stop = before | {END}

        stop = yield from self._arrive()
        if stop is not None:
            return stop
        while (name := p.node) != END:
            # Check before the call.
            if p.timers or p.iterations >= max_iterations or name in before:
                stop = yield from self._check_before_call(name)
                if stop is not None:
                    return stop

            # Call the node, on a private copy of the state.
            node = nodes[name]
            if p.section is None:
                private = hand_out(tracked or node.retry is not None or bool(node.jumps))
            else:
                private = self._hand_out_in_section(p.section)
            ctx = scope.current_call = NodeContext(scope, node, private, p.attempts + 1, p.step + 1)
            if node.is_guarded:
                outcome = yield from call_guarded(self, ctx)
            else:
                if announces:
                    yield from self.announce(ctx)
                if node.inner is None:
                    outcome = yield ctx
                else:
                    outcome = yield from run_subgraph(self, ctx, node.inner)

            # Collect what it changed, as bytes for the journal. `type() is dict` is what most nodes return.
            delta: bytes | None = None
            jump: JumpTaken | None = None
            forgiven: Failed | None = None
            if p.section is not None and type(outcome) is dict and isinstance(private, FanInState):
                outcome = self._without_results(private, outcome)
            if type(outcome) is dict or type(outcome) not in NOT_AN_UPDATE:
                try:
                    if nested:
                        delta = self._collect_in_branch(ctx, outcome)
                    else:
                        delta = collect(private, outcome)
                except Exception as error:
                    outcome = Failed(self._without_secrets(error, outcome), again=False)
            if delta is None:
                end = yield from self._end_without_update(ctx, outcome)
                if isinstance(end, LoopStop):
                    return end
                if end is None:
                    continue
                delta, jump, forgiven = end

            # Complete the step. The lock is only needed to end a call that used `once`, which may still be writing
            # to the journal in another thread.
            if ctx.used_keys is None:
                scope.current_call = None
            else:
                ctx.close()
            if watched and type(outcome) is not TaskSkipped:
                reporter.node_ends(ctx, forgiven)
            state.checkpoint_node = name
            state._at = at = now()

            # Choose the next node, unless the run stops after this one. Most nodes always have the same follower.
            chosen: str | SectionStart | Failed | None = node.always_next if follower_known else None
            if jump is not None:
                chosen = self._jump_target(node, jump)
            elif chosen is None and name not in after:
                if nested:
                    chosen = self._choose_in_branch(node)
                else:
                    chosen = choose_next(self, node)
            target = chosen if type(chosen) is str else _target_of(chosen)
            if nested:
                target = self._complete_in_branch(ctx, delta, target, at)
            else:
                p.complete(name, at, target)
                if writer is not None:
                    writer.add_step(p, delta, target)
            if jump is not None:
                self._record_jump(jump, target)
            elif node.delays is not None:
                delay_arrival(self, node, target)
            if type(chosen) is SectionStart:
                stop = yield from enter_section(self, chosen)
                if stop is not None:
                    return stop
                continue
            if target is None:
                return self._stop_after(chosen)
            if target in saved_at_stop:
                continue

            # Save, and report only then.
            if writer is not None and interval and not root.step % interval:
                answer = yield SAVE if nested else writer.commit()
                if isinstance(answer, Exception):
                    stop = yield from save_refused(self, answer)
                    if stop is not None:
                        return stop
                elif reports_saves:
                    step_saved(self)
            if stream:
                yield from reporter.stream_step()
        return DONE

    def run_branch(self, on_error: str) -> Generator[Any, Any, LoopStop]:
        """The same for a branch: where it stops is recorded, and saved, for the branch alone."""
        p = self.progress
        reporter = self.reporter
        reporting = self.context.reporting
        notifies = reporting.emit is not None and not self.scope.in_layer
        if notifies:
            reporter.notify(events.BRANCH_START)
        stop = yield from self.run()
        if stop.status in (RUNNING, SLEEPING, WAITING):
            # Its records were refused, so nothing of them is reported; or it waits, which is recorded already.
            return stop
        if stop.status == FAILED and on_error == COLLECT:
            # The failure is the branch's result: it ends here, and the fan-in finds the error.
            changes = {"node": END, "phase": BEFORE, "error": error_of(self, stop)}
            record(self, {**changes, "began": self.began, "at": self.context.clocks.now()})
            stop = LoopStop(COMPLETED, self)
        elif stop.at is self:
            record(self, changes_at_stop(stop, error_of(self, stop)))
            self.context.summary_is_old = self.context.summary_is_old or stop.status == PAUSED
        if stop.at is self:
            refusal = yield from save(self)
            if refusal is not None:
                return refusal
        if notifies and stop.status in (COMPLETED, FAILED):
            duration = max(0.0, p.at - p.began)
            reporter.notify(events.BRANCH_COMPLETE, error=p.error is not None, duration=duration)
        if reporting.stream:
            yield from reporter.stream_branch_stop(stop)
        return stop

    def branch_loop(self, key: Key, plan: Plan, until: str) -> NodeLoop:
        """The loop of one of the branches that are open here."""
        return NodeLoop(self.context, self.scope.branch_scope(key, plan), until, self)

    def _record_state(self, changes: Changes, around: NodeLoop | None) -> None:
        """Record the state at each step, for events. A branch shares what it can with the loop `around` it."""
        from limpet.engine.loop.recorded_state import StateRecorder

        if around is None or around.reporter.recorder is None:
            recorder = StateRecorder(self.state)
        else:
            recorder = StateRecorder(self.state, around.reporter.recorder, around.state)
        changes.recorder = self.reporter.recorder = recorder

    def _live_state(self) -> State:
        """The progress's state as a State that knows its run, the node that made it, and its secrets."""
        p = self.progress
        context = self.context
        schema = self.plan.schema
        make = partial(schema.live_class.from_data, schema=schema)
        state = p.begin_branch(make)
        if not isinstance(state, schema.live_class):
            p.state = state = make(state)
        state.run_id = p.run_id
        state.checkpoint_node = p.made_by
        state._emit = context.reporting.emit
        state._at = p.at or context.clocks.now()
        if secrets := context.reporting.masker.names:
            state._secrets = secrets
        return state

    def _arrive(self) -> MayStop:
        """Begin where the progress says: at a node, after one whose next is still to be chosen, or in branches."""
        p = self.progress
        if p.phase == AFTER:
            if p.node in self.plan.interrupt_after and not p.cleared:
                return self._stop_after(None)
            named = p.goto
            if named is not None:
                record(self, {"goto": None})
                report_jump(self, p.node, named)
            chosen = named or self._choose_in_branch(self.plan.nodes[p.node])
            if isinstance(chosen, Failed):
                return self._stop_after(chosen)
            target = _target_of(chosen)
            if target == self.until:
                target = END
            record(self, {"node": target, "phase": BEFORE, "cleared": False})
            if named is None:
                delay_arrival(self, self.plan.nodes[p.made_by or ""], p.node)
            if isinstance(chosen, SectionStart):
                open_section(self, chosen)
        if self.context.reporting.resumed and not self.nested:
            self.reporter.notify(events.CHECKPOINT_RESUME, checkpoint_node=p.made_by, resume_node=p.node)
        if p.waits:
            return waiting_stop(self)
        # Branches under way are run first. A graph inside of a node is run when the loop calls that node.
        if p.section is not None and not p.section.inside:
            return (yield from run_branches(self))
        return None

    def _check_before_call(self, name: str) -> MayStop:
        """Wait until the node is due. Stop if the run is interrupted before it, or has used up its iterations."""
        p = self.progress
        plan = self.plan
        if p.timers:
            stop = yield from wait_until_due(self)
            if stop is not None:
                return stop
        if name in plan.interrupt_before and not p.cleared:
            return LoopStop(PAUSED, self, f"{INTERRUPTED} before {self.scope.place(name)!r}")
        if plan.max_iterations is not None and p.iterations >= plan.max_iterations:
            reason = budget_reason("max_iterations", plan.max_iterations, "graph")
            return LoopStop(FAILED, self, reason, None, FAILED_PHASE)
        return None

    def _hand_out_in_section(self, section: OpenSection) -> NodeState:
        """The private state for a fan-in, with the results of the branches, or for a node that runs a graph."""
        if section.inside or not isinstance(self.changes, Changes) or self.planning:
            return self.changes.hand_out(tracked=True)
        return self.changes.hand_out_results(self.scope.results)

    def _without_results(self, private: FanInState, returned: dict[str, Any]) -> dict[str, Any]:
        """What a fan-in returned, without the results that it was given, if it returned all of its state."""
        if PARALLEL_RESULTS in self.plan.schema.keys:
            return returned
        return private.without_results(returned)

    def announce(self, ctx: NodeContext) -> Generator[Any, Any, None]:
        """A node is about to be called: note the time, report it, and keep what a stop after it will show."""
        ctx.began = self.context.clocks.now()
        if not self.began:
            self.began = ctx.began
        if ctx.plan_node.name in self.plan.interrupt_after:
            # When the step completes, the branches before it are dropped; a checkpointer still wants their results.
            self.results_at_step = (ctx.step, self.scope.joined_results())
        if self.context.reporting.emit is not None:
            self.reporter.node_starts(ctx)
        if self.context.reporting.stretch is not None:
            self.reporter.begin_span(ctx, self.context.reporting.stretch)
        if self.context.reporting.stream:
            yield from self.reporter.stream(self.reporter.stream_events.node_starts(self.reporter, ctx))

    def _collect_in_branch(self, ctx: NodeContext, returned: Any) -> bytes:
        """What a node of a branch changed. Reducers are the user's functions, so they run without the lock."""
        work = ctx.plan_node.workflow_task
        if work is not None:
            return self.changes.collect(ctx.state, work.update(ctx, returned, self.context.clocks.now()))
        return self.context.journal_lock.call_unlocked(self.changes.collect, ctx.state, returned)

    def _without_secrets(self, error: Exception, returned: Any) -> Exception:
        """Why the result of a node can't be used, without the secrets in it."""
        masker = self.context.reporting.masker
        if masker.idle:
            return error
        masker.remember_state(returned)
        if isinstance(error, UnstorableValue):
            return hide_secret_path(error, masker.names)
        return error

    def _end_without_update(
        self, ctx: NodeContext, outcome: Any
    ) -> Generator[Any, Any, StepEnd | LoopStop | None]:
        """How the step of a node ends that returned a `Goto`, or failed; else why the loop stops.

        None means that the node is called again.
        """
        if type(outcome) is Goto:
            outcome = self._take_goto(ctx, outcome)
            if isinstance(outcome, StepEnd):
                return outcome
        if isinstance(outcome, (Failed, LoopStop)):
            end = None
            if ctx.plan_node.workflow_task is not None:
                end = yield from forgive_failure(self, ctx, outcome)
            elif ctx.plan_node.jumps:
                end = yield from catch_error(self, ctx, outcome)
            if end is not None:
                return end
        return (yield from handle_unfinished(self, ctx, outcome))

    def _take_goto(self, ctx: NodeContext, returned: Goto[Any]) -> StepEnd | Failed:
        """Where a node goes and what it changed; or why its `Goto` can't be used."""
        update = returned.update
        if type(update) is dict and isinstance(ctx.state, FanInState):
            update = self._without_results(ctx.state, update)
        try:
            check_goto(ctx.plan_node, returned.target)
            if self.nested:
                delta = self._collect_in_branch(ctx, update)
            else:
                delta = self.changes.collect(ctx.state, update)
        except Exception as error:
            return Failed(self._without_secrets(error, update), again=False)
        return StepEnd(delta, JumpTaken(returned.target))

    def _jump_target(self, node: PlanNode, jump: JumpTaken) -> str | None:
        """The node that a jump leads to; None if the run stops after this node, which it doesn't after an error."""
        if jump.caught is None and node.name in self.plan.interrupt_after:
            return None
        report_jump(self, node.name, jump.target)
        return jump.target

    def _record_jump(self, jump: JumpTaken, target: str | None) -> None:
        """Record what belongs to a jump besides its target: the error, or the target if the run stops before it."""
        if jump.caught is not None:
            record(self, {"caught": list(jump.caught)})
        elif target is None:
            record(self, {"goto": jump.target})

    def _choose_in_branch(self, node: PlanNode) -> str | SectionStart | Failed:
        """What comes after a node of a branch. Predicates are the user's functions, so they run without the lock."""
        return self.context.journal_lock.call_unlocked(choose_next, self, node)

    def _complete_in_branch(
        self, ctx: NodeContext, delta: bytes, target: str | None, at: float
    ) -> str | None:
        """Complete a step of a branch, which counts as a step of the run, too. Returns the branch's next node."""
        p = self.progress
        root = self.context.root
        writer = self.context.saving.writer
        if target == self.until:
            target = END
        p.began = self.began
        p.complete(ctx.plan_node.name, at, target)
        root.step += 1
        root.at = at
        # The record is made before `end_branch()`, which drops what a finished branch doesn't need any more.
        data = b"" if writer is None else step_record(p, delta, target)
        if target == END:
            p.end_branch()
        if writer is not None:
            writer.add_record_at(root, self.scope.path, p.began, data)
            writer.snapshot_if_due(root)
        return target

    def _stop_after(self, chosen: object) -> LoopStop:
        """Stop after a node that completed. The next node isn't chosen yet: the resume will do it."""
        if isinstance(chosen, Failed):
            reason = f"choosing the next node failed: {self.reporter.error_line(chosen.error)}"
            return LoopStop(FAILED, self, reason, chosen.error, AFTER)
        place = self.scope.place(self.progress.node)
        return LoopStop(PAUSED, self, f"{INTERRUPTED} after {place!r}", phase=AFTER)


def _target_of(chosen: str | SectionStart | Failed | None) -> str | None:
    """The node that comes next, if it is known."""
    if isinstance(chosen, str):
        return chosen
    if isinstance(chosen, SectionStart):
        return chosen.target
    return None
