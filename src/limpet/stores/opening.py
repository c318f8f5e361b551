"""From what a user writes (a store, a name, a URL, a path) to a store that is open.

A *name* stands for one store, shared by all who use the name. A *scheme* is the part of a URL before
`://` and stands for a kind of store; whoever adds one gives a function from the URL to a store.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeGuard
from weakref import WeakValueDictionary

from limpet.errors import LimpetError, UnknownName, UsageError
from limpet.journal.store import Store
from limpet.stores.memory import MemoryStore
from limpet.stores.urls import BUILT_IN, StoreURL, open_sqlite_file, open_tiered, parse_url
from limpet.stores.user_stores.checkpointer import Checkpointer

if TYPE_CHECKING:
    from limpet.stores.environment import Choice
    from limpet.stores.user_stores.adapter import AdaptedStore
    from limpet.stores.user_stores.checkpoint_store import CheckpointStore

SQLITE_SUFFIXES = (".db", ".sqlite", ".sqlite3")
ENCRYPTED = "encrypted+"
KEY_VARIABLES = frozenset({"LIMPET_ENCRYPTION_KEY", "LIMPET_ENCRYPTION_OLD_KEYS"})
"""The variables without which nothing about encryption need be imported."""

StoreFactory = Callable[[], "Store | CheckpointStore"]


StoreScheme = Callable[[StoreURL], "Store | CheckpointStore"]


def open_store(target: Store | CheckpointStore | str | os.PathLike[str], encryption: Any = None) -> Store:
    """The store that `target` means: a store itself, a registered name, a URL, or a SQLite file's path.

    An object with the five methods of a `CheckpointStore` is one too; you get the same store for the same object.

    `"memory"` is one store for the whole process and `"memory://"` a new one each time. `"sqlite"` is the
    file limpet.db in the working directory, `"sqlite:///runs.db"` a file beside it and
    `"sqlite:////var/runs.db"` one anywhere, with `?level=process&timeout=5` if you like; a path that ends
    in .db, .sqlite or .sqlite3 does as well. `"file:///var/runs"` is a directory of plain files, and
    `"file://./runs"` one in the working directory. A file that is open already, at the same level, is not opened
    again: you get the same store. `"redis://host:6379/0"` is a Redis server, and
    `"tiered://?hot=redis://host&cold=sqlite:///runs.db"` one store in front of another.

    `"postgresql://user:password@host/database"` is a PostgreSQL server, `"postgresql+embedded:///data"` one that
    is started for you, with `?schema=…&level=…` if you like; the same URL gives the same store.

    `"env"` is what `LIMPET_STORE` names, or `WORKFLOW_CHECKPOINT_BACKEND` and `WORKFLOW_CHECKPOINT_DSN`. Names and
    schemes that aren't known are looked up among the entry points `limpet.stores` of installed packages.

    With `encryption`, a key or `Keys`, all that is in the store is encrypted. Without, it is if the environment has
    `LIMPET_ENCRYPTION_KEY`, unless it is in memory, or `encryption` is False. A URL that begins with `encrypted+`,
    as `"encrypted+sqlite:///runs.db"` does, is refused where that variable isn't set.

    Raises `UnknownName`, `UsageError` for a URL that makes no sense, or `StoreUnavailable`.
    """
    if isinstance(target, os.PathLike):
        target = os.fspath(target)
    return _sealed(_resolve(target) if isinstance(target, str) else _taken(target), encryption)


def open_default_store(encryption: Any = None) -> Store | None:
    """The store for who names none: that of `LIMPET_STORE` if it is set, else none. Raises as `open_store` does."""
    from limpet.stores.environment import chosen_silently

    choice = chosen_silently()
    return None if choice is None else _sealed(_open_chosen(choice), encryption)


def _sealed(store: Store, encryption: Any) -> Store:
    """The store as it is, or encrypted, as somebody or the environment wants it."""
    if encryption is False or (encryption is None and KEY_VARIABLES.isdisjoint(os.environ)):
        return store
    from limpet.stores.composite.keys import encrypted, encrypted_if_set, read_keys

    return encrypted_if_set(store) if encryption is None else encrypted(store, read_keys(encryption))


def register_store(name: str, store: Store | CheckpointStore | StoreFactory) -> None:
    """Make `name` stand for a store, or for the one that a function without arguments makes when first asked.

    A name that was registered before is replaced.
    """
    if not name or "://" in name:
        raise UsageError(f"{name!r} can't name a store: use a word")
    if not isinstance(store, type) and (isinstance(store, Store) or _keeps_checkpoints(store)):
        factory = _always(_taken(store))
    elif callable(store):
        factory = _once(store)
    else:
        raise UsageError(f"register a Store object or a function that makes one, not {_kind(store)}")
    with _lock:
        _names[name] = factory


def register_store_scheme(scheme: str, factory: StoreScheme) -> None:
    """Make URLs that begin with `scheme://` open what `factory` makes of them; replaces an earlier one."""
    if not scheme or not callable(factory):
        raise UsageError("register a scheme such as 'etcd' with a function from a StoreURL to a store")
    with _lock:
        _schemes[scheme.lower()] = factory


def _open_environment() -> Store:
    from limpet.stores.environment import chosen

    return _open_chosen(chosen())


def _open_chosen(choice: Choice) -> Store:
    """The store that the environment names; the log tells which, and errors say who named it."""
    import logging

    if getattr(_opening, "named", False):
        raise UsageError(f'{choice.variable} names a store, and "env" is none')
    _opening.named = True
    try:
        store = _resolve(choice.target)
    except UnknownName as error:
        if "://" in choice.target or error.name.isidentifier():
            error.add_note(f"The store was named by {choice.variable}.")
            raise
        raise UsageError(f"{choice.variable} is no URL, name or path of a store") from None
    except LimpetError as error:
        error.add_note(f"The store was named by {choice.variable}.")
        raise
    finally:
        _opening.named = False
    logging.getLogger("limpet.stores").info("%s names the store: %r", choice.variable, store)
    return store


def _taken(target: object) -> Store:
    """What is to be a store as one. Raises `UsageError` if it can't be."""
    if isinstance(target, type):
        raise UsageError(f"a store is a Store object, a name, a URL or a path, not {_kind(target)}")
    if isinstance(target, Store):
        return target
    if _keeps_checkpoints(target):
        return _adapted(target)
    if isinstance(target, Checkpointer):
        raise UsageError(
            f"{_kind(target)} has save() and load(), which makes it a checkpointer: give it as "
            "StateGraph.compile(checkpointer=…). A store has delete(), list() and cleanup_expired() as well"
        )
    raise UsageError(f"a store is a Store object, a name, a URL or a path, not {_kind(target)}")


