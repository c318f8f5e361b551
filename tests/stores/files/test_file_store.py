"""The file store, held to the suite at both levels, and what is peculiar to it."""

from __future__ import annotations

import errno
import gc
import os
import random
import shutil
import signal
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from limpet import StateGraph
from limpet.errors import DamagedRecord, RunNotFound, StoreUnavailable, TooLarge, UsageError
from limpet.journal.run_filter import RunFilter
from limpet.journal.store import COMPLETED, PAUSED, Commit, Level, NewRun, RunHead, Store, Tail
from limpet.stores import open_store
from limpet.stores.files import frames, locks, run_cache, run_files, run_names
from limpet.stores.files.documents import document_file
from limpet.stores.files.run_opening import read_unlocked
from limpet.stores.files.store import FileStore
from limpet.testing.conformance import ManualClock, StoreConformance
from limpet.testing.conformance.store_calls import ready_runs
from support.damage import changed_at_its_end


@pytest.mark.parametrize("level", ["disk", "process"])
class TestFileStore(StoreConformance):
    @pytest.fixture
    def store(self, tmp_path: Path, clock: ManualClock, level: Level) -> Iterator[Store]:
        store = FileStore(tmp_path / "runs", level=level, clock=clock)
        assert store.abilities.level == level
        yield store
        store.close()

    def reopen(self, store: FileStore) -> Store:
        store.close()
        return FileStore(store.path, level=store.abilities.level, clock=store.clock)

    def damage(self, store: FileStore, run_id: str, sequence: int) -> None:
        (path,) = (path for path in store.path.glob("runs/*.log") if path.name.startswith(f"{run_id}."))
        data = path.read_bytes()
        place = data.rindex(b"two" * 10)
        path.write_bytes(data[:place] + b"?" + data[place + 1 :])

    def damage_document(self, store: FileStore, name: str) -> None:
        path = store.path / "documents" / f"{document_file(name)}.document"
        path.write_bytes(changed_at_its_end(path.read_bytes()))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs"


def journal_of(path: Path, run_id: str = "r") -> Path:
    (found,) = path.glob(f"runs/{run_id}.*.log")
    return found


def head_file_of(path: Path, run_id: str = "r") -> Path:
    (found,) = path.glob(f"runs/{run_id}.*.head")
    return found


def filled(path: Path) -> tuple[list[bytes], RunHead]:
    """A run with frames of both kinds; its records, and its head."""
    with closing(FileStore(path, level="process")) as store:
        store.create(NewRun("r", "g", [b"one" * 9], holder="ann"))
        for number in range(2, 6):
            landed(store, Commit("r", 1, number - 1, [b"%d" % number * 20]))
        landed(store, Commit("r", 1, 5, [b"six" * 9, b"seven" * 9], snapshot=7, note=b"note"))
        store.post("r", "look", b"body")
        landed(store, Commit("r", 1, 7, [b"eight" * 9], ignores_posts=True))
        landed(store, Commit("r", 1, 8, [b"nine" * 9], note=b"newer", ignores_posts=True))
        tail = store.read("r", first=1)
        return tail.records, tail.head


def read_or_damage(store: Store, first: int | None) -> Tail | DamagedRecord:
    try:
        return store.read("r", first=first)
    except DamagedRecord as damage:
        return damage


def landed(store: Store, *commits: Commit) -> None:
    assert store.append(commits) == [None] * len(commits)


@pytest.mark.parametrize("which", ["journal", "head"])
def test_every_changed_byte_is_noticed_or_harmless(path: Path, which: str) -> None:
    """H5: at each place of a run's files: what is read is what was written, or an error that names the run."""
    records, head = filled(path)
    file = journal_of(path) if which == "journal" else head_file_of(path)
    whole, chance, noticed = file.read_bytes(), random.Random(7), 0
    for place in range(len(whole)):
        file.write_bytes(
            whole[:place] + bytes([whole[place] ^ 1 << chance.randrange(8)]) + whole[place + 1 :]
        )
        with closing(FileStore(path, level="process")) as store:
            for first in (1, None, 4):
                found = read_or_damage(store, first)
                if isinstance(found, Tail):
                    assert found.head == head
                    assert found.records == records[(first or 7) - 1 :]
                else:
                    assert found.run_id == "r"
                    noticed += first == 1
            store.list(RunFilter())
    assert noticed == len(whole)
    file.write_bytes(whole)
    with closing(FileStore(path, level="process")) as store:
        assert store.read("r", first=1).records == records


