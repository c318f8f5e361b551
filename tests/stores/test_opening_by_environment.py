"""Stores that the environment names, and stores that other packages bring."""

from __future__ import annotations

import logging
import os
import socket
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from limpet import (
    MemoryCheckpointer,
    MemoryStore,
    RunPaused,
    StateGraph,
    StoreUnavailable,
    UnknownName,
    UsageError,
    open_store,
    register_store,
)
from limpet.stores import opening, urls
from limpet.stores.files.store import FileStore
from limpet.stores.opening import BACKEND_VARIABLE as BACKEND
from limpet.stores.opening import DSN_VARIABLE as DSN
from limpet.stores.opening import STORE_VARIABLE as STORE
from limpet.stores.opening import Choice, environment_choice, register_store_scheme
from limpet.stores.sqlite.store import SQLiteStore
from support.graphs import asking_workflow


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setattr(opening, "_names", dict(opening._names))
    monkeypatch.setattr(opening, "_schemes", dict(opening._schemes))
    monkeypatch.chdir(tmp_path)
    yield
    for store in list(urls._open_stores.values()):
        store.close()


def test_env_is_the_store_that_the_environment_names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """P5: a URL or a name, for graphs, workflows and open_store."""
    monkeypatch.setenv(STORE, "sqlite:///named.db")
    store = open_store("env")
    assert isinstance(store, SQLiteStore)
    assert store.path == (tmp_path / "named.db").resolve()
    with pytest.raises(RunPaused):
        asking_workflow(store="env").execute({}, run_id="r")
    assert store.head("r").status == "paused"
    graph = StateGraph(checkpoint={"store": "env", "interval": 1}).add_node("a").set_entry_point("a")
    graph.set_finish_point("a").execute({}, run_id="g")
    assert store.head("g").status == "completed"
    register_store("mine", MemoryStore())
    monkeypatch.setenv(STORE, " mine ")
    assert open_store("env") is open_store("mine")


@pytest.mark.parametrize(
    ("backend", "dsn", "target"),
    [
        ("memory", "", "memory"),
        ("sqlite", "", "sqlite"),
        ("SQLite", "runs.db", "sqlite:///runs.db"),
        ("sqlite", "/var/a b?.db", "sqlite:////var/a%20b%3F.db"),
        ("sqlite", "sqlite:///runs.db?level=process", "sqlite:///runs.db?level=process"),
        ("file", "/var/runs", "file:///var/runs"),
        ("file", "runs", "file://./runs"),
        ("postgres", "postgresql://me:pw@host/db", "postgresql://me:pw@host/db"),
        ("postgres", "postgres://host/db", "postgres://host/db"),
        ("redis", "rediss://host", "rediss://host"),
        ("", "redis://host", "redis://host"),
        ("archive", "", "archive"),
        ("tide", "tide://host", "tide://host"),
    ],
)
def test_a_backend_and_its_dsn_name_a_store(
    monkeypatch: pytest.MonkeyPatch, backend: str, dsn: str, target: str
) -> None:
    """P5: also the name of a store, or of a scheme, that was registered."""
    register_store("archive", MemoryStore())
    register_store_scheme("tide", lambda url: MemoryStore())
    monkeypatch.setenv(BACKEND, backend)
    monkeypatch.setenv(DSN, dsn)
    assert environment_choice().target == target
    monkeypatch.setenv(STORE, "memory")
    assert environment_choice() == Choice("memory", STORE)


