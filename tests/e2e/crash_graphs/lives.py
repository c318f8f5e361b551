"""What `fifty` does for a run that goes one way, for runs with branches: a nursery whose children live them.

One log again. `kept` says what the store had of the run when a life began, `start` that a node's body starts, `ack`
that a step was acknowledged (to an observer, or to whoever iterates the stream), `pay` and `paid` that something
that happens once is about to happen and has been kept. A place is a branch and a node: `left/price[3]/book`.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import fifty
import nursery

from limpet import AlreadyCompleted, Event, RunNotFound, StateGraph, once
from limpet.journal.reader import read_progress


class Life(fifty.Life):
    """One process's part of the run: it dies when it comes to `point` for the `at`-th time, if it does."""

    def __init__(self, log: str, point: str = "", at: int = -1) -> None:
        super().__init__(log, point, at)
        self.reached: Counter[str] = Counter()
        self.counting = threading.Lock()

    def reach(self, point: str, step: int | None = None) -> None:
        with self.counting:
            self.reached[point] += 1
            super().reach(point, self.reached[point])

    def begin(self, ctx: Any) -> None:
        self.note("start", place(ctx.branch, ctx.node), ctx.idempotency_key, ctx.attempt)
        self.reach("body")

    def watch(self, event: Event) -> None:
        if event.type == "checkpoint.save" and event.data["node"]:
            self.note("ack", place(event.data.get("branch"), event.data["node"]))
            self.reach("acknowledged")

    def see(self, event: dict[str, Any]) -> None:
        """The same for an event of the stream."""
        if event["type"] == "state":
            self.note("ack", place(event.get("branch"), event["node"]))
            self.reach("acknowledged")

    def pay(self, ctx: Any, key: str, amount: Any) -> Any:
        """Something that must not be done again when it is known to have been done."""
        where = place(ctx.branch, ctx.node)
        receipt = once(key, self._charge, where, key, amount)
        self.note("paid", where, key)
        self.reach("paid")
        return receipt

    def _charge(self, where: str, key: str, amount: Any) -> tuple[str, Any]:
        self.note("pay", where, key)
        self.reach("paying")
        return "receipt", amount

    def look(self, graph: StateGraph, store: fifty.MortalStore, run_id: str) -> str | None:
        """Note what is in the store, and say where the run stands; None if there is no run."""
        try:
            steps = graph.history(run_id)
        except RunNotFound:
            return None
        self.note("kept", *(place(step.branch, step.node) for step in steps[1:]))
        progress = read_progress(store.read(run_id))
        for path, branch in progress.branches_under_way():
            for key in branch.memos:
                self.note("paid", place(progress.path_name(path), branch.node), key)
        return steps[-1].id


def place(branch: str | None, node: str | None) -> str:
    return f"{branch}/{node}" if branch else str(node)


def live(
    db: str,
    log: str,
    *,
    graph: str,
    driver: str = "sync",
    level: str = "process",
    interval: int = 1,
    point: str = "",
    at: int = -1,
    **options: Any,
) -> Any:
    """One life of run "r" of the named graph: resume it, or start it. Returns its final state, exactly.

    If that is long it returns a digest: a nursery that waits to kill reads no more than fits into a pipe.
    """
    life = Life(log, point, at)
    life.note("life", os.getpid())
    store = fifty.MortalStore(Path(db), level=level)  # type: ignore[arg-type]
    store.life = life
    observer = None if "stream" in driver else life.watch
    made: StateGraph = importlib.import_module(graph).build(life, observer, **options)
    made.compile(store=store, preserve=True, interval=interval, lease=60)
    newest = life.look(made, store, "r")
    with suppress(AlreadyCompleted):
        if driver in ("async", "astream"):
            asyncio.run(go_on_async(made, life.see, newest, driver))
        else:
            go_on(made, life.see, newest, driver)
    life.note("end")
    final = fifty.exact(dict(made.state_at("r")))
    told = repr(final).encode()
    return final if len(told) < 32_000 else sha256(told).hexdigest()


def go_on(graph: StateGraph, see: Callable[[Any], None], newest: str | None, driver: str) -> None:
    if driver == "sync":
        _ = graph.execute(run_id="r") if newest is None else graph.resume("r")
        return
    for event in graph.stream(run_id="r") if newest is None else graph.stream(checkpoint=newest):
        see(event)


async def go_on_async(graph: StateGraph, see: Callable[[Any], None], newest: str | None, driver: str) -> None:
    if driver == "async":
        await (graph.aexecute(run_id="r") if newest is None else graph.aresume("r"))
        return
    async for event in graph.astream(run_id="r") if newest is None else graph.astream(checkpoint=newest):
        see(event)


if __name__ == "__main__":
    nursery.live = live  # type: ignore[assignment]  # what its children do
    nursery.main()
