"""Stops inside of branches: interrupts, questions, answers, and what is reported while they happen."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable
from itertools import permutations
from typing import Annotated, Any

import pytest

from limpet import (
    AlreadyAnswered,
    AnswerRefused,
    BranchResult,
    Event,
    ExecutionError,
    MemoryCheckpointer,
    MemoryStore,
    NodeContext,
    Retry,
    RunCancelled,
    RunPaused,
    State,
    StateGraph,
    StoreUnavailable,
    UsageError,
    append,
    merge,
    once,
    pause,
    sleep,
)
from support.graphs import AT_ONCE, SOON, Calls, Crash, Run, Via, fan, gather
from support.posts import post_cancel
from support.timed_calls import TimedCalls, run_timed


def fan_to_end(*sections: Any, end: Run = None, **options: Any) -> StateGraph:
    """A fan with a node behind it: … → join → end."""
    return fan(*sections, then={"end": end}, **options)


def asking(state: State, node: str) -> dict[str, Any]:
    return {"answer": pause(f"{node}?")}


# Interrupts


BRANCHES = ["a/a", "a/a2", "b/b"]
ALL = ["src", *BRANCHES, "join", "end"]
STOPS = {
    ("before", "src"): [], ("after", "src"): ["src"],
    ("before", "a"): ["src", "b/b"], ("after", "a"): ["src", "a/a", "b/b"],
    ("before", "a2"): ["src", "a/a", "b/b"], ("after", "a2"): ["src", *BRANCHES],
    ("before", "b"): ["src", "a/a", "a/a2"], ("after", "b"): ["src", *BRANCHES],
    ("before", "join"): ["src", *BRANCHES], ("after", "join"): ALL[:-1],
    ("before", "end"): ALL[:-1], ("after", "end"): ALL,
}  # fmt: skip


@pytest.mark.parametrize("how", ["store", "checkpointer"])
@pytest.mark.parametrize(("when", "node"), STOPS)
def test_an_interrupt_anywhere_at_a_section_stops_and_resumes(
    when: str, node: str, how: str, via: Via
) -> None:
    """F12, F5: on the source, inside of a branch, on the fan-in; nothing runs twice, in a new graph object."""
    calls = Calls()
    place = {"store": MemoryStore()} if how == "store" else {"checkpointer": MemoryCheckpointer()}

    def make() -> StateGraph:
        graph = fan_to_end({"a": [calls, calls], "b": calls}, calls, source=calls, end=calls)
        return graph.compile(**place, **{f"interrupt_{when}": [node]})

    (event,) = via.events(make(), {"k": 1}, stream=False)
    done = sorted(STOPS[when, node])
    assert calls.take() == done
    assert (event["type"], event["node"]) == ("interrupt", node)
    assert event.get("branch") == {"a": "a", "a2": "a", "b": "b"}.get(node)
    assert event["state"] == {"k": 1, **graph_state(when, node)}
    (last,) = via.events(make(), None, stream=False, checkpoint=event["checkpoint_path"])
    assert last["type"] == "final"
    assert calls.take() == sorted(set(ALL) - set(done))
    assert last["state"] == {
        "k": 1, "src": True, "join": True, "end": True,
        "results": [{"k": 1, "src": True, "a": True, "a2": True}, {"k": 1, "src": True, "b": True}],
    }  # fmt: skip


def graph_state(when: str, node: str) -> dict[str, Any]:
    """What nodes had added to the state that an event shows: that of the branch, or of the run."""
    own = {"src": ["src"], "a": ["src", "a"], "a2": ["src", "a", "a2"], "b": ["src", "b"], "join": ["src", "join"],
           "end": ["src", "join", "end"]}[node]  # fmt: skip
    shown: dict[str, Any] = dict.fromkeys(own if when == "after" else own[:-1], True)
    if "join" in shown:
        shown["results"] = [{"k": 1, "src": True, "a": True, "a2": True}, {"k": 1, "src": True, "b": True}]
    return shown


@pytest.mark.parametrize("node", ["src", "a", "a2", "b", "join"])
def test_a_node_in_both_lists_stops_twice_and_runs_once(node: str, store: Any, via: Via) -> None:
    """F12, F5: in a branch as well."""
    calls = Calls()
    graph = fan_to_end({"a": [calls, calls], "b": calls}, calls, source=calls, end=calls)
    graph.compile(store=store, interrupt_before=[node], interrupt_after=[node])
    via.paused(graph, {})
    via.paused_again(graph)
    via.resume(graph, "r")
    assert calls.take() == sorted(ALL)


def test_every_node_may_stop_before_and_after(store: Any, via: Via) -> None:
    """F12, F5: a run that is approved step by step."""
    calls = Calls()
    nodes = ["src", "a", "a2", "b", "join", "end"]
    graph = fan_to_end({"a": [calls, calls], "b": calls}, calls, source=calls, end=calls)
    graph.compile(store=store, interrupt_before=nodes, interrupt_after=nodes)
    via.paused(graph, {})
    stops = 1
    while graph.runs()[0].status == "paused":
        try:
            via.resume(graph, "r")
        except RunPaused:
            stops += 1
    assert calls.take() == sorted(ALL)
    # before and after src; a and b; after both; a2 before and after; join; end
    assert stops == 2 + 2 + 2 + 2 + 2


def test_several_branches_that_stop_have_an_event_each(store: Any, via: Via) -> None:
    """F12, F4: with branch, node and the branch's state; one resume lets all go on."""
    graph = fan_to_end({name: [lambda state, node: {"by": node}, None] for name in "abc"})
    graph.compile(store=store, interrupt_before=["a2", "c2"])
    first, second = via.events(graph, {}, stream=False, run_id="r")
    assert [(each["type"], each["branch"], each["node"], each["state"]) for each in (first, second)] == [
        ("interrupt", "a", "a2", {"by": "a"}),
        ("interrupt", "c", "c2", {"by": "c"}),
    ]
    assert first["checkpoint_path"] == second["checkpoint_path"] == "r@5"
    assert first["run_id"] == "r"
    (info,) = graph.runs("paused")
    assert (info.node, info.questions) == ("join", [])
    assert "a2" in str(info.reason)
    assert "c2" in str(info.reason)
    (last,) = via.events(graph, None, stream=False, checkpoint=first["checkpoint_path"])
    assert last["state"]["results"] == [{"by": name} for name in "abc"]


def test_a_single_stopped_branch_is_where_the_run_is(store: Any, via: Via) -> None:
    """F12: `RunPaused.node` and the list of runs name it by the whole way there."""
    graph = fan_to_end({"a": [None, None], "b": None}).compile(store=store, interrupt_before=["a2"])
    assert via.paused(graph, {}).node == "a/a2"
    assert graph.runs()[0].node == "a/a2"


