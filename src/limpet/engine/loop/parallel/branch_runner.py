"""The scheduler that runs all open branches of a run, however deep, in one place.

It is as pure as the loops that it runs: it collects what they ask for, passes it on, and passes each outcome back.
Nodes that can run are begun together; records of several branches share a commit; of several waits, the nearest is
waited for. A node that runs alone is yielded as it is, so that it needs no thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Sequence
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, Final

from limpet.engine.loop.driver_commands import (
    AcquireSlots,
    Begin,
    Cancelled,
    Gather,
    PostsArrived,
    ReleaseSlots,
    Report,
    StopAsked,
    Wait,
    WaitTooLong,
)
from limpet.engine.loop.parallel.branch_groups import Branch, BranchGroup, FlowReport
from limpet.engine.loop.parallel.flow_steps import advance_flow, report_advance
from limpet.engine.loop.run_context import (
    SAVE,
    SLEEPING,
    WAITING,
    LoopStop,
    RunContext,
)
from limpet.engine.loop.taking_in import take_in
from limpet.engine.node_context.node_context import NodeContext
from limpet.errors import Conflict, RunNotFound
from limpet.journal.open_parallel_section import Key
from limpet.journal.store import CANCELLED, FAILED, PAUSED
from limpet.journal.waits import EXPIRE, EXPIRE_WAITS, has_expired_wait
from limpet.journal.writer import summary

if TYPE_CHECKING:
    from limpet.engine.loop.node_loop import NodeLoop

MAX_WAIT_WITH_QUESTION: Final = 1.0
"""Seconds that sleeping branches may hold up a run in which another branch asks: then it pauses with the question."""


class BranchRunner:
    """All running branches of a run. Each is in exactly one of these places:

    - `ready`: it can continue, with the outcome of what it yielded last
    - `asking`: it wants slots for a node
    - `queued`: it wants a node called
    - `calling`: its node runs
    - `saving`: it waits for a commit
    - `sleeping`: it waits for time to pass, in a heap by when that is over
    - or it waits for branches of its own, whose group has it as `parent`
    """

    def __init__(self, context: RunContext) -> None:
        self.context = context
        self.groups: list[BranchGroup] = []
        """The groups with branches that run, and that of the run's own loop."""
        self.ready: deque[tuple[Branch, Any]] = deque()
        self.asking: list[tuple[Branch, NodeContext]] = []
        self.unreleased: list[NodeContext] = []
        """Calls that have ended, and whose slots are to be released."""
        self.queued: deque[tuple[Branch, NodeContext]] = deque()
        self.calling: dict[NodeContext, Branch] = {}
        self.saving: list[Branch] = []
        self.sleeping: list[tuple[float, int, Branch]] = []
        self.refusal: Exception | None = None
        """Why the store refused records, if it did and the run can't continue without them."""
        self._sleeps = 0
        """How many sleeps there were: it orders those in the heap that end at the same time."""
        self._question_waits = False
        self._post_awaited = False
        self._posts_noticed = False

    def run(self, loop: NodeLoop) -> Generator[Any, Any, Exception | None]:
        """Run the open branches of a loop until all have stopped; returns why records were refused, if they were."""
        context = self.context
        ready = self.ready
        queued = self.queued
        inline = context.limits.call_single_node_inline
        self._begin_group(loop, None)
        while True:
            # First let every branch that can continue do so, until it wants something. Only then is anything done:
            # so nodes of many branches begin together, and their records go into one commit.
            while ready:
                branch, answer = ready.popleft()
                try:
                    command = branch.steps.send(answer)
                except StopIteration as end:
                    if type(branch) is not FlowReport:
                        self._branch_stopped(branch, end.value)
                    continue
                if type(command) is NodeContext:
                    queued.append((branch, command))
                elif command is SAVE:
                    self.saving.append(branch)
                elif type(command) is Report:
                    yield command
                    ready.appendleft((branch, None))  # it isn't done reporting, and its events stay together
                elif type(command) is Wait:
                    self._sleeps += 1
                    heappush(self.sleeping, (command.until, self._sleeps, branch))
                elif type(command) is AcquireSlots:
                    self.asking += [(branch, ctx) for ctx in command.tasks]
                elif type(command) is ReleaseSlots:
                    self.unreleased += command.tasks
                    ready.append((branch, None))
                else:
                    self._begin_group(command.loop, branch)
            if context.stopping or self.refusal is not None:
                self._stop_waiting_branches()
            if self.asking or self.unreleased:
                yield from self._exchange_slots()
                continue
            alone = len(queued) == 1 and not (self.calling or self.saving or self.sleeping)
            if alone and inline and not (self._question_waits or self._post_awaited):
                # Nothing else could happen meanwhile, so the driver may call the node in its own thread.
                branch, ctx = queued.popleft()
                ready.append((branch, (yield ctx)))
                continue
            if queued and (calls := self._next_calls()):
                yield Begin(calls)
            # Commit before waiting for nodes: what is durable early needn't be done again after a crash.
            if self.saving or self._posts_noticed:
                yield from self._save()
                if isinstance(self.refusal, (Conflict, RunNotFound)):
                    # The run is another process's now, or deleted: leave everything at once.
                    return self.refusal
            elif not ready and not (yield from self._wait()):
                return self.refusal

    def _begin_group(self, loop: NodeLoop, parent: Branch | None) -> None:
        """Begin with the branches of a loop that waits for them."""
        group = BranchGroup(loop, parent, self.context.limits.max_concurrency)
        self.groups.append(group)
        for stop in loop.branch_stops.values():
            self._question_waits |= stop.status == PAUSED
            self._post_awaited |= stop.status == WAITING
        self._fill(group)

    def _fill(self, group: BranchGroup) -> None:
        """Begin branches, as many as the group allows. When none of them runs any more, their parent continues."""
        if not (group.failing or self.context.stopping or self.refusal is not None):
            while group.waiting and group.running < group.limit:
                self.ready.append((Branch(group, group.waiting.popleft()), None))
                group.running += 1
        if not group.running and group.parent is not None:
            self.groups.remove(group)
            self.ready.append((group.parent, self.refusal))

    def _branch_stopped(self, branch: Branch, stop: LoopStop) -> None:
        group = branch.group
        group.running -= 1
        if not branch.is_noted and branch.progress.done and self.refusal is None:
            self._advance_flows([branch], saves=False)
        if stop.status in (FAILED, PAUSED, SLEEPING, WAITING):
            group.loop.branch_stops[branch.key] = stop
            if stop.status == PAUSED:
                self._question_waits = True
            elif stop.status == WAITING:
                self._post_awaited = True
                # What it waits for may have come while that was saved.
                self._begin_again_if_woken(group, branch.key)
            elif stop.status == FAILED:
                group.failing = group.stops_on_error
        elif stop.status == CANCELLED and self.refusal is None:
            # One branch that was asked to stop means that the run was. After a refusal, all of them are stopped.
            self.context.stopping = True
        self._fill(group)

    def _exchange_slots(self) -> Generator[Any, Any, None]:
        """Release the slots of calls that have ended, and ask for those of calls that can begin, all at once."""
        if self.unreleased:
            released = self.unreleased
            self.unreleased = []
            yield ReleaseSlots(released)
        if self.asking:
            asking = self.asking
            self.asking = []
            answers = yield AcquireSlots([ctx for _, ctx in asking])
            self.ready.extend((branch, [answer]) for (branch, _), answer in zip(asking, answers, strict=True))

    def _next_calls(self) -> list[NodeContext]:
        """The nodes that begin now: as many as the run's limit allows."""
        limit = self.context.limits.max_concurrency
        calls: list[NodeContext] = []
        while self.queued and len(self.calling) < limit:
            branch, ctx = self.queued.popleft()
            self.calling[ctx] = branch
            calls.append(ctx)
        return calls

    def _save(self) -> Generator[Any, Any, None]:
        """Save the records of all branches that wait for it, in one commit.

        A request to stop doesn't keep finished work from being saved: the commit is made again and ignores it. When
        the store refused, nothing new begins and nothing more is saved, and running nodes are waited for.
        """
        self._posts_noticed = False
        now = self.context.clocks.store()
        answer: Any = self.refusal
        begun: list[BranchGroup] = []
        if answer is None:
            begun = self._advance_flows(self.saving, saves=True)
            answer = yield from self._commit()
            # Only now: what was sent before the deadline has been taken in.
            if answer is None and self._is_late(now):
                self._end_late_waits(now)
                answer = yield from self._commit()
        self.ready.extend((branch, answer) for branch in self.saving)
        self.saving.clear()
        for group in begun:
            self._fill(group)

    def _advance_flows(self, branches: Sequence[Branch], saves: bool) -> list[BranchGroup]:
        """Tasks of data flows are done: let others wait for their turn. Returns the groups in which any do."""
        done: dict[BranchGroup, list[str]] = {}
        for branch in branches:
            if not branch.is_noted and branch.progress.done:
                branch.is_noted = True
                done.setdefault(branch.group, []).append(str(branch.key))
        begun = []
        for group, names in done.items():
            advance = advance_flow(group.loop, names)
            group.waiting.extend(advance.begun)
            if advance.begun:
                begun.append(group)
            if advance.is_reported:
                report = FlowReport(group, report_advance(group.loop, advance, saves))
                if saves:
                    next(report.steps)  # it waits for the commit, like the branches that are being saved
                    self.saving.append(report)
                else:
                    self.ready.append((report, None))
        return begun

    def _commit(self) -> Generator[Any, Any, Any]:
        """Commit what is pending, and take in the posts that wait: branches whose questions they answer run again."""
        context = self.context
        writer = context.saving.writer
        assert writer is not None
        answer: Any = None
        while True:
            # A question shows in the run's summary from the moment it is asked, while other branches run.
            described = summary(context.root) if context.summary_is_old else None
            answer = yield writer.commit(summary=described, ignores_posts=context.stopping)
            if isinstance(answer, PostsArrived):
                take_in(context, answer.posts)
                context.stopping = context.stopping or context.cancel_requested
            elif isinstance(answer, StopAsked):
                context.stopping = True
            else:
                break
        if not isinstance(answer, Exception):
            context.summary_is_old = False
        elif not context.tolerates(answer):
            self.refusal = answer
        if context.has_woken:
            context.has_woken = False
            self._begin_woken()
        return answer

    def _begin_woken(self) -> None:
        """Run the branches again that had stopped, and got an answer or what else they wait for."""
        self._question_waits = bool(self.context.root.open_questions())
        for group in list(self.groups):
            for key in list(group.loop.branch_stops):
                self._begin_again_if_woken(group, key)
            self._fill(group)

    def _begin_again_if_woken(self, group: BranchGroup, key: Key) -> None:
        section = group.loop.progress.section
        assert section is not None
        stop = group.loop.branch_stops[key]
        if stop.status in (PAUSED, WAITING) and section.children[key].can_run():
            del group.loop.branch_stops[key]
            group.waiting.append(key)

    def _wait(self) -> Generator[Any, Any, bool]:
        """Wait until a node is done or a sleep is over. False if no branch runs any more."""
        context = self.context
        store_clock = context.clocks.store
        seconds = None
        times = self._times_to_look()
        if times:
            seconds = max(0.0, min(times) - store_clock())
        if self.calling:
            for ctx, outcome in (yield Gather(seconds)):
                if ctx is None:
                    context.stopping = context.stopping or context.limits.is_stopping()
                else:
                    self.ready.append((self.calling.pop(ctx), outcome))
        elif not self.sleeping:
            return False
        elif self._is_too_long(self.sleeping[0][0] - store_clock()):
            self._answer_sleeping(WaitTooLong())
            return True
        elif isinstance((yield Wait(min(times), for_posts=True)), Cancelled):
            context.stopping = True
        # They are taken in with the next commit, which follows once the nodes that are done were dealt with.
        self._posts_noticed = context.limits.has_posts() or context.has_woken or self._is_late(store_clock())
        now = store_clock()
        while self.sleeping and self.sleeping[0][0] <= now:
            self.ready.append((heappop(self.sleeping)[2], None))
        return True

    def _times_to_look(self) -> list[float]:
        """When the nearest sleep is over, and until when branches wait for posts or answers, by the store's clock."""
        times = [until for until, _, _ in self.sleeping[:1]]
        if self.context.stopping:
            return times
        root = self.context.root
        if self._post_awaited:
            times += [each.deadline for each in root.all_waits() if each.deadline is not None]
        if self._question_waits:
            times += [each.deadline for each in root.unanswered_questions() if each.deadline is not None]
        return times

    def _is_late(self, now: float) -> bool:
        """Whether a branch waits for a post or an answer that hasn't come until its deadline."""
        # A run that stops takes nothing in, so what has come in time isn't known here. The resume finds out.
        if self.context.stopping:
            return False
        if self._post_awaited and has_expired_wait(self.context.root, now):
            return True
        return self._question_waits and bool(self.context.root.expired_questions(now))

    def _end_late_waits(self, now: float) -> None:
        """Record that posts and answers haven't come in time, for the next commit: their branches continue then."""
        context = self.context
        assert context.saving.writer is not None
        changes: dict[str, Any] = {EXPIRE_WAITS: now}
        overdue = context.root.expired_questions(now)
        if overdue:
            changes[EXPIRE] = overdue
            context.summary_is_old = True
        context.saving.writer.add_move(context.root, changes, context.clocks.now())
        context.has_woken = True

    def _stop_waiting_branches(self) -> None:
        """Nothing new begins: branches that wait for their turn, or for time to pass, stop here."""
        self.ready.extend((branch, [Cancelled()]) for branch, _ in self.asking)
        self.asking.clear()
        self.ready.extend((branch, Cancelled()) for branch, _ in self.queued)
        self.queued.clear()
        self._answer_sleeping(Cancelled())

    def _is_too_long(self, seconds: float) -> bool:
        """Whether a wait is too long for this process. A question must not wait until other branches wake up."""
        max_wait = self.context.limits.max_wait
        if max_wait is not None:
            return seconds > max_wait
        return self._question_waits and seconds > MAX_WAIT_WITH_QUESTION

    def _answer_sleeping(self, answer: Cancelled | WaitTooLong) -> None:
        """End all sleeps with this answer."""
        self.ready.extend((branch, answer) for _, _, branch in self.sleeping)
        self.sleeping.clear()
