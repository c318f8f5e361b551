-- From when on workers may claim a run (NULL: never by themselves), and which of those that are due comes first.
-- Runs that are running are due at once.
ALTER TABLE runs ADD COLUMN due REAL;
ALTER TABLE runs ADD COLUMN priority INTEGER NOT NULL DEFAULT 0;
UPDATE runs SET due = 0 WHERE status = 'running';
CREATE INDEX runs_by_due ON runs (due) WHERE due IS NOT NULL;
