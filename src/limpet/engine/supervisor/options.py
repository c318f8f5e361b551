"""How a supervisor works: its options, checked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from limpet.defaults import LEASE, MAX_CRASHES, MAX_RUNS_AT_ONCE, MAX_SLEEP, POLL_INTERVAL, STOP_GRACE
from limpet.durations import span_mistake
from limpet.errors import UsageError
from limpet.graphs.names import checked_name


class SupervisorOptions(NamedTuple):
    """How a supervisor works. See `limpet.supervise`."""

    lease: float = LEASE
    concurrency: int = MAX_RUNS_AT_ONCE
    per_graph: int | Mapping[str, int] | None = None
    poll: float = POLL_INTERVAL
    max_crashes: int = MAX_CRASHES
    max_sleep: float = MAX_SLEEP
    grace: float = STOP_GRACE
    queues: tuple[str, ...] | None = None
    fires_schedules: bool = True

    def check(self) -> None:
        """Raise `UsageError` for an option that makes no sense."""
        mistakes = {
            "lease": span_mistake(self.lease, positive=True),
            "poll": span_mistake(self.poll, positive=True),
            "max_sleep": span_mistake(self.max_sleep, unlimited=True),
            "grace": span_mistake(self.grace, unlimited=True),
        }
        for name, mistake in mistakes.items():
            if mistake:
                raise UsageError(f"{name} {mistake}")
        if type(self.max_crashes) is not int or self.max_crashes < 1:
            raise UsageError(f"max_crashes must be a whole number of at least 1, not {self.max_crashes!r}")


def queue_names(given: str | Iterable[str] | None) -> tuple[str, ...] | None:
    """The queues that a supervisor is to serve, each once; None for all. Raises `UsageError`."""
    if given is None:
        return None
    found: tuple[object, ...] = (given,)
    if not isinstance(given, str):
        if not isinstance(given, Iterable):
            raise UsageError(f"queues must be a list of names, not {given!r}")
        found = tuple(given)
    if not found:
        raise UsageError("queues has no queue in it: leave it out to serve all of them")
    return tuple(dict.fromkeys(checked_name("queue", each) for each in found))
