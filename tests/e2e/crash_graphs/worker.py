"""A worker: `worker.py FOLDER STORE settings-as-JSON`. It supervises the graphs of `fleet.py` until told to end.

Its log says, beside what nodes do, which runs it claimed and which records of them the store took, each after that
was so: what is in the log before a process died had happened. With `host` it believes to be on another machine.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fleet

import limpet
from limpet.engine.leases import process_identity as holder
from limpet.journal.store import Commit, Lease, RunHead
from limpet.observe.events import Event


class Watched:
    """A store, and a log of what is written to it."""

    def __init__(self, store: Any, log: fleet.Log) -> None:
        self._store, self._log = store, log

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def claim(self, run_id: str, holder: str, ttl: float, instead_of: int | None = None) -> Lease:
        lease: Lease = self._store.claim(run_id, holder, ttl, instead_of)
        self._log(
            "claim", run=run_id, fence=lease.fence, crashes=lease.crashes, broken=instead_of is not None
        )
        return lease

    def claim_ready(self, wanted: Sequence[RunHead], holder: str, ttl: float) -> list[Lease | None]:
        leases: list[Lease | None] = self._store.claim_ready(wanted, holder, ttl)
        for lease in filter(None, leases):
            self._log("claim", run=lease.run_id, fence=lease.fence, crashes=lease.crashes, broken=False)
        return leases

    def append(self, commits: Sequence[Commit]) -> list[Exception | None]:
        outcomes: list[Exception | None] = self._store.append(commits)
        for commit, outcome in zip(commits, outcomes, strict=True):
            what = {"run": commit.run_id, "fence": commit.fence, "status": commit.status}
            if outcome is None:
                first, last = commit.expected + 1, commit.expected + len(commit.records)
                self._log("append", **what, first=first, last=last)
            else:
                self._log("refused", **what, why=type(outcome).__name__)
        return outcomes


def main() -> None:
    folder, url, settings = Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
    log = fleet.Log(folder)
    logging.basicConfig(filename=folder / f"{os.getpid()}.out", level=logging.INFO)
    host, here, tell = (settings.pop(name, None) for name in ("host", "asyncio", "tell"))
    compile_with, build_with = settings.pop("compile", {}), settings.pop("build", {})
    if host:
        place = holder._place()
        holder._place = lambda: (host, *place[1:])
    graphs = fleet.build(folder, **build_with)
    for graph in graphs.values():
        if compile_with:
            graph.compile(**compile_with)

    def saved(event: Event) -> None:
        if event.type in ("checkpoint.save", "run.sleep", "checkpoint.resume"):
            data = event.data
            what = {"run": data["run_id"], "node": data.get("node"), "branch": data.get("branch", "")}
            log(event.type, **what, step=data.get("step"))

    store = Watched(limpet.open_store(url), log)
    supervisor = limpet.supervise(store, graphs, observers=[saved], **settings)
    request_stop = supervisor.resumer.request_stop

    def request_and_log() -> None:
        request_stop()
        log("leaving")

    supervisor.resumer.request_stop = request_and_log  # type: ignore[method-assign]
    print(json.dumps({"ready": os.getpid()}), flush=True)
    if tell:
        supervisor.start()
        listen(supervisor)
    elif here:
        asyncio.run(on_a_loop(supervisor))
    else:
        supervisor.run()
    log("gone")


async def on_a_loop(supervisor: Any) -> None:
    asked = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, asked.set)
    async with supervisor:
        await asked.wait()


def listen(supervisor: Any) -> None:
    """Answer questions about the supervisor, one for each line."""
    for line in sys.stdin:
        print(json.dumps(getattr(supervisor, json.loads(line)["do"])), flush=True)


if __name__ == "__main__":
    main()
