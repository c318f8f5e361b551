"""Branches of a run: opening them, running them all in one place, and the steps of a data flow."""
