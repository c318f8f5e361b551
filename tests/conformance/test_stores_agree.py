"""Any list of calls gives the same results in memory and in any other store: the plain one is their model."""

from __future__ import annotations

import tempfile
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

from holdfast.errors import HoldfastError
from holdfast.journal.store import STATUSES, Commit, Lease, NewRun, RunFilter, Signalled, Store
from holdfast.stores import MemoryStore
from holdfast.stores.files import FileStore
from holdfast.stores.sqlite import SQLiteStore
from holdfast.testing.conformance import ManualClock
from support.postgres import Server, ServerClock, new_schema

run_ids = st.sampled_from(["a", "a", "a", "b", "B", "ü'\"/"])
holders = st.sampled_from(["ann", "bob"])
numbers = st.integers(0, 8)
texts = st.sampled_from(["x", "y", 'x"', ""])
statuses = st.sampled_from(STATUSES)
records = st.lists(st.binary(max_size=8), max_size=3)
ttls = st.sampled_from([0.0, 1.0, 5.0, 30.0])
priorities = st.sampled_from([0, 0, 0, 3, -1])

# Off by a little from what would be accepted, or not. Most commits of a random machine should land, and
# most runs should live for a while: chance alone would mostly call for runs that aren't there.
slips = st.sampled_from([0, 0, 0, 0, 0, 0, -1, 1])
rarely = st.sampled_from([False, False, False, False, True])


