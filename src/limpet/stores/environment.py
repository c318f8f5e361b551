"""Which store the environment names: `LIMPET_STORE`, or `WORKFLOW_CHECKPOINT_BACKEND` with its `…_DSN`."""

from __future__ import annotations

import os
from typing import NamedTuple

from limpet.errors import UsageError

STORE = "LIMPET_STORE"
BACKEND = "WORKFLOW_CHECKPOINT_BACKEND"
DSN = "WORKFLOW_CHECKPOINT_DSN"

SCHEMES = {
    "memory": ("memory",),
    "sqlite": ("sqlite",),
    "file": ("file",),
    "postgres": ("postgresql", "postgres"),
    "redis": ("redis", "rediss", "redis+unix"),
}
"""The backends, and how the URL of each may begin."""


class Choice(NamedTuple):
    """What the environment names: a name, URL or path, which may hold a password, and the variable that did."""

    target: str
    variable: str

    def __repr__(self) -> str:
        return f"<Choice by {self.variable}>"


def chosen_silently() -> Choice | None:
    """What graphs use that name no store: `LIMPET_STORE`, if it is set. The others may be another program's."""
    target = os.environ.get(STORE, "").strip()
    return Choice(target, STORE) if target else None


def chosen() -> Choice:
    """What `store="env"` means. Raises `UsageError` if nothing is set, or what is set makes no sense."""
    backend, dsn = (os.environ.get(name, "").strip() for name in (BACKEND, DSN))
    choice = chosen_silently()
    if choice is None and (backend or dsn):
        choice = Choice(_target(backend.lower(), dsn), BACKEND if backend else DSN)
    if choice is None:
        raise UsageError(
            f'the store is "env", but the environment names none: set {STORE} to a URL or name, '
            f"or {BACKEND} to one of {', '.join(SCHEMES)} and {DSN} to its URL"
        )
    if choice.target == "env":
        raise UsageError(f'{choice.variable} names a store, and "env" is none')
    return choice


def _target(backend: str, dsn: str) -> str:
    """A backend and its DSN as what `open_store` takes. No message repeats the DSN."""
    scheme = dsn.partition("://")[0].lower() if "://" in dsn else ""
    allowed = SCHEMES.get(backend)
    if scheme and allowed and scheme not in allowed:
        raise UsageError(f"{DSN} begins with {scheme}://, but {BACKEND} is {backend!r}: make them agree")
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
        raise UsageError(f"a store in memory has no place: {BACKEND} is 'memory', so leave {DSN} out")
    example = {"file": "/var/lib/app/runs", "redis": "redis://localhost"}.get(
        backend, "postgresql://localhost/app"
    )
    raise UsageError(f"set {DSN} to where the {backend or 'store'} is, such as {example}")


def _quoted(path: str) -> str:
    from urllib.parse import quote

    return quote(path, safe="/:\\")
