"""The values of a `Limit`. H18."""

from __future__ import annotations

import pytest

from limpet import DefinitionError, Limit, StateGraph, UsageError, Workflow


@pytest.mark.parametrize(
    ("text", "read"),
    [
        *(("5/s", "5/s"), ("5/sec", "5/s"), ("5/secs", "5/s"), ("5/2 seconds", "5/2s")),
        *(("60/m", "60/min"), ("60/min", "60/min"), ("60/mins", "60/min"), ("60 / 3 Minutes", "60/3min")),
        *(("9/h", "9/hour"), ("9/hours", "9/hour"), ("9/d", "9/day"), ("9/2days", "9/2day")),
    ],
)
def test_the_units_of_a_rate_are_words_or_their_first_letters(text: str, read: str) -> None:
    """H18: a word may be a plural."""
    assert str(Limit("x", rate=text).rate) == read


@pytest.mark.parametrize("text", ["1/ms", "1/ss", "5/hs", "1/ds", "1/minss", "1/week", "1/", "1/us"])
def test_a_unit_that_is_not_known_is_refused(text: str) -> None:
    """H18: above all, a millisecond isn't taken for a minute."""
    with pytest.raises(UsageError, match="a number of s, min, hours or days, such as '60/min'"):
        Limit("x", rate=text)


def test_none_means_no_limits() -> None:
    """H18: for a node, a task, and whole runs."""
    graph = StateGraph(name="g").add_node("a", run=lambda state: {"x": 1}, limits=None)  # type: ignore[arg-type]
    graph.set_entry_point("a").set_finish_point("a")
    compiled = graph.compile(limits=None).compiled()  # type: ignore[arg-type]
    assert (compiled.limits, compiled.plan.limits) == ((), ())
    flow = Workflow("w", limits=None)  # type: ignore[typeddict-item]
    flow.add_task("a", lambda: 1, limits=None)  # type: ignore[arg-type]
    assert (flow.compiled().limits, flow.compiled().plan.limits) == ((), ())
    with pytest.raises(DefinitionError, match=r"write \['openai'\]"):
        graph.add_node("b", limits="openai")
