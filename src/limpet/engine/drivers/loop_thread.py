"""An event loop in a thread of its own, for the async nodes of a synchronous run."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from typing import Any

from limpet.engine.drivers.call import Interrupted, awaited, timed_out
from limpet.engine.loop.commands import Failed
from limpet.engine.node_context.node_context import NodeContext


class EventLoop:
    """Started with the first async node, ended with the run."""

    def __init__(self) -> None:
        import asyncio

        self._closing = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="limpet-async", daemon=True)
        self._thread.start()

    def run(self, task: NodeContext, result: Awaitable[Any]) -> Any:
        """Await a node's result there, for as long as the node may take, and return its outcome."""
        import asyncio

        async def work() -> Any:
            try:
                return await awaited(task, result)
            except (KeyboardInterrupt, SystemExit) as error:
                return Interrupted(error)  # it isn't for the thread of the event loop, which would end of it

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

    def begin(
        self, task: NodeContext, result: Awaitable[Any], done: Callable[[tuple[NodeContext, Any]], None]
    ) -> None:
        """Await a node's result there, beside others; `done` is called with its outcome, in that thread."""
        import asyncio

        async def work() -> None:
            try:
                async with asyncio.timeout(task.plan_node.timeout):
                    outcome = await awaited(task, result)
            except TimeoutError:
                outcome = timed_out(task)
            except asyncio.CancelledError as error:
                if self._closing:
                    raise
                outcome = Failed(error)
            except BaseException as error:
                outcome = Interrupted(error)
            done((task, outcome))

        asyncio.run_coroutine_threadsafe(work(), self._loop)

    def close(self) -> None:
        """Cancel what still runs and end the thread."""
        import asyncio

        async def wind_down() -> None:
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for each in others:
                each.cancel()
            await asyncio.gather(*others, return_exceptions=True)
            await self._loop.shutdown_asyncgens()

        self._closing = True
        try:
            asyncio.run_coroutine_threadsafe(wind_down(), self._loop).result(5)
        except TimeoutError:
            from logging import getLogger

            getLogger("limpet.run").warning("an async node blocks its event loop, which is left behind")
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()
