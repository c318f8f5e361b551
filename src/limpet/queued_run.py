"""`QueuedRun`: a run that another process executes, to look at and to wait for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from limpet.durations import patience_of
from limpet.engine.leases.lease_client import ChangeWaiter, LeaseClient
from limpet.engine.loop.run_lifecycle import advise_retry
from limpet.engine.operations.run_info import RunInfo, run_info
from limpet.errors import ExecutionError, LimpetError, RunCancelled, RunPaused, UsageError
from limpet.graphs.state import State
from limpet.journal.store import CANCELLED, COMPLETED, FAILED, PAUSED, RUNNING

S = TypeVar("S", bound=State)


class QueuedRun(Generic[S]):
    """A run in the store that a supervisor executes. `graph.start(…)` returns it."""

    def __init__(self, run_id: str, client: LeaseClient, read_state: Callable[[str], S]) -> None:
        self.id = run_id
        self._client = client
        self._read_state = read_state

    @property
    def info(self) -> RunInfo:
        """What the store knows of the run. Raises `RunNotFound` once it has been deleted or has expired."""
        return run_info(self._client.head(self.id))

    @property
    def status(self) -> str:
        """`running` (also while it is queued), `paused`, `completed`, `failed` or `cancelled`."""
        return self._client.head(self.id).status

    @property
    def state(self) -> S:
        """The newest state that was saved."""
        return self._read_state(self.id)

    def wait(self, timeout: float | None = None) -> RunInfo:
        """Wait until the run ends or asks something, and return what is known of it then. Raises `TimeoutError`."""
        waiter = ChangeWaiter(self._client.store, patience_of(timeout, "timeout"))
        while (info := self.info).status == RUNNING:
            if not waiter.wait():
                raise TimeoutError(
                    f"run {self.id!r} is still running after {timeout} s; is a supervisor running for its graph?"
                )
        return info

    def result(self, timeout: float | None = None) -> S:
        """Wait until the run ends, and return the final state. Raises what `resume` would, and `TimeoutError`."""
        info = self.wait(timeout)
        if info.status == COMPLETED:
            return self.state
        raise _why_no_result(info)

    def __repr__(self) -> str:
        return f"<QueuedRun {self.id}>"


def _why_no_result(info: RunInfo) -> LimpetError:
    run_id = info.run_id
    if info.status == PAUSED:
        return RunPaused(run_id, info.reason or "it waits", info.questions, info.node)
    if info.status == CANCELLED:
        cancelled = RunCancelled(f"run {run_id!r} was cancelled", run_id)
        return cancelled.with_advice(f"resume it with resume({run_id!r})", "resume")
    if info.status == FAILED:
        failed = ExecutionError(info.reason or "it failed", run_id=run_id, node=info.node)
        return advise_retry(failed, info.reason or "")
    return UsageError(f"run {run_id!r} is {info.status}")
