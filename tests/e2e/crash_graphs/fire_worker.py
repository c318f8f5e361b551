"""A worker under fire: `fire_worker.py FOLDER STORE settings-as-JSON`, with the options of `supervise`.

Its log says, beside what nodes do, until when each of its leases is valid at least, and how it changed limits.
With `host` it believes to be on another machine, so that others have to wait until its leases expire. `graphs` names
the module that has its graphs.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Callable
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import Any

import fleet

import limpet
from limpet.engine.leases import process_identity
from limpet.engine.leases.limits.document import read_limit
from limpet.graphs.names import LIMITS


class Watch:
    """Has a store log what this process does with leases and limits, each after the store has done it."""

    def __init__(self, store: Any, log: fleet.Log) -> None:
        self.fences: dict[str, int] = {}
        self._log = log
        for name in ("claim", "claim_ready", "renew", "release", "append", "put_document", "create"):
            if hasattr(store, name):
                setattr(store, name, self._watched(getattr(store, name), getattr(self, f"_{name}")))

    def _watched(self, call: Callable[..., Any], tell: Callable[..., None]) -> Callable[..., Any]:
        @wraps(call)
        def watched(*args: Any, **kwargs: Any) -> Any:
            began = time.time()
            if (
                call.__name__ == "release"
            ):  # the lease may be that of another process as soon as the store has it
                tell(began, None, *args, **kwargs)
                return call(*args, **kwargs)
            if call.__name__ == "renew":
                args = (list(args[0]), *args[1:])
            result = call(*args, **kwargs)
            tell(began, result, *args, **kwargs)
            return result

        return watched

    def _claim(
        self, began: float, lease: Any, run_id: str, holder: str, ttl: float, *_: Any, **__: Any
    ) -> None:
        self.fences[run_id] = lease.fence
        self._log("claim", run=run_id, fence=lease.fence, crashes=lease.crashes, until=began + ttl)

    def _claim_ready(self, began: float, leases: Any, wanted: Any, holder: str, ttl: float) -> None:
        for lease in leases:
            if lease is not None:
                self._claim(began, lease, lease.run_id, holder, ttl)

    def _renew(self, began: float, answers: Any, leases: Any, ttl: float) -> None:
        renewed = [
            [lease.run_id, lease.fence]
            for lease, answer in zip(leases, answers, strict=True)
            if answer is not None
        ]
        self._log("renew", leases=renewed, until=began + ttl)

    def _release(self, began: float, _: None, lease: Any) -> None:
        self._log("release", run=lease.run_id, fence=lease.fence)

    def _append(self, began: float, outcomes: Any, commits: Any) -> None:
        for commit, outcome in zip(commits, outcomes, strict=True):
            if commit.status is not None and outcome is None:
                about = {"run": commit.run_id, "fence": commit.fence}
                self._log("status", **about, status=commit.status, began=began)

    def _put_document(
        self, began: float, version: int | None, name: str, body: bytes, *_: Any, **__: Any
    ) -> None:
        if version is not None and name.startswith(LIMITS):
            limit = name.removeprefix(LIMITS)
            document = read_limit(limit, body)
            slots = [[slot.run_id, slot.fence, slot.call, slot.state] for slot in document.slots]
            self._log("limit", limit=limit, version=version, began=began, slots=slots, window=document.window)

    def _create(self, began: float, _: Any, run: Any) -> None:
        self._log("create", run=run.run_id)


def opened(url: str) -> Any:
    """The store, as soon as it can be reached."""
    while True:
        try:
            return limpet.open_store(url)
        except limpet.StoreUnavailable:
            time.sleep(0.1)


def main() -> None:
    folder, url, settings = Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
    log = fleet.Log(folder)
    logging.basicConfig(filename=folder / f"{os.getpid()}.out", level=logging.INFO)
    if host := settings.pop("host", None):
        place = process_identity._place()
        process_identity._place = lambda: (host, *place[1:])
    log("worker", queues=settings.get("queues"))
    store = opened(url)
    watch = Watch(store, log)
    graphs = import_module(settings.pop("graphs", "fire_graphs")).build(folder, log, watch.fences, store)
    limpet.supervise(store, graphs, max_crashes=10_000, **settings).run()
    log("gone")


if __name__ == "__main__":
    main()
