"""Templates and conditions: evaluated in a Jinja2 sandbox, exact about types and strict about missing values.

`{{ state.n }}` alone is the value itself, with its type; within a longer text it is that value as text. A condition
is an expression without the braces. A missing value is an error that names it, never an empty text.

A template can't reach code: no attributes that begin with an underscore, no methods except those of plain values, no
changes, no includes. What it makes and does is bounded, so that it can't use up memory or time: `template_limits.py`.
"""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from datetime import date, time, timedelta
from functools import cache, partial
from types import GeneratorType
from typing import Any, Final, NamedTuple

from limpet.engine.node_context.branch_result import BranchResult
from limpet.errors import TemplateError, did_you_mean
from limpet.yaml_files import template_limits as limits
from limpet.yaml_files.document import Value, missing_extra
from limpet.yaml_files.grammar.mistakes import Mistakes
from limpet.yaml_files.grammar.value_types import is_template
from limpet.yaml_files.template_rewriting import OWN_FILTERS, bounded

MAX_LISTED_KEYS: Final = 10
"""How many keys of a mapping a message lists."""

MAPPING_METHODS: Final = ("get", "items", "keys", "values")
"""The methods of a mapping that a template can call, unless the mapping has a key of that name."""

BRANCH_ATTRIBUTES: Final = ("branch", "index", "error", "changes", "started", "ended", "duration")
"""What a template can read of a branch's result, besides the keys of its state."""

_PLAIN_TYPES: Final = (str, bytes, int, float, list, tuple, set, frozenset, Mapping, date, time, timedelta)

Render = Callable[[Mapping[str, Any]], Any]


class Parsed(NamedTuple):
    """How a template is rendered, the variables that it uses, and the tasks whose `results` it names."""

    render: Render
    variables: set[str]
    reads_results: tuple[str, ...]


class Template:
    """A text that is evaluated for each call.

    `owner` is the node or task that it belongs to, and `place` is where it is in the file. `variables` are the names
    that it uses, and `reads_results` those of tasks in `results.name`.
    """

    __slots__ = ("_render", "owner", "place", "reads_results", "text", "variables")

    def __init__(self, text: str, owner: str, place: str, parsed: Parsed) -> None:
        self.text = text
        self.owner = owner
        self.place = place
        self._render = parsed.render
        self.variables = parsed.variables
        self.reads_results = parsed.reads_results

    def render(self, variables: Mapping[str, Any]) -> Any:
        """The result with these variables. Raises `TemplateError` that says what is wrong."""
        try:
            with limits.budget():
                return self._render(variables)
        except Exception as problem:  # an expression may raise whatever plain values can raise
            reason = str(problem) or type(problem).__name__
            key = getattr(problem, "key", None)
            if not type(problem).__module__.startswith(("jinja2", __name__, limits.__name__)):
                reason = f"{type(problem).__name__}: {reason}"
            raise TemplateError(self.owner, self.text, reason, self.place, key) from problem

    def __repr__(self) -> str:
        return f"Template({self.text!r})"


class TemplateCompiler:
    """Compiles the templates of one file, and notes the mistakes in them."""

    def __init__(self, mistakes: Mistakes, variables: Iterable[str]) -> None:
        self.mistakes = mistakes
        self.variables = tuple(variables)

    def data(self, value: Value, owner: str) -> Any:
        """A value as plain data, with a `Template` in place of each text that is one."""
        match value.data:
            case dict():
                return {key: self.data(each, owner) for key, each in value.data.items()}
            case list():
                return [self.data(each, owner) for each in value.data]
            case str() if is_template(value.data):
                return self.template(value, owner)
            case _:
                return value.data

    def template(self, value: Value, owner: str) -> Template | None:
        """The template of a text. Notes a mistake and gives None if it isn't valid."""
        return self._compile(value, owner, _parse_template)

    def expression(self, value: Value, owner: str) -> Template | None:
        """The template of a condition or another expression, which may have braces around it."""
        stripped = value.with_data(value.data.strip())
        parse = _parse_expression
        if is_template(value.data):
            parse = _parse_template
        return self._compile(stripped, owner, parse)

    def _compile(self, value: Value, owner: str, parse: Callable[[str], Parsed]) -> Template | None:
        text = value.data
        assert isinstance(text, str)
        known_globals = sandbox().globals.keys()  # raises here, and not below, if Jinja2 isn't installed
        try:
            parsed = parse(text)
        except (
            Exception
        ) as problem:  # the parser raises its own errors, RecursionError, ValueError for huge numbers
            reason = getattr(problem, "message", None) or str(problem) or type(problem).__name__
            self.mistakes.note(value, f"{owner}: {text!r} can't be parsed: {reason}")
            return None
        for name in sorted(parsed.variables - set(self.variables) - known_globals):
            self.mistakes.unknown(value, f"{owner}: {text!r} uses the unknown variable", name, self.variables)
        return Template(text, owner, f"{self.mistakes.file}:{value.line}:{value.column}", parsed)


