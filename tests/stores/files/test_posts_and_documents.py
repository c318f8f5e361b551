"""What the file store keeps beside journals: posts, output and documents; and the directories of earlier versions."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import pytest

from limpet.errors import DamagedDocument, DamagedRecord
from limpet.journal.encoding.codec import encode
from limpet.journal.run_filter import RunFilter
from limpet.journal.store import FAILED, Commit, Labels, NewRun, Output, Post
from limpet.stores.files import documents, inbox_file, locks
from limpet.stores.files.store import FileStore

DATA = Path(__file__).parent.parent.parent / "data"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


def files_of(path: Path, suffix: str) -> list[Path]:
    return sorted((path / "runs").glob(f"*{suffix}"))


def landed(store: FileStore, *commits: Commit) -> None:
    assert store.append(commits) == [None] * len(commits)


def test_a_request_to_cancel_in_an_older_directory_becomes_a_post(path: Path) -> None:
    """D10: it is taken in once, and its key stays known."""
    shutil.copytree(DATA / "files_1_asked", path)
    with closing(FileStore(path)) as store:
        assert {head.run_id: head.posted for head in store.list(RunFilter())} == {
            "asked to stop": 1,
            "waits": 0,
            "complete": 0,
            "gone": 0,
        }
        assert store.head("waits").labels == Labels()
        asked = Post(1, "cancel", encode({"kind": "cancel"}))
        assert list(store.inbox("asked to stop")) == [asked]
        assert not store.post("asked to stop", "cancel", b"again")
        assert store.post("asked to stop", "k", b"body")
        assert list(store.inbox("asked to stop")) == [asked, Post(2, "k", b"body")]
        landed(store, Commit("asked to stop", 1, 1, [b"2"], takes=2))
        assert not store.post("asked to stop", "cancel", b"again")


@pytest.mark.parametrize("version", [1, 2, 3])
def test_an_older_directory_is_marked_when_it_is_opened(path: Path, version: int) -> None:
    """D10: an earlier version, which can't read what is written from then on, refuses it."""
    shutil.copytree(DATA / f"files_{version}", path)
    assert (path / "FORMAT").read_bytes() == f"limpet files {version}\n".encode()
    for _ in range(2):
        with closing(FileStore(path)) as store:
            assert store.head("waits").posted == 0
        assert (path / "FORMAT").read_bytes() == b"limpet files 4\n"


def test_a_run_without_posts_or_output_has_no_files_for_them(path: Path) -> None:
    """H2: nothing is paid for what isn't used."""
    with closing(FileStore(path)) as store:
        store.create(NewRun("r", "g", [b"1"]))
        assert (list(store.inbox("r")), list(store.output("r")), store.list_documents()) == ([], [], [])
        assert sorted(file.suffix for file in (path / "runs").iterdir()) == [".head", ".log"]
        assert not (path / "documents").exists()


