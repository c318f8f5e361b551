"""From a file's values to a graph: what is left to check after the tables, and the calls that define it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from limpet.yaml_files import node_functions as calls
from limpet.yaml_files.actions.builtin import BUILT_IN
from limpet.yaml_files.build.code import Code, Importing, stand_in
from limpet.yaml_files.document import Value
from limpet.yaml_files.grammar.value_types import is_template, shown
from limpet.yaml_files.grammar.mistakes import Mistakes
from limpet.yaml_files.templates import Compiler
from limpet.errors import DefinitionError, LimpetError, UsageError, did_you_mean
from limpet.graphs.retry import Retry
from limpet.graphs.reducers import append, merge
from limpet.graphs.schema import read_schema
from limpet.journal.encoding.copies import detached_value

TYPES: Mapping[str, Any] = {
    "any": Any, "bool": bool, "bytes": bytes, "dict": dict, "float": float, "int": int, "list": list, "set": set,
    "str": str, "tuple": tuple,
}  # fmt: skip
REDUCERS: Mapping[str, Callable[..., Any]] = {"append": append, "merge": merge}
_REDUCED = {"append": "list", "merge": "dict"}
_WRITTEN = {
    "bool": (bool,), "dict": (dict,), "float": (int, float), "int": (int,), "list": (list,), "str": (str,),
}  # fmt: skip
"""What a default of a type is in a file; of others, there is nothing like them there."""


class Inside(NamedTuple):
    """A graph inside of another one, and the interrupts that it asks for itself."""

    graph: Any
    before: list[str]
    after: list[str]


class Site(NamedTuple):
    """Where something is built: the mistakes of its file, where code comes from, and the files that it is inside of.

    `partial` says that the tables have found mistakes, so that some of the file is left out, and not all that seems
    to be missing is.
    """

    mistakes: Mistakes
    code: Code
    directory: Path
    within: tuple[Path, ...]
    partial: bool


class Building:
    """What building a graph and building a workflow have in common."""

    variables: tuple[str, ...]
    kind: str

    def __init__(self, value: Value, site: Site) -> None:
        self.value, self.site = value, site
        self.mistakes, self.code, self.partial = site.mistakes, site.code, site.partial
        self.compiler = Compiler(site.mistakes, self.variables)

    def attempt(self, place: Value, call: Callable[[], Any], otherwise: Any = None) -> Any:
        """What a call gives; or something else, if it raises an error of ours, which is noted at this place."""
        try:
            return call()
        except DefinitionError as problem:
            for each in problem.mistakes:
                self.mistakes.note(place, each)
        except LimpetError as problem:
            self.mistakes.note(place, str(problem))
        return otherwise

    def import_modules(self) -> None:
        """Import what the file lists, if this is to run."""
        for each in self.value.all("imports"):
            if isinstance(each.data, str):
                self.attempt(each, partial(self.code.load, each.data))

    def work_of(self, each: Value, owner: str) -> Any:
        """What a node or task does: a `Work`, a function, an `Inside`; None if it does nothing, or can't be told."""
        if (run := each.get("run")) is not None:
            return self.referred(run)
        if (inside := each.get("graph")) is not None:
            return self.inside(inside)
        if (prompt := each.get("prompt")) is not None:
            given = (
                prompt
                if isinstance(prompt.data, dict)
                else Value({"text": prompt}, prompt.line, prompt.column)
            )
            return self._work("prompt", given, prompt, owner)
        if (uses := each.text("uses")) is not None:
            return self._work(uses, each.get("with") or Value({}), each.at("uses"), owner)
        return None

    def _work(self, name: str, given: Value, place: Value, owner: str) -> Any:
        if name in BUILT_IN and BUILT_IN[name].of_graphs and self.kind == "workflow":
            self.mistakes.note(
                place, f"the action {name!r} is for graphs; a workflow has checkpoints of its own"
            )
            return stand_in(name)
        if not isinstance(given.data, dict):
            return stand_in(name)
        arguments = {str(key): self.compiler.data(value, owner) for key, value in given.data.items()}
        made = self.attempt(place, lambda: self.code.work(name, arguments, self.variables, owner))
        return made if made is not None else stand_in(name)

    def referred(self, value: Value) -> Any:
        """What a reference leads to; a stand-in if that can't be had."""
        if not isinstance(value.data, str):
            return stand_in("it")
        return self.attempt(value, partial(self.code.named, value.data), stand_in(value.data))

    def inside(self, value: Value) -> Inside | None:
        """A graph inside this one: declared right here, or in a file beside this one."""
        from limpet.yaml_files.loading import build_file, build_here

        if isinstance(value.data, dict):
            return build_here(value, self.site)
        if not isinstance(value.data, str):
            return None
        path = self.site.directory / value.data
        found: Inside | None = self.attempt(value, lambda: build_file(path, self.site))
        return found

    def policy(self, each: Value) -> dict[str, Any]:
        """The retry and timeout of a node or task."""
        if self.partial:
            return {}
        found: dict[str, Any] = {}
        if (retry := each.get("retry")) is not None:
            found["retry"] = self.attempt(retry, lambda: self._retry(retry))
        if (timeout := each.get("timeout")) is not None:
            found["timeout"] = timeout.data
        return found

    def _retry(self, value: Value) -> Retry | int:
        if not isinstance(value.data, dict):
            return int(value.data)
        given = value.plain()
        on = given.pop("on", None)
        if on is None:
            return Retry(**given)
        names = [on] if isinstance(on, str) else on
        return Retry(**given, on=tuple(self.code.exception(name) for name in names))

    def schema(self) -> tuple[Any, dict[str, Callable[[], Any]]]:
        """What the state holds, as a schema is given in Python, and where keys start that say so."""
        value = self.value.get("state") or self.value.get("state_schema")
        if value is None or self.partial:
            return None, {}
        if isinstance(value.data, str):
            found = self.referred(value)
            if not isinstance(self.code, Importing) or not self.attempt(value, lambda: read_schema(found)):
                return None, {}
            return found, {}
        keys: dict[str, Any] = {}
        defaults: dict[str, Callable[[], Any]] = {}
        for key, each in value.data.items():
            keys[key] = self._key(each)
            self._check_key(key, each)
            if (default := each.get("default")) is not None:
                defaults[key] = partial(detached_value, default.plain())
        return keys, defaults

    def _key(self, value: Value) -> Any:
        kind = value if isinstance(value.data, str) else value.get("type")
        found = Any if kind is None else TYPES[kind.data] if kind.data in TYPES else self._class(kind)
        reducer = value.get("reducer")
        if reducer is None:
            return found
        how = REDUCERS.get(reducer.data) or self._reducer(reducer)
        if kind is None and reducer.data in REDUCERS:
            found = list if reducer.data == "append" else dict
        return Annotated[found, how]

    def _check_key(self, key: str, value: Value) -> None:
        """What a key says of itself fits together."""
        reducer, kind, default = value.text("reducer"), value.text("type"), value.get("default")
        wanted = _REDUCED.get(reducer or "")
        if wanted is not None and kind not in (None, "any", wanted) and ":" not in kind:
            self.mistakes.note(value.at("reducer"), f"{reducer} adds to a {wanted}, and {key} is {kind}")
        fitting = _WRITTEN.get(kind or wanted or "")
        if default is not None and fitting is not None and type(default.data) not in fitting:
            told = f"the default of {key} is {shown(default)}, and its type is {kind or wanted}"
            self.mistakes.note(default, told)

    def _class(self, value: Value) -> Any:
        before, found = len(self.mistakes), self.referred(value)
        if isinstance(found, type):
            return found
        if isinstance(self.code, Importing) and len(self.mistakes) == before:
            self.mistakes.note(value, f"{value.data!r} is no class")
        return Any

    def _reducer(self, value: Value) -> Any:
        found = self.referred(value)
        if not isinstance(self.code, Importing):
            found.__name__ = value.data.rpartition(":")[2].rpartition(".")[2]  # which the fingerprint has
        elif not callable(found) or isinstance(found, type):
            self.mistakes.note(value, f"{value.data!r} is no function (old, new)")
            return append
        return found

    def passing(self, each: Value, side: str, owner: str) -> Any:
        """What passes in or out of a graph inside: `{new: old}`, or a function if a template has a part in it."""
        value = each.get(side)
        if value is None or self.partial:
            return None
        if not any(is_template(part.data) for part in value.data.values()):
            return value.plain()
        compiler = Compiler(self.mistakes, ("state",))
        return calls.passing({key: compiler.data(part, owner) for key, part in value.data.items()})

    def settings(self, names: Iterable[str]) -> dict[str, Any]:
        """What `config` has of these."""
        config = self.value.get("config")
        if config is None or self.partial:
            return {}
        return {name: config.data[name].plain() for name in names if name in config.data}


def check_settings(given: Iterable[str], known: Iterable[str]) -> None:
    """Raise `UsageError` for a setting that `compile` doesn't take."""
    names = [name for name in known if name != "self"]
    for name in given:
        if name not in names:
            near = did_you_mean(name, names) or f"; there are {', '.join(names)}"
            raise UsageError(f"there is no setting {name!r}{near}")
