"""Runs on a Redis (or Valkey) server: fast, shared by machines, and as durable as the server is set up to be.

Every change is one script on the server, so it happens whole or not at all, and in one round trip. Leases and
fences live by the server's clock. A call whose answer was lost is made again and finds by its token whether it had
been carried out, so that a dropped connection or a restarted server neither loses nor doubles a commit.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from limpet.errors import DamagedRecord, RunExists, RunNotFound, StoreUnavailable, TooLarge, UsageError
from limpet.journal.store import (
    ENDED,
    Abilities,
    Commit,
    Heads,
    Lease,
    Level,
    NewRun,
    OnSignal,
    RunFilter,
    RunHead,
    Tail,
)
from limpet.stores.heads import fits, held, refusal
from limpet.stores.redis import scripts
from limpet.stores.redis.connections import Connections, script
from limpet.stores.redis.head_fields import changes_of, head_of, maybe, time_of
from limpet.stores.redis.server import granted, look_at

LARGEST = 512 * 1024 * 1024
"""Bytes of the largest record: what Redis takes as one value."""

ON_SIGNAL = {OnSignal.REFUSE: b"1", OnSignal.CLEAR: b"0", OnSignal.IGNORE: b""}
"""What a commit does about a signal, as the scripts read it."""

AT_ONCE = 256
"""Heads that are asked for together when runs are listed."""

CREATE, APPEND, READ, CLAIM, RENEW, RELEASE, SIGNAL, PRUNE, DELETE, EXPIRE, READY, FORGET = map(
    script, scripts.ALL
)


class RedisStore:
    """Keeps runs on the Redis server at `url`: redis://, rediss:// (TLS) or redis+unix:///path/to/socket.

    What an acknowledged save survives depends on the server's settings (`abilities.level`). `level` is the least
    that will do; where the server doesn't tell its settings, it is believed. `prefix` begins all keys, so that stores
    can share a database. `ttl` lets ended runs go by themselves after so many seconds. `timeout` is how many seconds
    to go on trying while the server is away. Threads may share a store, and a fork may happen at any time. Needs
    Redis 7 or newer, or Valkey; a Redis Cluster is refused.

    Raises `StoreUnavailable` where the server can't be reached, can't be written to, or gives less than `level`.
    """

    def __init__(
        self,
        url: str,
        *,
        level: Level | None = None,
        prefix: str = "limpet:",
        ttl: float | None = None,
        timeout: float = 10.0,
        clock: Callable[[], float] | None = None,
        **connection: Any,
    ) -> None:
        if not 0 < timeout <= 1e9:
            raise UsageError(f"timeout is a number of seconds, not {timeout!r}")
        if ttl is not None and not 0 < ttl <= 1e9:
            raise UsageError(f"ttl is a number of seconds, not {ttl!r}")
        if url.startswith("redis+unix://"):
            url = url.removeprefix("redis+")
        self._connections = Connections(
            url, timeout=timeout, scripts=[*map(script, scripts.ALL)], options=connection
        )
        self._moment = _server_clock if clock is None else _clock(clock)
        self._prefix = _text(prefix)
        self._index = self._prefix + b"runs"
        self._lasting = b"" if ttl is None else b"%r" % float(ttl)
        self._tokens = _Tokens()
        self.abilities = Abilities(level=self._inspect(level), shared=True)

    def __repr__(self) -> str:
        return f"<RedisStore {self._connections.name} level={self.abilities.level!r}>"

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._connections.closed

    def create(self, run: NewRun) -> Lease | None:
        about = (_text(run.run_id), _text(run.graph), _text(run.status), maybe(run.holder))
        wish = (time_of(run.due), b"%d" % run.priority)
        more = (json.dumps(run.tags).encode(), maybe(run.parent), run.note, *wish)
        timing = (next(self._tokens), self._moment(), b"%r" % float(run.ttl), self._lasting)
        _check_sizes(run.run_id, run.records)
        reply = self._run(CREATE, run.run_id, *timing, *about, *more, *run.records)
        if reply == 0:
            raise RunExists(run.run_id)
        return None if run.holder is None else Lease(run.run_id, 1, float(reply[1]))

    def append(self, commits: Sequence[Commit]) -> list[Exception | None]:
        outcomes: list[Exception | None] = [_too_large(commit.run_id, commit.records) for commit in commits]
        sent = [number for number, outcome in enumerate(outcomes) if outcome is None]
        if sent:
            replies = self._connections.call([self._as_command(commits[number]) for number in sent])
            for number, reply in zip(sent, replies, strict=True):
                if reply != 1:
                    outcomes[number] = self._refused(commits[number], reply)
        elif self.closed:
            self._connections.ask()
        return outcomes

    def head(self, run_id: str) -> RunHead:
        reply = self._found(run_id, self._run(READ, run_id, b"", b"", b"0"))
        return head_of(run_id, reply[3], reply[2])

    def read(self, run_id: str, first: int | None = None, last: int | None = None) -> Tail:
        reply = self._found(run_id, self._run(READ, run_id, _bound(first), _bound(last), b"1"))
        head = head_of(run_id, reply[3], reply[2])
        if len(reply) < 5:
            return Tail(head, head.sequence + 1, [])
        return Tail(head, int(reply[1]), reply[4])

    def claim(self, run_id: str, holder: str, ttl: float, instead_of: int | None = None) -> Lease:
        due = (_text(holder), b"%r" % float(ttl), b"" if instead_of is None else b"%d" % instead_of)
        reply = self._found(run_id, self._run(CLAIM, run_id, next(self._tokens), self._moment(), *due))
        if reply[0] == 2:
            raise held(head_of(run_id, reply[3], reply[2]), float(reply[1]))
        return Lease(run_id, int(reply[1]), float(reply[2]), int(reply[3]))

    def renew(self, leases: Iterable[Lease], ttl: float) -> list[str | None]:
        now, length = self._moment(), b"%r" % float(ttl)
        commands = [self._command(RENEW, lease.run_id, b"%d" % lease.fence, now, length) for lease in leases]
        return [None if reply == 0 else reply[1][1:].decode() for reply in self._all_of(commands)]

    def release(self, lease: Lease) -> None:
        self._run(RELEASE, lease.run_id, b"%d" % lease.fence, self._lasting)

    def signal(self, run_id: str, signal: str) -> None:
        self._done(run_id, self._run(SIGNAL, run_id, _text(signal)))

    def list(self, which: RunFilter) -> list[RunHead]:
        if which.limit == 0:
            return []
        stop = None if which.limit is None else which.offset + which.limit
        heads = self._fitting(self._ids(which.statuses), which)
        return [*itertools.islice(heads, which.offset, stop)]

    def ready(self, graphs: Sequence[str], limit: int) -> Heads:
        asked = map(_text, dict.fromkeys(graphs))
        (reply,) = self._all_of([self._command(READY, "", self._moment(), b"%d" % limit, *asked)])
        return [head_of(_shown(run), found, length) for run, _, length, found in reply]

    def prune(self, run_id: str, before: int) -> int:
        reply = self._done(run_id, self._run(PRUNE, run_id, _bound(before)))
        return int(reply[1])

    def expire(self, older_than: float, statuses: Sequence[str] = ENDED) -> int:
        age = b"%r" % float(older_than)
        (reply,) = self._all_of([self._command(EXPIRE, "", self._moment(), age, *map(_text, statuses))])
        return int(reply[1])

    def delete(self, run_id: str) -> None:
        reply = self._found(run_id, self._run(DELETE, run_id, self._moment()))
        if reply != 1:
            raise held(head_of(run_id, reply[3], reply[2]), float(reply[1]))

    def close(self) -> None:
        self._connections.close()

    def _inspect(self, wanted: Level | None) -> Level:
        try:
            server = look_at(self._connections)
            level = granted(server, wanted, self._connections.name)
            self._connections.load()
        except BaseException:
            self._connections.close()
            raise
        return level

    def _command(self, what: tuple[str, bytes], run_id: str, *arguments: bytes) -> tuple[Any, ...]:
        key = _text(run_id)
        run, journal = self._prefix + b"run:" + key, self._prefix + b"journal:" + key
        return (b"EVALSHA", what[1], b"3", run, journal, self._index, *arguments)

    def _as_command(self, commit: Commit) -> tuple[Any, ...]:
        on_signal = ON_SIGNAL[commit.on_signal]
        place = (next(self._tokens), b"%d" % commit.fence, b"%d" % commit.expected, on_signal, self._moment())
        return self._command(
            APPEND, commit.run_id, *place, *changes_of(commit, self._lasting), *commit.records
        )

    def _run(self, what: tuple[str, bytes], run_id: str, *arguments: bytes) -> Any:
        (reply,) = self._connections.call([self._command(what, run_id, *arguments)])
        if isinstance(reply, Exception):
            raise self._explained(run_id, reply) from reply
        return reply

    def _all_of(self, commands: Sequence[tuple[Any, ...]]) -> Sequence[Any]:
        if not commands and not self.closed:
            return []
        replies = self._connections.call(commands)
        for reply in replies:
            if isinstance(reply, Exception):
                raise self._connections.explained(reply) from reply
        return replies

    def _found(self, run_id: str, reply: Any) -> Any:
        if reply == 0:
            raise RunNotFound(run_id)
        return reply

    def _done(self, run_id: str, reply: Any) -> Any:
        """The answer of a script that only damage can keep from its work."""
        reply = self._found(run_id, reply)
        if reply != 1 and reply[0] == 2:
            head_of(run_id, reply[3], reply[2])
            raise DamagedRecord(run_id, 0, "its head in Redis changed while it was read")
        return reply

    def _refused(self, commit: Commit, reply: Any) -> Exception:
        if isinstance(reply, Exception):
            return self._explained(commit.run_id, reply)
        if reply == 0:
            return RunNotFound(commit.run_id)
        try:
            head = head_of(commit.run_id, reply[3], reply[2])
        except (DamagedRecord, StoreUnavailable) as damage:
            return damage
        unclear = DamagedRecord(commit.run_id, 0, "its head in Redis changed while it was read")
        return refusal(commit, head, float(reply[1])) or unclear

    def _explained(self, run_id: str, error: Exception) -> Exception:
        if "WRONGTYPE" in str(error):
            return DamagedRecord(run_id, 0, "its keys in Redis hold something else")
        return self._connections.explained(error)

    def _ids(self, statuses: Sequence[str]) -> Sequence[str]:
        """The ids of runs in the index, newest first."""
        names = [self._index + b":" + _text(status) for status in dict.fromkeys(statuses)] or [self._index]
        commands = [(b"ZREVRANGE", name, b"0", b"-1", b"WITHSCORES") for name in names]
        found: dict[str, float] = {}
        for reply in self._all_of(commands):
            found.update(zip(map(_shown, reply[::2]), map(float, reply[1::2]), strict=True))
        return sorted(found, key=lambda run_id: (found[run_id], run_id), reverse=True)

    def _fitting(self, run_ids: Sequence[str], which: RunFilter) -> Iterator[RunHead]:
        now = self._now() if which.unclaimed and run_ids else 0.0
        for start in range(0, len(run_ids), AT_ONCE):
            some = run_ids[start : start + AT_ONCE]
            replies = self._connections.call([self._command(READ, each, b"", b"", b"0") for each in some])
            for run_id, reply in zip(some, replies, strict=True):
                head = self._listed(run_id, reply)
                if head is not None and fits(head, which, now):
                    yield head

    def _listed(self, run_id: str, reply: Any) -> RunHead | None:
        """The head of a run in a list; None for one that is gone or damaged, which `head` would name."""
        if reply == 0:
            self._run(FORGET, run_id, _text(run_id), *map(_text, ENDED))
            return None
        if isinstance(reply, Exception) and "WRONGTYPE" not in str(reply):
            raise self._connections.explained(reply) from reply
        try:
            if isinstance(reply, Exception):
                raise self._explained(run_id, reply)
            return head_of(run_id, reply[3], reply[2])
        except DamagedRecord as damage:
            import logging

            logging.getLogger("limpet.stores").warning("left out of a list of runs: %s", damage)
            return None

    def _now(self) -> float:
        moment = self._moment().decode()
        if not moment.startswith("+"):
            return float(moment)
        ((seconds, micros),) = self._all_of([(b"TIME",)])
        return int(seconds) + int(micros) / 1e6 + float(moment)


class _Tokens:
    """Names for calls that no other call has, in this process, in its children, or anywhere."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._nonce = os.urandom(8).hex().encode()
        self._count = itertools.count()

    def __next__(self) -> bytes:
        if self._process != os.getpid():
            self._begin()
        return b"%b-%x" % (self._nonce, next(self._count))


def _server_clock() -> bytes:
    return b"+0"


def _clock(clock: Callable[[], float]) -> Callable[[], bytes]:
    return lambda: b"%r" % float(clock())


def _text(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"{text!r} isn't text that Redis can keep: {error.reason}") from error


def _shown(data: bytes) -> str:
    return data.decode(errors="replace")


def _bound(number: int | None) -> bytes:
    """A sequence number as a script takes it: whole, and not beyond what its numbers can tell apart."""
    return b"" if number is None else b"%d" % min(max(number, 0), 2**53)


def _check_sizes(run_id: str, records: Sequence[bytes]) -> None:
    problem = _too_large(run_id, records)
    if problem is not None:
        raise problem


def _too_large(run_id: str, records: Sequence[bytes]) -> TooLarge | None:
    size = max(map(len, records), default=0)
    if size <= LARGEST:
        return None
    return TooLarge(f"run {run_id!r}: a record of {size:,} bytes is more than Redis can hold ({LARGEST:,})")
