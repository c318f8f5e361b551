"""Encryption as an option: keys from what a user gives or the environment has, put around whichever store.

`LIMPET_ENCRYPTION_KEY` has the key that writes, `LIMPET_ENCRYPTION_OLD_KEYS` those that only read, with spaces or
commas between them. A key as text is 32 bytes in base64 or hexadecimal, `id:` before it if you like. A key without an
id has one that is made from it, so that keys can be changed without naming any. No message repeats what was given.
"""

from __future__ import annotations

import hmac
import os
import threading
from collections.abc import Mapping
from typing import Any
from weakref import WeakValueDictionary

from limpet.errors import UsageError
from limpet.journal.store import Store
from limpet.stores.composite.encrypted import EncryptedStore, Keys
from limpet.stores.memory import MemoryStore

KEY = "LIMPET_ENCRYPTION_KEY"
OLD_KEYS = "LIMPET_ENCRYPTION_OLD_KEYS"
_FORM = (
    "32 random bytes, as bytes or as text in base64 or hexadecimal, with an id and ':' before it if you like"
)


def read_keys(given: Any) -> Keys:
    """The keys that somebody gave: `Keys`, one key as bytes or text, or a dict of them by id, whose first one writes.

    Raises `UsageError`, which doesn't quote it, for anything else.
    """
    if isinstance(given, Keys):
        return given
    if isinstance(given, Mapping) and given:
        named = {key_id: _key(key, f"the key {key_id!r}") for key_id, key in given.items()}
        return Keys(named, current=next(iter(named)))
    if isinstance(given, (bytes, str)) and given:
        return _several([given], "the encryption key")
    raise UsageError(f"encryption is a key or several by id, {_FORM}; or Keys; not {type(given).__name__}")


def keys_of_environment() -> Keys | None:
    """The keys that the environment has, if it has any. Raises `UsageError` for what is none, naming the variable."""
    current, old = (os.environ.get(name, "").replace(",", " ").split() for name in (KEY, OLD_KEYS))
    if not current:
        if old:
            raise UsageError(f"{OLD_KEYS} is set, but {KEY}, which has the key to write with, isn't")
        return None
    if len(current) > 1:
        raise UsageError(f"{KEY} has one key, the one that writes; those that only read are in {OLD_KEYS}")
    return _several([*current, *old], f"{KEY} or {OLD_KEYS}")


def needed_keys() -> Keys:
    """The same, where there have to be some. Raises `UsageError`."""
    keys = keys_of_environment()
    if keys is None:
        raise UsageError(
            f"a store that is to be encrypted takes its key from {KEY}, which isn't set: {_FORM}, such as "
            "python -c 'import secrets; print(secrets.token_hex(32))' prints"
        )
    return keys


def encrypted(store: Store, keys: Keys) -> EncryptedStore:
    """The store, encrypted with these keys: the same one for the same two, while it is in use."""
    if isinstance(store, EncryptedStore):
        raise UsageError(
            "the store is encrypted already: give it without encryption=, or give what is inside of it"
        )
    with _lock:
        found = _made.get((id(store), keys.mark))
        if found is None or found.closed:
            found = _made[id(store), keys.mark] = EncryptedStore(store, keys)
        return found


def encrypted_if_set(store: Store) -> Store:
    """The store, encrypted if the environment has a key and it isn't yet. One in memory stays as it is."""
    if isinstance(store, MemoryStore) or keeps_secrets(store):
        return store
    keys = keys_of_environment()
    return store if keys is None else encrypted(store, keys)


def keeps_secrets(store: object) -> bool:
    """Whether nobody can read, without a key, what is stored: it is encrypted, or ends with the process."""
    return isinstance(store, MemoryStore) or bool(getattr(store, "encrypted", False))


def _several(given: list[bytes | str], what: str) -> Keys:
    named: dict[str, bytes] = {}
    for each in given:
        key_id, key = "", each
        if isinstance(each, str) and ":" in each:
            key_id, _, key = each.rpartition(":")
        made = _key(key, what)
        key_id = key_id or hmac.digest(made, b"limpet key id", "sha256").hex()[:8]
        if named.setdefault(key_id, made) != made:
            raise UsageError(f"{what}: two keys have the id {key_id!r}; give each its own")
    return Keys(named, current=next(iter(named)))


def _key(given: Any, what: str) -> bytes:
    """One key. Text may be hexadecimal, or base64 of either alphabet, with its padding or without."""
    if isinstance(given, bytes) and len(given) == 32:
        return given
    if isinstance(given, str):
        from base64 import b64decode

        text = given.strip()
        try:
            if len(text) == 64:
                return bytes.fromhex(text)
            found = b64decode(text.rstrip("=").replace("-", "+").replace("_", "/") + "=", validate=True)
            if len(found) == 32:
                return found
        except ValueError:
            pass
    raise UsageError(f"{what} is no key: that is {_FORM}") from None


_lock = threading.Lock()
_made: WeakValueDictionary[tuple[int, object], EncryptedStore] = WeakValueDictionary()
