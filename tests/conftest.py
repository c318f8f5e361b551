"""What all tests share: servers that are started when one is asked for, and an environment that names no store."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from limpet import MemoryStore, open_store
from limpet.engine.node_context.call_scope import CURRENT
from limpet.journal.store import Store
from limpet.stores import opening, urls
from limpet.testing import pytest_plugin as plugin
from support.graphs import Via
from support.postgres import Server, serve
from support.redis_servers import redis_server

pytest_plugins = ["pytester"]

NAMES = ("LIMPET_STORE", "LIMPET_ENCRYPTION_KEY", "LIMPET_ENCRYPTION_OLD_KEYS")
for name in (*NAMES, "WORKFLOW_CHECKPOINT_BACKEND", "WORKFLOW_CHECKPOINT_DSN", "COLUMNS"):
    os.environ.pop(name, None)  # for the processes that tests start, too


def pytest_addoption(pluginmanager: pytest.PytestPluginManager) -> None:
    """Have the plugin that ships with the library, also where the library isn't installed."""
    if not pluginmanager.has_plugin("limpet"):
        pluginmanager.register(plugin, "limpet")


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """A PostgreSQL server of this test process."""
    yield from serve()


@pytest.fixture
def database(postgres: Server) -> Iterator[str]:
    """The URL of an empty database of it."""
    name = postgres.new_database()
    yield postgres.of(name)
    postgres.drop(name)


@contextmanager
def url_of(kind: str, request: pytest.FixtureRequest, folder: Path) -> Iterator[str]:
    """The URL of an empty store of this kind that processes can share."""
    match kind:
        case "sqlite":
            yield f"sqlite:///{folder}/runs.db"
        case "files":
            yield f"file://{folder}/runs"
        case "postgres":
            yield request.getfixturevalue("database")
        case _:
            with redis_server(folder) as server:
                before = list(urls._open_stores.values())
                yield server.url
                # While the server runs, and not when they are garbage: a socket that is found first would warn.
                for store in list(urls._open_stores.values()):
                    if store not in before:
                        store.close()


@pytest.fixture(params=["sqlite", "files", "postgres", "redis"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a store, of each kind that processes can share."""
    with url_of(request.param, request, tmp_path) as url:
        yield url


@pytest.fixture(params=["memory", "sqlite", "files", "postgres", "redis"])
def any_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """A store, of each kind."""
    if request.param == "memory":
        yield MemoryStore()
        return
    with url_of(request.param, request, tmp_path) as url:
        yield open_store(url)


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """SIGINT raises `KeyboardInterrupt` here, and reaches processes that are started here.

    The process that started the tests may ignore it, as shells have it for what they run in the background; then all
    processes below do.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(autouse=True)
def no_node_is_running() -> None:
    """Tests that call nodes by themselves, without a driver, leave the last task behind in their thread."""
    CURRENT.set(None)


@pytest.fixture(autouse=True)
def names_of_stores_are_forgotten() -> Iterator[None]:
    """Tests, and examples of the documentation, register stores; the next test doesn't know them."""
    registries: list[dict[str, Any]] = [opening._names, opening._schemes]  # type: ignore[list-item]
    before = [dict(registry) for registry in registries]
    yield
    for registry, known in zip(registries, before, strict=True):
        registry.clear()
        registry.update(known)


@pytest.fixture(params=["sync", "async"])
def via(request: pytest.FixtureRequest) -> Via:
    """Which API runs graphs."""
    return Via(request.param)


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Where runs are kept."""
    return new_store(request.param, tmp_path)


@pytest.fixture(params=["no store", "memory", "sqlite"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    """Where runs are kept, if anywhere, as an option of `compile`."""
    return {} if request.param == "no store" else {"store": new_store(request.param, tmp_path)}


def new_store(kind: str, folder: Path) -> Any:
    return MemoryStore() if kind == "memory" else f"sqlite:///{folder}/runs.db"
