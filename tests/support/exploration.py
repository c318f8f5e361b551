"""What the simulations share: modules that live in a simulated world for a while, and schedules that are explored."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from support.interleaving import Interleaving, Never

Replacement = tuple[Any, str, Any]
"""A module, a name in it, and what it stands for meanwhile."""


class Violation(AssertionError):
    """A schedule in which something happened that never may."""


@contextmanager
def replaced(replacements: Sequence[Replacement]) -> Iterator[None]:
    """Have names in modules stand for something else, and the log be quiet."""
    before = [getattr(module, name) for module, name, _ in replacements]
    logging.disable(logging.CRITICAL)
    for module, name, made in replacements:
        setattr(module, name, made)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
        for (module, name, _), was in zip(replacements, before, strict=True):
            setattr(module, name, was)


def explore_worlds(
    seeds: Iterable[int],
    kind: Callable[[int], Any],
    length: int,
    simulated: AbstractContextManager[None],
    test: str,
) -> int:
    """Run the schedules of these seeds; returns how many. Raises a `Violation` for the first that fails."""
    count = 0
    with simulated:
        for seed in seeds:
            world: Interleaving = kind(seed)
            try:
                world.run(length)  # type: ignore[attr-defined]  # each kind of world has its own
            except (Exception, Never) as problem:
                raise Violation(world.report(problem, test)) from problem
            finally:
                world.end_threads()
            count += 1
    return count
