"""Real processes that share a limit: each logs when its calls begin and end, and one of them is killed."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import url_of
from limpet import Limit, Limits, open_store
from limpet.engine.leases.lease_client import client_for
from limpet.engine.leases.limit_slots import limits_of
from support.store_processes import Process, starting

ALLOWED = 3
THREADS = 4
ROUNDS = int(os.environ.get("LIMPET_LIMIT_ROUNDS", "12"))
TTL = 10.0

CALLS = """
    import time
    from limpet.engine.leases.lease_client import LeaseClient
    from limpet.engine.leases.limit_slots import SlotRequest, limits_of

    threads, rounds, ttl, name = int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]), sys.argv[5]
    client = LeaseClient(open_store(place), ttl)
    limits = limits_of(client)

    def log(run_id, what):
        os.write(1, f"{time.monotonic()} {run_id} {what}\\n".encode())  # whole lines, whichever thread it is

    def is_told(run_id):
        return bool(client.store.inbox(run_id))

    def call(run_id):
        held = client.create(NewRun(run_id, "g", [b"x"], holder=name, ttl=ttl))
        request = SlotRequest(held.lease, "call", ("api",))
        (wait,) = limits.acquire([request], True)
        while wait is not None:
            while not is_told(run_id):
                time.sleep(0.01)
                limits.serve_lines()
            (wait,) = limits.acquire([request._replace(wait=wait)], True)
        log(run_id, "begin")
        time.sleep(0.005)
        log(run_id, "end")
        limits.release([request])
        client.release(held)

    def work(thread):
        for round_number in range(rounds):
            call(f"{name}-{thread}-{round_number}")

    together()
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, range(threads)))
"""


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with url_of(request.param, request, tmp_path) as found:
        yield found


def test_processes_never_have_more_slots_than_allowed(url: str) -> None:
    """H18, P8: calls overlap at most as allowed, also where a process is killed."""
    store = open_store(url)
    limits_of(client_for(store)).declare([Limit("api", concurrency=ALLOWED)])
    with starting() as start:
        processes = [start(CALLS, url, THREADS, ROUNDS, TTL, name) for name in ("a", "b")]
        # With one thread: so its slot, which is free when its lease ends, isn't waited for.
        processes.append(start(CALLS, url, 1, 1_000_000, TTL, "killed"))
        for process in processes:
            assert process.read_line() == "ready"
        for process in processes:
            process.go()
        *others, killed = processes
        seen = [killed.read_line() for _ in range(5)]
        os.kill(killed.popen.pid, 9)
        killed_at = time.monotonic()
        seen += _rest_of(killed)
        logged = [line for process in others for line in process.end()]
    intervals = _intervals(logged, killed_at) + _intervals(seen, killed_at)
    assert len(_intervals(logged, killed_at)) == 2 * THREADS * ROUNDS
    assert _most_at_once(intervals) <= ALLOWED
    assert {each.run_id.partition("-")[0] for each in Limits(store).get("api").held} <= {"killed"}


def _rest_of(process: Process) -> list[str]:
    out, _ = process.popen.communicate(timeout=60)
    return [line for line in out.splitlines() if line.count(" ") == 2]


def _intervals(lines: list[str], until: float) -> list[tuple[float, float]]:
    """When each call began and ended. One that was killed ended then."""
    begun: dict[str, float] = {}
    found = []
    for line in lines:
        at, run_id, what = line.split()
        if what == "begin":
            begun[run_id] = float(at)
        else:
            found.append((begun.pop(run_id), float(at)))
    return found + [(at, max(at, until)) for at in begun.values()]


def _most_at_once(intervals: list[tuple[float, float]]) -> int:
    changes = sorted([(begin, 1) for begin, _ in intervals] + [(end, -1) for _, end in intervals])
    most = at_once = 0
    for _, change in changes:
        at_once += change
        most = max(most, at_once)
    return most
