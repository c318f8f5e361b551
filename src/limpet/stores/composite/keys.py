"""The keys of an encrypted store, from what a user gives or from the environment.

`LIMPET_ENCRYPTION_KEY` has the key that writes, `LIMPET_ENCRYPTION_OLD_KEYS` those that only read, with spaces or
commas between them. A key as text is 32 bytes in base64 or hexadecimal, optionally with `id:` before it. A key
without an id gets one that is derived from the key, so that keys can be rotated without naming them. No message
repeats a key.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Mapping, Sequence
from typing import Any

from limpet.errors import UsageError
from limpet.stores.composite.ciphertexts import KEY_SIZE, Keys

KEY_VARIABLE = "LIMPET_ENCRYPTION_KEY"
OLD_KEYS_VARIABLE = "LIMPET_ENCRYPTION_OLD_KEYS"
_FORM = (
    "32 random bytes, as bytes or as text in base64 or hexadecimal, with an id and ':' before it if you like"
)


def read_keys(given: Any) -> Keys:
    """The keys in `given`: `Keys`, one key as bytes or text, or a dict of keys by id, the first of which writes.

    Raises `UsageError`, which never quotes a key, for anything else.
    """
    if isinstance(given, Keys):
        return given
    if isinstance(given, Mapping) and given:
        named = {key_id: _parsed(key, f"the key {key_id!r}") for key_id, key in given.items()}
        return Keys(named, current=next(iter(named)))
    if isinstance(given, (bytes, str)) and given:
        return _with_ids([given], "the encryption key")
    raise UsageError(
        f"encryption must be a key or several by id, {_FORM}; or Keys; not {type(given).__name__}"
    )


def environment_keys() -> Keys | None:
    """The keys in the environment, if it has any. Raises `UsageError`, which names the variable, for a bad key."""
    current = _words_in(KEY_VARIABLE)
    old = _words_in(OLD_KEYS_VARIABLE)
    if not current:
        if old:
            raise UsageError(
                f"{OLD_KEYS_VARIABLE} is set, but {KEY_VARIABLE}, which has the key to write with, isn't"
            )
        return None
    if len(current) > 1:
        raise UsageError(
            f"{KEY_VARIABLE} has one key, the one that writes; those that only read are in {OLD_KEYS_VARIABLE}"
        )
    return _with_ids([*current, *old], f"{KEY_VARIABLE} or {OLD_KEYS_VARIABLE}")


def required_environment_keys() -> Keys:
    """The keys in the environment. Raises `UsageError` if it has none."""
    keys = environment_keys()
    if keys is None:
        raise UsageError(
            f"a store that is to be encrypted takes its key from {KEY_VARIABLE}, which isn't set: {_FORM}, such as "
            "python -c 'import secrets; print(secrets.token_hex(32))' prints"
        )
    return keys


def _words_in(variable: str) -> list[str]:
    return os.environ.get(variable, "").replace(",", " ").split()


def _with_ids(given: Sequence[bytes | str], what: str) -> Keys:
    """The keys by their ids, given or derived; the first one writes. `what` names them in errors."""
    named: dict[str, bytes] = {}
    for each in given:
        key_id = ""
        text = each
        if isinstance(each, str) and ":" in each:
            key_id, _, text = each.rpartition(":")
        key = _parsed(text, what)
        if not key_id:
            key_id = hmac.digest(key, b"limpet key id", "sha256").hex()[:8]
        if named.setdefault(key_id, key) != key:
            raise UsageError(f"{what}: two keys have the id {key_id!r}; give each its own")
    return Keys(named, current=next(iter(named)))


def _parsed(given: Any, what: str) -> bytes:
    """One key. Text may be hexadecimal, or base64 of either alphabet, with its padding or without."""
    if isinstance(given, bytes) and len(given) == KEY_SIZE:
        return given
    if isinstance(given, str):
        from base64 import b64decode

        text = given.strip()
        try:
            if len(text) == 2 * KEY_SIZE:
                return bytes.fromhex(text)
            key = b64decode(text.rstrip("=").replace("-", "+").replace("_", "/") + "=", validate=True)
            if len(key) == KEY_SIZE:
                return key
        except ValueError:
            pass
    raise UsageError(f"{what} isn't a key: a key is {_FORM}") from None
