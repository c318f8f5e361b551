"""The built-in actions and the keys of each under `with`. What an action does is in the module that it refers to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from limpet.yaml_files.actions.registry import Action
from limpet.yaml_files.build.references import REFERENCE_PATTERN
from limpet.yaml_files.grammar.mappings import Key, KeyedMapping, KeyRules
from limpet.yaml_files.grammar.value_types import (
    AnyOf,
    AnyText,
    AnyValue,
    Boolean,
    Integer,
    ListOf,
    MapOf,
    NotTemplated,
    Number,
    OneWordOf,
    PointInTime,
    Templated,
    Text,
)

HTTP_METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
ANSWER_TYPES: Final = ("str", "int", "float", "bool", "list", "dict")

CHILD_GRAPH: Final = NotTemplated(
    Text("the path of a .yaml file, or a graph as module:graph", rf"\.ya?ml$|{REFERENCE_PATTERN}"),
    "the file names the code, not the state",
)

_PATH = Templated(Text("a path"))
_ROOT = Key(
    Templated(Text("a directory")),
    "The directory that a path made from data must stay in; by default what the path begins with, or the working "
    "directory. A template may only use env.",
)
_DURATION = Templated(Number("a number of seconds above 0", above=0))
_PROGRAM = NotTemplated(Text("the name of a program"), "the file says which program runs, not the state")
_SCRIPT = NotTemplated(Text("a text for the shell"), 'pass data by env, and write "$NAME" in the script')
_FUNCTION = NotTemplated(
    Text("a function as module:function", REFERENCE_PATTERN), "the file names the code, not the state"
)
_TEXT_OR_NUMBER = AnyOf(AnyText(), Number("a number"))
_RUN_ID = Text("the id of a run")
_SCHEMA = Templated(
    AnyOf(
        OneWordOf(*ANSWER_TYPES),
        Text("a class as module:Class", REFERENCE_PATTERN),
        MapOf(AnyValue(), "a JSON Schema"),
    )
)
_NUMBER = Templated(Number("a number of at least 0", least=0))

_CHECKPOINT_SAVE = KeyedMapping(
    "checkpoint.save",
    "Write the state to a checkpoint file; a resume from it runs this node, or the one that `node` names.",
    {
        "path": Key(_PATH, "The file; its directories are created.", required=True),
        "root": _ROOT,
        "node": Key(
            Text("the name of a node"), "The node that a resume from the file runs; this one by default."
        ),
    },
)
_CHECKPOINT_LOAD = KeyedMapping(
    "checkpoint.load",
    "Read a checkpoint file: its state, node, config, timestamp and version.",
    {"path": Key(_PATH, "The file.", required=True), "root": _ROOT},
)
_PROMPT = KeyedMapping(
    "prompt",
    "Pause the run until the question is answered; the answer is the result.",
    {
        "text": Key(Templated(Text("a question")), "The question.", required=True),
        "choices": Key(Templated(ListOf(AnyValue(), "a list of answers", 1)), "The possible answers."),
        "schema": Key(_SCHEMA, "The type of the answer: a word, a class, or its JSON Schema."),
        "key": Key(
            Text("a word", r"\D"), "The question's key, which tells it from other questions of the node."
        ),
        "deadline": Key(Templated(PointInTime()), "Until when it can be answered; without it, at any time."),
        "default": Key(
            AnyValue(), "The result after the deadline; without it, the node fails with DeadlinePassed."
        ),
        "secret": Key(Boolean(), "Whether the answer is secret, and masked wherever it would be shown."),
    },
    KeyRules(needs=[("default", ("deadline",))]),
    suggestions={
        "prompt": "text",
        "question": "text",
        "message": "text",
        "options": "choices",
        "timeout": "deadline",
    },
)
_RECEIVE = KeyedMapping(
    "receive",
    "Take the oldest message of a name that was sent to the run, or wait for one; its value is the result.",
    {
        "name": Key(Templated(Text("the name of a message")), "The name of the message.", required=True),
        "schema": Key(
            _SCHEMA,
            "The type of the value: a word, a class, or its JSON Schema; the node fails if it doesn't fit.",
        ),
        "deadline": Key(
            Templated(PointInTime()), "Until when to wait; 0 takes a message only if there is one."
        ),
        "default": Key(
            AnyValue(), "The result after the deadline; without it, the node fails with DeadlinePassed."
        ),
    },
    KeyRules(needs=[("default", ("deadline",))]),
    suggestions={"message": "name", "text": "name", "from": "name", "timeout": "deadline"},
)
_SLEEP = KeyedMapping(
    "sleep",
    "Wait, while no process holds the run.",
    {
        "time": Key(Templated(PointInTime()), "How long, or until when.", required=True),
    },
    suggestions={"duration": "time", "seconds": "time", "until": "time", "for": "time"},
)
_START = KeyedMapping(
    "start",
    "Start a run of another graph, a child of this run; the result is its id, or with `join` its final state.",
    {
        "graph": Key(
            CHILD_GRAPH,
            "The graph: a .yaml file, by its path from this file, or module:graph.",
            required=True,
        ),
        "input": Key(
            Templated(MapOf(AnyValue(), "a mapping of names to values")),
            "What it starts with: its state, or the inputs of a workflow; empty by default.",
        ),
        "join": Key(Boolean(), "Whether to wait until it has ended; false by default."),
        "config": Key(Templated(MapOf(AnyValue(), "a mapping")), "The config of the child."),
        "tags": Key(Templated(ListOf(Templated(Text("a tag")), "a list of tags")), "The tags of the child."),
        "priority": Key(
            Templated(Integer("a whole number")), "Runs of a higher priority come first; 0 by default."
        ),
        "delay": Key(Templated(Number("a number of seconds", least=0)), "Seconds before it begins."),
        "deadline": Key(
            Templated(PointInTime()), "When it fails if it hasn't ended; never later than that of this run."
        ),
        "queue": Key(
            Templated(Text("the name of a queue")),
            "Its queue; by default that of its graph, else that of this run.",
        ),
    },
    suggestions={"inputs": "input", "state": "input", "with": "input", "wait": "join", "run": "graph"},
)
_JOIN = KeyedMapping(
    "join",
    "Wait until a child run has ended; the result is its final state, or for several a list of theirs.",
    {
        "child": Key(
            Templated(AnyOf(_RUN_ID, ListOf(Templated(_RUN_ID), "a list of ids"))),
            "The id that `start` gave, or a list of ids.",
            required=True,
        ),
    },
    suggestions={"run": "child", "children": "child", "run_id": "child", "runs": "child", "id": "child"},
)
_EMIT = KeyedMapping(
    "emit",
    "Pass something on to those who stream or follow the run; it isn't part of the state.",
    {"data": Key(AnyValue(), "What to pass on.", required=True)},
    suggestions={"value": "data", "text": "data", "message": "data"},
)
_PROGRESS = KeyedMapping(
    "progress",
    "Say how far the run is: in `limpet run`, `limpet runs watch` and progress bars.",
    {
        "done": Key(_NUMBER, "How much is done.", required=True),
        "total": Key(_NUMBER, "How much there is to do, if that is known."),
        "message": Key(Templated(AnyText()), "What is being done."),
    },
    suggestions={"text": "message", "of": "total"},
)
_SHELL = KeyedMapping(
    "shell",
    "Run a program; the result has code, stdout and stderr.",
    {
        "command": Key(
            ListOf(
                Templated(_TEXT_OR_NUMBER),
                "a list: the program, then its arguments (for the shell, script)",
                1,
                _PROGRAM,
            ),
            "The program and its arguments. No shell reads them, so data can't be taken for commands.",
        ),
        "script": Key(
            _SCRIPT, "A text for the shell, /bin/sh. It can't be a template: data is passed by env."
        ),
        "cwd": Key(_PATH, "The directory to run it in."),
        "root": _ROOT,
        "env": Key(
            MapOf(Templated(_TEXT_OR_NUMBER), "a mapping of names to texts"),
            "Environment variables, in addition to those of this process.",
        ),
        "input": Key(Templated(AnyText()), "Its standard input; empty by default."),
        "timeout": Key(_DURATION, "Seconds until it is killed, with all processes that it started."),
        "check": Key(Boolean(), "Whether an exit code other than 0 is a failure; true by default."),
    },
    KeyRules(one_of=[("command", "script")]),
    suggestions={
        "cmd": "command",
        "args": "command",
        "run": "command",
        "shell": "script",
        "stdin": "input",
    },
)
_HTTP = KeyedMapping(
    "http.request",
    "Send an HTTP request; the result has status, headers and body (data if it is JSON, else text).",
    {
        "url": Key(
            Templated(Text("a URL that begins with http:// or https://", r"^[hH][tT][tT][pP][sS]?://")),
            "The URL.",
            required=True,
        ),
        "method": Key(
            Templated(OneWordOf(*HTTP_METHODS)), "The method; by default GET, or POST if there is a body."
        ),
        "query": Key(
            MapOf(Templated(_TEXT_OR_NUMBER), "a mapping of names to texts"),
            "Parameters that are added to the URL after ?.",
        ),
        "headers": Key(MapOf(Templated(AnyText()), "a mapping of names to texts"), "Headers."),
        "json": Key(AnyValue(), "Data to send as JSON."),
        "body": Key(Templated(AnyText()), "A text to send."),
        "timeout": Key(_DURATION, "Seconds that the server may take to respond; 30 by default."),
        "check": Key(Boolean(), "Whether a status outside of 200 to 299 is a failure; true by default."),
        "redirects": Key(
            Integer("a whole number from 0 to 20", least=0, most=20),
            "How many redirects of a GET or HEAD are followed; 5 by default.",
        ),
        "idempotency_key": Key(
            AnyOf(Boolean(), Text("the name of a header")),
            "true sends the step's key, the same for each attempt, as Idempotency-Key; or the header for it.",
        ),
        "max_bytes": Key(
            Integer("a whole number of at least 1", least=1),
            "How long the response may be; 10000000 by default.",
        ),
    },
    KeyRules(at_most_one=[("json", "body")]),
    suggestions={"data": "body", "params": "query", "verb": "method", "content": "body"},
)
_PYTHON = KeyedMapping(
    "python",
    "Call a function with arguments from the file; its return value is the result.",
    {
        "function": Key(_FUNCTION, "The function, as module:function.", required=True),
        "arguments": Key(
            MapOf(AnyValue(), "a mapping of parameters to values"),
            "The arguments, by the names of parameters.",
        ),
    },
    suggestions={"call": "function", "args": "arguments", "run": "function", "with": "arguments"},
)
_FILE_READ = KeyedMapping(
    "file.read",
    "Read a file.",
    {
        "path": Key(_PATH, "The file.", required=True),
        "root": _ROOT,
        "format": Key(
            OneWordOf("text", "json", "bytes"), "The format of the result; text by default, as UTF-8."
        ),
    },
)
_FILE_WRITE = KeyedMapping(
    "file.write",
    "Write a file, completely or not at all; an existing file is replaced. The result is its path.",
    {
        "path": Key(_PATH, "The file; its directories are created.", required=True),
        "root": _ROOT,
        "content": Key(
            AnyValue(), "What to write: a text, bytes, or with format json any data.", required=True
        ),
        "format": Key(OneWordOf("text", "json"), "The format of the file; text by default, as UTF-8."),
    },
    suggestions={"text": "content", "data": "content", "body": "content"},
)


def _computed_values(**values: Any) -> dict[str, Any]:
    """The action `set`: what is under `with`, whose templates have been rendered."""
    return values


# Functions are referred to by name, so that a graph imports only the actions that it uses.
_ACTIONS: Final = (
    Action(
        "checkpoint.load",
        "limpet.yaml_files.actions.files:load_checkpoint",
        _CHECKPOINT_LOAD,
        for_graphs_only=True,
    ),
    Action(
        "checkpoint.save",
        "limpet.yaml_files.actions.files:save_checkpoint",
        _CHECKPOINT_SAVE,
        for_graphs_only=True,
    ),
    Action("emit", "limpet.yaml_files.actions.run_calls:emit_data", _EMIT),
    Action("file.read", "limpet.yaml_files.actions.files:read_file", _FILE_READ),
    Action("file.write", "limpet.yaml_files.actions.files:write_file", _FILE_WRITE),
    Action("http.request", "limpet.yaml_files.actions.http:send_request", _HTTP),
    Action("join", "limpet.yaml_files.actions.run_calls:join_children", _JOIN),
    Action("progress", "limpet.yaml_files.actions.run_calls:report_progress", _PROGRESS),
    Action("prompt", "limpet.yaml_files.actions.run_calls:ask", _PROMPT),
    Action("python", "", _PYTHON),  # the function is in its arguments
    Action("receive", "limpet.yaml_files.actions.run_calls:receive_message", _RECEIVE),
    Action("set", _computed_values, updates_state=True),
    Action("shell", "limpet.yaml_files.actions.shell:run_program", _SHELL),
    Action("sleep", "limpet.yaml_files.actions.run_calls:sleep", _SLEEP),
    Action("start", "limpet.yaml_files.actions.run_calls:start_child", _START),
)
BUILT_IN: Final[Mapping[str, Action]] = {each.name: each for each in _ACTIONS}
