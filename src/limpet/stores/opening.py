"""From what a user writes (a store, a name, a URL, a path) to an open store.

A *name* stands for one store, which all users of the name share. A *scheme* is the part of a URL before `://` and
stands for a kind of store: a function from the URL to a store. Both are registered here, or brought by installed
packages as entry points. `LIMPET_STORE`, or `WORKFLOW_CHECKPOINT_BACKEND` with its `…_DSN`, choose a store from
outside of the program.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard

from limpet.errors import LimpetError, StoreUnavailable, UnknownName, UsageError, did_you_mean
from limpet.journal.optional_calls import provides
from limpet.journal.store import Store
from limpet.stores.memory import MemoryStore
from limpet.stores.unopened import stand_in
from limpet.stores.urls import (
    BUILT_IN,
    StoreURL,
    open_sqlite_file,
    open_tiered,
    opening_lock,
    parse_url,
    shared_store,
)
from limpet.stores.user_stores.checkpointer import Checkpointer

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from limpet.stores.composite.encrypted import Keys
    from limpet.stores.user_stores.checkpoint_store import CheckpointStore
    from limpet.stores.user_stores.state_store import StateStore

STORE_VARIABLE = "LIMPET_STORE"
BACKEND_VARIABLE = "WORKFLOW_CHECKPOINT_BACKEND"
DSN_VARIABLE = "WORKFLOW_CHECKPOINT_DSN"
KEY_VARIABLES = frozenset({"LIMPET_ENCRYPTION_KEY", "LIMPET_ENCRYPTION_OLD_KEYS"})
"""Unless one of these is set, opening a store imports nothing about encryption."""

SQLITE_SUFFIXES = (".db", ".sqlite", ".sqlite3")
ENCRYPTED = "encrypted+"
ENTRY_POINTS = "limpet.stores"
"""The group of entry points under which other packages bring stores."""

BACKEND_SCHEMES = {
    "memory": ("memory",),
    "sqlite": ("sqlite",),
    "file": ("file",),
    "postgres": ("postgresql", "postgres"),
    "redis": ("redis", "rediss", "redis+unix"),
}
"""The values of `WORKFLOW_CHECKPOINT_BACKEND`, and the schemes that each allows in the DSN."""

BACKEND_SYNONYMS = {"postgresql": "postgres", "files": "file"}
"""Other values of `WORKFLOW_CHECKPOINT_BACKEND` that are understood."""

StoreFactory = Callable[[], "Store | CheckpointStore"]
StoreScheme = Callable[[StoreURL], "Store | CheckpointStore"]


def open_store(target: Store | CheckpointStore | str | os.PathLike[str], encryption: Any = None) -> Store:
    """The store that `target` means: a store itself, a registered name, a URL, or a SQLite file's path.

    An object with the five methods of a `CheckpointStore` works too, or with the four that keep States by run id; you
    get the same store for the same object.

    `"memory"` is one store for the whole process and `"memory://"` a new one each time. `"sqlite"` is the
    file limpet.db in the working directory, `"sqlite:///runs.db"` a file next to it and
    `"sqlite:////var/runs.db"` one anywhere, with `?level=process&timeout=5` if you like; a path that ends
    in .db, .sqlite or .sqlite3 works as well. `"file:///var/runs"` is a directory of plain files, and
    `"file://./runs"` one in the working directory. A file that is already open, at the same level, is not opened
    again: you get the same store. `"redis://host:6379/0"` is a Redis server, and
    `"tiered://?hot=redis://host&cold=sqlite:///runs.db"` one store in front of another.

    `"postgresql://user:password@host/database"` is a PostgreSQL server, `"postgresql+embedded:///data"` one that
    is started for you, with `?schema=…&level=…` if you like; the same URL gives the same store.

    `"env"` is the store that `LIMPET_STORE` names, or `WORKFLOW_CHECKPOINT_BACKEND` and `WORKFLOW_CHECKPOINT_DSN`.
    Names and schemes that aren't registered are looked up among the entry points `limpet.stores` of installed
    packages.

    With `encryption`, a key or `Keys`, the store is encrypted. Without, it is encrypted if the environment has
    `LIMPET_ENCRYPTION_KEY`, unless it is in memory, or `encryption` is False. A URL that begins with `encrypted+`,
    as `"encrypted+sqlite:///runs.db"` does, is refused where that variable isn't set.

    Raises `UnknownName`, `UsageError` for a URL that makes no sense, or `StoreUnavailable`.
    """
    if isinstance(target, os.PathLike):
        target = os.fspath(target)
    if isinstance(target, str):
        store = _resolve(target)
    else:
        store = _as_store(target)
    return _encrypt_if_asked(store, encryption)


def open_default_store(encryption: Any = None) -> Store | None:
    """The store for a graph that names none: that of `LIMPET_STORE`, if it is set. Raises as `open_store` does."""
    choice = default_choice()
    if choice is None:
        return None
    return _encrypt_if_asked(_open_chosen(choice), encryption)


def register_store(name: str, store: Store | CheckpointStore | StoreFactory) -> None:
    """Make `name` stand for a store, or for the one that a function without arguments makes at the first use.

    A name that was registered before is replaced.
    """
    if not name or "://" in name:
        raise UsageError(f"{name!r} can't name a store: use a word")
    if provides(store, Store) or _is_checkpoint_store(store) or _is_state_store(store):
        factory = _always(_as_store(store))
    elif callable(store):
        factory = _once(store)
    else:
        raise UsageError(f"register a Store object or a function that makes one, not {_kind(store)}")
    with opening_lock:
        _names[name] = factory


def register_store_scheme(scheme: str, factory: StoreScheme) -> None:
    """Make `factory` open the URLs that begin with `scheme://`, in place of an earlier one."""
    if not scheme or not callable(factory):
        raise UsageError("register a scheme such as 'etcd' with a function from a StoreURL to a store")
    with opening_lock:
        _schemes[scheme.lower()] = factory


# Names, URLs and paths


def _resolve(text: str) -> Store:
    if "\0" in text or "%00" in text:  # the system would refuse it with a ValueError of its own
        raise UsageError("the store's name, URL or path has a null character in it: leave it out")
    if text.startswith(ENCRYPTED):
        from limpet.stores.composite.keys import required_environment_keys

        store = _resolve(text.removeprefix(ENCRYPTED))
        return stand_in("encrypted", True) or _encrypted(store, required_environment_keys())
    if "://" in text:
        return _open_url(parse_url(text))
    with opening_lock:
        factory = _names.get(text)
    if factory is not None:
        return stand_in(text) or factory()
    _refuse_half_a_url(text)
    if text.lower().endswith(SQLITE_SUFFIXES):
        return stand_in("sqlite") or open_sqlite_file(text)
    return _open_plugin(text)


def _refuse_half_a_url(text: str) -> None:
    """Refuse `sqlite:/runs.db` and the like, which would be a strange path. The rest of it may hold a password."""
    scheme, colon, _ = text.partition(":")
    with opening_lock:
        known = scheme.lower() in _schemes
    if colon and known:
        raise UsageError(f"a URL has two slashes after its scheme: write {scheme}://…")


def _open_url(url: StoreURL) -> Store:
    with opening_lock:
        scheme = _schemes.get(url.scheme)
    if scheme is None:
        scheme = _plugin(url.scheme)
    if scheme is None:
        raise _unknown(f"{url.scheme}://")
    return stand_in(url.scheme) or _as_store(scheme(url))


def _open_plugin(name: str) -> Store:
    """The one store of a name that an installed package brings."""
    plugin = _plugin(name)
    if plugin is None:
        raise _unknown(name)
    url = StoreURL(f"{name}://", name, "", "", {})
    with opening_lock:
        factory = _names.setdefault(name, _once(lambda: plugin(url)))
    return stand_in(name) or factory()


def _unknown(name: str) -> UnknownName:
    from importlib.metadata import entry_points

    plugins = sorted({entry.name for entry in entry_points(group=ENTRY_POINTS)})
    with opening_lock:
        return UnknownName("store", name, [*_names, *(f"{scheme}://" for scheme in _schemes), *plugins])


def _always(store: Store) -> Callable[[], Store]:
    return lambda: store


def _once(factory: StoreFactory) -> Callable[[], Store]:
    """A function that gives the same store each time, and a new one only after that was closed."""
    made: list[Store] = []
    lock = threading.RLock()

    def shared() -> Store:
        with lock:
            if not made or getattr(made[0], "closed", False):
                made[:] = [_as_store(factory())]
            return made[0]

    return shared


# Objects


def _as_store(target: object) -> Store:
    """A user's object as a store. Raises `UsageError` if it can't be one."""
    if isinstance(target, type):
        raise UsageError(f"a store must be a Store object, a name, a URL or a path, not {_kind(target)}")
    if provides(target, Store):
        return target
    if _is_checkpoint_store(target):
        from limpet.stores.user_stores.checkpoint_store import AdaptedStore

        # One store for each object, so that its lock keeps all threads that use the object apart.
        return shared_store(("checkpoint store", id(target)), lambda: AdaptedStore(target))
    if _is_state_store(target):
        from limpet.stores.user_stores.checkpoint_store import AdaptedStore
        from limpet.stores.user_stores.state_store import StatesAsCheckpoints

        return shared_store(
            ("state store", id(target)), lambda: AdaptedStore(StatesAsCheckpoints(target), by_run=True)
        )
    if provides(target, Checkpointer):
        raise UsageError(
            f"{_kind(target)} has save() and load(), which makes it a checkpointer: give it as "
            "StateGraph.compile(checkpointer=…). A store has delete(), list() and cleanup_expired() as well"
        )
    raise UsageError(f"a store must be a Store object, a name, a URL or a path, not {_kind(target)}")


def _is_checkpoint_store(target: object) -> TypeGuard[CheckpointStore]:
    from limpet.stores.user_stores.checkpoint_store import CheckpointStore

    return provides(target, CheckpointStore)


def _is_state_store(target: object) -> TypeGuard[StateStore]:
    from limpet.stores.user_stores.state_store import is_state_store

    return is_state_store(target)


def _kind(target: object) -> str:
    return f"{type(target).__module__}.{type(target).__qualname__}"


# Encryption


def _encrypt_if_asked(store: Store, encryption: Any) -> Store:
    """The store as it is, or encrypted if the caller or the environment gives a key."""
    if encryption is False or (encryption is None and KEY_VARIABLES.isdisjoint(os.environ)):
        return store
    from limpet.stores.composite.keys import environment_keys, read_keys

    if encryption is not None:
        return _encrypted(store, read_keys(encryption))
    if store.abilities.keeps_secrets:
        return store
    keys = environment_keys()
    if keys is None:
        return store
    return _encrypted(store, keys)


def _encrypted(store: Store, keys: Keys) -> Store:
    """The store, encrypted with these keys: the same one for the same two, while it is in use."""
    from limpet.stores.composite.encrypted import EncryptedStore

    if isinstance(store, EncryptedStore):
        raise UsageError(
            "the store is already encrypted: give it without encryption=, or give the store inside of it"
        )
    return shared_store(("encrypted", id(store), keys.mark), lambda: EncryptedStore(store, keys))


# The environment


class Choice(NamedTuple):
    """A store's name, URL or path, which may hold a password, and the variable that has it."""

    target: str
    variable: str

    def __repr__(self) -> str:
        return f"<Choice by {self.variable}>"


