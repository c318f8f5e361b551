-- Runs and their journals. Runs in the store's own schema, which is first in the search path.

-- The one clock of the store, in seconds.
CREATE FUNCTION clock() RETURNS double precision LANGUAGE sql VOLATILE
    AS $$ SELECT extract(epoch FROM clock_timestamp())::double precision $$;

-- "floor" is the newest record's number as of the last purge; records after it are counted where they are.
-- "mark" is a number that whoever changed the row last made up, so that it knows its own change again when
-- the connection broke before the answer came.
CREATE TABLE runs (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    run_id text COLLATE "C" NOT NULL UNIQUE,
    graph text COLLATE "C" NOT NULL,
    status text COLLATE "C" NOT NULL,
    floor bigint NOT NULL DEFAULT 0,
    snapshot bigint NOT NULL,
    fence bigint NOT NULL DEFAULT 1,
    crashes bigint NOT NULL DEFAULT 0,
    created double precision NOT NULL,
    updated double precision NOT NULL,
    holder text,
    lease_until double precision,
    tags text[] NOT NULL,
    parent text COLLATE "C",
    signal text,
    note bytea NOT NULL,
    mark bigint NOT NULL
) WITH (fillfactor = 70);
CREATE INDEX runs_by_creation ON runs (created, run_id);
CREATE INDEX runs_by_status ON runs (status, created, run_id);
CREATE INDEX runs_by_parent ON runs (parent) WHERE parent IS NOT NULL;

-- No foreign key: it would be checked with every step. A run's id is never given to another run.
CREATE TABLE records (
    run bigint NOT NULL,
    sequence bigint NOT NULL,
    fence bigint NOT NULL,
    data bytea NOT NULL,
    PRIMARY KEY (run, sequence)
);
ALTER TABLE records ALTER COLUMN data SET STORAGE EXTERNAL;

-- A run as it is read: the row, and the number of its newest record.
CREATE VIEW heads AS
    SELECT id, run_id, graph, status,
        greatest(floor, (SELECT max(records.sequence) FROM records WHERE records.run = runs.id)) AS sequence,
        snapshot, fence, created, updated, holder, lease_until, tags, parent, signal, note, crashes, mark
    FROM runs;

-- Carry out one commit of any kind. Returns nothing if there is no such run, else whether the commit was
-- accepted and, if it wasn't, the head that it met. With "again" the commit was sent before, and nobody
-- knows whether it arrived: one that did is accepted without being carried out a second time.
CREATE FUNCTION append_fully(
    the_run text, the_fence bigint, expected bigint, new_records bytea[], new_snapshot bigint, new_status text,
    new_note bytea, purge boolean, heed boolean, the_mark bigint, again boolean,
    OUT accepted boolean, OUT present double precision, OUT head heads
) RETURNS SETOF record LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    size bigint := coalesce(cardinality(new_records), 0);
BEGIN
    PERFORM 1 FROM runs WHERE runs.run_id = the_run FOR NO KEY UPDATE;
    SELECT * INTO head FROM heads WHERE heads.run_id = the_run;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    present := clock();
    accepted := head.fence = the_fence AND head.sequence = expected
        AND NOT (coalesce(heed, false) AND head.signal IS NOT NULL);
    IF again AND (head.mark = the_mark OR (size > 0 AND size = (
        SELECT count(*) FROM unnest(new_records) WITH ORDINALITY AS sent (data, number)
        JOIN records ON records.run = head.id AND records.sequence = expected + number
            AND records.fence = the_fence AND records.data = sent.data
    ))) THEN
        accepted := true;
    ELSIF accepted THEN
        IF purge THEN
            DELETE FROM records WHERE records.run = head.id;
        ELSE
            INSERT INTO records (run, sequence, fence, data)
                SELECT head.id, expected + number, the_fence, data
                FROM unnest(new_records) WITH ORDINALITY AS new (data, number);
        END IF;
        UPDATE runs SET
            floor = CASE WHEN purge THEN expected + size ELSE runs.floor END,
            snapshot = CASE WHEN purge THEN 0 WHEN new_snapshot > 0 THEN new_snapshot ELSE runs.snapshot END,
            status = coalesce(new_status, runs.status),
            updated = CASE WHEN new_status IS NULL THEN runs.updated ELSE present END,
            holder = CASE WHEN new_status <> 'running' THEN NULL ELSE runs.holder END,
            lease_until = CASE WHEN new_status <> 'running' THEN NULL ELSE runs.lease_until END,
            note = coalesce(new_note, runs.note),
            signal = CASE WHEN heed IS FALSE THEN NULL ELSE runs.signal END,
            mark = the_mark
        WHERE runs.id = head.id;
    END IF;
    IF accepted THEN
        head := NULL;
    END IF;
    RETURN NEXT;
END $$;

-- Drop the records below a number, but never the newest whole one or what follows it. NULL: no such run.
CREATE FUNCTION prune(the_run text, before bigint) RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    here runs;
    gone bigint;
BEGIN
    SELECT * INTO here FROM runs WHERE runs.run_id = the_run FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    DELETE FROM records WHERE records.run = here.id AND records.sequence < least(before, here.snapshot);
    GET DIAGNOSTICS gone = ROW_COUNT;
    RETURN gone;
END $$;

-- Remove a run that nobody holds, with its journal. False: it is held, or not there.
CREATE FUNCTION remove(the_run text) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    gone bigint;
BEGIN
    DELETE FROM runs WHERE runs.run_id = the_run AND (lease_until IS NULL OR lease_until <= clock())
        RETURNING id INTO gone;
    DELETE FROM records WHERE records.run = gone;
    RETURN gone IS NOT NULL;
END $$;

-- Remove the runs of these statuses that have not changed for so many seconds and that nobody holds.
CREATE FUNCTION expire(older_than double precision, statuses text[]) RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    present double precision := clock();
    old bigint[];
BEGIN
    SELECT array_agg(id) INTO old FROM (
        SELECT id FROM runs
        WHERE status = ANY (statuses) AND updated <= present - older_than
            AND (lease_until IS NULL OR lease_until <= present)
        ORDER BY run_id FOR UPDATE
    ) AS found;
    DELETE FROM runs WHERE id = ANY (old);
    DELETE FROM records WHERE run = ANY (old);
    RETURN coalesce(cardinality(old), 0);
END $$;
