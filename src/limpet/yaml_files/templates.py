"""Templates and conditions: worked out in a sandbox of Jinja2, exact about types, and strict about what is missing.

`{{ state.n }}` alone is the value itself, of its own type; in a longer text it is that value as text. A condition is
an expression without the braces. What is missing is an error that names it, never an empty text. There is no way from
a template to code: no attribute that begins with an underscore, no methods but those of plain values, nothing
is changed, nothing is included, and numbers and repetitions are bounded.
"""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterable, KeysView, Mapping, ValuesView
from datetime import date, time, timedelta
from functools import cache, partial
from types import GeneratorType
from typing import Any, Final

from limpet.engine.node_context.branch_result import BranchResult
from limpet.errors import TemplateError, did_you_mean
from limpet.yaml_files.document import Value, needs_extra
from limpet.yaml_files.grammar.mistakes import Mistakes
from limpet.yaml_files.grammar.value_types import is_template

LONGEST_RANGE: Final = 10_000
LARGEST_PRODUCT: Final = 1_000_000
"""How long a text or list may become by `*`, and how many bits a number by `**`."""

METHODS: Final = ("get", "items", "keys", "values")
"""The methods of a mapping that can be called where no key is called so."""

OF_BRANCHES: Final = ("branch", "index", "error", "changes", "started", "ended", "duration")
"""What can be read of a branch's result, besides the keys of its state."""

_PLAIN: Final = (str, bytes, int, float, list, tuple, set, frozenset, Mapping, date, time, timedelta)
_PADDING: Final = ("center", "expandtabs", "ljust", "rjust", "zfill")

Render = Callable[[Mapping[str, Any]], Any]


class Template:
    """A text that is worked out anew for each call. `owner` is whose it is, `place` where it is in the file.

    `asks` has the variables that it needs.
    """

    __slots__ = ("_render", "asks", "owner", "place", "text")

    def __init__(self, text: str, owner: str, place: str, render: Render, asks: set[str]) -> None:
        self.text, self.owner, self.place, self._render, self.asks = text, owner, place, render, asks

    def render(self, variables: Mapping[str, Any]) -> Any:
        """What it comes to with these variables. Raises `TemplateError` that says what is wrong with it."""
        try:
            return self._render(variables)
        except Exception as problem:  # an expression may do anything that plain values can
            reason = str(problem) or type(problem).__name__
            key = getattr(problem, "key", None)
            if not type(problem).__module__.startswith(("jinja2", __name__)):
                reason = f"{type(problem).__name__}: {reason}"
            raise TemplateError(self.owner, self.text, reason, self.place, key) from problem

    def __repr__(self) -> str:
        return f"Template({self.text!r})"


class Compiler:
    """Makes templates of the texts of one file, and notes what is wrong with them."""

    def __init__(self, mistakes: Mistakes, names: Iterable[str]) -> None:
        self.mistakes, self.names = mistakes, tuple(names)

    def data(self, value: Value, owner: str) -> Any:
        """A value as data, with a `Template` for each text in it that is one."""
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
        """A text that may be a template. None if it can't be one, which is noted."""
        return self._made(value, owner, _compiled)

    def expression(self, value: Value, owner: str) -> Template | None:
        """A condition, or whatever else is an expression; braces around all of it do no harm."""
        lone = Value(value.data.strip(), value.line, value.column)
        return self._made(lone, owner, _compiled if is_template(value.data) else _compiled_expression)

    def _made(
        self, value: Value, owner: str, how: Callable[[str], tuple[Render, set[str]]]
    ) -> Template | None:
        text = value.data
        assert isinstance(text, str)
        sandbox()
        try:
            render, asked = how(text)
        except Exception as problem:  # whatever the parser stumbles over: its own errors, depth, huge numbers
            said = getattr(problem, "message", None) or str(problem) or type(problem).__name__
            self.mistakes.note(value, f"{owner}: {text!r} can't be understood: {said}")
            return None
        for name in sorted(asked - set(self.names) - sandbox().globals.keys()):
            self.mistakes.unknown(value, f"{owner}: {text!r} asks for", name, self.names)
        return Template(text, owner, f"{self.mistakes.file}:{value.line}:{value.column}", render, asked)


