"""P12: graphs that share a store. The calls of a graph reach its own runs, and `Runs(store)` reaches all."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import pytest

from limpet import (
    MemoryStore,
    Retention,
    RunExists,
    RunPaused,
    Runs,
    StateGraph,
    UsageError,
    Workflow,
    WrongGraph,
    pause,
    secret,
)
from limpet.graph_methods import GraphMethods
from limpet.graphs.builder import GraphBuilder
from limpet.graphs.workflow.builder import WorkflowBuilder
from limpet.testing import FaultyStore

Graph = StateGraph | Workflow
Call = Callable[[Graph, Path], Any]

A_RUN = "theirs"
"""A run of graph 'a' that asks something; every call below is made on graph 'b'."""

REFUSED: dict[str, Call] = {
    "get": lambda b, _: b.get(A_RUN),
    "resume": lambda b, _: b.resume(A_RUN, "yes"),
    "history": lambda b, _: b.history(A_RUN),
    "state_at": lambda b, _: b.state_at(A_RUN),
    "diff": lambda b, _: b.diff(A_RUN, 1, 1),
    "answer": lambda b, _: b.answer(A_RUN, "yes"),
    "send": lambda b, _: b.send(A_RUN, "note", "hello"),
    "cancel": lambda b, _: b.cancel(A_RUN),
    "fork": lambda b, _: b.fork(A_RUN),
    "prune_checkpoints": lambda b, _: b.prune_checkpoints(A_RUN, keep=1),
    "rollback": lambda b, _: b.rollback(A_RUN, 1),
    "verify": lambda b, _: b.verify(A_RUN),
    "export_run": lambda b, folder: b.export_run(A_RUN, folder / "stolen.run"),
    "import_run": lambda b, folder: b.import_run(folder / "theirs.run", "copy"),
    "draw": lambda b, _: b.draw("text", run_id=A_RUN),
    "invoke": lambda b, _: list(b.invoke("yes", checkpoint=f"{A_RUN}@1")),
    "stream": lambda b, _: list(b.stream("yes", checkpoint=f"{A_RUN}@1")),
    "ainvoke": lambda b, _: b.ainvoke("yes", checkpoint=f"{A_RUN}@1").result(),
    "astream": lambda b, _: b.astream("yes", checkpoint=f"{A_RUN}@1").result(),
}
"""Calls that name a run or a checkpoint. Of graph 'a', they raise `WrongGraph`."""

REFUSED_BY_WORKFLOWS: dict[str, Call] = {
    "resume_from_checkpoint": lambda b, _: b.resume_from_checkpoint(f"{A_RUN}@1", "yes"),
    "plan_resume": lambda b, _: b.plan_resume(f"{A_RUN}@1"),  # type: ignore[union-attr]
    "checkpoint": lambda b, _: b.checkpoint(A_RUN),  # type: ignore[union-attr]
    "checkpoints": lambda b, _: b.checkpoints(A_RUN),  # type: ignore[union-attr]
}

TAKEN: dict[str, Call] = {
    "execute": lambda b, _: b.execute({}, run_id=A_RUN),
    "start": lambda b, _: b.start({}, run_id=A_RUN),
}
"""Calls that create a run. They can't create one with the id of a run of 'a'."""

OWN_ONLY: dict[str, Call] = {
    "runs": lambda b, _: b.runs(),
    "recover": lambda b, _: b.recover(),
    "cleanup": lambda b, _: b.cleanup(Retention(completed=0, failed=0, cancelled=0, paused=0, running=0)),
    "cleanup_expired": lambda b, _: b.cleanup_expired(0, ("completed", "paused", "running")),
}
"""Calls about many runs. They find no run of 'a'."""

SAME = {"enqueue": "start"}
"""Another name for a method."""

NO_RUN = {"compile", "compiled", "close"}
"""Calls that are about no run."""

FILES = {"load_checkpoint", "save_checkpoint", "resume_from_checkpoint", "from_config"}
"""Calls of a StateGraph that are about what the caller hands in: a file, or settings."""


def asking_graph(name: str, store: Any) -> StateGraph:
    graph = StateGraph({"word": str, "key": Annotated[str, secret]}, name=name)
    graph.add_node("ask", run=lambda state: {"word": pause("which?")})
    return (
        graph.set_entry_point("ask")
        .set_finish_point("ask")
        .compile(store=store, preserve=True, allow_plain_text_secrets=True)
    )


def asking_workflow(name: str, store: Any) -> Workflow:
    return Workflow(name, store=store, preserve=True).add_task("ask", lambda: pause("which?"))


MAKERS = {"StateGraph": asking_graph, "Workflow": asking_workflow}
KINDS = {"StateGraph": StateGraph, "Workflow": Workflow}


def paused_run(graph: Graph) -> None:
    with pytest.raises(RunPaused):
        graph.execute({}, run_id=A_RUN)


def public_methods(kind: type) -> set[str]:
    return {name for name, value in inspect.getmembers(kind) if not name.startswith("_") and callable(value)}


def sync_name(kind: type[GraphMethods[Any]], name: str) -> str:
    """The method that an async version belongs to, or the name itself."""
    return name[1:] if name.startswith("a") and hasattr(kind, name[1:]) else name


def refused(kind: str) -> dict[str, Call]:
    return {**REFUSED, **(REFUSED_BY_WORKFLOWS if kind == "Workflow" else {})}


@pytest.mark.parametrize("kind", MAKERS)
def test_every_public_method_of_a_graph_is_put_to_the_test_below(kind: str) -> None:
    """P12: a new method has to be listed here: with what it does about another graph's run, or as one without."""
    made = KINDS[kind]
    # The builders can't reach a store: they are in a layer that may not import one.
    methods = public_methods(made) - public_methods(GraphBuilder) - public_methods(WorkflowBuilder)
    known = {*refused(kind), *TAKEN, *OWN_ONLY, *SAME, *NO_RUN}
    if kind == "StateGraph":
        known |= FILES
    assert {sync_name(made, name) for name in methods} - {"ainvoke", "astream"} == known - {
        "ainvoke",
        "astream",
    }


