"""`parallel_results` in the state of a fan-in, and in checkpoints that are saved there or inside of a branch."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from limpet import (
    ForbiddenType,
    MemoryCheckpointer,
    MemoryStore,
    StateGraph,
    UsageError,
    pause,
    register_type,
)

KEY = "parallel_results"


def two_branches(combine: Any, calls: list[str] | None = None, **settings: Any) -> StateGraph:
    """plan → a → a2, b → combine → end."""
    noted = [] if calls is None else calls

    def node(name: str, value: int) -> Any:
        def run(state: Any) -> dict[str, Any]:
            noted.append(name)
            return {"x": state.get("x", 0) + value, name: True}

        return run

    graph = StateGraph(name="g")
    graph.add_node("plan", run=node("plan", 1))
    graph.add_node("a", run=node("a", 10))
    graph.add_node("a2", run=node("a2", 100))
    graph.add_node("b", run=node("b", 1000))
    graph.add_fanin_node("combine", run=combine)
    graph.add_node("end", run=lambda state: {"done": True})
    graph.add_parallel_edge("plan", "a", "combine")
    graph.add_parallel_edge("plan", "b", "combine")
    graph.add_edge("a", "a2")
    graph.add_edge("combine", "end")
    graph.set_entry_point("plan")
    graph.set_finish_point("end")
    return graph.compile(**settings)


def total(state: Any) -> dict[str, Any]:
    return {"sum": [each["x"] for each in state.get(KEY)]}


FINAL = {"x": 1, "plan": True, "sum": [111, 1001], "done": True}


@pytest.mark.parametrize("stored", [True, False])
def test_a_fan_in_finds_the_results_in_its_state(stored: bool) -> None:
    """F15: by every way to read a dict; they don't become part of the run's state."""
    seen: list[Any] = []

    def combine(state: Any, parallel_results: Any) -> dict[str, Any]:
        assert KEY in state
        assert len(state) == len(list(state)) == len(dict(state))
        seen.extend([state[KEY], state.get(KEY), dict(state)[KEY], {**state}[KEY], dict(state.items())[KEY]])
        assert [each.branch for each in state[KEY]] == ["a", "b"]
        assert parallel_results == state[KEY]
        return total(state)

    graph = two_branches(combine, store=MemoryStore()) if stored else two_branches(combine)
    assert graph.execute({}) == FINAL
    assert all(each == seen[0] for each in seen)


@pytest.mark.parametrize(
    "returned",
    [
        lambda state: {**state, **total(state)},
        lambda state: dict(state) | total(state),
        lambda state: state.merge(total(state)),
        lambda state: state.update(total(state)),
        lambda state: {**total(state), "popped": len(state.pop(KEY))},
    ],
)
def test_a_fan_in_that_returns_all_of_its_state_does_not_store_the_results(returned: Any) -> None:
    """F15: as a program does that was written for plain dicts."""
    final = two_branches(returned, store=MemoryStore()).execute({})
    final.pop("popped", None)
    assert final == FINAL


def test_a_fan_in_may_keep_the_results_under_their_name_or_another() -> None:
    """F15: what it returns or assigns for this key by itself is its own."""

    def assign(state: Any) -> None:
        state[KEY] = [each["x"] for each in state[KEY]]

    for combine in (
        lambda state: {KEY: [each["x"] for each in state[KEY]]},
        lambda state: {KEY: state[KEY]},
        lambda state, parallel_results: {KEY: parallel_results},
        lambda state: {"kept": state[KEY]},
        assign,
    ):
        graph = two_branches(combine, store=MemoryStore(), preserve=True)
        final = graph.execute({}, run_id="r")
        kept = final.get(KEY, final.get("kept"))
        assert [each if isinstance(each, int) else each["x"] for each in kept] == [111, 1001]
        assert graph.state_at("r") == final


def test_a_fan_in_that_fails_leaves_no_results_behind() -> None:
    """F15: it is called again with the same."""
    seen: list[Any] = []

    def combine(state: Any) -> dict[str, Any]:
        seen.append([dict(each) for each in state[KEY]])
        state[KEY].clear()
        if len(seen) == 1:
            raise ValueError("once")
        return total({KEY: seen[0]})

    graph = two_branches(combine, store=MemoryStore())
    list(graph.invoke({}, run_id="r"))
    assert graph.resume("r") == FINAL
    assert seen[0] == seen[1]


def test_the_map_of_a_map_has_its_own_results() -> None:
    """F15, F12: a fan-in inside of a branch finds those of its branches."""
    graph = StateGraph(name="g")
    graph.add_node("plan", run=lambda state: {"groups": [[1, 2], [3]]})
    graph.add_node("split", run=lambda state: {"items": state["group"]})
    graph.add_node("each", run=lambda state: {"n": state["item"] * 10})
    graph.add_fanin_node("inner", run=lambda state: {"sum": sum(each["n"] for each in state[KEY])})
    graph.add_fanin_node("outer", run=lambda state: {"sums": [each["sum"] for each in state[KEY]]})
    graph.add_map("plan", over="groups", each="split", fan_in="outer", item="group")
    graph.add_map("split", over="items", each="each", fan_in="inner")
    graph.set_entry_point("plan")
    graph.set_finish_point("outer")
    assert graph.compile(store=MemoryStore()).execute({})["sums"] == [30, 30]


@pytest.mark.parametrize("where", ["interrupt_before", "interrupt_after"])
def test_a_checkpoint_at_a_fan_in_has_the_results_in_its_state(tmp_path: Path, where: str) -> None:
    """F15, F9: in a file as plain dicts that any program can read; the resumed run is like one without a stop."""
    interrupts: Any = {where: ["combine"]}
    graph = two_branches(total, checkpoint_dir=tmp_path, **interrupts)
    (event,) = graph.invoke({})
    found = pickle.loads(Path(event["checkpoint_path"]).read_bytes())
    assert found["state"][KEY] == found[KEY] == graph.load_checkpoint(event["checkpoint_path"])[KEY]
    assert [(type(each), each["x"]) for each in found[KEY]] == [(dict, 111), (dict, 1001)]
    (final,) = graph.invoke(None, checkpoint=event["checkpoint_path"])
    assert final["state"] == FINAL


@pytest.mark.parametrize("where", ["interrupt_before", "interrupt_after"])
def test_a_checkpointer_gets_the_results_in_the_state(where: str) -> None:
    """F15, F11: it has no other place for them."""
    keeper = MemoryCheckpointer()
    interrupts: Any = {where: ["combine"]}
    graph = two_branches(total, checkpointer=keeper, **interrupts)
    (event,) = graph.invoke({})
    assert [each["x"] for each in keeper.load(event["checkpoint_path"])["state"][KEY]] == [111, 1001]
    (final,) = graph.invoke(None, checkpoint=event["checkpoint_path"])
    assert final["state"] == FINAL


def test_a_checkpoint_before_the_fan_in_has_no_results() -> None:
    """F15: not those of the branches that are done, as long as another one isn't."""
    keeper = MemoryCheckpointer()
    graph = StateGraph(name="g").add_node("plan").add_fanin_node("combine", run=total)
    graph.add_node("a", run=lambda state: {"a": 1}).add_node("b", run=lambda state: pause("Really?"))
    graph.add_parallel_edge("plan", "a", "combine").add_parallel_edge("plan", "b", "combine")
    graph.set_entry_point("plan").set_finish_point("combine").compile(checkpointer=keeper)
    (*_, event) = graph.invoke({"x": 1})
    assert keeper.load(event["checkpoint_path"])["state"] == {"x": 1}


