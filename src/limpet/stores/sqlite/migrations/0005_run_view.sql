-- The runs for anyone who asks in SQL: see "Read runs with SQL" in docs/how-to/stores.md, which is a promise. Columns
-- may be added at the end; these stay, whatever happens to the tables. Times are UTC.
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
    signal IS NOT NULL AS cancel_requested,
    (
        SELECT count(*) FROM records
        WHERE records.id BETWEEN runs.id << 32 AND (runs.id << 32) + 0xFFFFFFFF
    ) AS records,
    (
        SELECT coalesce(sum(length(data)), 0) FROM records
        WHERE records.id BETWEEN runs.id << 32 AND (runs.id << 32) + 0xFFFFFFFF
    ) AS bytes
FROM runs;
