"""The stores that come with Limpet, each opened by its URL and imported at its first use."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakValueDictionary

from limpet.errors import LimpetError, StoreUnavailable, UsageError
from limpet.journal.store import Store
from limpet.stores.memory import MemoryStore

if TYPE_CHECKING:
    from limpet.stores.postgres.store import PostgresStore

HOT_STORE_TIMEOUT = 0.5
"""Seconds to wait for the hot store of a tiered one, unless its URL gives a timeout."""


class StoreURL(NamedTuple):
    """A store's URL in parts. `text` is the whole URL and may hold a password: don't show it."""

    text: str
    scheme: str
    host: str
    path: str
    query: Mapping[str, str]

    def __repr__(self) -> str:
        return f"<StoreURL {self.scheme}://…>"

    def options(self, **known: Callable[[str], object]) -> dict[str, object]:
        """The options in the URL's query, each converted by the function of its name in `known`.

        Raises `UsageError` for an unknown name, and for a value that its function refuses.
        """
        options: dict[str, object] = {}
        for key, text in self.query.items():
            if key not in known:
                raise UsageError(
                    f"a {self.scheme}:// store has no option {key!r}; it has {', '.join(sorted(known))}"
                )
            try:
                options[key] = known[key](text)
            except LimpetError:
                raise
            except ValueError as error:
                raise UsageError(f"a {self.scheme}:// store can't have {key}={text!r}") from error
        return options


def parse_url(text: str) -> StoreURL:
    """The parts of a URL. Raises `UsageError`, which never quotes the URL: it may hold a password."""
    from urllib.parse import parse_qsl, unquote, urlsplit

    scheme, _, rest = text.partition("://")
    try:
        parts = urlsplit("//" + rest, allow_fragments=False)
        pairs = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError:  # `from None`: the message may quote a part of the password
        raise UsageError(
            f"the {scheme}:// URL of the store can't be read: write options as ?name=value&name=value, and special "
            "characters in a user name or password as %XX"
        ) from None
    return StoreURL(text, scheme.lower(), parts.netloc, unquote(parts.path), dict(pairs))


def _open_memory(url: StoreURL) -> Store:
    if url.host or url.path.strip("/"):
        raise UsageError('a store in memory has no path: write "memory://"')
    url.options()
    return MemoryStore()


def _open_sqlite(url: StoreURL) -> Store:
    if url.host or url.path in ("", "/"):
        raise UsageError(
            'name the file after three slashes, "sqlite:///runs.db", or four from the root, "sqlite:////var/runs.db"'
        )
    options = url.options(level=str, timeout=float)
    return open_sqlite_file(url.path[1:], **options)


def open_sqlite_file(path: str, **options: object) -> Store:
    """The store in this file: the open one with the same level if this process has it, or a new one."""
    from pathlib import Path

    from limpet.stores.sqlite.store import SQLiteStore

    key = ("sqlite", str(Path(path).resolve()), options.get("level", "disk"))
    return shared_store(key, lambda: SQLiteStore(path, **options))  # type: ignore[arg-type]  # checked by the store


def _open_directory(url: StoreURL) -> Store:
    from pathlib import Path

    from limpet.stores.files.store import FileStore

    path = url.path.lstrip("/")
    if url.host not in ("", "localhost", ".") or not path:
        raise UsageError(
            'name the directory from the root, "file:///var/runs", or from the working directory, "file://./runs"'
        )
    options = url.options(level=str, timeout=float)
    if url.host == "." or Path(path).is_absolute():
        directory = Path(path)
    else:
        directory = Path("/", path)
    key = ("file", str(directory.resolve()), options.get("level", "disk"))
    return shared_store(key, lambda: FileStore(directory, **options))  # type: ignore[arg-type]  # checked by the store


def _open_redis(url: StoreURL) -> Store:
    from limpet.stores.redis.store import RedisStore

    if "@" in url.text and "@" not in url.host:  # a part of the password was taken for the path
        raise UsageError(
            "write special characters in a user name or password of a URL as %XX: / as %2F, ? as %3F"
        )
    address = url.text.partition("?")[0]
    tls = dict.fromkeys(("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs"), str)
    options = url.options(level=str, prefix=str, ttl=float, timeout=float, db=int, **tls)
    return shared_store(url.text, lambda: RedisStore(address, **options))  # type: ignore[arg-type]  # checked by the store


def open_tiered(url: StoreURL, resolve: Callable[[str], Store]) -> Store:
    """A hot store in front of a cold one; `resolve` opens either."""
    from limpet.stores.composite.tiered import TieredStore

    stores = url.options(hot=str, cold=str)
    if url.host or url.path.strip("/") or len(stores) != 2:
        raise UsageError('name both stores: "tiered://?hot=redis://localhost&cold=sqlite:///runs.db"')

    hot_url = _with_short_timeout(str(stores["hot"]))

    def open_both() -> Store:
        cold = resolve(str(stores["cold"]))
        try:
            return TieredStore(resolve(hot_url), cold)
        except StoreUnavailable as unavailable:
            # A missing package stays missing while this process lives, so the user must know now. Any other failure
            # may pass, and runs don't need the hot store: it is opened when it can be.
            if isinstance(unavailable.__cause__, ImportError):
                raise
            return TieredStore(lambda: resolve(hot_url), cold)

    return shared_store(url.text, open_both)


def _with_short_timeout(url: str) -> str:
    """The URL of a hot store, which is not worth a long wait."""
    if not url.startswith("redis") or "timeout=" in url:
        return url
    separator = "&" if "?" in url else "?"
    return f"{url}{separator}timeout={HOT_STORE_TIMEOUT}"


def _open_postgres(url: StoreURL) -> Store:
    # All other options of the URL are for the PostgreSQL client library.
    own = {key: text for key, text in url.query.items() if key in _POSTGRES_OPTIONS}
    options = url._replace(query=own).options(**_POSTGRES_OPTIONS)
    address, _, query = url.text.partition("?")
    rest = "&".join(each for each in query.split("&") if each.partition("=")[0] not in own)

    def make() -> PostgresStore:
        from limpet.stores.postgres.store import PostgresStore

        libpq_url = "postgresql://" + address.partition("://")[2]
        if rest:
            libpq_url += "?" + rest
        return PostgresStore(libpq_url, **options)  # type: ignore[arg-type]  # checked by the store

    return shared_store(url.text, lambda: _with_extra(url, make, "postgres"))


def _open_embedded_postgres(url: StoreURL) -> Store:
    if url.host or url.path in ("", "/"):
        raise UsageError(
            'name the directory after three slashes, "postgresql+embedded:///data", or four from the root'
        )
    options = url.options(**_POSTGRES_OPTIONS)

    def make() -> PostgresStore:
        from limpet.stores.postgres.embedded import open_embedded

        return open_embedded(url.path[1:], **options)

    return shared_store(url.text, lambda: _with_extra(url, make, "embedded"))


def _with_extra(url: StoreURL, make: Callable[[], Store], extra: str) -> Store:
    """The store that `make` opens. Where a package is missing, the error names the extra that installs it."""
    try:
        return make()
    except ImportError as error:
        raise StoreUnavailable(
            f"{url.scheme}:// needs a package that isn't installed ({error}): pip install 'limpet[{extra}]'"
        ) from error


def shared_store(key: Hashable, make: Callable[[], Store]) -> Store:
    """The open store that this process has under `key`, or else a new one from `make`.

    A store has connections, locks and a memory of runs, so all graphs that name one place share them. The store is
    remembered only while something refers to it. A server that doesn't answer keeps only those threads waiting that
    open the same store.
    """
    with opening_lock:
        lock = _locks.setdefault(key, threading.RLock())
    with lock:
        store = _open_stores.get(key)
        if store is None or getattr(store, "closed", False):
            store = _open_stores[key] = make()
        return store


opening_lock = threading.RLock()
"""For all that is known by name, scheme or place. Held for a moment, and never while a store is opened: that may take
long, and a tiered store opens two others."""
_locks: WeakValueDictionary[Hashable, threading.RLock] = WeakValueDictionary()
"""One for each place that is being opened, so that no two threads do so at once."""
_open_stores: WeakValueDictionary[Hashable, Store] = WeakValueDictionary()
_POSTGRES_OPTIONS: dict[str, Callable[[str], object]] = {
    "schema": str,
    "level": str,
    "timeout": float,
    "connections": int,
}

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
