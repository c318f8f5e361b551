-- The statements of the SQLite store. `stores/statements.py` reads them.
--
-- The id of a record is the row id of its run, shifted by 32 bits, plus the record's number.

-- name: HEAD
-- All that is known of a run. Most commits only add a record and leave the row of the run alone, so the number of
-- the newest record is looked up; "sequence" of the row counts where the journal was purged.
SELECT id, run_id, graph, status,
    max(sequence, coalesce((
        SELECT records.id & 0xFFFFFFFF FROM records
        WHERE records.id BETWEEN runs.id << 32 AND (runs.id << 32) + 0xFFFFFFFF ORDER BY records.id DESC LIMIT 1
    ), 0)),
    snapshot, fence, created, updated, holder, lease_until, tags, parent, note, crashes, due, priority,
    posted, taken, output, node, error, waits_for, plan, queue, dropped, sequence, head_checksum
FROM runs

-- name: FIND
{HEAD} WHERE run_id = ?

-- name: FIND_ROW
{HEAD} WHERE id = ?

-- name: RUNS_AS_A_WHOLE
-- What differs once a run was created, claimed, released, posted to or deleted, or got another status. Releasing it leaves
-- its time alone, and so does a status if the clock was set back: but then there is a holder less.
SELECT count(*), max(id), max(updated), sum(fence), count(holder), sum(posted) FROM runs

-- name: UNHELD
(lease_until IS NULL OR lease_until <= ?)

-- name: IS_DUE
-- `is_due` of a head.
(due <= ? OR due = created)

-- name: DUE
-- The same, for an index that is sorted by "due": no run that is due has a later one than the newest run was created.
-- That is later than now only after the clock was set back. Takes the time twice.
due <= max(?, coalesce((
    SELECT created FROM runs INDEXED BY runs_with_due WHERE due IS NOT NULL ORDER BY created DESC LIMIT 1
), 0)) AND {IS_DUE}

-- name: NEXT_LANE
-- The first lane from this one on, of runs that are due at some time: one step in the index, however many runs a lane
-- has. As bytes, so that names that damage has made unreadable are passed over, too. What it turned into bytes is
-- skipped. A sum of texts has no affinity: with that of a CAST, SQLite would use the first column of the index only.
SELECT CAST(queue AS BLOB), CAST(graph AS BLOB), CAST(plan AS BLOB) FROM runs INDEXED BY runs_by_urgency
WHERE due IS NOT NULL
AND (queue, graph, plan) >= (CAST(? AS TEXT) || '', CAST(? AS TEXT) || '', CAST(? AS TEXT) || '')
AND typeof(queue) = 'text' AND typeof(graph) = 'text' AND typeof(plan) = 'text'
ORDER BY queue, graph, plan LIMIT 1

-- name: LANE
queue = ? AND graph = ? AND plan = ?

-- name: NEXT_PRIORITY
-- The highest priority below this one that any run of the lane has which is due at some time.
SELECT priority FROM runs INDEXED BY runs_by_urgency
WHERE {LANE} AND due IS NOT NULL AND priority < ? ORDER BY priority DESC LIMIT 1

-- name: READY
-- Within one lane and one priority the index has the runs in order, so no more of them are read than are wanted.
{HEAD} INDEXED BY runs_by_urgency WHERE {LANE} AND priority = ? AND {DUE} AND {UNHELD}
ORDER BY due, created, run_id LIMIT ? OFFSET ?

-- name: READY_BELOW
-- The same for all priorities below this one. Reads all runs of the lane that are due at some time.
{HEAD} INDEXED BY runs_by_urgency WHERE {LANE} AND priority < ? AND {DUE} AND {UNHELD}
ORDER BY priority DESC, due, created, run_id LIMIT ? OFFSET ?

-- name: CLOCK
SELECT ahead FROM clocks WHERE boot = ?

-- name: SET_CLOCK
INSERT INTO clocks (boot, ahead) VALUES (?, ?) ON CONFLICT (boot) DO UPDATE SET ahead = excluded.ahead

