-- In which lane a run waits for a worker: its queue, its graph, and the fingerprint of its plan ('' if it isn't known).
ALTER TABLE runs ADD COLUMN plan TEXT NOT NULL DEFAULT '';
ALTER TABLE runs ADD COLUMN queue TEXT NOT NULL DEFAULT 'default';

-- The runs that are due, in the order in which workers claim them: those of a lane and a priority, by "due".
DROP INDEX runs_by_urgency;
CREATE INDEX runs_by_urgency ON runs (queue, graph, plan, priority DESC, due, created, run_id) WHERE due IS NOT NULL;

-- For lists of a queue. Most runs are in the default queue, and are read from the other indexes.
CREATE INDEX runs_by_queue ON runs (queue, status, created, run_id) WHERE queue <> 'default';

-- A process of an earlier version, which would write checksums without the new columns, is refused, as it asks for
-- "checksum".
DROP VIEW limpet_runs;
ALTER TABLE runs RENAME COLUMN checksum TO head_checksum;

CREATE VIEW limpet_runs AS SELECT
    run_id,
    graph,
    status,
    strftime('%Y-%m-%d %H:%M:%f', created, 'unixepoch') AS created_at,
    strftime('%Y-%m-%d %H:%M:%f', updated, 'unixepoch') AS updated_at,
    strftime('%Y-%m-%d %H:%M:%f', max(due, created), 'unixepoch') AS due_at,
    priority,
    tags,
    parent,
    holder,
    crashes,
    EXISTS (
        SELECT 1 FROM posts
        WHERE run = runs.id AND number > taken AND (key = 'cancel' OR key GLOB 'cancel:*')
    ) AS cancel_requested,
    (
        SELECT count(*) FROM records
        WHERE records.id BETWEEN runs.id << 32 AND (runs.id << 32) + 0xFFFFFFFF
    ) AS records,
    (
        SELECT coalesce(sum(length(data)), 0) FROM records
        WHERE records.id BETWEEN runs.id << 32 AND (runs.id << 32) + 0xFFFFFFFF
    ) AS bytes,
    queue
FROM runs;
