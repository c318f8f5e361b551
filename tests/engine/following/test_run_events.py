"""The events that are made from a run's journal, for each shape of graph. H10."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import pytest

from limpet import (
    END,
    START,
    MemoryStore,
    Retry,
    State,
    StateGraph,
    TaskResult,
    UsageError,
    Workflow,
    append,
    merge,
    pause,
    secret,
)
from limpet.engine.following.cursor import EventCursor
from limpet.graphs.secrets import MASK
from limpet.handle import RunHandle
from limpet.journal.inbox import OutputItem, output_body
from limpet.journal.store import Commit
from support.graphs import asking, chain, count, fan, loop, single

Event = dict[str, Any]


def told(handle: RunHandle[Any], after: str | None = None) -> list[Event]:
    """All events of a run that has ended."""
    return list(handle.events(after))


def brief(events: list[Event]) -> list[tuple[str, str | None]]:
    """What happened, and where."""
    return [(each["type"], each.get("branch") or each.get("task") or each.get("node")) for each in events]


def check_cursors(handle: RunHandle[Any]) -> list[Event]:
    """From the cursor of each event, what follows is what followed: nothing twice, and nothing left out."""
    events = told(handle)
    for number, event in enumerate(events):
        assert told(handle, event["cursor"]) == events[number + 1 :], event
    assert len({event["cursor"] for event in events}) == len(events)
    return events


def test_a_plain_run_tells_its_start_its_steps_and_its_end() -> None:
    store = MemoryStore()
    graph = chain(count, lambda state: {"word": "kelp"}).compile(store=store, preserve=True)
    graph.execute({"n": 1}, run_id="r")
    events = check_cursors(graph.get("r"))
    assert brief(events) == [("start", None), ("step", "n1"), ("step", "n2"), ("complete", None)]
    assert [event["update"] for event in events[:3]] == [{"n": 1}, {"n": 2}, {"word": "kelp"}]
    assert [event["step"] for event in events] == [0, 1, 2, 2]
    assert all(event["run_id"] == "r" and event["at"] > 1e9 for event in events)


def test_what_a_step_added_is_reported_and_not_what_was_there() -> None:
    """Costs follow changes: a list of a thousand messages isn't told again for one more."""
    schema = {"log": Annotated[list, append], "seen": Annotated[dict, merge], "gone": int}

    def add(state: State) -> dict[str, Any]:
        del state["gone"]
        return {"log": ["new"], "seen": {"b": 2}}

    graph = single(add, schema=schema).compile(store=MemoryStore(), preserve=True)
    graph.execute({"log": ["old"] * 1000, "seen": {"a": 1}, "gone": 1}, run_id="r")
    (step,) = [event for event in told(graph.get("r")) if event["type"] == "step"]
    assert step["appended"] == {"log": ["new"]}
    assert step["merged"] == {"seen": {"b": 2}}
    assert step["removed"] == ["gone"]
    assert step["update"] == {}


def test_pauses_have_their_questions_and_answers_are_reported() -> None:
    graph = single(asking(choices=["yes", "no"])).compile(store=MemoryStore(), preserve=True)
    graph.invoke({}, run_id="r").wait()
    handle = graph.get("r")
    (question,) = handle.questions
    handle.answer("yes")
    graph.recover()
    events = check_cursors(handle)
    assert brief(events) == [
        ("start", None),
        ("pause", None),
        ("answer", None),
        ("step", "only"),
        ("complete", None),
    ]
    assert events[1]["questions"][0]["prompt"] == "Ship it?"
    assert events[1]["questions"][0]["id"] == question.id
    assert events[2]["answers"] == {question.id: "yes"}


def test_a_secret_answer_is_masked_even_after_a_cursor() -> None:
    graph = single(lambda state: {"got": bool(pause("PIN?", secret=True))}, name="pin")
    graph.compile(store=MemoryStore(), preserve=True, allow_plain_text_secrets=True)
    graph.invoke({}, run_id="r").wait()
    handle = graph.get("r")
    handle.answer("hunter22")
    graph.recover()
    events = check_cursors(handle)
    assert "hunter22" not in repr(events)
    (answer,) = [event for event in events if event["type"] == "answer"]
    assert list(answer["answers"].values()) == [MASK]


