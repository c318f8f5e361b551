"""What an encrypted store writes instead of plain text: AES-256-GCM, with a new random nonce of 96 bits each time.

    byte 0       0xC1, the format
    byte 1       how many bytes the key's id has; the id follows
    4 bytes      the key's fingerprint: the start of HMAC-SHA-256(key, "limpet key")
    4 bytes      CRC-32 over all of this, big-endian, so that damage isn't taken for a missing key
    12 bytes     the nonce
    the rest     the ciphertext and its tag of 16 bytes

The tag also covers these bytes up to the nonce, and the place as text, such as `record 3 <run id>` or
`note 0 <run id>`. So a ciphertext that was moved is refused: to another run, to another number, or from a record to a
note.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

from limpet.errors import (
    DamagedDocument,
    DamagedRecord,
    KeyMissing,
    StoreError,
    StoreUnavailable,
    TooLarge,
    UsageError,
)
from limpet.journal.encoding.envelope import ENCRYPTED

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

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


class Place(NamedTuple):
    """Where something is stored: its kind, the run or document that it is of, and which one it is.

    That is the number of a record, and the key of a post with its length before it, so that no two places have the
    same bytes. The number of a post isn't known before it is stored; nor is that of an item of output, whose place is
    its run alone.
    """

    kind: str
    of: str
    which: int | str = 0

    def __str__(self) -> str:
        match self.kind:
            case "record":
                return f"record {self.which} of run {self.of!r}"
            case "post":
                return f"the post {str(self.which).partition(':')[2]!r} to run {self.of!r}"
            case "document":
                return f"the document {self.of!r}"
            case kind:
                return f"the {kind} of run {self.of!r}"

    @property
    def data(self) -> bytes:
        """The place as the tag covers it."""
        return f"{self.kind} {self.which} {self.of}".encode("utf-8", "surrogatepass")

    def damaged(self, reason: str) -> StoreError:
        """The error for what isn't as it was stored."""
        if self.kind == "document":
            return DamagedDocument(self.of, -1, reason)  # the store that has it knows its version
        if self.kind in ("post", "output"):
            reason = f"{self}: {reason}"
        return DamagedRecord(self.of, self.which if isinstance(self.which, int) else 0, reason)


def post_place(run_id: str, key: str) -> Place:
    """The place of a post."""
    return Place("post", run_id, f"{len(key)}:{key}")


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
