"""What is promised of one node: how often it is tried, for how long, and what it may know of its call."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from limpet import (
    DefinitionError,
    Event,
    ExecutionError,
    MemoryStore,
    NodeContext,
    NodeTimeout,
    Retry,
    State,
    StateGraph,
    UsageError,
    once,
    pause,
)
from limpet.journal.reader import read_progress
from limpet.journal.store import Lease
from support.graphs import AT_ONCE, Crash

SOON = 10.0
"""Seconds within which what is waited for has happened, on any machine."""
SHORT = 0.05
"""A timeout that is meant to run out."""


def one(run: Callable[..., Any], *, store: Any = None, observer: Any = None, **policy: Any) -> StateGraph:
    """A graph of one node."""
    graph = StateGraph(observer=observer).add_node("only", run=run, **policy)
    return graph.set_entry_point("only").set_finish_point("only").compile(store=store)


def failing(times: int, error: Exception | None = None) -> tuple[list[int], Callable[..., Any]]:
    """A node that fails this many times before it succeeds, and the list of its attempts."""
    attempts: list[int] = []

    def node(state: State, ctx: NodeContext) -> dict[str, Any]:
        attempts.append(ctx.attempt)
        if len(attempts) <= times:
            raise error or ValueError("not yet")
        return {"done": True}

    return attempts, node


def run_both_ways(graph: StateGraph, given: dict[str, Any], how: str) -> State:
    return graph.execute(given) if how == "sync" else asyncio.run(graph.aexecute(given))


# The policy by itself


@pytest.mark.parametrize(
    ("retry", "delays"),
    [
        (Retry(backoff=1, factor=2, jitter=0), [1, 2, 4, 8]),
        (Retry(backoff=0.5, factor=3, jitter=0), [0.5, 1.5, 4.5, 13.5]),
        (Retry(backoff=1, factor=1, jitter=0), [1, 1, 1, 1]),
        (Retry(backoff=10, factor=2, max_delay=25, jitter=0), [10, 20, 25, 25]),
        (Retry(backoff=0, jitter=1), [0, 0, 0, 0]),
    ],
)
def test_the_waits_grow_by_the_factor_up_to_max_delay(retry: Retry, delays: list[float]) -> None:
    """H8: backoff."""
    assert [retry.delay(attempt, 0.5) for attempt in (1, 2, 3, 4)] == delays


@pytest.mark.parametrize("jitter", [0, 0.1, 0.5, 1])
@pytest.mark.parametrize("attempt", [1, 2, 5, 1000])
def test_the_jitter_moves_a_wait_within_its_bounds(jitter: float, attempt: int) -> None:
    """H8: up to that share shorter or longer, and all of it is used."""
    retry = Retry(backoff=2, max_delay=40, jitter=jitter)
    middle = min(40, 2 * 2 ** min(attempt - 1, 64))
    assert retry.delay(attempt, 0.0) == pytest.approx(middle * (1 - jitter))
    assert retry.delay(attempt, 0.5) == pytest.approx(middle)
    assert retry.delay(attempt, 1.0) == pytest.approx(middle * (1 + jitter))
    chances = [number / 100 for number in range(101)]
    waits = [retry.delay(attempt, chance) for chance in chances]
    assert waits == sorted(waits)


@pytest.mark.parametrize(
    ("on", "error", "applies"),
    [
        (Exception, ValueError(), True),
        (ValueError, ValueError(), True),
        (ValueError, UnicodeError(), True),
        (ValueError, KeyError(), False),
        ((KeyError, OSError), TimeoutError(), True),
        ((KeyError, OSError), ValueError(), False),
        (Exception, KeyboardInterrupt(), False),
        (NodeTimeout, NodeTimeout("late"), True),
    ],
)
def test_only_the_named_exceptions_are_tried_again(on: Any, error: BaseException, applies: bool) -> None:
    """H8: classes with their subclasses, and never what isn't an Exception."""
    assert Retry(attempts=3, on=on).applies(error, 2) is applies


