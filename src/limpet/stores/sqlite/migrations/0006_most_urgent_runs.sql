-- The runs that are due, in the order in which workers claim them: those of a graph and a priority, by "due".
DROP INDEX runs_by_due;
CREATE INDEX runs_by_urgency ON runs (graph, priority DESC, due, created, run_id) WHERE due IS NOT NULL;
