"""Encryption at rest: a store around another one, which sees records and notes as ciphertext only.

AES-256-GCM, with a new random nonce of 96 bits each time. A record or a note is stored as:

    byte 0       0xC1, the format
    byte 1       how many bytes the key's id has; the id follows
    4 bytes      the key's fingerprint: the start of HMAC-SHA-256(key, "limpet key")
    4 bytes      CRC-32 over all of this, big-endian, so that damage isn't taken for a missing key
    12 bytes     the nonce
    the rest     the ciphertext and its tag of 16 bytes

The tag also covers these bytes up to the nonce, and the place as text: `record 3 <run id>`, or `note 0 <run id>`. So
a ciphertext that was moved is refused: to another run, to another number, or from a record to a note.

What it doesn't hide: ids of runs, names of graphs, tags, parents, statuses, holders, signals, times, priorities, and
how large and how many the records are. What it can't detect: that a whole run, or a run's newest records, or a note,
were replaced by an older version of themselves. An empty note stays empty.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

from limpet.errors import DamagedRecord, KeyMissing, LimpetError, StoreUnavailable, TooLarge, UsageError
from limpet.journal.encoding.envelope import ENCRYPTED
from limpet.journal.optional_calls import provides
from limpet.journal.run_filter import RunFilter
from limpet.journal.store import ENDED, Abilities, Commit, Heads, Lease, NewRun, RunHead, Store, Tail
from limpet.stores import heads
from limpet.stores.composite.wrapper import StoreWrapper

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

MAX_LOGGED = 1000
"""How many runs are remembered as logged."""

KEY_SIZE = 32
NONCE_SIZE = 12
TAG_SIZE = 16


class Keys:
    """The keys of an encrypted store, each of 32 bytes, by ids of your choice; `current` is the one that writes.

    The others only read, so that keys can be rotated: add a new one, make it `current`, and keep the old ones for as
    long as the store has runs that were written with them. Ids are stored in plain text; keys are shown nowhere.
    """

    def __init__(self, keys: Mapping[str, bytes], current: str | None = None) -> None:
        if not isinstance(keys, Mapping) or not keys:
            raise UsageError('Keys takes a dict of ids and keys: Keys({"2026": key}, current="2026")')
        if current is None and len(keys) > 1:
            raise UsageError(f"choose which of the keys {', '.join(map(repr, keys))} writes: current=…")
        self.current = next(iter(keys)) if current is None else current
        if self.current not in keys:
            raise UsageError(
                f"the current key {current!r} isn't among the keys given: {', '.join(map(repr, keys))}"
            )
        self._keys = {key_id: _checked(key_id, key) for key_id, key in keys.items()}
        self._writing = self._keys[self.current]
        self.mark = (self.current, tuple(sorted((key_id, _digest(key)) for key_id, key in keys.items())))
        """What distinguishes these keys from others. No key can be derived from it."""

    def __repr__(self) -> str:
        return f"<Keys {', '.join(map(repr, self._keys))}; current={self.current!r}>"

    def encrypted(self, place: Place, text: bytes) -> bytes:
        """The ciphertext to store at this place. Raises `TooLarge`."""
        key = self._writing
        nonce = os.urandom(NONCE_SIZE)
        try:
            return key.header + nonce + key.cipher.encrypt(nonce, text, key.header + place.data)
        except OverflowError as error:
            raise TooLarge(
                f"{place} has {len(text)} bytes, which is more than can be encrypted at once"
            ) from error

    def decrypted(self, place: Place, data: bytes) -> bytes:
        """The plain text of what was encrypted for this place.

        Raises `DamagedRecord` if the data was changed or is from elsewhere, and `KeyMissing`, which names the key's
        id, if the key isn't among these.
        """
        key = self._writing
        if not data.startswith(key.header):
            key = self._key_of(place, data)
        size = len(key.header)
        if len(data) < size + NONCE_SIZE + TAG_SIZE:
            raise place.damaged("it is shorter than what was written")
        from cryptography.exceptions import InvalidTag

        nonce = data[size : size + NONCE_SIZE]
        ciphertext = data[size + NONCE_SIZE :]
        try:
            return key.cipher.decrypt(nonce, ciphertext, key.header + place.data)
        except InvalidTag:
            raise place.damaged(
                "it was changed, or belongs to another place: it can't be decrypted"
            ) from None

    def _key_of(self, place: Place, data: bytes) -> _Key:
        if len(data) < 2 or data[0] != ENCRYPTED:
            raise place.damaged(
                "it isn't encrypted. Export runs from before the store was encrypted, and import them into it"
            )
        size = 2 + data[1] + 8
        header = data[:size]
        if len(header) < size or crc32(header[:-4]) != int.from_bytes(header[-4:], "big"):
            raise place.damaged("the header that names its key was changed")
        key_id = header[2:-8].decode("utf-8", "replace")
        key = self._keys.get(key_id)
        if key is None:
            raise KeyMissing(
                f"{place} was encrypted with the key {key_id!r}, which isn't among those given: "
                f"{', '.join(map(repr, self._keys))}. Add it to the Keys of the store"
            )
        if key.header != header:
            raise KeyMissing(
                f"{place} was encrypted with another key than the one that is given as {key_id!r}. "
                "Give the right one under this id"
            )
        return key


class EncryptedStore(StoreWrapper):
    """The runs of another store, encrypted: the module's text says what is hidden and what isn't.

    Everything else is the inner store's. Closing closes that too.
    """

    def __init__(self, store: Store, keys: Keys) -> None:
        if not provides(store, Store):
            raise UsageError("EncryptedStore(store, keys) takes a store; open_store(url) gives you one")
        if not isinstance(keys, Keys):
            raise UsageError("EncryptedStore(store, keys) takes Keys: Keys({'2026': key})")
        self.inner = store
        self.keys = keys
        self._logged: dict[str, str] = {}
        """Why runs were left out of lists, as far as that was logged."""

    def __repr__(self) -> str:
        return f"EncryptedStore({self.inner!r}, {self.keys!r})"

    def __str__(self) -> str:
        return f"{self.inner} (encrypted)"

    @property
    def _durable_store(self) -> Store:
        return self.inner

    @property
    def abilities(self) -> Abilities:
        """What the inner store can do, and that secrets are safe here."""
        return self.inner.abilities._replace(keeps_secrets=True)

    def create(self, run: NewRun) -> Lease | None:
        records = self._records(run.run_id, 0, run.records)
        return self.inner.create(run._replace(records=records, note=self._note(run.run_id, run.note)))

    def append(self, commits: Sequence[Commit]) -> list[Exception | None]:
        outcomes: list[Exception | None] = [None] * len(commits)
        encrypted: list[tuple[int, Commit]] = []
        for number, commit in enumerate(commits):
            try:
                encrypted.append((number, self._commit(commit)))
            except StoreUnavailable as too_large:  # refuses its own commit only
                outcomes[number] = too_large
        results = self.inner.append([commit for _, commit in encrypted])
        for (number, _), outcome in zip(encrypted, results, strict=True):
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

    def salvage(self, run_id: str) -> Mapping[int, bytes | DamagedRecord]:
        """The records that the inner store has left, decrypted. Raises `KeyMissing`."""
        found: dict[int, bytes | DamagedRecord] = {}
        for number, data in super().salvage(run_id).items():
            try:
                if isinstance(data, bytes):
                    data = self.keys.decrypted(Place(run_id, number), data)
                found[number] = data
            except DamagedRecord as damage:
                found[number] = damage
        return found

    def claim(self, run_id: str, holder: str, ttl: float, instead_of: int | None = None) -> Lease:
        return self.inner.claim(run_id, holder, ttl, instead_of)

    def renew(self, leases: Iterable[Lease], ttl: float) -> list[str | None]:
        return self.inner.renew(leases, ttl)

    def release(self, lease: Lease) -> None:
        self.inner.release(lease)

    def signal(self, run_id: str, signal: str) -> None:
        self.inner.signal(run_id, signal)

    def list(self, which: RunFilter) -> list[RunHead]:
        """As in every store. A run whose key is missing is left out, with a warning in the log.

        Raises `KeyMissing` if that leaves none.
        """
        found: Heads = []
        missing: KeyMissing | None = None
        for head, problem in self.list_all(which):
            if problem is not None:
                self._log_once(head.run_id, problem)
            if isinstance(problem, KeyMissing):
                missing = problem
            else:
                found.append(head)
        if missing and not found:
            raise missing
        return found

    def list_all(self, which: RunFilter) -> ReadHeads:
        """What `list` gives, and in their places the runs that it leaves out, each with the reason and no note."""
        problems: dict[str, LimpetError] = {}
        found: Heads = []
        for head in self.inner.list(heads.before_reading(which)):
            try:
                found.append(self._head(head))
            except DamagedRecord as problem:
                problems[head.run_id] = problem
                found.append(heads.damaged(head))
            except KeyMissing as problem:
                problems[head.run_id] = problem
                found.append(head._replace(note=b""))
        return [(head, problems.get(head.run_id)) for head in heads.after_reading(found, which)]

    def ready(self, graphs: Sequence[str], limit: int) -> Heads:
        """As in every store. A run with a damaged note or a missing key is left out, with a warning in the log."""
        requested = limit
        while True:
            found = self.inner.ready(graphs, requested)
            readable = self._readable(found)
            if len(readable) >= limit or len(found) < requested:
                return readable[:limit]
            # Unreadable runs at the front must not hide the readable ones behind them.
            requested *= 2

    def prune(self, run_id: str, before: int) -> int:
        return self.inner.prune(run_id, before)

    def expire(self, older_than: float, statuses: Sequence[str] = ENDED) -> int:
        return self.inner.expire(older_than, statuses)

    def delete(self, run_id: str) -> None:
        self.inner.delete(run_id)

    def close(self) -> None:
        self.inner.close()

    def _commit(self, commit: Commit) -> Commit:
        note = commit.note
        if note is not None:
            note = self._note(commit.run_id, note)
        return Commit(
            commit.run_id,
            commit.fence,
            commit.expected,
            self._records(commit.run_id, commit.expected, commit.records),
            commit.snapshot,
            commit.status,
            note,
            commit.purge,
            commit.on_signal,
            commit.due,
        )

    def _records(self, run_id: str, after: int, records: Sequence[bytes]) -> Records:
        return [
            self.keys.encrypted(Place(run_id, number), data) for number, data in enumerate(records, after + 1)
        ]

    def _note(self, run_id: str, note: bytes) -> bytes:
        if not note:
            return note
        return self.keys.encrypted(Place(run_id, 0), note)

    def _head(self, head: RunHead) -> RunHead:
        if not head.note:
            return head
        return head._replace(note=self.keys.decrypted(Place(head.run_id, 0), head.note))

    def _readable(self, found: Iterable[RunHead]) -> Heads:
        """The heads that can be read. The others are logged."""
        readable: Heads = []
        for head in found:
            try:
                readable.append(self._head(head))
            except (DamagedRecord, KeyMissing) as problem:
                self._log_once(head.run_id, problem)
        return readable

    def _log_once(self, run_id: str, problem: LimpetError) -> None:
        """Log why a run can't be read, unless that was logged: a worker lists runs all the time."""
        reason = str(problem)
        if self._logged.get(run_id) == reason:
            return
        if len(self._logged) >= MAX_LOGGED:
            self._logged.clear()
        self._logged[run_id] = reason
        import logging

        logging.getLogger("limpet.stores").warning("a run in a list can't be read: %s", reason)


