"""How durably a Redis server keeps data, asked once when a store is opened.

What an acknowledged save survives is decided by the server's settings, not by us:

- `disk`: `appendonly yes` with `appendfsync always`, and not `no-appendfsync-on-rewrite yes`. The answer comes after
  the fsync.
- `process`: `appendonly yes` with `everysec` or `no`. Any program that uses the store may be killed. The server may
  be, too, except for writes that a slow disk made it delay (`everysec`: two seconds at most). A power failure loses
  the last second or two, or with `no` whatever the system had not written out.
- `memory`: no append-only file. A program that uses the store may be killed. If the server is, everything since its
  last dump is lost, or everything if it writes no dumps. RDB dumps are minutes apart: a backup, not a level.

Replicas are another matter: a failover to one may lose what had not reached it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from limpet.errors import StoreUnavailable, UsageError
from limpet.journal.store import Level
from limpet.stores.redis.connections import Connections

LEVELS: tuple[Level, ...] = ("memory", "process", "disk")

OLDEST_VERSION = 7


class Server(NamedTuple):
    """The settings of a server that matter here; None or empty where the server doesn't report them.

    `skips_fsync`: it doesn't fsync while it rewrites its append-only file. `eviction`: the policy by which it deletes
    keys when its memory is full, None if it deletes none.
    """

    version: str
    cluster: bool
    replica: bool
    appendonly: bool | None
    appendfsync: str | None
    skips_fsync: bool
    eviction: str | None

    @property
    def level(self) -> Level | None:
        """What an acknowledged save survives; None where the server doesn't report it."""
        if self.appendonly is None:
            return None
        if not self.appendonly:
            return "memory"
        if self.appendfsync == "always" and not self.skips_fsync:
            return "disk"
        return "process"


def inspect_server(connections: Connections) -> Server:
    """The settings of the server. Raises `StoreUnavailable` if it can't be reached or refuses the connection."""
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
        skips_fsync=config.get("no-appendfsync-on-rewrite") == "yes",
        eviction=evicting if limited and evicting.startswith("allkeys") else None,
    )


def level_of(server: Server, wanted: Level | None, name: str) -> Level:
    """The level of a store on this server: its own, where that is not less than `wanted`.

    Where the server doesn't report its settings, `wanted` is assumed. Raises `StoreUnavailable`, with the settings to
    change, for a server that is less durable or that can't keep a store at all.
    """
    if wanted is not None and wanted not in LEVELS:
        raise UsageError(f'a Redis store has the level "disk", "process" or "memory", not {wanted!r}')
    _check_usable(server, wanted, name)
    level = server.level
    is_unsure = level is None or (server.appendonly and server.appendfsync is None)
    if is_unsure:
        return wanted or level or "memory"
    assert level is not None
    if wanted is not None and LEVELS.index(level) < LEVELS.index(wanted):
        raise StoreUnavailable(_settings_to_change(server, wanted, level, name))
    return level


def _check_usable(server: Server, wanted: Level | None, name: str) -> None:
    major = server.version.partition(".")[0]
    if major.isdigit() and int(major) < OLDEST_VERSION:
        raise StoreUnavailable(
            f"{name} is Redis {server.version}: use Redis {OLDEST_VERSION} or newer, or Valkey"
        )
    if server.cluster:
        raise StoreUnavailable(f"{name} is part of a cluster, which can't keep a store: use a single server")
    if server.replica:
        raise StoreUnavailable(f"{name} is a read-only replica: name the primary")
    if server.eviction and wanted != "memory":
        raise StoreUnavailable(
            f"{name} deletes keys when its memory is full (maxmemory-policy {server.eviction}): set "
            "maxmemory-policy noeviction, or write ?level=memory if losing runs is acceptable"
        )


def _settings_to_change(server: Server, wanted: Level, level: Level, name: str) -> str:
    settings = []
    if not server.appendonly:
        settings.append("appendonly yes")
    if wanted == "disk" and server.appendfsync != "always":
        settings.append("appendfsync always")
    if wanted == "disk" and server.skips_fsync:
        settings.append("no-appendfsync-on-rewrite no")
    return (
        f"{name} is set up for level {level!r}, not {wanted!r}: set {' and '.join(settings)} on the server, or "
        f"open the store with level={level}"
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
