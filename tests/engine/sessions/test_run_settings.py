"""D3: the settings that belong to a run are stored with it, and a resume restores them."""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from limpet import CheckpointConfig, MemoryStore, RunPaused, StateGraph, Workflow, pause
from limpet.journal.store import COMPLETED
from support.graphs import Crash


class Together:
    """Counts how many calls of it are under way at once. A call waits this many seconds for another to begin."""

    def __init__(self, patience: float = 0.05) -> None:
        self.patience = patience
        self.now = 0
        self.most = 0
        self.lock = threading.Lock()
        self.both = threading.Event()

    def __call__(self) -> None:
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)
            if self.now > 1:
                self.both.set()
        self.both.wait(self.patience)
        with self.lock:
            self.now -= 1


def asking(kind: Any, together: Together, **settings: Any) -> Any:
    """A question, and then six nodes in parallel."""
    if kind is Workflow:
        flow = Workflow("made", **settings)
        flow.add_task("ask", lambda: pause("go on?"))
        for number in range(6):
            flow.add_task(f"t{number}", lambda: together(), ["ask"])
        return flow
    graph = StateGraph(name="made")
    graph.add_node("ask", run=lambda state: {"go": pause("go on?")})
    graph.add_fanin_node("end", run=lambda state: {"done": True})
    for number in range(6):
        graph.add_node(f"t{number}", run=lambda state: together())
        graph.add_parallel_edge("ask", f"t{number}", "end")
    graph.set_entry_point("ask")
    graph.set_finish_point("end")
    return graph.compile(**settings)


@pytest.fixture(params=[StateGraph, Workflow])
def kind(request: pytest.FixtureRequest) -> Any:
    return request.param


def paused(graph: Any) -> None:
    with pytest.raises(RunPaused):
        graph.execute({}, run_id="r")


def test_a_resumed_run_keeps_its_limit_of_nodes_at_once(kind: Any, tmp_path: Path) -> None:
    """D3: also under a worker of another process, whose code says nothing about it."""
    for name, resume in {
        "here": lambda graph: graph.resume("r", "yes"),
        "worker": lambda graph: (graph.answer("r", "yes"), graph.recover()),
    }.items():
        together = Together()
        store = f"sqlite:///{tmp_path}/{name}.db"
        paused(asking(kind, together, store=store, max_concurrency=1))
        resume(asking(kind, together, store=store))
        assert together.most == 1


def test_a_limit_that_the_resuming_process_gives_wins_and_is_stored(kind: Any) -> None:
    """D3: and so does one that is as large as the default."""
    together = Together(patience=30)
    store = MemoryStore()
    paused(asking(kind, together, store=store, max_concurrency=1))
    graph = asking(kind, together, store=store, max_concurrency=32, preserve=True)
    graph.resume("r", "yes")
    assert together.most > 1
    assert graph.history("r")[-1].metadata["settings"]["max_concurrency"] == 32


@pytest.mark.parametrize(
    ("first", "second", "kept"), [(False, None, False), (None, None, True), (False, True, True)]
)
def test_a_resumed_run_keeps_its_result_unless_it_was_not_to(
    kind: Any, first: Any, second: Any, kept: bool
) -> None:
    """D3, G8, H10: `keep_result` holds for a resume, unless that is given another."""
    store = MemoryStore()
    paused(asking(kind, Together(), store=store, **({} if first is None else {"keep_result": first})))
    asking(kind, Together(), store=store, **({} if second is None else {"keep_result": second})).resume(
        "r", "yes"
    )
    assert store.head("r").status == COMPLETED
    assert bool(store.head("r").snapshot) is kept


def test_a_queued_run_has_the_settings_of_the_process_that_queued_it(kind: Any, tmp_path: Path) -> None:
    """D3, H1: a worker executes it by these."""
    together = Together()
    store = f"sqlite:///{tmp_path}/runs.db"
    asking(kind, together, store=store, max_concurrency=1).start({}, run_id="r")
    worker = asking(kind, together, store=store)
    worker.recover()
    worker.answer("r", "yes")
    worker.recover()
    assert worker.runs()[0].status == "completed"
    assert together.most == 1