class StoresAgree(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.clock: Any = ManualClock()
        # Two stores on the same data, so that neither may rely on what it remembers.
        self.store, self.other = self.open_two()
        self.model = MemoryStore(clock=self.clock)

    def open_two(self) -> tuple[Store, Store]:
        self.folder = tempfile.TemporaryDirectory()
        path = Path(self.folder.name, "runs.db")
        return self.opened(path), self.opened(path)

    def opened(self, path: Path) -> Store:
        return SQLiteStore(path, level="process", clock=self.clock)

    def teardown(self) -> None:
        self.store.close()
        self.other.close()
        self.clean_up()

    def clean_up(self) -> None:
        self.folder.cleanup()

    def same(self, method: str, *arguments: Any, **more: Any) -> None:
        self.store, self.other = self.other, self.store
        expected = outcome(self.model, method, *arguments, **more)
        assert outcome(self.store, method, *arguments, **more) == expected

    def written(self, run_id: str, fence: int, expected: int, data: list[bytes], **more: Any) -> Commit:
        try:
            head = self.model.head(run_id)
        except HoldfastError:
            return Commit(run_id, fence, expected, data, **more)
        return Commit(run_id, head.fence + fence, head.sequence + expected, data, **more)

    def then(self, seconds: float | None) -> float | None:
        """The time in so many seconds."""
        return None if seconds is None else self.clock() + seconds

    @initialize(ttl=ttls)
    def begin(self, ttl: float) -> None:
        self.same("create", NewRun("a", "x", [b"1"], holder="ann", ttl=ttl))
        self.same("create", NewRun("b", "y", [b"1", b"2"], parent="a", tags=("x",), due=0.0))

    @rule(seconds=ttls)
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(
        run_id=run_ids,
        data=records,
        graph=texts,
        status=statuses,
        holder=st.none() | holders,
        ttl=ttls,
        tags=st.lists(texts, max_size=2),
        parent=st.none() | run_ids,
        due=st.none() | ttls,
        priority=priorities,
    )
    def create(self, run_id: str, data: list[bytes], tags: list[str], due: float | None, **more: Any) -> None:
        self.same("create", NewRun(run_id, records=data, tags=tuple(tags), due=self.then(due), **more))

    @rule(run_id=run_ids, fence=slips, expected=slips, data=st.binary(max_size=8))
    def append_one(self, run_id: str, fence: int, expected: int, data: bytes) -> None:
        self.same("append", [self.written(run_id, fence, expected, [data])])

    @rule(commits=st.lists(st.tuples(run_ids, slips, slips, records), max_size=4, unique_by=lambda c: c[0]))
    def append_many(self, commits: list[tuple[str, int, int, list[bytes]]]) -> None:
        self.same("append", [self.written(*commit) for commit in commits])

    @rule(
        run_id=run_ids,
        fence=slips,
        expected=slips,
        data=records,
        whole=st.booleans(),
        status=st.none() | statuses,
        note=st.none() | st.binary(max_size=3),
        purge=st.sampled_from([False, False, True]),
        heed=st.sampled_from([True, False, None]),
        due=st.none() | ttls,
    )
    def append_fully(
        self,
        run_id: str,
        fence: int,
        expected: int,
        data: list[bytes],
        whole: bool,
        due: float | None,
        **more: Any,
    ) -> None:
        commit = self.written(run_id, fence, expected, data, due=self.then(due), **more)
        commit.snapshot = commit.expected + len(data) if whole and data else 0
        self.same("append", [commit])

    @rule(run_id=run_ids, first=st.none() | numbers, last=st.none() | numbers)
    def read(self, run_id: str, first: int | None, last: int | None) -> None:
        self.same("read", run_id, first, last)

    @rule(
        statuses=st.lists(statuses, max_size=2),
        graph=st.none() | texts,
        tag=st.none() | texts,
        parent=st.none() | run_ids,
        unclaimed=st.booleans(),
        limit=st.none() | numbers,
        offset=st.sampled_from([0, 0, 1, 2]),
    )
    def list(self, statuses: list[str], **more: Any) -> None:
        self.same("list", RunFilter(statuses=tuple(statuses), **more))

    @rule(graphs=st.lists(texts, max_size=3), limit=numbers)
    def ready(self, graphs: Any, limit: int) -> None:
        self.same("ready", graphs, limit)

    @rule(run_id=run_ids, holder=holders, ttl=ttls, instead_of=st.none() | slips)
    def claim(self, run_id: str, holder: str, ttl: float, instead_of: int | None) -> None:
        fence = None if instead_of is None else self.written(run_id, instead_of, 0, []).fence
        self.same("claim", run_id, holder, ttl, fence)

    @rule(leases=st.lists(st.tuples(run_ids, slips), max_size=3), ttl=ttls)
    def renew(self, leases: Any, ttl: float) -> None:
        held = [Lease(run_id, self.written(run_id, slip, 0, []).fence, 0.0) for run_id, slip in leases]
        self.same("renew", held, ttl)

    @rule(run_id=run_ids, fence=slips)
    def release(self, run_id: str, fence: int) -> None:
        self.same("release", Lease(run_id, self.written(run_id, fence, 0, []).fence, 0.0))

    @rule(run_id=run_ids, signal=texts.filter(bool))
    def signal(self, run_id: str, signal: str) -> None:
        self.same("signal", run_id, signal)

    @rule(run_id=run_ids, before=numbers)
    def prune(self, run_id: str, before: int) -> None:
        self.same("prune", run_id, before)

    @rule(older_than=ttls, statuses=st.lists(statuses, max_size=1), really=rarely)
    def expire(self, older_than: float, statuses: Any, really: bool) -> None:
        self.same("expire", older_than if really else 1e6, statuses)

    @rule(run_id=run_ids, really=rarely)
    def delete(self, run_id: str, really: bool) -> None:
        self.same("delete", run_id if really else "nobody")

    @invariant()
    def everything_is_equal(self) -> None:
        self.same("list", RunFilter())
        self.same("ready", ["x", "y", 'x"', ""], 9)
        for head in self.model.list(RunFilter()):
            self.same("read", head.run_id)
            self.same("read", head.run_id, 1)


class FilesAgree(StoresAgree):
    def opened(self, path: Path) -> Store:
        return FileStore(path, level="process", clock=self.clock)


def outcome(store: Store, method: str, *arguments: Any, **more: Any) -> Any:
    """What a call returned or raised, in a form in which two of them can be compared."""
    try:
        returned = getattr(store, method)(*arguments, **more)
    except HoldfastError as error:
        return comparable(error)
    return [comparable(item) for item in returned] if isinstance(returned, list) else returned


def comparable(item: Any) -> Any:
    if isinstance(item, HoldfastError | Signalled):
        return type(item), str(item), vars(item)
    return item


@pytest.mark.parametrize("machine", [StoresAgree, FilesAgree])
def test_another_store_agrees_with_memory(machine: type[StoresAgree]) -> None:
    """P6, P8, F14: results, refusals and their words, and all that is kept."""
    check(machine, 40)


def test_memory_and_postgresql_agree(postgres: Server) -> None:
    """P6, P8, F14: the same for a server."""
    from holdfast.stores.postgres import PostgresStore

    class PostgresAgrees(StoresAgree):
        def open_two(self) -> tuple[Store, Store]:
            self.schema = new_schema()
            url = postgres.of("postgres")
            store, other = (PostgresStore(url, schema=self.schema, level="process") for _ in range(2))
            self.clock = ServerClock(postgres, self.schema)
            return store, other

        def clean_up(self) -> None:
            postgres.sql(f"DROP SCHEMA {self.schema} CASCADE")

    check(PostgresAgrees, 25)


def check(machine: type[StoresAgree], examples: int) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )
