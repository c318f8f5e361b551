-- What others post to a run, what its nodes emit, and documents, which belong to no run.

-- "body" is NULL once a commit has taken the post in; its key stays known. "mark", here and below, is that of the call
-- that added the row, as in 0001. No foreign keys, as there.
CREATE TABLE posts (
    run bigint NOT NULL,
    number bigint NOT NULL,
    key text COLLATE "C" NOT NULL,
    body bytea,
    mark bigint NOT NULL,
    PRIMARY KEY (run, number)
);
CREATE UNIQUE INDEX posts_by_key ON posts (run, key);

CREATE TABLE output (
    run bigint NOT NULL,
    number bigint NOT NULL,
    body bytea NOT NULL,
    mark bigint NOT NULL,
    PRIMARY KEY (run, number)
);

-- An identity, because that never gives a number twice, and needs no right of its own as a sequence does.
CREATE TABLE documents (
    name text COLLATE "C" PRIMARY KEY,
    version bigint GENERATED ALWAYS AS IDENTITY,
    body bytea NOT NULL,
    due double precision
);
CREATE INDEX documents_by_due ON documents (due, name) WHERE due IS NOT NULL;

-- The latest changes of documents, by the marks of the calls that made them: a call whose answer did not arrive finds
-- its own change here, whatever others have done with the document since.
CREATE TABLE document_changes (
    mark bigint PRIMARY KEY,
    version bigint NOT NULL,
    made double precision NOT NULL
);
CREATE INDEX document_changes_by_time ON document_changes (made);

ALTER TABLE runs
    ADD COLUMN posted bigint NOT NULL DEFAULT 0,
    ADD COLUMN taken bigint NOT NULL DEFAULT 0,
    ADD COLUMN node text COLLATE "C" NOT NULL DEFAULT '',
    ADD COLUMN error text COLLATE "C" NOT NULL DEFAULT '',
    ADD COLUMN waits_for text COLLATE "C" NOT NULL DEFAULT '';

-- A waiting signal was always a request to cancel. It becomes a post, with the body that such a request has now.
INSERT INTO posts (run, number, key, body, mark)
    SELECT id, 1, 'cancel', '\x81a46b696e64a663616e63656c', 0 FROM runs
    WHERE signal IS NOT NULL AND status <> 'completed';
UPDATE runs SET
    posted = 1,
    due = CASE WHEN status IN ('failed', 'cancelled') THEN due ELSE least(due, clock()) END
WHERE signal IS NOT NULL AND status <> 'completed';

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
    (SELECT coalesce(sum(octet_length(data)), 0)::bigint FROM records WHERE records.run = runs.id) AS bytes
FROM runs;

-- A process of an earlier version would overlook what is posted. It asks for "signal", and so is refused.
DROP TRIGGER notify_of_change ON runs;
DROP FUNCTION apply_commit(
    text, bigint, bigint, bytea[], bigint, text, bytea, boolean, boolean, bigint, boolean, double precision
);
DROP VIEW heads;
ALTER TABLE runs DROP COLUMN signal;

-- The number of the newest item of output is looked up in its table, like that of the newest record: to emit doesn't
-- write to the row of the run either.
CREATE VIEW heads AS
    SELECT id, run_id, graph, status,
        greatest(floor, (SELECT max(records.sequence) FROM records WHERE records.run = runs.id)) AS sequence,
        snapshot, fence, created, updated, holder, lease_until, tags, parent, note, crashes, mark, due, priority,
        posted, taken,
        coalesce((SELECT max(output.number) FROM output WHERE output.run = runs.id), 0) AS output,
        node, error, waits_for
    FROM runs;

CREATE TRIGGER notify_of_change AFTER UPDATE ON runs FOR EACH ROW
    WHEN ((OLD.holder IS NOT NULL AND NEW.holder IS NULL) OR OLD.status <> NEW.status OR OLD.posted <> NEW.posted)
    EXECUTE FUNCTION notify_of_change();