ReadHeads = list[tuple[RunHead, LimpetError | None]]
Records = list[bytes]


class Place(NamedTuple):
    """Where something is stored: the run, and the record's number; 0 is the note."""

    run_id: str
    sequence: int

    def __str__(self) -> str:
        what = f"record {self.sequence}" if self.sequence else "the note"
        return f"{what} of run {self.run_id!r}"

    @property
    def data(self) -> bytes:
        """The place as the tag covers it. No two places have the same bytes."""
        kind = "record" if self.sequence else "note"
        return f"{kind} {self.sequence} {self.run_id}".encode("utf-8", "surrogatepass")

    def damaged(self, reason: str) -> DamagedRecord:
        """The error for a record or note that isn't what was stored."""
        return DamagedRecord(self.run_id, self.sequence, reason)


class _Key(NamedTuple):
    """A cipher, and the header of all that it encrypts."""

    cipher: AESGCM
    header: bytes


def _checked(key_id: str, key: bytes) -> _Key:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError as error:
        raise StoreUnavailable(
            "an encrypted store needs the package cryptography: pip install 'limpet[encryption]'"
        ) from error
    if not isinstance(key_id, str) or not 0 < len(key_id) <= 60 or not key_id.isprintable():
        raise UsageError("the id of a key is a str of 1 to 60 printable characters")
    if not isinstance(key, bytes):
        raise _bad_key(key_id, f"it is a {type(key).__name__}")
    if len(key) != KEY_SIZE:
        raise _bad_key(key_id, f"it has {len(key)}")
    encoded_id = key_id.encode()
    start = bytes([ENCRYPTED, len(encoded_id)]) + encoded_id + _digest(key)[:4]
    return _Key(AESGCM(key), start + crc32(start).to_bytes(4, "big"))


def _bad_key(key_id: str, reason: str) -> UsageError:
    return UsageError(
        f"the key {key_id!r} must be 32 random bytes, as secrets.token_bytes(32) gives; {reason}"
    )


def _digest(key: bytes) -> bytes:
    return hmac.digest(key, b"limpet key", "sha256")
