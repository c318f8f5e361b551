"""Log lines, through the standard `logging`: of checkpoints always, and of all events by way of an observer.

What is saved, loaded and resumed is written to the logger `limpet.checkpoint`: files, a user's checkpointer and
resumed runs at INFO, the steps that a store saves at DEBUG. A program that hasn't imported `logging` shows no log, so
nothing here imports it for these lines.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from limpet.observe.events import (
    CHECKPOINT_FAIL,
    CHECKPOINT_SAVE,
    NODE_OUTPUT,
    NODE_PROGRESS,
    NODE_RETRY,
    RUN_FAIL,
    Event,
)

if TYPE_CHECKING:
    import logging

    from limpet.observe.hub import Emit

    ReadValues = Callable[[], str]

CHECKPOINT_LOGGER = "limpet.checkpoint"
VALUES_LOGGER = "limpet.checkpoint.values"
"""Writes the values of the state, secrets masked, if a level is set on this very logger. None is inherited."""

DEBUG = 10
INFO = 20
MAX_VALUES_TEXT = 2000
"""How many characters of a state a line has."""


def log_checkpoint(type: str, values: ReadValues | None = None, **data: Any) -> None:
    """Write that a checkpoint was saved, loaded or resumed from, by names and places.

    `values` gives the state as text, without its secrets, to a program that has asked for values.
    """
    logger = _checkpoint_logger(INFO)
    if logger is None:
        return
    logger.info("%s", _line(Event(type, 0.0, "", data)))
    _log_values(type, values)


def checkpoint_steps(values: ReadValues) -> Emit | None:
    """What writes the steps that a store saves, if the program wants such lines when the run begins; else None."""
    found = _checkpoint_logger(DEBUG)
    if found is None:
        return None
    logger = found

    def emit(type: str, source: str, data: dict[str, Any]) -> None:
        if type in (CHECKPOINT_SAVE, CHECKPOINT_FAIL):
            logger.debug("%s", _line(Event(type, 0.0, source, data)))
            _log_values(type, values)

    return emit


def _checkpoint_logger(level: int) -> logging.Logger | None:
    loaded = sys.modules.get("logging")
    if loaded is None:
        return None
    logger = _logger(CHECKPOINT_LOGGER)
    return logger if logger.isEnabledFor(level) else None


def _log_values(type: str, values: ReadValues | None) -> None:
    logger = _logger(VALUES_LOGGER)
    # Its own level: a program that turns on DEBUG for everything hasn't asked for values.
    if values is not None and logger.level and logger.isEnabledFor(DEBUG):
        text = values()
        if len(text) > MAX_VALUES_TEXT:
            text = text[: MAX_VALUES_TEXT - 1] + "…"
        logger.debug("%s state=%s", type, text)


class LogObserver:
    """Writes one line per event: `node.complete node=draft iteration=3 duration=0.012 run=7f3a source=essay`.

    Writes to the logger `limpet.run` unless you pass one, at `level` (20 is INFO); a retry is at least a warning, a
    failed run at least an error, and what nodes emit is at DEBUG, by place and count. Only names, counts and times
    are written, and the text of errors and reasons, shortened: never a value of the state.
    """

    def __init__(self, logger: logging.Logger | None = None, level: int = 20) -> None:
        if logger is None:
            import logging

            logger = logging.getLogger("limpet.run")
        self._logger = logger
        self._level = level

    def on_event(self, event: Event) -> None:
        """Write the event's line, if the logger is enabled for its level."""
        level = max(self._level, _MIN_LEVELS.get(event.type, 0))
        if event.type in (NODE_OUTPUT, NODE_PROGRESS):
            level = DEBUG  # a model emits a hundred tokens a second
        if self._logger.isEnabledFor(level):
            self._logger.log(level, "%s", _line(event))


_MIN_LEVELS = {NODE_RETRY: 30, RUN_FAIL: 40}

# What may be written, under which name and in this order. A key that isn't here may hold state.
_SHOWN = {
    "branch": "branch",
    "node": "node",
    "entry": "entry",
    "from": "from",
    "to": "to",
    "result": "result",
    "checkpoint_node": "checkpoint",
    "resume_node": "resume",
    "exit_point": "exit",
    "layer": "layer",
    "step": "step",
    "iteration": "iteration",
    "iterations": "iterations",
    "attempt": "attempt",
    "visit_count": "visits",
    "path_length": "path",
    "duration": "duration",
    "delay": "delay",
    "reason": "reason",
    "error": "error",
    "path": "path",
    "reference": "reference",
    "run_id": "run",
}
_MAX_TEXT = 200


def _line(event: Event) -> str:
    words = [event.type]
    for key, name in _SHOWN.items():
        value = _word(key, event.data.get(key))
        if value:
            words.append(f"{name}={value}")
    if event.source:
        words.append(f"source={_text(event.source)}")
    return " ".join(words)


def _word(key: str, value: Any) -> str:
    """The value as one word, or empty for a value that isn't written."""
    match key, value:
        case "error", False:
            return ""
        case _, bool():
            return str(value).lower()
        case "result", _:  # what a condition returned may come from the state
            return ""
        case _, float():
            return f"{value:.3f}"
        case _, int():
            return str(value)
        case _, str():
            return _text(value)
        case "error", BaseException():
            return _text(f"{type(value).__name__}: {value}")
        case _:
            return ""


def _text(text: str) -> str:
    """The text if it is one plain word, otherwise quoted, so that no text can look like another line."""
    if len(text) > _MAX_TEXT:
        text = text[: _MAX_TEXT - 1] + "…"
    plain = text.isprintable() and not any(mark in text for mark in " \"'=")
    if plain and text:
        return text
    return repr(text)


def _logger(name: str) -> logging.Logger:
    """A log, asked for once: `getLogger` takes a lock which an interrupt can leave held, and every run comes here."""
    found = _loggers.get(name)
    if found is None:
        found = _loggers[name] = sys.modules["logging"].getLogger(name)
    return found


_loggers: dict[str, logging.Logger] = {}
