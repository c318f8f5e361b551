"""The order of a workflow's tasks, counted once: what each waits for, what needs it, and its layer."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any, Final, NamedTuple

NONE_BEGUN: Final[Mapping[str, int]] = {}


class Order(NamedTuple):
    """The order of the tasks of a run that aren't done. `Flow` works on copies of these.

    `waits_for` has, for each task that hasn't begun, how many of its dependencies aren't done, and `needed_by` the
    other direction. `by_layer` has the tasks of each layer.
    """

    waits_for: dict[str, int]
    needed_by: dict[str, list[str]]
    layer_of: dict[str, int]
    by_layer: dict[int, list[str]]


def order_of(
    dag: Mapping[str, Mapping[str, Any]],
    begun: Mapping[str, int] = NONE_BEGUN,
    done: Set[str] = frozenset(),
    first_layer: int = 0,
) -> Order:
    """The order of these tasks. `begun` has the layers of those that have begun, and `done` which of them are done.

    A task that hasn't begun is in no layer before `first_layer`: those are over.
    """
    waits_for: dict[str, int] = {}
    needed_by: dict[str, list[str]] = {}
    for name, data in dag.items():
        if name in begun:
            continue
        count = 0
        for needed in dependencies_of(data):
            if needed not in done:
                needed_by.setdefault(needed, []).append(name)
                count += 1
        waits_for[name] = count
    layer_of = _layers(dag, begun, done, first_layer)
    by_layer: dict[int, list[str]] = {}
    for name, layer in layer_of.items():
        by_layer.setdefault(layer, []).append(name)
    return Order(waits_for, needed_by, layer_of, by_layer)


def _layers(
    dag: Mapping[str, Mapping[str, Any]], begun: Mapping[str, int], done: Set[str], first_layer: int
) -> dict[str, int]:
    """The layer of each task that isn't done: that of one which hasn't begun is after all that it depends on."""
    known = dict(begun)
    for name in dag:
        # A stack instead of recursion: chains may be thousands of tasks long.
        unexplored = [name]
        while unexplored:
            each = unexplored[-1]
            if each in known:
                unexplored.pop()
                continue
            earlier = earlier_tasks(dag, each)
            unknown = [other for other in earlier if other not in known]
            if unknown:
                unexplored += unknown
                continue
            known[each] = max(first_layer, 1 + max((known[other] for other in earlier), default=-1))
            unexplored.pop()
    return {name: known[name] for name in dag if name not in done}


def dependencies_of(data: Mapping[str, Any]) -> tuple[str, ...]:
    """The tasks that a task depends on, by its data."""
    return (*data.get("depends_on", ()), *data.get("optional", ()))


def earlier_tasks(dag: Mapping[str, Mapping[str, Any]], name: str) -> tuple[str, ...]:
    """The tasks that a task comes after: those it depends on, and the one that added it."""
    data = dag[name]
    added_by: str | None = data.get("added_by")
    if added_by is not None and added_by in dag:
        return (*dependencies_of(data), added_by)
    return dependencies_of(data)


def ancestors(dag: Mapping[str, Mapping[str, Any]], name: str) -> set[str]:
    """All tasks that a task comes after, directly or not."""
    found: set[str] = set()
    unexplored = list(earlier_tasks(dag, name))
    while unexplored:
        each = unexplored.pop()
        if each not in found:
            found.add(each)
            unexplored += earlier_tasks(dag, each)
    return found
