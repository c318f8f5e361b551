"""Loading graphs from files: `load`, `loads` and, for those who only want to look, `check`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from limpet.errors import DeclarationError, UsageError
from limpet.stores.memory import MemoryStore
from limpet.yaml_files.build.builder import Inside, Site
from limpet.yaml_files.build.code import Code, Importing, Sketching
from limpet.yaml_files.build.graph import DeclaredGraph, GraphBuilding
from limpet.yaml_files.document import Value, read_document
from limpet.yaml_files.grammar.keys import DECLARATION
from limpet.yaml_files.grammar.mistakes import Mistakes

if TYPE_CHECKING:
    from limpet.yaml_files.build.workflow import DeclaredWorkflow, WorkflowBuilding

Declared: TypeAlias = "DeclaredGraph | DeclaredWorkflow"
TEXT = "<text>"
"""What a declaration is called that came from no file."""


def load(
    path: str | os.PathLike[str], *, checkpoint: str | os.PathLike[str] | None = None, **settings: Any
) -> Declared:
    """The graph or workflow that a YAML file declares, compiled and ready to run.

    Functions and modules that the file names are imported now, and nothing of the file is run; so load only files
    whose author you would let write code. `checkpoint` lets runs go on from a checkpoint file instead of starting
    anew, as `config.checkpoint` in the file does. `settings` are those of `compile`, and go before the file's.

    Raises `DeclarationError` that lists all mistakes, each with its line and column; `UsageError` if there is no such
    file.
    """
    file = _path(path)
    return _loaded(_text_of(file), str(path), file, checkpoint, settings)


load_from_file = load


def loads(
    text: str, *, name: str = TEXT, checkpoint: str | os.PathLike[str] | None = None, **settings: Any
) -> Declared:
    """The same for a text. `name` is what mistakes call it by; files that it names are looked for where you are."""
    if not isinstance(text, str):
        raise UsageError(
            f"loads() takes the text of a declaration, not {type(text).__name__}; load() takes a path"
        )
    return _loaded(text, name, None, checkpoint, settings)


def check(path: str | os.PathLike[str]) -> Declared:
    """The graph that a file declares, to be looked at: nothing is imported, no store opened, and it can't be run.

    Its nodes, edges, tasks and schema are those of the file; functions are stand-ins. Raises what `load` does, but
    for mistakes in code that isn't looked at.
    """
    file = _path(path)
    return check_text(_text_of(file), str(path), file)


def check_text(text: str, name: str = TEXT, file: Path | None = None) -> Declared:
    """The same for a text."""
    value, mistakes = _read(text, name)
    graph, building = _defined(value, mistakes, Sketching(), file)
    before, after = building.interrupts()
    if not mistakes and isinstance(graph, DeclaredGraph):
        stops: dict[str, Any] = {"interrupt_before": before, "interrupt_after": after}
        building.attempt(value.at("config"), lambda: graph.compile(store=MemoryStore(), **stops))
    mistakes.raise_any()
    return graph


def build_file(path: Path, around: Site) -> Inside:
    """A graph inside of another one that has a file of its own. Raises `DeclarationError` for its mistakes."""
    text = _text_of(path)
    if path.resolve() in around.within:
        raise UsageError(f"{path.name} contains itself")
    value, mistakes = _read(text, str(path))
    graph, building = _defined(value, mistakes, Sketching() if mistakes else around.code, path, around.within)
    mistakes.raise_any()
    return Inside(graph, *building.interrupts())


def build_here(value: Value, site: Site) -> Inside:
    """A graph inside of another one that is declared right there."""
    building = _building(value, site)
    graph = building.define(value.text("name") or building.kind)
    return Inside(graph, *building.interrupts())


def _loaded(
    text: str, name: str, file: Path | None, checkpoint: Any, settings: Mapping[str, Any]
) -> Declared:
    value, mistakes = _read(text, name)
    code: Code = Sketching() if mistakes else Importing()
    graph, building = _defined(value, mistakes, code, file)
    mistakes.raise_any()
    building.compile(graph, settings)  # type: ignore[arg-type]  # each builds its own kind
    mistakes.raise_any()
    graph.checkpoint_named = checkpoint or building.settings(("checkpoint",)).get("checkpoint")
    return graph


def _read(text: str, name: str) -> tuple[Value, Mistakes]:
    """A text as values, and what the tables find wrong with it."""
    mistakes = Mistakes(name)
    value = read_document(text, name)
    DECLARATION.check(value, "a declaration", mistakes)
    if not isinstance(value.data, dict):
        mistakes.raise_any()
    return value, mistakes


def _defined(
    value: Value, mistakes: Mistakes, code: Code, file: Path | None, within: tuple[Path, ...] = ()
) -> tuple[Declared, GraphBuilding | WorkflowBuilding]:
    directory = Path() if file is None else file.parent
    around = within if file is None else (*within, file.resolve())
    building = _building(value, Site(mistakes, code, directory, around, partial=len(mistakes) > 0))
    name = value.text("name") or (file.stem if file is not None else building.kind)
    return building.define(name), building


def _building(value: Value, site: Site) -> GraphBuilding | WorkflowBuilding:
    if value.get("tasks") is None:
        return GraphBuilding(value, site)
    from limpet.yaml_files.build.workflow import WorkflowBuilding

    return WorkflowBuilding(value, site)


def _path(path: str | os.PathLike[str]) -> Path:
    if not isinstance(path, (str, os.PathLike)) or not str(path):
        raise UsageError(f"a declaration is in a file, named by its path, not {path!r}")
    return Path(path)


def _text_of(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as problem:
        reason = f"this isn't text in UTF-8: byte {problem.start} is {problem.object[problem.start]:#x}"
        raise DeclarationError(str(file), [(1, 1, reason)]) from problem
    except FileNotFoundError as problem:
        raise UsageError(f"there is no file {str(file)!r} (looked in {file.absolute().parent})") from problem
    except (OSError, ValueError) as problem:
        said = problem.strerror if isinstance(problem, OSError) else problem
        raise UsageError(f"{str(file)!r} can't be read: {said}") from problem
