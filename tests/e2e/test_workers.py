"""Workers that share a store, on real files and a real server: killed, replaced, and no run the worse for it."""

from __future__ import annotations

import os
import random
import time
from typing import Any

import pytest

from e2e.crash_graphs import fleet
from limpet.journal.store import RunFilter
from support.workers import (
    FULL,
    Fleet,
    check_journals,
    place,
    runs_in_two_hands,
    steps_begun_after_they_were_saved,
)

SEEN = ("begin", "checkpoint.save")


def result_of(workers: Fleet, kind: str, run_id: str) -> Any:
    state = workers.graphs[kind].state_at(run_id)
    return dict(state.results) if kind == "plan" else state["trail"]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("hosts", [1, 2] if FULL else [1])
def test_all_runs_end_well_however_often_workers_are_killed(workers: Fleet, hosts: int) -> None:
    """H1, invariants 1, 2, 5: no acknowledged step is done twice, and no run is in two hands.

    With two hosts, no process can tell that the other's worker is dead: leases have to expire. Workers that live for
    two seconds, one of which they take to start, often crash before a run gets further. That isn't a fault of the
    run, so 50 crashes in a row are allowed here.
    """
    count, kills = (200, 60) if FULL else (60, 12)
    seed = int(os.environ.get("LIMPET_SEED") or time.time())
    chance, lease = random.Random(seed), 20.0 if hosts == 1 else 3.0
    options: dict[str, Any] = {"lease": lease, "concurrency": 4 if FULL else 8, "max_crashes": 50}
    options["build"] = {"pace": 0.2, "nap": 2.0} if FULL else {"pace": 0.01, "nap": 1.0}
    runs = {f"{kind}-{number}": kind for number in range(count // 4) for kind in fleet.KINDS}
    for run_id, kind in runs.items():
        workers.graphs[kind].start(
            {} if kind == "plan" else {"trail": [], "number": int(run_id.rpartition("-")[2])}, run_id=run_id
        )

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
    begun_at, saved_at = ({(line["run"], place(line)) for line in log if line["did"] == did} for did in SEEN)
    # A worker that is killed takes along what it would have logged of the saves under way, up to one for each run.
    assert len(begun_at & saved_at) > 0.5 * len(begun_at), "most of what was begun was seen to be saved"
    check_journals(log)
    if hosts == 1:
        assert runs_in_two_hands(log) == []


def left(workers: Fleet, runs: dict[str, str]) -> list[str]:
    """The runs that haven't ended."""
    running = RunFilter(statuses=("running", "paused"))
    return [head.run_id for head in workers.store.list(running) if head.run_id in runs]


def begun(workers: Fleet, pid: int, least: int) -> bool:
    """Whether a worker has called `least` nodes."""
    return len(workers.lines("begin", pid=pid)) >= least
