"""The spans of a run: `Stretch`, for as long as one process executes it, and `StepSpan`, for one call of a node.

The loop knows when a call is about to be made and how it ended, and the drivers know in which thread it is made. So
the loop makes a `StepSpan` and ends it, with the text that its events have. A driver enters it around the call, in
whatever thread or task that is: then spans of the node's own code are inside of it. The span begins when it is first
entered, and its end is when it was last left: a call that waits for a thread hasn't begun, and one whose outcome
waits for the loop has ended.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import Token
from threading import Lock
from time import perf_counter, time_ns
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from opentelemetry.context import Context, attach, detach
from opentelemetry.trace import Span, Status, StatusCode, set_span_in_context

from limpet.observe.opentelemetry.guard import guarded
from limpet.observe.opentelemetry.metrics import Metrics
from limpet.observe.opentelemetry.places import (
    FAILED,
    INTERRUPTED,
    RELEASED,
    RunEnd,
    RunPlace,
    StepEnd,
    StepPlace,
)

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

RUN_SPAN: Final = "limpet.run"
STEP_SPAN: Final = "limpet.step"

MAX_DESCRIPTION: Final = 1000
"""How many characters of an error the status of a span has."""


class Records(Protocol):
    """A commit, as far as its size goes."""

    records: list[bytes]


C = TypeVar("C", bound=Records)


class Stretch:
    """The span of a run for as long as this process executes it, and what is measured meanwhile."""

    def __init__(self, tracer: Tracer, metrics: Metrics, run: RunPlace, span: Span, context: Context) -> None:
        self._tracer = tracer
        self._metrics = metrics
        self._run = run
        self.span = span
        self.context = context
        """The context inside of the span: what runs in it is part of the run."""
        self._open: set[StepSpan] = set()
        self._lock = Lock()
        self._is_ended = False

    def step(self, place: StepPlace, around: StepSpan | None) -> StepSpan:
        """A call is about to be made: its span, which begins when it is entered. `around` is the node it is in."""
        if around is not None:
            # Here, in the thread of the loop: calls in parallel branches of that node's graph share it.
            guarded(around.begun)()
        return StepSpan(self, place, around)

    @guarded
    def enter(self) -> Token[Context]:
        """What runs here is part of the run, until this is left: code of the user's that belongs to no call."""
        return attach(self.context)

    @guarded
    def leave(self, token: Token[Context] | None) -> None:
        """What runs here is no longer part of the run."""
        if token is not None:
            detach(token)

    def measured(self, write: Callable[[C], Exception | None], commit: C) -> Exception | None:
        """Make a commit, and measure how long that takes. Returns why it was refused, or None."""
        began = perf_counter()
        refusal = write(commit)
        self.commit_ended(commit, began, refusal)
        return refusal

    @guarded
    def commit_ended(self, commit: Records, began: float, refusal: Exception | None) -> None:
        """A commit was made that began then, by `perf_counter`; or it was refused."""
        seconds = perf_counter() - began
        why = "" if refusal is None else type(refusal).__name__
        self._metrics.commit(self._run.graph, seconds, sum(map(len, commit.records)), why)

    @guarded
    def end(self, end: RunEnd) -> None:
        """The process has executed the run until now. Only the first end counts."""
        with self._lock:
            if self._is_ended:
                return
            self._is_ended = True
            abandoned = list(self._open)
        for step in abandoned:
            step.end(StepEnd(INTERRUPTED))
        self._metrics.run_stopped(self._run.graph, end.status)
        self.span.set_attribute("limpet.run.status", end.status)
        self.span.set_attribute("limpet.run.step", end.step)
        if end.error_type:
            self.span.set_attribute("error.type", end.error_type)
        if end.status == FAILED:
            self.span.set_status(Status(StatusCode.ERROR, end.message[:MAX_DESCRIPTION]))
        self.span.end()

    def interrupt(self, step: int, is_released: bool = False) -> None:
        """The run was left in the middle, unless the stretch has ended; for another process, if it `is_released`."""
        if not self._is_ended:
            self.end(RunEnd(RELEASED if is_released else INTERRUPTED, step))

    def begin_span(self, step: StepSpan, place: StepPlace, parent: Context) -> Span:
        """Begin the span of a call."""
        span = self._tracer.start_span(STEP_SPAN, parent, attributes=place.attributes())
        with self._lock:
            self._open.add(step)
        return span

    def step_ended(self, step: StepSpan, place: StepPlace, seconds: float, end: StepEnd) -> None:
        """The span of a call has ended."""
        with self._lock:
            self._open.discard(step)
        self._metrics.step(place.graph, place.node, seconds, end.outcome, end.error_type)


class StepSpan:
    """The span of one call. It may be entered again, for the part of a call that is awaited elsewhere."""

    __slots__ = ("_around", "_began", "_context", "_left", "_place", "_span", "_stretch")

    def __init__(self, stretch: Stretch, place: StepPlace, around: StepSpan | None) -> None:
        self._stretch = stretch
        self._place = place
        self._around = around
        self._span: Span | None = None
        self._context: Context | None = None
        self._began = 0.0
        self._left: tuple[float, int] | None = None
        """When it was last left: by the clock that measures, and in nanoseconds since the epoch."""

    @guarded
    def enter(self) -> Token[Context]:
        """What runs here is part of the call, until this is left, in the same thread or task."""
        context = self.begun()
        self._left = None
        return attach(context)

    @guarded
    def leave(self, token: Token[Context] | None) -> None:
        """What runs here is no longer part of the call."""
        self._left = (perf_counter(), time_ns())
        if token is not None:
            detach(token)

    @guarded
    def end(self, end: StepEnd) -> None:
        """The call has ended. Only the first end counts, and none of a call that never began."""
        span = self._span
        if span is None:
            return
        self._span = None
        ended, ended_ns = self._left or (perf_counter(), time_ns())
        self._stretch.step_ended(self, self._place, ended - self._began, end)
        span.set_attribute("limpet.step.outcome", end.outcome)
        if end.outcome == FAILED:
            span.set_attribute("error.type", end.error_type)
            span.set_attribute("limpet.step.retried", end.is_retried)
            # Not `record_exception`: that takes the texts from the exception, which may have secrets.
            span.add_event(
                "exception",
                {
                    "exception.type": end.error_type,
                    "exception.message": end.message,
                    "exception.stacktrace": end.traceback,
                },
                ended_ns,
            )
            span.set_status(Status(StatusCode.ERROR, end.message[:MAX_DESCRIPTION]))
        span.end(ended_ns)

    def begun(self) -> Context:
        """The context inside of the span, which begins now if it hasn't."""
        if self._context is None:
            parent = self._stretch.context if self._around is None else self._around.begun()
            self._began = perf_counter()
            self._span = self._stretch.begin_span(self, self._place, parent)
            self._context = set_span_in_context(self._span, parent)
        return self._context
