"""What a Redis server is and how it keeps what it is given, asked once when a store is opened.

What an acknowledged save survives is decided by the server's settings, not by us:

- `disk`: `appendonly yes` with `appendfsync always`, and not `no-appendfsync-on-rewrite yes`. The answer comes after
  the fsync.
- `process`: `appendonly yes` with `everysec` or `no`. Any program that uses the store may be killed. The server
  too, but for writes that a slow disk made it put off (`everysec`: two seconds at most); a power loss takes the last
  second or two, or with `no` whatever the system had not written out.
- `memory`: no append-only file. A program that uses the store may be killed, but with the server goes what came
  since its last dump, or everything if it writes none. RDB dumps come minutes apart: they are a backup, no level.

None of this speaks of replicas: a failover to one may lose what it had not got yet.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from limpet.errors import StoreUnavailable, UsageError
from limpet.journal.store import Level
from limpet.stores.redis.connections import Connections

LEVELS: tuple[Level, ...] = ("memory", "process", "disk")

OLDEST = 7


class Server(NamedTuple):
    """The settings of a server that matter here; None or empty where it doesn't tell.

    `skips`: it doesn't fsync while it writes its file anew. `evicts`: how it drops what it has when it is full.
    """

    version: str
    cluster: bool
    replica: bool
    appendonly: bool | None
    appendfsync: str | None
    skips: bool
    evicts: str | None

    @property
    def level(self) -> Level | None:
        """What an acknowledged save survives; None where the server doesn't tell."""
        if self.appendonly is None:
            return None
        if not self.appendonly:
            return "memory"
        return "disk" if self.appendfsync == "always" and not self.skips else "process"


def look_at(connections: Connections) -> Server:
    """What the server says of itself. Raises `StoreUnavailable` if it can't be reached or lets nobody in."""
    commands = (("INFO",), ("CONFIG", "GET", "*append*"), ("CONFIG", "GET", "maxmemory*"))
    about, settings, policy = connections.ask(*commands)
    for reply in (about, settings):
        if isinstance(reply, Exception) and not _is_forbidden(reply):
            raise connections.explained(reply) from reply
    info = _info(about)
    config = {**_pairs(settings), **_pairs(policy)}
    appendonly = config.get("appendonly") or {"1": "yes", "0": "no"}.get(info.get("aof_enabled", ""))
    evicting = config.get("maxmemory-policy") or info.get("maxmemory_policy", "")
    limited = (config.get("maxmemory") or info.get("maxmemory", "0")) != "0"
    return Server(
        version=info.get("redis_version", ""),
        cluster=info.get("cluster_enabled") == "1",
        replica=info.get("role") == "slave" and info.get("slave_read_only", "1") == "1",
        appendonly=None if appendonly is None else appendonly == "yes",
        appendfsync=config.get("appendfsync"),
        skips=config.get("no-appendfsync-on-rewrite") == "yes",
        evicts=evicting if limited and evicting.startswith("allkeys") else None,
    )


def granted(server: Server, wanted: Level | None, name: str) -> Level:
    """The level of a store on this server: its own, where that is not less than `wanted`.

    Where the server doesn't tell, `wanted` is believed. Raises `StoreUnavailable`, saying what to set, for a
    server that gives less or that can't keep a store at all.
    """
    if wanted is not None and wanted not in LEVELS:
        raise UsageError(f'a Redis store has the level "disk", "process" or "memory", not {wanted!r}')
    _check(server, wanted, name)
    given = server.level
    unsure = given is None or (server.appendonly and server.appendfsync is None)
    if unsure:
        return wanted or given or "memory"
    assert given is not None
    if wanted is not None and LEVELS.index(given) < LEVELS.index(wanted):
        raise StoreUnavailable(_too_little(server, wanted, given, name))
    return given


def _check(server: Server, wanted: Level | None, name: str) -> None:
    major = server.version.partition(".")[0]
    if major.isdigit() and int(major) < OLDEST:
        raise StoreUnavailable(f"{name} is Redis {server.version}: use Redis {OLDEST} or newer, or Valkey")
    if server.cluster:
        raise StoreUnavailable(
            f"{name} is part of a cluster, which can't keep a store: use a server of its own"
        )
    if server.replica:
        raise StoreUnavailable(f"{name} is a read-only replica: name the primary")
    if server.evicts and wanted != "memory":
        raise StoreUnavailable(
            f"{name} drops what it was given when its memory is full (maxmemory-policy {server.evicts}): set "
            "maxmemory-policy noeviction, or write ?level=memory if runs may get lost"
        )


def _too_little(server: Server, wanted: Level, given: Level, name: str) -> str:
    settings = [] if server.appendonly else ["appendonly yes"]
    if wanted == "disk" and server.appendfsync != "always":
        settings.append("appendfsync always")
    if wanted == "disk" and server.skips:
        settings.append("no-appendfsync-on-rewrite no")
    return (
        f"{name} is set up for level {given!r}, not {wanted!r}: set {' and '.join(settings)} on the server, or "
        f"open the store with level={given}"
    )


def _is_forbidden(error: Exception) -> bool:
    """Whether only this command is denied: managed servers have no CONFIG."""
    text = str(error)
    return "NOPERM" in text or "no permissions" in text or "unknown command" in text.lower()


def _info(reply: Any) -> dict[str, str]:
    if not isinstance(reply, bytes):
        return {}
    lines = (line.partition(":") for line in reply.decode(errors="replace").splitlines())
    return {key: value for key, colon, value in lines if colon}


def _pairs(reply: Any) -> dict[str, str]:
    if not isinstance(reply, list):
        return {}
    texts = [item.decode(errors="replace") for item in reply]
    return dict(zip(texts[::2], texts[1::2], strict=True))