def render_all(data: Any, variables: Mapping[str, Any]) -> Any:
    """Data with each template in it replaced by its result. Raises `TemplateError`."""
    match data:
        case Template():
            return data.render(variables)
        case dict():
            return {key: render_all(each, variables) for key, each in data.items()}
        case list():
            return [render_all(each, variables) for each in data]
        case _:
            return data


def results_read(data: Any) -> tuple[str, ...]:
    """The names of the tasks whose results the templates in this data name."""
    return tuple(name for template in _templates_in(data) for name in template.reads_results)


def variables_in(data: Any) -> set[str]:
    """The variables that the templates in this data use."""
    return {name for template in _templates_in(data) for name in template.variables}


def _templates_in(data: Any) -> Iterator[Template]:
    match data:
        case Template():
            yield data
        case dict():
            for each in data.values():
                yield from _templates_in(each)
        case list():
            for each in data:
                yield from _templates_in(each)


def _parse_template(text: str) -> Parsed:
    """Parse a template: its result is a value if it is one expression and nothing else, otherwise a text."""
    from jinja2 import nodes

    tree = sandbox().parse(text)
    match tree.body:
        case [nodes.Output(nodes=[lone])] if not isinstance(lone, nodes.TemplateData):
            used = _used_variables(tree)
            reads = _results_read(tree)
            return Parsed(_value_renderer(lone), used, reads)
    used = _used_variables(tree)
    reads = _results_read(tree)
    return Parsed(partial(_render_text, sandbox().from_string(bounded(tree))), used, reads)


def _parse_expression(text: str) -> Parsed:
    from jinja2 import nodes
    from jinja2.parser import Parser

    parser = Parser(sandbox(), text, state="variable")
    expression = parser.parse_expression()
    if not parser.stream.eos:
        raise ValueError(f"the expression ends before {parser.stream.current.value!r}")
    tree = nodes.Template([nodes.Output([expression])], lineno=1)
    used = _used_variables(tree.set_environment(sandbox()))
    reads = _results_read(tree)
    return Parsed(_value_renderer(expression), used, reads)


def _value_renderer(expression: Any) -> Render:
    """How an expression gives its value. Jinja2 renders to text only, so the value is assigned to a variable."""
    from jinja2 import nodes

    expression.set_environment(sandbox())
    makes_new_data = (nodes.Filter, nodes.Call, nodes.List, nodes.Dict, nodes.Tuple)
    gives_new_data = isinstance(expression, makes_new_data) or any(
        True for _ in expression.find_all(makes_new_data)
    )
    body: list[nodes.Node] = [nodes.Assign(nodes.Name("result", "store"), expression, lineno=1)]
    template = sandbox().from_string(bounded(nodes.Template(body, lineno=1)))

    def render(variables: Mapping[str, Any]) -> Any:
        context = template.new_context(dict(variables))
        for _ in template.root_render_func(context):
            pass
        result = context.vars["result"]
        # What is read straight from a variable is given as it is; only new data may hide lazy or missing parts.
        if gives_new_data:
            return _bounded_data(_defined(result))
        return _defined(result)

    return render


def _defined(result: Any) -> Any:
    """The result itself. Raises if it is undefined."""
    from jinja2 import Undefined

    if isinstance(result, Undefined):
        result._fail_with_undefined_error()
    return result


def _bounded_data(result: Any) -> Any:
    """New data, complete and of a size that can be stored."""
    if isinstance(result, GeneratorType):
        result = limits.listed(result)
    limits.checked_text(limits.text_size(result))
    return _complete_data(result)


def _complete_data(result: Any) -> Any:
    """The result as plain data that can be stored. Raises if anything inside is undefined."""
    from markupsafe import Markup

    match _defined(result):
        case Markup():
            return str.__str__(result)
        case GeneratorType() | range() | KeysView() | ValuesView() | ItemsView():
            return [_complete_data(each) for each in result]
        case list() if type(result) is list:
            return [_complete_data(each) for each in result]
        case tuple() if type(result) is tuple:
            return tuple(_complete_data(each) for each in result)
        case dict() if type(result) is dict:
            return {key: _complete_data(each) for key, each in result.items()}
    return result


def _render_text(template: Any, variables: Mapping[str, Any]) -> str:
    text: str = template.render(variables)
    return text


def _used_variables(tree: Any) -> set[str]:
    """The variables that a template uses. Raises `ValueError` for statements that aren't allowed here."""
    from jinja2 import meta, nodes

    for _ in tree.find_all((nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends)):
        raise ValueError("a template can't include others")
    found: set[str] = meta.find_undeclared_variables(tree)
    return found


