"""Functions that take the state as an instance of a class: nodes, predicates, choices, and what passes to graphs.

A function says so by the annotation of the parameter that takes the state. That is read once, when the graph is
compiled; the plan then has a function that takes the plain state, like any other. So a graph without such functions
pays nothing for them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Container
from functools import update_wrapper
from typing import Any, NamedTuple, get_origin

from limpet.errors import DefinitionError, UnstorableValue, UsageError, did_you_mean
from limpet.graphs.edges import Choice, Edge, Goto, OutEdge
from limpet.graphs.parallel import Section
from limpet.graphs.parameters import ABSENT, Function, resolved_hint
from limpet.graphs.schema import Schema
from limpet.graphs.state import State
from limpet.graphs.typed_state.annotations import has_instances, plain_type
from limpet.graphs.typed_state.instances import StateClass, state_class
from limpet.journal.encoding.codec import encode


def typed_function(
    function: Function, schema: Schema, what: str, resources: Container[str] = (), *, updates: bool = False
) -> Function:
    """The same function, if it takes the plain state; otherwise one that makes an instance of it for each call.

    `resources` are names that aren't the state's. `updates` says that what it returns changes the state. Raises
    `DefinitionError` for a class that instances of this state can't be made of; `what` names the function there.
    """
    cls = None
    if schema.keys and function.first not in resources:
        cls = _class_of_state(function, schema)
    if cls is None:
        return function
    made_from = state_class(cls)
    unknown = [name for name in made_from.names if name not in schema.keys]
    if unknown:
        near = did_you_mean(unknown[0], schema.keys)
        raise DefinitionError(
            f"{what} takes a {cls.__name__}, whose field {unknown[0]!r} the state doesn't have{near}"
        )
    parameter = next((name for name, value in function.takes if value == "state"), "")
    if not updates:
        return function._replace(call=InstanceCall(function.call, made_from, parameter))
    reducers = frozenset(made_from.names).intersection(schema.reducers)
    return function._replace(call=InstanceUpdate(function.call, made_from, parameter, reducers))


def typed_edge(edge: OutEdge, schema: Schema, resources: Container[str]) -> OutEdge:
    """An edge whose function takes the plain state. Raises `DefinitionError`."""
    what = f"the function of the edge after {edge.source!r}"
    match edge:
        case Edge(predicate=Function() as function):
            return edge._replace(predicate=typed_function(function, schema, what, resources))
        case Choice():
            return edge._replace(choose=typed_function(edge.choose, schema, what, resources))
        case Section(over=Function() as function):
            return edge._replace(over=typed_function(function, schema, what, resources))
    return edge


def _class_of_state(function: Function, schema: Schema) -> Any:
    """The dataclass or pydantic model that the state's parameter is annotated with, if it is."""
    hint = function.state_hint
    if isinstance(hint, str):
        hint = _named_class(function, hint, schema.source)
    hint = plain_type(hint)
    if has_instances(get_origin(hint)):
        hint = get_origin(hint)  # a generic dataclass with the types that it is of
    if has_instances(hint):
        return hint
    return None


def _named_class(function: Function, name: str, source: Any) -> Any:
    """The class that an annotation names. One that is defined inside of a function is known by its name only."""
    if name.strip("\"'").rpartition(".")[2] == getattr(source, "__name__", None):
        return source
    return resolved_hint(function.call, name)


class InstanceCall:
    """Calls a function with the state as an instance of a class. `parameter` is the one that takes the state."""

    def __init__(self, function: Callable[..., Any], made_from: StateClass, parameter: str) -> None:
        update_wrapper(self, function)  # first, as it may copy attributes of any name
        self._function = function
        self._made_from = made_from
        self._parameter = parameter

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call_with(self._made_from.make(self._state_in(args, kwargs)), args, kwargs)

    def _state_in(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if args:
            return args[0]
        return kwargs[self._parameter]

    def _call_with(self, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if args:
            return self._function(instance, **kwargs)
        return self._function(**{**kwargs, self._parameter: instance})


class InstanceUpdate(InstanceCall):
    """The same for a node: what it returns, and what it assigns to the instance, becomes an update of the state."""

    def __init__(
        self,
        function: Callable[..., Any],
        made_from: StateClass,
        parameter: str,
        reducers: frozenset[str],
    ) -> None:
        super().__init__(function, made_from, parameter)
        self._reducers = reducers

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        state = self._state_in(args, kwargs)
        instance = self._made_from.make(state)
        values = self._made_from.values(instance)
        # A list under a reducer is compared with a copy: the node may add items to the one that it got.
        compared = {**values, **{key: _copied(values[key]) for key in self._reducers if key in values}}
        given = _Given(state, instance, values, compared, frozenset(getattr(instance, "__dict__", ())))
        returned = self._call_with(instance, args, kwargs)
        if hasattr(returned, "__await__"):
            return self._await_update(returned, given)
        return self._update(returned, given)

    async def _await_update(self, result: Awaitable[Any], given: _Given) -> Any:
        return self._update(await result, given)

    def _update(self, returned: Any, given: _Given) -> Any:
        """What the call changes: the fields of a returned instance that differ, or what else it returned."""
        if isinstance(returned, Goto):
            return Goto(returned.target, self._update(returned.update, given))
        self._refuse_other_attributes(given)
        if returned is not given.instance:
            for key, value in self._made_from.values(given.instance).items():
                if value is not given.values.get(key, ABSENT):
                    given.state[key] = value  # which refuses a key with a reducer
        if not isinstance(returned, self._made_from.cls):
            return returned
        changed = {}
        for key, value in self._made_from.set_values(returned).items():
            if key in self._reducers:
                value = _copied(value)
            if not _is_same(value, given.compared.get(key, ABSENT)):
                changed[key] = value
        if self._reducers.isdisjoint(changed):
            return changed
        # A State has whole values: they aren't combined with those that the state has.
        return State(changed, run_id="-")

    def _refuse_other_attributes(self, given: _Given) -> None:
        """Raise `UsageError` if the node has set what isn't a field of the dataclass: it would be lost."""
        cls = self._made_from.cls
        for name in getattr(given.instance, "__dict__", ()):
            # What the class knows is its own affair, such as the value of a cached property.
            if name not in given.attributes and not hasattr(cls, name) and not name.startswith("_"):
                near = did_you_mean(name, self._made_from.names)
                raise UsageError(f"{name!r} was set, which isn't a field of {cls.__name__}{near}")


class _Given(NamedTuple):
    """What a node got, to find out what it has changed: the state, and an instance with these values and attributes.

    `compared` are the values as they were, also if the node changes them in place.
    """

    state: Any
    instance: Any
    values: dict[str, Any]
    compared: dict[str, Any]
    attributes: frozenset[str]


def _copied(value: Any) -> Any:
    if type(value) in (list, dict, set):
        return value.copy()
    return value


def _is_same(new: Any, old: Any) -> bool:
    """Whether a field has the value that it had. Equal means equal when stored, so that 1 and True differ."""
    if new is old:
        return True
    if type(new) is not type(old):
        return False
    if (
        type(new) is list
        and len(new) == len(old)
        and all(each is old[index] for index, each in enumerate(new))
    ):
        return True
    try:
        return encode(new) == encode(old)
    except UnstorableValue:
        return False
