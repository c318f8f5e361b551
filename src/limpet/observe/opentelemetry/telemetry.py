"""`Telemetry`: what traces and measures the runs of one graph."""

from __future__ import annotations

from opentelemetry.context import Context, get_current
from opentelemetry.trace import Link, SpanKind, get_current_span, get_tracer, set_span_in_context

from limpet.observe.opentelemetry.guard import guarded
from limpet.observe.opentelemetry.metrics import SCOPE, Metrics, StoreNumbers, metrics_of
from limpet.observe.opentelemetry.options import OpenTelemetry
from limpet.observe.opentelemetry.places import Attributes, RunPlace
from limpet.observe.opentelemetry.spans import RUN_SPAN, Stretch
from limpet.observe.opentelemetry.trace_context import (
    CALLER,
    STRETCH,
    Stored,
    caller_fields,
    stored_caller,
    stored_stretch,
    stretch_fields,
)
from limpet.version import VERSION


class Telemetry:
    """Traces and measures the runs of a graph. Nothing of it raises."""

    def __init__(self, options: OpenTelemetry) -> None:
        self._options = options
        self._tracer = get_tracer(SCOPE, VERSION, options.tracer_provider)
        self._metrics: Metrics = metrics_of(options.meter_provider)

    @guarded
    def stored_of_caller(self) -> Stored:
        """What is stored with a run that is created here: the trace context of the caller, if there is one."""
        fields = caller_fields()
        return {CALLER: fields} if fields else {}

    @guarded
    def begin(self, run: RunPlace, stored: object) -> Stretch:
        """Begin a stretch of a run, and its span. `stored` is the trace context that is stored with the run.

        Where the caller is in a trace, the stretch is part of that. If not, or if a worker executes the run, it is
        part of the trace in which the run was created, if there was one, and else of a new trace.
        """
        context = Context() if run.is_worker else get_current()
        caller = None
        if run.is_worker or not get_current_span(context).get_span_context().is_valid:
            caller = stored_caller(stored, context)
        base = context if caller is None else caller
        before = stored_stretch(stored)
        span = self._tracer.start_span(
            RUN_SPAN,
            base,
            SpanKind.CONSUMER if run.is_worker else SpanKind.INTERNAL,
            {**run.attributes(), **self._genai_attributes(run)},
            [] if before is None else [Link(before)],
        )
        return Stretch(self._tracer, self._metrics, run, span, set_span_in_context(span, base))

    @guarded
    def stored_of(self, stretch: Stretch, stored: object) -> Stored:
        """What is stored with a run in place of `stored` from a stretch on: the next one links to it."""
        kept: Stored = {}
        if isinstance(stored, dict) and isinstance(stored.get(CALLER), dict):
            kept[CALLER] = stored[CALLER]
        fields = stretch_fields(stretch.span)
        if fields:
            kept[STRETCH] = fields
        return kept

    @guarded
    def queue_delay(self, graph: str, queue: str, seconds: float) -> None:
        """A run that was due has begun after this time."""
        self._metrics.queue_delay(graph, queue, seconds)

    @guarded
    def observe_store(self, numbers: StoreNumbers) -> None:
        """Report what waits in a store from now on, whenever the metrics are read."""
        self._metrics.observe_store(numbers)

    def _genai_attributes(self, run: RunPlace) -> Attributes:
        """The attributes of the conventions for generative AI: a graph is an agent, and a workflow a workflow.

        The names are written out: the package with the constants isn't part of the API.
        """
        if not self._options.genai:
            return {}
        found: Attributes = {"gen_ai.conversation.id": run.run_id}
        if run.is_workflow:
            found |= {"gen_ai.operation.name": "invoke_workflow", "gen_ai.workflow.name": run.graph}
        else:
            found |= {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": run.graph}
        return found