def default_choice() -> Choice | None:
    """What graphs use that name no store: `LIMPET_STORE`. The other variables may be meant for another program."""
    target = os.environ.get(STORE_VARIABLE, "").strip()
    return Choice(target, STORE_VARIABLE) if target else None


def environment_choice() -> Choice:
    """What `store="env"` means. Raises `UsageError` if no variable is set, or what is set makes no sense."""
    backend = os.environ.get(BACKEND_VARIABLE, "").strip()
    dsn = os.environ.get(DSN_VARIABLE, "").strip()
    choice = default_choice()
    if choice is None and (backend or dsn):
        choice = Choice(_backend_target(backend.lower(), dsn), BACKEND_VARIABLE if backend else DSN_VARIABLE)
    if choice is None:
        raise UsageError(
            f'the store is "env", but the environment names none: set {STORE_VARIABLE} to a URL or name, '
            f"or {BACKEND_VARIABLE} to one of {', '.join(BACKEND_SCHEMES)} and {DSN_VARIABLE} to its URL"
        )
    if choice.target == "env":
        raise _env_names_itself(choice)
    return choice


def _backend_target(backend: str, dsn: str) -> str:
    """A backend and its DSN as a name or URL for `open_store`. No message repeats the DSN."""
    scheme = dsn.partition("://")[0].lower() if "://" in dsn else ""
    backend = BACKEND_SYNONYMS.get(backend, backend)
    allowed = BACKEND_SCHEMES.get(backend)
    if backend and allowed is None and not _is_store_name(backend):
        raise _unknown_backend(backend)
    if scheme and allowed and scheme not in allowed:
        raise UsageError(
            f"{DSN_VARIABLE} begins with {scheme}://, but {BACKEND_VARIABLE} is {backend!r}: make them agree"
        )
    if scheme:
        return dsn
    if backend in ("memory", "sqlite") and not dsn:
        return backend
    if backend == "sqlite":
        return "sqlite:///" + _quoted(dsn)
    if backend == "file" and dsn:
        return ("file://" if dsn.startswith("/") else "file://./") + _quoted(dsn)
    if allowed is None and not dsn:
        return backend
    if backend == "memory":
        raise UsageError(
            f"a store in memory has no path: {BACKEND_VARIABLE} is 'memory', so leave {DSN_VARIABLE} out"
        )
    examples = {"file": "/var/lib/app/runs", "redis": "redis://localhost"}
    example = examples.get(backend, "postgresql://localhost/app")
    raise UsageError(f"set {DSN_VARIABLE} to where the {backend or 'store'} is, such as {example}")


