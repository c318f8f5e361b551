"""One SQLite file, several real processes: shared, killed, forked, and out of disk."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

import limpet.stores
from limpet.errors import StoreUnavailable
from limpet.journal.store import COMPLETED, Commit, NewRun, RunFilter
from limpet.stores.sqlite.store import SQLiteStore

PREAMBLE = """
import os, sys
from limpet.errors import Conflict, StoreUnavailable
from limpet.journal.store import Commit, Lease, NewRun, RunFilter
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

path = sys.argv[1]
"""

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform has no fork")


class Process:
    """A Python process that runs `code` with the file's path and more arguments, and answers in lines."""

    def __init__(self, code: str, path: Path, *arguments: object) -> None:
        root = str(Path(limpet.stores.__file__).parents[2])
        self.popen = subprocess.Popen(
            [sys.executable, "-c", PREAMBLE + textwrap.dedent(code), str(path), *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": root},
            start_new_session=True,
        )

    def hear(self) -> str:
        assert self.popen.stdout is not None
        return self.popen.stdout.readline().rstrip("\n")

    def go(self) -> None:
        assert self.popen.stdin is not None
        self.popen.stdin.write("go\n")
        self.popen.stdin.flush()

    def end(self) -> list[str]:
        """Wait for a good end; return the lines that were not heard yet."""
        out, errors = self.popen.communicate(timeout=60)
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


@pytest.fixture
def start() -> Iterator[Start]:
    processes: list[Process] = []

    def starter(code: str, path: Path, *arguments: object) -> Process:
        processes.append(Process(code, path, *arguments))
        return processes[-1]

    yield starter
    for process in processes:
        process.kill()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


def all_at_once(processes: list[Process]) -> list[list[str]]:
    for process in processes:
        assert process.hear() == "ready"
    for process in processes:
        process.go()
    return [process.end() for process in processes]


@pytest.mark.parametrize("level", ["disk", "process"])
def test_processes_share_a_file_without_error_or_loss(start: Start, path: Path, level: str) -> None:
    """P6, P8: four writers, and none gets "database is locked"."""
    code = """
    store = SQLiteStore(path, level=sys.argv[3])
    me = sys.argv[2]
    leases = [store.create(NewRun(f"{me}-{run}", "g", [b"0"], holder=me)) for run in range(3)]
    together()
    for number in range(1, 301):
        for lease in leases:
            append(store, lease.run_id, 1, number, b"%d" % number)
        if number % 100 == 0:
            store.renew(leases, 10)
            store.list(RunFilter())
    store.close()
    """
    all_at_once([start(code, path, number, level) for number in range(4)])
    with closing(SQLiteStore(path)) as store:
        assert len(store.list(RunFilter())) == 12
        for number in range(4):
            for run in range(3):
                records = store.read(f"{number}-{run}").records
                assert records == [b"%d" % record for record in range(301)]


@pytest.mark.parametrize("level", ["disk", "process"])
def test_what_was_acknowledged_survives_a_kill(start: Start, path: Path, level: str) -> None:
    """H3, invariant 1: kill -9 in the middle of writing, several times over."""
    code = """
    store = SQLiteStore(path, level=sys.argv[2])
    head = store.head("r")
    lease = store.claim("r", "me", 100, instead_of=head.fence)
    expected = head.sequence
    while True:
        more = [b"%d" % (expected + 1)] if expected % 5 else [b"%d" % (expected + 1), b"%d" % (expected + 2)]
        (refusal,) = store.append([Commit("r", lease.fence, expected, more)])
        assert refusal is None, refusal
        expected += len(more)
        say(expected)
    """
    with closing(SQLiteStore(path)) as store:
        store.create(NewRun("r", "g", [b"1"]))
    for lines in (3, 40, 200):
        process = start(code, path, level)
        heard = [process.hear() + "\n" for _ in range(lines)]
        process.popen.kill()
        heard += process.popen.communicate(timeout=60)[0].splitlines(keepends=True)
        acknowledged = max(int(line) for line in heard if line.endswith("\n"))
        with closing(SQLiteStore(path)) as store:
            tail = store.read("r", first=1)
            assert tail.head.sequence >= acknowledged
            assert tail.records == [b"%d" % number for number in range(1, tail.head.sequence + 1)]


def test_of_two_processes_that_claim_one_wins(start: Start, path: Path) -> None:
    """P8, H1: also of those that break a dead holder's lease."""
    code = """
    store = SQLiteStore(path)
    together()
    for number in range(100):
        try:
            store.claim(f"r{number}", sys.argv[2], 100, instead_of=1 if number % 2 else None)
        except Conflict:
            continue
        say(number)
    store.close()
    """
    with closing(SQLiteStore(path)) as store:
        for number in range(100):
            store.create(NewRun(f"r{number}", "g", [b"1"], holder="dead" if number % 2 else None, ttl=1e6))
        won = all_at_once([start(code, path, holder) for holder in ("ann", "bob")])
        assert sorted(int(number) for numbers in won for number in numbers) == list(range(100))
        for holder, numbers in zip(("ann", "bob"), won, strict=True):
            assert {store.head(f"r{number}").holder for number in numbers} <= {holder}


def test_processes_may_create_the_file_at_the_same_moment(start: Start, tmp_path: Path) -> None:
    """D10: the schema is made once, whichever process is first."""
    code = """
    together()
    for number in range(10):
        store = SQLiteStore(f"{path}-{number}.db")
        store.create(NewRun(sys.argv[2], "g", [b"1"]))
        store.close()
    """
    path = tmp_path / "fresh"
    all_at_once([start(code, path, number) for number in range(4)])
    for number in range(10):
        with closing(SQLiteStore(f"{path}-{number}.db")) as store:
            assert {head.run_id for head in store.list(RunFilter())} == {"0", "1", "2", "3"}


def test_a_new_file_is_looked_at_as_of_one_moment(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """D10: else one that another process is about to create is half ours, and taken for another program's."""
    from limpet.stores.sqlite import connections as sqlite_connections

    looked: list[bool] = []
    is_current = sqlite_connections.is_current

    def looking(cursor: sqlite3.Cursor, name: str) -> bool:
        looked.append(cursor.connection.in_transaction)
        return is_current(cursor, name)

    monkeypatch.setattr(sqlite_connections, "is_current", looking)
    SQLiteStore(path).close()
    SQLiteStore(path).close()
    assert looked == [True, True]


def test_four_processes_with_many_runs_lose_nothing(start: Start, path: Path) -> None:
    """P6, P8: 4 processes × 50 runs on one file; no error, and all of each run is there at the end."""
    code = """
    from concurrent.futures import ThreadPoolExecutor
    from limpet import StateGraph
    graph = StateGraph({"n": int}, name="count")
    graph.add_node("step", run=lambda state: {"n": state["n"] + 1})
    graph.set_entry_point("step")
    graph.add_edge("step", "step", lambda state: state["n"] < 5)
    graph.set_finish_point("step")
    graph.compile(store=f"sqlite:///{path}?level=process", preserve=True)
    together()
    with ThreadPoolExecutor(50) as pool:
        states = list(pool.map(lambda n: graph.execute({"n": 0}, run_id=f"{sys.argv[2]}-{n}"), range(50)))
    assert [state["n"] for state in states] == [5] * 50
    """
    all_at_once([start(code, path, number) for number in range(4)])
    with closing(SQLiteStore(path)) as store:
        heads = store.list(RunFilter(statuses=(COMPLETED,)))
        assert {head.run_id for head in heads} == {f"{p}-{n}" for p in range(4) for n in range(50)}
        for head in heads:
            tail = store.read(head.run_id, first=1)
            assert (head.fence, head.crashes, len(tail.records)) == (1, 0, head.sequence)
            assert head.sequence == heads[0].sequence >= 6


@needs_fork
def test_a_fork_may_happen_at_any_time(start: Start, path: Path) -> None:
    """P6: parent and child write on, from threads too, and neither uses the other's connection."""
    code = """
    import threading
    store = SQLiteStore(path)
    store.create(NewRun("parent", "g", [b"0"]))
    stop = threading.Event()

    def work(run_id):
        number = 0
        while not stop.is_set():
            append(store, run_id, 1, number + 1, b"x")
            number += 1
            assert store.head(run_id).sequence == number + 1
        return number

    thread = threading.Thread(target=work, args=("parent",))
    thread.start()
    children = []
    for child in range(5):
        pid = os.fork()
        if pid == 0:
            try:
                store.create(NewRun(f"child-{child}", "g", [b"0"]))
                for number in range(1, 51):
                    append(store, f"child-{child}", 1, number, b"x")
                assert store.head("parent").run_id == "parent"
                store.close()
                os._exit(0)
            finally:
                os._exit(1)
        children.append(pid)
    codes = [os.waitpid(pid, 0)[1] for pid in children]
    stop.set()
    thread.join()
    say(codes, store.head("parent").sequence == len(store.read("parent").records))
    store.close()
    """
    process = start("import warnings; warnings.simplefilter('ignore')\n" + textwrap.dedent(code), path)
    assert process.end() == ["[0, 0, 0, 0, 0] True"]
    with closing(SQLiteStore(path)) as store:
        for child in range(5):
            assert store.head(f"child-{child}").sequence == 51


@needs_fork
def test_a_child_outlives_its_parents_connections(start: Start, path: Path) -> None:
    """Invariant 1: SQLite's locks stay with the parent, so others would take the file for abandoned."""
    code = """
    store = SQLiteStore(path)
    store.create(NewRun("r", "g", [b"1"]))
    here, there = os.pipe()
    if os.fork() == 0:
        append(store, "r", 1, 1, b"2")
        os.write(there, b"x")
        together()
        append(store, "r", 1, 2, b"3")
        say("written")
        os._exit(0)
    os.read(here, 1)
    store.close()
    os._exit(0)
    """
    process = start(code, path)
    assert process.hear() == "ready"
    assert process.popen.wait(30) == 0
    with closing(SQLiteStore(path)) as store:
        assert store.head("r").sequence == 2
    process.go()
    assert process.hear() == "written"
    with closing(SQLiteStore(path)) as store:
        assert store.read("r").records == [b"1", b"2", b"3"]


@needs_fork
def test_a_fork_that_python_does_not_see_is_noticed(start: Start, path: Path) -> None:
    """P6: a C library may fork without running Python's hooks; the child opens its own connections."""
    code = """
    import ctypes
    store = SQLiteStore(path)
    store.create(NewRun("r", "g", [b"1"]))
    store.head("r")
    before = store._connections._writer
    pid = ctypes.CDLL(None).fork()
    if pid == 0:
        append(store, "r", 1, 1, b"2")
        store.head("r")
        os._exit(0 if store._connections._writer is not before else 1)
    say(os.waitpid(pid, 0)[1], store._connections._writer is before)
    append(store, "r", 1, 2, b"3")
    store.close()
    """
    assert start(code, path).end() == ["0 True"]
    with closing(SQLiteStore(path)) as store:
        assert store.read("r").records == [b"1", b"2", b"3"]


FILL = """
    store = SQLiteStore(path, level="process")
    store.create(NewRun("r", "g", [b"x" * 1000]))
    if len(sys.argv) > 2:
        import resource
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]),) * 2)
    saved, commits = 1, 0
    try:
        while True:
            commits += 1
            if commits % 2:
                append(store, "r", 1, saved, b"x" * 1000)
                saved += 1
            else:
                commit = Commit("r", 1, saved, [b"y" * 1000] * 3, note=b"%d" % (saved + 3))
                (refusal,) = store.append([commit])
                assert refusal is None
                saved += 3
    except StoreUnavailable as error:
        say(error)
    for call in (
        lambda: store.append([Commit("r", 1, saved, [b"y" * 100_000] * 9, note=b"half")]),
        lambda: store.create(NewRun("s", "g", [b"z" * 900_000])),
    ):
        try:
            call()
        except StoreUnavailable:
            pass
        else:
            say("written after all")
    say(saved)
    """


def check_full_disk(path: Path, lines: list[str]) -> None:
    message, saved = lines
    assert str(path) in message
    with closing(SQLiteStore(path)) as store:
        tail = store.read("r", first=1)
        assert (tail.head.sequence, len(tail.records)) == (int(saved), int(saved))
        assert tail.head.note in (b"", b"%d" % tail.head.sequence, b"%d" % (tail.head.sequence - 1))
        assert [head.run_id for head in store.list(RunFilter())] == ["r"]
        assert store.append([Commit("r", 1, int(saved), [b"room again"])]) == [None]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    mount = shutil.which("mount")
    command = [mount or "", "-t", "tmpfs", "-o", "size=600k", "tmpfs", str(folder)]
    if sys.platform != "linux" or mount is None or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("no right to mount a small disk here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True, capture_output=True)


def test_a_full_disk_is_an_error_and_nothing_is_half_written(start: Start, small_disk: Path) -> None:
    """G9, invariant 1: the save fails, what was saved before is there, and with room the store works again."""
    path = small_disk / "runs.db"
    lines = start(FILL, path).end()
    assert "free space" in lines[0]
    subprocess.run(["mount", "-o", "remount,size=4m", str(small_disk)], check=True, capture_output=True)
    check_full_disk(path, lines)


def test_a_file_that_may_not_grow_is_an_error_and_nothing_is_half_written(start: Start, path: Path) -> None:
    """G9: the same where a quota, not the disk, is the limit."""
    pytest.importorskip("resource")
    check_full_disk(path, start(FILL, path, 300_000).end())


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="permissions are another matter on this platform")
@pytest.mark.parametrize("existing", [True, False], ids=["a store", "an empty file"])
def test_a_read_only_file_is_named(start: Start, existing: bool) -> None:
    """Errors are the user's friend: it says what to allow."""
    code = """
    from pathlib import Path
    Path(path).as_uri()  # imports what another user may not be able to read
    if os.geteuid() == 0:
        os.seteuid(65534)
    try:
        SQLiteStore(path)
    except StoreUnavailable as error:
        say(error)
    """
    folder = Path(tempfile.mkdtemp())
    path = folder / "runs.db"
    try:
        if existing:
            SQLiteStore(path).close()
        path.touch()
        before = path.read_bytes()
        path.chmod(0o444)
        folder.chmod(0o555)
        (message,) = start(code, path).end()
        assert str(path) in message
        assert "let this user write the file and its directory" in message
        assert path.read_bytes() == before
    finally:
        folder.chmod(0o755)
        shutil.rmtree(folder)


def test_a_file_that_vanished_is_not_quietly_replaced(path: Path) -> None:
    """Invariant 1: a reader that opens the file again doesn't start an empty one."""
    with closing(SQLiteStore(path)) as store:
        store.create(NewRun("r", "g", [b"1"]))
        try:
            path.unlink()
        except PermissionError:
            pytest.skip("this platform keeps open files")
        with pytest.raises(StoreUnavailable, match="check that it exists"):
            store.head("r")
        assert not path.exists()
