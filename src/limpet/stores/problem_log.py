"""`ProblemLog`: warnings about what is found again and again, such as damage that a worker meets at every look."""

from __future__ import annotations

from math import inf
from time import monotonic
from typing import Final

MAX_REMEMBERED: Final = 1000
"""How many problems are remembered as logged."""


class ProblemLog:
    """Logs each problem once, or again after `interval` seconds if it is still there. Threads share it."""

    def __init__(self, logger: str, interval: float = inf) -> None:
        self._logger = logger
        self._interval = interval
        self._logged: dict[str, float] = {}
        """When each problem was logged, by `monotonic`."""

    def warn(self, problem: object) -> None:
        """Log a warning, unless the same was logged before."""
        text = str(problem)
        now = monotonic()
        if now - self._logged.get(text, -inf) < self._interval:
            return
        if len(self._logged) >= MAX_REMEMBERED:
            self._logged.clear()
        self._logged[text] = now
        from logging import getLogger

        getLogger(self._logger).warning("%s", text)
