"""Nested sections whose nodes have limits, against the plain interpreter that knows of none: H18, H3, invariant 2.

The sketches, the interpreter and the bench are those of `test_branches.py`. Here nodes need slots of limits by their
names, so branches of a run wait for each other, and another run has slots at times. Whatever is cut, the result is
what it is without limits, and never more calls are under way than a limit allows.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from limpet import Limit
from limpet.engine.drivers.node_slots import LineService
from limpet.engine.drivers.sync_driver import slots_of
from limpet.engine.leases.limit_slots import SlotRequest, limits_of
from limpet.engine.loop.driver_commands import AcquireSlots, Cancelled, Command, ReleaseSlots, Wait
from limpet.engine.node_context.node_context import NodeContext
from limpet.journal.store import Lease, NewRun
from models.bench import CLIENT, CLOCK, LEASE, NUMBERS, STORE, eager_snapshots, lean
from models.test_branches import RICH, Bench, Interpreter, benches_of, check, interrupts, intervals, lives

EXAMPLES = int(os.environ.get("LIMITED_EXAMPLES", "25"))
ONE = Limit("one", concurrency=1)
TWO = Limit("two", concurrency=2)
OF_NODES = {"a": [ONE], "b": [TWO], "c": [ONE, TWO], "d": [], "e": [TWO]}
"""The limits of nodes, by the first letter of their names."""
LOOK = LEASE / 16
"""Seconds until a run that waits looks again."""


@pytest.fixture(autouse=True)
def _lines_are_served_by_the_bench(monkeypatch: pytest.MonkeyPatch) -> None:
    """No thread does so by itself."""
    monkeypatch.setattr(LineService, "serve", lambda self, held: None)


@dataclass
class LimitedBench(Bench):
    """One run of a sketch whose nodes have limits. With `rival`, another run has a slot of each at first."""

    rival: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.in_use: Counter[str] = Counter()
        self.waits = 0
        limits = limits_of(CLIENT)
        limits.declare([ONE, TWO])
        self.rivals: list[SlotRequest] = []
        if self.rival:
            lease = STORE.create(NewRun(f"rival-{next(NUMBERS)}", "g", [b"x"], holder="rival", ttl=LEASE))
            assert isinstance(lease, Lease)
            self.rivals = [SlotRequest(lease, "call", ("one", "two"))]
            assert limits.acquire(self.rivals, stands_in_line=False) == [None]

    def limits_of(self, name: str) -> list[Limit]:
        return OF_NODES.get(name[0], [])

    def forget_life(self) -> None:
        super().forget_life()
        self.has_slots: set[NodeContext] = set()
        self.in_use = Counter(name for rival in self.rivals for name in rival.limits)

    def command_comes(self) -> None:
        """The loop gives the slots of the run's own node back before it looks at the outcome of the call."""
        unseen = [task for task in self.over if task in self.has_slots and not task.scope.path]
        self.over = [task for task in self.over if task not in unseen]
        super().command_comes()
        self.over = unseen

    def carry_out(self, command: Command) -> Any:
        assert self.session is not None
        if isinstance(command, (AcquireSlots, ReleaseSlots)):
            return self.exchange(command)
        if isinstance(command, Wait) and command.for_posts:
            return self.wait_for_posts()
        return super().carry_out(command)

    def exchange(self, command: AcquireSlots | ReleaseSlots) -> Any:
        """Ask for slots, or give them back."""
        assert self.session is not None
        if isinstance(command, AcquireSlots) and self.cancelled:
            return [Cancelled() for _ in command.tasks]
        if isinstance(command, ReleaseSlots):
            self.has_slots.difference_update(command.tasks)
            self.in_use.subtract(limit for task in command.tasks for limit in task.plan_node.limits)
        answers = slots_of(self.session).carry_out(command)
        for task, answer in zip(command.tasks, answers or (), strict=False):
            if answer is None:
                self.has_slots.add(task)
                self.in_use.update(task.plan_node.limits)
            else:
                self.waits += 1
        for limit in (ONE, TWO):
            assert 0 <= self.in_use[limit.name] <= (limit.concurrency or 0), self.in_use
        return answers

    def wait_for_posts(self) -> Any:
        """The run waits for slots here. Supervisors, or this process, serve the lines meanwhile."""
        assert self.session is not None
        if self.rivals:
            limits_of(CLIENT).release(self.rivals)
            self.in_use.subtract(name for rival in self.rivals for name in rival.limits)
            self.rivals = []
        limits_of(CLIENT).serve_lines()
        if not self.session.stop.has_posts:
            CLOCK.advance(LOOK)
            CLIENT.renew([self.session.held] if self.session.held is not None else [])
        return Cancelled() if self.cancelled or self.session.stop.asked else None


def limited(**more: Any) -> st.SearchStrategy[LimitedBench]:
    """Benches of sketches whose nodes have limits."""
    return benches_of(LimitedBench, rival=st.booleans(), **more)


def check_limited(bench: LimitedBench) -> None:
    """The run ends as without limits, and no slot is left."""
    check(bench, Interpreter(bench.graph))
    limits_of(CLIENT).release(bench.rivals)
    CLOCK.advance(2 * LEASE)
    limits_of(CLIENT).serve_lines()
    for limit in (ONE, TWO):
        held = limits_of(CLIENT)._limit(limit.name)
        held.serve()
        assert not held._document().slots


@settings(lean, max_examples=EXAMPLES)
@given(limited(interval=intervals, stops=interrupts))
def test_limits_change_nothing_but_the_order(bench: LimitedBench) -> None:
    """H18: the result of a run is what it is without limits, and no limit is exceeded."""
    check_limited(bench)


@settings(lean, max_examples=EXAMPLES)
@given(limited(interval=intervals, stops=interrupts, lives=lives, whole=st.booleans()), st.booleans())
def test_limited_nodes_that_are_cut_anywhere_end_as_if_they_had_not_been(
    bench: LimitedBench, eager: bool
) -> None:
    """H18, H3 (invariant 2): killed, cancelled, refused by the store, or never told that it had saved."""
    with eager_snapshots(eager):
        check_limited(bench)


def test_branches_of_this_bench_do_wait_for_each_other() -> None:
    """Else the claims above would say nothing."""
    bench = LimitedBench(RICH, 3, rival=True)
    check_limited(bench)
    assert bench.waits > 1
