"""What a store that wraps another one passes on unchanged."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence

from limpet.errors import DamagedRecord, UsageError
from limpet.journal.optional_calls import Inspectable, Notifying, ReportsUndeleted, Salvaging, provides
from limpet.journal.store import Abilities, Store


class StoreWrapper(ABC):
    """A store in front of another, `_durable_store`, whose abilities, clock and health are its own as well."""

    @property
    @abstractmethod
    def _durable_store(self) -> Store: ...

    @property
    def abilities(self) -> Abilities:
        """What the wrapped store can do."""
        return self._durable_store.abilities

    @property
    def clock(self) -> Callable[[], float]:
        """The clock of the wrapped store, where that has one."""
        found: Callable[[], float] = self._durable_store.clock  # type: ignore[attr-defined]  # or it is missing here too
        return found

    @property
    def closed(self) -> bool:
        """Whether the wrapped store was closed."""
        return bool(getattr(self._durable_store, "closed", False))

    def wait_for_change(self, timeout: float) -> bool:
        """As the wrapped store does. Raises `UsageError` if its `abilities.notifies` is False."""
        if not provides(self._durable_store, Notifying):
            raise UsageError(f"{self._durable_store!r} can't be waited for: its abilities.notifies is False")
        return self._durable_store.wait_for_change(timeout)

    def salvage(self, run_id: str) -> Mapping[int, bytes | DamagedRecord]:
        """What the wrapped store has left of a run whose head can't be read; nothing if it doesn't say."""
        if provides(self._durable_store, Salvaging):
            return self._durable_store.salvage(run_id)
        return {}

    def undeleted(self, run_id: str) -> Exception | None:
        """As the wrapped store says."""
        if provides(self._durable_store, ReportsUndeleted):
            return self._durable_store.undeleted(run_id)
        return None

    def faults(self) -> Sequence[str]:
        """What the wrapped store finds wrong with itself."""
        if provides(self._durable_store, Inspectable):
            return self._durable_store.faults()
        return []
