"""Interrupts: where a run stops, what it reports, and how it resumes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import pytest

from limpet import (
    Conflict,
    ExecutionError,
    MemoryCheckpointer,
    MemoryStore,
    RunNotFound,
    RunPaused,
    State,
    StateGraph,
    UsageError,
    append,
)
from support.graphs import Crash, chain

NODES = ("prepare", "review", "publish")


class Ran:
    """Nodes that note that they ran, with what they saw."""

    def __init__(self) -> None:
        self.nodes: list[str] = []
        self.seen: list[tuple[dict[str, Any], dict[str, Any]]] = []
        self.once: dict[str, Callable[[], Any]] = {}

    def __call__(self, state: State, config: dict[str, Any], node: str) -> dict[str, Any]:
        if node in self.once:
            self.once.pop(node)()
        self.nodes.append(node)
        self.seen.append((dict(state), dict(config)))
        return {node: True}


def graph_of(ran: Callable[..., Any]) -> StateGraph:
    schema = {"value": int, "approved": bool}
    return chain(*[ran] * len(NODES), names=NODES, schema=schema, name="review")


def types(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"] for event in events]


@pytest.fixture(params=["store", "checkpointer"])
def place(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Somewhere to save, of either kind."""
    return {"store": MemoryStore()} if request.param == "store" else {"checkpointer": MemoryCheckpointer()}


@pytest.mark.parametrize(
    ("kind", "node", "done"),
    [
        ("interrupt_before", "prepare", []),
        ("interrupt_before", "review", ["prepare"]),
        ("interrupt_after", "prepare", ["prepare"]),
        ("interrupt_after", "publish", ["prepare", "review", "publish"]),
    ],
)
def test_an_interrupt_event_says_where_the_run_stopped(
    place: dict[str, Any], kind: str, node: str, done: list[str]
) -> None:
    """F4: `{"type": "interrupt", "node", "state", "checkpoint_path"}` is the last event."""
    ran = Ran()
    graph = graph_of(ran).compile(**{kind: [node]}, **place)
    run = graph.invoke({"value": 1})
    (event,) = run
    assert event["type"] == "interrupt"
    assert event["node"] == node
    assert event["state"] == {"value": 1, **dict.fromkeys(done, True)}
    assert isinstance(event["checkpoint_path"], str)
    assert event["checkpoint_path"]
    assert event["run_id"] == run.id
    assert run.status == "paused"
    assert ran.nodes == done


@pytest.mark.parametrize(
    ("kind", "after"),
    [("interrupt_before", ["review", "publish"]), ("interrupt_after", ["publish"])],
)
@pytest.mark.parametrize("how", ["checkpoint", "run id"])
def test_a_resume_runs_the_node_it_was_interrupted_before_and_not_the_one_it_was_interrupted_after(
    place: dict[str, Any], kind: str, after: list[str], how: str
) -> None:
    """F5: by the checkpoint's reference and by the run's id."""
    ran = Ran()
    graph = graph_of(ran).compile(**{kind: ["review"]}, **place)
    run = graph.invoke({"value": 1})
    (event,) = run
    ran.nodes.clear()
    if how == "checkpoint":
        (final,) = graph.invoke(None, checkpoint=event["checkpoint_path"])
        assert final["type"] == "final"
        state = final["state"]
    else:
        state = graph.resume(run.id)
    assert ran.nodes == after
    assert state == {"value": 1, **dict.fromkeys(NODES, True)}


@pytest.mark.parametrize("same_graph", [True, False], ids=["same graph", "new graph"])
def test_a_node_in_both_lists_stops_twice_and_runs_once(place: dict[str, Any], same_graph: bool) -> None:
    """F5: before it, after it, and to the end."""
    ran = Ran()
    settings = {"interrupt_before": ["review"], "interrupt_after": ["review"], **place}
    graph = graph_of(ran).compile(**settings)
    (first,) = graph.invoke({})
    assert (first["type"], ran.nodes) == ("interrupt", ["prepare"])
    graph = graph if same_graph else graph_of(ran).compile(**settings)
    (second,) = graph.invoke(None, checkpoint=first["checkpoint_path"])
    assert (second["type"], second["node"], ran.nodes) == ("interrupt", "review", ["prepare", "review"])
    graph = graph if same_graph else graph_of(ran).compile(**settings)
    (third,) = graph.invoke(None, checkpoint=second["checkpoint_path"])
    assert (third["type"], ran.nodes) == ("final", list(NODES))


