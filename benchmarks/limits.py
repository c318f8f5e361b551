"""How many slots of one limit processes take and give back in a second: `python benchmarks/limits.py [--json FILE]`.

Each thread asks for a slot, gives it back, and asks again. With room for all of them no call waits: this is what the
store can do. With room for half of them the others stand in line, and are served in order.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from queued_stores import PLACES, places

from limpet import Limit, open_store
from limpet.engine.leases.lease_client import LeaseClient, client_for
from limpet.engine.leases.limit_slots import SlotRequest, limits_of
from limpet.journal.store import NewRun

STORES = ("sqlite-ram", "postgres", "redis")
PROCESSES = (1, 2, 4)
THREADS = 8
SECONDS = 3.0


def main() -> None:
    """Print how many slots were taken and given back in a second, for each store and number of processes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stores", type=lambda text: text.split(","), default=list(STORES))
    parser.add_argument("--json", help="a file for the same in JSON")
    parser.add_argument("--work", nargs=3, metavar=("URL", "NAME", "SECONDS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        url, name, seconds = options.work
        print(json.dumps(_work(url, name, float(seconds))))
        return
    if unknown := set(options.stores) - set(PLACES):
        parser.error(f"no such store: {', '.join(unknown)}; there are {', '.join(PLACES)}")
    print(f"{'store':12} {'processes':>9} {'with room, a second':>20} {'half stand in line, a second':>29}")
    rows = []
    for name, place in places(options.stores):
        for processes in PROCESSES:
            row: dict[str, Any] = {"store": name, "processes": processes}
            for what, share in (("with_room", 2.0), ("half_in_line", 0.5)):
                with place() as empty:
                    row[what] = _measured(empty.url, processes, int(processes * THREADS * share))
            rows.append(row)
            print(
                f"{name:12} {processes:9} {row['with_room']:20,.0f} {row['half_in_line']:29,.0f}", flush=True
            )
    if options.json:
        Path(options.json).write_text(json.dumps(rows, indent=1))


def _measured(url: str, processes: int, concurrency: int) -> float:
    """Slots a second, of all processes together."""
    store = open_store(url)
    limits_of(client_for(store)).declare([Limit("api", concurrency=concurrency)])
    store.close()
    command = [sys.executable, __file__, "--work", url]
    started = [
        subprocess.Popen([*command, f"p{number}", str(SECONDS)], stdout=subprocess.PIPE)
        for number in range(processes)
    ]
    total = sum(json.loads(process.communicate()[0]) for process in started)
    return total / SECONDS


def _work(url: str, name: str, seconds: float) -> int:
    client = LeaseClient(open_store(url))
    limits = limits_of(client)
    until = monotonic() + seconds

    def take_and_give_back(thread: int) -> int:
        run_id = f"{name}-{thread}"
        held = client.create(NewRun(run_id, "g", [b"x"], holder=run_id))
        request = SlotRequest(held.lease, "call", ("api",))
        count = posts = 0
        while monotonic() < until:
            (wait,) = limits.acquire([request], True)
            while wait is not None and monotonic() < until:
                inbox = len(client.store.inbox(run_id))
                if inbox == posts:
                    sleep(0.002)
                    continue
                posts = inbox
                (wait,) = limits.acquire([request._replace(wait=wait)], True)
            limits.release([request])
            count += wait is None
        return count

    with ThreadPoolExecutor(THREADS) as pool:
        return sum(pool.map(take_and_give_back, range(THREADS)))


if __name__ == "__main__":
    main()
