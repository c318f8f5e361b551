"""`UnknownValue`: what stands for a stored value whose class isn't known in this process, when runs are looked at."""

from __future__ import annotations

from typing import Any

SHOWN_CONTENT = 200
"""How many characters of a value's content its `repr` shows."""


class UnknownValue:
    """A stored value of a class that isn't registered in this process.

    `class_name` is the name that the class is registered under where it is known, and `content` what the value was
    stored as: for a dataclass or a model, a dict of its fields. It can't be changed, and is stored again exactly as
    it was. Only looking at a run gives such values; resuming it needs the class.
    """

    __slots__ = ("_data", "class_name")

    def __init__(self, class_name: str, data: bytes) -> None:
        self.class_name = class_name
        """The name that the class is registered under where it is known."""
        self._data = data

    @property
    def content(self) -> Any:
        """What the value was stored as; a copy each time."""
        from limpet.journal.encoding.codec import decode_for_viewing

        return decode_for_viewing(self._data)[1]

    def __repr__(self) -> str:
        shown = repr(self.content)
        if len(shown) > SHOWN_CONTENT:
            shown = f"{shown[:SHOWN_CONTENT]}…"
        return f"<{self.class_name}, which isn't known here: {shown}>"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, UnknownValue):
            return NotImplemented
        return self._data == other._data

    def __hash__(self) -> int:
        return hash(self._data)

    def __copy__(self) -> UnknownValue:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> UnknownValue:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return UnknownValue, (self.class_name, self._data)


def stored_bytes(value: UnknownValue) -> bytes:
    """The bytes that the value was stored as."""
    return value._data
