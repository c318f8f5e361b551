"""The JSON Schema accepts what the loader accepts, and any text gives a graph or a DeclarationError."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import limpet
from limpet import DeclarationError, loads
from limpet.yaml_files.document import Value, read_document
from limpet.yaml_files.grammar.json_schema import FILE, generated_schema, generated_text, text
from limpet.yaml_files.grammar.keys import DECLARATION, GRAPH, TASK
from limpet.yaml_files.grammar.mappings import KeyedMapping
from limpet.yaml_files.grammar.mistakes import Mistakes
from limpet.yaml_files.loading import check_text

PUBLISHED = Path(__file__).parents[2] / "docs" / "reference" / "limpet.schema.json"
EDITOR = jsonschema.Draft7Validator(generated_schema())


def loader_takes(data: Any) -> bool:
    """Whether the loader's tables find nothing wrong."""
    mistakes = Mistakes("f.yaml")
    DECLARATION.check(Value.hidden_from(data, Value(None)), "a declaration", mistakes)
    return not mistakes


def editor_takes(data: Any) -> bool:
    return bool(EDITOR.is_valid(data))


@pytest.mark.parametrize("file", [FILE, PUBLISHED], ids=["package", "docs"])
def test_the_published_schema_is_current_and_valid(file: Path) -> None:
    """F13: in the package and in the documentation. `grammar/json_schema.py` has the command that writes it."""
    assert file.read_text(encoding="utf-8") == generated_text()
    schema = json.loads(text())
    jsonschema.Draft7Validator.check_schema(schema)
    assert schema["$id"].endswith("/reference/limpet.schema.json")
    assert schema["title"]
    assert schema["description"]


def test_the_schema_is_read_without_its_tables_or_any_dependency() -> None:
    """F13: the command that prints it starts at once, also where the extra isn't installed."""
    code = (
        "import sys; from limpet.yaml_files.grammar import json_schema; json_schema.text();"
        "assert not {'yaml', 'jinja2', 'limpet.yaml_files.grammar.keys'} & sys.modules.keys()"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(limpet.__file__).parents[1])}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)


