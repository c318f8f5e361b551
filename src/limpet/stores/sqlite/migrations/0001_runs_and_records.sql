-- Runs and their journals.

-- AUTOINCREMENT: a row id is never used again for another run, so a process can remember it.
-- "sequence" is the number of the newest record only where that record was deleted (a purged journal).
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

-- The id of a record is the row id of its run, shifted by 32 bits, plus the record's number. So there is one
-- tree and no index, and the records of a run are next to each other.
CREATE TABLE records (id INTEGER PRIMARY KEY, data BLOB NOT NULL);
