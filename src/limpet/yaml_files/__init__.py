"""Graphs and workflows that are declared in YAML: read, checked with all mistakes at once, and built."""