NODE: dict[str, Any] = {"name": "a"}
GOOD: list[Any] = [
    {"nodes": [NODE]},
    {"nodes": [NODE], "x-anything": {"at": ["all", 5]}},
    {"tasks": [{"name": "a", "run": "m:f"}], "x-": None},
    {
        "name": "x",
        "description": "",
        "state": {"a": "int", "b": {"type": "list", "reducer": "append", "default": []}},
        "nodes": [
            {"name": "a", "run": "m.n:f.g", "retry": 3, "timeout": 1.5, "interrupt": ["before", "after"]},
            {
                "name": "b",
                "uses": "my.own",
                "with": {"x": [1, None]},
                "output": "k",
                "goto": [{"to": "a", "condition": "x"}, "END"],
            },
        ],
        "edges": [
            {"from": "a", "choose": "x", "cases": {"1": "b"}},
            {"from": "b", "parallel": ["a"], "fan_in": "c"},
        ],
        "entry": "a",
        "finish": ["b"],
        "config": {"store": "memory", "interrupt_before": ["a"]},
    },
    {
        "state": "m:C",
        "nodes": [{"name": "a", "prompt": {"text": "?", "schema": "bool", "choices": [True]}, "output": "b"}],
    },
    {
        "nodes": [
            {"name": "a", "graph": {"nodes": [NODE]}, "inputs": {"a": "b"}},
            {"name": "b", "graph": "x.yaml"},
        ]
    },
    {"nodes": [{"name": "a", "graph": {"tasks": [{"name": "t", "run": "m:f"}]}}]},
    {
        "nodes": [NODE],
        "edges": [{"from": "a", "each": {"nodes": [NODE]}, "over": "x", "fan_in": "b", "item": "i"}],
    },
    {
        "tasks": [
            {"name": "a", "run": "m:f", "depends_on": ["b"], "arguments": {}},
            {"name": "b", "prompt": "?"},
        ]
    },
    {
        "tasks": [
            {"name": "a", "uses": "shell", "with": {"script": "ls"}, "safe_to_fail": True, "condition": "x"}
        ],
        "config": {"on_mismatch": "warn", "max_layers": 3},
    },
    {
        "nodes": [
            {"name": "a", "uses": "shell", "with": {"command": ["ls", "{{ x }}", 5], "timeout": "{{ x }}"}}
        ]
    },
    {
        "nodes": [
            {
                "name": "a",
                "uses": "http.request",
                "with": {"url": "https://x", "json": None, "method": "{{ x }}"},
            }
        ]
    },
    {"nodes": [{"name": "a", "uses": "file.write", "with": {"path": "x", "content": None}}]},
    {"nodes": [{"name": "a", "uses": "checkpoint.save", "with": {"path": "{{ x }}"}}]},
    {
        "nodes": [
            {"name": "a", "retry": {"on": "OSError", "jitter": 0}},
            {"name": "b", "retry": {"on": ["m:E"]}},
        ]
    },
    {
        "nodes": [
            {"name": "a", "receive": "x", "output": "b"},
            {
                "name": "b",
                "receive": {"name": "{{ x }}", "deadline": "1.5h", "default": None, "schema": "int"},
            },
            {"name": "c", "prompt": {"text": "x", "deadline": "2026-05-01T12:00Z", "secret": True}},
            {"name": "d", "prompt": {"text": "x", "deadline": 0, "default": {}}},
            {"name": "e", "uses": "emit", "with": {"data": None}},
            {"name": "f", "start": "x.yaml"},
            {"name": "g", "start": {"graph": "m:g", "input": "{{ x }}", "join": True}, "outputs": {"a": "b"}},
            {"name": "k", "sleep": "12h", "goto": {"to": "h", "delay": 5}},
            {"name": "l", "sleep": {"time": "{{ x }}"}},
            {"name": "h", "join": "{{ x }}", "outputs": {"a": "{{ b }}"}},
            {"name": "i", "join": ["{{ x }}", "y"], "output": "z"},
            {"name": "j", "uses": "start", "with": {"graph": "x.yml", "delay": 0.5, "tags": ["{{ x }}"]}},
        ],
        "config": {"deadline": "7d"},
    },
]
BAD: list[Any] = [
    {},
    [],
    "x",
    5,
    None,
    {"nodes": []},
    {"nodes": {}},
    {"nodes": [5]},
    {"nodes": [{}]},
    {"tasks": [NODE]},
    {"nodes": [NODE], "tasks": [{"name": "b", "run": "m:f"}]},
    {"nodes": [NODE], "edges": [{}]},
    *(
        {"nodes": [{"name": "a", **wrong}]}
        for wrong in (
            {"name": ""},
            {"name": "END"},
            {"name": "a/b"},
            {"run": "f"},
            {"run": "m:f", "uses": "x"},
            {"with": {}},
            {"output": "x"},
            {"prompt": ""},
            {"prompt": {}},
            {"graph": "x"},
            {"graph": {}},
            {"retry": 0},
            {"retry": True},
            {"retry": {"jitter": 2}},
            {"timeout": 0},
            {"timeout": "1"},
            {"interrupt": "x"},
            {"interrupt": []},
            {"goto": []},
            {"goto": {}},
            {"goto": {"from": "a", "to": "b"}},
            {"inputs": {}},
            {"x": 1},
            {"uses": ""},
            {"uses": "prompt"},
            {"uses": "shell"},
            {"uses": "shell", "with": {"command": "ls"}},
            {"uses": "shell", "with": {"command": []}},
            {"uses": "shell", "with": {"command": ["{{ x }}"]}},
            {"uses": "shell", "with": {"script": "{{ x }}"}},
            {"uses": "shell", "with": {"script": "a", "command": ["b"]}},
            {"uses": "python", "with": {"function": "f"}},
            {"uses": "http.request", "with": {"url": "file:///x"}},
            {"uses": "http.request", "with": {"url": "http://x", "method": "get"}},
            {"uses": "http.request", "with": {"url": "http://x", "json": 1, "body": "x"}},
            {"uses": "file.write", "with": {"path": "x"}},
            {"uses": "file.read", "with": {"path": 5}},
            {"uses": "file.read", "with": {"path": "x", "format": "xml"}},
            {"uses": "prompt", "with": {"text": "x", "key": "5"}},
            {"uses": "prompt", "with": {"text": "x", "schema": "it"}},
            {"prompt": {"text": "x", "default": 1}},
            {"prompt": {"text": "x", "deadline": "soon"}},
            {"prompt": {"text": "x", "deadline": -1}},
            {"prompt": {"text": "x", "deadline": None}},
            {"receive": ""},
            {"receive": {}},
            {"receive": {"name": "x", "default": 1}},
            {"receive": {"name": "x", "deadline": "1y"}},
            {"receive": "x", "set": {"a": 1}},
            {"uses": "progress", "with": {"done": -1}},
            {"start": "x"},
            {"start": "{{ x }}.yaml"},
            {"start": {}},
            {"start": {"graph": "x.yaml", "input": 5}},
            {"start": {"graph": "x.yaml", "join": "yes"}},
            {"start": "x.yaml", "output": "a", "outputs": {"a": "b"}},
            {"join": ""},
            {"sleep": "soon"},
            {"sleep": {"until": 5}},
            {"goto": {"to": "b", "delay": -1}},
            {"join": [5]},
            {"join": {}},
        )
    ),
    *(
        {"nodes": [NODE], "edges": [{"from": "a", **wrong}]}
        for wrong in (
            {},
            {"to": ""},
            {"to": "b", "choose": "x"},
            {"condition": "x"},
            {"choose": "x", "condition": "y"},
            {"to": "b", "cases": {}},
            {"choose": "x", "cases": {}},
            {"choose": "x", "cases": {"a": 5}},
            {"parallel": ["b"]},
            {"parallel": [], "fan_in": "c"},
            {"each": "b", "fan_in": "c"},
            {"each": "b", "over": "x"},
            {"parallel": ["b"], "over": "x", "fan_in": "c"},
            {"over": "b", "fan_in": "c"},
            {"to": "b", "fan_in": "c"},
            {"each": 5, "over": "x"},
            {"parallel": ["b"], "fan_in": "c", "on_error": "x"},
            {"to": "b", "item": "x"},
        )
    ),
    *(
        {"nodes": [NODE], "config": wrong}
        for wrong in (
            5,
            {"x": 1},
            {"store": ""},
            {"interrupt_before": "a"},
            {"max_iterations": 1.5},
            {"keep": 0},
            {"on_mismatch": "warn"},
            {"preserve": "yes"},
            {"interval": -1},
            {"observers": "log"},
            {"lease": 0},
            {"deadline": "{{ 1 }}"},
            {"deadline": "1 year"},
            {"deadline": True},
        )
    ),
    *(
        {"nodes": [NODE], "state": wrong}
        for wrong in (5, [], "int", {"a": "itn"}, {"a": {"x": 1}}, {"a": None})
    ),
    *(
        {"nodes": [NODE], **wrong}
        for wrong in (
            {"x": 1},
            {"X-a": 1},
            {"imports": "os"},
            {"imports": ["a:b"]},
            {"name": 5},
            {"finish": 5},
            {"entry": ["a"]},
        )
    ),
]


