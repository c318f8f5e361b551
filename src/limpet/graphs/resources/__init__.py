"""Live objects for nodes: how they are given, opened, shared and closed."""
