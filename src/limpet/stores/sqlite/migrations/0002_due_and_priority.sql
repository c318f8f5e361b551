-- When a run next wants a holder, and which of those that do comes first.
ALTER TABLE runs ADD COLUMN due REAL;
ALTER TABLE runs ADD COLUMN priority INTEGER NOT NULL DEFAULT 0;
UPDATE runs SET due = 0 WHERE status = 'running';
CREATE INDEX runs_by_due ON runs (due) WHERE due IS NOT NULL;
