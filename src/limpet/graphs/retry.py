"""What is promised of one node: how often it is tried, and for how long."""

from __future__ import annotations

from datetime import timedelta
from math import inf
from typing import Any, NamedTuple, Self

from limpet.errors import DefinitionError


class _Fields(NamedTuple):
    attempts: int
    backoff: float
    factor: float
    max_delay: float
    jitter: float
    on: type[Exception] | tuple[type[Exception], ...]


class Retry(_Fields):
    """Try a node again when it raises.

    `attempts` counts the first one too, and goes on counting over crashes. The n-th wait is
    `backoff * factor ** (n - 1)` seconds, at most `max_delay`, and up to the share `jitter` of it shorter
    or longer. Only the exceptions in `on` are tried again.
    """

    __slots__ = ()

    def __new__(
        cls,
        attempts: int = 3,
        backoff: float = 1.0,
        factor: float = 2.0,
        max_delay: float = 60.0,
        jitter: float = 0.1,
        on: type[Exception] | tuple[type[Exception], ...] = Exception,
    ) -> Self:
        self = super().__new__(cls, attempts, backoff, factor, max_delay, jitter, on)
        self._check()
        return self

    def _check(self) -> None:
        kinds = self.on if isinstance(self.on, tuple) else (self.on,)
        mistakes = [
            text
            for wrong, text in (
                (type(self.attempts) is not int or self.attempts < 1, "attempts is a whole number from 1"),
                (self.backoff < 0, "backoff is a number of seconds, not below 0"),
                (self.factor < 1, "factor is a number not below 1"),
                (self.max_delay < 0, "max_delay is a number of seconds, not below 0"),
                (not 0 <= self.jitter <= 1, "jitter is a share from 0 to 1"),
                (
                    not all(isinstance(kind, type) and issubclass(kind, Exception) for kind in kinds),
                    "on is an exception class or a tuple of them",
                ),
            )
            if wrong
        ]
        if mistakes:
            raise DefinitionError([f"retry: {text}" for text in mistakes])

    def applies(self, error: BaseException, attempt: int) -> bool:
        """Whether the node is tried again after `error` in its `attempt`-th attempt."""
        return attempt < self.attempts and isinstance(error, self.on)

    def delay(self, attempt: int, chance: float) -> float:
        """Seconds to wait after the `attempt`-th attempt; `chance` in [0, 1) moves it within the jitter."""
        wait = min(self.max_delay, self.backoff * self.factor ** min(attempt - 1, 64))
        return wait * (1 + self.jitter * (2 * chance - 1))


def read_timeout(given: Any, what: str) -> float | None:
    """A number of seconds, or None. Raises `DefinitionError` that names `what` it is for."""
    if given is None or (isinstance(given, (int, float)) and type(given) is not bool and given > 0):
        return given
    raise DefinitionError(f"{what}: timeout is a number of seconds above 0, not {given!r}")


def read_delay(given: Any, what: str) -> float:
    """A number of seconds, given as one or as a `timedelta`. Raises `DefinitionError` that names `what` it is for."""
    seconds = given.total_seconds() if isinstance(given, timedelta) else given
    if isinstance(seconds, (int, float)) and type(seconds) is not bool and 0 <= seconds < inf:
        return float(seconds)
    raise DefinitionError(f"{what}: delay is a number of seconds from 0 or a timedelta, not {given!r}")


def read_retry(given: Retry | int | None) -> Retry | None:
    """A `Retry`, from what `add_node(retry=…)` was given: one, a number of attempts, or nothing."""
    if given is None or isinstance(given, Retry):
        return given
    if type(given) is int:
        return Retry(attempts=given)
    raise DefinitionError(f"retry is a Retry or a number of attempts, not {given!r}")
