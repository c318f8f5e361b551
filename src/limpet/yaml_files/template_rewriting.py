"""Makes a template ask for what Jinja2 compiles to plain Python: loops, output, `~`, comparisons, new lists.

Jinja2's sandbox sees calls and operators only. So calls of our own filters are put around the other parts of the
syntax tree, before it is compiled. `template_limits.py` says what is allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from limpet.yaml_files.template_limits import (
    charge,
    checked_items,
    checked_text,
    count_output,
    item_count,
    text_size,
    weigh,
)


def bounded(tree: Any) -> Any:
    """The same template with calls of our filters around what Jinja2 compiles to plain Python."""
    from jinja2 import nodes
    from jinja2.visitor import NodeTransformer

    def call(name: str, value: Any) -> Any:
        return nodes.Filter(value, name, [], [], None, None, lineno=tree.lineno)

    def statement(name: str, size: int) -> Any:
        return nodes.ExprStmt(call(name, nodes.Const(size)), lineno=tree.lineno)

    class Bounding(NodeTransformer):
        def visit_For(self, node: Any) -> Any:
            self.generic_visit(node)
            node.body.insert(0, statement("_charge", 0))
            if node.test is not None:
                node.test = nodes.And(call("_charge", nodes.Const(0)), node.test)
            return node

        def visit_Output(self, node: Any) -> Any:
            self.generic_visit(node)
            constant = sum(len(each.data) for each in node.nodes if isinstance(each, nodes.TemplateData))
            node.nodes = [
                each if isinstance(each, nodes.TemplateData) else call("_output", each) for each in node.nodes
            ]
            return [statement("_constant", constant), node]

        def visit_Concat(self, node: Any) -> Any:
            self.generic_visit(node)
            return call("_concatenated", nodes.List(node.nodes))

        def visit_Compare(self, node: Any) -> Any:
            self.generic_visit(node)
            node.expr = call("_weigh", node.expr)
            for operand in node.ops:
                operand.expr = call("_weigh", operand.expr)
            return node

        def visit_Getitem(self, node: Any) -> Any:
            self.generic_visit(node)
            if isinstance(node.arg, nodes.Slice):
                node.node = call("_weigh", node.node)
            return node

        def visit_container(self, node: Any) -> Any:
            self.generic_visit(node)
            if getattr(node, "ctx", "load") != "load":  # a tuple of names that are assigned to
                return node
            return call("_new", node)

        visit_List = visit_Tuple = visit_Dict = visit_container

    return Bounding().visit(tree)


def output_text(value: Any) -> str:
    """A value as a part of the resulting text."""
    if not isinstance(value, str):
        checked_text(text_size(value))
        value = str(value)
    count_output(len(value))
    return str(value)


def concatenated(values: list[Any]) -> str:
    """What `~` gives: the values as one text."""
    known: dict[int, int] = {}
    checked_text(sum(text_size(value, known) for value in values))
    return "".join(map(str, values))


def new_container(value: Any) -> Any:
    """A list, tuple or dict that a template makes. One that contains another many times counts it each time."""
    checked_items(item_count(value))
    return value


OWN_FILTERS: Final[Mapping[str, Callable[..., Any]]] = {
    "_charge": charge,
    "_constant": count_output,
    "_weigh": weigh,
    "_output": output_text,
    "_concatenated": concatenated,
    "_new": new_container,
}
"""The filters that `bounded` puts into templates."""
