"""Follow a run for as long as another process executes it: for a caller that streams a run which exists already."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator
from math import inf
from time import monotonic

from limpet.engine.following.cursor import EventCursor
from limpet.engine.following.follow import Follower
from limpet.engine.following.run_events import Event
from limpet.engine.leases.process_identity import is_dead
from limpet.engine.sessions.start import HeldElsewhere
from limpet.errors import StoreUnavailable
from limpet.journal.store import RUNNING

LONGEST_WAIT = 0.5
"""Seconds after which to look again whether the other process still executes the run."""


class Elsewhere:
    """How far a caller has followed a run that other processes execute, one after the other."""

    def __init__(self, has_gone: Callable[[], bool]) -> None:
        self._has_gone = has_gone
        self._place = EventCursor()

    def events(self, held: HeldElsewhere) -> Generator[Event, None, None]:
        """What happens in the run, until no process executes it."""
        follower = self._follower(held)
        try:
            until = inf
            while not follower.is_over and monotonic() < until:
                seen = follower.run.version
                entries = follower.take()
                for entry in entries:
                    yield follower.hand_out(entry)
                if not entries:
                    until = min(until, self._end_of_following(held, follower))
                    follower.run.wait(seen, LONGEST_WAIT)
        finally:
            self._leave(follower)

    async def aevents(self, held: HeldElsewhere) -> AsyncGenerator[Event, None]:
        """The same for `async for`."""
        from asyncio import to_thread

        follower = self._follower(held)
        try:
            until = inf
            while not follower.is_over and monotonic() < until:
                seen = follower.run.version
                entries = await to_thread(follower.take)
                for entry in entries:
                    yield follower.hand_out(entry)
                if not entries:
                    until = min(until, await to_thread(self._end_of_following, held, follower))
                    await follower.run.await_change(seen, LONGEST_WAIT)
        finally:
            self._leave(follower)

    def _end_of_following(self, held: HeldElsewhere, follower: Follower) -> float:
        """Until when to wait for more: without a limit while a process executes the run, as far as is known.

        When none does any longer, what it did last is seen a moment later.
        """
        try:
            is_executed = self._is_executed(held)
        except StoreUnavailable as problem:
            follower.run.endure(problem)
            is_executed = not self._has_gone()
        return inf if is_executed else monotonic() + LONGEST_WAIT

    def _leave(self, follower: Follower) -> None:
        self._place = follower.place
        follower.leave()

    def _follower(self, held: HeldElsewhere) -> Follower:
        return Follower(held.client, held.run_id, self._place, held.secrets)

    def _is_executed(self, held: HeldElsewhere) -> bool:
        """Whether a process that isn't known to be dead seems to hold the run, and the caller still wants to know."""
        head = held.client.head(held.run_id)
        if self._has_gone() or head.status != RUNNING or head.holder is None or is_dead(head.holder):
            return False
        return head.lease_until is not None and head.lease_until > held.client.now()