def test_the_first_attempt_counts() -> None:
    """H8: three attempts are two repetitions."""
    retry = Retry(attempts=3)
    assert [retry.applies(ValueError(), attempt) for attempt in (1, 2, 3, 4)] == [True, True, False, False]


@pytest.mark.parametrize(
    "settings",
    [
        {"attempts": 0},
        {"attempts": 1.5},
        {"attempts": True},
        {"backoff": -1},
        {"factor": 0.5},
        {"max_delay": -1},
        {"jitter": 1.5},
        {"jitter": -0.1},
        {"on": KeyboardInterrupt},
        {"on": "ValueError"},
        {"on": [ValueError]},
    ],
    ids=str,
)
def test_a_policy_that_makes_no_sense_is_refused(settings: dict[str, Any]) -> None:
    """H8: when it is written down."""
    (name,) = settings
    with pytest.raises(DefinitionError, match=f"retry: {name} must be"):
        Retry(**settings)


@pytest.mark.parametrize("wrong", ["3", 1.5, True, ValueError])
def test_what_isnt_a_retry_is_refused(wrong: Any) -> None:
    """H8: a Retry or a number of attempts."""
    with pytest.raises(DefinitionError, match="retry must be a Retry or a number of attempts"):
        StateGraph().add_node("a", retry=wrong)


# Trying again


@pytest.mark.parametrize("store", [None, "memory://"])
@pytest.mark.parametrize("how", ["sync", "async"])
def test_a_node_is_tried_again_until_it_succeeds(store: str | None, how: str) -> None:
    """H8: each attempt knows its number."""
    attempts, node = failing(2)
    assert run_both_ways(one(node, store=store, retry=AT_ONCE), {}, how) == {"done": True}
    assert attempts == [1, 2, 3]


@pytest.mark.parametrize("how", ["sync", "async"])
def test_an_async_node_is_tried_again_too(how: str) -> None:
    """H8, H7."""
    attempts, node = failing(2)

    async def later(state: State, ctx: NodeContext) -> dict[str, Any]:
        await asyncio.sleep(0)
        return node(state, ctx)

    assert run_both_ways(one(later, retry=AT_ONCE), {}, how) == {"done": True}
    assert attempts == [1, 2, 3]


def test_a_number_is_that_many_attempts() -> None:
    """H8: `retry=1` is one attempt, and none after it."""
    attempts, node = failing(9)
    with pytest.raises(ExecutionError):
        one(node, retry=1).execute({})
    assert attempts == [1]


def test_after_the_last_attempt_the_run_fails_with_its_error() -> None:
    """H8: the cause is what the last attempt raised; a resume begins to count again."""
    attempts, node = failing(3, OSError("unreachable"))
    graph = one(node, store="memory://", retry=AT_ONCE)
    with pytest.raises(ExecutionError, match="OSError: unreachable") as caught:
        graph.execute({}, run_id="r")
    assert isinstance(caught.value.cause, OSError)
    assert caught.value.path == ["only"]
    assert graph.resume("r") == {"done": True}
    assert attempts == [1, 2, 3, 1]


def test_another_exception_is_not_tried_again() -> None:
    """H8: which exceptions."""
    attempts, node = failing(1, KeyError("k"))
    with pytest.raises(ExecutionError, match="KeyError"):
        one(node, retry=Retry(backoff=0, on=(ValueError, OSError))).execute({})
    assert attempts == [1]


def test_a_node_without_a_policy_is_tried_once() -> None:
    """H8: nothing is repeated that wasn't asked for."""
    attempts, node = failing(1)
    with pytest.raises(ExecutionError):
        one(node).execute({})
    assert attempts == [1]


class LostHolders(MemoryStore):
    """A store in memory that no holder gives its lease back to, as when each dies; they run out with its clock."""

    def __init__(self) -> None:
        self.now = 0.0
        super().__init__(clock=lambda: self.now)

    def release(self, lease: Lease) -> None:
        self.now += 3600


