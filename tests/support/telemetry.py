"""Telemetry in tests: providers of the real SDK of OpenTelemetry, which keep spans and metrics in memory."""

from __future__ import annotations

from typing import Any, NamedTuple

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Tracer

from limpet import OpenTelemetry


class Telemetry(NamedTuple):
    """What was measured, and the option that has it measured."""

    tracers: TracerProvider
    meters: MeterProvider
    exporter: InMemorySpanExporter
    reader: InMemoryMetricReader

    @property
    def option(self) -> OpenTelemetry:
        return OpenTelemetry(False, self.tracers, self.meters)

    @property
    def tracer(self) -> Tracer:
        return self.tracers.get_tracer("test")

    def spans(self, name: str = "") -> list[ReadableSpan]:
        """The spans that have ended, in the order in which they began; of one name, if it is given."""
        found = sorted(self.exporter.get_finished_spans(), key=lambda span: span.start_time or 0)
        return [span for span in found if name in ("", span.name)]

    def run(self) -> ReadableSpan:
        """The only span of a run."""
        (span,) = self.spans("limpet.run")
        return span

    def steps(self) -> dict[str, ReadableSpan]:
        """The spans of calls by node, with the branch before it; of several, the last."""
        return {place_of(span): span for span in self.spans("limpet.step")}

    def parents(self) -> dict[str, str]:
        """For each span that isn't one of a run: what it is inside of."""
        spans = {span.context.span_id: span for span in self.spans()}
        return {
            place_of(span): place_of(spans[span.parent.span_id])
            for span in spans.values()
            if span.parent is not None and span.parent.span_id in spans
        }

    def metrics(self) -> dict[str, list[tuple[dict[str, Any], Any]]]:
        """The points of each metric: the attributes without the graph, and the value, or the count of a histogram."""
        found: dict[str, list[tuple[dict[str, Any], Any]]] = {}
        data = self.reader.get_metrics_data()
        for resource in data.resource_metrics if data is not None else ():
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    found[metric.name] = [
                        (short(point.attributes), getattr(point, "value", getattr(point, "count", None)))
                        for point in metric.data.data_points
                    ]
        return found


def short(attributes: Any) -> dict[str, Any]:
    """Attributes without the graph, and without `limpet.` in their names."""
    return {
        name.removeprefix("limpet."): value
        for name, value in attributes.items()
        if name != "limpet.graph.name"
    }


def place_of(span: ReadableSpan) -> str:
    """What a span is about: a node with its branch, or the name of the span."""
    attributes = span.attributes or {}
    node = attributes.get("limpet.node.name", span.name)
    branch = attributes.get("limpet.branch.path")
    return f"{branch}/{node}" if branch else str(node)


def in_memory() -> Telemetry:
    """Providers that aren't those of the process."""
    exporter = InMemorySpanExporter()
    tracers = TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(exporter))
    reader = InMemoryMetricReader()
    return Telemetry(tracers, MeterProvider([reader], shutdown_on_exit=False), exporter, reader)
