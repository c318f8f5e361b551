"""Which head files are read again when another process has written: those of the runs that changed, and no others."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from struct import pack
from typing import Any

import pytest

from limpet.journal.run_filter import RunFilter
from limpet.journal.store import COMPLETED, Commit, NewRun, RunHead
from limpet.stores import atomic_files
from limpet.stores.files import locks, run_cache, run_names
from limpet.stores.files.run_names import file_name_of
from limpet.stores.files.store import FileStore
from limpet.stores.indexes import RunIndex
from limpet.testing.conformance.store_calls import ready_runs

RUNS = 200


class Reads:
    """How often head files and the directory were read since the last look."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.heads: list[str] = []
        self.scans = 0
        read_whole = atomic_files.read_whole
        scandir = os.scandir

        def reading(path: str) -> bytes:
            if path.endswith(".head"):
                self.heads.append(Path(path).name.partition(".")[0])
            return read_whole(path)

        def scanning(*given: Any) -> Any:
            self.scans += 1
            return scandir(*given)

        for module in (run_cache, run_names):
            monkeypatch.setattr(module, "read_whole", reading)
        monkeypatch.setattr(run_cache.os, "scandir", scanning)

    def since(self) -> tuple[list[str], int]:
        found = (sorted(self.heads), self.scans)
        self.heads.clear()
        self.scans = 0
        return found


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[tuple[FileStore, FileStore]]:
    """One that looks and one that writes. They share nothing in memory, as two processes do."""
    path = tmp_path / "runs"
    with closing(FileStore(path, level="process")) as writer, closing(FileStore(path)) as reader:
        for number in range(RUNS):
            writer.create(NewRun(f"r{number:03}", "g", [b"1"], due=0.0))
        yield reader, writer


def ready(store: FileStore) -> list[str]:
    return [head.run_id for head in ready_runs(store, ["g"], RUNS * 2)]