def test_bodies_that_were_taken_in_take_no_space(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """H10: the inbox is rewritten without them, and the keys stay known."""
    monkeypatch.setattr(inbox_file, "MIN_REWRITE_SIZE", 5000)
    with closing(FileStore(path, level="process")) as store, closing(FileStore(path)) as other:
        store.create(NewRun("r", "g", [b"1"]))
        sizes = []
        for number in range(1, 41):
            poster = store if number % 3 else other
            assert poster.post("r", str(number), b"x" * 1000)
            assert list(other.inbox("r")) == [Post(number, str(number), b"x" * 1000)]
            landed(other, Commit("r", 1, number, [b"2"], takes=number))
            (inbox,) = files_of(path, ".posts")
            sizes.append(inbox.stat().st_size)
        assert max(sizes) < 12_000
        for number in range(1, 41):
            assert not store.post("r", str(number), b"")
            assert not other.post("r", str(number), b"")


def test_what_a_killed_poster_left_does_not_count(path: Path) -> None:
    """H10: its post wasn't acknowledged; the next one gets its number."""
    with closing(FileStore(path)) as store:
        store.create(NewRun("r", "g", [b"1"]))
        store.post("r", "first", b"one")
        (inbox,) = files_of(path, ".posts")
        before = (inbox.read_bytes(), files_of(path, ".head")[0].read_bytes())
        store.post("r", "second", b"two" * 100)
        whole = inbox.read_bytes()
    for size in range(len(before[0]), len(whole) + 1, 7):
        inbox.write_bytes(whole[:size])
        files_of(path, ".head")[0].write_bytes(before[1])
        with closing(FileStore(path)) as store:
            assert list(store.inbox("r")) == [Post(1, "first", b"one")]
            assert store.post("r", "other", b"2")
            assert list(store.inbox("r")) == [Post(1, "first", b"one"), Post(2, "other", b"2")]


def test_every_changed_byte_of_an_inbox_is_noticed(path: Path) -> None:
    """H5: no post is given as something else, and the run's journal is read as before."""
    with closing(FileStore(path, level="process")) as store:
        store.create(NewRun("r", "g", [b"1"]))
        store.post("r", "first", b"one")
        store.post("r", "second", b"two")
    (inbox,) = files_of(path, ".posts")
    whole = inbox.read_bytes()
    for place in range(len(whole)):
        inbox.write_bytes(whole[:place] + bytes([whole[place] ^ 16]) + whole[place + 1 :])
        with closing(FileStore(path, level="process")) as store:
            for call in (lambda: store.inbox("r"), lambda: store.post("r", "third", b"")):
                with pytest.raises(DamagedRecord, match=r"post [12] can't be read"):
                    call()
            assert store.read("r").records == [b"1"]
    inbox.unlink()
    with closing(FileStore(path)) as store:
        with pytest.raises(DamagedRecord, match=r"post 1 .* doesn't exist any more"):
            store.inbox("r")
        store.delete("r")


def test_output_that_a_killed_writer_left_unfinished_does_not_count(path: Path) -> None:
    """H12: what was added before stays, and numbers go on."""
    with closing(FileStore(path)) as store:
        store.create(NewRun("r", "g", [b"1"]))
        store.add_output("r", 1, [b"a", b"b"], 10)
        (file,) = files_of(path, ".output")
        before = len(file.read_bytes())
        store.add_output("r", 1, [b"c" * 50, b"d"], 10)
        whole = file.read_bytes()
    for size in range(before, len(whole)):
        file.write_bytes(whole[:size])
        with closing(FileStore(path)) as store:
            assert store.head("r").output == 2
            assert store.add_output("r", 1, [b"other"], 10) == 3
            assert [item.body for item in store.output("r")] == [b"a", b"b", b"other"]


def test_output_that_is_lost_with_the_power_is_missing_and_nothing_else_is(path: Path) -> None:
    """H12: the head may know of more than the file has. Numbers go on from there."""
    with closing(FileStore(path)) as store:
        store.create(NewRun("r", "g", [b"1"]))
        store.add_output("r", 1, [b"a", b"b"], 10)
    files_of(path, ".output")[0].unlink()
    with closing(FileStore(path)) as store:
        assert (store.head("r").output, list(store.output("r"))) == (2, [])
        assert store.add_output("r", 1, [b"c"], 10) == 3
        assert list(store.output("r")) == [Output(3, b"c")]


def test_another_process_sees_output_at_once(path: Path) -> None:
    """H12: although the head file isn't written again."""
    with closing(FileStore(path)) as store, closing(FileStore(path)) as other:
        store.create(NewRun("r", "g", [b"1"]))
        for number in range(1, 6):
            store.add_output("r", 1, [b"%d" % number], 3)
            assert other.head("r").output == number
            assert [head.output for head in other.heads(["r"]) if head is not None] == [number]
            assert [head.output for head in other.list(RunFilter())] == [number]
            assert other.output("r")[-1] == Output(number, b"%d" % number)


def test_files_that_belong_to_no_run_are_removed(path: Path) -> None:
    """P7: a deletion that was killed half way leaves none for ever, and gives a new run nothing."""
    with closing(FileStore(path)) as store:
        for run_id in ("r", "kept"):
            store.create(NewRun(run_id, "g", [b"1"], status=FAILED))
            store.post(run_id, "k", b"body")
            store.add_output(run_id, 1, [b"a"], 10)
    (head,) = (path / "runs").glob("r.*.head")
    head.unlink()
    with closing(FileStore(path)) as store:
        store.create(NewRun("r", "g", [b"1"]))
        assert (list(store.inbox("r")), list(store.output("r"))) == ([], [])
        assert store.post("r", "k", b"new")
        assert store.add_output("r", 1, [b"b"], 10) == 1
        assert list(store.output("r")) == [Output(1, b"b")]
        store.delete("r")
        assert [file.name.split(".")[0] for file in files_of(path, "")] == ["kept"] * 4
        for suffix in (".posts", ".output"):
            shutil.copy(files_of(path, suffix)[0], path / "runs" / f"stray.0.1{suffix}")
        store.expire(1e9)
        assert [file.name.split(".")[0] for file in files_of(path, "")] == ["kept"] * 4
        assert list(store.inbox("kept")) == [Post(1, "k", b"body")]


@pytest.mark.parametrize("damage", [lambda data: b"", lambda data: data[:-1], lambda data: b"x" + data[1:]])
def test_a_damaged_document_is_reported_and_hides_no_other(
    path: Path, damage: Callable[[bytes], bytes]
) -> None:
    """H5."""
    with closing(FileStore(path)) as store:
        for name in ("a", "b"):
            assert store.put_document(name, b"body", 0, due=1.0) is not None
        (file,) = (path / "documents").glob("a.*")
        file.write_bytes(damage(file.read_bytes()))
        with pytest.raises(DamagedDocument, match="document 'a'"):
            store.get_document("a")
        assert [each.name for each in store.list_documents()] == ["b"]
        assert [each.name for each in store.list_documents(due=True)] == ["b"]


@pytest.mark.parametrize("content", [None, b"", b"garbage"])
def test_a_lost_number_of_versions_gives_none_twice(path: Path, content: bytes | None) -> None:
    """H17: of the documents that are left."""
    with closing(FileStore(path)) as store:
        version = store.put_document("a", b"body", 0)
        assert version is not None
        number = path / "documents" / "VERSION"
        if content is None:
            number.unlink()
        else:
            number.write_bytes(content)
        newer = store.put_document("b", b"body", 0)
        assert newer is not None
        assert newer > version
        again = store.put_document("a", b"body", version)
        assert again is not None
        assert again > newer


def test_documents_that_others_change_are_listed_as_they_are(path: Path) -> None:
    """H17: although those that were read before aren't read again."""
    with closing(FileStore(path)) as store, closing(FileStore(path)) as other:
        version = store.put_document("a", b"0", 0)
        for number in range(1, 6):
            assert [each.body for each in other.list_documents()] == [b"%d" % (number - 1)]
            assert version is not None
            version = store.put_document("a", b"%d" % number, version)
        assert version is not None
        assert store.delete_document("a", version)
        assert other.list_documents() == []


@pytest.fixture
def read_files(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files of documents that were read, each with what of its name can be read."""
    read: list[str] = []
    read_whole = documents.read_whole

    def reading(path: str) -> bytes:
        read.append(Path(path).name.partition(".")[0])
        return read_whole(path)

    monkeypatch.setattr(documents, "read_whole", reading)
    return read


def test_a_list_reads_the_documents_that_have_changed_and_no_others(
    path: Path, read_files: list[str]
) -> None:
    """H18: a line may be long, and the first in it are asked for often."""
    with closing(FileStore(path, level="process")) as store, closing(FileStore(path)) as other:
        versions = {}
        for number in range(50):
            for limit in "ab":
                name = f"line/{limit}/{number:02}"
                versions[name] = store.put_document(name, b"", 0) or 0
        read_files.clear()

        def first(count: int) -> list[str]:
            return [each.name for each in other.list_documents("line/b/", limit=count)]

        assert first(2) == ["line/b/00", "line/b/01"]
        assert sorted(read_files) == [f"line+b+{number:02}" for number in range(50)]
        read_files.clear()
        assert first(2) == ["line/b/00", "line/b/01"]
        assert read_files == []
        assert store.delete_document("line/b/00", versions["line/b/00"])
        assert store.put_document("line/b/01", b"", versions["line/b/01"], due=1.0)
        assert store.put_document("line/b/000", b"", 0)
        assert store.put_document("line/a/00", b"", versions["line/a/00"])
        read_files.clear()
        assert first(2) == ["line/b/000", "line/b/01"]
        assert sorted(read_files) == ["line+b+000", "line+b+01"]
        assert [each.name for each in other.list_documents("line/b/", due=True)] == ["line/b/01"]
        assert len(other.list_documents()) == 100


def test_a_list_reads_no_documents_that_have_another_prefix(path: Path, read_files: list[str]) -> None:
    """H18: a limit's own document is listed far more often than its line, which may be long."""
    with closing(FileStore(path, level="process")) as store, closing(FileStore(path)) as other:
        for name in (
            *("limit/a", "limit/a b"),
            *(f"limit line/a{more}/1" for more in ("", " b", "_b", "/b")),
        ):
            assert store.put_document(name, b"", 0)
        read_files.clear()
        assert [each.name for each in other.list_documents("limit/")] == ["limit/a", "limit/a b"]
        assert sorted(read_files) == ["limit+a", "limit+a_b"]
        read_files.clear()
        assert [each.name for each in other.list_documents("limit line/a/")] == [
            "limit line/a/1",
            "limit line/a/b/1",
        ]
        assert sorted(read_files) == ["limit_line+a+1", "limit_line+a+b+1"]


OLDER_DOCUMENTS = ["limit line/slow/000000000001-x", "limit/a b", "limit/slow", "plain", "schedule/nightly"]


def test_documents_of_an_older_directory_are_there_under_their_names(path: Path) -> None:
    """P10: their files were called otherwise. One that is damaged is left as it is."""
    shutil.copytree(DATA / "files_3", path)
    (path / "documents" / "broken.document").write_bytes(b"?")
    for _ in range(2):
        with closing(FileStore(path)) as store:
            assert [each.name for each in store.list_documents()] == OLDER_DOCUMENTS
            for name in OLDER_DOCUMENTS:
                found = store.get_document(name)
                assert found is not None
                assert (found.body, found.due) == (name.encode(), 5.0)
    names = {file.name.partition(".")[0] for file in (path / "documents").glob("*.document")}
    expected = {"limit_line+slow+000000000001-x", "limit+a_b", "limit+slow", "plain", "schedule+nightly"}
    assert names == {*expected, "broken"}
    with closing(FileStore(path)) as store:
        found = store.get_document("limit/slow")
        assert found is not None
        assert store.put_document("limit/slow", b"new", found.version)
        assert store.delete_document("plain", 4)
        left = [each.name for each in store.list_documents()]
    assert left == [name for name in OLDER_DOCUMENTS if name != "plain"]


@pytest.mark.parametrize("renamed", range(6))
def test_an_older_directory_whose_opening_was_interrupted_is_opened_again(
    path: Path, monkeypatch: pytest.MonkeyPatch, renamed: int
) -> None:
    """P10: a process that is killed while it renames documents leaves the rest to the next."""
    shutil.copytree(DATA / "files_3", path)
    rename = documents.os.rename
    left = renamed

    def interrupted(*arguments: Path) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise KeyboardInterrupt
        rename(*arguments)

    with monkeypatch.context() as patch, suppress(KeyboardInterrupt):
        patch.setattr(documents.os, "rename", interrupted)
        FileStore(path).close()
    with closing(FileStore(path)) as store:
        assert [each.name for each in store.list_documents()] == OLDER_DOCUMENTS
    assert (path / "FORMAT").read_bytes() == b"limpet files 4\n"


def test_more_changed_documents_than_are_remembered_are_listed_as_they_are(path: Path) -> None:
    """H17, H18: then all are read again."""
    with closing(FileStore(path, level="process")) as store, closing(FileStore(path)) as other:
        first = store.put_document("first", b"", 0) or 0
        assert [each.name for each in other.list_documents()] == ["first"]
        version = 0
        for number in range(locks.REMEMBERED_CHANGES + 1):
            version = store.put_document("second", b"%d" % number, version) or 0
        assert store.delete_document("first", first)
        (found,) = other.list_documents()
        assert (found.name, found.body) == ("second", b"%d" % locks.REMEMBERED_CHANGES)


@pytest.mark.skipif(not locks.HAS_FILE_LOCKS, reason="no other process can use the directory")
def test_documents_are_listed_while_another_process_does_not_release_their_lock(path: Path) -> None:
    """H17: as when it was stopped."""
    import fcntl

    with closing(FileStore(path, level="process", timeout=0.1)) as store:
        for name in ("a/1", "a/2", "b"):
            store.put_document(name, b"", 0, due=1.0)
        with open(path / "locks" / "documents") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            assert [each.name for each in store.list_documents("a/")] == ["a/1", "a/2"]
            assert [each.name for each in store.list_documents(due=True, limit=1)] == ["a/1"]
        assert [each.name for each in store.list_documents("a/")] == ["a/1", "a/2"]
