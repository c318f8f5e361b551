"""Edges: the possible transitions out of a node, and how the next node is chosen.

A node's edges are tried in the order in which they were added. Each says by which function it is decided, if any, and
which node the function's result leads to. A `Section` is an edge, too: it opens branches (see `parallel.py`).

Jumps come before all of them. A node that returns a `Goto` says itself where to go, and may name the targets of its
`GotoEdge`. A node that fails for good leads along the first `ErrorEdge` that catches the error.

Last come ready-made predicates for edges, and functions that combine predicates. Each has a description, so that a
picture or a fingerprint of the graph can name it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, Literal, NamedTuple, TypeVar, get_args, get_origin

from limpet.errors import Conflict, DefinitionError, RunNotFound, UsageError
from limpet.graphs.habits.langgraph import refuse_chosen
from limpet.graphs.parallel import Section
from limpet.graphs.parameters import ABSENT, Function, resolved_hint
from limpet.graphs.retry import is_one_of
from limpet.journal.waits import DONE

START = "__start__"
"""Where a run begins: `add_edge(START, node)` makes a node the entry point."""
END = DONE
"""Where a run ends: the target of an edge, of a choice, or of a `Goto`."""

Predicate = Callable[[Mapping[str, Any]], Any]


class Edge(NamedTuple):
    """A possible transition: taken if its predicate holds, or always if it has none."""

    source: str
    target: str
    predicate: Function | None = None
    delay: float = 0.0

    @property
    def targets(self) -> tuple[str, ...]:
        return (self.target,)

    @property
    def unconditional(self) -> bool:
        return self.predicate is None

    @property
    def decided_by(self) -> Function | None:
        return self.predicate

    def target_for(self, result: Any, nodes: Mapping[str, Any]) -> str | None:
        """The next node if the predicate returned `result`; None if the edge isn't taken."""
        return self.target if result else None

    def bound(self, resources: Mapping[str, Any]) -> Edge:
        """This edge with the resources that its predicate takes."""
        if self.predicate is None:
            return self
        return self._replace(predicate=self.predicate.bound(resources))

    def describe(self) -> list[Any]:
        label = describe(self.predicate.call) if self.predicate else ""
        return [self.source, self.target, label]


class Choice(NamedTuple):
    """Several possible transitions, of which a function picks one by its result."""

    source: str
    choose: Function
    outcomes: Mapping[Any, str] | None
    delay: float = 0.0

    @property
    def targets(self) -> tuple[str, ...]:
        if self.outcomes is None:
            return ()
        return tuple(self.outcomes.values())

    @property
    def unconditional(self) -> bool:
        return True

    @property
    def decided_by(self) -> Function:
        return self.choose

    def target_for(self, result: Any, nodes: Mapping[str, Any]) -> str:
        """The next node if the function returned `result`. Raises `LookupError` if that isn't an outcome."""
        if type(result) is not str:
            refuse_chosen(result)
        if self.outcomes is None:
            if result != END and result not in nodes:
                raise LookupError(f"the choice after {self.source!r} was {result!r}, which isn't a node")
            return str(result)
        if result not in self.outcomes:
            listed = ", ".join(map(repr, self.outcomes))
            raise LookupError(f"the choice after {self.source!r} was {result!r}, not one of {listed}")
        return self.outcomes[result]

    def bound(self, resources: Mapping[str, Any]) -> Choice:
        """This choice with the resources that its function takes."""
        return self._replace(choose=self.choose.bound(resources))

    def describe(self) -> list[Any]:
        if self.outcomes is None:
            return [self.source, "any", "choice"]
        return [self.source, sorted((str(key), value) for key, value in self.outcomes.items()), "choice"]


OutEdge = Edge | Choice | Section
"""Any kind of edge out of a node that is tried when the node has completed."""

Target = TypeVar("Target", bound=str)


class Goto(Generic[Target]):
    """What a node returns to say which node is next: `return Goto("review", {"draft": text})`.

    `update` is what the node would return otherwise. The target is END or a node of the same graph, and one of those
    that the node was declared with: `add_node("draft", draft, goto=["review", END])`, or by the annotation
    `-> Goto[Literal["review", "publish"]]`. It takes precedence over the edges of the node.
    """

    __slots__ = ("target", "update")

    def __init__(self, target: Target, update: Any = None) -> None:
        if not isinstance(target, str):
            raise UsageError(
                f"Goto(target, update): the target is the name of a node, or END, not {target!r}"
            )
        self.target = target
        self.update = update

    def __repr__(self) -> str:
        return f"Goto({self.target!r}, {self.update!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Goto) and (self.target, self.update) == (other.target, other.update)

    __hash__ = None  # type: ignore[assignment]  # it has an update, which can't be hashed


class GotoEdge(NamedTuple):
    """The nodes that a node may go to by returning a `Goto`."""

    source: str
    targets: tuple[str, ...]

    def describe(self) -> list[Any]:
        return [self.source, sorted(self.targets), "goto"]


