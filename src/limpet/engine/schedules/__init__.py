"""Schedules: when runs start by themselves, which planned times are fired, and how each is fired once."""
