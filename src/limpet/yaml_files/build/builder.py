"""From the values of a file to a graph or workflow: what both builders share.

The tables in `grammar/keys.py` have checked the file before. A builder checks what is left, by calling the methods
that define a graph in Python, and notes each error at the place in the file that caused it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from limpet.durations import moment_of
from limpet.engine.node_context.answer_schemas import json_schema_of
from limpet.errors import UsageError, did_you_mean
from limpet.graphs.names import checked_name
from limpet.graphs.reducers import add_messages, append, merge
from limpet.graphs.resources.graph_resources import Resources, read_resources
from limpet.graphs.retry import Retry
from limpet.graphs.schema import read_schema
from limpet.journal.encoding.codec import detached_value
from limpet.yaml_files.actions.builtin import BUILT_IN
from limpet.yaml_files.actions.data_paths import ROOT_KEY, is_made_from_data
from limpet.yaml_files.build.child_graphs import ChildGraph, ChildGraphs
from limpet.yaml_files.build.declared_limits import DeclaredLimits
from limpet.yaml_files.build.node_code import CodeSource, ImportedCode, stand_in
from limpet.yaml_files.document import Value
from limpet.yaml_files.grammar.mistakes import Mistakes
from limpet.yaml_files.grammar.value_types import is_template, shown
from limpet.yaml_files.node_functions import (
    BoundAction,
    outputs_of_children,
    renamed_keys,
    with_results_read,
)
from limpet.yaml_files.templates import TemplateCompiler

TYPE_OF_WORD: Mapping[str, Any] = {
    "any": Any,
    "bool": bool,
    "bytes": bytes,
    "dict": dict,
    "float": float,
    "int": int,
    "list": list,
    "set": set,
    "str": str,
    "tuple": tuple,
}
REDUCER_OF_WORD: Mapping[str, Callable[..., Any]] = {
    "append": append,
    "merge": merge,
    "add_messages": add_messages,
}
_TYPE_OF_REDUCER = {"append": "list", "merge": "dict", "add_messages": "list"}
SHORT_FORMS: Mapping[str, str] = {
    "prompt": "text",
    "receive": "name",
    "sleep": "time",
    "start": "graph",
    "join": "child",
}
"""The actions that a node can name by a key of its own, each with the argument that may stand alone there."""
_DEFAULT_TYPES = {
    "bool": (bool,),
    "dict": (dict,),
    "float": (int, float),
    "int": (int,),
    "list": (list,),
    "str": (str,),
}
"""The types of a default in a file. YAML has no bytes, sets and tuples, so any default is taken for these."""


class NestedGraph(NamedTuple):
    """A graph inside another one, and the interrupts that it declares itself."""

    graph: Any
    interrupt_before: list[str]
    interrupt_after: list[str]


class BuildContext(NamedTuple):
    """What a builder works with: the mistakes of its file, the source of code, and the files around it.

    `is_partial` says that the tables have found mistakes. Parts of the file are then left out, and what seems to be
    missing may be in them.
    """

    mistakes: Mistakes
    code: CodeSource
    directory: Path
    outer_files: tuple[Path, ...]
    is_partial: bool
    children: ChildGraphs
    resources: frozenset[str] = frozenset()
    """The names of the resources that the graph around gives, or the caller of `load`."""


class DeclarationBuilder:
    """What building a graph and building a workflow have in common."""

    variables: tuple[str, ...]
    kind: str

    def __init__(self, value: Value, context: BuildContext) -> None:
        self.value = value
        self.context = context
        self.mistakes = context.mistakes
        self.code = context.code
        self.is_partial = context.is_partial
        self.compiler = TemplateCompiler(context.mistakes, self.variables)
        self.resources: Mapping[str, Any] = {}
        self.limits = DeclaredLimits(value, context.mistakes)

    def attempt(self, place: Value, call: Callable[[], Any], otherwise: Any = None) -> Any:
        """The result of a call. If it raises an error of Limpet, notes it at this place and gives `otherwise`."""
        return self.mistakes.attempt(place, call, otherwise)

    def check_config(self) -> None:
        """Note the mistakes in settings that the tables don't know."""
        config = self.value.place_of("config")
        self.check_time(config.get("deadline"), "deadline")
        self.mistakes.check(config.get("queue"), partial(checked_name, "queue"))

    def import_modules(self) -> None:
        """Import the modules that the file lists, if the graph is built to run."""
        for each in self.value.items("imports"):
            if isinstance(each.data, str):
                self.attempt(each, partial(self.code.load_module, each.data))

    def import_resources(self) -> None:
        """The resources that the file names. Graphs inside of this one can take them, too."""
        declared = self.value.get("resources")
        if declared is None or not isinstance(declared.data, dict):
            return
        found = {name: self.object_at(each) for name, each in declared.data.items()}
        self.resources = self.attempt(declared, lambda: read_resources(found)) or {}
        self.context = self.context._replace(resources=self.context.resources | found.keys())

    def all_resources(self, overrides: Mapping[str, Any]) -> dict[str, Any]:
        """The resources of the file, with those of the caller in place of them; as a setting of `compile`."""
        given: Mapping[str, Any] = read_resources(overrides.get("resources")) or {}
        found = {**self.resources, **given}
        return {"resources": Resources(found.values())} if found else {}

    def work_of(self, declared: Value, owner: str, compiler: TemplateCompiler | None = None) -> Any:
        """What a node or task does: a `BoundAction`, a function, or a `NestedGraph`; None if it does nothing."""
        compiler = compiler or self.compiler
        run = declared.get("run")
        if run is not None:
            return self.object_at(run)
        graph = declared.get("graph")
        if graph is not None:
            return self.nested_graph(graph)
        for name, main_argument in SHORT_FORMS.items():
            given = declared.get(name)
            if given is not None:
                arguments = given
                if not isinstance(given.data, dict):
                    arguments = given.with_data({main_argument: given})
                return self._action(name, arguments, given, owner, compiler)
        values = declared.get("set")
        if values is not None:
            return self._action("set", values, values, owner, compiler)
        uses = declared.text("uses")
        if uses is not None:
            place = declared.place_of("uses")
            return self._action(uses, declared.get("with") or Value({}), place, owner, compiler)
        return None

    def _action(
        self, name: str, given: Value, place: Value, owner: str, compiler: TemplateCompiler
    ) -> BoundAction | Callable[..., Any]:
        if name in BUILT_IN and BUILT_IN[name].for_graphs_only and self.kind == "workflow":
            self.mistakes.note(
                place, f"the action {name!r} is for graphs; a workflow has checkpoints of its own"
            )
            return stand_in(name)
        if not isinstance(given.data, dict):
            return stand_in(name)
        arguments = {str(key): compiler.data(value, owner) for key, value in given.data.items()}
        if name == "set" and not arguments and not self.is_partial:
            self.mistakes.note(place, f"{owner}: set has nothing to set; give it values by name")
        if name in BUILT_IN and is_made_from_data(arguments.get(ROOT_KEY)):
            self.mistakes.note(
                given.data[ROOT_KEY],
                f"{owner}: {ROOT_KEY} can't be made from data, which it has to keep inside; "
                "write a directory, or a template of env alone",
            )
        if name in BUILT_IN:
            self.check_time(given.get("deadline"), "deadline")
        if name == "sleep":
            self.check_time(given.get("time"), "time")
        bound: BoundAction | None = self.attempt(
            place,
            lambda: self.code.bound_action(
                name, arguments, compiler.variables, sorted(self.context.resources), owner
            ),
        )
        code = self._code_in(name, given)
        if bound and code:
            bound = bound._replace(function=partial(bound.function, **code))
        return bound or with_results_read(stand_in(name), arguments)

    def _code_in(self, action: str, given: Value) -> dict[str, Any]:
        """The code that arguments of a built-in action name, found when the file is read: data can't name any."""
        if action == "start":
            return {"child": self.child_graph(given.place_of("graph"))}
        schema = given.get("schema")
        if action not in ("prompt", "receive") or schema is None or not isinstance(schema.data, str):
            return {}
        if ":" not in schema.data or is_template(schema.data):
            return {}
        found = self.object_at(schema)
        if isinstance(self.code, ImportedCode) and not self.mistakes:
            self.attempt(schema, lambda: json_schema_of(found))
        return {"model": found}

    def check_time(self, time: Value | None, what: str) -> None:
        """Note a time in the file that can't be one: the tables know only what times look like."""
        if time is not None and not self.is_partial and not is_template(time.data):
            self.attempt(time, lambda: moment_of(time.data, 0.0, what))

    def object_at(self, value: Value) -> Any:
        """The object that a reference names; a stand-in if it can't be imported."""
        if not isinstance(value.data, str):
            return stand_in("it")
        return self.attempt(value, partial(self.code.object_at, value.data), stand_in(value.data))

    def nested_graph(self, value: Value) -> NestedGraph | None:
        """A graph inside this one: declared inline, or in a file whose path is relative to this file."""
        from limpet.yaml_files.loading import build_file, build_inline

        if isinstance(value.data, dict):
            return build_inline(value, self.context)
        if not isinstance(value.data, str):
            return None
        path = self.context.directory / value.data
        nested: NestedGraph | None = self.attempt(value, lambda: build_file(path, self.context))
        return nested

    def child_graph(self, value: Value) -> ChildGraph | None:
        """The graph whose runs a node starts: that of a file, or a graph in a module. Notes its mistakes."""
        from limpet.yaml_files.loading import build_child_file

        if not isinstance(value.data, str) or is_template(value.data):
            return None
        children = self.context.children
        if value.data.endswith((".yaml", ".yml")):
            find = partial(build_child_file, self.context.directory / value.data, self.context)
        else:
            find = partial(children.in_module, value.data, self.code)
        found: ChildGraph | None = self.attempt(value, find)
        if found is not None:
            self.attempt(value, partial(children.check_name, found))
        return found

    def policy_of(self, declared: Value) -> dict[str, Any]:
        """The retry, the timeout and the limits of a node or task."""
        if self.is_partial:
            return {}
        options: dict[str, Any] = {}
        retry = declared.get("retry")
        if retry is not None:
            options["retry"] = self.attempt(retry, lambda: self._retry(retry))
        timeout = declared.get("timeout")
        if timeout is not None:
            options["timeout"] = timeout.data
        if declared.get("limits") is not None:
            options["limits"] = self.limits.at(declared)
        return options

    def _retry(self, value: Value) -> Retry | int:
        if not isinstance(value.data, dict):
            return int(value.data)
        options = value.plain_data()
        on = options.pop("on", None)
        if on is None:
            return Retry(**options)
        names = [on] if isinstance(on, str) else on
        return Retry(**options, on=tuple(self.code.exception(name) for name in names))

    def schema(self) -> tuple[Any, dict[str, Callable[[], Any]]]:
        """The schema of the state, as Python code would give it, and the functions that make the defaults of keys."""
        value = self.value.get("state") or self.value.get("state_schema")
        if value is None or self.is_partial:
            return None, {}
        if isinstance(value.data, str):
            return self._schema_class(value), {}
        keys: dict[str, Any] = {}
        defaults: dict[str, Callable[[], Any]] = {}
        for key, declared in value.data.items():
            keys[key] = self._key_type(declared)
            self._check_key(key, declared)
            default = declared.get("default")
            if default is not None:
                # Each run gets a copy of its own: a node may change a list in place.
                defaults[key] = partial(detached_value, default.plain_data())
        return keys, defaults

    def _schema_class(self, value: Value) -> Any:
        found = self.object_at(value)
        if not isinstance(self.code, ImportedCode):
            return None
        is_schema = self.attempt(value, lambda: read_schema(found))
        if is_schema:
            return found
        return None

    def _key_type(self, declared: Value) -> Any:
        if isinstance(declared.data, str):
            type_name: Value | None = declared
        else:
            type_name = declared.get("type")
        reducer = declared.get("reducer")
        if type_name is not None:
            key_type = self._type_named(type_name)
        elif reducer is not None and reducer.data in _TYPE_OF_REDUCER:
            key_type = TYPE_OF_WORD[_TYPE_OF_REDUCER[reducer.data]]
        else:
            key_type = Any
        if reducer is None:
            return key_type
        return Annotated[key_type, self._reducer(reducer)]

    def _type_named(self, value: Value) -> Any:
        if value.data in TYPE_OF_WORD:
            return TYPE_OF_WORD[value.data]
        mistakes_before = len(self.mistakes)
        found = self.object_at(value)
        if isinstance(found, type):
            return found
        if isinstance(self.code, ImportedCode) and len(self.mistakes) == mistakes_before:
            self.mistakes.note(value, f"{value.data!r} is not a class")
        return Any

    def _reducer(self, value: Value) -> Any:
        if value.data in REDUCER_OF_WORD:
            return REDUCER_OF_WORD[value.data]
        found = self.object_at(value)
        if not isinstance(self.code, ImportedCode):
            # The plan's fingerprint contains the reducer's name, so the stand-in needs the right one.
            found.__name__ = value.data.rpartition(":")[2].rpartition(".")[2]
        elif not callable(found) or isinstance(found, type):
            self.mistakes.note(value, f"{value.data!r} is not a function (old, new)")
            return append
        return found

    def _check_key(self, key: str, declared: Value) -> None:
        """Note where the type, the reducer and the default of a key don't fit together."""
        reducer = declared.text("reducer")
        type_name = declared.text("type")
        default = declared.get("default")
        reduced_type = _TYPE_OF_REDUCER.get(reducer or "")
        is_class = type_name is not None and ":" in type_name
        if reduced_type is not None and not is_class and type_name not in (None, "any", reduced_type):
            self.mistakes.note(
                declared.place_of("reducer"), f"{reducer} adds to a {reduced_type}, and {key} is {type_name}"
            )
        known_type = type_name or reduced_type or ""
        default_types = _DEFAULT_TYPES.get(known_type)
        if default is not None and default_types is not None and type(default.data) not in default_types:
            self.mistakes.note(
                default, f"the default of {key} is {shown(default)}, and its type is {known_type}"
            )

    def key_mapping(self, declared: Value, side: str, owner: str) -> Any:
        """The inputs or outputs of a nested graph: `{new: old}`, or a function if there are templates."""
        value = declared.get(side)
        if value is None or self.is_partial:
            return None
        if not any(is_template(part.data) for part in value.data.values()):
            return value.plain_data()
        compiler = TemplateCompiler(self.mistakes, ("state",))
        return renamed_keys({key: compiler.data(part, owner) for key, part in value.data.items()})

    def child_outputs(self, declared: Value, owner: str) -> Callable[[Any], dict[str, Any]] | None:
        """What a node gets of the children that it joins: the function that makes the update of the result."""
        outputs = declared.get("outputs")
        start = declared.get("start")
        if outputs is None or declared.get("graph") is not None or self.is_partial:
            return None
        if start is not None and (start.get("join") is None or start.place_of("join").data is not True):
            place = declared.keys["outputs"]
            self.mistakes.note(place, f"{owner}: outputs are those of a child that has ended; add join: true")
            return None
        compiler = TemplateCompiler(self.mistakes, ("state",))
        return outputs_of_children({key: compiler.data(part, owner) for key, part in outputs.data.items()})

    def settings(self, names: Iterable[str]) -> dict[str, Any]:
        """Those of the named settings that `config` has."""
        config = self.value.get("config")
        if config is None or self.is_partial:
            return {}
        return {name: config.data[name].plain_data() for name in names if name in config.data}


def check_settings(given: Iterable[str], known: Iterable[str]) -> None:
    """Raise `UsageError` for a setting that `compile` doesn't take."""
    names = [name for name in known if name != "self"]
    for name in given:
        if name not in names:
            hint = did_you_mean(name, names) or f"; there are {', '.join(names)}"
            raise UsageError(f"there is no setting {name!r}{hint}")
