"""Finding the runs of a store that no process advances, and resuming them."""