def test_secret_keys_are_masked_from_any_cursor_on_with_the_graph_or_without() -> None:
    graph = chain(
        lambda state: {"token": "tk-12345", "deep": {"token": "tk-67890"}},
        count,
        lambda state: {"token": "tk-22222"},
        schema={"token": Annotated[str, secret], "deep": dict, "n": int},
    ).compile(store=MemoryStore(), preserve=True, allow_plain_text_secrets=True)
    graph.execute({"token": "tk-00000", "n": 0}, run_id="r")
    from limpet import Runs

    for handle in (graph.get("r"), Runs(graph.compiled().need_client("x").store).get("r")):
        events = check_cursors(handle)
        assert "tk-" not in repr(events)
        assert events[1]["update"] == {"token": MASK, "deep": {"token": MASK}}


def failing(times: int) -> Callable[[State], dict[str, Any]]:
    calls: list[None] = []

    def fail(state: State) -> dict[str, Any]:
        calls.append(None)
        if len(calls) <= times:
            raise ConnectionError(f"call {len(calls)}")
        return {"done": True}

    return fail


def test_attempts_failures_and_retries_are_reported() -> None:
    graph = StateGraph(name="g").add_node("try", run=failing(4), retry=Retry(attempts=2, backoff=0))
    graph.add_edge(START, "try").add_edge("try", END).compile(store=MemoryStore(), preserve=True)
    graph.invoke({}, run_id="r").wait()
    handle = graph.get("r")
    assert brief(told(handle)) == [("start", None), ("retry", "try"), ("fail", None)]
    handle.retry()
    graph.recover()
    handle.retry()
    graph.recover()
    events = check_cursors(handle)
    assert [event["type"] for event in events] == [
        *["start", "retry", "fail"],
        *["resume", "retry", "fail"],
        *["resume", "step", "complete"],
    ]
    assert events[1]["error"]["message"] == "call 1"
    assert (events[1]["attempt"], events[4]["attempt"]) == (1, 1)
    assert events[2]["error"]["type"] == "ConnectionError"
    assert "traceback" not in repr(events)


def test_branches_are_named_as_the_history_names_them() -> None:
    inner = chain(count, count, name="inner")
    graph = fan({"a": [count, count], "b": inner}, schema={"n": int, "results": list})
    graph.compile(store=MemoryStore(), preserve=True)
    graph.execute({"n": 0}, run_id="r")
    events = check_cursors(graph.get("r"))
    steps = [
        (event["step"], event["node"], event.get("branch")) for event in events if event["type"] == "step"
    ]
    history = [(each.step, each.node, each.branch) for each in graph.history("r") if each.node is not None]
    assert {name for _, _, name in steps} == {None, "a", "b", "b/b"}
    assert {(node, branch) for _, node, branch in steps} >= {(node, branch) for _, node, branch in history}
    (opened,) = [event for event in events if event["type"] == "branches"]
    assert (opened["node"], opened["branches"]) == ("src", ["a", "b"])


def test_a_branch_that_asks_is_reported_while_others_are_under_way() -> None:
    graph = fan({"a": asking(), "b": count}, schema={"n": int, "answer": str, "results": list})
    graph.compile(store=MemoryStore(), preserve=True)
    graph.invoke({"n": 0}, run_id="r").wait()
    handle = graph.get("r")
    handle.answer("yes")
    graph.recover()
    events = check_cursors(handle)
    (question,) = [event for event in events if event["type"] == "question"]
    (paused,) = [event for event in events if event["type"] == "pause"]
    assert question["branch"] == "a"
    assert question["questions"] == paused["questions"]


def test_a_failure_that_is_collected_is_reported_as_the_error_of_its_branch() -> None:
    graph = fan({"a": failing(9), "b": count}, on_error="collect", schema={"n": int, "results": list})
    graph.compile(store=MemoryStore(), preserve=True)
    graph.execute({"n": 0}, run_id="r")
    events = check_cursors(graph.get("r"))
    (error,) = [event for event in events if event["type"] == "error"]
    assert (error["branch"], error["error"]["message"]) == ("a", "call 1")
    assert events[-1]["type"] == "complete"


def test_the_items_of_a_map_have_their_numbers() -> None:
    graph = StateGraph({"items": list, "item": int, "n": int}, name="map").add_node("src")
    graph.add_node("each", run=lambda state: {"n": state["item"]})
    graph.add_fanin_node("join", run=lambda state, parallel_results: {"n": len(parallel_results)})
    graph.add_map("src", "each", over="items", item="item", fan_in="join")
    graph.set_entry_point("src").set_finish_point("join").compile(store=MemoryStore(), preserve=True)
    graph.execute({"items": [7, 8, 9]}, run_id="r")
    events = check_cursors(graph.get("r"))
    steps = [event for event in events if event["type"] == "step" and "branch" in event]
    assert sorted(event["branch"] for event in steps) == ["each[0]", "each[1]", "each[2]"]


