"""The crash kit: a graph is killed at every point where that could matter, and must end as if it had not been."""
