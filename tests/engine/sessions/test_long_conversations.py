"""A conversation of months: a run without a budget of steps, whose journal and resumes stay as small as at first.

`CONVERSATION_TURNS=10000` makes them longer.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from statistics import median
from typing import Annotated, Any

import pytest

from limpet import MemoryStore, RunPaused, StateGraph, loads, pause
from limpet.engine.sessions.step_retention import unneeded_before
from support.call_counts import calls_of

TURNS = int(os.environ.get("CONVERSATION_TURNS", "100"))
KEPT = 20
WINDOW = 6
TEXT = "x" * 1000

pytestmark = pytest.mark.timeout(120 + TURNS)


def window(old: list[str] | None, new: list[str]) -> list[str]:
    return [*(old or ()), *new][-WINDOW:]


def listen(state: Any) -> dict[str, Any]:
    return {"turn": state["turn"] + 1, "history": [pause("What next?")]}


def speak(state: Any) -> dict[str, Any]:
    return {"turn": state["turn"] + 1, "history": [f"{TEXT}{state['turn']}"]}


def reply(state: Any, ctx: Any) -> dict[str, Any]:
    text = ctx.once("model", lambda: f"a reply to message {state['turn']}: {TEXT}")
    return {"history": [text]}


def conversation(store: Any, hear: Callable[[Any], Any] = listen, **options: Any) -> StateGraph:
    schema = {"turn": int, "last": int, "history": Annotated[list, window]}
    graph = StateGraph(schema, name="chat", max_iterations=None)
    graph.add_node("listen", run=hear).add_node("reply", run=reply)
    graph.set_entry_point("listen")
    graph.add_edge("listen", "reply")
    graph.add_edge("reply", "listen", lambda state: state["turn"] < state["last"])
    graph.set_finish_point("reply")
    return graph.compile(store=store, **{"keep": KEPT, **options})


def begun(store: Any, **options: Any) -> StateGraph:
    graph = conversation(store, **options)
    with suppress(RunPaused):
        graph.execute({"turn": 0, "last": 10**9}, run_id="r")
    return graph


def stored_bytes(graph: StateGraph, run_id: str = "r") -> int:
    """What the store has of a run's journal, when what was to be deleted is."""
    client = graph.compiled().need_client("test")
    client.upkeep.finish()
    return sum(map(len, client.store.read(run_id, first=1).records))


def answer(graph: StateGraph, turn: int) -> None:
    with suppress(RunPaused):
        graph.resume("r", f"message {turn}")


def test_a_conversation_that_pauses_at_each_turn_stays_as_small_as_at_first(store_url: str) -> None:
    """H16, D5: in bytes of its journal, and in what a resume does."""
    graph = begun(store_url)
    sizes = []
    efforts = []
    for turn in range(TURNS):
        efforts.append(calls_of(lambda: answer(graph, turn)))  # noqa: B023  # called at once
        sizes.append(stored_bytes(graph))
    half = TURNS // 2
    assert max(sizes[half:]) <= 1.3 * max(sizes[:half])
    assert median(efforts[half:]) <= 1.3 * median(efforts[:half])
    state = graph.state_at("r")
    assert state["turn"] == TURNS
    assert len(state["history"]) == WINDOW


def test_a_conversation_keeps_its_newest_checkpoints() -> None:
    """H16, D5: as many as `keep` says can be gone back to, though each turn is a session of its own."""
    graph = begun(MemoryStore())
    for turn in range(TURNS):
        answer(graph, turn)
    stored_bytes(graph)
    kept = [each.step for each in graph.history("r")]
    assert KEPT <= len(kept) < 2 * TURNS
    newest = graph.history("r")[-1].step
    assert kept[-KEPT:] == list(range(newest - KEPT + 1, newest + 1))
    fork = graph.fork("r", step=newest - KEPT + 1)
    assert fork.state["turn"] == TURNS - KEPT // 2 + 1


def test_answers_that_are_left_for_a_run_leave_nothing_behind() -> None:
    """H16: `handle.answer`, and a resume that takes it in."""
    graph = begun(MemoryStore())
    store = graph.compiled().need_client("test").store
    sizes = []
    for turn in range(TURNS):
        graph.get("r").answer(f"message {turn}")
        with suppress(RunPaused):
            graph.resume("r")
        sizes.append(stored_bytes(graph))
        assert not store.inbox("r")
    assert max(sizes[TURNS // 2 :]) <= 1.3 * max(sizes[: TURNS // 2])


def test_a_conversation_in_one_process_stays_small_too() -> None:
    """H16, D5: a loop that never stops."""
    sizes = []
    for turns in (TURNS, 5 * TURNS):
        graph = conversation(MemoryStore(), speak, preserve=True)
        graph.execute({"turn": 0, "last": turns}, run_id="r")
        sizes.append(stored_bytes(graph))
    assert sizes[1] <= 1.5 * sizes[0]


def test_what_could_not_be_deleted_is_deleted_with_the_next_snapshot() -> None:
    """H16, D5: also where the process that should have done it crashed."""

    class Stubborn(MemoryStore):
        refuses = True

        def prune(self, run_id: str, before: int) -> int:
            if self.refuses:
                raise OSError("not now")
            return super().prune(run_id, before)

    store = Stubborn()
    graph = begun(store)
    for turn in range(TURNS):
        answer(graph, turn)
    unpruned = stored_bytes(graph)
    store.refuses = False
    for turn in range(TURNS):
        answer(graph, turn)
    assert stored_bytes(graph) < unpruned / 2


def test_without_keep_everything_is_kept() -> None:
    """H16, D5."""
    graph = begun(MemoryStore(), keep=None)
    for turn in range(10):
        answer(graph, turn)
    assert [each.step for each in graph.history("r")] == list(range(21))
    assert unneeded_before(graph.compiled().need_client("test").store, "r", 5) == 0


def count(state: Any) -> dict[str, Any]:
    return {"n": state["n"] + 1}


def test_a_run_without_a_budget_is_not_stopped() -> None:
    """H16: with `max_iterations=None`, in a graph inside of another as well."""
    inner = StateGraph({"n": int}, name="inner", max_iterations=None).add_node("count", run=count)
    inner.set_entry_point("count").add_edge("count", "count", lambda state: state["n"] < 3000)
    inner.set_finish_point("count")
    assert inner.compile().execute({"n": 0})["n"] == 3000
    outer = StateGraph({"n": int}, name="outer").add_node("inside", inner).set_entry_point("inside")
    assert outer.set_finish_point("inside").compile().execute({"n": 0})["n"] == 3000


@pytest.mark.parametrize("limit", ["null", "1200"])
def test_a_file_may_say_null(limit: str) -> None:
    """H16, F13"""
    graph = loads(f"""
nodes: [{{name: a}}]
config: {{max_iterations: {limit}, keep: null, store: memory}}
""")
    assert graph.max_iterations == (None if limit == "null" else 1200)  # type: ignore[union-attr]  # a StateGraph
    assert graph.compiled().keep is None
