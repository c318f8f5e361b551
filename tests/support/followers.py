"""Followers of runs in threads, for tests."""

from __future__ import annotations

import threading
from typing import Any

from limpet.handle import RunHandle
from support.graphs import SOON

Event = dict[str, Any]


class Client(threading.Thread):
    """A follower in a thread of its own, with what it was given."""

    def __init__(self, handle: RunHandle[Any], after: str | None = None, stop_after: int = -1) -> None:
        super().__init__(daemon=True)
        self.handle, self.after, self.stop_after = handle, after, stop_after
        self.events: list[Event] = []
        self.error: Exception | None = None
        self.start()

    def run(self) -> None:
        try:
            for event in self.handle.events(self.after):
                self.events.append(event)
                if len(self.events) == self.stop_after:
                    return
        except Exception as error:
            self.error = error

    def all(self) -> list[Event]:
        """What it was given until the run ended."""
        self.join(SOON)
        assert not self.is_alive()
        return self.events
