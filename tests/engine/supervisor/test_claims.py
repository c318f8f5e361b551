"""How a supervisor claims the runs that it picked: together, and no run twice; and the threads that resume them."""

from __future__ import annotations

import _thread
import threading
from collections import Counter
from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any

import pytest

from limpet import MemoryStore, StateGraph, supervise
from limpet.engine.leases.lease_client import client_for
from limpet.engine.supervisor.run_picker import RunPicker
from limpet.journal.store import RUNNING, Lease, RunHead
from limpet.testing import FaultyStore
from support.graphs import chain
from support.waiting import until

SOON = 30.0
NEVER = 10_000.0


def graph_of(store: Any, node: Any) -> StateGraph:
    return chain(node, names=["node"], name="g").compile(store=store)


def nothing(state: Any) -> dict[str, Any]:
    return {}


class Counted(MemoryStore):
    """A store that counts claims."""

    def __init__(self) -> None:
        super().__init__()
        self.claims: list[int] = []
        """How many runs each call claimed."""
        self.single_claims = 0

    def claim(self, *args: Any, **more: Any) -> Lease:
        self.single_claims += 1
        return super().claim(*args, **more)

    def claim_ready(self, wanted: Sequence[RunHead], holder: str, ttl: float) -> list[Lease | None]:
        leases = super().claim_ready(wanted, holder, ttl)
        self.claims.append(len([lease for lease in leases if lease is not None]))
        return leases


def test_runs_that_were_picked_together_are_claimed_together() -> None:
    """H18: each once, by one call for all that there is room for."""
    store = Counted()
    graph = graph_of(store, nothing)
    runs = [graph.start({}) for _ in range(8)]
    supervisor = supervise(store, [graph], concurrency=8, poll=NEVER)
    assert sorted(supervisor.drain()) == sorted(run.id for run in runs)
    assert store.claims == [8]
    assert store.single_claims == 0
    assert {store.head(run.id).fence for run in runs} == {2}
    assert supervisor.resumer.resumed == 8


def test_of_many_supervisors_each_run_has_one() -> None:
    """P8, H18: those that were slower release nothing and count no crash."""
    store = Counted()
    executed: Counter[str] = Counter()
    lock = threading.Lock()

    def node(state: Any) -> dict[str, Any]:
        with lock:
            executed[state.run_id] += 1
        return {}

    graph = graph_of(store, node)
    runs = [graph.start({}) for _ in range(60)]
    supervisors = [supervise(store, [graph], concurrency=4, poll=0.05) for _ in range(4)]
    for each in supervisors:
        each.start()
    for run in runs:
        run.wait(SOON)
    for each in supervisors:
        each.stop()
    assert executed == Counter(run.id for run in runs)
    heads = [store.head(run.id) for run in runs]
    assert {(head.fence, head.crashes) for head in heads} == {(2, 0)}
    assert sum(each.resumer.resumed for each in supervisors) == 60


class Contested(MemoryStore):
    """A store in which another worker is faster to claim the first runs."""

    lost = 3

    def claim_ready(self, wanted: Sequence[RunHead], holder: str, ttl: float) -> list[Lease | None]:
        for head in wanted:
            if self.lost:
                self.lost -= 1
                self.claim(head.run_id, "another worker", 1000.0)
        return super().claim_ready(wanted, holder, ttl)


def test_runs_that_another_worker_got_make_room_at_once() -> None:
    """H18: the next ones don't wait for the next poll, although the list was out of date."""
    store = Contested()
    graph = graph_of(store, nothing)
    runs = [graph.start({}) for _ in range(6)]
    with supervise(store, [graph], concurrency=1, poll=NEVER) as supervisor:
        for run in runs[3:]:
            run.wait(SOON)
        until(lambda: supervisor.running == [])
    assert [store.head(run.id).holder for run in runs[:3]] == ["another worker"] * 3
    assert supervisor.skipped == {}


def test_a_drain_looks_again_after_another_worker_was_faster() -> None:
    """H18: what it couldn't have says nothing of the rest."""
    store = Contested()
    graph = graph_of(store, nothing)
    runs = [graph.start({}) for _ in range(6)]
    drained = supervise(store, [graph], concurrency=3, poll=NEVER).drain()
    assert sorted(drained) == sorted(run.id for run in runs[3:])


@pytest.mark.parametrize("kind", ["fail", "lose_ack"])
def test_a_claim_that_fails_is_made_again(kind: str) -> None:
    """H1: if the store had granted the leases, the runs are free when these have expired."""
    store = FaultyStore(MemoryStore())
    graph = graph_of(store, nothing)
    fault = getattr(store, kind)("claim_ready")
    run = graph.start({})
    with supervise(store, [graph], poll=0.02, lease=0.2):
        run.wait(SOON)
    assert fault.struck
    assert run.status == "completed"


