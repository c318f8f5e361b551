"""Every key that a file may have, the type of its value, and what it is for. A new key is added here.

Those under `config` are in `config_keys.py`, those under `schedules` in `schedule_keys.py`.

The loader checks files with these tables, the JSON Schema is generated from them, and tests hold the schema and the
reference (docs/reference/yaml.md) against them. What a key does is in `build/graph.py` and `build/workflow.py`. The
keys that each built-in action has under `with` are in `actions/builtin.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final

from limpet.yaml_files.actions.builtin import BUILT_IN, CHILD_GRAPH
from limpet.yaml_files.document import Value
from limpet.yaml_files.grammar.config_keys import GRAPH_CONFIG, LIMIT_NAMES, LIMITS, WORKFLOW_CONFIG
from limpet.yaml_files.grammar.mappings import Key, KeyedMapping, KeyRules, SharedType, TypeBySwitch
from limpet.yaml_files.grammar.mistakes import Mistakes
from limpet.yaml_files.grammar.schedule_keys import SCHEDULE
from limpet.yaml_files.grammar.shared_types import (
    DURATION,
    DURATION_OR_ZERO,
    EXCEPTION_NAME,
    EXPRESSION,
    FUNCTION,
    MODULE,
    NEW_NODE_NAME,
    NODE_NAME,
    NODE_NAMES,
    POSITIVE_INTEGER,
    REFERENCE,
    STATE_KEY_NAME,
    TASK_NAME,
)
from limpet.yaml_files.grammar.value_types import (
    AnyOf,
    AnyText,
    AnyValue,
    Boolean,
    ListOf,
    MapOf,
    Number,
    OneWordOf,
    PointInTime,
    Schema,
    Templated,
    Text,
    ValueType,
)

STATE_TYPES: Final = ("any", "bool", "bytes", "dict", "float", "int", "list", "set", "str", "tuple")
REDUCERS: Final = ("append", "merge", "add_messages")
NESTED_DECLARATION = SharedType("declaration", "a graph", lambda: _Declaration())

RETRY = KeyedMapping(
    "retry",
    "How often a node is tried, and how long it waits between attempts.",
    {
        "attempts": Key(POSITIVE_INTEGER, "How often it is tried, the first time included; 3 by default."),
        "backoff": Key(DURATION_OR_ZERO, "Seconds before the second attempt; 1 by default."),
        "factor": Key(
            Number("a number of at least 1", least=1),
            "What each further wait is multiplied by; 2 by default.",
        ),
        "max_delay": Key(DURATION_OR_ZERO, "The longest wait, in seconds; 60 by default."),
        "jitter": Key(
            Number("a share from 0 to 1", least=0, most=1),
            "The share by which a wait varies at random; 0.1 by default.",
        ),
        "on": Key(
            AnyOf(EXCEPTION_NAME, ListOf(EXCEPTION_NAME, "a list of names", 1)),
            "The exceptions after which it is tried again: built-in ones by name, others as module:Class; "
            "all by default.",
        ),
    },
    suggestions={"longest": "max_delay"},
)

STATE_KEY = KeyedMapping(
    "state key",
    "The properties of a key of the state.",
    {
        "type": Key(
            AnyOf(OneWordOf(*STATE_TYPES), REFERENCE), "Its type: a word, or a class as module:Class."
        ),
        "reducer": Key(
            AnyOf(OneWordOf(*REDUCERS), REFERENCE),
            "How an update is combined with the current value: append, merge, add_messages (by their ids), or a "
            "function as module:function.",
        ),
        "default": Key(AnyValue(), "Its value at the start of a run that gives none."),
        "description": Key(AnyText(), "What it is for."),
    },
)
STATE = AnyOf(
    MapOf(AnyOf(OneWordOf(*STATE_TYPES), REFERENCE, STATE_KEY), "a mapping of keys to types"),
    REFERENCE,
)

RENAMED_KEYS = MapOf(Text("a key, or a template"), "a mapping of new keys to old ones")

_EDGE_KEYS: Final[Mapping[str, Key]] = {
    "to": Key(NODE_NAME, "The node that follows; END ends the run."),
    "condition": Key(
        EXPRESSION, "The condition of this edge: the first edge whose condition is true is taken."
    ),
    "on": Key(
        AnyOf(EXCEPTION_NAME, ListOf(EXCEPTION_NAME, "a list of names", 1)),
        "An error edge: taken when the node has failed with one of these exceptions, which the next node handles.",
    ),
    "choose": Key(EXPRESSION, "An expression whose result decides what follows."),
    "cases": Key(
        AnyOf(
            MapOf(NODE_NAME, "a mapping of results to nodes", 1, any_scalar_keys=True),
            ListOf(NODE_NAME, "a list of nodes", 1),
        ),
        "The node for each result. Give a list, or leave it out, if the result is the node's name.",
    ),
    "delay": Key(
        DURATION_OR_ZERO,
        "Seconds before the next node begins, while no process holds the run; not before END.",
    ),
    "parallel": Key(
        ListOf(NODE_NAME, "a list of the nodes that branches begin at", 1),
        "The nodes at which branches begin, which run in parallel.",
    ),
    "each": Key(
        AnyOf(NODE_NAME, NESTED_DECLARATION),
        "A map: for each item, a branch that begins at this node, or runs this graph (inline, or a .yaml file).",
    ),
    "over": Key(
        Text("a key of the state, or a template"),
        "The items of a map: a key of the state, or a template that gives a list.",
    ),
    "item": Key(STATE_KEY_NAME, "The key under which a branch finds its item; item by default."),
    "max_concurrency": Key(POSITIVE_INTEGER, "How many branches of a map run at once, at most."),
    "inputs": Key(
        RENAMED_KEYS, "What a map's graph starts with: its key to a key of this graph, or a template."
    ),
    "outputs": Key(
        RENAMED_KEYS, "What the fan-in gets of it: a key of this graph to its key, or a template."
    ),
    "fan_in": Key(NODE_NAME, "The node that follows when all branches have ended."),
    "on_error": Key(
        OneWordOf("fail", "collect"),
        "What happens when a branch fails: the run fails, or the fan-in gets the error.",
    ),
}
_EDGE_RULES: Final = KeyRules(
    one_of=[("to", "choose", "parallel", "each")],
    at_most_one=[("condition", "on"), ("delay", "on")],
    needs=[
        ("condition", ("to",)),
        ("on", ("to",)),
        ("delay", ("to", "choose")),
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
    ],
)
_EDGE_SUGGESTIONS: Final = {
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

EDGE = KeyedMapping(
    "edge",
    "What may follow a node. Edges are tried in the order in which they are written.",
    {"from": Key(NODE_NAME, "The node before; START for the beginning.", required=True), **_EDGE_KEYS},
    _EDGE_RULES,
    _EDGE_SUGGESTIONS,
)
GOTO_EDGE = KeyedMapping("edge", "What may follow this node.", _EDGE_KEYS, _EDGE_RULES, _EDGE_SUGGESTIONS)
GOTO = AnyOf(NODE_NAME, GOTO_EDGE, ListOf(AnyOf(NODE_NAME, GOTO_EDGE), "a list of edges", 1))


def _same(value_type: ValueType) -> ValueType:
    return value_type


_ACTION_PARAMETERS: Final = {
    name: SharedType(f"with of {name}", "a mapping", partial(_same, action.parameters))
    for name, action in BUILT_IN.items()
    if action.parameters is not None
}
_WITH_BY_ACTION: Final = TypeBySwitch("uses", "with", _ACTION_PARAMETERS)

_WORK_KEYS: Final[Mapping[str, Key]] = {
    "run": Key(FUNCTION, "The function to call, as module:function."),
    "uses": Key(Text("the name of an action"), "The action to carry out."),
    "with": Key(MapOf(AnyValue(), "a mapping"), "The arguments of the action; texts may be templates."),
    "prompt": Key(
        AnyOf(Text("a question"), _ACTION_PARAMETERS["prompt"]),
        "A question that pauses the run until it is answered.",
    ),
    "receive": Key(
        AnyOf(Text("the name of a message"), _ACTION_PARAMETERS["receive"]),
        "A message to the run that the node takes, or waits for.",
    ),
    "sleep": Key(
        AnyOf(Templated(PointInTime()), _ACTION_PARAMETERS["sleep"]),
        "How long, or until when, to wait while no process holds the run.",
    ),
    "set": Key(
        MapOf(AnyValue(), "a mapping of names to values", 1),
        "Values to compute; texts may be templates. "
        "A node updates the state with them, for a task they are the result.",
    ),
    "start": Key(
        AnyOf(CHILD_GRAPH, _ACTION_PARAMETERS["start"]),
        "A run of another graph to start, as a child of this run: its graph, or a mapping.",
    ),
    "join": Key(
        AnyOf(
            Text("the id of a child run"),
            ListOf(Text("the id of a child run"), "a list of ids"),
            _ACTION_PARAMETERS["join"],
        ),
        "The child run to wait for, or a list of them: the ids that start gave.",
    ),
    "graph": Key(
        AnyOf(Text("the path of a .yaml file", r"\.ya?ml$"), NESTED_DECLARATION),
        "A graph or workflow to run inside: inline, or a .yaml file, by its path from this file.",
    ),
    "retry": Key(
        AnyOf(POSITIVE_INTEGER, RETRY), "How often it is tried: a number of attempts, or a mapping."
    ),
    "timeout": Key(DURATION, "How many seconds it may take."),
    "limits": Key(LIMIT_NAMES, "The limits of which each call needs a slot."),
    "description": Key(AnyText(), "What it is for."),
}
_KINDS_OF_WORK: Final = ("run", "uses", "prompt", "receive", "sleep", "set", "start", "join", "graph")

NODE = KeyedMapping(
    "node",
    "A node: what it does, and what follows it.",
    {
        "name": Key(NEW_NODE_NAME, "Its name.", required=True),
        **_WORK_KEYS,
        "output": Key(STATE_KEY_NAME, "The key of the state that gets the result of an action."),
        "inputs": Key(
            RENAMED_KEYS, "What its graph starts with: its key to a key of this graph, or a template."
        ),
        "outputs": Key(
            RENAMED_KEYS,
            "What its graph, or a joined child, gives back: a key of this graph to its key, or a template.",
        ),
        "interrupt": Key(
            AnyOf(
                OneWordOf("before", "after"),
                ListOf(OneWordOf("before", "after"), "a list of before and after", 1),
            ),
            "Where the run stops at this node until it is resumed.",
        ),
        "goto": Key(GOTO, "What follows it, in place of edges."),
        "goto_targets": Key(NODE_NAMES, "The nodes that its function may go to by returning a Goto; or END."),
    },
    KeyRules(
        at_most_one=[_KINDS_OF_WORK, ("output", "outputs")],
        needs=[
            ("with", ("uses",)),
            ("output", ("uses", "prompt", "receive", "start", "join")),
            ("inputs", ("graph",)),
            ("outputs", ("graph", "start", "join")),
            ("goto_targets", ("run",)),
        ],
        type_by_switch=_WITH_BY_ACTION,
    ),
    suggestions={
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
)

_DEPENDENCIES = AnyOf(
    ListOf(TASK_NAME, "a list of the names of tasks"),
    MapOf(TASK_NAME, "a mapping of parameters to tasks"),
)
_TASK_OPTIONS: Final[Mapping[str, Key]] = {
    "condition": Key(EXPRESSION, "An expression; if it doesn't hold, the task is skipped."),
    "safe_to_fail": Key(Boolean(), "Whether the run continues when the task has failed."),
}
TASK = KeyedMapping(
    "task",
    "A task of a workflow: what it does, and what it depends on.",
    {
        "name": Key(
            Text("a name without '/'", r"^[^/]+$"), "The name of it and of its result.", required=True
        ),
        **_WORK_KEYS,
        "depends_on": Key(
            _DEPENDENCIES,
            "The tasks whose results it needs; without it, those that its function's parameters or its templates "
            "name.",
        ),
        "optional": Key(_DEPENDENCIES, "The tasks that it waits for, and whose results it can do without."),
        **_TASK_OPTIONS,
        "arguments": Key(MapOf(AnyValue(), "a mapping"), "Further arguments of its function or graph."),
    },
    KeyRules(
        one_of=[_KINDS_OF_WORK],
        needs=[("with", ("uses",)), ("arguments", ("run", "graph"))],
        type_by_switch=_WITH_BY_ACTION,
    ),
    suggestions={
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
)

TEMPLATE = KeyedMapping(
    "template",
    "The code of tasks that runs add: `ctx.add_task(…, run=name)`.",
    {
        "name": Key(Text("a name without '/'", r"^[^/]+$"), "Its name.", required=True),
        **_WORK_KEYS,
        **_TASK_OPTIONS,
    },
    KeyRules(one_of=[_KINDS_OF_WORK], needs=[("with", ("uses",))], type_by_switch=_WITH_BY_ACTION),
    suggestions={"id": "name", "function": "run", "action": "uses", "if": "condition", "when": "condition"},
)

_TOP_KEYS: Final[Mapping[str, Key]] = {
    "name": Key(Text("a text"), "Its name; by default, the file's name without its suffix."),
    "description": Key(AnyText(), "What it is for."),
    "imports": Key(
        ListOf(MODULE, "a list of modules"),
        "Modules that are imported first, because they register actions or types.",
    ),
    "resources": Key(
        MapOf(REFERENCE, "a mapping of names to references"),
        "Live objects for functions that name them as parameters: each an object or a factory, as module:name.",
    ),
    "schedules": Key(
        ListOf(SharedType("schedule", "a mapping", lambda: SCHEDULE), "a list of schedules"),
        "When its runs start by themselves.",
    ),
    "limits": Key(LIMITS, "The values of limits, by name. One that isn't here is declared elsewhere."),
}

GRAPH = KeyedMapping(
    "graph",
    "A graph: nodes, and what follows each.",
    {
        **_TOP_KEYS,
        "state": Key(STATE, "The keys of the state, each with its type; or a class as module:Class."),
        "state_schema": Key(STATE, "Another spelling of state."),
        "nodes": Key(ListOf(NODE, "a list of nodes", 1), "The nodes.", required=True),
        "edges": Key(
            ListOf(EDGE, "a list of edges"),
            "What follows what. Without edges and goto, nodes follow each other in the order of the list.",
        ),
        "entry": Key(
            NODE_NAME,
            "The node that runs first; by default the first one in the list, unless an edge leads from START.",
        ),
        "finish": Key(AnyOf(NODE_NAME, NODE_NAMES), "The nodes after which the run may end."),
        "config": Key(GRAPH_CONFIG, "How it is run and saved."),
    },
    KeyRules(at_most_one=[("state", "state_schema")]),
    suggestions={
        "entry_point": "entry",
        "start": "entry",
        "exit": "finish",
        "end": "finish",
        "steps": "nodes",
        "settings": "config",
        "schema": "state",
    },
    free_prefix="x-",
)
WORKFLOW = KeyedMapping(
    "workflow",
    "A workflow: tasks, and what each depends on.",
    {
        **_TOP_KEYS,
        "tasks": Key(ListOf(TASK, "a list of tasks", 1), "The tasks.", required=True),
        "templates": Key(
            ListOf(TEMPLATE, "a list of templates"), "The code of tasks that runs add while they run."
        ),
        "after_layer": Key(
            FUNCTION, "The function to call after each layer, as module:function; it may add and skip tasks."
        ),
        "config": Key(WORKFLOW_CONFIG, "How it is run and saved."),
    },
    free_prefix="x-",
)

_SHARED_GRAPH = SharedType("graph", "a graph", lambda: GRAPH)
_SHARED_WORKFLOW = SharedType("workflow", "a workflow", lambda: WORKFLOW)


class _Declaration(ValueType):
    """A workflow if it has tasks, else a graph."""

    expected = "a mapping that declares a graph or a workflow"

    def accepts(self, value: Value) -> bool:
        return isinstance(value.data, dict)

    def check(self, value: Value, what: str, mistakes: Mistakes) -> None:
        if not self.accepts(value):
            self._note_mismatch(value, what, mistakes)
        elif value.get("tasks") is not None:
            WORKFLOW.check(value, "a workflow", mistakes)
        else:
            GRAPH.check(value, "a graph", mistakes)

    def schema(self) -> Schema:
        return {
            "if": {"type": "object", "required": ["tasks"]},
            "then": {"$ref": f"#/definitions/{_SHARED_WORKFLOW.name}"},
            "else": {"$ref": f"#/definitions/{_SHARED_GRAPH.name}"},
        }


DECLARATION: Final[ValueType] = _Declaration()
"""What a whole file may contain."""
