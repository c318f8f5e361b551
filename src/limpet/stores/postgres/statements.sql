-- The statements of the PostgreSQL store. `stores/statements.py` reads them.
--
-- Wherever several runs are locked, it is in the order of their ids, so that no two transactions wait for each
-- other.

-- name: COLUMNS
run_id, graph, status, sequence, snapshot, fence, created, updated,
holder, lease_until, tags, parent, note, crashes, due, priority, posted, taken, output, node, error, waits_for,
plan, queue

-- name: HEAD
SELECT {COLUMNS} FROM heads

-- name: FIND
SELECT clock(), {COLUMNS} FROM heads WHERE run_id = %s

-- name: FIND_MANY
SELECT {COLUMNS} FROM unnest(%s::text[]) AS asked (wanted), LATERAL (SELECT * FROM heads WHERE run_id = wanted) AS found

-- name: STORE_TIME
SELECT clock()

-- name: LANES
-- From lane to lane: the index is searched once for each, however many runs it has.
WITH RECURSIVE lane AS (
    (SELECT queue, graph, plan FROM runs WHERE due IS NOT NULL ORDER BY queue, graph, plan LIMIT 1)
    UNION ALL
    SELECT next.* FROM lane, LATERAL (
        SELECT queue, graph, plan FROM runs
        WHERE due IS NOT NULL AND (runs.queue, runs.graph, runs.plan) > (lane.queue, lane.graph, lane.plan)
        ORDER BY queue, graph, plan LIMIT 1
    ) AS next
)
SELECT queue, graph, plan FROM lane

-- name: DUE
-- Runs of one lane that are ready, as of one moment: `is_due` of a head. No run that is due has a later "due" than the
-- newest run was created, which bounds what is read of the index. That is later than now only after the clock was set
-- back.
runs.queue = level.queue AND runs.graph = level.graph AND runs.plan = level.plan
AND due <= now.latest AND (due <= now.server_time OR due = created) AND (lease_until IS NULL OR lease_until <= now.server_time)

-- name: READY
-- From priority to priority of each lane, because the index has the runs of one priority in the order of "due": so no
-- more of them are read than are wanted. Most lanes have few priorities; after 32 of them the rest is searched at once.
WITH RECURSIVE now AS MATERIALIZED (
    SELECT server_time, greatest(server_time, (SELECT max(created) FROM runs)) AS latest
    FROM (SELECT clock() AS server_time) AS server
), asked AS (
    SELECT %(queues)s::text[] AS queues, %(graphs)s::text[] AS graphs, %(plans)s::text[] AS plans,
        %(limit)s::bigint AS wanted
), lane AS (
    SELECT DISTINCT queue COLLATE "C" AS queue, graph COLLATE "C" AS graph, plan COLLATE "C" AS plan
    FROM asked, unnest(queues, graphs, plans) AS each (queue, graph, plan)
), level AS (
    SELECT lane.*, 1 AS number, priority FROM lane, LATERAL (
        SELECT priority FROM runs
        WHERE runs.queue = lane.queue AND runs.graph = lane.graph AND runs.plan = lane.plan AND due IS NOT NULL
        ORDER BY priority DESC LIMIT 1
    ) AS highest
    UNION ALL
    SELECT queue, graph, plan, number + 1, next.priority FROM level, LATERAL (
        SELECT priority FROM runs
        WHERE runs.queue = level.queue AND runs.graph = level.graph AND runs.plan = level.plan AND due IS NOT NULL
            AND priority < level.priority
        ORDER BY priority DESC LIMIT 1
    ) AS next WHERE number < 32
)
SELECT {COLUMNS} FROM (
    SELECT run.* FROM now, asked, level, LATERAL (
        SELECT id, priority, due, created, run_id FROM runs
        WHERE {DUE} AND runs.priority = level.priority ORDER BY due, created, run_id LIMIT wanted
    ) AS run
    UNION ALL
    SELECT run.* FROM now, asked, level, LATERAL (
        SELECT id, priority, due, created, run_id FROM runs
        WHERE {DUE} AND runs.priority < level.priority ORDER BY priority DESC, due, created, run_id LIMIT wanted
    ) AS run WHERE level.number = 32
    ORDER BY priority DESC, due, created, run_id LIMIT (SELECT wanted FROM asked)
) AS found JOIN heads USING (id, priority, due, created, run_id)
ORDER BY priority DESC, due, created, run_id

-- name: READ
-- The head and the records as of one moment. The row of the head has no sequence number of a record.
WITH head AS (SELECT * FROM heads WHERE run_id = %s)
SELECT NULL::bigint, NULL::bytea, {COLUMNS} FROM head
UNION ALL
SELECT records.sequence, records.data,
    NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
    NULL, NULL, NULL, NULL, NULL