def test_a_value_of_the_runs_own_under_this_key_survives_a_checkpoint(tmp_path: Path) -> None:
    """F15: the results are then beside the state only."""
    graph = two_branches(total, checkpoint_dir=tmp_path, interrupt_before=["combine"])
    (event,) = graph.invoke({KEY: "mine"})
    assert graph.load_checkpoint(event["checkpoint_path"])["state"][KEY] == "mine"
    (final,) = graph.invoke(None, checkpoint=event["checkpoint_path"])
    assert final["state"] == {**FINAL, KEY: "mine"}


def written_elsewhere(path: Path, **content: Any) -> Path:
    """A checkpoint file as another program writes it."""
    path.write_bytes(pickle.dumps({"config": {}, "timestamp": 1.0, "version": "1.0", **content}))
    return path


@pytest.mark.parametrize("place", ["beside the state", "in the state", "both"])
@pytest.mark.parametrize("stored", [True, False])
def test_a_file_of_another_program_resumes_its_fan_in_with_the_results_that_it_holds(
    tmp_path: Path, place: str, stored: bool
) -> None:
    """F15: in their order, by argument and in the state; nothing before the fan-in runs again."""
    results = [{"x": 5, "plan": True}, {"x": 7}]
    state: dict[str, Any] = {"x": 1, "plan": True}
    content: dict[str, Any] = {"state": state, "node": "combine"}
    if place != "beside the state":
        state[KEY] = results
    if place != "in the state":
        content[KEY] = results
    path = written_elsewhere(tmp_path / "combine_1.pkl", **content)
    calls: list[str] = []

    def combine(state: Any, parallel_results: Any) -> dict[str, Any]:
        assert [dict(each) for each in parallel_results] == [dict(each) for each in state[KEY]] == results
        assert [each.branch for each in parallel_results] == ["a", "b"]
        return total(state)

    settings = {"store": MemoryStore()} if stored else {}
    graph = two_branches(combine, calls, **settings)
    (final,) = graph.resume_from_checkpoint(path)
    assert final["state"] == {**FINAL, "sum": [5, 7]}
    assert calls == []


