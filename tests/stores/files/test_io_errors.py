"""The file store while the system fails: at every call of it, once or from then on, whatever changes a run."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from limpet.errors import RunNotFound, StoreUnavailable
from limpet.journal.run_filter import RunFilter
from limpet.journal.store import COMPLETED, Commit, NewRun, Output, Post, Store, Tail
from limpet.stores.files import inbox_file, run_files
from limpet.stores.files.store import FileStore

CALLS = (
    "open",
    "write",
    "pwrite",
    "lseek",
    "fsync",
    "ftruncate",
    "replace",
    "link",
    "unlink",
    "fstat",
    "read",
)
OPERATIONS: dict[str, Callable[[Store], Any]] = {
    "create": lambda store: store.create(NewRun("new", "g", [b"1" * 600, b"2"], holder="a")),
    "append": lambda store: landed(store, Commit("r", 1, 4, [b"5" * 600])),
    "append with a head": lambda store: landed(
        store, Commit("r", 1, 4, [b"5" * 600], snapshot=5, note=b"note")
    ),
    "append to two runs": lambda store: landed(store, Commit("r", 1, 4, [b"5"]), Commit("t", 1, 2, [b"3"])),
    "complete": lambda store: landed(store, Commit("r", 1, 4, [b"5"], status=COMPLETED)),
    "purge": lambda store: landed(store, Commit("r", 1, 4, [b"5"], status=COMPLETED, purge=True)),
    "claim": lambda store: store.claim("r", "b", 60.0, instead_of=1),
    "first post": lambda store: store.post("r", "stop", b"body"),
    "post": lambda store: store.post("s", "second", b"body"),
    "rewriting post": lambda store: store.post("t", "second", b"body"),
    "output": lambda store: store.add_output("s", 1, [b"c"], 10),
    "shortened output": lambda store: store.add_output("s", 1, [b"c"], 1),
    "prune": lambda store: store.prune("r", 3),
    "rewrite": lambda store: store.prune("r", 4),
    "delete": lambda store: store.delete("r"),
}


def landed(store: Store, *commits: Commit) -> None:
    for outcome in store.append(commits):
        if outcome is not None:
            raise outcome


@pytest.mark.parametrize("forever", [False, True], ids=["once", "from then on"])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_an_error_of_the_system_leaves_a_run_as_it_was_or_as_it_should_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str, forever: bool
) -> None:
    """G9: the same for this process and for others; and the run, or its id, can be used."""
    monkeypatch.setattr(run_files, "MIN_REWRITE_SIZE", 1500)
    monkeypatch.setattr(inbox_file, "MIN_REWRITE_SIZE", 1500)
    change = OPERATIONS[operation]
    before, after = contents_before_and_after(tmp_path, change)
    failures = 0
    for place in range(100):
        path = tmp_path / str(place)
        with closing(prepared(path)) as store:
            with failing_calls(monkeypatch, place, forever) as failed:
                was_refused = is_refused(lambda: change(store))
            if not failed:
                break
            failures += 1
            found = contents(store)
            with closing(opened(path)) as other:
                assert contents(other) == found, f"{failed}: another process sees something else"
            assert was_refused or found == after, failed
            if forever:  # what was written to one of two runs couldn't be removed
                assert all(
                    tail in (before.get(run_id), after.get(run_id)) for run_id, tail in found.items()
                ), failed
            else:
                assert found in (before, after), failed
            if found == before:
                change(store)
                assert contents(store) == after, failed
            check_usable(store, path)
    assert failures > 3


@pytest.mark.parametrize("forever", [False, True], ids=["once", "from then on"])
def test_a_store_whose_directory_could_not_be_prepared_can_be_opened_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forever: bool
) -> None:
    """G9: whatever was made of it by then."""
    failures = 0
    for place in range(100):
        path = tmp_path / str(place)
        with failing_calls(monkeypatch, place, forever) as failed:
            is_refused(partial(opened, path))
        if not failed:
            break
        failures += 1
        with closing(prepared(path)) as store:
            check_usable(store, path)
    assert failures > 3


def is_refused(call: Callable[[], Any]) -> bool:
    try:
        call()
    except StoreUnavailable:
        return True
    return False


def opened(path: Path) -> FileStore:
    return FileStore(path, clock=lambda: 1000.0)


def prepared(path: Path) -> FileStore:
    """A store with three runs. "r" has a snapshot at record 4, "s" a post and output, "t" a large post taken in."""
    store = opened(path)
    store.create(NewRun("r", "g", [b"1" * 900]))
    for number in (2, 3):
        landed(store, Commit("r", 1, number - 1, [b"%d" % number * 900]))
    landed(store, Commit("r", 1, 3, [b"4" * 900], snapshot=4))
    store.create(NewRun("s", "g", [b"1"]))
    store.post("s", "first", b"body")
    store.add_output("s", 1, [b"a", b"b"], 10)
    store.create(NewRun("t", "g", [b"1"]))
    store.post("t", "first", b"x" * 2000)
    landed(store, Commit("t", 1, 1, [b"2"], takes=1))
    return store


class Contents(NamedTuple):
    tail: Tail
    inbox: list[Post]
    output: list[Output]


def contents(store: Store) -> dict[str, Contents]:
    return {
        run_id: Contents(store.read(run_id, first=1), [*store.inbox(run_id)], [*store.output(run_id)])
        for run_id in [head.run_id for head in store.list(RunFilter())]
    }


def contents_before_and_after(tmp_path: Path, change: Callable[[Store], Any]) -> tuple[Any, Any]:
    with closing(prepared(tmp_path / "sound")) as store:
        before = contents(store)
        change(store)
        return before, contents(store)


def check_usable(store: Store, path: Path) -> None:
    """Claim each run and append to it, here; and look at it from elsewhere."""
    for run_id, found in contents(store).items():
        head = found.tail.head
        lease = store.claim(run_id, "afterwards", 60.0, instead_of=head.fence)
        landed(store, Commit(run_id, lease.fence, head.sequence, [b"afterwards"], ignores_posts=True))
        if head.status != COMPLETED:
            assert store.post(run_id, "afterwards", b"body")
        assert store.add_output(run_id, lease.fence, [b"afterwards"], 10) == head.output + 1
        with closing(opened(path)) as other:
            assert other.read(run_id, first=head.sequence + 1).records == [b"afterwards"]
            assert other.inbox(run_id) == store.inbox(run_id)
            assert [item.body for item in other.output(run_id)][-1:] == [b"afterwards"]
    with pytest.raises(RunNotFound):
        store.head("none")


@contextmanager
def failing_calls(monkeypatch: pytest.MonkeyPatch, place: int, forever: bool) -> Iterator[list[str]]:
    """Have call number `place` fail, or all from it on; gives the names of those that did."""
    failed: list[str] = []
    count = 0

    def wrapped(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def fail(*args: Any, **options: Any) -> Any:
            nonlocal count
            count += 1
            if count - 1 == place or (forever and count > place):
                failed.append(name)
                raise OSError(errno.EIO, "Input/output error")
            return call(*args, **options)

        return fail

    with monkeypatch.context() as patched:
        for name in CALLS:
            patched.setattr(os, name, wrapped(name, getattr(os, name)))
        yield failed