FROM head JOIN records ON records.run = head.id
WHERE records.sequence BETWEEN coalesce(%s::bigint, head.snapshot) AND coalesce(%s::bigint, head.sequence)

-- name: CREATE
-- `create` of stores/heads.py, with `first_due`.
WITH run AS (
    INSERT INTO runs
        (run_id, graph, status, snapshot, created, updated, holder, lease_until, tags, parent, note, due, priority,
        node, error, waits_for, plan, queue, mark)
    SELECT %s, %s, %s, %s, server_time, server_time, holder,
        CASE WHEN holder IS NULL THEN NULL ELSE server_time + %s END,
        %s::text[], %s, %b, CASE WHEN holder IS NULL AND due = 0 THEN server_time ELSE due END, %s,
        %s, %s, %s, %s, %s, %s
    FROM (SELECT clock() AS server_time, %s::text AS holder, %s::double precision AS due) AS now
    ON CONFLICT (run_id) DO NOTHING RETURNING id, lease_until
), journal AS (
    INSERT INTO records (run, sequence, fence, data)
    SELECT id, number, 1, data FROM run, unnest(%b::bytea[]) WITH ORDINALITY AS new (data, number)
)
SELECT lease_until FROM run

-- name: FIND_CREATED
-- Whether the run was created by the call with this mark, whose answer did not arrive.
SELECT lease_until FROM runs WHERE run_id = %s AND mark = %s

-- name: TAKES_RECORD
-- The rules of stores/heads.py for a plain commit. The record before must exist: that makes this number the
-- next one, and "snapshot" says that it isn't among those that were pruned; "floor" stands for the record after
-- a purge.
posted = taken AND floor <= expected AND snapshot <= expected
AND (floor = expected OR EXISTS (SELECT 1 FROM records WHERE run = id AND sequence = expected))

-- name: APPEND
-- The commit that every step waits for: one statement that checks and inserts, and is its own transaction. If
-- the number is taken, nothing is inserted. The row of the run is locked but not written: so the statement
-- waits for a claim that is under way, and then checks the row (though not the records) again as the claim has
-- left it.
INSERT INTO records (run, sequence, fence, data)
SELECT id, expected + 1, fence, data
FROM runs, (SELECT $1::bigint AS expected, $2::bytea AS data) AS sent
WHERE run_id = $3::text AND fence = $4::bigint AND {TAKES_RECORD}
FOR SHARE OF runs
ON CONFLICT DO NOTHING

-- name: APPEND_MANY
-- The same for commits of different runs, sent in the order of the run ids. LATERAL keeps the planner from
-- locking the runs in another order.
INSERT INTO records (run, sequence, fence, data)
SELECT id, expected + 1, fence, data
FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::bytea[]) AS sent (to_run, by_fence, expected, data),
LATERAL (SELECT id, fence FROM runs WHERE run_id = to_run AND fence = by_fence AND {TAKES_RECORD} FOR SHARE) AS run
ON CONFLICT DO NOTHING
RETURNING (SELECT run_id FROM runs WHERE id = run)

-- name: ANSWER
accepted, server_time, (head).run_id, (head).graph, (head).status, (head).sequence, (head).snapshot, (head).fence,
(head).created, (head).updated, (head).holder, (head).lease_until, (head).tags, (head).parent, (head).note,
(head).crashes, (head).due, (head).priority, (head).posted, (head).taken, (head).output, (head).node, (head).error,
(head).waits_for, (head).plan, (head).queue

-- name: APPLY_COMMIT
SELECT {ANSWER} FROM apply_commit(
    %s, %s, %s, %b::bytea[], %s, %s, %b, %s, %s, %s, %s, %s, %s, new_plan => %s, new_due => %s, new_mark => %s,
    again => %s
)

-- name: APPLY_COMMITS
-- The same for commits of different runs. The records of all of them come in one array, as PostgreSQL has no
-- arrays of arrays of different lengths; "low" and "high" are the bounds of each commit's own.
SELECT number, {ANSWER}
FROM unnest(
    %b::text[], %b::bigint[], %b::bigint[], %b::int[], %b::int[], %b::bigint[], %b::text[], %b::bytea[],
    %b::bool[], %b::bigint[], %b::bool[], %b::text[], %b::text[], %b::text[], %b::text[], %b::float8[],
    %b::bigint[]
) WITH ORDINALITY AS sent (
    run_id, fence, expected, low, high, snapshot, status, note, purge, takes, ignores_posts, node, error, waits_for,
    plan, due, mark, number
),
(SELECT %b::bytea[] AS records, %s::bool AS again) AS common,
LATERAL apply_commit(
    run_id, fence, expected, records[low:high], snapshot, status, note, purge, takes, ignores_posts, node, error,
    waits_for, due, mark, again, plan
)

