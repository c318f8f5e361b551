"""The table of run statuses: the engine makes the transitions that are in it, all of them and no other. G6, H1."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from limpet import (
    ExecutionError,
    MemoryStore,
    RunCancelled,
    RunPaused,
    RunQuarantined,
    RunWaiting,
    State,
    StateGraph,
    pause,
    receive,
    sleep,
)
from limpet.engine.drivers.sync_driver import drive
from limpet.engine.loop import run_lifecycle
from limpet.engine.loop.run_context import Clocks, Limits, Reporting, RunContext, Saving
from limpet.engine.loop.run_lifecycle import (
    ANSWER,
    CANCEL,
    DEADLINE,
    FORK,
    NEW,
    QUARANTINE,
    RESUME,
    ROLLBACK,
    RUN_STATUSES,
    SLEEP,
    START,
    RunLifecycle,
    next_status,
)
from limpet.engine.node_context.questions import ResumeInput
from limpet.engine.operations.run_info import SHOWN_STATUSES
from limpet.engine.sessions import resume as sessions
from limpet.engine.sessions.trials import CrashLimits
from limpet.graphs.secrets import SecretMasker
from limpet.journal.progress import Progress
from limpet.journal.store import CANCELLED, COMPLETED, FAILED, PAUSED, Commit, Lease, NewRun
from limpet.testing.conformance.store_calls import ManualClock
from support.graphs import chain, fan

AN_HOUR = 3600.0
Transition = tuple[str, str, str]


class RecordingStore(MemoryStore):
    """Records each change of a run's stored status, with the event that it is due to.

    That is what the lifecycle looked up in the table just before, or else what the scenario says it does.
    """

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock=clock)
        self.manual = clock
        self.transitions: list[Transition] = []
        self.doing = "unnamed"
        self.stopping: str | None = None

    def create(self, run: NewRun) -> Lease | None:
        lease = super().create(run)
        self.transitions.append((NEW, self.doing, run.status))
        return lease

    def append(self, commits: Sequence[Commit]) -> list[Exception | None]:
        before = [self.head(commit.run_id).status for commit in commits]
        refusals = super().append(commits)
        for commit, status, refusal in zip(commits, before, refusals, strict=True):
            if commit.status is not None and refusal is None:
                self.transitions.append((status, self.stopping or self.doing, commit.status))
                self.stopping = None
        return refusals

    @contextmanager
    def during(self, event: str) -> Iterator[None]:
        self.doing = event
        yield
        self.doing = "unnamed"


def transitions_of(scenario: Callable[[RecordingStore], None], patch: pytest.MonkeyPatch) -> set[Transition]:
    """All changes of a status in a scenario, which has a store of its own."""
    store = RecordingStore(ManualClock())

    def noted(status: str, event: str) -> str:
        after = next_status(status, event)
        if event != RESUME:  # that is how a run begins, which changes nothing stored
            store.stopping = event
        return after

    patch.setattr(run_lifecycle, "next_status", noted)
    scenario(store)
    return set(store.transitions)


def graph_of(store: Any, *nodes: Callable[[State], Any], **options: Any) -> StateGraph:
    """A chain of nodes n1 → n2 → …, stored."""
    return chain(*nodes, schema={"n": int}).compile(store=store, preserve=True, **options)


def branching(store: Any, *branches: Callable[[State], Any]) -> StateGraph:
    """Branches that run in parallel."""
    named = {f"b{number}": branch for number, branch in enumerate(branches)}
    return fan(named, nothing).compile(store=store, preserve=True)


def nothing(state: State) -> dict[str, Any]:
    return {}


def ask(state: State) -> dict[str, Any]:
    return {"n": pause("Well?")}


def ask_in_time(state: State) -> dict[str, Any]:
    return {"n": pause("Well?", deadline=60.0, default=7)}


def rest(state: State) -> dict[str, Any]:
    sleep(60.0)
    return {}


def fail(state: State) -> dict[str, Any]:
    raise ValueError("broken")


def run_to_stop(graph: StateGraph, run_id: str, problem: type[Exception]) -> Any:
    """Start a run, and return what it raises where it stops."""
    store: RecordingStore = graph.compiled().need_client("test").store  # type: ignore[assignment]
    with store.during(START), pytest.raises(problem) as caught:
        graph.execute({}, run_id=run_id)
    return caught.value


def resume_when_due(graph: StateGraph, run_id: str, **more: Any) -> None:
    """What a supervisor does with a run that is due."""
    session = sessions.resume(graph.compiled(), run_id, ResumeInput(timed=True), None, False, **more)
    for _ in drive(session):
        pass


def crash_at_claim(store: RecordingStore, run_id: str, times: int) -> None:
    """Let processes claim a run and crash at once."""
    for _ in range(times):
        store.claim(run_id, "a process that crashes", ttl=1.0)
        store.manual.advance(2.0)


def starts_and_completes(store: RecordingStore) -> None:
    graph = graph_of(store, nothing, nothing)
    with store.during(START):
        graph.execute({}, run_id="complete")
    with store.during(ROLLBACK):
        graph.rollback("complete", 1)
    with store.during(ROLLBACK):
        graph.rollback("complete", 0)
    with store.during(FORK):
        graph.fork("complete", 1)


def waits_for_a_message(store: RecordingStore) -> None:
    graph = graph_of(store, lambda state: {"n": receive("number")})
    run_to_stop(graph, "waits", RunWaiting)
    graph.send("waits", "number", 1)
    with store.during(RESUME):
        graph.resume("waits")


def is_interrupted(store: RecordingStore) -> None:
    graph = graph_of(store, nothing, nothing, interrupt_before=["n2"])
    run_to_stop(graph, "interrupted", RunPaused)
    with store.during(RESUME):
        graph.resume("interrupted")


def asks_and_is_answered(store: RecordingStore) -> None:
    graph = graph_of(store, ask)
    run_to_stop(graph, "asks", RunPaused)
    with store.during(ANSWER):
        graph.answer("asks", 1)
    with store.during(RESUME):
        graph.resume("asks", update={"n": 2})


def asks_and_is_cancelled(store: RecordingStore) -> None:
    graph = graph_of(store, ask)
    run_to_stop(graph, "cancelled", RunPaused)
    with store.during(CANCEL):
        graph.cancel("cancelled")
    with store.during(RESUME):
        graph.get("cancelled").retry()
    with store.during(CANCEL):
        graph.cancel("cancelled")


def is_asked_twice_at_once(store: RecordingStore) -> None:
    graph = branching(store, ask, ask)
    for question in run_to_stop(graph, "twice", RunPaused).questions:
        with store.during(ANSWER):
            graph.answer("twice", answers={question.id: 1})
    with store.during(ROLLBACK):
        graph.rollback("twice", 0)


def fails_while_it_asks(store: RecordingStore) -> None:
    graph = branching(store, ask, fail)
    run_to_stop(graph, "fails", ExecutionError)
    with store.during(ANSWER):
        graph.answer("fails", 1)


def fails_and_is_resumed(store: RecordingStore) -> None:
    graph = graph_of(store, nothing, fail)
    run_to_stop(graph, "again", ExecutionError)
    with store.during(RESUME), pytest.raises(ExecutionError):
        graph.resume("again")
    with store.during(ROLLBACK):
        graph.rollback("again", 1)


def cancels_itself(store: RecordingStore) -> None:
    graph = graph_of(store, lambda state: graph.cancel("itself"), nothing)
    run_to_stop(graph, "itself", RunCancelled)
    with store.during(ROLLBACK):
        graph.rollback("itself", 1)


def sleeps_without_a_process(store: RecordingStore) -> None:
    graph = graph_of(store, rest)
    with store.during(START):
        graph.start({}, run_id="sleeps")
    resume_when_due(graph, "sleeps", max_sleep=0.0)
    assert store.head("sleeps").due == store.manual() + 60.0


def misses_its_deadline(store: RecordingStore) -> None:
    graph = graph_of(store, ask_in_time)
    run_to_stop(graph, "late", RunPaused)
    store.manual.advance(AN_HOUR)
    with store.during(DEADLINE):
        resume_when_due(graph, "late")
    assert graph.state_at("late")["n"] == 7


def crashes_too_often(store: RecordingStore) -> None:
    graph = graph_of(store, nothing)
    with store.during(START):
        graph.start({}, run_id="crashes")
    limits = CrashLimits(max_crashes=3, suspect_from=1, has_turn=True, is_alone=True)
    crash_at_claim(store, "crashes", 1)
    for _ in range(3):
        sessions.resume(graph.compiled(), "crashes", ResumeInput(timed=True), limits=limits)
        store.manual.advance(AN_HOUR)
    with store.during(QUARANTINE), pytest.raises(RunQuarantined):
        resume_when_due(graph, "crashes", limits=limits)


SCENARIOS = [
    starts_and_completes,
    waits_for_a_message,
    is_interrupted,
    asks_and_is_answered,
    asks_and_is_cancelled,
    is_asked_twice_at_once,
    fails_while_it_asks,
    fails_and_is_resumed,
    cancels_itself,
    sleeps_without_a_process,
    misses_its_deadline,
    crashes_too_often,
]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_each_change_of_a_status_is_in_the_table(
    scenario: Callable[[RecordingStore], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """G6: whatever happens to a run, its stored status changes as the table says."""
    found = transitions_of(scenario, monkeypatch)
    assert found
    assert found - rows() == set()


def test_each_row_of_the_table_is_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    """G6: the table says nothing that can't happen."""
    reached: set[Transition] = set()
    for scenario in SCENARIOS:
        reached |= transitions_of(scenario, monkeypatch)
    assert rows() - reached == set()


