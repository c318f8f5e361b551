"""Slots of limits under everything that can happen: processes that crash, stores that fail, clocks that are set.

A plain model keeps the answers that each run got.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from limpet import Limit, Limits, MemoryStore
from limpet.engine.leases.lease_client import LeaseClient
from limpet.engine.leases.limit_slots import LimitClient, SlotRequest, SlotWait, limits_of
from limpet.engine.leases.limits.document import Slot, limit_name, read_limit
from limpet.errors import StoreError
from limpet.journal.inbox import read_post
from limpet.journal.store import CANCELLED, Commit, Lease, NewRun
from limpet.testing import FakeClock, FaultyStore

TTL = 10.0
RUNS = 8
WHOLE = (6, 7)
"""The runs that need slots as a whole: workers take these before they claim the runs, and they stand in no line."""
PROCESSES = 3
CALLS = ("put_document", "get_document", "delete_document", "list_documents", "post", "are_valid", "heads")
NEEDS = (("a",), ("a", "b"), ("b",), ("a", "b"), ("a",), ("a",), ("a",), ("a", "b"))
EXAMPLES = int(os.environ.get("LIMPET_LIMIT_EXAMPLES", "60"))

IDLE, HOLDING, WAITING, LOST, OVER = "idle", "holding", "waiting", "lost", "over"


class ModelRun:
    """A run, as its process knows it: `LOST` means that the process has crashed while the run was under way."""

    def __init__(self, number: int) -> None:
        self.id = f"r{number}"
        self.limits = NEEDS[number]
        self.state = IDLE
        self.process = 0
        self.lease: Lease | None = None
        self.wait: SlotWait | None = None
        self.has_slots = False
        """Whether it got them under this lease, and hasn't given them back."""
        self.is_whole = number in WHOLE
        self.admitted: list[tuple[int, SlotRequest]] = []
        """The workers that have slots for it, and are about to claim it."""


class ModelProcess:
    def __init__(self, store: MemoryStore) -> None:
        self.store = FaultyStore(store)
        self.client = LeaseClient(self.store, TTL)
        self.limits: LimitClient = limits_of(self.client)


