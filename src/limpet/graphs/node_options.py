"""The options of a node: what `add_node` takes, read and checked.

A new option is a parameter of `add_node` (`builder.py`), a field of `NodeOptions` here and a field of `PlanNode`
(`plan.py`), which the engine sees. Its key in YAML files is in `yaml_files/grammar/keys.py`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from limpet.errors import DefinitionError
from limpet.graphs.edges import END, START
from limpet.graphs.parameters import Function
from limpet.graphs.plan import PLANNER
from limpet.graphs.retry import Retry


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
