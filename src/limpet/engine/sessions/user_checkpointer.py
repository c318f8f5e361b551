"""Handing a run over to a user's checkpointer, and taking it back.

A checkpointer keeps a state, a node and a config. What else a run needs in order to go on exactly (its
position's phase, counters, answers) travels in the config, as text under one key, so it survives whatever
the checkpointer writes. A checkpoint without it was saved by hand: its node is run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from time import time
from typing import Any

from limpet.errors import UsageError
from limpet.graphs.plan import Plan
from limpet.graphs.state import new_id
from limpet.journal.encoding.codec import decode, encode
from limpet.journal.progress import Progress
from limpet.stores.user_stores.checkpointer import KEY, Checkpointer


def hand_over(
    checkpointer: Checkpointer, progress: Progress, results: list[dict[str, Any]] | None = None
) -> str:
    """Save a run that stops; returns the reference. Raises whatever the checkpointer does.

    `results` are those of the branches, where the run stands at their fan-in; they are handed to a checkpointer that
    `takes_results`.
    """
    from base64 import b64encode

    rest = replace(progress, state={}, config={})
    config = {**progress.config, KEY: b64encode(rest.snapshot_record()).decode("ascii")}
    copied: dict[str, Any] = decode(encode(dict(progress.state)))
    more = (
        {}
        if results is None or not getattr(checkpointer, "takes_results", False)
        else {"parallel_results": results}
    )
    reference = checkpointer.save(copied, progress.node, config, **more)
    if not isinstance(reference, str) or not reference:
        raise UsageError(
            f"save() of {type(checkpointer).__name__} returned {reference!r} instead of a reference"
        )
    return reference


def take_back(checkpointer: Checkpointer, reference: str, plan: Plan) -> Progress:
    """The progress that a reference leads to. Raises `UsageError` if it isn't a checkpoint."""
    from base64 import b64decode

    found = checkpointer.load(reference)
    if not isinstance(found, Mapping) or not isinstance(found.get("state"), Mapping) or not found.get("node"):
        raise UsageError(f"what load({reference!r}) gave is no checkpoint: it needs 'state' and 'node'")
    config = dict(found.get("config") or {})
    packed = config.pop(KEY, None)
    if packed is None:
        progress = Progress(
            new_id(),
            plan.name,
            plan.fingerprint,
            found["node"],
            dict(found["state"]),
            at=time(),
            cleared=True,
        )
    else:
        progress = Progress("", "", "", "", {})
        try:
            *rest, _ = decode(b64decode(packed))
            progress.apply([*rest, dict(found["state"])])
        except (ValueError, TypeError, LookupError, AttributeError) as problem:
            raise UsageError(f"checkpoint {reference!r} is damaged under {KEY!r}: {problem}") from problem
    progress.config = config
    return progress
