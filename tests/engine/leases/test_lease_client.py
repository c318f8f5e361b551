"""How this process uses a store: leases held, released and forgotten; commits grouped."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from limpet import (
    Conflict,
    ExecutionError,
    MemoryStore,
    RunCancelled,
    RunPaused,
    StateGraph,
    StoreUnavailable,
    UsageError,
    pause,
)
from limpet.engine.leases import lease_client, process_identity
from limpet.engine.leases.held_lease import HeldLease
from limpet.engine.leases.lease_client import client_for
from limpet.engine.leases.process_identity import describe_holder, is_dead, this_process
from limpet.journal.store import Commit, Lease, NewRun, RunHead
from limpet.stores.opening import open_store
from limpet.testing.conformance import ManualClock
from support.graphs import chain
from support.posts import post_cancel
from support.wrapped_stores import PassesOn

SOON = 30.0
"""Seconds within which what is waited for has happened, on any machine."""


def new_run(run_id: str = "r") -> NewRun:
    return NewRun(run_id, "g", [b"1"], holder=this_process(), ttl=60.0)


def graph_of(store: Any, run: Any, **options: Any) -> StateGraph:
    made = chain(run, lambda state: {"second": True}, names=["first", "second"], name="g")
    return made.compile(store=store, **options)


def test_a_run_is_held_for_the_length_of_a_block() -> None:
    """P8: however the block ends, unless it keeps the lease."""
    client = client_for(MemoryStore(), 60.0)
    client.release(client.create(new_run()))
    with client.holding("r") as held:
        assert client.held["r"] is held.lease
        assert held.read().records == [b"1"]
        with pytest.raises(Conflict), client.holding("r"):
            pass
    with pytest.raises(ZeroDivisionError), client.holding("r"):
        raise ZeroDivisionError
    assert client.store.head("r").holder is None
    with client.holding("r") as held:
        kept = held.keep()
    assert client.store.head("r").holder == this_process()
    assert client.held["r"] is kept


def test_a_commit_that_stops_the_run_releases_it() -> None:
    """P8: in the same write, so that no crash can come between; and a refused commit is raised."""
    client = client_for(MemoryStore(), 60.0)
    client.release(client.create(new_run()))
    with client.holding("r") as held:
        held.commit(Commit("r", held.fence, 1, [b"2"], status="paused"))
        assert client.store.head("r").holder is None
        assert "r" not in client.held
    with pytest.raises(Conflict), client.holding("r") as held:
        held.commit(Commit("r", held.fence, 1, [b"2"]))
    assert client.store.head("r").holder is None


class TwoClaims(MemoryStore):
    """A store that two threads claim a run from: the second reads the head just after the first was granted it.

    The second begins when the first has come to its `point`-th step in the code under test.
    """

    def __init__(self, point: int) -> None:
        super().__init__()
        self._steps_left = point
        self._first = threading.Thread(target=self._claim_traced)
        self._second = threading.Thread(target=self._claim)
        self._reading = threading.Event()
        self._granted = threading.Event()
        self.claimed: list[HeldLease] = []
        self.client = client_for(self, 60.0)
        self.client.release(self.client.create(new_run()))

    def run(self) -> bool:
        """Let both claim the run; whether the second one has begun."""
        self._first.start()
        self._first.join()
        if self._steps_left > 0:
            return False
        self._second.join()
        return True

    def head(self, run_id: str) -> RunHead:
        if threading.current_thread() is self._second:
            self._reading.set()
            assert self._granted.wait(SOON)
        return super().head(run_id)

    def claim(self, run_id: str, holder: str, ttl: float, instead_of: int | None = None) -> Lease:
        lease = super().claim(run_id, holder, ttl, instead_of)
        self._granted.set()
        if threading.current_thread() is self._first and self._steps_left <= 0:
            self._second.join(SOON)
        return lease

    def _claim(self) -> None:
        with suppress(Conflict):
            self.claimed.append(self.client.claim("r"))

    def _claim_traced(self) -> None:
        sys.settrace(self._step)
        self._claim()
        sys.settrace(None)

    def _step(self, frame: FrameType, event: str, arg: Any) -> Any:
        if frame.f_code.co_filename != lease_client.__file__:
            return None
        self._steps_left -= 1
        if self._steps_left == 0:
            self._second.start()
            self._reading.wait(SOON)
        return self._step


def test_of_two_threads_that_claim_a_run_one_gets_it() -> None:
    """H2: no claim that is under way is taken for a lease that this process has forgotten."""
    for point in itertools.count(1):
        store = TwoClaims(point)
        if not store.run():
            break
        assert len(store.claimed) == 1, f"at step {point}"
    assert point > 10


def test_releasing_a_lease_leaves_a_newer_one_of_the_same_run_alone() -> None:
    """P8: a run that paused here and was resumed here at once is still renewed."""
    client = client_for(MemoryStore(), 60.0)
    old = client.create(new_run())
    client.store.release(old.lease)
    new = client.claim("r")
    client.stop_renewing(old)
    assert client.held.get("r") is new


def test_graphs_on_the_same_store_share_one_client() -> None:
    """G10: so that their runs share commits."""
    store = MemoryStore()
    assert client_for(store) is client_for(store)
    assert client_for(store) is not client_for(MemoryStore())


def test_a_lease_that_could_not_be_released_is_claimed_again_by_the_same_process() -> None:
    """G9: after a failed save the message says that resume tries again, so it must."""

    class Failing(MemoryStore):
        broken = False

        def append(self, commits: Any) -> Any:
            if self.broken:
                raise StoreUnavailable("the disk is full")
            return super().append(commits)

        def release(self, lease: Any) -> None:
            if self.broken:
                raise StoreUnavailable("the disk is full")
            super().release(lease)

    store = Failing()

    def first(state: Any) -> dict[str, Any]:
        store.broken = True
        return {"first": True}

    with pytest.raises(ExecutionError, match="the disk is full"):
        graph_of(store, first, lease=60).execute({}, run_id="r")
    store.broken = False
    assert graph_of(store, lambda state: {"first": True}, lease=60).resume("r") == {
        "first": True,
        "second": True,
    }


def test_a_run_that_this_process_is_running_is_not_taken_from_it() -> None:
    """P8: also not by another graph object over the same store."""
    store, begun, proceed = MemoryStore(), threading.Event(), threading.Event()

    def first(state: Any) -> dict[str, Any]:
        begun.set()
        assert proceed.wait(30)
        return {"first": True}

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(graph_of(store, first, lease=60).execute, {}, run_id="r")
        assert begun.wait(30)
        with pytest.raises(Conflict, match="this process"):
            graph_of(store, first, lease=30).resume("r")
        proceed.set()
        assert running.result(30)["second"] is True


def test_a_request_to_cancel_whose_holder_died_ends_with_the_resume() -> None:
    """G12: resuming is the newer wish."""
    store = MemoryStore()
    graph = graph_of(store, lambda state: {"first": True})
    run = graph.stream({}, run_id="r")
    next(run)
    post_cancel(store, "r")
    run.close()
    assert graph.resume("r") == {"first": True, "second": True}


def test_a_request_to_cancel_stops_a_run_at_its_next_save() -> None:
    """G12: with what the node did kept."""
    store = MemoryStore()
    graph = graph_of(store, lambda state: post_cancel(store, "r") or {"first": True})
    with pytest.raises(RunCancelled):
        graph.execute({}, run_id="r")
    assert graph.state_at("r") == {"first": True}
    assert graph.resume("r") == {"first": True, "second": True}


def test_a_run_that_completes_while_it_is_being_cancelled_stays_completed() -> None:
    """G12: cancel() says so."""
    store = MemoryStore()
    graph = graph_of(store, lambda state: {"first": True}, preserve=True)
    graph.execute({}, run_id="r")

    class Late(MemoryStore):
        """Shows the run as it was a moment ago, once."""

        def __init__(self) -> None:
            self.__dict__ = store.__dict__
            self.looked = False

        def head(self, run_id: str) -> Any:
            head = super().head(run_id)
            if not self.looked:
                self.looked = True
                return head._replace(status="running")
            return head

    late = graph_of(Late(), lambda state: None, preserve=True)
    with pytest.raises(UsageError, match="already ended"):
        late.cancel("r")
    assert graph.runs()[0].status == "completed"


def test_commits_of_many_threads_are_put_together_and_all_are_stored() -> None:
    """Invariant 1: the first thread writes what the others have queued."""

    class Counting(MemoryStore):
        calls = 0

        def append(self, commits: Any) -> Any:
            self.calls += 1
            return super().append(commits)

    store = Counting()
    client = client_for(store, 60.0)
    runs = [f"r{number}" for number in range(8)]
    for run_id in runs:
        client.create(new_run(run_id))

    def work(run_id: str) -> None:
        for sequence in range(1, 101):
            assert client.commit(Commit(run_id, 1, sequence, [b"x"])) is None

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, runs))
    assert [store.head(run_id).sequence for run_id in runs] == [101] * 8
    assert store.calls <= 800


def test_a_holder_is_dead_only_when_that_is_certain() -> None:
    """P8: another host, another boot, or a holder's name of another format may be alive."""
    me = this_process()
    host, boot, space, pid, began, _ = me.split("|")
    assert not is_dead(me)
    assert not is_dead("|".join(["elsewhere", boot, space, "999999999", began]))
    assert not is_dead("|".join([host, "another boot", space, "999999999", began]))
    assert not is_dead("worker-7")
    if began:
        assert is_dead("|".join([host, boot, space, "999999999", began]))
        assert is_dead("|".join([host, boot, space, pid, "1"]))
    assert "this process" in describe_holder(me)
    assert describe_holder("worker-7") == "worker-7"
    assert describe_holder(None) == "no process"


