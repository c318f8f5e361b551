"""From what a user writes (a store, a name, a URL, a path) to a store that is open.

A *name* stands for one store, shared by all who use the name. A *scheme* is the part of a URL before
`://` and stands for a kind of store; whoever adds one gives a function from the URL to a store.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple, TypeGuard
from weakref import WeakValueDictionary

from holdfast.errors import HoldfastError, StoreUnavailable, UnknownName, UsageError
from holdfast.journal.store import Store
from holdfast.stores.checkpointer import Checkpointer
from holdfast.stores.memory import MemoryStore

if TYPE_CHECKING:
    from holdfast.stores.adapter import AdaptedStore
    from holdfast.stores.checkpoint_store import CheckpointStore
    from holdfast.stores.environment import Choice
    from holdfast.stores.files import FileStore
    from holdfast.stores.postgres import PostgresStore
    from holdfast.stores.sqlite import SQLiteStore

HOT_PATIENCE = 0.5
"""Seconds that the hot store of a tiered one is waited for, unless its URL says otherwise."""

SQLITE_SUFFIXES = (".db", ".sqlite", ".sqlite3")

StoreFactory = Callable[[], "Store | CheckpointStore"]


class StoreURL(NamedTuple):
    """A store's URL in parts. `text` is the whole of it, and may hold a password: don't show it."""

    text: str
    scheme: str
    host: str
    path: str
    query: Mapping[str, str]

    def __repr__(self) -> str:
        return f"<StoreURL {self.scheme}://…>"

    def options(self, **known: Callable[[str], object]) -> dict[str, object]:
        """The values of the query, each put through the function of its name in `known`.

        Raises `UsageError` for a name that isn't known, and for a value that its function refuses.
        """
        options: dict[str, object] = {}
        for key, text in self.query.items():
            if key not in known:
                raise UsageError(
                    f"a {self.scheme}:// store has no option {key!r}; it has {', '.join(sorted(known))}"
                )
            try:
                options[key] = known[key](text)
            except ValueError as error:
                raise UsageError(f"{text!r} is no {key} of a {self.scheme}:// store") from error
        return options


StoreScheme = Callable[[StoreURL], "Store | CheckpointStore"]


def open_store(target: Store | CheckpointStore | str | os.PathLike[str]) -> Store:
    """The store that `target` means: a store itself, a registered name, a URL, or a SQLite file's path.

    An object with the five methods of a `CheckpointStore` is one too; you get the same store for the same object.

    `"memory"` is one store for the whole process and `"memory://"` a new one each time. `"sqlite"` is the
    file holdfast.db in the working directory, `"sqlite:///runs.db"` a file beside it and
    `"sqlite:////var/runs.db"` one anywhere, with `?level=process&timeout=5` if you like; a path that ends
    in .db, .sqlite or .sqlite3 does as well. `"file:///var/runs"` is a directory of plain files, and
    `"file://./runs"` one in the working directory. A file that is open already, at the same level, is not opened
    again: you get the same store. `"redis://host:6379/0"` is a Redis server, and
    `"tiered://?hot=redis://host&cold=sqlite:///runs.db"` one store in front of another.

    `"postgresql://user:password@host/database"` is a PostgreSQL server, `"postgresql+embedded:///data"` one that
    is started for you, with `?schema=…&level=…` if you like; the same URL gives the same store.

    `"env"` is what `HOLDFAST_STORE` names, or `WORKFLOW_CHECKPOINT_BACKEND` and `WORKFLOW_CHECKPOINT_DSN`. Names and
    schemes that aren't known are looked up among the entry points `holdfast.stores` of installed packages.

    Raises `UnknownName`, `UsageError` for a URL that makes no sense, or `StoreUnavailable`.
    """
    if isinstance(target, os.PathLike):
        target = os.fspath(target)
    if isinstance(target, str):
        return _resolve(target)
    return _taken(target)


def open_default_store() -> Store | None:
    """The store for who names none: that of `HOLDFAST_STORE` if it is set, else none. Raises as `open_store` does."""
    from holdfast.stores.environment import chosen_silently

    choice = chosen_silently()
    return None if choice is None else _open_chosen(choice)


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
    from holdfast.stores.environment import chosen

    return _open_chosen(chosen())


def _open_chosen(choice: Choice) -> Store:
    """The store that the environment names; the log tells which, and errors say who named it."""
    import logging

    try:
        store = _resolve(choice.target)
    except UnknownName as error:
        if "://" in choice.target or error.name.isidentifier():
            error.add_note(f"The store was named by {choice.variable}.")
            raise
        raise UsageError(f"{choice.variable} is no URL, name or path of a store") from None
    except HoldfastError as error:
        error.add_note(f"The store was named by {choice.variable}.")
        raise
    logging.getLogger("holdfast.stores").info("%s names the store: %r", choice.variable, store)
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
    from holdfast.stores.checkpoint_store import CheckpointStore

    return isinstance(target, CheckpointStore)


def _adapted(target: CheckpointStore) -> Store:
    """The one store that an object is in this process, so that all who name it keep out of each other's way."""
    from holdfast.stores.adapter import AdaptedStore

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
    if "://" in text:
        url = _parse(text)
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
        return _open_sqlite_file(text)
    plugged = _plugged(text)
    if plugged is None:
        raise _unknown(text)
    url = StoreURL(f"{text}://", text, "", "", {})
    with _lock:
        return _names.setdefault(text, _once(lambda: plugged(url)))()


