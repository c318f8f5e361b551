"""What a walk waits for without anybody's doing: a node that sleeps, an edge that takes its time, another attempt.

When it is over is stored with the position, by the store's clock. So whoever goes on with the run waits for the
rest of it and no longer, and where nobody does, the run lies in the store until it is due.
"""

from __future__ import annotations

from limpet.engine.loop.commands import Cancelled, Sleeping, Wait, WaitTooLong
from limpet.engine.loop.run_context import SLEEPING, LoopStop
from limpet.engine.loop.saving import Saving, Steps
from limpet.engine.node_context.node_context import NodeContext
from limpet.graphs.plan import END, PlanNode
from limpet.journal.store import CANCELLED
from limpet.journal.waits import ARRIVAL, NEXT_ATTEMPT
from limpet.observe import events

A_TICK = 0.001
"""Seconds that nobody waits for: clocks don't tell them apart."""


class Timing(Saving):
    """The part of a walk that lets time pass."""

    def rest(self) -> Steps:
        """Wait until the position may be gone on with. A Halt if the run is left, or stops, before."""
        context, until = self.context, self.progress.rests_until
        while (left := until - context.timer()) > A_TICK:
            if not self.nested and context.patience is not None and left > context.patience:
                return LoopStop(SLEEPING)
            answer = yield Wait(left)
            if isinstance(answer, WaitTooLong):
                return LoopStop(SLEEPING)
            if isinstance(answer, Cancelled):
                return LoopStop(CANCELLED)
        return None

    def sleep(self, task: NodeContext, asleep: Sleeping) -> Steps:
        """A node sleeps: it is called again when that is over. None when that is stored."""
        self.tell(events.NODE_SLEEP, node=task.node, until=asleep.until)
        return (yield from self._until(asleep.until, {}, asleep.timer, ARRIVAL))

    def again(self, task: NodeContext, error: BaseException, delay: float) -> Steps:
        """Count a failed attempt, durably; the next comes after the delay. None when that is stored."""
        self.tell(
            events.NODE_RETRY, node=task.node, attempt=task.attempt, delay=delay, error=self.told(error)
        )
        changes = {"attempts": task.attempt, "error": self.error_data(error, self.scope.place(task.node))}
        if self.progress.section is not None:
            changes["section_again"] = True
        return (yield from self._until(self.context.timer() + delay, changes, NEXT_ATTEMPT))

    def linger(self, node: PlanNode, target: str | None) -> None:
        """The edge to `target` takes its time, if it does."""
        delay = node.delays.get(target, 0.0) if node.delays is not None and target not in (None, END) else 0.0
        if delay:
            self.note({"timers": {ARRIVAL: self.context.timer() + delay}})

    def _until(self, until: float, changes: dict[str, object], *timers: str) -> Steps:
        """Store that nothing comes before `until`."""
        self.note({**changes, "timers": {**self.progress.timers, **dict.fromkeys(timers, until)}})
        return (yield from self.save())
