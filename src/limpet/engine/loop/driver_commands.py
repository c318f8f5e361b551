"""What passes between the loop and a driver: commands, and the outcomes of calls."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, Final, NamedTuple

from limpet.engine.node_context.node_context import NodeContext
from limpet.errors import LimpetError
from limpet.journal.inbox import CANCEL, Posted
from limpet.journal.store import Commit
from limpet.journal.waits import PostWait, Question


class Failed(NamedTuple):
    """The node raised, or its result can't be used (`again` is False where another attempt wouldn't help)."""

    error: BaseException
    again: bool = True


class Asked(NamedTuple):
    """The node asked a question; `note` says why it asks again, if it does."""

    question: Question
    note: str = ""


class Sleeping(NamedTuple):
    """The node sleeps: call it again at the time `until`, by the store's clock; `timer` says which sleep it is."""

    timer: str
    until: float


class Waiting(NamedTuple):
    """The node waits for a post that hasn't come: call it again when that has come, or the deadline has passed."""

    wait: PostWait


class Cancelled:
    """The run is to stop here."""

    __slots__ = ()


SUSPENDED: Final = (Asked, Sleeping, Waiting, Cancelled)
"""The outcomes of a call that neither completed nor failed: the node is called again later."""


NOT_DONE: Final = object()
"""The outcome, for a driver alone, of a call that isn't over: it has emitted something for the caller."""


class WaitTooLong:
    """The answer to a `Wait` that is too long for this process."""

    __slots__ = ()


class StopAsked(Exception):
    """A commit wasn't made, because the run was asked to stop."""


class PostsArrived(Exception):
    """A commit was refused because posts wait. These are they: the loop takes them in, and commits again."""

    def __init__(self, posts: Sequence[Posted]) -> None:
        self.posts = posts
        super().__init__(f"{len(posts)} posts wait")

    @property
    def asks_to_cancel(self) -> bool:
        """Whether a request to cancel the run is among them."""
        return any(post.kind == CANCEL for post in self.posts)


class Wait(NamedTuple):
    """Let time pass until this moment, by the store's clock. A driver may also come back earlier.

    With `for_posts`, it comes back as soon as posts have come.
    """

    until: float
    for_posts: bool = False


class Begin(NamedTuple):
    """Begin to call these nodes, in parallel with each other and with those that are already running."""

    tasks: Sequence[NodeContext]


class Gather(NamedTuple):
    """Wait until at least one of the running nodes is done, or for this many seconds."""

    seconds: float | None


class AcquireSlots(NamedTuple):
    """Get slots of their limits for these calls. For each, the answer has None, or the outcome of the call if it
    can't be made: above all a `Waiting`."""

    tasks: Sequence[NodeContext]


class ReleaseSlots(NamedTuple):
    """These calls have ended: release their slots."""

    tasks: Sequence[NodeContext]


class GiveUpTurns(NamedTuple):
    """Give up turns in the lines of these limits that no call of the run needs: it waits with these tickets alone."""

    limits: Sequence[str]
    tickets: Sequence[str]


class AdmitRun(NamedTuple):
    """Get slots of the limits that the run as a whole has.

    The answer is None if it has them, else for how many seconds, at most, it waits until it asks again; or
    a `Failed`. If they aren't `wanted`, release them: the run waits for something else.
    """

    wanted: bool = True


class Report(NamedTuple):
    """An event for the caller that iterates the run."""

    event: dict[str, Any]


class Verdict(NamedTuple):
    """How the run stopped."""

    status: str
    error: LimpetError | None = None
    questions: Sequence[Question] = ()


SlotCommand = AcquireSlots | ReleaseSlots | GiveUpTurns | AdmitRun
Command = NodeContext | Commit | Wait | Report | Begin | Gather | SlotCommand
Ending = Generator[Command, Any, Verdict]
