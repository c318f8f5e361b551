"""Templates that would use up memory or time: each is refused at once, and ordinary ones aren't."""

from __future__ import annotations

from pathlib import Path
from subprocess import run
from sys import executable
from typing import Any

import pytest

from limpet.errors import TemplateError
from limpet.yaml_files.document import Value
from limpet.yaml_files.grammar.mistakes import Mistakes
from limpet.yaml_files.templates import TemplateCompiler

DOUBLING = "{% set ns = namespace(x=X) %}{% for i in range(60) %}{% set ns.x = Y %}{% endfor %}Z"


def doubling(start: str, step: str, end: str = "{{ ns.x }}") -> str:
    """A template that makes something larger sixty times."""
    return DOUBLING.replace("X", start, 1).replace("Y", step, 1).replace("Z", end)


PAYLOADS = [
    # Loops
    "{% for a in range(10000) %}{% for b in range(10000) %}{% endfor %}{% endfor %}",
    "{% for a in range(10000) %}{% for b in range(10000) if b < 0 %}{% endfor %}{% endfor %}",
    "{% for a in range(10000) %}{% for b in range(10000) %}{{ a }}{% endfor %}{% endfor %}",
    "{% for a in range(10000) %}{% for b in range(10000) %}text{% endfor %}{% endfor %}",
    "{% for a in range(10000) %}" + "long text " * 2000 + "{% endfor %}",
    "{% for a in range(10000) %}{{ state.s }}{{ state.s }}{{ state.s }}{% endfor %}",
    "{% for a in range(10000) %}{% set x = state.s * 900 %}{% endfor %}",
    "{% for a in [[[0] * 99] * 99] * 99 recursive %}{{ loop(a) if a is iterable }}{% endfor %}",
    "{% for a in range(10000) %}{{ range(10000) | list | length }}{% endfor %}",
    "{% for a in range(10000) %}{{ range(10000) | sum }}{% endfor %}",
    "{% for a in range(10000) %}{{ range(10000) | map('string') | join | length }}{% endfor %}",
    "{% for a in range(10000) %}{{ -1 in state.l }}{% endfor %}",
    "{% for a in range(10000) %}{{ state.l is eq state.m }}{% endfor %}",
    "{% for a in range(10000) %}{{ state.l == state.m }}{% endfor %}",
    "{% for a in range(10000) %}{{ (state.l[1:])[0] }}{% endfor %}",
    "{% for a in range(10000) %}{{ state.l | sort | first }}{% endfor %}",
    "{% for a in range(10000) %}{{ state.l | select('eq', 1) | list }}{% endfor %}",
    "{% set x = state.s * 900 %}{% for a in range(10000) %}{{ 'y' in x }}{% endfor %}",
    "{% set x = state.s * 900 %}{% for a in range(10000) %}{{ x.count('y') }}{% endfor %}",
    # Macros and blocks
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(40) }}",
    "{% macro f() %}{{ f() }}{{ f() }}{% endmacro %}{{ f() }}",
    "{% macro f(n) %}x{% if n %}{{ f(n - 1) * 2 }}{% endif %}{% endmacro %}{{ f(40) }}",
    "{% macro f(n) %}{{ caller() * 9 }}{% endmacro %}{% call f(1) %}{{ state.s * 1000 }}{{ state.s * 1000 }}"
    "{% endcall %}",
    "{% for a in range(10000) %}{% filter upper %}{{ state.s * 100 }}{% endfilter %}{% endfor %}",
    "{% for a in range(10000) %}{% set x %}{{ state.s * 100 }}{% endset %}{% endfor %}",
    # Texts that grow
    doubling("'ab'", "ns.x ~ ns.x"),
    doubling("'ab'", "ns.x + ns.x"),
    doubling("'ab'", "ns.x * 2"),
    doubling("'ab'", "ns.x | replace('a', 'aa')"),
    doubling("'ab'", "ns.x.replace('a', 'aa')"),
    doubling("'ab'", "[ns.x, ns.x] | join"),
    doubling("'ab'", "''.join([ns.x, ns.x])"),
    doubling("'ab'", "[ns.x, ns.x] | string"),
    doubling("'ab'", "[ns.x, ns.x] | tojson"),
    doubling("'<'", "(ns.x ~ ns.x) | escape"),
    doubling("'<'", "(ns.x ~ ns.x) | urlencode"),
    doubling("b", "ns.x * 2").replace("=b", "=state.b"),
    "{{ (state.s * 1000).replace('x', state.s) }}",
    "{{ (state.s * 1000) | replace('x', state.s) }}",
    "{{ (state.s * 1000) | replace('', state.s) }}",
    "{{ range(10000) | join(state.s * 100) }}",
    "{{ (state.s * 100).join(state.l) }}",
    "{{ state.s.translate({120: state.s * 1000}) }}",
    "{{ '%999999999d' % 1 }}",
    "{{ '%999999999d' | format(1) }}",
    "{{ '{:999999999}'.format(1) }}",
    "{{ '{:{}}'.format(1, 999999999) }}",
    "{{ state.s.center(999999999) }}",
    "{{ state.s.ljust(999999999) }}",
    "{{ 'x\ty'.expandtabs(999999999) }}",
    "{{ '7'.zfill(999999999) }}",
    "{{ state.s | center(999999999) }}",
    "{{ state.s | indent(999999999) }}",
    "{{ state.s | wordwrap(1, wrapstring=state.s * 1000) }}",
    "{{ [[1]] | tojson(indent=999999999) }}",
    "{{ [state.s * 1000] * 1000 }}",
    "{{ [state.s * 1000] * 1000 ~ '' }}",
    "{{ ([state.s * 1000] * 1000) | tojson }}",
    "{{ ([state.s * 1000] * 1000) | join }}",
    "{{ ([state.s * 1000] * 1000) | pprint }}",
    "{{ state.day.strftime('%999999999d') }}",
    # Lists that grow
    doubling("[1]", "ns.x + ns.x"),
    doubling("[1]", "ns.x * 2"),
    doubling("[1]", "[ns.x, ns.x]", "{{ ns.x }}"),
    doubling("(1,)", "(ns.x, ns.x)", "{{ ns.x | length }}"),
    doubling("{'a': 1}", "{'a': ns.x, 'b': ns.x}", "{{ ns.x | tojson }}"),
    doubling("{'a': 1}", "dict(a=ns.x, b=ns.x)", "{{ ns.x | string }}"),
    "{{ [1] | batch(999999999, 0) | list }}",
    "{{ [1] | slice(999999999, 0) | list }}",
    "{{ [0] * 999999999 }}",
    "{{ 999999999 * (0,) }}",
    "{{ ([state.l] * 1000) | sum(start=[]) }}",
    "{{ range(999999999) }}",
    # Numbers that grow
    "{{ 9 ** (9 ** 9) }}",
    doubling("3", "ns.x * ns.x"),
    doubling("3", "ns.x ** 2"),
    "{{ 1.5 | round(999999999, 'ceil') }}",
    "{{ (1).to_bytes(999999999, 'big') }}",
]