def _results_read(tree: Any) -> tuple[str, ...]:
    """The names in `results.name` and `results['name']`, in the order in which they are written."""
    from jinja2 import nodes

    found: dict[str, None] = {}
    for read in tree.find_all((nodes.Getattr, nodes.Getitem)):
        if not isinstance(read.node, nodes.Name) or read.node.name != "results":
            continue
        if isinstance(read, nodes.Getattr):
            found[read.attr] = None
        elif isinstance(read.arg, nodes.Const) and isinstance(read.arg.value, str):
            found[read.arg.value] = None
    return tuple(found)


@cache
def sandbox() -> Any:
    """The Jinja2 environment of all templates. Raises `UsageError` where Jinja2 isn't installed."""
    try:
        from jinja2 import StrictUndefined
        from jinja2.exceptions import UndefinedError
        from jinja2.runtime import LoopContext, Macro
        from jinja2.sandbox import ImmutableSandboxedEnvironment
        from jinja2.utils import Namespace
    except ImportError as missing:
        raise missing_extra() from missing

    class Missing(StrictUndefined):
        """A missing value. Any use of it raises an error that says what is missing and what exists instead."""

        __slots__ = ()

        def __init__(
            self, hint: Any = None, obj: Any = None, name: Any = None, exc: Any = UndefinedError
        ) -> None:
            super().__init__(hint, obj, name, partial(_error_with_key, exc, name))  # type: ignore[arg-type]  # it makes one

        @property
        def _undefined_message(self) -> str:
            return str(self._undefined_hint or _missing_message(self._undefined_obj, self._undefined_name))

    class Sandbox(ImmutableSandboxedEnvironment):
        """Reads mappings by their keys first, and calls only the methods of plain values."""

        intercepted_binops = frozenset(("+", "*", "**", "%"))

        def getattr(self, obj: Any, attribute: str) -> Any:
            if not isinstance(obj, Mapping):
                return super().getattr(obj, attribute)
            if isinstance(obj, BranchResult) and attribute in BRANCH_ATTRIBUTES:
                return getattr(obj, attribute)
            if attribute in obj:
                return obj[attribute]
            if attribute in MAPPING_METHODS:
                return getattr(obj, attribute)
            return self.undefined(obj=obj, name=attribute)

        def getitem(self, obj: Any, argument: Any) -> Any:
            if not isinstance(obj, Mapping):
                return super().getitem(obj, argument)
            try:
                return obj[argument]
            except (LookupError, TypeError):
                if isinstance(obj, BranchResult) and argument in BRANCH_ATTRIBUTES:
                    return getattr(obj, argument)
                return self.undefined(obj=obj, name=argument)

        def is_safe_callable(self, obj: Any) -> bool:
            if isinstance(obj, (Macro, LoopContext, Missing)):
                return True
            if any(obj is each for each in self.globals.values()):
                return True
            owner = getattr(obj, "__self__", None)
            name = getattr(obj, "__name__", "")
            # Padding, and the like, would make a text of any length from a small number.
            return isinstance(owner, (*_PLAIN_TYPES, LoopContext)) and name not in limits.REFUSED_METHODS

        def call(self, context: Any, function: Any, *args: Any, **more: Any) -> Any:
            args = limits.prepared_call(function, args)
            return limits.checked_result(super().call(context, function, *args, **more))

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            limits.check_operator(operator, left, right)
            return super().call_binop(context, operator, left, right)

    environment = Sandbox(undefined=Missing, autoescape=False, optimized=False, keep_trailing_newline=True)
    environment.globals = {"range": limits.bounded_range, "dict": dict, "namespace": Namespace}
    environment.filters = {
        **{
            name: limits.bounded_filter(name, function)
            for name, function in environment.filters.items()
            if name not in limits.REFUSED_FILTERS
        },
        **OWN_FILTERS,
    }
    tests: dict[str, Any] = environment.tests
    environment.tests = {name: limits.bounded_test(function) for name, function in tests.items()}
    return environment


def _error_with_key(error_type: Any, key: Any, text: str) -> Exception:
    error: Exception = error_type(text)
    error.key = key if isinstance(key, str) else None  # type: ignore[attr-defined]  # for our own error
    return error


def _missing_message(obj: Any, name: Any) -> str:
    from jinja2.utils import missing

    if obj is missing:
        return f"there is no {name!r} here"
    if isinstance(obj, Mapping):
        keys = [str(key) for key in obj]
        what = "the mapping"
        if hasattr(obj, "checkpoint_node"):
            what = "the state"
        return f"{what} has no key {name!r}{did_you_mean(name, keys) or _listed_keys(keys)}"
    if isinstance(name, int):
        return f"there is no item {name} in this {type(obj).__name__}"
    return f"{type(obj).__name__} has no attribute {name!r}"


def _listed_keys(keys: list[str]) -> str:
    if not keys:
        return "; it is empty"
    more = ", …" if len(keys) > MAX_LISTED_KEYS else ""
    return f"; it has {', '.join(keys[:MAX_LISTED_KEYS])}{more}"
