"""Any list of calls gives the same results in every store there is: the plain one, in memory, is the model of all."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from limpet.errors import LimpetError
from limpet.journal.run_filter import Cursor, LeaseState, RunFilter
from limpet.journal.store import STATUSES, Commit, Labels, Lane, Lease, NewRun, PostsWaiting, RunHead, Store
from limpet.stores import MemoryStore
from limpet.stores.files.store import FileStore
from limpet.stores.sqlite.store import SQLiteStore
from limpet.testing.conformance import ManualClock
from support.postgres import Server, needed, new_schema
from support.redis_servers import RedisServer, redis_server

EXAMPLES = 12
KEY = bytes(range(32))

run_ids = st.sampled_from(["a", "a", "a", "b", "B", "ü'\"/"])
holders = st.sampled_from(["ann", "bob"])
numbers = st.integers(0, 8)
texts = st.sampled_from(["x", "y", 'x"', ""])
queues = st.sampled_from(["default", "default", "x", 'x"'])
statuses = st.sampled_from(STATUSES)
records = st.lists(st.binary(max_size=8), max_size=3)
ttls = st.sampled_from([0.0, 1.0, 5.0, 30.0])
priorities = st.sampled_from([0, 0, 0, 3, -1])

# Off by a little from what would be accepted, or not. Most commits of a random machine should land, and
# most runs should live for a while: chance alone would mostly call for runs that aren't there.
slips = st.sampled_from([0, 0, 0, 0, 0, 0, -1, 1])
rarely = st.sampled_from([False, False, False, False, True])

labels = st.builds(Labels, texts, texts, texts, texts)
lanes = st.builds(Lane, queues, texts, texts)
commits = st.fixed_dictionaries(
    {
        "run_id": run_ids,
        "fence": slips,
        "expected": slips,
        "data": records,
        "whole": st.booleans(),
        "status": st.none() | statuses,
        "note": st.none() | st.binary(max_size=3),
        "purge": st.sampled_from([False, False, True]),
        "due": st.none() | ttls,
        "takes": st.sampled_from([0, 0, 1, 2, 3]),
        "ignores_posts": st.booleans(),
        "labels": st.none() | labels,
    }
)


class Servers:
    """What outlives a single example: servers, and schemas in one of them that tell the time of the test."""

    def __init__(self, postgres: Server, redis: RedisServer) -> None:
        self.postgres, self.redis = postgres, redis
        self.schemas = [new_schema(), new_schema()]
        self._client = redis.client()
        self._sql = postgres.psycopg.connect(postgres.of("postgres"), autocommit=True)
        for schema in self.schemas:
            self._opened(schema).close()
            self._sql.execute(f"CREATE TABLE {schema}.moment AS SELECT 0::double precision AS now")
            self._sql.execute(
                f"CREATE OR REPLACE FUNCTION {schema}.clock() RETURNS double precision LANGUAGE sql VOLATILE "
                f"AS 'SELECT now FROM {schema}.moment'"
            )

    def close(self) -> None:
        for schema in self.schemas:
            self._sql.execute(f"DROP SCHEMA {schema} CASCADE")
        self._sql.close()
        self._client.close()

    def empty(self) -> None:
        """Forget all runs."""
        self._client.flushall()
        for schema in self.schemas:
            self._sql.execute(f"DELETE FROM {schema}.records; DELETE FROM {schema}.runs")
            self._sql.execute(f"DELETE FROM {schema}.documents")

    def set_clock(self, now: float) -> None:
        self._sql.execute("; ".join(f"UPDATE {schema}.moment SET now = {now!r}" for schema in self.schemas))

    def _opened(self, schema: str) -> Store:
        from limpet.stores.postgres.store import PostgresStore

        return PostgresStore(self.postgres.of("postgres"), schema=schema, level="process", connections=2)

    def kinds(self, folder: Path, clock: Any) -> dict[str, Callable[[], Store]]:
        """How to open each kind of store, any number of times on the same data."""
        from limpet.stores.composite.encrypted import EncryptedStore, Keys
        from limpet.stores.composite.tiered import TieredStore
        from limpet.stores.redis.store import RedisStore

        def sqlite(name: str) -> Store:
            return SQLiteStore(folder / name, level="process", clock=clock)

        return {
            "sqlite": lambda: sqlite("runs.db"),
            "files": lambda: FileStore(folder / "runs", level="process", clock=clock),
            "postgres": lambda: self._opened(self.schemas[0]),
            "redis": lambda: RedisStore(self.redis.url, clock=clock),
            "tiered": lambda: TieredStore(
                RedisStore(self.redis.url, prefix="hot:"), self._opened(self.schemas[1])
            ),
            "encrypted": lambda: EncryptedStore(sqlite("sealed.db"), Keys({"k": KEY})),
        }


class StoresAgree(RuleBasedStateMachine):
    servers: Servers
    eras = count(1)

    def __init__(self) -> None:
        super().__init__()
        # No time is given out twice for one run id, not even in the next example: the tiered store counts on that.
        self.clock = ManualClock(1_750_000_000.0 + 1e6 * next(self.eras))
        self.born: set[tuple[str, float]] = set()
        self.folder = tempfile.TemporaryDirectory()
        self.model = MemoryStore(clock=self.clock)
        self.servers.empty()
        self.pass_time(0)
        self.kinds = self.servers.kinds(Path(self.folder.name), self.clock)
        self.stores: dict[str, list[Store]] = {}
        # Two stores on the same data, so that neither may rely on what it remembers.
        for name, opened in self.kinds.items():
            self.stores[name] = [opened(), opened()]

    def teardown(self) -> None:
        try:
            for head in self.model.list(RunFilter()):
                for first in (None, 1):
                    self.same("read", head.run_id, first)
        finally:
            for pair in self.stores.values():
                for store in pair:
                    store.close()
            self.folder.cleanup()

    def same(self, method: str, *arguments: Any, **more: Any) -> None:
        expected = outcome(self.model, method, *arguments, **more)
        for name, pair in self.stores.items():
            pair.reverse()
            assert outcome(pair[0], method, *arguments, **more) == expected, name

    def each(self, call: Callable[[Store], Any]) -> None:
        """The same for what a function does with a store."""
        expected = call(self.model)
        for name, pair in self.stores.items():
            pair.reverse()
            assert call(pair[0]) == expected, name

    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.servers.set_clock(self.clock())

    def written(self, run_id: str, fence: int, expected: int, data: list[bytes], **more: Any) -> Commit:
        try:
            head = self.model.head(run_id)
        except LimpetError:
            return Commit(run_id, fence, expected, data, **more)
        return Commit(run_id, head.fence + fence, head.sequence + expected, data, **more)

    def then(self, seconds: float | None) -> float | None:
        """The time in `seconds` seconds."""
        return None if seconds is None else self.clock() + seconds

    def fully_written(self, data: list[bytes], whole: bool, due: float | None, **more: Any) -> Commit:
        commit = self.written(data=data, due=self.then(due), **more)
        commit.snapshot = commit.expected + len(data) if whole and data else 0
        return commit

    @initialize(ttl=ttls)
    def begin(self, ttl: float) -> None:
        self.same("create", NewRun("a", "x", [b"1"], holder="ann", ttl=ttl))
        self.same("create", NewRun("b", "y", [b"1", b"2"], parent="a", tags=("x",), due=0.0))
        self.born |= {("a", self.clock()), ("b", self.clock())}

    @rule(seconds=ttls)
    def time_passes(self, seconds: float) -> None:
        self.pass_time(seconds)

    @rule(
        run_id=run_ids,
        data=records,
        graph=texts,
        status=statuses,
        holder=st.none() | holders,
        ttl=ttls,
        tags=st.lists(texts, max_size=2),
        parent=st.none() | run_ids,
        note=st.binary(max_size=3),
        due=st.none() | ttls,
        priority=priorities,
        labels=labels,
        queue=queues,
    )
    def create(self, run_id: str, data: list[bytes], tags: list[str], due: float | None, **more: Any) -> None:
        if (run_id, self.clock()) in self.born:
            self.pass_time(0.5)
        self.born.add((run_id, self.clock()))
        self.same("create", NewRun(run_id, records=data, tags=tuple(tags), due=self.then(due), **more))

    @rule(run_id=run_ids, fence=slips, expected=slips, data=st.binary(max_size=8))
    def append_one(self, run_id: str, fence: int, expected: int, data: bytes) -> None:
        self.same("append", [self.written(run_id, fence, expected, [data])])

    @rule(many=st.lists(st.tuples(run_ids, slips, slips, records), max_size=4, unique_by=lambda c: c[0]))
    def append_many(self, many: list[tuple[str, int, int, list[bytes]]]) -> None:
        self.same("append", [self.written(*commit) for commit in many])

    @rule(commit=commits)
    def append_fully(self, commit: dict[str, Any]) -> None:
        self.same("append", [self.fully_written(**commit)])

    @rule(many=st.lists(commits, min_size=2, max_size=3, unique_by=lambda c: c["run_id"]))
    def append_many_fully(self, many: list[dict[str, Any]]) -> None:
        self.same("append", [self.fully_written(**commit) for commit in many])

    @rule(run_id=run_ids, first=st.none() | numbers, last=st.none() | numbers)
    def read(self, run_id: str, first: int | None, last: int | None) -> None:
        self.same("read", run_id, first, last)

    @rule(run_id=run_ids)
    def read_all(self, run_id: str) -> None:
        self.same("head", run_id)
        self.same("read", run_id)

    @rule(
        statuses=st.lists(statuses, max_size=2),
        graph=st.none() | texts,
        queue=st.none() | queues,
        plan=st.none() | texts,
        tags=st.lists(texts, max_size=2).map(tuple),
        parent=st.none() | run_ids,
        node=st.none() | texts,
        error=st.none() | texts,
        created_since=st.none() | ttls,
        updated_before=st.none() | ttls,
        lease_states=st.lists(st.sampled_from(LeaseState), max_size=2).map(tuple),
        is_due=st.none() | st.booleans(),
        has_error=st.none() | st.booleans(),
        is_waiting=st.none() | st.booleans(),
        after=st.none() | run_ids,
        limit=st.none() | numbers,
    )
    def list(self, statuses: list[str], after: str | None, **more: Any) -> None:
        cursor = None if after is None else Cursor(self.clock(), after)
        for name in ("created_since", "updated_before"):
            if more[name] is not None:
                more[name] = self.clock() - more[name]
        self.same("list", RunFilter(statuses=tuple(statuses), after=cursor, **more))

    @rule(run_ids=st.lists(run_ids, max_size=3))
    def heads(self, run_ids: list[str]) -> None:
        self.same("heads", run_ids)

    @rule(lanes=st.lists(lanes, max_size=3), limit=numbers)
    def ready(self, lanes: list[Lane], limit: int) -> None:
        self.same("ready", lanes, limit)

    @rule(run_id=run_ids, holder=holders, ttl=ttls, instead_of=st.none() | slips)
    def claim(self, run_id: str, holder: str, ttl: float, instead_of: int | None) -> None:
        fence = None if instead_of is None else self.written(run_id, instead_of, 0, []).fence
        self.same("claim", run_id, holder, ttl, fence)

    @rule(wanted=st.lists(st.tuples(run_ids, slips), max_size=3), holder=holders, ttl=ttls)
    def claim_ready(self, wanted: Any, holder: str, ttl: float) -> None:
        listed = [
            RunHead(run_id, "", "", 0, 0, self.written(run_id, slip, 0, []).fence, 0.0, 0.0)
            for run_id, slip in wanted
        ]
        self.same("claim_ready", listed, holder, ttl)

    @rule(leases=st.lists(st.tuples(run_ids, slips), max_size=3), ttl=ttls)
    def renew(self, leases: Any, ttl: float) -> None:
        held = [Lease(run_id, self.written(run_id, slip, 0, []).fence, 0.0) for run_id, slip in leases]
        self.same("renew", held, ttl)

    @rule(leases=st.lists(st.tuples(run_ids, slips), max_size=3))
    def are_valid(self, leases: Any) -> None:
        self.same(
            "are_valid",
            [Lease(run_id, self.written(run_id, slip, 0, []).fence, 0.0) for run_id, slip in leases],
        )

    @rule(run_id=run_ids, fence=slips)
    def release(self, run_id: str, fence: int) -> None:
        self.same("release", Lease(run_id, self.written(run_id, fence, 0, []).fence, 0.0))

    @rule(run_id=run_ids, key=texts, body=st.binary(max_size=3))
    def post(self, run_id: str, key: str, body: bytes) -> None:
        self.same("post", run_id, key, body)
        self.same("inbox", run_id)

    @rule(run_id=run_ids, fence=slips, bodies=st.lists(st.binary(max_size=3), max_size=3))
    def add_output(self, run_id: str, fence: int, bodies: list[bytes]) -> None:
        self.same("add_output", run_id, self.written(run_id, fence, 0, []).fence, bodies, 100)
        self.same("output", run_id, after=1, limit=2)

    @rule(name=texts, body=st.binary(max_size=3), slip=slips, due=st.none() | ttls)
    def put_document(self, name: str, body: bytes, slip: int, due: float | None) -> None:
        when = None if due is None else self.clock() + due
        self.each(lambda store: _put(store, name, body, slip, when))

    @rule(prefix=texts, due=st.booleans(), limit=st.none() | numbers)
    def list_documents(self, prefix: str, due: bool, limit: int | None) -> None:
        self.each(
            lambda store: [each._replace(version=0) for each in store.list_documents(prefix, due, limit)]
        )

    @rule(run_id=run_ids, before=numbers)
    def prune(self, run_id: str, before: int) -> None:
        self.same("prune", run_id, before)

    @rule(older_than=ttls, statuses=st.lists(statuses, max_size=1), really=rarely)
    def expire(self, older_than: float, statuses: Any, really: bool) -> None:
        self.same("expire", older_than if really else 1e6, statuses)

    @rule(run_id=run_ids, really=rarely)
    def delete(self, run_id: str, really: bool) -> None:
        self.same("delete", run_id if really else "missing")

    @rule(really=rarely)
    def reopen(self, really: bool) -> None:
        for name, pair in self.stores.items() if really else ():
            pair.pop().close()
            pair.insert(0, self.kinds[name]())

    @invariant()
    def heads_are_equal(self) -> None:
        self.same("list", RunFilter())
        lanes = self.model.lanes()
        self.same("ready", lanes, 9)
        for name, (store, _) in self.stores.items():
            found = store.lanes()
            assert set(lanes) <= set(found), name
            assert len(found) == len(set(found)), name


def _put(store: Store, name: str, body: bytes, slip: int, due: float | None) -> Any:
    """Write a document, or delete it if it has no body. Versions differ from store to store."""
    found = store.get_document(name)
    version = slip if found is None else found.version + slip
    if not body:
        return store.delete_document(name, version)
    return store.put_document(name, body, version, due) is not None


def outcome(store: Store, method: str, *arguments: Any, **more: Any) -> Any:
    """What a call returned or raised, in a form in which two of them can be compared."""
    try:
        returned = getattr(store, method)(*arguments, **more)
    except LimpetError as error:
        return comparable(error)
    return [comparable(item) for item in returned] if isinstance(returned, list | tuple) else returned


def comparable(item: Any) -> Any:
    if isinstance(item, LimpetError | PostsWaiting):
        return type(item), str(item), vars(item)
    return item


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def servers(postgres: Server, redis: RedisServer) -> Iterator[Servers]:
    needed("cryptography")
    with closing(Servers(postgres, redis)) as servers:
        yield servers


@pytest.mark.timeout(600)  # seven stores, each step in all of them: on a busy machine that takes a while
def test_all_stores_agree(servers: Servers) -> None:
    """P5, P6, P8, F14: on results, on refusals and their words, and on all that is kept; whichever holds the runs."""

    class AllAgree(StoresAgree):
        pass

    AllAgree.servers = servers
    run_state_machine_as_test(
        AllAgree,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )
