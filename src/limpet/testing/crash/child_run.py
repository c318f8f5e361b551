"""What a child process of a crash matrix does: start or resume the run, and drive it to its end, watched."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from limpet.engine.leases.lease_client import client_for
from limpet.engine.node_context.questions import ResumeInput
from limpet.engine.operations.run_info import run_info
from limpet.engine.operations.workflow_checkpoints import newest
from limpet.engine.sessions.compiled_graph import CompiledGraph
from limpet.engine.sessions.session import Session
from limpet.engine.supervisor.catalog import GraphCatalog
from limpet.engine.supervisor.options import SupervisorOptions
from limpet.engine.supervisor.supervisor import Supervisor
from limpet.errors import AlreadyCompleted, RunNotFound, RunPaused
from limpet.graph_methods import GraphMethods
from limpet.graphs.state import State
from limpet.graphs.workflow.state import WorkflowState
from limpet.journal.store import COMPLETED, PAUSED, RUNNING, RunHead
from limpet.run import AsyncRun, OpenSession, Run
from limpet.testing import effects
from limpet.testing.answers import Script, aresume_to_end, resume_arguments, resume_to_end
from limpet.testing.crash.graph_source import GraphSource, build, load
from limpet.testing.crash.watched_process import WatchedProcess, WatchedStore, clock_of_run

RUN_ID = "matrix"
LEASE = 60.0
"""Seconds: longer than a process may take, so that no lease expires by itself."""
MAX_SWEEPS = 1000
"""How often a supervisor looks for the run before it is taken for one that never ends."""


class RunInput(NamedTuple):
    """What the run is started with, and the script of its answers. It is pickled on its way to the child."""

    input: Any
    config: Mapping[str, Any] | None
    answers: Mapping[str, Any] | None
    messages: Mapping[str, Sequence[Any]] | None = None


def run_graph(
    source: GraphSource,
    given: RunInput,
    log: str,
    database: str,
    *,
    point: str = "",
    delay: float = 0.0,
    driver: str = "sync",
    by: str = "resume",
    level: Literal["process", "disk"] = "process",
) -> dict[str, Any]:
    """Start the run, or resume it, and drive it to its end. Returns its final state, each value as text."""
    process = WatchedProcess(log, point, delay)
    os.environ[effects.FILE] = log
    effects.ON_RECORD[:] = [process.effect]
    store = WatchedStore(Path(database), level=level, clock=clock_of_run(process))
    store.process = process
    graph = WatchedGraph(build(load(source), store, str(source)), store)
    script = Script(given.answers, process.earlier_answers(), process.note_answer, given.messages)
    # With an interval, an event of the stream may come before the save.
    process.streaming = driver in ("stream", "astream") and graph.compiled().interval == 1
    if driver in ("async", "astream"):
        import asyncio

        returned = asyncio.run(_arun(graph, script, store, given, driver, by))
    else:
        returned = _run(graph, script, store, given, driver, by)
    process.end()
    final = graph.state_at(RUN_ID)
    if isinstance(final, WorkflowState):
        final.check()
    state = _state_as_text(graph, final)
    if returned is not None and _state_as_text(graph, returned) != state:
        raise RuntimeError(f"the run returned another state than it has saved: {returned!r}")
    return {"state": state, "unused": script.unused}


class WatchedGraph(GraphMethods[State]):
    """The user's graph on the store of the matrix, with its sessions watched."""

    def __init__(self, graph: GraphMethods[Any], store: WatchedStore) -> None:
        compiled = graph.compiled()
        self.name = compiled.plan.name
        self.process = store.process
        self._compiled = compiled._replace(
            client=client_for(store, LEASE),
            interval=compiled.interval or 1,
            preserve=True,
            checkpointer=None,
            scratch_store=False,
        )

    def compiled(self) -> CompiledGraph:
        return self._compiled

    def _prepare(self, *args: Any, **kwargs: Any) -> tuple[str, OpenSession]:
        run_id, open_session = super()._prepare(*args, **kwargs)
        return run_id, lambda has_waited: self.process.watch(open_session(has_waited))

    def _resuming(
        self, run_id: str, given: ResumeInput, wait: float | None, observers: Iterable[Any] = ()
    ) -> OpenSession:
        open_session = super()._resuming(run_id, given, wait, observers)
        return lambda has_waited: self.process.watch(open_session(has_waited))


def _run(
    graph: WatchedGraph, script: Script, store: WatchedStore, given: RunInput, driver: str, by: str
) -> State | None:
    """Run to the end, and return the final state unless another process has reached the end before."""
    exists = _exists(store)
    try:
        if exists and by == "recover":
            _recover(graph, script, store)
            return None
        if driver == "stream":
            return _iterate(graph.stream(**_stream_arguments(graph, given, exists, by)), store.process)
        if not exists:
            return graph.execute(given.input, given.config, run_id=RUN_ID)
        if by == "checkpoint":
            return graph.invoke(checkpoint=_checkpoint(graph, by)).result()
        return graph.resume(RUN_ID)
    except RunPaused as paused:
        store.process.streaming = False
        return resume_to_end(graph, script, paused)
    except AlreadyCompleted:
        return None


