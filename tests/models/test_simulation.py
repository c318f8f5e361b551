"""A fleet of workers under every kind of fault, thousands of times: invariants 1, 2 and 5, H1, H9, P7, P8.

`support/simulation.py` says what is simulated, and what has to hold. A schedule that fails prints what
happened in it and its seed; `SIMULATION_SEED=…` runs that one alone, `SIMULATION_SCHEDULES=…` as many as you like.

A simulation that can't fail proves nothing. So here are also stores, clocks, drivers and supervisors that are wrong
in one way each, and each must be caught. The engine itself was broken by hand as well, and each of these was caught
within 500 schedules: a run that is left, paused, queued or brought something is stored without the time when it is
due, or as due at once; a refused save counts as a success; a wait isn't waited for, or a sleep not stored; the due
time ignores timers, or isn't checked again after the claim; a deadline that passed is forgotten; crashed holders are
counted one too few, or forgotten; a signal is ignored when a run is resumed; leaving a run cancels it; priorities are
ignored; a save that was accepted without an answer is repeated without the time when the run is due.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import pytest

from limpet.engine.leases import child_posts
from limpet.engine.leases.held_lease import StopRequest
from limpet.engine.loop import taking_in
from limpet.engine.loop.taking_in import record_posts
from limpet.engine.node_context import questions as given
from limpet.engine.sessions import session
from limpet.engine.sessions.session import Session
from limpet.journal import waits
from limpet.journal.store import CANCELLED, RUNNING, Commit, Lane, Lease, RunHead
from limpet.stores.memory import MemoryStore, _Run
from support.exploration import Violation
from support.simulated_world import LEASE, Store
from support.simulation import Simulation, explore

SEED = os.environ.get("SIMULATION_SEED")
SCHEDULES = int(os.environ.get("SIMULATION_SCHEDULES", "1500"))
PARTS = 20
ENOUGH = 1500
"""Schedules within which whatever is wrong has to show."""


@pytest.mark.skipif(SEED is not None, reason="one schedule was asked for")
@pytest.mark.parametrize("part", range(PARTS))
def test_no_schedule_breaks_an_invariant(part: int) -> None:
    """H1, H9, P7, P8, invariants 1, 2 and 5: crashes, takeovers, outages, missing answers, and jumps of clocks."""
    seeds = range(part, SCHEDULES, PARTS)
    assert explore(seeds) == len(seeds)


@pytest.mark.skipif(SEED is None, reason="it is for a schedule that failed")
def test_the_schedule_that_was_asked_for_breaks_none() -> None:
    """The one that `SIMULATION_SEED` names."""
    assert explore([int(SEED or 0)]) == 1


def test_the_same_seed_is_the_same_schedule() -> None:
    """So that a failing one can be seen again."""

    class Traced(Simulation):
        def settle(self) -> None:
            super().settle()
            traces.append(self.trace)

    traces: list[Any] = []
    explore([7, 8, 9], Traced)
    explore([7, 8, 9], Traced)
    assert traces[:3] == traces[3:]
    assert traces[0] != traces[1]
    assert sum(len(each) for each in traces[:3]) > 60


def test_a_violation_reports_the_seed_and_what_happened() -> None:
    """With the one command that shows it again."""

    class Wrong(Simulation):
        def crash(self) -> None:
            self.check(False, "a worker died")

    with pytest.raises(Violation, match=r"seed \d+: Never: a worker died") as caught:
        explore(range(100), Wrong)
    text = str(caught.value)
    seed = text.split(":")[0].removeprefix("seed ")
    assert "started" in text
    assert f"SIMULATION_SEED={seed} pytest tests/models/test_simulation.py" in text
    with pytest.raises(Violation, match=rf"seed {seed}: Never: a worker died"):
        explore([int(seed)], Wrong)


def caught(kind: type[Simulation], claim: str) -> None:
    """Expect that a simulation with something wrong in it finds that out."""
    with pytest.raises(Violation, match=claim):
        explore(range(ENOUGH), kind)


def on(store: type[Store]) -> type[Simulation]:
    """A simulation on another store."""
    return type("Broken", (Simulation,), {"store_kind": store})


def test_a_store_that_ignores_fences_is_caught() -> None:
    """Invariant 5."""

    class Obedient(Store):
        def _apply(self, runs: dict[str, _Run], commit: Commit) -> Exception | None:
            run = runs[commit.run_id]
            was = (commit.fence, commit.expected)
            commit.fence = run.head.fence
            commit.expected = run.sequence
            try:
                return super()._apply(runs, commit)
            finally:
                commit.fence, commit.expected = was

    caught(on(Obedient), "a commit of an old fence was accepted")


def test_a_store_that_gives_a_run_to_two_is_caught() -> None:
    """Invariant 5."""

    class Generous(Store):
        def claim(self, run_id: str, holder: str, ttl: float, instead_of: int | None = None) -> Lease:
            return super().claim(run_id, holder, ttl, MemoryStore.head(self, run_id).fence)

        def ready(self, lanes: Sequence[Lane], limit: int) -> list[RunHead]:
            return [head._replace(due=0.0) for head in self.sim.heads() if head.status == RUNNING][:limit]

    caught(on(Generous), "was taken from a holder that is alive")


def test_a_store_that_forgets_what_it_took_is_caught() -> None:
    """Invariant 1."""

    class Forgetful(Store):
        def _apply(self, runs: dict[str, _Run], commit: Commit) -> Exception | None:
            outcome = super()._apply(runs, commit)
            if outcome is None and commit.expected > 2:
                del runs[commit.run_id].records[commit.expected :]
            return outcome

    caught(
        on(Forgetful), "begins|in the wrong place|a save was reported|ended with|never ends|failed: Conflict"
    )


def test_a_store_that_forgets_when_a_run_is_due_is_caught() -> None:
    """H9: such a run would never be resumed."""

    class Timeless(Store):
        def _apply(self, runs: dict[str, _Run], commit: Commit) -> Exception | None:
            if commit.due:
                commit.due = None
            return super()._apply(runs, commit)

    caught(on(Timeless), "is due at None, and should be at")


def test_a_store_without_an_order_is_caught() -> None:
    """H1: priorities."""

    class Unordered(Store):
        def ready(self, lanes: Sequence[Lane], limit: int) -> list[RunHead]:
            return sorted(super().ready(lanes, 100), key=lambda head: head.run_id)[:limit]

    class Crowded(Simulation):
        store_kind = Unordered

        def run(self, length: int) -> None:
            for _ in range(6):
                self.start_run()
            super().run(length)

    caught(Crowded, "is more urgent than a run that was picked")


def test_a_driver_that_takes_refusals_for_success_is_caught() -> None:
    """Invariant 1."""

    class Careless(Simulation):
        def write(self, opened: Session, commit: Commit) -> Exception | None:
            if opened.write(commit) is not None and opened.writer is not None:
                opened.writer.acknowledge(len(commit.records))
            return None

    caught(Careless, "a save was reported that wasn't made")


def test_a_clock_that_is_ahead_of_the_stores_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """H9: what is due is due by the store's clock."""

    class Hasty(Simulation):
        def link_here(self) -> None:
            super().link_here()
            for each in (self.outside if self.current is None else self.current.links).values():
                each.clock = lambda: self.clock.now + LEASE

    caught(Hasty, "before its time|slept too short|before its edge|before its deadline|in time")


