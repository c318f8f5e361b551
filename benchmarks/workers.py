"""How many queued runs workers execute in a second: `python benchmarks/workers.py [--runs 100000] [--json FILE]`.

Each line is an empty store, in which a process queues the runs, one after the other and in threads, and from which
this many worker processes then execute them. The processor time is that of the workers, and that of the server.

With `--seconds`, all numbers of workers share a store: each line is about what the workers executed in that time,
while as many runs as `--runs` says waited at its beginning.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

from queued_graphs import chain
from queued_stores import PLACES, Place, places

from limpet import StateGraph, open_store
from limpet.defaults import MAX_RUNS_AT_ONCE
from limpet.journal.run_filter import RunFilter
from limpet.journal.store import RUNNING, Store

RUNS = 2_000
STARTERS = 8
"""Threads that queue runs at once."""
LOOK_INTERVAL = 0.05
"""Seconds between two looks whether all runs have ended."""
STORES = ("sqlite-ram", "sqlite-disk", "postgres", "redis")


@dataclass(frozen=True, slots=True)
class Line:
    """What was measured with one store and one number of workers."""

    store: str
    nodes: int
    runs: int
    workers: int
    started_per_second: float
    started_in_threads_per_second: float
    executed_per_second: float
    worker_ms_per_run: float
    server_ms_per_run: float
    shares: tuple[int, ...]
    """How many runs each worker executed."""


def main() -> None:
    """Measure what the arguments name, and print a line for each."""
    options = _arguments()
    print(f"Python {platform.python_version()}, {os.cpu_count()} processors, {options.runs:,} runs\n")
    print(
        f"{'store':12} {'nodes':>5} {'workers':>7} {'start/s':>8} {f'{STARTERS} thr/s':>8} {'runs/s':>8} "
        f"{'CPU ms/run':>10} {'server':>8}  runs of each worker"
    )
    lines = []
    for name, place in places(options.stores):
        for nodes in options.nodes:
            for line in _lines(name, place, nodes, options):
                lines.append(line)
                print(_text(line), flush=True)
    if options.json:
        Path(options.json).write_text(json.dumps([asdict(line) for line in lines], indent=1))


def _lines(
    name: str, place: Callable[[], AbstractContextManager[Place]], nodes: int, options: argparse.Namespace
) -> Iterator[Line]:
    if options.seconds is None:
        for workers in options.workers:
            with place() as empty:
                yield measured(name, empty, nodes, workers, options, range(options.runs))
        return
    with place() as shared:
        queued = 0
        left = 0
        for workers in options.workers:
            new = range(queued, queued + options.runs - left)
            line = measured(name, shared, nodes, workers, options, new)
            queued = new.stop
            left = options.runs - sum(line.shares)
            yield line


def measured(
    name: str, place: Place, nodes: int, workers: int, options: argparse.Namespace, new: range
) -> Line:
    """Queue runs with these numbers, and have this many workers execute what is queued."""
    store = open_store(place.url)
    graph = chain(nodes, store)
    half = len(new) // 2
    one_by_one = _queue(graph, new[:half], threads=1)
    in_threads = _queue(graph, new[half:], threads=STARTERS)
    with _worker_processes(place.url, nodes, workers, options.concurrency) as children:
        server_before = place.server_seconds()
        began = perf_counter()
        for child in children:
            _say(child, "go")
        if options.seconds is not None:
            sleep(options.seconds)
        while options.seconds is None and _is_unfinished(store):
            sleep(LOOK_INTERVAL)
        took = perf_counter() - began
        server_seconds = place.server_seconds() - server_before
        for child in children:
            _say(child, "stop")
        reports = [json.loads(_line_of(child)) for child in children]
    store.close()
    executed = sum(report["runs"] for report in reports)
    return Line(
        store=name,
        nodes=nodes,
        runs=options.runs,
        workers=workers,
        started_per_second=half / one_by_one,
        started_in_threads_per_second=(len(new) - half) / in_threads,
        executed_per_second=executed / took,
        worker_ms_per_run=sum(report["seconds"] for report in reports) / executed * 1e3,
        server_ms_per_run=server_seconds / executed * 1e3,
        shares=tuple(report["runs"] for report in reports),
    )


def _queue(graph: StateGraph, numbers: range, threads: int) -> float:
    """Queue a run for each number; returns how many seconds that took."""

    def start(number: int) -> None:
        graph.start({"n": 0}, run_id=f"run-{number:07d}")

    began = perf_counter()
    if threads == 1:
        for number in numbers:
            start(number)
    else:
        with ThreadPoolExecutor(threads) as pool:
            for _ in pool.map(start, numbers):
                pass
    return perf_counter() - began


def _is_unfinished(store: Store) -> bool:
    return bool(store.list(RunFilter((RUNNING,), limit=1)))


@contextmanager
def _worker_processes(url: str, nodes: int, number: int, concurrency: int) -> Iterator[list[Any]]:
    """Workers that are ready to begin."""
    program = [
        sys.executable,
        str(Path(__file__).with_name("child_worker.py")),
        url,
        str(nodes),
        str(concurrency),
    ]
    children = [
        subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(number)
    ]
    try:
        for child in children:
            assert _line_of(child) == "ready\n"
        yield children
        for child in children:
            child.communicate(timeout=60)
            assert child.returncode == 0
    finally:
        for child in children:
            child.kill()


def _say(child: Any, word: str) -> None:
    child.stdin.write(f"{word}\n")
    child.stdin.flush()


def _line_of(child: Any) -> str:
    return str(child.stdout.readline())


def _text(line: Line) -> str:
    return (
        f"{line.store:12} {line.nodes:5} {line.workers:7} {line.started_per_second:8,.0f} "
        f"{line.started_in_threads_per_second:8,.0f} {line.executed_per_second:8,.0f} "
        f"{line.worker_ms_per_run:10.2f} {line.server_ms_per_run:8.2f}  {', '.join(map(str, line.shares))}"
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--workers", type=_numbers, default=[1, 2, 4, 8], help="such as 1,2,4,8")
    parser.add_argument("--nodes", type=_numbers, default=[1, 3])
    parser.add_argument("--stores", type=_stores, default=list(STORES), help=", ".join(STORES))
    parser.add_argument(
        "--concurrency", type=int, default=MAX_RUNS_AT_ONCE, help="runs at once of each worker"
    )
    parser.add_argument(
        "--seconds", type=float, help="for how long workers execute runs; by default all runs"
    )
    parser.add_argument("--json", help="a file for the same in JSON")
    return parser.parse_args()


def _numbers(text: str) -> list[int]:
    return [int(each) for each in text.split(",")]


def _stores(text: str) -> list[str]:
    names = text.split(",")
    unknown = [name for name in names if name not in PLACES]
    if unknown:
        raise argparse.ArgumentTypeError(
            f"no such store: {', '.join(unknown)}; there are {', '.join(STORES)}"
        )
    return names


if __name__ == "__main__":
    main()
