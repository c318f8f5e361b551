"""The SQL of the PostgreSQL store, and the ways between its rows and what the journal speaks of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from limpet.journal.store import Commit, NewRun, RunFilter, RunHead

COLUMNS = (
    "run_id, graph, status, sequence, snapshot, fence, created, updated, "
    "holder, lease_until, tags, parent, signal, note, crashes, due, priority"
)

_TAGS = COLUMNS.split(", ").index("tags")

HEAD = f"SELECT {COLUMNS} FROM heads"

FIND = f"SELECT clock(), {COLUMNS} FROM heads WHERE run_id = %s"

CREATE = """
WITH run AS (
    INSERT INTO runs
        (run_id, graph, status, snapshot, created, updated, holder, lease_until, tags, parent, note, due, priority,
        mark)
    SELECT %s, %s, %s, %s, present, present, holder, CASE WHEN holder IS NULL THEN NULL ELSE present + %s END,
        %s::text[], %s, %b, %s, %s, %s
    FROM (SELECT clock() AS present, %s::text AS holder) AS now
    ON CONFLICT (run_id) DO NOTHING RETURNING id, lease_until
), journal AS (
    INSERT INTO records (run, sequence, fence, data)
    SELECT id, number, 1, data FROM run, unnest(%b::bytea[]) WITH ORDINALITY AS new (data, number)
)
SELECT lease_until FROM run
"""

CREATED = "SELECT lease_until FROM runs WHERE run_id = %s AND mark = %s"

# One statement that checks and inserts, and is its own transaction. That the record before is there says that
# the number is the next one, and that no whole one comes after it that it isn't among those that were pruned;
# "floor" takes its place after a purge. A number that is taken already inserts nothing. The lock on the run's
# row, which isn't written to, makes it wait for a claim that is on its way, and look again at the row (though
# not at the records) as the claim has left it.
_FITS = """
signal IS NULL AND floor <= expected AND snapshot <= expected
AND (floor = expected OR EXISTS (SELECT 1 FROM records WHERE run = id AND sequence = expected))
"""

APPEND = f"""
INSERT INTO records (run, sequence, fence, data)
SELECT id, expected + 1, fence, data
FROM runs, (SELECT $1::bigint AS expected, $2::bytea AS data) AS sent
WHERE run_id = $3::text AND fence = $4::bigint AND {_FITS}
FOR SHARE OF runs
ON CONFLICT DO NOTHING
"""

# What is sent is in the order of the run ids, here and wherever several runs are locked, so that no two
# transactions wait for each other. The inner query is one that the planner can't turn round.
APPEND_ALL = f"""
INSERT INTO records (run, sequence, fence, data)
SELECT id, expected + 1, fence, data
FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::bytea[]) AS sent (to_run, by_fence, expected, data),
LATERAL (SELECT id, fence FROM runs WHERE run_id = to_run AND fence = by_fence AND {_FITS} FOR SHARE) AS run
ON CONFLICT DO NOTHING
RETURNING (SELECT run_id FROM runs WHERE id = run)
"""

_ANSWER = "accepted, present, " + ", ".join(f"(head).{column}" for column in COLUMNS.split(", "))

APPEND_FULLY = f"SELECT {_ANSWER} FROM append_fully(%s, %s, %s, %b::bytea[], %s, %s, %b, %s, %s, %s, %s, %s)"

# The records of all of them come one after the other; "low" and "high" say which are whose.
APPEND_ALL_FULLY = f"""
SELECT number, {_ANSWER}
FROM unnest(
    %b::text[], %b::bigint[], %b::bigint[], %b::int[], %b::int[], %b::bigint[], %b::text[], %b::bytea[],
    %b::bool[], %b::bool[], %b::float8[], %b::bigint[]
) WITH ORDINALITY AS sent (
    run_id, fence, expected, low, high, snapshot, status, note, purge, heed, due, mark, number
),
(SELECT %b::bytea[] AS records, %s::bool AS again) AS common,
LATERAL append_fully(
    run_id, fence, expected, records[low:high], snapshot, status, note, purge, heed, mark, again, due
)
"""

READ = f"""
WITH head AS (SELECT * FROM heads WHERE run_id = %s)
SELECT NULL::bigint, NULL::bytea, {COLUMNS} FROM head
UNION ALL
SELECT records.sequence, records.data, {", ".join(["NULL"] * len(COLUMNS.split(",")))}
FROM head JOIN records ON records.run = head.id
WHERE records.sequence BETWEEN coalesce(%s::bigint, head.snapshot) AND coalesce(%s::bigint, head.sequence)
"""

READY = f"""
{HEAD} WHERE due <= (SELECT clock()) AND (lease_until IS NULL OR lease_until <= (SELECT clock())) AND graph = ANY (%s)
ORDER BY priority DESC, due, created, run_id LIMIT %s
"""

CLAIM = """
UPDATE runs SET fence = fence + 1, crashes = crashes + (holder IS NOT NULL)::int, holder = %s,
    lease_until = present + %s, updated = present, mark = %s