def test_neighbours_stop_between_them_once_each(place: dict[str, Any]) -> None:
    """F5: after the one and before the other are two stops at the same place."""
    ran = Ran()
    graph = graph_of(ran).compile(interrupt_after=["prepare"], interrupt_before=["review"], **place)
    (first,) = graph.invoke({})
    assert (first["node"], ran.nodes) == ("prepare", ["prepare"])
    (second,) = graph.invoke(None, checkpoint=first["checkpoint_path"])
    assert (second["type"], second["node"], ran.nodes) == ("interrupt", "review", ["prepare"])
    (third,) = graph.invoke(None, checkpoint=second["checkpoint_path"])
    assert (third["type"], ran.nodes) == ("final", list(NODES))


OTHER_SETTINGS: list[dict[str, list[str]]] = [
    {},
    {"interrupt_before": ["review"]},
    {"interrupt_after": ["review"]},
    {"interrupt_after": ["prepare"]},
    {"interrupt_before": ["prepare"]},
]


@pytest.mark.parametrize("later", OTHER_SETTINGS, ids=str)
@pytest.mark.parametrize(
    ("kind", "first_to_run"), [("interrupt_before", "review"), ("interrupt_after", "publish")]
)
def test_where_a_resume_continues_does_not_depend_on_todays_settings(
    place: dict[str, Any], kind: str, first_to_run: str, later: dict[str, list[str]]
) -> None:
    """F5: the position is stored with the checkpoint and never inferred from the compile flags."""
    ran = Ran()
    (event,) = graph_of(ran).compile(**{kind: ["review"]}, **place).invoke({})
    ran.nodes.clear()
    (after,) = graph_of(ran).compile(**later, **place).invoke(None, checkpoint=event["checkpoint_path"])
    assert ran.nodes[0] == first_to_run
    stops_again = kind == "interrupt_before" and later == {"interrupt_after": ["review"]}
    assert after["type"] == ("interrupt" if stops_again else "final")
    assert ran.nodes == (["review"] if stops_again else list(NODES[NODES.index(first_to_run) :]))


def test_an_interrupt_before_stops_again_when_the_loop_comes_back(place: dict[str, Any]) -> None:
    """F5: each visit is a stop of its own."""
    graph = StateGraph(name="loop").add_node("again", run=lambda state: {"n": state.get("n", 0) + 1})
    graph.set_entry_point("again").set_finish_point("again")
    graph.add_edge("again", "again", lambda state: state["n"] < 3).compile(
        interrupt_before=["again"], **place
    )
    (event,) = graph.invoke({})
    for expected in (1, 2):
        (event,) = graph.invoke(None, checkpoint=event["checkpoint_path"])
        assert (event["type"], event["state"]) == ("interrupt", {"n": expected})
    (event,) = graph.invoke(None, checkpoint=event["checkpoint_path"])
    assert (event["type"], event["state"]) == ("final", {"n": 3})


def test_a_crash_after_the_resume_does_not_ask_for_the_approval_again() -> None:
    """F5: that the interrupt was taken is durable; the node runs, without a second stop."""
    ran = Ran()
    graph = graph_of(ran).compile(store="memory://", interrupt_before=["review"])
    run = graph.invoke({}).wait()

    def crash() -> None:
        raise Crash

    ran.once["review"] = crash
    with pytest.raises(Crash):
        graph.resume(run.id, {"approved": True})
    final = graph.resume(run.id)
    assert ran.nodes == list(NODES)
    assert final["approved"] is True


