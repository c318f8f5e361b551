"""Runs in a PostgreSQL database, shared by all processes and machines that can reach it.

The common commit (one record, nothing new for the head) is a single prepared statement that checks the fence, the
sequence number and the posts, inserts, and is its own transaction: one round trip. Such commits of many runs are one
statement as well. Every other commit is carried out by a function in the database, in one round trip, too; see
`append.py`. Leases expire by the server's clock.

When the connection breaks in the middle of a commit, its outcome is unknown: it may have been carried out, or
not. The store then sends it again, with `again`, as soon as it reaches the server. A record has the fence under
which it was written, and a head the *mark* (a random number) of the commit that changed it last, so the server
finds out whether this very commit has arrived. So no commit is carried out twice, and one that has arrived
isn't reported as refused.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Sequence
from random import SystemRandom
from typing import Any, LiteralString

from limpet.durations import LONGEST_ANSWER, store_seconds
from limpet.errors import RunExists, RunNotFound, StoreUnavailable, UsageError
from limpet.journal.run_filter import RunFilter
from limpet.journal.store import (
    ENDED,
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
from limpet.stores.heads import refusal, refuse_if_held, refuse_old_fence
from limpet.stores.postgres import documents, posts
from limpet.stores.postgres.address import Address
from limpet.stores.postgres.append import Batch, append_one, is_plain, outcome_of, too_large
from limpet.stores.postgres.connections import Connections, Cursor
from limpet.stores.postgres.listener import Listener
from limpet.stores.postgres.lists import listed
from limpet.stores.postgres.rows import (
    SQL,
    commit_values,
    create_values,
    head_of,
    lanes_values,
    within_bigint,
)
from limpet.stores.postgres.schema import migrate

PLANNER = {
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "jit": "off",
    "max_parallel_workers_per_gather": "0",
}
"""Every statement of the store has its index. A prepared statement keeps its plan, so one that was made while
the tables
were small, by scanning them, would be kept when they are large: the planner gets no choice."""

Outcomes = dict[int, Exception | None]
"""The outcome of commits, by their place in the call."""


class PostgresStore:
    """Keeps runs in the database at `url`, in tables of its own `schema`, which it creates if it may.

    `level` is what an acknowledged save survives: "disk" a power failure of the server (a flush for each commit),
    "process" a kill of this process, and of the server's processes unless the last moment of their writes is lost. At
    most `connections` are open at a time, and one more while a thread waits for a change; `timeout` is how many
    seconds to wait for a connection, and then for a server that is unavailable or doesn't answer. Threads may share a
    store, and a fork may happen at any time. Raises `StoreUnavailable` if the database can't be reached and written
    to.
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
        timeout = min(store_seconds(timeout, "timeout"), LONGEST_ANSWER)
        if connections < 1:
            raise UsageError(f"a store needs at least 1 connection, not {connections!r}")
        if not schema or len(schema.encode()) > 63 or "\0" in schema or schema.startswith("pg_"):
            raise UsageError(f"{schema!r} can't be the name of a schema")
        self.schema = schema
        self.abilities = Abilities(level=level, shared=True)
        self._address = Address(url)
        settings = {
            "search_path": '"' + schema.replace('"', '""') + '"',
            # "off": the server acknowledges before its log is on the disk, and writes it within a moment.
            "synchronous_commit": "on" if level == "disk" else "off",
            **PLANNER,
        }
        self._connections = Connections(self._address, settings, connections, timeout)
        self._listener = Listener(self._connections.open, str(self._address))
        self._random = SystemRandom()
        self._connections.connect_first(self._prepare)

    def __repr__(self) -> str:
        return (
            f"PostgresStore({str(self._address)!r}, schema={self.schema!r}, level={self.abilities.level!r})"
        )

    def __str__(self) -> str:
        return f"{self._address} (schema {self.schema})"

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._connections.closed

    def create(self, run: NewRun) -> Lease | None:
        mark = self._new_mark()
        values = create_values(run, mark)

        def work(cursor: Cursor, again: bool) -> float | None:
            found = cursor.execute(SQL["CREATE"], values).fetchone()
            if found is None and again:
                found = cursor.execute(SQL["FIND_CREATED"], (run.run_id, mark)).fetchone()
            if found is None:
                raise RunExists(run.run_id)
            return found[0]  # type: ignore[no-any-return]  # a column of the database

        lease_until = self._connections.use(work)
        if lease_until is None:
            return None
        return Lease(run.run_id, 1, lease_until)

    def append(self, commits: Sequence[Commit]) -> list[Exception | None]:
        if not commits:
            return []
        if len(commits) > 1:
            return self._append_together(commits)
        commit = commits[0]
        if is_plain(commit):
            return [self._append_plain(commit)]
        return [self._apply(commit)]

    def head(self, run_id: str) -> RunHead:
        return self._find(run_id)[1]

    def heads(self, run_ids: Sequence[str]) -> Sequence[RunHead | None]:
        wanted = [*run_ids]
        rows = self._connections.use(lambda cursor, _: cursor.execute(SQL["FIND_MANY"], (wanted,)).fetchall())
        found = {head.run_id: head for head in map(head_of, rows)}
        return [found.get(run_id) for run_id in wanted]

    def read(self, run_id: str, first: int | None = None, last: int | None = None) -> Tail:
        bounds = [None if bound is None else within_bigint(bound) for bound in (first, last)]

        def work(cursor: Cursor, again: bool) -> builtins.list[tuple[Any, ...]]:
            return cursor.execute(SQL["READ"], (run_id, *bounds)).fetchall()

        rows = self._connections.use(work)
        if not rows:
            raise RunNotFound(run_id)
        head = next(head_of(row[2:]) for row in rows if row[0] is None)
        found = sorted(row[:2] for row in rows if row[0] is not None)
        first_found = found[0][0] if found else head.sequence + 1
        return Tail(head, first_found, [data for _, data in found])

    def claim(self, run_id: str, holder: str, ttl: float, instead_of: int | None = None) -> Lease:
        mark = self._new_mark()
        fence = None if instead_of is None else within_bigint(instead_of)

        def work(cursor: Cursor, again: bool) -> tuple[Any, ...] | None:
            if again:
                claimed = cursor.execute(SQL["FIND_CLAIMED"], (run_id, mark)).fetchone()
                if claimed is not None:
                    return claimed
            return cursor.execute(SQL["CLAIM"], (holder, ttl, mark, run_id, fence)).fetchone()

        while True:
            row = self._connections.use(work)
            if row is not None:
                return Lease(run_id, *row)
            now, head = self._find(run_id)
            refuse_if_held(head, now)
            # The run was released, or its lease expired, between the two statements: try again.

    def claim_ready(self, wanted: Sequence[RunHead], holder: str, ttl: float) -> builtins.list[Lease | None]:
        leases: builtins.list[Lease | None] = [None] * len(wanted)
        places = first_places(wanted)
        ids = sorted(places)
        fences = [within_bigint(wanted[places[run_id]].fence) for run_id in ids]
        mark = self._new_mark()

        def work(cursor: Cursor, again: bool) -> builtins.list[tuple[Any, ...]]:
            found: builtins.list[tuple[Any, ...]] = []
            if again:
                found = cursor.execute(SQL["FIND_ALL_CLAIMED"], (ids, mark)).fetchall()
            return found or cursor.execute(SQL["CLAIM_READY"], (ids, fences, holder, ttl, mark)).fetchall()

        for number, *lease in self._connections.use(work):
            run_id = ids[number - 1]
            leases[places[run_id]] = Lease(run_id, *lease)
        return leases

    def renew(self, leases: Iterable[Lease], ttl: float) -> list[bool | None]:
        leases = list(leases)
        answers: builtins.list[bool | None] = [None] * len(leases)
        if not leases:
            return answers
        ordered = sorted(enumerate(leases), key=lambda each: each[1].run_id)
        ids = [lease.run_id for _, lease in ordered]
        fences = [within_bigint(lease.fence) for _, lease in ordered]

        def work(cursor: Cursor, again: bool) -> builtins.list[tuple[Any, ...]]:
            return cursor.execute(SQL["RENEW"], (ids, fences, ttl)).fetchall()

        for number, posts_wait in self._connections.use(work):
            place = ordered[number - 1][0]
            answers[place] = posts_wait
        return answers

    def are_valid(self, leases: Sequence[Lease]) -> builtins.list[bool]:
        values = ([lease.run_id for lease in leases], [within_bigint(lease.fence) for lease in leases])
        rows = self._connections.use(lambda cursor, _: cursor.execute(SQL["ARE_VALID"], values).fetchall())
        valid = {number for (number,) in rows}
        return [number in valid for number in range(1, len(leases) + 1)]

    def store_time(self) -> float:
        """The time of the server, by which runs are due and leases expire."""
        ((found,),) = self._connections.use(lambda cursor, _: cursor.execute(SQL["STORE_TIME"]).fetchall())
        return float(found)

    def release(self, lease: Lease) -> None:
        values = (lease.run_id, within_bigint(lease.fence))
        self._connections.use(lambda cursor, _: cursor.execute(SQL["RELEASE"], values))

    def post(self, run_id: str, key: str, body: bytes) -> bool:
        return posts.post(self._connections, self._new_mark(), run_id, key, body)

    def inbox(self, run_id: str) -> Sequence[Post]:
        return posts.inbox(self._connections, run_id)

    def add_output(self, run_id: str, fence: int, bodies: Sequence[bytes], keep: int) -> int:
        newest = posts.add_output(self._connections, self._new_mark(), run_id, fence, bodies, keep)
        if newest is None:
            now, head = self._find(run_id)
            refuse_old_fence(head, fence, now)
            raise RunNotFound(run_id)  # it was deleted, and another one of this id has the fence
        return newest

    def output(self, run_id: str, after: int = 0, limit: int | None = None) -> Sequence[Output]:
        return posts.read_output(self._connections, run_id, after, limit)

    def put_document(self, name: str, body: bytes, version: int, due: float | None = None) -> int | None:
        document = Document(name, version, body, due)
        return documents.put_document(self._connections, self._new_mark(), document)

    def get_document(self, name: str) -> Document | None:
        return documents.find_document(self._connections, name)

    def list_documents(
        self, prefix: str = "", due: bool = False, limit: int | None = None
    ) -> Sequence[Document]:
        return documents.list_documents(self._connections, prefix, due, limit)

    def delete_document(self, name: str, version: int) -> bool:
        return documents.delete_document(self._connections, self._new_mark(), name, version)

    def list(self, which: RunFilter) -> list[RunHead]:
        return self._connections.use(lambda cursor, _: listed(cursor, which), attempts=1)

    def lanes(self) -> Sequence[Lane]:
        rows = self._connections.use(lambda cursor, _: cursor.execute(SQL["LANES"]).fetchall())
        return [Lane(*row) for row in rows]

    def ready(self, lanes: Sequence[Lane], limit: int) -> Heads:
        values = lanes_values(lanes) | {"limit": limit}
        rows = self._connections.use(lambda cursor, _: cursor.execute(SQL["READY"], values).fetchall())
        return [head_of(row) for row in rows]

    def prune(self, run_id: str, before: int) -> int:
        deleted = self._value("SELECT prune(%s, %s)", run_id, within_bigint(before))
        if deleted is None:
            raise RunNotFound(run_id)
        return int(deleted)

    def expire(self, older_than: float, statuses: Sequence[str] = ENDED) -> int:
        return int(self._value("SELECT expire(%s, %s::text[])", older_than, [*statuses]))

    def delete(self, run_id: str) -> None:
        may_be_deleted = False

        def work(cursor: Cursor, again: bool) -> bool:
            nonlocal may_be_deleted
            may_be_deleted = again
            return cursor.execute("SELECT delete_run(%s)", (run_id,)).fetchone() == (True,)

        while not self._connections.use(work):
            try:
                now, head = self._find(run_id)
            except RunNotFound:
                if may_be_deleted:
                    return
                raise
            refuse_if_held(head, now)
            # The run was released, or its lease expired, between the two statements: try again.

    def wait_for_change(self, timeout: float) -> bool:
        return self._listener.wait(timeout)

    def close(self) -> None:
        self._listener.close()
        self._connections.close()

    def _prepare(self, cursor: Cursor) -> None:
        """Bring the schema up to date. No notifications arrive through a pooler: its sessions serve many clients."""
        migrate(cursor, self.schema, str(self._address))
        self.abilities = self.abilities._replace(notifies=not cursor.pooled)

    def _append_plain(self, commit: Commit) -> Exception | None:
        """Carry out a plain commit by one statement, or find out why it can't be."""
        may_be_done = False

        def work(cursor: Cursor, again: bool) -> bool:
            nonlocal may_be_done
            may_be_done = again
            return append_one(cursor, commit)

        if self._connections.use(work):
            return None
        return self._apply(commit, may_be_done)

    def _apply(self, commit: Commit, may_be_done: bool = False) -> Exception | None:
        """Carry out one commit of any kind. `may_be_done`: it was sent before, and its answer is missing."""
        refused = too_large(commit)
        if refused is not None:
            try:
                now, head = self._find(commit.run_id)
            except RunNotFound as missing:
                return missing
            return refusal(commit, head, now) or refused
        mark = self._new_mark()

        def work(cursor: Cursor, again: bool) -> tuple[Any, ...] | None:
            values = commit_values(commit, mark, again or may_be_done)
            return cursor.execute(SQL["APPLY_COMMIT"], values).fetchone()

        return outcome_of(commit, self._connections.use(work))

    def _append_together(self, commits: Sequence[Commit]) -> builtins.list[Exception | None]:
        """Carry out commits of different runs in as few transactions as possible.

        As soon as one of them was carried out, the call must not raise: what stops the store then is the outcome of
        the others.
        """
        batch = Batch(commits, [self._new_mark() for _ in commits])
        outcomes: Outcomes = {}
        may_be_done: set[int] = set()
        self._apply_part(batch.plain, batch.append_plain, outcomes, may_be_done)
        self._apply_part(batch.others, batch.apply_others, outcomes, may_be_done)
        for place, commit in enumerate(commits):
            if place not in outcomes:
                try:
                    outcomes[place] = self._apply(commit, place in may_be_done)
                except StoreUnavailable as error:
                    outcomes[place] = error
        return [outcomes[place] for place in range(len(commits))]

    def _apply_part(
        self,
        places: dict[str, int],
        apply: Callable[[Cursor, bool], Outcomes],
        outcomes: Outcomes,
        may_be_done: set[int],
    ) -> None:
        """Carry out the commits at these places by one statement, and note their outcomes."""
        if not places:
            return

        def work(cursor: Cursor, again: bool) -> None:
            if again:
                may_be_done.update(places.values())
            outcomes.update(apply(cursor, again))

        try:
            self._connections.use(work)
        except StoreUnavailable as error:
            if None not in outcomes.values():
                raise
            outcomes.update(dict.fromkeys(places.values(), error))

    def _find(self, run_id: str) -> tuple[float, RunHead]:
        """The server's time and the head of a run. Raises `RunNotFound`."""
        row = self._connections.use(lambda cursor, _: cursor.execute(SQL["FIND"], (run_id,)).fetchone())
        if row is None:
            raise RunNotFound(run_id)
        return row[0], head_of(row[1:])

    def _value(self, query: LiteralString, *values: object) -> Any:
        """The first column of the first row, or None. It may take long, so one attempt has all the time."""
        row = self._connections.use(lambda cursor, _: cursor.execute(query, values).fetchone(), attempts=1)
        return None if row is None else row[0]

    def _new_mark(self) -> int:
        """A number that no other call has: a change that was made with it is known to be this call's own."""
        return self._random.getrandbits(62)
