"""A directory of files, several real processes: shared, forked, and killed at any moment."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import limpet.stores
from limpet.stores.files.locks import HAS_FILE_LOCKS

pytestmark = pytest.mark.skipif(
    not HAS_FILE_LOCKS or not hasattr(os, "fork"), reason="this platform has no fork or no file locks"
)

PREAMBLE = """
import os, random, signal, sys, time
from pathlib import Path
from limpet import DamagedCheckpoint, StateGraph
from limpet.errors import Conflict, RunNotFound
from limpet.journal.run_filter import RunFilter
from limpet.journal.store import COMPLETED, Commit, NewRun
from limpet.stores.files.store import FileStore

path, level, seed = sys.argv[1], sys.argv[2], int(sys.argv[3])
chance = random.Random(seed)

def start(work, *arguments):
    reader, writer = os.pipe()
    child = os.fork()
    if child:
        os.close(writer)
        return child, os.fdopen(reader, "rb")
    try:
        os.close(reader)
        work(lambda *words: os.write(writer, (" ".join(map(str, words)) + "\\n").encode()), *arguments)
    except BaseException:
        import traceback
        traceback.print_exc()
        os._exit(1)
    os._exit(0)

def stop(child, lines):
    os.kill(child, signal.SIGKILL)
    rest = lines.read()
    lines.close()
    _, status = os.waitpid(child, 0)
    assert status == signal.SIGKILL, status
    return [line.decode().split() for line in rest.splitlines(keepends=True) if line.endswith(b"\\n")]

def landed(store, *commits):
    assert store.append(commits) == [None] * len(commits), store.append(commits)
"""


def run(code: str, path: Path, level: str = "process", seed: int = 1, timeout: float = 100) -> str:
    root = str(Path(limpet.stores.__file__).parents[2])
    ran = subprocess.run(
        [sys.executable, "-c", PREAMBLE + textwrap.dedent(code), str(path), level, str(seed)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": root},
        timeout=timeout,
    )
    assert (ran.returncode, ran.stderr) == (0, ""), ran.stderr
    return ran.stdout


@pytest.mark.parametrize("level", ["disk", "process"])
def test_a_kill_at_any_moment_leaves_a_readable_store(tmp_path: Path, level: str) -> None:
    """Invariants 1 and 2: all that was acknowledged is there, and nothing half; two writers, 40 kills."""
    code = """
    import logging
    logging.disable(logging.CRITICAL)  # of torn tails; the store's own tests look at what is said

    def work(say, name, seed):
        store, chance = FileStore(path, level=level), random.Random(seed)
        for number in range(100000):
            run = f"{name}-{number}"
            lease = store.create(NewRun(run, "g", [f"{run} 1".encode()], holder="me"))
            say(run, 1)
            for expected in range(1, chance.randrange(2, 12)):
                record = f"{run} {expected + 1} ".encode() + b"x" * chance.choice([1, 100, 100, 9000, 70000])
                whole = expected + 1 if expected % 3 == 0 else 0
                landed(store, Commit(run, lease.fence, expected, [record], snapshot=whole, note=b"%d" % whole))
                say(run, expected + 1)
                if expected % 4 == 0:
                    store.prune(run, expected - 2)
                if expected % 5 == 0:
                    store.renew([lease], 60)
            if number % 3 == 0:
                landed(store, Commit(run, lease.fence, expected + 1, [b"end"], status=COMPLETED, purge=True))
                say(run, "purged", expected + 2)

    kills = 0
    for round in range(20):
        children = [start(work, f"{name}{round}", chance.random()) for name in "ab"]
        acknowledged = {}
        for child, lines in children:
            heard = [lines.readline().decode().split() for _ in range(chance.randrange(1, 25))]
            time.sleep(chance.random() * 0.004)
            for run, *what in [*heard, *stop(child, lines)]:
                acknowledged[run] = what
            kills += 1
        store = FileStore(path, level=level)
        heads = {head.run_id: head for head in store.list(RunFilter())}
        for run, what in acknowledged.items():
            head = heads[run]
            if what[0] == "purged":
                assert (head.status, head.sequence) == (COMPLETED, int(what[1]))
                continue
            if head.status != COMPLETED:
                assert head.sequence - int(what[0]) in (0, 1), (head, what)
        for run in heads:
            tail = store.read(run, first=1)
            for number, record in enumerate(tail.records, tail.first):
                words = record.split(b" ")
                assert words[:2] == [run.encode(), b"%d" % number], (run, number, words[:2])
            if tail.head.snapshot:
                assert store.read(run).first == tail.head.snapshot
                assert len(tail.records) == tail.head.sequence - tail.first + 1
        for run in list(heads)[:5]:
            if heads[run].status != COMPLETED:
                lease = store.claim(run, "next", 60, instead_of=heads[run].fence)
                sequence = heads[run].sequence
                landed(store, Commit(run, lease.fence, sequence, [f"{run} {sequence + 1} on".encode()]))
        store.close()
        if round % 5 == 4:
            old = FileStore(path, level=level)
            for run in heads:
                head = old.head(run)
                if head.holder:
                    old.release(old.claim(run, "broom", 1, instead_of=head.fence))
                old.delete(run)
            assert old.expire(0) == 0
            assert old.list(RunFilter()) == []
            assert not list(Path(path, "runs").glob("*.log"))
            old.close()
    print(kills)
    """
    assert run(code, tmp_path / "runs", level, seed=11) == "40\n"


def test_processes_share_a_directory_without_error_or_loss(tmp_path: Path) -> None:
    """P6, P8: four processes, each with runs of its own and one that all write to."""
    code = """
    FileStore(path, level=level).create(NewRun("all", "g", [b"0"]))

    def work(say, name):
        store = FileStore(path, level=level)
        leases = [store.create(NewRun(f"{name}-{number}", "g", [b"1"], holder=name)) for number in range(10)]
        for expected in range(1, 20):
            landed(store, *(Commit(lease.run_id, 1, expected, [b"%d" % (expected + 1)]) for lease in leases))
            while True:
                sequence = store.head("all").sequence
                if store.append([Commit("all", 1, sequence, [f"{name} {expected}".encode()])]) == [None]:
                    break
        say("done")

    children = [start(work, f"p{number}") for number in range(4)]
    for child, lines in children:
        assert lines.read() == b"done\\n"
        assert os.waitpid(child, 0)[1] == 0
    store = FileStore(path, level=level)
    assert len(store.list(RunFilter())) == 41
    for number in range(4):
        for each in range(10):
            assert store.read(f"p{number}-{each}").records == [b"%d" % step for step in range(1, 21)]
    shared = [record.decode().split() for record in store.read("all").records[1:]]
    for number in range(4):
        assert [int(step) for name, step in shared if name == f"p{number}"] == list(range(1, 20))
    """
    run(code, tmp_path / "runs")


def test_a_store_may_be_forked_while_it_is_used(tmp_path: Path) -> None:
    """P6: parent and child keep using the same object; neither holds the other's locks, nor moves its files."""
    code = """
    import threading
    store = FileStore(path, level=level)
    for name in ("parent", "child", "busy"):
        store.create(NewRun(name, "g", [b"1"]))
    running = True

    def be_busy():
        expected = 1
        while running:
            landed(store, Commit("busy", 1, expected, [b"x" * 100]))
            expected += 1

    busy = threading.Thread(target=be_busy)
    busy.start()

    def work(say):
        for expected in range(1, 50):
            landed(store, Commit("child", 1, expected, [b"%d" % (expected + 1)]))
        say("done")

    import warnings
    warnings.simplefilter("ignore")
    children = [start(work)]
    for expected in range(1, 50):
        landed(store, Commit("parent", 1, expected, [b"%d" % (expected + 1)]))
    for child, lines in children:
        assert lines.read() == b"done\\n"
        assert os.waitpid(child, 0)[1] == 0
    running = False
    busy.join()
    for name in ("parent", "child"):
        assert store.read(name).records == [b"%d" % step for step in range(1, 51)]
    assert set(store.read("busy", first=2).records) == {b"x" * 100}
    """
    run(code, tmp_path / "runs")


