"""The policy of a node: how often it is tried, how long is waited between attempts, and its timeout."""

from __future__ import annotations

from datetime import timedelta
from math import inf
from typing import Any, NamedTuple, Self

from limpet.durations import LONGEST_SPAN, span_mistake
from limpet.errors import DefinitionError, ResourceFailed


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
        if mistake := span_mistake(self.backoff):
            mistakes.append(f"retry: backoff {mistake}")
        if not _is_number(self.factor) or self.factor < 1:
            mistakes.append(f"retry: factor must be a number of at least 1, not {self.factor!r}")
        if mistake := span_mistake(self.max_delay, unlimited=True):
            mistakes.append(f"retry: max_delay {mistake}")
        if not _is_number(self.jitter) or not 0 <= self.jitter <= 1:
            mistakes.append(f"retry: jitter must be a share from 0 to 1, not {self.jitter!r}")
        kinds = self.on if isinstance(self.on, tuple) else (self.on,)
        if not all(isinstance(kind, type) and issubclass(kind, Exception) for kind in kinds):
            mistakes.append("retry: on must be an exception class or a tuple of them")
        if mistakes:
            raise DefinitionError(mistakes)

    def applies(self, error: BaseException, attempt: int) -> bool:
        """Whether the node is retried after `error` in its `attempt`-th attempt."""
        return attempt < self.attempts and is_one_of(error, self.on)

    def delay(self, attempt: int, chance: float) -> float:
        """Seconds to wait after the `attempt`-th attempt; `chance` in [0, 1) varies it within the jitter."""
        if not self.backoff:
            return 0.0
        try:
            wait = min(self.max_delay, self.backoff * self.factor ** (attempt - 1), LONGEST_SPAN)
        except OverflowError:  # it is more than a float can be
            wait = min(self.max_delay, LONGEST_SPAN)
        return wait * (1 + self.jitter * (2 * chance - 1))


def is_one_of(error: BaseException, kinds: type[Exception] | tuple[type[Exception], ...]) -> bool:
    """Whether an error is of one of these classes, or is about a resource whose factory raised such an error."""
    if isinstance(error, kinds):
        return True
    return isinstance(error, ResourceFailed) and isinstance(error.__cause__, kinds)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and type(value) is not bool and -inf < value < inf


def read_timeout(given: Any, what: str) -> float | None:
    """A timeout as a user gave it: a number of seconds, or None. Raises `DefinitionError`, which names `what`."""
    if given is None:
        return None
    if mistake := span_mistake(given, positive=True):
        raise DefinitionError(f"{what}: timeout {mistake}; None means without one")
    return float(given)


def read_delay(given: Any, what: str) -> float:
    """A delay in seconds, from a number or a `timedelta`. Raises `DefinitionError`, which names `what`."""
    if mistake := span_mistake(given, takes_timedelta=True):
        raise DefinitionError(f"{what}: delay {mistake}")
    return float(given.total_seconds() if isinstance(given, timedelta) else given)


def read_retry(given: Retry | int | None) -> Retry | None:
    """The `Retry` for `add_node(retry=…)`, which takes a `Retry`, a number of attempts, or None."""
    if given is None or isinstance(given, Retry):
        return given
    if type(given) is int:
        return Retry(attempts=given)
    raise DefinitionError(f"retry must be a Retry or a number of attempts, not {given!r}")
