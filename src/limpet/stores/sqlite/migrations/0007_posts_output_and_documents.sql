-- What others post to a run, what its nodes emit, and documents, which belong to no run.

-- "body" is NULL once a commit has taken the post in; its key stays known.
CREATE TABLE posts (
    run INTEGER NOT NULL,
    number INTEGER NOT NULL,
    key TEXT NOT NULL,
    body BLOB,
    checksum INTEGER NOT NULL,
    PRIMARY KEY (run, number)
) WITHOUT ROWID;
CREATE UNIQUE INDEX posts_by_key ON posts (run, key);

-- Its ids are made like those of records.
CREATE TABLE output (id INTEGER PRIMARY KEY, body BLOB NOT NULL);

-- A change is a new row, so that AUTOINCREMENT gives it a version that no document ever had.
CREATE TABLE documents (
    version INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL UNIQUE,
    body BLOB NOT NULL,
    due REAL,
    checksum INTEGER NOT NULL
);
CREATE INDEX documents_by_due ON documents (due, name) WHERE due IS NOT NULL;

ALTER TABLE runs ADD COLUMN posted INTEGER NOT NULL DEFAULT 0;
ALTER TABLE runs ADD COLUMN taken INTEGER NOT NULL DEFAULT 0;
ALTER TABLE runs ADD COLUMN output INTEGER NOT NULL DEFAULT 0;
ALTER TABLE runs ADD COLUMN node TEXT NOT NULL DEFAULT '';
ALTER TABLE runs ADD COLUMN error TEXT NOT NULL DEFAULT '';

-- A waiting signal was always a request to cancel. It becomes a post, with the body that such a request has now.
INSERT INTO posts SELECT id, 1, 'cancel', x'81a46b696e64a663616e63656c', 3160634108
FROM runs WHERE signal IS NOT NULL AND status <> 'completed';
UPDATE runs SET posted = 1 WHERE signal IS NOT NULL AND status <> 'completed';

-- The column of signals becomes the one that was missing: not every SQLite can drop a column. A process of an earlier
-- version, which would neither see posts nor write checksums with the new columns, is refused, as it asks for "signal".
DROP VIEW limpet_runs;
UPDATE runs SET signal = '';
ALTER TABLE runs RENAME COLUMN signal TO waits_for;

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
    ) AS bytes
FROM runs;

-- Each filter of a list has an index in the order of lists: see `lists.py`.
DROP INDEX runs_by_parent;
CREATE INDEX runs_by_parent ON runs (parent, created, run_id) WHERE parent IS NOT NULL;
CREATE INDEX runs_by_graph ON runs (graph, status, created, run_id);
CREATE INDEX runs_by_node ON runs (node, status, created, run_id) WHERE node <> '';
CREATE INDEX runs_by_error ON runs (error, created, run_id) WHERE error <> '';
CREATE INDEX runs_by_wait ON runs (waits_for, created, run_id) WHERE waits_for <> '';
CREATE INDEX runs_with_due ON runs (created, run_id, due) WHERE due IS NOT NULL;
CREATE INDEX runs_with_holder ON runs (created, run_id, lease_until) WHERE holder IS NOT NULL;

-- Tags never change. "since" and "run_name" are the run's "created" and "run_id".
CREATE TABLE tagged (
    tag TEXT NOT NULL,
    since REAL NOT NULL,
    run_name TEXT NOT NULL,
    run INTEGER NOT NULL,
    PRIMARY KEY (tag, since, run_name)
) WITHOUT ROWID;
CREATE INDEX tagged_by_run ON tagged (run);
INSERT OR IGNORE INTO tagged SELECT value, created, run_id, runs.id FROM runs, json_each(runs.tags)
WHERE runs.tags <> '[]' AND json_valid(runs.tags);
