"""Stores of five methods, as users write them."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any, Dict, List, Optional  # noqa: UP035  # as it was found

from limpet import CheckpointState, CheckpointStore, PauseMetadata


# fmt: off
class InMemoryCheckpointStore(CheckpointStore):
    """In-memory checkpoint storage (default)."""

    def __init__(self):
        self._checkpoints: Dict[str, CheckpointState] = {}  # noqa: UP006

    def save(self, state: CheckpointState) -> None:
        """Store checkpoint in memory."""
        self._checkpoints[state.checkpoint_id] = state

    def load(self, checkpoint_id: str) -> Optional[CheckpointState]:  # noqa: UP045
        """Retrieve checkpoint from memory."""
        return self._checkpoints.get(checkpoint_id)

    def delete(self, checkpoint_id: str) -> None:
        """Remove checkpoint from memory."""
        self._checkpoints.pop(checkpoint_id, None)

    def list(self, workflow_name: Optional[str] = None) -> List[CheckpointState]:  # noqa: UP006, UP045
        """List checkpoints, optionally filtered."""
        checkpoints = list(self._checkpoints.values())
        if workflow_name:
            return [cp for cp in checkpoints if cp.workflow_name == workflow_name]
        return checkpoints

    def cleanup_expired(self, max_age_hours: int = 24) -> int:
        """Remove checkpoints older than max_age_hours."""
        now = datetime.utcnow()
        expired = [
            cp_id for cp_id, cp in self._checkpoints.items()
            if (now - cp.created_at).total_seconds() > max_age_hours * 3600
        ]
        for cp_id in expired:
            del self._checkpoints[cp_id]
        return len(expired)
# fmt: on


class JsonCheckpointStore:
    """One JSON file for all. Derives from nothing, and knows that its saves outlive the process."""

    level = "process"

    def __init__(self, path: Path) -> None:
        self.path = path

    def save(self, state: CheckpointState) -> None:
        self._write({**self._read(), state.checkpoint_id: asdict(state)})

    def load(self, checkpoint_id: str) -> CheckpointState | None:
        found = self._read().get(checkpoint_id)
        return None if found is None else _restored(found)

    def delete(self, checkpoint_id: str) -> None:
        rest = self._read()
        rest.pop(checkpoint_id, None)
        self._write(rest)

    def list(self, workflow_name: str | None = None) -> Any:
        return [
            _restored(each)
            for each in self._read().values()
            if workflow_name in (None, each["workflow_name"])
        ]

    def cleanup_expired(self, max_age_hours: int = 24) -> int:
        raise NotImplementedError

    def _read(self) -> dict[str, Any]:
        return json.loads(self.path.read_text()) if self.path.exists() else {}

    def _write(self, everything: dict[str, Any]) -> None:
        self.path.write_text(json.dumps(everything, default=datetime.isoformat))


def _restored(data: dict[str, Any]) -> CheckpointState:
    pause = data["pause_metadata"]
    return CheckpointState(
        **{
            **data,
            "created_at": datetime.fromisoformat(data["created_at"]),
            "pause_metadata": None if pause is None else PauseMetadata(**pause),
        }
    )
