"""Runs on a Redis (or Valkey) server: fast, shared by machines, and as durable as the server is configured to be.

Every change is one script on the server, so it happens whole or not at all, and in one round trip; see `scripts.py`.
Leases expire by the server's clock, so the clocks of the machines need not agree. A call whose answer did not
arrive is made again and finds by its token whether it was carried out, so a dropped connection or a restarted server
neither loses nor repeats a commit.
"""

from __future__ import annotations

import builtins
import itertools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from limpet.durations import LONGEST_ANSWER, store_seconds
from limpet.errors import DamagedDocument, DamagedRecord, RunExists, RunNotFound, StoreUnavailable, TooLarge
from limpet.journal.run_filter import RunFilter
from limpet.journal.store import (
    ENDED,
    STATUSES,
    Abilities,
    Commit,
    Document,
    Heads,
    Lane,
    Lease,
    Level,
    NewRun,
    Output,
    Post,
    RunHead,
    Tail,
)
from limpet.stores.claims import first_places
from limpet.stores.heads import held_conflict, refusal
from limpet.stores.problem_log import ProblemLog
from limpet.stores.redis import posts_and_documents, scripts
from limpet.stores.redis.connections import Connections
from limpet.stores.redis.head_fields import FOUND_FIELDS, head_of, likely_dropped
from limpet.stores.redis.lists import RunLists
from limpet.stores.redis.script_calls import (
    HEADS_PER_CALL,
    ScriptCalls,
    changed_while_read,
    existing,
    undamaged,
)
from limpet.stores.redis.scripts import number, run_id_of, seconds, text, texts
from limpet.stores.redis.server_settings import inspect_server, level_of

LARGEST = 512 * 1024 * 1024
"""Bytes of the largest record: Redis's limit for a value."""