def test_a_status_that_is_shown_refines_a_stored_one() -> None:
    """H1: people see finer statuses; none of them is stored."""
    assert {shown.stored for shown in SHOWN_STATUSES} <= RUN_STATUSES.keys()
    assert not {shown.name for shown in SHOWN_STATUSES} & RUN_STATUSES.keys()


@pytest.mark.parametrize(
    ("status", "event"), [(COMPLETED, RESUME), (FAILED, CANCEL), (CANCELLED, CANCEL), (PAUSED, SLEEP)]
)
def test_what_is_not_in_the_table_is_refused(status: str, event: str) -> None:
    """G6: a transition that the table doesn't have is a mistake in the engine, and found there."""
    with pytest.raises(RuntimeError, match=f"{event!r} can't happen to a run that is {status!r}"):
        next_status(status, event)


def test_a_completed_run_is_not_run_again() -> None:
    """G6: not even if it is opened by mistake."""
    plan = graph_of(None, nothing).compiled().plan
    progress = Progress("r", plan.name, plan.fingerprint, plan.entry, State(), status=COMPLETED)
    clock = ManualClock()
    context = RunContext(progress, Clocks(clock, clock, float), Saving(), Reporting(SecretMasker()), Limits())
    with pytest.raises(RuntimeError, match="'resume' can't happen to a run that is 'completed'"):
        next(RunLifecycle(plan, context).run())


def rows() -> set[Transition]:
    return {
        (before, event, after) for before, events in RUN_STATUSES.items() for event, after in events.items()
    }
