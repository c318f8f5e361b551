"""The PostgreSQL store: the conformance suite at both levels, and what only this store does."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Any

import pytest

from limpet.errors import Conflict, LimpetError, RunNotFound, StoreUnavailable, TooLarge, UsageError
from limpet.journal.encoding.codec import encode
from limpet.journal.run_filter import RunFilter
from limpet.journal.store import (
    COMPLETED,
    Commit,
    Labels,
    Lane,
    Lease,
    Level,
    NewRun,
    Post,
    PostsWaiting,
    Store,
)
from limpet.testing.conformance import StoreConformance
from limpet.testing.conformance.store_calls import ready_runs
from support.postgres import Server, ServerClock, needed, new_schema


@pytest.mark.parametrize("level", ["disk", "process"])
class TestPostgresStore(StoreConformance):
    @pytest.fixture
    def store(self, postgres: Server, level: Level) -> Iterator[Store]:
        from limpet.stores.postgres.store import PostgresStore

        schema = new_schema()
        store = PostgresStore(postgres.of("postgres"), schema=schema, level=level)
        assert store.abilities.level == level
        yield store
        store.close()
        postgres.sql(f"DROP SCHEMA {schema} CASCADE")

    @pytest.fixture
    def clock(self, postgres: Server, store: Any) -> ServerClock:
        return ServerClock(postgres, store.schema)

    def reopen(self, store: Any) -> Store:
        store.close()
        return type(store)(store._address.conninfo, schema=store.schema, level=store.abilities.level)

    def damage(self, store: Any, run_id: str, sequence: int) -> None:
        import psycopg

        with closing(psycopg.connect(store._address.conninfo, autocommit=True)) as connection:
            connection.execute(
                f"UPDATE {store.schema}.records SET data = '?' || substr(data, 2) WHERE sequence = %s AND run = "
                f"(SELECT id FROM {store.schema}.runs WHERE run_id = %s)",
                (sequence, run_id),
            )


@pytest.fixture
def open_store(database: str) -> Iterator[Callable[..., Any]]:
    """Opens stores in an empty database."""
    from limpet.stores.postgres.store import PostgresStore

    opened: list[PostgresStore] = []

    def opener(url: str = database, **options: Any) -> PostgresStore:
        opened.append(PostgresStore(url, **options))
        return opened[-1]

    yield opener
    for store in opened:
        store.close()


OpenStore = Callable[..., Any]


def test_the_level_decides_whether_each_commit_is_flushed(open_store: OpenStore) -> None:
    """Invariant 1."""
    for level, setting in (("disk", "on"), ("process", "off")):
        assert query(open_store(level=level), "SHOW synchronous_commit") == [(setting,)]


def test_a_commit_is_one_statement(open_store: OpenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """H2: one round trip for a step, and one for a step of each of many runs."""
    from limpet.stores.postgres import append as postgres_append

    store = open_store()
    for number in range(50):
        store.create(NewRun(f"r{number}", "g", [b"1"]))
    sent: list[bytes] = []
    execute = postgres_append._execute

    def counting(cursor: Any, name: bytes, *more: Any) -> Any:
        sent.append(name)
        return execute(cursor, name, *more)

    def refuse(*_: Any) -> None:
        raise AssertionError("another statement was sent")

    monkeypatch.setattr(postgres_append, "_execute", counting)
    monkeypatch.setattr("limpet.stores.postgres.connections.Cursor.execute", refuse)
    assert store.append([Commit("r0", 1, 1, [b"2"])]) == [None]
    assert store.append([Commit(f"r{number}", 1, 1, [b"2"]) for number in range(1, 50)]) == [None] * 49
    assert sent == [b"limpet_append", b"limpet_append_many"]


def test_a_statement_looks_up_the_runs_it_needs_and_no_others(open_store: OpenStore) -> None:
    """H2: the cost of a commit doesn't grow with the number of runs; the plan is made before there are many."""
    from limpet.stores.statements import statements_of

    store = open_store()
    sql = statements_of("postgres")
    for name, values in (
        ("APPEND", (1, b"", "r", 1)),
        ("APPEND_MANY", (["r"] * 9, [1] * 9, [1] * 9, [b""] * 9)),
        ("RENEW", (["r"] * 9, [1] * 9, 10.0)),
        ("READ", ("r", None, None)),
        ("CLAIM", ("ann", 1.0, 1, "r", None)),
        ("FIND_MANY", (["r"] * 9,)),
        ("INBOX", ("r",)),
        ("READ_OUTPUT", (0, 10, "r")),
        ("FIND_DOCUMENT", ("d",)),
        ("READY", {"queues": ["q"], "graphs": ["g"], "plans": ["p"], "limit": 10}),
        ("LANES", ()),
        ("ARE_VALID", (["r"] * 9, [1] * 9)),
    ):
        statement = sql[name]
        for number in range(1, 5):
            statement = statement.replace(f"${number}:", "%s:")
        plan = "\n".join(row[0] for row in query(store, "EXPLAIN " + statement, values))
        assert "Seq Scan" not in plan
        assert "runs_pkey on runs\n" not in plan.replace("runs_1", "")
        assert ("runs_by_lane" in plan) == (name in ("READY", "LANES"))


