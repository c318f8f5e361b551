"""Runs on a Redis or Valkey server."""
