"""Serving until the process is asked to end: what `serve` and `mcp` share."""

from __future__ import annotations

import signal
from collections.abc import Callable
from threading import Lock
from types import TracebackType
from typing import Any, Final, Protocol, Self

from limpet.cli.commands.worker import signal_names, stopped_text, stopping_text
from limpet.cli.exit_codes import FAILED, OK
from limpet.cli.output import Output
from limpet.engine.supervisor.supervisor import Supervisor

SIGNAL_CHECK_INTERVAL: Final = 0.5
"""Seconds between two looks whether the server still serves."""


class Served(Protocol):
    """A server in a thread of its own."""

    problem: BaseException | None
    """Why it has ended, if that wasn't asked of it."""

    def start(self) -> None:
        """Serve from now on. Raises `RuntimeError` if no thread can be started."""

    def has_ended(self) -> bool:
        """Whether nothing is served any more."""

    def stop(self) -> None:
        """End what is under way."""


def serve_until_stopped(
    server: Served,
    supervisor: Supervisor | None,
    signals: StopSignals,
    output: Output,
    once_started: Callable[[], object] | None = None,
) -> int:
    """Serve, and execute runs if there is a supervisor, until a signal comes or the server ends; the exit code."""
    problem: BaseException | None = None
    had_runs = False
    try:
        server.start()
        if supervisor is not None:
            supervisor.start()
        if once_started is not None:
            once_started()
        signals.wait(or_until=server.has_ended)
    except RuntimeError as failure:  # no thread can be started
        problem = failure
    if supervisor is not None:
        running = supervisor.running
        had_runs = bool(running)
        if running:
            output.say(stopping_text(running, supervisor.options.grace, signal_names()))
        supervisor.stop()  # meanwhile, its steps can be watched
    server.stop()
    problem = problem or server.problem
    if problem is not None:
        output.problem(f"the server has failed: {type(problem).__name__}: {problem}", "server-failed")
        return FAILED
    output.say(stopped_text(had_runs))
    return OK


class StopSignals:
    """Ctrl-C and SIGTERM as requests to stop, while the block runs. A second one ends the process at once."""

    def __init__(self) -> None:
        # A handler interrupts the main thread anywhere. So it only makes a mark, and releases a lock for which
        # nothing waits but `wait`.
        self._requests: list[object] = []
        self._wake_up = Lock()
        self._wake_up.acquire()
        self._handlers: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        signals = [signal.SIGTERM]
        # A shell has processes in the background ignore it: Ctrl-C is for the one in the foreground.
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            signals.append(signal.SIGINT)
        self._handlers = {each: signal.signal(each, self._request_stop) for each in signals}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for each, handler in self._handlers.items():
            signal.signal(each, handler)

    def wait(self, or_until: Callable[[], bool]) -> None:
        """Wait for a request to stop, or until a condition holds, which is checked now and then."""
        while not self._requests and not or_until():
            self._wake_up.acquire(True, SIGNAL_CHECK_INTERVAL)

    def _request_stop(self, *_: object) -> None:
        self._requests.append(None)
        if len(self._requests) > 1:
            raise SystemExit(FAILED)
        self._wake_up.release()