@pytest.mark.parametrize(("store", "expected"), [(LostHolders, [1, 2, 3, 4]), (MemoryStore, [1, 2, 2, 3, 4])])
def test_the_attempts_keep_counting_over_a_crash(store: type[MemoryStore], expected: list[int]) -> None:
    """H8: an attempt that ended with its holder is one, too; one that was broken off and given back isn't."""
    attempts: list[int] = []

    def node(ctx: NodeContext) -> None:
        attempts.append(ctx.attempt)
        if len(attempts) == 2:
            raise Crash
        raise ValueError

    graph = one(node, store=store(), retry=Retry(attempts=4, backoff=0))
    with pytest.raises(Crash):
        graph.execute({}, run_id="r")
    with pytest.raises(ExecutionError):
        graph.resume("r")
    assert attempts == expected


def test_the_next_node_and_the_next_visit_begin_with_their_first_attempt() -> None:
    """H8: attempts belong to one call in one step."""
    attempts: list[tuple[str, int]] = []

    def node(state: State, ctx: NodeContext) -> dict[str, Any]:
        attempts.append((ctx.node, ctx.attempt))
        if attempts.count((ctx.node, 1)) + attempts.count((ctx.node, 2)) in (1, 3):
            raise ValueError
        return {"n": state.get("n", 0) + 1}

    graph = one(node, store="memory://", retry=AT_ONCE).add_edge("only", "only", lambda state: state["n"] < 2)
    graph.execute({})
    assert attempts == [("only", 1), ("only", 2), ("only", 1), ("only", 2)]


def test_observers_get_a_retry_with_its_wait() -> None:
    """H8, G11: node.retry with attempt, delay and error."""
    seen: list[Event] = []
    _, node = failing(2)
    one(node, observer=seen.append, retry=AT_ONCE).execute({})
    retries = [event.data for event in seen if event.type == "node.retry"]
    assert [(data["node"], data["attempt"], data["delay"], data["error"]) for data in retries] == [
        ("only", 1, 0, "ValueError: not yet"),
        ("only", 2, 0, "ValueError: not yet"),
    ]
    completed = [event.data["error"] for event in seen if event.type == "node.complete"]
    assert completed == [True, True, False]


@pytest.mark.parametrize("how", ["sync", "async"])
def test_the_wait_between_attempts_passes(how: str) -> None:
    """H8: the node is tried again by itself when the backoff is over."""
    attempts, node = failing(1)
    assert run_both_ways(one(node, retry=Retry(backoff=0.001)), {}, how) == {"done": True}
    assert attempts == [1, 2]


def test_between_two_attempts_the_journal_has_the_error_of_the_last() -> None:
    """H8: and the node that failed, for those who look at a run that waits."""
    store = MemoryStore()
    shown: list[Any] = []

    def fails_once(ctx: NodeContext) -> None:
        if ctx.attempt == 1:
            raise ValueError("not yet")
        shown.append(read_progress(store.read("r")).error)

    one(fails_once, store=store, retry=AT_ONCE).execute({}, run_id="r")
    (error,) = shown
    assert (error["type"], error["message"], error["node"]) == ("ValueError", "not yet", "only")


@pytest.mark.parametrize("store", [None, "memory://"])
def test_what_a_failed_attempt_altered_is_not_seen_by_the_next(store: str | None) -> None:
    """H8, H4: in place, deep inside, assigned and deleted."""
    seen: list[dict[str, Any]] = []

    def node(state: State) -> None:
        seen.append(
            {"items": list(state["items"]), "deep": list(state["deep"]["x"][0]), "keys": sorted(state)}
        )
        state["items"].append("altered")
        state["deep"]["x"][0].append("altered")
        state["assigned"] = 1
        del state["gone"]
        if len(seen) < 3:
            raise ValueError

    final = one(node, store=store, retry=AT_ONCE).execute({"items": ["a"], "deep": {"x": [[]]}, "gone": 0})
    assert seen == [{"items": ["a"], "deep": [], "keys": ["deep", "gone", "items"]}] * 3
    assert final == {"items": ["a", "altered"], "deep": {"x": [["altered"]]}, "assigned": 1}


