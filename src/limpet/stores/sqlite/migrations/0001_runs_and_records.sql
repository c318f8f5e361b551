-- Runs and their journals.

-- AUTOINCREMENT: a row id that was once of one run is never of another, so it can be remembered.
-- "sequence" is the newest record's number only where that record is gone (a purged journal).
CREATE TABLE runs (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    run_id TEXT NOT NULL UNIQUE,
    graph TEXT NOT NULL,
    status TEXT NOT NULL,
    sequence INTEGER NOT NULL DEFAULT 0,
    snapshot INTEGER NOT NULL,
    fence INTEGER NOT NULL,
    crashes INTEGER NOT NULL DEFAULT 0,
    created REAL NOT NULL,
    updated REAL NOT NULL,
    holder TEXT,
    lease_until REAL,
    tags TEXT NOT NULL,
    parent TEXT,
    signal TEXT,
    note BLOB NOT NULL
);
CREATE INDEX runs_by_creation ON runs (created, run_id);
CREATE INDEX runs_by_status ON runs (status, created, run_id);
CREATE INDEX runs_by_parent ON runs (parent) WHERE parent IS NOT NULL;

-- The id of a record is the row id of its run and its own number, put together: one tree, no index, and the
-- records of a run lie side by side.
CREATE TABLE records (id INTEGER PRIMARY KEY, data BLOB NOT NULL);
