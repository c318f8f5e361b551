"""Which limits a run waits for: how much of each is used, and how many are before its calls in the line.

A call that has no slot of a limit stands in its line, as the run says. A run that is queued says nothing of limits:
those of its queue are in the store, and those of its graph in the code; while runs of it wait, workers stand in the
lines of these.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from limpet.engine.leases.lease_client import LeaseClient
from limpet.engine.leases.limits import rules
from limpet.engine.leases.limits.stored_limit import StoredLimit
from limpet.errors import DamagedDocument, StoreError
from limpet.journal.waits import SLOT, PostWait

MAX_COUNTED: Final = 1000
"""How many calls of a line are counted at most."""


class AwaitedLimit(NamedTuple):
    """A limit that a run waits for a slot of: at a node, or as a whole, where `node` is "".

    `held` of `concurrency` slots are taken, and `begun` count for the `rate`; None is without a limit. `before` is
    how many stand in line before the call of the node, or `MAX_COUNTED` if there are more; None for a run as a whole:
    in the line, the next run of its graph stands for all of them. `problem` says why it can't be read, if it is
    damaged.
    """

    limit: str
    node: str
    concurrency: int | None
    held: int
    rate: str | None
    begun: int
    is_full: bool
    before: int | None = None
    problem: str = ""

    @property
    def usage(self) -> str:
        """How much of it is used, and the place in its line, in words."""
        if self.problem:
            return self.problem
        words = []
        if self.concurrency is not None:
            words.append(f"{self.held}/{self.concurrency}")
        if self.rate is not None:
            words.append(f"{self.begun} of {self.rate}")
        if self.before:
            more = " or more" if self.before >= MAX_COUNTED else ""
            words.append(f"{self.before:,}{more} before it")
        return ", ".join(words)


def limits_of_waits(client: LeaseClient, waits: Sequence[PostWait]) -> list[AwaitedLimit]:
    """The limits in whose lines calls of a run stand. One that is gone is left out."""
    slots = [wait for wait in waits if wait.kind == SLOT]
    found = []
    for name in dict.fromkeys(wait.name for wait in slots):
        try:
            stored = StoredLimit(client, name)
            limit = _limit(stored, client.store_time())
            line = stored.waiting(MAX_COUNTED) if limit is not None else []
            for wait in slots:
                if limit is not None and wait.name == name:
                    # Tickets sort as they stand in line.
                    before = sum(entry.ticket < wait.key for entry in line)
                    found.append(limit._replace(node=wait.node, before=before))
        except DamagedDocument as damage:
            damaged = _damaged(name, damage)
            found += [damaged._replace(node=wait.node) for wait in slots if wait.name == name]
        except StoreError:
            continue
    return found


def limits_of_run_in_line(client: LeaseClient, run_id: str, names: Iterable[str]) -> list[AwaitedLimit]:
    """Those of these limits in whose line a run as a whole stands, which a caller executes."""
    found = []
    for name in sorted(names):
        with suppress(StoreError):
            stored = StoredLimit(client, name)
            limit = _limit(stored, client.store_time())
            line = stored.waiting(MAX_COUNTED) if limit is not None else []
            places = [place for place, entry in enumerate(line) if (entry.run_id, entry.call) == (run_id, "")]
            if limit is not None and places:
                found.append(limit._replace(before=places[0]))
    return found


def full_limits(client: LeaseClient, names: Iterable[str], counts: bool) -> list[AwaitedLimit]:
    """Those of these limits that have no slot for a run as a whole. `counts` says whether it counts for rates."""
    found = []
    for name in sorted(names):
        try:
            limit = _limit(StoredLimit(client, name), client.store_time(), counts)
            if limit is not None and limit.is_full:
                found.append(limit)
        except DamagedDocument as damage:
            found.append(_damaged(name, damage))
        except StoreError:
            continue
    return found


def damaged_limits(client: LeaseClient, names: Iterable[str]) -> list[AwaitedLimit]:
    """Those of these limits that are damaged, so that no call gets a slot of them."""
    found = []
    for name in sorted(names):
        try:
            StoredLimit(client, name).read()
        except DamagedDocument as damage:
            found.append(_damaged(name, damage))
        except StoreError:
            continue
    return found


def _damaged(name: str, damage: DamagedDocument) -> AwaitedLimit:
    return AwaitedLimit(name, "", None, 0, None, 0, is_full=True, problem=f"it is damaged: {damage.reason}")


def _limit(stored: StoredLimit, now: float, counts: bool = True) -> AwaitedLimit | None:
    """A limit as it is used, without slots whose holders are dead; None if it limits nothing."""
    document = rules.normalised(stored.read()[1], now)
    document = document._replace(slots=tuple(stored.live(document, now)))
    if not rules.is_limiting(document):
        return None
    concurrency, rate, _ = document.values
    begun = rules.used_rate(document, now)
    is_full = rules.room(document, now, counts) == 0
    shown_rate = None if rate is None else str(rate)
    return AwaitedLimit(stored.name, "", concurrency, len(document.slots), shown_rate, begun, is_full)
