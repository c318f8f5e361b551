"""Which checkpoints stay when others are deleted: those that are wanted, and what these need to be restored.

A `DeltaChannel` of LangGraph stores its whole value now and then only. In between it stores nothing in a checkpoint:
its value is made of the newest whole one among the ancestors, and of all that was written since. So an ancestor up to
there must stay, though it isn't wanted itself.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from limpet.integrations.langgraph.thread_state import SavedCheckpoint

COUNTERS: Final = "counters_since_delta_snapshot"
"""What metadata say of the channels whose values aren't in the checkpoint."""


def checkpoints_without(
    all_of_thread: Mapping[str, SavedCheckpoint],
    unwanted: Collection[str],
    metadata_of: Callable[[SavedCheckpoint], Mapping[str, Any]],
) -> list[SavedCheckpoint]:
    """The checkpoints that stay when the unwanted ones are deleted."""
    kept = {id: saved for id, saved in all_of_thread.items() if id not in unwanted}
    for saved in list(kept.values()):
        counters = metadata_of(saved).get(COUNTERS) or {}
        open_channels = {channel for channel in counters if channel not in saved.values}
        ancestor = saved
        while open_channels and ancestor.parent:
            found = all_of_thread.get(ancestor.parent)
            if found is None:
                break
            ancestor = found
            kept[ancestor.id] = ancestor
            open_channels -= ancestor.values.keys()
    return sorted(kept.values(), key=lambda each: each.id)