class RedisStore:
    """Keeps runs on the Redis server at `url`: redis://, rediss:// (TLS) or redis+unix:///path/to/socket.

    What an acknowledged save survives depends on the server's settings (`abilities.level`). `level` is the least
    that will do; where the server doesn't report its settings, `level` is assumed. `prefix` begins all keys, so
    that stores can share a database. `ttl` is how many seconds ended runs are kept; by default they are kept
    until they are deleted. `timeout` is how many seconds to keep trying while the server is unavailable or doesn't
    answer. Threads may share a store, and a fork may happen at any time. Needs Redis 7 or newer, or Valkey; a Redis
    Cluster is refused.

    Raises `StoreUnavailable` if the server can't be reached, can't be written to, or is less durable than `level`.
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
        timeout = min(store_seconds(timeout, "timeout", positive=True), LONGEST_ANSWER)
        if ttl is not None:
            ttl = store_seconds(ttl, "ttl", positive=True)
        if url.startswith("redis+unix://"):
            url = url.removeprefix("redis+")
        self._connections = Connections(url, timeout=timeout, options=connection)
        self._clock = _clock_argument(clock)
        self._calls = ScriptCalls(self._connections, text(prefix))
        self._lists = RunLists(self._calls)
        self._keep_for = b"" if ttl is None else seconds(ttl)
        self._tokens = _Tokens()
        self._problems = ProblemLog("limpet.stores")
        self.abilities = Abilities(level=self._open(level), shared=True)

    def __repr__(self) -> str:
        return f"<RedisStore {self._connections.name} level={self.abilities.level!r}>"

    def __str__(self) -> str:
        return self._connections.name

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._connections.closed

    def create(self, run: NewRun) -> Lease | None:
        too_large = _too_large(run.run_id, run.records)
        if too_large is not None:
            raise too_large
        arguments = scripts.create_arguments(run, next(self._tokens), self._clock(), self._keep_for)
        reply = self._calls.run(scripts.CREATE, run.run_id, *arguments)
        if reply == 0:
            raise RunExists(run.run_id)
        if run.holder is None:
            return None
        return Lease(run.run_id, 1, float(reply[1]))

    def append(self, commits: Sequence[Commit]) -> list[Exception | None]:
        outcomes: list[Exception | None] = [_too_large(commit.run_id, commit.records) for commit in commits]
        sent = [i for i, outcome in enumerate(outcomes) if outcome is None]
        if sent:
            replies = self._connections.call([self._append_command(commits[i]) for i in sent])
            for i, reply in zip(sent, replies, strict=True):
                if reply != 1:
                    outcomes[i] = self._refused(commits[i], reply)
        elif self.closed:
            self._connections.ask()  # raises: the store was closed
        return outcomes

    def head(self, run_id: str) -> RunHead:
        reply = existing(run_id, self._calls.run(scripts.READ, run_id, b"", b"", b"0"))
        return head_of(run_id, reply[3], reply[2])

    def heads(self, run_ids: Sequence[str]) -> Sequence[RunHead | None]:
        found = self._calls.heads(run_ids)
        return [head if isinstance(head, RunHead) else None for head in found]

    def read(self, run_id: str, first: int | None = None, last: int | None = None) -> Tail:
        reply = existing(run_id, self._calls.run(scripts.READ, run_id, number(first), number(last), b"1"))
        head = head_of(run_id, reply[3], reply[2])
        if len(reply) < 5:
            return Tail(head, head.sequence + 1, [])
        return Tail(head, int(reply[1]), reply[4])

    def claim(self, run_id: str, holder: str, ttl: float, instead_of: int | None = None) -> Lease:
        broken_fence = b"" if instead_of is None else b"%d" % instead_of
        arguments = (next(self._tokens), self._clock(), text(holder), seconds(ttl), broken_fence)
        reply = existing(run_id, self._calls.run(scripts.CLAIM, run_id, *arguments))
        if reply[0] == 2:
            raise held_conflict(head_of(run_id, reply[3], reply[2]), float(reply[1]))
        return Lease(run_id, int(reply[1]), float(reply[2]), int(reply[3]))

    def claim_ready(self, wanted: Sequence[RunHead], holder: str, ttl: float) -> builtins.list[Lease | None]:
        leases: builtins.list[Lease | None] = [None] * len(wanted)
        places = [*first_places(wanted).items()]
        parts = [places[start : start + HEADS_PER_CALL] for start in range(0, len(places), HEADS_PER_CALL)]
        common = (next(self._tokens), self._clock(), text(holder), seconds(ttl))
        commands = []
        for part in parts:
            named = [value for run_id, place in part for value in (text(run_id), b"%d" % wanted[place].fence)]
            commands.append(self._calls.command(scripts.CLAIM_READY, "", *common, *named))
        for part, reply in zip(parts, self._calls.any(commands), strict=True):
            for (run_id, place), answer in zip(part, reply or (), strict=bool(reply)):
                if answer != 0:
                    fence, until, crashes = answer
                    leases[place] = Lease(run_id, int(fence), float(until), int(crashes))
        return leases

    def renew(self, leases: Iterable[Lease], ttl: float) -> list[bool | None]:
        now = self._clock()
        commands = [
            self._calls.command(scripts.RENEW, lease.run_id, b"%d" % lease.fence, now, seconds(ttl))
            for lease in leases
        ]
        return [None if reply == 0 else reply[1] == 1 for reply in self._calls.all(commands)]

    def are_valid(self, leases: Sequence[Lease]) -> builtins.list[bool]:
        answers: builtins.list[bool] = []
        for start in range(0, len(leases), HEADS_PER_CALL):
            part = leases[start : start + HEADS_PER_CALL]
            named = [value for lease in part for value in (text(lease.run_id), b"%d" % lease.fence)]
            (reply,) = self._calls.all([self._calls.command(scripts.ARE_VALID, "", self._clock(), *named)])
            answers += [answer == 1 for answer in reply]
        return answers

    def release(self, lease: Lease) -> None:
        self._calls.run(scripts.RELEASE, lease.run_id, b"%d" % lease.fence, self._keep_for)

    def post(self, run_id: str, key: str, body: bytes) -> bool:
        return posts_and_documents.post(self._calls, next(self._tokens), self._clock(), run_id, key, body)

    def inbox(self, run_id: str) -> Sequence[Post]:
        return posts_and_documents.inbox(self._calls, run_id)

    def add_output(self, run_id: str, fence: int, bodies: Sequence[bytes], keep: int) -> int:
        call = (next(self._tokens), self._clock())
        return posts_and_documents.add_output(self._calls, call, run_id, fence, bodies, keep)

    def output(self, run_id: str, after: int = 0, limit: int | None = None) -> Sequence[Output]:
        return posts_and_documents.read_output(self._calls, run_id, after, limit)

    def put_document(self, name: str, body: bytes, version: int, due: float | None = None) -> int | None:
        return posts_and_documents.put_document(
            self._calls, next(self._tokens), Document(name, version, body, due)
        )

    def get_document(self, name: str) -> Document | None:
        return posts_and_documents.find_document(self._calls, name)

    def list_documents(
        self, prefix: str = "", due: bool = False, limit: int | None = None
    ) -> Sequence[Document]:
        listed = posts_and_documents.list_documents(self._calls, self._clock(), prefix, due, limit)
        for damage in listed.damaged:
            self._problems.warn(damage)
        return listed.documents

    def damaged_documents(self, prefix: str = "") -> Sequence[DamagedDocument]:
        """The documents that have no version, due time and body."""
        return posts_and_documents.list_documents(self._calls, self._clock(), prefix, False, None).damaged

    def delete_document(self, name: str, version: int) -> bool:
        return posts_and_documents.delete_document(self._calls, next(self._tokens), name, version)

    def list(self, which: RunFilter) -> list[RunHead]:
        return self._lists.matching(which, self.store_time, self._clock())

    def change_mark(self) -> object:
        """When a run was last updated, how many there are, of some kinds too, and how often one was posted to."""
        return self._lists.change_mark()

    def lanes(self) -> Sequence[Lane]:
        return self._lists.lanes(self._clock())

    def ready(self, lanes: Sequence[Lane], limit: int) -> Heads:
        names = [text(part) for lane in dict.fromkeys(lanes) for part in lane]
        command = self._calls.command(scripts.READY, "", self._clock(), b"%d" % limit, *names)
        (reply,) = self._calls.all([command])
        return [head_of(run_id_of(run), found, length) for run, _, length, found in reply]

    def prune(self, run_id: str, before: int) -> int:
        reply = undamaged(run_id, self._calls.run(scripts.PRUNE, run_id, number(before)))
        return int(reply[1])

    def expire(self, older_than: float, statuses: Sequence[str] = ENDED) -> int:
        command = self._calls.command(
            scripts.EXPIRE, "", self._clock(), seconds(older_than), *texts(statuses)
        )
        (reply,) = self._calls.all([command])
        return int(reply[1])

    def salvage(self, run_id: str) -> Mapping[int, bytes | DamagedRecord]:
        """The records in the run's list. Which one is the first follows from its head, as far as that can be read."""
        key = text(run_id)
        run = self._calls.prefix + b"run:" + key
        commands = [
            (b"EXISTS", run),
            (b"HMGET", run, *map(str.encode, FOUND_FIELDS)),
            (b"LRANGE", self._calls.prefix + b"journal:" + key, b"0", b"-1"),
        ]
        exists, found, records = self._connections.call(commands)
        if exists == 0:
            raise RunNotFound(run_id)
        for reply in (exists, found, records):
            if isinstance(reply, Exception) and "WRONGTYPE" not in str(reply):
                raise self._connections.explained(reply) from reply
        if isinstance(records, Exception):
            return {}
        dropped = 0 if isinstance(found, Exception) else likely_dropped(found, len(records))
        return dict(enumerate(records, dropped + 1))

    def delete(self, run_id: str) -> None:
        repeats: list[bool] = []
        arguments = (self._clock(), text(run_id), *texts(STATUSES))
        command = self._calls.command(scripts.DELETE, run_id, *arguments)
        reply = self._calls.one(run_id, command, lambda: repeats.append(True))
        if reply == 0 and repeats:
            return  # most likely by the first attempt, whose answer did not arrive
        reply = existing(run_id, reply)
        if reply != 1:
            raise held_conflict(head_of(run_id, reply[3], reply[2]), float(reply[1]))

    def close(self) -> None:
        self._connections.close()

    def _open(self, wanted: Level | None) -> Level:
        """Make the server ready and return its level."""
        try:
            server = inspect_server(self._connections)
            level = level_of(server, wanted, self._connections.name)
            self._connections.load_scripts()
        except BaseException:
            self._connections.close()
            raise
        return level

    def _append_command(self, commit: Commit) -> tuple[Any, ...]:
        arguments = scripts.append_arguments(commit, next(self._tokens), self._clock(), self._keep_for)
        return self._calls.command(scripts.APPEND, commit.run_id, *arguments)

    def _refused(self, commit: Commit, reply: Any) -> Exception:
        """Why a commit was refused, from an answer other than 1."""
        if isinstance(reply, Exception):
            return self._calls.explained(commit.run_id, reply)
        if reply == 0:
            return RunNotFound(commit.run_id)
        try:
            head = head_of(commit.run_id, reply[3], reply[2])
        except (DamagedRecord, StoreUnavailable) as damage:
            return damage
        return refusal(commit, head, float(reply[1])) or changed_while_read(commit.run_id)

    def store_time(self) -> float:
        """The time, as `time_of` in `lua/head.lua` has it."""
        clock = self._clock().decode()
        if not clock.startswith("+"):
            return float(clock)
        ((whole_seconds, microseconds),) = self._calls.all([(b"TIME",)])
        return int(whole_seconds) + int(microseconds) / 1e6 + float(clock[1:])


class _Tokens:
    """Names for calls, each used once: no other call has it, in this process or in any other.

    A forked child must not continue its parent's counter, so it starts with a nonce of its own.
    """

    def __init__(self) -> None:
        self._start()

    def _start(self) -> None:
        self._process = os.getpid()
        self._nonce = os.urandom(8).hex().encode()
        self._count = itertools.count()

    def __next__(self) -> bytes:
        if self._process != os.getpid():
            self._start()
        return b"%b-%x" % (self._nonce, next(self._count))


def _clock_argument(clock: Callable[[], float] | None) -> Callable[[], bytes]:
    """What the scripts take as the time: that of `clock`, or else "+0", the server's own."""
    if clock is None:
        return lambda: b"+0"
    return lambda: b"%r" % float(clock())


def _too_large(run_id: str, records: Sequence[bytes]) -> TooLarge | None:
    size = max(map(len, records), default=0)
    if size <= LARGEST:
        return None
    return TooLarge(f"run {run_id!r}: a record of {size:,} bytes is more than Redis can hold ({LARGEST:,})")
