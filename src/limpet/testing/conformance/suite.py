"""The conformance suite: every store of Limpet passes it, and it certifies a store of your own.

Derive a test class and give it a fixture `store`, an empty store for each test:

    class TestMyStore(StoreConformance):
        @pytest.fixture
        def store(self, clock):
            store = MyStore(clock=clock)
            yield store
            store.close()

The clock stands still until a test advances it. For a store that uses the time of a server, override the fixture
`clock` with an object that has its own `advance(seconds)`. A store declares in `abilities` what it can't do; tests
that don't apply are then skipped, with the reason. Override the methods `reopen`, `damage` and `damage_document`
where they make sense for the store. Needs pytest.
"""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite(
    "limpet.testing.conformance.store_calls",
    "limpet.testing.conformance.journal",
    "limpet.testing.conformance.leases",
    "limpet.testing.conformance.posts",
    "limpet.testing.conformance.output_and_documents",
    "limpet.testing.conformance.ready_runs",
    "limpet.testing.conformance.claims_of_ready_runs",
    "limpet.testing.conformance.change_notices",
    "limpet.testing.conformance.concurrency",
    "limpet.testing.conformance.retention",
)

from limpet.journal.optional_calls import Notifying, provides  # noqa: E402  # pytest has to rewrite the assertions below before they are imported
from limpet.journal.store import Store  # noqa: E402
from limpet.testing.conformance.change_notices import ChangeNoticeTests  # noqa: E402
from limpet.testing.conformance.claims_of_ready_runs import ClaimReadyTests  # noqa: E402
from limpet.testing.conformance.concurrency import ConcurrencyTests  # noqa: E402
from limpet.testing.conformance.journal import JournalTests  # noqa: E402
from limpet.testing.conformance.leases import LeaseTests  # noqa: E402
from limpet.testing.conformance.output_and_documents import OutputAndDocumentTests  # noqa: E402
from limpet.testing.conformance.posts import PostTests  # noqa: E402
from limpet.testing.conformance.ready_runs import ReadyRunTests  # noqa: E402
from limpet.testing.conformance.retention import RetentionTests  # noqa: E402
from limpet.testing.conformance.store_calls import ManualClock  # noqa: E402

__all__ = ["ManualClock", "StoreConformance"]


class StoreConformance(
    JournalTests,
    LeaseTests,
    PostTests,
    OutputAndDocumentTests,
    ReadyRunTests,
    ClaimReadyTests,
    RetentionTests,
    ConcurrencyTests,
    ChangeNoticeTests,
):
    """All tests of a store. Derive from it, and provide the fixture `store`."""

    @pytest.fixture
    def clock(self) -> ManualClock:
        """The clock of the store under test."""
        return ManualClock()

    def test_it_is_a_store(self, store: Store) -> None:
        """G10: it can be passed wherever a store is expected."""
        assert provides(store, Store)
        assert store.abilities.level in ("disk", "process", "memory")
        assert not store.abilities.shared or store.abilities.leases
        assert not store.abilities.notifies or provides(store, Notifying)
