-- From when on a run wants a holder, if nobody has it (NULL: not by itself), and how urgent that is. Runs from before
-- this that are running want one at once.
ALTER TABLE runs ADD COLUMN due double precision, ADD COLUMN priority bigint NOT NULL DEFAULT 0;
UPDATE runs SET due = 0 WHERE status = 'running';
CREATE INDEX runs_by_due ON runs (due) WHERE due IS NOT NULL;

CREATE OR REPLACE VIEW heads AS
    SELECT id, run_id, graph, status,
        greatest(floor, (SELECT max(records.sequence) FROM records WHERE records.run = runs.id)) AS sequence,
        snapshot, fence, created, updated, holder, lease_until, tags, parent, signal, note, crashes, mark,
        due, priority
    FROM runs;

-- As before; with a status goes the run's new "due".
DROP FUNCTION append_fully(
    text, bigint, bigint, bytea[], bigint, text, bytea, boolean, boolean, bigint, boolean
);
CREATE FUNCTION append_fully(
    the_run text, the_fence bigint, expected bigint, new_records bytea[], new_snapshot bigint, new_status text,
    new_note bytea, purge boolean, heed boolean, the_mark bigint, again boolean, new_due double precision DEFAULT NULL,
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
            due = CASE WHEN new_status IS NULL THEN runs.due ELSE new_due END,
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
-- Who waits for a run is told when one becomes free, changes its status, is signalled or is gone. The steps of a run
-- only add records, and notify nobody. The channel's name is that of this table of runs in this database.
CREATE FUNCTION tell_of_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('limpet_' || TG_RELID, '');
    RETURN NULL;
END $$;

CREATE TRIGGER tell_of_creation AFTER INSERT ON runs FOR EACH ROW
    WHEN (NEW.holder IS NULL) EXECUTE FUNCTION tell_of_change();

CREATE TRIGGER tell_of_change AFTER UPDATE ON runs FOR EACH ROW
    WHEN ((OLD.holder IS NOT NULL AND NEW.holder IS NULL) OR OLD.status <> NEW.status
        OR (NEW.signal IS NOT NULL AND OLD.signal IS DISTINCT FROM NEW.signal))
    EXECUTE FUNCTION tell_of_change();

CREATE TRIGGER tell_of_removal AFTER DELETE ON runs FOR EACH ROW EXECUTE FUNCTION tell_of_change();
