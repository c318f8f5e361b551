"""Secrets: the marker for values that are never shown, finding secret keys in a schema, and masking values in texts.

A value under a secret key is stored and passed to nodes like any other. It is kept out of everything that shows
values without being asked for them: events, logs, summaries of runs, and the `repr` of states.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Final, get_args

from limpet.errors import UnstorableValue
from limpet.journal.encoding.user_types import TYPES

MASK: Final = "‹secret›"
"""What is shown instead."""

MIN_MASKED_LENGTH: Final = 4
"""A shorter secret isn't masked in texts: it would be found within half of all words."""

MIN_MASKED_LINE: Final = 8
"""A shorter line of a longer secret isn't masked by itself."""

MAX_DEPTH: Final = 50
MAX_PARTS: Final = 10_000
"""How many parts of secret values are looked for in a text."""


class Secret:
    """The marker: `Annotated[str, secret]` makes a key secret. It isn't callable, so it isn't taken for a reducer."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "secret"


secret: Final = Secret()
"""The marker of keys that are never shown: `Annotated[str, secret]`."""


class MaskedValue:
    """Stands for a secret value where values are shown."""

    __slots__ = ()

    def __repr__(self) -> str:
        return MASK


MASKED: Final = MaskedValue()


class MaskedDict(dict[str, Any]):
    """A dict whose `repr` has a mask for the values under `names`. Reading a key gives the value.

    `forms` are what secrets look like that may occur in its other values. A copy by pickle doesn't have them.
    """

    __slots__ = ("_names", "forms")

    def __init__(self, data: Mapping[str, Any], names: Collection[str], forms: Collection[str] = ()) -> None:
        super().__init__(data)
        self._names = names
        self.forms = forms

    @property
    def names(self) -> Collection[str]:
        """The names of the secret values."""
        return self._names

    def __repr__(self) -> str:
        return repr(masked(dict(self), self._names))

    def __reduce__(self) -> tuple[Any, ...]:
        return MaskedDict, (dict(self), self._names)


def secret_keys_of(keys: Mapping[str, Any]) -> frozenset[str]:
    """The secret keys of a schema: marked as secret anywhere in their type, or of a type for secrets."""
    return frozenset(key for key, hint in keys.items() if _is_secret(hint))


def _is_secret(hint: Any) -> bool:
    if isinstance(hint, Secret):
        return True
    if isinstance(hint, type) and hasattr(hint, "get_secret_value"):
        _make_storable(hint)
        return True
    return any(_is_secret(part) for part in get_args(hint))


def _make_storable(kind: Any) -> None:
    """Register pydantic's types for secrets, so that a state with such a key can be stored."""
    if kind.__module__ == "pydantic.types" and TYPES.of_class(kind) is None:
        TYPES.register(kind, to=lambda value: value.get_secret_value(), restore=kind)


def masked(value: Any, names: Collection[str], depth: int = 0, mask: Any = MASKED) -> Any:
    """A copy to be shown, in which plain dicts have a mask under the names."""
    if depth > MAX_DEPTH:
        return mask
    kind = type(value)
    if kind is dict:
        return {
            key: mask if key in names else masked(each, names, depth + 1, mask) for key, each in value.items()
        }
    if kind is list or kind is tuple:
        return kind(masked(each, names, depth + 1, mask) for each in value)
    return value


def without_secrets(value: Any, names: Collection[str], hide: Callable[[str], str], depth: int = 0) -> Any:
    """A copy to be shown, with a mask under the names and in each text that `hide` changes.

    What holds a secret and is neither a text nor a container, such as bytes or an object, is masked whole.
    """
    if depth > MAX_DEPTH:
        return MASK
    if isinstance(value, str):
        return hide(value)
    if isinstance(value, Mapping):
        return {
            without_secrets(key, (), hide, depth + 1): MASK
            if key in names
            else without_secrets(each, names, hide, depth + 1)
            for key, each in value.items()
        }
    kind = type(value)
    if kind in (list, tuple, set, frozenset):
        return kind(without_secrets(each, names, hide, depth + 1) for each in value)
    if any(hide(form) != form for form in text_forms([value])):
        return MASK
    return value


def text_of_values(state: Mapping[str, Any], names: Collection[str]) -> str:
    """A state as a line of a log shows it: its `repr`, with a mask wherever a secret occurs in it. Never raises."""
    values = dict(state)
    try:
        text = repr(masked(values, names))
    except Exception as error:  # of a user's class, or for a number of thousands of digits
        return f"<can't be shown: {type(error).__name__}>"
    return mask_text(text, text_forms(secret_values(values, names)))


def mask_text(text: str, forms: Iterable[str]) -> str:
    """The text with a mask for each of these forms in it. The longest are masked first, so that no rest is left."""
    found = [form for form in forms if form in text]
    for form in sorted(found, key=len, reverse=True):
        text = text.replace(form, MASK)
    return text


def text_forms(values: Iterable[Any]) -> set[str]:
    """The texts that secret values may appear as: the text itself, its `repr`, and its lines."""
    forms: set[str] = set()
    for part in _parts(values):
        if isinstance(part, str):
            lines = [line for line in part.splitlines() if len(line.strip()) >= MIN_MASKED_LINE]
            forms.update((part, part.strip(), repr(part)[1:-1], *lines, *map(str.strip, lines)))
        elif isinstance(part, (bytes, bytearray)):
            forms.update((repr(bytes(part))[2:-1], part.decode("utf-8", "replace")))
        elif isinstance(part, int) and abs(part) < 10**4000:
            forms.add(str(part))
    return {form for form in forms if len(form) >= MIN_MASKED_LENGTH}


def _parts(values: Iterable[Any]) -> Iterator[Any]:
    """The texts, bytes and numbers that values consist of."""
    waiting = deque(values)
    seen = 0
    while waiting and seen < MAX_PARTS:
        value = waiting.popleft()
        seen += 1
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


def secret_values(state: Mapping[str, Any], names: Collection[str]) -> Iterator[Any]:
    """The secret values of a state or a config: under the names, and for a workflow also one level deeper."""
    yield from (state[name] for name in names if name in state)
    for part in ("inputs", "context"):
        deeper = state.get(part)
        if type(deeper) is dict:
            yield from (deeper[name] for name in names if name in deeper)
    tasks = state.get("tasks")
    if type(tasks) is dict:
        for record in tasks.values():
            if type(record) is dict and record.get("secret"):
                yield record.get("result")


def hide_secret_path(error: UnstorableValue, names: Iterable[str]) -> UnstorableValue:
    """The same error with a path that ends at a secret key: the rest of the path could reveal the value."""
    for name in names:
        shown = name if name.isidentifier() else f'["{name}"]'
        found = re.search(rf"(?:^|\.|(?=\[)){re.escape(shown)}(?=$|[.\[{{])", error.path)
        if found is not None and found.end() < len(error.path):
            reason = "it holds something that can't be stored; as the key is secret, no more is shown"
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
        self.remembered |= text_forms(values)

    def remember_state(self, state: Any) -> None:
        """Mask the secrets of a state that is about to be dropped."""
        if self.idle or not isinstance(state, Mapping):
            return
        if isinstance(state, dict):
            # `dict.items` doesn't go through a node's state, which would note each key as read.
            state = dict(dict.items(state))
        self.remember(*secret_values(state, self.names))

    def hide(self, text: str, states: Iterable[Mapping[str, Any]]) -> str:
        """The text with the secrets of these states, and the remembered ones, masked."""
        if self.idle:
            return text
        values = [value for state in states for value in secret_values(state, self.names)]
        return mask_text(text, self.remembered | text_forms(values))