-- As in 0002. "takes" is the newest post that the commit takes in. Newer ones refuse it, unless "ignores_posts". The
-- labels are left as they are where "new_node" is NULL.
CREATE FUNCTION apply_commit(
    target_run text, by_fence bigint, expected bigint, new_records bytea[], new_snapshot bigint, new_status text,
    new_note bytea, purge boolean, takes bigint, ignores_posts boolean, new_node text, new_error text,
    new_waits_for text, new_due double precision, new_mark bigint, again boolean,
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
            taken = takes_up_to,
            mark = new_mark
        WHERE runs.id = head.id;
    END IF;
    IF accepted THEN
        head := NULL;
    END IF;
    RETURN NEXT;
END $$;

-- `post` of stores/heads.py: "posted", "known" if the run was posted this key before, "completed" if it takes in
-- nothing more; NULL if it doesn't exist. "again": the call was made before, and its answer did not arrive.
CREATE FUNCTION post(target_run text, new_key text, new_body bytea, new_mark bigint, again boolean)
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
        due = CASE WHEN here.status IN ('failed', 'cancelled') THEN here.due ELSE least(here.due, server_time) END
    WHERE runs.id = here.id;
    RETURN 'posted';
END $$;

-- Add items to a run's output: the number of the newest one, and whether the fence is the run's; nothing if the run
-- doesn't exist. It need not survive a power failure, so the call doesn't wait for the disk. Old items are deleted
-- now and then, so that at most twice as many as wanted are kept. The row of the run is locked, and not written.
CREATE FUNCTION add_output(
    target_run text, by_fence bigint, bodies bytea[], keep bigint, new_mark bigint, again boolean,
    OUT accepted boolean, OUT newest bigint
) RETURNS SETOF record LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    here runs;
    before bigint;
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    SELECT * INTO here FROM runs WHERE runs.run_id = target_run FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    keep := greatest(keep, 1);
    before := coalesce((SELECT max(number) FROM output WHERE output.run = here.id), 0);
    newest := before;
    accepted := here.fence = by_fence;
    IF again AND EXISTS (SELECT 1 FROM output WHERE output.run = here.id AND output.mark = new_mark) THEN
        accepted := true;
    ELSIF accepted THEN
        INSERT INTO output (run, number, body, mark)
            SELECT here.id, before + number, body, new_mark
            FROM unnest(bodies) WITH ORDINALITY AS new (body, number);
        newest := before + coalesce(cardinality(bodies), 0);
        IF newest / keep > before / keep THEN
            DELETE FROM output WHERE output.run = here.id AND number <= newest - keep;
        END IF;
    END IF;
    RETURN NEXT;
END $$;

-- Write, or with "deletes" delete, a document that is still at a version: its new version, or NULL if it isn't. The
-- lock makes a call that was made "again" wait for its first attempt, which the server may not have finished.
CREATE FUNCTION change_document(
    target text, expected bigint, deletes boolean, new_body bytea, new_due double precision, new_mark bigint,
    again boolean
) RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    written bigint;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('limpet document'), hashtext(target));
    SELECT version INTO written FROM document_changes WHERE again AND document_changes.mark = new_mark;
    IF FOUND THEN
        RETURN written;
    END IF;
    IF deletes THEN
        DELETE FROM documents WHERE name = target AND version = expected RETURNING version INTO written;
    ELSIF expected = 0 THEN
        INSERT INTO documents (name, body, due) VALUES (target, new_body, new_due)
            ON CONFLICT (name) DO NOTHING RETURNING version INTO written;
    ELSE
        UPDATE documents SET version = DEFAULT, body = new_body, due = new_due
            WHERE name = target AND version = expected RETURNING version INTO written;
    END IF;
    IF written IS NOT NULL THEN
        INSERT INTO document_changes (mark, version, made) VALUES (new_mark, written, clock());
        -- No call is repeated for as long as an hour.
        DELETE FROM document_changes WHERE document_changes.mark IN (
            SELECT mark FROM document_changes WHERE made < clock() - 3600 LIMIT 100 FOR UPDATE SKIP LOCKED
        );
    END IF;
    RETURN written;
END $$;

-- As in 0001, and with the run goes what was posted to it and what it emitted.
CREATE OR REPLACE FUNCTION delete_run(target_run text) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    deleted bigint;
BEGIN
    DELETE FROM runs WHERE runs.run_id = target_run AND (lease_until IS NULL OR lease_until <= clock())
        RETURNING id INTO deleted;
    DELETE FROM records WHERE records.run = deleted;
    DELETE FROM posts WHERE posts.run = deleted;
    DELETE FROM output WHERE output.run = deleted;
    RETURN deleted IS NOT NULL;
END $$;

CREATE OR REPLACE FUNCTION expire(older_than double precision, statuses text[])
    RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    server_time double precision := clock();
    old bigint[];
BEGIN
    SELECT array_agg(id) INTO old FROM (
        SELECT id FROM runs
        WHERE status = ANY (statuses) AND updated <= server_time - older_than
            AND (lease_until IS NULL OR lease_until <= server_time)
        ORDER BY run_id FOR UPDATE
    ) AS found;
    DELETE FROM runs WHERE id = ANY (old);
    DELETE FROM records WHERE run = ANY (old);
    DELETE FROM posts WHERE run = ANY (old);
    DELETE FROM output WHERE run = ANY (old);
    RETURN coalesce(cardinality(old), 0);
END $$;

-- Lists are read in order from an index that has the runs that are wanted; see `lists.py`. Columns that a renewal or a
-- claim changes have no index: those must not touch any.
DROP INDEX runs_by_parent;
CREATE INDEX runs_by_parent ON runs (parent, created, run_id) WHERE parent IS NOT NULL;
CREATE INDEX runs_by_graph ON runs (graph, created, run_id);
CREATE INDEX runs_by_node ON runs (node, created, run_id) WHERE node <> '';
CREATE INDEX runs_by_error ON runs (error, created, run_id) WHERE error <> '';
CREATE INDEX runs_with_error ON runs (created, run_id) WHERE error <> '';
CREATE INDEX runs_that_wait ON runs (created, run_id) WHERE waits_for <> '';
CREATE INDEX runs_by_tag ON runs USING gin (tags) WHERE tags <> '{}';