@pytest.mark.parametrize(
    ("sample", "takes"), [*((each, True) for each in GOOD), *((each, False) for each in BAD)]
)
def test_editors_and_the_loader_take_and_refuse_the_same(sample: Any, takes: bool) -> None:
    """F13: one rule, written down once."""
    assert (loader_takes(sample), editor_takes(sample)) == (takes, takes)


def keys_of(mapping: KeyedMapping) -> set[str]:
    """All keys of a mapping, and the words for which it suggests them."""
    return {*mapping.keys, *mapping.suggestions}


WORDS = sorted(
    {
        *keys_of(GRAPH),
        *keys_of(TASK),
        "a",
        "b",
        "END",
        "START",
        "int",
        "list",
        "append",
        "memory",
        "m:f",
        "x.yaml",
        "shell",
        "prompt",
        "receive",
        "start",
        "join",
        "python",
        "http.request",
        "file.read",
        "{{ state.x }}",
        "{{ x",
        "state.x > 1",
        "before",
        "1",
        "",
        "from",
        "to",
        "parallel",
        "each",
        "over",
        "fan_in",
        "choose",
        "cases",
        "on_error",
        "uses",
        "with",
        "output",
        "command",
        "script",
        "text",
        "path",
        "url",
        "type",
        "reducer",
        "default",
        "attempts",
        "on",
    }
)
SCALARS = st.one_of(st.sampled_from(WORDS), st.integers(-2, 3), st.booleans(), st.none(), st.just(1.5))
DATA = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(WORDS), inner, max_size=4)
    ),
    max_leaves=12,
)
NODES = st.lists(
    st.fixed_dictionaries(
        {"name": st.sampled_from(["a", "b", "c/d"])},
        optional=dict.fromkeys(
            (
                "run",
                "uses",
                "with",
                "goto",
                "prompt",
                "receive",
                "start",
                "join",
                "graph",
                "retry",
                "output",
                "interrupt",
            ),
            DATA,
        ),
    ),
    max_size=3,
)
EDGES = st.lists(
    st.fixed_dictionaries(
        {"from": st.sampled_from(["a", "b", "START", "z"])},
        optional=dict.fromkeys(
            ("to", "condition", "choose", "cases", "parallel", "each", "over", "fan_in"), DATA
        ),
    ),
    max_size=3,
)
DOCUMENTS = st.one_of(
    DATA,
    st.fixed_dictionaries(
        {"nodes": NODES}, optional={"edges": EDGES, "config": DATA, "state": DATA, "finish": DATA}
    ),
    st.fixed_dictionaries({"tasks": NODES}, optional={"config": DATA, "imports": DATA}),
)

often = settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))


@often
@given(DOCUMENTS)
def test_editors_and_the_loader_agree_on_whatever_there_is(data: Any) -> None:
    """F13: on documents that are nearly right, above all."""
    assert loader_takes(data) == editor_takes(data)


