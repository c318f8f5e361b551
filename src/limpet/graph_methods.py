"""The calls that run a graph, or have it run, and those that change what its runs will do. Every kind has them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast

from limpet.async_twins import twin
from limpet.durations import Span, seconds_of
from limpet.engine.leases.lease_client import nudge
from limpet.engine.node_context.questions import NOT_GIVEN
from limpet.engine.node_context.resume_input import ResumeInput
from limpet.engine.operations import records
from limpet.engine.sessions import checkpoint_refs as references
from limpet.engine.sessions import resume as entry
from limpet.engine.sessions import start as creation
from limpet.engine.sessions.session import Session
from limpet.errors import UsageError
from limpet.graph_inspection import GraphInspection
from limpet.graphs.state import State, new_id
from limpet.run import AsyncRun, Run

if TYPE_CHECKING:
    from limpet.queued_run import QueuedRun

Config = Mapping[str, Any] | None
S = TypeVar("S", bound=State)


class GraphMethods(GraphInspection[S]):
    """A graph that can be run, on states of its own kind. What it gives: a `name`, and `compiled()`."""

    def invoke(
        self,
        input: Any = None,
        config: Config = None,
        checkpoint: str | os.PathLike[str] | None = None,
        *,
        run_id: str | None = None,
        tags: Iterable[str] = (),
    ) -> Run[S]:
        """Start a run, or go on from a checkpoint; iterate what this returns for its events.

        It begins when it is iterated, or when its `state` is read; `execute` runs it to the end at once.
        Events are dicts: `interrupt` and `pause` (`node`, `state`, `checkpoint_path`), `error`, `cancelled` and
        `final` (`state`). With `checkpoint`, the input is the answer to an open question or else a dict that is
        merged into the saved state, and `config` is merged over the saved one. A checkpoint is the
        `checkpoint_path` of an event, or the path of a checkpoint file.
        """
        return Run(*self._prepare(input, config, checkpoint, run_id, tags, stream=False))

    def stream(
        self,
        input: Any = None,
        config: Config = None,
        checkpoint: str | os.PathLike[str] | None = None,
        *,
        run_id: str | None = None,
        tags: Iterable[str] = (),
    ) -> Run[S]:
        """The same as `invoke`, with a `state` event (`node`, `state`) after every node as well."""
        return Run(*self._prepare(input, config, checkpoint, run_id, tags, stream=True))

    def execute(
        self, input: Any = None, config: Config = None, *, run_id: str | None = None, tags: Iterable[str] = ()
    ) -> S:
        """Run to the end and return the final State, which knows its `run_id`.

        Raises `ExecutionError` when a node fails or a save does, `RunPaused` when the run waits for somebody,
        `RunCancelled`, and `Conflict` when somebody else took the run over.
        """
        return self.invoke(input, config, run_id=run_id, tags=tags).result()

    def resume(
        self,
        run_id: str,
        value: Any = NOT_GIVEN,
        *,
        response: Any = NOT_GIVEN,
        answers: Mapping[str, Any] | None = None,
        update: Mapping[str, Any] | None = None,
        config: Config = None,
        wait: float | None = None,
    ) -> S:
        """Go on with a stored run, to its end; finished nodes don't run again.

        `value` (or `response`) answers the open question of a paused run; without one it is a dict that is
        merged into the state. `answers` are by question id, `update` is always for the state. `wait` is how
        many seconds to wait for a holder that is alive. Raises what `execute` does, and `RunNotFound`,
        `AlreadyCompleted`, `AnswerRefused`, and `Conflict` naming the holder.
        """
        given = given_to(value, response, answers, update, config)
        run: Run[S] = Run(run_id, self._resuming(run_id, given, wait))
        return run.result()

    def ainvoke(
        self,
        input: Any = None,
        config: Config = None,
        checkpoint: str | os.PathLike[str] | None = None,
        *,
        run_id: str | None = None,
        tags: Iterable[str] = (),
    ) -> AsyncRun[S]:
        """`invoke` for `async for`."""
        return AsyncRun(*self._prepare(input, config, checkpoint, run_id, tags, stream=False))

    def astream(
        self,
        input: Any = None,
        config: Config = None,
        checkpoint: str | os.PathLike[str] | None = None,
        *,
        run_id: str | None = None,
        tags: Iterable[str] = (),
    ) -> AsyncRun[S]:
        """`stream` for `async for`."""
        return AsyncRun(*self._prepare(input, config, checkpoint, run_id, tags, stream=True))

    async def aexecute(
        self, input: Any = None, config: Config = None, *, run_id: str | None = None, tags: Iterable[str] = ()
    ) -> S:
        """`execute` without blocking the event loop."""
        return await self.ainvoke(input, config, run_id=run_id, tags=tags).result()

    async def aresume(
        self,
        run_id: str,
        value: Any = NOT_GIVEN,
        *,
        response: Any = NOT_GIVEN,
        answers: Mapping[str, Any] | None = None,
        update: Mapping[str, Any] | None = None,
        config: Config = None,
        wait: float | None = None,
    ) -> S:
        """`resume` without blocking the event loop."""
        given = given_to(value, response, answers, update, config)
        run: AsyncRun[S] = AsyncRun(run_id, self._resuming(run_id, given, wait))
        return await run.result()

    def start(
        self,
        input: Any = None,
        config: Config = None,
        *,
        run_id: str | None = None,
        tags: Iterable[str] = (),
        priority: int = 0,
        delay: Span = 0.0,
    ) -> QueuedRun[S]:
        """Create a run in the store and return; any supervisor of the store executes it.

        `run_id` is an idempotency key: the same one twice is one run, the first. Those of a higher `priority` come
        first; `delay` is how long to wait before it begins. What the run came to is kept until it is deleted
        or expires. Raises `UsageError` without a store, `RunExists` if the id is that of another graph's run.
        """
        from limpet.queued_run import QueuedRun

        compiled, labels = self.compiled(), _tags(tags)
        if type(priority) is not int:
            raise UsageError(f"priority is a whole number, not {priority!r}")
        named, seconds = creation.check_id(new_id() if run_id is None else run_id), seconds_of(delay, "delay")
        creation.enqueue(compiled, input, config, named, labels, priority, seconds)
        client = compiled.need_client("start")
        nudge(client.store)
        return QueuedRun(named, client, self.state_at)

    enqueue = start

    astart = twin(start)

    def answer(
        self,
        run_id: str,
        value: Any = NOT_GIVEN,
        *,
        answers: Mapping[str, Any] | None = None,
        wait: float | None = None,
    ) -> None:
        """Answer what a paused run asks, and leave it to a supervisor to go on; `resume` would go on here.

        The answer is durable when this returns. Raises `AnswerRefused`, `RunPaused` if nothing was answered,
        `RunNotFound`, `Conflict`, `UsageError` for a run that asks nothing.
        """
        entry.answer(self.compiled().need_client("answer"), run_id, ResumeInput(value, answers), wait)

    aanswer = twin(answer)

    def recover(self, *, concurrency: int = 16, max_crashes: int = 3) -> list[str]:
        """Go on with all runs of this graph that nobody goes on with, each to its next stop; returns their ids.

        One sweep: those that were queued, whose process died, whose sleep or deadline is over. `supervise` does it
        for as long as it is there.
        """
        from limpet.engine.supervisor.catalog import GraphCatalog
        from limpet.engine.supervisor.supervisor import Supervisor, SupervisorOptions

        client = self.compiled().need_client("recover")
        options = SupervisorOptions(client.ttl, concurrency, max_crashes=max_crashes)
        return Supervisor(client.store, GraphCatalog([cast(Any, self)]), options).drain()

    arecover = twin(recover)

    def cancel(self, run_id: str) -> None:
        """Stop a run between two nodes, whichever process it is in. What it saved can be resumed.

        Raises `RunNotFound`, and `UsageError` for a run that has ended.
        """
        records.cancel(self.compiled().need_client("cancel"), run_id)

    acancel = twin(cancel)

    def fork(
        self,
        run_id: str,
        step: int | None = None,
        update: Mapping[str, Any] | None = None,
        *,
        new_run_id: str | None = None,
        tags: Iterable[str] = (),
    ) -> Run[S]:
        """A new run that begins where `run_id` stood after `step` (its newest, if None), with `update` merged in.

        It is stored when this returns, and goes on when it is iterated. The old run is left as it is.
        """
        compiled = self.compiled()
        made = records.fork(compiled, run_id, step, update, new_run_id, _tags(tags))
        return Run(made, self._resuming(made, ResumeInput(), None))

    async def afork(
        self,
        run_id: str,
        step: int | None = None,
        update: Mapping[str, Any] | None = None,
        *,
        new_run_id: str | None = None,
        tags: Iterable[str] = (),
    ) -> AsyncRun[S]:
        """`fork` without blocking the event loop; the new run is one for `async for`."""
        from asyncio import to_thread

        run = await to_thread(self.fork, run_id, step, update, new_run_id=new_run_id, tags=tags)
        return AsyncRun(run.id, self._resuming(run.id, ResumeInput(), None))

    def rollback(self, run_id: str, step: int) -> S:
        """Set a run back to where it stood after `step`, and return the state there; `resume` goes on from it."""
        return cast(S, records.rollback(self.compiled(), run_id, step))

    arollback = twin(rollback)

    def _prepare(
        self,
        input: Any,
        config: Config,
        checkpoint: str | os.PathLike[str] | None,
        run_id: str | None,
        tags: Iterable[str],
        stream: bool,
    ) -> tuple[str, Callable[[], Session]]:
        compiled, labels = self.compiled(), _tags(tags)
        if checkpoint is None:
            fresh = isinstance(input, State) and input.checkpoint_node is None
            named = creation.check_id(run_id if run_id is not None else input.run_id if fresh else new_id())
            return named, lambda: creation.start(compiled, input, config, named, labels, stream)
        if run_id is not None:
            raise UsageError("a checkpoint belongs to its run: give checkpoint= or run_id=, not both")
        given = ResumeInput(NOT_GIVEN if input is None else input, config=config)
        return references.run_of(checkpoint), lambda: entry.recall(compiled, checkpoint, given, stream)

    def _resuming(self, run_id: str, given: ResumeInput, wait: float | None) -> Callable[[], Session]:
        compiled = self.compiled()
        if not isinstance(run_id, str):
            raise UsageError(f"a run is resumed by its id, a str, not {run_id!r}; of a Run, that is .id")
        return lambda: entry.resume(compiled, run_id, given, wait, stream=False)


def given_to(value: Any, response: Any, answers: Any, update: Any, config: Config) -> ResumeInput:
    """What a resume brings along. Raises `UsageError` for an answer that is given twice."""
    if value is not NOT_GIVEN and response is not NOT_GIVEN:
        raise UsageError("give the answer once: as the second argument or as response=")
    return ResumeInput(value if response is NOT_GIVEN else response, answers, update, config)


def _tags(tags: Iterable[str]) -> tuple[str, ...]:
    found = (tags,) if isinstance(tags, str) else tuple(tags)
    if not all(isinstance(tag, str) and tag for tag in found):
        raise UsageError(f"tags are non-empty strs, not {found!r}")
    return found