def test_large_and_small_commits_of_one_call(open_store: OpenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """P6: commits that don't fit into one statement follow each other; one that is too large is refused alone."""
    from limpet.stores.postgres import append as postgres_append

    monkeypatch.setattr(postgres_append, "LARGEST", 1000)
    monkeypatch.setattr(postgres_append, "LARGEST_TOGETHER", 1500)
    store = open_store()
    for run_id in "abcd":
        store.create(NewRun(run_id, "g", [b"1"]))
    outcomes = store.append(
        [Commit(run_id, 1, 1, [b"x" * size]) for run_id, size in zip("abcd", SIZES, strict=True)]
    )
    assert [type(outcome) for outcome in outcomes] == [type(None), TooLarge, type(None), type(None)]
    assert [store.head(run_id).sequence for run_id in "abcd"] == [2, 1, 2, 2]
    (outcome,) = store.append([Commit("b", 1, 7, [b"x" * 1001])])
    assert isinstance(outcome, Conflict)
    (outcome,) = store.append([Commit("missing", 1, 7, [b"x" * 1001])])
    assert isinstance(outcome, RunNotFound)


SIZES = (900, 1001, 900, 10)


def test_several_commits_of_one_run_in_one_call_follow_each_other(open_store: OpenStore) -> None:
    store = open_store()
    store.create(NewRun("r", "g", [b"1"]))
    first = Commit("r", 1, 1, [b"2"])
    second = Commit("r", 1, 2, [b"3"])
    assert store.append([first, second]) == [None, None]
    outcomes = store.append([first, first])
    assert [type(outcome) for outcome in outcomes] == [Conflict, Conflict]
    assert store.read("r").records == [b"1", b"2", b"3"]


def test_schemas_are_apart(open_store: OpenStore) -> None:
    """P6: two stores in one database, by any name."""
    odd = open_store(schema='My "odd" schéma')
    plain = open_store()
    assert (odd.schema, plain.schema) == ('My "odd" schéma', "limpet")
    odd.create(NewRun("r", "odd", [b"1"]))
    plain.create(NewRun("r", "plain", [b"1"]))
    assert (odd.head("r").graph, plain.head("r").graph) == ("odd", "plain")


def test_migrating_keeps_every_run(
    open_store: OpenStore, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D10: the next version's migration is applied to an existing database, once."""
    from limpet.stores.postgres import schema as postgres_schema

    store = open_store()
    store.create(NewRun("r", "g", [b"1", b"2"], tags=("x",)))
    before = store.read("r")
    known = postgres_schema.migrations()
    assert [migration.version for migration in known] == list(range(1, len(known) + 1))
    new = postgres_schema.Migration(
        len(known) + 1,
        "next.sql",
        "CREATE TABLE extra (x int); ALTER TABLE runs ADD COLUMN colour text NOT NULL DEFAULT 'blue';",
    )
    monkeypatch.setattr(postgres_schema, "migrations", lambda: (*known, new))
    for _ in range(2):
        newer = open_store()
        assert newer.read("r") == store.read("r") == before
        assert newer.append([Commit("r", 1, before.head.sequence, [b"more"])]) == [None]
        before = store.read("r")
    rows = query(newer, "SELECT version FROM schema_migrations ORDER BY version")
    assert [version for (version,) in rows] == [*range(1, len(known) + 2)]


def test_a_request_to_cancel_of_before_becomes_a_post(
    open_store: OpenStore, postgres: Server, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D10, H10: one that waited when the database was migrated."""
    from limpet.stores.postgres import schema as postgres_schema

    known = postgres_schema.migrations()
    with monkeypatch.context() as patch:
        patch.setattr(postgres_schema, "migrations", lambda: known[:4])
        open_store().close()
    name = database.partition("?")[0].rpartition("/")[2]
    for run_id, status, signal, due in (
        ("held", "running", "'cancel'", "0"),
        ("asks", "paused", "'cancel'", "NULL"),
        ("broken", "failed", "'cancel'", "NULL"),
        ("done", "completed", "'cancel'", "NULL"),
        ("other", "paused", "NULL", "NULL"),
    ):
        postgres.sql(
            "INSERT INTO limpet.runs (run_id, graph, status, snapshot, created, updated, tags, note, mark, signal,"
            f" due) VALUES ('{run_id}', 'g', '{status}', 0, 7, 8, '{{}}', '', 1, {signal}, {due})",
            database=name,
        )
    store = open_store()
    cancel = Post(1, "cancel", encode({"kind": "cancel"}))
    inboxes = {head.run_id: list(store.inbox(head.run_id)) for head in store.list(RunFilter())}
    assert inboxes == {"held": [cancel], "asks": [cancel], "broken": [cancel], "done": [], "other": []}
    assert {head.run_id for head in ready_runs(store, ["g"], 9)} == {"held", "asks"}
    rows = query(store, "SELECT run_id FROM limpet_runs WHERE cancel_requested ORDER BY run_id")
    assert rows == [("asks",), ("broken",), ("held",)]


def test_runs_of_before_queues_are_in_the_default_queue(
    open_store: OpenStore, postgres: Server, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D10, H18: and a process of the version before can continue its runs."""
    from limpet.stores.postgres import schema as postgres_schema

    known = postgres_schema.migrations()
    with monkeypatch.context() as patch:
        patch.setattr(postgres_schema, "migrations", lambda: known[:5])
        open_store().close()
    name = database.partition("?")[0].rpartition("/")[2]
    for run_id, status, due, holder in (
        ("queued", "running", "0", "NULL"),
        ("held", "running", "0", "'ann'"),
        ("later", "running", "1e12", "NULL"),
        ("asks", "paused", "NULL", "NULL"),
    ):
        postgres.sql(
            "INSERT INTO limpet.runs (run_id, graph, status, snapshot, created, updated, tags, note, mark, due,"
            " holder, lease_until)"
            f" VALUES ('{run_id}', 'g', '{status}', 0, 7, 8, '{{}}', '', 1, {due}, {holder}, 1e12)",
            "UPDATE limpet.runs SET lease_until = NULL WHERE holder IS NULL",
            database=name,
        )
    store = open_store()
    heads = {head.run_id: head for head in store.list(RunFilter(queue="default", plan=""))}
    assert set(heads) == {"queued", "held", "later", "asks"}
    assert store.lanes() == [Lane("default", "g", "")]
    assert store.ready(store.lanes(), 9) == [heads["queued"]]
    labels = Labels("n", "", "", "p1")
    assert store.append([Commit("held", 1, 0, [b"1"], status="running", due=0.0, labels=labels)]) == [None]
    as_before = "'held', 1, 1, '{2}', 0, 'running', '', false, 0, false, 'm', '', '', 5, 9, false"
    assert query(store, f"SELECT accepted FROM limpet.apply_commit({as_before})") == [(True,)]
    head = store.head("held")
    assert (head.due, head.labels, head.queue) == (5.0, Labels("m", "", "", "p1"), "default")
    assert set(store.lanes()) == {Lane("default", "g", ""), Lane("default", "g", "p1")}


def test_a_migration_that_fails_leaves_nothing_behind(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D10: all or nothing."""
    from limpet.stores.postgres import schema as postgres_schema

    known = postgres_schema.migrations()
    bad = postgres_schema.Migration(len(known) + 1, "bad.sql", "CREATE TABLE half (x int); SELECT 1 / 0;")
    with monkeypatch.context() as patch:
        patch.setattr(postgres_schema, "migrations", lambda: (*known, bad))
        with pytest.raises(LimpetError, match="division by zero"):
            open_store()
    assert query(open_store(), "SELECT to_regclass('half')") == [(None,)]


def test_a_newer_schema_is_refused_and_left_alone(open_store: OpenStore) -> None:
    """D10, P10: an older Limpet says what to do."""
    store = open_store()
    query(store, "INSERT INTO schema_migrations (version, name) VALUES (999, 'future')")
    with pytest.raises(StoreUnavailable, match=r"newer Limpet \(schema 999.*upgrade"):
        open_store()


def test_another_programs_tables_are_left_alone(
    open_store: OpenStore, postgres: Server, database: str
) -> None:
    name = database.partition("?")[0].rpartition("/")[2]
    postgres.sql("CREATE SCHEMA limpet", "CREATE TABLE limpet.runs (theirs int)", database=name)
    with pytest.raises(StoreUnavailable, match=r"another program.*\?schema="):
        open_store()
    assert postgres.sql("SELECT * FROM limpet.runs", database=name) == []
    assert postgres.sql("SELECT to_regclass('limpet.schema_migrations')", database=name) == [(None,)]


@pytest.mark.parametrize(
    "options",
    [
        {"level": "memory"},
        {"timeout": -1},
        {"connections": 0},
        {"schema": ""},
        {"schema": "x" * 64},
        {"schema": "pg_mine"},
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any]) -> None:
    needed("psycopg")
    from limpet.stores.postgres.store import PostgresStore

    with pytest.raises(UsageError):
        PostgresStore("postgresql://nowhere.invalid/x", **options)


def test_text_that_postgresql_cannot_keep_is_refused(open_store: OpenStore) -> None:
    store = open_store()
    for run_id in ("half a surrogate \ud800", "a NUL \0"):
        with pytest.raises(UsageError, match="PostgreSQL can"):
            store.head(run_id)
        with pytest.raises(UsageError, match="PostgreSQL can"):
            store.append([Commit(run_id, 1, 1, [b"x"])])
        with pytest.raises(UsageError, match="PostgreSQL can"):
            store.post("r", run_id, b"")
        with pytest.raises(UsageError, match="PostgreSQL can"):
            store.put_document(run_id, b"", 0)
        with pytest.raises(UsageError, match="PostgreSQL can"):
            store.list(RunFilter(graph=run_id))
    assert store.list(RunFilter()) == []


def test_a_deleted_run_takes_no_space(open_store: OpenStore) -> None:
    """P7: a deleted, expired or purged run leaves no records behind, and only the last has posts and output."""
    store = open_store()
    for run_id in ("deleted", "expired", "purged", "kept"):
        store.create(NewRun(run_id, "g", [b"1", b"2"]))
        assert store.post(run_id, "key", b"")
        store.add_output(run_id, 1, [b"emitted"], 10)
    assert store.append([Commit("purged", 1, 2, [b"3"], purge=True, takes=1)]) == [None]
    assert store.append([Commit("expired", 1, 2, [b"3"], status=COMPLETED, takes=1)]) == [None]
    store.delete("deleted")
    assert store.expire(-1) == 1
    assert query(store, "SELECT count(*) FROM records") == [(2,)]
    assert query(store, "SELECT count(*) FROM posts") == [(2,)]
    assert query(store, "SELECT count(*) FROM output") == [(2,)]


def test_records_are_kept_uncompressed_out_of_line(open_store: OpenStore) -> None:
    """They are compressed already, where that saves anything."""
    rows = query(
        open_store(),
        "SELECT attstorage::text FROM pg_attribute WHERE attname = 'data' AND attrelid = 'records'::regclass",
    )
    assert rows == [("e",)]


def test_no_number_is_too_large_to_be_refused(open_store: OpenStore) -> None:
    store = open_store()
    store.create(NewRun("r", "g", [b"1"], holder="ann"))
    for fence, expected in ((1, 2**70), (2**70, 1), (1, -(2**70)), (-1, 1), (1, 2**62), (0, 0)):
        for commits in ([Commit("r", fence, expected, [b"x"])], [Commit("r", fence, expected, [b"x"])] * 2):
            assert {type(outcome) for outcome in store.append(commits)} == {Conflict}
    assert store.prune("r", 2**70) == store.prune("r", -(2**70)) == 0
    assert store.read("r", -(2**70), 2**70).records == [b"1"]
    assert store.renew([Lease("r", 2**70, 0.0)], 10) == [None]
    with pytest.raises(Conflict):
        store.add_output("r", 2**70, [b"x"], 2**70)
    assert store.output("r", 2**70) == store.output("r", -(2**70)) == []
    assert store.put_document("d", b"", 2**70) is None
    assert not store.delete_document("d", -(2**70))
    assert store.append([Commit("r", 1, 1, [b"2"], takes=2**70)]) == [None]
    store.release(Lease("r", 2**70, 0.0))
    with pytest.raises(Conflict):
        store.claim("r", "bob", 10, instead_of=2**70)


def test_a_write_waits_for_a_claim_under_way_and_is_refused(open_store: OpenStore) -> None:
    """P8: a stale holder's write never gets in after the new holder's claim."""
    store = open_store()
    other = open_store()
    for run_id in ("a", "b"):
        store.create(NewRun(run_id, "g", [b"1"], holder="ann"))
    for commits in ([Commit("a", 1, 1, [b"2"])], [Commit(each, 1, 1, [b"2"]) for each in "ab"]):
        with connected(other) as connection, ThreadPoolExecutor(1) as pool:
            with connection.transaction():
                connection.execute("UPDATE runs SET fence = fence + 1")
                writing = pool.submit(store.append, commits)
                wait_until_blocked(other)
            assert {type(outcome) for outcome in writing.result()} == {Conflict}
            connection.execute("UPDATE runs SET fence = 1")
    assert store.read("a").records == store.read("b").records == [b"1"]


def test_a_write_waits_for_a_purge_under_way_and_is_refused(open_store: OpenStore) -> None:
    """P8: the record before it existed when it was sent."""
    store = open_store()
    other = open_store()
    store.create(NewRun("r", "g", [b"1"], holder="ann"))
    with connected(other) as connection, ThreadPoolExecutor(1) as pool:
        with connection.transaction():
            connection.execute(
                "SELECT apply_commit('r', 1, 1, ARRAY['2'::bytea], 0, NULL, NULL, true, 0, false, NULL, NULL, NULL, "
                "NULL, 5, false)"
            )
            writing = pool.submit(store.append, [Commit("r", 1, 1, [b"late"])])
            wait_until_blocked(other)
        (outcome,) = writing.result()
    assert isinstance(outcome, Conflict)
    tail = store.read("r", first=1)
    assert (tail.head.sequence, tail.records) == (2, [])


def test_a_write_waits_for_a_post_under_way_and_is_refused(open_store: OpenStore) -> None:
    """H10: each commit after a post takes it in, the one too that was sent before the post was made."""
    store = open_store()
    other = open_store()
    for run_id in ("a", "b"):
        store.create(NewRun(run_id, "g", [b"1"], holder="ann"))
    for key, commits in enumerate(
        ([Commit("a", 1, 1, [b"2"])], [Commit(each, 1, 1, [b"2"]) for each in "ab"])
    ):
        with connected(other) as connection, ThreadPoolExecutor(1) as pool:
            with connection.transaction():
                for run_id in ("a", "b"):
                    connection.execute("SELECT post(%s, %s, '', 0, false)", (run_id, str(key)))
                writing = pool.submit(store.append, commits)
                wait_until_blocked(other)
            assert {type(outcome) for outcome in writing.result()} == {PostsWaiting}
    assert [post.key for post in store.inbox("a")] == ["0", "1"]
    assert store.read("a").records == store.read("b").records == [b"1"]


def test_a_deadlock_is_resolved_without_an_error(open_store: OpenStore) -> None:
    store = open_store()
    other = open_store()
    for run_id in "ab":
        store.create(NewRun(run_id, "g", [b"1"], holder="ann"))
    with connected(other) as connection, ThreadPoolExecutor(1) as pool:
        with connection.transaction():
            connection.execute("SELECT 1 FROM runs WHERE run_id = 'b' FOR UPDATE")
            writing = pool.submit(store.append, [Commit(each, 1, 1, [b"2"]) for each in "ab"])
            wait_until_blocked(other)
            connection.execute("SET LOCAL deadlock_timeout = '1h'")
            connection.execute("SELECT 1 FROM runs WHERE run_id = 'a' FOR UPDATE")
        assert writing.result() == [None, None]
    assert store.read("a").records == store.read("b").records == [b"1", b"2"]


def test_the_number_of_open_connections_is_limited(open_store: OpenStore) -> None:
    store = open_store(connections=3, timeout=30.0)
    store.create(NewRun("r", "g", [b"1"]))
    with ThreadPoolExecutor(12) as pool:
        list(pool.map(lambda _: store.head("r"), range(200)))
    rows = query(
        store,
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()",
    )
    assert rows[0][0] <= 3


def test_waiting_for_a_connection_has_an_end(open_store: OpenStore) -> None:
    store = open_store(connections=1, timeout=0.05)
    with pytest.raises(StoreUnavailable, match=r"all 1 connections .* were busy .*\?connections="):
        store._connections.use(lambda cursor, again: store.head("r"))
    with pytest.raises(RunNotFound):
        store.head("r")


def query(store: Any, statement: str, values: Any = None) -> Any:
    with connected(store) as connection:
        cursor = connection.execute(statement, values)
        return cursor.fetchall() if cursor.description else None


@contextmanager
def connected(store: Any) -> Iterator[Any]:
    """A connection like the store's, in addition to them."""
    cursor = store._connections.open()
    with closing(cursor.connection):
        yield cursor.connection


def wait_until_blocked(store: Any) -> None:
    deadline = time.monotonic() + 30
    while not query(
        store,
        "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()",
    ):
        assert time.monotonic() < deadline