def test_an_interrupted_map_stops_every_item(store: Any, via: Via) -> None:
    """F12, F5: and lets all of them go on."""
    calls: list[int] = []
    graph = (
        StateGraph(name="map").add_node("src").add_node("each", run=lambda state: calls.append(state["item"]))
    )
    graph.add_fanin_node("join", run=gather).add_map("src", "each", "items", "join")
    graph.set_entry_point("src").set_finish_point("join").compile(store=store, interrupt_before=["each"])
    events = via.events(graph, {"items": list(range(40))}, stream=False, run_id="r")
    assert [each["branch"] for each in events] == [f"each[{number}]" for number in range(40)]
    assert calls == []
    assert len(via.resume(graph, "r")["results"]) == 40
    assert sorted(calls) == list(range(40))


def test_the_results_wait_with_a_stopped_fan_in(store: Any, via: Via) -> None:
    """F12, F5: they are those of the branches as they ended, times included, in another graph object."""
    seen: list[Any] = []

    def join(parallel_results: list[BranchResult]) -> None:
        seen.append([(each.branch, dict(each), each.started, each.ended) for each in parallel_results])

    def make() -> StateGraph:
        return fan_to_end({"a": lambda state: {"x": (1,)}, "b": None}, join).compile(
            store=store, interrupt_before=["join"]
        )

    via.paused(make(), {})
    history = [each for each in make().history("r") if each.branch]
    via.resume(make(), "r")
    assert [(branch, data) for branch, data, *_ in seen[0]] == [("a", {"x": (1,)}), ("b", {})]
    assert sorted(each[3] for each in seen[0]) == sorted(each.timestamp for each in history)


# Questions


@pytest.mark.parametrize("order", list(permutations("abc")), ids="".join)
def test_questions_are_answered_in_any_order(order: tuple[str, ...], store: Any, via: Via) -> None:
    """F12, P3: one at a time, each by a graph object of its own; each answer arrives where it belongs."""
    calls: list[str] = []

    def ask(state: State, node: str) -> dict[str, Any]:
        calls.append(node)
        return {"answer": (node, pause(f"{node}?"))}

    def make() -> StateGraph:
        return fan_to_end(dict.fromkeys("abc", ask)).compile(store=store)

    via.paused(make(), {})
    left = {name: f"{name}/{name}:1.1:1" for name in "abc"}
    for name in order[:-1]:
        (info,) = make().runs("paused")
        assert [(each.id, each.prompt, each.node) for each in info.questions] == [
            (left[each], f"{each}?", f"{each}/{each}") for each in left
        ]
        again = via.paused_again(make(), answers={left.pop(name): name.upper()})
        assert [each.id for each in again.questions] == list(left.values())
    final = via.resume(make(), "r", order[-1].upper())
    assert final["results"] == [{"answer": (name, name.upper())} for name in "abc"]
    assert Counter(calls) == {"a": 2, "b": 2, "c": 2}


def test_some_questions_are_answered_and_the_others_stay(store: Any, via: Via) -> None:
    """F12, P3: those that are answered go on to their ends; those that wait aren't called again."""
    calls = Calls()

    def ask(state: State, ctx: NodeContext) -> dict[str, Any]:
        answer = pause("?")
        calls.nodes.append(f"{ctx.branch}/{ctx.node}")
        return {"answer": answer}

    graph = fan_to_end({name: [ask, calls] for name in "abcd"}).compile(store=store)
    asked = via.paused(graph, {}).questions
    assert calls.take() == []
    again = via.paused_again(graph, answers={asked[3].id: 4, asked[1].id: 2})
    assert again.questions == [asked[0], asked[2]]
    assert calls.take() == ["b/b", "b/b2", "d/d", "d/d2"]
    final = via.resume(graph, "r", answers={asked[0].id: 1, asked[2].id: 3})
    assert [each["answer"] for each in final["results"]] == [1, 2, 3, 4]
    assert calls.take() == ["a/a", "a/a2", "c/c", "c/c2"]


def test_several_questions_make_an_event_each(store: Any, via: Via) -> None:
    """F12, F4: `pause`, with the branch's question, node and state; `RunPaused` has all."""
    graph = fan_to_end({"a": [lambda state: {"x": 1}, asking], "b": asking, "c": None}).compile(store=store)
    events = via.events(graph, {}, stream=False, run_id="r")
    assert [(each["type"], each["branch"], each["node"], each["state"]) for each in events] == [
        ("pause", "a", "a2", {"x": 1}),
        ("pause", "b", "b", {}),
    ]
    asked = graph.runs()[0].questions
    assert [each["questions"] for each in events] == [[question.to_data()] for question in asked]
    assert [question.id for question in asked] == ["a/a2:1.2:1", "b/b:1.1:1"]
    assert str(via.paused_again(graph, answers={"b/b:1.1:1": 1})).count("asks") == 1


def test_wrong_answers_leave_all_questions_open(store: Any, via: Via) -> None:
    """F12, P1, P3: one wrong among several refuses all of them; nothing runs."""
    calls: list[int] = []

    def ask(state: State) -> dict[str, Any]:
        calls.append(1)
        return {"answer": pause("n?", schema=int)}

    graph = fan_to_end({"a": ask, "b": ask}).compile(store=store)
    asked = via.paused(graph, {}).questions
    one, other = (question.id for question in asked)
    with pytest.raises(AnswerRefused, match="not of type integer"):
        via.resume(graph, "r", answers={one: 1, other: "two"})
    with pytest.raises(UsageError, match=r"has no open question 'ghost'; open: 'a/a:1.1:1', 'b/b:1.1:1'"):
        via.resume(graph, "r", answers={one: 1, "ghost": 2})
    with pytest.raises(UsageError, match="several questions are open; answer them by id"):
        via.resume(graph, "r", 1)
    with pytest.raises(UsageError, match="can't be stored"):
        via.resume(graph, "r", answers={one: 1, other: 2}, config={"x": object()})
    with pytest.raises(RunPaused, match=r"waits for an answer to a/a:1.1:1: n\?; b/b:1.1:1: n\?"):
        via.resume(graph, "r")
    assert graph.runs()[0].questions == asked
    assert len(calls) == 2
    with pytest.raises(RunPaused):
        via.resume(graph, "r", answers={one: 1})
    with pytest.raises(
        AlreadyAnswered, match=f"no longer waits for an answer to question '{one}'; open: '{other}'"
    ):
        via.resume(graph, "r", answers={one: 5})
    assert via.resume(graph, "r", 2)["results"] == [{"answer": 1}, {"answer": 2}]


