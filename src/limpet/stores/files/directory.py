"""The directory of a file store: what makes it one, what is swept from it, and what its errors mean."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from limpet.errors import StoreUnavailable
from limpet.stores.atomic_files import TEMPORARY_SUFFIX, create_file, explain, make_directory

FORMAT = b"limpet files 1\n"
MARKER = "FORMAT"


def prepare(path: Path, flush: bool) -> None:
    """Make the directory a store, unless it is one. Raises `StoreUnavailable` if it is something else."""
    make_directory(path, flush=flush)
    marker = path / MARKER
    if not marker.exists():
        others = [name for name in os.listdir(path) if not name.startswith(".") and name != MARKER]
        if others:
            raise StoreUnavailable(
                f"{path} has something else in it ({sorted(others)[0]!r}): give Limpet a directory of its own"
            )
        with suppress(FileExistsError):
            create_file(marker, FORMAT, flush=flush)
    found = marker.read_bytes()
    if found != FORMAT:
        raise StoreUnavailable(
            f"{path} was written by a newer Limpet, or isn't a store ({MARKER} says {found[:40]!r}): "
            "upgrade limpet, or use another directory"
        )
    for name in ("locks", "runs"):
        make_directory(path / name, flush=flush)


def sweep(runs: Path) -> None:
    """Remove temporary files that killed writers left long ago."""
    with suppress(OSError):
        for entry in os.scandir(runs):
            if entry.name.endswith(TEMPORARY_SUFFIX) and entry.stat().st_mtime < time.time() - 3600:
                os.unlink(entry.path)


@contextmanager
def explaining(path: Path) -> Iterator[None]:
    """Turn errors of the system into `StoreUnavailable` that names the file, or else `path`."""
    try:
        yield
    except OSError as error:
        raise explain(error, Path(error.filename) if error.filename else path, "used") from error
