"""Secrets: the marker for what is never to be shown, finding it in a schema, and covering it in texts.

A value under a secret key is stored and handed to nodes like any other. It is kept out of what people and programs
get to see without having asked for it: events, logs, summaries of runs, and the `repr` of states.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Final, get_args

from limpet.errors import UnstorableValue
from limpet.journal.encoding.user_types import TYPES

MASK: Final = "‹secret›"
"""What is shown instead."""

SHORTEST: Final = 4
"""A text of fewer characters isn't looked for in other texts: it would be found in half of all words."""

SHORTEST_LINE: Final = 8
DEEPEST: Final = 50
MOST: Final = 10_000
"""How many parts of secret values are looked for in a text, at most."""


class Secret:
    """The marker: `Annotated[str, secret]` makes a key secret. It isn't callable, so it is no reducer."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "secret"


secret: Final = Secret()


class MaskedValue:
    """Stands for a value in what is shown."""

    __slots__ = ()

    def __repr__(self) -> str:
        return MASK


COVERED: Final = MaskedValue()


class MaskedDict(dict[str, Any]):
    """A dict that shows, when it is printed, what is under `names` as a mask. Reading a key gives the value."""

    __slots__ = ("_names",)

    def __init__(self, data: Mapping[str, Any], names: Collection[str]) -> None:
        super().__init__(data)
        self._names = names

    def __repr__(self) -> str:
        return repr(masked(dict(self), self._names))

    def __reduce__(self) -> tuple[Any, ...]:
        return MaskedDict, (dict(self), self._names)


def secrets_of(keys: Mapping[str, Any]) -> frozenset[str]:
    """The keys of a schema that are secret: marked so, anywhere in their type, or of a type that says so itself."""
    return frozenset(key for key, hint in keys.items() if _is_secret(hint))


def _is_secret(hint: Any) -> bool:
    if isinstance(hint, Secret):
        return True
    if isinstance(hint, type) and hasattr(hint, "get_secret_value"):
        _make_storable(hint)
        return True
    return any(_is_secret(part) for part in get_args(hint))


def _make_storable(kind: Any) -> None:
    """Have pydantic's types for secrets stored: whoever uses one as a state's key can't do without."""
    if kind.__module__ == "pydantic.types" and TYPES.of_class(kind) is None:
        TYPES.register(kind, to=lambda value: value.get_secret_value(), restore=kind)


def masked(value: Any, names: Collection[str], deep: int = 0) -> Any:
    """A copy to be shown: what plain dicts in it have under one of the names is covered."""
    if deep > DEEPEST:
        return COVERED
    kind = type(value)
    if kind is dict:
        return {
            key: COVERED if key in names else masked(each, names, deep + 1) for key, each in value.items()
        }
    if kind is list or kind is tuple:
        return kind(masked(each, names, deep + 1) for each in value)
    return value


def hidden(text: str, forms: Iterable[str]) -> str:
    """The text with all that it has of these forms covered, the longest first."""
    found = [form for form in forms if form in text]
    for form in sorted(found, key=len, reverse=True):
        text = text.replace(form, MASK)
    return text


def forms_of(values: Iterable[Any]) -> set[str]:
    """What secret values may look like in a text: as they are, as they are printed, and by lines."""
    forms: set[str] = set()
    for part in _parts(values):
        if isinstance(part, str):
            lines = [line for line in part.splitlines() if len(line.strip()) >= SHORTEST_LINE]
            forms.update((part, part.strip(), repr(part)[1:-1], *lines, *map(str.strip, lines)))
        elif isinstance(part, (bytes, bytearray)):
            forms.update((repr(bytes(part))[2:-1], part.decode("utf-8", "replace")))
        elif isinstance(part, int) and abs(part) < 10**4000:
            forms.add(str(part))
    return {form for form in forms if len(form) >= SHORTEST}


def _parts(values: Iterable[Any]) -> Iterator[Any]:
    """The texts, bytes and numbers that values consist of."""
    waiting, seen = deque(values), 0
    while waiting and seen < MOST:
        value, seen = waiting.popleft(), seen + 1
        if isinstance(value, (str, bytes, bytearray, int)) and not isinstance(value, bool):
            yield value
        elif isinstance(value, Mapping):
            waiting.extend(value.values())
        elif isinstance(value, (list, tuple, set, frozenset, deque)):
            waiting.extend(value)
        elif hasattr(value, "get_secret_value"):
            waiting.append(value.get_secret_value())
        elif is_dataclass(value) and not isinstance(value, type):
            waiting.extend(getattr(value, each.name, None) for each in fields(value))
        elif type(getattr(value, "__dict__", None)) is dict:
            waiting.extend(vars(value).values())


def values_in(state: Mapping[str, Any], names: Collection[str]) -> Iterator[Any]:
    """The secret values of a state, or of a config: under the names, and in a workflow's also one level deeper."""
    yield from (state[name] for name in names if name in state)
    for part in ("inputs", "context"):
        deeper = state.get(part)
        if type(deeper) is dict:
            yield from (deeper[name] for name in names if name in deeper)
    tasks = state.get("tasks")
    for record in tasks.values() if type(tasks) is dict else ():
        if type(record) is dict and record.get("secret"):
            yield record.get("result")


def refused_discreetly(error: UnstorableValue, names: Iterable[str]) -> UnstorableValue:
    """The same refusal, whose path ends at a secret key: what comes after it may tell of the value."""
    for name in names:
        shown = name if name.isidentifier() else f'["{name}"]'
        found = re.search(rf"(?:^|\.|(?=\[)){re.escape(shown)}(?=$|[.\[{{])", error.path)
        if found is not None and found.end() < len(error.path):
            reason = "something in it isn't data of a type that can be stored; as the key is secret, no more is shown"
            return UnstorableValue(error.path[: found.end()], reason)
    return error


class SecretMasker:
    """Masks the secrets of one run in texts that are shown.

    `names` are the secret keys, and `task_results` says that results of tasks are secret, too. `plain_text` says that
    the store would keep secrets in plain text. `remembered` is what secrets look like that no state holds: answers to
    secret questions, and what a call held that failed.
    """

    __slots__ = ("names", "plain_text", "remembered", "task_results")

    def __init__(
        self, names: frozenset[str] = frozenset(), task_results: bool = False, plain_text: bool = False
    ) -> None:
        self.names = names
        self.task_results = task_results
        self.plain_text = plain_text
        self.remembered: set[str] = set()

    @property
    def idle(self) -> bool:
        """Whether the run has no secrets."""
        return not (self.names or self.task_results or self.remembered)

    def remember(self, *values: Any) -> None:
        """Mask these values from now on, although no state holds them."""
        self.remembered |= forms_of(values)

    def remember_state(self, state: Any) -> None:
        """Mask the secrets of a state that is about to be dropped."""
        if self.idle or not isinstance(state, Mapping):
            return
        if isinstance(state, dict):
            # `dict.items` doesn't go through a node's state, which would note each key as read.
            state = dict(dict.items(state))
        self.remember(*values_in(state, self.names))

    def hide(self, text: str, states: Iterable[Mapping[str, Any]]) -> str:
        """The text with the secrets of these states, and the remembered ones, masked."""
        if self.idle:
            return text
        values = [value for state in states for value in values_in(state, self.names)]
        return hidden(text, self.remembered | forms_of(values))
