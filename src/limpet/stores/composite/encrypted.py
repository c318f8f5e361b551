"""Encryption at rest: a store around another one, which then sees records and notes as ciphertext only.

AES-256-GCM, with a random nonce of 96 bits each time. What is stored of a record or a note:

    byte 0       0xC1, the format
    byte 1       how many bytes the key's id has; the id follows
    4 bytes      what the key is recognised by: the start of HMAC-SHA-256(key, "limpet key")
    4 bytes      CRC-32 over all of this, big-endian, so that damage isn't taken for a key that is missing
    12 bytes     the nonce
    the rest     the ciphertext and its tag of 16 bytes

The tag also covers these bytes up to the nonce, and the place as text: `record 3 <run id>`, or `note 0 <run id>`.
So nothing can be put in another's place: not in another run, not under another number, not a record for a note.

What it doesn't hide: ids of runs, names of graphs, tags, parents, statuses, holders, signals, times, priorities, and
how large and how many the records are. What it can't notice: that a whole run, or a run's newest records, or a note,
were set back to what they had been. An empty note stays empty.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

from limpet.errors import DamagedRecord, KeyMissing, StoreUnavailable, TooLarge, UsageError
from limpet.journal.store import (
    ENDED,
    Commit,
    Heads,
    Lease,
    NewRun,
    RunFilter,
    RunHead,
    Store,
    Tail,
)
from limpet.stores.composite.wrapper import StoreWrapper

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

FORMAT = 0xC1
"""No value that Limpet encodes begins with this byte, so ciphertext is never taken for a value."""

NONCE = 12
TAG = 16


class Keys:
    """The keys of an encrypted store, each of 32 bytes, by ids of your choice; `current` is the one that writes.

    The others only read, so that keys can be changed: add a new one, make it `current`, and keep the old ones for as
    long as there are runs that were written with them. Ids are stored in plain text; keys are shown nowhere.
    """

    def __init__(self, keys: Mapping[str, bytes], current: str | None = None) -> None:
        if not isinstance(keys, Mapping) or not keys:
            raise UsageError('Keys takes a dict of ids and keys: Keys({"2026": key}, current="2026")')
        if current is None and len(keys) > 1:
            raise UsageError(f"say which of the keys {', '.join(map(repr, keys))} is to write: current=…")
        self.current = next(iter(keys)) if current is None else current
        if self.current not in keys:
            raise UsageError(
                f"the current key is to be {current!r}, but there are {', '.join(map(repr, keys))}"
            )
        self._keys = {key_id: _made(key_id, key) for key_id, key in keys.items()}
        self._writing = self._keys[self.current]
        self.mark = (self.current, tuple(sorted((key_id, _digest(key)) for key_id, key in keys.items())))
        """What tells these keys from others. No key can be had from it."""

    def __repr__(self) -> str:
        return f"<Keys {', '.join(map(repr, self._keys))}; current={self.current!r}>"

    def encrypted(self, place: Place, text: bytes) -> bytes:
        """What to store at this place. Raises `TooLarge`."""
        key, nonce = self._writing, os.urandom(NONCE)
        try:
            return key.start + nonce + key.cipher.encrypt(nonce, text, key.start + place.data)
        except OverflowError as error:
            raise TooLarge(
                f"{place} has {len(text)} bytes, which is more than can be encrypted at once"
            ) from error

    def decrypted(self, place: Place, data: bytes) -> bytes:
        """What was encrypted for this place.

        Raises `DamagedRecord` if this isn't that, and `KeyMissing`, which names the id, if its key is.
        """
        key = self._writing
        if not data.startswith(key.start):
            key = self._key_of(place, data)
        size = len(key.start)
        if len(data) < size + NONCE + TAG:
            raise place.damaged("it is shorter than what was written")
        from cryptography.exceptions import InvalidTag

        nonce, text = data[size : size + NONCE], data[size + NONCE :]
        try:
            return key.cipher.decrypt(nonce, text, key.start + place.data)
        except InvalidTag:
            raise place.damaged(
                "it was changed, or belongs to another place: it can't be decrypted"
            ) from None

    def _key_of(self, place: Place, data: bytes) -> _Key:
        if len(data) < 2 or data[0] != FORMAT:
            raise place.damaged(
                "it isn't encrypted. Runs from before the store was come in by export_run() and import_run()"
            )
        size = 2 + data[1] + 8
        start = data[:size]
        if len(start) < size or crc32(start[:-4]) != int.from_bytes(start[-4:], "big"):
            raise place.damaged("what says which key it was encrypted with has changed")
        key_id = start[2:-8].decode("utf-8", "replace")
        key = self._keys.get(key_id)
        if key is None:
            raise KeyMissing(
                f"{place} was encrypted with the key {key_id!r}, which isn't among those given: "
                f"{', '.join(map(repr, self._keys))}. Add it to the Keys of the store"
            )
        if key.start != start:
            raise KeyMissing(
                f"{place} was encrypted with another key than the one that is given as {key_id!r}. "
                "Give the right one under this id"
            )
        return key


class EncryptedStore(StoreWrapper):
    """The runs of another store, encrypted: see the module's text for what is hidden and what isn't.

    Everything else, abilities included, is the inner store's. Closing closes it.
    """

    def __init__(self, store: Store, keys: Keys) -> None:
        if not isinstance(store, Store) or isinstance(store, type):
            raise UsageError("EncryptedStore(store, keys) takes a store; open_store(url) gives you one")
        if not isinstance(keys, Keys):
            raise UsageError("EncryptedStore(store, keys) takes Keys: Keys({'2026': key})")
        self.inner, self.keys = store, keys

    def __repr__(self) -> str:
        return f"EncryptedStore({self.inner!r}, {self.keys!r})"

    encrypted = True
    """That what is secret may be kept in it."""

    @property
    def _behind(self) -> Store:
        return self.inner

    def create(self, run: NewRun) -> Lease | None:
        records = self._records(run.run_id, 0, run.records)
        return self.inner.create(run._replace(records=records, note=self._note(run.run_id, run.note)))

    def append(self, commits: Sequence[Commit]) -> list[Exception | None]:
        outcomes: list[Exception | None] = [None] * len(commits)
        taken: list[tuple[int, Commit]] = []
        for number, commit in enumerate(commits):
            try:
                taken.append((number, self._commit(commit)))
            except StoreUnavailable as too_large:
                outcomes[number] = too_large
        told = self.inner.append([commit for _, commit in taken])
        for (number, _), outcome in zip(taken, told, strict=True):
            outcomes[number] = outcome
        return outcomes

    def head(self, run_id: str) -> RunHead:
        return self._head(self.inner.head(run_id))

    def read(self, run_id: str, first: int | None = None, last: int | None = None) -> Tail:
        tail = self.inner.read(run_id, first, last)
        records = [
            self.keys.decrypted(Place(run_id, number), data)
            for number, data in enumerate(tail.records, tail.first)
        ]
        return Tail(self._head(tail.head), tail.first, records)

    def claim(self, run_id: str, holder: str, ttl: float, instead_of: int | None = None) -> Lease:
        return self.inner.claim(run_id, holder, ttl, instead_of)

    def renew(self, leases: Iterable[Lease], ttl: float) -> list[str | None]:
        return self.inner.renew(leases, ttl)

    def release(self, lease: Lease) -> None:
        self.inner.release(lease)

    def signal(self, run_id: str, signal: str) -> None:
        self.inner.signal(run_id, signal)

    def list(self, which: RunFilter) -> list[RunHead]:
        """As everywhere; a run whose note is damaged, or whose key is missing, is left out, and the log says so.

        Raises `KeyMissing` if nothing is left.
        """
        found = self.inner.list(which)
        heads, unreadable = self._readable(found)
        if unreadable and not heads:
            raise unreadable[-1]
        return heads

    def ready(self, graphs: Sequence[str], limit: int) -> Heads:
        """As everywhere; a run whose note is damaged, or whose key is missing, keeps no other from being found.

        It is left out, with a warning in the log.
        """
        asked = limit
        while True:
            found = self.inner.ready(graphs, asked)
            heads, _ = self._readable(found)
            if len(heads) >= limit or len(found) < asked:
                return heads[:limit]
            asked *= 2

    def prune(self, run_id: str, before: int) -> int:
        return self.inner.prune(run_id, before)

    def expire(self, older_than: float, statuses: Sequence[str] = ENDED) -> int:
        return self.inner.expire(older_than, statuses)

    def delete(self, run_id: str) -> None:
        self.inner.delete(run_id)

    def close(self) -> None:
        self.inner.close()

    def _commit(self, commit: Commit) -> Commit:
        return Commit(
            commit.run_id,
            commit.fence,
            commit.expected,
            self._records(commit.run_id, commit.expected, commit.records),
            commit.snapshot,
            commit.status,
            None if commit.note is None else self._note(commit.run_id, commit.note),
            commit.purge,
            commit.on_signal,
            commit.due,
        )

    def _records(self, run_id: str, after: int, records: Sequence[bytes]) -> Records:
        return [
            self.keys.encrypted(Place(run_id, number), data) for number, data in enumerate(records, after + 1)
        ]

    def _note(self, run_id: str, note: bytes) -> bytes:
        return self.keys.encrypted(Place(run_id, 0), note) if note else note

    def _head(self, head: RunHead) -> RunHead:
        if not head.note:
            return head
        return head._replace(note=self.keys.decrypted(Place(head.run_id, 0), head.note))

    def _readable(self, found: Iterable[RunHead]) -> tuple[Heads, Unreadable]:
        """The heads that can be read, and why others can't, for want of a key; damaged ones are only logged."""
        heads: Heads = []
        missing: Unreadable = []
        for head in found:
            try:
                heads.append(self._head(head))
            except (DamagedRecord, KeyMissing) as problem:
                import logging

                logging.getLogger("limpet.stores").warning("left out of a list of runs: %s", problem)
                if isinstance(problem, KeyMissing):
                    missing.append(problem)
        return heads, missing


