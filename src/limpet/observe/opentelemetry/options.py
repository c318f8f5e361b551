"""What can be chosen about the telemetry of a graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider


class OpenTelemetry(NamedTuple):
    """How the runs of a graph are traced and measured: `compile(opentelemetry=OpenTelemetry(genai=True))`.

    `genai` adds the attributes of the conventions for generative AI to the span of a run. The providers are by
    default those of the process, which `opentelemetry.trace.set_tracer_provider` and the like have set.
    """

    genai: bool = False
    tracer_provider: TracerProvider | None = None
    meter_provider: MeterProvider | None = None
