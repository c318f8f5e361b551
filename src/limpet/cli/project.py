"""What a command works on: the store, and the graphs that it may run.

They are named on the command line, else by the environment (`LIMPET_STORE`, `LIMPET_GRAPHS`), else in the
`[tool.limpet]` table of the `pyproject.toml` here or above. Never by what is stored: a run says what its graph
is called, not where its code is.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from argparse import Namespace
from functools import lru_cache
from pathlib import Path
from typing import Any

from limpet.cli.targets import Graph, load_target
from limpet.engine.leases.lease_client import LeaseClient, client_for
from limpet.errors import StoreUnavailable, UsageError, did_you_mean
from limpet.journal.store import Store

GRAPHS = "LIMPET_GRAPHS"
FALLBACK = "limpet.db"
"""The SQLite file in the working directory that is used where nobody names a store."""


def store_of(given: Namespace, graph: Graph | None = None, there: bool = False) -> Store:
    """The store that a command works on: where nobody has named one, that of its graph, or of those known here.

    `there` says that it must exist already. Raises `UsageError` where none is named, `StoreUnavailable`.
    """
    from limpet.stores.opening import open_default_store, open_store

    if given.store:
        return open_store(_there(given.store) if there else given.store)
    opened = open_default_store()
    if opened is not None:
        return opened
    if (named := _settings().get("store")) is not None:
        return open_store(_from(_settings()["folder"], _text(named, "store")))
    for known in [graph] if graph is not None else graphs_of(given):
        if (client := known.compiled().client) is not None and client.store.abilities.shared:
            return client.store
    if graph is not None or Path(FALLBACK).exists():
        return open_store(f"sqlite:///{FALLBACK}")
    raise UsageError(
        'which store? Give --store sqlite:///runs.db, set LIMPET_STORE, or write store = "…" under '
        "[tool.limpet] in pyproject.toml"
    )


def client_of(given: Namespace, there: bool = True) -> LeaseClient:
    """The same, ready to be used, for a command that looks at what is there."""
    return client_for(store_of(given, there=there))


def graph_of(given: Namespace, name: str) -> Graph:
    """The graph of this name, among those that are known here. Raises `UsageError`."""
    graphs = {graph.name: graph for graph in graphs_of(given)}
    if name in graphs:
        return graphs[name]
    known = f"known: {', '.join(graphs)}{did_you_mean(name, graphs)}" if graphs else "none is known here"
    raise UsageError(
        f"where is the code of graph {name!r}? ({known}) Give --graph module:attribute or --graph file.yaml, "
        f"set {GRAPHS}, or write graphs = […] under [tool.limpet] in pyproject.toml"
    )


def graphs_of(given: Namespace) -> list[Graph]:
    """The graphs that are known here."""
    return [load_target(target) for target in targets_of(given)]


def targets_of(given: Namespace) -> list[str]:
    """Where the code of the graphs is that are known here."""
    if given.graph:
        return list(given.graph)
    if named := os.environ.get(GRAPHS):
        return [target.strip() for target in named.split(",") if target.strip()]
    listed = _settings().get("graphs", [])
    if not isinstance(listed, list):
        raise UsageError(f"[tool.limpet] in pyproject.toml: graphs is a list of str, not {listed!r}")
    return [_text(target, "graphs") for target in listed]


def command(words: str, given: Namespace, *more: str) -> str:
    """A command to type next, with what was said on this command line of the store and the graphs."""
    parts = [*program(), *words.split(), *more]
    if given.store:
        parts += ["--store", given.store]
    for target in given.graph or ():
        parts += ["--graph", target]
    return shlex.join(parts)


def program() -> list[str]:
    """How this program is called here, so that what it prints can be typed."""
    name = sys.argv[0]
    if Path(name).stem != "limpet":
        return [_shortest("python", sys.executable), "-m", "limpet"]
    return [_shortest("limpet", name) if os.path.dirname(name) else name]


def _shortest(name: str, path: str) -> str:
    found = shutil.which(name)
    return name if found is not None and os.path.realpath(found) == os.path.realpath(path) else path


@lru_cache(maxsize=1)
def _settings() -> dict[str, Any]:
    """The `[tool.limpet]` table of the nearest pyproject.toml."""
    import tomllib

    here = Path.cwd()
    for folder in (here, *here.parents):
        path = folder / "pyproject.toml"
        if path.is_file():
            try:
                found = tomllib.loads(path.read_text(encoding="utf-8")).get("tool", {}).get("limpet", {})
            except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as problem:
                raise UsageError(f"can't read {path}: {problem}") from problem
            return {**found, "folder": folder}
    return {}


def _from(folder: Path, target: str) -> str:
    """A store that a file names: a relative path begins where the file is."""
    path = _path_in(target)
    return target if path is None or path.is_absolute() else f"sqlite:///{folder / path}"


def _there(target: str) -> str:
    """A store that must be there: a file that was only misspelt isn't made. Raises `StoreUnavailable`."""
    path = _path_in(target)
    if path is not None and not path.exists():
        raise StoreUnavailable(f"there is no file {path}, so no run is in it")
    return target


def _path_in(target: str) -> Path | None:
    """The SQLite file that a target names, if it does."""
    if target.startswith("sqlite:///"):
        return Path(target.removeprefix("sqlite:///").partition("?")[0])
    return Path(target) if target.endswith((".db", ".sqlite")) and "://" not in target else None


def _text(value: Any, what: str) -> str:
    if not isinstance(value, str):
        raise UsageError(f"[tool.limpet] in pyproject.toml: {what} is text, not {value!r}")
    return value
