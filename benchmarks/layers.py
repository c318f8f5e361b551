"""Workflows: wide layers of trivial tasks, and saving and resuming with a thousand tasks done."""

from __future__ import annotations

import json
import sqlite3
from base64 import b64encode
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import count, pairwise
from random import Random
from time import perf_counter
from typing import Any

import by_hand
from measure import Result, against, folder, ratio, sizes, stored_bytes

from limpet import ExecutionError, Workflow, open_store
from limpet.engine.sessions.session import Session

LAYERS, WIDTH = 10, 100
DONE, MORE = 1000, 200
PAGES = [b64encode(Random(number).randbytes(750)).decode() for number in range(DONE + MORE)]
"""What tasks result in: text that can't be made much less, so that bytes can be compared."""


def layers() -> Iterator[Result]:
    """10 layers of 100 trivial tasks: against a bare thread pool, and one that commits what each layer came to."""
    runs = count()
    with folder() as place:
        connection = by_hand.open_database(f"{place}/hand.db")
        store = open_store(f"sqlite:///{place}/ours.db?level=process")

        def saving() -> None:
            run = f"run{next(runs)}"
            _pooled(lambda layer, results: by_hand.save(connection, run, layer, results))

        for what, hand, options in (("no store", _pooled, {}), ("SQLite", saving, {"store": store})):
            flow = _flow(**options)
            name = f"{LAYERS} layers of {WIDTH} tasks, {what}"
            yield against(name, hand, flow.execute, 2.0, LAYERS * WIDTH, 15, unit="µs/task")
        connection.close()


def thousand_tasks() -> Iterator[Result]:
    """A thousand tasks done, 1 MB of results: what one more layer of one task costs to save, and a resume.

    By hand, a layer's result is one commit, and a resume reads all results back. The second line is all that happens
    between the end of one task and the beginning of the next: no goal is set for it.
    """
    with folder() as place, _timed_saves() as saves:
        connection = by_hand.open_database(f"{place}/hand.db")
        store = f"sqlite:///{place}/ours.db?level=process"
        moments: list[float] = []
        flow = _long_flow(moments, store)
        hand, saved, between = [], [], []
        for turn in range(5):
            hand.append(_saved_by_hand(connection, f"run{turn}"))
            saves.clear()
            flow.execute(run_id=f"run{turn}")
            saved.append(_late(saves[-MORE:]))
            between.append(_late([b - a for a, b in list(pairwise(moments[1:]))[::2]]))
            moments.clear()
        yield ratio("1,000 tasks done: save p95", min(hand), min(saved), 2)
        yield ratio("1,000 tasks done: task to task p95", min(hand), min(between), float("inf"))
        before = stored_bytes(place / "ours.db")
        hand_bytes = stored_bytes(place / "hand.db") / (5 * (DONE + MORE))
        flow.execute(run_id="last")
        yield sizes(
            "1,000 tasks done: bytes a layer", hand_bytes, _grown(flow, before, place / "ours.db"), 1.3
        )
        yield _resumed(connection, store)
        connection.close()


def _grown(flow: Workflow, before: int, path: Any) -> float:
    """What a run takes for each of its tasks, without what a fresh one stores once: what it consists of."""
    once = len(json.dumps(flow.checkpoint("last").dag))
    return (stored_bytes(path) - before - once) / (DONE + MORE)


def _pooled(save: Callable[[int, dict[str, Any]], None] | None = None) -> dict[str, Any]:
    results: dict[str, Any] = {}
    with ThreadPoolExecutor(32) as pool:
        for layer in range(LAYERS):
            calls = {
                f"t{layer}-{number}": pool.submit(_trivial, results.get(f"t{layer - 1}-{number}", 0))
                for number in range(WIDTH)
            }
            found = {name: call.result() for name, call in calls.items()}
            results.update(found)
            if save is not None:
                save(layer, found)
    return results


def _trivial(before: int) -> int:
    return before + 1


def _flow(**options: Any) -> Workflow:
    flow = Workflow("layers", **options)
    for layer in range(LAYERS):
        for number in range(WIDTH):
            name, before = f"t{layer}-{number}", f"t{layer - 1}-{number}"
            needs, given = ({"before": before}, None) if layer else ((), {"before": 0})
            flow.add_task(name, _trivial, needs, arguments=given)
    return flow.compile()


def _long_flow(moments: list[float], store: str, stop_at: int = -1) -> Workflow:
    """One layer of many tasks, and then many layers of one; each of these notes when it began, and when it ended."""
    flow = Workflow("long", store=store, preserve=True)
    for number in range(DONE):
        flow.add_task(f"done{number}", lambda number: PAGES[number], arguments={"number": number})

    def timed(number: int) -> str:
        moments.append(perf_counter())
        if number == stop_at:
            raise RuntimeError("stop here")
        moments.append(perf_counter())
        return PAGES[DONE + number]

    for number in range(MORE):
        before = f"more{number - 1}" if number else f"done{DONE - 1}"
        flow.add_task(f"more{number}", timed, [before], arguments={"number": number})
    return flow.compile()


def _late(times: list[float]) -> float:
    """The 95th percentile."""
    return sorted(times)[int(len(times) * 0.95)]


@contextmanager
def _timed_saves() -> Iterator[list[float]]:
    """How long each save takes: from the records to their being durable."""
    taken: list[float] = []
    write = Session.write

    def timed(session: Session, commit: Any) -> Any:
        began = perf_counter()
        answer = write(session, commit)
        taken.append(perf_counter() - began)
        return answer

    Session.write = timed  # type: ignore[method-assign]  # put back below
    try:
        yield taken
    finally:
        Session.write = write  # type: ignore[method-assign]  # as it was


def _saved_by_hand(connection: sqlite3.Connection, run: str) -> float:
    for number in range(DONE):
        by_hand.save(connection, run, number, {f"done{number}": PAGES[number]})
    taken = []
    for number in range(MORE):
        began = perf_counter()
        by_hand.save(connection, run, DONE + number, {f"more{number}": PAGES[DONE + number]})
        taken.append(perf_counter() - began)
    return _late(taken)


def _resumed(connection: sqlite3.Connection, store: str) -> Result:
    """From the call to the first task that runs, with a thousand others done and read back."""
    moments: list[float] = []
    taken: tuple[list[float], list[float]] = ([], [])
    for turn in range(5):
        with suppress(ExecutionError):
            _long_flow([], store, stop_at=0).execute(run_id=f"stopped{turn}")
        flow = _long_flow(moments, store)
        began = perf_counter()
        flow.resume(f"stopped{turn}")
        taken[1].append(moments[0] - began)
        moments.clear()
        began = perf_counter()
        rows = connection.execute("SELECT data FROM steps WHERE run = ? AND step < ?", (f"run{turn}", DONE))
        state: dict[str, Any] = {}
        for (data,) in rows:
            state.update(json.loads(data))
        taken[0].append(perf_counter() - began)
        assert len(state) == DONE
    return ratio("1,000 tasks done: resume", min(taken[0]), min(taken[1]), 2, "ms")