def test_a_branch_may_ask_several_questions(store: Any, via: Via) -> None:
    """F12, P1: in parallel to another that does the same; keys distinguish them."""

    def ask(state: State, node: str) -> dict[str, Any]:
        return {"answers": (pause(f"{node} first?"), pause(f"{node} second?", key="second"))}

    graph = fan_to_end({"a": ask, "b": ask}).compile(store=store)
    found: dict[str, str] = {}
    caught = via.paused(graph, {})
    while True:
        question = caught.questions[-1]
        assert question.id not in found
        found[question.id] = question.prompt.upper()
        if len(found) == 4:
            break
        caught = via.paused_again(graph, answers={question.id: found[question.id]})
    final = via.resume(graph, "r", found[question.id])
    assert final["results"] == [{"answers": (f"{name} FIRST?", f"{name} SECOND?")} for name in "AB"]
    assert sorted(found) == ["a/a:1.1:1", "a/a:1.1:second", "b/b:1.1:1", "b/b:1.1:second"]


def test_questions_of_a_loop_in_a_branch_have_ids_of_their_own(store: Any, via: Via) -> None:
    """F12, P1: at each visit, in each branch, in each round of the section."""

    def ask(state: State) -> dict[str, Any]:
        return {"log": [*state["log"], pause("next?")]}

    graph = fan_to_end({"a": ask, "b": ask}, lambda state: {"rounds": state["rounds"] + 1})
    for name in "ab":
        graph.add_edge(name, name, lambda state: len(state["log"]) < 2).set_finish_point(name)
    graph.add_edge("end", "src", lambda state: state["rounds"] < 2).compile(store=store)
    ids: list[str] = []
    caught = via.paused(graph, {"log": [], "rounds": 0})
    while True:
        ids += [question.id for question in caught.questions]
        try:
            final = via.resume(graph, "r", answers={question.id: 1 for question in caught.questions})
            break
        except RunPaused as paused:
            caught = paused
    assert final == {"log": [], "rounds": 2}
    assert len(ids) == len(set(ids)) == 8


def test_questions_at_all_depths_are_answered_out_of_order(store: Any, via: Via) -> None:
    """F12, P3: branches of branches, a map among them, and a graph; each by its path."""
    sub = StateGraph(name="sub").add_node("x", run=asking).set_entry_point("x").set_finish_point("x")
    graph = fan_to_end({"a": None, "b": asking, "c": None}).add_node("p", run=asking).add_node("q", sub)
    graph.add_parallel_edge("a", "p", "inner").add_parallel_edge("a", "q", "inner")
    graph.add_fanin_node("inner", run=gather).add_node("each", run=asking)
    graph.add_map("c", "each", "items", "inner c").add_fanin_node("inner c", run=gather).compile(store=store)
    asked = via.paused(graph, {"items": [1, 2]}).questions
    assert [question.node for question in asked] == [
        "a/p/p",
        "a/q/q/x",
        "b/b",
        "c/each[0]/each",
        "c/each[1]/each",
    ]
    assert [question.id for question in asked] == [
        "a/p/p:1.1.1:1", "a/q/q/x:1.1.0.1:1", "b/b:1.1:1", "c/each[0]/each:1.1.1:1", "c/each[1]/each:1.1.1:1"
    ]  # fmt: skip
    for question in (asked[4], asked[0], asked[2], asked[1]):
        via.paused_again(graph, answers={question.id: question.node})
    final = via.resume(graph, "r", asked[3].node)
    a, b, c = final["results"]
    assert [each["answer"] for each in a["results"]] == ["a/p/p", "a/q/q/x"]
    assert b["answer"] == "b/b"
    assert [each["answer"] for each in c["results"]] == ["c/each[0]/each", "c/each[1]/each"]


@pytest.mark.parametrize("node", ["src", "join"])
def test_a_source_and_a_fan_in_may_ask(node: str, store: Any, via: Via) -> None:
    """F12, P1: the fan-in with its results, each time it is called."""
    seen: list[int] = []

    def ask(state: State, parallel_results: list[BranchResult]) -> dict[str, Any]:
        seen.append(len(parallel_results))
        return {"answer": pause("ok?")}

    calls = Calls()
    graph = fan_to_end(
        {"a": calls, "b": calls}, ask if node == "join" else None, source=ask if node == "src" else None
    )
    caught = via.paused(graph.compile(store=store), {})
    assert caught.node == node
    assert via.resume(graph, "r", "yes") == {"answer": "yes"}
    assert seen == ([0, 0] if node == "src" else [2, 2])
    assert calls.take() == ["a/a", "b/b"]


def test_an_approval_and_a_question_at_once(store: Any, via: Via) -> None:
    """F12, P3: a resume without answers continues what was only interrupted."""
    calls = Calls()
    graph = fan_to_end({"a": asking, "b": [None, calls]}).compile(store=store, interrupt_before=["b2"])
    caught = via.paused(graph, {})
    assert [question.node for question in caught.questions] == ["a/a"]
    assert calls.take() == []
    via.paused_again(graph)
    assert calls.take() == ["b/b2"]
    assert via.resume(graph, "r", "yes")["results"] == [{"answer": "yes"}, {"b2": True}]
    assert calls.take() == []


def test_a_question_stays_open_while_another_branch_fails(store: Any, via: Via) -> None:
    """F12, D11, P3: the run has failed; the question is listed, and can be answered with the resume or later."""
    calls, asked = Calls(), threading.Event()
    calls.fail.add("b/b")

    def ask(state: State) -> dict[str, Any]:
        asked.set()
        return {"answer": pause("ok?")}

    def fails(state: State, ctx: NodeContext, parallel_results: list[BranchResult]) -> dict[str, Any]:
        assert asked.wait(SOON)
        return calls(state, ctx, parallel_results)

    graph = fan_to_end({"a": ask, "b": fails}).compile(store=store)
    with pytest.raises(ExecutionError, match="no b/b today"):
        via.execute(graph, {}, run_id="r")
    (info,) = graph.runs("failed")
    assert [question.prompt for question in info.questions] == ["ok?"]
    with pytest.raises(ExecutionError, match="no b/b today"):
        via.resume(graph, "r")
    calls.fail.clear()
    assert [question.prompt for question in via.paused_again(graph).questions] == ["ok?"]
    assert via.resume(graph, "r", "yes")["results"] == [{"answer": "yes"}, {"b": True}]


