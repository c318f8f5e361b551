"""What a store that stands in front of another passes on as it is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from limpet.errors import UsageError
from limpet.journal.store import Abilities, Inspectable, Notifying, Store


class StoreWrapper(ABC):
    """A store in front of another, `_behind`, which is the truth: what it can do, its time and its health are its."""

    @property
    @abstractmethod
    def _behind(self) -> Store: ...

    @property
    def abilities(self) -> Abilities:
        """What the store behind it can do."""
        return self._behind.abilities

    @property
    def clock(self) -> Callable[[], float]:
        """The clock of the store behind it, where that has one."""
        found: Callable[[], float] = self._behind.clock  # type: ignore[attr-defined]  # or the attribute is missing
        return found

    @property
    def closed(self) -> bool:
        """Whether the store behind it was closed."""
        return bool(getattr(self._behind, "closed", False))

    def wait_for_change(self, timeout: float) -> bool:
        """For a store of which `abilities.notifies` is said. Raises `UsageError` for another."""
        if not isinstance(self._behind, Notifying):
            raise UsageError(f"{self._behind!r} can't be waited for: its abilities.notifies is False")
        return self._behind.wait_for_change(timeout)

    def faults(self) -> Sequence[str]:
        """What the store behind it finds wrong with itself."""
        return self._behind.faults() if isinstance(self._behind, Inspectable) else []
