"""Names that users give to queues, limits and schedules, and how the documents of a store are called."""

from __future__ import annotations

from limpet.errors import UsageError

MAX_NAME_LENGTH = 100
"""Characters that the name of a queue, a limit or a schedule may have."""

WORKERS = "worker/"
"""One for each worker: who it is, and what it executes."""
LIMITS = "limit/"
"""One for each limit: its values, and its slots."""
LINES = "limit line/"
"""One for each call that waits for a slot, by limit and place in the line."""
SCHEDULES = "schedule/"
"""One for each schedule, due when it is to fire."""
SERVER_KEY = "server key"
"""What servers seal: links to single questions, and what clients of an MCP server hand back."""
MCP_REPLIES = "mcp reply/"
"""One for each reply that a client of an MCP server has handed back, due when it would have expired."""
PREPARED = "prepared run/"
"""One for each run that a schedule has prepared lately, due when the run is to have begun."""


def checked_name(kind: str, name: object) -> str:
    """The name of a queue, a limit or a schedule: printable, and without what has a meaning elsewhere.

    A slash separates the parts of a document's name, a comma those of a list, and a colon a schedule from a time.
    Raises `UsageError` that says the `kind`.
    """
    if (
        isinstance(name, str)
        and 0 < len(name) <= MAX_NAME_LENGTH
        and name.isprintable()
        and name == name.strip()
        and not set(name) & set("/,:")
    ):
        return name
    raise UsageError(
        f"the name of a {kind} must be a text of 1 to {MAX_NAME_LENGTH} printable characters without '/', ',' and "
        f"':', not {name!r}"
    )
