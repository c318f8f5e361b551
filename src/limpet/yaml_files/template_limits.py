"""What a template may make and do: how long its texts, lists and numbers get, and how much work it is.

A file of graphs, and the values in a run's state, may come from anywhere. So every template and condition has a
*budget* of steps. Each round of a loop and each call takes one, and what handles a long text or list takes one for
each `SIZE_PER_STEP` bytes. What would make something large is measured before it is made.

The sandbox asks here for its operators, calls and filters; `template_rewriting.py` makes the rest of a template ask,
too.
"""

from __future__ import annotations

import re
import threading
from collections.abc import (
    Callable,
    ItemsView,
    Iterable,
    Iterator,
    KeysView,
    Mapping,
    Sequence,
    ValuesView,
)
from contextlib import contextmanager
from decimal import Decimal
from functools import wraps
from itertools import islice
from typing import Any, Final

MAX_STEPS: Final = 100_000
"""How many steps one template may take: rounds of loops, calls, and large things handled."""

SIZE_PER_STEP: Final = 500
"""How many characters are handled in one step. An item of a list counts as `ITEM_SIZE` of them."""

ITEM_SIZE: Final = 8
SLOW_ITEM_SIZE: Final = 125
"""The same for an item that a filter handles by code in Python, such as the key of a sort."""

MAX_TEXT: Final = 10_000_000
"""How many characters a text may have that a template makes, and its result as text."""

MAX_ITEMS: Final = 1_000_000
"""How many items a list may have that a template makes, those of the lists in it included."""

MAX_BITS: Final = 100_000
"""How many bits a whole number may have that a template makes."""

MAX_WIDTH: Final = 1000
"""How wide a format may pad, and to how many digits a number may be rounded."""

MAX_RANGE: Final = 10_000
"""How many numbers a `range()` may have."""

REFUSED_FILTERS: Final = ("center", "format", "indent", "wordwrap", "xmlattr", "urlize")
REFUSED_METHODS: Final = frozenset(
    ("center", "expandtabs", "ljust", "rjust", "zfill", "translate", "maketrans", "format_map", "to_bytes")
)

_LISTS = (list, tuple, set, frozenset, Mapping, range, KeysView, ValuesView, ItemsView)
_SIZED = (str, bytes, *_LISTS)
_SEQUENCES = (str, bytes, list, tuple)
_CONTAINERS = (list, tuple, set, frozenset, dict)
_SMALL = frozenset((float, bool, type(None)))
"""Types whose values are short as text."""
_WIDTHS = re.compile(r"\d{4,}|\{[^{}]*\{")
"""In a format: a number above 1,000, or a width that is given as an argument."""


class TooMuch(Exception):
    """A template would make or do more than it may."""


@contextmanager
def budget() -> Iterator[None]:
    """Let the templates that this thread renders inside take `MAX_STEPS` steps together."""
    outer = getattr(_local, "left", None), getattr(_local, "text", 0)
    _local.left = MAX_STEPS
    _local.text = 0
    try:
        yield
    finally:
        _local.left, _local.text = outer


def charge(size: int = 0) -> bool:
    """Take a step, and one for each `SIZE_PER_STEP` of a size. Always true. Raises `TooMuch` if none is left."""
    left = getattr(_local, "left", None)
    if left is None:  # not in a render
        return True
    left -= 1 + size // SIZE_PER_STEP
    if left < 0:
        raise TooMuch(f"it takes more than {MAX_STEPS:,} steps (rounds of loops, calls, large values)")
    _local.left = left
    return True


def count_output(size: int) -> None:
    """Count characters towards the resulting text. Raises `TooMuch` if that gets too long."""
    charge(size)
    _local.text += size
    if _local.text > MAX_TEXT:
        raise TooMuch(f"it would make a text of more than {MAX_TEXT:,} characters")


# Sizes


def checked_text(size: int) -> None:
    """Charge for a text of this many characters. Raises `TooMuch` if it is too long."""
    if size > MAX_TEXT:
        raise TooMuch(f"it would make a text of more than {MAX_TEXT:,} characters")
    charge(size)


def checked_items(count: int) -> None:
    """Charge for a list of this many items. Raises `TooMuch` if it is too long."""
    if count > MAX_ITEMS:
        raise TooMuch(f"it would make a list of more than {MAX_ITEMS:,} items")
    charge(ITEM_SIZE * count)