def test_a_workflow_tells_its_layers_tasks_and_what_was_skipped() -> None:
    flow = Workflow("flow")
    flow.add_task("one", lambda: TaskResult(1, messages=["hello"], skip=["left_out"]))
    flow.add_task("hidden", lambda: "tk-12345", secret=True)
    flow.add_task("two", lambda one: one + 1, depends_on=["one"])
    flow.add_task("left_out", lambda one: one, depends_on=["one"])
    flow.compile(store=MemoryStore(), preserve=True, allow_plain_text_secrets=True)
    flow.execute({}, run_id="r")
    events = check_cursors(flow.get("r"))
    tasks = {event["task"]: event for event in events if event["type"] == "step"}
    assert set(tasks) == {"one", "hidden", "two"}
    assert tasks["two"]["merged"]["tasks"]["two"]["result"] == 2
    assert (tasks["one"]["layer"], tasks["two"]["layer"]) == (0, 1)
    assert tasks["one"]["appended"]["messages"] == ["hello"]
    assert "tk-12345" not in repr(events)
    starts = [(event["layer"], event["task"]) for event in events if event["type"] == "task_start"]
    assert starts == [(0, "one"), (0, "hidden"), (1, "two")]
    (skipped,) = [event for event in events if event["type"] == "task_skipped"]
    assert (skipped["task"], skipped["layer"], skipped["reason"]) == ("left_out", 1, "'one' decided so")
    assert [event["layer"] for event in events if event["type"] == "layer_end"] == [0, 1]


def test_a_workflow_with_barriers_tells_its_layers_as_they_begin_and_end() -> None:
    flow = Workflow("flow", layers=True)
    flow.add_task("one", lambda: TaskResult(1, skip=["left_out"]))
    flow.add_task("two", lambda one: one + 1, depends_on=["one"])
    flow.add_task("left_out", lambda one: one, depends_on=["one"])
    flow.compile(store=MemoryStore(), preserve=True).execute({}, run_id="r")
    events = check_cursors(flow.get("r"))
    starts = [(event["layer"], event["tasks"]) for event in events if event["type"] == "layer_start"]
    assert starts == [(0, ["one"]), (1, ["two"])]
    assert [list(event["skipped"]) for event in events if event["type"] == "layer_end"] == [["left_out"], []]


def test_rollbacks_forks_updates_and_cancellations_are_reported() -> None:
    graph = chain(count, asking(), count).compile(store=MemoryStore(), preserve=True)
    graph.invoke({"n": 0}, run_id="r").wait()
    handle = graph.get("r")
    handle.rollback(1)
    handle.cancel()
    assert [event["type"] for event in check_cursors(handle)] == [
        *["start", "step", "pause"],
        *["rollback", "cancel"],
    ]
    handle.retry({"n": 40})
    graph.recover()
    assert [event["type"] for event in list_until(handle, "pause", 2)][5:] == ["resume", "update", "pause"]
    forked = handle.fork(1)
    forked.cancel()
    (start, _) = told(forked)
    assert (start["type"], start["forked_from"], start["update"]) == ("start", "r@1", {"n": 1})


def list_until(handle: RunHandle[Any], kind: str, times: int) -> list[Event]:
    """The events of a run that continues, up to this one."""
    found = []
    for event in handle.events():
        found.append(event)
        if [each["type"] for each in found].count(kind) == times:
            return found
    return found


def test_events_of_deleted_records_are_skipped_with_one_event_that_says_so() -> None:
    """From a cursor whose records are gone, it continues at the newest snapshot, and nothing is given twice."""
    graph = loop(30).compile(store=MemoryStore(), preserve=True)
    graph.execute({"n": 0}, run_id="r")
    handle = graph.get("r")
    events = told(handle)
    for keep in (20, 5):
        graph.prune_checkpoints("r", keep=keep)
        for number, event in enumerate(events):
            rest = told(handle, event["cursor"])
            kinds = [each["type"] for each in rest]
            if event["type"] == "complete":
                assert kinds in ([], ["skipped"])
                continue
            steps = [each["step"] for each in rest if each["type"] == "step"]
            assert steps == list(range(max(event["step"], 30 - keep + 1) + 1, 31)), (number, rest)
            assert (kinds.count("skipped"), kinds[-1]) == (1, "complete")
            for place, later in enumerate(rest):
                assert told(handle, later["cursor"]) == rest[place + 1 :]