def _plugged(name: str) -> StoreScheme | None:
    """What an installed package makes of a scheme or name that isn't registered."""
    from holdfast.stores.plugins import factory_of

    return factory_of(name)


def _parse(text: str) -> StoreURL:
    from urllib.parse import parse_qsl, unquote, urlsplit

    scheme, _, rest = text.partition("://")
    try:
        parts = urlsplit("//" + rest, allow_fragments=False)
        pairs = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError:  # whose text may be part of a password
        raise UsageError(
            f"the {scheme}:// URL of the store can't be read: write options as ?name=value&name=value, and what "
            "is odd in a user name or password as %XX"
        ) from None
    return StoreURL(text, scheme.lower(), parts.netloc, unquote(parts.path), dict(pairs))


def _unknown(name: str) -> UnknownName:
    from holdfast.stores.plugins import brought

    with _lock:
        return UnknownName("store", name, [*_names, *(f"{scheme}://" for scheme in _schemes), *brought()])


def _open_memory(url: StoreURL) -> Store:
    if url.host or url.path.strip("/"):
        raise UsageError('a store in memory has no place: write "memory://"')
    url.options()
    return MemoryStore()


def _open_sqlite(url: StoreURL) -> Store:
    if url.host or url.path in ("", "/"):
        raise UsageError(
            'name the file after three slashes, "sqlite:///runs.db", or four from the root, "sqlite:////var/runs.db"'
        )
    options = url.options(level=str, timeout=float)
    return _open_sqlite_file(url.path[1:], **options)


def _open_sqlite_file(path: str, **options: object) -> SQLiteStore:
    from pathlib import Path

    from holdfast.stores.sqlite import SQLiteStore

    key = (str(Path(path).resolve()), options.get("level", "disk"))
    with _lock:
        store = _files.get(key)
        if store is None or store.closed:
            store = _files[key] = SQLiteStore(path, **options)  # type: ignore[arg-type]  # checked by the store
        return store


def _open_directory(url: StoreURL) -> Store:
    from pathlib import Path

    from holdfast.stores.files import FileStore

    path = url.path.lstrip("/")
    if url.host not in ("", "localhost", ".") or not path:
        raise UsageError(
            'name the directory from the root, "file:///var/runs", or from the working directory, "file://./runs"'
        )
    options = url.options(level=str, timeout=float)
    directory = Path(path) if url.host == "." or Path(path).is_absolute() else Path("/", path)
    key = (str(directory.resolve()), options.get("level", "disk"))
    with _lock:
        store = _directories.get(key)
        if store is None or store.closed:
            store = _directories[key] = FileStore(directory, **options)  # type: ignore[arg-type]  # checked by the store
        return store


