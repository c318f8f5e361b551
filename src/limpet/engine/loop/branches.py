"""Walks beside each other: all branches of a run that are open, however deep, in one place.

Pure like the walks themselves: what they ask for is put together, handed on, and its outcome handed back.
Nodes that can run are begun together; records of several walks share a commit; the nearest of several
waits is waited for. A node that runs alone is yielded as it is, so that it needs no thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from heapq import heappop, heappush
from typing import Any

from limpet.engine.loop.commands import Begin, Cancelled, Gather, Report, Wait, WaitTooLong
from limpet.engine.loop.next_node import plan_of_branches
from limpet.engine.loop.node_loop import NodeLoop
from limpet.engine.loop.run_context import SAVE, SLEEPING, LoopStop, RunContext
from limpet.engine.node_context.node_context import NodeContext
from limpet.errors import Conflict, RunNotFound
from limpet.graphs.parallel import FAIL
from limpet.journal.open_section import Key
from limpet.journal.store import CANCELLED, FAILED, PAUSED, RUNNING, OnSignal, Signalled

A_MOMENT = 1.0
"""Seconds for which a question waits to be heard, while the other branches sleep."""


class BranchGroup:
    """The branches that are open at one walk: those that wait to be begun, and how many are under way.

    `holder` is what waits for them, unless that is the run's own walk.
    """

    __slots__ = ("failing", "holder", "limit", "live", "on_error", "plan", "until", "waiting", "walk")

    def __init__(self, walk: NodeLoop, holder: Branch | None, limit: int) -> None:
        section = walk.progress.section
        assert section is not None
        opener = None if section.inside else walk.plan.nodes[section.source].section
        self.walk, self.holder, self.live, self.failing = walk, holder, 0, False
        self.plan, self.until = plan_of_branches(walk.plan, walk.progress)
        self.on_error = opener.on_error if opener is not None else FAIL
        self.limit = min(limit, opener.max_concurrency or limit) if opener is not None else limit
        self.waiting: deque[Key] = deque()
        for key, child in section.children.items():
            if child.status == RUNNING and not child.done:
                self.waiting.append(key)
            elif not child.done:
                walk.halts[key] = LoopStop(PAUSED, None, child.reason or "", questions=child.questions)


class Branch:
    """One branch that is under way."""

    __slots__ = ("bundle", "key", "walk")

    def __init__(self, bundle: BranchGroup, key: Key) -> None:
        self.bundle, self.key = bundle, key
        self.walk = bundle.walk.child(key, bundle.plan, bundle.until).branch(bundle.on_error)


class BranchRunner:
    """All branches of a run that are under way. `run` yields what they need from a driver."""

    def __init__(self, context: RunContext) -> None:
        self.context = context
        self.ready: deque[tuple[Branch, Any]] = deque()
        self.queued: deque[tuple[Branch, NodeContext]] = deque()
        self.running: dict[NodeContext, Branch] = {}
        self.savers: list[Branch] = []
        self.timers: list[tuple[float, int, Branch]] = []
        self._timed = 0
        self._prompt = False
        self._asks = False
        self.refusal: Exception | None = None

    def run(self, walk: NodeLoop) -> Generator[Any, Any, Exception | None]:
        """Walk the open branches of a run until each has come to a stop; returns why records were refused, if so."""
        context, ready, queued, running, savers = (
            self.context,
            self.ready,
            self.queued,
            self.running,
            self.savers,
        )
        layers = walk.plan.layers
        told = context.stream or context.emit is not None
        self._prompt = layers is not None and layers.prompt and not told
        self._spread(walk, None)
        while True:
            while ready:
                strand, answer = ready.popleft()
                try:
                    command = strand.walk.send(answer)
                except StopIteration as end:
                    self._ended(strand, end.value)
                    continue
                if type(command) is NodeContext:
                    queued.append((strand, command))
                elif command is SAVE:
                    savers.append(strand)
                elif type(command) is Report:
                    yield command
                    ready.appendleft((strand, None))
                elif type(command) is Wait:
                    self._timed += 1
                    heappush(self.timers, (context.timer() + command.seconds, self._timed, strand))
                else:
                    self._spread(command.walk, strand)
            if context.stopping or self.refusal is not None:
                self._stop()
            if len(queued) == 1 and context.alone and not (running or savers or self.timers):
                strand, task = queued.popleft()
                ready.append((strand, (yield task)))
                continue
            if queued and (tasks := self._begun()):
                yield Begin(tasks)
            if savers:
                yield from self._save()
                if isinstance(self.refusal, (Conflict, RunNotFound)):
                    return self.refusal
            elif not ready and not (yield from self._wait()):
                return self.refusal

    def _spread(self, walk: NodeLoop, holder: Branch | None) -> None:
        """Begin with the branches of a walk that waits for them."""
        self._fill(BranchGroup(walk, holder, self.context.limit))

    def _fill(self, bundle: BranchGroup) -> None:
        """Let branches begin, as many as may; where none is under way any more, their holder goes on."""
        may_begin = not (bundle.failing or self.context.stopping or self.refusal is not None)
        while may_begin and bundle.waiting and bundle.live < bundle.limit:
            self.ready.append((Branch(bundle, bundle.waiting.popleft()), None))
            bundle.live += 1
        if not bundle.live and bundle.holder is not None:
            self.ready.append((bundle.holder, self.refusal))

    def _ended(self, strand: Branch, halt: LoopStop) -> None:
        bundle = strand.bundle
        bundle.live -= 1
        if halt.status in (FAILED, PAUSED, SLEEPING):
            bundle.walk.halts[strand.key] = halt
            self._asks = self._asks or halt.status == PAUSED
            bundle.failing = bundle.failing or halt.status == FAILED
        elif halt.status == CANCELLED and self.refusal is None:
            self.context.stopping = True
        self._fill(bundle)

    def _begun(self) -> list[NodeContext]:
        """The nodes that may run now: as many as there is room for beside those that do."""
        tasks: list[NodeContext] = []
        while self.queued and len(self.running) < self.context.limit:
            strand, task = self.queued.popleft()
            self.running[task] = strand
            tasks.append(task)
        return tasks

    def _save(self) -> Generator[Any, Any, None]:
        """Save the records of all that wait for it. A signal to stop is heeded, and doesn't keep them from it.

        When that was refused, nothing new begins, nothing more is saved, and what runs is waited for.
        """
        writer = self.context.writer
        assert writer is not None
        answer: Any = self.refusal
        if answer is None and not self._layer_is_done():
            answer = yield writer.commit(
                on_signal=OnSignal.IGNORE if self.context.stopping else OnSignal.REFUSE
            )
            if isinstance(answer, Signalled):
                self.context.stopping = True
                answer = yield writer.commit(on_signal=OnSignal.IGNORE)
        if isinstance(answer, Exception) and not self.context.tolerates(answer):
            self.refusal = answer
        self.ready.extend((strand, answer) for strand in self.savers)
        self.savers.clear()

    def _layer_is_done(self) -> bool:
        """Whether those who wait are the last of a layer, and nobody is told of them before it is saved, at once."""
        if not self._prompt or self.running or self.queued or self.timers:
            return False
        bundle = self.savers[0].bundle
        section = bundle.walk.progress.section
        if section is None or bundle.holder is not None or bundle.waiting or bundle.live != len(self.savers):
            return False
        return all(each.bundle is bundle and section.children[each.key].done for each in self.savers)

    def _wait(self) -> Generator[Any, Any, bool]:
        """Wait for what is under way. False if nothing is."""
        now = self.context.timer()
        seconds = max(0.0, self.timers[0][0] - now) if self.timers else None
        if self.running:
            for task, outcome in (yield Gather(seconds)):
                if task is None:
                    self.context.stopping = True
                else:
                    self.ready.append((self.running.pop(task), outcome))
        elif seconds is not None and self._too_long(seconds):
            self._send_away(WaitTooLong())
            return True
        elif seconds is not None:
            if isinstance((yield Wait(seconds)), Cancelled):
                self.context.stopping = True
        else:
            return False
        now = self.context.timer()
        while self.timers and self.timers[0][0] <= now:
            self.ready.append((heappop(self.timers)[2], None))
        return True

    def _stop(self) -> None:
        """Nothing new begins: what waits for its turn, or for time to pass, stops here."""
        self.ready.extend((strand, Cancelled()) for strand, _ in self.queued)
        self.queued.clear()
        self._send_away(Cancelled())

    def _too_long(self, seconds: float) -> bool:
        """Whether nobody waits here for so long; where some ask, they are to be heard before the others awake."""
        patience = self.context.patience
        return seconds > (A_MOMENT if patience is None else patience) and (patience is not None or self._asks)

    def _send_away(self, answer: Cancelled | WaitTooLong) -> None:
        """What waits for time to pass doesn't wait here."""
        self.ready.extend((strand, answer) for _, _, strand in self.timers)
        self.timers.clear()