def test_ready_reads_only_the_heads_that_another_process_has_changed(
    stores: tuple[FileStore, FileStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """H1: however many runs there are; the directory is read once, and not once for each lock."""
    reader, writer = stores
    reads = Reads(monkeypatch)
    everything = [f"r{number:03}" for number in range(RUNS)]
    assert ready(reader) == everything
    assert reads.since() == (everything, 1)
    assert ready(reader) == everything
    assert reads.since() == ([], 0)
    lease = writer.claim("r007", "ann", 1e6)
    reads.since()
    assert ready(reader) == [run_id for run_id in everything if run_id != "r007"]
    assert reads.since() == (["r007"], 0)
    # The end of the run is in its journal: the head file stays as it is.
    assert writer.append([Commit("r007", lease.fence, 1, [b"2"], status=COMPLETED)]) == [None]
    reads.since()
    assert [head.run_id for head in reader.list(RunFilter(statuses=(COMPLETED,)))] == ["r007"]
    assert reads.since() == (["r007"], 1)
    writer.delete("r008")
    writer.create(NewRun("new", "g", [b"1"], due=0.0))
    reads.since()
    expected = {*everything, "new"} - {"r007", "r008"}
    assert set(ready(reader)) == expected
    assert reads.since() == (["new", "r008"], 0)
    assert set(ready(reader)) == expected
    assert reads.since() == ([], 0)


def test_rewrites_of_one_size_in_one_moment_are_noticed(stores: tuple[FileStore, FileStore]) -> None:
    """H1: no time and no size of a file is relied on."""
    reader, writer = stores
    for number in range(300):
        writer.post("r007", f"{number:04}", b"")
        if number % 10 == 0:
            (posted,) = [head.posted for head in ready_runs(reader, ["g"], RUNS) if head.run_id == "r007"]
            assert posted == number + 1


def test_more_changes_than_are_remembered_are_noticed(
    stores: tuple[FileStore, FileStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """H1: the runs under that lock are all read again, and the directory once."""
    reader, writer = stores
    ready(reader)
    reads = Reads(monkeypatch)
    for number in range(locks.REMEMBERED_CHANGES + 1):
        writer.post("r007", str(number), b"")
    writer.delete("r008")
    reads.since()
    (posted,) = [head.posted for head in ready_runs(reader, ["g"], RUNS) if head.run_id == "r007"]
    assert posted == locks.REMEMBERED_CHANGES + 1
    heads, scans = reads.since()
    assert scans == 1
    lock = reader._locks.lock_of(file_name_of("r007"))
    assert set(heads) - {"r008"} == {run.head.run_id for run in lock.runs.values()}


@pytest.mark.parametrize("way", ["an earlier version", "a damaged name", "a lower number"])
def test_a_change_without_a_name_makes_the_runs_of_its_lock_be_read_again(
    stores: tuple[FileStore, FileStore], way: str
) -> None:
    """H1, D10: processes of an earlier version count a change, and don't say of which run."""
    reader, writer = stores
    ready(reader)
    lock = writer._locks.lock_of(file_name_of("r007"))
    number = lock.change_number or 0
    writer.claim("r007", "ann", 1e6)
    with open(lock.path, "r+b") as file:
        place = 8 + (number + 1) % locks.REMEMBERED_CHANGES * locks._CHANGE.size
        if way == "an earlier version":
            file.seek(place)
            file.write(bytes(locks._CHANGE.size))
        elif way == "a damaged name":
            file.seek(place + 20)
            file.write(b"?")
        else:
            file.write(pack(">Q", number - 1))
    assert "r007" not in ready(reader)


def test_a_run_that_was_damaged_and_restored_is_listed_as_it_is(
    stores: tuple[FileStore, FileStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """H5: by hand, past every lock. Nothing is read for it by workers."""
    reader, _ = stores
    ready(reader)
    path = reader.path / "runs" / f"{file_name_of('r007')}.head"
    whole = path.read_bytes()
    path.write_bytes(b"nothing of the kind")
    reader._locks.lock_of(file_name_of("r007")).forget_runs()
    assert "r007" not in ready(reader)
    reads = Reads(monkeypatch)
    assert "r007" not in ready(reader)
    assert reads.since() == ([], 0)
    damaged = RunFilter(statuses=("damaged",))
    assert [head.run_id for head in reader.list(damaged)] == ["r007"]
    path.write_bytes(whole)
    assert reader.list(damaged) == []
    assert "r007" in ready(reader)


def test_a_run_whose_files_are_copied_into_the_directory_is_found(
    stores: tuple[FileStore, FileStore], tmp_path: Path
) -> None:
    """H1: by a list, and from then on by workers; and one whose files are deleted is gone."""
    reader, _ = stores
    with closing(FileStore(tmp_path / "other", level="process")) as other:
        other.create(NewRun("copied", "g", [b"1"], due=0.0))
    ready(reader)
    for path in (tmp_path / "other" / "runs").iterdir():
        shutil.copy(path, reader.path / "runs")
    for path in (reader.path / "runs").glob("r007.*"):
        path.unlink()
    listed = {head.run_id for head in reader.list(RunFilter())}
    assert listed >= {"copied", "r006"}
    assert "r007" not in listed
    assert {"copied", "r007"} & set(ready(reader)) == {"copied"}


def test_a_look_costs_what_changed_and_what_it_finds(
    stores: tuple[FileStore, FileStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """H18: however many runs wait."""
    reader, writer = stores
    lanes = reader.lanes()
    indexed: list[str] = []
    seen: list[str] = []
    put = RunIndex.put
    due = RunIndex.due

    def counted_put(index: RunIndex, key: str, head: RunHead) -> None:
        indexed.append(head.run_id)
        put(index, key, head)

    def counted_due(index: RunIndex, *given: Any) -> Iterator[str]:
        for name in due(index, *given):
            seen.append(name)
            yield name

    monkeypatch.setattr(RunIndex, "put", counted_put)
    monkeypatch.setattr(RunIndex, "due", counted_due)
    assert [head.run_id for head in reader.ready(lanes, 2)] == ["r000", "r001"]
    assert indexed == []
    # Under each lock, as many as are wanted, and one more.
    assert len(seen) <= locks.LOCK_FILES * (2 + 1)
    lease = writer.claim("r000", "ann", 1e6)
    assert writer.append([Commit("r000", lease.fence, 1, [b"2"], status=COMPLETED)]) == [None]
    reader.claim("r001", "ann", 1e6)
    indexed.clear()
    assert [head.run_id for head in reader.ready(lanes, 2)] == ["r002", "r003"]
    assert sorted(indexed) == ["r000", "r001"]
    assert reader.lanes() == lanes
    assert sorted(indexed) == ["r000", "r001"]


def test_more_runs_than_are_remembered_are_found_without_reading_all_again(
    stores: tuple[FileStore, FileStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """H18: a list of them reads all, and a look for work doesn't."""
    monkeypatch.setattr(run_cache, "MAX_REMEMBERED_RUNS", 3)
    reader, writer = stores
    lanes = reader.lanes()
    reads = Reads(monkeypatch)
    assert [head.run_id for head in reader.ready(lanes, 1)] == ["r000"]
    heads, scans = reads.since()
    # The first under each lock, and once more the one that was found.
    assert len(heads) <= locks.LOCK_FILES + 1
    assert scans == 0
    writer.delete("r000")
    writer.claim("r001", "ann", 1e6)
    writer.create(NewRun("urgent", "g", [b"1"], due=0.0, priority=1))
    reads.since()
    assert [head.run_id for head in reader.ready(lanes, 3)] == ["urgent", "r002", "r003"]
    heads, scans = reads.since()
    assert len(heads) <= 3 + locks.LOCK_FILES * (3 + 1) + 3
    assert scans == 0
    assert len(reader.list(RunFilter())) == RUNS
    assert ready(reader) == ["urgent", *(f"r{number:03}" for number in range(2, RUNS))]


def test_a_run_that_was_damaged_by_hand_hides_no_other(stores: tuple[FileStore, FileStore]) -> None:
    """H5, H18: not even from a worker that has looked before, and takes one run at a time."""
    reader, _ = stores
    lanes = reader.lanes()
    lock = reader._locks.lock_of(file_name_of("r000"))
    beside = sorted(run.head.run_id for run in lock.runs.values())
    for path in (reader.path / "runs").glob("r*"):
        run_id = path.name.partition(".")[0]
        if run_id not in beside:
            path.unlink()
        elif run_id in beside[:-1] and path.suffix == ".log":
            path.write_bytes(b"")
    assert len(beside) > 2
    assert [head.run_id for head in reader.ready(lanes, 1)] == beside[-1:]


WRITER = """
import sys
from limpet.journal.store import Commit, NewRun
from limpet.stores.files.store import FileStore

store = FileStore(sys.argv[1], level="process")
name = sys.argv[2]
for number in range(150):
    run_id = f"{name}{number % 20}"
    if number < 20:
        store.create(NewRun(run_id, "g", [b"1"], due=0.0))
    elif number % 7 == 0:
        store.delete(run_id)
        store.create(NewRun(run_id, "g", [b"1"], due=0.0, priority=number))
    else:
        lease = store.claim(run_id, name, 0.0)
        sequence = store.head(run_id).sequence
        note = str(number).encode()
        assert store.append([Commit(run_id, lease.fence, sequence, [b"2"], note=note)]) == [None]
"""


def test_a_process_that_looks_while_others_write_sees_what_a_new_one_sees(tmp_path: Path) -> None:
    """H1: after any interleaving of their creations, commits and deletions."""
    path = tmp_path / "runs"
    with closing(FileStore(path, level="process")) as reader:
        command = [sys.executable, "-c", WRITER, str(path)]
        writers = [subprocess.Popen([*command, name]) for name in ("a", "b")]
        looks = 0
        while any(writer.poll() is None for writer in writers):
            ready_runs(reader, ["g"], 1000)
            looks += 1
        assert [writer.returncode for writer in writers] == [0, 0]
        assert looks > 1
        remembered = ready_runs(reader, ["g"], 1000)
        with closing(FileStore(path, level="process")) as fresh:
            assert remembered == ready_runs(fresh, ["g"], 1000)
            assert reader.list(RunFilter()) == fresh.list(RunFilter())
        assert len(remembered) == 40


def test_a_full_disk_keeps_no_change_from_being_noticed(
    stores: tuple[FileStore, FileStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """H1: a name that can't be written is unknown, and runs can still be deleted."""
    reader, writer = stores
    ready(reader)
    pwrite = os.pwrite

    def full(descriptor: int, data: bytes, place: int) -> int:
        if len(data) == locks._CHANGE.size:
            raise OSError(28, "No space left on device")
        return pwrite(descriptor, data, place)

    monkeypatch.setattr(os, "pwrite", full)
    writer.delete("r007")
    assert "r007" not in ready(reader)


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="the system doesn't list open files")
def test_a_process_that_creates_many_runs_keeps_few_files_open(tmp_path: Path) -> None:
    """G9: a server that only starts runs would soon have as many open as the system allows."""
    before = len(os.listdir("/proc/self/fd"))
    with closing(FileStore(tmp_path / "store", level="process")) as store:
        for number in range(400):
            store.create(NewRun(f"r{number}", "g", [b"1"]))
        opened = len(os.listdir("/proc/self/fd")) - before
    assert opened <= locks.LOCK_FILES * (run_cache.MAX_OPEN_JOURNALS + 1)
