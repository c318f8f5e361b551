"""What may happen to a worker: it stands still, is cut off, gets SIGTERM, or has a run that crashes it."""

from __future__ import annotations

import os
import signal
import socket
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import limpet
from support.postgres import Server
from support.workers import FULL, PATIENCE, Fleet, check_journals, steps_begun_after_they_were_saved

GATES = {"gated": ("gated", "gated1", "gated2"), "gated_here": ("gated_here", "gated_here1", "gated_here2")}
NEVER = 10_000.0
"""A lease that doesn't run out while a test lasts: who takes such a run over didn't wait for that."""


def only(store: str) -> pytest.MarkDecorator:
    """For what has nothing to do with the kind of the store."""
    return pytest.mark.parametrize("workers", [store], indirect=True)


needs_signals = pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="this system can't stop processes")


def under_way(workers: Fleet, run_id: str, worker: Any, node: str) -> None:
    """Wait until a worker is in a node."""
    workers.wait(lambda: workers.lines("begin", run=run_id, pid=worker.pid, node=node))


def ended(workers: Fleet, run_id: str) -> str:
    """Wait until a run has ended, and say how."""
    workers.wait(lambda: workers.store.head(run_id).status != "running")
    return workers.store.head(run_id).status


def check_sound(workers: Fleet) -> None:
    """What holds in all of these tests."""
    assert steps_begun_after_they_were_saved(workers.log) == []
    check_journals(workers.log)


def is_refused_and_takes_other_runs(workers: Fleet, late: Any, other: Any, kind: str) -> None:
    """The late worker's save of run "r" is refused, and it takes on other runs."""
    workers.wait(lambda: workers.lines("refused", run="r", pid=late.pid, why="Conflict"))
    assert set(workers.graphs[kind].state_at("r")["by"]) == {other.pid}
    other.kill()
    workers.start(kind, "next")
    workers.let("next", *GATES[kind])
    assert ended(workers, "next") == "completed"
    assert workers.graphs[kind].state_at("next")["by"] == [late.pid] * 3
    check_sound(workers)


@needs_signals
@pytest.mark.parametrize("kind", GATES)
def test_a_worker_that_stood_still_for_too_long_is_refused_and_takes_other_runs(
    workers: Fleet, kind: str
) -> None:
    """H1, invariant 2: its run went to another worker, which ended it; what it has to save is too late."""
    options = {"lease": 1.0, "asyncio": kind == "gated_here"}
    late = workers.worker(host="one", **options)
    workers.start(kind, "r")
    under_way(workers, "r", late, GATES[kind][0])
    late.freeze()
    other = workers.worker(host="two", **options)
    under_way(workers, "r", other, GATES[kind][0])
    workers.let("r", *GATES[kind])
    assert ended(workers, "r") == "completed"
    late.thaw()
    is_refused_and_takes_other_runs(workers, late, other, kind)


@contextmanager
def sqlite_locked(file: Path) -> Iterator[None]:
    """No process can write, as another program has locked the file."""
    with closing(sqlite3.connect(file, isolation_level=None, timeout=PATIENCE)) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        yield
        connection.execute("ROLLBACK")


@contextmanager
def postgres_down(server: Server) -> Iterator[None]:
    """The server is stopped."""
    server.stop()
    try:
        yield
    finally:
        server.start()


@pytest.mark.parametrize("policy", ["wait", "continue"])
def test_a_run_outlasts_a_store_that_is_away(
    workers: Fleet, policy: str, request: pytest.FixtureRequest
) -> None:
    """G12: it waits, or continues unsaved if the graph says so; then it is saved, and no node runs twice."""
    compiled = {"compile": {"on_save_error": policy}} if policy != "wait" else {}
    patience = f"{'&' if '?' in workers.url else '?'}timeout=0.1"
    worker = workers.worker(store=workers.url + patience, lease=1.0, **compiled)
    workers.start("gated", "r")
    under_way(workers, "r", worker, "gated")
    away = (
        sqlite_locked(workers.folder / "runs.db")
        if workers.url.startswith("sqlite")
        else postgres_down(request.getfixturevalue("postgres"))
    )
    with away:
        workers.let("r", "gated")
        workers.wait(lambda: workers.lines("end", run="r", node="gated"))
        if policy == "continue":
            under_way(workers, "r", worker, "gated1")
        else:
            told, until = workers.folder / f"{worker.pid}.out", time.monotonic() + (20 if FULL else 0)
            workers.wait(lambda: "waits for its store" in told.read_text())
            workers.wait(lambda: "couldn't renew leases" in told.read_text())
            workers.wait(lambda: time.monotonic() >= until)
            assert not workers.lines("begin", run="r", node="gated1")
    workers.let("r", "gated1", "gated2")
    assert ended(workers, "r") == "completed"
    assert workers.graphs["gated"].state_at("r")["by"] == [worker.pid] * 3
    assert len(workers.lines("begin", run="r")) == 3
    assert len(workers.lines("claim", run="r")) == 1
    check_sound(workers)


class Cable:
    """A way to a PostgreSQL server that can be cut."""

    def __init__(self, server: str) -> None:
        self._server = server
        self.folder = tempfile.mkdtemp(prefix="hf-")
        self.name = f"{self.folder}/.s.PGSQL.5432"
        self._open: list[socket.socket] = []
        self.restore()

    def restore(self) -> None:
        """Let connections through."""
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.name)
        self._listener.listen(32)
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def cut(self) -> None:
        """Nothing gets through any more, and no new connection is accepted."""
        os.unlink(self.name)
        for each in (self._listener, *self._open):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        self._open.clear()

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                near, _ = listener.accept()
                far = socket.socket(socket.AF_UNIX)
                far.connect(self._server)
                self._open += [near, far]
                for ends in ((near, far), (far, near)):
                    threading.Thread(target=self._carry, args=ends, daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
        for each in (source, target):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def cable(postgres: Server) -> Iterator[Cable]:
    made = Cable(postgres.of("postgres").rpartition("host=")[2] + "/.s.PGSQL.5432")
    yield made
    made.cut()
    os.rmdir(made.folder)


@only("postgres")
def test_a_worker_that_is_cut_off_loses_its_runs_to_one_that_is_not(workers: Fleet, cable: Cable) -> None:
    """H1, invariant 2: a lease that can't be renewed is not kept by luck."""
    base = workers.url.partition("?")[0]
    cut_off = workers.worker(store=f"{base}?host={cable.folder}&timeout=0.1", lease=1.0, host="one")
    workers.start("gated", "r")
    under_way(workers, "r", cut_off, "gated")
    cable.cut()
    other = workers.worker(lease=1.0, host="two")
    under_way(workers, "r", other, "gated")
    workers.let("r", *GATES["gated"])
    assert ended(workers, "r") == "completed"
    cable.restore()
    is_refused_and_takes_other_runs(workers, cut_off, other, "gated")


@pytest.mark.parametrize("kind", GATES)
def test_a_worker_that_gets_sigterm_hands_its_runs_over(workers: Fleet, kind: str) -> None:
    """H1: the node that runs is finished and saved, and no process waits for a lease to expire."""
    first, second, third = GATES[kind]
    options = {"lease": NEVER, "grace": PATIENCE, "asyncio": kind == "gated_here"}
    leaving = workers.worker(**options)
    workers.start(kind, "r")
    under_way(workers, "r", leaving, first)
    staying = workers.worker(**options)
    os.kill(leaving.pid, signal.SIGTERM)
    workers.wait(lambda: workers.lines("leaving", pid=leaving.pid))
    workers.let("r", first)
    assert leaving.wait() == 0
    under_way(workers, "r", staying, second)
    workers.let("r", second, third)
    assert ended(workers, "r") == "completed"
    assert workers.graphs[kind].state_at("r")["by"] == [leaving.pid, staying.pid, staying.pid]
    assert [line["crashes"] for line in workers.lines("claim", run="r")] == [0, 0]
    check_sound(workers)


@only("sqlite")
@pytest.mark.parametrize("kind", GATES)
def test_a_node_that_outlasts_the_grace_is_left_to_others(workers: Fleet, kind: str) -> None:
    """H1: the worker ends all the same, and another calls the node again, at once."""
    options = {"lease": NEVER, "asyncio": kind == "gated_here"}
    leaving = workers.worker(**options, grace=0.1)
    workers.start(kind, "r")
    under_way(workers, "r", leaving, GATES[kind][0])
    staying = workers.worker(**options)
    os.kill(leaving.pid, signal.SIGTERM)
    assert leaving.wait() == 0
    under_way(workers, "r", staying, GATES[kind][0])
    workers.let("r", *GATES[kind])
    assert ended(workers, "r") == "completed"
    assert workers.graphs[kind].state_at("r")["by"] == [staying.pid] * 3
    assert [line["crashes"] for line in workers.lines("claim", run="r")] == [0, 0]


@only("sqlite")
def test_a_worker_that_gets_sigterm_twice_ends_at_once(workers: Fleet) -> None:
    """H1: and as its process is gone, others of the host needn't wait for its lease."""
    leaving = workers.worker(lease=NEVER, grace=NEVER)
    workers.start("gated", "r")
    under_way(workers, "r", leaving, "gated")

    def gone() -> bool:
        os.kill(leaving.pid, signal.SIGTERM)
        time.sleep(0.05)
        return leaving.popen.poll() is not None

    workers.wait(gone)
    assert leaving.popen.returncode in (1, -signal.SIGTERM), "as it got more signals while it ended"
    staying = workers.worker(lease=NEVER)
    under_way(workers, "r", staying, "gated")
    assert not workers.lines("end", run="r")


def test_what_came_due_while_no_worker_ran_is_done_when_one_starts(workers: Fleet) -> None:
    """H9, P8: a deadline that passed is applied; a sleeper wakes once, on a worker that is alive."""
    first = workers.worker(max_sleep=0.0)
    workers.start("asking", "question", seconds=1.0)
    workers.start("napping", "sleeper", seconds=1.0)
    workers.wait(lambda: workers.store.head("question").status == "paused")
    workers.wait(lambda: workers.lines("run.sleep", run="sleeper"))
    first.kill()
    due = [workers.store.head(run_id).due for run_id in ("question", "sleeper")]
    workers.wait(lambda: time.time() > max(each or NEVER for each in due))
    alive = [workers.worker(max_sleep=0.0).pid, workers.worker(max_sleep=0.0).pid]
    assert ended(workers, "sleeper") == "completed"
    workers.wait(lambda: workers.store.head("question").status == "completed")
    assert workers.graphs["asking"].state_at("question")["said"] == "no answer came"
    assert workers.graphs["napping"].state_at("sleeper")["by"][0] in alive
    assert len(workers.lines("begin", run="sleeper")) == 2, "it fell asleep, and woke"
    assert len(workers.lines("begin", run="question")) == 2, "it asked, and got the default"
    check_sound(workers)


@only("sqlite")
def test_a_run_is_not_to_blame_for_what_happens_while_it_sleeps(workers: Fleet) -> None:
    """H1, H9: a holder that crashes meanwhile counts neither against the run nor as an attempt of its node."""
    options = {"max_sleep": NEVER, "max_crashes": 2}
    workers.start("napping", "r", seconds=4.0)
    first = workers.worker(**options)
    under_way(workers, "r", first, "napping")
    workers.wait(lambda: workers.lines("append", run="r", pid=first.pid))
    first.kill()
    second = workers.worker(**options)
    workers.wait(lambda: workers.lines("append", run="r", pid=second.pid))
    second.kill()
    (slept,) = workers.lines("begin", run="r")
    workers.wait(lambda: time.time() > slept["at"] + 4.5)
    third = workers.worker(**options)
    assert ended(workers, "r") == "completed"
    assert workers.lines("begin", run="r")[-1]["pid"] == third.pid
    assert workers.lines("begin", run="r")[-1]["attempt"] == 2, "of the worker that crashed when it was over"


@only("sqlite")
def test_a_run_that_crashes_its_process_is_quarantined_and_its_neighbours_are_not(workers: Fleet) -> None:
    """H1: after three times alone, although its neighbours crashed too; `resume` is then an explicit act."""
    deadly = workers.start("deadly", "deadly", beside=["a", "b", "c"])
    for run_id in ("a", "b", "c"):
        workers.start("blocking", run_id, seconds=0.5)
    crew: list[Any] = []

    def quarantined() -> bool:
        if not crew or crew[-1].popen.poll() is not None:
            crew.append(workers.worker(lease=NEVER))
        return workers.store.head("deadly").status == "failed"

    workers.wait(quarantined)
    assert [worker.popen.returncode for worker in crew] == [13, 13, 13, 13, 13, None]
    assert {ended(workers, run_id) for run_id in ("a", "b", "c")} == {"completed"}
    assert max(line["crashes"] for line in workers.lines("claim") if line["run"] != "deadly") >= 2
    assert "crashed 3 times in a row at node 'deadly'" in deadly.info.reason
    (workers.folder / "deadly.harmless").touch()
    assert workers.graphs["deadly"].resume("deadly")["by"] == [os.getpid()]


@pytest.mark.parametrize("asyncio", [False, True])
def test_a_cancel_in_another_process_interrupts_an_async_node(workers: Fleet, asyncio: bool) -> None:
    """H3: its node would never end; the run is cancelled, and can be resumed where it was."""
    worker = workers.worker(lease=1.0, asyncio=asyncio)
    workers.start("gated_here", "r")
    under_way(workers, "r", worker, "gated_here")
    workers.graphs["gated_here"].cancel("r")
    assert ended(workers, "r") == "cancelled"
    assert workers.lines("end", run="r") == []
    workers.let("r", *GATES["gated_here"])
    assert workers.graphs["gated_here"].resume("r")["by"] == [os.getpid()] * 3
    check_sound(workers)


@only("sqlite")
def test_a_dead_worker_of_the_same_host_is_replaced_without_waiting_for_its_lease(workers: Fleet) -> None:
    """H1: also by one that was there before the run was."""
    first, second = workers.worker(lease=NEVER, tell=True), workers.worker(lease=NEVER, tell=True)
    assert {first.hear()["ready"], second.hear()["ready"]} == {first.pid, second.pid}
    workers.start("gated", "r")
    (begun,) = workers.wait(lambda: workers.lines("begin", run="r"))
    dead, alive = (first, second) if begun["pid"] == first.pid else (second, first)
    dead.kill()
    under_way(workers, "r", alive, "gated")
    assert [line["broken"] for line in workers.lines("claim", run="r")] == [False, True]


@only("postgres")
def test_a_dead_worker_of_another_host_is_replaced_within_twice_the_lease(workers: Fleet) -> None:
    """H1: no process can tell that it is dead, so its lease has to expire."""
    lease = 4.0
    dead = workers.worker(lease=lease, host="one")
    workers.start("gated", "r")
    under_way(workers, "r", dead, "gated")
    alive = workers.worker(lease=lease, host="two", tell=True)
    alive.hear()
    killed = time.time()
    dead.kill()
    under_way(workers, "r", alive, "gated")
    (claimed,) = workers.lines("claim", run="r", pid=alive.pid)
    print("foreign takeover", claimed["at"] - killed)
    assert claimed["at"] - killed < 2 * lease


@pytest.mark.parametrize(("kind", "share"), [("blocking", 2.0), ("clinging", 0.5)])
def test_a_lease_is_renewed_while_a_node_blocks(workers: Fleet, kind: str, share: float) -> None:
    """H1: for longer than the lease, or for a part of it in a call that lets no other thread run."""
    lease = 2.0 if share > 1 else 4.0
    busy = workers.worker(lease=lease, host="one")
    workers.start(kind, "r", seconds=share * lease)
    under_way(workers, "r", busy, kind)
    workers.worker(lease=lease, host="two")
    assert ended(workers, "r") == "completed"
    assert [line["pid"] for line in workers.lines("claim", run="r")] == [busy.pid]


@only("sqlite")
def test_an_idle_supervisor_asks_less_than_one_thing_a_second(workers: Fleet) -> None:
    """H1: with the habits that it has by itself, after a first look around."""
    asked: list[float] = []

    class Counting:
        def __getattr__(self, name: str) -> Any:
            found = getattr(workers.store, name)
            if not isinstance(found, Callable) or name == "clock":  # type: ignore[arg-type]
                return found
            asked.append(time.monotonic())
            return found

    with limpet.supervise(Counting(), [workers.graphs["gated"]]):
        began = workers.wait(lambda: asked[-1] if asked else 0)
        workers.wait(lambda: asked[-1] > began + 3.5)
        first, last = asked[0] + 0.5, asked[-1]
    later = [each for each in asked if first < each <= last]
    assert len(later) < last - first