def test_the_stores_of_backends_are_where_they_should_be(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """P5."""
    monkeypatch.setenv(BACKEND, "sqlite")
    monkeypatch.setenv(DSN, str(tmp_path / "a b%.db"))
    store = open_store("env")
    assert isinstance(store, SQLiteStore)
    assert store.path == (tmp_path / "a b%.db").resolve()
    monkeypatch.setenv(BACKEND, "file")
    for place in ("runs", str(tmp_path / "runs")):
        monkeypatch.setenv(DSN, place)
        store = open_store("env")
        assert isinstance(store, FileStore)
        assert store.path.resolve() == (tmp_path / "runs").resolve()


@pytest.mark.parametrize(
    ("variables", "hint"),
    [
        ({}, f"set {STORE} to a URL or name"),
        ({STORE: "env"}, 'to name a store, and "env" doesn\'t'),
        ({BACKEND: "env"}, 'to name a store, and "env" doesn\'t'),
        ({STORE: "encrypted+env", "LIMPET_ENCRYPTION_KEY": "7" * 64}, 'to name a store, and "env" doesn\'t'),
        ({STORE: "tiered://?hot=memory://&cold=env"}, 'to name a store, and "env" doesn\'t'),
        ({BACKEND: "postgres"}, f"set {DSN} to where the postgres is, such as postgresql://"),
        ({BACKEND: "redis"}, f"set {DSN} to where the redis is, such as redis://"),
        ({BACKEND: "file"}, f"set {DSN}"),
        ({BACKEND: "memory", DSN: "secret"}, "leave WORKFLOW_CHECKPOINT_DSN out"),
        ({BACKEND: "redis", DSN: "postgresql://me:secret@host"}, "make them agree"),
        ({BACKEND: "postgres", DSN: "host=h password=secret"}, "such as postgresql://"),
        ({DSN: "host=h password=secret"}, "such as postgresql://"),
        ({STORE: "host=h password=secret"}, f"{STORE} isn't a URL, name or path"),
        ({STORE: "mysql://me:secret@host"}, "unknown store 'mysql://'"),
        ({STORE: "memroy"}, "unknown store 'memroy'"),
    ],
)
def test_what_makes_no_sense_is_reported_without_passwords(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], hint: str
) -> None:
    """P5."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises((UsageError, UnknownName)) as caught:
        open_store("env")
    messages = [str(caught.value), *getattr(caught.value, "__notes__", ())]
    assert hint in messages[0]
    assert not any("secret" in line for line in messages)


def test_what_names_no_store_uses_the_one_of_limpet_store(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """P5: and the log says so. The other variables aren't asked, since they may be another program's."""
    monkeypatch.setenv(BACKEND, "sqlite")
    assert asking_workflow().compiled().client is None
    register_store("mine", MemoryStore())
    monkeypatch.setenv(STORE, "mine")
    with caplog.at_level(logging.INFO, "limpet.stores"), pytest.raises(RunPaused):
        asking_workflow().execute({}, run_id="r")
    assert caplog.messages == [f"{STORE} names the store: {open_store('mine')!r}"]
    assert asking_workflow().resume("r", "yes").results == {"ask": "yes"}
    graph = StateGraph(name="g").add_node("a").set_entry_point("a").set_finish_point("a")
    graph.compile(interrupt_before=["a"], interval=2)
    assert graph.compiled().client.store is open_store("mine")


def test_what_names_a_store_is_not_swayed(monkeypatch: pytest.MonkeyPatch) -> None:
    """P5: whichever way it does."""
    monkeypatch.setenv(STORE, "nonsense://")
    store = MemoryStore()
    assert asking_workflow(store=store).compiled().client.store is store
    graph = StateGraph(name="g").add_node("a").set_entry_point("a").set_finish_point("a")
    assert graph.compile(checkpointer=MemoryCheckpointer()).compiled().checkpointer is not None
    inner = StateGraph(name="outer").add_node("in", graph).set_entry_point("in").set_finish_point("in")
    assert inner.compile(store=store).execute({}) == {}
    with pytest.raises(UnknownName) as caught:
        asking_workflow().compiled()
    assert caught.value.__notes__ == [f"The store was named by {STORE}."]


def test_a_server_that_cannot_be_reached_is_reported_with_the_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """P5: what to start, and who asked for it."""
    if find_spec("redis") is None and "CI" not in os.environ:
        pytest.skip("the package redis isn't installed")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        monkeypatch.setenv(BACKEND, "redis")
        monkeypatch.setenv(DSN, f"redis://:secret@127.0.0.1:{taken.getsockname()[1]}?timeout=0.1")
        with pytest.raises(StoreUnavailable, match=r"127\.0\.0\.1") as caught:
            open_store("env")
    assert caught.value.__notes__ == [f"The store was named by {BACKEND}."]
    assert "secret" not in str(caught.value)


def test_a_missing_extra_is_reported_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """P5."""
    for name in [each for each in sys.modules if each.partition(".")[0] == "redis"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "redis", None)
    monkeypatch.setenv(STORE, "redis://localhost:1/7")
    with pytest.raises(StoreUnavailable, match=r"pip install 'limpet\[redis\]'"):
        open_store("env")


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed package that brings stores."""
    place = tmp_path / "site"
    (place / "tidal-1.0.dist-info").mkdir(parents=True)
    (place / "tidal-1.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: tidal\nVersion: 1.0\n"
    )
    (place / "tidal-1.0.dist-info" / "entry_points.txt").write_text(
        "[limpet.stores]\ntidal = tidal_stores:make\nneedy = tidal_needy:make\nodd = tidal_stores:ODD\n"
    )
    (place / "tidal_stores.py").write_text(
        "from limpet import MemoryStore\nODD = 7\n\n\ndef make(url):\n    store = MemoryStore()\n"
        "    store.url = url\n    return store\n"
    )
    (place / "tidal_needy.py").write_text("import a_driver_that_is_missing\n")
    monkeypatch.syspath_prepend(str(place))


@pytest.mark.usefixtures("package")
def test_an_installed_package_may_bring_stores(monkeypatch: pytest.MonkeyPatch) -> None:
    """P5: by URL and by name, without registering them."""
    store: Any = open_store("tidal://me:pw@host/place?pool=4")
    assert (store.url.scheme, store.url.host, store.url.query) == ("tidal", "me:pw@host", {"pool": "4"})
    named: Any = open_store("tidal")
    assert (named.url.text, named.url.query) == ("tidal://", {})
    assert open_store("tidal") is named
    monkeypatch.setenv(BACKEND, "tidal")
    assert open_store("env") is named
    with pytest.raises(
        StoreUnavailable, match=r"'needy' of tidal can't be loaded.*install a_driver_that_is_missing"
    ):
        open_store("needy://host")
    with pytest.raises(UsageError, match="'odd' of tidal is 7"):
        open_store("odd")
    with pytest.raises(UnknownName, match=r"needy, odd,.* tidal"):
        open_store("tidall")


def test_packages_are_not_asked_for_what_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """P5, D9: looking through them takes its time."""
    monkeypatch.setattr(opening, "_plugin", None)
    monkeypatch.setitem(sys.modules, "importlib.metadata", None)
    for target in ("memory", "memory://", "runs.db", "sqlite:///runs.db", "file://./runs"):
        open_store(target)
