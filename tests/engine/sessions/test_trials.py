"""Which crashes count against a run: those of a process that executed it alone. H1."""

from __future__ import annotations

from typing import Any

import pytest

from limpet import MemoryStore, StateGraph
from limpet.engine.node_context.questions import ResumeInput
from limpet.engine.sessions.resume import resume
from limpet.engine.sessions.session import Session
from limpet.engine.sessions.trials import CrashLimits, NeedsSolitude
from limpet.errors import RunQuarantined
from limpet.testing.conformance.store_calls import ManualClock

COMPANY = CrashLimits(max_crashes=3, suspect_from=2)
SHARED_TURN = COMPANY._replace(has_turn=True)
ALONE = SHARED_TURN._replace(is_alone=True)


class Bench:
    """A queued run, and the holders that open it and crash."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = MemoryStore(clock=self.clock)
        graph = StateGraph({"n": int}, name="bench")
        for node in ("a", "b"):
            graph.add_node(node, run=lambda state: {"n": state.get("n", 0) + 1})
        graph.add_edge("a", "b").set_entry_point("a").set_finish_point("b")
        self.graph = graph.compile(store=self.store)
        self.graph.start(run_id="r")

    def open(self, limits: CrashLimits | None) -> Session:
        given = ResumeInput(timed=limits is not None)
        return resume(self.graph.compiled(), "r", given, limits=limits)

    def crash(self, limits: CrashLimits | None, times: int = 1) -> None:
        for _ in range(times):
            self.open(limits)
            self.clock.advance(11)

    def step(self) -> None:
        """A holder executes a node, stores it, and crashes."""
        session = self.open(ALONE)
        loop = session.loop()
        answer: Any = None
        before = self.store.head("r").sequence
        while self.store.head("r").sequence == before:
            command = loop.send(answer)
            answer = session.write(command) if hasattr(command, "records") else None
            if hasattr(command, "plan_node"):
                answer = command.call()
        self.clock.advance(11)


def test_a_crash_in_company_makes_a_suspect_and_never_counts() -> None:
    """H1: the run has to wait for its turn, and nothing is written meanwhile."""
    bench = Bench()
    bench.crash(COMPANY, 2)
    before = bench.store.head("r")
    for _ in range(5):
        with pytest.raises(NeedsSolitude):
            bench.open(COMPANY)
    after = bench.store.head("r")
    assert (after.status, after.holder, after.sequence) == ("running", None, before.sequence)
    bench.crash(SHARED_TURN, 5)
    bench.open(ALONE).close()
    assert bench.graph.resume("r")["n"] == 2


def test_the_third_crash_alone_quarantines() -> None:
    """H1: neither crashes in company before, nor looks of other workers in between, change the count."""
    bench = Bench()
    bench.crash(COMPANY, 2)
    for _ in range(3):
        bench.crash(ALONE)
        if bench.store.head("r").crashes < 4:
            with pytest.raises(NeedsSolitude):
                bench.open(COMPANY)
    with pytest.raises(RunQuarantined, match="crashed 3 times in a row at node 'a'"):
        bench.open(COMPANY)
    assert bench.store.head("r").status == "failed"


def test_one_crash_alone_may_quarantine() -> None:
    """H1: with `max_crashes=1`; it wasn't several times in a row."""
    bench = Bench()
    once = ALONE._replace(max_crashes=1, suspect_from=1)
    bench.crash(once, 2)
    with pytest.raises(
        RunQuarantined, match="its process crashed at node 'a' while it executed nothing else"
    ):
        bench.open(once)


def test_a_worker_that_is_stopped_in_order_does_not_count() -> None:
    """H1: the trial was interrupted, not failed."""
    bench = Bench()
    bench.crash(COMPANY, 2)
    bench.crash(ALONE, 2)
    for _ in range(5):
        bench.open(ALONE).close()
    bench.crash(ALONE)
    with pytest.raises(RunQuarantined):
        bench.open(ALONE)


def test_a_crash_in_the_process_of_a_user_does_not_count() -> None:
    """H1: a user who resumes a suspect sees the crash; it may execute beside others there."""
    bench = Bench()
    bench.crash(COMPANY, 2)
    bench.crash(ALONE, 2)
    bench.crash(None, 5)
    bench.open(ALONE).close()
    assert bench.store.head("r").status == "running"


def test_a_step_between_crashes_makes_them_count_from_zero() -> None:
    """H1: the run got further, so it isn't a suspect any more."""
    bench = Bench()
    bench.crash(COMPANY, 2)
    bench.crash(ALONE, 2)
    bench.step()
    bench.open(COMPANY).close()
    bench.crash(COMPANY)
    bench.crash(ALONE, 2)
    bench.open(ALONE).close()
    assert bench.store.head("r").status == "running"


def test_a_fork_of_a_suspect_has_never_crashed() -> None:
    """H1: it is a run of its own."""
    bench = Bench()
    bench.crash(COMPANY, 2)
    bench.crash(ALONE, 3)
    assert bench.graph.fork("r").result()["n"] == 2
    bench.graph.recover()
    assert bench.store.head("r").status == "failed"