-- name: LONG_LEASES
SELECT id FROM runs WHERE lease_until > ?

-- name: SHORTEN_LEASE
UPDATE runs SET lease_until = ? WHERE id = ?

-- name: READ
SELECT id & 0xFFFFFFFF, data FROM records WHERE id BETWEEN ? AND ? ORDER BY id

-- name: CREATE
INSERT INTO runs
    (run_id, graph, status, snapshot, fence, created, updated, holder, lease_until, tags, parent, note,
    due, priority, node, error, waits_for, plan, queue)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (run_id) DO NOTHING

-- name: INSERT_RECORD
INSERT INTO records (id, data) VALUES (?, ?)

-- name: APPEND
-- The commit that every step waits for: one statement that checks the fence, the posts and the sequence number
-- (`refusal` of `stores/heads.py`), inserts the record and is its own transaction. If the run can't take the
-- record, the data comes out NULL, which the table refuses and OR IGNORE turns into no row; so does a record
-- whose number is taken. The record before must exist: that makes this number the next one, as only the oldest
-- are ever pruned. (After a purge none exists, and the store takes the long way.) INSERT … SELECT would be
-- plainer, but SQLite then copies the row through a temporary table, because the SELECT reads the table that is
-- inserted into: a quarter slower.
INSERT OR IGNORE INTO records (id, data) VALUES (?, (
    SELECT ? FROM runs WHERE id = ? AND fence = ? AND posted = taken
    AND EXISTS (SELECT 1 FROM records WHERE id = ?)
))

-- name: APPEND_MANY
-- The same for commits of several runs, the rows of which replace {rows}. One statement releases Python's
-- interpreter lock, and has to wait for it, only once.
INSERT OR IGNORE INTO records (id, data) SELECT number, content
FROM (SELECT 0 AS number, 0 AS content, 0 AS run, 0 AS by_fence, 0 AS before WHERE 0 UNION ALL VALUES {rows})
WHERE EXISTS (SELECT 1 FROM runs WHERE id = run AND fence = by_fence AND posted = taken)
AND EXISTS (SELECT 1 FROM records WHERE id = before)

-- name: SET_CHECKSUM
UPDATE runs SET sequence = ?, head_checksum = ? WHERE id = ?

-- name: SET_DROPPED
UPDATE runs SET dropped = ? WHERE id = ?

-- name: DELETE_RECORDS
DELETE FROM records WHERE id BETWEEN ? AND ?

-- name: DELETE_RUN
DELETE FROM runs WHERE id = ?

-- name: DELETE_POSTS
DELETE FROM posts WHERE run = ?

-- name: DELETE_OUTPUT
DELETE FROM output WHERE id BETWEEN ? AND ?

-- name: DELETE_TAGS
DELETE FROM tagged WHERE run = ?

-- name: ADD_TAG
INSERT OR IGNORE INTO tagged (tag, since, run_name, run) VALUES (?, ?, ?, ?)

-- name: FIND_KEY
SELECT 1 FROM posts WHERE run = ? AND key = ?

-- name: POST
INSERT INTO posts (run, number, key, body, checksum) VALUES (?, ?, ?, ?, ?)

-- name: INBOX
SELECT number, key, body, checksum FROM posts WHERE run = ? AND number > ? ORDER BY number

-- name: TAKE_POSTS
UPDATE posts SET body = NULL WHERE run = ? AND number > ? AND number <= ?

-- name: ADD_OUTPUT
INSERT INTO output (id, body) VALUES (?, ?)

-- name: READ_OUTPUT
SELECT id & 0xFFFFFFFF, body FROM output WHERE id BETWEEN ? AND ? ORDER BY id LIMIT ?

-- name: DOCUMENTS
SELECT name, version, body, due, checksum FROM documents

-- name: ADD_DOCUMENT
INSERT INTO documents (name, body, due, checksum) VALUES (?, ?, ?, ?) ON CONFLICT (name) DO NOTHING

-- name: DELETE_DOCUMENT
DELETE FROM documents WHERE name = ? AND version = ?