def test_a_renewal_extends_the_leases_that_are_left_and_gives_up_those_that_are_lost() -> None:
    """P8: a lease lives as long as it is renewed, and each by itself; a lost one isn't released any more."""
    clock = ManualClock()
    store = MemoryStore(clock)
    client = client_for(store, 10.0)
    held = {name: client.create(new_run(name)._replace(ttl=10.0)) for name in ("kept", "lost", "deleted")}
    store.claim("lost", "another process", 100.0, instead_of=held["lost"].lease.fence)
    store.release(held["deleted"].lease)
    store.delete("deleted")
    for _ in range(3):
        clock.advance(9.0)
        client.renew()
    with pytest.raises(Conflict):
        store.claim("kept", "another process", 10.0)
    assert {name: each.lost for name, each in held.items()} == {"kept": False, "lost": True, "deleted": True}
    assert {name for name, each in held.items() if each.stop.asked} == {"lost", "deleted"}
    assert set(client.held) == {"kept"}
    client.release(held["lost"])
    assert store.head("lost").holder == "another process"
    client.release(held["kept"])
    assert (store.head("kept").holder, set(client.held)) == (None, set())


def test_a_renewal_brings_a_request_to_cancel_and_the_run_stays_held() -> None:
    """P8, G9: until the run has stopped and saved that, no other process may claim it."""
    clock = ManualClock()
    store = MemoryStore(clock)
    client = client_for(store, 10.0)
    asked, other = (client.create(new_run(name)._replace(ttl=10.0)) for name in ("asked", "other"))
    asked.graph = other.graph = "g"  # as for runs that sessions execute
    post_cancel(store, "asked")
    clock.advance(9.0)
    client.renew()
    assert (asked.stop.asked, asked.lost, other.stop.asked) == (True, False, False)
    clock.advance(9.0)
    with pytest.raises(Conflict):
        store.claim("asked", "another process", 10.0)
    assert set(client.held) == {"asked", "other"}