def test_a_file_with_more_results_than_the_graph_has_branches_gives_all_of_them(tmp_path: Path) -> None:
    """F15: the graph may have changed since."""
    results = [{"x": number} for number in range(5)]
    path = written_elsewhere(tmp_path / "f.pkl", state={"x": 1}, node="combine", parallel_results=results)
    (final,) = two_branches(total).resume_from_checkpoint(path)
    assert final["state"]["sum"] == [0, 1, 2, 3, 4]


def test_a_file_resumes_the_fan_in_of_a_map_with_its_results(tmp_path: Path) -> None:
    """F15: one for each item."""
    graph = StateGraph(name="g")
    graph.add_node("plan", run=lambda state: {})
    graph.add_node("each", run=lambda state: {"n": state["item"]})
    graph.add_fanin_node(
        "combine", run=lambda state, parallel_results: {"n": [r["n"] for r in parallel_results]}
    )
    graph.add_map("plan", over="items", each="each", fan_in="combine")
    graph.set_entry_point("plan")
    graph.set_finish_point("combine")
    graph.compile()
    results = [{"n": 1}, {"n": 2}, {"n": 3}]
    state = {"items": ["a", "b", "c"]}
    path = written_elsewhere(tmp_path / "f.pkl", state=state, node="combine", parallel_results=results)
    (final,) = graph.resume_from_checkpoint(path)
    assert final["state"] == {"items": ["a", "b", "c"], "n": [1, 2, 3]}


@dataclass
class FlowResult:
    """The result of a branch as newer versions of The Edge Agent have it: an object, with the final state in it."""

    branch: str
    success: bool
    state: dict[str, Any] | None = None
    attempt_errors: list[dict[str, Any]] = field(default_factory=list)


