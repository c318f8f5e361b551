"""A graph of exactly fifty steps that uses what a state can hold, and a way to die at any point of it.

Every start of a node's body, and every save that was acknowledged, is a line of one log, so that their order is
known afterwards whatever happened in between.
"""

from __future__ import annotations

import asyncio
import os
import signal
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

from limpet import AlreadyCompleted, Event, RunNotFound, StateGraph, append, merge
from limpet.journal.store import Commit, Lease, NewRun
from limpet.stores.sqlite.store import SQLiteStore

STEPS = 50
ROUNDS = 24

SCHEMA = {
    "count": int,
    "log": Annotated[list, append],
    "totals": Annotated[dict, merge],
    "longest": Annotated[tuple, max],
    "nested": dict,
}


class Life:
    """What one process does with the run: it dies at `point` of step `at`, if that comes."""

    def __init__(self, log: str, point: str = "", at: int = -1) -> None:
        self.log = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self.point, self.at, self.step = point, at, 0

    def note(self, *words: object) -> None:
        """Add a line to the log. It is with the kernel when this returns, so a kill can't undo it."""
        os.write(self.log, (" ".join(map(str, words)) + "\n").encode())

    def reach(self, point: str, step: int | None = None) -> None:
        """Die here, if this is where to."""
        if point == self.point and (self.step if step is None else step) == self.at:
            os.kill(os.getpid(), signal.SIGKILL)

    def begin(self, ctx: Any) -> None:
        """A node's body starts: that is its outside effect."""
        self.step = ctx.step
        self.note("start", ctx.step, ctx.node, ctx.visit, ctx.idempotency_key)
        self.reach("body")

    def watch(self, event: Event) -> None:
        """The observer: a save was acknowledged."""
        if event.type == "checkpoint.save":
            self.note("ack", event.data["step"])
            self.reach("acknowledged", event.data["step"])


class MortalStore(SQLiteStore):
    """A store whose process may die just before a write, or just after it and before anybody hears of it."""

    life: Life

    def create(self, run: NewRun) -> Lease | None:
        self.life.reach("unsaved")
        lease = super().create(run)
        self.life.reach("saved")
        return lease

    def append(self, commits: list[Commit]) -> list[Exception | None]:
        self.life.reach("unsaved")
        outcome = super().append(commits)
        self.life.reach("saved")
        return outcome


def build(life: Life) -> StateGraph:
    """open, then 24 rounds of turn and one of plain, fizz and buzz, then close."""

    def opening(state: Any, ctx: Any) -> dict[str, Any]:
        life.begin(ctx)
        return {
            "count": 0,
            "nested": {"trail": [], "by": {}, "deep": {"pair": (1, [2])}},
            "when": datetime(2024, 2, 29, 12, 30, tzinfo=timezone(timedelta(hours=5, minutes=45))),
            "odd": ("a", 1, (2.5, None)),
        }

    def turn(state: Any, ctx: Any) -> dict[str, Any]:
        life.begin(ctx)
        count = state["count"] + 1
        state["nested"]["trail"].append((count, ctx.visit))
        # A page that replaces the one before: what is superseded brings on snapshots along the way.
        return {"count": count, "log": [("turn", count)], "page": f"{count:04}" * 1500}

    async def fizz(state: Any, ctx: Any) -> dict[str, Any]:
        life.begin(ctx)
        await asyncio.sleep(0)
        state["nested"]["by"].setdefault("fizz", []).append(state["count"])
        return {
            "when": state["when"] + timedelta(days=1, microseconds=1),
            "totals": {"fizz": Decimal(state["count"]) / 8},
            "odd": (*state["odd"], state["count"]),
        }

    def buzz(state: Any, ctx: Any) -> None:
        life.begin(ctx)
        state["large"] = state.get("large", 1) * 10**9
        state["nested"]["deep"]["pair"][1].append({"buzz": b"\x00" * state["count"]})
        state.pop("fleeting", None)

    def plain(state: Any, ctx: Any) -> dict[str, Any]:
        life.begin(ctx)
        state["fleeting"] = {state["count"], "x"}
        return {"log": f"plain {state['count']}", "longest": (state["count"], "plain"), "share": 1 / 3}

    def closing(state: Any, ctx: Any) -> dict[str, Any]:
        life.begin(ctx)
        return {"log": [None, True], "done": frozenset(state["totals"])}

    graph = StateGraph(SCHEMA, name="fifty", max_iterations=STEPS, observer=life.watch)
    graph.add_node("open", run=opening).add_node("turn", run=turn).add_node("close", run=closing)
    graph.add_node("plain", run=plain).add_node("fizz", run=fizz).add_node("buzz", run=buzz)
    graph.add_edge("open", "turn")
    graph.add_conditional_edges("turn", lambda s: s["count"] % 3, {0: "fizz", 1: "buzz", 2: "plain"})
    for node in ("plain", "fizz", "buzz"):
        graph.add_edge(node, "turn", lambda s: s["count"] < ROUNDS)
        graph.add_edge(node, "close")
    return graph.set_entry_point("open").set_finish_point("close")


def live(
    db: str,
    log: str,
    *,
    run_id: str = "r",
    driver: str = "sync",
    level: str = "process",
    interval: int = 1,
    point: str = "",
    at: int = -1,
) -> Any:
    """One life of the run: resume it, or start it if there is nothing yet. Returns its final state, exactly."""
    life = Life(log, point, at)
    life.note("life", os.getpid())
    store = MortalStore(Path(db), level=level)  # type: ignore[arg-type]
    store.life = life
    graph = build(life).compile(store=store, preserve=True, interval=interval, lease=60)
    try:
        if driver == "async":
            state = asyncio.run(_go_on(graph, run_id))
        else:
            try:
                state = graph.resume(run_id)
            except RunNotFound:
                state = graph.execute(run_id=run_id)
    except AlreadyCompleted:
        state = graph.state_at(run_id)
    life.note("end")
    return [exact(dict(state)), state.checkpoint_node, state.run_id, exact(dict(graph.state_at(run_id)))]


async def _go_on(graph: StateGraph, run_id: str) -> Any:
    try:
        return await graph.aresume(run_id)
    except RunNotFound:
        return await graph.aexecute(run_id=run_id)


def exact(value: Any) -> Any:
    """A value as plain lists and text, in which its types and the order of its keys show."""
    kind = type(value).__name__
    if type(value) is dict:
        return [kind, [[exact(key), exact(each)] for key, each in value.items()]]
    if type(value) in (list, tuple):
        return [kind, [exact(each) for each in value]]
    if type(value) in (set, frozenset):
        return [kind, sorted(map(repr, value))]
    return [kind, repr(value)]
