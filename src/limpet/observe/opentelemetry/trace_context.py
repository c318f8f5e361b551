"""The trace context that is stored with a run, so that a later process continues the trace, or links to it.

Two are stored. `caller` is the context in which the run was created, as the propagators of the process write it: by
default, that is the trace and the baggage, as W3C defines them. `stretch` is the span of the newest stretch of the
run, as W3C defines it, whatever the propagators are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from opentelemetry import propagate
from opentelemetry.context import Context
from opentelemetry.trace import (
    Span,
    SpanContext,
    get_current_span,
    set_span_in_context,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

CALLER: Final = "caller"
STRETCH: Final = "stretch"

MAX_FIELDS: Final = 20
MAX_TEXT: Final = 8192
"""How many fields a stored context has, and how long one is, at most: a caller may send any baggage."""

Stored = dict[str, dict[str, str]]
"""What is stored: the two contexts by these names, each as the fields of a message."""

_w3c = TraceContextTextMapPropagator()


def caller_fields(context: Context | None = None) -> dict[str, str]:
    """The fields of the context here, or of another; none outside of a trace."""
    fields: dict[str, str] = {}
    if get_current_span(context).get_span_context().is_valid:
        propagate.inject(fields, context)
    return {name: text for name, text in list(fields.items())[:MAX_FIELDS] if len(text) <= MAX_TEXT}


def stretch_fields(span: Span) -> dict[str, str]:
    """The fields of the span of a stretch."""
    fields: dict[str, str] = {}
    _w3c.inject(fields, set_span_in_context(span, Context()))
    return fields


def stored_caller(stored: object, around: Context) -> Context | None:
    """The context in which a run was created, put over the one `around`; None if none is stored."""
    found = propagate.extract(_fields(stored, CALLER), around)
    return found if get_current_span(found).get_span_context().is_valid else None


def stored_stretch(stored: object) -> SpanContext | None:
    """The span of the stretch before; None if none is stored."""
    found = get_current_span(_w3c.extract(_fields(stored, STRETCH), Context())).get_span_context()
    return found if found.is_valid else None


def _fields(stored: object, name: str) -> dict[str, str]:
    """The fields of a stored context. What is stored may come from an imported file, so it may be anything."""
    found: Any = stored.get(name) if isinstance(stored, Mapping) else None
    if not isinstance(found, Mapping):
        return {}
    return {key: text for key, text in found.items() if isinstance(key, str) and isinstance(text, str)}
