"""How much of a run's journal is kept while it runs."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from random import randbytes
from time import monotonic, sleep
from typing import Any

import pytest

from limpet import MemoryStore, StateGraph, UsageError, Workflow
from limpet.engine.sessions.step_retention import StepRetention
from limpet.journal.store import Commit


def eventually(holds: Callable[[], bool]) -> bool:
    deadline = monotonic() + 30
    while not holds() and monotonic() < deadline:
        sleep(0.005)
    return holds()


def superseding(layers: int, store: Any, size: int = 20_000, **options: Any) -> Workflow:
    """A workflow that replaces a large value of its context in each layer."""
    made = Workflow("long", store=store, preserve=True, **options)
    for layer in range(layers):
        made.add_task(f"t{layer}", _replace, [f"t{layer - 1}"] if layer else [], arguments={"size": size})
    return made


def _replace(ctx: Any, size: int) -> int:
    ctx.add_context(big=randbytes(size))
    return size


def tidied(graph: Any) -> None:
    """Wait until what was to be dropped is."""
    graph.compiled().client.cleanup_thread.submit(lambda: None).result(30)


def stored(store: MemoryStore, run_id: str) -> int:
    return sum(map(len, store.read(run_id, first=1).records))


def test_a_workflow_keeps_its_five_newest_checkpoints() -> None:
    """D5: by default; each of them can be gone back to."""
    made = superseding(60, MemoryStore())
    made.execute({}, run_id="r")
    kept = made.checkpoints("r")
    assert [made.checkpoint(each.id).completed_layers for each in kept] == [56, 57, 58, 59, 60]
    fork = made.fork("r", step=kept[0].step).result()
    assert sorted(fork.results) == sorted(made.state_at("r").results)


def test_what_isnt_kept_goes_from_the_store() -> None:
    """D5, F14, P9: a journal doesn't grow with the number of layers, where values are superseded."""
    sizes = {}
    for layers in (100, 300):
        store = MemoryStore()
        made = superseding(layers, store)
        made.execute({}, run_id="r")
        tidied(made)
        assert store.read("r", first=1).first > 1
        sizes[layers] = stored(store, "r")
    assert sizes[300] < 2 * sizes[100]


def test_keep_none_keeps_all() -> None:
    """D5: nothing is deleted that a resume or a user may need."""
    store = MemoryStore()
    made = superseding(60, store, keep=None)
    made.execute({}, run_id="r")
    assert len(made.checkpoints("r")) == 60
    assert store.read("r", first=1).first == 1


def test_a_state_graph_keeps_as_many_steps_as_its_setting_says() -> None:
    """D5, F14: the newest, by sequence."""
    store = MemoryStore()
    graph = StateGraph(name="loop")
    graph.add_node("step", lambda state: {"n": state["n"] + 1, "big": randbytes(20_000)})
    graph.set_entry_point("step")
    graph.add_edge("step", "step", lambda state: state["n"] < 100)
    graph.set_finish_point("step")
    graph.compile(store=store, preserve=True, keep=3).execute({"n": 0}, run_id="r")
    assert eventually(lambda: store.read("r", first=1).first > 1)
    assert [graph.state_at("r", step)["n"] for step in (98, 99, 100)] == [98, 99, 100]
    with pytest.raises(UsageError, match="no step 1 "):
        graph.state_at("r", 1)


def test_dropping_old_checkpoints_does_not_keep_the_run_waiting() -> None:
    """D5: a store that is slow to delete holds up no run."""
    begun, proceed = threading.Event(), threading.Event()

    class Slow(MemoryStore):
        def prune(self, run_id: str, before: int) -> int:
            begun.set()
            assert proceed.wait(60)
            return super().prune(run_id, before)

    store = Slow()
    try:
        superseding(60, store).execute({}, run_id="r")
        assert begun.wait(60)
        assert store.read("r", first=1).first == 1
    finally:
        proceed.set()
    assert eventually(lambda: store.read("r", first=1).first > 1)


def test_a_store_that_cannot_prune_harms_no_run(caplog: pytest.LogCaptureFixture) -> None:
    """D5: it is logged, and tried again when there is more to drop."""

    class Stubborn(MemoryStore):
        def prune(self, run_id: str, before: int) -> int:
            raise OSError("not now")

    made = superseding(60, Stubborn())
    with caplog.at_level(logging.WARNING):
        assert made.execute({}, run_id="r").results["t59"] == 20_000
        assert eventually(lambda: "couldn't delete old checkpoints" in caplog.text)


def test_a_resumed_run_keeps_dropping() -> None:
    """D5: from where the journal begins by then."""
    store = MemoryStore()
    made = superseding(120, store)
    run = made.stream({}, run_id="r")
    for event in run:
        if event["type"] == "checkpoint_saved" and event["layer"] == 40:
            break
    run.close()
    again = superseding(120, store)
    again.resume("r")
    assert eventually(lambda: store.read("r", first=1).first > 100)
    assert [again.checkpoint(each.id).completed_layers for each in again.checkpoints("r")] == list(
        range(116, 121)
    )


def test_a_large_checkpoint_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    """D8: above 500 KB, with the run and the step; smaller ones aren't."""
    made = Workflow("sizes", store=MemoryStore())
    made.add_task("small", lambda: randbytes(400_000))
    made.add_task("large", lambda small: randbytes(600_000), ["small"])
    made.add_task("after", lambda large: 1, ["large"])
    with caplog.at_level(logging.WARNING):
        made.execute({}, run_id="r")
    warnings = [record.getMessage() for record in caplog.records]
    assert warnings == ["run r, step 5: its checkpoint is large, it added 600 KB to the journal"]


def test_retention_says_what_may_go_by_sequence_number() -> None:
    """D5: the newest whole record up to the oldest checkpoint that is kept, and nothing after it."""
    retention = StepRetention(2, first=1)
    found = []
    for sequence in range(2, 12):
        whole = sequence if sequence in (4, 5, 9) else 0
        retention.add_commit(Commit("r", 1, sequence - 1, [b"xx"], snapshot=whole))
        found.append((sequence, *retention.add_checkpoint(sequence)))
    assert [(sequence, before) for sequence, _, before in found if before] == [(5, 4), (6, 5), (10, 9)]
    assert {added for _, added, _ in found} == {2}
