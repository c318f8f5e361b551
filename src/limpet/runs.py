"""`Runs`: everything that can be done with the runs in a store without running them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from limpet.async_methods import async_version
from limpet.defaults import KEPT_CHECKPOINTS, RETENTION_HOURS
from limpet.engine.leases.lease_client import client_for, with_holder_described
from limpet.engine.node_context.questions import NOT_GIVEN, ResumeInput
from limpet.engine.operations.run_info import RunInfo, RunList, info_of, list_runs, with_position
from limpet.engine.operations.stored_state import (
    Difference,
    as_state,
    checkpoints,
    difference,
    progress_of,
    secrets_of,
)
from limpet.engine.sessions.compiled_graph import CompiledGraph
from limpet.engine.sessions.start import tag_names
from limpet.errors import Conflict, UsageError
from limpet.graphs.plan import Plan
from limpet.graphs.state import State
from limpet.journal.reader import Checkpoint
from limpet.journal.store import ENDED
from limpet.stores.opening import open_store

if TYPE_CHECKING:
    from limpet.engine.operations.flatten import Flattened
    from limpet.graph_methods import GraphMethods
    from limpet.journal.verify import Verification

Checkpoints = list[Checkpoint]


class Runs:
    """The runs in a store: list them, look at them, answer, cancel, fork, roll back, export, import, verify, delete.

    `store` is whatever `open_store` takes. Only `fork` and `rollback` need the code of the runs' graph, in order to
    check that it can resume the run from there: give it as `graph`, compiled or not. With a `graph`, `state` returns
    that graph's own kind of state for its runs. States and differences of other runs mask the keys that were secret
    when the run was created.

    Every method has an async version, whose name begins with an `a`, that doesn't block the event loop.
    """

    def __init__(self, store: Any, graph: GraphMethods[Any] | None = None) -> None:
        opened = open_store(store)
        if graph is None:
            self._client = client_for(opened)
            self._compiled: CompiledGraph | None = None
            return
        compiled = graph.compiled()
        if compiled.client is None:
            self._client = client_for(opened)
        else:
            self._client = client_for(opened, compiled.client.ttl)
        self._compiled = compiled._replace(client=self._client)

    @classmethod
    def of_graph(cls, compiled: CompiledGraph, call: str) -> Runs:
        """The runs in a graph's own store, for a method of the graph. Raises `UsageError` that names the call."""
        runs = cls.__new__(cls)
        # Not by way of `open_store`, which could encrypt what the graph was compiled to store as it is.
        runs._client = compiled.need_client(call)
        runs._compiled = compiled
        return runs

    def list(
        self,
        status: str | None = None,
        graph: str | None = None,
        tag: str | None = None,
        limit: int | None = None,
    ) -> RunList:
        """The runs with this status, of the graph with this name, with this tag; newest first, at most `limit`.

        A run whose head or newest records can't be read is in the list too, with the status `damaged` and the reason
        as its `problem`. If its graph can't be known, it is among the runs of every graph.
        """
        return list_runs(self._client, status, graph, tag, limit)

    alist = async_version(list)

    def get(self, run_id: str) -> RunInfo:
        """What the store knows of a run. A damaged run has the status `damaged`. Raises `RunNotFound`."""
        return info_of(self._client, run_id)

    aget = async_version(get)

    def with_position(self, info: RunInfo) -> RunInfo:
        """The same, with the step and the node that a running run has reached by now.

        A `RunInfo` has those of the run's last stop. This reads the journal for newer ones.
        """
        return with_position(self._client, info)

    awith_position = async_version(with_position)

    def history(self, run_id: str) -> Checkpoints:
        """The steps of a run, oldest first, as far as its journal goes back."""
        return checkpoints(self._client, run_id)

    ahistory = async_version(history)

    def state(self, run_id: str, step: int | None = None) -> State:
        """The state of a run after a step, or its newest saved state."""
        progress = progress_of(self._client, run_id, step)
        return as_state(progress, self._plan_for(progress.graph))

    astate = async_version(state)

    def secrets(self, run_id: str) -> frozenset[str]:
        """The keys of a run's state that are masked when it is printed."""
        progress = progress_of(self._client, run_id, None)
        plan = self._plan_for(progress.graph)
        return secrets_of(progress) if plan is None else plan.secrets

    asecrets = async_version(secrets)

    def diff(self, run_id: str, a: int, b: int) -> Difference:
        """How the state after step `b` differs from the state after step `a`."""
        from limpet.journal.verify import readable_head

        plan = self._plan_for(readable_head(self._client.store, run_id).graph)
        return difference(self._client, run_id, a, b, plan)

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

        `update` is merged into its state. The new run is paused: `resume` runs it. The old run stays as it is.
        Raises `UsageError` without a `graph`, and `DefinitionError` if the graph can't resume from there.
        """
        from limpet.engine.operations.fork import fork

        return fork(self._need_graph("fork"), run_id, step, update, new_run_id, tag_names(tags))

    afork = async_version(fork, changes=True)

    def rollback(self, run_id: str, step: int) -> State:
        """Set a run back to where it was after `step`, paused, and return the state there.

        Its history stays. Raises `UsageError` without a `graph`, `Conflict` while another process advances the run,
        and `DefinitionError` if the graph can't resume from there.
        """
        from limpet.engine.operations.rollback import rollback

        return rollback(self._need_graph("rollback"), run_id, step)

    arollback = async_version(rollback, changes=True)

    def cancel(self, run_id: str) -> None:
        """Stop a run, whichever process executes it. It can be resumed from what it saved.

        Async nodes are interrupted, and sync ones finish or stop at `ctx.check()`; nothing new begins. Raises
        `RunNotFound`, and `UsageError` for a run that has ended.
        """
        from limpet.engine.operations.cancel import cancel

        cancel(self._client, run_id)

    acancel = async_version(cancel, changes=True)

    def answer(
        self,
        run_id: str,
        value: Any = NOT_GIVEN,
        *,
        answers: Mapping[str, Any] | None = None,
        wait: float | None = None,
    ) -> None:
        """Answer what a paused run asks; a supervisor of the store resumes the run.

        `answers` are by question id. With a checkpoint's id in place of the run's, only what was asked there is
        answered. `wait` is how many seconds to wait for another process that holds the run. The answer is durable
        when this returns. Raises `AnswerRefused`, `AlreadyAnswered`, `RunPaused` if nothing was answered,
        `RunNotFound`, `Conflict`, and `UsageError` for a run that asks nothing.
        """
        from limpet.engine.operations.answer import answer

        answer(self._client, run_id, ResumeInput(value, answers), wait)

    aanswer = async_version(answer, changes=True)

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

        return import_run(self._client, path, run_id)

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

    def delete(self, run_id: str) -> None:
        """Delete a run and its journal. Raises `RunNotFound`, and `Conflict` while a process holds the run."""
        try:
            self._client.store.delete(run_id)
        except Conflict as conflict:
            raise with_holder_described(conflict).with_advice("cancel() it first", "cancel") from None

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
        return f"<Runs in {self._client.store!r}>"

    def _plan_for(self, graph: str) -> Plan | None:
        """The plan of the graph with this name, if that is the graph that was given."""
        if self._compiled is None or self._compiled.plan.name != graph:
            return None
        return self._compiled.plan

    def _need_graph(self, call: str) -> CompiledGraph:
        if self._compiled is None:
            raise UsageError(f"{call}() checks a run against its graph: give it with Runs(store, graph=…)")
        return self._compiled
