"""Followers of runs in threads, for tests."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from limpet.handle import RunHandle
from support.graphs import SOON

Event = dict[str, Any]


class Client(threading.Thread):
    """A follower in a thread of its own, with what it was given."""

    def __init__(
        self,
        handle: RunHandle[Any],
        after: str | None = None,
        stop_after: int = -1,
        *,
        asynchronous: bool = False,
    ) -> None:
        super().__init__(daemon=True)
        self.handle, self.after, self.stop_after = handle, after, stop_after
        self.asynchronous = asynchronous
        self.events: list[Event] = []
        self.error: Exception | None = None
        self.start()

    def run(self) -> None:
        try:
            if self.asynchronous:
                asyncio.run(self._follow())
                return
            for event in self.handle.events(self.after):
                self.events.append(event)
                if len(self.events) == self.stop_after:
                    return
        except Exception as error:
            self.error = error

    async def _follow(self) -> None:
        async for event in self.handle.aevents(self.after):
            self.events.append(event)
            if len(self.events) == self.stop_after:
                return

    def all(self) -> list[Event]:
        """What it was given until the run ended."""
        self.join(SOON)
        assert not self.is_alive()
        return self.events
