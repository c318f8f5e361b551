"""An event loop in a thread, for the async nodes of a synchronous run."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from typing import Any

from limpet.engine.drivers.node_call import Interrupted, await_node, timed_out
from limpet.engine.loop.driver_commands import Failed
from limpet.engine.node_context.node_context import NodeContext

CLOSE_TIMEOUT = 5.0
"""Seconds that nodes have to end after they were cancelled. The thread is a daemon: it can be abandoned."""


class LoopThread:
    """A thread that runs an event loop. It starts with the first async node of a run and ends with the run."""

    def __init__(self) -> None:
        import asyncio

        self._closing = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="limpet-async", daemon=True)
        self._thread.start()

    def run(self, task: NodeContext, result: Awaitable[Any]) -> Any:
        """Await a node's result on the event loop, within its timeout, and return its outcome."""
        import asyncio

        async def work() -> Any:
            try:
                return await await_node(task, result)
            except (KeyboardInterrupt, SystemExit) as error:
                # It must not end the thread of the event loop. The thread of the run raises it again below.
                return Interrupted(error)

        future = asyncio.run_coroutine_threadsafe(work(), self._loop)
        try:
            outcome = future.result(task.plan_node.timeout)
        except TimeoutError:
            future.cancel()
            return timed_out(task)
        except BaseException:
            future.cancel()
            raise
        if isinstance(outcome, Interrupted):
            raise outcome.error
        return outcome

    def start(
        self, task: NodeContext, result: Awaitable[Any], on_done: Callable[[tuple[NodeContext, Any]], None]
    ) -> None:
        """Await a node's result concurrently with others; `on_done` gets its outcome, in the thread of the loop."""
        import asyncio

        async def work() -> None:
            try:
                async with asyncio.timeout(task.plan_node.timeout):
                    outcome = await await_node(task, result)
            except TimeoutError:
                outcome = timed_out(task)
            except asyncio.CancelledError as error:
                if self._closing:
                    raise
                outcome = Failed(error)
            except BaseException as error:
                outcome = Interrupted(error)
            on_done((task, outcome))

        asyncio.run_coroutine_threadsafe(work(), self._loop)

    def close(self) -> None:
        """Cancel what still runs and end the thread."""
        import asyncio

        async def cancel_all() -> None:
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for each in others:
                each.cancel()
            await asyncio.gather(*others, return_exceptions=True)
            await self._loop.shutdown_asyncgens()

        self._closing = True
        try:
            asyncio.run_coroutine_threadsafe(cancel_all(), self._loop).result(CLOSE_TIMEOUT)
        except TimeoutError:
            from logging import getLogger

            getLogger("limpet.run").warning("an async node blocks its event loop; its thread is abandoned")
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CLOSE_TIMEOUT)
        self._loop.close()