def test_a_conflict_names_the_run_its_holder_and_when_its_lease_ends() -> None:
    """P8: in words for people, and as attributes for programs."""
    clock = ManualClock()
    client = client_for(MemoryStore(clock), 30.0)
    held = client.create(new_run()._replace(ttl=30.0))
    with pytest.raises(Conflict, match="this process") as caught:
        client.claim("r")
    client.release(held)
    conflict = caught.value
    assert (conflict.run_id, conflict.holder, conflict.until) == ("r", this_process(), clock() + 30.0)


def test_a_write_is_refused_by_a_conflict_with_and_without_a_holder() -> None:
    """P8: another process claimed the run, and perhaps released it since."""
    client = client_for(MemoryStore(), 60.0)
    with client.releasing(client.create(new_run())) as held:
        other = client.store.claim("r", "another process", 60.0, instead_of=held.fence)
        with pytest.raises(Conflict, match="held by another process") as caught:
            held.commit(Commit("r", held.fence, 1, [b"2"]))
        assert (caught.value.run_id, caught.value.holder) == ("r", "another process")
        client.store.release(other)
        with pytest.raises(Conflict, match="no process holds it now") as caught:
            held.commit(Commit("r", held.fence, 1, [b"2"]))
        assert (caught.value.run_id, caught.value.holder) == ("r", None)


