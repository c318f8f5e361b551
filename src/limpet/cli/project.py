"""What a command works on: the store, and the graphs it may run.

Both are named on the command line, else by the environment (`LIMPET_STORE`, `LIMPET_GRAPHS`), else in the
`[tool.limpet]` table of the nearest `pyproject.toml`. Stored data never names code to import: a run knows the name of
its graph, not where the code is.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from argparse import Namespace
from collections.abc import Iterable
from contextlib import suppress
from functools import lru_cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, cast
from urllib.parse import quote

from limpet import Runs
from limpet.cli.output import Output
from limpet.cli.run_ids import whole_id
from limpet.engine.supervisor.catalog import find_graph
from limpet.errors import DamagedRecord, DefinitionError, LimpetError, UsageError, did_you_mean
from limpet.frontends.graph_on_store import GraphOnStore
from limpet.graph_methods import GraphMethods
from limpet.journal.store import Store
from limpet.journal.threads.kinds import refuse_thread
from limpet.stores.absent import path_of, refuse_absent
from limpet.stores.opening import ENCRYPTED, default_choice, open_default_store, open_store

Graph = GraphMethods[Any]

GRAPHS_VARIABLE = "LIMPET_GRAPHS"
NAME_GRAPHS_FOR_ALL_COMMANDS = (
    f"set {GRAPHS_VARIABLE}, or write graphs = […] under [tool.limpet] in pyproject.toml"
)
"""The end of a message that says how to name a graph."""

TABLE = "[tool.limpet] in pyproject.toml"
SETTINGS = ("store", "graphs")
"""What that table may have."""

MAX_LISTED_GRAPHS = 5
"""How many graphs of a file a message names."""

LISTED_BESIDES_RUNS = {"limits": "limits", "schedules": "schedules", "workers": "workers"}
"""What commands are about, by their module, if that isn't runs."""

FALLBACK_FILE = "limpet.db"
"""The SQLite file in the working directory that is used where no store is named."""


def find_store(args: Namespace, graph: Graph | None = None, must_exist: bool = False) -> Store:
    """The store of a command; where none is named, the store of its graph or of the project's graphs.

    `must_exist` refuses to create a new file or directory. Raises `UsageError` where no store is known, and
    `StoreUnavailable`.
    """
    if args.store == "":
        raise UsageError("--store is empty: name a store, such as sqlite:///runs.db, or leave --store out")
    if args.store:
        _check_exists(args, path_of(args.store), "--store", must_exist)
        return open_store(args.store)
    choice = default_choice()
    if choice is not None:
        _check_exists(args, path_of(choice.target), choice.variable, must_exist)
        return cast(Store, open_default_store())
    configured = _settings().get("store")
    if configured is not None:
        named = _relative_to(_settings()["folder"], _text(configured, "store"))
        _check_exists(args, path_of(named), f"store under {TABLE}", must_exist)
        return open_store(named)
    for known in [graph] if graph is not None else project_graphs(args):
        declared = getattr(known, "declared_store", None)
        if isinstance(declared, str):
            _check_exists(args, path_of(declared), "the graph's store", must_exist)
            return open_store(declared)
        client = known.compiled().client
        if client is not None and client.store.abilities.shared:
            _check_exists(args, getattr(client.store, "path", None), "the graph's store", must_exist)
            return client.store
    if os.path.exists(FALLBACK_FILE) or (graph is not None and not must_exist):
        return open_store(f"sqlite:///{FALLBACK_FILE}")
    raise UsageError(
        'no store named: pass --store sqlite:///runs.db, set LIMPET_STORE, or write store = "…" under '
        "[tool.limpet] in pyproject.toml"
    )


def find_runs(args: Namespace, must_exist: bool = True) -> Runs:
    """The runs in the store of a command that needs no graph."""
    return Runs(find_store(args, must_exist=must_exist))


def find_run(args: Namespace, output: Output, changes: bool = False) -> Runs:
    """The runs in the store of a command about one of them. Its whole id takes the place of what was typed.

    `changes` says that the command changes the run. Raises `RunNotFound`, and `UsageError` for a beginning of several
    ids.
    """
    store = find_store(args, must_exist=True)
    complete_run_id(args, store, output, changes)
    return Runs(store)


def complete_run_id(args: Namespace, store: Store, output: Output, changes: bool = False) -> None:
    """Put the whole id of a run in place of its beginning, if that was typed. Raises as `find_run` does."""
    run_id = whole_id(store, args.run, any_prefix=not changes or output.interactive)
    if changes and run_id != args.run:
        output.say(f"run {run_id}")
    args.run = run_id