def test_a_failure_behind_an_approval_does_not_ask_for_it_again() -> None:
    """F5: the node fails, and is tried again without another stop before it."""
    ran = Ran()
    graph = graph_of(ran).compile(store="memory://", interrupt_before=["review"])
    run = graph.invoke({}).wait()

    def fail() -> None:
        raise ValueError

    ran.once["review"] = fail
    with pytest.raises(ExecutionError):
        graph.resume(run.id)
    graph.resume(run.id)
    assert ran.nodes == list(NODES)


def test_new_values_are_merged_into_the_saved_state(place: dict[str, Any]) -> None:
    """F6: `invoke({"approved": True}, checkpoint=ref)`; what isn't named stays."""
    ran = Ran()
    graph = graph_of(ran).compile(interrupt_before=["review"], **place)
    (event,) = graph.invoke({"value": 1, "note": "old"})
    update = {"approved": True, "feedback": "Looks good", "note": "new"}
    (final,) = graph.invoke(update, checkpoint=event["checkpoint_path"])
    merged = {"value": 1, "note": "new", "prepare": True, "approved": True, "feedback": "Looks good"}
    assert ran.seen[1][0] == merged
    assert final["state"] == {**merged, "review": True, "publish": True}
    assert event["state"] == {"value": 1, "note": "old", "prepare": True}


def test_new_settings_are_merged_over_the_saved_ones(place: dict[str, Any]) -> None:
    """F6: `config=` over the saved config; what isn't named stays, and it holds from then on."""
    ran = Ran()
    graph = graph_of(ran).compile(interrupt_before=["review", "publish"], **place)
    (event,) = graph.invoke({}, config={"timeout": 5, "user": "ann"})
    (event,) = graph.invoke(None, checkpoint=event["checkpoint_path"], config={"timeout": 60})
    (event,) = graph.invoke(None, checkpoint=event["checkpoint_path"])
    assert event["type"] == "final"
    assert [config for _, config in ran.seen] == [
        {"timeout": 5, "user": "ann"},
        {"timeout": 60, "user": "ann"},
        {"timeout": 60, "user": "ann"},
    ]


def test_new_values_go_through_reducers(place: dict[str, Any]) -> None:
    """F6: what a resume brings counts as if a node had returned it."""
    graph = StateGraph({"log": Annotated[list, append]}).add_node("a", run=lambda state: {"log": ["a"]})
    graph.add_node("b", run=lambda state: {"log": ["b"]}).add_edge("a", "b")
    graph.set_entry_point("a").set_finish_point("b").compile(interrupt_before=["b"], **place)
    (event,) = graph.invoke({"log": ["start"]})
    (final,) = graph.invoke({"log": ["human"]}, checkpoint=event["checkpoint_path"])
    assert final["state"] == {"log": ["start", "a", "human", "b"]}


def test_new_values_can_change_which_way_an_interrupted_after_run_goes(place: dict[str, Any]) -> None:
    """F5, F6: what follows the node is chosen when the run resumes, by the merged state."""
    graph = StateGraph(name="choice").add_node("look").add_node("yes").add_node("no")
    graph.set_entry_point("look").set_finish_point("yes").set_finish_point("no")
    graph.add_conditional_edges("look", lambda state: state["ok"], {True: "yes", False: "no"})
    graph.compile(interrupt_after=["look"], **place)
    (event,) = graph.invoke({"ok": False})
    (final,) = graph.invoke({"ok": True}, checkpoint=event["checkpoint_path"])
    assert final["state"].checkpoint_node == "yes"


@pytest.mark.parametrize("wrong", ["approved", 5, ["approved"], True])
def test_what_isnt_a_dict_can_not_be_merged(wrong: Any) -> None:
    """F6: the run stays as it is."""
    ran = Ran()
    graph = graph_of(ran).compile(store="memory://", interrupt_before=["review"])
    run = graph.invoke({}).wait()
    with pytest.raises(UsageError, match="has no open question; what a resume brings is then a dict"):
        graph.resume(run.id, wrong)
    assert [info.status for info in graph.runs()] == ["paused"]
    assert graph.resume(run.id) == dict.fromkeys(NODES, True)


