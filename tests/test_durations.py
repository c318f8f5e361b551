"""Every length of time that can be given is checked, and what can't be one gets an error that says so. F16."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from math import inf, nan, ulp
from pathlib import Path
from typing import Any

import pytest

from limpet import (
    END,
    DefinitionError,
    LimpetError,
    MemoryStore,
    Retry,
    RunPaused,
    State,
    StateGraph,
    UsageError,
    Workflow,
    open_store,
    pause,
    sleep,
    supervise,
)
from limpet.durations import LONGEST_SPAN, moment_of, patience_of, seconds_of
from limpet.stores.files.store import FileStore
from limpet.stores.sqlite.store import SQLiteStore
from limpet.testing import FakeClock

NEVER_A_SPAN = [nan, -1, -0.5, True, "x", "3", [1], Decimal(1), 10**400, 1e11, -inf]
"""What no setting takes. A wait may be infinite, and one that a node sleeps may be a timedelta."""


def graph_of(run: Any = None, **options: Any) -> StateGraph:
    graph = StateGraph(name="g").add_node("node", run=run).set_entry_point("node").set_finish_point("node")
    return graph.compile(store=MemoryStore(), preserve=True, **options)


def in_node(call: Callable[[], Any]) -> None:
    """Call it in a node, and raise what it raises there."""

    def node(state: State) -> None:
        call()

    try:
        graph_of(node).execute({})
    except LimpetError as error:
        raise error.__cause__ or error from None


def paused() -> StateGraph:
    """A graph whose run "r" asks something."""
    graph = graph_of(lambda state: {"answer": pause("?")})
    with pytest.raises(RunPaused):
        graph.execute({}, run_id="r")
    return graph


def stop(grace: Any) -> None:
    with supervise(MemoryStore(), [graph_of()]) as supervisor:
        supervisor.stop(grace)


SETTINGS: dict[str, Callable[[Any], Any]] = {
    "add_node timeout": lambda given: StateGraph().add_node("a", timeout=given),
    "add_fanin_node timeout": lambda given: StateGraph().add_fanin_node("a", timeout=given),
    "add_task timeout": lambda given: Workflow("w").add_task("a", lambda: 1, timeout=given),
    "edge delay": lambda given: StateGraph().add_edge("a", "b", delay=given),
    "choice delay": lambda given: StateGraph().add_conditional_edges("a", lambda s: END, delay=given),
    "retry backoff": lambda given: Retry(backoff=given),
    "retry max_delay": lambda given: Retry(max_delay=given),
    "lease of a graph": lambda given: graph_of(lease=given).execute({}),
    "lease of a workflow": lambda given: Workflow("w", lease=given).add_task("a", lambda: 1).execute(),
    "start delay": lambda given: graph_of().start(delay=given),
    "sleep": lambda given: in_node(lambda: sleep(given)),
    "pause deadline": lambda given: in_node(lambda: pause("?", deadline=given)),
    "supervise lease": lambda given: supervise(MemoryStore(), [graph_of()], lease=given),
    "supervise poll": lambda given: supervise(MemoryStore(), [graph_of()], poll=given),
    "supervise max_sleep": lambda given: supervise(MemoryStore(), [graph_of()], max_sleep=given),
    "supervise grace": lambda given: supervise(MemoryStore(), [graph_of()], grace=given),
    "skip of a fake clock": lambda given: FakeClock().skip(given),
}
"""Settings that are a length of time."""

UNLIMITED = ("retry max_delay", "supervise max_sleep", "supervise grace")
"""Those of them that may be without limit."""

WAITS: dict[str, Callable[[Any], Any]] = {
    "resume wait": lambda given: graph_of(lambda s: pause("?")).resume("r", wait=given),
    "answer wait": lambda given: paused().answer("r", "yes", wait=given),
    "result timeout": lambda given: graph_of().start().result(given),
    "wait timeout": lambda given: graph_of().start().wait(given),
    "stop grace": stop,
}
"""Calls that wait for something, for as long as their caller says."""


@pytest.mark.parametrize("given", NEVER_A_SPAN, ids=lambda given: repr(given)[:12])
@pytest.mark.parametrize("setting", SETTINGS)
def test_a_setting_that_cannot_be_a_length_of_time_gets_a_clear_error(setting: str, given: Any) -> None:
    """F16: it names the setting and what it takes."""
    if setting in UNLIMITED and isinstance(given, (int, float)) and given > LONGEST_SPAN:
        SETTINGS[setting](given)
        return
    clear = r"seconds .*not |is a time, not .*: give how long from now |must be at most 3153600000 seconds"
    with pytest.raises((UsageError, DefinitionError), match=clear):
        SETTINGS[setting](given)


@pytest.mark.parametrize("given", ["inf", "nan", "-1", "1e11", "-inf"])
@pytest.mark.parametrize(
    "place", ["sqlite:///{}/r.db", "file://{}/r", "postgresql://nowhere/db", "redis://nowhere"]
)
def test_a_timeout_in_the_url_of_a_store_follows_the_same_rule(
    place: str, given: str, tmp_path: Path
) -> None:
    """F16: for every store, before a server is asked."""
    with pytest.raises(
        UsageError, match=r"timeout must be (a number of seconds .*, not|at most 3153600000 seconds)"
    ):
        open_store(f"{place.format(tmp_path)}?timeout={given}")


@pytest.mark.parametrize("given", [None, "3", True])
def test_a_timeout_of_a_store_that_is_not_a_number_gets_a_clear_error(given: Any, tmp_path: Path) -> None:
    for make in (SQLiteStore, FileStore):
        with pytest.raises(UsageError, match="timeout must be a number of seconds"):
            make(tmp_path / "runs", timeout=given)


@pytest.mark.parametrize("setting", [each for each in SETTINGS if each not in UNLIMITED])
def test_a_length_of_time_is_finite(setting: str) -> None:
    with pytest.raises((UsageError, DefinitionError), match=r"must be at most 3153600000 seconds.*not inf"):
        SETTINGS[setting](inf)


@pytest.mark.parametrize("given", [nan, True, "x", [1], Decimal(1)], ids=repr)
@pytest.mark.parametrize("call", WAITS)
def test_a_wait_that_is_not_a_number_gets_a_clear_error(call: str, given: Any) -> None:
    with pytest.raises(UsageError, match="must be a number of seconds, not"):
        WAITS[call](given)


@pytest.mark.parametrize(
    "given", [inf, 1e11, 10**400, LONGEST_SPAN, 0, -3], ids=lambda given: repr(given)[:9]
)
def test_a_wait_may_be_without_limit_or_over(given: Any) -> None:
    """A call that waits for a run, or stops a supervisor, takes what is left of a deadline."""
    graph = paused()
    graph.answer("r", "yes", wait=given)
    graph.resume("r", wait=given)
    stop(given)
    if given > 0:
        store = MemoryStore()
        other = StateGraph(name="h").add_node("node").set_entry_point("node").set_finish_point("node")
        other.compile(store=store)
        run = other.start()
        with supervise(store, [other], poll=0.01):
            run.result(given)


@pytest.mark.parametrize("years", [99, 300, 6000])
@pytest.mark.parametrize("kind", ["plain", "branches"])
@pytest.mark.parametrize("api", ["sync", "async"])
def test_a_run_can_sleep_until_any_date(years: int, kind: str, api: str) -> None:
    """F11: a clock that skips time gets there at once."""
    clock = FakeClock(auto=True)
    wake_at = datetime.now(UTC) + timedelta(days=365 * years)

    def node(state: State) -> None:
        sleep(until=wake_at)

    graph = StateGraph(name="g").add_node("source").add_node("a", run=node).add_node("b", run=node)
    graph.set_entry_point("source").add_fanin_node("join").set_finish_point("join")
    if kind == "plain":
        graph.add_edge("source", "a").add_edge("a", "b").add_edge("b", "join")
    else:
        graph.add_parallel_edge("source", "a", "join").add_parallel_edge("source", "b", "join")
    graph.compile(store=MemoryStore(clock=clock))
    if api == "sync":
        graph.execute({})
    else:
        asyncio.run(graph.aexecute({}))
    # The clock got there by adding the time to wait, which rounds to the next number at most.
    assert abs(clock() - wake_at.timestamp()) <= ulp(wake_at.timestamp())


def test_a_sleep_that_is_over_but_for_a_rounding_error_is_over() -> None:
    """F11: where the loop stops to wait, the node stops to ask; else it would be called for ever."""
    clock = FakeClock(11255612948.106995)
    wake_at = datetime.fromtimestamp(11255612948.106997, UTC)
    calls = []

    def node(state: State) -> None:
        calls.append(clock())
        assert len(calls) < 3
        sleep(until=wake_at)

    graph = StateGraph(name="g").add_node("a", run=node).set_entry_point("a").set_finish_point("a")
    graph.compile(store=MemoryStore(clock=clock)).execute({})
    assert len(calls) == 1


def test_a_run_waits_for_a_far_date_in_pieces() -> None:
    """F11: no system waits for more than 292 years at once, so a session never asks it to."""
    session = graph_of().invoke({})._slot.begin()
    assert session.seconds_until(1e12) == 86400.0
    assert session.limit_wait(1e12) == 86400.0
    session.close()


@pytest.mark.parametrize("factor", [nan, inf, "x", 0.5, True, None])
def test_a_factor_or_jitter_that_is_not_a_number_is_a_mistake(factor: Any) -> None:
    with pytest.raises(DefinitionError, match="factor must be a number of at least 1"):
        Retry(factor=factor)
    with pytest.raises(DefinitionError, match="jitter must be a share from 0 to 1"):
        Retry(jitter=factor if factor != 0.5 else 1.5)


@pytest.mark.parametrize("factor", [10, 1e10, 10**30])
def test_the_wait_for_a_late_attempt_is_bounded(factor: float) -> None:
    """G7: however large its factor is, and without a longest wait too."""
    for attempt in (1, 2, 40, 400, 5000):
        assert 0 < Retry(factor=factor, max_delay=inf, jitter=0).delay(attempt, 0.5) <= LONGEST_SPAN
        assert Retry(factor=factor, jitter=0).delay(attempt, 0.5) <= 60
        assert Retry(backoff=0, factor=factor).delay(attempt, 0.5) == 0


def test_spans_and_moments_are_read_in_all_their_forms() -> None:
    assert seconds_of(3, "x") == seconds_of(timedelta(seconds=3), "x") == 3.0
    assert moment_of(timedelta(minutes=1), 100.0, "x") == 160.0
    assert moment_of(datetime(1970, 1, 2, tzinfo=UTC), 5.0, "x") == 86400.0
    assert patience_of(None, "x") == patience_of(inf, "x") == LONGEST_SPAN
