"""`Window`: some consecutive events of a run, which all followers that are as far take from.

The watcher reads the window that is up to date further, and a follower any other one, when it has taken all of it.
Records are read and decoded once for all followers. A window is bounded: a follower that is too slow for it leaves
it, and finds another one or begins one of its own.
"""

from __future__ import annotations

from collections import deque
from threading import Lock
from weakref import WeakSet

from limpet.engine.following.cursor import EventCursor
from limpet.engine.following.event_feed import Entry, EventFeed
from limpet.journal.store import RunHead

MAX_WINDOW = 4096
MAX_WINDOW_BYTES = 4_000_000
"""How many events are kept for followers that haven't taken them yet, besides those that were read last."""


class Member:
    """Something that follows a run or waits for it.

    `taken` is the number of the next entry that it takes, and `joined` how often its window had begun to be read
    further when it joined: only what later reads found is known to be as new as itself.
    """

    __slots__ = ("__weakref__", "joined", "taken")

    def __init__(self) -> None:
        self.taken = 0
        self.joined = 0


class Window:
    """The events after a place, as far as the feed has read them, and as far as they are still needed."""

    def __init__(self, feed: EventFeed) -> None:
        self.floor = feed.place
        """The place before the first entry."""
        self.head: RunHead | None = None
        """The head as of the end of the window, once it is up to date; None before that."""
        self.reads = 0
        """How often it was read further."""
        self._begun = 0
        """The same, with the read that is under way, or that failed."""
        self._is_in_doubt = False
        """Whether it is being read further: what the feed has read may not be among the entries yet."""
        self._feed = feed
        self._lock = Lock()
        self._reading = Lock()
        self._entries: deque[Entry] = deque()
        self._first = 0
        """The number of the first entry."""
        self._members: WeakSet[Member] = WeakSet()

    @property
    def is_broken(self) -> bool:
        """Whether a thread was interrupted, or failed, while it read the window further: then no other uses it."""
        return not self._reading.locked() and self._is_in_doubt

    def __len__(self) -> int:
        return len(self._entries)

    def join(self, member: Member) -> None:
        """Let a member take from the first entry on."""
        with self._lock:
            member.taken = self._first
            member.joined = self._begun
            self._members.add(member)

    def leave(self, member: Member) -> None:
        """The member takes no more."""
        with self._lock:
            self._members.discard(member)

    def take(self, member: Member) -> list[Entry] | None:
        """What a member hasn't taken yet; None if that isn't here any longer."""
        with self._lock:
            if member.taken < self._first:
                self._members.discard(member)
                return None
            new = list(self._entries)[member.taken - self._first :]
            member.taken = self._first + len(self._entries)
            return new

    def read(self, reads: int) -> bool:
        """Read further, unless it was since there were this many `reads`. Returns whether there is more to read.

        Raises what `EventFeed.read` raises.
        """
        with self._reading:
            if self.reads != reads or self._is_in_doubt:
                return True
            self._is_in_doubt = True
            self._begun = reads + 1
            batch = self._feed.read()
            with self._lock:
                # Before the new entries: they stay until they can be taken, however large they are.
                self._trim()
                self._entries.extend(batch.entries)
                self.head = None if batch.has_more else batch.head
            self.reads += 1
            self._is_in_doubt = False
            return batch.has_more

    def _trim(self) -> None:
        """Drop entries that all members have taken, and the oldest if they are too many. Under the lock."""
        needed = min((member.taken for member in list(self._members)), default=None)
        size = sum(entry.size for entry in self._entries)
        while self._entries:
            is_needed = needed is not None and self._first >= needed
            is_small = len(self._entries) <= MAX_WINDOW and size <= MAX_WINDOW_BYTES
            if is_needed and is_small:
                return
            entry = self._entries.popleft()
            size -= entry.size
            self._first += 1
            self.floor = after(self.floor, entry)


def after(place: EventCursor, entry: Entry) -> EventCursor:
    """The place after an entry, for a follower that was at `place`."""
    if entry.is_output:
        return place._replace(output=entry.place.output)
    if entry.place.output == place.output:
        return entry.place  # nearly always
    return entry.place._replace(output=place.output)


def is_behind(place: EventCursor, other: EventCursor) -> bool:
    """Whether a follower at `place` misses events that one at `other` has had."""
    return (place.record, place.part) < (other.record, other.part) or place.output < other.output
