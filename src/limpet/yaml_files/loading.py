"""Loading graphs from files: `load` and `loads` build graphs that run, `check` only reads and checks them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import UTC
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from limpet.engine.schedules.cron_times import CronTimes
from limpet.engine.schedules.timetable import checked_interval, checked_zone, make_timetable
from limpet.engine.sessions.start import check_priority
from limpet.errors import DeclarationError, UsageError
from limpet.graphs.names import checked_name
from limpet.stores.memory import MemoryStore
from limpet.yaml_files.build.builder import BuildContext, DeclarationBuilder, NestedGraph
from limpet.yaml_files.build.child_graphs import ChildGraph, ChildGraphs
from limpet.yaml_files.build.graph import DeclaredGraph, GraphBuilder
from limpet.yaml_files.build.node_code import CodeSource, ImportedCode, StandInCode
from limpet.yaml_files.document import Value, read_document
from limpet.yaml_files.grammar.keys import DECLARATION
from limpet.yaml_files.grammar.mistakes import Mistakes

if TYPE_CHECKING:
    from limpet.yaml_files.build.workflow import DeclaredWorkflow, WorkflowBuilder

Declared: TypeAlias = "DeclaredGraph | DeclaredWorkflow"
NAME_OF_TEXT = "<text>"
"""What messages call a declaration that isn't in a file."""


def load(
    path: str | os.PathLike[str], *, checkpoint: str | os.PathLike[str] | None = None, **settings: Any
) -> Declared:
    """The graph or workflow that a YAML file declares, compiled and ready to run.

    Functions and modules that the file names are imported now; nothing of the file is run. Load only files whose
    author you would let write code. With `checkpoint`, runs resume from a checkpoint file instead of starting at the
    beginning, as with `config.checkpoint` in the file. `settings` are those of `compile`, and replace those of the
    file.

    Raises `DeclarationError` that lists all mistakes, each with its line and column; `UsageError` if the file doesn't
    exist.
    """
    file = _checked_path(path)
    return _load_text(_read_text(file), str(path), file, checkpoint, settings)


load_from_file = load


def loads(
    text: str, *, name: str = NAME_OF_TEXT, checkpoint: str | os.PathLike[str] | None = None, **settings: Any
) -> Declared:
    """The graph or workflow that a text declares, as `load` gives it for a file.

    Messages call the text by its `name`. Paths in it are relative to the current directory.
    """
    if not isinstance(text, str):
        raise UsageError(
            f"loads() takes the text of a declaration, not {type(text).__name__}; load() takes a path"
        )
    return _load_text(text, name, None, checkpoint, settings)


def check(path: str | os.PathLike[str]) -> Declared:
    """The graph that a file declares, for inspection only: nothing is imported, no store is opened, it can't be run.

    Its nodes, edges, tasks and schema are those of the file; its functions are stand-ins. Raises what `load` raises,
    except for mistakes in code, which isn't imported.
    """
    file = _checked_path(path)
    return check_text(_read_text(file), str(path), file)


def check_text(text: str, name: str = NAME_OF_TEXT, file: Path | None = None) -> Declared:
    """The graph that a text declares, as `check` gives it for a file."""
    value, mistakes = _read(text, name)
    children = ChildGraphs()
    children.add(_key_of(file), _name_of(value, file))
    graph, builder = _define(value, mistakes, StandInCode(), file, children)
    mistakes.raise_any()
    # Only compiling finds out whether interrupts name nodes, and whether settings fit. Its store isn't opened.
    builder.compile(graph, {"store": MemoryStore()})  # type: ignore[arg-type]  # each builds its own kind
    mistakes.raise_any()
    graph.declared_store = builder.settings(("store",)).get("store")
    return graph


def build_file(path: Path, around: BuildContext) -> NestedGraph:
    """A graph inside another one that has a file of its own. Raises `DeclarationError` for its mistakes."""
    text = _read_text(path)
    if path.resolve() in around.outer_files:
        raise UsageError(f"{path.name} contains itself")
    value, mistakes = _read(text, str(path))
    code = StandInCode() if mistakes else around.code
    graph, builder = _define(
        value, mistakes, code, path, around.children, around.outer_files, around.resources
    )
    mistakes.raise_any()
    return NestedGraph(graph, *builder.interrupts())


def build_child_file(path: Path, around: BuildContext) -> ChildGraph:
    """A graph whose runs nodes start, in a file of its own: built once, however many nodes start it.

    It may be the file that starts it, or one whose runs start it. Raises `DeclarationError` for its mistakes.
    """
    text = _read_text(path)  # refuses what can't be a path
    key = _key_of(path)
    known = around.children.get(key)
    if known is not None:
        return known
    value, mistakes = _read(text, str(path))
    code = StandInCode() if mistakes else around.code
    child = around.children.add(key, _name_of(value, path))
    graph, builder = _define(value, mistakes, code, path, around.children)
    mistakes.raise_any()
    if isinstance(code, ImportedCode):
        # Its runs are in the store of the run that starts them, so its own isn't opened.
        builder.compile(graph, {"store": MemoryStore()})  # type: ignore[arg-type]  # each builds its own kind
        mistakes.raise_any()
    child.graph = graph
    return child


def build_inline(value: Value, around: BuildContext) -> NestedGraph:
    """A graph inside another one that is declared inline. Its mistakes are noted with those of the file."""
    builder = _builder(value, around)
    if value.get("schedules") is not None:
        around.mistakes.note(
            value.keys["schedules"], "a graph inside another one has no runs, so it has no schedules"
        )
    graph = builder.define(value.text("name") or builder.kind)
    return NestedGraph(graph, *builder.interrupts())


