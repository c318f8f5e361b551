"""Which question an answer is for that names a checkpoint: a client that retries answers no other question."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from limpet import (
    AlreadyAnswered,
    AlreadyCompleted,
    MemoryStore,
    RunNotFound,
    RunPaused,
    Runs,
    StateGraph,
    UsageError,
    Workflow,
    pause,
    sleep,
)
from limpet.testing import FakeClock
from support.checkpoint_stores import InMemoryCheckpointStore


def two_layers(store: Any, **settings: Any) -> Workflow:
    flow = Workflow("deploy", store=store, **settings)
    flow.add_task("staging", lambda: pause("staging?"))
    return flow.add_task("production", lambda: pause("production?"), ["staging"])


def one_task(store: Any, **settings: Any) -> Workflow:
    flow = Workflow("deploy", store=store, **settings)
    return flow.add_task("both", lambda: (pause("staging?"), pause("production?")))


def one_handler(store: Any, **settings: Any) -> Workflow:
    flow = Workflow("deploy", store=store, **settings)
    flow.add_task("build", lambda: None)
    flow.after_layer(lambda: pause("staging?") and pause("production?") and None)
    return flow


def first_pause(flow: Workflow) -> str:
    """The id of the checkpoint at which a new run asks for the first time."""
    (event,) = [each for each in flow.stream({}, run_id="r") if each["type"] == "decision_required"]
    return str(event["checkpoint_id"])


@pytest.fixture(params=["memory", "sqlite", "five methods"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    stores = {
        "memory": MemoryStore(),
        "sqlite": tmp_path / "runs.db",
        "five methods": InMemoryCheckpointStore(),
    }
    return stores[request.param]


@pytest.mark.parametrize("made", [two_layers, one_task, one_handler])
def test_a_retried_answer_does_not_answer_the_next_question(store: Any, made: Any) -> None:
    """D11: whichever call sends it, it is refused, and changes nothing; the newest checkpoint can be answered."""
    flow = made(store)
    first = first_pause(flow)
    with pytest.raises(RunPaused, match="production"):
        flow.resume_from_checkpoint(first, "yes")
    before = flow.checkpoint("r")
    assert before.checkpoint_id != first
    for retry in (
        lambda: flow.resume_from_checkpoint(first, "yes"),
        lambda: flow.resume(first, "yes"),
        lambda: flow.resume(first, response={"approved": True}),
        lambda: list(flow.invoke("yes", checkpoint=first)),
        lambda: Runs(flow.compiled().need_client("test").store).answer(first, "yes"),
    ):
        with pytest.raises(AlreadyAnswered, match="no longer waits for an answer to question") as refused:
            retry()
        assert [each.split(":")[-1] for each in refused.value.questions] == ["1"]
    assert flow.checkpoint("r") == before
    final = flow.resume_from_checkpoint(before.checkpoint_id, "no")
    assert [each["answer"] for each in final.decisions if each["kind"] == "answer"] == ["yes", "no"]
    # A store of five methods is asked to delete a run that completes.
    with pytest.raises((AlreadyCompleted, RunNotFound)):
        flow.resume_from_checkpoint(before.checkpoint_id, "no")


def test_a_retry_without_an_answer_resumes_as_before() -> None:
    """D3: an old checkpoint's id still names its run."""
    flow = two_layers(MemoryStore())
    first = first_pause(flow)
    with pytest.raises(RunPaused):
        flow.resume_from_checkpoint(first, "yes")
    with pytest.raises(RunPaused, match="production:"):
        flow.resume_from_checkpoint(first)


def test_each_pause_of_a_step_has_a_checkpoint_of_its_own() -> None:
    """P2: that is what distinguishes a retry from the answer to the next question."""
    flow = Workflow("flow", store=MemoryStore())
    flow.add_task("ask", lambda: [pause(f"{number}?") for number in range(4)])
    ids = [first_pause(flow)]
    for number in range(3):
        with pytest.raises(RunPaused):
            flow.resume_from_checkpoint(ids[-1], number)
        ids.append(flow.checkpoint("r").checkpoint_id)
        assert flow.history("r")[-1].id == flow.state_at("r").checkpoint_id == ids[-1]
    assert ids == ["r@1", "r@1.1", "r@1.2", "r@1.3"]
    asked = [[each.prompt for each in flow.checkpoint(id).pauses if not each.answered] for id in ids]
    assert asked == [["0?"], ["1?"], ["2?"], ["3?"]]
    with pytest.raises(UsageError, match=r"no checkpoint 1\.4; its newest is 1\.3"):
        flow.resume_from_checkpoint("r@1.4", 3)