def test_a_file_with_an_object_for_each_branch_resumes_with_their_states(tmp_path: Path) -> None:
    """F15, F9: once their class is registered, and not before; one that failed has no state to continue with."""
    results = [FlowResult("a", True, {"x": 5}), FlowResult("b", True, {"x": 7})]
    content = {"state": {"x": 1, "plan": True, KEY: results}, "node": "combine"}
    path = written_elsewhere(tmp_path / "combine_1.pkl", **content)
    with pytest.raises(ForbiddenType, match="FlowResult"):
        list(two_branches(total).resume_from_checkpoint(path))
    register_type(FlowResult)
    (final,) = two_branches(total).resume_from_checkpoint(path)
    assert final["state"] == {**FINAL, "sum": [5, 7]}
    results[1] = FlowResult("b", False)
    written_elsewhere(path, **content)
    with pytest.raises(UsageError, match="a list of dicts"):
        list(two_branches(total).resume_from_checkpoint(path))


def test_results_that_are_no_list_of_dicts_are_refused(tmp_path: Path) -> None:
    """F15, F10: before anything runs."""
    for wrong in ("text", [1, 2], {"a": 1}):
        path = written_elsewhere(tmp_path / "f.pkl", state={}, node="combine", parallel_results=wrong)
        with pytest.raises(UsageError, match="a list of dicts"):
            list(two_branches(total).resume_from_checkpoint(path))


def test_a_manual_save_in_a_fan_in_resumes_with_the_same_results(tmp_path: Path) -> None:
    """F15, F7: the state that the fan-in was given has them."""
    calls: list[str] = []
    path = tmp_path / "manual.pkl"

    def combine(state: Any, graph: Any, parallel_results: Any) -> dict[str, Any]:
        if not path.exists():
            graph.save_checkpoint(path, state, "combine")
        return {"sum": [each["x"] for each in parallel_results]}

    graph = two_branches(combine, calls)
    assert graph.execute({}) == FINAL
    found = pickle.loads(path.read_bytes())
    assert [type(each) for each in found[KEY]] == [dict, dict]
    calls.clear()
    (final,) = graph.resume_from_checkpoint(path)
    assert (final["state"], calls) == (FINAL, [])


@pytest.mark.parametrize("stored", [True, False])
def test_a_manual_save_in_a_branch_resumes_through_the_fan_in(tmp_path: Path, stored: bool) -> None:
    """F15, F7: its branch continues at the node, the others start over, and the fan-in gets all results."""
    calls: list[str] = []
    settings = {"store": MemoryStore()} if stored else {}
    graph = two_branches(total, calls, **settings)
    path = tmp_path / "manual.pkl"
    graph.save_checkpoint(path, {"x": 11, "plan": True, "a": True}, "a2")
    (final,) = graph.resume_from_checkpoint(path)
    assert final["state"] == {"x": 11, "plan": True, "a": True, "sum": [111, 1011], "done": True}
    assert sorted(calls) == ["a2", "b"]


def test_a_manual_save_in_the_branch_of_an_item_resumes_the_whole_map(tmp_path: Path) -> None:
    """F15: the item in the saved state says which branch it was."""
    graph = StateGraph(name="g")
    graph.add_node("plan", run=lambda state: {})
    graph.add_node("first", run=lambda state: {"seen": [*state.get("seen", []), state["item"]]})
    graph.add_node("second", run=lambda state: {"n": f"{state['item']}{len(state.get('seen', []))}"})
    graph.add_edge("first", "second")
    graph.add_fanin_node("combine", run=lambda state: {"n": [each["n"] for each in state[KEY]]})
    graph.add_map("plan", over="items", each="first", fan_in="combine")
    graph.set_entry_point("plan")
    graph.set_finish_point("combine")
    graph.compile()
    path = tmp_path / "f.pkl"
    graph.save_checkpoint(path, {"items": ["p", "q", "r"], "item": "q"}, "second")
    (final,) = graph.resume_from_checkpoint(path)
    assert final["state"]["n"] == ["p1", "q0", "r1"]
