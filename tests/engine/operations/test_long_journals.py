"""H19: a step of a long journal is read without the rest, and is what reading all of it gives."""

from __future__ import annotations

from typing import Annotated, Any

import pytest

from limpet import END, MemoryStore, RunPaused, Runs, StateGraph, UsageError, pause, secret
from limpet.engine.leases.lease_client import client_for
from limpet.engine.operations import stored_state
from limpet.engine.operations.stored_state import checkpoint_page, secrets_of, stored_secrets, viewed_progress
from limpet.journal.store import Store, Tail
from support.graphs import fan, loop

STEPS = 3000


class CountingStore(MemoryStore):
    """A store in memory that counts the records that are read."""

    read_records = 0

    def read(self, run_id: str, first: int | None = None, last: int | None = None) -> Tail:
        tail = super().read(run_id, first, last)
        self.read_records += len(tail.records)
        return tail


def with_branches(store: Store) -> StateGraph:
    graph = fan({"a": [count_up] * 3, "b": [count_up] * 2}, then={"last": count_up})
    graph.compile(store=store, preserve=True)
    graph.execute({}, run_id="r")
    return graph


def rolled_back(store: Store) -> StateGraph:
    graph = loop(9).compile(store=store, preserve=True)
    graph.execute({}, run_id="r")
    graph.rollback("r", 4)
    graph.resume("r", {"n": 7})
    return graph


def pruned(store: Store) -> StateGraph:
    graph = StateGraph(name="pruned").add_node("count", run=count_up)
    graph.add_node("ask", run=lambda state: {"said": pause("more?")})
    graph.add_edge("count", "count", lambda state: state["n"] < 20)
    graph.add_edge("count", "ask").add_edge("ask", END).set_entry_point("count")
    graph.compile(store=store, preserve=True)
    with pytest.raises(RunPaused):
        graph.execute({}, run_id="r")
    Runs(store).prune_checkpoints("r", keep=6)
    graph.resume("r", "no")
    return graph


def count_up(state: Any) -> dict[str, Any]:
    return {"n": state.get("n", 0) + 1, "text": "x" * state.get("n", 0)}


@pytest.mark.parametrize("run_of", [with_branches, rolled_back, pruned])
@pytest.mark.parametrize("part", [1, 3, 128])
def test_every_step_and_page_is_as_in_the_whole_journal(
    run_of: Any, part: int, any_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H19: with branches, after a rollback, and after old checkpoints were deleted."""
    run_of(any_store)
    runs = Runs(any_store)
    history = runs.history("r")
    steps = [each.step for each in history]
    states = {step: dict(runs.state("r", step)) for step in steps}
    monkeypatch.setattr(stored_state, "LONG_JOURNAL", 1)
    monkeypatch.setattr(stored_state, "FIRST_PART", part)
    assert {step: dict(runs.state("r", step)) for step in steps} == states
    for limit in (1, 4, 100):
        found: list[Any] = []
        has_more = True
        while has_more:
            after = found[-1].step if found else -1
            page, has_more = checkpoint_page(client_for(any_store), "r", after, limit)
            found += page
        assert [each.step for each in found] == steps
        if run_of is not pruned:  # of the first step that is left, all keys have changed
            assert found == history
    for unknown in (-1, steps[-1] + 1):
        with pytest.raises(UsageError, match="has no step"):
            runs.state("r", unknown)


def test_little_of_a_long_journal_is_read_for_a_step() -> None:
    """H19: a state, a difference, and a page of steps."""
    store = CountingStore()
    loop(STEPS, max_iterations=STEPS + 1).compile(store=store, preserve=True).execute({}, run_id="r")
    runs = Runs(store)
    store.read_records = 0
    assert runs.state("r", STEPS // 2)["n"] == STEPS // 2
    assert runs.diff("r", 10, 2000).changed["n"] == (10, 2000)
    page, has_more = checkpoint_page(client_for(store), "r", 2500, 10)
    assert ([each.step for each in page], has_more) == (list(range(2501, 2511)), True)
    assert store.read_records < STEPS


def test_the_secrets_of_a_run_are_read_from_its_newest_snapshot_alone() -> None:
    """H19: they are the same all its life."""
    store = CountingStore()
    graph = loop(STEPS, schema={"n": int, "key": Annotated[str, secret]}, max_iterations=None)
    graph.compile(store=store, preserve=True, allow_plain_text_secrets=True)
    graph.execute({"key": "hunter22"}, run_id="r")
    client = client_for(store)
    assert client.head("r").snapshot > 1
    assert stored_secrets(client, "r") == secrets_of(viewed_progress(client, "r")) == {"key"}
    store.read_records = 0
    stored_secrets(client, "r")
    assert store.read_records == 1
