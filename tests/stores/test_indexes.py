"""The sorted indexes of stores that look for runs and documents in their own memory, against plain lists."""

from __future__ import annotations

from bisect import insort
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from limpet.journal.store import Document, Lane, RunHead
from limpet.stores import heads, indexes
from limpet.stores.indexes import DocumentIndex, RunIndex, SortedEntries

LANES = [Lane(queue, graph, plan) for queue in ("a", "b") for graph in ("x", "y") for plan in ("", "p")]
NOW = 2.0

few_parts = settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture
def short_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexes, "MAX_PART", 3)


@few_parts
@given(
    first=st.lists(st.integers(0, 50)),
    changes=st.lists(st.tuples(st.booleans(), st.integers(0, 50)), max_size=80),
    start=st.integers(0, 50),
)
def test_entries_stay_sorted_whatever_is_added_and_removed(
    short_parts: None, first: list[int], changes: list[tuple[bool, int]], start: int
) -> None:
    """H18: also an entry that is added or removed twice."""
    entries: SortedEntries[Any] = SortedEntries({(each,) for each in first})
    model = sorted({(each,) for each in first})
    for is_added, number in changes:
        if is_added:
            entries.add((number,))
            if (number,) not in model:
                insort(model, (number,))
        else:
            entries.discard((number,))
            model = [each for each in model if each != (number,)]
        assert bool(entries) == bool(model)
    assert list(entries.since(())) == model
    assert list(entries.since((start,))) == [each for each in model if each >= (start,)]


def _head(number: int, lane: Lane, due: float | None, priority: int) -> RunHead:
    return RunHead(
        f"r{number}",
        lane.graph,
        "running",
        sequence=1,
        snapshot=1,
        fence=1,
        created=float(number % 3),
        updated=0.0,
        due=due,
        priority=priority,
        plan=lane.plan,
        queue=lane.queue,
    )


some_heads = st.builds(
    _head,
    st.integers(0, 9),
    st.sampled_from(LANES),
    st.none() | st.sampled_from([0.0, 1.0, 2.0, 3.0, float("inf")]),
    st.integers(-1, 1),
)


@few_parts
@given(
    changes=st.lists(some_heads | st.integers(0, 9), max_size=60),
    lanes=st.lists(st.sampled_from(LANES), max_size=6),
)
def test_runs_are_found_in_the_order_of_their_urgency(
    short_parts: None, changes: list[RunHead | int], lanes: list[Lane]
) -> None:
    """H18: those of the lanes that are due; a change that is repeated is no other change."""
    index = RunIndex()
    model: dict[str, RunHead] = {}
    for change in changes:
        if isinstance(change, int):
            index.remove(f"r{change}")
            model.pop(f"r{change}", None)
        else:
            index.put(change.run_id, change)
            index.put(change.run_id, change)
            model[change.run_id] = change
    ready = [head for head in model.values() if heads.is_ready(head, lanes, NOW)]
    assert list(index.due(lanes, NOW)) == [head.run_id for head in heads.most_urgent_first(ready)]
    assert sorted(index.lanes()) == sorted({head.lane for head in model.values() if head.due is not None})


@few_parts
@given(
    changes=st.lists(
        st.tuples(
            st.text("a/b", max_size=3),
            st.booleans(),
            st.none() | st.sampled_from([0.0, 1.0, 2.0, 3.0]),
        ),
        max_size=60,
    ),
    prefix=st.text("a/", max_size=2),
    limit=st.none() | st.integers(0, 4),
)
def test_documents_are_found_by_prefix_and_by_due_time(
    short_parts: None, changes: list[tuple[str, bool, float | None]], prefix: str, limit: int | None
) -> None:
    """H18: in the order that the store seam asks for."""
    index = DocumentIndex()
    model: dict[str, Document] = {}
    for name, is_put, due in changes:
        if is_put:
            index.put(name, due)
            model[name] = Document(name, 1, b"", due)
        else:
            index.remove(name)
            model.pop(name, None)
    named = [document for name, document in model.items() if name.startswith(prefix)]
    for due_by in (None, NOW):
        expected = [document.name for document in heads.selected_documents(named, due_by)[:limit]]
        assert index.find(prefix, due_by, limit) == expected


def test_runs_that_are_due_later_are_passed_over_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """H18: thousands that sleep, at a higher priority than one that waits."""
    index = RunIndex()
    for number in range(3000):
        index.put(f"s{number}", _head(number, LANES[0], NOW + number + 1, priority=5))
    index.put("r", _head(9999, LANES[0], NOW, priority=0))
    seen: list[Any] = []
    since = SortedEntries.since

    def counted(entries: SortedEntries[Any], start: Any) -> Any:
        for entry in since(entries, start):
            seen.append(entry)
            yield entry

    monkeypatch.setattr(SortedEntries, "since", counted)
    assert list(index.due(LANES, NOW)) == ["r"]
    assert len(seen) == 2