def _is_store_name(name: str) -> bool:
    """Whether a store or scheme was registered under this name, or an installed package brings one."""
    with opening_lock:
        known = name in _names or name in _schemes
    return known or _plugin(name) is not None


def _unknown_backend(backend: str) -> UsageError:
    # Text that isn't a word may be a password, so it isn't quoted.
    given = f" {backend!r}" if backend.isidentifier() else " something else"
    near = did_you_mean(backend, [*BACKEND_SCHEMES, *BACKEND_SYNONYMS])
    return UsageError(f"{BACKEND_VARIABLE} must be one of {', '.join(BACKEND_SCHEMES)}, and is{given}{near}")


def _quoted(path: str) -> str:
    from urllib.parse import quote

    return quote(path, safe="/:\\")


def _open_environment() -> Store:
    return _open_chosen(environment_choice())


def _open_chosen(choice: Choice) -> Store:
    """The store that the environment names. The log says which; errors say which variable named it."""
    import logging

    if getattr(_opening, "from_environment", False):
        raise _env_names_itself(choice)
    _opening.from_environment = True
    try:
        store = _resolve(choice.target)
    except UnknownName as error:
        if "://" in choice.target or error.name.isidentifier():
            error.add_note(f"The store was named by {choice.variable}.")
            raise
        # Text that is neither a URL nor a word may be a password, so the message must not quote it.
        raise UsageError(f"{choice.variable} isn't a URL, name or path of a store") from None
    except LimpetError as error:
        error.add_note(f"The store was named by {choice.variable}.")
        raise
    finally:
        _opening.from_environment = False
    logging.getLogger("limpet.stores").info("%s names the store: %r", choice.variable, store)
    return store


