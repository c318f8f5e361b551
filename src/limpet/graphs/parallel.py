"""Sections: parts of a graph whose branches run in parallel, and graphs inside of graphs.

A section follows a node, as an edge does. It leads to several *branches*: one for each parallel edge, or one for each
item of a map. Each has a state of its own, and the fan-in runs after all of them. A node that runs a graph is a
section of one branch. `InnerGraph` has what passes in and out of a graph that is run inside of another.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from limpet.errors import DefinitionError, UnstorableValue, UsageError
from limpet.graphs.parameters import ABSENT, Function
from limpet.graphs.schema import Schema
from limpet.graphs.state import TrackedState, detached_view
from limpet.journal.encoding.codec import detached_value, encode

if TYPE_CHECKING:
    from limpet.graphs.plan import Plan

OnError = Literal["fail", "collect"]
FAIL: Final = "fail"
COLLECT: Final = "collect"


class InnerGraph(NamedTuple):
    """A graph inside of another: its plan, and what passes in and out.

    `inputs` and `outputs` are mappings of the new key to the old one, or functions of the state that return
    what passes. None passes the keys that both graphs know.
    """

    plan: Plan
    inputs: Mapping[str, str] | Function | None = None
    outputs: Mapping[str, str] | Function | None = None

    def initial_state(
        self, outer: Mapping[str, Any], item: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """The state that the graph starts with, inside of a graph whose state is `outer`.

        `item` is what a map adds to that. Raises `UsageError`, and what a user's function raises.
        """
        if self.inputs is not None:
            seen = {**outer, **item} if item else outer
            given = _passed(self.inputs, seen, f"inputs of graph {self.plan.name!r}")
        elif self.plan.schema.keys or item is not None:
            given = {key: outer[key] for key in self.plan.schema.keys if key in outer} | dict(item or {})
        else:
            given = dict(outer)
        if self.plan.schema.checks is not None:
            # Validators are the user's functions, and may alter what they are given.
            given = detached_value(given)
        return self.plan.schema.initial(given)

    def inner_update(self, update: Mapping[str, Any]) -> dict[str, Any]:
        """What an update of the outer state means for the graph while it runs."""
        if isinstance(self.inputs, Mapping):
            return {new: update[old] for new, old in self.inputs.items() if old in update}
        if self.inputs is not None or self.plan.layers is not None:
            return {}
        known = self.plan.schema.keys
        return {key: value for key, value in update.items() if not known or key in known}

    def outer_update(
        self, final: Mapping[str, Any], outer: Mapping[str, Any], schema: Schema
    ) -> dict[str, Any]:
        """The update of the outer state, which has this `schema`, when the graph ends in the state `final`.

        Without `outputs`, these are the values that differ from the outer state, of the keys in the outer schema if
        it names any; for a workflow, the results of its tasks. One of the `inherited_keys` then replaces the outer
        value, without its reducer.
        """
        if self.outputs is not None:
            return self.outputs_of(final)
        update = {}
        for key, value in self.outputs_of(final).items():
            known = not schema.keys or key in schema.keys
            if known and not _same(outer.get(key, ABSENT), value):
                update[key] = value
        return update

    def inherited_keys(
        self, initial: Mapping[str, Any], outer: Mapping[str, Any], schema: Schema
    ) -> list[str]:
        """The keys with a reducer outside that the graph starts with unchanged."""
        if self.outputs is not None or self.plan.layers is not None:
            return []
        return [
            key for key in schema.reducers if key in initial and _same(initial[key], outer.get(key, ABSENT))
        ]

    def outputs_of(self, final: Mapping[str, Any]) -> dict[str, Any]:
        """What passes out when the graph ends in the state `final`; for a workflow, the results of its tasks."""
        what = f"outputs of graph {self.plan.name!r}"
        layers = self.plan.layers
        if layers is None:
            if self.outputs is None:
                return dict(final)
            return _passed(self.outputs, final, what)
        if self.outputs is None:
            return layers.results(final)
        if isinstance(self.outputs, Mapping):
            return _passed(self.outputs, layers.results(final), what)
        return _passed(self.outputs, layers.view(final), what)


class Section(NamedTuple):
    """An edge out of `source` that opens branches, which run in parallel until all are at `fan_in`.

    `branches` are the nodes that parallel edges lead to. A map has none of these but `each`: the node that the branch
    of every item starts at, or the name of a graph. `own_state` means that it is a graph, which is `inner` once the
    plan is frozen. `over` is the key of the items, or a function that returns them; `item` is the key of a branch's
    own item. At most `max_concurrency` branches run at once. `layered` is the section of a workflow: its branches are
    the tasks that are ready, and its source, which is the fan-in too, plans the next layer.
    """

    source: str
    fan_in: str
    branches: tuple[str, ...] = ()
    each: str | None = None
    own_state: bool = False
    inner: InnerGraph | None = None
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
        return () if self.own_state else (self.each,)

    @property
    def targets(self) -> tuple[str, ...]:
        return (*self.entries, self.fan_in)

    @property
    def unconditional(self) -> bool:
        return True

    @property
    def decided_by(self) -> None:
        return None

    def target_for(self, result: Any, nodes: Mapping[str, Any]) -> str:
        return self.fan_in

    def items(self, state: Any) -> list[Any]:
        """The items of a map, in this state. Raises `UsageError`, and what a user's function raises."""
        what = f"the map after {self.source!r}"
        if isinstance(self.over, str):
            if self.over not in state:
                raise UsageError(f"{what} is over {self.over!r}, which the state doesn't have")
            found = state[self.over]
        else:
            assert self.over is not None
            found = self.over.call(detached_view(state))
        if isinstance(found, (str, bytes)) or not isinstance(found, Iterable):
            raise UsageError(f"{what} is over a value of type {type(found).__name__}, which has no items")
        return list(found)

    def bound(self, resources: Mapping[str, Any]) -> Section:
        """This section: its functions take the state alone."""
        return self

    def describe(self) -> list[Any]:
        if self.each is None:
            return [self.source, list(self.branches), self.fan_in, self.on_error, "parallel"]
        inside = self.inner.plan.fingerprint if self.inner else ""
        over = self.over if isinstance(self.over, str) else ""
        return [self.source, self.each, inside, over, self.item, self.fan_in, self.on_error, "map"]


def check_on_error(on_error: str, what: str, graph: str) -> None:
    """Raise `DefinitionError` for what isn't an `OnError`."""
    if on_error not in (FAIL, COLLECT):
        raise DefinitionError(f"{what}: on_error must be {FAIL!r} or {COLLECT!r}, not {on_error!r}", graph)


def _passed(passing: Mapping[str, str] | Function, state: Mapping[str, Any], what: str) -> dict[str, Any]:
    if isinstance(passing, Mapping):
        missing = [old for old in passing.values() if old not in state]
        if missing:
            raise UsageError(f"the {what} take {', '.join(map(repr, missing))}, which the state doesn't have")
        return {new: state[old] for new, old in passing.items()}
    view = state if isinstance(state, TrackedState) else detached_view(state)
    found = passing.call(view)
    if not isinstance(found, Mapping):
        raise UsageError(f"the function for the {what} must return a dict, not {type(found).__name__}")
    return dict(found)


def _same(one: Any, other: Any) -> bool:
    """Whether two values are exactly the same. Values that can't be compared exactly are different."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    try:
        return encode(one) == encode(other)
    except UnstorableValue:
        return False
