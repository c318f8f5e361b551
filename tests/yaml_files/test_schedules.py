"""Schedules that a file declares. H17."""

from __future__ import annotations

import sys

import pytest

from limpet import DeclarationError, loads
from limpet.yaml_files.loading import check_text

FILE = """
name: letters
nodes:
  - name: send
    set: {{sent: true}}
schedules:
  - {}
"""


def test_the_schedules_of_a_file_are_as_add_takes_them() -> None:
    """H17: of graphs and of workflows, and of files that are only checked."""
    text = FILE.format("{name: often, every: 15m, input: {x: 1}, tags: [a]}")
    expected = [{"name": "often", "every": "15m", "input": {"x": 1}, "tags": ["a"]}]
    assert loads(text).declared_schedules == expected
    assert check_text(text).declared_schedules == expected
    assert loads(text.replace("nodes", "tasks")).declared_schedules == expected
    assert loads(text.partition("schedules")[0]).declared_schedules == []


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        ("{name: often}", "schedule 'often' needs one of 'cron', 'every'"),
        ("{name: often, cron: 0 0 * * *, every: 1h}", "only one of them is allowed"),
        ("{every: 1h}", "needs the key 'name'"),
        ("{name: a/b, every: 1h}", "name must be a name without '/', ',' and ':'"),
        ("{name: often, every: soon}", "every must be an interval such as 30s"),
        ("{name: often, cron: 0 25 * * *}", "wrong hour"),
        ("{name: often, every: 1h, timezone: Berlin}", "there is no time zone 'Berlin'"),
        ("{name: often, every: 1h, overlap: wait}", "overlap can't be 'wait'"),
        ("{name: often, every: 1h, starts: 2h}", "starts must be a date and time"),
        ("{name: often, every: 1h, starts: 1800}", "starts must be a date and time"),
        ("{name: often, every: 1h, ends: 2w}", "ends must be a date and time"),
        ("{name: often, interval: 1h}", "did you mean 'every'?"),
        ("{name: often, every: 1h}\n  - {name: often, every: 2h}", "two schedules called 'often'"),
    ],
)
def test_mistakes_are_reported_with_their_places(declared: str, said: str) -> None:
    """H17: when the file is loaded, and not when it would fire."""
    with pytest.raises(DeclarationError) as caught:
        loads(FILE.format(declared))
    assert said in str(caught.value)
    assert ":7:" in str(caught.value) or ":8:" in str(caught.value)


def test_all_mistakes_of_a_file_are_listed_together() -> None:
    """H17: also those that only a look at the values finds, each at its line."""
    declared = """{name: first, every: 1h, priority: 99999999999999999999}
  - {name: second, every: 0s}
  - {name: third, every: 1h, timezone: Berlin}
  - {name: third, every: 2h}"""
    with pytest.raises(DeclarationError) as caught:
        loads(FILE.format(declared).replace("set:", "sets:"))
    lines = [line for line, _ in caught.value.places]
    assert lines == [5, 7, 8, 9, 10]
    found = dict(zip(lines, caught.value.mistakes, strict=True))
    assert "priority is a whole number of at most 64 bits" in found[7]
    assert "there are two schedules called 'third'" in found[10]


def test_a_graph_inside_another_one_has_no_schedules() -> None:
    """H17: it has no runs."""
    text = """
nodes:
  - name: inner
    graph:
      nodes: [{name: a, set: {x: 1}}]
      schedules: [{name: often, every: 1h}]
"""
    with pytest.raises(DeclarationError, match="has no runs, so it has no schedules"):
        loads(text)


def test_a_graph_can_be_loaded_without_the_package_for_cron(monkeypatch: pytest.MonkeyPatch) -> None:
    """H17: only the worker that fires needs it."""
    monkeypatch.setitem(sys.modules, "cronsim", None)
    monkeypatch.setattr("limpet.yaml_files.loading.find_spec", lambda name: None)
    assert len(loads(FILE.format("{name: nightly, cron: 0 3 * * *}")).declared_schedules) == 1
