"""YAML text becomes values that know their place, without the surprises that YAML is known for."""

from __future__ import annotations

from typing import Any

import pytest

from limpet import DeclarationError
from limpet.yaml_files.document import MAX_CHARACTERS, MAX_DEPTH, read_document


def read(text: str) -> Any:
    return read_document(text, "f.yaml").plain_data()


def refused(text: str) -> DeclarationError:
    with pytest.raises(DeclarationError) as caught:
        read(text)
    return caught.value


@pytest.mark.parametrize(
    "word",
    ["no", "No", "yes", "on", "off", "y", "n", "0123", "007", "12:30:45", "2026-11-15", "1_000", "0b1",
     "2001-12-14 21:59:43.10 -05:00", "=", "<", "0o8", "1e", "+", ".", "..", "-.5.", "nan", "inf", "NULLL"],
)  # fmt: skip
def test_words_that_yaml_1_1_reads_as_something_else_are_text(word: str) -> None:
    """F13: `choices: [yes, no]` are two words."""
    assert read(f"a: {word}\nb: [{word}]") == {"a": word, "b": [word]}


@pytest.mark.parametrize(
    ("word", "value"),
    [("true", True), ("False", False), ("null", None), ("~", None), ("", None), ("12", 12), ("-3", -3), ("0", 0),
     ("0x1f", 31), ("0o17", 15), ("1.5", 1.5), ("-1e3", -1000.0), (".5", 0.5), ("-.inf", float("-inf")),
     ("'12'", "12"), ('"true"', "true"), ("!!str 12", "12"), ("!!int '12'", 12), ("! 12", "12"), ("!!float 1", 1.0)],
)  # fmt: skip
def test_what_looks_like_a_value_is_one(word: str, value: Any) -> None:
    """F13."""
    found = read(f"a: {word}")["a"]
    assert (type(found), found) == (type(value), value)


def test_every_value_knows_its_line_and_column() -> None:
    """F13."""
    document = read_document("a: 1\nb:\n  - x\n  - {c: y}\n", "f.yaml")
    inner = document.data["b"].data[1].data["c"]
    assert (inner.line, inner.column) == (4, 9)
    assert (document.keys["b"].line, document.keys["b"].column) == (2, 1)


def test_a_key_that_is_there_twice_is_refused_with_both_places() -> None:
    """F13: the second one would silently win."""
    problem = refused("a: 1\nb: 2\na: 3\n")
    assert problem.mistakes == ["f.yaml:3:1: the key 'a' is there twice; first in line 1"]
    assert (problem.file, problem.places) == ("f.yaml", [(3, 1)])


def test_anchors_aliases_and_merge_keys_work() -> None:
    """F13: defaults can be written once."""
    text = (
        "base: &base {retry: 3, timeout: 5}\na: {<<: *base, timeout: 9}\nb: *base\nc: {<<: [{x: 1}, *base]}"
    )
    found = read(text)
    assert found["a"] == {"retry": 3, "timeout": 9}
    assert found["b"] == {"retry": 3, "timeout": 5}
    assert found["c"] == {"x": 1, "retry": 3, "timeout": 5}
    found["b"]["retry"] = 4
    assert found["base"]["retry"] == 3


def test_aliases_cannot_make_a_small_file_a_huge_one() -> None:
    """F13: nine levels of nine aliases would be 400 million values."""
    levels = "\n".join(f"l{n + 1}: &l{n + 1} [{', '.join([f'*l{n}'] * 9)}]" for n in range(9))
    assert "more than" in str(refused(f"l0: &l0 [x]\n{levels}"))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a: &a [*a]", "inside what it stands for"),
        ("a: *b", "stands for nothing"),
        ("a: !!python/object/apply:os.system ['true']", "isn't known"),
        ("a: !mine x", "isn't known"),
        ("a: !!timestamp 2026-11-15", "isn't known"),
        ("a: !!int x", "can't be read as int"),
        ("a: !!bool no", "can't be read as bool"),
        ("a: 1\n---\nb: 2", "a second document"),
        ("? [a]\n: b", "a key is"),
        ("<<: 5", "<< takes in a mapping"),
        ("a: [1", "isn't YAML"),
        ("a:\tb\n\t- c", "isn't YAML"),
        ("a: \x00", "isn't YAML"),
        ("a: \ud800", "isn't YAML"),
        ("", "it is empty"),
        ("# nothing", "it is empty"),
        ("a: " + "9" * 1001, "can't be read as int"),
        ("a: 0x" + "f" * 1001, "can't be read as int"),
        ("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1), "levels deep"),
        ("[" * 100_000, "levels deep"),
        ("a: " + "x" * MAX_CHARACTERS, "characters"),
    ],
    ids=lambda text: text[:20] if isinstance(text, str) else None,
)
def test_what_isnt_plain_data_is_refused_with_its_place(text: str, reason: str) -> None:
    """F13: nothing is built from tags, and depth and size have limits."""
    problem = refused(text)
    assert reason in str(problem)
    assert len(problem.places) == 1


def test_aliases_cannot_nest_deeper_than_brackets_can() -> None:
    """F13: what would be deep is refused before anything walks it."""
    levels = "\n".join(f"l{n + 1}: &l{n + 1} [*l{n}]" for n in range(MAX_DEPTH + 1))
    assert "levels deep" in str(refused(f"l0: &l0 x\n{levels}"))
