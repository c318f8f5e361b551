"""What helps to test code that uses Holdfast, and to certify a store of your own.

`holdfast.testing.conformance` and `holdfast.testing.plugin` need pytest; the rest doesn't.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.testing import effects
    from holdfast.testing.account import Account
    from holdfast.testing.answers import UNANSWERED, Script, Unscripted, arun_to_end, in_turn, run_to_end
    from holdfast.testing.clock import FakeClock
    from holdfast.testing.faults import Call, Fault, FaultyStore
    from holdfast.testing.matrix import CrashMatrix, CrashMatrixFailed

_LATER = {
    "Account": "account",
    "Call": "faults",
    "CrashMatrix": "matrix",
    "CrashMatrixFailed": "matrix",
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
        return import_module("holdfast.testing.effects")
    if name not in _LATER:
        raise AttributeError(f"module 'holdfast.testing' has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"holdfast.testing.{_LATER[name]}"), name)
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