def test_an_answer_is_used_though_another_branch_fails_then(store: Any, via: Via) -> None:
    """F12, P1: it was durable before, and its branch isn't asked again."""
    calls = Calls()
    calls.fail.add("b/b2")
    graph = fan_to_end({"a": asking, "b": [asking, calls]}).compile(store=store)
    asked = via.paused(graph, {}).questions
    with pytest.raises(ExecutionError):
        via.resume(graph, "r", answers={question.id: "yes" for question in asked})
    calls.fail.clear()
    assert via.resume(graph, "r")["results"] == [{"answer": "yes"}, {"answer": "yes", "b2": True}]


def test_answers_survive_a_crash(store: Any, via: Via) -> None:
    """F12, P1: of the nodes that got them; no question is asked twice."""
    crashed: list[int] = []

    def ask(state: State) -> dict[str, Any]:
        answer = pause("ok?")
        if not crashed:
            crashed.append(1)
            raise Crash
        return {"answer": answer}

    graph = fan_to_end({"a": ask, "b": ask}).compile(store=store)
    asked = via.paused(graph, {}).questions
    with pytest.raises(Crash):
        via.resume(graph, "r", answers={question.id: question.id for question in asked})
    assert via.resume(graph, "r")["results"] == [{"answer": question.id} for question in asked]


def test_a_paused_run_that_is_cancelled_asks_again_when_it_is_resumed(store: Any, via: Via) -> None:
    """F12, G12, D11: no approval is skipped by that."""
    graph = fan_to_end({"a": asking, "b": [None, None], "c": asking}).compile(
        store=store, interrupt_before=["b2"]
    )
    asked = via.paused(graph, {}).questions
    graph.cancel("r")
    assert [info.status for info in graph.runs()] == ["cancelled"]
    assert via.paused_again(graph).questions == asked
    final = via.resume(graph, "r", answers={question.id: 1 for question in asked})
    assert final["results"] == [{"answer": 1}, {}, {"answer": 1}]


def test_a_pause_in_a_branch_needs_a_store(via: Via) -> None:
    """F12, P1: the error says so."""
    with pytest.raises(ExecutionError, match=r"pause\(\) needs a store to keep the run in"):
        via.execute(fan_to_end({"a": asking, "b": None}), {})


# Updates


def test_an_update_reaches_the_state_and_every_branch_that_is_stopped(store: Any, via: Via) -> None:
    """F12, F6: not a branch that is done, whose result stays; reducers reduce it."""
    schema = {"log": Annotated[list, append], "k": int}

    def look(state: State) -> dict[str, Any]:
        return {"seen": (state["k"], tuple(state["log"])), "log": "own"}

    graph = fan_to_end({"a": [None, look], "b": [None, look], "c": look}, schema=schema)
    graph.compile(store=store, interrupt_before=["a2", "b2"])
    via.paused(graph, {"k": 1, "log": ["s"]})
    final = via.resume(graph, "r", {"k": 2, "log": ["u"], "new": [1]})
    stopped = {"k": 2, "log": ["s", "u", "own"], "new": [1], "seen": (2, ("s", "u"))}
    assert final["results"] == [stopped, stopped, {"k": 1, "log": ["s", "own"], "seen": (1, ("s",))}]
    assert {key: final[key] for key in ("k", "log", "new")} == {"k": 2, "log": ["s", "u"], "new": [1]}


def test_an_update_comes_with_answers(store: Any, via: Via) -> None:
    """F12, F6, P1: also to branches that go on waiting; settings too."""

    def ask(state: State, config: dict[str, Any]) -> dict[str, Any]:
        return {"answer": (pause("ok?"), state["k"], config.get("c"))}

    graph = fan_to_end({"a": ask, "b": ask}).compile(store=store)
    one, other = (question.id for question in via.paused(graph, {"k": 1}).questions)
    via.paused_again(graph, answers={one: "first"}, update={"k": 2}, config={"c": 1})
    final = via.resume(graph, "r", answers={other: "second"}, update={"k": 3})
    assert [each["answer"] for each in final["results"]] == [("first", 2, 1), ("second", 3, 1)]
    assert final["k"] == 3


def test_an_update_that_can_not_be_stored_changes_nothing(store: Any, via: Via) -> None:
    """F12, H4: the run is as it was."""
    graph = fan_to_end({"a": [None, None], "b": None}).compile(store=store, interrupt_before=["a2"])
    via.paused(graph, {})
    with pytest.raises(UsageError, match="can't be stored"):
        via.resume(graph, "r", {"x": object()})
    assert graph.runs()[0].status == "paused"
    assert via.resume(graph, "r", {"x": 1})["results"] == [{"x": 1}, {}]


def test_what_an_update_shares_with_branches_is_their_own(store: Any, via: Via) -> None:
    """F12, invariant 8: altered in place by one, seen by none."""

    def alter(state: State) -> None:
        state["new"].append(1)
        state["old"]["x"].append(1)

    graph = fan_to_end({"a": [None, alter], "b": [None, alter], "c": None}).compile(
        store=store, interrupt_before=["a2", "b2"]
    )
    via.paused(graph, {"old": {"x": []}})
    final = via.resume(graph, "r", {"new": []})
    assert final["results"] == [{"old": {"x": [1]}, "new": [1]}] * 2 + [{"old": {"x": []}}]
    assert (final["old"], final["new"]) == ({"x": []}, [])


@pytest.mark.parametrize("how", ["resume", "fork"])
def test_an_update_reaches_branches_of_branches_once(how: str, store: Any, via: Via) -> None:
    """F12, F6: reduced once for the state and once for each branch that is stopped, whatever they share."""
    schema = {"log": Annotated[list, append], "by": Annotated[dict, merge]}

    def look(state: State) -> dict[str, Any]:
        return {"seen": (list(state["log"]), dict(state["by"]))}

    graph = fan_to_end({"a": None, "b": None}, schema=schema).add_fanin_node("inner", run=gather)
    for name in "pq":
        graph.add_node(name, run=look).add_parallel_edge("a", name, "inner")
    graph.compile(store=store, interrupt_before=["p", "q"])
    via.paused(graph, {"log": ["s"], "by": {"s": [1]}})
    update = {"log": ["u"], "by": {"u": [1]}}
    if how == "resume":
        final = via.resume(graph, "r", update)
    else:
        fork = graph.fork("r", update=update)
        with pytest.raises(RunPaused):
            fork.result()
        final = via.resume(graph, fork.id)
    expected = (["s", "u"], {"s": [1], "u": [1]})
    assert (final["log"], final["by"]) == expected
    assert [each["seen"] for each in final["results"][0]["results"]] == [expected] * 2
    assert final["results"][1] == {"log": ["s"], "by": {"s": [1]}}


# Checkpointers