def filled(data: Any, variables: Mapping[str, Any]) -> Any:
    """Data with its templates worked out. Raises `TemplateError`."""
    match data:
        case Template():
            return data.render(variables)
        case dict():
            return {key: filled(each, variables) for key, each in data.items()}
        case list():
            return [filled(each, variables) for each in data]
        case _:
            return data


def _compiled(text: str) -> tuple[Render, set[str]]:
    """A template: the value, if it is one expression and nothing else; otherwise a text."""
    from jinja2 import nodes

    tree = sandbox().parse(text)
    match tree.body:
        case [nodes.Output(nodes=[lone])] if not isinstance(lone, nodes.TemplateData):
            return _value_of(lone), _asked(tree)
    return partial(_text_of, sandbox().from_string(text)), _asked(tree)


def _compiled_expression(text: str) -> tuple[Render, set[str]]:
    from jinja2 import nodes
    from jinja2.parser import Parser

    parser = Parser(sandbox(), text, state="variable")
    expression = parser.parse_expression()
    if not parser.stream.eos:
        raise ValueError(f"it goes on after its end, at {parser.stream.current.value!r}")
    tree = nodes.Template([nodes.Output([expression])], lineno=1)
    return _value_of(expression), _asked(tree.set_environment(sandbox()))


def _value_of(expression: Any) -> Render:
    from jinja2 import nodes

    expression.set_environment(sandbox())
    making = (nodes.Filter, nodes.Call, nodes.List, nodes.Dict, nodes.Tuple)
    makes = isinstance(expression, making) or any(True for _ in expression.find_all(making))
    body: list[nodes.Node] = [nodes.Assign(nodes.Name("result", "store"), expression, lineno=1)]
    made = sandbox().from_string(nodes.Template(body, lineno=1))

    def value(variables: Mapping[str, Any]) -> Any:
        context = made.new_context(dict(variables))
        for _ in made.root_render_func(context):
            pass
        result = context.vars["result"]
        return _whole(result) if makes else _there(result)

    return value


def _there(result: Any) -> Any:
    """What an expression came to. Raises if that is nothing."""
    from jinja2 import Undefined

    if isinstance(result, Undefined):
        result._fail_with_undefined_error()
    return result


def _whole(result: Any) -> Any:
    """The same for what was made on the way: nothing is missing inside, and it is plain data, to be stored."""
    from markupsafe import Markup

    match _there(result):
        case Markup():
            return str.__str__(result)
        case GeneratorType() | range() | KeysView() | ValuesView() | ItemsView():
            return [_whole(each) for each in result]
        case list() if type(result) is list:
            return [_whole(each) for each in result]
        case tuple() if type(result) is tuple:
            return tuple(_whole(each) for each in result)
        case dict() if type(result) is dict:
            return {key: _whole(each) for key, each in result.items()}
    return result


def _text_of(template: Any, variables: Mapping[str, Any]) -> str:
    text: str = template.render(variables)
    return text


def _asked(tree: Any) -> set[str]:
    """The variables that a template asks for. Raises `ValueError` for what templates can't do here."""
    from jinja2 import meta, nodes

    for _ in tree.find_all((nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends)):
        raise ValueError("a template can't include others")
    found: set[str] = meta.find_undeclared_variables(tree)
    return found


