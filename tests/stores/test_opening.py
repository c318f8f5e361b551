"""From names, URLs and paths to stores."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from limpet import StateGraph
from limpet.errors import StoreUnavailable, UnknownName, UsageError
from limpet.journal.run_filter import RunFilter
from limpet.journal.store import NewRun, Store
from limpet.stores import MemoryStore, open_store, opening, register_store, urls
from limpet.stores.composite.encrypted import EncryptedStore
from limpet.stores.composite.keys import Keys
from limpet.stores.composite.tiered import TieredStore
from limpet.stores.opening import StoreURL, register_store_scheme
from limpet.stores.sqlite.store import SQLiteStore
from limpet.stores.user_stores.checkpointer import MemoryCheckpointer
from support.checkpoint_stores import InMemoryCheckpointStore
from support.wrapped_stores import PassesOn


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setattr(opening, "_names", dict(opening._names))
    monkeypatch.setattr(opening, "_schemes", dict(opening._schemes))
    monkeypatch.chdir(tmp_path)
    yield
    for store in list(urls._open_stores.values()):
        store.close()


def test_a_store_object_is_taken_as_it_is() -> None:
    """G10."""
    store = MemoryStore()
    assert open_store(store) is store


def test_an_object_that_passes_all_calls_on_to_a_store_is_one() -> None:
    """G10: in every version of Python, and wherever a store is given."""
    store: Any = PassesOn(MemoryStore())
    assert open_store(store) is store
    register_store("wrapped", store)
    assert open_store("wrapped") is store
    keys = Keys({"k": bytes(32)})
    for kept in (store, EncryptedStore(store, keys), TieredStore(hot=PassesOn(MemoryStore()), cold=store)):
        graph = StateGraph(name="g").add_node("n", run=lambda: {"n": 1}).set_entry_point("n")
        assert graph.set_finish_point("n").compile(store=kept).execute({}) == {"n": 1}
    with pytest.raises(UsageError, match="must be a Store object"):
        open_store(PassesOn(object()))  # type: ignore[arg-type]


def test_an_object_that_passes_all_calls_on_to_a_users_store_is_one() -> None:
    """G10, P11: one with five methods, or a checkpointer with two."""
    store: Any = PassesOn(InMemoryCheckpointStore())
    checkpointer: Any = PassesOn(MemoryCheckpointer())
    for place in ({"store": store}, {"checkpointer": checkpointer}):
        graph = StateGraph(name="g").add_node("n", run=lambda: {"n": 1}).set_entry_point("n")
        assert graph.set_finish_point("n").compile(**place).execute({}) == {"n": 1}
    with pytest.raises(UsageError, match="which makes it a checkpointer"):
        open_store(checkpointer)


def test_memory_is_one_store_for_the_process() -> None:
    """G10."""
    store = open_store("memory")
    assert isinstance(store, MemoryStore)
    assert open_store("memory") is store
    store.close()
    assert open_store("memory") is not store
    assert open_store("memory").list(RunFilter()) == []


def test_a_memory_url_is_a_new_store_each_time() -> None:
    assert open_store("memory://") is not open_store("memory://")


def test_sqlite_is_a_file_in_the_working_directory(tmp_path: Path) -> None:
    """G10."""
    store = open_store("sqlite")
    assert isinstance(store, SQLiteStore)
    assert (store.path, store.abilities.level) == ((tmp_path / "limpet.db").resolve(), "disk")
    assert open_store("sqlite") is store


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("sqlite:///runs.db", "runs.db"),
        ("sqlite:///runs", "runs"),
        ("sqlite:///my%20runs%3F.db", "my runs?.db"),
        ("sqlite:///a#b.db", "a#b.db"),
        ("SQLite:///runs.db", "runs.db"),
        ("sqlite:////{}/runs.db", "runs.db"),
        ("runs.db", "runs.db"),
        ("./runs.sqlite", "runs.sqlite"),
        ("RUNS.SQLITE3", "RUNS.SQLITE3"),
        ("{}/runs.db", "runs.db"),
    ],
)
def test_urls_and_paths_name_sqlite_files(tmp_path: Path, text: str, name: str) -> None:
    """P5: chosen by URL."""
    store = open_store(text.replace("{}", tmp_path.as_posix()))
    assert isinstance(store, SQLiteStore)
    assert store.path == (tmp_path / name).resolve()
    store.create(NewRun("r", "g", [b"1"]))
    assert (tmp_path / name).exists()


def test_a_path_object_names_a_sqlite_file(tmp_path: Path) -> None:
    store = open_store(tmp_path / "runs.db")
    assert isinstance(store, SQLiteStore)
    assert store.path == (tmp_path / "runs.db").resolve()


def test_a_query_sets_level_and_timeout() -> None:
    store = open_store("sqlite:///runs.db?level=process&timeout=0.5")
    assert isinstance(store, SQLiteStore)
    assert store.abilities.level == "process"
    assert store._connections._timeout == 0.5


def test_a_file_is_opened_once_while_it_is_open(tmp_path: Path) -> None:
    """However it is written; but at each level on its own."""
    store = open_store("sqlite:///runs.db")
    assert open_store(tmp_path / "runs.db") is store
    assert open_store(f"sqlite:////{tmp_path.as_posix()}/../{tmp_path.name}/runs.db?level=disk") is store
    other = open_store("sqlite:///runs.db?level=process")
    assert other is not store
    store.close()
    again = open_store("runs.db")
    assert again is not store
    again.create(NewRun("r", "g", [b"1"]))
    assert other.head("r").run_id == "r"


def test_threads_that_open_at_once_get_one_store() -> None:
    """G10: the registry is thread-safe."""
    made: list[MemoryStore] = []

    def make() -> Store:
        made.append(MemoryStore())
        return made[-1]

    register_store("mine", make)
    together = threading.Barrier(8)

    def work(target: str) -> Store:
        together.wait(30)
        return open_store(target)

    with ThreadPoolExecutor(8) as pool:
        stores = list(pool.map(work, ["mine", "memory", "sqlite", "runs.db"] * 2))
    assert len(made) == 1
    for first, second in zip(stores[:4], stores[4:], strict=True):
        assert first is second


@pytest.mark.parametrize("target", ["nonsense", "", "runs.txt", "mysql://me:secret@host/db", "://", "runs/"])
def test_an_unknown_name_is_a_clear_error(target: str) -> None:
    """G10: it says what there is, and repeats no password."""
    with pytest.raises(
        UnknownName, match=r"unknown store .*memory, memory://, .*sqlite, sqlite://"
    ) as caught:
        open_store(target)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("target", "hint"),
    [
        ("sqlite:///runs.db?levle=disk", "no option 'levle'; it has level, timeout"),
        ("sqlite:///runs.db?level=best", "not 'best'"),
        ("sqlite:///runs.db?timeout=soon", "can't have timeout='soon'"),
        ("sqlite:///runs.db?timeout=nan", "timeout"),
        ("sqlite:///runs.db?nonsense", "can't be read"),
        ("sqlite://runs.db", "three slashes"),
        ("sqlite://", "three slashes"),
        ("sqlite:///:memory:", '"memory"'),
        ("sqlite:///runs\0.db", "null character"),
        ("sqlite:///runs%00.db", "null character"),
        ("file:///runs\0", "null character"),
        ("runs\0.db", "null character"),
        ("memory://?level=disk", "no option"),
        ("memory:///place", "no path"),
        (None, "not builtins.NoneType"),
        (MemoryStore, "not builtins.type"),
        (42, "not builtins.int"),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path: Path, target: object, hint: str) -> None:
    with pytest.raises(UsageError, match=hint):
        open_store(target)
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_scheme_is_refused_with_how_to_add_it() -> None:
    """G10: what the error advises is what works."""
    with pytest.raises(UnknownName, match=r"register_store\('attic', …\)"):
        open_store("attic")
    with pytest.raises(UnknownName, match=r"register_store_scheme\('attic', …\)"):
        open_store("attic://place")


def test_a_file_that_cannot_be_opened_is_not_remembered(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable):
        open_store("sqlite:///later/runs.db")
    (tmp_path / "later").mkdir()
    assert open_store("sqlite:///later/runs.db").list(RunFilter()) == []


def test_a_store_can_be_registered_by_name() -> None:
    """G10: an object, or a function that is called when the name is first used."""
    store = MemoryStore()
    register_store("mine", store)
    register_store("lazy", MemoryStore)
    assert open_store("mine") is store
    assert open_store("lazy") is open_store("lazy")
    register_store("mine", lambda: MemoryStore())
    assert open_store("mine") is not store
    with pytest.raises(UsageError):
        register_store("bad", "sqlite")
    with pytest.raises(UsageError):
        register_store("a://b", store)


def test_a_scheme_can_be_registered() -> None:
    """P5: stores of others are chosen by URL like ours."""
    seen: list[StoreURL] = []

    def factory(url: StoreURL) -> Store:
        seen.append(url)
        assert url.options(pool=int) == {"pool": 4}
        return MemoryStore()

    register_store_scheme("my+db", factory)
    target = "my+db://me:secret@host:99/a%20b?pool=4"
    assert isinstance(open_store(target), MemoryStore)
    (url,) = seen
    assert (url.scheme, url.host, url.path, url.text) == ("my+db", "me:secret@host:99", "/a b", target)
    with pytest.raises(UsageError):
        open_store("my+db://host?pool=many")
    with pytest.raises(UsageError):
        register_store_scheme("", factory)


def test_the_stores_are_light_to_import() -> None:
    """`import limpet` stays light: no sqlite3 until a SQLite store is opened, and never pytest."""
    code = "import sys, limpet.stores; print(*({'sqlite3', 'pytest'} & {*sys.modules}))"
    environment = {**os.environ, "PYTHONPATH": str(Path(opening.__file__).parents[2])}
    shown = subprocess.check_output([sys.executable, "-c", code], env=environment, text=True)
    assert shown.strip() == ""
