-- Where a run waits for a worker: in the lane of its queue, its graph, and the fingerprint of its plan. That is ''
-- where it isn't known, as the run was stored by an earlier version.
ALTER TABLE runs
    ADD COLUMN queue text COLLATE "C" NOT NULL DEFAULT 'default',
    ADD COLUMN plan text COLLATE "C" NOT NULL DEFAULT '';

-- The runs of each lane that have a due time, in the order in which workers claim them.
DROP INDEX runs_by_urgency;
CREATE INDEX runs_by_lane ON runs (queue, graph, plan, priority DESC, due, created, run_id) WHERE due IS NOT NULL;

-- Most runs are in the default queue, so an index would hardly help to list those.
CREATE INDEX runs_by_queue ON runs (queue, created, run_id) WHERE queue <> 'default';

CREATE OR REPLACE VIEW heads AS
    SELECT id, run_id, graph, status,
        greatest(floor, (SELECT max(records.sequence) FROM records WHERE records.run = runs.id)) AS sequence,
        snapshot, fence, created, updated, holder, lease_until, tags, parent, note, crashes, mark, due, priority,
        posted, taken,
        coalesce((SELECT max(output.number) FROM output WHERE output.run = runs.id), 0) AS output,
        node, error, waits_for, plan, queue
    FROM runs;

CREATE OR REPLACE VIEW limpet_runs AS SELECT
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
    EXISTS (
        SELECT 1 FROM posts
        WHERE posts.run = runs.id AND number > taken AND (key = 'cancel' OR starts_with(key, 'cancel:'))
    ) AS cancel_requested,
    (SELECT count(*) FROM records WHERE records.run = runs.id) AS records,
    (SELECT coalesce(sum(octet_length(data)), 0)::bigint FROM records WHERE records.run = runs.id) AS bytes,
    queue
FROM runs;

-- As in 0005. With the other labels goes the fingerprint of the plan. A process of the version before doesn't give
-- it, and so leaves it as it is.
DROP FUNCTION apply_commit(
    text, bigint, bigint, bytea[], bigint, text, bytea, boolean, bigint, boolean, text, text, text,
    double precision, bigint, boolean
);
CREATE FUNCTION apply_commit(
    target_run text, by_fence bigint, expected bigint, new_records bytea[], new_snapshot bigint, new_status text,
    new_note bytea, purge boolean, takes bigint, ignores_posts boolean, new_node text, new_error text,
    new_waits_for text, new_due double precision, new_mark bigint, again boolean, new_plan text DEFAULT NULL,
    OUT accepted boolean, OUT server_time double precision, OUT head heads
) RETURNS SETOF record LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    size bigint := coalesce(cardinality(new_records), 0);
    takes_up_to bigint;
BEGIN
    PERFORM 1 FROM runs WHERE runs.run_id = target_run FOR NO KEY UPDATE;
    SELECT * INTO head FROM heads WHERE heads.run_id = target_run;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    server_time := clock();
    takes_up_to := greatest(head.taken, least(takes, head.posted));
    accepted := head.fence = by_fence AND head.sequence = expected
        AND (ignores_posts OR head.posted = takes_up_to);
    IF again AND (head.mark = new_mark OR (size > 0 AND size = (
        SELECT count(*) FROM unnest(new_records) WITH ORDINALITY AS sent (data, number)
        JOIN records ON records.run = head.id AND records.sequence = expected + number
            AND records.fence = by_fence AND records.data = sent.data
    ))) THEN
        accepted := true;
    ELSIF accepted THEN
        IF purge THEN
            DELETE FROM records WHERE records.run = head.id;
        ELSE
            INSERT INTO records (run, sequence, fence, data)
                SELECT head.id, expected + number, by_fence, data
                FROM unnest(new_records) WITH ORDINALITY AS new (data, number);
        END IF;
        IF takes_up_to > head.taken THEN
            UPDATE posts SET body = NULL
            WHERE posts.run = head.id AND number > head.taken AND number <= takes_up_to;
        END IF;
        UPDATE runs SET
            floor = CASE WHEN purge THEN expected + size ELSE runs.floor END,
            snapshot = CASE WHEN purge THEN 0 WHEN new_snapshot > 0 THEN new_snapshot ELSE runs.snapshot END,
            status = coalesce(new_status, runs.status),
            updated = CASE WHEN new_status IS NULL THEN runs.updated ELSE server_time END,
            due = CASE WHEN new_status IS NULL THEN runs.due ELSE new_due END,
            holder = CASE WHEN new_status <> 'running' THEN NULL ELSE runs.holder END,
            lease_until = CASE WHEN new_status <> 'running' THEN NULL ELSE runs.lease_until END,
            note = coalesce(new_note, runs.note),
            node = coalesce(new_node, runs.node),
            error = coalesce(new_error, runs.error),
            waits_for = coalesce(new_waits_for, runs.waits_for),
            plan = coalesce(new_plan, runs.plan),
            taken = takes_up_to,
            mark = new_mark
        WHERE runs.id = head.id;
    END IF;
    IF accepted THEN
        head := NULL;
    END IF;
    RETURN NEXT;
END $$;

-- As in 0005, but the run is due as of its creation: it comes before runs that were created after it.
CREATE OR REPLACE FUNCTION post(target_run text, new_key text, new_body bytea, new_mark bigint, again boolean)
    RETURNS text LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    here runs;
    known_mark bigint;
    server_time double precision;
BEGIN
    SELECT * INTO here FROM runs WHERE runs.run_id = target_run FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    SELECT posts.mark INTO known_mark FROM posts WHERE posts.run = here.id AND posts.key = new_key;
    IF FOUND THEN
        RETURN CASE WHEN again AND known_mark = new_mark THEN 'posted' ELSE 'known' END;
    END IF;
    IF here.status = 'completed' THEN
        RETURN 'completed';
    END IF;
    server_time := clock();
    INSERT INTO posts (run, number, key, body, mark) VALUES (here.id, here.posted + 1, new_key, new_body, new_mark);
    UPDATE runs SET
        posted = here.posted + 1,
        due = CASE
            WHEN here.status IN ('failed', 'cancelled') OR here.due <= here.created THEN here.due
            ELSE least(here.created, server_time)
        END
    WHERE runs.id = here.id;
    RETURN 'posted';
END $$;