def _load_text(
    text: str, name: str, file: Path | None, checkpoint: Any, settings: Mapping[str, Any]
) -> Declared:
    value, mistakes = _read(text, name)
    # A file with mistakes is still built, to find more of them, but nothing is imported for it.
    code: CodeSource = StandInCode() if mistakes else ImportedCode()
    given = frozenset(settings.get("resources") or ())
    children = ChildGraphs()
    root = children.add(_key_of(file), _name_of(value, file))
    graph, builder = _define(value, mistakes, code, file, children, resources=given)
    mistakes.raise_any()
    builder.compile(graph, settings)  # type: ignore[arg-type]  # each builds its own kind
    mistakes.raise_any()
    root.graph = graph
    children.make_known()
    graph.default_checkpoint = checkpoint or builder.settings(("checkpoint",)).get("checkpoint")
    return graph


def _read(text: str, name: str) -> tuple[Value, Mistakes]:
    """The values of a text, and the mistakes that the tables find in it."""
    mistakes = Mistakes(name)
    value = read_document(text, name)
    DECLARATION.check(value, "a declaration", mistakes)
    if not isinstance(value.data, dict):
        mistakes.raise_any()
    return value, mistakes


def _define(
    value: Value,
    mistakes: Mistakes,
    code: CodeSource,
    file: Path | None,
    children: ChildGraphs,
    outer_files: tuple[Path, ...] = (),
    resources: frozenset[str] = frozenset(),
) -> tuple[Declared, GraphBuilder | WorkflowBuilder]:
    directory = Path()
    if file is not None:
        directory = file.parent
        outer_files = (*outer_files, file.resolve())
    is_partial = len(mistakes) > 0
    context = BuildContext(mistakes, code, directory, outer_files, is_partial, children, resources)
    builder = _builder(value, context)
    graph = builder.define(_name_of(value, file))
    graph.description = value.text("description") or ""
    graph.declared_schedules = _read_schedules(builder)
    return graph, builder


def _read_schedules(builder: DeclarationBuilder) -> list[dict[str, Any]]:
    """The schedules of a file, each as `Schedules.add` takes it. Notes the mistakes that the tables don't know."""
    found: list[dict[str, Any]] = []
    names: set[str | None] = set()
    for value in builder.value.items("schedules"):
        mistakes_before = len(builder.mistakes)
        _check_values(value, builder.mistakes)
        name = value.text("name")
        if name is not None and name in names:
            builder.mistakes.note(value, f"there are two schedules called {name!r}")
        names.add(name)
        if builder.is_partial:
            continue
        settings = value.plain_data()
        if len(builder.mistakes) == mistakes_before:
            builder.attempt(value, partial(_check_schedule, settings))
        found.append(settings)
    return found


def _check_values(schedule: Value, mistakes: Mistakes) -> None:
    """Note the mistakes in single values of a schedule, each at its place."""
    mistakes.check(schedule.get("timezone"), checked_zone)
    mistakes.check(schedule.get("queue"), partial(checked_name, "queue"))
    mistakes.check(schedule.get("every"), checked_interval)
    if find_spec("cronsim") is not None:
        mistakes.check(schedule.get("cron"), partial(CronTimes, zone=UTC))
    priority = schedule.get("priority")
    if priority is not None and type(priority.data) is int:
        mistakes.attempt(priority, partial(check_priority, priority.data))


def _check_schedule(settings: dict[str, Any]) -> None:
    """Raise `UsageError` for a schedule that can't be added."""
    checked_name("schedule", settings["name"])
    cron = settings.get("cron")
    zone = checked_zone(settings.get("timezone", "UTC"))
    if cron is None or find_spec("cronsim") is not None:
        # A process that only runs the graph needn't have the package that reads cron expressions.
        make_timetable(cron, settings.get("every"), zone, settings.get("starts"), settings.get("ends"), 0.0)


def _name_of(value: Value, file: Path | None) -> str:
    """The name of a graph: as it says itself, or that of its file without the suffix."""
    name = value.text("name")
    if name:
        return name
    if file is not None:
        return file.stem
    return "graph" if value.get("tasks") is None else "workflow"


def _key_of(file: Path | None) -> str:
    """What a file is found under among those of child runs; nothing leads to a text that isn't in a file."""
    if file is None:
        return ""
    return str(file.resolve())


def _builder(value: Value, context: BuildContext) -> GraphBuilder | WorkflowBuilder:
    if value.get("tasks") is None:
        return GraphBuilder(value, context)
    from limpet.yaml_files.build.workflow import WorkflowBuilder

    return WorkflowBuilder(value, context)


def _checked_path(path: str | os.PathLike[str]) -> Path:
    if not isinstance(path, (str, os.PathLike)) or not str(path):
        raise UsageError(f"a declaration must be given by the path of its file, not {path!r}")
    return Path(path)


def _read_text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as problem:
        byte = problem.object[problem.start]
        reason = f"this isn't text in UTF-8: byte {problem.start} is {byte:#x}"
        raise DeclarationError(str(file), [(1, 1, reason)]) from problem
    except FileNotFoundError as problem:
        raise UsageError(f"there is no file {str(file)!r} (looked in {file.absolute().parent})") from problem
    except OSError as problem:
        raise UsageError(f"{str(file)!r} can't be read: {problem.strerror}") from problem
    except ValueError as problem:
        raise UsageError(f"{str(file)!r} can't be read: {problem}") from problem