def test_a_checkpointer_keeps_sections(via: Via) -> None:
    """F12, F11: what is done, what waits, what is deleted, and what a map has left, taken back by another graph."""
    kept = MemoryCheckpointer()
    calls = Calls()

    def delete(state: State) -> None:
        del state["k"]

    def make() -> StateGraph:
        graph = fan_to_end({"a": [delete, calls], "b": calls, "c": None}).add_node("each", run=calls)
        graph.add_map("c", "each", "items", "inner").add_fanin_node("inner", run=gather)
        return graph.compile(checkpointer=kept, interrupt_before=["a2", "each"])

    events = via.events(make(), {"k": 1, "items": [1, 2]}, stream=False)
    assert [each["branch"] for each in events] == ["a", "c/each[0]", "c/each[1]"]
    assert calls.take() == ["b/b"]
    (last,) = via.events(make(), {"new": 1}, stream=False, checkpoint=events[0]["checkpoint_path"])
    base = {"k": 1, "items": [1, 2]}
    inner = [{**base, "item": n, "new": 1, "each": True} for n in (1, 2)]
    assert last["state"]["results"] == [
        {"items": [1, 2], "new": 1, "a2": True},
        {**base, "b": True},
        {**base, "new": 1, "results": inner},
    ]
    assert calls.take() == ["a/a2", "c/each[0]/each", "c/each[1]/each"]


def test_a_checkpointer_keeps_questions_of_branches(via: Via) -> None:
    """F12, F11, P3: partly answered, each time from the newest checkpoint."""
    graph = fan_to_end({"a": asking, "b": asking}).compile(checkpointer=MemoryCheckpointer())
    first = via.events(graph, {"k": 1}, stream=False, run_id="r")
    assert [each["type"] for each in first] == ["pause", "pause"]
    via.paused_again(graph, answers={first[1]["questions"][0]["id"]: "two"})
    final = via.resume(graph, "r", "one")
    assert final["results"] == [{"k": 1, "answer": "one"}, {"k": 1, "answer": "two"}]


def test_a_checkpointer_keeps_failed_branches_and_collected_errors(via: Via) -> None:
    """F12, F11: the others aren't done again."""
    calls, kept, seen = Calls(), MemoryCheckpointer(), []

    def make(on_error: str) -> StateGraph:
        join = gather if on_error == "fail" else lambda parallel_results: seen.extend(parallel_results)
        graph = fan_to_end({"a": calls, "b": calls}, join, on_error=on_error)
        return graph.compile(checkpointer=kept, interrupt_before=["join"] if on_error == "collect" else [])

    calls.fail.add("a/a")
    (event,) = via.events(make("fail"), {}, stream=False)
    assert event["type"] == "error"
    assert calls.take() == ["a/a", "b/b"]
    calls.fail.clear()
    (last,) = via.events(make("fail"), None, stream=False, checkpoint=event["checkpoint_path"])
    assert last["state"]["results"] == [{"a": True}, {"b": True}]
    assert calls.take() == ["a/a"]
    calls.fail.add("a/a")
    (event,) = via.events(make("collect"), {}, stream=False)
    via.events(make("collect"), None, stream=False, checkpoint=event["checkpoint_path"])
    assert [each.error and each.error["message"] for each in seen] == ["no a/a today", None]


# Streams


def test_a_stream_has_the_events_of_branches_as_they_happen(store: Any, via: Via) -> None:
    """F12, F4: a `state` for each node, with its branch, and a `branch` when one ends."""
    graph = fan_to_end({"a": [lambda state: {"x": 1}, lambda state: {"y": 2}], "b": lambda state: {"z": 3}})
    events = via.events(graph.compile(store=store), {"k": 0}, run_id="r")
    kinds = [(each["type"], each.get("branch"), each.get("node")) for each in events]
    assert kinds[0] == ("state", None, "src")
    assert kinds[-3:] == [("state", None, "join"), ("state", None, "end"), ("final", None, None)]
    assert [kind for kind in kinds if kind[1] == "a"] == [
        ("state", "a", "a"), ("state", "a", "a2"), ("branch", "a", None)
    ]  # fmt: skip
    assert [kind for kind in kinds if kind[1] == "b"] == [("state", "b", "b"), ("branch", "b", None)]
    assert [each["status"] for each in events if each["type"] == "branch"] == ["completed", "completed"]
    states = {each["node"]: each["state"] for each in events if each["type"] == "state"}
    assert states["a"] == {"k": 0, "x": 1}
    assert states["a2"] == {"k": 0, "x": 1, "y": 2}
    assert states["b"] == {"k": 0, "z": 3}
    assert states["src"] == {"k": 0}
    assert states["a2"].checkpoint_node == "a2"
    assert states["a2"].run_id == "r"


def test_what_a_stream_reports_of_a_branch_is_durable(via: Via) -> None:
    """F12, H3: before it is reported; the last state event of a branch comes before its end."""
    store = MemoryStore()
    graph = fan_to_end({name: [None, None, None] for name in "abc"}).compile(store=store, preserve=True)
    told: list[tuple[str | None, str]] = []

    def check(event: dict[str, Any]) -> None:
        if event["type"] == "state":
            told.append((event.get("branch"), event["node"]))
            assert set(told) <= {(each.branch, each.node) for each in graph.history("r")}

    async def main() -> None:
        async for event in graph.astream({}, run_id="r"):
            check(event)

    if via.api == "sync":
        for event in graph.stream({}, run_id="r"):
            check(event)
    else:
        asyncio.run(main())
    assert len(told) == 1 + 9 + 2


def test_what_is_done_to_an_event_changes_nothing(via: Via) -> None:
    """F12, invariant 8: neither the branch nor the others."""

    def grow(state: State, node: str) -> None:
        state["log"].append(node)

    graph = fan_to_end({"a": [grow, grow], "b": [grow, grow]}).compile(store=MemoryStore())

    async def main() -> Any:
        async for event in graph.astream({"log": []}):
            if event["type"] == "state":
                event["state"]["log"].append("spoiled")
        return event["state"]["results"]

    if via.api == "async":
        found = asyncio.run(main())
    else:
        for event in graph.stream({"log": []}):
            if event["type"] == "state":
                event["state"]["log"].append("spoiled")
        found = event["state"]["results"]
    assert found == [{"log": ["a", "a2"]}, {"log": ["b", "b2"]}]