def test_what_the_last_attempt_altered_is_not_in_the_state_of_the_failure() -> None:
    """H8, G12: the state of the error, and what a resume starts from, is the last good one."""

    def node(state: State) -> None:
        state["items"].append("altered")
        raise ValueError

    graph = one(node, store="memory://", retry=AT_ONCE)
    with pytest.raises(ExecutionError) as caught:
        graph.execute({"items": []}, run_id="r")
    assert caught.value.state == graph.state_at("r") == {"items": []}


def test_once_is_not_done_again_by_the_next_attempt() -> None:
    """H8, H3: its result is kept, over attempts and over a crash."""
    calls, attempts = [], []

    def node(state: State) -> dict[str, Any]:
        attempts.append(1)
        charged = once("charge", lambda amount, note: calls.append(amount) or (amount, note), 5, note="x")
        if len(attempts) == 1:
            raise ValueError
        if len(attempts) == 2:
            raise Crash
        return {"charged": charged}

    graph = one(node, store="memory://", retry=AT_ONCE)
    with pytest.raises(Crash):
        graph.execute({}, run_id="r")
    assert graph.resume("r") == {"charged": (5, "x")}
    assert calls == [5]


def test_once_belongs_to_its_step() -> None:
    """H8: the next visit does it again, and each key is its own."""
    calls: list[str] = []

    def node(state: State, ctx: NodeContext) -> dict[str, Any]:
        for key in ("a", "b"):
            ctx.once(key, calls.append, key)
        return {"n": state.get("n", 0) + 1}

    one(node, store="memory://").add_edge("only", "only", lambda state: state["n"] < 2).execute({})
    assert calls == ["a", "b"] * 2


def test_once_works_without_a_store_too() -> None:
    """H8: for as long as the process lives."""
    calls, attempts = [], []

    def node(state: State) -> dict[str, Any]:
        attempts.append(1)
        kept = once("key", lambda: calls.append(1) or object)
        if len(attempts) == 1:
            raise ValueError
        return {"same": kept is object}

    assert one(node, retry=AT_ONCE).execute({}) == {"same": True}
    assert calls == [1]


def test_a_result_that_can_not_be_kept_fails_the_node() -> None:
    """H8, H4: with a store, `once` keeps data."""
    with pytest.raises(ExecutionError, match="can't be stored"):
        one(lambda state: {"x": once("key", lambda: print)}, store="memory://").execute({})
    with pytest.raises(ExecutionError, match="the key must be a str"):
        one(lambda state: {"x": once(5, int)}).execute({})  # type: ignore[arg-type]  # that is the point


# What a call may know


def test_a_node_knows_its_call() -> None:
    """H8: run, node, step, attempt, visit, config and an idempotency key."""
    seen: list[tuple[Any, ...]] = []

    def node(state: State, ctx: NodeContext) -> dict[str, Any]:
        seen.append((ctx.run_id, ctx.node, ctx.step, ctx.visit, ctx.attempt, ctx.config, ctx.idempotency_key))
        if len(seen) == 2:
            raise ValueError
        return {"n": state.get("n", 0) + 1}

    graph = one(node, retry=AT_ONCE).add_edge("only", "only", lambda state: state["n"] < 2)
    graph.execute({}, {"depth": 2}, run_id="r")
    keys = [entry[-1] for entry in seen]
    assert [entry[:-1] for entry in seen] == [
        ("r", "only", 1, 1, 1, {"depth": 2}),
        ("r", "only", 2, 2, 1, {"depth": 2}),
        ("r", "only", 2, 2, 2, {"depth": 2}),
    ]
    assert keys[1] == keys[2] != keys[0]


