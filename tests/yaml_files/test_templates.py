"""Templates: exact about types, strict about what is missing, and no way to code."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from limpet import State, TemplateError
from limpet.yaml_files.document import Value
from limpet.yaml_files.grammar.mistakes import Mistakes
from limpet.yaml_files.template_limits import MAX_RANGE
from limpet.yaml_files.templates import TemplateCompiler, render_all

NAMES = ("state", "config")


def worked_out(text: str, expression: bool = False, **state: Any) -> Any:
    mistakes = Mistakes("f.yaml")
    compiler = TemplateCompiler(mistakes, NAMES)
    made = (compiler.expression if expression else compiler.template)(Value(text, 3, 5), "node 'n'")
    mistakes.raise_any()
    assert made is not None
    return made.render({"state": State(state), "config": {}})


def refused(text: str, **state: Any) -> TemplateError:
    with pytest.raises(TemplateError) as caught:
        worked_out(text, **state)
    return caught.value


@pytest.mark.parametrize(
    "value",
    [
        "123",
        "007",
        "True",
        "[1, 2]",
        "",
        " x\n",
        12,
        1.5,
        True,
        None,
        [1, "2"],
        {"a": [1]},
        (1, 2),
        {3},
        b"x",
        datetime(2026, 11, 15, tzinfo=UTC),
        10**40,
    ],
    ids=repr,
)
def test_a_lone_expression_keeps_the_value_and_its_type(value: Any) -> None:
    """F13, H4: a text that looks like a number stays a text."""
    for text in ("{{ state.x }}", "{{state['x']}}", "{{- state.x -}}"):
        found = worked_out(text, x=value)
        assert (type(found), found) == (type(value), value)
        assert found is value


def test_in_a_longer_text_values_are_text() -> None:
    """F13."""
    assert worked_out("{{ state.n }}!", n=5) == "5!"
    assert worked_out("{{ state.n }}\n", n=5) == "5\n"
    assert worked_out("{{ state.n }}{{ state.n }}", n=5) == "55"
    assert worked_out("a\n{% for i in state.l %}{{ i }},{% endfor %}\n", l=[1, 2]) == "a\n1,2,\n"
    assert worked_out("{# said #}{{ state.n }}", n=5) == 5
    assert worked_out("{{ '{{' }}") == "{{"


def test_expressions_are_conditions_with_or_without_braces() -> None:
    """F13."""
    assert worked_out("state.n > 3 and 'x' in state.l", expression=True, n=5, l=["x"]) is True
    assert worked_out("{{ state.n > 3 }}", expression=True, n=1) is False
    assert worked_out("state.l | length", expression=True, l=[1, 2]) == 2
    assert worked_out("state.gone is defined", expression=True) is False
    assert worked_out("state.gone | default(7)", expression=True) == 7


@pytest.mark.parametrize(
    "text",
    [
        "{{ state.nme }}",
        "Dear {{ state.nme }}",
        "{{ state['nme'] }}",
        "{{ state.nme.first }}",
        "{% if state.nme %}x{% endif %}",
        "{{ state.nme + 1 }}",
        "{{ state.nme | upper }}",
        "{{ state.nme() }}",
    ],
)
def test_a_missing_key_is_an_error_that_names_template_node_key_and_the_nearest_one(text: str) -> None:
    """F13: never an empty text, never None."""
    problem = refused(text, name="Ann", age=3)
    assert (problem.key, problem.template, problem.node, problem.place) == (
        "nme",
        text,
        "node 'n'",
        "f.yaml:3:5",
    )
    assert str(problem) == f"f.yaml:3:5: node 'n': {text!r}: the state has no key 'nme'; did you mean 'name'?"


def test_missing_values_deeper_down_are_errors_as_well() -> None:
    """F13."""
    assert "the mapping has no key 'b'; it has a" in str(refused("{{ state.m.b }}", m={"a": 1}))
    assert "there is no item 3 in this list" in str(refused("{{ state.l[3] }}", l=[1]))
    assert "the state has no key 'x'; it is empty" in str(refused("{{ state.x }}"))
    assert "int has no attribute 'zz'" in str(refused("{{ state.n.zz }}", n=5))
    assert "ZeroDivisionError" in str(refused("{{ 1 / state.n }}", n=0))


def test_keys_go_before_methods() -> None:
    """F13: a key that is called `items` is that key."""
    assert worked_out("{{ state.items }}", items=[1]) == [1]
    assert worked_out("{{ state.values }}", values=2) == 2
    assert worked_out("{% for k, v in state.m.items() %}{{ k }}{{ v }}{% endfor %}", m={"a": 1}) == "a1"
    assert worked_out("{{ state.get('x', 5) }}") == 5
    assert "no key 'update'" in str(refused("{{ state.update }}", a=1))
    assert "no key 'set'" in str(refused("{{ state.set('a', 2) }}", a=1))


def test_what_filters_make_is_plain_data() -> None:
    """F13, H4: so that it can be stored, and nothing that is missing hides inside."""
    assert worked_out("{{ state.l | map('upper') }}", l=["a", "b"]) == ["A", "B"]
    assert worked_out("{{ state.m.items() }}", m={"a": 1}) == [("a", 1)]
    assert worked_out("{{ range(3) }}") == [0, 1, 2]
    found = worked_out("{{ state.m | tojson }}", m={"a": "<"})
    assert (type(found), found) == (str, '{"a": "\\u003c"}')
    for text in ("{{ [state.gone] }}", "{{ {'a': state.gone} }}", "{{ state.l | map(attribute='gone') }}"):
        assert refused(text, l=[{}]).key == "gone"


class Thing:
    name = "kelp"
    _private = "no"

    def act(self) -> str:
        raise AssertionError("a template has called code")


@pytest.mark.parametrize(
    "text",
    [
        "{{ ''.__class__ }}",
        "{{ ''['__class__'] }}",
        "{{ '' | attr('__class__') }}",
        "{{ [''] | map(attribute='__class__') | list }}",
        "{{ state.__class__.__mro__ }}",
        "{{ state['__class__'] }}",
        "{{ state.t._private }}",
        "{{ state.t.act() }}",
        "{{ state.t.act.__globals__ }}",
        "{{ state.f() }}",
        "{{ range.__self__ }}",
        "{{ '{0.__class__}'.format(state) }}",
        "{{ '{x.__class__}'.format_map({'x': 1}) }}",
        "{{ state.l.append(1) }}",
        "{{ state.m.update({'a': 2}) }}",
        "{{ state.m.pop('a') }}",
        "{{ state.l.sort() }}",
        "{{ state.clear() }}",
        "{% set state.x = 5 %}x",
        "{{ namespace.__init__.__globals__ }}",
        "{{ dict.mro() }}",
    ],
)
def test_there_is_no_way_to_code_and_nothing_is_changed(text: str) -> None:
    """F13: whatever a template tries, it reaches plain values only."""
    given = {"t": Thing(), "f": lambda: 1 / 0, "l": [3, 1], "m": {"a": 1}}
    problem = refused(text, **given)
    assert problem.template == text
    assert (given["l"], given["m"]) == ([3, 1], {"a": 1})


def test_attributes_of_values_can_be_read() -> None:
    """F13: without the underscore, and without calling them."""
    assert worked_out("{{ state.t.name }}", t=Thing()) == "kelp"
    assert worked_out("{{ state.d.year }}", d=datetime(2026, 1, 1, tzinfo=UTC)) == 2026
    assert worked_out("{{ state.s.upper() }}", s="x") == "X"


@pytest.mark.parametrize(
    "text",
    [
        "{{ range(100000000) | list }}",
        f"{{{{ range({MAX_RANGE + 1}) | sum }}}}",
        "{{ 'x' * 1000000000 }}",
        "{{ 1000000000 * [1] }}",
        "{{ 10 ** 10000000 }}",
        "{{ '%1000000000d' % 1 }}",
        "{{ 'x'.ljust(1000000000) }}",
        "{{ 'x'.zfill(1000000000) }}",
    ],
)
def test_repetitions_and_powers_are_bounded(text: str) -> None:
    """F13: each is refused before it takes time or memory."""
    assert refused(text).template == text


def test_bounds_leave_room_for_ordinary_work() -> None:
    """F13."""
    assert worked_out("{{ range(3) | list }}") == [0, 1, 2]
    assert worked_out("{{ 'ab' * 2 ~ 2 ** 10 ~ 7 % 4 }}") == "abab10243"
    assert worked_out("{{ state.l | join(', ') }}", l=[1, 2]) == "1, 2"
    assert worked_out("{% set n = namespace(x=1) %}{% set n.x = 2 %}{{ n.x }}") == "2"
    assert worked_out("{% macro m(x) %}<{{ x }}>{% endmacro %}{{ m(1) }}") == "<1>"
    assert worked_out("{% for i in [1, 2] %}{{ loop.cycle('a', 'b') }}{% endfor %}") == "ab"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{{ state.x", "can't be parsed"),
        ("{% if x %}", "can't be parsed"),
        ("{{ state.x | nothing }}", "nothing"),
        ("{% include 'x' %}", "can't include others"),
        ("{% import 'x' as y %}", "can't include others"),
        ("{% extends 'x' %}", "can't include others"),
        ("{{ stat.x }}", "uses the unknown variable 'stat'; did you mean 'state'?"),
        ("{{ 'x' | center(9) }}", "center"),
        ("{{ lipsum() }}", "uses the unknown variable 'lipsum'"),
        ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "can't be parsed"),
        ("{{ " + "9" * 5000 + " }}", "can't be parsed"),
    ],
    ids=lambda text: text[:24],
)
def test_an_invalid_template_is_found_before_anything_runs(text: str, reason: str) -> None:
    """F13."""
    mistakes = Mistakes("f.yaml")
    TemplateCompiler(mistakes, NAMES).template(Value(text, 3, 5), "node 'n'")
    (mistake,) = mistakes.found
    assert (mistake.line, mistake.column) == (3, 5)
    assert reason in mistake.text


@pytest.mark.parametrize("text", ["state.x >", "a b", "state.x = 5", "", " ", "import os", "lambda: 1"])
def test_an_invalid_expression_is_found_before_anything_runs(text: str) -> None:
    """F13: no statements, no Python."""
    mistakes = Mistakes("f.yaml")
    TemplateCompiler(mistakes, NAMES).expression(Value(text), "node 'n'")
    assert mistakes.found


def test_data_is_worked_out_to_the_last_detail_and_never_twice() -> None:
    """F13: what a state holds is data, also where it looks like a template."""
    mistakes = Mistakes("f.yaml")
    given = Value.hidden_from(
        {"a": ["{{ state.x }}", {"b": "plain", "c": 5}], "d": "{{ state.x }}!"}, Value(None)
    )
    data = TemplateCompiler(mistakes, NAMES).data(given, "node 'n'")
    found = render_all(data, {"state": State({"x": "{{ 1 + 1 }}"})})
    assert found == {"a": ["{{ 1 + 1 }}", {"b": "plain", "c": 5}], "d": "{{ 1 + 1 }}!"}
