"""Which planned times are fired and which are skipped, by overlap and catch-up, against a plain reading. H17."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from limpet import MemoryStore, Runs, Schedules
from limpet.testing import FakeClock
from support.schedules import counting_graph, worker

BEGIN = int(datetime(2026, 11, 15, 2, 0, tzinfo=UTC).timestamp())
INTERVAL = 600
GRACE = 60


class PlainSchedule:
    """What is promised about a schedule, in lists of times."""

    def __init__(self, overlap: str, catch_up: str) -> None:
        self.overlap = overlap
        self.catch_up = catch_up
        self.now = float(BEGIN)
        self.decided = BEGIN
        """All times up to this one are fired, skipped, left out, or wait."""
        self.waiting: list[int] = []
        self.fired: list[int] = []
        self.skipped: list[int] = []
        self.unfinished: list[int] = []
        self.cancelled: list[int] = []
        self.is_paused = False

    def times(self) -> list[int]:
        """The times that have come and aren't decided."""
        return list(range(self.decided + INTERVAL, int(self.now) + 1, INTERVAL))

    def look(self) -> None:
        """A worker looks."""
        if self.is_paused:
            return
        due = self.times()
        if due:
            self.decided = due[-1]
        taken = due
        if self.catch_up != "all":
            in_time = due and (self.catch_up == "last" or self.now - due[-1] <= GRACE)
            taken = due[-1:] if in_time else []
        self.skipped += [each for each in due if each not in taken]
        self.waiting += taken
        while self.waiting and not (self.overlap == "queue" and self.unfinished):
            first = self.waiting.pop(0)
            if self.overlap == "skip" and self.unfinished:
                self.skipped.append(first)
                continue
            if self.overlap == "cancel_old":
                self.cancelled += self.unfinished
                self.unfinished = []
            self.fired.append(first)
            self.unfinished.append(first)

    def resume(self) -> None:
        """It is resumed: what came during the pause is left out."""
        if self.is_paused:
            self.is_paused = False
            self.decided = max([self.decided, *self.times()])


STEPS = st.one_of(
    st.tuples(st.just("pass"), st.sampled_from([10, 50, 70, 300, 600, 650, 1200, 3700])),
    st.tuples(st.just("look"), st.just(0)),
    st.tuples(st.just("look"), st.just(0)),
    st.tuples(st.just("end"), st.integers(0, 3)),
    st.tuples(st.just("set back"), st.sampled_from([30, 900])),
    st.tuples(st.just("pause"), st.just(0)),
    st.tuples(st.just("resume"), st.just(0)),
)


@settings(max_examples=120, deadline=None)
@given(
    st.sampled_from(["skip", "queue", "allow", "cancel_old"]),
    st.sampled_from(["none", "last", "all"]),
    st.lists(STEPS, max_size=25),
)
def test_each_time_is_fired_or_skipped_as_the_policies_say(
    overlap: Any, catch_up: Any, steps: list[tuple[str, int]]
) -> None:
    """H17: whenever workers look, runs end, the schedule is paused, and the clock is set back."""
    clock = FakeClock(BEGIN)
    store = MemoryStore(clock=clock)
    graph = counting_graph(store)
    schedules = Schedules(store)
    schedules.add("sums", graph, every=INTERVAL, overlap=overlap, catch_up=catch_up)
    plain = PlainSchedule(overlap, catch_up)
    looks = worker(store, graph)
    for step, amount in [*steps, ("look", 0)]:
        match step:
            case "pass":
                clock.skip(amount)
            case "set back":
                clock.set_by(-amount)
            case "look":
                looks.look()
                plain.look()
            case "end" if plain.unfinished:
                planned = plain.unfinished.pop(amount % len(plain.unfinished))
                graph.resume(_run_id(planned))
            case "pause":
                schedules.pause("sums")
                plain.is_paused = True
            case "resume":
                schedules.resume("sums")
                plain.resume()
        plain.now = clock()
        _check(plain, schedules, Runs(store))


def _check(plain: PlainSchedule, schedules: Schedules, runs: Runs) -> None:
    stored = {info.run_id: info for info in runs.list()}
    assert sorted(stored) == sorted(map(_run_id, plain.fired))
    cancelled = sorted(each for each, info in stored.items() if info.status == "cancelled")
    assert cancelled == sorted(map(_run_id, plain.cancelled))
    info = schedules.get("sums")
    assert (info.fired, info.skipped, info.waiting) == (
        len(plain.fired),
        len(plain.skipped),
        len(plain.waiting),
    )
    assert info.paused == plain.is_paused
    fired = [firing.planned for firing in info.recent if firing.outcome == "fired"]
    assert fired == sorted(set(fired))


def _run_id(planned: int) -> str:
    return f"sums:{datetime.fromtimestamp(planned, UTC):%Y%m%dT%H%MZ}"
