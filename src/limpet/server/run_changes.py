"""Whether the runs of a store have changed: one watcher for all clients that show lists of runs.

It looks a few times a second as long as there is a client, in a thread of its own, and not at all otherwise. What
has changed isn't known: a client that is interested asks for its list again.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, suppress
from threading import Lock
from time import monotonic, time
from typing import Any, Final

from limpet.engine.operations.run_info import list_all
from limpet.journal.optional_calls import MarksChanges, Notifying, provides
from limpet.journal.run_filter import LeaseState, RunFilter
from limpet.journal.store import Store
from limpet.server.event_stream import KEEP_ALIVE, NOTHING_NEW, message
from limpet.threads.workers import Monitor, start_thread

MESSAGE_INTERVAL: Final = 1.0
"""Seconds between two messages, at least."""

LOOK_INTERVAL: Final = 0.25
"""Seconds between two looks at the mark of a store. Where there is none, lists are looked at once a second."""

BEGINNING: Final = b": the changes after yours\n\n"
"""A comment, which clients ignore."""

NEWEST: Final = 50
HELD: Final = 100
"""Runs that are looked at where a store doesn't mark changes: the newest, and those under way."""

START_TIME: Final = 0.2
"""Seconds that a thread takes to start, at most. If it hasn't by then, another is started."""

log = logging.getLogger("limpet.server")


class _Client:
    """A client that waits for changes, on an event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.woken = asyncio.Event()

    def wake(self) -> None:
        """Have it look. From any thread."""
        try:
            self._loop.call_soon_threadsafe(self.woken.set)
        except RuntimeError:  # its event loop was closed
            return


class RunChanges:
    """Tells clients that runs of a store have changed. `cursor` is the newest change, as they know it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._epoch = secrets.token_hex(4)
        """Distinguishes the changes that this process has counted from those of another."""
        self._version = 0
        self._changed_at = time()
        self._looks = 0
        self._known: Any = None
        """What the last look saw."""
        self._lock = Lock()
        self._clients: set[_Client] = set()
        self._working = Lock()
        """Held by the thread that looks."""
        self._started = 0.0
        """When that was started, for as long as it hasn't ended."""
        self._left = Monitor()
        self._has_failed = False
        self._has_missed = False
        """Whether the store has told of a change before a look that failed."""

    @property
    def cursor(self) -> str:
        """The newest change: it is another one after each."""
        return f"{self._epoch}.{self._version}"

    async def begin(self, after: str | None) -> AsyncIterator[bytes]:
        """Messages as of `messages`. Once this has returned, they have each change from then on."""
        messages = self.messages(after)
        beginning = await anext(messages)

        async def all_messages() -> AsyncIterator[bytes]:
            async with aclosing(messages):  # when the client leaves, and not when it is garbage
                yield beginning
                async for each in messages:
                    yield each

        return all_messages()

    async def messages(self, after: str | None) -> AsyncGenerator[bytes, None]:
        """The place from which a client continues, and a server-sent event for each change after it.

        It is after a cursor, or now. There is at most one event a second.
        """
        client = _Client()
        looks = self._join(client)
        try:
            while self._looks == looks:  # there may have been changes while there was no client
                await self._pause(client)
            seen = self.cursor if after is None else after
            # Where a client that is cut off now continues; one that names its own place has it.
            yield f"id: {seen}\n\n".encode() if after is None else BEGINNING
            while True:
                if seen != self.cursor:
                    seen = self.cursor
                    yield message("changed", {"at": self._changed_at}, seen)
                elif not await self._pause(client):
                    yield NOTHING_NEW
        finally:
            self._leave(client)

    async def _pause(self, client: _Client) -> bool:
        """Wait for the next look that sees a change; False if there was none for a while."""
        until = monotonic() + KEEP_ALIVE
        while (left := until - monotonic()) > 0:
            self._ensure_thread()
            # One that was started just now may have ended, as its client had left.
            seconds = left if self._working.locked() else min(left, START_TIME)
            with suppress(TimeoutError):
                await asyncio.wait_for(client.woken.wait(), seconds)
                client.woken.clear()
                return True
        return False

    def _join(self, client: _Client) -> int:
        """Add a client, and return the number of looks that doesn't tell it enough."""
        with self._lock:
            self._clients.add(client)
            return -1 if self._working.locked() else self._looks

    def _leave(self, client: _Client) -> None:
        with self._lock:
            self._clients.discard(client)
        self._left.notify()

    def _ensure_thread(self) -> None:
        """Start the thread that looks, unless it is at work, or was started just now."""
        now = monotonic()
        if not self._working.locked() and now - self._started > START_TIME:
            self._started = now
            start_thread(self._watch, "limpet-run-changes")

    def _watch(self) -> None:
        """Look as long as there are clients. Two threads may start at once: then one of them ends at once."""
        while self._clients and self._working.acquire(blocking=False):
            try:
                self._look_until_left()
            finally:
                self._started = 0.0
                self._working.release()

    def _look_until_left(self) -> None:
        """Look until no client is left."""
        # What happened since the last client left isn't known, unless the store has marked it.
        may_have_changed = True
        is_first = True
        while True:
            has_changed = self._look(may_have_changed)
            with self._lock:
                self._looks += 1
                if has_changed:
                    self._version += 1
                    self._changed_at = time()
                clients = list(self._clients)
            if has_changed or is_first:
                for client in clients:
                    client.wake()
            is_first = False
            may_have_changed = self._wait(has_changed)
            with self._lock:
                if not self._clients:
                    return

    def _look(self, may_have_changed: bool) -> bool:
        """Whether runs have changed since the last look that succeeded, as far as clients have been told.

        There is a change in any case if the store has told of one. A store that is unavailable is asked again.
        """
        before = self._known
        may_have_changed = may_have_changed or self._has_missed
        try:
            if provides(self._store, MarksChanges):
                self._known = self._store.change_mark()
                may_have_changed = False
            else:
                self._known = self._most_likely_to_change()
        except Exception as problem:
            if not self._has_failed:
                log.warning("couldn't look for changes of runs: %s; will try again", problem)
            self._has_failed = True
            self._has_missed = may_have_changed
            return False
        self._has_failed = False
        self._has_missed = False
        return may_have_changed or before != self._known

    def _most_likely_to_change(self) -> list[tuple[Any, ...]]:
        held = RunFilter(lease_states=(LeaseState.HELD, LeaseState.EXPIRED), limit=HELD)
        found = [*list_all(self._store, RunFilter(limit=NEWEST)), *list_all(self._store, held)]
        return [(head.run_id, head.created, head.status, head.fence, head.sequence) for head, _ in found]

    def _wait(self, has_changed: bool) -> bool:
        """Wait until the next look. True if the store has notified of a change."""
        store = self._store
        if store.abilities.notifies and provides(store, Notifying):
            if has_changed:
                self._sleep(MESSAGE_INTERVAL)
            try:
                return store.wait_for_change(MESSAGE_INTERVAL)
            except Exception:  # the next look says what is wrong
                has_changed = True
        if has_changed or not provides(store, MarksChanges):
            self._sleep(MESSAGE_INTERVAL)
        else:
            self._sleep(LOOK_INTERVAL)
        return False

    def _sleep(self, seconds: float) -> None:
        self._left.wait_for(lambda: not self._clients, seconds)