@pytest.mark.parametrize("on_error", ["fail", "collect"])
def test_a_stream_reports_which_branch_failed(on_error: str, store: Any, via: Via) -> None:
    """F12, F4: with the message; where it fails the run, an `error` comes last."""
    calls = Calls()
    calls.fail.add("a/a2")
    graph = fan_to_end({"a": [calls, calls], "b": calls}, on_error=on_error).compile(store=store)
    events = via.events(graph, {})
    ended = {
        each["branch"]: (each["status"], each.get("error")) for each in events if each["type"] == "branch"
    }
    assert ended == {"a": ("failed", "no a/a2 today"), "b": ("completed", None)}
    last = events[-1]
    if on_error == "collect":
        assert last["type"] == "final"
    else:
        assert (last["type"], last["node"], last["state"]) == ("error", "a/a2", {"a": True})
        assert isinstance(last["exception"], ExecutionError)
        assert last["checkpoint_path"]


def test_a_stream_reports_which_branches_wait(store: Any, via: Via) -> None:
    """F12, F4: as they come to it, and at the end with their questions."""
    graph = fan_to_end({"a": [None, asking], "b": [None, None], "c": None}).compile(
        store=store, interrupt_before=["b2"]
    )
    events = via.events(graph, {}, run_id="r")
    ended = {each["branch"]: each["status"] for each in events if each["type"] == "branch"}
    assert ended == {"a": "paused", "b": "paused", "c": "completed"}
    assert [(each["type"], each["branch"]) for each in events[-2:]] == [("pause", "a"), ("interrupt", "b")]
    nodes = [(each.get("branch"), each["node"]) for each in events if each["type"] == "state"]
    assert sorted(nodes, key=str) == [("a", "a"), ("b", "b"), ("c", "c"), (None, "src")]
    reference = events[-1]["checkpoint_path"]
    again = via.events(graph, "yes", checkpoint=reference)
    nodes = [(each.get("branch"), each["node"]) for each in again if each["type"] == "state"]
    assert sorted(nodes, key=str) == [("a", "a2"), ("b", "b2"), (None, "end"), (None, "join")]


def test_a_stream_of_graphs_and_nested_branches_has_the_paths(store: Any, via: Via) -> None:
    """F12, F4: `outer/inner`."""
    sub = StateGraph(name="sub").add_node("x").set_entry_point("x").set_finish_point("x")
    graph = fan_to_end({"a": None, "b": None}).add_node("p").add_node("q", sub).add_fanin_node("inner")
    graph.add_parallel_edge("a", "p", "inner").add_parallel_edge("a", "q", "inner").compile(store=store)
    events = via.events(graph, {})
    found = {(each["type"], each.get("branch"), each.get("node")) for each in events}
    assert found >= {
        ("state", "a/p", "p"), ("branch", "a/p", None), ("state", "a/q/q", "x"), ("state", "a/q", "q"),
        ("branch", "a/q", None), ("state", "a", "inner"), ("branch", "a", None),
    }  # fmt: skip


def test_an_invoke_has_no_events_of_branches_but_where_they_stop(store: Any, via: Via) -> None:
    """F12, F4."""
    graph = fan_to_end({"a": [None, None], "b": None}).compile(store=store)
    assert [each["type"] for each in via.events(graph, {}, stream=False)] == ["final"]


# Observers


@pytest.fixture
def seen() -> list[Event]:
    return []


def test_what_a_branch_finished_is_saved_at_once_although_the_run_is_asked_to_stop(via: Via) -> None:
    """F12, H3: not only when the others have stopped, which may take long; a resume doesn't call it again."""
    store = MemoryStore()
    calls: list[str] = []

    def asks_to_stop(node: str) -> dict[str, Any]:
        calls.append(node)
        post_cancel(store, "r")
        return {node: True}

    def waits_for_the_other(node: str) -> dict[str, Any]:
        calls.append(node)
        deadline = time.monotonic() + 60
        while store.head("r").sequence <= begun[0]:
            assert time.monotonic() < deadline, "what the other branch finished isn't saved"
            time.sleep(0.002)
        return {node: True}

    begun: list[int] = []
    graph = fan(
        {"a": asks_to_stop, "b": waits_for_the_other},
        source=lambda: begun.append(store.head("r").sequence + 1),
    ).compile(store=store)
    with pytest.raises(RunCancelled):
        via.execute(graph, {}, run_id="r")
    assert via.resume(graph, "r")["results"] == [{"a": True}, {"b": True}]
    assert sorted(calls) == ["a", "b"]


