"""What clients give as JSON, checked before it is used. Each check raises `UsageError`."""

from __future__ import annotations

from typing import Any, Final

from limpet.errors import UsageError
from limpet.frontends.values import holds_mask, parts_of
from limpet.graphs.secrets import MASK

MAX_DEPTH: Final = 150
"""Levels of lists and objects that clients may give, at most. A store keeps a few more."""


def check_text(name: str, text: str) -> str:
    """A text, unless it has characters that no name has, and that not every store can keep."""
    if "\0" in text or any("\ud800" <= character <= "\udfff" for character in text):
        raise UsageError(f"{name!r} has a character that isn't valid in a text")
    return text


def check_depth(given: Any, what: str) -> None:
    """Refuse what is nested too deeply. It isn't walked recursively."""
    level = [given]
    for _ in range(MAX_DEPTH):
        level = [each for part in level for each in parts_of(part)]
        if not level:
            return
    raise UsageError(f"{what} is nested more than {MAX_DEPTH} levels deep")


def check_no_mask(what: str, value: Any) -> None:
    """Refuse what stands for a secret wherever that is shown."""
    if holds_mask(value):
        raise UsageError(
            f"{what} has {MASK!r}, which is shown in place of a secret: stored, it would replace the secret. "
            "Give the value, or leave its key out"
        )
