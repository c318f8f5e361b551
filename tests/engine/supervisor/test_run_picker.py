"""Which runs a supervisor picks: fair between graphs, urgent ones first within a graph, never too many. H18."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from limpet import MemoryStore
from limpet.engine.leases.lease_client import client_for
from limpet.engine.supervisor import lanes
from limpet.engine.supervisor.catalog import GraphCatalog, GraphsOnStore
from limpet.engine.supervisor.lanes import ReadyRuns, ServedLanes
from limpet.engine.supervisor.run_picker import RunPicker, merge_ready
from limpet.journal.store import Lane, NewRun, RunHead

GRAPHS = "abc"


def served(store: MemoryStore, graphs: str, queues: tuple[str, ...] | None = None) -> ServedLanes:
    """The lanes of these graphs, each of which has one letter."""
    catalog = GraphCatalog({name: f"module:{name}" for name in graphs})
    return ServedLanes(GraphsOnStore(catalog, client_for(store), None), queues)


def head(run_id: str, graph: str, priority: int = 0, due: float = 0.0) -> RunHead:
    return RunHead(run_id, graph, "running", 1, 1, 1, 0.0, 0.0, due=due, priority=priority)


def expected_pick(
    ready: list[RunHead], running: dict[str, str], limits: dict[str, int], limit: int, history: list[str]
) -> list[RunHead]:
    """What is picked, run by run: of the graph with the fewest runs, then the one picked least recently."""
    picked: list[RunHead] = []
    while len(running) + len(picked) < limit:
        counts = Counter([*running.values(), *(each.graph for each in picked)])
        order = [*history, *(each.graph for each in picked)]
        left = [each for each in ready if each.run_id not in running and each not in picked]
        able = [each for each in left if counts[each.graph] < limits.get(each.graph, limit)]
        if not able:
            break
        turn = {name: place for place, name in enumerate(order)}
        first = min(able, key=lambda each: (counts[each.graph], turn.get(each.graph, -1)))
        of_graph = [each for each in able if each.graph == first.graph]
        picked.append(max(of_graph, key=lambda each: each.priority))
    return picked


class Picking(RuleBasedStateMachine):
    """A picker against the plain rule, while runs become ready, are picked and end."""

    def __init__(self) -> None:
        super().__init__()
        self.limit = 3
        self.limits = {"a": 2}
        self.picker = RunPicker(self.limit, self.limits)
        self.running: dict[str, str] = {}
        self.history: list[str] = []
        self.ready: list[RunHead] = []
        self.made = 0

    @rule(graph=st.sampled_from(GRAPHS), priority=st.integers(0, 2), at=st.integers(0, 20))
    def become_ready(self, graph: str, priority: int, at: int) -> None:
        self.made += 1
        self.ready.insert(min(at, len(self.ready)), head(f"r{self.made}", graph, priority))

    @rule()
    def pick(self) -> None:
        picked = self.picker.pick(self.ready)
        assert picked == expected_pick(self.ready, self.running, self.limits, self.limit, self.history)
        for each in picked:
            self.picker.started(each.run_id, each.graph)
            self.running[each.run_id] = each.graph
            self.history.append(each.graph)

    @rule(place=st.integers(0, 2))
    def end(self, place: int) -> None:
        if place < len(self.running):
            run_id = list(self.running)[place]
            del self.running[run_id]
            self.picker.ended(run_id)
            self.ready = [each for each in self.ready if each.run_id != run_id]

    @invariant()
    def never_too_many(self) -> None:
        assert len(self.picker.run_ids) <= self.limit
        assert self.picker.room == self.limit - len(self.running)
        for graph in GRAPHS:
            assert self.picker.room_for(graph) >= 0


TestPicking = Picking.TestCase
TestPicking.settings = settings(deadline=None, max_examples=50, stateful_step_count=30)
TestPicking.__doc__ = "H18: the picker follows the rule."


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(GRAPHS), st.integers(-1, 1)), max_size=30), st.integers(1, 5))
def test_a_look_alone_changes_nothing(runs: list[tuple[str, int]], limit: int) -> None:
    """H18: what is picked counts once it is started, and a run that is listed twice is picked once."""
    picker = RunPicker(limit)
    ready = [head(f"r{number}", graph, priority) for number, (graph, priority) in enumerate(runs)]
    picked = picker.pick([*ready, *ready])
    assert picked == picker.pick(ready)
    assert len({each.run_id for each in picked}) == len(picked) == min(limit, len(ready))


def test_a_worker_that_executes_one_run_at_a_time_alternates() -> None:
    """H18: between the graphs, whatever the priorities of one of them and the length of its queue."""
    picker = RunPicker(1)
    ready = [head(f"a{number}", "a", priority=9) for number in range(50)]
    ready += [head(f"b{number}", "b") for number in range(3)]
    order = []
    for _ in range(8):
        (picked,) = picker.pick(ready)
        picker.started(picked.run_id, picked.graph)
        picker.ended(picked.run_id)
        ready.remove(picked)
        order.append(picked.run_id)
    assert order == ["a0", "b0", "a1", "b1", "a2", "b2", "a3", "a4"]


class Worker:
    """A worker on a store in memory, of which each run takes one turn."""

    def __init__(self, store: MemoryStore, graphs: str, concurrency: int) -> None:
        self.store = store
        self.picker = RunPicker(concurrency)
        self.ready_runs = ReadyRuns(store, served(store, graphs))
        self.executed: list[RunHead] = []

    def turn(self) -> None:
        """Look, resume what is picked, and end it."""
        found = self.ready_runs.find(self.picker.room * 2)
        picked = self.picker.pick(found.heads)
        for each in picked:
            self.picker.started(each.run_id, each.graph)
        for each in picked:
            self.picker.ended(each.run_id)
            self.store.delete(each.run_id)
            self.executed.append(each)


@pytest.mark.parametrize("concurrency", [1, 4])
@pytest.mark.parametrize("priority", [0, 9])
def test_a_backlog_that_never_ends_starves_no_other_graph(concurrency: int, priority: int) -> None:
    """H18: even if its runs are urgent, and there are always more of them than a look lists."""
    store = MemoryStore()
    made = 0

    def queue(graph: str, number: int, **more: Any) -> None:
        nonlocal made
        for _ in range(number):
            made += 1
            store.create(NewRun(f"{graph}{made:04}", graph, [b"1"], due=0.0, **more))

    queue("a", 40, priority=priority)
    worker = Worker(store, "abc", concurrency)
    for _ in range(12):
        queue("a", concurrency, priority=priority)
        queue("b", 1)
        queue("c", 1)
        worker.turn()
        worker.turn()
        worker.turn()
        waiting = [each for each in store.ready(store.lanes(), 1000) if each.graph != "a"]
        assert len(waiting) <= 2, "they wait for a turn at most"
    counts = Counter(each.graph for each in worker.executed)
    assert counts["b"] >= 11
    assert counts["c"] >= 11


def test_of_many_graphs_some_are_asked_for_in_each_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """H18: a look takes few queries, and the next looks ask for the other graphs."""
    monkeypatch.setattr(lanes, "MAX_ASKED_APART", 2)
    store = MemoryStore()
    for number in range(30):
        store.create(NewRun(f"a{number}", "a", [b"1"], due=0.0, priority=1))
    for graph in "bcdefg":
        store.create(NewRun(graph, graph, [b"1"], due=0.0))
    asked: list[int] = []
    listed = store.ready
    monkeypatch.setattr(store, "ready", lambda lanes, limit: asked.append(len(lanes)) or listed(lanes, limit))
    finder = ReadyRuns(store, served(store, "abcdefg"))
    seen: set[str] = set()
    for _ in range(3):
        asked.clear()
        found = finder.find(4)
        assert found.has_more
        assert asked == [7, 1, 1]
        seen.update(each.graph for each in found.heads)
    assert seen == set("abcdefg")


def test_all_is_found_by_two_queries_if_the_list_is_not_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """H18: one for the lanes, and one for their runs; none of a graph that isn't known, or of another queue."""
    store = MemoryStore()
    for graph, queue in (("a", "default"), ("a", "gpu"), ("b", "gpu"), ("unknown", "gpu")):
        store.create(NewRun(f"{graph} {queue}", graph, [b"1"], due=0.0, queue=queue))
    asked: list[list[Lane]] = []
    listed = store.ready
    monkeypatch.setattr(store, "ready", lambda lanes, limit: asked.append(lanes) or listed(lanes, limit))
    finder = ReadyRuns(store, served(store, "ab", ("gpu",)))
    found = finder.find(10)
    assert [each.run_id for each in found.heads] == ["a gpu", "b gpu"]
    assert not found.has_more
    assert [sorted(lanes) for lanes in asked] == [[Lane("gpu", "a", ""), Lane("gpu", "b", "")]]


def test_lists_of_runs_are_merged_in_the_order_of_a_store() -> None:
    """H18: by priority, and then by how long they have been ready; each run once."""
    first = [head("late", "a", due=5.0), head("urgent", "a", priority=1, due=9.0)]
    second = [head("early", "b", due=1.0), head("late", "a", due=5.0)]
    assert [each.run_id for each in merge_ready([first, second])] == ["urgent", "early", "late"]