Records = list[bytes]
Unreadable = list[KeyMissing]


class Place(NamedTuple):
    """Where something is stored: the run, and the record's number; 0 is the note."""

    run_id: str
    sequence: int

    def __str__(self) -> str:
        what = f"record {self.sequence}" if self.sequence else "the note"
        return f"{what} of run {self.run_id!r}"

    @property
    def data(self) -> bytes:
        """It as the tag covers it. No two places are the same bytes."""
        kind = "record" if self.sequence else "note"
        return f"{kind} {self.sequence} {self.run_id}".encode("utf-8", "surrogatepass")

    def damaged(self, reason: str) -> DamagedRecord:
        """The error for what is wrong there."""
        return DamagedRecord(self.run_id, self.sequence, reason)


class _Key(NamedTuple):
    """A cipher, and what all that it has written begins with."""

    cipher: AESGCM
    start: bytes


def _made(key_id: str, key: bytes) -> _Key:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError as error:
        raise StoreUnavailable(
            "an encrypted store needs the package cryptography: pip install 'limpet[encryption]'"
        ) from error
    if not isinstance(key_id, str) or not 0 < len(key_id) <= 60 or not key_id.isprintable():
        raise UsageError("the id of a key is a str of 1 to 60 printable characters")
    if not isinstance(key, bytes) or len(key) != 32:
        size = f"it has {len(key)}" if isinstance(key, bytes) else f"it is a {type(key).__name__}"
        raise UsageError(
            f"the key {key_id!r} must be 32 random bytes, as secrets.token_bytes(32) gives; {size}"
        )
    named = key_id.encode()
    start = bytes([FORMAT, len(named)]) + named + _digest(key)[:4]
    return _Key(AESGCM(key), start + crc32(start).to_bytes(4, "big"))


def _digest(key: bytes) -> bytes:
    return hmac.digest(key, b"limpet key", "sha256")
