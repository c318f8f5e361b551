"""Saving a run to a user's checkpointer where it stops, and loading it again.

A checkpointer keeps a state, a node and a config. The rest of what a run needs in order to resume exactly (its
position's phase, counters, answers) is put into the config, as text under one key, so that it survives whatever
format the checkpointer writes. A checkpoint without that key was saved by hand, or by another program: a resume from
it runs its node (see `hand_saved.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from limpet.engine.node_context.branch_result import PARALLEL_RESULTS
from limpet.engine.sessions.hand_saved import progress_at_node
from limpet.errors import LimpetError, UsageError
from limpet.graphs.plan import Plan
from limpet.graphs.secrets import text_of_values
from limpet.journal.encoding.codec import decode, encode
from limpet.journal.progress import Progress
from limpet.journal.records import apply_record, snapshot_record
from limpet.observe.events import CHECKPOINT_LOAD, CHECKPOINT_SAVE
from limpet.stores.user_stores.checkpointer import KEY, Checkpointer

RESULTS_ADDED = "results:"
"""How the text begins where the saved state has the results of branches, which are no part of the run's state."""


def save_checkpoint(
    checkpointer: Checkpointer, progress: Progress, results: list[dict[str, Any]] | None = None
) -> str:
    """Save a run that stops; return the reference. Raises whatever the checkpointer raises.

    `results` are those of the branches, if the run is at their fan-in. The saved state has them as well, unless the
    run has a value of its own under this key. A checkpointer that `takes_results` gets them by themselves, too.
    """
    from base64 import b64encode

    rest = replace(progress, state={}, config={})
    packed = b64encode(snapshot_record(rest)).decode("ascii")
    # Encoded and decoded, so that the checkpointer gets copies that it may keep or change.
    config: dict[str, Any] = decode(encode(progress.config))
    state: dict[str, Any] = decode(encode(dict(progress.state)))
    if results is not None and PARALLEL_RESULTS not in state:
        state[PARALLEL_RESULTS] = results
        packed = RESULTS_ADDED + packed
    config[KEY] = packed
    extra: dict[str, Any] = {}
    if results is not None and getattr(checkpointer, "takes_results", False):
        extra[PARALLEL_RESULTS] = results
    reference = checkpointer.save(state, progress.node, config, **extra)
    if not isinstance(reference, str) or not reference:
        raise UsageError(
            f"save() of {type(checkpointer).__name__} returned {reference!r} instead of a reference"
        )
    from limpet.observe.log import log_checkpoint

    secrets = frozenset(map(str, progress.meta.get("secrets", ())))
    log_checkpoint(
        CHECKPOINT_SAVE,
        lambda: text_of_values(state, secrets),
        node=progress.node,
        step=progress.step,
        reference=reference,
        run_id=progress.run_id,
    )
    return reference


def load_checkpoint(checkpointer: Checkpointer | None, reference: str, plan: Plan) -> Progress:
    """The progress that was saved under a reference, without a checkpointer in a file.

    Raises `UsageError` if that isn't a checkpoint.
    """
    if checkpointer is None:
        from limpet.stores.user_stores.checkpoint_files import CheckpointFiles

        checkpointer = CheckpointFiles()
    found = checkpointer.load(reference)
    if not isinstance(found, Mapping) or not isinstance(found.get("state"), Mapping) or not found.get("node"):
        raise UsageError(f"load({reference!r}) didn't return a checkpoint, which has 'state' and 'node'")
    config = dict(found.get("config") or {})
    packed = config.pop(KEY, None)
    state = dict(found["state"])
    if packed is None:
        results = found.get(PARALLEL_RESULTS, state.get(PARALLEL_RESULTS))
        progress = progress_at_node(plan, found["node"], state, results)
    else:
        progress = _unpacked(packed, state, reference)
    progress.config = config
    from limpet.observe.log import log_checkpoint

    log_checkpoint(
        CHECKPOINT_LOAD, lambda: text_of_values(state, plan.secrets), node=progress.node, reference=reference
    )
    return progress


def _unpacked(packed: Any, state: dict[str, Any], reference: str) -> Progress:
    from base64 import b64decode

    progress = Progress("", "", "", "", {})
    if isinstance(packed, str) and packed.startswith(RESULTS_ADDED):
        packed = packed.removeprefix(RESULTS_ADDED)
        state.pop(PARALLEL_RESULTS, None)
    try:
        *rest, _ = decode(b64decode(packed))
        apply_record(progress, [*rest, state])
    except LimpetError:
        raise
    except (ValueError, TypeError, LookupError, AttributeError) as problem:
        raise UsageError(f"checkpoint {reference!r} is damaged under {KEY!r}: {problem}") from problem
    return progress
