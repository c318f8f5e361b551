-- From when on workers may claim a run that no process holds (NULL: never by themselves), and how urgent it is.
-- Runs that are running are due at once.
ALTER TABLE runs ADD COLUMN due double precision, ADD COLUMN priority bigint NOT NULL DEFAULT 0;
UPDATE runs SET due = 0 WHERE status = 'running';
CREATE INDEX runs_by_due ON runs (due) WHERE due IS NOT NULL;

CREATE OR REPLACE VIEW heads AS
    SELECT id, run_id, graph, status,
        greatest(floor, (SELECT max(records.sequence) FROM records WHERE records.run = runs.id)) AS sequence,
        snapshot, fence, created, updated, holder, lease_until, tags, parent, signal, note, crashes, mark,
        due, priority
    FROM runs;

-- As in 0001; with a status goes the run's new "due".
DROP FUNCTION apply_commit(
    text, bigint, bigint, bytea[], bigint, text, bytea, boolean, boolean, bigint, boolean
);
CREATE FUNCTION apply_commit(
    target_run text, by_fence bigint, expected bigint, new_records bytea[], new_snapshot bigint, new_status text,
    new_note bytea, purge boolean, refuse_on_signal boolean, new_mark bigint, again boolean,
    new_due double precision DEFAULT NULL,
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
            due = CASE WHEN new_status IS NULL THEN runs.due ELSE new_due END,
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

-- Notify the processes that wait for a change: a run becomes free, changes its status, is signalled or is
-- deleted. The steps of a run only add records, and notify nothing. The channel is named after this table of
-- runs in this database.
CREATE FUNCTION notify_of_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('limpet_' || TG_RELID, '');
    RETURN NULL;
END $$;

CREATE TRIGGER notify_of_creation AFTER INSERT ON runs FOR EACH ROW
    WHEN (NEW.holder IS NULL) EXECUTE FUNCTION notify_of_change();

CREATE TRIGGER notify_of_change AFTER UPDATE ON runs FOR EACH ROW
    WHEN ((OLD.holder IS NOT NULL AND NEW.holder IS NULL) OR OLD.status <> NEW.status
        OR (NEW.signal IS NOT NULL AND OLD.signal IS DISTINCT FROM NEW.signal))
    EXECUTE FUNCTION notify_of_change();

CREATE TRIGGER notify_of_deletion AFTER DELETE ON runs FOR EACH ROW EXECUTE FUNCTION notify_of_change();
