"""The limits that a file declares, and where its nodes, its tasks and its config name them."""

from __future__ import annotations

from functools import partial
from typing import Any

from limpet.errors import did_you_mean
from limpet.graphs.limits import Limit, checked_rate
from limpet.graphs.names import checked_name
from limpet.yaml_files.document import Value
from limpet.yaml_files.grammar.mistakes import Mistakes

_PLACES = ("nodes", "tasks", "templates", "config")
"""The keys under which limits may be named."""


class DeclaredLimits:
    """The limits of one graph or workflow in a file."""

    def __init__(self, graph: Value, mistakes: Mistakes) -> None:
        self._graph = graph
        self._mistakes = mistakes
        self._limits: dict[str, Limit] = {}

    def read(self, is_partial: bool) -> None:
        """Read the limits that are declared. Each has to be named somewhere, or to be for queues.

        If the file `is_partial`, as the tables have found mistakes, this only looks for more of them.
        """
        declared = self._graph.get("limits")
        if declared is None or not isinstance(declared.data, dict):
            return
        for name, values in declared.data.items():
            is_right = self._check(declared.keys[name], values)
            if is_right and not is_partial:
                make = partial(Limit, name, **values.plain_data())
                limit = self._mistakes.attempt(values.place_of("concurrency"), make)
                if limit is not None:
                    self._limits[name] = limit
        if not is_partial:
            self._note_unused(declared)

    def at(self, declared: Value | None) -> list[Any]:
        """The limits that a node, a task or the config names: by name if the file doesn't say what they allow."""
        return [self._limits.get(each.data, each.data) for each in _named(declared)]

    def of_graph(self) -> list[Any]:
        """The limits that the config names, and those for queues, which the file needn't name anywhere."""
        named = self.at(self._graph.get("config"))
        return named + [limit for limit in self._limits.values() if limit.queues and limit not in named]

    def _check(self, name: Value, values: Value) -> bool:
        """Note the mistakes in single texts of a limit; whether there are none."""
        before = len(self._mistakes)
        self._mistakes.check(name, partial(checked_name, "limit"))
        self._mistakes.check(values.get("rate"), checked_rate)
        for queue in values.items("queues"):
            self._mistakes.check(queue, partial(checked_name, "queue"))
        return len(self._mistakes) == before

    def _note_unused(self, declared: Value) -> None:
        """Note the limits that nothing has: where a name is misspelt, if one is like it."""
        named = [limit for key in _PLACES for place in self._graph.items(key) for limit in _named(place)]
        undeclared = [limit for limit in named if limit.data not in declared.data]
        for name in declared.data.keys() - {limit.data for limit in named}:
            if declared.data[name].items("queues"):
                continue
            meant = next((limit for limit in undeclared if did_you_mean(limit.data, [name])), None)
            if meant is None:
                self._mistakes.note(
                    declared.data[name],
                    f"nothing has the limit {name!r}: name it under limits of a node, or of config",
                )
            else:
                near = did_you_mean(meant.data, [name])
                self._mistakes.note(meant, f"the file declares no limit {meant.data!r}{near}")


def _named(declared: Value | None) -> list[Value]:
    """The names of limits at a node, a task or the config."""
    if declared is None or not isinstance(declared.data, dict):
        return []
    return [each for each in declared.items("limits") if isinstance(each.data, str)]