def cases() -> Iterator[tuple[str, str]]:
    for kind, made in KINDS.items():
        for name in sorted(public_methods(made)):
            if {name, sync_name(made, name)} & {*refused(kind)}:
                yield kind, name


@pytest.mark.parametrize(("kind", "name"), list(cases()))
def test_a_call_about_another_graphs_run_is_refused_and_changes_nothing(
    kind: str, name: str, tmp_path: Path
) -> None:
    """P12: the error names the other graph, and the way to reach its runs."""
    store = MemoryStore()
    theirs = MAKERS[kind]("a", store)
    paused_run(theirs)
    theirs.export_run(A_RUN, tmp_path / "theirs.run")
    before = store.read(A_RUN, first=1)
    mine = MAKERS[kind]("b", store)
    made = refused(kind)
    call = made.get(name) or partial(call_async, made[sync_name(KINDS[kind], name)])
    with pytest.raises(WrongGraph, match="belongs to graph 'a', not to 'b'") as raised:
        settle(call(mine, tmp_path))
    assert (raised.value.run_id, raised.value.graph) == (A_RUN, "a")
    assert "Runs(store)" in str(raised.value)
    assert store.read(A_RUN, first=1) == before
    assert [info.run_id for info in Runs(store).list()] == [A_RUN]
    assert [path.name for path in tmp_path.iterdir()] == ["theirs.run"]


class Awaiting:
    """A graph whose methods are the async versions."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph

    def __getattr__(self, name: str) -> Any:
        return getattr(self._graph, f"a{name}")


def call_async(call: Call, graph: Graph, folder: Path) -> Any:
    return call(Awaiting(graph), folder)  # type: ignore[arg-type]


def settle(result: Any) -> Any:
    """What a call gives, or what the coroutine gives that it returned."""
    if not inspect.isawaitable(result):
        return result

    async def wait() -> Any:
        return await result

    return asyncio.run(wait())


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("name", [*TAKEN, *OWN_ONLY])
def test_a_call_about_many_runs_leaves_those_of_other_graphs_alone(
    kind: str, name: str, tmp_path: Path
) -> None:
    """P12: and no call takes the id of another graph's run for its own."""
    store = MemoryStore()
    paused_run(MAKERS[kind]("a", store))
    mine = MAKERS[kind]("b", store)
    before = store.read(A_RUN, first=1)
    call = {**TAKEN, **OWN_ONLY}[name]
    for graph in (mine, Awaiting(mine)):
        if name in TAKEN:
            with pytest.raises(RunExists):
                settle(call(graph, tmp_path))  # type: ignore[arg-type]
        else:
            assert settle(call(graph, tmp_path)) in ([], 0)  # type: ignore[arg-type]
    assert store.read(A_RUN, first=1) == before


def test_runs_reaches_the_runs_of_all_graphs(tmp_path: Path) -> None:
    """P12: with and without one of the graphs."""
    store = MemoryStore()
    theirs = asking_graph("a", store)
    paused_run(theirs)
    for runs in (Runs(store), Runs(store, asking_graph("b", store))):
        assert runs.get(A_RUN).graph == "a"
        assert len(runs.history(A_RUN)) > 0
        assert runs.verify(A_RUN).ok
        runs.export(A_RUN, tmp_path / "theirs.run")
        runs.import_(tmp_path / "theirs.run", "copy")
        runs.answer("copy", "yes")
        runs.cancel("copy")
        runs.delete("copy")
    with pytest.raises(UsageError, match="against its graph, 'a'"):
        Runs(store, asking_graph("b", store)).fork(A_RUN)
    assert Runs(store, [asking_graph("b", store), theirs]).fork(A_RUN, new_run_id="f") == "f"
    Runs(store).delete("f")
    assert Runs(store).cleanup_expired(0, "paused") == 1


def test_a_graph_given_to_runs_doesnt_unmask_the_secrets_of_another_graph() -> None:
    """P12: the keys that are secret are those of the run's own graph."""
    store = MemoryStore()
    theirs = asking_graph("a", store)
    with pytest.raises(RunPaused):
        theirs.execute({"key": "xyzzy"}, run_id=A_RUN)
    plain = StateGraph({"key": str}, name="b").add_node("n", run=lambda state: {}).set_entry_point("n")
    runs = Runs(store, plain.set_finish_point("n"))
    assert runs.secrets(A_RUN) == {"key"}
    assert "xyzzy" not in repr(runs.state(A_RUN))
    step = runs.history(A_RUN)[-1].step if runs.history(A_RUN) else 0
    assert "xyzzy" not in repr(runs.diff(A_RUN, step, step))


def test_a_run_of_this_process_is_cancelled_although_the_store_cant_be_reached() -> None:
    """P12, G12: whose run it is, is known without asking the store."""
    store = FaultyStore(MemoryStore())
    graph = StateGraph(name="a").add_node("n", run=lambda state: {}).add_node("m", run=lambda state: {})
    graph.add_edge("n", "m").set_entry_point("n").set_finish_point("m").compile(store=store)
    other = (
        StateGraph(name="b").add_node("n", run=lambda state: {}).set_entry_point("n").set_finish_point("n")
    )
    other.compile(store=store)
    run = graph.stream({}, run_id="r")
    next(run)
    store.fail("head")
    with pytest.raises(WrongGraph):
        other.cancel("r")
    graph.cancel("r")
    assert [event["type"] for event in run] == ["cancelled"]
