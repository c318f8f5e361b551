"""What a store that wraps another one passes on unchanged."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence

from limpet.errors import DamagedDocument, DamagedRecord, UsageError
from limpet.journal.optional_calls import (
    FindsDamagedDocuments,
    Inspectable,
    Notifying,
    ReportsUndeleted,
    Salvaging,
    provides,
)
from limpet.journal.store import ENDED, Abilities, Document, Lane, Lease, Output, Post, RunHead, Store


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
    def store_time(self) -> Callable[[], float]:
        """How the wrapped store tells the time, where that does."""
        found: Callable[[], float] = self._durable_store.store_time  # type: ignore[attr-defined]  # as with `clock`
        return found

    @property
    def change_mark(self) -> Callable[[], object]:
        """How the wrapped store tells that its runs have changed, where that does."""
        found: Callable[[], object] = self._durable_store.change_mark  # type: ignore[attr-defined]  # as with `clock`
        return found

    @property
    def closed(self) -> bool:
        """Whether the wrapped store was closed."""
        return bool(getattr(self._durable_store, "closed", False))

    def heads(self, run_ids: Sequence[str]) -> Sequence[RunHead | None]:
        return self._durable_store.heads(run_ids)

    def claim(self, run_id: str, holder: str, ttl: float, instead_of: int | None = None) -> Lease:
        return self._durable_store.claim(run_id, holder, ttl, instead_of)

    def claim_ready(self, wanted: Sequence[RunHead], holder: str, ttl: float) -> list[Lease | None]:
        return self._durable_store.claim_ready(wanted, holder, ttl)

    def renew(self, leases: Iterable[Lease], ttl: float) -> list[bool | None]:
        return self._durable_store.renew(leases, ttl)

    def are_valid(self, leases: Sequence[Lease]) -> list[bool]:
        return self._durable_store.are_valid(leases)

    def lanes(self) -> Sequence[Lane]:
        return self._durable_store.lanes()

    def release(self, lease: Lease) -> None:
        self._durable_store.release(lease)

    def post(self, run_id: str, key: str, body: bytes) -> bool:
        return self._durable_store.post(run_id, key, body)

    def inbox(self, run_id: str) -> Sequence[Post]:
        return self._durable_store.inbox(run_id)

    def add_output(self, run_id: str, fence: int, bodies: Sequence[bytes], keep: int) -> int:
        return self._durable_store.add_output(run_id, fence, bodies, keep)

    def output(self, run_id: str, after: int = 0, limit: int | None = None) -> Sequence[Output]:
        return self._durable_store.output(run_id, after, limit)

    def put_document(self, name: str, body: bytes, version: int, due: float | None = None) -> int | None:
        return self._durable_store.put_document(name, body, version, due)

    def get_document(self, name: str) -> Document | None:
        return self._durable_store.get_document(name)

    def list_documents(
        self, prefix: str = "", due: bool = False, limit: int | None = None
    ) -> Sequence[Document]:
        return self._durable_store.list_documents(prefix, due, limit)

    def delete_document(self, name: str, version: int) -> bool:
        return self._durable_store.delete_document(name, version)

    def prune(self, run_id: str, before: int) -> int:
        return self._durable_store.prune(run_id, before)

    def expire(self, older_than: float, statuses: Sequence[str] = ENDED) -> int:
        return self._durable_store.expire(older_than, statuses)

    def delete(self, run_id: str) -> None:
        self._durable_store.delete(run_id)

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

    def damaged_documents(self, prefix: str = "") -> Sequence[DamagedDocument]:
        """The documents that the wrapped store can't read; none if it doesn't say."""
        if provides(self._durable_store, FindsDamagedDocuments):
            return self._durable_store.damaged_documents(prefix)
        return []

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
