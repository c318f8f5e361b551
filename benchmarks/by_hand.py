"""What a careful person writes without a library: the yardstick for every measurement here.

A loop over functions that merges dicts and, where a store is named, one `INSERT; COMMIT` of the changed keys
for each step, under a primary key of run and step so that a run can be read back.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

Node = Callable[[dict[str, Any]], dict[str, Any]]
Test = Callable[[dict[str, Any]], bool]


def graph_loop(node: Node, more: Test, state: dict[str, Any], limit: int = 10**9) -> dict[str, Any]:
    """A small graph runner: tables of nodes and edges, an iteration budget, visits and the path taken.

    The node gets a copy of the state, so that what it does to it counts only when it returns.
    """
    nodes = {"step": node}
    edges: dict[str, list[tuple[Test | None, str | None]]] = {"step": [(more, "step"), (None, None)]}
    current: str | None = "step"
    iterations, visits, path = 0, {"step": 0}, []
    while current is not None:
        iterations += 1
        if iterations > limit:
            raise RuntimeError(f"more than {limit} iterations at {current}")
        visits[current] += 1
        path.append(current)
        try:
            update = nodes[current](dict(state))
        except Exception as error:
            raise RuntimeError(f"{current} failed after {path}") from error
        state = {**state, **update}
        for test, target in edges[current]:
            if test is None or test(state):
                current = target
                break
    return state


def bare_loop(node: Node, more: Test, state: dict[str, Any]) -> dict[str, Any]:
    """No graph at all: call, merge, ask, again."""
    while True:
        state = {**state, **node(state)}
        if not more(state):
            return state


def open_database(path: str, synchronous: str = "NORMAL") -> sqlite3.Connection:
    """A database with a table of steps."""
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute(f"PRAGMA synchronous={synchronous}")
    connection.execute(
        "CREATE TABLE IF NOT EXISTS steps (run TEXT, step INTEGER, data BLOB, PRIMARY KEY (run, step))"
    )
    return connection


def durable_loop(
    connection: sqlite3.Connection, run: str, node: Node, more: Test, state: dict[str, Any], first: int = 1
) -> dict[str, Any]:
    """The same loop, each step committed."""
    step = first
    while True:
        update = node(state)
        state = {**state, **update}
        save(connection, run, step, update)
        step += 1
        if not more(state):
            return state


def spread(node: Node, state: dict[str, Any], save: Callable[..., None] | None = None) -> int:
    """A node called once for each item, with a copy of the state, by a thread pool; the sum of what they return."""
    total = 0
    with ThreadPoolExecutor(32) as pool:
        calls = [pool.submit(node, {**state, "item": item}) for item in state["items"]]
        for step, call in enumerate(calls, 1):
            update = call.result()
            total += update["n"]
            if save is not None:
                save(step, update)
    return total


def save(connection: sqlite3.Connection, run: str, step: int, update: dict[str, Any]) -> None:
    """One step's changed keys."""
    connection.execute("INSERT INTO steps VALUES (?, ?, ?)", (run, step, json.dumps(update)))
    connection.commit()


def restore(connection: sqlite3.Connection, run: str, state: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """The number of the newest step, and the state after it."""
    newest = 0
    for step, data in connection.execute("SELECT step, data FROM steps WHERE run = ? ORDER BY step", (run,)):
        newest, state = step, {**state, **json.loads(data)}
    return newest, state