-- name: CLAIM
-- `claim` of stores/heads.py.
UPDATE runs SET fence = fence + 1, crashes = crashes + (holder IS NOT NULL)::int, holder = %s,
    lease_until = server_time + %s, updated = server_time, mark = %s
FROM (SELECT clock() AS server_time) AS now
WHERE run_id = %s AND (lease_until IS NULL OR lease_until <= server_time OR fence = %s)
RETURNING fence, lease_until, crashes

-- name: FIND_CLAIMED
-- The lease that the call with this mark got, if its answer did not arrive.
SELECT fence, lease_until, crashes FROM runs WHERE run_id = %s AND mark = %s

-- name: CLAIM_READY
-- `claim_ready` of stores/heads.py, for many runs in one round trip. A run that another transaction has locked is as good
-- as claimed, so it isn't waited for.
WITH now AS MATERIALIZED (SELECT clock() AS server_time), mine AS (
    SELECT id, number FROM now, unnest(%b::text[], %b::bigint[]) WITH ORDINALITY AS sent (of_run, by_fence, number),
    LATERAL (
        SELECT id FROM runs WHERE run_id = of_run AND fence = by_fence AND (due <= server_time OR due = created)
            AND (lease_until IS NULL OR lease_until <= server_time)
        FOR NO KEY UPDATE SKIP LOCKED
    ) AS run
), claimed AS (
    UPDATE runs SET fence = fence + 1, crashes = crashes + (holder IS NOT NULL)::int, holder = %s,
        lease_until = server_time + %s, updated = server_time, mark = %s
    FROM now WHERE id IN (SELECT id FROM mine) RETURNING id, fence, lease_until, crashes
)
SELECT mine.number, claimed.fence, claimed.lease_until, claimed.crashes FROM mine JOIN claimed USING (id)

-- name: FIND_ALL_CLAIMED
-- The leases that the call with this mark got, if its answer did not arrive.
SELECT number, fence, lease_until, crashes
FROM unnest(%b::text[]) WITH ORDINALITY AS sent (of_run, number),
LATERAL (SELECT fence, lease_until, crashes FROM runs WHERE run_id = of_run AND mark = %s) AS run

-- name: RENEW
-- `renew` of stores/heads.py, for many leases in one round trip.
WITH mine AS (
    SELECT id, number FROM unnest(%b::text[], %b::bigint[]) WITH ORDINALITY AS sent (of_run, by_fence, number),
    LATERAL (
        SELECT id FROM runs WHERE run_id = of_run AND fence = by_fence AND holder IS NOT NULL FOR NO KEY UPDATE
    ) AS run
), renewed AS (
    UPDATE runs SET lease_until = server_time + %s, updated = server_time FROM (SELECT clock() AS server_time) AS now
    WHERE id IN (SELECT id FROM mine) RETURNING id, posted > taken AS posts_wait
)
SELECT mine.number, renewed.posts_wait FROM mine JOIN renewed USING (id)

-- name: ARE_VALID
-- The numbers of those for which `is_valid` of stores/heads.py is true.
SELECT number FROM (SELECT clock() AS server_time) AS now,
unnest(%b::text[], %b::bigint[]) WITH ORDINALITY AS sent (of_run, by_fence, number),
LATERAL (SELECT 1 FROM runs WHERE run_id = of_run AND fence = by_fence AND lease_until > server_time) AS run

-- name: RELEASE
-- `release` of stores/heads.py.
UPDATE runs SET holder = NULL, lease_until = NULL WHERE run_id = %s AND fence = %s

-- name: POST
SELECT post(%s, %s, %b, %s, %s)

-- name: INBOX
-- The posts that wait, and how many there are; without any, one row without a number.
SELECT posted, taken, number, key, body
FROM runs LEFT JOIN posts ON posts.run = runs.id AND number > taken
WHERE run_id = %s ORDER BY number

-- name: ADD_OUTPUT
SELECT accepted, newest FROM add_output(%s, %s, %b::bytea[], %s, %s, %s)

-- name: READ_OUTPUT
-- Without any item, one row without a number.
SELECT number, body
FROM runs LEFT JOIN LATERAL (
    SELECT number, body FROM output WHERE output.run = runs.id AND number > %s ORDER BY number LIMIT %s
) AS item ON true
WHERE run_id = %s ORDER BY number

-- name: CHANGE_DOCUMENT
SELECT change_document(%s, %s, %s, %b, %s, %s, %s)

-- name: DOCUMENTS
SELECT name, version, body, due FROM documents

-- name: FIND_DOCUMENT
{DOCUMENTS} WHERE name = %s
