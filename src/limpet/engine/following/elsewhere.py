"""Follow a run for as long as another process executes it: for a caller that streams a run which exists already."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator

from limpet.engine.following.cursor import EventCursor
from limpet.engine.following.follow import Follower
from limpet.engine.following.run_events import Event
from limpet.engine.leases.process_identity import is_dead
from limpet.engine.sessions.start import HeldElsewhere
from limpet.errors import StoreUnavailable
from limpet.journal.store import RUNNING, RunHead

FIRST_WAIT = 0.05
LONGEST_WAIT = 0.5
"""Seconds after which to look again whether the other process still executes the run."""


class Elsewhere:
    """How far a caller has followed a run that other processes execute, one after the other.

    A pause is given when something comes after it: a run that stays paused is opened, and that reports its pause.
    """

    def __init__(self, has_gone: Callable[[], bool]) -> None:
        self._has_gone = has_gone
        self._place = EventCursor()
        self._pause: Event | None = None
        """A pause that wasn't given yet."""

    def events(self, held: HeldElsewhere) -> Generator[Event, None, None]:
        """What happens in the run, until no process executes it."""
        follower = self._follower(held)
        has_waited = False
        try:
            while not follower.is_over:
                seen = follower.run.version
                entries = follower.take()
                for entry in entries:
                    yield from self._given(follower.hand_out(entry))
                if entries or follower.is_over:
                    continue
                if has_waited and self._is_left(held, follower):
                    return
                follower.run.wait(seen, LONGEST_WAIT if has_waited else FIRST_WAIT)
                has_waited = True
        finally:
            self._leave(follower)

    async def aevents(self, held: HeldElsewhere) -> AsyncGenerator[Event, None]:
        """The same for `async for`."""
        from asyncio import to_thread

        follower = self._follower(held)
        has_waited = False
        try:
            while not follower.is_over:
                seen = follower.run.version
                entries = await to_thread(follower.take)
                for entry in entries:
                    for event in self._given(follower.hand_out(entry)):
                        yield event
                if entries or follower.is_over:
                    continue
                if has_waited and await to_thread(self._is_left, held, follower):
                    return
                await follower.run.await_change(seen, LONGEST_WAIT if has_waited else FIRST_WAIT)
                has_waited = True
        finally:
            self._leave(follower)

    def _given(self, event: Event) -> list[Event]:
        """What the caller is given when this event comes: the pause before it too, but a pause itself later."""
        found = [] if self._pause is None else [self._pause]
        self._pause = None
        if event["type"] == "pause":
            self._pause = event
            return found
        return [*found, event]

    def _is_left(self, held: HeldElsewhere, follower: Follower) -> bool:
        """Whether to follow no longer: no process executes the run, as far as is known, and its events were taken.

        This is asked after a first wait: a run that is free, and can't be opened all the same, is tried with pauses.
        """
        if self._has_gone():
            return True
        try:
            head = held.client.head(held.run_id)
        except StoreUnavailable as problem:
            follower.run.endure(problem)
            return False
        return not _is_executed(held, head) and follower.has_all_up_to(head)

    def _leave(self, follower: Follower) -> None:
        self._place = follower.place
        follower.leave()

    def _follower(self, held: HeldElsewhere) -> Follower:
        return Follower(held.client, held.run_id, self._place, held.secrets)


def _is_executed(held: HeldElsewhere, head: RunHead) -> bool:
    """Whether a process that isn't known to be dead seems to hold the run."""
    if head.status != RUNNING or head.holder is None or is_dead(head.holder):
        return False
    return head.lease_until is not None and head.lease_until > held.client.now()
