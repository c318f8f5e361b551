"""The actions that are built in: what each takes. What they do is in the modules that the table names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from limpet.yaml_files.actions.registry import Action
from limpet.yaml_files.build.references import REFERENCE
from limpet.yaml_files.grammar.mappings import Field, Record
from limpet.yaml_files.grammar.value_types import (
    AnyText,
    Anything,
    Flag,
    ListOf,
    MapOf,
    Number,
    OneOf,
    Plain,
    Templated,
    Text,
    Whole,
    Word,
)

METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
ANSWERS: Final = ("str", "int", "float", "bool", "list", "dict")

_PATH = Templated(Text("a path"))
_NUMBER = Number("a number")
_SECONDS = Templated(Number("a number of seconds above 0", above=0))
_PROGRAM = Plain(Text("the name of a program"), "what is run is said in the file, not in the state")
_SCRIPT = Plain(Text("a text for the shell"), 'hand data over by env, and write "$NAME" in the script')
_REFERENCE = Plain(
    Text("a function as module:function", REFERENCE), "code is named in the file, not in the state"
)
_SCALAR = OneOf(AnyText("a text"), _NUMBER)

_CHECKPOINT_SAVE = Record(
    "checkpoint.save",
    "Write the state to a checkpoint file; a resume from it runs this node, or the one that `node` names.",
    {
        "path": Field(_PATH, "The file; directories are made.", required=True),
        "node": Field(Text("the name of a node"), "The node that a resume from the file runs; this one."),
    },
)
_CHECKPOINT_LOAD = Record(
    "checkpoint.load",
    "Read a checkpoint file: its state, node, config, timestamp and version.",
    {"path": Field(_PATH, "The file.", required=True)},
)
_PROMPT = Record(
    "prompt",
    "Pause the run until somebody answers; the answer is the result.",
    {
        "text": Field(Templated(Text("a question")), "The question.", required=True),
        "choices": Field(
            Templated(ListOf(Anything(), "a list of answers", 1)), "The answers that are taken."
        ),
        "schema": Field(
            Templated(OneOf(Word(*ANSWERS), MapOf(Anything(), "a JSON Schema"))),
            "What the answer is like: a type, or a JSON Schema.",
        ),
        "key": Field(Text("a word", r"\D"), "What the question is told apart by."),
    },
    also={"prompt": "text", "question": "text", "message": "text", "options": "choices"},
)
_SHELL = Record(
    "shell",
    "Run a program; the result has code, stdout and stderr.",
    {
        "command": Field(
            ListOf(
                Templated(_SCALAR),
                "a list: the program, then its arguments (for the shell, script)",
                1,
                _PROGRAM,
            ),
            "The program and its arguments. No shell is in between, so that data can't be taken for commands.",
        ),
        "script": Field(_SCRIPT, "A text for the shell, /bin/sh. It can't be a template: data comes by env."),
        "cwd": Field(_PATH, "The directory to run it in."),
        "env": Field(
            MapOf(Templated(_SCALAR), "a mapping of names to texts"),
            "Variables of the environment, besides ours.",
        ),
        "input": Field(Templated(AnyText()), "What it reads from its standard input; nothing."),
        "timeout": Field(_SECONDS, "Seconds until it is killed, with all that it started."),
        "check": Field(Flag(), "Whether an exit code other than 0 is a failure; true."),
    },
    one_of=[("command", "script")],
    also={"cmd": "command", "args": "command", "run": "command", "shell": "script", "stdin": "input"},
)
_HTTP = Record(
    "http.request",
    "Ask a server by HTTP; the result has status, headers and body (data if it is JSON, else text).",
    {
        "url": Field(
            Templated(Text("a URL that begins with http:// or https://", r"^[hH][tT][tT][pP][sS]?://")),
            "Whom to ask.",
            required=True,
        ),
        "method": Field(Templated(Word(*METHODS)), "GET, or POST if there is something to send."),
        "query": Field(
            MapOf(Templated(_SCALAR), "a mapping of names to texts"), "What is added to the URL after ?."
        ),
        "headers": Field(MapOf(Templated(AnyText()), "a mapping of names to texts"), "Headers."),
        "json": Field(Anything(), "Data to send as JSON."),
        "body": Field(Templated(AnyText()), "A text to send."),
        "timeout": Field(_SECONDS, "Seconds that the server may be silent; 30."),
        "check": Field(Flag(), "Whether a status outside of 200 to 299 is a failure; true."),
        "redirects": Field(
            Whole("a whole number from 0 to 20", least=0, most=20),
            "How many redirects of a GET or HEAD are followed; 5.",
        ),
        "idempotency_key": Field(
            OneOf(Flag(), Text("the name of a header")),
            "true sends the step's key, the same for each attempt, as Idempotency-Key; or the header for it.",
        ),
        "max_bytes": Field(Whole("a whole number from 1", least=1), "How long the answer may be; 10000000."),
    },
    at_most_one=[("json", "body")],
    also={"data": "body", "params": "query", "verb": "method", "content": "body"},
)
_PYTHON = Record(
    "python",
    "Call a function with arguments of the file's; what it returns is the result.",
    {
        "function": Field(_REFERENCE, "The function, as module:function.", required=True),
        "arguments": Field(
            MapOf(Anything(), "a mapping of parameters to values"), "What it is called with, by name."
        ),
    },
    also={"call": "function", "args": "arguments", "run": "function", "with": "arguments"},
)
_FILE_READ = Record(
    "file.read",
    "Read a file.",
    {
        "path": Field(_PATH, "The file.", required=True),
        "format": Field(Word("text", "json", "bytes"), "What is made of it; text, as UTF-8."),
    },
)
_FILE_WRITE = Record(
    "file.write",
    "Write a file, whole or not at all, in place of what was there; the result is its path.",
    {
        "path": Field(_PATH, "The file; directories are made.", required=True),
        "content": Field(
            Anything(), "What to write: a text, bytes, or with format json any data.", required=True
        ),
        "format": Field(Word("text", "json"), "How; text, as UTF-8."),
    },
    also={"text": "content", "data": "content", "body": "content"},
)

BUILT_IN: Final[Mapping[str, Action]] = {
    made.name: made
    for made in (
        Action("checkpoint.load", "limpet.yaml_files.actions.files:load", _CHECKPOINT_LOAD, of_graphs=True),
        Action("checkpoint.save", "limpet.yaml_files.actions.files:save", _CHECKPOINT_SAVE, of_graphs=True),
        Action("file.read", "limpet.yaml_files.actions.files:read", _FILE_READ),
        Action("file.write", "limpet.yaml_files.actions.files:write", _FILE_WRITE),
        Action("http.request", "limpet.yaml_files.actions.http:request", _HTTP),
        Action("prompt", "limpet.yaml_files.actions.prompt:ask", _PROMPT),
        Action("python", "", _PYTHON),
        Action("shell", "limpet.yaml_files.actions.shell:execute", _SHELL),
    )
}
