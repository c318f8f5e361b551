"""The methods that every kind of graph has: run it, have it run, and look at its runs."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import wraps
from types import FunctionType, MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, Self, TypeVar, Unpack, cast

from limpet.defaults import KEPT_CHECKPOINTS, MAX_CRASHES, MAX_RUNS_AT_ONCE, RETENTION_HOURS
from limpet.durations import Moment, Span, seconds_of
from limpet.engine.leases.lease_client import LeaseClient, nudge_supervisors
from limpet.engine.node_context.questions import NOT_GIVEN, ResumeInput
from limpet.engine.sessions.compiled_graph import CompiledGraph
from limpet.engine.sessions.start import (
    StartRequest,
    check_deadline,
    check_priority,
    choose_id,
    deadline_for,
    enqueue,
    enqueue_or_find,
    queue_for,
    start,
    start_or_open,
    tag_names,
)
from limpet.errors import DamagedRecord, UsageError
from limpet.graphs.habits.langgraph import method_advice, refuse_command, refuse_keywords, refuse_thread_id
from limpet.graphs.state import State
from limpet.journal.store import ENDED
from limpet.run import AsyncRun, OpenSession, Run
from limpet.threads.async_methods import async_version, change_in_thread

if TYPE_CHECKING:
    from limpet.drawing.draw import Format
    from limpet.drawing.run_marks import RunMarks
    from limpet.engine.operations.run_info import RunList
    from limpet.engine.operations.run_query import MoreFilters
    from limpet.engine.operations.stored_state import Difference
    from limpet.graphs.resources.graph_resources import Resources
    from limpet.handle import RunHandle
    from limpet.journal.reader import Checkpoint
    from limpet.journal.verify import Verification
    from limpet.runs import Runs
    from limpet.stores.retention import Expired, Retention

Config = Mapping[str, Any] | None
IfExists = Literal["resume", "error"]
S = TypeVar("S", bound=State)
Method = TypeVar("Method", bound=Callable[..., Any])


class Invocation(NamedTuple):
    """What `invoke`, `stream` and their async forms were given."""

    input: Any
    config: Config
    checkpoint: str | os.PathLike[str] | None
    run_id: str | None
    tags: Iterable[str]
    if_exists: IfExists
    deadline: Moment | None
    observers: Iterable[Any] = ()
    detailed: bool = False


def _explains_keywords(method: Method) -> Method:
    """Have a method refuse the arguments of LangGraph's method of this name with what to use here."""
    function = cast(FunctionType, method)
    known = frozenset(function.__code__.co_varnames)

    @wraps(method)
    def call(self: Any, /, *args: Any, **given: Any) -> Any:
        if not known.issuperset(given):
            refuse_keywords(function.__name__, given.keys() - known)
        return method(self, *args, **given)

    return cast(Method, call)