@pytest.mark.parametrize(
    ("most", "claim"),
    [(2, "was quarantined too early"), (4, "wasn't quarantined|isn't tried that should be")],
)
def test_a_supervisor_that_miscounts_is_caught(most: int, claim: str) -> None:
    """H1: a run is quarantined after this number of crashes in a row, neither before nor after."""

    class Miscounting(Simulation):
        def hire(self) -> Any:
            worker = super().hire()
            resumer = worker.supervisor.resumer
            resumer._options = resumer._options._replace(max_crashes=most)
            return worker

    caught(Miscounting, claim)


def test_a_session_that_ignores_the_deadline_of_its_run_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """H16."""
    monkeypatch.setattr(Session, "check_deadline", lambda self: None)
    caught(Simulation, "opened after the deadline|never ends|without a request")


def test_a_child_that_doesnt_post_its_end_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """H16: its parent would wait for ever."""
    monkeypatch.setattr(child_posts, "post_end", lambda *_: None)
    caught(Simulation, "never ends")


def test_a_former_holder_that_cancels_children_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """H16: it stops because it has lost the run, which isn't cancelled."""

    def announce(self: Session, commit: Commit) -> None:
        if commit.status == CANCELLED and self.compiled.client is not None:
            child_posts.cancel_children(self.compiled.client, commit.run_id)

    monkeypatch.setattr(Session, "announce_end", announce)
    caught(Simulation, "never ends|without a request")


def test_a_session_that_fails_its_run_early_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """H16."""
    monkeypatch.setattr(Session, "check_deadline", lambda self: self.stop.expire())
    caught(Simulation, "is to fail before its deadline")


def test_a_late_answer_that_is_taken_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """H9."""
    monkeypatch.setattr(given, "_check_in_time", lambda *_: None)
    caught(Simulation, "an answer was accepted after the deadline")


def test_a_worker_that_cancels_what_it_should_leave_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """H1: a graceful stop isn't the end of a run."""
    monkeypatch.setattr(StopRequest, "leave", StopRequest.ask)
    caught(Simulation, "is cancelled without a request")


def test_a_task_that_is_not_kept_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Invariant 2: what `once` kept doesn't happen again."""
    monkeypatch.setattr(
        session, "keep_result", lambda self, scope, key, value: self.writer and self.writer.commit()
    )

    class Kept(Simulation):
        def effect(self, task: Any, name: str) -> str:
            super().effect(task, name)
            self.runs[task.run_id].durable.add(f"{name} {task.idempotency_key}")
            return name

    caught(Kept, "was kept, and happens again")


def test_a_message_that_stays_in_the_mailbox_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """H16: it would be received again, by another task."""

    def receive_and_leave(root: Any, path: Any, box: str, key: str, expired: bool) -> None:
        kept = {name: list(letters) for name, letters in root.mailbox.items()}
        receive(root, path, box, key, expired)
        root.mailbox = kept

    receive = waits.receive
    monkeypatch.setattr(waits, "receive", receive_and_leave)
    caught(Simulation, "is received by")


def test_a_message_that_is_taken_in_twice_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """H16: a commit that was refused for newer posts has the records of the older ones."""

    def record_all_again(*args: Any, **more: Any) -> Any:
        _, writer, *_ = args
        writer.recorded_posts = 0
        return record_posts(*args, **more)

    monkeypatch.setattr(taking_in, "record_posts", record_all_again)
    caught(Simulation, "ended with|is received by|received twice")