FROM (SELECT clock() AS present) AS now
WHERE run_id = %s AND (lease_until IS NULL OR lease_until <= present OR fence = %s)
RETURNING fence, lease_until, crashes
"""

CLAIMED = "SELECT fence, lease_until, crashes FROM runs WHERE run_id = %s AND mark = %s"

RENEW = """
WITH mine AS (
    SELECT id, number FROM unnest(%b::text[], %b::bigint[]) WITH ORDINALITY AS sent (of_run, by_fence, number),
    LATERAL (
        SELECT id FROM runs WHERE run_id = of_run AND fence = by_fence AND holder IS NOT NULL FOR NO KEY UPDATE
    ) AS run
), renewed AS (
    UPDATE runs SET lease_until = present + %s, updated = present FROM (SELECT clock() AS present) AS now
    WHERE id IN (SELECT id FROM mine) RETURNING id, signal
)
SELECT mine.number, renewed.signal FROM mine JOIN renewed USING (id)
"""

RELEASE = "UPDATE runs SET holder = NULL, lease_until = NULL WHERE run_id = %s AND fence = %s"

SIGNAL = "UPDATE runs SET signal = %s WHERE run_id = %s"


def head_of(row: Sequence[Any]) -> RunHead:
    """The head in a row of `COLUMNS`."""
    values = [*row]
    values[_TAGS] = tuple(values[_TAGS])
    return RunHead(*values)


def row_of(run: NewRun, mark: int) -> tuple[Any, ...]:
    """The parameters of `CREATE`."""
    about = (run.run_id, run.graph, run.status, 1 if run.records else 0, run.ttl, list(run.tags), run.parent)
    return (*about, run.note, run.due, run.priority, mark, run.holder, list(run.records))


def fully(commit: Commit, mark: int, again: bool) -> tuple[Any, ...]:
    """The parameters of `APPEND_FULLY`."""
    place = (commit.run_id, within(commit.fence), within(commit.expected), list(commit.records))
    change = (commit.snapshot, commit.status, commit.note, commit.purge, commit.on_signal.value)
    return (*place, *change, mark, again, commit.due)


def all_fully(commits: Sequence[Commit], marks: Sequence[int], again: bool) -> tuple[Any, ...]:
    """The parameters of `APPEND_ALL_FULLY`."""
    records: list[bytes] = []
    rows: list[tuple[Any, ...]] = []
    for commit, mark in zip(commits, marks, strict=True):
        run_id, fence, expected, own, *change, mark, _, due = fully(commit, mark, again)
        rows.append((run_id, fence, expected, len(records) + 1, len(records) + len(own), *change, due, mark))
        records += own
    return (*map(list, zip(*rows, strict=True)), records, again)


def where(which: RunFilter) -> tuple[str, list[Any]]:
    """The condition that keeps the runs that fit, and its parameters."""
    conditions: list[str] = []
    values: list[Any] = []
    if which.statuses:
        conditions.append("status = ANY (%s)")
        values.append(list(which.statuses))
    for column, value in (("graph", which.graph), ("parent", which.parent)):
        if value is not None:
            conditions.append(f"{column} = %s")
            values.append(value)
    if which.tag is not None:
        conditions.append("%s = ANY (tags)")
        values.append(which.tag)
    if which.unclaimed:
        conditions.append("(lease_until IS NULL OR lease_until <= (SELECT clock()))")
    return ("WHERE " + " AND ".join(conditions) if conditions else ""), values


def within(number: int) -> int:
    """The number, or the nearest one that a column can hold."""
    return max(-(2**62), min(number, 2**62))
