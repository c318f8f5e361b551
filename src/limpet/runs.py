"""Looking after the runs in a store, for whoever has the store and not the code of their graphs."""

from __future__ import annotations

import os
from typing import Any

from limpet.engine.leases.lease_client import client_for
from limpet.engine.operations import carriage, records
from limpet.journal.verify import Verification
from limpet.stores.opening import open_store


def verify_run(store: Any, run_id: str) -> Verification:
    """What of a stored run is damaged, and what can still be had. Changes nothing; damage doesn't raise.

    `store` is whatever `open_store` takes. Raises `RunNotFound`.
    """
    return records.verify(client_for(open_store(store)), run_id)


def export_run(store: Any, run_id: str, path: str | os.PathLike[str]) -> None:
    """Write a run with its whole journal to one file, in place of what was there; `import_run` reads it.

    What is in the file isn't encrypted. Raises `RunNotFound`, `Conflict` while somebody advances the run,
    `DamagedRecord`, and `StoreUnavailable` if the file can't be written.
    """
    carriage.export_run(client_for(open_store(store)), run_id, path)


def import_run(store: Any, path: str | os.PathLike[str], run_id: str | None = None) -> str:
    """Put an exported run into a store, under its own id or another, and return the id.

    All of it is stored, or nothing: `RunExists` if the id is taken, `StoreError` for a file that is damaged.
    """
    return carriage.import_run(client_for(open_store(store)), path, run_id)