def _env_names_itself(choice: Choice) -> UsageError:
    return UsageError(f'{choice.variable} is to name a store, and "env" doesn\'t: give a URL, name or path')


# Stores of other packages


def _plugin(name: str) -> StoreScheme | None:
    """The function from a `StoreURL` to a store that an installed package brings under this name, if one does.

    Raises `StoreUnavailable` if it can't be loaded, as where it needs a package that isn't installed.
    """
    from importlib.metadata import entry_points  # a slow import, which most programs never need

    for entry in entry_points(group=ENTRY_POINTS, name=name):
        return _loaded(entry)
    return None


def _loaded(entry: EntryPoint) -> StoreScheme:
    package = "a package" if entry.dist is None else entry.dist.name
    try:
        factory = entry.load()
    except Exception as error:  # the package's own code ran, and may raise anything
        advice = ""
        if isinstance(error, ImportError) and error.name:
            advice = f": install {error.name}"
        raise StoreUnavailable(
            f"the store {entry.name!r} of {package} can't be loaded ({type(error).__name__}: {error}){advice}"
        ) from error
    if not callable(factory):
        raise UsageError(
            f"the store {entry.name!r} of {package} is {factory!r}, and should be a function of a StoreURL"
        )
    return factory  # type: ignore[no-any-return]  # a plugin's: checked as far as it can be


_opening = threading.local()
"""Whether this thread is opening the store that the environment names: that can't lead to "env" again."""
_names: dict[str, Callable[[], Store]] = {
    "memory": _once(MemoryStore),
    "sqlite": lambda: open_sqlite_file("limpet.db"),
    "env": _open_environment,
}
_schemes: dict[str, StoreScheme] = {**BUILT_IN, "tiered": lambda url: open_tiered(url, _resolve)}