def test_questions_of_one_checkpoint_are_answered_one_by_one_with_its_id(store: Any) -> None:
    """P3: by id, and the last one by a plain value; an answer by id that is sent again is not another's answer."""
    flow = Workflow("flow", store=store)
    for name in "abc":
        flow.add_task(name, lambda: pause("which?"))
    events = [each for each in flow.stream({}, run_id="r") if each["type"] == "decision_required"]
    (id,) = {each["checkpoint_id"] for each in events}
    by_task = {each["task"]: each["id"] for each in events}
    with pytest.raises(RunPaused):
        flow.resume_from_checkpoint(id, answers={by_task["b"]: 2})
    with pytest.raises(UsageError, match="several questions are open"):
        flow.resume_from_checkpoint(id, "yes")
    with pytest.raises(RunPaused):
        flow.resume_from_checkpoint(id, {by_task["c"]: 3})
    for retry in ({by_task["b"]: 2}, {by_task["c"]: 3}, {by_task["b"]: 2, by_task["c"]: 3}):
        with pytest.raises(AlreadyAnswered):
            flow.resume_from_checkpoint(id, answers=retry)
        for run in (id, "r"):
            with pytest.raises(UsageError):
                flow.resume(run, retry)
    assert flow.resume_from_checkpoint(id, 1).results == {"a": 1, "b": 2, "c": 3}


def test_answers_by_id_that_are_sent_again_are_not_merged_into_the_state() -> None:
    """P3: the run asks nothing more, as it failed after the answer; a dict is then an update, but not this one."""
    graph = StateGraph(name="g")

    def ask(state: Any) -> None:
        pause("one?")
        raise ValueError("after the answer")

    graph.add_node("ask", run=ask)
    graph.set_entry_point("ask")
    graph.set_finish_point("ask")
    graph.compile(store=MemoryStore())
    (event,) = graph.invoke({}, run_id="r")
    list(graph.invoke("yes", checkpoint=event["checkpoint_path"]))
    for retry in ({"n": "dict answer"}, "yes", {event["questions"][0]["id"]: "yes"}):
        with pytest.raises(AlreadyAnswered):
            list(graph.invoke(retry, checkpoint=event["checkpoint_path"]))
    with pytest.raises(AlreadyAnswered):
        graph.resume("r", {event["questions"][0]["id"]: "yes"})
    assert graph.state_at("r") == {}


def test_a_question_of_a_later_checkpoint_is_not_answered_from_an_earlier_one() -> None:
    """D11: not even by its id, since it wasn't asked there."""
    flow = two_layers(MemoryStore())
    first = first_pause(flow)
    with pytest.raises(RunPaused) as paused:
        flow.resume_from_checkpoint(first, "yes")
    (production,) = paused.value.questions
    with pytest.raises(UsageError, match="asked after the checkpoint"):
        flow.resume_from_checkpoint(first, answers={production.id: "yes"})
    assert flow.resume("r", answers={production.id: "yes"}).results["production"] == "yes"


def test_a_graph_refuses_an_answer_to_an_earlier_question_of_the_same_node(store: Any) -> None:
    """P1: the node's step isn't over, so the step alone doesn't tell the two questions apart."""
    graph = StateGraph({"answers": list}, name="g")
    graph.add_node("ask", run=lambda state: {"answers": [pause("one?"), pause("two?")]})
    graph.set_entry_point("ask")
    graph.set_finish_point("ask")
    graph.compile(store=store)
    (first,) = graph.invoke({}, run_id="r")
    (second,) = graph.invoke("a", checkpoint=first["checkpoint_path"])
    assert (first["checkpoint_path"], second["checkpoint_path"]) == ("r@0", "r@0.1")
    with pytest.raises(AlreadyAnswered):
        list(graph.invoke("a", checkpoint=first["checkpoint_path"]))
    with pytest.raises(AlreadyAnswered):
        graph.answer(first["checkpoint_path"], "a")
    (final,) = graph.invoke("b", checkpoint=second["checkpoint_path"])
    assert final["state"]["answers"] == ["a", "b"]


