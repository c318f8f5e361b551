"""What is typed as an input or a change: read by the schema of the graph, or by what its tasks take."""

from __future__ import annotations

from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, NewType, NotRequired

import pytest

from limpet.cli.inputs import typed_value
from support.command_line import Command

TYPED = """
from typing import Annotated, Optional

from limpet import StateGraph, Workflow, append, pause

graph = StateGraph(
    {"version": str, "ratio": float, "count": int, "tags": Annotated[list, append], "note": Optional[str]},
    name="typed",
)
graph.add_node("look", lambda state: {"count": pause("How many?", schema=int)})
graph.set_entry_point("look")
graph.set_finish_point("look")

flow = Workflow("release")


@flow.task
def ship(version: str, count: int = 1):
    return f"{version} x {count}"
"""


class Colour(Enum):
    RED = "red"
    ONE = 1


@pytest.fixture
def typed(limpet: Command, here: Path) -> Command:
    (here / "typed.py").write_text(TYPED)
    return limpet


@pytest.mark.parametrize(
    ("text", "hint", "value"),
    [
        ("1.10", str, "1.10"),
        ("true", str, "true"),
        ("null", str, "null"),
        ("", str, ""),
        ('"1.5"', str, "1.5"),
        ('{"a": 1}', str, '{"a": 1}'),
        ("1.10", str | None, "1.10"),
        ("null", str | None, None),
        ("1.10", Annotated[str, "note"], "1.10"),
        ("1.10", NotRequired[str], "1.10"),
        ("1.10", NewType("Version", str), "1.10"),
        ("1.10", Decimal, "1.10"),
        ("1.10", Path, "1.10"),
        ("1", float, 1.0),
        ("1", int, 1),
        ("1", int | str, 1),
        ("one", int | str, "one"),
        ("true", bool, True),
        ("[1]", list[int], [1]),
        ("[1]", tuple[int, ...], [1]),
        ('{"a": 1}', dict, {"a": 1}),
        ("1", Literal["1", "2"], "1"),
        ("2", Literal[1, 2], 2),
        ("red", Colour, "red"),
        ("1", Colour, 1),
        ("1.10", Any, 1.1),
        ("kelp", Any, "kelp"),
        ("null", Any, None),
        ("1.10", object, 1.1),
        ("1.10", "a name that can't be resolved", 1.1),
    ],
)
def test_what_is_typed_has_the_type_of_its_key(text: str, hint: Any, value: Any) -> None:
    """H6."""
    found = typed_value(text, hint)
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("text", "hint", "expected"),
    [
        ("many", int, "a whole number"),
        ("1.5", int, "a whole number"),
        ("true", int, "a whole number"),
        ("yes", bool, "true or false"),
        ("1,5", float, "a number"),
        ("a", list, "a list in JSON"),
        ("a", dict[str, int], "an object in JSON"),
        ("3", Literal["1", "2"], "one of 1, 2"),
        ("blue", Colour, "one of red, 1"),
    ],
)
def test_what_cant_be_of_the_type_is_refused(text: str, hint: Any, expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        typed_value(text, hint)


def test_an_input_is_read_by_the_schema(typed: Command) -> None:
    """H6: text stays text."""
    words = ["-i", "version=1.10", "ratio=2", "tags=[1]", "note=null"]
    done = typed("run", "typed:graph", *words, "--id", "r", "--json")
    assert done.data["state"] == {"version": "1.10", "ratio": 2.0, "tags": [1], "note": None}
    done = typed("run", "typed:graph", "-i", "count=many")
    assert (done.code, "--input: count takes a whole number, not 'many'" in done.err) == (2, True)
    assert typed("run", "typed:graph", "-i", '{"count": "many"}').code == 3  # JSON has its types already


def test_an_input_of_a_workflow_is_read_by_what_its_tasks_take(typed: Command) -> None:
    done = typed("run", "typed:flow", "-i", "version=1.10", "count=2", "--json")
    assert done.data["state"]["tasks"]["ship"]["result"] == "1.10 x 2"


def test_a_change_of_the_state_is_read_by_the_schema(typed: Command) -> None:
    typed("run", "typed:graph", "--id", "r")
    typed("runs", "fork", "r", "--id", "f", "--set", "version=2.0", "--graph", "typed:graph")
    assert typed("runs", "state", "f", "--key", "version").out == "2.0\n"
    done = typed("runs", "fork", "r", "--set", "ratio=big", "--graph", "typed:graph")
    assert (done.code, "--set: ratio takes a number" in done.err) == (2, True)
    done = typed("resume", "f", "--set", "verson=3.0", "--graph", "typed:graph")
    assert "'verson' isn't among the keys of the schema of graph 'typed'; did you mean 'version'?" in done.err


@pytest.mark.parametrize(
    ("words", "warning"),
    [
        (["typed:graph", "-i", "verson=1"], "did you mean 'version'?"),
        (["typed:graph", "-i", '{"verson": 1}'], "did you mean 'version'?"),
        (["typed:graph", "-i", "zebra=1"], "'zebra' isn't among the keys of the schema of graph 'typed'\n"),
        (["typed:flow", "-i", "version=1", "cont=1"], "did you mean 'count'?"),
    ],
)
def test_an_unknown_key_is_warned_about(typed: Command, words: list[str], warning: str) -> None:
    """H6: with the key that may be meant. The run has it all the same: a schema doesn't restrict."""
    done = typed("run", *words)
    assert done.code in (0, 3)
    assert warning in done.err
    assert typed("run", *words, "--json").err == ""


def test_keys_that_are_known_or_cant_be_known_arent_warned_about(typed: Command) -> None:
    for words in (["typed:graph", "-i", "version=1"], ["typed:flow", "-i", "version=1", "zebra=1"]):
        assert "warning" not in typed("run", *words).err
    assert "warning" not in typed("run", "flows:twice", "-i", "anything=1").err  # it has no schema
