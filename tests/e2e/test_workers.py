"""Workers that share a store, on real files and a real server: killed, replaced, and no run the worse for it."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterable
from typing import Any

import pytest

from e2e.crash_graphs import fleet
from limpet.journal.run_filter import RunFilter
from support.workers import (
    FULL,
    Fleet,
    check_journals,
    place,
    runs_in_two_hands,
    steps_begun_after_they_were_saved,
)

Place = tuple[str, str]
"""A run, and a place in it."""


def result_of(workers: Fleet, kind: str, run_id: str) -> Any:
    state = workers.graphs[kind].state_at(run_id)
    return dict(state.results) if kind == "plan" else state["trail"]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("hosts", [1, 2] if FULL else [1])
def test_all_runs_end_well_however_often_workers_are_killed(workers: Fleet, hosts: int) -> None:
    """H1, invariants 1, 2, 5: no acknowledged step is done twice, and no run is in two hands.

    With two hosts, no process can tell that the other's worker is dead: leases have to expire. Workers that live for
    two seconds, one of which they take to start, often crash before a run gets further. That quarantines none.
    """
    count, kills = (200, 60) if FULL else (60, 12)
    seed = int(os.environ.get("LIMPET_SEED") or time.time())
    chance, lease = random.Random(seed), 20.0 if hosts == 1 else 3.0
    options: dict[str, Any] = {"lease": lease, "concurrency": 4 if FULL else 8}
    options["build"] = {"pace": 0.2, "nap": 2.0} if FULL else {"pace": 0.01, "nap": 1.0}
    runs = start_runs(workers, range(count // 4))

    def another(number: int) -> Any:
        return workers.worker(**options, **({"host": f"host-{number}"} if hosts > 1 else {}))

    crew, since = [another(0), another(1)], time.monotonic()
    for kill in range(kills):
        victim, least = crew[kill % 2], 1 if FULL else chance.randint(1, 20)
        time.sleep(max(0.0, since + kill + 1 - time.monotonic()) if FULL else 0.0)
        workers.wait(
            lambda pid=victim.pid, least=least: begun(workers, pid, least) or not left(workers, runs)
        )
        victim.kill()
        crew[kill % 2] = another(kill + 2)
    took = time.monotonic() - since
    unfinished = len(left(workers, runs))
    # All runs may have ended before the last kill. Those that begin now are executed by workers that stay alive.
    last_runs = start_runs(workers, [count])
    runs.update(last_runs)
    workers.wait(lambda: not left(workers, runs))
    log = workers.log
    report = {
        "seed": seed, "kills": kills, "killed in": round(took, 1), "left then": unfinished,
        "ended in": round(time.monotonic() - since, 1), "claims": len(workers.lines("claim")),
        "most crashes of a run": max(line["crashes"] for line in workers.lines("claim")),
        "two hands": len(runs_in_two_hands(log)),
    }  # fmt: skip
    print(report)
    heads = {run_id: workers.store.head(run_id) for run_id in runs}
    assert {run_id: head.status for run_id, head in heads.items() if head.status != "completed"} == {}
    for run_id, kind in runs.items():
        assert result_of(workers, kind, run_id) == fleet.expected(kind, int(run_id.rpartition("-")[2])), (
            run_id
        )
    assert steps_begun_after_they_were_saved(log) == []
    # A worker that is killed takes along what it would have logged of the saves under way. The others log all.
    begun_at = places_begun(workers, {worker.pid for worker in crew})
    assert {run_id for run_id, _ in begun_at} >= set(last_runs)
    workers.wait(lambda: begun_at <= places_saved(workers))
    check_journals(log)
    if hosts == 1:
        assert runs_in_two_hands(log) == []


def start_runs(workers: Fleet, numbers: Iterable[int]) -> dict[str, str]:
    """Queue a run of each kind for each number; returns the kinds by run."""
    runs = {}
    for number in numbers:
        for kind in fleet.KINDS:
            given: dict[str, Any] = {} if kind == "plan" else {"trail": [], "number": number}
            workers.graphs[kind].start(given, run_id=f"{kind}-{number}")
            runs[f"{kind}-{number}"] = kind
    return runs


def places_begun(workers: Fleet, pids: set[int]) -> set[Place]:
    """The places whose node one of these workers has called."""
    return {(line["run"], place(line)) for line in workers.lines("begin") if line["pid"] in pids}


def places_saved(workers: Fleet) -> set[Place]:
    """The places that were reported as saved."""
    return {(line["run"], place(line)) for line in workers.lines("checkpoint.save")}


def left(workers: Fleet, runs: dict[str, str]) -> list[str]:
    """The runs that haven't ended."""
    running = RunFilter(statuses=("running", "paused"))
    return [head.run_id for head in workers.store.list(running) if head.run_id in runs]


def begun(workers: Fleet, pid: int, least: int) -> bool:
    """Whether a worker has called `least` nodes."""
    return len(workers.lines("begin", pid=pid)) >= least