def test_the_idempotency_key_is_the_same_for_every_attempt_at_a_step_and_for_no_other() -> None:
    """H8: over retries, pauses, crashes and failures; another step or run has another."""
    keys: list[str] = []

    def node(state: State, ctx: NodeContext) -> dict[str, Any]:
        keys.append(ctx.idempotency_key)
        if len(keys) == 1:
            raise ValueError
        if len(keys) == 2:
            raise Crash
        answer = pause("Go on?")
        if len(keys) == 4:
            raise KeyError
        return {"answer": answer}

    graph = one(node, store="memory://", retry=Retry(attempts=9, backoff=0, on=ValueError))
    with pytest.raises(Crash):
        graph.execute({}, run_id="r")
    graph.invoke(None, checkpoint="r@0").wait()
    with pytest.raises(ExecutionError):
        graph.resume("r", "yes")
    assert graph.resume("r") == {"answer": "yes"}
    assert len(keys) == 5
    assert len(set(keys)) == 1
    graph.invoke({}, run_id="other").wait()
    assert keys[5] != keys[0]


# Timeouts


def stuck(store: Any = None, **policy: Any) -> tuple[threading.Event, StateGraph]:
    """A graph whose sync node doesn't return before the event is set."""
    release = threading.Event()

    def node(state: State) -> dict[str, Any]:
        release.wait(SOON)
        return {"late": True}

    return release, one(node, store=store, timeout=SHORT, **policy)


@pytest.mark.parametrize("store", [None, "memory://"])
def test_a_sync_node_that_takes_too_long_fails_the_run(store: str | None) -> None:
    """H8: with `NodeTimeout`, while the node still runs; what it returns later is dropped."""
    release, graph = stuck(store)
    run = graph.invoke({})
    (event,) = run
    release.set()
    assert (event["type"], event["node"]) == ("error", "only")
    assert isinstance(event["exception"].cause, NodeTimeout)
    assert f"node 'only' took longer than its timeout of {SHORT} s" in event["error"]
    assert run.state == {}


def test_a_sync_node_that_takes_too_long_fails_an_async_run() -> None:
    """H8, H7: the event loop isn't held up by it."""

    async def main() -> ExecutionError:
        release, graph = stuck()
        with pytest.raises(ExecutionError) as caught:
            await graph.aexecute({})
        release.set()
        return caught.value

    assert isinstance(asyncio.run(main()).cause, NodeTimeout)


@pytest.mark.parametrize("how", ["sync", "async"])
def test_an_async_node_that_takes_too_long_is_cancelled(how: str) -> None:
    """H8: it hears of it, and the run fails."""
    ended: list[str] = []

    async def node(state: State) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cancelled")

    with pytest.raises(ExecutionError) as caught:
        run_both_ways(one(node, timeout=SHORT), {}, how)
    assert isinstance(caught.value.cause, NodeTimeout)
    assert ended == ["cancelled"]


@pytest.mark.parametrize("how", ["sync", "async"])
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_node_within_its_timeout_is_as_any_other(how: str, kind: str) -> None:
    """H8: its result, its failure and its own TimeoutError are its own."""

    def node(state: State) -> dict[str, Any]:
        if state["how"] == "fail":
            raise TimeoutError("mine")
        return {"done": True}

    async def later(state: State) -> dict[str, Any]:
        return node(state)

    graph = one(node if kind == "sync" else later, timeout=SOON)
    assert run_both_ways(graph, {"how": "succeed"}, how)["done"] is True
    with pytest.raises(ExecutionError, match="TimeoutError: mine") as caught:
        run_both_ways(graph, {"how": "fail"}, how)
    assert type(caught.value.cause) is TimeoutError


@pytest.mark.parametrize("how", ["sync", "async"])
def test_a_node_that_took_too_long_is_tried_again(how: str) -> None:
    """H8: a timeout is an exception like others."""
    release, attempts = threading.Event(), []

    def node(state: State, ctx: NodeContext) -> dict[str, Any]:
        attempts.append(ctx.attempt)
        if ctx.attempt == 1:
            release.wait(SOON)
        release.set()
        return {"attempt": ctx.attempt}

    graph = one(node, timeout=SHORT, retry=Retry(attempts=50, backoff=0, on=NodeTimeout))
    assert run_both_ways(graph, {}, how)["attempt"] == len(attempts) > 1