async def _arun(
    graph: WatchedGraph, script: Script, store: WatchedStore, given: RunInput, driver: str, by: str
) -> State | None:
    """The same by the async methods."""
    exists = _exists(store)
    try:
        if driver == "astream":
            return await _aiterate(
                graph.astream(**_stream_arguments(graph, given, exists, by)), store.process
            )
        if not exists:
            return await graph.aexecute(given.input, given.config, run_id=RUN_ID)
        if by == "checkpoint":
            return await graph.ainvoke(checkpoint=_checkpoint(graph, by)).result()
        return await graph.aresume(RUN_ID)
    except RunPaused as paused:
        store.process.streaming = False
        return await aresume_to_end(graph, script, paused)
    except AlreadyCompleted:
        return None


def _iterate(run: Run[State], process: WatchedProcess) -> State:
    for event in run:
        process.event(event)
    return run.result()


async def _aiterate(run: AsyncRun[State], process: WatchedProcess) -> State:
    async for event in run:
        process.event(event)
    return await run.result()


def _stream_arguments(graph: WatchedGraph, given: RunInput, exists: bool, by: str) -> dict[str, Any]:
    if exists:
        return {"checkpoint": _checkpoint(graph, by)}
    started_with = {} if given.input is None else given.input
    return {"input": started_with, "config": given.config, "run_id": RUN_ID}


def _checkpoint(graph: WatchedGraph, by: str) -> str:
    """The checkpoint to resume the run by: its newest. With `by="checkpoint"` each process takes another one.

    The first to resume takes the oldest. Only a workflow has several: all that it keeps lead to its newest state.
    """
    compiled = graph.compiled()
    if by == "checkpoint" and compiled.plan.layers is not None:
        ids = [*(each.id for each in newest(compiled, RUN_ID)), RUN_ID]
        earlier = sum(each["note"] == "process" for each in graph.process.earlier_notes)
        return str(ids[(earlier - 1) % len(ids)])
    return str(graph.history(RUN_ID)[-1].id)


def _recover(graph: WatchedGraph, script: Script, store: WatchedStore) -> None:
    """Resume the run as a supervisor does: sweep after sweep, with answers and time in between."""
    for _ in range(MAX_SWEEPS):
        supervisor = Supervisor(store, GraphCatalog([graph]), SupervisorOptions(LEASE))
        _watch_sessions(supervisor, store.process)
        supervisor.drain()
        head = store.head(RUN_ID)
        if head.status == COMPLETED:
            return
        info = run_info(head)
        if head.status == PAUSED:
            paused = RunPaused(RUN_ID, info.reason or "", info.questions, info.node)
            graph.resume(RUN_ID, **resume_arguments(graph, script, paused))
        elif info.waits and not info.inbox:
            script.send_awaited(graph, RUN_ID, info.waits)
        elif head.status != RUNNING or supervisor.skipped:
            raise RuntimeError(
                f"the run is {head.status}, and no supervisor resumes it: {supervisor.skipped or info.reason}"
            )
        else:
            store.clock.skip_to(head.due or 0.0)  # type: ignore[attr-defined]  # a FakeClock
    raise RuntimeError(f"the run hasn't ended after {MAX_SWEEPS} sweeps of a supervisor")


def _watch_sessions(supervisor: Supervisor, process: WatchedProcess) -> None:
    """Watch the sessions that a supervisor opens."""
    open_session = supervisor.resumer.open_session

    def open_watched(head: RunHead) -> Session | None:
        session = open_session(head)
        if session is None:
            return None
        return process.watch(session)

    supervisor.resumer.open_session = open_watched  # type: ignore[method-assign]  # for this supervisor alone


def _exists(store: WatchedStore) -> bool:
    """Whether the run exists. The lease of the killed process is broken, so that this one needn't wait for it."""
    try:
        head = store.head(RUN_ID)
    except RunNotFound:
        return False
    store.process.note("found", sequence=head.sequence, snapshot=head.snapshot)
    if head.holder is not None:
        store.release(store.claim(RUN_ID, "the crash matrix", 1.0, instead_of=head.fence))
    return True


def _state_as_text(graph: WatchedGraph, final: State) -> dict[str, str]:
    state = {key: value_as_text(final[key]) for key in final}
    if graph.compiled().plan.layers is not None and "tasks" in final:
        state["tasks"] = value_as_text(_without_timing(final["tasks"]))
    return state


def value_as_text(value: Any) -> str:
    """A value as text that shows its types and the order of its keys; that of sets isn't part of their value."""
    if isinstance(value, Mapping):
        items = [f"{value_as_text(key)}: {value_as_text(each)}" for key, each in value.items()]
        return f"{_type_name(value, dict)}{{{', '.join(items)}}}"
    if isinstance(value, (set, frozenset)):
        return f"{_type_name(value, set)}{{{', '.join(sorted(map(value_as_text, value)))}}}"
    if type(value) is list:
        return f"[{', '.join(map(value_as_text, value))}]"
    if type(value) is tuple:
        return f"({', '.join(map(value_as_text, value))},)"
    text = repr(value)
    if " at 0x" in text:  # the default repr, which differs from process to process
        from limpet.journal.encoding.codec import encode

        return f"<{type(value).__name__} {encode(value).hex()}>"
    return text


def _type_name(value: Any, usual: type) -> str:
    if type(value) in (usual, dict):
        return ""
    return type(value).__name__


def _without_timing(tasks: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """The records of tasks without what differs from run to run: when, for how long, and in how many attempts."""
    timing = ("timestamp", "duration", "attempts")
    return {
        name: {key: each for key, each in record.items() if key not in timing}
        for name, record in tasks.items()
    }
