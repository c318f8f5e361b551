"""One of several processes that share a store: 50 runs of 20 steps, as soon as it gets a line.

`python child_many.py hand|ours sqlite|postgres <path or URL> <name>`
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

RUNS, STEPS = 50, 20


def main(who: str, kind: str, place: str, name: str) -> None:
    """Open, say so, wait for a line, work."""
    work = (_ours if who == "ours" else _by_hand)(kind, place, name)
    print("ready", flush=True)
    sys.stdin.readline()
    work()
    print("done", flush=True)


def _ours(kind: str, place: str, name: str):  # type: ignore[no-untyped-def]  # a function without arguments
    from cases import one_node, tick, ticking

    store = f"sqlite:///{place}?level=process" if kind == "sqlite" else place
    graph = one_node({"n": int}, tick, ticking(STEPS), store=store)

    def work() -> None:
        with ThreadPoolExecutor(RUNS) as pool:
            list(pool.map(lambda number: graph.execute({"n": 0}, run_id=f"{name}-{number}"), range(RUNS)))

    return work


def _by_hand(kind: str, place: str, name: str):  # type: ignore[no-untyped-def]  # a function without arguments
    import by_hand
    import postgres
    from cases import tick, ticking

    if kind == "sqlite":
        connection = by_hand.open_database(place)
        connection.execute("PRAGMA busy_timeout=60000")

        def run(named: str) -> None:
            by_hand.durable_loop(connection, named, tick, ticking(STEPS), {"n": 0})
    else:
        import psycopg

        server = psycopg.connect(place, autocommit=True, prepare_threshold=0)

        def run(named: str) -> None:
            postgres.by_hand(server, named, STEPS)

    return lambda: [run(f"{name}-{number}") for number in range(RUNS)]


if __name__ == "__main__":
    main(*sys.argv[1:])