@pytest.mark.parametrize("how", ["sync", "async"])
def test_a_thread_that_was_left_behind_can_keep_and_ask_nothing(how: str) -> None:
    """H8: `once` and `pause` of a call that is over are refused, and its function isn't even called."""
    release, over = threading.Event(), threading.Event()
    refused: list[str] = []

    def attempt_both() -> None:
        for call in (lambda: once("key", lambda: refused.append("called")), lambda: pause("Still there?")):
            try:
                call()
            except UsageError as error:
                refused.append(str(error))

    def node(state: State, ctx: NodeContext) -> dict[str, Any]:
        if ctx.attempt == 1:
            release.wait(SOON)
            attempt_both()
            over.set()
            return {"by": "the one left behind"}
        release.set()
        assert over.wait(SOON)
        return {"by": "another", "kept": once("key", lambda: "fresh")}

    graph = one(node, store=MemoryStore(), timeout=SHORT, retry=Retry(attempts=50, backoff=0))
    assert run_both_ways(graph, {}, how) == {"by": "another", "kept": "fresh"}
    assert refused == [
        f"{what}(): the call of node 'only' that this belongs to is over" for what in ("once", "pause")
    ]


def test_a_thread_that_was_left_behind_can_not_assign_to_the_state() -> None:
    """H8: its private state is no longer looked at."""
    release, over = threading.Event(), threading.Event()

    def node(state: State, ctx: NodeContext) -> dict[str, Any]:
        if ctx.attempt == 1:
            release.wait(SOON)
            state["ghost"] = True
            over.set()
        release.set()
        assert over.wait(SOON)
        return {"keys": sorted(state)}

    graph = one(node, store="memory://", timeout=SHORT, retry=Retry(attempts=50, backoff=0))
    assert graph.execute({"a": 1}) == {"a": 1, "keys": ["a"]}


def test_an_async_node_that_blocks_is_timed_out_as_any_other() -> None:
    """H8: in a sync run too, and the lease is released."""
    proceed = threading.Event()

    async def blocks(state: Any) -> None:
        proceed.wait(30)

    graph = StateGraph(name="line").add_node("n1", run=blocks, timeout=0.1)
    graph.set_entry_point("n1").set_finish_point("n1").compile(store=MemoryStore())
    try:
        with pytest.raises(ExecutionError) as caught:
            graph.execute({}, run_id="r")
    finally:
        proceed.set()
    assert isinstance(caught.value.cause, NodeTimeout)
    assert graph.runs()[0].holder is None


def test_a_thread_that_was_left_behind_can_not_alter_the_state_in_place() -> None:
    """H8, H4: what it does after its time ran out reaches neither the next attempt nor the run."""
    release, over = threading.Event(), threading.Event()

    def node(state: State, ctx: Any) -> dict[str, Any]:
        items = state["items"]
        if ctx.attempt == 1:
            release.wait(10)
            items.append("ghost")
            over.set()
        release.set()
        assert over.wait(10)
        return {"seen": list(state["items"])}

    graph = StateGraph().add_node("only", run=node, timeout=0.05, retry=Retry(attempts=50, backoff=0))
    graph.set_entry_point("only").set_finish_point("only").compile(store="memory://")
    assert graph.execute({"items": []}) == {"items": [], "seen": []}


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_node_with_a_timeout_that_ends_the_process_does_so(error: type[BaseException]) -> None:
    """H8: what isn't an Exception passes through, with a timeout as without one; it isn't a timeout."""

    def node(state: State) -> None:
        raise error

    graph = StateGraph().add_node("only", run=node, timeout=60)
    graph.set_entry_point("only").set_finish_point("only")
    with pytest.raises(error):
        graph.execute({})
