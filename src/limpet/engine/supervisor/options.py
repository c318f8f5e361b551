"""How a supervisor works: its options, checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from limpet.defaults import LEASE, MAX_CRASHES, MAX_RUNS_AT_ONCE, MAX_SLEEP, POLL_INTERVAL, STOP_GRACE
from limpet.errors import UsageError


class SupervisorOptions(NamedTuple):
    """How a supervisor works. See `limpet.supervise`."""

    lease: float = LEASE
    concurrency: int = MAX_RUNS_AT_ONCE
    per_graph: int | Mapping[str, int] | None = None
    poll: float = POLL_INTERVAL
    max_crashes: int = MAX_CRASHES
    max_sleep: float = MAX_SLEEP
    grace: float = STOP_GRACE

    def check(self) -> None:
        """Raise `UsageError` for an option that makes no sense."""
        for name in ("lease", "poll"):
            if not getattr(self, name) > 0:
                raise UsageError(f"{name} must be a number of seconds above 0, not {getattr(self, name)!r}")
        for name in ("max_sleep", "grace"):
            if not getattr(self, name) >= 0:
                raise UsageError(
                    f"{name} must be a number of seconds, at least 0, not {getattr(self, name)!r}"
                )
        if type(self.max_crashes) is not int or self.max_crashes < 1:
            raise UsageError(f"max_crashes must be a whole number of at least 1, not {self.max_crashes!r}")
