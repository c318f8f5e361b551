"""Whether the runs of a graph are traced: as `compile()` says, or else the environment of the process."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

from limpet.errors import DefinitionError
from limpet.observe.opentelemetry.options import OpenTelemetry

if TYPE_CHECKING:
    from limpet.observe.opentelemetry.telemetry import Telemetry

VARIABLE: Final = "LIMPET_OTEL"
"""The variable that switches telemetry on for all graphs of a process."""

OFF: Final = ("", "0", "false", "no", "off")
"""The values of the variable that leave it off."""

_warned: list[str] = []
"""The warnings that this process has logged: each is logged once."""


def option_mistake(given: Any) -> str | None:
    """What is wrong with the option of `compile()`; None if it can be used."""
    if given is None or type(given) is bool or isinstance(given, OpenTelemetry):
        return None
    return f"opentelemetry must be True, False or an OpenTelemetry, not {given!r}"


def telemetry_for(given: bool | OpenTelemetry | None, graph: str, kind: str) -> Telemetry | None:
    """The telemetry of a graph; None for one without. `given` is the option of `compile()`, None if it has none.

    Raises `DefinitionError` if the option asks for telemetry and the package is missing. If the environment asks
    for it, the log has a warning.
    """
    if given is None:
        if os.environ.get(VARIABLE, "").strip().lower() in OFF:
            return None
    elif given is False:
        return None
    options = given if isinstance(given, OpenTelemetry) else OpenTelemetry()
    try:
        from limpet.observe.opentelemetry.telemetry import Telemetry
    except ImportError as missing:
        if (missing.name or "").partition(".")[0] != "opentelemetry":
            raise
        need = "needs the package opentelemetry-api: pip install 'limpet[opentelemetry]'"
        if given is None:
            _warn(f"{VARIABLE} is set, but there are no traces and metrics of runs: that {need}")
            return None
        raise DefinitionError(f"opentelemetry {need}", graph, kind) from missing
    return Telemetry(options)


def _warn(text: str) -> None:
    if text in _warned:
        return
    _warned.append(text)
    from logging import getLogger

    getLogger("limpet.observe").warning("%s", text)