def test_every_cut_is_noticed_or_a_torn_tail(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """H5: what is left is the beginning of what was written, up to a commit; what the head knows of is missed."""
    records, _ = filled(path)
    file = journal_of(path)
    whole = file.read_bytes()
    cuts = []
    for size in range(len(whole)):
        file.write_bytes(whole[:size])
        caplog.clear()
        with closing(FileStore(path, level="process")) as store:
            found = read_or_damage(store, 1)
            if isinstance(found, DamagedRecord):
                assert found.run_id == "r"
                assert "ends at byte" in found.reason
            else:
                assert found.records in (records[:7], records[:8])
                cut = size - file.stat().st_size
                assert (cut == 0) == (caplog.text == "")
                assert cut == 0 or f"cut off {cut} bytes that a writer left unfinished" in caplog.text
                cuts.append(cut)
                landed(store, Commit("r", 1, len(found.records), [b"again"], ignores_posts=True))
                assert store.read("r", first=1).records == [*found.records, b"again"]
    assert sum(cut > 0 for cut in cuts) > 100
    file.write_bytes(b"")
    with closing(FileStore(path, level="process")) as store:
        with pytest.raises(DamagedRecord):
            store.head("r")
        store.delete("r")
        assert store.list(RunFilter()) == []
    assert list((path / "runs").iterdir()) == []


@pytest.mark.parametrize("tail", [b"\0" * 5, b"\0" * 40, b"\0" * 5000])
def test_blocks_that_never_reached_the_disk_are_cut_off(path: Path, tail: bytes) -> None:
    """H5, invariant 1: after a power loss the end of a file may be zeros."""
    records, head = filled(path)
    with journal_of(path).open("ab") as file:
        file.write(tail)
    with closing(FileStore(path)) as store:
        assert store.read("r", first=1) == Tail(head, 1, records)


def test_a_frame_with_a_hole_at_the_end_is_cut_off(path: Path) -> None:
    """H5: its header had reached the disk, and not all of its body."""
    with closing(FileStore(path)) as store:
        store.create(NewRun("r", "g", [b"1"]))
        landed(store, Commit("r", 1, 1, [b"x" * 5000]))
    file = journal_of(path)
    whole = file.read_bytes()
    file.write_bytes(whole[:2048] + b"\0" * 1024 + whole[3072:])
    with closing(FileStore(path)) as store:
        assert store.read("r", first=1).records == [b"1"]
        landed(store, Commit("r", 1, 1, [b"2"]))


@pytest.mark.parametrize("missing", ["the header", "half of the header", "the last block", "all"])
def test_a_frame_of_several_blocks_of_which_some_are_missing_is_cut_off_and_kept(
    path: Path, missing: str, caplog: pytest.LogCaptureFixture
) -> None:
    """H5, invariant 1: a disk writes blocks in any order. The commit was never acknowledged; the run continues."""
    with closing(FileStore(path)) as store:
        store.create(NewRun("r", "g", [b"1"]))
        # So that the next frame begins 10 bytes before the end of a block: its header is in two of them.
        landed(store, Commit("r", 1, 1, [b"2" * (512 - 10 - 2 * frames.HEADER_SIZE - 1)]))
        file = journal_of(path)
        start = file.stat().st_size
        assert start == 502
        landed(store, Commit("r", 1, 2, [b"x" * 5000]))
    torn = bytearray(file.read_bytes())
    lost = {
        "the header": slice(start, 1024),
        "half of the header": slice(start, 512),
        "the last block": slice(len(torn) // 512 * 512, None),
        "all": slice(start, None),
    }[missing]
    torn[lost] = bytes(len(torn[lost]))
    file.write_bytes(torn)
    with closing(FileStore(path)) as store:
        assert len(store.read("r", first=1).records) == 2
        assert "cut off 5025 bytes" in caplog.text
        assert file.stat().st_size == start
        assert file.with_suffix(".cut").read_bytes() == torn[start:]
        landed(store, Commit("r", 1, 2, [b"3"]))
        assert store.read("r").records[-1] == b"3"
        store.delete("r")
    assert list((path / "runs").iterdir()) == []


def test_an_unwritten_block_before_another_frame_is_damage(path: Path) -> None:
    """H5: the frame after it was written when this one was acknowledged."""
    with closing(FileStore(path)) as store:
        store.create(NewRun("r", "g", [b"1" * 500]))
        for number in range(1, 4):
            landed(store, Commit("r", 1, number, [b"x" * 700]))
    file = journal_of(path)
    data = file.read_bytes()
    file.write_bytes(data[:525] + bytes(1024 - 525) + data[1024:])
    with closing(FileStore(path)) as store:
        with pytest.raises(DamagedRecord, match="record 2 of run 'r'"):
            store.head("r")
        assert store.read("r", 1, 1).records == [b"1" * 500]
    assert file.stat().st_size == len(data)


@pytest.mark.parametrize("damage", ["cut off", "changed"])
def test_what_is_before_a_damaged_end_can_be_verified_read_and_forked(path: Path, damage: str) -> None:
    """H5: as the message says. The run itself is neither continued nor taken for an older one."""
    graph = StateGraph(name="g")
    for name in ("a", "b", "c"):
        graph.add_node(name, run=lambda state: {"n": state["n"] + 1})
    graph.add_edge("a", "b").add_edge("b", "c").set_entry_point("a").set_finish_point("c")
    with closing(FileStore(path)) as store:
        graph.compile(store=store, preserve=True).execute({"n": 0}, run_id="r")
        if damage == "cut off":  # and the head knows that there was more
            store.release(store.claim("r", "ann", 10.0))
    file = journal_of(path)
    data = file.read_bytes()
    file.write_bytes(data[:-5] if damage == "cut off" else data[:-5] + b"?" + data[-4:])
    with closing(FileStore(path)) as store:
        graph.compile(store=store, preserve=True)
        found = graph.verify("r")
        assert (found.ok, found.status, found.restorable) == (False, None, False)
        assert found.steps == [0, 1], "of step 2, more may be missing"
        assert graph.state_at("r", 1) == {"n": 1}
        assert graph.fork("r", 1).result() == {"n": 3}
        for call in (graph.resume, graph.state_at, store.head):
            with pytest.raises(DamagedRecord, match=r"state_at\(\), or forked"):
                call("r")
        (listed,) = [info for info in graph.runs() if info.run_id == "r"]
        assert listed.status == "damaged"
        assert str(listed.problem).startswith("record 4 of run 'r' is damaged: its ")
        assert [info.run_id for info in graph.runs(status="completed")] != ["r"]


def test_a_file_of_another_run_is_damage(path: Path) -> None:
    """H5, P6: neither its frames nor its head are taken for this run's."""
    with closing(FileStore(path)) as store:
        for run_id in ("r", "s"):
            store.create(NewRun(run_id, "g", [run_id.encode()]))
    journal_of(path).write_bytes(journal_of(path, "s").read_bytes())
    with closing(FileStore(path)) as store:
        with pytest.raises(DamagedRecord):
            store.read("r")
        assert {head.run_id for head in store.list(RunFilter())} == {"r", "s"}
    head_file_of(path).write_bytes(head_file_of(path, "s").read_bytes())
    with closing(FileStore(path)) as store, pytest.raises(DamagedRecord, match="that of run 's'"):
        store.head("r")


def test_a_damaged_head_is_listed_as_such_and_reported(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """H5: the other runs are still found, and the damaged one can be deleted."""
    with closing(FileStore(path)) as store:
        for run_id in ("r", "s"):
            store.create(NewRun(run_id, "g", [b"1"]))
    head_file_of(path).write_bytes(b"LMF1 nonsense")
    with closing(FileStore(path)) as store:
        listed = {head.run_id: head.status for head in store.list(RunFilter())}
        assert listed == {"r": "damaged", "s": "running"}
        assert "is listed as damaged: the head of run 'r'" in caplog.text
        with pytest.raises(DamagedRecord):
            store.create(NewRun("r", "g", [b"1"]))
        (outcome,) = store.append([Commit("r", 1, 1, [b"2"])])
        assert isinstance(outcome, DamagedRecord)
        store.delete("r")
        store.create(NewRun("r", "g", [b"1"]))


def test_the_log_names_the_run_whose_head_file_is_that_of_another(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """H5."""
    with closing(FileStore(path)) as store:
        for run_id in ("r", "s"):
            store.create(NewRun(run_id, "g", [b"1"]))
    head_file_of(path).write_bytes(head_file_of(path, "s").read_bytes())
    with closing(FileStore(path)) as store:
        assert {head.run_id for head in store.list(RunFilter())} == {"r", "s"}
        assert "the head of run 'r' is damaged: its head file is that of run 's'" in caplog.text


def test_a_damaged_run_keeps_no_other_from_being_claimed(path: Path) -> None:
    """H1, H5: however urgent it is, for a store that knew it and for one that didn't."""
    with closing(FileStore(path)) as store:
        for run_id in ("r", "s"):
            store.create(NewRun(run_id, "g", [b"1"], due=0.0, priority=run_id == "r"))
        assert [head.run_id for head in ready_runs(store, ["g"], 1)] == ["r"]
        journal_of(path).write_bytes(b"")
        assert {head.run_id for head in store.list(RunFilter())} == {"r", "s"}
        assert [head.run_id for head in ready_runs(store, ["g"], 1)] == ["s"]
    with closing(FileStore(path)) as store:
        assert [head.run_id for head in ready_runs(store, ["g"], 1)] == ["s"]


def test_a_frame_that_the_head_does_not_know_yet_counts(path: Path) -> None:
    """Invariant 1: a commit exists when its frame does; the next reader applies it to the head."""
    with closing(FileStore(path)) as store:
        store.create(NewRun("r", "g", [b"1"], holder="ann"))
        before = head_file_of(path).read_bytes()
        landed(store, Commit("r", 1, 1, [b"2", b"3"], snapshot=3, status=PAUSED, note=b"asked"))
        assert head_file_of(path).read_bytes() == before
        after = store.read("r", first=1)
    with closing(FileStore(path)) as store:
        assert store.read("r", first=1) == after
        assert (after.head.status, after.head.holder, after.head.snapshot) == (PAUSED, None, 3)
        assert store.read("r").records == [b"3"]


def test_what_is_pruned_leaves_the_file_in_time(path: Path) -> None:
    """F14: not with every prune, but before half of the file is dead; what is left can be read, also by others."""
    with (
        closing(FileStore(path, level="process")) as store,
        closing(FileStore(path, level="process")) as other,
    ):
        store.create(NewRun("r", "g", [b"1"], holder="ann"))
        for number in range(2, 400):
            landed(store, Commit("r", 1, number - 1, [b"%d" % number * 400], snapshot=number))
            assert store.prune("r", number - 2) == (number > 3)
            assert journal_of(path).stat().st_size < 4 * run_files.MIN_REWRITE_SIZE
        tail = other.read("r", first=1)
        assert (tail.first, tail.records) == (397, [b"%d" % number * 400 for number in (397, 398, 399)])
        landed(other, Commit("r", 1, 399, [b"400"]))
        assert store.read("r").records[-1] == b"400"


def test_what_is_gone_takes_no_room(path: Path) -> None:
    """P7: a deleted, expired or purged run leaves no records behind."""
    with closing(FileStore(path)) as store:
        for run_id in ("deleted", "expired", "purged", "kept"):
            store.create(NewRun(run_id, "g", [b"1", b"2"]))
        landed(store, Commit("purged", 1, 2, [b"3"], purge=True))
        landed(store, Commit("expired", 1, 2, [b"3"], status=COMPLETED))
        store.delete("deleted")
        assert store.expire(-1) == 1
        assert {file.name.partition(".")[0] for file in path.glob("runs/*.log")} == {"kept"}
        assert {file.name.partition(".")[0] for file in path.glob("runs/*.head")} == {"kept", "purged"}


@pytest.mark.parametrize("failing", ["write", "fsync"])
def test_a_full_disk_changes_nothing(path: Path, monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    """G9: no commit of the call is applied, the message says what to do, and later calls succeed."""
    with closing(FileStore(path)) as store:
        for run_id in ("r", "s"):
            store.create(NewRun(run_id, "g", [b"1"], holder="ann"))
        real, calls = getattr(os, failing), []

        def full(descriptor: int, *data: Any) -> Any:
            calls.append(descriptor)
            if len(calls) < 2:
                return real(descriptor, *data)
            if data:
                real(descriptor, bytes(data[0])[:7])
            raise OSError(errno.ENOSPC, "No space left on device")

        commits = [Commit(run_id, 1, 1, [b"2" * 100]) for run_id in ("r", "s")]
        with monkeypatch.context() as patched:
            patched.setattr(os, failing, full)
            with pytest.raises(StoreUnavailable, match="the disk is full; free some space"):
                store.append(commits)
            calls.append(0)
            with pytest.raises(StoreUnavailable, match="the disk is full"):
                store.create(NewRun("t", "g", [b"1"]))
            with pytest.raises(StoreUnavailable, match="the disk is full"):
                store.post("r", "stop", b"")
        for run_id in ("r", "s"):
            assert store.read(run_id).records == [b"1"]
            assert store.head(run_id).posted == 0
        assert len(store.list(RunFilter())) == 2
        landed(store, *commits)
        store.create(NewRun("t", "g", [b"1"]))
    with closing(FileStore(path)) as store:
        assert store.read("s").records == [b"1", b"2" * 100]
        assert not list(path.glob("runs/*.tmp")) + list(path.glob("runs/.*"))


def test_a_purge_that_fails_does_so_alone(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """G9: the run keeps its journal, and the other commits of the call have landed."""
    with closing(FileStore(path)) as store:
        for run_id in ("r", "s"):
            store.create(NewRun(run_id, "g", [b"1"]))

        def full(*_: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as patched:
            patched.setattr(os, "replace", full)
            outcomes = store.append([Commit("r", 1, 1, [b"2"], purge=True), Commit("s", 1, 1, [b"2"])])
        assert isinstance(outcomes[0], StoreUnavailable)
        assert outcomes[1] is None
        assert store.read("r").records == [b"1"]
        landed(store, Commit("r", 1, 1, [b"2"], purge=True), Commit("r", 1, 2, [b"3"]))
        assert store.read("r", first=1).records == [b"3"]


def test_a_record_too_large_refuses_its_own_commit_only(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "MAX_BODY_SIZE", 1000)
    with closing(FileStore(path)) as store:
        for run_id in ("large", "small"):
            store.create(NewRun(run_id, "g", [b"1"], holder="ann"))
        outcomes = store.append([Commit("large", 1, 1, [b"x" * 1001]), Commit("small", 1, 1, [b"x" * 1000])])
        assert isinstance(outcomes[0], StoreUnavailable)
        assert outcomes[1] is None
        assert (store.head("large").sequence, store.head("small").sequence) == (1, 2)
        with pytest.raises(StoreUnavailable, match="more than a frame can hold"):
            store.create(NewRun("new", "g", [b"x" * 1001]))
        with pytest.raises(TooLarge):
            store.post("small", "key", b"x" * 1001)
        with pytest.raises(TooLarge):
            store.add_output("small", 1, [b"x" * 1001], 10)
        head = store.head("small")
        assert (head.posted, head.output, store.inbox("small"), store.output("small")) == (0, 0, [], [])


def test_files_that_were_removed_take_nothing_more(path: Path) -> None:
    """Invariant 1: what is written to a removed file isn't saved."""
    with closing(FileStore(path)) as store:
        lease = store.create(NewRun("r", "g", [b"1"], holder="me"))
        assert lease is not None
        journal_of(path).unlink()
        (outcome,) = store.append([Commit("r", 1, 1, [b"2"])])
        assert isinstance(outcome, DamagedRecord)
        shutil.rmtree(path)
        with pytest.raises(StoreUnavailable):
            store.create(NewRun("s", "g", [b"1"], holder="me"))
        assert store.renew([lease], 10) == [None]


def test_many_runs_leave_few_files_open(path: Path) -> None:
    with closing(FileStore(path, level="process")) as store:
        for number in range(400):
            store.create(NewRun(f"r{number}", "g", [b"1"]))
        for number in range(400):
            landed(store, Commit(f"r{number}", 1, 1, [b"2"]))
        limit = locks.LOCK_FILES * (run_cache.MAX_OPEN_JOURNALS + 1)
        assert (
            sum(run.descriptor is not None for each in store._locks.files for run in each.runs.values())
            <= limit
        )
        assert len(store.list(RunFilter())) == 400
        assert store._locks.files[0].knows_all_names


def test_few_runs_are_remembered(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_cache, "MAX_REMEMBERED_RUNS", 3)
    with closing(FileStore(path, level="process")) as store:
        for number in range(200):
            store.create(NewRun(f"r{number}", "g", [b"1"]))
        for _ in range(2):
            assert len(store.list(RunFilter())) == 200
        assert max(len(lock.runs) for lock in store._locks.files) <= 3


def test_a_store_without_references_closes_its_files(path: Path) -> None:
    store = FileStore(path)
    store.create(NewRun("r", "g", [b"1"]))
    lock = store._locks.lock_of(run_names.file_name_of("r"))
    descriptor = lock.descriptor
    assert descriptor is not None
    gone = weakref.ref(store)
    del store, lock
    gc.collect()
    assert gone() is None
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(descriptor)


def test_a_lock_that_is_never_given_back_is_named(path: Path) -> None:
    fcntl = pytest.importorskip("fcntl")
    with closing(FileStore(path, timeout=0.05)) as store:
        store.create(NewRun("r", "g", [b"1"]))
        lock = store._locks.lock_of(run_names.file_name_of("r"))
        with lock.path.open("r+b") as other:
            fcntl.flock(other, fcntl.LOCK_EX)
            with pytest.raises(StoreUnavailable, match=r"locked by another process for 0\.05 s"):
                store.post("r", "stop", b"")
        assert store.head("r").run_id == "r"


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="this system can't stop a process")
def test_a_process_stopped_inside_a_lock_keeps_no_other_from_reading(path: Path) -> None:
    """H1, H6: lists have all runs, each can be read, and the runs of other locks are claimed and advanced."""
    with closing(FileStore(path, timeout=3)) as store:
        for number in range(40):
            store.create(NewRun(f"r{number}", "g", [b"1"], due=0.0))
        run_ids = {f"r{number}" for number in range(40)}
        stopped_lock = store._locks.lock_of(run_names.file_name_of("r0"))
        blocked = {
            run_id
            for run_id in run_ids
            if store._locks.lock_of(run_names.file_name_of(run_id)) is stopped_lock
        }
        child = os.fork()
        if child == 0:
            try:
                with closing(FileStore(path)) as own:
                    stop_at_flush()
                    own.append([Commit("r0", 1, 1, [b"2"])])
            finally:
                os._exit(0)
        try:
            _, status = os.waitpid(child, os.WUNTRACED)
            assert os.WIFSTOPPED(status)
            free = run_ids - blocked
            for fresh in (False, True):
                with closing(FileStore(path, timeout=3) if fresh else store) as reader:
                    assert {head.run_id for head in reader.list(RunFilter())} == run_ids
                    assert {head.run_id for head in ready_runs(reader, ["g"], 100)} == free
                    assert reader.read("r0", first=1).records[0] == b"1"
                    for run_id in blocked - {"r0"}:
                        assert reader.read(run_id).records == [b"1"]
                        assert reader.head(run_id).sequence == 1
                    with pytest.raises(RunNotFound):
                        reader.head("none")
                    assert reader.expire(1e9) == 0
                    other = free.pop()
                    lease = reader.claim(other, "me", 60.0, instead_of=reader.head(other).fence)
                    landed(reader, Commit(other, lease.fence, reader.head(other).sequence, [b"x"]))
                    with pytest.raises(StoreUnavailable, match="locked by another process for 3 s"):
                        reader.claim("r0", "me", 60.0)
            os.kill(child, signal.SIGCONT)
            assert os.waitpid(child, 0) == (child, 0)
        finally:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
    with closing(FileStore(path)) as store:
        assert store.read("r0", first=1).records == [b"1", b"2"]
        assert len(ready_runs(store, ["g"], 100)) == 38, "two were claimed"


def stop_at_flush() -> None:
    """Have this process stop when it next flushes a file."""
    fsync = os.fsync

    def stop(descriptor: int) -> None:
        os.fsync = fsync
        os.kill(os.getpid(), signal.SIGSTOP)

    os.fsync = stop


def test_a_thread_that_waits_for_a_lock_keeps_no_other_from_reading(path: Path) -> None:
    """H1: of the same process, while another process holds the lock."""
    fcntl = pytest.importorskip("fcntl")
    with closing(FileStore(path, timeout=30)) as store:
        store.create(NewRun("r", "g", [b"1"]))
        lock = store._locks.lock_of(run_names.file_name_of("r"))
        with ThreadPoolExecutor() as pool, lock.path.open("r+b") as other:
            fcntl.flock(other, fcntl.LOCK_EX)
            writing = pool.submit(store.post, "r", "stop", b"")
            assert store.read("r").records == [b"1"]
            assert [head.posted for head in store.list(RunFilter())] == [0]
            assert not writing.done()
            fcntl.flock(other, fcntl.LOCK_UN)
            writing.result(timeout=60)
        assert store.head("r").posted == 1


def test_what_is_read_without_a_lock_is_of_one_moment(path: Path) -> None:
    """Invariant 1: while journals are replaced, heads change and frames are written, with no lock at all."""
    with closing(FileStore(path, level="process")) as store:
        store.create(NewRun("r", "g", [b"1 " * 200]))
        end = Event()

        def write() -> None:
            fence = 1
            for number in range(2, 600):
                landed(store, Commit("r", fence, number - 1, [b"%d " % number * 200], snapshot=number))
                if number % 3 == 0:
                    store.prune("r", number - 2)
                if number % 5 == 0:
                    fence = store.claim("r", f"at {number}", 60.0, instead_of=fence).fence
            end.set()

        def look(run: run_files.RunFiles) -> tuple[RunHead, list[bytes]]:
            head = run_cache.intact_head(run)
            return head, run.records(max(head.snapshot, 1), head.sequence)

        with ThreadPoolExecutor() as pool:
            writing = pool.submit(write)
            seen = []
            while not end.is_set() and not writing.done():
                with suppress(StoreUnavailable):  # it changes too fast
                    head, records = read_unlocked(path / "runs", "r", look)
                    assert records == [b"%d " % head.sequence * 200]
                    seen.append((head.sequence, head.fence))
            writing.result()
        assert seen == sorted(seen)
        assert len(set(seen)) > 5


@pytest.mark.parametrize("options", [{"level": "memory"}, {"level": "best"}, {"timeout": -1}])
def test_options_that_make_no_sense_are_refused(path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        FileStore(path, **options)
    with pytest.raises(UsageError, match="path of a directory"):
        FileStore("")
    assert not path.exists()


def test_a_directory_of_something_else_is_refused_and_left_alone(path: Path) -> None:
    path.mkdir()
    (path / "notes.txt").write_text("mine")
    with pytest.raises(StoreUnavailable, match=r"something else in it \('notes.txt'\)"):
        FileStore(path)
    assert [file.name for file in path.iterdir()] == ["notes.txt"]
    with pytest.raises(StoreUnavailable, match="a file, not a directory"):
        FileStore(path / "notes.txt")


def test_two_processes_can_prepare_a_directory_at_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one prepares it between our look for the format and our look at what else is there."""
    listdir = os.listdir

    def listed_late(where: Path) -> list[str]:
        monkeypatch.setattr("os.listdir", listdir)
        FileStore(path).close()
        return listdir(where)

    monkeypatch.setattr("os.listdir", listed_late)
    store = FileStore(path)
    assert os.listdir is listdir, "the store never looked"
    assert store.list(RunFilter()) == []
    store.close()


def test_a_newer_format_is_refused_and_left_alone(path: Path) -> None:
    """P10: an older Limpet says what to do."""
    FileStore(path).close()
    (path / "FORMAT").write_bytes(b"limpet files 5\n")
    with pytest.raises(StoreUnavailable, match=r"newer Limpet.* upgrade"):
        FileStore(path)


def test_what_killed_writers_left_is_swept_up_after_a_while(path: Path) -> None:
    FileStore(path).close()
    old, young = path / "runs" / ".a.tmp", path / "runs" / ".b.tmp"
    for file in (old, young):
        file.touch()
    os.utime(old, (1, 1))
    FileStore(path).close()
    assert [file.name for file in (path / "runs").iterdir()] == [".b.tmp"]


def test_journals_that_no_head_knows_are_removed_with_what_expires(path: Path) -> None:
    """P7: as killed writers leave them; those of a run whose head is damaged stay."""
    with closing(FileStore(path)) as store:
        for run_id in ("r", "s", "t"):
            store.create(NewRun(run_id, "g", [b"1"]))
        orphan = journal_of(path).with_name(journal_of(path).name.replace(".log", "0.log"))
        orphan.write_bytes(b"left")
        head_file_of(path, "s").unlink()
        head_file_of(path, "t").write_bytes(b"damaged")
    with closing(FileStore(path)) as store:
        assert store.expire(0) == 0
        assert not orphan.exists()
        assert sorted(file.name[0] for file in path.glob("runs/*.log")) == ["r", "t"]
        assert store.read("r").records == [b"1"]


def test_a_url_leads_to_the_directory(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """P5: from the root, or from the working directory; once open, it is the same store."""
    monkeypatch.chdir(path.parent)
    with closing(open_store(f"file://{path}?level=process&timeout=5")) as store:
        assert isinstance(store, FileStore)
        assert (store.path, store.abilities.level) == (path, "process")
        assert open_store("file://./runs?level=process") is store
        assert open_store(f"file:///{path}?level=process") is store
        assert repr(store) == f"FileStore({str(path)!r}, level='process')"
        assert str(store) == f"file://{path}"
    for wrong in ("file://", "file:///", "file://host/dir", "file://./runs?levle=disk"):
        with pytest.raises(UsageError):
            open_store(wrong)


def test_without_locks_of_the_system_it_is_not_shared(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The abilities say so; threads are kept apart all the same."""
    monkeypatch.setattr("limpet.stores.files.store.HAS_FILE_LOCKS", False)
    monkeypatch.setattr(locks, "HAS_FILE_LOCKS", False)
    with closing(FileStore(path)) as store:
        assert store.abilities.shared is False
        store.create(NewRun("r", "g", [b"1"]))
        landed(store, Commit("r", 1, 1, [b"2"]))
        assert [head.sequence for head in store.list(RunFilter())] == [2]
