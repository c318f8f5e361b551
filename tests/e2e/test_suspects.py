"""Workers that crash with several runs in progress: only a run that crashes its process alone is quarantined."""

from __future__ import annotations

import os
import random
import time
from typing import Any

import pytest

from limpet.journal.run_filter import RunFilter
from support.workers import Fleet

only_sqlite = pytest.mark.parametrize("workers", ["sqlite"], indirect=True)
"""The rule has nothing to do with the kind of the store."""


class Crew:
    """Worker processes, each replaced when it has died."""

    def __init__(self, workers: Fleet, size: int, **settings: Any) -> None:
        self.workers = workers
        self.settings = {"poll": 0.1, "lease": 1000.0, **settings}
        self.processes = [self.another() for _ in range(size)]
        self.exit_codes: list[int] = []

    def another(self) -> Any:
        return self.workers.worker(**self.settings)

    def replace_dead(self) -> None:
        for place, process in enumerate(self.processes):
            code = process.popen.poll()
            if code is not None:
                self.exit_codes.append(code)
                self.processes[place] = self.another()


def statuses(workers: Fleet) -> dict[str, str]:
    return {head.run_id: head.status for head in workers.store.list(RunFilter())}


def not_ended(workers: Fleet) -> list[str]:
    return [run_id for run_id, status in statuses(workers).items() if status == "running"]


@only_sqlite
def test_kills_at_random_quarantine_no_innocent_run(workers: Fleet) -> None:
    """H1: 14 kills while 24 runs are in progress. All are suspects again and again, and all end well."""
    seed = int(os.environ.get("LIMPET_SEED") or time.time())
    chance = random.Random(seed)
    for number in range(24):
        workers.start("gated", f"innocent-{number}")
    crew = Crew(workers, 3, concurrency=12)
    for _ in range(14):
        busy = workers.wait(lambda: [each for each in crew.processes if workers.lines("begin", pid=each.pid)])
        chance.choice(busy).kill()
        crew.replace_dead()
    for number in range(24):
        workers.let(f"innocent-{number}", "gated", "gated1", "gated2")
    workers.wait(lambda: not not_ended(workers))
    most = max(line["crashes"] for line in workers.lines("claim"))
    print({"seed": seed, "most crashes of a run": most})
    assert set(statuses(workers).values()) == {"completed"}
    assert most >= 3, "none crashed as often as a run may: this proves nothing"


@only_sqlite
@pytest.mark.parametrize("asyncio", [False, True])
def test_a_guilty_run_is_found_among_innocent_ones(workers: Fleet, asyncio: bool) -> None:
    """H1: it is quarantined after three crashes alone, though two workers and other runs wait; they all complete."""
    innocent = [f"innocent-{number}" for number in range(10)]
    guilty = workers.start("deadly", "guilty", beside=innocent[:3])
    for run_id in innocent:
        workers.start("blocking", run_id, seconds=0.4)
    crew = Crew(workers, 2, concurrency=4, asyncio=asyncio)

    def all_ended() -> bool:
        crew.replace_dead()
        return not not_ended(workers)

    workers.wait(all_ended)
    assert statuses(workers) == {"guilty": "failed", **dict.fromkeys(innocent, "completed")}
    assert "crashed 3 times in a row at node 'deadly'" in guilty.info.reason
    begun = workers.lines("begin", run="guilty")
    for last in begun[-3:]:
        alone = [
            line for line in workers.log if line["pid"] == last["pid"] and line["did"] in ("begin", "end")
        ]
        under_way = {line["run"] for line in alone if line["did"] == "begin"}
        under_way -= {line["run"] for line in alone if line["did"] == "end"}
        assert under_way == {"guilty"}, "it was executed beside another run"
    # Two crashes in company made it a suspect. Its neighbours went down with it, and weren't the cause.
    assert crew.exit_codes == [13] * 5
    assert len(begun) == 5


@only_sqlite
def test_runs_that_go_on_and_on_make_room_for_a_suspect_and_continue_after_it(workers: Fleet) -> None:
    """H1: a suspect isn't kept waiting by runs that are in progress, nor they by it for long."""
    crew = Crew(workers, 1, concurrency=4)
    workers.start("blocking", "suspect", seconds=0.3)
    for number in range(2):
        workers.start("gated", f"long-{number}")
    for _ in range(2):
        victim = crew.processes[0]
        workers.wait(lambda victim=victim: len(workers.lines("begin", pid=victim.pid)) >= 1)
        victim.kill()
        crew.replace_dead()
    for number in range(2):
        workers.let(f"long-{number}", "gated", "gated1", "gated2")
    workers.wait(lambda: not not_ended(workers))
    assert set(statuses(workers).values()) == {"completed"}
