"""The user's graph on a stage: on a store and a clock of its own, begun or gone on with, and followed to its end."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from limpet.engine.leases.lease_client import client_for
from limpet.engine.node_context.questions import ResumeInput
from limpet.engine.operations.run_info import run_info
from limpet.engine.sessions.session import CompiledGraph, Session
from limpet.engine.supervisor.catalog import GraphCatalog
from limpet.engine.supervisor.options import SupervisorOptions
from limpet.engine.supervisor.supervisor import Supervisor
from limpet.errors import AlreadyCompleted, RunNotFound, RunPaused
from limpet.graph_methods import GraphMethods
from limpet.graphs.state import State
from limpet.journal.store import COMPLETED, PAUSED, RUNNING, RunHead
from limpet.testing import effects
from limpet.testing.answers import Script, ago_on, brought, go_on
from limpet.testing.crash import graph_source as origin
from limpet.testing.crash.process_life import LastingClock, Life, MortalStore

RUN = "matrix"
"""The id of the run."""
LEASE = 60.0
MOST_SWEEPS = 1000


class Staged(GraphMethods[State]):
    """The user's graph on the matrix's store, with its sessions watched."""

    def __init__(self, graph: GraphMethods[Any], store: MortalStore) -> None:
        compiled = graph.compiled()
        self.name, self.life = compiled.plan.name, store.life
        self._compiled = compiled._replace(
            client=client_for(store, LEASE),
            interval=compiled.interval or 1,
            preserve=True,
            checkpointer=None,
            scratch_store=False,
        )

    def compiled(self) -> CompiledGraph:
        return self._compiled

    def _prepare(self, *args: Any, **kwargs: Any) -> tuple[str, Callable[[], Session]]:
        named, opening = super()._prepare(*args, **kwargs)
        return named, lambda: self.life.watched(opening())

    def _resuming(self, run_id: str, given: ResumeInput, wait: float | None) -> Callable[[], Session]:
        opening = super()._resuming(run_id, given, wait)
        return lambda: self.life.watched(opening())


def watch_supervisor(supervisor: Supervisor, life: Life) -> None:
    """Watch the sessions that a supervisor opens."""
    open_session = supervisor.resumer.open_session

    def open_watched(head: RunHead) -> Session | None:
        session = open_session(head)
        return None if session is None else life.watched(session)

    supervisor.resumer.open_session = open_watched  # type: ignore[method-assign]  # for this supervisor alone


def live(
    place: origin.Origin,
    log: str,
    database: str,
    given: tuple[Any, Mapping[str, Any] | None, Mapping[str, Any] | None],
    *,
    point: str = "",
    delay: float = 0.0,
    driver: str = "sync",
    by: str = "resume",
) -> dict[str, Any]:
    """Start the run, or go on with it, to its end. Returns what it came to, as text."""
    input, config, answers = given
    life = Life(log, point, delay)
    os.environ[effects.FILE] = log
    effects.RECORDED[:] = [life.effect]
    store = MortalStore(Path(database), level="process", clock=LastingClock(life))
    store.life = life
    graph = Staged(origin.build(origin.load(place), store, str(place)), store)
    script = Script(answers, life.given(), life.asked)
    if driver == "async":
        import asyncio

        asyncio.run(_alive(graph, script, store, input, config))
    else:
        _live(graph, script, store, input, config, by)
    life.end()
    final = graph.state_at(RUN)
    layered = graph.compiled().plan.layers is not None
    return {"state": {key: shown(_lasting(final[key], layered and key == "tasks")) for key in final},
            "unused": script.unused}  # fmt: skip


def _live(
    graph: Staged, script: Script, store: MortalStore, input: Any, config: Mapping[str, Any] | None, by: str
) -> None:
    try:
        if not _is_there(store):
            graph.execute(input, config, run_id=RUN)
        elif by == "recover":
            _recover(graph, script, store)
        else:
            graph.resume(RUN)
    except RunPaused as paused:
        go_on(graph, script, paused)
    except AlreadyCompleted:
        pass


async def _alive(
    graph: Staged, script: Script, store: MortalStore, input: Any, config: Mapping[str, Any] | None
) -> None:
    try:
        if _is_there(store):
            await graph.aresume(RUN)
        else:
            await graph.aexecute(input, config, run_id=RUN)
    except RunPaused as paused:
        await ago_on(graph, script, paused)
    except AlreadyCompleted:
        pass


def _recover(graph: Staged, script: Script, store: MortalStore) -> None:
    """Go on with the run as a supervisor does: sweep after sweep, with answers and time in between."""
    for _ in range(MOST_SWEEPS):
        supervisor = Supervisor(store, GraphCatalog([graph]), SupervisorOptions(LEASE))
        watch_supervisor(supervisor, store.life)
        supervisor.drain()
        head = store.head(RUN)
        if head.status == COMPLETED:
            return
        if head.status == PAUSED:
            info = run_info(head)
            paused = RunPaused(RUN, info.reason or "", info.questions, info.node)
            graph.resume(RUN, **brought(graph, script, paused))
        elif head.status != RUNNING or supervisor.skipped:
            raise RuntimeError(f"it was left {head.status}: {supervisor.skipped or run_info(head).reason}")
        else:
            store.clock.skip_to(head.due or 0.0)  # type: ignore[attr-defined]  # a LastingClock
    raise RuntimeError(f"it isn't at its end after {MOST_SWEEPS} sweeps")


def _is_there(store: MortalStore) -> bool:
    """Whether the run was begun; the lease of a process that is dead is taken from it, so that nobody need wait."""
    try:
        head = store.head(RUN)
    except RunNotFound:
        return False
    if head.holder is not None:
        store.release(store.claim(RUN, "the crash matrix", 1.0, instead_of=head.fence))
    return True


def shown(value: Any) -> str:
    """A value as text, in which its types show, and that is the same for values that are equal."""
    if isinstance(value, Mapping):
        inside = sorted((shown(key), shown(each)) for key, each in value.items())
        return f"{_kind(value, dict)}{{{', '.join(f'{key}: {each}' for key, each in inside)}}}"
    if isinstance(value, (set, frozenset)):
        return f"{_kind(value, set)}{{{', '.join(sorted(map(shown, value)))}}}"
    if type(value) in (list, tuple):
        inside_it = ", ".join(map(shown, value))
        return f"[{inside_it}]" if type(value) is list else f"({inside_it},)"
    text = repr(value)
    if " at 0x" in text:
        from limpet.journal.encoding.codec import encode

        return f"<{type(value).__name__} {encode(value).hex()}>"
    return text


def _kind(value: Any, usual: type) -> str:
    return "" if type(value) in (usual, dict) else type(value).__name__


def _lasting(value: Any, is_tasks: bool) -> Any:
    """Records of tasks without what differs from run to run: when, for how long, how often tried."""
    if not is_tasks:
        return value
    fleeting = ("timestamp", "duration", "attempts")
    return {
        name: {key: each for key, each in record.items() if key not in fleeting}
        for name, record in value.items()
    }
