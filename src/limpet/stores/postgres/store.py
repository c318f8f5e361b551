"""Runs in a PostgreSQL database, shared by all processes and machines that can reach it.

The common commit (one record, nothing new for the head) is a single prepared statement that checks the fence,
the sequence number and the signal, inserts, and is its own transaction: one round trip. Such commits of many
runs are one statement as well. Whatever else a commit may ask is done by a function in the database. Time is the
server's.

When the connection breaks in the middle of a commit, the store asks the server, as soon as there is one again,
whether the commit has arrived; a record knows the fence under which it was written, and a head the commit that
changed it last. So a commit is never carried out twice, and one that arrived isn't reported as refused.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Sequence
from random import SystemRandom
from typing import Any, LiteralString

from limpet.errors import RunExists, RunNotFound, StoreUnavailable, UsageError
from limpet.journal.store import (
    ENDED,
    Abilities,
    Commit,
    Heads,
    Lease,
    Level,
    NewRun,
    RunFilter,
    RunHead,
    Tail,
)
from limpet.stores.heads import held_conflict, is_held, refusal
from limpet.stores.postgres import queries
from limpet.stores.postgres.address import Address
from limpet.stores.postgres.commits import Batch, is_plain, outcome, too_large
from limpet.stores.postgres.connections import Connections, Cursor
from limpet.stores.postgres.listener import Listener
from limpet.stores.postgres.schema import migrate
from limpet.stores.postgres.statements import append_one

PLANNER = {
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "jit": "off",
    "max_parallel_workers_per_gather": "0",
}
"""Every statement here has its index; a plan made while a table was small is kept when it no longer is."""


Part = tuple[dict[str, int], Callable[[Cursor, bool], dict[int, Exception | None]]]


class PostgresStore:
    """Keeps runs in the database at `url`, in tables of its own `schema`, which it creates if it may.

    `level` is what an acknowledged save survives: "disk" a power loss of the server (a flush for each commit),
    "process" the end of this process, and of the server's if the machine goes on writing for a moment. At most
    `connections` are open at a time, and one more while somebody waits for a change; `timeout` is how many seconds
    to wait for one, and for a server that went away. Threads may share a store, and a fork may happen at any time.
    Raises `StoreUnavailable` where the database can't be reached and written to.
    """

    def __init__(
        self,
        url: str,
        *,
        schema: str = "limpet",
        level: Level = "disk",
        timeout: float = 30.0,
        connections: int = 8,
    ) -> None:
        if level not in ("disk", "process"):
            raise UsageError(f'a PostgreSQL store has the level "disk" or "process", not {level!r}')
        if not 0 <= timeout <= 1e6:
            raise UsageError(f"timeout is a number of seconds, not {timeout!r}")
        if connections < 1:
            raise UsageError(f"a store needs at least 1 connection, not {connections!r}")
        if not schema or len(schema.encode()) > 63 or "\0" in schema or schema.startswith("pg_"):
            raise UsageError(f"{schema!r} can't be the name of a schema")
        self.schema = schema
        self.abilities = Abilities(level=level, shared=True)
        self._address = Address(url)
        settings = {
            "search_path": '"' + schema.replace('"', '""') + '"',
            "synchronous_commit": "on" if level == "disk" else "off",
            **PLANNER,
        }
        self._connections = Connections(self._address, settings, connections, timeout)
        self._listener = Listener(self._connections.open, str(self._address))
        self._random = SystemRandom()
        self._connections.begin(self._prepare)

    def __repr__(self) -> str:
        return (
            f"PostgresStore({str(self._address)!r}, schema={self.schema!r}, level={self.abilities.level!r})"
        )

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._connections.closed

    def create(self, run: NewRun) -> Lease | None:
        mark = self._mark()
        row = queries.row_of(run, mark)

        def work(cursor: Cursor, again: bool) -> float | None:
            found = cursor.execute(queries.CREATE, row).fetchone()
            if found is None and again:
                found = cursor.execute(queries.CREATED, (run.run_id, mark)).fetchone()
            if found is None:
                raise RunExists(run.run_id)
            return found[0]  # type: ignore[no-any-return]  # a column of the database

        until = self._connections.use(work)
        return None if until is None else Lease(run.run_id, 1, until)

    def append(self, commits: Sequence[Commit]) -> list[Exception | None]:
        if len(commits) == 1 and is_plain(commits[0]):
            return [self._append_plain(commits[0])]
        if len(commits) == 1:
            return [self._append_fully(commits[0])]
        return self._append_together(commits) if commits else []

    def head(self, run_id: str) -> RunHead:
        return self._find(run_id)[1]

    def read(self, run_id: str, first: int | None = None, last: int | None = None) -> Tail:
        bounds = [None if each is None else queries.within(each) for each in (first, last)]

        def work(cursor: Cursor, again: bool) -> builtins.list[tuple[Any, ...]]:
            return cursor.execute(queries.READ, (run_id, *bounds)).fetchall()

        rows = self._connections.use(work)
        if not rows:
            raise RunNotFound(run_id)
        head = next(queries.head_of(row[2:]) for row in rows if row[0] is None)
        found = sorted(row[:2] for row in rows if row[0] is not None)
        return Tail(head, found[0][0] if found else head.sequence + 1, [data for _, data in found])

    def claim(self, run_id: str, holder: str, ttl: float, instead_of: int | None = None) -> Lease:
        mark = self._mark()
        fence = None if instead_of is None else queries.within(instead_of)

        def work(cursor: Cursor, again: bool) -> tuple[Any, ...] | None:
            known = cursor.execute(queries.CLAIMED, (run_id, mark)).fetchone() if again else None
            return known or cursor.execute(queries.CLAIM, (holder, ttl, mark, run_id, fence)).fetchone()

        while True:
            row = self._connections.use(work)
            if row is not None:
                return Lease(run_id, *row)
            now, head = self._find(run_id)
            if is_held(head, now):
                raise held_conflict(head, now)

    def renew(self, leases: Iterable[Lease], ttl: float) -> list[str | None]:
        leases = list(leases)
        ordered = sorted(enumerate(leases), key=lambda each: each[1].run_id)
        ids = [lease.run_id for _, lease in ordered]
        fences = [queries.within(lease.fence) for _, lease in ordered]

        def work(cursor: Cursor, again: bool) -> builtins.list[tuple[Any, ...]]:
            return cursor.execute(queries.RENEW, (ids, fences, ttl)).fetchall()

        answers: builtins.list[str | None] = [None] * len(leases)
        for number, signal in self._connections.use(work) if leases else []:
            answers[ordered[number - 1][0]] = signal or ""
        return answers

    def release(self, lease: Lease) -> None:
        values = (lease.run_id, queries.within(lease.fence))
        self._connections.use(lambda cursor, _: cursor.execute(queries.RELEASE, values))

    def signal(self, run_id: str, signal: str) -> None:
        values = (signal, run_id)
        if self._connections.use(lambda cursor, _: cursor.execute(queries.SIGNAL, values).rowcount) == 0:
            raise RunNotFound(run_id)

    def list(self, which: RunFilter) -> list[RunHead]:
        conditions, values = queries.where(which)
        query = f"{queries.HEAD} {conditions} ORDER BY created DESC, run_id DESC LIMIT %s OFFSET %s"
        values += (which.limit, which.offset)
        rows = self._connections.use(lambda cursor, _: cursor.execute(query.encode(), values).fetchall())
        return [queries.head_of(row) for row in rows]

    def ready(self, graphs: Sequence[str], limit: int) -> Heads:
        values = ([*graphs], limit)
        rows = self._connections.use(lambda cursor, _: cursor.execute(queries.READY, values).fetchall())
        return [queries.head_of(row) for row in rows]

    def prune(self, run_id: str, before: int) -> int:
        gone = self._value("SELECT prune(%s, %s)", run_id, queries.within(before))
        if gone is None:
            raise RunNotFound(run_id)
        return int(gone)

    def expire(self, older_than: float, statuses: Sequence[str] = ENDED) -> int:
        return int(self._value("SELECT expire(%s, %s::text[])", older_than, [*statuses]))

    def delete(self, run_id: str) -> None:
        doubt = False

        def work(cursor: Cursor, again: bool) -> bool:
            nonlocal doubt
            doubt = again
            return cursor.execute("SELECT remove(%s)", (run_id,)).fetchone() == (True,)

        while not self._connections.use(work):
            try:
                now, head = self._find(run_id)
            except RunNotFound:
                if doubt:
                    return
                raise
            if is_held(head, now):
                raise held_conflict(head, now)

    def wait_for_change(self, timeout: float) -> bool:
        return self._listener.wait(timeout)

    def close(self) -> None:
        self._listener.close()
        self._connections.close()

    def _prepare(self, cursor: Cursor) -> None:
        """Bring the schema up to date. A pooler lends its sessions out to all: nobody can listen through it."""
        migrate(cursor, self.schema, str(self._address))
        self.abilities = self.abilities._replace(notifies=not cursor.pooled)

    def _append_plain(self, commit: Commit) -> Exception | None:
        doubt = False

        def work(cursor: Cursor, again: bool) -> bool:
            nonlocal doubt
            doubt = again
            return append_one(cursor, commit)

        return None if self._connections.use(work) else self._append_fully(commit, doubt)

    def _append_fully(self, commit: Commit, doubt: bool = False) -> Exception | None:
        """Carry out one commit of any kind. With `doubt`, it may have been carried out already."""
        refused = too_large(commit)
        if refused is not None:
            try:
                now, head = self._find(commit.run_id)
            except RunNotFound as missing:
                return missing
            return refusal(commit, head, now) or refused
        mark = self._mark()

        def work(cursor: Cursor, again: bool) -> tuple[Any, ...] | None:
            return cursor.execute(
                queries.APPEND_FULLY, queries.fully(commit, mark, again or doubt)
            ).fetchone()

        return outcome(commit, self._connections.use(work))

    def _append_together(self, commits: Sequence[Commit]) -> builtins.list[Exception | None]:
        """Carry out commits of different runs in as few transactions as may be.

        Once one of them has been carried out, what stops the store is the others' refusal.
        """
        batch = Batch(commits, [self._mark() for _ in commits])
        outcomes: dict[int, Exception | None] = {}
        doubts: set[int] = set()

        for numbers, carry_out in (
            (batch.plain, batch.carry_out_plain),
            (batch.others, batch.carry_out_others),
        ):

            def work(cursor: Cursor, again: bool, part: Part = (numbers, carry_out)) -> None:
                if again:
                    doubts.update(part[0].values())
                outcomes.update(part[1](cursor, again))

            try:
                if numbers:
                    self._connections.use(work)
            except StoreUnavailable as error:
                if None not in outcomes.values():
                    raise
                outcomes.update(dict.fromkeys(numbers.values(), error))
        for number, commit in enumerate(commits):
            if number not in outcomes:
                try:
                    outcomes[number] = self._append_fully(commit, number in doubts)
                except StoreUnavailable as error:
                    outcomes[number] = error
        return [outcomes[number] for number in range(len(commits))]

    def _find(self, run_id: str) -> tuple[float, RunHead]:
        row = self._connections.use(lambda cursor, _: cursor.execute(queries.FIND, (run_id,)).fetchone())
        if row is None:
            raise RunNotFound(run_id)
        return row[0], queries.head_of(row[1:])

    def _value(self, query: LiteralString, *values: object) -> Any:
        row = self._connections.use(lambda cursor, _: cursor.execute(query, values).fetchone())
        return None if row is None else row[0]

    def _mark(self) -> int:
        """A number that nobody else has: what is written with it is known again as one's own."""
        return self._random.getrandbits(62)
