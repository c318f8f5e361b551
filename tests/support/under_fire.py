"""Workers under fire: killed, suspended, asked to end and replaced at random, while their store has troubles, too.

`Fire` starts a stream of runs and some schedules, and does harm for a time. Then all runs have to end. What
happened is in the log, which `fire_checks.py` checks.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from math import inf
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import limpet
from e2e.crash_graphs import fire_graphs, fleet
from limpet import Limits, Schedules
from limpet.engine.leases.limits.document import CLAIMING, HELD, RESERVED, Slot, limit_name, read_limit
from limpet.errors import RunExists, StoreUnavailable
from limpet.journal.run_filter import RunFilter
from limpet.journal.store import PAUSED, RUNNING, Lease, RunHead
from support.postgres import Server

T = TypeVar("T")

LEASE = 2.0
BACKLOG = 20
"""How many runs there are at most that haven't ended."""
WAIT_BOUND = float(os.environ.get("FIRE_WAIT") or 90.0)
"""Seconds within which each run has ended, in the fire or after it, on any machine."""
SETTLED = 2.0
"""Seconds after which a worker that was started, or continues, is expected to serve limits."""
SCRIPT = ("trouble the store", "kill", "suspend", "kill", "end")
"""The harm of a short fire, in this order. A long one does harm at random."""

CREW: tuple[dict[str, Any], ...] = (
    {"queues": ["default"]},
    {"queues": ["gpu"]},
    {"host": "another-host"},
    {"queues": ["gpu", "default"], "host": "a-third-host"},
)
"""The workers. Those on other hosts aren't known to be dead: their leases have to expire."""

ENDED_WELL = (0, -signal.SIGTERM)
"""How a worker ends that is asked to: one that has only just begun to start doesn't know the signal yet."""

HOLD_LOCK = """
import sqlite3, sys, time
connection = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=60)
connection.execute("BEGIN IMMEDIATE")
print(flush=True)
time.sleep(float(sys.argv[2]))
"""


class Planned(NamedTuple):
    """A schedule of the fire."""

    name: str
    every: int
    overlap: Any
    catch_up: Any
    nap: float
    """Seconds for which its runs take their time."""


SCHEDULES = (
    Planned("skips", 1, "skip", "none", 1.2),
    Planned("queues", 3, "queue", "all", 0.0),
    Planned("cancels", 2, "cancel_old", "last", 1.5),
    Planned("allows", 2, "allow", "all", 0.0),
)


class Started(NamedTuple):
    """A run that was started, and that the store has acknowledged."""

    graph: str
    number: int
    queue: str


class Fire:
    """A store, workers that share it, and what they are exposed to."""

    def __init__(self, folder: Path, url: str, launch: Callable[..., Any], server: Server | None) -> None:
        self.folder = folder
        self.url = url
        self.seed = int(os.environ.get("LIMPET_SEED") or time.time())
        self.chance = random.Random(self.seed)
        self.store = limpet.open_store(url)
        self.log = fleet.Log(folder)
        self.graphs = fire_graphs.build(folder, self.log, {}, self.store)
        self.started: dict[str, Started] = {}
        self.watcher = Watcher(self)
        self.harm: dict[str, int] = {}
        self._launch = launch
        self._server = server
        self._crew: list[Any] = []
        self._thaw_at: dict[int, float] = {}
        """When suspended workers continue, by their place in the crew."""
        self._ending: dict[int, float] = {}
        """Since when workers are asked to end."""
        self._ready_at = [0.0] * len(CREW)
        """From when on workers are expected to do their work, by `monotonic`."""
        self._suspensions = (0.5, 1.25, 1.25, 2.5)
        """For how long workers are suspended, in lengths of a lease."""
        self._trouble: threading.Thread | None = None
        self._trouble_until = 0.0
        self._stop_starting = threading.Event()

    def burn(self, seconds: float, pause: float | None = None) -> None:
        """Do harm for this long: something about every `pause` seconds, or by the script. Then all is well again."""
        self.prepare(seconds)
        self._crew = [self._worker(place) for place in range(len(CREW))]
        starter = threading.Thread(target=self._start_runs, daemon=True)
        self.watcher.start()
        starter.start()
        began = time.monotonic()
        script: list[str] = []
        if pause is None:
            script = list(SCRIPT)
            self._suspensions = (1.25,)
        next_harm = began + 1.0
        try:
            while time.monotonic() < began + seconds or script:
                self._tend()
                if time.monotonic() > next_harm:
                    if pause is None:
                        self._do_harm(script.pop(0) if script else None)
                        next_harm += (seconds - 1.0) / len(SCRIPT)
                    else:
                        self._do_harm(self._any_harm())
                        next_harm = time.monotonic() + self.chance.uniform(0.3, 1.7) * pause
                time.sleep(0.02)
        finally:
            self._stop_starting.set()
            starter.join()
            if self._trouble is not None:
                self._trouble.join()
        self._calm_down()

    def prepare(self, seconds: float) -> None:
        """Add the limit of a queue, and the schedules. Their times end with the fire."""
        Limits(self.store).set("gpu", concurrency=fire_graphs.GPU.concurrency, queues=fire_graphs.GPU.queues)
        schedules = Schedules(self.store)
        for number, each in enumerate(SCHEDULES):
            given = {"number": number, "nap": each.nap}
            schedules.add(
                each.name,
                self.graphs["turns"],
                every=each.every,
                ends=timedelta(seconds=max(seconds, 2 * each.every)),
                overlap=each.overlap,
                catch_up=each.catch_up,
                input=given,
                queue=fire_graphs.QUEUES[number % 2],
            )

    def drain(self) -> float:
        """Wait until all runs and schedules have ended, and all slots are free; return how long that took.

        The workers end then, as one of them may be about to do something. What that was, another one continues.
        """
        began = time.monotonic()
        self._wait_until_done(began)
        took = time.monotonic() - began
        self.end_workers()
        self._crew = [self._worker(2)]
        self._wait_until_done(began)
        self.end_workers()
        self.watcher.stop()
        return took

    def _wait_until_done(self, began: float) -> None:
        limits, schedules = Limits(self.store), Schedules(self.store)
        while True:
            self._tend()
            left = insisting(self.unfinished)
            busy = [each for each in insisting(limits.list) if each.held or each.waiting]
            open_ = [each for each in insisting(schedules.list) if each.status != "ended"]
            if not left and not busy and not open_:
                return
            report = self.watcher.report()
            assert time.monotonic() - began < WAIT_BOUND, (self.seed, left[:5], busy, open_, report)
            time.sleep(0.05)

    def end_workers(self) -> None:
        """Ask all workers to end, which they do."""
        for worker in self._crew:
            worker.popen.send_signal(signal.SIGTERM)
        for worker in self._crew:
            assert worker.wait() in ENDED_WELL, (self.seed, worker.pid)

    @property
    def is_served(self) -> bool:
        """Whether the store is well, and a worker of each queue is."""
        now = time.monotonic()
        if now < self._trouble_until:
            return False
        fit = [
            place
            for place in range(len(self._crew))
            if place not in {*self._thaw_at, *self._ending} and now > self._ready_at[place]
        ]
        served = {queue for place in fit for queue in CREW[place].get("queues", fire_graphs.QUEUES)}
        return served.issuperset(fire_graphs.QUEUES)

    def unfinished(self) -> list[Any]:
        """The heads of runs that haven't ended."""
        return self.store.list(RunFilter(statuses=(RUNNING, PAUSED)))

    def lines(self) -> list[dict[str, Any]]:
        """The log, in order."""
        return read_lines(self.folder)

    def _worker(self, place: int) -> Any:
        self._ready_at[place] = time.monotonic() + SETTLED
        settings = {"lease": LEASE, "poll": 0.3, "grace": 10.0, "concurrency": 6, **CREW[place]}
        return self._launch("fire_worker", self.folder, self.url, json.dumps(settings))

    def _start_runs(self) -> None:
        number = 0
        while not self._stop_starting.is_set():
            if self.watcher.unfinished >= BACKLOG:
                time.sleep(0.05)
                continue
            for _ in range(8):
                number += 1
                self._start(number)
            self.watcher.unfinished += 8
            time.sleep(0.1)

    def _start(self, number: int) -> None:
        graph = self.chance.choice(["turns", "turns", "parts"])
        queue = self.chance.choice(fire_graphs.QUEUES)
        priority = self.chance.choice([0, 0, 0, 0, 0, 5, 5, 9])
        run_id = f"run-{number}"

        def start() -> None:
            with suppress(RunExists):
                self.graphs[graph].start({"number": number}, run_id=run_id, queue=queue, priority=priority)

        insisting(start)
        self.started[run_id] = Started(graph, number, queue)

    def _tend(self) -> None:
        """Let suspended workers continue when it is time, and replace those that have ended."""
        for place, at in list(self._thaw_at.items()):
            if time.monotonic() > at:
                self._thaw(place, at)
        for place, worker in enumerate(self._crew):
            code = worker.popen.poll()
            if code is None:
                since = self._ending.get(place)
                assert since is None or time.monotonic() - since < WAIT_BOUND, "a worker doesn't end"
                continue
            asked = self._ending.pop(place, None)
            fine = (-signal.SIGKILL,) if asked is None else (-signal.SIGKILL, *ENDED_WELL)
            assert code in fine, (self.seed, worker.pid, code)
            self._crew[place] = self._worker(place)

    def _any_harm(self) -> str:
        if self.chance.random() < 0.25 and (self._trouble is None or not self._trouble.is_alive()):
            return "trouble the store"
        return self.chance.choice(["kill", "kill", "suspend", "end"])

    def _do_harm(self, kind: str | None) -> None:
        if kind == "trouble the store":
            self._trouble_until = inf
            self._trouble = threading.Thread(target=self._trouble_the_store, daemon=True)
            self._trouble.start()
            return
        fit = [place for place in range(len(CREW)) if place not in {*self._thaw_at, *self._ending}]
        if fit and kind is not None:
            harm = {"kill": self._kill, "suspend": self._suspend, "end": self._end}[kind]
            harm(self.chance.choice(fit))

    def _count(self, harm: str) -> None:
        self.harm[harm] = self.harm.get(harm, 0) + 1

    def _kill(self, place: int) -> None:
        self._count("kill -9")
        self.log("kill", victim=self._crew[place].pid)
        self._crew[place].kill()

    def _suspend(self, place: int) -> None:
        self._count("suspended")
        self.log("freeze", victim=self._crew[place].pid)
        os.kill(self._crew[place].pid, signal.SIGSTOP)
        seconds = LEASE * self.chance.choice(self._suspensions)
        at = self._thaw_at[place] = time.monotonic() + seconds
        # By a thread of its own: a worker that was suspended in the middle of a write to SQLite keeps all others from
        # writing, also one that is just being started, for which this thread waits.
        timer = threading.Timer(seconds, self._thaw, (place, at))
        timer.daemon = True
        timer.start()

    def _thaw(self, place: int, at: float) -> None:
        """Let a worker continue that was suspended until then, unless it does already."""
        if self._thaw_at.get(place) != at or self._thaw_at.pop(place, None) is None:
            return
        self._crew[place].thaw()
        self.log("thaw", victim=self._crew[place].pid)
        self._ready_at[place] = time.monotonic() + SETTLED

    def _end(self, place: int) -> None:
        self._count("SIGTERM")
        self.log("end worker", victim=self._crew[place].pid)
        self._crew[place].popen.send_signal(signal.SIGTERM)
        self._ending[place] = time.monotonic()

    def _trouble_the_store(self) -> None:
        seconds = LEASE * self.chance.uniform(0.1, 1.5)
        began = time.time()
        if self._server is None:
            self._count("SQLite locked")
            self._hold_the_lock(seconds)
        else:
            way = self.chance.choice(["killed", "stopped", "suspended"])
            self._count(f"PostgreSQL {way}")
            trouble_server(self._server, way, seconds)
        self._trouble_until = time.monotonic() + SETTLED
        self.log("trouble", began=began)

    def _hold_the_lock(self, seconds: float) -> None:
        file = self.folder / "runs.db"
        command = [sys.executable, "-c", HOLD_LOCK, str(file), str(seconds)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
            if self.chance.random() < 0.5:
                time.sleep(seconds / 2)
                process.kill()

    def _calm_down(self) -> None:
        """Let suspended workers continue, and wait for those that end."""
        for place, at in list(self._thaw_at.items()):
            self._thaw(place, at)
        deadline = time.monotonic() + WAIT_BOUND
        self._tend()
        while self._ending:
            assert time.monotonic() < deadline, "a worker doesn't end"
            self._tend()
            time.sleep(0.02)


class Watcher:
    """Looks at the store all the time, as an independent process would."""

    def __init__(self, fire: Fire) -> None:
        self._fire = fire
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.unfinished = 0
        self.oldest = 0.0
        """The age of the oldest run that had not ended, at its highest."""
        self.most_live: dict[str, int] = {}
        self.longest_line: dict[str, int] = {}
        self.longest_lost = 0.0
        """For how many seconds a slot of a full limit was kept without use, while something waited for it.

        Only the time counts in which the store was well, and a worker of each queue: no other can be expected to
        notice.
        """
        self.looks = 0
        self._lost_for: dict[Slot, float] = {}
        self._looked_at = 0.0

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()

    def report(self) -> dict[str, Any]:
        return {
            "looks": self.looks,
            "oldest": round(self.oldest, 1),
            "most live": self.most_live,
            "longest line": self.longest_line,
            "longest lost": round(self.longest_lost, 1),
        }

    def _watch(self) -> None:
        while not self._ended.wait(0.2):
            try:
                self._look()
            except StoreUnavailable:
                self._looked_at = 0.0

    def _look(self) -> None:
        heads = self._fire.unfinished()
        self.unfinished = len(heads)
        now = time.time()
        self.oldest = max([self.oldest, *(now - head.created for head in heads)])
        lost: set[Slot] = set()
        for limit in Limits(self._fire.store).list():
            if limit.waiting or _is_wanted(limit.name, heads, now):
                lost.update(self._lost_slots(limit.name, now))
            self.most_live[limit.name] = max(self.most_live.get(limit.name, 0), len(limit.held))
            self.longest_line[limit.name] = max(self.longest_line.get(limit.name, 0), limit.waiting)
        passed = now - self._looked_at if self._looked_at and self._fire.is_served else 0.0
        self._lost_for = {slot: self._lost_for.get(slot, -passed) + passed for slot in lost}
        self.longest_lost = max([self.longest_lost, *self._lost_for.values()])
        self._looked_at = now
        self.looks += 1

    def _lost_slots(self, limit: str, now: float) -> list[Slot]:
        """The slots of a full limit that are in no use.

        Those whose runs are no longer held under the lease that they had then, and those that wait for longer than a
        lease to be taken.
        """
        store = self._fire.store
        found = store.get_document(limit_name(limit))
        assert found is not None
        document = read_limit(limit, found.body)
        if len(document.slots) < (document.values.concurrency or inf):
            return []
        late = [
            slot for slot in document.slots if slot.state in (CLAIMING, RESERVED) and now - slot.since > LEASE
        ]
        slots = [slot for slot in document.slots if slot.state in (HELD, CLAIMING)]
        valid = store.are_valid([Lease(slot.run_id, slot.fence, 0.0) for slot in slots])
        alive = {slot for slot, is_valid in zip(slots, valid, strict=True) if is_valid}
        dead = [slot for slot in slots if slot.state == HELD]
        return [slot for slot in (*late, *dead) if slot not in alive]


def _is_wanted(limit: str, heads: Sequence[RunHead], now: float) -> bool:
    """Whether runs wait in their queue for slots of this limit."""
    return any(
        fire_graphs.limits_run(limit, head.graph, head.queue)
        and head.holder is None
        and head.due is not None
        and head.due <= now
        for head in heads
    )


def read_lines(folder: Path) -> list[dict[str, Any]]:
    """The log in a folder, in order. A process that was killed may have written a part of a line."""
    lines = []
    for line in (folder / "log").read_text().splitlines():
        with suppress(json.JSONDecodeError):
            lines.append(json.loads(line))
    return lines


def insisting(call: Callable[[], T]) -> T:
    """Do it, as soon as the store can be reached."""
    deadline = time.monotonic() + WAIT_BOUND
    while True:
        try:
            return call()
        except StoreUnavailable:
            assert time.monotonic() < deadline
            time.sleep(0.1)


def trouble_server(server: Server, way: str, seconds: float) -> None:
    """Kill, stop or suspend a server, for this long."""
    if way == "suspended":
        with server.suspended():
            time.sleep(seconds)
        return
    if way == "killed":
        server.kill()
    else:
        server.stop()
    time.sleep(seconds)
    server.start()


def result_of(fire: Fire, graph: str, run_id: str) -> Any:
    """What a run has come to."""
    state = fire.graphs[graph].state_at(run_id)
    return state["total"] if graph == "parts" else state["trail"]
