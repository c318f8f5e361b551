"""Processes that use one store together: started, released at the same moment, and checked for what they stored."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet.journal.run_filter import RunFilter
from limpet.journal.store import COMPLETED, NewRun

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform has no fork")

PREAMBLE = """
import os, sys
from concurrent.futures import ThreadPoolExecutor
from limpet import StateGraph, open_store
from limpet.errors import Conflict, StoreUnavailable
from limpet.journal.run_filter import RunFilter
from limpet.journal.store import Commit, Lease, NewRun
from limpet.stores.sqlite.store import SQLiteStore

def say(*words):
    print(*words, flush=True)

def together():
    say("ready")
    sys.stdin.readline()

def append(store, run_id, fence, expected, data):
    (refusal,) = store.append([Commit(run_id, fence, expected, [data])])
    if refusal is not None:
        raise refusal

def claim_each(store):
    for number in range(100):
        try:
            store.claim(f"r{number}", sys.argv[2], 100, instead_of=1 if number % 2 else None)
        except Conflict:
            continue
        say(f"r{number}")
    while wanted := store.ready(store.lanes(), 16):
        for lease in filter(None, store.claim_ready(wanted, sys.argv[2], 100)):
            say(lease.run_id)

def counting_graph(store):
    graph = StateGraph({"n": int}, name="count")
    graph.add_node("step", run=lambda state: {"n": state["n"] + 1})
    graph.set_entry_point("step")
    graph.add_edge("step", "step", lambda state: state["n"] < 5)
    graph.set_finish_point("step")
    return graph.compile(store=store, preserve=True)

def run_fifty(graph):
    with ThreadPoolExecutor(50) as pool:
        states = list(pool.map(lambda n: graph.execute({"n": 0}, run_id=f"{sys.argv[2]}-{n}"), range(50)))
    assert [state["n"] for state in states] == [5] * 50

def write_in_child(store, fork, child, writes):
    pid = fork()
    if pid:
        return pid
    try:
        store.create(NewRun(child, "g", [b"0"]))
        for number in range(1, writes + 1):
            append(store, child, 1, number, b"x")
        assert store.head("parent").run_id == "parent"
        store.close()
        os._exit(0)
    finally:
        os._exit(1)

def fork_while_writing(store, forks, writes, forks_in_c=0):
    import ctypes, threading, warnings
    warnings.simplefilter("ignore")
    store.create(NewRun("parent", "g", [b"0"]))
    stop = threading.Event()

    def work():
        number = 1
        while not stop.is_set():
            append(store, "parent", 1, number, b"x")
            number += 1
            assert store.head("parent").sequence == number

    thread = threading.Thread(target=work)
    thread.start()
    children = [write_in_child(store, os.fork, f"child-{child}", writes) for child in range(forks)]
    codes = [os.waitpid(pid, 0)[1] for pid in children]
    stop.set()
    thread.join()
    # A fork by a library in C, which neither Python nor the store learns of. No other thread may want the interpreter
    # just then: in the child, Python would wait for ever for that thread to take it.
    fork = ctypes.PyDLL(None).fork
    for child in range(forks, forks + forks_in_c):
        codes.append(os.waitpid(write_in_child(store, fork, f"child-{child}", writes), 0)[1])
        append(store, "parent", 1, store.head("parent").sequence, b"x")
    say(codes, store.head("parent").sequence == len(store.read("parent").records))
    store.close()

place = sys.argv[1]
"""
"""What every process begins with. `place` is where the store is."""


class Process:
    """A Python process that runs `code` with the store's place and more arguments, and answers in lines."""

    def __init__(self, code: str, place: object, *arguments: object) -> None:
        self.popen = subprocess.Popen(
            [sys.executable, "-c", PREAMBLE + textwrap.dedent(code), str(place), *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(Path(limpet.__file__).parents[1])},
            start_new_session=True,
        )

    def read_line(self) -> str:
        assert self.popen.stdout is not None
        return self.popen.stdout.readline().rstrip("\n")

    def go(self) -> None:
        """End its `together()`."""
        assert self.popen.stdin is not None
        self.popen.stdin.write("go\n")
        self.popen.stdin.flush()

    def end(self) -> list[str]:
        """Wait for a good end; return the lines that were not read yet."""
        out, errors = self.popen.communicate(timeout=100)
        assert (errors, self.popen.returncode) == ("", 0)
        return out.splitlines()

    def kill(self) -> None:
        """End the process if it still runs, and what it forked."""
        if self.popen.poll() is None:
            if hasattr(os, "killpg"):
                os.killpg(self.popen.pid, signal.SIGKILL)
            else:
                self.popen.kill()
        self.popen.communicate(timeout=60)


Start = Callable[..., Process]


@contextmanager
def starting() -> Iterator[Start]:
    """A function that starts a `Process`. All of them end with the block."""
    processes: list[Process] = []

    def start(code: str, place: object, *arguments: object) -> Process:
        processes.append(Process(code, place, *arguments))
        return processes[-1]

    try:
        yield start
    finally:
        for process in processes:
            process.kill()


def all_at_once(processes: list[Process]) -> list[list[str]]:
    """Let processes that are ready continue together; the lines that each printed."""
    for process in processes:
        assert process.read_line() == "ready"
    for process in processes:
        process.go()
    return [process.end() for process in processes]


def create_claimable_runs(store: Any) -> None:
    """The runs of `claim_each`: half of them free, half held by a dead process; and others, queued."""
    for number in range(100):
        store.create(NewRun(f"q{number}", "g", [b"1"], due=0.0))
        store.create(NewRun(f"r{number}", "g", [b"1"], holder="dead" if number % 2 else None, ttl=1e6))


def check_claims(store: Any, claimed: dict[str, list[str]]) -> None:
    """Each run of `claim_each` was claimed once, and has the holder that claimed it. `claimed` is by holder."""
    names = sorted(f"{kind}{number}" for kind in "qr" for number in range(100))
    assert sorted(run_id for run_ids in claimed.values() for run_id in run_ids) == names
    for holder, run_ids in claimed.items():
        assert {store.head(run_id).holder for run_id in run_ids} <= {holder}


def check_nothing_lost(store: Any, processes: int) -> None:
    """All runs of `run_fifty`, in processes 0, 1, …, are completed and have all their records."""
    heads = store.list(RunFilter(statuses=(COMPLETED,)))
    assert {head.run_id for head in heads} == {f"{p}-{n}" for p in range(processes) for n in range(50)}
    for head in heads:
        tail = store.read(head.run_id, first=1)
        assert (head.fence, head.crashes, len(tail.records)) == (1, 0, head.sequence)
        assert head.sequence == heads[0].sequence >= 6


def check_forks(store: Any, forks: int, writes: int) -> None:
    """All that the children of `fork_while_writing` wrote is stored."""
    for child in range(forks):
        assert store.head(f"child-{child}").sequence == writes + 1
