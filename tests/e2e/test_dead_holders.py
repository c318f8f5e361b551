"""Slots of limits whose holder dies or stands still: they go to what waits once the lease has ended. H18."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import limpet
from e2e.crash_graphs import fleet, slot_graphs
from limpet import Limits, Runs
from support.fire_checks import History, most_at_once
from support.under_fire import read_lines
from support.waiting import until

LEASE = 1.5
Launch = Callable[..., Any]


class Office(NamedTuple):
    """A store with limits, and workers that share it."""

    folder: Path
    url: str
    launch: Launch
    store: Any
    graphs: Any

    def worker(self, **settings: Any) -> Any:
        given = {"graphs": "slot_graphs", "lease": LEASE, "poll": 0.1, **settings}
        return self.launch("fire_worker", self.folder, self.url, json.dumps(given))

    def begun(self, *run_ids: str) -> bool:
        """Whether nodes of all these runs have begun."""
        return {line["run"] for line in lines_of(self, "begin")}.issuperset(run_ids)


@pytest.fixture(params=["sqlite", "postgres"])
def office(request: pytest.FixtureRequest, tmp_path: Path, launch: Launch) -> Iterator[Office]:
    url = f"sqlite:///{tmp_path}/runs.db"
    if request.param == "postgres":
        url = request.getfixturevalue("database")
    store = limpet.open_store(url)
    yield Office(tmp_path, url, launch, store, slot_graphs.build(tmp_path, fleet.Log(tmp_path), {}, store))
    store.close()


@pytest.mark.parametrize("harm", ["kill", "freeze"])
def test_slots_of_a_worker_that_is_gone_pass_on_when_its_leases_have_ended(office: Office, harm: str) -> None:
    """H18: one of a node's limit and one of a graph's; never two hold one, and all that waits gets its turn."""
    log = fleet.Log(office.folder)
    first, waiting = ["called-1", "whole-1"], ["called-2", "called-3", "whole-2", "whole-3"]
    victim = office.worker(host="another-host", concurrency=2)
    start(office, *first)
    until(lambda: office.begun(*first))
    office.worker()
    start(office, *waiting)
    limits = Limits(office.store)
    until(lambda: limits.get("desk").waiting == 2)
    log(harm, victim=victim.pid)
    os.kill(victim.pid, signal.SIGKILL if harm == "kill" else signal.SIGSTOP)
    until(lambda: any(line["pid"] != victim.pid for line in calls_of(office, "called")))
    until(lambda: any(line["pid"] != victim.pid for line in calls_of(office, "whole")))
    (office.folder / "go").touch()
    runs = Runs(office.store)
    until(lambda: {info.status for info in runs.list()} == {"completed"})
    if harm == "freeze":
        victim.thaw()
        log("thaw", victim=victim.pid)
        # What it did for too long is refused, and it takes part again.
        until(lambda: len([line for line in lines_of(office, "end") if line["pid"] == victim.pid]) >= 2)
    until(lambda: not any(each.held or each.waiting for each in limits.list()))
    check(History(read_lines(office.folder)), victim.pid)
    assert {info.run_id for info in runs.list(status="completed")} == {*first, *waiting}


def check(history: History, victim: int) -> None:
    """Each limit had one live slot at most, and those of the victim were its own until its leases had ended."""
    for limit in ("desk", "room"):
        live = [(call.began, call.ended, call) for call in history.calls if limit in call.limits]
        count, which = most_at_once(live)
        assert count == 1, (limit, which)
        victims = [call for call in history.calls if call.pid == victim and limit in call.limits]
        begun = [line for line in history.of("begin") if limit in line["limits"] and line["pid"] != victim]
        assert len({line["run"] for line in begun}) == 3
        assert begun[0]["at"] >= history.valid_until[victims[0].run, victims[0].fence]


def start(office: Office, *run_ids: str) -> None:
    for run_id in run_ids:
        office.graphs[run_id.partition("-")[0]].start({}, run_id=run_id)


def calls_of(office: Office, graph: str) -> list[dict[str, Any]]:
    """The lines of calls that have begun, of runs of this graph."""
    return [line for line in lines_of(office, "begin") if line["run"].startswith(graph)]


def lines_of(office: Office, did: str) -> list[dict[str, Any]]:
    return [line for line in read_lines(office.folder) if line["did"] == did]
