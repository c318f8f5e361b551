"""The policy of a node: how often it is tried, how long is waited between attempts, and its timeout."""

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
    """Retry a node that raises.

    `attempts` includes the first one, and crashes of the process count as attempts. The n-th wait is
    `backoff * factor ** (n - 1)` seconds, at most `max_delay`, and up to the share `jitter` of it shorter
    or longer. Only the exceptions in `on` are retried.
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
        mistakes = []
        if type(self.attempts) is not int or self.attempts < 1:
            mistakes.append("retry: attempts must be a whole number of at least 1")
        if self.backoff < 0:
            mistakes.append("retry: backoff must be a number of seconds, at least 0")
        if self.factor < 1:
            mistakes.append("retry: factor must be a number of at least 1")
        if self.max_delay < 0:
            mistakes.append("retry: max_delay must be a number of seconds, at least 0")
        if not 0 <= self.jitter <= 1:
            mistakes.append("retry: jitter must be a share from 0 to 1")
        kinds = self.on if isinstance(self.on, tuple) else (self.on,)
        if not all(isinstance(kind, type) and issubclass(kind, Exception) for kind in kinds):
            mistakes.append("retry: on must be an exception class or a tuple of them")
        if mistakes:
            raise DefinitionError(mistakes)

    def applies(self, error: BaseException, attempt: int) -> bool:
        """Whether the node is retried after `error` in its `attempt`-th attempt."""
        return attempt < self.attempts and isinstance(error, self.on)

    def delay(self, attempt: int, chance: float) -> float:
        """Seconds to wait after the `attempt`-th attempt; `chance` in [0, 1) varies it within the jitter."""
        # The exponent is bounded because a large one would overflow a float.
        wait = min(self.max_delay, self.backoff * self.factor ** min(attempt - 1, 64))
        return wait * (1 + self.jitter * (2 * chance - 1))


def read_timeout(given: Any, what: str) -> float | None:
    """A timeout as a user gave it: a number of seconds, or None. Raises `DefinitionError`, which names `what`."""
    if given is None or (isinstance(given, (int, float)) and type(given) is not bool and given > 0):
        return given
    raise DefinitionError(f"{what}: timeout must be a number of seconds above 0, not {given!r}")


def read_delay(given: Any, what: str) -> float:
    """A delay in seconds, from a number or a `timedelta`. Raises `DefinitionError`, which names `what`."""
    seconds = given.total_seconds() if isinstance(given, timedelta) else given
    if isinstance(seconds, (int, float)) and type(seconds) is not bool and 0 <= seconds < inf:
        return float(seconds)
    raise DefinitionError(
        f"{what}: delay must be a number of seconds (at least 0) or a timedelta, not {given!r}"
    )


def read_retry(given: Retry | int | None) -> Retry | None:
    """The `Retry` for `add_node(retry=…)`, which takes a `Retry`, a number of attempts, or None."""
    if given is None or isinstance(given, Retry):
        return given
    if type(given) is int:
        return Retry(attempts=given)
    raise DefinitionError(f"retry must be a Retry or a number of attempts, not {given!r}")
