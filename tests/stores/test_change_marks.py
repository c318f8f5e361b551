"""H19: stores tell quickly whether any of their runs has changed, whichever process changed it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from limpet import open_store
from limpet.journal.optional_calls import MarksChanges, provides
from limpet.journal.store import PAUSED, Commit, Lease, NewRun, Store
from limpet.stores.composite.encrypted import EncryptedStore, Keys
from limpet.stores.files.store import FileStore
from limpet.stores.sqlite.store import SQLiteStore


def marking(store: Store) -> Callable[[], object]:
    if not provides(store, MarksChanges):
        pytest.skip("this store notifies instead")
    return store.change_mark


def new_run(run_id: str, holder: str | None = None) -> NewRun:
    return NewRun(run_id, "graph", [b"first"], holder=holder, due=0.0)


def lease_of(store: Store, run_id: str) -> Lease:
    lease = store.create(new_run(run_id, "me"))
    assert lease is not None
    return lease


def test_each_change_of_a_run_gives_another_mark(any_store: Store) -> None:
    """H19: created with a holder and without, a status, a claim, a release, a post, a deletion."""
    mark = marking(any_store)
    held = lease_of(any_store, "held")
    seen = [mark()]

    def changed() -> bool:
        seen.append(mark())
        return seen[-1] != seen[-2]

    any_store.create(new_run("free"))
    assert changed()
    assert any_store.append([Commit("held", held.fence, 1, [b"second"], status=PAUSED)]) == [None]
    assert changed()
    claimed = any_store.claim("free", "me", 10.0)
    assert changed()
    any_store.release(claimed)
    any_store.claim("free", "me", 10.0)
    assert changed()
    any_store.post("held", "key", b"body")
    any_store.claim("held", "me", 10.0)
    assert changed()
    other = lease_of(any_store, "other")
    assert changed()
    assert any_store.append([Commit("other", other.fence, 1, [b"second"], status=PAUSED)]) == [None]
    any_store.delete("other")
    assert changed()


@pytest.mark.parametrize("kind", ["claim", "release", "post", "status", "delete"])
@pytest.mark.parametrize("with_document", [False, True], ids=["alone", "with-document"])
def test_a_single_change_counts(any_store: Store, kind: str, with_document: bool) -> None:
    """H19: also when the document of a worker changed at the same time, as when a worker ends."""
    mark = marking(any_store)
    held = lease_of(any_store, "held")
    any_store.create(new_run("free"))
    version = any_store.put_document("worker:a", b"1", 0)
    assert version is not None
    before = mark()
    change_once(any_store, kind, held)
    if with_document:
        assert any_store.put_document("worker:a", b"2", version) is not None
    assert mark() != before


def change_once(store: Store, kind: str, held: Lease) -> None:
    if kind == "claim":
        store.claim("free", "me", 10.0)
    elif kind == "release":
        store.release(held)
    elif kind == "post":
        assert store.post("held", "key", b"body")
    elif kind == "status":
        assert store.append([Commit("held", held.fence, 1, [b"second"], status=PAUSED)]) == [None]
    else:
        store.delete("free")


def test_a_mark_stays_as_long_as_nothing_happens(any_store: Store) -> None:
    """H19: also while runs are looked at, and while workers renew their documents."""
    mark = marking(any_store)
    any_store.create(new_run("r"))
    version = any_store.put_document("worker:a", b"1", 0)
    assert version is not None
    mark()
    version = any_store.put_document("worker:a", b"2", version)
    assert version is not None
    first = mark()
    any_store.head("r")
    assert any_store.put_document("worker:a", b"3", version) is not None
    assert mark() == first
    assert mark() == first


@pytest.mark.parametrize("kind", ["sqlite", "files"])
def test_changes_of_other_processes_count(kind: str, tmp_path: Path) -> None:
    """H19: a store that was opened twice shares nothing but the files."""
    urls = {"sqlite": f"sqlite:///{tmp_path}/runs.db", "files": f"file://{tmp_path}/runs"}
    with closing(open_store(urls[kind])) as one, closing(another(urls[kind])) as other:
        mark = marking(one)
        before = mark()
        other.create(new_run("r"))
        assert mark() != before


def another(url: str) -> Store:
    """The store once more, as another process would open it."""
    kind, _, path = url.partition("://")
    if kind == "file":
        return FileStore(path)
    return SQLiteStore(path[1:])


def test_a_wrapped_store_marks_changes_if_the_store_in_it_does(tmp_path: Path) -> None:
    """H19: as with encryption."""
    marked = EncryptedStore(SQLiteStore(tmp_path / "runs.db"), Keys({"k": b"k" * 32}))
    with closing(marked):
        mark = marking(marked)
        before = mark()
        marked.create(new_run("r"))
        assert mark() != before
