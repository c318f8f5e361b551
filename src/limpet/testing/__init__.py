"""What helps to test code that uses Limpet, and to certify a store of your own.

`limpet.testing.conformance` and `limpet.testing.pytest_plugin` need pytest; the rest doesn't.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from limpet.testing import effects
    from limpet.testing.answers import UNANSWERED, Script, Unscripted, arun_to_end, in_turn, run_to_end
    from limpet.testing.clock import FakeClock
    from limpet.testing.crash.matrix import CrashMatrix, CrashMatrixFailed
    from limpet.testing.crash.report import Account
    from limpet.testing.faults import Call, Fault, FaultyStore

_LATER = {
    "Account": "crash.report",
    "Call": "faults",
    "CrashMatrix": "crash.matrix",
    "CrashMatrixFailed": "crash.matrix",
    "FakeClock": "clock",
    "Fault": "faults",
    "FaultyStore": "faults",
    "Script": "answers",
    "UNANSWERED": "answers",
    "Unscripted": "answers",
    "arun_to_end": "answers",
    "in_turn": "answers",
    "run_to_end": "answers",
}
"""Where each name is, so that the plugin of pytest costs nothing where nobody uses it."""


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name == "effects":
        return import_module("limpet.testing.effects")
    if name not in _LATER:
        raise AttributeError(f"module 'limpet.testing' has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"limpet.testing.{_LATER[name]}"), name)
    return found


__all__ = [
    "UNANSWERED",
    "Account",
    "Call",
    "CrashMatrix",
    "CrashMatrixFailed",
    "FakeClock",
    "Fault",
    "FaultyStore",
    "Script",
    "Unscripted",
    "arun_to_end",
    "effects",
    "in_turn",
    "run_to_end",
]
