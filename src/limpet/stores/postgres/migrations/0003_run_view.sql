-- The runs for anyone who asks in SQL: see "Read runs with SQL" in docs/how-to/stores.md, which is a promise. Columns
-- may be added at the end; these stay, whatever happens to the tables.
CREATE VIEW limpet_runs AS SELECT
    run_id,
    graph,
    status,
    to_timestamp(created) AS created_at,
    to_timestamp(updated) AS updated_at,
    CASE WHEN due IS NOT NULL THEN to_timestamp(greatest(due, created)) END AS due_at,
    priority,
    to_jsonb(tags) AS tags,
    parent,
    holder,
    crashes,
    signal IS NOT NULL AS cancel_requested,
    (SELECT count(*) FROM records WHERE records.run = runs.id) AS records,
    (SELECT coalesce(sum(octet_length(data)), 0)::bigint FROM records WHERE records.run = runs.id) AS bytes
FROM runs;