def test_a_resumed_run_is_saved_as_often_as_before() -> None:
    """D3, G7: an interval of its own, whether it came from compile or from a CheckpointConfig."""

    def chain(**settings: Any) -> StateGraph:
        checkpoint = settings.pop("checkpoint", None)
        graph = StateGraph(name="chain", checkpoint=checkpoint)
        names = [f"n{number}" for number in range(9)]
        for name in names:
            graph.add_node(name, run=lambda state: {})
        graph.add_node("ask", run=lambda state: {"go": pause("go on?")})
        for source, target in zip(["ask", *names], names, strict=False):
            graph.add_edge(source, target)
        graph.set_entry_point("ask")
        graph.set_finish_point("n8")
        return graph.compile(**settings)

    for first in ({"interval": 4}, {"checkpoint": CheckpointConfig("memory", interval=4)}):
        store = MemoryStore()
        settings = {**first, "store": store, "preserve": True}
        paused(chain(**settings))
        before = store.head("r").sequence
        chain(store=store).resume("r", "yes")
        records = store.head("r").sequence - before
        assert records < 6, f"{records} records for ten steps, so each was saved"


@pytest.mark.parametrize("stored", ["continue", "fail", "wait"])
def test_a_resumed_run_treats_failed_saves_as_before(kind: Any, stored: Any) -> None:
    """D3, D6: as far as the process doesn't say otherwise."""
    from limpet.engine.node_context.questions import ResumeInput
    from limpet.engine.sessions.resume import resume

    store = MemoryStore()
    paused(asking(kind, Together(), store=store, on_save_error=stored))
    session = resume(asking(kind, Together(), store=store).compiled(), "r", ResumeInput("yes"))
    session.close()
    assert session.compiled.on_save_error == stored


def test_a_resumed_workflow_keeps_as_many_checkpoints_as_before() -> None:
    """D3, D5: and lists them."""

    def chain(**settings: Any) -> Workflow:
        flow = Workflow("chain", **settings)
        flow.add_task("t0", lambda: pause("go on?"))
        for number in range(1, 12):
            flow.add_task(f"t{number}", lambda: None, [f"t{number - 1}"])
        return flow

    for keep, listed in ((2, 2), (None, 12), (8, 8)):
        store = MemoryStore()
        paused(chain(store=store, keep=keep, preserve=True))
        chain(store=store).resume("r", "yes")
        assert len(chain(store=store).checkpoints("r")) == listed


def test_settings_that_make_no_sense_are_left_out() -> None:
    """D3: they may come from a file that was imported."""
    compiled = asking(StateGraph, Together(), store=MemoryStore()).compiled()
    wrong = {
        "max_concurrency": 0,
        "preserve": 1,
        "on_save_error": "x",
        "keep": "5",
        "interval": -1,
        "lease": 1,
    }
    assert compiled.for_run(wrong) == compiled
    assert compiled.for_run({"max_concurrency": 10**30, "keep": 10**30, "interval": 10**30}) == compiled
    assert compiled.for_run(None) == compiled.for_run("text") == compiled


def test_settings_that_are_given_for_a_run_whose_process_crashed_are_stored() -> None:
    """D3: also where the resume brings nothing else."""
    store = MemoryStore()
    calls: list[str] = []

    def chained(crash_at: str | None, **settings: Any) -> StateGraph:
        def work(state: Any, node: str) -> dict[str, Any]:
            if node == crash_at:
                raise Crash
            calls.append(node)
            return {node: 1}

        graph = StateGraph(name="made")
        for name in ("a", "b", "c"):
            graph.add_node(name, run=work)
        graph.add_edge("a", "b").add_edge("b", "c").set_entry_point("a").set_finish_point("c")
        return graph.compile(store=store, **settings)

    with suppress(Crash):
        chained("b").execute({}, run_id="r")
    with suppress(Crash):
        chained("c", preserve=True).resume("r")
    chained(None).resume("r")
    assert calls == ["a", "b", "c"]
    assert [each.step for each in chained(None).history("r")] == [0, 1, 2, 3]


def test_a_fork_has_the_settings_of_the_run_that_it_was_forked_from(kind: Any) -> None:
    """D3: unless the graph that forks it gives others."""
    store = MemoryStore()
    paused(asking(kind, Together(), store=store, max_concurrency=1))
    together = Together()
    fork = asking(kind, together, store=store).fork("r")
    fork.wait()
    asking(kind, together, store=store).resume(fork.id, "yes")
    assert together.most == 1
