"""Checkpointers: any object with `save` and `load` keeps a run that stops."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from limpet import (
    AlreadyCompleted,
    Checkpointer,
    DefinitionError,
    ExecutionError,
    MemoryCheckpointer,
    NodeContext,
    Retry,
    RunPaused,
    State,
    StateGraph,
    UsageError,
    pause,
)
from support.graphs import chain


class JsonCheckpointer:
    """Writes JSON files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def save(self, state: dict[str, Any], node: str, config: dict[str, Any]) -> str:
        path = self.folder / f"{node}_{len(list(self.folder.iterdir()))}.json"
        path.write_text(json.dumps({"state": state, "node": node, "config": config}))
        return str(path)

    def load(self, path: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(Path(path).read_text())
        return found


class PickleCheckpointer:
    """Keeps pickles."""

    def __init__(self, folder: Path) -> None:
        self.kept: list[bytes] = []

    def save(self, state: dict[str, Any], node: str, config: dict[str, Any]) -> str:
        self.kept.append(pickle.dumps((state, node, config)))
        return str(len(self.kept) - 1)

    def load(self, reference: str) -> dict[str, Any]:
        state, node, config = pickle.loads(self.kept[int(reference)])
        return {"state": state, "node": node, "config": config, "timestamp": 0.0, "version": "1.0"}


KINDS: dict[str, Callable[[Path], Checkpointer]] = {
    "memory": lambda folder: MemoryCheckpointer(),
    "json": JsonCheckpointer,
    "pickle": PickleCheckpointer,
}


@pytest.fixture(params=KINDS)
def checkpointer(request: pytest.FixtureRequest, tmp_path: Path) -> Checkpointer:
    return KINDS[request.param](tmp_path)


class Ran:
    """Nodes that note that they ran and what they saw."""

    def __init__(self) -> None:
        self.nodes: list[str] = []
        self.seen: list[tuple[int, int, dict[str, Any]]] = []

    def __call__(self, state: State, ctx: NodeContext) -> dict[str, Any]:
        self.nodes.append(ctx.node)
        self.seen.append((ctx.visit, ctx.step, dict(ctx.config)))
        return {ctx.node: True}


def build(checkpointer: Any, run: Callable[..., Any], **settings: Any) -> StateGraph:
    """prepare → review → publish."""
    graph = chain(run, run, run, names=["prepare", "review", "publish"], name="review")
    return graph.compile(checkpointer=checkpointer, **settings)


def test_any_object_with_save_and_load_is_a_checkpointer(checkpointer: Checkpointer) -> None:
    """F11: the protocol, recognised by its methods."""
    assert isinstance(checkpointer, Checkpointer)
    assert not isinstance(object(), Checkpointer)


def test_a_run_stops_and_resumes_in_a_new_graph(checkpointer: Checkpointer) -> None:
    """F11: with nothing but what the checkpointer gives back; finished nodes don't run again."""
    ran = Ran()
    run = build(checkpointer, ran, interrupt_before=["review"]).invoke({"value": 1}, config={"depth": 2})
    (event,) = run
    assert (event["type"], event["node"]) == ("interrupt", "review")
    (final,) = build(checkpointer, ran, interrupt_before=["review"]).invoke(
        {"approved": True}, checkpoint=event["checkpoint_path"], config={"timeout": 60}
    )
    assert final["type"] == "final"
    assert final["state"] == {"value": 1, "approved": True, "prepare": True, "review": True, "publish": True}
    assert final["run_id"] == run.id
    assert ran.nodes == ["prepare", "review", "publish"]
    assert ran.seen == [(1, 1, {"depth": 2}), *((1, step, {"depth": 2, "timeout": 60}) for step in (2, 3))]


def test_the_reference_is_what_save_returned(checkpointer: Checkpointer) -> None:
    """F11: and `load` with it gives state, node and config."""
    (event,) = build(checkpointer, Ran(), interrupt_after=["prepare"]).invoke(
        {"value": 1}, config={"depth": 2}
    )
    found = checkpointer.load(event["checkpoint_path"])
    assert found["state"] == {"value": 1, "prepare": True}
    assert found["node"] == "prepare"
    assert found["config"]["depth"] == 2


def test_what_is_saved_is_plain_data_of_the_checkpointers_own() -> None:
    """F11: a dict that may be kept or altered without a copy: the run isn't touched by it."""
    kept: list[dict[str, Any]] = []

    class Keeper:
        def save(self, state: dict[str, Any], node: str, config: dict[str, Any]) -> str:
            assert (type(state), type(node), type(config)) == (dict, str, dict)
            state["items"].append("altered")
            kept.append({"state": state, "node": node, "config": config})
            return "ref"

        def load(self, ref: str) -> dict[str, Any]:
            return kept[-1]

    run = build(Keeper(), Ran(), interrupt_before=["review"]).invoke({"items": []})
    (event,) = run
    assert event["state"]["items"] == run.state["items"] == []


@pytest.mark.parametrize("kind", ["interrupt_before", "interrupt_after"])
def test_the_phase_and_the_counters_travel_with_the_checkpoint(checkpointer: Checkpointer, kind: str) -> None:
    """F11, F5, G7: visits, steps, budget and position aren't inferred from today's settings."""
    ran = Ran()

    def loop(limit: int = 100, **settings: Any) -> StateGraph:
        def count(state: State, ctx: NodeContext) -> dict[str, Any]:
            ran(state, ctx)
            return {"n": state.get("n", 0) + 1}

        graph = StateGraph(name="loop", max_iterations=limit).add_node("a", run=count)
        graph.set_entry_point("a").set_finish_point("a").add_edge("a", "a", lambda state: state["n"] < 4)
        return graph.compile(checkpointer=checkpointer, **settings)

    (event,) = loop(**{kind: ["a"]}).invoke({})
    (event,) = loop(**{kind: ["a"]}).invoke(None, checkpoint=event["checkpoint_path"])
    done = len(ran.nodes)
    assert done == (1 if kind == "interrupt_before" else 2)
    (failed,) = loop(3).invoke(None, checkpoint=event["checkpoint_path"])
    assert "max_iterations (3) exceeded" in failed["error"]
    (final,) = loop().invoke(None, checkpoint=event["checkpoint_path"])
    assert final["state"] == {"n": 4}
    assert [visit for visit, _, _ in ran.seen] == [*range(1, 4), *range(done + 1, 5)]


def test_the_same_reference_may_be_resumed_twice(checkpointer: Checkpointer) -> None:
    """F11: each time from what was saved, with other values; neither sees the other."""
    ran = Ran()
    graph = build(checkpointer, ran, interrupt_before=["review"])
    (event,) = graph.invoke({"value": 1})
    for decision in ("yes", "no"):
        (final,) = graph.invoke({"decision": decision}, checkpoint=event["checkpoint_path"])
        assert final["type"] == "final"
        assert final["state"]["decision"] == decision
    assert ran.nodes == ["prepare", *["review", "publish"] * 2]


def test_the_same_reference_may_be_resumed_again_when_that_failed(checkpointer: Checkpointer) -> None:
    """F11: a failed run is saved as well, and resumes where it failed."""
    ran, fail = Ran(), [True]

    def fragile(state: State, ctx: NodeContext) -> dict[str, Any]:
        if ctx.node == "publish" and fail:
            fail.clear()
            raise ValueError("no")
        return ran(state, ctx)

    graph = build(checkpointer, fragile, interrupt_before=["review"])
    (event,) = graph.invoke({})
    (failed,) = graph.invoke(None, checkpoint=event["checkpoint_path"])
    assert (failed["type"], failed["node"]) == ("error", "publish")
    (final,) = graph.invoke(None, checkpoint=event["checkpoint_path"])
    assert final["type"] == "final"
    assert ran.nodes == ["prepare", "review", "review", "publish"]


def test_a_question_is_answered_through_the_checkpoint(checkpointer: Checkpointer) -> None:
    """F11, P1: the question travels with it, and wrong answers are refused."""

    def ask(state: State, ctx: NodeContext) -> dict[str, Any]:
        return {"ok": pause("Ship it?", choices=["yes", "no"])} if ctx.node == "review" else {}

    (event,) = build(checkpointer, ask).invoke({})
    assert (event["type"], event["questions"][0]["prompt"]) == ("pause", "Ship it?")
    graph = build(checkpointer, ask)
    with pytest.raises(RunPaused):
        list(graph.invoke(None, checkpoint=event["checkpoint_path"]))
    with pytest.raises(UsageError, match="refused the answer"):
        list(graph.invoke("maybe", checkpoint=event["checkpoint_path"]))
    (final,) = graph.invoke("yes", checkpoint=event["checkpoint_path"])
    assert final["state"] == {"ok": "yes"}


def test_a_checkpointer_is_handed_a_run_only_where_it_stops() -> None:
    """F11: at an interrupt and a failure; not at a failed attempt, nor when the run completes."""
    saved: list[str] = []

    class Keeper(MemoryCheckpointer):
        def save(self, state: dict[str, Any], node: str, config: dict[str, Any]) -> str:
            saved.append(node)
            return super().save(state, node, config)

    def fail_twice(ctx: NodeContext) -> None:
        if ctx.attempt < 3:
            raise ValueError

    graph = StateGraph().add_node("a", run=fail_twice, retry=Retry(attempts=3, backoff=0)).add_node("b")
    graph.add_edge("a", "b").set_entry_point("a").set_finish_point("b")
    graph.compile(checkpointer=Keeper()).execute({})
    assert saved == []
    graph.compile(checkpointer=Keeper(), interrupt_before=["b"]).invoke({}).wait()
    assert saved == ["b"]


def test_a_run_can_be_resumed_by_its_id_while_its_process_lives() -> None:
    """F11, G6: what takes a journal takes a store, but the graph that ran it still knows it."""
    graph = build(MemoryCheckpointer(), Ran(), interrupt_before=["review"])
    run = graph.invoke({}).wait()
    assert graph.resume(run.id)["publish"] is True
    with pytest.raises(AlreadyCompleted):
        graph.resume(run.id)


def test_a_checkpoint_saved_by_hand_runs_its_node(checkpointer: Checkpointer) -> None:
    """F11, F7: state, node and config are enough."""
    ran = Ran()
    reference = checkpointer.save({"value": 1}, "review", {"depth": 2})
    graph = build(checkpointer, ran, interrupt_before=["review"])
    (final,) = graph.invoke({"more": 2}, checkpoint=reference)
    assert final["state"] == {"value": 1, "more": 2, "review": True, "publish": True}
    assert ran.nodes == ["review", "publish"]
    assert ran.seen[0][2] == {"depth": 2}


def test_a_checkpoint_of_a_node_that_is_gone_says_so(checkpointer: Checkpointer) -> None:
    """F10, F11: it names the node."""
    reference = checkpointer.save({}, "vanished", {})
    with pytest.raises(DefinitionError, match="is at node 'vanished', which is no longer in the graph"):
        list(build(checkpointer, Ran()).invoke(None, checkpoint=reference))


@pytest.mark.parametrize(
    "found", [None, "text", {}, {"state": {}}, {"node": "review"}, {"state": [], "node": "review"}], ids=repr
)
def test_what_isnt_a_checkpoint_is_refused(found: Any) -> None:
    """F10, F11: `load` must give a state and a node."""

    class Wrong(MemoryCheckpointer):
        def load(self, ref: str) -> Any:
            return found

    with pytest.raises(UsageError, match=r"load\('ref'\) didn't return a checkpoint"):
        list(build(Wrong(), Ran()).invoke(None, checkpoint="ref"))


def test_a_save_that_fails_stops_the_run_without_a_reference() -> None:
    """F11, G9: nothing is reported that wasn't kept."""

    class Broken(MemoryCheckpointer):
        def save(self, state: dict[str, Any], node: str, config: dict[str, Any]) -> str:
            raise OSError("the disk is full")

    run = build(Broken(), Ran(), interrupt_before=["review"]).invoke({})
    (event,) = run
    assert event["type"] == "error"
    assert "checkpoint_path" not in event
    with pytest.raises(ExecutionError, match="checkpoint save failed: OSError: the disk is full") as caught:
        run.result()
    assert isinstance(caught.value.cause, OSError)
    assert (caught.value.node, caught.value.path) == ("prepare", ["prepare"])


@pytest.mark.parametrize("reference", [None, "", 5])
def test_a_save_that_returns_no_reference_is_a_failure(reference: Any) -> None:
    """F11: a reference is a str that leads back."""

    class Forgetful(MemoryCheckpointer):
        def save(self, state: dict[str, Any], node: str, config: dict[str, Any]) -> str:
            return reference  # type: ignore[no-any-return]  # that is the point

    (event,) = build(Forgetful(), Ran(), interrupt_before=["review"]).invoke({})
    assert event["type"] == "error"
    assert "instead of a reference" in event["error"]


def test_a_reference_that_memory_does_not_know_is_refused() -> None:
    """F10, F11: it says what it has."""
    checkpointer = MemoryCheckpointer()
    reference = checkpointer.save({}, "review", {})
    with pytest.raises(
        UsageError, match=rf"no checkpoint 'ghost' in this MemoryCheckpointer; it has \['{reference}'\]"
    ):
        checkpointer.load("ghost")


def test_memory_keeps_copies() -> None:
    """F11: what is altered after `save` or `load` isn't altered in the checkpoint."""
    checkpointer = MemoryCheckpointer()
    state = {"items": [1]}
    first, second = checkpointer.save(state, "a", {}), checkpointer.save(state, "a", {})
    assert first != second
    state["items"].append(2)
    checkpointer.load(first)["state"]["items"].append(3)
    assert checkpointer.load(first) == {"state": {"items": [1]}, "node": "a", "config": {}}


def test_a_checkpoint_that_was_damaged_elsewhere_is_refused() -> None:
    """F10, F11: what a checkpointer returns is checked before it is used."""
    keeper = MemoryCheckpointer()
    graph = StateGraph(name="g").add_node("n", run=lambda state: {"a": 1})
    graph.set_entry_point("n").set_finish_point("n").compile(interrupt_before=["n"], checkpointer=keeper)
    (event,) = graph.invoke({})
    saved = keeper.load(event["checkpoint_path"])
    for damaged in ("no base64!", "AAAA", saved["config"]["__limpet__"][:-8]):
        reference = keeper.save(saved["state"], saved["node"], {"__limpet__": damaged})
        with pytest.raises(UsageError, match="is damaged"):
            list(graph.invoke(None, checkpoint=reference))