class ErrorEdge(NamedTuple):
    """Leads to a node that handles the errors of another one, once that isn't retried any more."""

    source: str
    target: str
    on: tuple[type[Exception], ...]

    @property
    def targets(self) -> tuple[str, ...]:
        return (self.target,)

    @property
    def label(self) -> str:
        """The names of the errors, for pictures."""
        return " or ".join(kind.__name__ for kind in self.on)

    def catches(self, error: BaseException) -> bool:
        """Whether it leads on after this error. That the run isn't this process's any more isn't the node's error."""
        return is_one_of(error, self.on) and not isinstance(error, (Conflict, RunNotFound))

    def describe(self) -> list[Any]:
        return [self.source, self.target, sorted(kind.__name__ for kind in self.on), "error"]


Jump = GotoEdge | ErrorEdge
"""An edge that is taken whatever the conditions of the others are."""


class CaughtError(NamedTuple):
    """The error that led to this node along an error edge: its parameter `error`, or `ctx.error`.

    It is what was stored of the exception, so that a node that is called again finds the same: the full name of its
    `type`, its `message`, the `node` that failed, after how many `attempts`, and the time `at`, in seconds.
    """

    type: str
    message: str
    node: str
    attempts: int
    at: float

    def __str__(self) -> str:
        name = self.type.rpartition(".")[2]
        if self.message:
            return f"{name}: {self.message}"
        return name


def read_goto(given: Any, function: Function | None, what: str) -> tuple[str, ...]:
    """The targets that a node declares: as `goto=[…]`, or by the annotation of its function.

    Raises `DefinitionError`.
    """
    if given is None:
        given = _annotated_targets(function)
    targets: list[Any] = [None]
    if isinstance(given, Iterable) and not isinstance(given, str):
        targets = list(given)
    if not all(isinstance(each, str) for each in targets):
        raise DefinitionError(f"{what}: goto must be a list of the names of nodes, or END, not {given!r}")
    return tuple(dict.fromkeys(targets))


def _annotated_targets(function: Function | None) -> list[Any]:
    """The targets in the annotation `-> Goto[Literal["a", "b"]]`, alone or in a union."""
    if function is None or function.return_hint is None:
        return []
    hint = _aliased(resolved_hint(function.call, function.return_hint))
    found: list[Any] = []
    for part in (hint, *map(_aliased, get_args(hint))):
        if get_origin(part) is Goto:
            for argument in map(_aliased, get_args(part)):
                if get_origin(argument) is Literal:
                    found += get_args(argument)
    return found


def _aliased(hint: Any) -> Any:
    """The type that an alias stands for, which was made by the `type` statement; any other as it is."""
    return getattr(hint, "__value__", hint)


def read_error_kinds(on: Any, what: str) -> tuple[type[Exception], ...]:
    """The exceptions of an error edge: a class, or a tuple of them. Raises `DefinitionError`."""
    kinds = on if isinstance(on, tuple) else (on,)
    if not kinds or not all(isinstance(kind, type) and issubclass(kind, Exception) for kind in kinds):
        raise DefinitionError(f"{what}: on must be an exception class or a tuple of them, not {on!r}")
    return kinds


def always(state: Mapping[str, Any]) -> bool:
    """Holds in any state."""
    return True


def key_exists(key: str) -> Predicate:
    """Holds when the state has `key`."""
    return _described(lambda state: key in state, f"key_exists({key!r})")


def key_equals(key: str, value: Any) -> Predicate:
    """Holds when the state has `key` and it equals `value`."""

    def holds(state: Mapping[str, Any]) -> bool:
        found = state.get(key, ABSENT)
        return found is not ABSENT and bool(found == value)

    return _described(holds, f"key_equals({key!r}, {value!r})")


def not_(predicate: Predicate) -> Predicate:
    """Holds when `predicate` doesn't."""
    return _described(lambda state: not predicate(state), f"not_({describe(predicate)})")


def and_(*predicates: Predicate) -> Predicate:
    """Holds when all of them do. They are called in order, up to the first that doesn't hold."""
    return _described(lambda state: all(each(state) for each in predicates), f"and_({_listed(predicates)})")


def or_(*predicates: Predicate) -> Predicate:
    """Holds when one of them does. They are called in order, up to the first that holds."""
    return _described(lambda state: any(each(state) for each in predicates), f"or_({_listed(predicates)})")


def describe(predicate: Predicate | None) -> str:
    """The description of a predicate; a user's function is just "custom"."""
    if predicate is None or predicate is always:
        return ""
    return getattr(predicate, "description", "custom")


def _described(predicate: Predicate, description: str) -> Predicate:
    predicate.description = description  # type: ignore[attr-defined]  # functions take attributes
    return predicate


def _listed(predicates: tuple[Predicate, ...]) -> str:
    return ", ".join(describe(each) for each in predicates)
