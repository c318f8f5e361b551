-- Runs and their journals, in the store's own schema, which is first in the search path.

-- The one clock of the store, in seconds: leases expire by the server's time, whatever the clocks of the
-- machines say.
CREATE FUNCTION clock() RETURNS double precision LANGUAGE sql VOLATILE
    AS $$ SELECT extract(epoch FROM clock_timestamp())::double precision $$;

-- "floor" is the number of the newest record at the last purge; later records are looked up in their table, so
-- that a commit that only adds a record leaves this row alone. "mark" is a random number from the process that
-- changed the row last: when its connection breaks before the answer arrives, the process finds its own change
-- by it.
-- fillfactor: leases are renewed in place, without touching the indexes.
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

-- No foreign key: it would be checked with every step. The id of a run is never used again for another run.
CREATE TABLE records (
    run bigint NOT NULL,
    sequence bigint NOT NULL,
    fence bigint NOT NULL,
    data bytea NOT NULL,
    PRIMARY KEY (run, sequence)
);
-- Large records are compressed already: storing them as they are saves the server the attempt.
ALTER TABLE records ALTER COLUMN data SET STORAGE EXTERNAL;

-- A run as it is read: the row, and the number of its newest record.
CREATE VIEW heads AS
    SELECT id, run_id, graph, status,
        greatest(floor, (SELECT max(records.sequence) FROM records WHERE records.run = runs.id)) AS sequence,
        snapshot, fence, created, updated, holder, lease_until, tags, parent, signal, note, crashes, mark
    FROM runs;

-- Carry out one commit of any kind, in one round trip: lock the run, check the commit, add its records and
-- change the head (the rules are those of `refusal` and `apply` in stores/heads.py). Returns nothing if the run
-- doesn't exist, else whether the commit was accepted and, if it wasn't, the head that it met, from which the
-- store explains the refusal.
--
-- "again": the commit was sent before, and its answer did not arrive. If it was carried out then, the head has
-- its mark, or the records are there with its fence; it is accepted without being carried out a second time.
-- "refuse_on_signal", where a signal waits: true refuses the commit, false clears the signal, NULL leaves it.
CREATE FUNCTION apply_commit(
    target_run text, by_fence bigint, expected bigint, new_records bytea[], new_snapshot bigint, new_status text,
    new_note bytea, purge boolean, refuse_on_signal boolean, new_mark bigint, again boolean,
    OUT accepted boolean, OUT server_time double precision, OUT head heads
) RETURNS SETOF record LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    size bigint := coalesce(cardinality(new_records), 0);
BEGIN
    PERFORM 1 FROM runs WHERE runs.run_id = target_run FOR NO KEY UPDATE;
    SELECT * INTO head FROM heads WHERE heads.run_id = target_run;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    server_time := clock();
    accepted := head.fence = by_fence AND head.sequence = expected
        AND NOT (coalesce(refuse_on_signal, false) AND head.signal IS NOT NULL);
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
        UPDATE runs SET
            floor = CASE WHEN purge THEN expected + size ELSE runs.floor END,
            snapshot = CASE WHEN purge THEN 0 WHEN new_snapshot > 0 THEN new_snapshot ELSE runs.snapshot END,
            status = coalesce(new_status, runs.status),
            updated = CASE WHEN new_status IS NULL THEN runs.updated ELSE server_time END,
            holder = CASE WHEN new_status <> 'running' THEN NULL ELSE runs.holder END,
            lease_until = CASE WHEN new_status <> 'running' THEN NULL ELSE runs.lease_until END,
            note = coalesce(new_note, runs.note),
            signal = CASE WHEN refuse_on_signal IS FALSE THEN NULL ELSE runs.signal END,
            mark = new_mark
        WHERE runs.id = head.id;
    END IF;
    IF accepted THEN
        head := NULL;
    END IF;
    RETURN NEXT;
END $$;

-- Delete the records below a number, but never the newest snapshot or what follows it. NULL: the run doesn't exist.
CREATE FUNCTION prune(target_run text, before bigint) RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    here runs;
    deleted bigint;
BEGIN
    SELECT * INTO here FROM runs WHERE runs.run_id = target_run FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    DELETE FROM records WHERE records.run = here.id AND records.sequence < least(before, here.snapshot);
    GET DIAGNOSTICS deleted = ROW_COUNT;
    RETURN deleted;
END $$;

-- Delete a run that no process holds, with its journal. False: it is held, or doesn't exist.
CREATE FUNCTION delete_run(target_run text) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    deleted bigint;
BEGIN
    DELETE FROM runs WHERE runs.run_id = target_run AND (lease_until IS NULL OR lease_until <= clock())
        RETURNING id INTO deleted;
    DELETE FROM records WHERE records.run = deleted;
    RETURN deleted IS NOT NULL;
END $$;

-- Delete the runs of these statuses that have not changed for this many seconds and that no process holds. They
-- are locked in the order of their ids, as everywhere, so that no two transactions wait for each other.
CREATE FUNCTION expire(older_than double precision, statuses text[]) RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
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
    RETURN coalesce(cardinality(old), 0);
END $$;
