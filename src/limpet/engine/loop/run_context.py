"""What all loops of a run share, made once when the run is opened; and how a loop says why it stopped.

The loop reads no clock and no random number, and writes to no store. Whatever it needs of the outside comes in
through a `RunContext`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from limpet.defaults import MAX_NODES_AT_ONCE
from limpet.engine.loop.driver_commands import StopAsked
from limpet.engine.node_context.call_scope import ChildRuns, JournalLock, KeepResult, RunServices, TakeLetter
from limpet.errors import Conflict, RunNotFound
from limpet.graphs.secrets import SecretMasker
from limpet.journal.progress import Progress
from limpet.journal.store import CANCELLED, COMPLETED, FAILED, PAUSED, RUNNING
from limpet.journal.waits import BEFORE, Question
from limpet.journal.writer import JournalWriter
from limpet.observe.hub import Emit

if TYPE_CHECKING:
    from limpet.engine.loop.node_loop import NodeLoop
    from limpet.engine.node_context.emit import OutputTaker
    from limpet.observe.opentelemetry.spans import Stretch


class Clocks(NamedTuple):
    """Time and chance, which the loop can't read itself."""

    now: Callable[[], float]
    """The clock of this process: it dates steps and events."""
    store: Callable[[], float]
    """The store's clock, by which sleeps end and attempts are due: all processes that share a store agree on it."""
    random: Callable[[], float]
    """A number from 0 to 1, for the jitter of retries."""


class Saving(NamedTuple):
    """How a run is saved."""

    writer: JournalWriter | None = None
    """None for a run without a store."""
    interval: int = 1
    """Every how many steps the run is saved; 0 saves it only where it stops."""
    purges: bool = False
    """Whether the journal is deleted when the run completes."""
    tolerant: bool = False
    """Whether the run continues when it can't be saved."""
    keep_result: KeepResult | None = None
    """Stores the result of a `once()`."""
    take_letter: TakeLetter | None = None
    """Takes what a node waits for."""
    children: Callable[[], ChildRuns] | None = None
    """Starts child runs, and looks at them."""
    on_checkpoint: Callable[[], None] | None = None
    """Called when a checkpoint is durable, where old checkpoints are to be pruned."""


class Reporting(NamedTuple):
    """Where the events of a run go."""

    masker: SecretMasker
    """Masks secrets in what is reported."""
    emit: Emit | None = None
    """For the observers; None without any."""
    stream: bool = False
    """Whether the caller that iterates the run gets an event for each step."""
    is_detailed: bool = False
    """Whether that caller also gets the calls that begin, and the steps that are saved."""
    resumed: bool = False
    """Whether this is a resume, so that observers see where it starts."""
    repeats_stop: bool = False
    """Whether nothing runs: the run has stopped, and why is reported once more."""
    output: Callable[[], OutputTaker | None] = lambda: None
    """What takes the items that nodes emit; None where nothing does."""
    stretch: Stretch | None = None
    """The span of the run in this process; None if it isn't traced."""


class Limits(NamedTuple):
    """How much a run does at once, and for how long it waits in this process."""

    max_concurrency: int = MAX_NODES_AT_ONCE
    """How many nodes run at once."""
    call_single_node_inline: bool = True
    """Whether a node in a branch may be called in the driver's own thread while no other node runs."""
    max_wait: float | None = None
    """For how many seconds a run may sleep in this process before it releases its lease; None is unlimited."""
    is_handover: Callable[[], bool] = bool
    """Whether a request to stop means that another process will resume the run. If not, it cancels the run."""
    is_stopping: Callable[[], bool] = lambda: True
    """Whether the run was asked to stop, where a driver comes back before a node is done."""
    is_cancelled: Callable[[], bool] = bool
    """Whether the run was asked to stop, and not for a handover."""
    is_overdue: Callable[[], bool] = bool
    """Whether the run's deadline has passed. Then the request to stop means that the run fails."""
    waits_for_children: Callable[[], bool] = bool
    """Whether the run waits here for its children, because no supervisor would resume it when they have ended."""
    waits_for_slots: bool = False
    """Whether the run waits here for slots of limits, because no supervisor would resume it when it has them."""
    needs_admission: bool = False
    """Whether the run needs slots of limits of its own before its nodes are called. A supervisor gets them itself."""
    executes_children: Callable[[], bool] = bool
    """Whether this process executes children of the run."""
    has_posts: Callable[[], bool] = bool
    """Whether posts have come since this was last asked, as far as this process knows."""


