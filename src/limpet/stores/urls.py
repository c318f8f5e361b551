"""The kinds of store that come with Limpet, each opened by its URL, and imported when it first is."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakValueDictionary

from limpet.errors import StoreUnavailable, UsageError
from limpet.journal.store import Store
from limpet.stores.memory import MemoryStore

if TYPE_CHECKING:
    from limpet.stores.files.store import FileStore
    from limpet.stores.postgres.store import PostgresStore
    from limpet.stores.sqlite.store import SQLiteStore

HOT_PATIENCE = 0.5
"""Seconds that the hot store of a tiered one is waited for, unless its URL says otherwise."""


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


def parse_url(text: str) -> StoreURL:
    """The parts of a URL. Raises `UsageError` that doesn't quote it: it may hold a password."""
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
    return open_sqlite_file(url.path[1:], **options)


def open_sqlite_file(path: str, **options: object) -> SQLiteStore:
    """The store in this file: the one that is open already, at the same level, or a new one."""
    from pathlib import Path

    from limpet.stores.sqlite.store import SQLiteStore

    key = (str(Path(path).resolve()), options.get("level", "disk"))
    with _lock:
        store = _files.get(key)
        if store is None or store.closed:
            store = _files[key] = SQLiteStore(path, **options)  # type: ignore[arg-type]  # checked by the store
        return store


def _open_directory(url: StoreURL) -> Store:
    from pathlib import Path

    from limpet.stores.files.store import FileStore

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
    from limpet.stores.redis.store import RedisStore

    if "@" in url.text and "@" not in url.host:  # the rest would show in messages
        raise UsageError("write what is odd in a user name or password of a URL as %XX: / as %2F, ? as %3F")
    place = url.text.partition("?")[0]
    tls = dict.fromkeys(("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs"), str)
    options = url.options(level=str, prefix=str, ttl=float, timeout=float, db=int, **tls)
    return _shared(url, lambda: RedisStore(place, **options))  # type: ignore[arg-type]  # checked by the store


def open_tiered(url: StoreURL, resolve: Callable[[str], Store]) -> Store:
    """One store in front of another; `resolve` opens either."""
    from limpet.stores.composite.tiered import TieredStore

    stores = url.options(hot=str, cold=str)
    if url.host or url.path.strip("/") or len(stores) != 2:
        raise UsageError('name both stores: "tiered://?hot=redis://localhost&cold=sqlite:///runs.db"')

    def opened() -> Store:
        hot, cold = _briefly(str(stores["hot"])), resolve(str(stores["cold"]))
        try:
            return TieredStore(resolve(hot), cold)
        except StoreUnavailable as away:  # runs do without it, so opening does too
            if isinstance(
                away.__cause__, ImportError
            ):  # but for a package that nobody will install meanwhile
                raise
            return TieredStore(lambda: resolve(hot), cold)

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
        from limpet.stores.postgres.store import PostgresStore

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
        from limpet.stores.postgres.embedded import open_embedded

        return open_embedded(url.path[1:], **options)

    return _shared(url, make, "embedded")


def _shared(url: StoreURL, factory: Callable[[], Store], extra: str = "") -> Store:
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
                    f"{url.scheme}:// needs what isn't installed here ({error}): pip install 'limpet[{extra}]'"
                ) from error
        return store


_lock = threading.RLock()
_POSTGRES_OPTIONS: dict[str, Callable[[str], object]] = {
    "schema": str,
    "level": str,
    "timeout": float,
    "connections": int,
}
_files: WeakValueDictionary[tuple[str, object], SQLiteStore] = WeakValueDictionary()
_directories: WeakValueDictionary[tuple[str, object], FileStore] = WeakValueDictionary()
_servers: WeakValueDictionary[str, Store] = WeakValueDictionary()

BUILT_IN: Mapping[str, Callable[[StoreURL], Store]] = {
    "memory": _open_memory,
    "sqlite": _open_sqlite,
    "file": _open_directory,
    "redis": _open_redis,
    "rediss": _open_redis,
    "redis+unix": _open_redis,
    "postgresql": _open_postgres,
    "postgres": _open_postgres,
    "postgresql+embedded": _open_embedded_postgres,
}
