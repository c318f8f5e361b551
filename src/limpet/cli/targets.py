"""Finding a graph: in a YAML file, in a Python file, or in a module."""

from __future__ import annotations

import os
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, cast

from limpet.defaults import LEASE
from limpet.engine.leases.lease_client import client_for
from limpet.engine.sessions.session import CompiledGraph
from limpet.engine.supervisor.catalog import find_graph
from limpet.errors import DefinitionError, LimpetError
from limpet.graph_methods import GraphMethods
from limpet.graphs.state import State
from limpet.journal.store import Store
from limpet.stores.user_stores.checkpoint_files import CheckpointFiles

Graph = GraphMethods[Any]


class OnStore(GraphMethods[State]):
    """A graph as it runs on a store of the command's choosing."""

    def __init__(self, graph: Graph, store: Store) -> None:
        self.graph, self._store = graph, store
        self.name = graph.name

    def compiled(self) -> CompiledGraph:
        """The graph's own settings, but for where it is saved, and that it is kept when it is done."""
        compiled = self.graph.compiled()._replace(preserve=True)
        if compiled.client is not None and compiled.client.store is self._store:
            return compiled
        client = client_for(self._store, compiled.client.ttl if compiled.client is not None else LEASE)
        files = compiled.checkpointer if isinstance(compiled.checkpointer, CheckpointFiles) else None
        return compiled._replace(client=client, interval=compiled.interval or 1, checkpointer=files, own=True)

    @property
    def checkpoint_named(self) -> str | os.PathLike[str] | None:
        """The checkpoint that the file of a graph says its runs go on from."""
        return getattr(self.graph, "checkpoint_named", None)


def load_target(target: str) -> Graph:
    """The graph that a target names: `file.yaml`, `file.py:attribute` or `package.module:attribute`.

    The code of the target is imported, with the working directory on the path. What is there may be a graph, or a
    function that makes one. Raises `DefinitionError`.
    """
    if target.endswith((".yaml", ".yml")):
        from limpet.yaml_files.loading import load

        _on_path(Path.cwd())
        _on_path(Path(target).parent)
        return cast(Graph, load(target))
    path, _, attribute = target.rpartition(":")
    if not path or not attribute:
        raise DefinitionError(
            f"{target!r} is no graph: give file.yaml, file.py:attribute or module:attribute"
        )
    _on_path(Path.cwd())
    try:
        return cast(Graph, _from_file(Path(path), attribute) if path.endswith(".py") else find_graph(target))
    except LimpetError:
        raise
    except Exception as problem:
        message = f"{target!r} can't be loaded: {type(problem).__name__}: {problem}"
        raise DefinitionError(message) from problem


def _on_path(folder: Path) -> None:
    """Let modules be imported from a directory, as `python` does for that of a script."""
    path = str(folder.resolve())
    if path not in sys.path and not ("" in sys.path and path == str(Path.cwd())):
        sys.path.insert(0, path)


def _from_file(path: Path, attribute: str) -> Any:
    if not path.is_file():
        raise DefinitionError(f"there is no file {path}")
    _on_path(path.parent)
    name = path.stem
    if name not in sys.modules:
        spec = spec_from_file_location(name, path)
        if spec is None or spec.loader is None:
            raise DefinitionError(f"{path} is no Python file")
        module = sys.modules[name] = module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    return find_graph(f"{name}:{attribute}")
