"""What stores share that claim several runs in one call."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from limpet.errors import DamagedRecord, RunNotFound, StoreUnavailable
from limpet.journal.store import Lease, RunHead


def claim_one_by_one(
    wanted: Sequence[RunHead], claim: Callable[[RunHead], Lease | None]
) -> list[Lease | None]:
    """What `Store.claim_ready` returns, where `claim` claims one run, or returns None.

    A call that raises has changed nothing: so once a run was claimed, what stops the store only ends the call.
    """
    leases: list[Lease | None] = []
    places = first_places(wanted)
    for place, listed in enumerate(wanted):
        if places[listed.run_id] != place:
            leases.append(None)
            continue
        try:
            leases.append(claim(listed))
        except (RunNotFound, DamagedRecord):
            leases.append(None)
        except StoreUnavailable:
            if not any(leases):
                raise
            break
    return leases + [None] * (len(wanted) - len(leases))


def first_places(wanted: Sequence[RunHead]) -> dict[str, int]:
    """Where each run comes first. If it comes again, it isn't claimed there."""
    places: dict[str, int] = {}
    for place, listed in enumerate(wanted):
        places.setdefault(listed.run_id, place)
    return places
