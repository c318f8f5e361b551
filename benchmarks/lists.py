"""How long a list takes in a store of 100,000 runs, by each filter: `python benchmarks/lists.py [URL] [number]`.

Without a URL, the store is a SQLite database in a folder of its own, which isn't flushed to the disk.
"""

from __future__ import annotations

import random
import sys
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from time import perf_counter
from typing import Any

from measure import folder

from limpet import Runs, open_store
from limpet.journal.encoding.codec import encode
from limpet.journal.store import CANCELLED, COMPLETED, FAILED, PAUSED, RUNNING, Labels, NewRun, Store

RUNS = 100_000
SHOWN = 20
REPEATS = 5

FILTERS: list[dict[str, Any]] = [
    {},
    *({"status": status} for status in (COMPLETED, RUNNING, PAUSED, FAILED, CANCELLED)),
    *(
        {"status": status}
        for status in ("queued", "sleeping", "retrying", "waiting", "abandoned", "quarantined")
    ),
    {"status": ["queued", "sleeping", "retrying", "failed"]},
    {"graph": "common"},
    {"graph": "rare"},
    {"graph": "none"},
    {"graph": "common", "status": "failed"},
    {"tag": "common"},
    {"tag": ["common", "rare"]},
    {"tag": "none"},
    {"tag": "common", "status": "cancelled"},
    {"error": "KeyError"},
    {"error": "none"},
    {"error": "KeyError", "graph": "rare", "status": "failed"},
    {"node": "n3"},
    {"node": "rare"},
    {"since": "1h"},
    {"before": "1h"},
    {"status": "failed", "since": "1h"},
    {"status": "failed", "before": "1h"},
    {"created_since": "1h"},
    {"created_before": "1h"},
    {"text": "message 7"},
    {"text": "none"},
]


def main(arguments: list[str]) -> None:
    """Fill a store, if it is empty, and print a line for each filter."""
    number = int(arguments[1]) if len(arguments) > 1 else RUNS
    with folder() as path:
        url = arguments[0] if arguments else f"sqlite:///{path}/runs.db?level=process"
        store = open_store(url)
        runs = Runs(store)
        if not runs.list(limit=1):
            fill(store, number)
        for filters in FILTERS:
            times = []
            for _ in range(REPEATS):
                began = perf_counter()
                found = runs.list(limit=SHOWN, **filters)
                times.append(perf_counter() - began)
            shown = ", ".join(f"{name}={value!r}" for name, value in filters.items()) or "no filter"
            searched = "" if found.searched is None else f", of {found.searched:,}"
            print(f"{median(times) * 1000:9.2f} ms  {len(found):3} runs{searched}  {shown}", flush=True)


def fill(store: Store, number: int) -> None:
    """Put runs of all statuses into a store: most have completed, a few of each other kind are among them."""
    chance = random.Random(1)
    with ThreadPoolExecutor(8) as threads:
        for _ in threads.map(store.create, [new_run(each, chance) for each in range(number)]):
            pass


def new_run(number: int, chance: random.Random) -> NewRun:
    """A run as a store has it."""
    status = chance.choices((COMPLETED, RUNNING, PAUSED, FAILED, CANCELLED), (90, 5, 2, 2.9, 0.1))[0]
    kind = chance.choices(("queued", "held", "sleeping", "retrying", "waiting"), (60, 10, 15, 10, 5))[0]
    error = ""
    if status == FAILED:
        error = chance.choices(("KeyError", "ValueError", "RunQuarantined"), (20, 79, 1))[0]
    if status == RUNNING and kind == "retrying":
        error = "TimeoutError"
    node = "rare" if number % 10_000 == 3 else f"n{number % 7}"
    summary: dict[str, Any] = {"step": 3, "node": node, "reason": None, "error": None, "questions": []}
    if error:
        summary["error"] = {"type": error, "message": f"message {number % 10}", "traceback": "x" * 500}
    due = {"queued": 0.0, "held": 0.0, "sleeping": 4e9, "retrying": 4e9}.get(kind)
    return NewRun(
        run_id=f"run-{number:06d}",
        graph="rare" if number % 1000 == 7 else "common",
        records=[b"x" * 100],
        status=status,
        holder="elsewhere" if status == RUNNING and kind == "held" else None,
        ttl=0.001 if number % 2 else 1e6,
        tags=("common", *(["rare"] if number % 10_000 == 5 else [])) if number % 2 else (),
        note=encode(summary),
        due=due if status == RUNNING else None,
        labels=Labels(node, error, "message" if status == RUNNING and kind == "waiting" else ""),
    )


if __name__ == "__main__":
    main(sys.argv[1:])
