"""What the walks of a run share, and what passes between them: why one came to a stop, and what it waits for."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from limpet.engine.node_context.scope import JournalLock, Keep
from limpet.errors import Conflict, RunNotFound
from limpet.graphs.secrets import SecretMasker
from limpet.journal.progress import Progress
from limpet.journal.store import CANCELLED, COMPLETED, FAILED, PAUSED, RUNNING, Signalled
from limpet.journal.waits import BEFORE, Question
from limpet.journal.writer import JournalWriter
from limpet.observe.hub import Emit

if TYPE_CHECKING:
    from limpet.engine.loop.node_loop import NodeLoop


class RunContext:
    """What all walks of a run share. `stopping` says that it was asked to stop: nothing new begins.

    `timer` is the store's clock, by which things are due, and `patience` for how many seconds they are waited for
    here; None is for however long. `leaving` says whether a stop means that somebody else goes on with the run.
    `limit` is how many nodes run at once; one that is `alone` may be called as a node outside of branches is.
    `save_error` is why the last save failed, where a `tolerant` run continues without it. `mark` is
    called when a checkpoint is durable, where somebody keeps account of them. `masker` knows what is secret.
    """

    __slots__ = (
        "alone",
        "chance",
        "clock",
        "emit",
        "interval",
        "journal_lock",
        "keep",
        "leaving",
        "limit",
        "mark",
        "masker",
        "patience",
        "resumed",
        "root",
        "save_error",
        "stopping",
        "stream",
        "timer",
        "tolerant",
        "weave",
        "writer",
    )  # fmt: skip

    def __init__(
        self,
        root: Progress,
        writer: JournalWriter | None,
        clock: Callable[[], float],
        chance: Callable[[], float],
        emit: Emit | None,
        interval: int,
        stream: bool,
        keep: Keep | None,
        journal_lock: JournalLock,
        limit: int,
        alone: bool,
        resumed: bool,
        tolerant: bool,
        mark: Callable[[], None] | None,
        timer: Callable[[], float],
        patience: float | None,
        leaving: Callable[[], bool],
        weave: Callable[[NodeLoop], Generator[Any, Any, Exception | None]],
        masker: SecretMasker,
    ) -> None:
        self.masker = masker
        self.root, self.writer, self.clock, self.chance, self.emit = root, writer, clock, chance, emit
        self.interval, self.stream, self.keep, self.journal_lock, self.limit = (
            interval,
            stream,
            keep,
            journal_lock,
            limit,
        )
        self.alone, self.resumed, self.tolerant, self.weave = alone, resumed, tolerant, weave
        self.mark, self.stopping = mark, False
        self.timer, self.patience, self.leaving = timer, patience, leaving
        self.save_error: Exception | None = None

    def tolerates(self, refusal: Exception) -> bool:
        """Whether the run goes on although records weren't taken: they are for the next commit to bring."""
        return self.tolerant and not isinstance(refusal, (Conflict, RunNotFound, Signalled))


class LoopStop(NamedTuple):
    """Why a walk came to a stop, and where: `at` is the walk that stopped by itself, this one or one in a branch.

    A walk that may not go on, as its records were refused, is still `running`; `cause` is the refusal.
    """

    status: str
    at: NodeLoop | None = None
    reason: str = ""
    cause: BaseException | None = None
    phase: str = BEFORE
    questions: Sequence[Question] = ()


SLEEPING: Final = "asleep"
"""Why a walk stops that waits for nothing but time, and for longer than anybody stays with it."""
DONE: Final = LoopStop(COMPLETED)
SAVE: Final = object()
"""What a walk in a branch yields when its records are to be durable before it goes on."""


class Join(NamedTuple):
    """Walk the open branches of this walk; it goes on when all have come to a stop."""

    walk: NodeLoop


def taken_together(halts: Sequence[LoopStop]) -> LoopStop:
    """Why branches that run beside each other don't go on: the first that failed, or all that wait for somebody."""
    assert halts, "a branch that isn't done says why"
    failures = [halt for halt in halts if halt.status == FAILED]
    if failures:
        more = f" (the first of {len(failures)} branches that failed)" if len(failures) > 1 else ""
        return failures[0]._replace(reason=f"{failures[0].reason}{more}")
    halts = [halt for halt in halts if halt.status != SLEEPING]
    if not halts:
        return LoopStop(SLEEPING)
    reasons = [halt.reason for halt in halts[:3]] + ([f"and {len(halts) - 3} more"] if len(halts) > 3 else [])
    questions = [each for halt in halts for each in halt.questions]
    return LoopStop(PAUSED, halts[0].at, "; ".join(reasons), questions=questions)


def refused(refusal: Exception) -> LoopStop:
    """Records weren't taken: heed the signal, or go no further."""
    return LoopStop(CANCELLED) if isinstance(refusal, Signalled) else LoopStop(RUNNING, cause=refusal)


def stop_changes(halt: LoopStop, error: dict[str, Any]) -> dict[str, Any]:
    """What is noted where a walk stopped by itself."""
    changes: dict[str, Any] = {"status": halt.status, "reason": halt.reason, "cleared": True}
    if halt.status == FAILED:
        return {**changes, "phase": halt.phase, "error": error}
    return {**changes, "questions": [question.to_data() for question in halt.questions]}
