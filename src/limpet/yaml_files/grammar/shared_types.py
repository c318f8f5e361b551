"""The types of values that several keys of a file share."""

from __future__ import annotations

from typing import Final

from limpet.yaml_files.build.references import REFERENCE_PATTERN
from limpet.yaml_files.grammar.value_types import AnyOf, Integer, ListOf, Null, Number, Text

BOUNDARY_NAMES: Final = ("START", "END", "__start__", "__end__")
"""The names of the beginning and the end of a run, which no node can have."""

FUNCTION = Text("a function as module:function (code is in modules, not in the file)", REFERENCE_PATTERN)
REFERENCE = Text("a reference as module:name", REFERENCE_PATTERN)
MODULE = Text("the name of a module", r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$")
NEW_NODE_NAME = Text("a name without '/', and not START or END", rf"^(?!({'|'.join(BOUNDARY_NAMES)})$)[^/]+$")
NODE_NAME = Text("the name of a node")
TASK_NAME = Text("the name of a task")
EXCEPTION_NAME = Text("the name of an exception")
STATE_KEY_NAME = Text("a key of the state")
NODE_NAMES = ListOf(NODE_NAME, "a list of the names of nodes")
EXPRESSION = Text("an expression")
DURATION = Number("a number of seconds above 0", above=0)
DURATION_OR_ZERO = Number("a number of seconds", least=0)
POSITIVE_INTEGER = Integer("a whole number of at least 1", least=1)
POSITIVE_INTEGER_OR_NULL = AnyOf(POSITIVE_INTEGER, Null())
