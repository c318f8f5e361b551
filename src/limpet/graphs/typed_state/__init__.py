"""States that are described by classes: what annotations mean, instances for nodes, and checks of values."""
