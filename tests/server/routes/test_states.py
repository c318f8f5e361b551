"""H19: states at any step, how they differ, and the records of tasks."""

from __future__ import annotations

from typing import Annotated, Any

import pytest

from limpet import MemoryStore, State, StateGraph, Workflow, pause, secret
from limpet.engine.operations import stored_state
from limpet.frontends import values
from limpet.graphs.secrets import MASK
from support.graphs import fan, loop, single
from support.http_api import CANARY, api, plain


def test_a_state_is_read_at_any_step() -> None:
    """H19: the newest, if no step is named."""
    with api() as client:
        client.run_until_it_stops("r", topic="kelp")
        assert client.read("/runs/r/state")["values"]["count"] == 2
        assert client.read("/runs/r/state", step=1)["values"]["count"] == 1
        assert "count" not in client.read("/runs/r/state", step=0)["values"]
        assert client.read("/runs/r/state", 400, step=9)["code"] == "usage"
        assert client.read("/runs/r/state", 400, step=-1)["code"] == "usage"
        assert client.read("/runs/r/state", 400, key="conut")["detail"].endswith("did you mean 'count'?")
        assert client.read("/runs/none/state", 404)["code"] == "run-not-found"


def test_the_states_of_two_steps_differ_by_keys() -> None:
    """H19: added, changed and removed, in both directions."""
    with api() as client:
        client.run_until_it_stops("r", topic="kelp")
        assert client.read("/runs/r/diff", a=1, b=2)["changes"] == {
            "count": {"change": "changed", "before": 1, "after": 2}
        }
        forwards = client.read("/runs/r/diff", a=0, b=1)["changes"]
        assert {key: change["change"] for key, change in forwards.items()} == {
            "count": "added",
            "password": "added",
        }
        backwards = client.read("/runs/r/diff", a=1, b=0)["changes"]
        assert {change["change"] for change in backwards.values()} == {"removed"}
        assert client.read("/runs/r/diff", a=1, b=1)["changes"] == {}


def test_the_states_of_two_runs_are_compared() -> None:
    """H19: their newest, or at a step of each; 1 and true aren't the same."""
    with api(plain(lambda state: {"a": state["a"], "b": 2, **state.get("more", {})})) as client:
        client.run_until_it_stops("one", a=1)
        client.run_until_it_stops("two", a=True, more={"c": [1]})
        found = client.read("/runs/one/compare", **{"with": "two"})
        assert found["same"] == ["b"]
        assert found["changes"]["a"] == {"change": "changed", "before": 1, "after": True}
        assert found["changes"]["c"] == {"change": "added", "after": [1]}
        other_way = client.read("/runs/two/compare", **{"with": "one"})
        assert other_way["changes"]["c"]["change"] == "removed"
        early = client.read("/runs/one/compare", **{"with": "one"}, step=0, with_step=1)
        assert early["changes"] == {"b": {"change": "added", "after": 2}}
        assert client.read("/runs/one/compare", 404, **{"with": "none"})["code"] == "run-not-found"


def test_states_of_branches_are_read_by_their_names() -> None:
    """H19: as the history has them; a large value of one when it is asked for."""

    def made(store: Any) -> StateGraph:
        branches = {"a": [lambda state: {"one": 1}, lambda state: {"text": "x" * 50_000}], "b": None}
        return fan(branches, lambda state: {}).compile(store=store, preserve=True)

    with api(made) as client:
        client.run_until_it_stops("r")
        steps = {each["node"]: each["step"] for each in client.read("/runs/r/history")["steps"]}
        assert client.read("/runs/r/state", step=steps["a"])["values"] == {}
        assert client.read("/runs/r/state", step=steps["a"], branch="a")["values"] == {"one": 1}
        second = {"a": steps["a2"] - 1, "b": steps["a2"], "branch": "a"}
        assert client.read("/runs/r/diff", **second)["changes"]["text"] == {
            "change": "added",
            "after_size": 50_000,
        }
        whole = client.read("/runs/r/diff", **second, key="text")["changes"]["text"]
        assert len(whole["after"]) == 50_000
        assert client.read("/runs/r/sizes", step=steps["a2"], branch="a")["sizes"] == {
            "one": 1,
            "text": 50_000,
        }
        assert client.read("/runs/r/state", step=steps["a2"], branch="a", key="one")["values"] == {"one": 1}
        assert "has no branch 'c'" in client.read("/runs/r/state", 400, step=steps["a"], branch="c")["detail"]
        assert "has no branch 'a'" in client.read("/runs/r/state", 400, branch="a")["detail"]


