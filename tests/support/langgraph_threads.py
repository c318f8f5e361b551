"""A thread that is saved through a checkpointer of LangGraph, step by step."""

from __future__ import annotations

from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.base.id import uuid6


class SavedThread:
    """A thread that is saved step by step, as LangGraph does it."""

    def __init__(self, saver: BaseCheckpointSaver[Any], thread: str = "t", namespace: str = "") -> None:
        self.saver = saver
        self.config: Any = {"configurable": {"thread_id": thread, "checkpoint_ns": namespace}}
        self.versions: dict[str, Any] = {}
        self.step = 0

    def save(self, values: dict[str, Any], changed: set[str] | None = None, **metadata: Any) -> Any:
        """Save a checkpoint in which these channels have a new version; all, unless it is said."""
        new = {
            name: self.saver.get_next_version(self.versions.get(name), None)
            for name in (values if changed is None else changed)
        }
        self.versions = {**{name: each for name, each in self.versions.items() if name in values}, **new}
        checkpoint: Any = {
            "v": 4,
            "ts": f"2026-05-01T00:00:{self.step:02}+00:00",
            "id": str(uuid6(clock_seq=self.step)),
            "channel_values": values,
            "channel_versions": dict(self.versions),
            "versions_seen": {"node": dict(self.versions)},
            "updated_channels": sorted(new),
        }
        described: Any = {"source": "loop", "step": self.step, "parents": {}, **metadata}
        self.step += 1
        self.config = self.saver.put(self.config, checkpoint, described, new)
        return self.config

    def values(self) -> Any:
        found = self.saver.get_tuple(self.config)
        assert found is not None
        return found.checkpoint["channel_values"]