def test_a_holder_reads_the_stores_time_although_the_store_shows_no_clock() -> None:
    """P8: from the end of the lease that it was granted, and how long ago that was."""

    class WithoutClock(PassesOn):
        def __getattr__(self, name: str) -> Any:
            if name == "clock":
                raise AttributeError(name)
            return super().__getattr__(name)

    clock = ManualClock()
    began = time.monotonic()
    client = client_for(WithoutClock(MemoryStore(clock)), 60.0)
    held = client.create(new_run())
    now = held.now()
    assert clock() <= now <= clock() + (time.monotonic() - began)
    assert held.now() >= now
    client.release(held)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the system has no /proc")
def test_a_holder_that_ended_is_dead_before_its_parent_asked_how_it_ended() -> None:
    """P8: a zombie holds nothing. A program may have any name, even one like the end of a process."""
    program = (
        "import pathlib, sys; from limpet.engine.leases.process_identity import this_process; "
        "pathlib.Path('/proc/self/comm').write_text('odd) Z 1 ('); "
        "print(this_process(), flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        holder = child.stdout.readline().strip()
        assert not is_dead(holder)
        child.stdin.close()
        deadline = time.monotonic() + 60
        while not is_dead(holder):
            assert time.monotonic() < deadline
            time.sleep(0.005)


def test_a_run_whose_lease_another_process_claimed_stops_before_its_next_node() -> None:
    """P8: also where nothing is saved between the nodes, and a write would not be refused for long."""
    store, ran = MemoryStore(), []

    def first(state: Any) -> None:
        head = store.head("r")
        store.claim("r", "another process", 60.0, instead_of=head.fence)
        graph.compiled().need_client("test").renew()

    graph = graph_of(store, first, interval=5)
    graph.add_node("third", run=lambda state: ran.append("third"))
    graph.add_edge("second", "third", lambda state: True).set_finish_point("third")
    with pytest.raises(Conflict, match="another process"):
        graph.execute({}, run_id="r")
    assert ran == []
    assert store.head("r").holder == "another process"
    assert store.head("r").sequence == 1


def test_a_waiting_claim_reads_the_head_again() -> None:
    """P8: the head that the caller knows is from before the wait; the holder of now may be dead."""
    host, boot, space, _, began, _ = this_process().split("|")
    dead = "|".join([host, boot, space, "999999999", began])
    if not is_dead(dead):
        pytest.skip("this system doesn't tell whether a process is alive")
    client = client_for(MemoryStore(), 60.0)
    client.release(client.create(new_run()))
    known = client.head("r")
    client.store.claim("r", dead, 600.0)
    client.release(client.claim("r", wait=30.0, known=known))
    assert client.store.head("r").fence == known.fence + 2


def test_a_waiting_claim_is_woken_when_the_run_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """P8: by the store, where it can tell; also where it is wrapped in another."""
    from limpet.stores.composite.tiered import TieredStore

    monkeypatch.setattr("limpet.engine.leases.change_waiter.LONGEST_RECHECK", 1000.0)
    for store in (MemoryStore(), TieredStore(MemoryStore(), MemoryStore())):
        lease = store.create(NewRun("r", "g", [b"1"], holder="other", ttl=1000.0))
        assert lease is not None
        asked = threading.Event()
        claim = store.claim

        def claiming(*given: Any, claim: Any = claim, asked: Any = asked) -> Any:
            try:
                return claim(*given)
            finally:
                asked.set()

        monkeypatch.setattr(store, "claim", claiming)
        with ThreadPoolExecutor(1) as pool:
            claimed = pool.submit(client_for(store, 60.0).claim, "r", 60.0)
            assert asked.wait(30)
            store.release(lease)
            assert claimed.result(30).lease.fence == 2


def test_waiting_for_a_run_that_is_never_free_has_an_end() -> None:
    """P8: with the conflict that names the holder, whatever else changes in the store meanwhile."""
    store, stop = MemoryStore(), threading.Event()
    store.create(NewRun("r", "g", [b"1"], holder="other", ttl=1000.0))

    def others() -> int:
        number = 0
        while not stop.is_set():
            store.create(NewRun(f"other{number}", "g", [b"1"]))
            number += 1
        return number

    with ThreadPoolExecutor(1) as pool:
        changes = pool.submit(others)
        try:
            with pytest.raises(Conflict, match="other"):
                client_for(store, 60.0).claim("r", 0.3)
        finally:
            stop.set()
        assert changes.result(30) > 0


def test_a_store_around_one_without_notifications_says_so(tmp_path: Any) -> None:
    """Abilities are declared; waiting without them is an error."""
    from limpet.stores.composite.encrypted import EncryptedStore, Keys
    from limpet.stores.composite.tiered import TieredStore
    from limpet.stores.sqlite.store import SQLiteStore

    pytest.importorskip("cryptography")
    silent = SQLiteStore(tmp_path / "runs.db")
    for store in (TieredStore(MemoryStore(), silent), EncryptedStore(silent, Keys({"k": b"k" * 32}))):
        assert not store.abilities.notifies
        with pytest.raises(UsageError, match="notifies"):
            store.wait_for_change(0.0)
    silent.close()


def test_a_holder_that_can_not_be_inspected_is_not_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    """P8: a process without file handles left, or one that hides others, declares no process dead."""
    monkeypatch.setattr("limpet.engine.leases.process_identity._first_line", lambda path: "")
    host, boot, space, _, began, _ = this_process().split("|")
    me = "|".join([host, boot, space, str(os.getpid()), began or "1"])
    monkeypatch.setattr("limpet.engine.leases.process_identity._place", lambda: (host, boot or "b", space))
    assert not is_dead(me.replace(f"|{boot}|", f"|{boot or 'b'}|", 1))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_child_that_was_forked_off_neither_hangs_nor_releases_its_parents_runs() -> None:
    """P8: it has links of its own, whatever other threads were about."""
    store = MemoryStore()
    client = client_for(store, 60.0)
    held = client.create(NewRun("r", "g", [b"1"], holder=this_process(), ttl=60.0))
    client.group_commit._write_lock.acquire()
    refusals: list[Exception | None] = []
    child = os.fork()
    if child == 0:
        client.release(held)
        own = client.create(NewRun("s", "g", [b"1"], holder=this_process(), ttl=60.0))
        ok = client.commit(Commit("s", own.lease.fence, 1, [b"2"])) is None
        ok = ok and isinstance(client.commit(Commit("r", 1, 1, [b"2"])), Conflict)
        client.commit_later(Commit("r", 1, 1, [b"2"]), lambda done: refusals.append(done.outcome))
        ok = ok and isinstance(refusals[0], Conflict)
        os._exit(0 if ok and store.head("r").holder is not None else 1)
    client.group_commit._write_lock.release()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


COPIES = """
import importlib, sys, threading

def library():
    for name in [name for name in sys.modules if name.partition(".")[0] == "limpet"]:
        del sys.modules[name]
    return importlib.import_module("limpet")

def graph_of(limpet, run):
    graph = limpet.StateGraph(name="g").add_node("a", run=run).set_entry_point("a").set_finish_point("a")
    return graph.compile(store=sys.argv[1], preserve=True)

running = threading.Event()
go = threading.Event()
calls = []

def node(state):
    calls.append(1)
    running.set()
    assert go.wait(60)

first = library()
execute = graph_of(first, node).execute
thread = threading.Thread(target=execute, args=({},), kwargs={"run_id": "r"}, daemon=True)
thread.start()
assert running.wait(60)
second = library()
assert second is not first
other = graph_of(second, node)
try:
    other.resume("r")
except second.Conflict as conflict:
    assert "by another copy of the library" in str(conflict), conflict
else:
    raise SystemExit("the second copy took the run of the first")
assert other.recover() == []
go.set()
thread.join()
assert calls == [1]
assert other.runs()[0].status == "completed"
"""


@pytest.mark.parametrize("scheme", ["sqlite:///{}/runs.db", "file://{}/runs"])
def test_a_second_copy_of_the_library_does_not_take_a_live_run(scheme: str, tmp_path: Path) -> None:
    """H2: neither copy knows the leases of the other, although they are the same process."""
    command = [sys.executable, "-c", COPIES, scheme.format(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_run_of_another_store_does_not_hide_a_lease_that_was_forgotten() -> None:
    """H1: it has the same id and the same fence, but isn't the same run."""

    class Stubborn(MemoryStore):
        def release(self, lease: Lease) -> None:
            raise StoreUnavailable("not now")

    store = Stubborn()
    other = MemoryStore()
    forgotten = client_for(store, 60.0).create(new_run())
    held = client_for(other, 60.0).create(new_run())
    with pytest.raises(StoreUnavailable):
        client_for(store, 60.0).release(forgotten)
    assert client_for(store, 60.0).claim("r").lease.fence == 2
    with pytest.raises(Conflict, match="this process"):
        client_for(other, 60.0).claim("r")
    assert held.lease.fence == 1


def test_two_objects_for_one_store_do_not_take_a_run_from_each_other(tmp_path: Path) -> None:
    """H2: whatever they are called by."""
    one = open_store(f"sqlite:///{tmp_path}/runs.db")
    (tmp_path / "link").symlink_to(tmp_path)
    two = open_store(f"sqlite:///{tmp_path}/link/runs.db")
    held = client_for(one, 60.0).create(new_run())
    with pytest.raises(Conflict, match="this process"):
        client_for(two, 60.0).claim("r")
    client_for(one, 60.0).release(held)
    assert client_for(two, 60.0).claim("r").lease.fence == 2


@pytest.mark.parametrize("call", ["answer", "cancel", "retry", "rollback", "export", "prune"])
def test_an_interrupt_before_a_run_is_used_leaves_no_lease(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H2: Ctrl-C just after a call has claimed the run; its traceback is kept, as a REPL does."""
    store = MemoryStore()
    graph = chain(lambda state: {"n": 1}, lambda state: {"said": pause("well?")}).compile(store=store)
    with pytest.raises(RunPaused):
        graph.execute({}, run_id="r")
    handle = graph.get("r")
    if call == "retry":
        handle.cancel()
    if call == "export":
        handle.answer("yes")
    calls: dict[str, Callable[[], Any]] = {
        "answer": lambda: handle.answer("yes"),
        "cancel": handle.cancel,
        "retry": handle.retry,
        "rollback": lambda: handle.rollback(0),
        "export": lambda: handle.export(tmp_path / "r.run"),
        "prune": lambda: graph.prune_checkpoints("r", 1),
    }

    def interrupt(*args: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(lease_client.HeldRun, "__init__", interrupt)
        with pytest.raises(KeyboardInterrupt) as kept:
            calls[call]()
    assert (store.head("r").holder, kept.type) == (None, KeyboardInterrupt)
    calls[call]()


def test_runs_that_are_ready_are_held_together() -> None:
    """H18: those that are still as they were listed; each is renewed, and released by itself."""
    store = MemoryStore()
    for name in "abc":
        store.create(NewRun(name, "g", [b"1"], due=0.0))
    listed = [store.head(name) for name in "abc"]
    store.claim("b", "another", 1000.0)
    client = client_for(store, 60.0)
    first, missed, last = client.claim_ready(listed)
    assert missed is None
    assert first is not None
    assert last is not None
    assert {held.lease.run_id for held in client.leases_in_use()} == {"a", "c"}
    with client.holding("a", lease=first) as held:
        assert (held.fence, held.read().head.holder) == (2, this_process())
    client.release(last)
    assert [store.head(name).holder for name in "abc"] == [None, "another", None]


def test_a_claim_of_many_runs_that_is_interrupted_can_be_made_again() -> None:
    """H1: the process that was granted the leases, and doesn't know them, needn't wait until they expire."""

    class Interrupted(MemoryStore):
        def claim_ready(self, *args: Any) -> Any:
            super().claim_ready(*args)
            raise KeyboardInterrupt

    store = Interrupted()
    store.create(NewRun("r", "g", [b"1"], due=0.0))
    client = client_for(store, 60.0)
    with pytest.raises(KeyboardInterrupt):
        client.claim_ready([store.head("r")])
    assert store.head("r").holder == this_process()
    assert not client.has_leases()
    assert client.claim("r").lease.fence == 3


def test_a_process_keeps_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """P8: it knows its own leases by it, also when it can't read its start time again."""
    name = this_process()
    monkeypatch.setattr(process_identity, "_start_time", lambda pid: None)
    assert this_process() == name
