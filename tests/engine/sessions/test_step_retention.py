"""How much of a run's journal is kept while it runs."""

from __future__ import annotations

import logging
import re
import threading
from random import randbytes
from typing import Any

import pytest

from limpet import MemoryStore, StateGraph, UsageError, Workflow
from limpet.engine.sessions.step_retention import StepRetention
from support.waiting import until


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
    graph.compiled().client.upkeep.finish()


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
    until(lambda: store.read("r", first=1).first > 1)
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
    until(lambda: store.read("r", first=1).first > 1)


def test_a_store_that_cannot_prune_harms_no_run(caplog: pytest.LogCaptureFixture) -> None:
    """D5: it is logged, and tried again when there is more to drop."""

    class Stubborn(MemoryStore):
        def prune(self, run_id: str, before: int) -> int:
            raise OSError("not now")

    made = superseding(60, Stubborn())
    with caplog.at_level(logging.WARNING):
        assert made.execute({}, run_id="r").results["t59"] == 20_000
        until(lambda: "couldn't delete old checkpoints" in caplog.text)


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
    until(lambda: store.read("r", first=1).first > 100)
    assert [again.checkpoint(each.id).completed_layers for each in again.checkpoints("r")] == list(
        range(116, 121)
    )


def sizes_that_were_warned_of(caplog: pytest.LogCaptureFixture) -> list[tuple[int, int]]:
    """The step and the size, in KB, of each warning about a large checkpoint."""
    lines = [each.getMessage() for each in caplog.records if "its checkpoint is large" in each.getMessage()]
    found = [
        re.fullmatch(r"run r, step (\d+): its checkpoint is large, (\d+) KB: .*", line) for line in lines
    ]
    return [(int(each[1]), int(each[2])) for each in found if each is not None]


def grown(kind: Any, sizes: list[int], store: Any, **settings: Any) -> Any:
    """A workflow or a graph whose steps each add this many bytes to the state."""
    if kind is Workflow:
        made = Workflow("grown", store=store, **settings)
        before: list[str] = []
        for number, size in enumerate(sizes):
            made.add_task(f"t{number}", lambda size=size: randbytes(size), before)
            before = [f"t{number}"]
        return made
    graph = StateGraph(name="grown")
    for number, size in enumerate(sizes):
        graph.add_node(
            f"t{number}", run=lambda state, number=number, size=size: {f"k{number}": randbytes(size)}
        )
        if number:
            graph.add_edge(f"t{number - 1}", f"t{number}")
    graph.set_entry_point("t0")
    graph.set_finish_point(f"t{len(sizes) - 1}")
    return graph.compile(store=store, **settings)


@pytest.mark.parametrize("kind", [StateGraph, Workflow])
@pytest.mark.parametrize(
    ("sizes", "least", "most"),
    [
        ([2_000_000, 10, 10], 2000, 2010),
        ([400_000, 600_000, 10, 10], 1000, 1010),
        ([40_000] * 30, 500, 600),
        ([3_000] * 300, 500, 600),
        ([10, 10, 700_000], 700, 710),
        ([490_000, 10, 10], 0, 0),
    ],
)
def test_a_large_checkpoint_is_warned_of_once(
    kind: Any, sizes: list[int], least: int, most: int, caplog: pytest.LogCaptureFixture
) -> None:
    """D8: above 500 KB as a whole, however slowly it grew; smaller ones aren't."""
    with caplog.at_level(logging.WARNING, "limpet.run"):
        grown(kind, sizes, MemoryStore()).execute({}, run_id="r")
    found = sizes_that_were_warned_of(caplog)
    assert [least <= size <= most for _, size in found] == [True] * bool(most)


@pytest.mark.parametrize("settings", [{"keep": 2}, {"preserve": True}])
def test_a_run_that_starts_large_is_warned_of(settings: Any, caplog: pytest.LogCaptureFixture) -> None:
    """D8: its input counts, and compresses well."""
    with caplog.at_level(logging.WARNING, "limpet.run"):
        grown(StateGraph, [10, 10], MemoryStore(), **settings).execute({"text": "a" * 600_000}, run_id="r")
    assert sizes_that_were_warned_of(caplog) == [(1, 600)]


def test_values_that_replace_each_other_are_not_taken_for_a_large_checkpoint(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """D8: the journal has more bytes than the state."""
    graph = StateGraph({"n": int}, name="again", max_iterations=500)
    graph.add_node("a", run=lambda state: {"n": state["n"] + 1, "value": randbytes(20_000)})
    graph.add_edge("a", "a", lambda state: state["n"] < 200)
    graph.set_entry_point("a")
    graph.set_finish_point("a")
    with caplog.at_level(logging.WARNING, "limpet.run"):
        graph.compile(store=MemoryStore()).execute({"n": 0}, run_id="r")
    assert sizes_that_were_warned_of(caplog) == []


def test_retention_says_what_may_go_by_sequence_number() -> None:
    """D5: the newest whole record up to the oldest checkpoint that is kept, and nothing after it."""
    retention = StepRetention(2, first=1)
    found = []
    for sequence in range(2, 12):
        if sequence in (4, 5, 9):
            retention.add_snapshot(sequence)
        found.append((sequence, retention.add_checkpoint(sequence)))
    assert [(sequence, before) for sequence, before in found if before] == [(5, 4), (6, 5), (10, 9)]