class GraphMethods(ABC, Generic[S]):
    """A graph that can be run, on states of its own kind. A subclass has a `name` and defines `compiled()`.

    Graphs may share a store. The calls of a graph reach its own runs, which were created under its name. For a run
    of another graph they raise `WrongGraph`. `Runs(store)` reaches the runs of all graphs.
    """

    name: str

    description = ""
    """What it is for, as tools for agents say it. A YAML file may have one."""

    _raises_errors = False
    """Whether a run that fails raises its error to the caller that iterates it, in place of an `error` event."""

    _child_graphs: Mapping[str, GraphMethods[Any]] = MappingProxyType({})
    """The graphs whose runs its nodes start, by name, where a file says so."""

    _declared_in = ""
    """The path of the file that declares it, if one does."""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """For a method that LangGraph's graphs have: what to use instead."""
            error = AttributeError(
                f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self
            )
            if not name.startswith("_") and (advice := method_advice(name)):
                error.args = (f"{error.args[0]}: {advice}",)
            raise error

    @abstractmethod
    def compiled(self) -> CompiledGraph:
        """The plan and its settings. Raises `DefinitionError`."""

    def _own_resources(self) -> Resources | None:
        """The resources that it was compiled with, if there are any."""
        return None

    def close(self) -> None:
        """Close the resources that its nodes have opened in this process, the newest first.

        `with graph:` does so at its end, and the end of the process does in any case. A run that needs them later
        opens them again. The store stays open. Raises `ResourceFailed` once all were tried.
        """
        resources = self._own_resources()
        if resources is not None:
            resources.close()

    async def aclose(self) -> None:
        """`close` in async code: what was opened on this event loop is closed on it."""
        resources = self._own_resources()
        if resources is not None:
            await resources.aclose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.aclose()

    @_explains_keywords
    def invoke(
        self,
        input: Any = NOT_GIVEN,
        config: Config = None,
        checkpoint: str | os.PathLike[str] | None = None,
        *,
        input_state: Any = NOT_GIVEN,
        run_id: str | None = None,
        tags: Iterable[str] = (),
        deadline: Moment | None = None,
        observers: Iterable[Any] = (),
        if_exists: IfExists = "resume",
    ) -> Run[S]:
        """Start a run, or resume one from a checkpoint; iterate what this returns for its events.

        The input is a dict, a `State`, or an instance of the schema's class; of a workflow, a dict of its inputs. The
        run begins when it is iterated, or when its `state` is read; `execute` runs it to the end at once.
        Events are dicts: `interrupt` and `pause` (`node`, `state`, `checkpoint_path`), `error`, `cancelled` and
        `final` (`state`). With `checkpoint`, the input is the answer to an open question or else a dict that is
        merged into the saved state, and `config` is merged over the saved one. A checkpoint is the
        `checkpoint_path` of an event, the path of a checkpoint file, or the id of a run, for its newest checkpoint.
        Without an answer, a run that waits for one reports its pause again. `input_state` is another name of `input`.
        Nodes read `config` with `ctx.config`; lists of runs can be filtered by `tags`; `observers` watch this run,
        besides those of the graph, for as long as this call executes it. At its `deadline` a run that
        hasn't ended fails with `DeadlinePassed`, wherever it is. That is seconds from now, a `timedelta`, a text such
        as "2h", or a `datetime`.

        A `run_id` means one run for as long as the run is kept. If it exists, and was started by this graph with an
        equal input under this id, it is the run that is meant: if it is complete, its result is reported; if it is
        paused, its pause; one that failed, or that no process executes, is continued here; one that a process
        executes is waited for. One that was cancelled or quarantined raises its error. `RunExists` is raised for
        another graph or input, and always with `if_exists="error"`.
        """
        given = _one_input(input, input_state)
        invocation = Invocation(given, config, checkpoint, run_id, tags, if_exists, deadline, observers)
        opening = self._prepare(invocation, stream=False)
        return Run(*opening, self._raises_errors)

    @_explains_keywords
    def ainvoke(
        self,
        input: Any = NOT_GIVEN,
        config: Config = None,
        checkpoint: str | os.PathLike[str] | None = None,
        *,
        input_state: Any = NOT_GIVEN,
        run_id: str | None = None,
        tags: Iterable[str] = (),
        deadline: Moment | None = None,
        observers: Iterable[Any] = (),
        if_exists: IfExists = "resume",
    ) -> AsyncRun[S]:
        """`invoke` for `async for`."""
        given = _one_input(input, input_state)
        invocation = Invocation(given, config, checkpoint, run_id, tags, if_exists, deadline, observers)
        opening = self._prepare(invocation, stream=False)
        return AsyncRun(*opening, self._raises_errors)

    @_explains_keywords
    def stream(
        self,
        input: Any = NOT_GIVEN,
        config: Config = None,
        checkpoint: str | os.PathLike[str] | None = None,
        *,
        input_state: Any = NOT_GIVEN,
        run_id: str | None = None,
        tags: Iterable[str] = (),
        deadline: Moment | None = None,
        observers: Iterable[Any] = (),
        detailed: bool = False,
        if_exists: IfExists = "resume",
    ) -> Run[S]:
        """The same as `invoke`, with a `state` event (`node`, `state`, `update`) after every node as well.

        What nodes emit comes while they run, as `output` and `progress` events. There are events of branches, of
        attempts that failed and of sleeps, and with `detailed` of every call that begins and every step that is
        saved. `docs/reference/events.md` lists them.
        """
        given = _one_input(input, input_state)
        invocation = Invocation(
            given, config, checkpoint, run_id, tags, if_exists, deadline, observers, detailed
        )
        opening = self._prepare(invocation, stream=True)
        return Run(*opening, self._raises_errors)

    @_explains_keywords
    def astream(
        self,
        input: Any = NOT_GIVEN,
        config: Config = None,
        checkpoint: str | os.PathLike[str] | None = None,
        *,
        input_state: Any = NOT_GIVEN,
        run_id: str | None = None,
        tags: Iterable[str] = (),
        deadline: Moment | None = None,
        observers: Iterable[Any] = (),
        detailed: bool = False,
        if_exists: IfExists = "resume",
    ) -> AsyncRun[S]:
        """`stream` for `async for`."""
        given = _one_input(input, input_state)
        invocation = Invocation(
            given, config, checkpoint, run_id, tags, if_exists, deadline, observers, detailed
        )
        opening = self._prepare(invocation, stream=True)
        return AsyncRun(*opening, self._raises_errors)

    def execute(
        self,
        input: Any = NOT_GIVEN,
        config: Config = None,
        *,
        input_state: Any = NOT_GIVEN,
        run_id: str | None = None,
        tags: Iterable[str] = (),
        deadline: Moment | None = None,
        observers: Iterable[Any] = (),
        if_exists: IfExists = "resume",
    ) -> S:
        """Run to the end and return the final State, which has the `run_id`.

        What it takes is as for `invoke`. With a `run_id`, the same call again means the same run, for as long as the
        run is kept. Raises `ExecutionError` when a node or a save fails, `RunPaused` when the run waits for an answer
        or an approval, `RunCancelled`, `DeadlinePassed`, `RunExists`, and `Conflict` when another process took over
        the run.
        """
        given = _or_nothing(_one_input(input, input_state))
        run = self.invoke(
            given,
            config,
            run_id=run_id,
            tags=tags,
            deadline=deadline,
            observers=observers,
            if_exists=if_exists,
        )
        return run.result()

    async def aexecute(
        self,
        input: Any = NOT_GIVEN,
        config: Config = None,
        *,
        input_state: Any = NOT_GIVEN,
        run_id: str | None = None,
        tags: Iterable[str] = (),
        deadline: Moment | None = None,
        observers: Iterable[Any] = (),
        if_exists: IfExists = "resume",
    ) -> S:
        """`execute` without blocking the event loop."""
        given = _or_nothing(_one_input(input, input_state))
        run = self.ainvoke(
            given,
            config,
            run_id=run_id,
            tags=tags,
            deadline=deadline,
            observers=observers,
            if_exists=if_exists,
        )
        return await run.result()

    def resume(
        self,
        run_id: str,
        value: Any = NOT_GIVEN,
        *,
        response: Any = NOT_GIVEN,
        answers: Mapping[str, Any] | None = None,
        update: Mapping[str, Any] | None = None,
        config: Config = None,
        deadline: Moment | None = None,
        observers: Iterable[Any] = (),
        wait: float | None = None,
    ) -> S:
        """Resume a stored run and run it to its end; finished nodes don't run again.

        `value` (or `response`) answers the open question of a paused run. If the run asks nothing, `value` is a dict
        that is merged into the state. `answers` are by question id, `update` is always for the state, and `config` is
        merged over the stored one. `deadline` replaces that of the run, which a run needs that has failed because its
        own has passed. `wait` is how many seconds to wait for another process that holds the run; `observers` are as
        for `invoke`. Raises what `execute` does, and `RunNotFound`, `AlreadyCompleted`, `AnswerRefused`,
        `AlreadyAnswered`, and `Conflict` naming the holder. A cancelled run is resumed without an answer, and asks
        again.
        """
        given = ResumeInput(value, answers, update, config, deadline=deadline).with_response(response)
        run: Run[S] = Run(run_id, self._resuming(run_id, given, wait, observers))
        return run.result()

    async def aresume(
        self,
        run_id: str,
        value: Any = NOT_GIVEN,
        *,
        response: Any = NOT_GIVEN,
        answers: Mapping[str, Any] | None = None,
        update: Mapping[str, Any] | None = None,
        config: Config = None,
        deadline: Moment | None = None,
        observers: Iterable[Any] = (),
        wait: float | None = None,
    ) -> S:
        """`resume` without blocking the event loop."""
        given = ResumeInput(value, answers, update, config, deadline=deadline).with_response(response)
        run: AsyncRun[S] = AsyncRun(run_id, self._resuming(run_id, given, wait, observers))
        return await run.result()

    def start(
        self,
        input: Any = NOT_GIVEN,
        config: Config = None,
        *,
        input_state: Any = NOT_GIVEN,
        run_id: str | None = None,
        tags: Iterable[str] = (),
        priority: int = 0,
        delay: Span = 0.0,
        deadline: Moment | None = None,
        queue: str | None = None,
        observers: Iterable[Any] = (),
        if_exists: IfExists = "resume",
    ) -> RunHandle[S]:
        """Create a run in the store and return its handle; any supervisor of the store executes it.

        The input, `config` and `tags` are as for `invoke`. `run_id` is an idempotency key: two starts with the same
        id and input are one run, the first, for as long as the run is kept. An existing run isn't changed: its tags,
        config, priority and queue stay those of the first start. Of the runs of a graph, those of a higher `priority`
        come first; `delay` is how long to wait before the run begins; `deadline` is as for `invoke`. Workers may
        serve only some queues: `queue` is by default that of the graph, else "default". The result is kept until
        it is deleted or expires. Raises `UsageError` without a store, and for `observers`, which belong into
        `compile`, and `RunExists` if the run is of another graph or was started with another input, or, with
        `if_exists="error"`, if it exists.
        """
        from limpet.handle import RunHandle

        if observers:
            elsewhere = UsageError(
                "start() has a worker execute the run, and observers live in the process of a run"
            )
            raise elsewhere.with_advice(
                "give them to compile(observers=…), which workers call too, or follow the run: start(…).events()"
            )
        compiled = self.compiled()
        labels = tag_names(tags)
        check_priority(priority)
        id = choose_id(run_id)
        given = _started_with(_or_nothing(_one_input(input, input_state)))
        check_deadline(deadline)
        until = deadline_for(compiled, deadline)
        request = StartRequest(
            given, config, id, labels, run_id is not None, until, queue=queue_for(compiled, queue)
        )
        begin = enqueue_or_find if _resumes(if_exists) else enqueue
        begin(compiled, request, priority, seconds_of(delay, "delay"))
        client = compiled.need_client("start")
        nudge_supervisors(client.store)
        return RunHandle(id, client, compiled)

    enqueue = start

    astart = async_version(start, changes=True)

    def _start_child(
        self, client: LeaseClient, request: StartRequest, priority: int, delay: float
    ) -> RunHandle[S]:
        """`start` for a node of another run, in whose store the new run is. `ctx.start` calls it."""
        from limpet.engine.sessions.start import enqueue_child

        check_deadline(request.deadline)
        check_priority(priority)
        handle = self._child_handle(client, request.run_id)
        assert handle._compiled is not None
        started = request._replace(input=_started_with(_or_nothing(request.input)))
        enqueue_child(handle._compiled, started, priority, delay)
        nudge_supervisors(client.store)
        return handle

    def _child_handle(self, client: LeaseClient, run_id: str) -> RunHandle[S]:
        """The handle of a run that another run has started, in whose store it is."""
        from limpet.handle import RunHandle

        # On the client of the parent, whatever the length of leases is that this graph has elsewhere.
        return RunHandle(run_id, client, self.compiled().on_store(client.store)._replace(client=client))

    def get(self, run_id: str) -> RunHandle[S]:
        """A run of this graph by its id: its status, state and result, and all that can be done with it.

        Raises `RunNotFound`, and `WrongGraph` for a run of another graph.
        """
        from limpet.handle import RunHandle

        compiled = self.compiled()
        compiled.check_own_run(run_id, "get")
        return RunHandle(run_id, compiled.need_client("get"), compiled)

    aget = async_version(get)

    def recover(self, *, concurrency: int = MAX_RUNS_AT_ONCE, max_crashes: int = MAX_CRASHES) -> list[str]:
        """Resume all runs of this graph that no process is executing, each to its next stop; return their ids.

        These are the runs that are queued, whose process crashed, or whose sleep or deadline is over. This looks for
        them once; `supervise` does so all the time. At most `concurrency` run at once, and `max_crashes` is as there.
        """
        from limpet.engine.supervisor.catalog import GraphCatalog
        from limpet.engine.supervisor.options import SupervisorOptions
        from limpet.engine.supervisor.supervisor import Supervisor

        client = self.compiled().need_client("recover")
        options = SupervisorOptions(client.ttl, concurrency, max_crashes=max_crashes, fires_schedules=False)
        return Supervisor(client.store, GraphCatalog([cast(Any, self)]), options).drain()

    arecover = async_version(recover)

    def runs(
        self,
        status: str | Iterable[str] | None = None,
        *,
        tag: str | Iterable[str] | None = None,
        limit: int | None = None,
        after: str | None = None,
        **more: Unpack[MoreFilters],
    ) -> RunList:
        """The runs of this graph in the store, newest first. `Runs(store).list()` has those of all graphs.

        It takes the same: `status`, `tag`, `limit`, `after`, and the filters `since`, `before`, `created_since`,
        `created_before`, `error`, `node`, `text`, `queue` and `unserved`.
        """
        runs = self._runs("runs")
        return runs.list(status, self.compiled().plan.name, tag, limit, after=after, **more)

    aruns = async_version(runs)

    def history(self, run_id: str) -> list[Checkpoint]:
        """The steps of a run, oldest first, as far as its journal goes back."""
        return self._own_run("history", run_id).history(run_id)

    ahistory = async_version(history)

    def state_at(self, run_id: str, step: int | None = None, *, branch: str | None = None) -> S:
        """The state of a run after a step, or its newest saved state; in a branch that is open then, if one is named.

        Branches have the names that `history` has: `papers`, or `page[2]` of a map. Raises `UsageError` for a step or
        a branch that isn't there.
        """
        return cast(S, self._own_run("state_at", run_id).state(run_id, step, branch=branch))

    astate_at = async_version(state_at)

    def diff(self, run_id: str, a: int, b: int, *, branch: str | None = None) -> Difference:
        """How the state after step `b` differs from the state after step `a`; in a branch, as for `state_at`."""
        return self._own_run("diff", run_id).diff(run_id, a, b, branch=branch)

    adiff = async_version(diff)

    def answer(
        self,
        run_id: str,
        value: Any = NOT_GIVEN,
        *,
        answers: Mapping[str, Any] | None = None,
        by: str | None = None,
        wait: float | None = None,
    ) -> None:
        """Answer what a run asks; the process that executes it, or a supervisor, continues it, and not this call.

        `value` answers the open question, `answers` are by question id. Without either, a run that was interrupted
        before or after a node is approved. With a checkpoint's id in place of the run's, only what was asked there is
        answered. `by` is who answers, for its history. `wait` is how many seconds to wait for another process that
        holds the run, in a store that takes no posts. The answer is durable when this returns. Raises
        `AnswerRefused`, `AlreadyAnswered`, `RunPaused` if nothing was answered, `RunCancelled` for a cancelled run,
        which asks again once it is retried, `AlreadyCompleted`, `RunNotFound`, `Conflict`, and `UsageError` for a
        run that waits for no answer.
        """
        from limpet.engine.sessions.checkpoint_refs import run_and_point

        named_run, _ = run_and_point(self.compiled().need_client("answer"), run_id)
        self._own_run("answer", named_run).answer(run_id, value, answers=answers, by=by, wait=wait)

    aanswer = async_version(answer, changes=True)

    def send(self, run_id: str, name: str, value: Any, *, key: str | None = None) -> bool:
        """Send a message to a run, for a node that receives this `name`: see `RunHandle.send`."""
        from limpet.engine.operations.send import send

        compiled = self.compiled()
        return send(compiled.need_client("send"), run_id, name, value, key, compiled.plan)

    asend = async_version(send, changes=True)

    def cancel(self, run_id: str) -> None:
        """Stop a run, whichever process executes it. It can be resumed from what it saved.

        Async nodes are interrupted, and sync ones finish or stop at `ctx.check()`; nothing new begins. Raises
        `RunNotFound`, and `UsageError` for a run that has completed or failed. One that is
        cancelled already stays as it is.
        """
        from limpet.engine.operations.cancel import cancel

        compiled = self.compiled()
        cancel(compiled.need_client("cancel"), run_id, compiled.plan)

    acancel = async_version(cancel, changes=True)

    def fork(
        self,
        run_id: str,
        step: int | None = None,
        update: Mapping[str, Any] | None = None,
        *,
        new_run_id: str | None = None,
        tags: Iterable[str] = (),
    ) -> Run[S]:
        """A new run that starts where `run_id` was after `step` (its newest, if None), with `update` merged in.

        It is stored when this returns, under `new_run_id` or a new id, with its own `tags`, and runs when it is
        iterated. The old run stays as it is.
        """
        forked = self._own_run("fork", run_id).fork(run_id, step, update, new_run_id=new_run_id, tags=tags)
        run: Run[S] = Run(forked, self._resuming(forked, ResumeInput(), None), self._raises_errors)
        return run._allow_drop()

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
        run = await change_in_thread(self.fork, run_id, step, update, new_run_id=new_run_id, tags=tags)
        forked: AsyncRun[S] = AsyncRun(
            run.id, self._resuming(run.id, ResumeInput(), None), self._raises_errors
        )
        return forked._allow_drop()

    def rollback(self, run_id: str, step: int) -> S:
        """Set a run back to where it was after `step`, and return the state there; `resume` runs it from there."""
        return cast(S, self._own_run("rollback", run_id).rollback(run_id, step))

    arollback = async_version(rollback, changes=True)

    def verify(self, run_id: str) -> Verification:
        """Which parts of a stored run are damaged, and which can still be read. Changes nothing.

        Damage is reported, not raised. Raises `RunNotFound`, and `KeyMissing` if the store has no key for the run.
        """
        from limpet.journal.verify import verify

        compiled = self.compiled()
        store = compiled.need_client("verify").store
        with suppress(DamagedRecord):  # a head that can't be read is part of the report
            compiled.own_run(run_id, "verify")
        return verify(store, run_id)

    averify = async_version(verify)

    def export_run(self, run_id: str, path: str | os.PathLike[str]) -> None:
        """Write a run with its whole journal to one file, replacing a file that exists; `import_run` reads it.

        The run stays as it is. The file isn't encrypted. Raises `RunNotFound`, `Conflict` while another process
        advances the run, `DamagedRecord`, and `StoreUnavailable` if the file can't be written.
        """
        self._own_run("export_run", run_id).export(run_id, path)

    aexport_run = async_version(export_run)

    def import_run(self, path: str | os.PathLike[str], run_id: str | None = None) -> str:
        """Put an exported run into this graph's store, under its own id or another, and return the id.

        All of it is stored, or nothing. Raises `RunExists` if the id is taken, `StoreError` for a damaged file, and
        `WrongGraph` for a run of another graph.
        """
        from limpet.engine.operations.export import import_run

        compiled = self.compiled()
        return import_run(compiled.need_client("import_run"), path, run_id, compiled.plan)

    aimport_run = async_version(import_run, changes=True)

    def prune_checkpoints(self, run_id: str, keep: int = KEPT_CHECKPOINTS) -> int:
        """Delete all but the newest `keep` checkpoints of a run, and return how many were deleted.

        The run stays as it is: its newest state, its questions and its result are kept. A checkpoint is a step, in a
        workflow a layer. While another process advances the run, some older ones may stay. `compile(keep=…)` does
        this for all runs, while they run. Raises `RunNotFound`, `UsageError`, `DamagedRecord`.
        """
        return self._own_run("prune_checkpoints", run_id).prune_checkpoints(run_id, keep)

    aprune_checkpoints = async_version(prune_checkpoints, changes=True)

    def cleanup(self, retention: Retention | None = None, *, dry_run: bool = False) -> list[Expired]:
        """Delete the runs of this graph that have expired by a policy: that of `compile(retention=…)`, or another.

        The checkpoint files of a `checkpoint_dir` expire by the same policy, each as the run that it has. Returns the
        deleted runs and files, and why each has expired; with `dry_run`, those that would be deleted. Raises
        `UsageError` without a policy.
        """
        from limpet.stores.retention import (
            Retention,
            delete_expired,
            delete_files,
            expired_files,
            find_expired,
        )

        compiled = self.compiled()
        policy = retention
        if policy is None and compiled.cleanup is not None:
            policy = compiled.cleanup.policy
        if not isinstance(policy, Retention):
            raise UsageError(
                "cleanup() needs a policy: cleanup(Retention(completed='7d')), or compile(retention=…)"
            )
        store = compiled.need_client("cleanup").store
        found = []
        if not compiled.scratch_store:
            found = find_expired(store, policy, compiled.plan.name)
        files = expired_files(compiled.checkpointer, policy, compiled.plan.name)
        if dry_run:
            return [*found, *files]
        return [*delete_expired(store, found), *delete_files(files)]

    acleanup = async_version(cleanup, changes=True)

    def cleanup_expired(self, max_age_hours: float = RETENTION_HOURS, statuses: Iterable[str] = ENDED) -> int:
        """Delete the runs of this graph that ended this long ago; return how many were deleted.

        The checkpoint files of a `checkpoint_dir` are deleted and counted too, each as the run that it has. Runs that
        are paused or running stay, unless you name these `statuses` as well. A run that a process holds
        always stays. `Runs(store).cleanup_expired()` does the same for the runs of all graphs.
        """
        from limpet.stores.retention import expire_by_age

        compiled = self.compiled()
        store = compiled.need_client("cleanup_expired").store
        return expire_by_age(store, max_age_hours, statuses, compiled.plan.name, compiled.checkpointer)

    acleanup_expired = async_version(cleanup_expired, changes=True)

    def draw(
        self,
        format: Format | None = None,
        run_id: str | None = None,
        path: str | os.PathLike[str] | None = None,
        *,
        width: int | None = None,
        color: bool = False,
        ascii: bool = False,
    ) -> str:
        """A picture of the graph as `"svg"`, `"mermaid"` or `"text"`. Nothing is fetched from the network.

        With `run_id`, the picture shows how far that stored run has come: counts, prompts of open questions and
        types of errors, never a value of the state. With `path`, it is written to that file as well, whose suffix
        (.svg, .mmd, .txt) is the format if you give none. A text has at most `width` columns, 100 by default;
        `color` is for terminals that show colours, `ascii` for those that show only ASCII. Raises `DefinitionError`,
        `RunNotFound`, and `UsageError`.
        """
        from limpet.drawing import draw as drawing

        compiled = self.compiled()
        kind = drawing.chosen_format(format, path)
        marks = None if run_id is None else _marks_of(compiled, run_id)
        outline = drawing.outline_for_run(compiled.plan, marks)
        picture = drawing.render_picture(outline, marks, kind, width=width, color=color, ascii=ascii)
        if path is not None:
            drawing.write_picture(picture, path)
        return picture

    def _repr_html_(self) -> str | None:
        """What a notebook shows: the graph as far as it is defined, and what is wrong with it. Never raises."""
        try:
            from limpet.drawing.notebook import graph_as_html
            from limpet.drawing.outline import outline_of_graph

            return graph_as_html(outline_of_graph(self))
        except Exception:
            return None

    def _repr_svg_(self) -> str | None:
        """The same as a picture by itself, for what shows no HTML. Never raises."""
        try:
            from limpet.drawing.draw import graph_as_svg

            return graph_as_svg(self)
        except Exception:
            return None  # a notebook then shows the repr

    def _runs(self, call: str) -> Runs:
        # Imported late: a program that only runs graphs doesn't need it.
        from limpet.runs import Runs

        return Runs.of_graph(self.compiled(), call)

    def _own_run(self, call: str, run_id: str) -> Runs:
        """The runs in the store, for a call about a run of this graph. Raises `WrongGraph` for a run of another."""
        self.compiled().check_own_run(run_id, call)
        return self._runs(call)

    def _prepare(self, invocation: Invocation, stream: bool) -> tuple[str, OpenSession]:
        """The id of a run that is to begin, and the function that opens it when it does."""
        compiled = self._watched(invocation.observers)
        if invocation.detailed:
            compiled = compiled._replace(is_detailed=True)
        input, config, checkpoint, run_id, tags, if_exists, deadline, *_ = invocation
        check_deadline(deadline)
        if config:
            refuse_thread_id(config)
        labels = tag_names(tags)
        if checkpoint is None:
            given = _started_with(input)
            if run_id is None and isinstance(given, State) and given.checkpoint_node is None:
                run_id = given.run_id  # of a State that the user made for a run to come
            until = deadline_for(compiled, deadline)
            request = StartRequest(
                given,
                config,
                choose_id(run_id),
                labels,
                run_id is not None,
                until,
                queue=queue_for(compiled, None),
            )
            client = compiled.client
            # A store that can't keep two processes apart could have both execute the run.
            if client is None or not _resumes(if_exists) or not client.store.abilities.leases:
                return request.run_id, lambda _: start(compiled, request, stream)
            return request.run_id, lambda has_waited: start_or_open(compiled, request, stream, has_waited)
        if run_id is not None:
            raise UsageError("a checkpoint belongs to its run: give checkpoint= or run_id=, not both")
        from limpet.engine.sessions.checkpoint_refs import run_of
        from limpet.engine.sessions.resume import resume_checkpoint

        resumed = ResumeInput(_or_nothing(input), config=config, deadline=deadline)
        return run_of(checkpoint), lambda _: resume_checkpoint(compiled, checkpoint, resumed, stream)

    def _watched(self, observers: Iterable[Any]) -> CompiledGraph:
        """The compiled graph, with the observers of one call besides its own."""
        compiled = self.compiled()
        if not observers:
            return compiled
        from limpet.compile_options import resolve_observers

        return compiled.watched_by(resolve_observers(None, observers))

    def _stream_resumed(self, run_id: str, given: ResumeInput, wait: float | None) -> Run[S]:
        """A resumed run to iterate, with the events of its steps as `stream` has them."""
        from limpet.engine.sessions.resume import resume

        compiled = self.compiled()
        return Run(run_id, lambda _: resume(compiled, run_id, given, wait, stream=True))

    def _resuming(
        self, run_id: str, given: ResumeInput, wait: float | None, observers: Iterable[Any] = ()
    ) -> OpenSession:
        # Imported late here, as in the methods above: a program that only starts runs doesn't need it.
        from limpet.engine.sessions.resume import resume

        compiled = self._watched(observers)
        if not isinstance(run_id, str):
            raise UsageError(f"a run is resumed by its id, a str, not {run_id!r}; of a Run, that is .id")
        return lambda _: resume(compiled, run_id, given, wait, stream=False)


