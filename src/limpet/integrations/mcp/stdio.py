"""A server over the standard streams of its process: one client, which has started it.

Nothing but messages may reach standard output. So its descriptor is taken away from the process first: what a node, a
module or a child process prints goes to standard error, and reading standard input gives nothing.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from threading import Thread
from typing import Any, Final, NamedTuple, cast

from anyio.to_thread import run_sync
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

from limpet.threads.workers import start_thread

PART: Final = 1 << 16
"""Bytes that are read at once."""

STOP_LIMIT: Final = 2.0
"""Seconds that `stop` waits until calls under way have ended."""


class Wire(NamedTuple):
    """The descriptors of the client: nothing else in this process has them."""

    reading: int
    writing: int


@contextmanager
def claimed_wire() -> Iterator[Wire]:
    """Take the standard streams for messages, while the block runs. Prints go to standard error meanwhile."""
    sys.stdout.flush()
    wire = Wire(os.dup(0), os.dup(1))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    try:
        yield wire
    finally:
        with suppress(OSError, ValueError):
            sys.stdout.flush()  # what was printed meanwhile
        # The descriptors stay open: a thread may still be reading, until the process ends.
        os.dup2(wire.reading, 0)
        os.dup2(wire.writing, 1)


def serve_stdio(server: Server[Any]) -> None:
    """Serve one client over the standard streams, until it closes standard input."""
    with claimed_wire() as wire:
        serving = StdioServer(server, wire)
        serving.start()
        serving.wait()
    if serving.problem is not None:
        raise serving.problem


class StdioServer:
    """A server that a thread serves to the client of a wire, until the client leaves or it is stopped."""

    def __init__(self, server: Server[Any], wire: Wire) -> None:
        self._server = server
        self._wire = wire
        self._loop: asyncio.AbstractEventLoop | None = None
        self._serving: asyncio.Task[None] | None = None
        # A daemon, and so are the threads that it starts: the process can end while one of them waits.
        self._thread = Thread(target=self._run, name="limpet-mcp", daemon=True)
        self.problem: BaseException | None = None
        """Why the thread has ended, if that wasn't asked of it."""

    def start(self) -> None:
        """Serve from now on. Raises `RuntimeError` if no thread can be started."""
        self._thread.start()

    def has_ended(self) -> bool:
        """Whether nothing is served any more: the client has closed standard input, or something is wrong."""
        return not self._thread.is_alive()

    def wait(self) -> None:
        """Wait until the client leaves."""
        self._thread.join()

    def stop(self) -> None:
        """End the calls under way; their runs stay as they are."""
        loop = self._loop
        serving = self._serving
        if loop is not None and serving is not None:
            with suppress(RuntimeError):  # it has ended meanwhile
                loop.call_soon_threadsafe(serving.cancel)
        self._thread.join(STOP_LIMIT)

    def _run(self) -> None:
        try:
            with suppress(asyncio.CancelledError):
                asyncio.run(self._serve())
        except BaseException as problem:
            self.problem = problem

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._serving = asyncio.current_task()
        lines = _Lines(self._wire.reading)
        output = _Output(self._wire.writing)
        # The SDK makes messages of the lines. What it takes as files are two objects that don't block.
        streams = stdio_server(cast(Any, lines), cast(Any, output))
        async with streams as (reading, writing):
            await self._server.run(reading, writing, self._server.create_initialization_options())


class _Lines:
    """The lines of the client, which a thread reads: a read can't be interrupted, and waits as long as it likes."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue(16)
        start_thread(self._read, "limpet-mcp-reader")

    async def __aiter__(self) -> AsyncIterator[str]:
        while (line := await self._queue.get()) is not None:
            yield line.decode("utf-8", "replace")

    def _read(self) -> None:
        begun: list[bytes] = []
        """The parts of a line that hasn't ended: a large one has many."""
        with suppress(Exception):  # the loop has ended, or the descriptor is gone
            while part := os.read(self._descriptor, PART):
                first, *others = part.split(b"\n")
                begun.append(first)
                for other in others:
                    self._put(b"".join(begun))
                    begun = [other]
        with suppress(Exception):
            self._put(None)

    def _put(self, line: bytes | None) -> None:
        """Hand over a line, once there is room for it."""
        asyncio.run_coroutine_threadsafe(self._queue.put(line), self._loop).result()


class _Output:
    """What is written to the client. Another thread writes, as a client may be slow to read."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    async def write(self, text: str) -> None:
        """Write a message whole. It is lost if the client is gone."""
        with suppress(BrokenPipeError):
            await run_sync(self._write, text.encode("utf-8", "replace"), abandon_on_cancel=True)

    async def flush(self) -> None:
        """Nothing is held back."""

    def _write(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            left = left[os.write(self._descriptor, left) :]
