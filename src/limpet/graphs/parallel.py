"""Sections: parts of a graph that run beside each other, and graphs inside of graphs.

A section is a way out of a node. Instead of one node, several *branches* follow: one for each parallel edge, or one
for each item of a map. Each has a state of its own; the fan-in comes after all of them. A node that is itself
a graph is a section of one. What passes in and out of a graph is said here too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from limpet.errors import UnstorableValue, UsageError
from limpet.graphs.parameters import Function
from limpet.graphs.schema import Schema
from limpet.graphs.state import TrackedState, glance
from limpet.journal.encoding.codec import encode

if TYPE_CHECKING:
    from limpet.graphs.plan import Plan

OnError = Literal["fail", "collect"]
FAIL: Final = "fail"
COLLECT: Final = "collect"

_ABSENT: Any = object()


class SubPlan(NamedTuple):
    """A graph inside of another one: its plan, and what passes in and out.

    `inputs` and `outputs` are mappings of the new key to the old one, or functions of the state that return
    what passes. None passes what both sides know.
    """

    plan: Plan
    inputs: Mapping[str, str] | Function | None = None
    outputs: Mapping[str, str] | Function | None = None

    def enter(self, state: Mapping[str, Any], item: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The state that the graph starts with, inside a graph whose state is `state`.

        `item` is what a map adds to that. Raises `UsageError`, and whatever a function of the user's does.
        """
        seen = {**state, **item} if item else state
        if self.inputs is not None:
            given = _passed(self.inputs, seen, f"inputs of graph {self.plan.name!r}")
        elif self.plan.schema.keys or item is not None:
            given = {key: state[key] for key in self.plan.schema.keys if key in state} | dict(item or {})
        else:
            given = dict(state)
        return self.plan.schema.initial(given)

    def updated(self, update: Mapping[str, Any]) -> dict[str, Any]:
        """What an update of the state outside is to the graph, while it runs."""
        if isinstance(self.inputs, Mapping):
            return {new: update[old] for new, old in self.inputs.items() if old in update}
        if self.inputs is not None:
            return {}
        known = self.plan.schema.keys
        if self.plan.layers is not None:
            return {}
        return {key: value for key, value in update.items() if not known or key in known}

    def leave(self, final: Mapping[str, Any], outer: Mapping[str, Any], schema: Schema) -> dict[str, Any]:
        """What the graph around it, of this schema and in this `outer` state, is told at the end: an update.

        Without `outputs` that is what is different from the outer state, of the keys that the outer schema names if
        it names any; of a workflow, it is the results of its tasks. A key that the graph has `kept` from there is
        then what it has made of it, and isn't reduced.
        """
        if self.outputs is not None:
            return self.result(final)
        return {
            key: value
            for key, value in self.result(final).items()
            if (not schema.keys or key in schema.keys) and not _same(outer.get(key, _ABSENT), value)
        }

    def kept(self, entered: Mapping[str, Any], outer: Mapping[str, Any], schema: Schema) -> list[str]:
        """The keys that are reduced outside and that the graph starts with as they are there."""
        if self.outputs is not None or self.plan.layers is not None:
            return []
        return [
            key for key in schema.reducers if key in entered and _same(entered[key], outer.get(key, _ABSENT))
        ]

    def result(self, final: Mapping[str, Any]) -> dict[str, Any]:
        """What an item of a map came to, as the fan-in sees it: for a workflow, the results of its tasks."""
        layers, what = self.plan.layers, f"outputs of graph {self.plan.name!r}"
        if layers is None:
            return dict(final) if self.outputs is None else _passed(self.outputs, final, what)
        results = layers.results(final)
        if self.outputs is None or isinstance(self.outputs, Mapping):
            return results if self.outputs is None else _passed(self.outputs, results, what)
        return _passed(self.outputs, layers.seen(final), what)


class Section(NamedTuple):
    """A way out of `source` on which several branches run beside each other, until all are at `fan_in`.

    `branches` are the nodes that parallel edges lead to. A map has none of these but `each`: the node that every
    item starts at, or the name for the items of a graph, which is `sub` once it is frozen (`own` says that there is
    one); `over` says what the items are, and `item` is the key that a branch finds its own under. At most
    `max_concurrency` branches run at once. `layered` is the section of a workflow: its branches are the tasks that
    are ready, and its source, which is the fan-in too, plans what comes after them.
    """

    source: str
    fan_in: str
    branches: tuple[str, ...] = ()
    each: str | None = None
    own: bool = False
    sub: SubPlan | None = None
    over: str | Function | None = None
    item: str = "item"
    on_error: OnError = FAIL
    max_concurrency: int | None = None
    layered: bool = False

    @property
    def entries(self) -> tuple[str, ...]:
        """The nodes of this graph that its branches start at."""
        if self.each is None:
            return self.branches
        return () if self.own else (self.each,)

    @property
    def targets(self) -> tuple[str, ...]:
        return (*self.entries, self.fan_in)

    @property
    def unconditional(self) -> bool:
        return True

    @property
    def asks(self) -> None:
        return None

    def leads(self, result: Any, nodes: Mapping[str, Any]) -> str:
        return self.fan_in

    def items(self, state: Any) -> list[Any]:
        """What a map goes over, in this state. Raises `UsageError`, and whatever a function of the user's does."""
        if isinstance(self.over, str):
            if self.over not in state:
                raise UsageError(
                    f"the map after {self.source!r} goes over {self.over!r}, which the state doesn't have"
                )
            found = state[self.over]
        else:
            assert self.over is not None
            found = self.over.call(glance(state))
        if isinstance(found, (str, bytes)) or not isinstance(found, Iterable):
            raise UsageError(
                f"the map after {self.source!r} goes over {type(found).__name__}, which has no items"
            )
        return list(found)

    def describe(self) -> list[Any]:
        if self.each is None:
            return [self.source, list(self.branches), self.fan_in, self.on_error, "parallel"]
        inside = self.sub.plan.fingerprint if self.sub else ""
        over = self.over if isinstance(self.over, str) else ""
        return [self.source, self.each, inside, over, self.item, self.fan_in, self.on_error, "map"]


def _passed(how: Mapping[str, str] | Function, state: Mapping[str, Any], what: str) -> dict[str, Any]:
    if isinstance(how, Mapping):
        missing = [old for old in how.values() if old not in state]
        if missing:
            raise UsageError(
                f"the {what} ask for {', '.join(map(repr, missing))}, which the state doesn't have"
            )
        return {new: state[old] for new, old in how.items()}
    found = how.call(state if isinstance(state, TrackedState) else glance(state))
    if not isinstance(found, Mapping):
        raise UsageError(f"the {what} are a dict, not {type(found).__name__}")
    return dict(found)


def _same(one: Any, other: Any) -> bool:
    """Whether two values are the same to the last detail, as far as that can be told."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    try:
        return encode(one) == encode(other)
    except UnstorableValue:
        return False