@cache
def sandbox() -> Any:
    """The environment of all templates. Raises `UsageError` where Jinja2 isn't installed."""
    try:
        from jinja2 import StrictUndefined
        from jinja2.exceptions import SecurityError, UndefinedError
        from jinja2.runtime import LoopContext, Macro
        from jinja2.sandbox import ImmutableSandboxedEnvironment
        from jinja2.utils import Namespace
    except ImportError as missing:
        raise needs_extra() from missing

    class Missing(StrictUndefined):
        """What isn't there. Whatever is done with it says so, and what there is instead."""

        __slots__ = ()

        def __init__(
            self, hint: Any = None, obj: Any = None, name: Any = None, exc: Any = UndefinedError
        ) -> None:
            super().__init__(hint, obj, name, partial(_missing, exc, name))  # type: ignore[arg-type]  # it makes one

        @property
        def _undefined_message(self) -> str:
            return str(self._undefined_hint or _nothing_there(self._undefined_obj, self._undefined_name))

    class Sandbox(ImmutableSandboxedEnvironment):
        """Looks into mappings by their keys first, and calls the methods of plain values only."""

        intercepted_binops = frozenset(("*", "**", "%"))

        def getattr(self, obj: Any, attribute: str) -> Any:
            if not isinstance(obj, Mapping):
                return super().getattr(obj, attribute)
            if isinstance(obj, BranchResult) and attribute in OF_BRANCHES:
                return getattr(obj, attribute)
            if attribute in obj:
                return obj[attribute]
            return (
                getattr(obj, attribute) if attribute in METHODS else self.undefined(obj=obj, name=attribute)
            )

        def getitem(self, obj: Any, argument: Any) -> Any:
            if not isinstance(obj, Mapping):
                return super().getitem(obj, argument)
            try:
                return obj[argument]
            except (LookupError, TypeError):
                if isinstance(obj, BranchResult) and argument in OF_BRANCHES:
                    return getattr(obj, argument)
                return self.undefined(obj=obj, name=argument)

        def is_safe_callable(self, obj: Any) -> bool:
            if isinstance(obj, (Macro, LoopContext, Missing)) or any(
                obj is each for each in self.globals.values()
            ):
                return True
            owner, name = getattr(obj, "__self__", None), getattr(obj, "__name__", "")
            return isinstance(owner, (*_PLAIN, LoopContext)) and name not in _PADDING

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            if _too_large(operator, left, right):
                raise SecurityError(f"{operator} would give more than a template may make")
            return super().call_binop(context, operator, left, right)

    made = Sandbox(undefined=Missing, autoescape=False, optimized=False, keep_trailing_newline=True)
    made.globals = {"range": bounded_range, "dict": dict, "namespace": Namespace}
    for name in ("center", "format", "indent", "wordwrap", "xmlattr"):
        made.filters.pop(name)
    return made


def bounded_range(*numbers: int) -> range:
    """`range()`, as far as a template may go."""
    made = range(*numbers)
    if len(made) > LONGEST_RANGE:
        raise ValueError(f"a range has at most {LONGEST_RANGE} numbers here, not {len(made)}")
    return made


def _too_large(operator: str, left: Any, right: Any) -> bool:
    if operator == "%":
        return isinstance(left, (str, bytes))
    if operator == "**":
        whole = isinstance(left, int) and isinstance(right, int)
        return whole and right > 0 and left.bit_length() * right > LARGEST_PRODUCT
    for text, times in ((left, right), (right, left)):
        if isinstance(times, int) and isinstance(text, (str, bytes, list, tuple)):
            return len(text) * times > LARGEST_PRODUCT
    return False


def _missing(kind: Any, key: Any, text: str) -> Exception:
    error: Exception = kind(text)
    error.key = key if isinstance(key, str) else None  # type: ignore[attr-defined]  # for our own error
    return error


def _nothing_there(obj: Any, name: Any) -> str:
    from jinja2.utils import missing

    if obj is missing:
        return f"there is no {name!r} here"
    if isinstance(obj, Mapping):
        keys = [str(key) for key in obj]
        listed = ", ".join(keys[:10]) + (", …" if len(keys) > 10 else "")
        what = "the state" if hasattr(obj, "checkpoint_node") else "the mapping"
        near = did_you_mean(name, keys) or (f"; it has {listed}" if keys else "; it is empty")
        return f"{what} has no key {name!r}{near}"
    if isinstance(name, int):
        return f"there is no item {name} in this {type(obj).__name__}"
    return f"{type(obj).__name__} has nothing that is called {name!r}"
