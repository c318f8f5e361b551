"""Objects around a store, as users write them."""

from __future__ import annotations

from typing import Any


class PassesOn:
    """Has nothing of its own: it asks another object for everything."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)