def text_size(value: Any, known: dict[int, int] | None = None) -> int:
    """About how many characters a value has as text. A list that occurs in another many times is looked at once."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, (bytes, bytearray)):
        return 4 * len(value)
    if type(value) is int:
        return value.bit_length() // 3 + 1
    if not isinstance(value, (*_CONTAINERS, Mapping)):
        return 32
    if known is None:
        known = {}
    if id(value) in known:
        return known[id(value)]
    known[id(value)] = 0  # of one that contains itself
    parts: Iterable[Any] = value
    if isinstance(value, Mapping):
        parts = [*value.keys(), *value.values()]
    kinds = set(map(type, parts))
    if kinds == {str}:
        charge(ITEM_SIZE * len(value))
        size = sum(map(len, parts)) + 4 * len(value)
    elif kinds <= _SMALL:
        charge(ITEM_SIZE * len(value))
        size = 32 * len(value)
    else:
        charge(50 * ITEM_SIZE * len(value))  # one by one, which takes longer
        size = 2 + sum(text_size(part, known) + 4 for part in parts)
    known[id(value)] = size
    return size


def item_count(value: Any, known: dict[int, int] | None = None) -> int:
    """How many items a value has, those of the lists in it included."""
    if not isinstance(value, _CONTAINERS):
        return 1
    if known is None:
        known = {}
    if id(value) in known:
        return known[id(value)]
    known[id(value)] = 0
    charge(ITEM_SIZE * len(value))
    parts = value.values() if isinstance(value, dict) else value
    if set(map(type, parts)).isdisjoint(_CONTAINERS):
        count = 1 + len(value)
    else:
        count = 1 + sum(item_count(part, known) for part in parts)
    known[id(value)] = count
    return count


def weigh(value: Any) -> Any:
    """The value, charged for its length: it is about to be read as a whole."""
    if isinstance(value, (str, bytes)):
        charge(len(value))
    elif isinstance(value, _SIZED):
        charge(ITEM_SIZE * len(value))
    return value


def listed(values: Iterable[Any]) -> list[Any]:
    """The values as a list. Raises `TooMuch` if it would be too long."""
    found = list(islice(values, MAX_ITEMS + 1))
    checked_items(len(found))
    return found


# Operators


def check_operator(operator: str, left: Any, right: Any) -> None:
    """Raise `TooMuch` if an operator would make something too large."""
    charge()
    if operator == "%" and isinstance(left, (str, bytes)):
        raise TooMuch("% would give more than a template may make: it can pad to any length")
    if operator == "**":
        _check_power(left, right)
    elif operator == "+" and isinstance(left, _SEQUENCES) and isinstance(right, _SEQUENCES):
        _check_sequence(left, len(left) + len(right))
    elif operator == "*":
        _check_product(left, right)


def _check_power(left: Any, right: Any) -> None:
    if not isinstance(left, (int, float, Decimal)) or not isinstance(right, (int, float, Decimal)):
        raise TooMuch(f"** takes numbers, not {type(left).__name__} and {type(right).__name__}")
    if isinstance(left, int) and isinstance(right, int) and left.bit_length() * right > MAX_BITS:
        raise TooMuch(f"** would give more than a template may make: a number of more than {MAX_BITS:,} bits")


def _check_product(left: Any, right: Any) -> None:
    if isinstance(left, int) and isinstance(right, int):
        if left.bit_length() + right.bit_length() > MAX_BITS:
            raise TooMuch(
                f"* would give more than a template may make: a number of more than {MAX_BITS:,} bits"
            )
        return
    for sequence, times in ((left, right), (right, left)):
        if isinstance(times, int) and isinstance(sequence, _SEQUENCES) and times > 0:
            if len(sequence) * times > MAX_ITEMS:
                raise TooMuch("* would give more than a template may make")
            _check_sequence(sequence, len(sequence) * times)


def _check_sequence(kind: Any, size: int) -> None:
    if isinstance(kind, (str, bytes)):
        checked_text(size)
    else:
        checked_items(size)


# Calls


def bounded_range(*numbers: int) -> range:
    """`range()` with a bounded length."""
    made = range(*numbers)
    if len(made) > MAX_RANGE:
        raise ValueError(f"a range has at most {MAX_RANGE} numbers here, not {len(made)}")
    return made


def prepared_call(function: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments of a call that may be made. Raises `TooMuch` if its result would be too large."""
    owner = getattr(function, "__self__", None)
    charge()
    for each in (owner, *args):
        weigh(each)
    name = getattr(function, "__name__", "")
    if name == "strftime" and any(isinstance(each, str) and _WIDTHS.search(each) for each in args):
        raise TooMuch(f"a format pads to at most {MAX_WIDTH} characters here")
    if not isinstance(owner, (str, bytes)):
        return args
    if name == "replace" and len(args) >= 2:
        _check_replaced(owner, args[0], args[1])
    elif name == "join" and args:
        items = listed(args[0])
        checked_text(_joined_size(owner, items))
        return items, *args[1:]
    elif name == "format":
        if isinstance(owner, str) and _WIDTHS.search(owner):
            raise TooMuch(f"a format pads to at most {MAX_WIDTH} characters here, by a number in the format")
        checked_text(len(owner) * max(1, text_size(list(args))))
    return args


