"""What passes between the loop and a driver: what is to be done, and what came of it."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, NamedTuple

from limpet.engine.node_context.node_context import NodeContext
from limpet.errors import LimpetError
from limpet.journal.store import Commit
from limpet.journal.waits import Question


class Failed(NamedTuple):
    """The node raised, or what it returned can't be taken (`again` False: trying again won't help)."""

    error: BaseException
    again: bool = True


class Asked(NamedTuple):
    """The node asked a question; `note` says why it asks again, if it does."""

    question: Question
    note: str = ""


class Sleeping(NamedTuple):
    """The node is to be called again `until` it is a certain time, by the store's clock; `timer` says which sleep."""

    timer: str
    until: float


class WaitTooLong:
    """The answer to a `Wait` that is too long to be waited for here."""

    __slots__ = ()


class Cancelled:
    """The run is to stop here."""

    __slots__ = ()


class Wait(NamedTuple):
    """Let this many seconds pass."""

    seconds: float


class Begin(NamedTuple):
    """Let these nodes be called, beside each other and beside those that run already."""

    tasks: Sequence[NodeContext]


class Gather(NamedTuple):
    """Wait until some of the nodes that run are done, or for so many seconds."""

    seconds: float | None


class Report(NamedTuple):
    """An event for whoever iterates the run."""

    event: dict[str, Any]


class Verdict(NamedTuple):
    """How the run came to a stop."""

    status: str
    error: LimpetError | None = None
    questions: Sequence[Question] = ()


Command = NodeContext | Commit | Wait | Report | Begin | Gather
Ending = Generator[Command, Any, Verdict]
