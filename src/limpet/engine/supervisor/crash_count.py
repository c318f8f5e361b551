"""Crash counts: runs that may have crashed their process are resumed one at a time.

The store counts how often the holder of a run crashed before the run got any further. A run that reaches
`max_crashes` is quarantined when it is resumed. But a process that crashes takes all its runs with it, and all but
one of them are innocent. So a run that has one crash left becomes a *suspect*, and a supervisor never runs two
suspects at once: the next crash then counts against the run that causes it, and the others clear themselves with
their next commit.
"""

from __future__ import annotations

from collections.abc import Iterable

from limpet.engine.sessions.session import Session


class CrashCount:
    """Decides which runs are suspects, by how often their process crashed in a row."""

    def __init__(self, max_crashes: int) -> None:
        self._suspect_from = max(max_crashes - 1, 1)

    def is_suspect(self, session: Session) -> bool:
        """Whether the run is quarantined if its process crashes once more."""
        return session.crashes >= self._suspect_from

    def other_suspect(self, session: Session, in_progress: Iterable[Session]) -> Session | None:
        """A suspect in progress that keeps this run, a suspect too, from being resumed now."""
        if not self.is_suspect(session):
            return None
        for other in in_progress:
            if self.is_suspect(other):
                return other
        return None
