-- How many of a run's oldest records were deleted on purpose: an older one than the next that is missing was lost.
ALTER TABLE runs ADD COLUMN dropped INTEGER NOT NULL DEFAULT 0;
UPDATE runs SET dropped = coalesce((
    SELECT (records.id & 0xFFFFFFFF) - 1 FROM records
    WHERE records.id BETWEEN runs.id << 32 AND (runs.id << 32) + 0xFFFFFFFF ORDER BY records.id LIMIT 1
), sequence);

-- From here on every head has a checksum, and NULL is damage: `schema.py` computes those of older heads. The column has
-- a new name so that a process of an earlier version, which would write checksums without "dropped", is refused.
ALTER TABLE runs RENAME COLUMN sum TO checksum;

-- For each boot of the computer, how far the clock of leases is ahead of the time since boot: see `stores/lease_clock.py`.
CREATE TABLE clocks (boot TEXT PRIMARY KEY, ahead REAL NOT NULL) WITHOUT ROWID;