def graph_of_run(args: Namespace, output: Output) -> GraphOnStore:
    """The graph of the stored run that a command changes, on the store that has it. Raises as `find_run` does."""
    store = find_store(args, must_exist=True)
    complete_run_id(args, store, output, changes=True)
    return GraphOnStore(graph_of_stored(args, store), store)


def graph_of_stored(args: Namespace, store: Store) -> Graph:
    """The graph of the run `args.run`. Raises `ForeignRun` for a thread, and as `graph_named` does."""
    with suppress(DamagedRecord):  # which graph it is of may be known nevertheless
        refuse_thread(store.head(args.run))
    return graph_named(args, Runs(store).get(args.run).graph)


def graph_named(args: Namespace, name: str) -> Graph:
    """The graph with this name among those of the project. Raises `UsageError`."""
    graphs = {graph.name: graph for graph in project_graphs(args)}
    if name in graphs:
        return graphs[name]
    known = "no graph is named"
    if graphs:
        known = f"known: {', '.join(graphs)}{did_you_mean(name, graphs)}"
    raise UsageError(
        f"the code of graph {name!r} wasn't found ({known}): pass --graph module:attribute or "
        f"--graph file.yaml, {NAME_GRAPHS_FOR_ALL_COMMANDS}"
    )


def project_graphs(args: Namespace) -> list[Graph]:
    """The graphs that the command line, the environment or the project names."""
    return load_graphs(project_targets(args))


def load_graphs(targets: Iterable[str]) -> list[Graph]:
    """The graphs that these targets name, and after them the graphs whose runs they start, where a file says so.

    Raises `UsageError` for two of these of the same name: stored runs know their graphs by name.
    """
    named = [load_target(target) for target in targets]
    known = {graph.name: graph for graph in named}
    children = []
    for child in (child for graph in named for child in graph._child_graphs.values()):
        other = known.get(child.name)
        if other is None:
            known[child.name] = child
            children.append(child)
        elif other is not child and (not child._declared_in or other._declared_in != child._declared_in):
            raise UsageError(
                f"there are two graphs called {child.name!r}: give one of them another name"
            ).with_advice(f"they are in {_place_of(other)} and in {_place_of(child)}")
    return [*named, *children]


def _place_of(graph: Graph) -> str:
    return graph._declared_in or "a module"


def project_targets(args: Namespace) -> list[str]:
    """Where the code of those graphs is."""
    if args.graph:
        return list(args.graph)
    named = os.environ.get(GRAPHS_VARIABLE)
    if named:
        return [target.strip() for target in named.split(",") if target.strip()]
    listed = _settings().get("graphs", [])
    if not isinstance(listed, list):
        raise UsageError(f"{TABLE}: graphs must be a list of strings, not {listed!r}")
    return [_text(target, "graphs") for target in listed]


def is_place(text: str) -> bool:
    """Whether a text is meant to say where the code of a graph is, and isn't a graph's name."""
    return ":" in text or text.endswith((".py", ".yaml", ".yml"))


def load_target(target: str) -> Graph:
    """The graph that a target names: `file.yaml`, `file.py:attribute` or `package.module:attribute`.

    Imports the target's code, with the working directory on the path. The attribute is a graph or a function that
    returns one. Raises `DefinitionError`.
    """
    if target.endswith((".yaml", ".yml")):
        from limpet.yaml_files.loading import load

        _add_to_path(Path.cwd())
        _add_to_path(Path(target).parent)
        return cast(Graph, load(target))
    _add_to_path(Path.cwd())
    try:
        return _graph_in_code(target)
    except LimpetError:
        raise
    except (Exception, SystemExit) as problem:  # code that isn't meant to be imported may end the process
        message = f"{target!r} can't be loaded: {type(problem).__name__}: {problem}"
        raise DefinitionError(message) from problem


def command_line(words: str, args: Namespace, *more: str) -> str:
    """A command to type next, with the store and the graphs that this command line named."""
    parts = [*program(), *words.split(), *more]
    if args.store:
        parts += ["--store", args.store]
    for target in args.graph or ():
        parts += ["--graph", target]
    return shell_line(parts)


def shell_line(words: Iterable[str]) -> str:
    """Words as a shell reads them, on one line that a terminal can show."""
    return " ".join(map(_shell_word, words))


def _shell_word(word: str) -> str:
    """A word, quoted if needed: in `$'…'`, as bash and zsh have it, if some characters can't be shown."""
    if word.isprintable():
        return shlex.quote(word)
    return f"$'{''.join(map(_shell_character, word))}'"


def _shell_character(character: str) -> str:
    if character in "\\'":
        return f"\\{character}"
    if character.isprintable():
        return character
    # In octal, which has three digits whatever follows.
    return "".join(f"\\{byte:03o}" for byte in character.encode("utf-8", "surrogateescape"))