def test_checkpoints_that_are_written_again_are_not_told_again() -> None:
    """A follower that has had all events gets none again when old checkpoints are deleted, and misses no new one."""
    graph = chain(count, count, count, asking(), count).compile(store=MemoryStore(), preserve=True)
    graph.invoke({"n": 0}, run_id="r").wait()
    handle = graph.get("r")
    before = list_until(handle, "pause", 1)
    graph.prune_checkpoints("r", keep=2)
    handle.answer("yes")
    graph.recover()
    rest = told(handle, before[-1]["cursor"])
    assert [event["type"] for event in rest] == ["answer", "step", "step", "complete"]


def test_output_is_reported_between_the_steps_by_time_and_each_item_once() -> None:
    store = MemoryStore()
    graph = chain(count, count).compile(store=store, preserve=True)
    graph.execute({"n": 0}, run_id="r")
    fence = store.head("r").fence
    steps = [event["at"] for event in told(graph.get("r")) if event["type"] == "step"]
    bodies = [
        output_body("r", OutputItem("n1", steps[0], "early")),
        output_body("r", OutputItem("n2", steps[1] + 60, "late")),
        b"damaged",
    ]
    store.add_output("r", fence, bodies, keep=100)
    events = check_cursors(graph.get("r"))
    assert [event.get("data", event["type"]) for event in events] == [
        *["start", "early", "step", "step", "complete", "late", "output"],
    ]
    assert "problem" in events[-1]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        *(
            (text, "isn't the cursor of an event")
            for text in ("", "x", "1.2", "::", "2::r", "2:1.2:r", 5, b"2")
        ),
        ("2:1.0.1.1.0.2.0.0:r", "isn't the cursor of an event"),
        ("2:-1.0.1.1.0.1.0.0:r", "isn't the cursor of an event"),
        ("1.0.1.1.0.1.0.0", "is from another version of Limpet"),
        ("3:1.0:r", "is from another version of Limpet"),
    ],
)
def test_what_isnt_a_cursor_of_the_run_is_refused_at_once(text: Any, problem: str) -> None:
    graph = chain(count).compile(store=MemoryStore(), preserve=True)
    graph.execute({"n": 0}, run_id="r")
    with pytest.raises(UsageError, match=problem):
        graph.get("r").events(text)
    with pytest.raises(UsageError, match=problem):
        graph.get("r").aevents(text)


def test_a_cursor_of_another_run_is_refused_at_once() -> None:
    graph = chain(count).compile(store=MemoryStore(), preserve=True)
    for run_id in ("r", "ä: other"):
        graph.execute({"n": 0}, run_id=run_id)
    cursor = next(graph.get("ä: other").events())["cursor"]
    for call in (graph.get("r").events, graph.get("r").aevents):
        with pytest.raises(UsageError, match="is a cursor of run 'ä: other', and this is run 'r'"):
            call(cursor)


def test_a_cursor_is_one_printable_word_whatever_the_id_of_its_run_is() -> None:
    """So it can be the id of a server-sent event, and come back in a header."""
    graph = chain(count).compile(store=MemoryStore(), preserve=True)
    graph.execute({"n": 0}, run_id="kelp: 1.0/ü §")
    events = list(graph.get("kelp: 1.0/ü §").events())
    assert all(event["cursor"].isascii() and " " not in event["cursor"] for event in events)
    assert list(graph.get("kelp: 1.0/ü §").events(events[0]["cursor"])) == events[1:]


def test_a_cursor_of_a_longer_run_is_refused() -> None:
    graph = chain(count).compile(store=MemoryStore(), preserve=True)
    graph.execute({"n": 0}, run_id="r")
    beyond = EventCursor(record=99, base=99).to_text("r")
    with pytest.raises(ValueError, match="the cursor is of an earlier run 'r'"):
        list(graph.get("r").events(beyond))


def test_a_run_whose_journal_was_deleted_when_it_completed_still_tells_its_end() -> None:
    store = MemoryStore()
    schema = {"n": int, "token": Annotated[str, secret]}
    graph = chain(asking(), count, schema=schema).compile(store=store, allow_plain_text_secrets=True)
    graph.invoke({"n": 0}, run_id="r").wait()
    handle = graph.get("r")
    before = list_until(handle, "pause", 1)
    head = store.head("r")
    lease = store.claim("r", "test", 10)
    commit = Commit("r", lease.fence, head.sequence, [], status="completed", purge=True)
    assert store.append([commit]) == [None]
    for after in (None, before[0]["cursor"]):
        rest = told(handle, after)
        assert [event["type"] for event in rest] == ["skipped", "complete"]
        assert [event["type"] for event in told(handle, rest[0]["cursor"])] == ["complete"]
        assert told(handle, rest[1]["cursor"]) == []
