"""Runs that worker processes execute, followed by clients in this one, while workers are killed. H10."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from e2e.crash_graphs import fleet
from limpet import Runs
from support.workers import PATIENCE, Fleet

Event = dict[str, Any]


class Clients:
    """For each run: a client that follows it to its end, and one that reconnects after every third event."""

    def __init__(self, runs: Runs, run_ids: list[str]) -> None:
        self.steady: dict[str, list[Event]] = {run_id: [] for run_id in run_ids}
        self.broken: dict[str, list[Event]] = {run_id: [] for run_id in run_ids}
        self._runs = runs
        self._threads = [
            threading.Thread(target=self._follow, args=[run_id], daemon=True) for run_id in run_ids
        ]
        self._threads.append(threading.Thread(target=lambda: asyncio.run(self._reconnect_all()), daemon=True))
        for thread in self._threads:
            thread.start()

    def finish(self) -> None:
        """Wait until all have been told the end."""
        for thread in self._threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()

    def _follow(self, run_id: str) -> None:
        for event in self._runs.get(run_id).events():
            self.steady[run_id].append(event)

    async def _reconnect_all(self) -> None:
        await asyncio.gather(*map(self._reconnect, self.broken))

    async def _reconnect(self, run_id: str) -> None:
        told = self.broken[run_id]
        while not told or told[-1]["type"] != "complete":
            handle = await self._runs.aget(run_id)
            events = handle.aevents(after=told[-1]["cursor"] if told else None)
            async for event in events:
                told.append(event)
                if len(told) % 3 == 0:
                    break
            await events.aclose()  # type: ignore[attr-defined]


@pytest.mark.timeout(300)
def test_clients_see_every_event_once_in_order_though_workers_are_killed(workers: Fleet) -> None:
    """Each shape of graph; a client that reconnects all the time sees the same as one that stays."""
    run_ids = []
    for number in range(2):
        for kind in fleet.KINDS:
            given: dict[str, Any] = {} if kind == "plan" else {"trail": [], "number": number}
            run_ids.append(workers.graphs[kind].start(given, run_id=f"{kind}-{number}").id)
    clients = Clients(Runs(workers.store), run_ids)
    settings = {"lease": 20.0, "max_crashes": 50, "build": {"pace": 0.05, "nap": 0.5}}
    crew = [workers.worker(**settings), workers.worker(**settings)]
    for kill in range(3):
        victim = crew[kill % 2]
        workers.wait(lambda pid=victim.pid: workers.lines("append", pid=pid) or is_over(workers, run_ids))
        victim.kill()
        crew[kill % 2] = workers.worker(**settings)
    clients.finish()
    for run_id in run_ids:
        told = [bare(event) for event in clients.steady[run_id]]
        assert [bare(event) for event in clients.broken[run_id]] == told
        assert told == [bare(event) for event in Runs(workers.store).get(run_id).events()]
        assert (told[0]["type"], told[-1]["type"]) == ("start", "complete")
        check_steps(told, workers, run_id)


def is_over(workers: Fleet, run_ids: list[str]) -> bool:
    return all(head is not None and head.status == "completed" for head in workers.store.heads(run_ids))


def bare(event: Event) -> Event:
    return {name: value for name, value in event.items() if name != "cursor"}


def check_steps(told: list[Event], workers: Fleet, run_id: str) -> None:
    """Each step that the journal has was given once, in order."""
    steps = [event["step"] for event in told]
    assert steps == sorted(steps)
    kind = run_id.rpartition("-")[0]
    done = [(event.get("branch"), event["node"]) for event in told if event["type"] == "step"]
    assert len(set(done)) == len(done)
    trail = workers.graphs[kind].state_at(run_id)
    if kind == "steps":
        assert [node for _, node in done] == trail["trail"]
    elif kind == "plan":
        assert {node for _, node in done} == set(trail.results)