def test_a_state_names_the_values_of_which_a_part_is_hidden() -> None:
    """H19: so that they aren't sent back without it. A secret as a whole isn't one: it can be replaced."""
    deep: Any = 1
    for _ in range(200):
        deep = [deep]

    def made(store: Any) -> StateGraph:
        schema = {"key": Annotated[str, secret], "kept": Any, "deep": Any, "plain": Any}
        values = {"key": CANARY, "kept": [{"key": CANARY, "n": 1}], "deep": deep, "plain": [{"n": 1}]}
        graph = single(lambda state: values, schema=schema)
        return graph.compile(store=store, preserve=True, allow_plain_text_secrets=True)

    with api(made) as client:
        client.run_until_it_stops("r")
        found = client.read("/runs/r/state")
        assert found["incomplete"] == {"kept": "a secret is in it", "deep": "it has too many levels"}
        assert client.read("/runs/r/state", key="kept")["incomplete"] == {"kept": "a secret is in it"}
        assert client.read("/runs/r/state", key="plain")["incomplete"] == {}
        assert CANARY not in str(found)


def test_large_values_are_sent_when_they_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """H19: until then their sizes are; and one that is too large for an answer is refused."""
    with api(plain(lambda state: {"text": "x" * 100_000, "small": 1})) as client:
        client.run_until_it_stops("r")
        assert client.read("/runs/r/state") == {
            "values": {"small": 1},
            "large": {"text": 100_000},
            "not_json": {},
            "incomplete": {},
        }
        assert len(client.read("/runs/r/state", key="text")["values"]["text"]) == 100_000
        assert client.read("/runs/r/sizes")["sizes"] == {"small": 1, "text": 100_000}
        assert client.read("/runs/r/sizes", step=0)["sizes"] == {}
        change = client.read("/runs/r/diff", a=0, b=1)["changes"]["text"]
        assert change == {"change": "added", "after_size": 100_000}
        assert len(client.read("/runs/r/diff", a=0, b=1, key="text")["changes"]["text"]["after"]) == 100_000
        compared = client.read("/runs/r/compare", **{"with": "r"}, step=0, key="text")
        assert len(compared["changes"]["text"]["after"]) == 100_000
        monkeypatch.setattr(values, "MAX_VALUE", 50_000)
        assert client.read("/runs/r/state", 413, key="text")["code"] == "value-too-large"
        assert client.read("/runs/r/diff", 413, a=0, b=1, key="text")["code"] == "value-too-large"


def test_runs_are_compared_by_what_is_stored() -> None:
    """H19: secrets that differ do, though both are masked; and so do values that JSON can't tell apart."""

    def made(store: Any) -> StateGraph:
        def differing(state: State) -> dict[str, Any]:
            if state["is_first"]:
                return {"key": "one", "kind": {1, 2}, "data": b"abc", "order": [{0, 8}], "same": {"a": {1}}}
            return {"key": "two", "kind": [1, 2], "data": "YWJj", "order": [{8, 0}], "same": {"a": {1}}}

        schema = {
            "is_first": bool,
            "key": Annotated[str, secret],
            "kind": Any,
            "data": Any,
            "order": Any,
            "same": Any,
        }
        graph = StateGraph(schema, name="g").add_node("n", differing).set_entry_point("n")
        graph.set_finish_point("n")
        return graph.compile(store=store, preserve=True, allow_plain_text_secrets=True)

    with api(made) as client:
        client.run_until_it_stops("one", is_first=True)
        client.run_until_it_stops("two", is_first=False)
        found = client.read("/runs/one/compare", **{"with": "two"})
        assert found["same"] == ["order", "same"]
        assert set(found["changes"]) == {"is_first", "key", "kind", "data"}
        assert found["changes"]["key"] == {"change": "changed", "before": MASK, "after": MASK}


def test_many_values_are_not_sent_at_once() -> None:
    """H19: the smallest are, and the sizes of the others: of a state, of what differs, and of a step."""
    many = {f"k{number}": "x" * 10_000 for number in range(300)}
    with api(plain(lambda state: {**many, "small": 1})) as client:
        client.run_until_it_stops("r")
        found = client.read("/runs/r/state")
        assert found["values"]["small"] == 1
        assert len(found["values"]) == 100
        assert found["large"] == {key: 10_000 for key in many if key not in found["values"]}
        by_step = client.read("/runs/r/diff", a=0, b=1)["changes"]
        by_run = client.read("/runs/r/compare", **{"with": "r"}, step=0)["changes"]
        for changes in (by_step, by_run):
            assert sum("after" in change for change in changes.values()) == 100
            assert changes["k299"] == {"change": "added", "after_size": 10_000}
        (step,) = client.read("/runs/r/events", type="step")["events"]
        assert (len(step["update"]), len(step["large"])) == (100, 201)
        row = client.read("/runs/r/timeline/0")
        assert (len(row["update"]), len(row["large"])) == (100, 201)