def test_a_killed_run_resumes_from_its_files(tmp_path: Path) -> None:
    """G6, H1: in another process, without a step lost or done twice."""
    code = """
    def build(step):
        graph = StateGraph(name="count", max_iterations=100000).add_node("step", run=step)
        graph.set_entry_point("step").set_finish_point("step")
        graph.add_edge("step", "step", lambda state: state["n"] < 300)
        return graph.compile(store=f"file://{path}?level=process")

    def work(say):
        def step(state):
            say(state["n"])
            return {"n": state["n"] + 1, "seen": [*state["seen"], state["n"]]}
        graph = build(step)
        if not graph.runs():
            graph.execute({"n": 0, "seen": []}, run_id="r")
        elif graph.runs("running"):
            graph.resume("r")
        say("end")
        time.sleep(100)  # until it is killed, as all of them are

    begun, heard = [], []
    while ["end"] not in heard:
        child, lines = start(work)
        heard = []
        while len(heard) < 40 and ["end"] not in heard:
            heard.append(lines.readline().decode().split())
        heard += stop(child, lines)
        begun += [int(word) for (word,) in heard if word.isdigit()]
    assert sorted(set(begun)) == list(range(300)), begun
    assert len(begun) - 300 <= 10, len(begun)
    """
    run(code, tmp_path / "runs")


def test_a_kill_at_any_moment_leaves_whole_checkpoint_files(tmp_path: Path) -> None:
    """F8: every file in the directory can be loaded, and every path that was reported exists; 20 kills."""
    code = """
    def build():
        graph = StateGraph(name="g").add_node("a", run=lambda state: {"x": "y" * 20000}).add_node("b")
        graph.add_edge("a", "b").set_entry_point("a").set_finish_point("b")
        return graph.compile(checkpoint_dir=path, interrupt_before=["b"])

    def work(say):
        graph = build()
        while True:
            (event,) = graph.invoke({})
            say(event["checkpoint_path"])

    graph = build()
    for _ in range(20):
        child, lines = start(work)
        told = [lines.readline().decode().strip() for _ in range(chance.randrange(1, 5))]
        time.sleep(chance.random() * 0.01)
        told += [where for (where,) in stop(child, lines)]
        assert all(os.path.exists(where) for where in told)
    for file in Path(path).glob("*.pkl"):
        assert StateGraph.load_checkpoint(file)["state"] == {"x": "y" * 20000}
    (final,) = graph.invoke(None, checkpoint=told[-1])
    assert final["type"] == "final"
    """
    run(code, tmp_path / "checkpoints")