class RunContext:
    """What all loops of a run share: that of the run itself and those of its branches.

    `stopping` says that the run was asked to stop: nothing new begins. `cancel_requested` says that a post asks for
    it. `save_error` is why the last save failed, where a tolerant run continues without it. `summary_is_old` says
    that a question was asked or answered since the run's summary was last stored. `has_answers` says that a question
    was answered, or withdrawn, in this process or in the step where it began: then checkpoints have longer ids.
    `has_woken` says that nodes which had stopped can be called again, and that their branches weren't begun yet.
    `ended_children` are the child runs whose end was posted: a node may just be about to wait for one of them.
    `early_slots` are the places in line for which a slot was reserved before the node was known to wait for it.
    """

    __slots__ = (
        "cancel_requested",
        "clocks",
        "early_slots",
        "ended_children",
        "has_answers",
        "has_woken",
        "journal_lock",
        "limits",
        "reporting",
        "root",
        "save_error",
        "saving",
        "services",
        "started_layers",
        "stopping",
        "summary_is_old",
    )

    def __init__(
        self,
        root: Progress,
        clocks: Clocks,
        saving: Saving,
        reporting: Reporting,
        limits: Limits,
        journal_lock: JournalLock | None = None,
    ) -> None:
        self.root = root
        self.clocks = clocks
        self.saving = saving
        self.reporting = reporting
        self.limits = limits
        self.journal_lock = journal_lock or JournalLock()
        self.services = RunServices(
            root,
            saving.keep_result,
            self.journal_lock,
            clocks.store,
            reporting.masker,
            limits.is_cancelled,
            saving.take_letter,
            reporting.output,
            saving.children,
            reporting.stretch,
        )
        self.started_layers: set[tuple[str, int]] = set()
        """The layers whose start was reported, each with the step and the branch of its workflow."""
        self.stopping = False
        self.cancel_requested = False
        self.summary_is_old = False
        self.has_answers = root.closed_questions() > 0
        self.has_woken = False
        self.ended_children: set[str] = set()
        self.early_slots: set[tuple[str, str]] = set()
        self.save_error: Exception | None = None

    def tolerates(self, refusal: Exception) -> bool:
        """Whether the run continues although its records weren't saved: the next commit then holds them, too.

        It never does when another process holds the run, or it was deleted, or asked to stop.
        """
        return self.saving.tolerant and not isinstance(refusal, (Conflict, RunNotFound, StopAsked))


class LoopStop(NamedTuple):
    """Why a loop stopped, and where: `at` is the loop that stopped by itself, this one or one in a branch.

    A loop whose records were refused has the status `running`; `cause` is then the refusal.
    """

    status: str
    at: NodeLoop | None = None
    reason: str = ""
    cause: BaseException | None = None
    phase: str = BEFORE
    questions: Sequence[Question] = ()


SLEEPING: Final = "sleeping"
"""The status of a loop that waits only for time to pass, and for longer than this process stays with the run."""
WAITING: Final = "waiting"
"""The status of a loop that waits for a post, such as a message. What it waits for is recorded with its position."""
DONE: Final = LoopStop(COMPLETED)
SAVE: Final = object()
"""What a loop in a branch yields when its records are to be durable before it continues."""


class RunBranches(NamedTuple):
    """What a loop in a branch yields to have its own open branches run. It continues when all have stopped."""

    loop: NodeLoop


def combined_stop(stops: Sequence[LoopStop]) -> LoopStop:
    """Why parallel branches stopped, as one stop: the first failure, or all that wait for an answer or approval.

    If none does, it is a wait for a post, or else a sleep.
    """
    assert stops, "a branch that isn't done has stopped for a reason"
    failures = [stop for stop in stops if stop.status == FAILED]
    if failures:
        first = failures[0]
        if len(failures) == 1:
            return first
        return first._replace(reason=f"{first.reason} (the first of {len(failures)} branches that failed)")
    waiting = [stop for stop in stops if stop.status not in (SLEEPING, WAITING)]
    if not waiting:
        return next((stop for stop in stops if stop.status == WAITING), LoopStop(SLEEPING))
    reasons = [stop.reason for stop in waiting[:3]]
    if len(waiting) > 3:
        reasons.append(f"and {len(waiting) - 3} more")
    questions = [question for stop in waiting for question in stop.questions]
    return LoopStop(PAUSED, waiting[0].at, "; ".join(reasons), questions=questions)


def stop_for(refusal: Exception) -> LoopStop:
    """Why a loop stops after its records were refused: it was asked to stop, or may not write any more."""
    if isinstance(refusal, StopAsked):
        return LoopStop(CANCELLED)
    return LoopStop(RUNNING, cause=refusal)


def changes_at_stop(stop: LoopStop, error: dict[str, Any]) -> dict[str, Any]:
    """What is recorded where a loop stopped by itself."""
    changes: dict[str, Any] = {"status": stop.status, "reason": stop.reason, "cleared": True}
    if stop.status == FAILED:
        return {**changes, "phase": stop.phase, "error": error}
    return {**changes, "questions": [question.to_data() for question in stop.questions]}