def _open_redis(url: StoreURL) -> Store:
    from holdfast.stores.redis import RedisStore

    if "@" in url.text and "@" not in url.host:  # the rest would show in messages
        raise UsageError("write what is odd in a user name or password of a URL as %XX: / as %2F, ? as %3F")
    place = url.text.partition("?")[0]
    tls = dict.fromkeys(("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs"), str)
    options = url.options(level=str, prefix=str, ttl=float, timeout=float, db=int, **tls)
    return _shared(url, lambda: RedisStore(place, **options))  # type: ignore[arg-type]  # checked by the store


def _open_tiered(url: StoreURL) -> Store:
    from holdfast.stores.tiered import TieredStore

    stores = url.options(hot=str, cold=str)
    if url.host or url.path.strip("/") or len(stores) != 2:
        raise UsageError('name both stores: "tiered://?hot=redis://localhost&cold=sqlite:///runs.db"')

    def opened() -> Store:
        hot, cold = _briefly(str(stores["hot"])), _resolve(str(stores["cold"]))
        try:
            return TieredStore(_resolve(hot), cold)
        except StoreUnavailable:  # runs do without it, so opening does too
            return TieredStore(lambda: _resolve(hot), cold)

    return _shared(url, opened)


def _briefly(url: str) -> str:
    """The URL of a hot store, which is not worth waiting for."""
    if not url.startswith("redis") or "timeout=" in url:
        return url
    return f"{url}{'&' if '?' in url else '?'}timeout={HOT_PATIENCE}"


def _open_postgres(url: StoreURL) -> Store:
    own = {key: text for key, text in url.query.items() if key in _POSTGRES_OPTIONS}
    options = url._replace(query=own).options(**_POSTGRES_OPTIONS)
    address, _, query = url.text.partition("?")
    rest = "&".join(each for each in query.split("&") if each.partition("=")[0] not in own)

    def make() -> PostgresStore:
        from holdfast.stores.postgres import PostgresStore

        place = "postgresql://" + address.partition("://")[2] + ("?" + rest if rest else "")
        return PostgresStore(place, **options)  # type: ignore[arg-type]  # checked by the store

    return _shared(url, make, "postgres")


def _open_embedded_postgres(url: StoreURL) -> Store:
    if url.host or url.path in ("", "/"):
        raise UsageError(
            'name the directory after three slashes, "postgresql+embedded:///data", or four from the root'
        )
    options = url.options(**_POSTGRES_OPTIONS)

    def make() -> PostgresStore:
        from holdfast.stores.postgres_embedded import open_embedded

        return open_embedded(url.path[1:], **options)

    return _shared(url, make, "embedded")


def _shared(url: StoreURL, factory: StoreFactory, extra: str = "") -> Store:
    """The store of this URL that is open already, or a new one. `extra` is what brings what it needs."""
    with _lock:
        store = _servers.get(url.text)
        if store is None or getattr(store, "closed", False):
            try:
                store = _servers[url.text] = factory()
            except ImportError as error:
                if not extra:
                    raise
                raise StoreUnavailable(
                    f"{url.scheme}:// needs what isn't installed here ({error}): pip install 'holdfast[{extra}]'"
                ) from error
        return store


def _kind(target: object) -> str:
    return f"{type(target).__module__}.{type(target).__qualname__}"


_lock = threading.RLock()
_names: dict[str, Callable[[], Store]] = {
    "memory": _once(MemoryStore),
    "sqlite": lambda: _open_sqlite_file("holdfast.db"),
    "env": _open_environment,
}
_schemes: dict[str, StoreScheme] = {
    "memory": _open_memory,
    "sqlite": _open_sqlite,
    "file": _open_directory,
    "redis": _open_redis,
    "rediss": _open_redis,
    "redis+unix": _open_redis,
    "tiered": _open_tiered,
    "postgresql": _open_postgres,
    "postgres": _open_postgres,
    "postgresql+embedded": _open_embedded_postgres,
}
_POSTGRES_OPTIONS: dict[str, Callable[[str], object]] = {
    "schema": str,
    "level": str,
    "timeout": float,
    "connections": int,
}
_adapters: WeakValueDictionary[int, AdaptedStore] = WeakValueDictionary()
_files: WeakValueDictionary[tuple[str, object], SQLiteStore] = WeakValueDictionary()
_directories: WeakValueDictionary[tuple[str, object], FileStore] = WeakValueDictionary()
_servers: WeakValueDictionary[str, Store] = WeakValueDictionary()
