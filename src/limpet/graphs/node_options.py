"""The options of a node: what `add_node` takes, read and checked.

A new option is a parameter of `add_node` (`builder.py`), a field of `NodeOptions` here and a field of `PlanNode`
(`plan.py`), which the engine sees. Its key in YAML files is in `yaml_files/grammar/keys.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from limpet.errors import DefinitionError, UsageError
from limpet.graphs.edges import END, START
from limpet.graphs.limits import Limit
from limpet.graphs.parameters import Function
from limpet.graphs.plan import PLANNER
from limpet.graphs.retry import Retry

if TYPE_CHECKING:
    from limpet.graphs.parallel import InnerGraph

LimitLike = Limit | str
"""A limit, or the name of one that is declared elsewhere."""


class InnerGraphSpec(NamedTuple):
    """A graph inside of another, as the user gave it: it has `name` and `_plan_inside`."""

    graph: Any
    inputs: Any
    outputs: Any


class NodeOptions(NamedTuple):
    """A node as it was added to a graph. It has a function or an inner graph, or does nothing."""

    name: str
    function: Function | None
    retry: Retry | None
    timeout: float | None
    inner: InnerGraphSpec | None = None
    limits: tuple[Limit, ...] = ()


def check_node_name(name: Any, graph: str) -> str:
    """The name of a new node. Raises `DefinitionError` if it can't be one."""
    if not isinstance(name, str) or not name or not name.isprintable() or name in (START, END):
        raise DefinitionError(f"a node's name must be a printable str, not START or END: {name!r}", graph)
    if name == PLANNER:
        # Records have the names of nodes alone. Of a node with this name they would be read as those of a workflow.
        raise DefinitionError(
            f"a node can't be named {PLANNER!r}: that is the name of the step between the layers of a workflow",
            graph,
        )
    if "/" in name:
        raise DefinitionError(
            f"a node's name can't contain '/', which separates the nodes of inner graphs: {name!r}", graph
        )
    return name


def read_limits(given: Any, what: str) -> tuple[Limit, ...]:
    """The `limits` of a node, a task or a graph: objects, or names of limits. Raises `DefinitionError`.

    None means no limits, as it does for other options.
    """
    if given is None:
        return ()
    if isinstance(given, (str, Limit)) or not isinstance(given, Iterable):
        raise DefinitionError(
            f"{what}: limits is a list of limits and names, not {given!r}: write [{given!r}]"
        )
    found = []
    for each in given:
        try:
            found.append(each if isinstance(each, Limit) else Limit(each))
        except UsageError as problem:
            raise DefinitionError(f"{what}: {problem.message}") from None
    return tuple(found)


def names_of_limits(limits: Iterable[Limit], inner: InnerGraph | None, what: str) -> list[str]:
    """The names of the limits of a node. Raises `DefinitionError` if a graph that it runs would wait for them.

    The node has its slots while the graph runs, so that graph could wait for its own.
    """
    names = [limit.name for limit in limits]
    if inner is not None:
        for limit in inner.plan.limits:
            if limit.name in names:
                raise DefinitionError(
                    f"{what} has the limit {limit.name!r}, and so has a node of the graph {inner.plan.name!r} "
                    "that it runs, which would wait for a slot that the first has: name the limit in one place"
                )
    return names


class HasLimits(Protocol):
    """A node or a task, as it was added to a graph or a workflow."""

    @property
    def limits(self) -> tuple[Limit, ...]: ...


def limits_of_all(nodes: Iterable[HasLimits], inner: Iterable[InnerGraph]) -> tuple[Limit, ...]:
    """The limits of nodes, and of the graphs that they run, each once. Raises `DefinitionError` if two contradict."""
    return merged_limits(
        each for owner in (*nodes, *(graph.plan for graph in inner)) for each in owner.limits
    )


def merged_limits(limits: Iterable[Limit]) -> tuple[Limit, ...]:
    """Limits by name, each once. Raises `DefinitionError` if two contradict."""
    found: dict[str, Limit] = {}
    for limit in limits:
        known = found.setdefault(limit.name, limit)
        if not known.has_values:
            found[limit.name] = limit
        elif limit.has_values and limit != known:
            raise DefinitionError(
                f"the limit {limit.name!r} is declared with different values: declare it once, and name it elsewhere"
            )
    return tuple(found[name] for name in sorted(found))


def names_inside(name: str, paths: list[str]) -> list[str]:
    """The interrupts inside of the graph that a node runs, of all that are given as paths."""
    prefix = f"{name}/"
    return [path.removeprefix(prefix) for path in paths if path.startswith(prefix)]


def interrupt_names(kind: str, given: Iterable[str] | None) -> list[str]:
    """The nodes of `interrupt_before` or `interrupt_after` as a list. Raises `DefinitionError` for a str."""
    if isinstance(given, str):
        raise DefinitionError(f"{kind} must be a list of node names, not one str: write [{given!r}]")
    return list(given or ())
