"""Crash points in the log of a run, comparison with the uninterrupted run, and the report."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from limpet import UsageError
from limpet.testing.crash.child_run import value_as_text
from limpet.testing.crash.comparison import UninterruptedRun, compare, repeated_calls
from limpet.testing.crash.crash_points import CrashPoint, chain_of, points_of, random_moments, sample
from limpet.testing.crash.report import CrashReport, Finding, Kill

Note = dict[str, Any]


def start(number: int, node: str, at: float = 0.0) -> Note:
    return {"note": "start", "number": number, "call": f"r/{node}", "node": node, "attempt": 1, "at": at}


def ended(node: str, at: float) -> Note:
    return {"note": "ended", "call": f"r/{node}", "finished": True, "at": at}


def saved(number: int, *nodes: str) -> list[Note]:
    calls = [f"r/{node}" for node in nodes]
    return [{"note": "commit", "number": number}, {"note": "ack", "number": number, "calls": calls}]


def effect(name: str, key: str | None = None, node: str = "pay") -> Note:
    return {"note": "effect", "name": name, "key": key, "node": node, "call": f"r/{node}"}


def process() -> Note:
    return {"note": "process"}


def event(node: str) -> Note:
    return {"note": "event", "node": node}


UNINTERRUPTED = [*saved(1), start(1, "pay", 1.0), effect("charge", "k"), ended("pay", 1.5), *saved(2, "pay")]


def test_a_log_has_a_point_around_each_commit_in_each_call_and_after_each_effect() -> None:
    """H3: in the order in which the run reaches them, with the place in words."""
    points = points_of(UNINTERRUPTED)
    names = "1:before 1:written 1:after call-1:inside effect-1:done 2:before 2:written 2:after"
    assert [point.name for point in points] == names.split()
    assert points[0].where == "before commit 1 that creates the run"
    assert points[3] == CrashPoint("call-1:inside", "inside of call 1, of node 'pay'", 0.25)
    assert points[6].where == "after the write, before the acknowledgement, of commit 2 that saves node 'pay'"


@pytest.mark.parametrize("size", [1, 5, 8, 20, 1000])
def test_a_sample_has_a_point_of_each_kind_and_keeps_the_order(size: int) -> None:
    """Also a small one."""
    notes = [note for number in range(1, 30) for note in (*saved(number), start(number, "n"), effect("e"))]
    points = points_of(notes)
    chosen = sample(points, size)
    assert [point for point in points if point in chosen] == chosen
    assert len(chosen) == min(max(size, 5), len(points))
    assert len({point.name.partition(":")[2] for point in chosen}) == 5


@pytest.mark.parametrize(
    ("killed", "kinds"),
    [
        (UNINTERRUPTED, []),
        ([*UNINTERRUPTED[:4], *UNINTERRUPTED], []),
        ([*UNINTERRUPTED, start(1, "pay")], ["again"]),
        ([*UNINTERRUPTED[:5], start(1, "pay")], ["again"]),
        ([*UNINTERRUPTED[:5], process(), start(1, "pay")], []),
        ([*UNINTERRUPTED[:5], event("pay"), process(), start(1, "pay")], ["again"]),
        ([*UNINTERRUPTED, process(), effect("charge", "k")], ["again"]),
        ([*UNINTERRUPTED, effect("charge", "other")], ["key"]),
        ([*UNINTERRUPTED, effect("mail")], ["effect"]),
        ([*UNINTERRUPTED, effect("log"), effect("log")], []),
        ([note for note in UNINTERRUPTED if note["note"] != "effect"], ["missing"]),
    ],
    ids=[
        "same",
        "cut off",
        "ran again",
        "ran twice in a process",
        "ran again unsaved",
        "ran again after its event",
        "effect after it was saved",
        "another key",
        "more",
        "repeatable",
        "missing",
    ],
)
def test_what_differs_is_found(killed: list[Note], kinds: list[str]) -> None:
    """H3, invariant 2: a saved call that starts again, effects that count more often, or not at all."""
    found = compare(UninterruptedRun({"a": "1"}, UNINTERRUPTED), {"a": "1"}, killed, (), ("log",))
    assert [finding.kind for finding in found] == kinds


def test_states_are_compared_key_by_key() -> None:
    """H4: keys that are missing, new or different, except those to ignore."""
    expected = UninterruptedRun({"a": "1", "b": "2", "c": "3", "d": "4"}, [])
    found = compare(expected, {"a": "1", "b": "'2'", "d": "5", "e": "6"}, [], ("d",), ())
    assert [finding.text for finding in found] == [
        "state['b']: the uninterrupted run has 2, the resumed one has '2'",
        "state['c']: the uninterrupted run has 3, the resumed one has no such key",
        "state['e']: the uninterrupted run has no such key, the resumed one has 6",
    ]


def test_the_order_of_keys_is_compared() -> None:
    """H4: that of the state itself, except of keys to ignore."""
    expected = UninterruptedRun({"a": "1", "b": "2", "c": "3"}, [])
    assert compare(expected, {"c": "3", "a": "1", "b": "2"}, [], ("c",), ()) == []
    found = compare(expected, {"b": "2", "a": "1", "c": "3"}, [], (), ())
    assert [finding.kind for finding in found] == ["state"]
    assert "another order: ['a', 'b', 'c'] in the uninterrupted run, ['b', 'a', 'c']" in found[0].text


def test_equal_values_are_shown_alike_and_others_are_not() -> None:
    """H4: whatever the order of sets is; types and the order of keys show."""
    assert value_as_text({"a": {1, "x"}, "b": (1, [2.0])}) == value_as_text({"a": {"x", 1}, "b": (1, [2.0])})
    values = [
        1,
        1.0,
        True,
        "1",
        (1,),
        [1],
        {1},
        frozenset({1}),
        {1: 1},
        None,
        b"1",
        {1: 2, 3: 4},
        {3: 4, 1: 2},
    ]
    assert len({value_as_text(value) for value in values}) == len(values)


def test_calls_beyond_those_of_the_uninterrupted_run_are_counted() -> None:
    """H3: each of a call that it made more often; and the most for one kill."""
    killed = [*UNINTERRUPTED[:4], *UNINTERRUPTED[:4], *UNINTERRUPTED, start(2, "ship"), start(2, "ship")]
    assert repeated_calls([*UNINTERRUPTED, start(2, "ship")], killed) == 3
    point = CrashPoint("2:before", "before it")
    report = CrashReport("shop:build", 3, [Kill(point, 2, [], 3), Kill(point, 0, []), Kill(point, 5, [], 5)])
    assert (report.killed_processes, report.repeated_per_kill) == (7, 1.5)


def test_a_chain_has_names_of_points() -> None:
    """Those of processes that resume a run, too: a report shows the first few, and how to repeat it."""
    points = ["1:before", "layer-2:after", "call-3:inside", "effect-4:done", "effect-pay it-2:done"]
    chain = chain_of(points)
    assert chain.name == "1:before, layer-2:after, call-3:inside, effect-4:done, … (5 points)"
    text = str(CrashReport("shop:build", 3, [Kill(chain, 5, [Finding("late", "it didn't end")])]))
    assert f"point={chain.name}: killed there, one process after the other" in text
    assert text.endswith(f"To see one of them again: chains=[{points!r}]")
    for wrong in ("1:before", [], ["1:somewhere"], ["before"], ["layer-:after"], [3]):
        with pytest.raises(UsageError, match="point"):
            chain_of(wrong)  # type: ignore[arg-type]


def test_random_moments_are_spread_over_a_run() -> None:
    """H3: from the end of the log on; later and later, so that a run which saves seldom ends as well."""
    moments = random_moments(Random(1), 100, lambda: 1000)
    notes = [next(moments).notes - 1000 for _ in range(200)]
    assert all(1 <= each <= 20 for each in notes[:1])
    assert min(notes[:10]) < 20
    assert max(notes) > 100


def test_a_report_lists_each_finding_once_with_its_points() -> None:
    """And advises once for each kind, and says how to repeat a point that is exact."""
    twice = Finding("effect", "effect 'charge' happened 2 times")
    late = CrashPoint("call-1:inside", "inside", 0.5)
    kills = [Kill(late, True, [twice]), Kill(CrashPoint("2:before", "before it"), True, [twice, twice])]
    report = CrashReport(
        "shop:build", 3, [*kills, Kill(CrashPoint("3:after", "after it"), False, [])], " or {point}"
    )
    text = str(report)
    assert (report.ok, report.points, report.killed) == (False, 3, 2)
    assert text.count("happened 2 times") == 1
    assert text.count("→") == 1
    assert "point=call-1:inside: killed inside" in text
    assert "point=2:before: killed before it" in text
    assert text.endswith("point='2:before' or 2:before")
