"""What nodes do to the world outside, counted: for nodes, or the stand-ins for services that they call in tests.

    from limpet.testing import effects

    def charge(state, ctx):
        effects.record("charge", ctx.idempotency_key)

In a process of a crash matrix, each is a line in a file, which a kill can't undo. Anywhere else nothing happens.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable

FILE = "LIMPET_EFFECTS"
"""The environment variable that names the file, for all processes that take part in a run."""

RECORDED: list[Callable[[], None]] = []
"""What is to be done in this process when an effect was recorded."""


def record(name: str, key: str | None = None) -> None:
    """Count an effect. `key` is what the outside world knows it by, so that it counts once however often it comes.

    That is an idempotency key, as `ctx.idempotency_key`: give it here if you hand it to the service. An effect
    without one counts each time.
    """
    path = os.environ.get(FILE)
    if path is None:
        return
    from limpet.engine.node_context.node_context import CURRENT

    task = CURRENT.get()
    node = None if task is None else task.scope.place(task.node)
    append(
        path, {"note": "effect", "name": str(name), "key": None if key is None else str(key), "node": node}
    )
    for each in RECORDED:
        each()


def append(path: str, note: dict[str, object]) -> None:
    """Add a line to a file, whole or not at all. It is with the kernel when this returns, so a kill can't undo it."""
    line = (json.dumps(note) + "\n").encode()
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, line)
    finally:
        os.close(file)