def refusal(read: Callable[[str], Any], written: str) -> DeclarationError | None:
    """Why a text isn't a graph; None if it is one. Any other exception fails the test."""
    try:
        read(written)
    except DeclarationError as error:
        return error
    return None


@often
@given(DOCUMENTS)
def test_any_document_gives_a_graph_or_an_error_of_ours(data: Any) -> None:
    """F13: looked at and loaded, whatever is missing, doubled or out of place."""
    looked, loaded = (refusal(read, json.dumps(data)) for read in (check_text, loads))
    assert loaded is not None or looked is None
    for error in (looked, loaded):
        assert error is None or all(each.startswith("<text>:") for each in error.mistakes)


@often
@given(st.one_of(st.text(max_size=80), st.text("&*![]{}:,-#|>?%@`'\"~<\n\t ab1", max_size=60)))
def test_any_text_gives_a_graph_or_an_error_of_ours(written: str) -> None:
    """F13: with its place; hardly any text is a graph."""
    error = refusal(loads, written)
    assert error is not None
    assert error.places


VALID = """\
name: agent
state: {value: int, log: {type: list, reducer: append}}
nodes:
  - name: ask
    prompt: {text: "Ship {{ state.value }}?", choices: [yes, no]}
    output: answer
    goto: [{to: work, condition: "state.answer == 'yes'"}, END]
  - name: work
    uses: shell
    with: {command: [echo, "{{ state.value }}"]}
    retry: {attempts: 2, backoff: 0.5}
    goto: END
config: {store: memory, interrupt_before: [work]}
"""


@often
@given(st.integers(0, len(VALID)), st.integers(0, 12), st.text("&*![]{}:,-#|>'\"\n ab{{}}%", max_size=6))
def test_a_file_with_any_slip_of_the_hand_gives_a_graph_or_an_error_of_ours(
    at: int, cut: int, put: str
) -> None:
    """F13: a few characters are missing or replaced."""
    slipped = VALID[:at] + put + VALID[at + cut :]
    error = refusal(loads, slipped)
    lines = slipped.count("\n") + 1
    assert error is None or all(1 <= line <= lines + 1 and column >= 1 for line, column in error.places)


@often
@given(DATA)
def test_json_is_read_with_its_own_meaning(data: Any) -> None:
    """F13: JSON is YAML, so a declaration may be written in it."""
    if data is not None:
        assert read_document(json.dumps(data), "f.yaml").plain_data() == data


ODD = [
    r'"\0.yaml"',
    r'"a\0b"',
    '"' + "x" * 5000 + '.yaml"',
    '"os:__dict__"',
    '"postgresql://\\0"',
    r'"sqlite:///\0"',
    r'"file:///\0"',
    '"a/b"',
    '"{{ 1 }}"',
    r'"\x85"',
    '"."',
    '"x@1"',
    '"/dev/null/x.yaml"',
]
SLOTS = [
    "nodes: [{name: %s}]",
    "name: %s\nnodes: [{name: a}]",
    "nodes: [{name: a, graph: %s}]",
    "nodes: [{name: a, run: %s}]",
    "nodes: [{name: a, start: %s}]",
    "nodes: [{name: a, start: {graph: %s, deadline: %s, input: {%s: %s}, join: true}, outputs: {%s: %s}}]",
    "nodes: [{name: a, receive: {name: %s, deadline: %s, schema: %s}}, {name: b, join: %s}]",
    "nodes: [{name: a, uses: %s}]",
    "nodes: [{name: a, goto: [{to: %s, condition: %s}]}]",
    "nodes: [{name: a}]\nconfig: {store: %s}",
    "nodes: [{name: a}]\nconfig: {checkpoint_dir: %s}",
    "nodes: [{name: a}]\nconfig: {observers: [%s], checkpoint: %s}",
    "nodes: [{name: a}]\nimports: [%s]",
    "nodes: [{name: a}]\nstate: {%s: {type: %s, reducer: %s}}",
    "nodes: [{name: a, retry: {on: %s}}]",
    "nodes: [{name: a}, {name: b, goto: END}]\nedges: [{from: a, each: %s, over: %s, item: %s, fan_in: b}]",
    "nodes: [{name: a, uses: python, with: {function: %s, arguments: {%s: %s}}}]",
    "tasks: [{name: %s, run: %s, depends_on: {%s: %s}, arguments: {%s: %s}}]",
]


@pytest.mark.parametrize("slot", SLOTS)
def test_odd_words_in_any_place_give_a_graph_or_an_error_of_ours(
    slot: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F13: null characters, names that are too long, URLs, paths through files."""
    monkeypatch.chdir(tmp_path)
    for word in ODD:
        looked, loaded = (refusal(read, slot.replace("%s", word)) for read in (check_text, loads))
        assert loaded is not None or looked is None
