"""Every key that a file may have, what may be under it, and what it is for.

The loader checks with these tables, the JSON Schema for editors is made of them, and a test holds the reference
against them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final

from limpet.yaml_files.actions.builtin import BUILT_IN
from limpet.yaml_files.build.references import REFERENCE
from limpet.yaml_files.document import Value
from limpet.yaml_files.grammar.mappings import Field, Record, Shared
from limpet.yaml_files.grammar.mistakes import Mistakes
from limpet.yaml_files.grammar.value_types import (
    AnyText,
    Anything,
    Flag,
    Kind,
    ListOf,
    MapOf,
    Number,
    OneOf,
    Schema,
    Text,
    Whole,
    Word,
)

TYPES: Final = ("any", "bool", "bytes", "dict", "float", "int", "list", "set", "str", "tuple")
REDUCERS: Final = ("append", "merge")
ENDS: Final = ("START", "END", "__start__", "__end__")
"""What stands for the beginning and the end of a run, so that no node can be called that."""

CODE = Text(
    "a function as module:function (code is in modules, not in the file)",
    REFERENCE,
)
REFERRED = Text("a reference as module:name", REFERENCE)
MODULE = Text("the name of a module", r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$")
NODE_NAME = Text("a name without '/', and not START or END", rf"^(?!({'|'.join(ENDS)})$)[^/]+$")
TARGET = Text("the name of a node")
KEY = Text("a key of the state")
NAMES = ListOf(TARGET, "a list of the names of nodes")
EXPRESSION = Text("an expression")
SECONDS = Number("a number of seconds above 0", above=0)
FROM_ONE = Whole("a whole number from 1", least=1)

DECLARED = Shared("declaration", "a graph", lambda: _Declaration())

RETRY = Record(
    "retry",
    "How often a node is tried, and how long is waited in between.",
    {
        "attempts": Field(FROM_ONE, "How often it is tried, the first time included; 3 if not given."),
        "backoff": Field(Number("a number of seconds", least=0), "Seconds before the second attempt; 1."),
        "factor": Field(Number("a number from 1", least=1), "What each further wait is multiplied by; 2."),
        "max_delay": Field(Number("a number of seconds", least=0), "The longest wait, in seconds; 60."),
        "jitter": Field(
            Number("a share from 0 to 1", least=0, most=1), "The share by which a wait varies; 0.1."
        ),
        "on": Field(
            OneOf(
                Text("the name of an exception"),
                ListOf(Text("the name of an exception"), "a list of names", 1),
            ),
            "The exceptions that are tried again: built-in ones by name, others as module:Class; all.",
        ),
    },
)
RETRIES = OneOf(FROM_ONE, RETRY)

STATE_KEY = Record(
    "state key",
    "What is known of a key of the state.",
    {
        "type": Field(OneOf(Word(*TYPES), REFERRED), "Its type: a word, or a class as module:Class."),
        "reducer": Field(
            OneOf(Word(*REDUCERS), REFERRED),
            "How an update is combined with what is there: append, merge, or a function as module:function.",
        ),
        "default": Field(Anything(), "What it is at the start of a run that doesn't give it."),
        "description": Field(AnyText(), "What it is for."),
    },
)
STATE = OneOf(
    MapOf(OneOf(Word(*TYPES), REFERRED, STATE_KEY), "a mapping of keys to types"),
    REFERRED,
)

PASSING = MapOf(Text("a key, or a template"), "a mapping of new keys to old ones")
GRAPH_INSIDE = OneOf(Text("the path of a .yaml file", r"\.ya?ml$"), DECLARED)

_WAYS: Final[Mapping[str, Field]] = {
    "to": Field(TARGET, "The node that follows; END ends the run."),
    "condition": Field(
        EXPRESSION, "When it does, as an expression: the first way whose condition holds is taken."
    ),
    "choose": Field(EXPRESSION, "An expression whose result says what follows."),
    "cases": Field(
        OneOf(
            MapOf(TARGET, "a mapping of results to nodes", 1, scalars=True),
            ListOf(TARGET, "a list of nodes", 1),
        ),
        "The node for each result; a list, or nothing, if the result is the node's name.",
    ),
    "parallel": Field(
        ListOf(TARGET, "a list of the nodes that branches begin at", 1),
        "Nodes that branches begin at, beside each other.",
    ),
    "each": Field(
        OneOf(TARGET, DECLARED),
        "A map: the node that a branch begins at for each item, or a graph (inline, or a .yaml file).",
    ),
    "over": Field(
        Text("a key of the state, or a template"),
        "What a map goes over: a key of the state, or a template that gives a list.",
    ),
    "item": Field(KEY, "The key that a branch finds its item under; item."),
    "max_concurrency": Field(FROM_ONE, "How many branches of a map are under way at once, at most."),
    "inputs": Field(PASSING, "What a map's graph starts with: its key to ours, or a template."),
    "outputs": Field(PASSING, "What the fan-in gets of it: our key to its key, or a template."),
    "fan_in": Field(TARGET, "The node that comes when all branches have ended."),
    "on_error": Field(
        Word("fail", "collect"), "What a branch that fails does: fail the run, or leave it to the fan-in."
    ),
}
_WAY_NEEDS: Final = (
    ("condition", ("to",)),
    ("cases", ("choose",)),
    ("parallel", ("fan_in",)),
    ("fan_in", ("parallel", "each")),
    ("each", ("over",)),
    ("over", ("each",)),
    ("item", ("each",)),
    ("max_concurrency", ("each",)),
    ("inputs", ("each",)),
    ("outputs", ("each",)),
    ("on_error", ("parallel", "each")),
    ("each", ("fan_in",)),
)
_WAY_ALSO: Final = {
    "if": "condition",
    "when": "condition",
    "target": "to",
    "source": "from",
    "predicate": "condition",
    "fanin": "fan_in",
    "map": "each",
    "then": "to",
    "type": "parallel",
}
_WAY_KINDS: Final = (("to", "choose", "parallel", "each"),)

EDGE = Record(
    "edge",
    "What may follow a node. Ways are tried in the order in which they are written.",
    {"from": Field(TARGET, "The node before; START for the beginning.", required=True), **_WAYS},
    one_of=_WAY_KINDS,
    needs=_WAY_NEEDS,
    also=_WAY_ALSO,
)
WAY = Record("way", "What may follow this node.", _WAYS, one_of=_WAY_KINDS, needs=_WAY_NEEDS, also=_WAY_ALSO)
GOTO = OneOf(TARGET, WAY, ListOf(OneOf(TARGET, WAY), "a list of ways", 1))


def _of(kind: Kind) -> Kind:
    return kind


_PARAMETERS: Final = {
    name: Shared(f"with of {name}", "a mapping", partial(_of, action.parameters))
    for name, action in BUILT_IN.items()
    if action.parameters is not None
}

PROMPT = OneOf(Text("a question"), _PARAMETERS["prompt"])
_WITH = MapOf(Anything(), "a mapping")
_WORK: Final[Mapping[str, Field]] = {
    "run": Field(CODE, "The function that it calls, as module:function."),
    "uses": Field(Text("the name of an action"), "The action that it carries out."),
    "with": Field(_WITH, "What the action is given; texts may be templates."),
    "prompt": Field(PROMPT, "A question that pauses the run until somebody answers."),
    "graph": Field(
        GRAPH_INSIDE, "A graph or workflow that runs inside: inline, or a .yaml file beside this one."
    ),
    "retry": Field(RETRIES, "How often it is tried: a number of attempts, or a mapping."),
    "timeout": Field(SECONDS, "How many seconds it may take."),
    "description": Field(AnyText(), "What it is for."),
}
_WORK_KINDS: Final = ("run", "uses", "prompt", "graph")


def _with_kinds() -> Mapping[str, Mapping[str, Kind]]:
    return {"uses with": _PARAMETERS}


NODE = Record(
    "node",
    "A node: what it does, and what follows it.",
    {
        "name": Field(NODE_NAME, "What it is called.", required=True),
        **_WORK,
        "output": Field(KEY, "The key of the state that gets the result of an action or prompt."),
        "inputs": Field(PASSING, "What its graph starts with: its key to ours, or a template."),
        "outputs": Field(PASSING, "What its graph gives back: our key to its key, or a template."),
        "interrupt": Field(
            OneOf(Word("before", "after"), ListOf(Word("before", "after"), "a list of before and after", 1)),
            "Where the run stops at this node until it is resumed.",
        ),
        "goto": Field(GOTO, "What follows it, in place of edges."),
    },
    at_most_one=[_WORK_KINDS],
    needs=[
        ("with", ("uses",)),
        ("output", ("uses", "prompt")),
        ("inputs", ("graph",)),
        ("outputs", ("graph",)),
    ],
    also={
        "id": "name",
        "function": "run",
        "action": "uses",
        "next": "goto",
        "edges": "goto",
        "args": "with",
        "params": "with",
        "outputs_to": "output",
        "result": "output",
    },
    details=_with_kinds,
)

_DEPENDENCIES = OneOf(
    ListOf(Text("the name of a task"), "a list of the names of tasks"),
    MapOf(Text("the name of a task"), "a mapping of parameters to tasks"),
)
TASK = Record(
    "task",
    "A task of a workflow: what it does, and what it depends on.",
    {
        "name": Field(
            Text("a name without '/'", r"^[^/]+$"), "What it and its result are called.", required=True
        ),
        **_WORK,
        "depends_on": Field(_DEPENDENCIES, "The tasks that it needs the results of."),
        "optional": Field(_DEPENDENCIES, "The tasks that it waits for, and whose results it can do without."),
        "condition": Field(EXPRESSION, "An expression; where it doesn't hold, the task is skipped."),
        "safe_to_fail": Field(Flag(), "Whether the run goes on when it has failed."),
        "arguments": Field(MapOf(Anything(), "a mapping"), "What its function, or graph, takes besides."),
    },
    one_of=[_WORK_KINDS],
    needs=[("with", ("uses",)), ("arguments", ("run", "graph"))],
    also={
        "id": "name",
        "function": "run",
        "action": "uses",
        "needs": "depends_on",
        "dependencies": "depends_on",
        "after": "depends_on",
        "if": "condition",
        "when": "condition",
        "args": "arguments",
    },
    details=_with_kinds,
)

_CONFIG: Final[Mapping[str, Field]] = {
    "store": Field(
        Text("the name, URL or file of a store"), "Where runs are kept: a URL, a name, or a file."
    ),
    "checkpoint": Field(
        Text("the path of a checkpoint file, or the id of a checkpoint"),
        "Where runs go on from, instead of starting anew: a checkpoint file, or a checkpoint's id.",
    ),
    "preserve": Field(Flag(), "Whether what is saved of a run stays when it has completed."),
    "keep": Field(FROM_ONE, "How many of a run's newest checkpoints can be gone back to, at least."),
    "lease": Field(SECONDS, "Seconds until another process may take over a run whose process is silent; 10."),
    "max_concurrency": Field(FROM_ONE, "How many nodes or tasks of a run are called at once, at most; 32."),
    "on_save_error": Field(Word("fail", "continue"), "What a save that fails does to the run."),
    "observers": Field(
        ListOf(Text("the name of an observer"), "a list of names"), "Who watches: log, progress, …."
    ),
}

GRAPH_CONFIG = Record(
    "config",
    "How the graph is run and saved.",
    {
        **_CONFIG,
        "checkpoint_dir": Field(
            Text("the path of a directory"), "Where a checkpoint file is written whenever a run stops."
        ),
        "interval": Field(Whole("a whole number from 0", least=0), "After how many nodes a run is saved; 1."),
        "interrupt_before": Field(NAMES, "Nodes before which a run stops until it is resumed."),
        "interrupt_after": Field(NAMES, "Nodes after which it does."),
        "max_iterations": Field(FROM_ONE, "How many nodes a run may complete; 1000."),
    },
)
WORKFLOW_CONFIG = Record(
    "config",
    "How the workflow is run and saved.",
    {
        **_CONFIG,
        "on_mismatch": Field(
            Word("fail", "warn"), "What becomes of a run whose tasks aren't those of the file any more."
        ),
        "max_layers": Field(FROM_ONE, "How many layers a run may have; 10000."),
    },
)

_TOP: Final[Mapping[str, Field]] = {
    "name": Field(Text("a text"), "What it is called; the file's name without its ending, if not given."),
    "description": Field(AnyText(), "What it is for."),
    "imports": Field(
        ListOf(MODULE, "a list of modules"),
        "Modules that are imported first, as they register actions or types.",
    ),
}

GRAPH = Record(
    "graph",
    "A graph: nodes, and what follows each.",
    {
        **_TOP,
        "state": Field(STATE, "The keys of the state, each with its type; or a class as module:Class."),
        "state_schema": Field(STATE, "Another spelling of state."),
        "nodes": Field(ListOf(NODE, "a list of nodes", 1), "The nodes.", required=True),
        "edges": Field(
            ListOf(EDGE, "a list of edges"),
            "What follows what. Without any, and without goto, nodes follow each other as they are listed.",
        ),
        "entry": Field(
            TARGET,
            "The node that runs first; the one that is listed first, unless an edge leads there from START.",
        ),
        "finish": Field(OneOf(TARGET, NAMES), "The nodes after which the run may end."),
        "config": Field(GRAPH_CONFIG, "How it is run and saved."),
    },
    open_to="x-",
    at_most_one=[("state", "state_schema")],
    also={
        "entry_point": "entry",
        "start": "entry",
        "exit": "finish",
        "end": "finish",
        "steps": "nodes",
        "settings": "config",
        "schema": "state",
    },
)
WORKFLOW = Record(
    "workflow",
    "A workflow: tasks, and what each depends on.",
    {
        **_TOP,
        "tasks": Field(ListOf(TASK, "a list of tasks", 1), "The tasks.", required=True),
        "config": Field(WORKFLOW_CONFIG, "How it is run and saved."),
    },
    open_to="x-",
)


class _Declaration(Kind):
    """A workflow where there are tasks, else a graph."""

    says = "a mapping that declares a graph or a workflow"

    def takes(self, value: Value) -> bool:
        return isinstance(value.data, dict)

    def check(self, value: Value, what: str, mistakes: Mistakes) -> None:
        if not isinstance(value.data, dict):
            super().check(value, what, mistakes)
        elif value.get("tasks") is not None:
            WORKFLOW.check(value, "a workflow", mistakes)
        else:
            GRAPH.check(value, "a graph", mistakes)

    def schema(self) -> Schema:
        return {
            "if": {"type": "object", "required": ["tasks"]},
            "then": {"$ref": "#/definitions/workflow"},
            "else": {"$ref": "#/definitions/graph"},
        }


DECLARATION: Final[Kind] = _Declaration()
_ = (Shared("graph", "a graph", lambda: GRAPH), Shared("workflow", "a workflow", lambda: WORKFLOW))
