"""`Runs`: everything that can be done with the runs in a store without running them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeAlias, Unpack

from limpet.defaults import KEPT_CHECKPOINTS, RETENTION_HOURS
from limpet.durations import Moment
from limpet.engine.leases.lease_client import LeaseClient, client_for
from limpet.engine.node_context.questions import NOT_GIVEN, ResumeInput
from limpet.engine.operations.run_info import RunList, unfit_to_retry
from limpet.engine.operations.run_query import Filters, MoreFilters, RunQuery, list_runs
from limpet.engine.operations.stored_state import (
    Difference,
    as_state,
    checkpoints,
    difference,
    secrets_of,
    viewed_progress,
)
from limpet.engine.sessions.compiled_graph import CompiledGraph
from limpet.engine.sessions.start import check_deadline, tag_names
from limpet.errors import DamagedRecord, UsageError
from limpet.graphs.plan import Plan
from limpet.graphs.state import State
from limpet.journal.reader import Checkpoint
from limpet.journal.store import ENDED
from limpet.journal.threads.kinds import refuse_thread
from limpet.stores.absent import is_absent, path_of, refuse_absent
from limpet.stores.opening import open_store
from limpet.threads.async_methods import async_version

if TYPE_CHECKING:
    from limpet.engine.leases.workers import UnservedLane, WorkerInfo
    from limpet.engine.operations.bulk import Change, Outcome, Outcomes
    from limpet.engine.operations.flatten import Flattened
    from limpet.graph_methods import GraphMethods
    from limpet.handle import RunHandle
    from limpet.journal.verify import Verification

Checkpoints = list[Checkpoint]
Workers: TypeAlias = "list[WorkerInfo]"
UnservedLanes: TypeAlias = "list[UnservedLane]"


class Runs:
    """The runs in a store: list them, look at them, answer, cancel, fork, roll back, export, import, verify, delete.

    `store` is whatever `open_store` takes. Only `fork`, `rollback`, and a `retry` with an update need the code of a
    run's graph: give it among `graphs`, one or several, compiled or not; it is found by the run's graph name. Then
    `state` returns that graph's own kind of state. States and differences of other runs mask the keys that were
    secret when the run was created, and have an `UnknownValue` where a class isn't known here.

    A look creates no store: while there is nothing at its path, all but `import_` raises `StoreUnavailable`.

    Every method has an async version, whose name begins with an `a`, that doesn't block the event loop.
    """

    def __init__(self, store: Any, graphs: GraphMethods[Any] | Iterable[GraphMethods[Any]] = ()) -> None:
        self._store = store
        self._opened: LeaseClient | None = None
        self._graphs: dict[str, CompiledGraph] = {}
        for graph in graphs if isinstance(graphs, Iterable) else (graphs,):
            if isinstance(graph, (str, type)) or not callable(getattr(graph, "compiled", None)):
                raise UsageError(f"graphs are StateGraphs or Workflows, not {graph!r}")
            compiled = graph.compiled()
            self._graphs[compiled.plan.name] = compiled
        if not is_absent(path_of(store)):
            self._open()

    @classmethod
    def of_graph(cls, compiled: CompiledGraph, call: str) -> Runs:
        """The runs in a graph's own store, for a method of the graph. Raises `UsageError` that names the call."""
        runs = cls.__new__(cls)
        # Not by way of `open_store`, which could encrypt what the graph was compiled to store as it is.
        runs._opened = compiled.need_client(call)
        runs._graphs = {compiled.plan.name: compiled}
        return runs

    def list(
        self,
        status: str | Iterable[str] | None = None,
        graph: str | None = None,
        tag: str | Iterable[str] | None = None,
        limit: int | None = None,
        *,
        after: str | None = None,
        **more: Unpack[MoreFilters],
    ) -> RunList:
        """The runs that match, newest first, at most `limit`.

        `status` is one or several, stored or shown ones, of which a run has one; `graph` is the name of its graph;
        `tag` is one or several, of which it has all. `since` and `before` are about when it last changed,
        `created_since` and `created_before` about when it was created: each is a `datetime` with a time zone,
        seconds since the epoch, a text such as "2026-05-01T12:00Z", or how long ago: a `timedelta`, or a text such
        as "90s", "30m", "2h", "7d" or "1w". `queue` is its queue, `error` the type of its last error, `node` where
        it stopped, and `text` is in its last error: for that, 10,000 runs are looked through at most, and
        `searched` of the list says if that wasn't all. `unserved` restricts it to runs that are due, and that no
        live worker can continue. `next` of the list is where its next page begins: give it as `after`.

        A run whose head or newest records can't be read is in the list too, with the status `damaged` and the reason
        as its `problem`. If its graph can't be known, it is among the runs of every graph. Raises `UsageError`.
        """
        query = RunQuery.of(self._client.now(), status=status, graph=graph, tag=tag, **more)
        return list_runs(self._client, query, limit, after)

    alist = async_version(list)

    def get(self, run_id: str) -> RunHandle[Any]:
        """The run with this id: its `info`, its state and result, and all that can be done with it.

        Raises `RunNotFound`.
        """
        from limpet.handle import RunHandle

        compiled = self._compiled_for(self._graph_of(run_id))
        client = self._client
        if compiled is not None:
            client = compiled.need_client("get")
        return RunHandle(run_id, client, compiled)

    aget = async_version(get)

    def workers(self) -> Workers:
        """The workers of the store, the oldest first: which process each is, what it serves and executes.

        Also those that are gone since an hour at most, without having been stopped. Each has `is_live`: whether it
        still works, as far as that can be known from here. Raises `UsageError` for a store that keeps no documents.
        """
        from limpet.engine.leases.workers import list_workers

        return list_workers(self._client)

    aworkers = async_version(workers)

    def unserved(self) -> UnservedLanes:
        """The runs that are due, and that no live worker can continue: by queue, graph and plan, with the reason.

        `list(unserved=True)` has the runs themselves. Raises what `workers` raises.
        """
        from limpet.engine.leases.workers import list_workers, unserved_lanes

        return unserved_lanes(self._client, list_workers(self._client))

    aunserved = async_version(unserved)

    def history(self, run_id: str) -> Checkpoints:
        """The steps of a run, oldest first, as far as its journal goes back."""
        return checkpoints(self._client, run_id)

    ahistory = async_version(history)

    def state(self, run_id: str, step: int | None = None, *, branch: str | None = None) -> State:
        """The state of a run after a step, or its newest saved state; in a branch that is open then, if one is named.

        Branches have the names that `history` has: `papers`, or `page[2]` of a map. Raises `UsageError` for a step or
        a branch that isn't there.
        """
        progress = viewed_progress(self._client, run_id, step)
        return as_state(progress, self._plan_for(progress.graph), branch)

    astate = async_version(state)

    def secrets(self, run_id: str) -> frozenset[str]:
        """The keys of a run's state that are masked when it is printed."""
        progress = viewed_progress(self._client, run_id)
        plan = self._plan_for(progress.graph)
        return secrets_of(progress) if plan is None else plan.secrets

    asecrets = async_version(secrets)

    def diff(self, run_id: str, a: int, b: int, *, branch: str | None = None) -> Difference:
        """How the state after step `b` differs from the state after step `a`; in a branch, as for `state`."""
        plan = self._plan_for(self._graph_of(run_id))
        return difference(self._client, run_id, a, b, plan, branch)

    adiff = async_version(diff)

    def fork(
        self,
        run_id: str,
        step: int | None = None,
        update: Mapping[str, Any] | None = None,
        *,
        new_run_id: str | None = None,
        tags: Iterable[str] = (),
    ) -> str:
        """Create a run that starts where `run_id` was after `step` (its newest, if None), and return its id.

        `update` is merged into its state. The new run has the id `new_run_id`, or a new one, and its own `tags`. It
        is paused: `retry` hands it to the workers, and `graph.resume` runs it. The old run stays as it is.
        Raises `UsageError` if the graph isn't known, and `DefinitionError` if it can't resume from there.
        """
        from limpet.engine.operations.fork import fork

        return fork(self._need_graph("fork", run_id), run_id, step, update, new_run_id, tag_names(tags))

    afork = async_version(fork, changes=True)

    def rollback(self, run_id: str, step: int) -> State:
        """Set a run back to where it was after `step`, paused, and return the state there.

        Its history stays. Raises `UsageError` if the graph isn't known, `Conflict` while another process advances
        the run, and `DefinitionError` if the graph can't resume from there.
        """
        from limpet.engine.operations.rollback import rollback

        return rollback(self._need_graph("rollback", run_id), run_id, step)

    arollback = async_version(rollback, changes=True)

    def cancel(
        self,
        run_id: str | Iterable[str] | None = None,
        *,
        all_runs: bool = False,
        limit: int | None = None,
        dry_run: bool = False,
        progress: Callable[[Outcome], object] | None = None,
        **filters: Unpack[Filters],
    ) -> Outcomes:
        """Stop runs, whichever processes execute them. They can be resumed from what they saved.

        Async nodes are interrupted, and sync ones finish or stop at `ctx.check()`; nothing new begins. Takes an id,
        several ids, or filters, as `retry` does. A run that is cancelled already is skipped. One id alone raises
        `RunNotFound`, and `UsageError` for a run that has completed or failed.
        """
        from limpet.engine.operations.bulk import Change, unfit_to_cancel
        from limpet.engine.operations.cancel import CANCELLED_ALREADY, cancel

        def stop(each: str) -> str:
            if cancel(self._client, each):
                return ""
            return CANCELLED_ALREADY

        change = Change("cancel", stop, unfit_to_cancel)
        return self._change(change, run_id, all_runs, limit, dry_run, progress, filters)

    acancel = async_version(cancel, changes=True)

    def retry(
        self,
        run_id: str | Iterable[str] | None = None,
        update: Mapping[str, Any] | None = None,
        *,
        deadline: Moment | None = None,
        all_runs: bool = False,
        limit: int | None = None,
        dry_run: bool = False,
        progress: Callable[[Outcome], object] | None = None,
        **filters: Unpack[Filters],
    ) -> Outcomes:
        """Hand runs that failed, or were cancelled or quarantined, back to the workers, from where they stopped.

        It takes an id, several ids, or the filters of `list`: `retry(status="failed", since="2h")`. To mean all runs,
        say `all_runs=True`. Forks, and runs that were rolled back, can be handed to the workers, too; what waits for
        an answer or an approval isn't. `update` is merged into their states, which needs their graphs: if one of them
        isn't known, this raises `UsageError` before any run is changed. `deadline` replaces theirs, which runs need
        that have failed because it has passed. With `dry_run`, nothing is changed. `limit`
        is how many are dealt with at most, newest first, of those that match.

        Returns the outcome for each run. One that fails doesn't stop the others, and one that changed meanwhile is
        skipped. `progress` is called with each outcome as it comes. One id alone raises what went wrong instead:
        `RunNotFound`, `AlreadyCompleted`, `Conflict`, and `UsageError` for a run that hasn't stopped.
        """
        from limpet.engine.node_context.questions import check_update
        from limpet.engine.operations.bulk import Change, refuse_unknown_graphs

        check_update(update)
        check_deadline(deadline)
        change = Change("retry", lambda each: self._retry(each, update, deadline), unfit_to_retry)
        if update and not isinstance(run_id, str):
            if isinstance(run_id, Iterable):
                run_id = [*run_id]  # looked through twice
            planned = self._change(change, run_id, all_runs, limit, True, None, filters)
            refuse_unknown_graphs(planned, lambda graph: self._compiled_for(graph) is not None)
        return self._change(change, run_id, all_runs, limit, dry_run, progress, filters)

    aretry = async_version(retry, changes=True)

    def answer(
        self,
        run_id: str,
        value: Any = NOT_GIVEN,
        *,
        answers: Mapping[str, Any] | None = None,
        by: str | None = None,
        wait: float | None = None,
    ) -> None:
        """Answer what a run asks; the process that executes it, or a supervisor of the store, continues it.

        `value` answers the open question, `answers` are by question id. Without either, a run that was interrupted
        before or after a node is approved. With a checkpoint's id in place of the run's, only what was asked there is
        answered. `by` says who answers, for its history. `wait` is how many seconds to wait for a process that holds
        the run, in a store that takes no posts. The answer is durable when this returns. Raises `AnswerRefused`,
        `AlreadyAnswered`, `RunPaused` if nothing was answered, `RunCancelled` for a cancelled run, which asks again
        once it is retried, `AlreadyCompleted`, `RunNotFound`, `Conflict`, and `UsageError` for a run that waits
        for no answer.
        """
        from limpet.engine.operations.answer import answer

        answer(self._client, run_id, ResumeInput(value, answers, by=by), wait)

    aanswer = async_version(answer, changes=True)

    def send(self, run_id: str, name: str, value: Any, *, key: str | None = None) -> bool:
        """Send a message to a run, for a node that receives this `name`: see `RunHandle.send`."""
        from limpet.engine.operations.send import send

        return send(self._client, run_id, name, value, key)

    asend = async_version(send, changes=True)

    def export(self, run_id: str, path: str | os.PathLike[str]) -> None:
        """Write a run with its whole journal to one file, replacing a file that exists; `import_` reads it.

        The run stays as it is. The file isn't encrypted. Raises `RunNotFound`, `Conflict` while another process
        advances the run, `DamagedRecord`, and `StoreUnavailable` if the file can't be written.
        """
        from limpet.engine.operations.export import export_run

        export_run(self._client, run_id, path)

    aexport = async_version(export)

    def import_(self, path: str | os.PathLike[str], run_id: str | None = None) -> str:
        """Put an exported run into the store, under its own id or another, and return the id.

        All of it is stored, or nothing. Raises `RunExists` if the id is taken, `StoreError` for a damaged file.
        """
        from limpet.engine.operations.export import import_run

        return import_run(self._opened or self._open(), path, run_id)

    aimport_ = async_version(import_, changes=True)

    def verify(self, run_id: str) -> Verification:
        """Which parts of a stored run are damaged, and which can still be read. Changes nothing.

        Damage is reported, not raised. Raises `RunNotFound`, and `KeyMissing` if the store has no key for the run.
        """
        from limpet.journal.verify import verify

        return verify(self._client.store, run_id)

    averify = async_version(verify)

    def prune_checkpoints(self, run_id: str, keep: int = KEPT_CHECKPOINTS) -> int:
        """Delete all but the newest `keep` checkpoints of a run, and return how many were deleted.

        The run stays as it is: its newest state, its questions and its result are kept. A checkpoint is a step, in a
        workflow a layer. While another process advances the run, some older ones may stay. Raises `RunNotFound`,
        `UsageError`, `DamagedRecord`.
        """
        from limpet.engine.operations.prune import prune_checkpoints

        return prune_checkpoints(self._client, run_id, keep)

    aprune_checkpoints = async_version(prune_checkpoints, changes=True)

    def delete(
        self,
        run_id: str | Iterable[str] | None = None,
        *,
        all_runs: bool = False,
        limit: int | None = None,
        dry_run: bool = False,
        progress: Callable[[Outcome], object] | None = None,
        **filters: Unpack[Filters],
    ) -> Outcomes:
        """Delete runs and their journals.

        Takes an id, several ids, or filters, as `retry` does. A run that a process holds is skipped. One id alone
        raises `RunNotFound`, and `Conflict` while a process holds the run.
        """
        from limpet.engine.operations.bulk import Change, unfit_to_delete

        change = Change("delete", self._client.delete, unfit_to_delete)
        return self._change(change, run_id, all_runs, limit, dry_run, progress, filters)

    adelete = async_version(delete, changes=True)

    def cleanup_expired(self, max_age_hours: float = RETENTION_HOURS, statuses: Iterable[str] = ENDED) -> int:
        """Delete the runs in the store that ended this long ago, of all graphs; return how many were deleted.

        Runs that are paused or running stay, unless you name these `statuses` as well. A run that a process holds
        always stays. So do the files of a `checkpoint_dir`, which `cleanup_expired()` of their graph deletes.
        """
        from limpet.stores.retention import expire_by_age

        return expire_by_age(self._client.store, max_age_hours, statuses)

    acleanup_expired = async_version(cleanup_expired, changes=True)

    def flatten(self, path: str | os.PathLike[str]) -> Flattened:
        """Write all runs, their steps and states as plain tables to a file, and return how many rows were written.

        A path that ends in `.jsonl` gets JSON lines, another one is a SQLite database. A second call adds only what
        is new. The values of secret keys are masked. Raises `UsageError` for a file of another kind, and
        `StoreUnavailable` if it can't be written.
        """
        from limpet.engine.operations.flatten import flatten

        return flatten(self._client, path)

    aflatten = async_version(flatten)

    def __repr__(self) -> str:
        return f"<Runs in {self._store if self._opened is None else self._opened.store!r}>"

    @property
    def _client(self) -> LeaseClient:
        """The client of the store. Raises `StoreUnavailable` for a file or directory that isn't there yet."""
        if self._opened is not None:
            return self._opened
        refuse_absent(path_of(self._store), "the path, or start a run there")
        return self._open()

    def _open(self) -> LeaseClient:
        """Open the store, which creates it, and put the graphs on it."""
        client = client_for(open_store(self._store))
        for name, compiled in self._graphs.items():
            of_graph = client
            if compiled.client is not None:
                of_graph = client_for(client.store, compiled.client.ttl)
            self._graphs[name] = compiled._replace(client=of_graph)
        self._opened = client
        return client

    def _change(
        self,
        change: Change,
        run_ids: str | Iterable[str] | None,
        all_runs: bool,
        limit: int | None,
        dry_run: bool,
        progress: Callable[[Outcome], object] | None,
        filters: Filters,
    ) -> Outcomes:
        from limpet.engine.operations.bulk import change_chosen, chosen_runs

        chosen = chosen_runs(self._client, run_ids, dict(filters), all_runs, limit, change.name)
        one = run_ids if isinstance(run_ids, str) and not dry_run else None
        return change_chosen(self._client, change, chosen, one, dry_run, progress)

    def _retry(self, run_id: str, update: Mapping[str, Any] | None, deadline: Moment | None) -> None:
        from limpet.engine.operations.retry import retry

        compiled = self._need_graph("retry", run_id) if update else None
        retry(self._client, run_id, update, compiled, deadline)

    def _graph_of(self, run_id: str) -> str:
        """The name of a run's graph, even if the run is damaged. Raises `RunNotFound`."""
        try:
            return self._client.head(run_id).graph
        except DamagedRecord as damage:
            from limpet.journal.verify import readable_head  # late, as it is hardly ever needed

            try:
                return readable_head(self._client.store, run_id).graph
            except DamagedRecord:
                raise damage from None

    def _compiled_for(self, graph: str) -> CompiledGraph | None:
        """The graph with this name, if it was given. A run that was saved by hand has none: it is of the only one."""
        if not graph and len(self._graphs) == 1:
            return next(iter(self._graphs.values()))
        return self._graphs.get(graph)

    def _plan_for(self, graph: str) -> Plan | None:
        compiled = self._compiled_for(graph)
        return None if compiled is None else compiled.plan

    def _need_graph(self, call: str, run_id: str) -> CompiledGraph:
        graph = self._graph_of(run_id)
        compiled = self._compiled_for(graph)
        if compiled is None:
            with suppress(DamagedRecord):
                refuse_thread(self._client.head(run_id))
            unknown = UsageError(f"{call}() checks run {run_id!r} against its graph, {graph!r}")
            raise unknown.with_advice("give it with Runs(store, graphs=[…])")
        return compiled