class LimitMachine(RuleBasedStateMachine):
    @initialize(
        a=st.integers(1, 3), b=st.integers(1, 2), rate=st.sampled_from([None, "2/s", "3/10s", "5/min"])
    )
    def begin(self, a: int, b: int, rate: str | None) -> None:
        self.clock = FakeClock(1_800_000_000.0)
        self.store = MemoryStore(clock=self.clock)
        self.processes = [ModelProcess(self.store) for _ in range(PROCESSES)]
        self.processes[0].limits.declare([Limit("a", concurrency=a, rate=rate), Limit("b", concurrency=b)])
        self.allowed = {"a": a, "b": b}
        self.bounds = {"a": 0, "b": 0}
        self.rate: tuple[int, float] | None = None
        self.set_model_rate(rate)
        self.grants: list[float] = []
        self.runs = [ModelRun(number) for number in range(RUNS)]
        for run in self.runs:
            self.store.create(NewRun(run.id, "g", [b"x"], due=0.0))

    @rule(run=st.integers(0, RUNS - 1), process=st.integers(0, PROCESSES - 1), is_stored=st.booleans())
    def ask(self, run: int, process: int, is_stored: bool) -> None:
        """A run that is new, whose turn it is, or that is resumed for another reason, asks for its slots."""
        asking = self.runs[run]
        if asking.state == LOST:
            self.find_lost(asking)
        if asking.state in (IDLE, WAITING) and not asking.is_whole:
            self.claim(asking, process)
            self.acquire(asking, is_stored)

    @rule(
        run=st.integers(0, RUNS - 1),
        process=st.integers(0, PROCESSES - 1),
        call=st.sampled_from(CALLS),
        nth=st.integers(1, 4),
        loses=st.booleans(),
        survives=st.booleans(),
    )
    def ask_while_the_store_fails(
        self, run: int, process: int, call: str, nth: int, loses: bool, survives: bool
    ) -> None:
        """The process crashes at this call, or gets an error and lives on."""
        asking = self.runs[run]
        if asking.state in (IDLE, WAITING) and not asking.is_whole:
            self.claim(asking, process)
            self.plan(process, call, nth, loses)
            try:
                self.acquire(asking, True)
            except StoreError:
                self.lose(asking)
                if not survives:
                    self.crash(process)
            self.processes[process].store.heal()

    @rule(run=st.sampled_from(WHOLE), process=st.integers(0, PROCESSES - 1))
    def admit(self, run: int, process: int) -> None:
        """A worker takes slots for a run that it is about to claim."""
        wanted = self.runs[run]
        if wanted.state == LOST:
            self.find_lost(wanted)
        if wanted.state == IDLE:
            head = self.store.head(wanted.id)
            request = SlotRequest(Lease(wanted.id, head.fence + 1, 0.0), "", wanted.limits, is_claimed=False)
            (answer,) = self.processes[process].limits.acquire([request], False)
            assert answer is None or answer.ticket == ""
            if answer is None:
                if (process, request) not in wanted.admitted:
                    self.count_grant(wanted)
                wanted.admitted.append((process, request))

    @rule(run=st.sampled_from(WHOLE))
    def claim_admitted(self, run: int) -> None:
        """The worker claims it, early or late, if no other has; and looks whether it still has the slots."""
        wanted = self.runs[run]
        if not wanted.admitted:
            return
        process, request = wanted.admitted.pop(0)
        limits = self.processes[process].limits
        if wanted.state != IDLE or self.store.head(wanted.id).fence != request.lease.fence - 1:
            limits.release([request])
            return
        self.claim(wanted, process)
        (answer,) = limits.acquire([request._replace(is_claimed=True, counts=False)], False)
        if answer is None:
            wanted.state = HOLDING
            wanted.has_slots = True
            self.check_concurrency(wanted)
        else:
            self.let_go(wanted)

    @rule(run=st.integers(0, RUNS - 1))
    def finish(self, run: int) -> None:
        self.release(self.runs[run])

    @rule(
        run=st.integers(0, RUNS - 1),
        call=st.sampled_from(CALLS),
        nth=st.integers(1, 3),
        loses=st.booleans(),
        survives=st.booleans(),
    )
    def finish_while_the_store_fails(
        self, run: int, call: str, nth: int, loses: bool, survives: bool
    ) -> None:
        process = self.runs[run].process
        self.plan(process, call, nth, loses)
        self.release(self.runs[run])
        self.processes[process].store.heal()
        if not survives:
            self.crash(process)

    @rule(process=st.integers(0, PROCESSES - 1))
    def crash(self, process: int) -> None:
        """What it knew is gone; the leases of its runs expire."""
        self.processes[process] = ModelProcess(self.store)
        for run in self.runs:
            run.admitted = [each for each in run.admitted if each[0] != process]
            if run.process == process and run.lease is not None:
                self.lose(run)

    @rule(process=st.integers(0, PROCESSES - 1))
    def serve(self, process: int) -> None:
        self.processes[process].limits.serve_lines()

    @rule(
        process=st.integers(0, PROCESSES - 1),
        call=st.sampled_from(CALLS),
        nth=st.integers(1, 4),
        loses=st.booleans(),
        survives=st.booleans(),
    )
    def serve_while_the_store_fails(
        self, process: int, call: str, nth: int, loses: bool, survives: bool
    ) -> None:
        self.plan(process, call, nth, loses)
        with suppress(StoreError):
            self.processes[process].limits.serve_lines()
        self.processes[process].store.heal()
        if not survives:
            self.crash(process)

    @rule(seconds=st.sampled_from([0.05, 0.5, 2.0, 7.0, 25.0]))
    def time_passes(self, seconds: float) -> None:
        """Processes renew the leases of what they execute."""
        while seconds > 0:
            step = min(seconds, TTL / 3)
            self.clock.skip(step)
            seconds -= step
            alive = [run.lease for run in self.runs if run.lease is not None and run.state != LOST]
            self.store.renew(alive, TTL)

    @rule(seconds=st.sampled_from([-86400.0, -30.0, -1.0, 1.0, 30.0, 86400.0]))
    def clock_is_set(self, seconds: float) -> None:
        self.forget_old_grants()
        self.clock.set_by(seconds)
        self.grants = [min(at, self.clock()) for at in self.grants]

    @rule(name=st.sampled_from(["a", "b"]), number=st.integers(1, 4))
    def set_concurrency(self, name: str, number: int) -> None:
        Limits(self.store).set(name, concurrency=number)
        self.allowed[name] = number
        # A lower limit holds as slots are given back, those that are reserved included.
        self.bounds[name] = len(self.stored_slots(name))

    @rule(rate=st.sampled_from([None, "2/s", "3/10s", "5/min"]))
    def set_rate(self, rate: str | None) -> None:
        Limits(self.store).set("a", rate=rate)
        self.set_model_rate(rate)
        self.grants = []  # what was granted without a rate isn't known to it

    @precondition(lambda self: any(run.state == WAITING for run in self.runs))
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        """A run that stands in line ends."""
        run = data.draw(st.sampled_from([run for run in self.runs if run.state == WAITING]))
        lease = self.store.claim(run.id, "canceller", TTL)
        head = self.store.head(run.id)
        (refusal,) = self.store.append(
            [Commit(run.id, lease.fence, head.sequence, [b"x"], status=CANCELLED, ignores_posts=True)]
        )
        assert refusal is None
        run.state = OVER

    def teardown(self) -> None:
        """All that is left gets its turn: no wake-up was lost, and no slot either."""
        if not hasattr(self, "runs"):
            return
        self.set_rate(None)
        for round_number in range(120):
            left = [run for run in self.runs if run.state != OVER]
            if not left:
                break
            self.time_passes(1.0)
            self.processes[round_number % PROCESSES].limits.serve_lines()
            for run in left:
                self.go_on(run, round_number % PROCESSES)
        assert [run.id for run in self.runs if run.state != OVER] == []
        for name in ("a", "b"):
            Limits(self.store).set(name, concurrency=1)
        self.clock.skip(TTL)
        for _ in range(3):
            self.clock.skip(TTL)
            self.processes[0].limits.serve_lines()
        assert [(info.waiting, info.held) for info in Limits(self.store).list()] == [(0, ()), (0, ())]

    def go_on(self, run: ModelRun, process: int) -> None:
        """What a worker does with a run, until it is over."""
        if run.state == HOLDING:
            self.release(run)
            if run.state == IDLE:
                run.state = OVER
        elif run.state == IDLE and run.is_whole:
            self.admit(int(run.id[1:]), process)
            self.claim_admitted(int(run.id[1:]))
        elif run.state == IDLE or (run.state == WAITING and self.has_its_post(run)):
            self.claim(run, process)
            self.acquire(run, True)
        elif run.state == LOST:
            self.find_lost(run)

    def find_lost(self, run: ModelRun) -> None:
        """Have a run whose process has crashed go on where it was, as soon as its lease has expired."""
        assert run.lease is not None
        if run.state == LOST and not self.store.are_valid([run.lease])[0]:
            run.lease = None
            run.state = IDLE

    def has_its_post(self, run: ModelRun) -> bool:
        assert run.wait is not None
        posts = [read_post(run.id, post).data for post in self.store.inbox(run.id)]
        return run.wait in [SlotWait(data["name"], data["value"]) for data in posts]

    def claim(self, run: ModelRun, process: int) -> None:
        run.lease = self.store.claim(run.id, f"p{process}", TTL)
        run.process = process
        run.has_slots = False

    def acquire(self, run: ModelRun, is_stored: bool) -> None:
        for name in run.limits:
            self.bounds[name] = min(self.bounds[name], len(self.stored_slots(name)))
        wait = run.wait
        limits = self.processes[run.process].limits
        (answer,) = limits.acquire([self.request(run)._replace(wait=wait)], True)
        if answer is None:
            run.wait = None
            run.state = HOLDING
            run.has_slots = True
            self.check_concurrency(run)
            self.count_grant(run)
        elif is_stored:
            run.wait = answer
            run.state = WAITING
            self.let_go(run)
        else:
            self.lose(run)  # its process crashes before it has stored the wait

    def check_concurrency(self, run: ModelRun) -> None:
        for name in run.limits:
            live = [each for each in self.runs if name in each.limits and self.has_live_slot(each)]
            assert len(live) <= max(self.allowed[name], self.bounds[name])

    def count_grant(self, run: ModelRun) -> None:
        if self.rate is not None and "a" in run.limits:
            self.forget_old_grants()
            self.grants.append(self.clock())
            assert len(self.grants) <= self.rate[0]

    def forget_old_grants(self) -> None:
        if self.rate is not None:
            self.grants = [at for at in self.grants if at > self.clock() - self.rate[1]]

    def has_live_slot(self, run: ModelRun) -> bool:
        return run.has_slots and run.lease is not None and self.store.are_valid([run.lease])[0]

    def stored_slots(self, name: str) -> tuple[Slot, ...]:
        document = self.store.get_document(limit_name(name))
        assert document is not None
        return read_limit(name, document.body).slots

    def release(self, run: ModelRun) -> None:
        if run.state != HOLDING:
            return
        self.processes[run.process].limits.release([self.request(run)])
        run.has_slots = False
        self.let_go(run)
        run.state = IDLE

    def let_go(self, run: ModelRun) -> None:
        assert run.lease is not None
        self.store.release(run.lease)
        run.lease = None

    def lose(self, run: ModelRun) -> None:
        """Its process has crashed: the store still has the lease, and maybe the wait that was stored before."""
        run.state = LOST

    def request(self, run: ModelRun) -> SlotRequest:
        assert run.lease is not None
        return SlotRequest(run.lease, "" if run.is_whole else "call", run.limits)

    def plan(self, process: int, call: str, nth: int, loses: bool) -> None:
        store = self.processes[process].store
        plan: Any = store.lose_ack if loses else store.fail
        plan(call, nth=nth)

    def set_model_rate(self, rate: str | None) -> None:
        found = Limit("a", rate=rate).rate
        self.rate = None if found is None else (found.number, found.seconds)


TestLimitMachine = LimitMachine.TestCase
"""H18: never more slots than allowed, never more grants in a period, and every call gets its turn."""
TestLimitMachine.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