def test_a_run_that_was_claimed_is_released_if_the_supervisor_stops_before_it_is_opened() -> None:
    """H1: another process can have it at once, and no crash is counted."""

    class Stopping(MemoryStore):
        def claim_ready(self, wanted: Sequence[RunHead], holder: str, ttl: float) -> list[Lease | None]:
            leases = super().claim_ready(wanted, holder, ttl)
            supervisor.resumer.request_stop()
            return leases

    store = Stopping()
    graph = graph_of(store, nothing)
    runs = [graph.start({}) for _ in range(4)]
    supervisor = supervise(store, [graph], poll=NEVER)
    supervisor.start()
    until(lambda: supervisor.resumer.stopping)
    supervisor.stop()
    heads = [store.head(run.id) for run in runs]
    assert [(head.status, head.holder, head.fence) for head in heads] == [(RUNNING, None, 2)] * 4
    assert not supervisor.resumer.has_claimed
    assert not client_for(store, supervisor.options.lease).has_leases()
    assert supervise(store, [graph]).resumer.picker.room > 0
    assert all(store.claim(run.id, "other", 1.0).crashes == 0 for run in runs)


def test_a_lease_that_was_lost_before_the_run_was_opened_is_not_used() -> None:
    """P8: the run belongs to the process that has claimed it since."""
    calls: list[str] = []
    store = MemoryStore()
    graph = graph_of(store, lambda state: calls.append(state.run_id) or {})
    run = graph.start({})
    supervisor = supervise(store, [graph])
    loop = supervisor.watch_loop
    claimed = loop.claim(loop.pick(loop.ready()))
    assert [head.run_id for head in claimed] == [run.id]
    store.claim(run.id, "another", 1000.0, instead_of=store.head(run.id).fence)
    supervisor.resumer.resume(claimed[0])
    assert calls == []
    assert (store.head(run.id).holder, store.head(run.id).fence) == ("another", 3)
    assert supervisor.running == []


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_ends_a_drain_and_leaves_no_run_claimed() -> None:
    """H1: the run in progress continues in its thread; those that follow are left to other processes."""
    interrupted = threading.Event()
    calls: list[str] = []

    def node(state: Any) -> dict[str, Any]:
        calls.append(state.run_id)
        _thread.interrupt_main()
        assert interrupted.wait(SOON)
        return {}

    store = MemoryStore()
    graph = graph_of(store, node)
    first, *others = [graph.start({}) for _ in range(3)]
    supervisor = supervise(store, [graph], concurrency=1)
    with pytest.raises(KeyboardInterrupt):
        supervisor.drain()
    interrupted.set()
    first.wait(SOON)
    until(lambda: "limpet-drain" not in [thread.name for thread in threading.enumerate()])
    until(lambda: supervisor.running == [])
    assert calls == [first.id]
    assert {(store.head(run.id).holder, store.head(run.id).fence) for run in others} == {(None, 1)}


VARIABLE: ContextVar[str] = ContextVar("VARIABLE", default="new")


def test_runs_take_turns_in_a_thread_that_has_the_name_of_each() -> None:
    """P7: no thread is started for each of them, and nothing of a run's context is left for the next."""
    seen: list[tuple[threading.Thread, str, str]] = []

    def node(state: Any) -> dict[str, Any]:
        thread = threading.current_thread()
        seen.append((thread, thread.name, VARIABLE.get()))
        VARIABLE.set(state.run_id)
        return {}

    store = MemoryStore()
    graph = graph_of(store, node)
    runs = [graph.start({}) for _ in range(20)]
    supervise(store, [graph], concurrency=1).drain()
    assert [name for _, name, _ in seen] == [f"limpet-run-{run.id}" for run in runs]
    assert {value for *_, value in seen} == {"new"}
    # The next run may be handed on before the thread of the last one waits for it, so there may be two or so.
    assert len({thread for thread, *_ in seen}) < 5


def test_a_picker_may_be_asked_while_runs_end() -> None:
    """H1: another thread looks at it without the lock."""
    picker = RunPicker(1000)
    done = threading.Event()

    def change() -> None:
        while not done.is_set():
            for number in range(200):
                picker.started(f"r{number}", "g")
            for number in range(200):
                picker.ended(f"r{number}")

    thread = threading.Thread(target=change)
    thread.start()
    try:
        assert all(800 <= picker.room_for("g") <= 1000 for _ in range(3000))
    finally:
        done.set()
        thread.join()