def _keeps_checkpoints(target: object) -> TypeGuard[CheckpointStore]:
    from limpet.stores.user_stores.checkpoint_store import CheckpointStore

    return isinstance(target, CheckpointStore)


def _adapted(target: CheckpointStore) -> Store:
    """The one store that an object is in this process, so that all who name it keep out of each other's way."""
    from limpet.stores.user_stores.adapter import AdaptedStore

    with _lock:
        store = _adapters.get(id(target))
        if store is None or store.closed:
            store = _adapters[id(target)] = AdaptedStore(target)
        return store


def _always(store: Store) -> Callable[[], Store]:
    return lambda: store


def _once(factory: StoreFactory) -> Callable[[], Store]:
    """A function that gives the same store each time, and another only when that one was closed."""
    made: list[Store] = []

    def shared() -> Store:
        if not made or getattr(made[0], "closed", False):
            made[:] = [_taken(factory())]
        return made[0]

    return shared


def _resolve(text: str) -> Store:
    if "\0" in text or "%00" in text:  # no path can have one, and the system's error would be none of ours
        raise UsageError(
            "what names the store has a null character in it, which no name, URL or path can have"
        )
    if text.startswith(ENCRYPTED):
        from limpet.stores.composite.keys import encrypted, needed_keys

        return encrypted(_resolve(text.removeprefix(ENCRYPTED)), needed_keys())
    if "\0" in text:
        raise UsageError("a store's name, URL or path has no null character")
    if "://" in text:
        url = parse_url(text)
        with _lock:
            scheme = _schemes.get(url.scheme)
        scheme = scheme or _plugged(url.scheme)
        if scheme is None:
            raise _unknown(f"{url.scheme}://")
        return _taken(scheme(url))
    with _lock:
        factory = _names.get(text)
        if factory is not None:
            return factory()
    if text.lower().endswith(SQLITE_SUFFIXES):
        return open_sqlite_file(text)
    plugged = _plugged(text)
    if plugged is None:
        raise _unknown(text)
    url = StoreURL(f"{text}://", text, "", "", {})
    with _lock:
        return _names.setdefault(text, _once(lambda: plugged(url)))()


def _plugged(name: str) -> StoreScheme | None:
    """What an installed package makes of a scheme or name that isn't registered."""
    from limpet.stores.plugins import factory_of

    return factory_of(name)


def _unknown(name: str) -> UnknownName:
    from limpet.stores.plugins import brought

    with _lock:
        return UnknownName("store", name, [*_names, *(f"{scheme}://" for scheme in _schemes), *brought()])


def _kind(target: object) -> str:
    return f"{type(target).__module__}.{type(target).__qualname__}"


_lock = threading.RLock()
_opening = threading.local()
"""Whether this thread is opening what the environment names: that can't lead to "env" again."""
_names: dict[str, Callable[[], Store]] = {
    "memory": _once(MemoryStore),
    "sqlite": lambda: open_sqlite_file("limpet.db"),
    "env": _open_environment,
}
_schemes: dict[str, StoreScheme] = {**BUILT_IN, "tiered": lambda url: open_tiered(url, _resolve)}
_adapters: WeakValueDictionary[int, AdaptedStore] = WeakValueDictionary()
