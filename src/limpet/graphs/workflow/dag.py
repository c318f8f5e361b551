"""What a workflow consists of, as data, and the layers that follow from it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from graphlib import TopologicalSorter
from typing import Any

Dag = Mapping[str, Mapping[str, Any]]
"""The tasks by name, each with what it depends on: a `TaskSpec` as data."""


def layers_of(dag: Dag, done: Mapping[str, Any] | Iterable[str] = ()) -> tuple[tuple[str, ...], ...]:
    """The tasks that aren't done, in layers: each comes after all that it depends on. Raises `CycleError`."""
    needs = {
        name: [each for each in (*data.get("depends_on", ()), *data.get("optional", ())) if each not in done]
        for name, data in dag.items()
        if name not in done
    }
    order = {name: place for place, name in enumerate(dag)}
    sorter = TopologicalSorter(needs)
    sorter.prepare()
    layers = []
    while sorter.is_active():
        ready = sorted(sorter.get_ready(), key=order.__getitem__)
        layers.append(tuple(ready))
        sorter.done(*ready)
    return tuple(layers)


def all_before(dag: Dag, names: Iterable[str]) -> set[str]:
    """These tasks, and all that they depend on."""
    found: set[str] = set()
    ahead = list(names)
    while ahead:
        name = ahead.pop()
        if name not in found:
            found.add(name)
            data = dag.get(name, {})
            ahead += [*data.get("depends_on", ()), *data.get("optional", ())]
    return found
