"""Following runs of any process: events made from journals, and one watcher for all that a process follows."""
