"""One SQLite file, several real processes: shared, killed, forked, and out of disk."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from limpet.errors import StoreUnavailable
from limpet.journal.run_filter import RunFilter
from limpet.journal.store import Commit, NewRun
from limpet.stores.sqlite.store import SQLiteStore
from support.store_processes import (
    Start,
    all_at_once,
    check_claims,
    check_forks,
    check_nothing_lost,
    create_claimable_runs,
    needs_fork,
    starting,
)


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a Python process: `start(code, path, …)`."""
    with starting() as start:
        yield start


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


@pytest.mark.parametrize("level", ["disk", "process"])
def test_processes_share_a_file_without_error_or_loss(start: Start, path: Path, level: str) -> None:
    """P6, P8: four writers, and none gets "database is locked"."""
    code = """
    store = SQLiteStore(place, level=sys.argv[3])
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
    store = SQLiteStore(place, level=sys.argv[2])
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
        heard = [process.read_line() + "\n" for _ in range(lines)]
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
    store = SQLiteStore(place)
    together()
    claim_each(store)
    store.close()
    """
    with closing(SQLiteStore(path)) as store:
        create_claimable_runs(store)
        ann, bob = all_at_once([start(code, path, holder) for holder in ("ann", "bob")])
        check_claims(store, {"ann": ann, "bob": bob})


def test_processes_may_create_the_file_at_the_same_moment(start: Start, tmp_path: Path) -> None:
    """D10: the schema is made once, whichever process is first."""
    code = """
    together()
    for number in range(10):
        store = SQLiteStore(f"{place}-{number}.db")
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
    graph = counting_graph(f"sqlite:///{place}?level=process")
    together()
    run_fifty(graph)
    """
    all_at_once([start(code, path, number) for number in range(4)])
    with closing(SQLiteStore(path)) as store:
        check_nothing_lost(store, processes=4)


@needs_fork
def test_a_fork_may_happen_at_any_time(start: Start, path: Path) -> None:
    """P6: parent and child write on, from threads too, and neither uses the other's connection."""
    code = "fork_while_writing(SQLiteStore(place), forks=4, writes=50, forks_in_c=1)"
    assert start(code, path).end() == ["[0, 0, 0, 0, 0] True"]
    with closing(SQLiteStore(path)) as store:
        check_forks(store, forks=5, writes=50)


@needs_fork
def test_a_child_outlives_its_parents_connections(start: Start, path: Path) -> None:
    """Invariant 1: SQLite's locks stay with the parent, so others would take the file for abandoned."""
    code = """
    store = SQLiteStore(place)
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
    assert process.read_line() == "ready"
    assert process.popen.wait(30) == 0
    with closing(SQLiteStore(path)) as store:
        assert store.head("r").sequence == 2
    process.go()
    assert process.read_line() == "written"
    with closing(SQLiteStore(path)) as store:
        assert store.read("r").records == [b"1", b"2", b"3"]


@needs_fork
def test_a_fork_that_python_does_not_see_is_noticed(start: Start, path: Path) -> None:
    """P6: a C library may fork without running Python's hooks; the child opens its own connections."""
    code = """
    import ctypes
    store = SQLiteStore(place)
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
    store = SQLiteStore(place, level="process")
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
    Path(place).as_uri()  # imports what another user may not be able to read
    if os.geteuid() == 0:
        os.seteuid(65534)
    try:
        SQLiteStore(place)
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
        fork_and_wait()
        with pytest.raises(StoreUnavailable, match="check that it exists"):
            store.head("r")
        assert not path.exists()


def fork_and_wait() -> None:
    """Have all connections closed: they are before a fork, and the next call opens the file again."""
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)
