"""Effects: what nodes do to the world outside, counted. For nodes, or for the fake services that they call in tests.

    from limpet.testing import effects

    def charge(state, ctx):
        effects.record("charge", ctx.idempotency_key)

In a process of a crash matrix, each effect is a line in a file, which a kill can't undo. Elsewhere nothing happens.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable

FILE = "LIMPET_EFFECTS"
"""The environment variable that names the file, for all processes of a run."""

ON_RECORD: list[Callable[[str], None]] = []
"""Functions that this process calls after it has recorded an effect, with the name of the effect."""


def record(name: str, key: str | None = None) -> None:
    """Count an effect. With a `key` it counts once, however often it happens; without one it counts each time.

    The key is the idempotency key by which the service ignores repetitions, such as `ctx.idempotency_key`: give it
    here if you give it to the service.
    """
    path = os.environ.get(FILE)
    if path is None:
        return
    from limpet.engine.node_context.call_scope import CURRENT

    task = CURRENT.get()
    node = None
    call = None
    if task is not None:
        node = task.scope.place(task.node)
        call = task.idempotency_key
    if key is not None:
        key = str(key)
    append(path, {"note": "effect", "name": str(name), "key": key, "node": node, "call": call})
    for on_record in ON_RECORD:
        on_record(str(name))


def append(path: str, note: dict[str, object]) -> None:
    """Add a line to a file. The kernel has it when this returns, so a kill can't undo it."""
    line = (json.dumps(note) + "\n").encode()
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, line)
    finally:
        os.close(file)
