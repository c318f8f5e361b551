"""Stores that users bring: objects with five or two methods, and checkpoint files."""
