"""What is told of a run that stopped: in its head, so that a list needs no journal, and of its errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from limpet.journal.encoding.codec import encode
from limpet.journal.progress import Progress

TRACEBACK_KEPT = 4000
"""How many characters of a traceback, from its end, are stored with a failed run."""


def summary(progress: Progress) -> bytes:
    """What a run's head says of it, so that a list of runs needs no journal."""
    return encode(
        {
            "step": progress.step,
            "node": progress.place(),
            "phase": progress.phase,
            "reason": progress.reason,
            "error": progress.error,
            "questions": [question.to_data() for question in progress.open_questions()],
        }
    )


def error_data(error: BaseException, node: str, hide: Callable[[str], str] = str) -> dict[str, Any]:
    """An error as plain data: its type, message and traceback, through `hide`, and the node it came from."""
    from traceback import format_exception

    text = hide("".join(format_exception(error)))
    name = f"{type(error).__module__}.{type(error).__qualname__}".removeprefix("builtins.")
    return {
        "type": name,
        "message": _plain(hide(_text(error))),
        "node": node,
        "traceback": _plain(text[-TRACEBACK_KEPT:]),
    }


def told(error: BaseException) -> str:
    """An error in one line, with the notes that were added to it."""
    parts = [_text(error), *(f"({note})" for note in getattr(error, "__notes__", ()))]
    text = " ".join(part for part in parts if part)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return "(its text can't be had)"


def _plain(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()