def test_a_step_of_a_branch_that_was_not_saved_is_not_reported(
    via: Via, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F12, H3: the caller that follows the run must not see what isn't so."""
    store = MemoryStore()

    def away(commits: Any) -> Any:
        raise StoreUnavailable("the store is away")

    def works(node: str) -> dict[str, Any]:
        monkeypatch.setattr(store, "append", away)
        return {node: True}

    graph = fan({"a": [None, works], "b": None}).compile(store=store)
    seen = via.events(graph, {}, run_id="r")
    assert seen[-1]["type"] == "error"
    assert "the store is away" in seen[-1]["error"]
    assert [event["node"] for event in seen[:-1] if event.get("branch") == "a"] == ["a"]


def test_the_state_of_an_event_stays_as_it_was_then(via: Via, place: dict[str, Any]) -> None:
    """F12: although the branch then alters the same list, and the caller looks only at the end."""

    def grow(state: State, node: str) -> None:
        state["own"] = state.get("own", [])
        state["own"].append(node)
        state["given"].append(node)

    graph = fan({"a": [grow, grow, grow], "b": grow}).compile(**place)
    events = via.events(graph, {"given": []})
    shown = [event["state"] for event in events if event["type"] == "state" and event.get("branch") == "a"]
    assert [state["own"] for state in shown] == [["a"], ["a", "a2"], ["a", "a2", "a3"]]
    assert [state["given"] for state in shown] == [["a"], ["a", "a2"], ["a", "a2", "a3"]]


def test_a_branch_that_slept_continues_while_the_node_of_another_runs(via: Via) -> None:
    """F12, H9: it doesn't wait until that node is done."""
    awake = threading.Event()
    branches: dict[str, Any] = {"a": [lambda: sleep(0.02), awake.set], "b": lambda: {"met": awake.wait(60)}}
    graph = fan(branches).compile(store=MemoryStore())
    assert via.execute(graph, {})["results"] == [{}, {"met": True}]


def test_a_branch_lasts_from_its_first_node_to_the_end_of_its_last(seen: list[Event], via: Via) -> None:
    """F12, G11: its event and its result say so."""
    calls = TimedCalls()
    results: list[Any] = []
    graph = fan(
        {"a": [calls, calls]}, lambda parallel_results: results.extend(parallel_results), observer=seen.append
    )
    _, run = run_timed(via, graph, {})
    (event,) = [event for event in seen if event.type == "branch.complete"]
    (result,) = results
    assert calls.spans[1].ended - calls.spans[0].began <= event.data["duration"] <= run.seconds
    assert event.data["duration"] == result.duration
    assert run.began <= result.started <= calls.spans[0].began
    assert calls.spans[1].ended <= result.ended <= run.ended


def test_observers_get_events_of_branches(seen: list[Event], store: Any, via: Via) -> None:
    """F12, G11: their start and end; whatever happens in one names it, and nothing else does."""
    graph = fan_to_end({"a": [None, None], "b": None}, observer=seen.append).compile(store=store)
    via.execute(graph, {}, run_id="r")
    of_branch = {name: [e.type for e in seen if e.data.get("branch") == name] for name in "ab"}
    kept = [kind for kind in of_branch["a"] if not kind.startswith(("state.", "edge.", "checkpoint."))]
    assert kept == ["branch.start", *["node.start", "node.complete"] * 2, "branch.complete"]
    assert of_branch["a"].count("checkpoint.save") == 2
    assert of_branch["b"].count("checkpoint.save") == 1
    (ended,) = [event for event in seen if event.type == "branch.complete" and event.data["branch"] == "a"]
    assert (ended.data["run_id"], ended.data["error"], ended.source) == ("r", False, "fan")
    main = [e for e in seen if "branch" not in e.data]
    assert [e.data["node"] for e in main if e.type == "node.start"] == ["src", "join", "end"]
    assert [e.type for e in seen if e.type.startswith("graph.")] == ["graph.start", "graph.complete"]
    nodes = [
        (e.data.get("branch"), e.data["node"], e.data["iteration"]) for e in seen if e.type == "node.complete"
    ]
    assert sorted(nodes, key=str) == [
        ("a", "a", 1), ("a", "a2", 2), ("b", "b", 1), (None, "end", 3), (None, "join", 2), (None, "src", 1)
    ]  # fmt: skip


def test_observers_get_what_goes_wrong_in_branches(seen: list[Event], via: Via) -> None:
    """F12, G11: attempts, failures, and how the run ended."""
    calls = Calls()
    calls.fail.update(("a/a", "b/b"))
    graph = StateGraph(name="g", observer=seen.append).add_node("src").add_fanin_node("join")
    graph.add_node("a", run=calls, retry=Retry(2, backoff=0)).add_node("b", run=calls)
    for name in "ab":
        graph.add_parallel_edge("src", name, "join", on_error="collect")
    graph.set_entry_point("src").set_finish_point("join").compile(store=MemoryStore())
    via.execute(graph, {})
    (again,) = [event for event in seen if event.type == "node.retry"]
    assert (again.data["branch"], again.data["node"], again.data["attempt"]) == ("a", "a", 1)
    assert {e.data["branch"]: e.data["error"] for e in seen if e.type == "branch.complete"} == {
        "a": True,
        "b": True,
    }
    seen.clear()
    failing = fan_to_end({"a": calls}, observer=seen.append).compile(store=MemoryStore())
    with pytest.raises(ExecutionError):
        via.execute(failing, {})
    (event,) = [event for event in seen if event.type == "run.fail"]
    assert event.data["node"] == "a/a"


def test_observers_get_pauses_and_cycles_in_branches(seen: list[Event], via: Via) -> None:
    """F12, G4, G11: and of edges that were tried."""
    graph = fan_to_end({"a": lambda state: {"n": state["n"] + 1}, "b": asking}, observer=seen.append)
    graph.add_edge("a", "a", lambda state: state["n"] < 3).add_edge("a", "join").compile(store=MemoryStore())
    via.paused(graph, {"n": 0})
    cycles = [
        (e.data["branch"], e.data["node"], e.data["visit_count"]) for e in seen if e.type == "cycle.detected"
    ]
    assert cycles == [("a", "a", 2), ("a", "a", 3)]
    tried = [(e.data["branch"], e.data["to"], e.data["result"]) for e in seen if e.type == "edge.evaluate"]
    assert [each for each in tried if each[0] == "a"] == [
        ("a", "a", True), ("a", "a", True), ("a", "a", False), ("a", "join", True)
    ]  # fmt: skip
    (paused,) = [event for event in seen if event.type == "run.pause"]
    assert paused.data["node"] == "b/b"
    assert [e.data["branch"] for e in seen if e.type == "branch.complete"] == ["a"]
    seen.clear()
    via.resume(graph, "r", 1)
    assert [e.type for e in seen if e.type.startswith("checkpoint.") and "branch" not in e.data][:2] == [
        "checkpoint.load",
        "checkpoint.resume",
    ]
    assert [e.data["branch"] for e in seen if e.type in ("branch.start", "branch.complete")] == ["b", "b"]


def test_an_observer_that_raises_breaks_no_branch(via: Via) -> None:
    """F12, G11."""

    def broken(event: Event) -> None:
        raise RuntimeError(event.type)

    assert (
        len(
            via.execute(fan_to_end({"a": None, "b": None}, observer=broken).compile(store=MemoryStore()), {})[
                "results"
            ]
        )
        == 2
    )


# once()


def test_what_branches_keep_with_the_same_key_is_their_own(store: Any, via: Via) -> None:
    """F12, H3: over pauses; each function is called once for each branch, visit and item."""
    made: list[Any] = []

    def work(state: State, ctx: NodeContext) -> dict[str, Any]:
        value = once("key", lambda: made.append(ctx.branch) or (ctx.branch, len(made)))
        pause("ok?")
        return {"value": value}

    graph = fan_to_end(dict.fromkeys("abc", work)).compile(store=store)
    asked = via.paused(graph, {}).questions
    first = list(made)
    assert sorted(first) == ["a", "b", "c"]
    final = via.resume(graph, "r", answers={question.id: 1 for question in asked})
    assert made == first
    assert [each["value"][0] for each in final["results"]] == ["a", "b", "c"]


def test_what_a_branch_kept_is_there_after_a_crash_of_another(store: Any, via: Via) -> None:
    """F12, H3: a result that was kept is durable at once."""
    made: list[str] = []
    kept, crashed = threading.Event(), threading.Event()

    def keeps(state: State) -> dict[str, Any]:
        value = once("key", lambda: made.append("x") or 5)
        kept.set()
        crashed.wait(SOON)
        return {"value": value}

    def crashes(state: State) -> None:
        if not crashed.is_set():
            assert kept.wait(SOON)
            crashed.set()
            raise Crash

    graph = fan_to_end({"a": keeps, "b": crashes}).compile(store=store)
    with pytest.raises(Crash):
        via.execute(graph, {}, run_id="r")
    assert via.resume(graph, "r")["results"][0] == {"value": 5}
    assert made == ["x"]


@pytest.mark.parametrize("kind", ["sync node", "sync function in an async node", "async function"])
def test_many_branches_keep_results_at_once(kind: str, store: Any, via: Via) -> None:
    """F12, H3: in parallel to the saves of the run; each finds its own when it is tried again."""
    made: list[int] = []

    def make(number: int) -> int:
        made.append(number)
        return number

    async def amake(number: int) -> int:
        await asyncio.sleep(0)
        return make(number)

    def work(state: State, ctx: NodeContext) -> dict[str, Any]:
        values = [once(f"k{n}", make, state["item"] * 10 + n) for n in range(3)]
        if ctx.attempt == 1:
            raise ValueError
        return {"values": values}

    async def awork(state: State, ctx: NodeContext) -> dict[str, Any]:
        await asyncio.sleep(0)
        if kind == "async function":
            values = [await once(f"k{n}", amake, state["item"] * 10 + n) for n in range(3)]
        else:
            values = [once(f"k{n}", make, state["item"] * 10 + n) for n in range(3)]
        if ctx.attempt == 1:
            raise ValueError
        return {"values": values}

    graph = StateGraph(name="map").add_node("src").add_fanin_node("join", run=gather)
    graph.add_node("each", run=work if kind == "sync node" else awork, retry=AT_ONCE)
    graph.add_map("src", "each", "items", "join").set_entry_point("src").set_finish_point("join").compile(
        store=store
    )
    final = via.execute(graph, {"items": list(range(20))})
    assert [each["values"] for each in final["results"]] == [
        [n * 10, n * 10 + 1, n * 10 + 2] for n in range(20)
    ]
    assert sorted(made) == sorted(n * 10 + k for n in range(20) for k in range(3))


def test_what_can_not_be_kept_fails_the_branch_alone(store: Any, via: Via) -> None:
    """F12, H4: with the key; the key is free again."""
    calls = Calls()
    value: list[Any] = [object()]
    graph = fan_to_end(
        {"a": lambda state: {"x": once("key", lambda: value[0])}, "b": [calls, calls]}
    ).compile(store=store)
    with pytest.raises(ExecutionError, match=r"once\('key'\)"):
        via.execute(graph, {}, run_id="r")
    value[0] = 1
    assert via.resume(graph, "r")["results"] == [{"x": 1}, {"b": True, "b2": True}]
    assert calls.take() == ["b/b", "b/b2"]


def test_once_works_in_branches_without_a_store(via: Via) -> None:
    """F12, H8: over failed attempts."""
    made: list[int] = []

    def work(state: State, ctx: NodeContext) -> dict[str, Any]:
        value = once("key", lambda: made.append(1) or ctx.branch)
        if ctx.attempt == 1:
            raise ValueError
        return {"value": value}

    graph = StateGraph(name="g").add_node("src").add_fanin_node("join", run=gather)
    for name in "ab":
        graph.add_node(name, run=work, retry=AT_ONCE).add_parallel_edge("src", name, "join")
    final = via.execute(graph.set_entry_point("src").set_finish_point("join"), {})
    assert final["results"] == [{"value": "a"}, {"value": "b"}]
    assert len(made) == 2


# Idempotency keys


def keyed(note: Callable[..., Any]) -> StateGraph:
    """A graph with a section in a loop, a loop in a branch, a nested section, a map and a graph, all of `note`."""
    sub = StateGraph(name="sub").add_node("x", run=note).add_node("y", run=note).add_edge("x", "y")
    sub.set_entry_point("x").set_finish_point("y")
    graph = StateGraph(name="keyed").add_node("src", run=note).add_fanin_node("join", run=note)
    for name in "abc":
        graph.add_node(name, run=note).add_parallel_edge("src", name, "join")
    graph.add_edge("a", "a", lambda state: state["a"] < 2).add_edge("a", "join")
    for name in "pq":
        graph.add_node(name, sub if name == "q" else note).add_parallel_edge("b", name, "inner")
    graph.add_node("each", run=note).add_map("c", "each", "items", "inner c")
    graph.add_fanin_node("inner", run=note).add_fanin_node("inner c", run=note)
    graph.add_edge("join", "src", lambda state: state["src"] < 2)
    return graph.set_entry_point("src").set_finish_point("join")


def test_idempotency_keys_are_those_of_no_other_call(via: Via) -> None:
    """F12, H8: over branches, items, visits, graphs and rounds; the same in every run with the same id."""
    keys: list[str] = []

    def note(state: State, ctx: NodeContext) -> dict[str, Any]:
        keys.append(ctx.idempotency_key)
        return {ctx.node: state.get(ctx.node, 0) + 1}

    for _ in range(2):
        graph = keyed(note).compile(store=MemoryStore(), max_concurrency=1)
        via.execute(graph, {"items": [1, 2, 3]}, run_id="r")
    half = len(keys) // 2
    assert len(set(keys)) == half
    assert half > 25
    assert sorted(keys[:half]) == sorted(keys[half:])
    assert all(key.startswith("r/") for key in keys)


def test_idempotency_keys_are_the_same_for_every_attempt(store: Any, via: Via) -> None:
    """F12, H8: after failed attempts, pauses, crashes and failures."""
    keys: dict[str, set[str]] = {}
    trouble: dict[str, int] = {}

    def note(state: State, ctx: NodeContext) -> dict[str, Any]:
        place = f"{ctx.branch}/{ctx.node}/{ctx.visit}/{state.get('src')}"
        keys.setdefault(place, set()).add(ctx.idempotency_key)
        trouble[place] = trouble.get(place, 0) + 1
        if trouble[place] == 1 and ctx.branch:
            raise ValueError
        if trouble[place] == 2 and ctx.branch in ("a", "c/each[1]", "b/q/q"):
            raise Crash
        if trouble[place] < 4 and ctx.branch in ("b/p", "c/each[0]"):
            pause("ok?")
        return {ctx.node: state.get(ctx.node, 0) + 1}

    graph = keyed(note).compile(store=store)
    answers: dict[str, int] = {}
    final = None
    for attempt in range(200):
        try:
            if attempt:
                final = via.resume(graph, "r", answers=answers or None)
                break
            via.execute(graph, {"items": [1, 2, 3]}, run_id="r")
        except RunPaused as paused:
            answers = {question.id: 1 for question in paused.questions}
        except (ExecutionError, Crash):
            answers = {}
    assert final is not None
    assert final["src"] == 2
    assert {place: len(each) for place, each in keys.items()} == dict.fromkeys(keys, 1)
    assert len(set().union(*keys.values())) == len(keys) > 25
    assert max(trouble.values()) > 2
