"""A run that somebody else executes: what can be known of it, and waited for, from here."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Generic, TypeVar

from limpet.engine.leases.lease_client import ChangeWaiter, LeaseClient
from limpet.engine.operations.run_info import RunInfo, run_info
from limpet.errors import ExecutionError, LimpetError, RunCancelled, RunPaused, UsageError
from limpet.graphs.state import State
from limpet.journal.store import CANCELLED, COMPLETED, FAILED, PAUSED, RUNNING

S = TypeVar("S", bound=State)


class QueuedRun(Generic[S]):
    """A run in the store, executed by whichever supervisor takes it on. Got from `graph.start(…)`."""

    def __init__(self, run_id: str, client: LeaseClient, read: Callable[[str], S]) -> None:
        self.id = run_id
        self._client, self._read = client, read

    @property
    def info(self) -> RunInfo:
        """What the store knows of it. Raises `RunNotFound` once it has been deleted or has expired."""
        return run_info(self._client.head(self.id))

    @property
    def status(self) -> str:
        """`running` (also before anybody has begun with it), `paused`, `completed`, `failed` or `cancelled`."""
        return self._client.head(self.id).status

    @property
    def state(self) -> S:
        """The newest state that was saved."""
        return self._read(self.id)

    def wait(self, timeout: float | None = None) -> RunInfo:
        """Wait until it ends or asks something, and say what is known of it then. Raises `TimeoutError`."""
        patience = ChangeWaiter(self._client.store, inf if timeout is None else timeout)
        while (info := self.info).status == RUNNING:
            if not patience.wait():
                raise TimeoutError(
                    f"run {self.id!r} is still running after {timeout} s; does anybody supervise it?"
                )
        return info

    def result(self, timeout: float | None = None) -> S:
        """Wait until it ends, and return the final state. Raises as `resume` would, and `TimeoutError`."""
        info = self.wait(timeout)
        if info.status == COMPLETED:
            return self.state
        raise _why(info)

    def __repr__(self) -> str:
        return f"<QueuedRun {self.id}>"


def _why(info: RunInfo) -> LimpetError:
    """Why there is no result, as an exception."""
    if info.status == PAUSED:
        return RunPaused(info.run_id, info.reason or "it waits", info.questions, info.node)
    if info.status == CANCELLED:
        return RunCancelled(f"run {info.run_id!r} was cancelled; what it saved can be resumed", info.run_id)
    if info.status == FAILED:
        way_out = f"resume({info.run_id!r}) tries it again"
        return ExecutionError(info.reason or "it failed", run_id=info.run_id, node=info.node, way_out=way_out)
    return UsageError(f"run {info.run_id!r} is {info.status}")