def test_many_results_of_tasks_are_not_sent_at_once() -> None:
    """H19: all of them together have as much room as those of one."""

    def made(store: Any) -> Workflow:
        flow = Workflow("flow", store=store, preserve=True)
        for number in range(150):
            flow.add_task(f"t{number}", lambda: "x" * 10_000)
        return flow

    with api(made) as client:
        client.run_until_it_stops("r")
        tasks = client.read("/runs/r/tasks")["tasks"]
        assert {each["status"] for each in tasks} == {"completed"}
        assert sum("result" in each for each in tasks) == 100
        assert [each["result_size"] for each in tasks if "result" not in each] == [10_000] * 50
        assert all(each["timestamp"] for each in tasks)


def flow(store: Any) -> Workflow:
    made = Workflow("flow", store=store, preserve=True)
    made.add_task("fetch", lambda city: {"city": city, "text": "x" * 50_000})
    made.add_task("count", lambda fetch: len(fetch["text"]), ["fetch"])
    made.add_task("fail", lambda: 1 // 0, safe_to_fail=True)
    made.add_task("left_out", lambda: 1, condition=lambda: False)
    return made.add_task("ask", lambda count: pause("Well?"), ["count"])


def test_the_records_of_tasks_have_results_times_and_errors() -> None:
    """H19: of a workflow; those that aren't done have no status."""
    with api(flow) as client:
        client.run_until_it_stops("r", city="Rome")
        tasks = {each["task"]: each for each in client.read("/runs/r/tasks")["tasks"]}
        assert tasks["fetch"]["result_size"] > 50_000
        assert tasks["count"]["result"] == 50_000
        assert tasks["count"]["depends_on"] == ["fetch"]
        assert tasks["count"]["duration"] >= 0
        assert tasks["fail"]["error"]["type"] == "ZeroDivisionError"
        assert [tasks[name]["status"] for name in ("fetch", "fail", "left_out", "ask")] == [
            "completed",
            "failed",
            "skipped",
            None,
        ]
        (whole,) = client.read("/runs/r/tasks", task="fetch")["tasks"]
        assert whole["result"]["city"] == "Rome"
        assert client.read("/runs/r/tasks", 400, task="fetsh")["detail"].endswith("did you mean 'fetch'?")
        assert all(each["status"] is None for each in client.read("/runs/r/tasks", step=0)["tasks"])


def test_a_run_of_a_graph_has_no_tasks() -> None:
    """H19: also one whose state happens to have such a key."""
    with api(plain(lambda state: {"tasks": {"a": 1}, "dag": "x"})) as client:
        client.run_until_it_stops("r")
        assert client.read("/runs/r/tasks") == {"tasks": [], "next": None}


def test_tasks_come_in_pages() -> None:
    """H19: in their order, each once; with the place of a task that isn't there, none."""
    names = [f"t{number}" for number in range(250)]

    def made(store: Any) -> Workflow:
        flow = Workflow("flow", store=store, preserve=True)
        for name in names:
            flow.add_task(name, lambda: 1)
        return flow

    with api(made) as client:
        client.run_until_it_stops("r")
        for limit, sizes in ((None, [200, 50]), (125, [125, 125]), (2000, [250])):
            found: list[list[str]] = []
            after = None
            while not found or after is not None:
                given = {name: value for name, value in (("limit", limit), ("after", after)) if value}
                page = client.read("/runs/r/tasks", **given)
                found.append([each["task"] for each in page["tasks"]])
                after = page["next"]
            assert [len(page) for page in found] == sizes
            assert [name for page in found for name in page] == names
        assert client.read("/runs/r/tasks", after="t249") == {"tasks": [], "next": None}
        assert "did you mean" in client.read("/runs/r/tasks", 400, after="t25O")["detail"]
        assert "from 1 to 2000" in client.read("/runs/r/tasks", 400, limit=2001)["detail"]


def test_a_step_of_a_long_run_is_read_without_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """H19: states and differences."""
    monkeypatch.setattr(stored_state, "LONG_JOURNAL", 1)

    def counting(store: Any) -> StateGraph:
        return loop(500, max_iterations=1000).compile(store=store, preserve=True)

    with api(counting, store=MemoryStore()) as client:
        client.run_until_it_stops("r")
        assert client.read("/runs/r/state", step=300)["values"] == {"n": 300}
        assert client.read("/runs/r/diff", a=299, b=300)["changes"]["n"]["after"] == 300


def test_a_result_that_was_not_kept_is_said_to_be_deleted() -> None:
    """H19: not an empty state."""

    def forgetful(store: Any) -> StateGraph:
        graph = StateGraph(name="g").add_node("n", run=lambda state: {"x": 1}).set_entry_point("n")
        return graph.set_finish_point("n").compile(store=store, keep_result=False)

    with api(forgetful) as client:
        client.run_until_it_stops("r")
        for path in ("/state", "/sizes", "/tasks", "/history"):
            assert "deleted when it completed" in client.read(f"/runs/r{path}", 400)["detail"]
        assert client.read("/runs/r/events")["events"][-1]["type"] == "complete"
        assert client.read("/runs/r/output") == {"items": [], "next": None}
