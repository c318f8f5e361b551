"""Runs from before runs had a due time: all of them are found, and can be claimed and changed like others."""

from __future__ import annotations

import sqlite3
import time
from base64 import b64decode, b64encode
from collections import namedtuple
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from limpet.defaults import QUEUE
from limpet.errors import StoreError
from limpet.journal.encoding.codec import decode, encode
from limpet.journal.export import ExportedRun
from limpet.journal.run_filter import RunFilter
from limpet.journal.store import (
    COMPLETED,
    PAUSED,
    RUNNING,
    Commit,
    Lane,
    Lease,
    NewRun,
    Post,
    PostsWaiting,
    RunHead,
    Store,
)
from limpet.journal.store import STATUSES as RUN_STATUSES
from limpet.stores import MemoryStore
from limpet.stores.files import frames
from limpet.stores.files.store import FileStore
from limpet.stores.migrations import migrations_of
from limpet.stores.redis.head_fields import CHECKSUMMED_BEFORE, CHECKSUMMED_FIELDS, OLDER_FIELDS, checksum
from limpet.stores.redis.store import RedisStore
from limpet.stores.sqlite.schema import APPLICATION_ID
from limpet.stores.sqlite.store import SQLiteStore
from limpet.stores.user_stores.checkpoint_state import KEY, MARK
from limpet.stores.user_stores.checkpoint_store import AdaptedStore
from limpet.testing.conformance.store_calls import ready_runs
from support.checkpoint_stores import InMemoryCheckpointStore
from support.postgres import Server, new_schema
from support.redis_servers import redis_server

STATUSES = {"left": RUNNING, "held": RUNNING, "asks": PAUSED, "done": COMPLETED}
LATER = time.time() + 1e6
DUE = RunHead._fields.index("due") - 1


def rows() -> Iterable[tuple[str, str, str | None, float | None]]:
    """The runs as the first schemas have them: id, status, holder, and until when."""
    for run_id, status in STATUSES.items():
        yield run_id, status, *(("ann", LATER) if run_id == "held" else (None, None))


def fill(store: Store) -> None:
    """The same runs, made by a store: each with a record and a commit that changes its head."""
    for run_id, status in STATUSES.items():
        lease = store.create(NewRun(run_id, "g", [b"1"], holder="ann", ttl=1e6))
        assert lease is not None
        changed = None if status == RUNNING else status
        commit = Commit(run_id, 1, 1, [b"2"], snapshot=2, note=b"n", status=changed)
        assert store.append([commit]) == [None]
        if run_id == "left":
            store.release(lease)


def check(store: Store) -> None:
    """The running ones are due, and only those; and each of them can be changed."""
    heads = {head.run_id: head for head in store.list(RunFilter())}
    assert {run_id: (head.due, head.priority) for run_id, head in heads.items()} == {
        "left": (0.0, 0),
        "held": (0.0, 0),
        "asks": (None, 0),
        "done": (None, 0),
    }
    assert {head.lane for head in heads.values()} == {Lane(QUEUE, "g", "")}
    assert ready_runs(store, ["g"], 10) == [heads["left"]] == [store.head("left")]
    for run_id in STATUSES:
        head = heads[run_id]
        lease = store.claim(run_id, "bob", 1e6, instead_of=head.fence)
        plain = Commit(run_id, lease.fence, head.sequence, [b"plain"])
        assert store.append([plain]) == [None]
        assert ready_runs(store, ["g"], 10) == []
        assert store.head(run_id).due == head.due
        last = Commit(run_id, lease.fence, head.sequence + 1, [b"last"], status=PAUSED, due=5.0)
        assert store.append([last]) == [None]
        assert [each.run_id for each in ready_runs(store, ["g"], 10)] == [run_id]
        again = store.claim(run_id, "bob", 1e6)
        ended = Commit(run_id, again.fence, head.sequence + 2, [], status=COMPLETED)
        assert store.append([ended]) == [None]
        assert ready_runs(store, ["g"], 10) == []
        assert store.read(run_id, head.sequence + 1).records == [b"plain", b"last"]