def _or_nothing(input: Any) -> Any:
    """The input of a call that can do without: None is the same as none."""
    return NOT_GIVEN if input is None else input


def _started_with(input: Any) -> Any:
    """What a new run starts with. Raises `UsageError` for None, with which other libraries resume a run."""
    if input is None:
        nothing = UsageError("invoke(None) and stream(None) have nothing to start a run with")
        raise nothing.with_advice("give {} to start with an empty state, or checkpoint= to resume a run")
    return None if input is NOT_GIVEN else input


def _resumes(if_exists: str) -> bool:
    if if_exists not in ("resume", "error"):
        raise UsageError(f'if_exists is "resume" or "error", not {if_exists!r}')
    return if_exists == "resume"


def _one_input(input: Any, input_state: Any) -> Any:
    """The input under either of its names. Raises `UsageError` for both."""
    if input_state is NOT_GIVEN:
        if type(input) is not dict:
            refuse_command(input, "the input")
        return input
    if input is not NOT_GIVEN:
        raise UsageError("give the input once: as the first argument or as input_state=")
    return input_state


def _marks_of(compiled: CompiledGraph, run_id: str) -> RunMarks:
    """How far a stored run of this graph has come, for a picture."""
    from limpet.drawing.run_marks import marks_of_stored_run

    compiled.own_run(run_id, "draw")
    return marks_of_stored_run(compiled.plan, compiled.need_client("draw").store.read(run_id, first=1))
