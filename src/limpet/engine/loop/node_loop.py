"""The loop. One generator walks every graph: started, resumed, forked or recovered, sync or async, and every branch.

It reads no clock, file or random number and waits for nothing. It *yields* what is to be done and is sent
what came of it; a driver does the doing:

    yields              is sent
    `NodeContext`              what the node returned, or a `Failed`, `Asked`, `Sleeping` or `Cancelled`
    `Commit`            when it is durable and its ledger knows, None or a checkpointer's reference; or why not
    `Wait`              None when the time is over; a `Cancelled`, or a `WaitTooLong` before
    `Report`            None; the event is for whoever iterates the run

and returns a `LoopStop`. A walk in a branch yields two more, to the weave that runs it beside others: `SAVE`, for a
commit that may hold the records of several, and `Join`, for branches of its own. Rules that hold wherever it stops:

- A node's update is applied, and its position moves on, only after it returned; it is reported only after
  it is durable, where this step is to be saved.
- What comes next is decided once and stored. Only a stop after a node leaves the choice to the resume.
- What comes after branches runs when all of them are done, and finds what they came to.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Final

from limpet.engine.loop.commands import Asked, Cancelled, Failed, Sleeping
from limpet.engine.loop.next_node import SectionStart, following, opening_inside
from limpet.engine.loop.run_context import (
    DONE,
    SAVE,
    SLEEPING,
    Join,
    LoopStop,
    RunContext,
    refused,
    stop_changes,
    taken_together,
)
from limpet.engine.loop.saving import Steps
from limpet.engine.loop.state_changes import Changes, TaskChanges
from limpet.engine.loop.timing import Timing
from limpet.engine.node_context.node_context import NodeContext
from limpet.engine.node_context.scope import Scope
from limpet.errors import UnstorableValue
from limpet.graphs.parallel import COLLECT, SubPlan
from limpet.graphs.plan import END, Plan, PlanNode
from limpet.graphs.secrets import refused_discreetly
from limpet.graphs.state import State
from limpet.journal.encoding.codec import decode
from limpet.journal.encoding.copies import detached_value
from limpet.journal.open_section import Key
from limpet.journal.progress import Progress
from limpet.journal.store import CANCELLED, COMPLETED, FAILED, PAUSED, RUNNING
from limpet.journal.waits import AFTER, BEFORE, FAILED_PHASE
from limpet.observe import events

UNFINISHED: Final = frozenset({Failed, Asked, Sleeping, Cancelled, LoopStop})


class NodeLoop(Timing):
    """The way through one plan on one state: that of a run, of a branch, or of a graph inside of a node.

    `until` is the node that ends it: the fan-in, for a branch. `path`, `branch`, `prefix` are those of its `Scope`.
    """

    def __init__(
        self,
        context: RunContext,
        plan: Plan,
        progress: Progress,
        path: tuple[Key, ...] = (),
        branch: str = "",
        prefix: str = "",
        until: str = END,
        outer: Progress | None = None,
    ) -> None:
        self.context, self.plan, self.progress, self.until = context, plan, progress, until
        self.nested = bool(path)
        self.state = state = self._enlivened()
        self.scope = scope = Scope(
            plan,
            progress,
            context.keep,
            context.journal_lock,
            context.root,
            path,
            branch,
            prefix,
            outer,
            context.timer,
            context.masker,
        )
        durable = context.writer is not None
        self.changes: Changes | TaskChanges
        if scope.in_layer:
            self.changes = TaskChanges(state, durable)
        else:
            changed = progress.changed if progress.base is not None else None
            self.changes = Changes(state, plan.schema.reducers, durable, progress.base, changed)
            self.changes.apart = self.nested
        self.planning = plan.layers is not None and not scope.in_layer
        self.reported = self.marked = progress.iterations
        self.first = progress.began
        self.halts: dict[Key, LoopStop] = {}
        """Why the branches of the section that is open came to a stop, where they aren't done."""
        self.joined: tuple[int, list[dict[str, Any]] | None] = -1, None
        """The step of the last node that the run is to stop after, and what the branches before it came to."""

    def run(self) -> Generator[Any, Any, LoopStop]:
        """The loop. See the module's text."""
        plan, p, state, context, nested = self.plan, self.progress, self.state, self.context, self.nested
        writer, emit, clock = context.writer, context.emit, context.clock
        root, interval = context.root, context.interval
        nodes, limit = plan.nodes, plan.max_iterations
        before, after = plan.interrupt_before, plan.interrupt_after
        scope, hand_out, collect = self.scope, self.changes.private, self.changes.collect
        watched = nested or writer is not None or bool(plan.schema.reducers)
        straight = emit is None and not after
        planning = self.planning
        attentive = emit is not None or planning or (context.mark is not None and not nested)
        save_error = (
            before if nested or planning else before | {END}
        )  # what stops the run is saved with the stop
        halt = yield from self._arrive()
        if halt is not None:
            return halt
        while (name := p.node) != END:
            if p.timers:
                halt = yield from self.rest()
                if halt is not None:
                    return halt
            if before and name in before and not p.cleared:
                return LoopStop(PAUSED, self, f"interrupted before {scope.place(name)!r}")
            if p.iterations >= limit:
                return self._halt_of_budget(limit)
            node, failed = nodes[name], None
            private = hand_out(watched or node.retry is not None or p.section is not None)
            task = scope.task = NodeContext(scope, node, private, p.attempts + 1, p.step + 1)
            if after and name in after:
                self.joined = p.step + 1, scope.joined()
            if nested or planning or emit is not None:
                self.announce(task)
                if context.stream:
                    yield from self.report(self.words.begins(self, task))
            outcome = (yield task) if node.sub is None else (yield from self._inside(task, node.sub))
            if type(outcome) is dict or type(outcome) not in UNFINISHED:
                try:
                    outcome = collect(private, outcome) if not nested else self._collected(task, outcome)
                except Exception as error:
                    outcome = Failed(self._discreet(error, outcome), again=False)
            if node.work is not None and type(outcome) in (Failed, LoopStop):
                failed, outcome = yield from self._forgiven(task, outcome)
            if type(outcome) is not bytes:
                halt = yield from self._unfinished(task, outcome)
                if halt is not None:
                    return halt
                continue
            if task.used is None:
                scope.task = None
            else:
                task.close()
            if emit is not None:
                self.conclude(task, failed)
            state.checkpoint_node = name
            state._at = at = clock()
            chosen: str | SectionStart | Failed | None = node.follower if straight else None
            if chosen is None and name not in after:
                chosen = following(self, node) if not nested else self._chosen(node)
            decided = chosen if type(chosen) is str else self._target(chosen)
            if nested:
                decided = self._complete(task, outcome, decided, at)
            else:
                p.complete(name, at, decided)
                if writer is not None:
                    writer.step(p, outcome, decided)
            if node.delays is not None:
                self.linger(node, decided)
            if type(chosen) is SectionStart:
                halt = yield from self._enter(chosen)
                if halt is not None:
                    return halt
                continue
            if decided is None:
                return self._halt_after(chosen)
            if decided in save_error:
                continue
            if writer is not None and interval and not root.step % interval:
                answer = yield SAVE if nested else writer.commit()
                if isinstance(answer, Exception):
                    halt = yield from self.bear(answer)
                    if halt is not None:
                        return halt
                elif attentive:
                    self.saved()
            if context.stream:
                yield from self.step_report()
        return DONE

    def branch(self, on_error: str) -> Generator[Any, Any, LoopStop]:
        """The same for a branch: where it stops is noted, and saved, for the branch alone."""
        p, context = self.progress, self.context
        if not self.scope.in_layer:
            self.tell(events.BRANCH_START)
        halt = yield from self.run()
        if halt.status in (RUNNING, SLEEPING):
            return halt  # its records were refused, so nothing is told of them; or nothing has happened
        if halt.status == FAILED and on_error == COLLECT:
            times = {"began": self.first, "at": context.clock()}
            self.note({"node": END, "phase": BEFORE, "error": self.described(halt), **times})
            halt = LoopStop(COMPLETED, self)
        elif halt.at is self:
            self.note(stop_changes(halt, self.described(halt)))
        if halt.at is self:
            refusal = yield from self.save()
            if refusal is not None:
                return refusal
        if halt.status in (COMPLETED, FAILED) and not self.scope.in_layer:
            self.tell(events.BRANCH_COMPLETE, error=p.error is not None, duration=max(0.0, p.at - p.began))
        if p.iterations != self.reported:
            yield from self.step_report()
        if context.stream and halt.status in (COMPLETED, FAILED, PAUSED):
            error = p.error["message"] if p.error is not None else None
            yield from self.report(self.words.branch(self, halt.status if error is None else FAILED, error))
        return halt

    def child(self, key: Key, plan: Plan, until: str) -> NodeLoop:
        """The walk of one of the branches that are open here."""
        section, scope = self.progress.section, self.scope
        assert section is not None
        path, prefix = (*scope.path, key), f"{scope.prefix}{section.step}."
        place, inner = scope.place(section.label(key)), section.children[key]
        return NodeLoop(self.context, plan, inner, path, place, prefix, until, self.progress)

    def _enlivened(self) -> State:
        """The state as a State, which knows where it came from."""
        p, context = self.progress, self.context
        kind = self.plan.schema.live
        state = p.begin(kind.alive)
        if not isinstance(state, kind):
            p.state = state = kind.alive(state)
        state.run_id, state.checkpoint_node, state._emit = p.run_id, p.made_by, context.emit
        if secrets := context.masker.names:
            state._secrets = secrets
        state._at = p.at or context.clock()
        return state

    def _arrive(self) -> Steps:
        """Begin where the progress says: with what is open, or after a node, where what follows is chosen first."""
        p = self.progress
        if p.phase == AFTER:
            if p.node in self.plan.interrupt_after and not p.cleared:
                return self._halt_after(None)
            chosen = self._chosen(self.plan.nodes[p.node])
            if isinstance(chosen, Failed):
                return self._halt_after(chosen)
            target = self._target(chosen)
            self.note({"node": END if target == self.until else target, "phase": BEFORE, "cleared": False})
            self.linger(self.plan.nodes[p.made_by or ""], p.node)
            if isinstance(chosen, SectionStart):
                self._open(chosen)
        if self.context.resumed and not self.nested:
            self.tell(events.CHECKPOINT_RESUME, checkpoint_node=p.made_by, resume_node=p.node)
        if p.section is not None and not p.section.inside:
            return (yield from self._join())
        return None

    def _chosen(self, node: PlanNode) -> str | SectionStart | Failed:
        """What comes after a node of a branch; the functions that say so may take their time."""
        return self.context.journal_lock.call_unlocked(following, self, node)

    def _collected(self, task: NodeContext, returned: Any) -> bytes:
        """What a node of a branch changed; so may reducers."""
        work = task.plan_node.work
        if work is not None:
            return self.changes.collect(task.state, work.update(task, returned, self.context.clock()))
        return self.context.journal_lock.call_unlocked(self.changes.collect, task.state, returned)

    def _discreet(self, error: Exception, returned: Any) -> Exception:
        """Why what a node returned can't be taken over, without what it returned under secret keys."""
        masker = self.context.masker
        if masker.idle:
            return error
        masker.remember_state(returned)
        return refused_discreetly(error, masker.names) if isinstance(error, UnstorableValue) else error

    def _forgiven(
        self, task: NodeContext, outcome: Failed | LoopStop
    ) -> Generator[Any, Any, tuple[Failed | None, Any]]:
        """A task failed: what comes of that where it is for good and does no harm; else the same as before."""
        work = task.plan_node.work
        assert work is not None
        if isinstance(outcome, Failed):
            failed = outcome
        elif outcome.status == FAILED:
            failed = Failed(outcome.cause or RuntimeError(outcome.reason), again=outcome.cause is not None)
        else:
            return None, outcome
        if not work.safe_to_fail or (failed.again and self._delay(task, failed.error) is not None):
            return None, outcome
        yield from self.report(self.words.fails(self, task, failed.error, None))
        place = self.scope.place(task.node)
        error = (
            self.described(outcome) if isinstance(outcome, LoopStop) else self.error_data(failed.error, place)
        )
        return failed, self.changes.collect(task.state, work.failed(task, error, self.context.clock()))

    def _target(self, chosen: str | SectionStart | Failed | None) -> str | None:
        """The node that comes next, as far as that is decided."""
        return (
            chosen if isinstance(chosen, str) else chosen.target if isinstance(chosen, SectionStart) else None
        )

    def _enter(self, opening: SectionStart) -> Steps:
        """Branches begin after a node that completed: save both, and have them walked."""
        context = self.context
        self._open(opening)
        if context.interval and not context.root.step % context.interval:
            refusal = yield from self.save()
            if refusal is not None:
                return refusal
        yield from self.step_report()
        return (yield from self._join())

    def _open(self, opening: SectionStart) -> None:
        """Branches begin, on states that nobody else has."""
        p, writer, at = self.progress, self.context.writer, self.context.clock()
        data, record = opening.data, p.open_record(opening.encoded, at)
        if "items" in data or "states" in data:
            data = decode(opening.encoded) if writer is not None else detached_value(data)
        p.open(data)
        if writer is not None:
            writer.put(self.context.root, self.scope.path, at, record)

    def _inside(self, task: NodeContext, sub: SubPlan) -> Generator[Any, Any, Any]:
        """The outcome of a node that runs a graph."""
        p = self.progress
        try:
            if p.section is None:
                self._open(self.context.journal_lock.call_unlocked(opening_inside, self, task.node, sub))
            halt = yield from self._join()
            if halt is not None:
                return halt
            assert p.section is not None
            final = p.section.children[task.node].result()
            if task.plan_node.work is not None:
                task._hear(final)
                return sub.result(final)
            left = self.context.journal_lock.call_unlocked(sub.leave, final, self.state, self.plan.schema)
            self.changes.replace(p.section.kept)
            return left
        except Exception as error:
            return Failed(error, again=False)

    def _join(self) -> Steps:
        """Have the open branches walked. None when all are done; else why that isn't so."""
        self.halts, self.changes.apart = {}, True
        section = self.progress.section
        assert section is not None
        if section.layer is not None:
            left = [key for key, child in section.children.items() if not child.done]
            self.tell(events.LAYER_START, layer=section.layer, tasks=left)
            yield from self.report(self.words.layer(self, section.layer, left))
        refusal = (yield Join(self)) if self.nested else (yield from self.context.weave(self))
        if refusal is not None:
            return refused(refusal)
        if self.context.stopping:
            return LoopStop(CANCELLED)
        stopped = [key for key, child in section.children.items() if not child.done]
        if not stopped:
            if section.layer is not None:
                self.tell(events.LAYER_COMPLETE, layer=section.layer)
                self.progress.fold()
            return None
        return taken_together([self.halts[key] for key in stopped if key in self.halts])

    def _unfinished(
        self, task: NodeContext, outcome: Failed | Asked | Sleeping | Cancelled | LoopStop
    ) -> Steps:
        """A node didn't complete: try again (None), or stop (a Halt)."""
        self.context.masker.remember_state(task.state)
        task.close()
        self.changes.undo(task.state)
        if self.context.emit is not None:
            self.conclude(task, outcome)
        match outcome:
            case Asked(question, note):
                place, asked = (
                    self.scope.place(task.node),
                    question._replace(prompt=self.hide(question.prompt)),
                )
                reason = f"{place!r} asks: {asked.prompt}{self.hide(note)}"
                return LoopStop(PAUSED, self, reason, questions=[asked])
            case Sleeping():
                return (yield from self.sleep(task, outcome))
            case Cancelled():
                return LoopStop(CANCELLED)
            case Failed(error, again):
                delay = self._delay(task, error) if again else None
                yield from self.report(self.words.fails(self, task, error, delay))
                if delay is not None:
                    return (yield from self.again(task, error, delay))
                return LoopStop(FAILED, self, self.told(error), error, FAILED_PHASE)
            case LoopStop(status, cause=cause):
                if status != FAILED:
                    return outcome
                delay = None if cause is None else self._delay(task, cause)
                error = cause or RuntimeError(outcome.reason)
                yield from self.report(self.words.fails(self, task, error, delay))
                return outcome if delay is None else (yield from self.again(task, error, delay))

    def _delay(self, task: NodeContext, error: BaseException) -> float | None:
        retry = task.plan_node.retry
        if retry is None or not retry.applies(error, task.attempt):
            return None
        return retry.delay(task.attempt, self.context.chance())

    def _complete(self, task: NodeContext, delta: bytes, target: str | None, at: float) -> str | None:
        """A node of a branch completed: it counts as a step of the run, too. Gives what comes next in the branch."""
        p, root, writer = self.progress, self.context.root, self.context.writer
        following = END if target == self.until else target
        p.began = self.first
        p.complete(task.node, at, following)
        root.step += 1
        root.at = at
        record = b"" if writer is None else p.step_record(delta, following)
        if following == END:
            p.end()
        if writer is not None:
            writer.put(root, self.scope.path, p.began, record)
            writer.consider(root)
        return following

    def _halt_of_budget(self, limit: int) -> LoopStop:
        """As many nodes have run as may."""
        reason = f"max_iterations ({limit}) exceeded; a resume needs a graph that allows more"
        return LoopStop(FAILED, self, reason, None, FAILED_PHASE)

    def _halt_after(self, following: object) -> LoopStop:
        """The node completed, but what follows isn't decided: it is to be, at the resume."""
        if isinstance(following, Failed):
            reason = f"choosing what follows failed: {self.told(following.error)}"
            return LoopStop(FAILED, self, reason, following.error, AFTER)
        place = self.scope.place(self.progress.node)
        return LoopStop(PAUSED, self, f"interrupted after {place!r}", phase=AFTER)
