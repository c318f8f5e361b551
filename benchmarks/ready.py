"""How long a worker takes to find 16 ready runs, by how many wait: `python benchmarks/ready.py [--json FILE]`.

The runs of a backlog wait in twelve lanes: of one a worker finds them, or of all.
"""

from __future__ import annotations

import argparse
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from queued_stores import PLACES, places

from limpet import open_store
from limpet.journal.store import Labels, Lane, NewRun, Store

BACKLOGS = (1_000, 10_000, 100_000)
STORES = ("sqlite-ram", "postgres", "redis", "files", "memory")
FOUND = 16
REPEATS = 21
QUEUES = ("default", "gpu", "mail")
GRAPHS = ("first", "second", "third", "fourth")
LANES = [Lane(queue, graph, "plan") for queue in QUEUES for graph in GRAPHS]


def main() -> None:
    """Fill a store up to each backlog, and print how long a look takes then."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backlogs", type=_numbers, default=list(BACKLOGS))
    parser.add_argument("--stores", type=lambda text: text.split(","), default=list(STORES))
    parser.add_argument("--json", help="a file for the same in JSON")
    options = parser.parse_args()
    if unknown := set(options.stores) - set(PLACES):
        parser.error(f"no such store: {', '.join(unknown)}; there are {', '.join(PLACES)}")
    print(
        f"{'store':12} {'backlog':>8} {'lanes() ms':>10} {'1 lane, ms':>10} {f'{len(LANES)} lanes, ms':>12}"
    )
    rows = []
    for name, place in places(options.stores):
        with place() as empty:
            store = open_store(empty.url)
            filled = 0
            for backlog in sorted(options.backlogs):
                _fill(store, range(filled, backlog))
                filled = backlog
                row = {"store": name, "backlog": backlog, **measured(store)}
                rows.append(row)
                print(
                    f"{name:12} {backlog:8,} {row['lanes_ms']:10.2f} {row['one_lane_ms']:10.2f} "
                    f"{row['all_lanes_ms']:12.2f}",
                    flush=True,
                )
            store.close()
    if options.json:
        Path(options.json).write_text(json.dumps(rows, indent=1))


def measured(store: Store) -> dict[str, Any]:
    """The medians, in milliseconds."""
    return {
        "lanes_ms": _median_ms(store.lanes),
        "one_lane_ms": _median_ms(lambda: store.ready(LANES[:1], FOUND)),
        "all_lanes_ms": _median_ms(lambda: store.ready(LANES, FOUND)),
    }


def _median_ms(work: Any) -> float:
    times = []
    for _ in range(REPEATS):
        began = perf_counter()
        work()
        times.append(perf_counter() - began)
    return median(times) * 1e3


def _fill(store: Store, numbers: range) -> None:
    """Queue a run for each number: some are urgent, and some are due only later."""
    runs = [
        NewRun(
            run_id=f"run-{number:07d}",
            graph=LANES[number % len(LANES)].graph,
            records=[b"x" * 100],
            due=4e9 if number % 10 == 3 else 0.0,
            priority=5 if number % 100 == 7 else 0,
            labels=Labels(plan="plan"),
            queue=LANES[number % len(LANES)].queue,
        )
        for number in numbers
    ]
    with ThreadPoolExecutor(8) as threads:
        for _ in threads.map(store.create, runs):
            pass


def _numbers(text: str) -> list[int]:
    return [int(each) for each in text.split(",")]


if __name__ == "__main__":
    main()
