"""Runs in plain files."""
