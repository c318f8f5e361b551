-- Who waits for a run is told when one becomes free, changes its status, is signalled or is gone. The steps of a run
-- only add records, and notify nobody. The channel's name is that of this table of runs in this database.
CREATE FUNCTION tell_of_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('holdfast_' || TG_RELID, '');
    RETURN NULL;
END $$;

CREATE TRIGGER tell_of_creation AFTER INSERT ON runs FOR EACH ROW
    WHEN (NEW.holder IS NULL) EXECUTE FUNCTION tell_of_change();

CREATE TRIGGER tell_of_change AFTER UPDATE ON runs FOR EACH ROW
    WHEN ((OLD.holder IS NOT NULL AND NEW.holder IS NULL) OR OLD.status <> NEW.status
        OR (NEW.signal IS NOT NULL AND OLD.signal IS DISTINCT FROM NEW.signal))
    EXECUTE FUNCTION tell_of_change();

CREATE TRIGGER tell_of_removal AFTER DELETE ON runs FOR EACH ROW EXECUTE FUNCTION tell_of_change();
