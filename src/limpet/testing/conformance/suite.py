"""The suite that every store passes, for you to certify yours.

Derive a test class and give it a fixture `store`, an empty store for each test:

    class TestMyStore(StoreConformance):
        @pytest.fixture
        def store(self, clock):
            store = MyStore(clock=clock)
            yield store
            store.close()

The clock stands still until a test advances it. For a store whose time is a server's, override the
fixture `clock` with something that has an `advance(seconds)` of its own. What a store can't do, it
declares in `abilities`; the claims that don't apply are then skipped, with the reason. Two methods
may be overridden where they make sense: `reopen` and `damage`. Needs pytest.
"""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite(
    "limpet.testing.conformance.tools",
    "limpet.testing.conformance.journal_claims",
    "limpet.testing.conformance.lease_claims",
    "limpet.testing.conformance.ready_claims",
    "limpet.testing.conformance.notice_claims",
    "limpet.testing.conformance.sharing_claims",
    "limpet.testing.conformance.upkeep_claims",
)

from limpet.journal.store import Notifying, Store  # noqa: E402  # the assertions below are to be rewritten first
from limpet.testing.conformance.journal_claims import JournalClaims  # noqa: E402
from limpet.testing.conformance.lease_claims import LeaseClaims  # noqa: E402
from limpet.testing.conformance.notice_claims import NoticeClaims  # noqa: E402
from limpet.testing.conformance.ready_claims import ReadyClaims  # noqa: E402
from limpet.testing.conformance.sharing_claims import SharingClaims  # noqa: E402
from limpet.testing.conformance.tools import ManualClock  # noqa: E402
from limpet.testing.conformance.upkeep_claims import UpkeepClaims  # noqa: E402

__all__ = ["ManualClock", "StoreConformance"]


class StoreConformance(JournalClaims, LeaseClaims, ReadyClaims, UpkeepClaims, SharingClaims, NoticeClaims):
    """All claims about a store. Derive from it, and provide the fixture `store`."""

    @pytest.fixture
    def clock(self) -> ManualClock:
        """The time by which the store under test lives."""
        return ManualClock()

    def test_it_is_a_store(self, store: Store) -> None:
        """G10: whatever passes as a store can be given wherever a store is named."""
        assert isinstance(store, Store)
        assert store.abilities.level in ("disk", "process", "memory")
        assert not store.abilities.shared or store.abilities.leases
        assert not store.abilities.notifies or isinstance(store, Notifying)