def test_in_sqlite(tmp_path: Path) -> None:
    """D10, H1."""
    path = tmp_path / "runs.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executescript(migrations_of("sqlite")[0].sql)
        connection.execute("PRAGMA user_version = 1")
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        for number, row in enumerate(rows(), 1):
            connection.execute(
                "INSERT INTO runs (id, run_id, graph, status, snapshot, fence, created, updated, holder, lease_until,"
                " tags, note) VALUES (?, ?, 'g', ?, 1, 1, 7, 8, ?, ?, '[]', x'')",
                (number, *row),
            )
            connection.execute("INSERT INTO records VALUES (?, ?)", ((number << 32) + 1, b"1"))
    with closing(SQLiteStore(path)) as store:
        check(store)


def test_in_postgresql(postgres: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """D10, H1, H10: a process that still runs an earlier version, which overlooks posts, is refused."""
    import psycopg

    from limpet.stores.postgres import schema as postgres_schema
    from limpet.stores.postgres.store import PostgresStore

    schema = new_schema()
    known = postgres_schema.migrations()
    with monkeypatch.context() as patch:
        patch.setattr(postgres_schema, "migrations", lambda: known[:1])
        PostgresStore(postgres.of("postgres"), schema=schema).close()
    with psycopg.connect(postgres.of("postgres"), autocommit=True) as connection:
        connection.execute(f"SET search_path TO {schema}")
        for row in rows():
            connection.execute(
                "WITH run AS (INSERT INTO runs (run_id, graph, status, snapshot, created, updated, holder,"
                " lease_until, tags, note, mark) VALUES (%s, 'g', %s, 1, 7, 8, %s, %s, '{}', '', 1) RETURNING id)"
                " INSERT INTO records SELECT id, 1, 1, '1' FROM run",
                row,
            )
        with closing(PostgresStore(postgres.of("postgres"), schema=schema)) as store:
            check(store)
            lease = store.claim("left", "bob", 10)
            as_before = f"'left', {lease.fence}, 3, '{{}}', 0, 'completed', '', false, true, 9, false"
            with pytest.raises(psycopg.errors.UndefinedFunction):
                connection.execute(f"SELECT accepted FROM apply_commit({as_before})".encode())
            with pytest.raises(psycopg.errors.UndefinedColumn):
                connection.execute("SELECT 1 FROM runs WHERE signal IS NULL")
            assert store.renew([lease], 10) == [False]
    postgres.sql(f"DROP SCHEMA {schema} CASCADE")


@pytest.mark.parametrize("version", [1, 3])
def test_in_files(version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """D10, H1, H18: in head files, and in frames that change a head; without a due time, and without a queue."""

    def as_before(head: RunHead) -> list[Any]:
        signal = None
        without_due = [*head[1:10], list(head.tags), head.parent, signal, head.note, head.crashes]
        without_queue = [*head[1:10], list(head.tags), *head[11:-2]]
        without_queue[DUE] = 0.0 if head.status == RUNNING else None
        return without_due if version == 1 else without_queue

    with monkeypatch.context() as patch, closing(FileStore(tmp_path / "runs")) as store:
        patch.setattr(frames, "_head_fields", as_before)
        fill(store)
    with closing(FileStore(tmp_path / "runs")) as store:
        check(store)


@pytest.mark.parametrize("version", [b"1", b"2"])
def test_in_redis(tmp_path: Path, version: bytes) -> None:
    """D10, H1: those that no call has changed since are found, too, by all that they can be searched for."""
    with (
        redis_server(tmp_path) as server,
        closing(RedisStore(server.url)) as store,
        server.client() as client,
    ):
        fill(store)
        as_in_redis_before(client, version)
        assert {head.run_id for head in store.list(RunFilter(graph="g"))} == set(STATUSES)
        assert not client.exists("limpet:runs:due")
        check(store)


@pytest.mark.parametrize("version", [b"1", b"2"])
def test_a_request_to_cancel_in_redis_becomes_a_post(tmp_path: Path, version: bytes) -> None:
    """D10, H10: whichever call comes upon it first."""
    with (
        redis_server(tmp_path) as server,
        closing(RedisStore(server.url)) as store,
        server.client() as client,
    ):
        firsts: list[Callable[[], object]] = [
            lambda: store.inbox("r"),
            lambda: store.renew([Lease("r", 1, 0.0)], 10),
            lambda: store.claim("r", "bob", 10, instead_of=1),
            lambda: store.post("r", "cancel", b""),
            lambda: store.append([Commit("r", 1, 1, [b"2"], ignores_posts=True)]),
            lambda: store.append([Commit("r", 1, 1, [b"2"])]),
        ]
        for first in firsts:
            store.create(NewRun("r", "g", [b"1"], holder="ann", ttl=1e6))
            as_in_redis_before(client, version, b"=cancel")
            assert (store.head("r").posted, store.head("r").taken) == (1, 0)
            first()
            assert list(store.inbox("r")) == [Post(1, "cancel", encode({"kind": "cancel"}))]
            assert store.post("r", "answer", b"yes")
            head = store.head("r")
            (refused,) = store.append([Commit("r", head.fence, head.sequence, [b"x"])])
            assert isinstance(refused, PostsWaiting)
            taking = Commit("r", head.fence, head.sequence, [b"x"], takes=2, status=COMPLETED)
            assert store.append([taking]) == [None]
            assert (list(store.inbox("r")), store.post("r", "cancel", b"")) == ([], False)
            store.delete("r")


def as_in_redis_before(client: Any, version: bytes, signal: bytes = b"") -> None:
    """Make all heads those of an earlier format, and forget all sets that it didn't have."""
    covered = OLDER_FIELDS[: CHECKSUMMED_BEFORE[version]]
    for key in client.keys("limpet:run:*"):
        due = b"=0" if client.hget(key, "status") == RUNNING.encode() else b""
        client.hset(key, mapping={"v": version, "signal": signal, "due": due})
        client.hdel(key, *[name for name in CHECKSUMMED_FIELDS if name not in covered])
        client.hset(key, "sum", checksum(client.hmget(key, covered)))
    known = {f"limpet:runs:{status}".encode() for status in RUN_STATUSES}
    client.delete(*[key for key in client.keys("limpet:runs:*") if key not in known])


@pytest.mark.parametrize("fields", [15, 17])
def test_in_a_checkpoint_store(fields: int) -> None:
    """D10: head and journal are one text there. Heads had a signal after the parent, and at first no due time."""
    kept = InMemoryCheckpointStore()
    store = AdaptedStore(kept)
    fill(store)
    for state in kept.list():
        head, records = decode(b64decode(state.context[KEY][len(MARK) :])[4:])
        due = [0.0 if head[2] == RUNNING else None, 0]
        as_before = [*head[:12], "cancel", *head[12:14], *due]
        data = encode([as_before[:fields], records])
        state.context[KEY] = MARK + b64encode(crc32(data).to_bytes(4, "big") + data).decode()
        kept.save(state)
    assert ready_runs(store, ["g"], 10) == []
    store.abilities = store.abilities._replace(leases=True)
    check(store)


def test_in_an_exported_run() -> None:
    """D10, P7, H18: priority and queue are kept, but not the due time: an imported run waits until it is resumed."""
    store = MemoryStore()
    store.create(NewRun("r", "g", [], due=0.0, priority=7, queue="gpu"))
    exported = ExportedRun.from_tail(store.read("r"))
    arrived = ExportedRun.from_bytes(exported.to_bytes(), "it").to_new_run("s")
    assert (arrived.due, arrived.priority, arrived.queue) == (None, 7, "gpu")
    for kept, defaults in ((-1, {}), (-2, {"queue": QUEUE}), (-3, {"queue": QUEUE, "priority": 0})):
        before = namedtuple("Before", exported._fields[:kept])(*exported[:kept])  # type: ignore[misc]
        assert ExportedRun.from_bytes(ExportedRun.to_bytes(before), "it") == exported._replace(**defaults)  # type: ignore[arg-type]
    for queue in ("", 7, None):
        with pytest.raises(StoreError, match=r"it is damaged: .* its queue has no name"):
            ExportedRun.from_bytes(exported._replace(queue=queue).to_bytes(), "it")  # type: ignore[arg-type]
    with pytest.raises(StoreError, match="priority isn't a number"):
        ExportedRun.from_bytes(exported._replace(priority="high").to_bytes(), "it")  # type: ignore[arg-type]