def checked_result(result: Any) -> Any:
    """The result of a call or filter. Raises `TooMuch` if it is too large."""
    if isinstance(result, (str, bytes)):
        checked_text(len(result))
    elif isinstance(result, (list, tuple)):
        checked_items(len(result))
    return result


def _check_replaced(text: Any, old: Any, new: Any) -> None:
    if isinstance(old, type(text)) and isinstance(new, type(text)):
        checked_text(len(text) + text.count(old) * max(len(new) - len(old), 0))


def _joined_size(separator: Any, items: Sequence[Any]) -> int:
    known: dict[int, int] = {}
    return len(separator) * len(items) + sum(text_size(item, known) for item in items)


# Filters


def bounded_test(function: Callable[..., Any]) -> Callable[..., Any]:
    """A test of Jinja2, such as `is in`, that is charged for what it is given."""

    @wraps(function)
    def apply(*args: Any, **more: Any) -> Any:
        charge()
        for each in args:
            weigh(each)
        return function(*args, **more)

    return apply


def bounded_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter of Jinja2 that measures what it is given, and what it gives."""
    offset = 0 if getattr(function, "jinja_pass_arg", None) is None else 1
    check = _FILTER_CHECKS.get(name, _check_nothing)

    @wraps(function)
    def apply(*args: Any, **more: Any) -> Any:
        given = list(args[offset:])
        if name == "join" and given and not isinstance(given[0], str):
            given[0] = listed(given[0])
        for each in given:
            if isinstance(each, _LISTS) and name not in _QUICK_FILTERS:
                charge(len(each) * SLOW_ITEM_SIZE)
            else:
                weigh(each)
        if name in _TEXT_FILTERS and given:
            checked_text(text_size(given[0]))
        check(given, more)
        charge()
        return checked_result(function(*args[:offset], *given, **more))

    return apply


def _check_nothing(given: list[Any], more: dict[str, Any]) -> None:
    """Most filters give no more than they are given."""


def _check_replace_filter(given: list[Any], more: dict[str, Any]) -> None:
    text, old, new, *_ = [*given, more.get("old", ""), more.get("new", "")]
    _check_replaced(str(text), str(old), str(new))


def _check_join_filter(given: list[Any], more: dict[str, Any]) -> None:
    separator = more.get("d", given[1] if len(given) > 1 else "")
    checked_text(text_size(separator) * len(given[0]) + text_size(given[0]))


def _check_count(given: list[Any], more: dict[str, Any]) -> None:
    for each in (*given[1:2], *more.values()):
        if isinstance(each, int):
            checked_items(each)


def _check_width(given: list[Any], more: dict[str, Any]) -> None:
    for each in (*given[1:], *more.values()):
        if isinstance(each, int) and abs(each) > MAX_WIDTH:
            raise TooMuch(f"this filter takes numbers up to {MAX_WIDTH} here, not {each}")


def _check_json(given: list[Any], more: dict[str, Any]) -> None:
    _check_width(given, more)
    indent = more.get("indent", given[1] if len(given) > 1 else 0) or 0
    if isinstance(indent, int):
        checked_text(indent * MAX_DEPTH_OF_JSON * item_count(given[0]) // 10)


def _check_sum(given: list[Any], more: dict[str, Any]) -> None:
    for each in (*given[2:3], more.get("start", 0)):
        if isinstance(each, _SIZED):
            raise TooMuch("sum adds numbers here")


def _check_pretty(given: list[Any], more: dict[str, Any]) -> None:
    if text_size(given[0]) > MAX_TEXT // 100:
        raise TooMuch(f"pprint takes values of at most {MAX_TEXT // 100:,} characters here")


MAX_DEPTH_OF_JSON: Final = 10
"""How deep data are nested, at most, by which the size of indented JSON is estimated."""

_FILTER_CHECKS: Final[Mapping[str, Callable[[list[Any], dict[str, Any]], None]]] = {
    "replace": _check_replace_filter,
    "join": _check_join_filter,
    "batch": _check_count,
    "slice": _check_count,
    "tojson": _check_json,
    "round": _check_width,
    "sum": _check_sum,
    "pprint": _check_pretty,
}
_QUICK_FILTERS: Final = frozenset(
    ("attr", "count", "d", "default", "first", "items", "join", "last", "length", "list", "random", "reverse")
)
_TEXT_FILTERS: Final = frozenset(
    (
        *(
            "capitalize",
            "e",
            "escape",
            "forceescape",
            "lower",
            "pprint",
            "replace",
            "safe",
            "string",
            "striptags",
        ),
        *("title", "tojson", "trim", "truncate", "upper", "urlencode", "wordcount"),
    )
)


_local = threading.local()
