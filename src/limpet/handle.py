"""`RunHandle`: one stored run, by its id, in any process: look at it, wait for it, follow it, and change it."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from limpet.durations import Moment, patience_of
from limpet.engine.following import follow
from limpet.engine.leases.lease_client import LeaseClient
from limpet.engine.loop.stop_errors import error_of_stopped
from limpet.engine.node_context.questions import NOT_GIVEN, ResumeInput
from limpet.engine.operations.run_info import (
    ABANDONED,
    QUEUED,
    RunInfo,
    info_at_last_stop,
    info_by_head,
    info_of,
    way_on,
)
from limpet.engine.operations.stored_state import as_state, checkpoints, viewed_progress
from limpet.engine.sessions.compiled_graph import CompiledGraph
from limpet.engine.sessions.start import tag_names
from limpet.errors import LimpetError, RunPaused, UsageError
from limpet.graphs.state import State
from limpet.journal.reader import Checkpoint
from limpet.journal.store import CANCELLED, COMPLETED, FAILED, PAUSED, RUNNING
from limpet.journal.threads.kinds import foreign_run, refuse_thread
from limpet.journal.waits import PostWait, Question, reason_of
from limpet.threads.async_methods import async_version

if TYPE_CHECKING:
    from limpet.journal.verify import Verification

S = TypeVar("S", bound=State)


class RunHandle(Generic[S]):
    """A run in a store, whichever process executes it. `graph.get(id)`, `Runs(store).get(id)` and `start` return it.

    It holds nothing: each call asks the store. What changes the run may be called from any process. Every method has
    an async version, whose name begins with an `a`, that doesn't block the event loop; `await_` is that of `wait`.
    """

    _is_shown = False
    """Whether the cell of a notebook that is executed shows it already: `live` does."""

    def __init__(self, run_id: str, client: LeaseClient, compiled: CompiledGraph | None = None) -> None:
        self.run_id = run_id
        """The id of the run."""
        self._client = client
        self._compiled = compiled

    @property
    def id(self) -> str:
        """`run_id`, by the name that a `Run` has for it."""
        return self.run_id

    @property
    def info(self) -> RunInfo:
        """What the store knows of the run. A damaged one has the status `damaged`.

        Raises `RunNotFound` once the run has been deleted or has expired.
        """
        return info_of(self._client, self.run_id)

    @property
    def status(self) -> str:
        """`running` (also while it is queued), `paused`, `completed`, `failed` or `cancelled`."""
        return self._info_at_last_stop.status

    @property
    def shown_status(self) -> str:
        """The status as people see it: `status`, or finer: `queued`, `sleeping`, `retrying`, `waiting`, `abandoned`,
        `quarantined`.
        """
        return self._info_at_last_stop.shown_status

    @property
    def graph(self) -> str:
        """The name of the run's graph."""
        return self._info_at_last_stop.graph

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags that the run was created with."""
        return self._info_at_last_stop.tags

    @property
    def questions(self) -> list[Question]:
        """What the run asks. A branch may ask while others are under way; a cancelled run asks nothing."""
        return self._info_at_last_stop.questions

    @property
    def state(self) -> S:
        """The newest state that was saved. A value whose class isn't known here is an `UnknownValue`."""
        plan = None if self._compiled is None else self._compiled.plan
        return cast(S, as_state(viewed_progress(self._client, self.run_id), plan))

    async def ainfo(self) -> RunInfo:
        """`info` without blocking the event loop."""
        from asyncio import to_thread

        return await to_thread(lambda: self.info)

    async def astate(self) -> S:
        """`state` without blocking the event loop."""
        from asyncio import to_thread

        return await to_thread(lambda: self.state)

    def history(self) -> list[Checkpoint]:
        """The steps of the run, oldest first, as far as its journal goes back."""
        return checkpoints(self._client, self.run_id)

    ahistory = async_version(history)

    def children(self) -> list[RunInfo]:
        """The runs that nodes of this run have started, newest first."""
        from limpet.engine.operations.run_query import RunQuery, list_runs

        return list_runs(self._client, RunQuery(parent=self.run_id), None)

    achildren = async_version(children)

    def wait(self, timeout: float | None = None) -> RunInfo:
        """Wait until the run ends, pauses or asks something, and return what is known of it then.

        A branch or task may ask while others continue: then the status is `running`, and `questions` has what it
        asks. If that is so already, this returns at once; but an answer that was given is waited for until the run
        has taken it in. A store that becomes unavailable meanwhile is waited for, too. Raises `TimeoutError`.
        """
        return self._wait(timeout, follow.has_stopped_or_asks)

    async def await_(self, timeout: float | None = None) -> RunInfo:
        """`wait` without blocking the event loop, or a thread."""
        return await self._await(timeout, follow.has_stopped_or_asks)

    def result(self, timeout: float | None = None) -> S:
        """Wait until the run ends or pauses, and return the final state.

        Raises `ExecutionError` for a run that failed, `RunQuarantined`, `RunCancelled`, `RunPaused` for one that
        waits for an answer or an approval, `RunNotFound`, and `TimeoutError`.
        """
        info = self._wait(timeout, follow.has_stopped)
        if info.status == COMPLETED:
            return self.state
        raise _why_no_result(info)

    async def aresult(self, timeout: float | None = None) -> S:
        """`result` without blocking the event loop, or a thread."""
        info = await self._await(timeout, follow.has_stopped)
        if info.status == COMPLETED:
            return await self.astate()
        raise _why_no_result(info)

    def events(self, after: str | None = None) -> Iterator[dict[str, Any]]:
        """What happened in the run, and what happens from now on, until it completes, fails or is cancelled.

        Each event is a dict with its `type`, the `run_id`, the time `at`, and a `cursor`. `after` is the cursor of an
        event, also one from another process: the events after it are given, none twice and none left out. A paused
        run keeps the caller waiting for what comes next. `docs/how-to/runs-in-your-hands.md` lists the events.
        The caller waits while the store is unavailable, unless it is from the beginning on.

        Raises `RunNotFound`, also when the run is deleted meanwhile, `DamagedRecord` if no snapshot follows a damaged
        record, and `UsageError` for a cursor that isn't one of this run.
        """
        return follow.follow(self._client, self.run_id, after, self._secrets)

    def aevents(self, after: str | None = None) -> AsyncIterator[dict[str, Any]]:
        """`events` for `async for`."""
        return follow.afollow(self._client, self.run_id, after, self._secrets)

    def answer(
        self,
        value: Any = NOT_GIVEN,
        *,
        answers: Mapping[str, Any] | None = None,
        by: str | None = None,
        wait: float | None = None,
    ) -> None:
        """Answer what the run asks; the process that executes it, or a supervisor, continues it.

        `value` answers the open question, `answers` are by question id. Without either, a run that was interrupted
        before or after a node is approved. `by` says who answers, for its history. `wait` is how many seconds to
        wait for a process that holds the run, in a store that takes no posts. The answer is durable when this
        returns. Raises `AnswerRefused`,
        `AlreadyAnswered`, `RunPaused` if nothing was answered, `RunCancelled` for a cancelled run, which asks again
        once it is retried, `AlreadyCompleted`, `RunNotFound`, `Conflict`, and `UsageError` for one that waits for no
        answer.
        """
        from limpet.engine.operations.answer import answer

        answer(self._client, self.run_id, ResumeInput(value, answers, by=by), wait)

    aanswer = async_version(answer, changes=True)

    def send(self, name: str, value: Any, *, key: str | None = None) -> bool:
        """Send a message to the run, at any time before it ends; `receive(name)` in one of its nodes gets the value.

        Messages of one name are received in the order in which they were sent. With a `key`, sending is idempotent:
        of several messages with this name and key, the first counts; the others have no effect, whatever their value,
        and this returns False. The message is durable when this returns. If a node waits for it, the process that
        executes the run, or a supervisor of the store, continues the run. Raises `RunNotFound`, `UnstorableValue`,
        `AlreadyCompleted` for a completed run, and `UsageError` for one that failed or was cancelled, and for a store
        that takes no messages.
        """
        from limpet.engine.operations.send import send

        return send(self._client, self.run_id, name, value, key)

    asend = async_version(send, changes=True)

    def cancel(self) -> None:
        """Stop the run, whichever process executes it. It can be continued from what it saved.

        Async nodes are interrupted, and sync ones finish or stop at `ctx.check()`; nothing new begins. Raises
        `RunNotFound`, and `UsageError` for a run that has completed or failed. One that is
        cancelled already stays as it is.
        """
        from limpet.engine.operations.cancel import cancel

        cancel(self._client, self.run_id)

    acancel = async_version(cancel, changes=True)

    def retry(self, update: Mapping[str, Any] | None = None, *, deadline: Moment | None = None) -> None:
        """Hand a run that failed, or was cancelled or quarantined, back to the workers, from where it stopped.

        A fork, and a run that was rolled back, can be handed to them, too. Finished nodes don't run again; the one
        that failed gets all its attempts again. `update` is merged into the state, which needs the graph. `deadline`
        replaces that of the run. Raises `RunNotFound`, `AlreadyCompleted`, `Conflict`, `DeadlinePassed` for a run
        that needs a new deadline, and `UsageError` for a run that hasn't stopped, or that waits for an answer or an
        approval.
        """
        from limpet.engine.operations.retry import retry

        retry(self._client, self.run_id, update, self._compiled, deadline)

    aretry = async_version(retry, changes=True)

    def fork(
        self,
        step: int | None = None,
        update: Mapping[str, Any] | None = None,
        *,
        new_run_id: str | None = None,
        tags: Iterable[str] = (),
    ) -> RunHandle[S]:
        """Create a run that starts where this one was after `step` (its newest, if None), with `update` merged in.

        The new run has the id `new_run_id`, or a new one, and its own `tags`. It is paused: its `retry`
        hands it to the workers, and `graph.resume` runs it here. This one stays as it is. Raises `UsageError` if the
        graph isn't known, and `DefinitionError` if it can't resume from there.
        """
        from limpet.engine.operations.fork import fork

        compiled = self._need_graph("fork")
        forked = fork(compiled, self.run_id, step, update, new_run_id, tag_names(tags))
        return RunHandle(forked, self._client, compiled)

    afork = async_version(fork, changes=True)

    def rollback(self, step: int) -> S:
        """Set the run back to where it was after `step`, paused, and return the state there. Its history stays.

        `retry` hands it to the workers, and `graph.resume` runs it here. Raises `UsageError` if the
        graph isn't known, `Conflict` while another process advances the run, and `DefinitionError` if the graph can't
        resume from there.
        """
        from limpet.engine.operations.rollback import rollback

        return cast(S, rollback(self._need_graph("rollback"), self.run_id, step))

    arollback = async_version(rollback, changes=True)

    def export(self, path: str | os.PathLike[str]) -> None:
        """Write the run with its whole journal to one file, replacing a file that exists; `import_` reads it.

        The run stays as it is. The file isn't encrypted. Raises `RunNotFound`, `Conflict` while another process
        advances the run, `DamagedRecord`, and `StoreUnavailable` if the file can't be written.
        """
        from limpet.engine.operations.export import export_run

        export_run(self._client, self.run_id, path)

    aexport = async_version(export)

    def verify(self) -> Verification:
        """Which parts of the stored run are damaged, and which can still be read. Changes nothing.

        Damage is reported, not raised. Raises `RunNotFound`, and `KeyMissing` if the store has no key for the run.
        """
        from limpet.journal.verify import verify

        return verify(self._client.store, self.run_id)

    averify = async_version(verify)

    def delete(self) -> None:
        """Delete the run and its journal. Raises `RunNotFound`, and `Conflict` while a process holds the run."""
        self._client.delete(self.run_id)

    adelete = async_version(delete, changes=True)

    def __repr__(self) -> str:
        return f"<RunHandle {self.run_id}>"

    def _repr_html_(self) -> str | None:
        """What a notebook shows: its status, graph, questions and state. Never raises."""
        if self._is_shown:
            return None
        from limpet.engine.views.run_view import html_of_stored

        return html_of_stored(self._client, self.run_id, self._compiled)

    @property
    def _info_at_last_stop(self) -> RunInfo:
        """`info` without the position, for which the journal would be read."""
        return info_at_last_stop(self._client, self.run_id)

    @property
    def _secrets(self) -> frozenset[str]:
        """The keys that are secret by the code of the graph. Its runs know those that were when they were created."""
        return frozenset() if self._compiled is None else self._compiled.plan.secrets

    def _need_graph(self, call: str) -> CompiledGraph:
        if self._compiled is None:
            refuse_thread(self._client.head(self.run_id))
            unknown = UsageError(f"{call}() checks run {self.run_id!r} against its graph, {self.graph!r}")
            raise unknown.with_advice("give it with Runs(store, graphs=[…]), or ask graph.get(…) for the run")
        return self._compiled

    def _wait(self, timeout: float | None, is_enough: follow.IsEnough) -> RunInfo:
        patience = patience_of(timeout, "timeout")
        head = follow.wait_for(self._client, self.run_id, patience, is_enough)
        if head is None:
            raise self._too_late(timeout)
        return info_by_head(self._client, head)

    async def _await(self, timeout: float | None, is_enough: follow.IsEnough) -> RunInfo:
        from asyncio import to_thread

        patience = patience_of(timeout, "timeout")
        head = await follow.await_for(self._client, self.run_id, patience, is_enough)
        if head is None:
            raise await to_thread(self._too_late, timeout)
        return await to_thread(info_by_head, self._client, head)

    def _too_late(self, timeout: float | None) -> TimeoutError:
        status = RUNNING
        waits: Sequence[PostWait] = ()
        with suppress(LimpetError):  # the store may be unavailable
            info = self.info
            status = info.shown_status
            waits = info.waits
        message = f"run {self.run_id!r} is still {status} after {timeout} s"
        if status in (QUEUED, ABANDONED):
            message += "; is a supervisor running for its graph?"
        elif waits:
            message += f": {reason_of(waits)}"
        return TimeoutError(message)


def _why_no_result(info: RunInfo) -> LimpetError:
    run_id = info.run_id
    if info.kind:
        return foreign_run(run_id, info.kind)
    if info.status == PAUSED:
        paused = RunPaused(run_id, info.reason or "it waits", info.questions, info.node)
        return paused.with_advice(*way_on(info))
    if info.status in (CANCELLED, FAILED):
        error = info.error or {}
        return error_of_stopped(
            run_id, info.status, info.reason, error.get("type"), error.get("node", info.node)
        )
    return UsageError(f"run {run_id!r} is {info.status}")