def can_be_typed(word: str) -> bool:
    """Whether a word can be an argument of a command, and isn't taken for an option."""
    try:
        word.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # half a character
        return False
    return "\0" not in word and not word.startswith("-")


def program() -> list[str]:
    """How this program is called here, so that printed commands can be typed."""
    name = sys.argv[0]
    if Path(name).stem != "limpet":
        return [_shortest_name("python", sys.executable), "-m", "limpet"]
    if os.path.dirname(name):
        return [_shortest_name("limpet", name)]
    return [name]


def _shortest_name(name: str, path: str) -> str:
    found = shutil.which(name)
    if found is not None and os.path.realpath(found) == os.path.realpath(path):
        return name
    return path


@lru_cache(maxsize=1)
def _settings() -> dict[str, Any]:
    """The `[tool.limpet]` table of the nearest pyproject.toml, and the folder it is in."""
    import tomllib

    here = Path.cwd()
    for folder in (here, *here.parents):
        path = folder / "pyproject.toml"
        if os.path.isfile(path):
            try:
                found = tomllib.loads(path.read_text(encoding="utf-8")).get("tool", {}).get("limpet", {})
            except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as problem:
                raise UsageError(f"can't read {path}: {problem}") from problem
            return {**_checked(found), "folder": folder}
    return {}


def _checked(table: Any) -> dict[str, Any]:
    """The table, if it has nothing but what is known. Raises `UsageError`: a typo would otherwise go unnoticed."""
    if not isinstance(table, dict):
        raise UsageError(f"{TABLE} must be a table, not {table!r}")
    for name in table:
        if name not in SETTINGS:
            hint = did_you_mean(name, SETTINGS) or f"; there are {', '.join(SETTINGS)}"
            raise UsageError(f"{TABLE}: there is no setting {name!r}{hint}")
    return table


def _relative_to(folder: Path, store: str) -> str:
    """A store that a file names: a relative path starts at the folder of the file."""
    path = path_of(store)
    if path is None or path.is_absolute():
        return store
    prefix = ""
    if store.startswith(ENCRYPTED):
        prefix = ENCRYPTED
    scheme = "file://" if "file://" in store else "sqlite:///"
    _, question_mark, options = store.partition("?")
    return f"{prefix}{scheme}{quote(str(folder / path))}{question_mark}{options}"


def _check_exists(args: Namespace, path: object, named_by: str, must_exist: bool) -> None:
    """Refuse a path that doesn't exist, if it must, rather than create it for a misspelt name."""
    if must_exist:
        module = (getattr(args, "command", None) or "").partition(":")[0].rpartition(".")[2]
        refuse_absent(path, named_by, LISTED_BESIDES_RUNS.get(module, "runs"))


def _text(value: Any, key: str) -> str:
    if not isinstance(value, str):
        raise UsageError(f"{TABLE}: {key} must be text, not {value!r}")
    return value


def _add_to_path(folder: Path) -> None:
    """Let modules be imported from a directory, as `python` does for the directory of a script."""
    path = str(folder.resolve())
    if path not in sys.path and not ("" in sys.path and path == str(Path.cwd())):
        sys.path.insert(0, path)


def _graph_in_code(target: str) -> Graph:
    path, _, attribute = target.rpartition(":")
    if not attribute and target.endswith(".py:"):
        target = path
    if target.endswith(".py"):
        raise _no_attribute(target)
    if not path or not attribute:
        raise DefinitionError(
            f"{target!r} doesn't name a graph: give file.yaml, file.py:attribute or module:attribute"
        )
    if path.endswith(".py"):
        target = f"{_module_in_file(Path(path)).__name__}:{attribute}"
    return cast(Graph, find_graph(target))


def _no_attribute(file: str) -> DefinitionError:
    """What to write for one of the graphs in a file, where none was named."""
    found = vars(_module_in_file(Path(file)))
    graphs = [f"{file}:{name}" for name, value in found.items() if isinstance(value, GraphMethods)]
    if not graphs:
        return DefinitionError(f"{file!r} has no graph: give file.py:attribute, where the attribute is one")
    listed = ", ".join(graphs[:MAX_LISTED_GRAPHS])
    return DefinitionError(f"{file!r} doesn't say which graph: give {listed}")


def _module_in_file(path: Path) -> ModuleType:
    if not os.path.isfile(path):
        raise DefinitionError(f"the file {path} doesn't exist")
    _add_to_path(path.parent)
    name = path.stem
    if name in sys.modules:
        return sys.modules[name]
    spec = spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise DefinitionError(f"{path} isn't a Python file")
    module = sys.modules[name] = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