def test_a_question_that_was_withdrawn_at_its_deadline_is_not_taken_for_the_next() -> None:
    """H9: the answer comes too late, when the same node asks something else."""
    flow = Workflow("flow", store=MemoryStore())
    flow.add_task("ask", lambda: [pause("one?", deadline=0.0, default="late"), pause("two?")])
    first = first_pause(flow)
    with pytest.raises(RunPaused, match="two"):
        flow.resume(first)
    with pytest.raises(AlreadyAnswered):
        flow.resume(first, "yes")
    assert flow.checkpoint("r").checkpoint_id == "r@1.1"


def test_a_branch_that_failed_after_its_answer_still_counts() -> None:
    """P3: else a later pause of the same step would get the id of an earlier one."""
    clock = FakeClock()
    graph = StateGraph({"log": int}, name="g")

    def fails(state: Any) -> None:
        pause("one?")
        raise ValueError("no")

    def asks_later(state: Any) -> None:
        sleep(3600)
        pause("two?")

    graph.add_node("begin", run=lambda state: {})
    graph.add_node("fails", run=fails)
    graph.add_node("later", run=asks_later)
    graph.add_fanin_node("end", run=lambda state, parallel_results: {"log": len(parallel_results)})
    graph.add_parallel_edge("begin", "fails", "end", on_error="collect")
    graph.add_parallel_edge("begin", "later", "end", on_error="collect")
    graph.set_entry_point("begin")
    graph.set_finish_point("end")
    graph.compile(store=MemoryStore(clock))
    (first,) = graph.invoke({}, run_id="r")
    clock.advance(3600)
    (second,) = graph.invoke("yes", checkpoint=first["checkpoint_path"])
    assert [each["questions"][0]["prompt"] for each in (first, second)] == ["one?", "two?"]
    with pytest.raises(AlreadyAnswered):
        list(graph.invoke("yes", checkpoint=first["checkpoint_path"]))
    (final,) = graph.invoke("yes", checkpoint=second["checkpoint_path"])
    assert final["state"]["log"] == 2


def test_two_clients_that_send_the_same_answer_at_once_answer_one_question(store: Any) -> None:
    """D11, P8: one of them gets the next question, the other is refused; none answers production."""
    flow = two_layers(store)
    first = first_pause(flow)
    outcomes: list[str] = []
    together = threading.Barrier(2)

    def client() -> None:
        together.wait()
        try:
            flow.resume_from_checkpoint(first, "yes", wait=30)
        except Exception as problem:
            outcomes.append(type(problem).__name__)

    clients = [threading.Thread(target=client) for _ in range(2)]
    for each in clients:
        each.start()
    for each in clients:
        each.join(60)
    assert sorted(outcomes) == ["AlreadyAnswered", "RunPaused"]
    assert [each.prompt for each in flow.checkpoint("r").pauses if not each.answered] == ["production?"]


def test_a_checkpoint_file_of_an_earlier_question_is_not_the_stored_run(tmp_path: Path) -> None:
    """F7: with a store as well, the file of the first question becomes a run of its own, once the second is asked."""
    graph = StateGraph({"answers": list}, name="g")
    graph.add_node("ask", run=lambda state: {"answers": [pause("one?"), pause("two?")]})
    graph.set_entry_point("ask")
    graph.set_finish_point("ask")
    graph.compile(store=MemoryStore(), checkpoint_dir=tmp_path)
    (first,) = graph.invoke({}, run_id="r")
    (second,) = graph.invoke("a", checkpoint=first["checkpoint_path"])
    assert second["run_id"] == "r"
    (again,) = graph.invoke("a", checkpoint=first["checkpoint_path"])
    assert again["questions"][0]["prompt"] == "two?"
    assert again["run_id"] != "r"
    (final,) = graph.invoke("b", checkpoint=second["checkpoint_path"])
    assert (final["run_id"], final["state"]["answers"]) == ("r", ["a", "b"])
