"""When a suspect gets its turn: alone, soon, and for no longer than the others wait. H1."""

from __future__ import annotations

import threading
from time import sleep
from typing import Any

from limpet import MemoryStore, State, StateGraph, supervise
from limpet.engine.supervisor.suspects import Suspects
from limpet.journal.reader import read_progress
from limpet.journal.run_filter import RunFilter
from limpet.journal.store import RunHead
from support.waiting import until


def head(run_id: str) -> RunHead:
    return RunHead(run_id, "g", "running", sequence=1, snapshot=1, fence=1, created=0.0, updated=0.0)


def test_a_suspect_gets_its_turn_at_once_if_nothing_else_wants_to_execute() -> None:
    """H1."""
    suspects = Suspects(pause=10.0)
    suspects.add(head("s"), alone=0, now=100.0, chance=1.0)
    assert suspects.choose(100.0, others_wait=True) is None
    assert suspects.choose(100.0, others_wait=False) == head("s")
    assert (suspects.admits("s"), suspects.admits("other")) == (True, False)


def test_the_others_get_as_much_time_as_the_last_turn_took() -> None:
    """H1: a worker with many suspects and slow nodes still executes the others for half of the time."""
    suspects = Suspects(pause=1.0)
    for run_id in ("s", "t"):
        suspects.add(head(run_id), alone=0, now=0.0, chance=0.5)
    assert suspects.choose(0.4, others_wait=True) is None
    assert suspects.choose(0.5, others_wait=True) == head("s")
    suspects.end_turn("s", now=60.5)
    assert suspects.admits("other")
    assert suspects.choose(120.4, others_wait=True) is None
    assert suspects.choose(120.5, others_wait=True) == head("t")
    suspects.end_turn("t", now=120.6)
    suspects.add(head("u"), alone=0, now=120.7, chance=0.0)
    assert suspects.choose(121.5, others_wait=True) is None
    assert suspects.choose(121.6, others_wait=True) == head("u")


def test_the_suspect_that_crashed_alone_least_often_comes_first() -> None:
    """H1: so that kills for other reasons don't all hit the same innocent run."""
    suspects = Suspects(pause=1.0)
    for run_id, alone in [("s", 2), ("t", 0), ("u", 1), ("v", 0)]:
        suspects.add(head(run_id), alone, now=0.0, chance=0.0)
    order = []
    for _ in range(4):
        chosen = suspects.choose(0.0, others_wait=False)
        assert chosen is not None
        order.append(chosen.run_id)
        suspects.end_turn(chosen.run_id, now=0.0)
    assert order == ["t", "v", "u", "s"]
    assert suspects.waiting == []


class Place:
    """Runs of two graphs on a memory store: short ones, and endless ones that end when the test says so."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.may_end = threading.Event()
        self.executing: set[str] = set()
        self.beside: set[str] = set()
        """What executed while a short run did."""
        self.short = StateGraph({"n": int}, name="short")
        self.short.add_node("node", run=self._short)
        self.endless = StateGraph({"n": int}, name="endless", max_iterations=10**9)
        self.endless.add_node("node", run=self._endless)
        self.endless.add_edge("node", "node", lambda state: not self.may_end.is_set())
        for graph in (self.short, self.endless):
            graph.set_entry_point("node").set_finish_point("node")
            graph.compile(store=self.store)

    def _short(self, state: State) -> dict[str, Any]:
        for _ in range(20):
            self.beside |= self.executing
            sleep(0.002)
        return {"n": 1}

    def _endless(self, state: State, ctx: Any) -> dict[str, Any]:
        self.executing.add(ctx.run_id)
        sleep(0.002)
        self.executing.discard(ctx.run_id)
        return {"n": state.get("n", 0) + 1}

    def start_suspect(self, run_id: str) -> None:
        """Start a run whose process crashes twice."""
        self.short.start(run_id=run_id)
        for _ in range(2):
            self.store.claim(run_id, "somewhere else", 0.0)

    def steps(self, run_id: str) -> int:
        return self.store.head(run_id).sequence

    def has_completed(self, run_id: str) -> bool:
        return self.store.head(run_id).status == "completed"


def test_runs_in_progress_make_room_for_suspects_and_continue() -> None:
    """H1: runs that would go on for ever leave before their next node, and are resumed after the suspect."""
    place = Place()
    suspects = ["s1", "s2", "s3"]
    endless = ["x", "y"]
    for each in suspects:
        place.start_suspect(each)
    for each in endless:
        place.endless.start(run_id=each)
    with supervise(place.store, [place.short, place.endless], poll=0.02):
        for each in suspects:
            until(lambda each=each: place.has_completed(each))
        for each in endless:
            before = place.steps(each)
            until(lambda each=each, before=before: place.steps(each) > before)
        place.may_end.set()
        for each in endless:
            until(lambda each=each: place.has_completed(each))
    assert place.beside == set()


def test_a_suspect_gets_its_turn_beside_runs_of_the_users_own_code() -> None:
    """H1: those don't make room, so the suspect executes beside them, and a crash then wouldn't count."""
    place = Place()
    place.start_suspect("s")
    own = threading.Thread(target=place.endless.execute, kwargs={"run_id": "own"})
    own.start()
    until(lambda: "own" in {head.run_id for head in place.store.list(RunFilter()) if head.sequence > 3})
    with supervise(place.store, [place.short], poll=0.02):
        until(lambda: place.has_completed("s"))
    place.may_end.set()
    own.join()
    assert place.beside == {"own"}
    trials = [read_progress(place.store.read("s")).meta["trial"]["alone"]]
    assert trials == [False]


def test_a_step_that_is_stored_on_the_way_out_is_reported_as_saved() -> None:
    """G11, H1: a run that makes room, or whose worker is stopped, loses no event of a step."""
    place = Place()
    place.endless.start(run_id="x")
    completed: list[int] = []
    saved: list[int] = []

    def watch(event: Any) -> None:
        if event.type == "node.complete":
            completed.append(event.data["iteration"])
        elif event.type == "checkpoint.save":
            saved.append(event.data["step"])

    for _ in range(10):
        before = len(completed)
        with supervise(place.store, [place.endless], poll=0.02, observers=[watch]):
            until(lambda before=before: len(completed) > before + 2)
    assert saved == completed == list(range(1, len(completed) + 1))
