"""How a walk has saved what happened: its notes go into the next commit, and a commit that fails may be borne."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from limpet.engine.loop.reporter import Reporter
from limpet.engine.loop.run_context import SAVE, LoopStop, refused
from limpet.observe import events

Steps = Generator[Any, Any, LoopStop | None]


class Saving(Reporter):
    """The part of a walk that writes. `marked` is how many of its steps were done at the last checkpoint."""

    marked: int

    def note(self, changes: dict[str, Any]) -> None:
        """Something other than a completed node happened: move on by it, and have it in the next commit."""
        p, writer, at = self.progress, self.context.writer, self.context.clock()
        record = b"" if writer is None else p.move_record(changes, at)
        p.move(changes)
        if self.nested and p.done:
            p.end()
        if writer is not None:
            writer.put(self.context.root, self.scope.path, at, record)

    def described(self, halt: LoopStop) -> dict[str, Any]:
        """A failure as data, with the whole way to the node."""
        at = halt.at or self
        node = at.scope.place(at.progress.node)
        return (
            self.error_data(halt.cause, node)
            if halt.cause
            else {"type": "", "message": halt.reason, "node": node}
        )

    def saved(self, told: bool = False) -> None:
        """The last step is durable: tell, unless that was told when it was."""
        context, root = self.context, self.context.root
        if context.mark is not None and not self.nested and self.marked != root.iterations:
            self.marked = root.iterations
            context.mark()
        self.state._saved = f"{root.run_id}@{root.step}"
        if not told:
            self.tell(events.CHECKPOINT_SAVE, node=self.progress.made_by, step=root.step)

    def save(self) -> Steps:
        """Have all that happened durable. A Halt if that was refused, and the run can't go on without."""
        writer = self.context.writer
        if writer is None:
            return None
        answer = yield SAVE if self.nested else writer.commit()
        if isinstance(answer, Exception):
            return (yield from self.bear(answer))
        self.saved()
        return None

    def bear(self, refusal: Exception) -> Steps:
        """Records weren't taken: go on all the same, if that may be, or stop."""
        context = self.context
        if not context.tolerates(refusal):
            return refused(refusal)
        if context.save_error is not refusal:
            if context.save_error is None:
                from logging import getLogger

                what = "run %s goes on although it can't be saved: %s"
                getLogger("limpet.run").warning(what, context.root.run_id, self.told(refusal))
            context.save_error, error = refusal, self.told(refusal)
            self.tell(events.CHECKPOINT_FAIL, node=self.progress.made_by, step=context.root.step, error=error)
            yield from self.report(self.words.save_error(error))
        return None
