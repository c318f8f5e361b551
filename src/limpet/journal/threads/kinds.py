"""Which runs are threads of other libraries, and the one error for all that only our own runs can do.

`records` says what a thread is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from limpet.errors import ForeignRun

if TYPE_CHECKING:
    from limpet.journal.store import RunHead

LANGGRAPH = "langgraph:1"
"""The plan of the heads of LangGraph's threads: the format of their records."""

LIBRARIES = {"langgraph": "LangGraph"}
"""The libraries whose threads a store keeps, by `RunHead.kind`, and what they are called."""


def kind_of(plan: str) -> str:
    """The library whose thread a run with this plan is; "" for a run that Limpet executes.

    The plan of a thread is the format of its records: `langgraph:1`. A fingerprint never has a colon.
    """
    library, colon, _ = plan.partition(":")
    if not colon:
        return ""
    return library


def refuse_thread(head: RunHead) -> None:
    """Raise `ForeignRun` for a thread of another library: the one rule for all that only our own runs can do."""
    if head.kind:
        raise foreign_run(head.run_id, head.kind)


def foreign_run(run_id: str, kind: str) -> ForeignRun:
    """The error for a thread of another library, by its kind."""
    return ForeignRun(run_id, kind, LIBRARIES.get(kind, kind))