HUNT = """
import json, resource, sys, time
from datetime import date
from pathlib import Path

from limpet.errors import TemplateError
from test_template_limits import PAYLOADS, compiled

size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + 400 * 2**20,) * 2)
state = {"s": "x" * 1000, "b": b"ab", "l": list(range(5000)), "m": list(range(5000)), "day": date(2026, 1, 2)}
for payload in PAYLOADS:
    began = time.process_time()
    try:
        outcome = f"gave {type(compiled(payload).render({'state': state})).__name__}"
    except TemplateError as refused:
        outcome = ""
        if "MemoryError" in str(refused):
            outcome = "used up the memory"
    except BaseException as problem:
        outcome = f"raised {problem!r}"
    took = time.process_time() - began
    if outcome or took > 1:
        print(f"{payload[:150]}: {outcome} after {took:.1f} s")
"""


def compiled(text: str) -> Any:
    """The template of a text, which may use `state`. Raises `TemplateError` if it has a mistake."""
    mistakes = Mistakes("file.yaml")
    template = TemplateCompiler(mistakes, ["state"]).template(Value(text, 1, 1), "here")
    if template is None:
        mistake = str(mistakes.found)
        assert "No filter named" in mistake, mistake
        raise TemplateError("here", text, mistake, "file.yaml:1:1")
    return template


def test_no_template_can_use_up_memory_or_time() -> None:
    """F13: each of these is refused within a second of work and within 400 MB."""
    assert len(PAYLOADS) > 51
    here = str(Path(__file__).parent)
    done = run([executable, "-c", HUNT], capture_output=True, text=True, cwd=here, timeout=120)
    assert (done.stdout, done.stderr) == ("", "")


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("{{ state.l }}", list(range(5000))),
        ("{{ state.l | length }} rows", "5000 rows"),
        ("{{ state.l | map('string') | join(', ') }}", ", ".join(map(str, range(5000)))),
        (
            "{% for n in state.l %}{{ n }} is {{ n * n }};{% endfor %}",
            "".join(f"{n} is {n * n};" for n in range(5000)),
        ),
        ("{% for n in state.l if n > 4997 %}{{ loop.index }}/{{ loop.length }} {% endfor %}", "1/2 2/2 "),
        (
            "{% for a in [[1, [2]], [3]] recursive %}<{{ loop(a) if a is iterable else a }}>{% endfor %}",
            "<<1><<2>>><<3>>",
        ),
        ("{{ state.long ~ '!' }}", "x" * 5_000_000 + "!"),
        ("it is {{ state.long }}", "it is " + "x" * 5_000_000),
        ("{{ state.long | upper | length }}", 5_000_000),
        ("{{ 'y' in state.long }}", False),
        ("{{ 2 ** 100 }}", 2**100),
        ("{{ [1, 2] + [3] }}", [1, 2, 3]),
        ("{{ {'a': [1, (2, 3)]} | tojson }}", '{"a": [1, [2, 3]]}'),
        ("{{ [3, 1, 2] | sort | first + 1 }}", 2),
        ("{% macro f(n) %}{{ n }}{% if n %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(5) }}!", "543210!"),
        ("{{ 'a-b'.split('-') | join('+') }}", "a+b"),
        ("{{ 2.345 | round(2) }}", 2.35),
        ("{{ [1, 2, 3] | batch(2) | list }}", [[1, 2], [3]]),
        (
            "{% set ns = namespace(n=0) %}{% for i in state.l %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}",
            "12497500",
        ),
    ],
)
def test_what_templates_are_for_is_not_refused(text: str, result: Any) -> None:
    """F13: loops over thousands of rows, texts of megabytes, and all operators and filters on plain values."""
    state = {"l": list(range(5000)), "long": "x" * 5_000_000}
    assert compiled(text).render({"state": state}) == result


def test_a_refusal_says_what_was_too_much() -> None:
    """F13: with the template and its place."""
    with pytest.raises(TemplateError, match="more than 100,000 steps") as refused:
        compiled(PAYLOADS[0]).render({"state": {}})
    assert "file.yaml:1:1" in str(refused.value)
    with pytest.raises(TemplateError, match="a text of more than 10,000,000 characters"):
        compiled(doubling("'ab'", "ns.x ~ ns.x")).render({"state": {}})