def test_an_update_that_can_not_be_stored_leaves_the_run_as_it_is() -> None:
    """F6, H4: it is refused with its key path, and the run can still be resumed."""
    graph = graph_of(Ran()).compile(store="memory://", interrupt_before=["review"])
    run = graph.invoke({}).wait()
    with pytest.raises(UsageError, match=r"the value at approved\.by can't be stored"):
        graph.resume(run.id, {"approved": {"by": print}})
    assert [info.status for info in graph.runs()] == ["paused"]
    assert graph.resume(run.id, {"approved": True})["approved"] is True


def test_stream_yields_the_nodes_and_the_interrupt_and_can_resume(place: dict[str, Any]) -> None:
    """F4: `stream(…)` and `stream(checkpoint=…)`."""
    graph = graph_of(Ran()).compile(interrupt_before=["publish"], **place)
    events = list(graph.stream({}))
    assert types(events) == ["state", "state", "interrupt"]
    assert [event["node"] for event in events] == ["prepare", "review", "publish"]
    resumed = list(graph.stream(None, checkpoint=events[-1]["checkpoint_path"]))
    assert types(resumed) == ["state", "final"]


def test_execute_raises_when_a_run_is_interrupted() -> None:
    """F3, F4: it can't return a final state; the error says how to resume."""
    graph = graph_of(Ran()).compile(store="memory://", interrupt_before=["review"])
    with pytest.raises(
        RunPaused, match=r"interrupted before 'review' — resume\('r', update\) continues it"
    ) as caught:
        graph.execute({}, run_id="r")
    assert (caught.value.run_id, caught.value.node, caught.value.questions) == ("r", "review", [])
    (info,) = graph.runs("paused")
    assert (info.node, info.reason, info.questions) == ("review", "interrupted before 'review'", [])


def test_an_invalid_reference_is_refused() -> None:
    """F4: a checkpoint is named by its reference, and belongs to its run."""
    graph = graph_of(Ran()).compile(store="memory://")
    with pytest.raises(RunNotFound, match="no run 'just-a-run'"):
        list(graph.invoke(None, checkpoint="just-a-run"))
    with pytest.raises(UsageError, match="a run or a checkpoint is named by its id, a str"):
        graph.invoke(None, checkpoint=5)  # type: ignore[arg-type]  # that is the point
    with pytest.raises(UsageError, match=r"give checkpoint= or run_id=, not both"):
        graph.invoke(None, checkpoint="r@1", run_id="r")


def test_a_checkpoint_that_is_not_the_newest_any_more_is_refused() -> None:
    """F4: resuming from it would do finished work again; the error says that fork does."""
    graph = graph_of(Ran()).compile(store="memory://", interrupt_before=["review", "publish"])
    (first,) = graph.invoke({}, run_id="r")
    (second,) = graph.invoke(None, checkpoint=first["checkpoint_path"])
    with pytest.raises(Conflict, match=r"step 1 is no longer its newest.*fork\('r', step=1\)"):
        list(graph.invoke(None, checkpoint=first["checkpoint_path"]))
    assert types(list(graph.invoke(None, checkpoint=second["checkpoint_path"]))) == ["final"]


def test_a_fork_from_a_step_that_was_approved_asks_for_approval_again() -> None:
    """D11, H6: as it asks its questions again; an approval counts for one run only."""
    graph = chain(lambda state: {"a": 1}, lambda state: {"b": 2})
    graph.compile(store="memory://", interrupt_before=["n2"], preserve=True)
    run = graph.invoke({}).wait()
    graph.resume(run.id)
    assert [event["type"] for event in graph.fork(run.id, 1)] == ["interrupt"]


def test_interrupts_given_as_a_generator_are_kept_when_the_graph_changes() -> None:
    """F3: what was compiled once is compiled again with the same settings."""
    graph = chain(lambda state: None, lambda state: None)
    graph.compile(store="memory://", interrupt_before=(name for name in ["n2"]))
    graph.add_node("n3").set_finish_point("n3").add_edge("n1", "n3", lambda state: False)
    assert [event["type"] for event in graph.invoke({})] == ["interrupt"]
