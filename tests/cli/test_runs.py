"""`runs …` that only read: tables, JSON, exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.command_line import Command

NESTED = """
from limpet import StateGraph

inner = StateGraph(name="inner").add_node("first", lambda state: {"a": 1}).add_node("second", lambda state: {"b": 2})
inner.set_entry_point("first").add_edge("first", "second").set_finish_point("second")
graph = StateGraph(name="outer").add_node("begin", lambda state: {"x": 1})
graph.add_node("left", inner).add_node("right", lambda state: {"r": 1})
graph.add_fanin_node("join", lambda state, parallel_results: {})
graph.set_entry_point("begin").set_finish_point("join")
graph.add_parallel_edge("begin", "left", "join").add_parallel_edge("begin", "right", "join")
"""


def test_runs_are_listed(runs: Command) -> None:
    """H6: newest first, with what each waits for."""
    done = runs("runs", "list")
    head, first, second = done.out.splitlines()
    assert done.code == 0
    assert head.split()[:3] == ["run", "graph", "status"]
    assert first.split()[:3] == ["waits", "article", "paused"]
    assert "asks: Publish" in first
    assert second.split()[:3] == ["done", "plain", "completed"]


def test_runs_are_listed_for_programs_and_filtered(runs: Command) -> None:
    assert [each["run_id"] for each in runs("runs", "list", "--json").data] == ["waits", "done"]
    assert [each["run_id"] for each in runs("runs", "list", "--status", "paused", "--json").data] == ["waits"]
    assert [each["run_id"] for each in runs("runs", "list", "--tag", "old", "--json").data] == ["done"]
    assert [each["run_id"] for each in runs("runs", "list", "--of", "plain", "--json").data] == ["done"]
    assert [each["run_id"] for each in runs("runs", "list", "--limit", "1", "--json").data] == ["waits"]
    for words in (["--json", "runs", "list"], ["runs", "--json", "list"]):  # before a verb, too
        assert [each["run_id"] for each in runs(*words).data] == ["waits", "done"]
    assert "there is no store at none.db" in runs("--store", "none.db", "runs", "list").err
    assert runs("runs", "list", "--status", "asleep").code == 2
    assert "no runs match" in runs("runs", "list", "--status", "failed").err


@pytest.mark.parametrize("limit", ["0", "-3", "1.5", "many"])
def test_a_list_has_room_for_at_least_one_run(runs: Command, limit: str) -> None:
    """H6: it never says that there are no runs because none was asked for."""
    done = runs("runs", "list", "--limit", limit)
    assert (done.code, done.out) == (2, "")
    assert f"--limit: takes a whole number of at least 1, not '{limit}'" in done.err


def test_a_run_is_shown_with_the_command_that_resumes_it(runs: Command) -> None:
    done = runs("runs", "show", "waits")
    assert done.code == 0
    assert "status   paused" in done.out
    assert done.err.strip().endswith("limpet answer waits yes")
    data = runs("runs", "show", "waits", "--json").data
    assert (data["status"], data["questions"][0]["choices"]) == ("paused", ["yes", "no"])


def test_history_state_and_difference(runs: Command) -> None:
    """H6."""
    assert [line.split()[0] for line in runs("runs", "history", "done").out.splitlines()] == [
        "step",
        "0",
        "1",
        "2",
    ]
    assert [each["node"] for each in runs("runs", "history", "done", "--json").data] == [None, "one", "two"]
    assert runs("runs", "state", "done", "--json").data == {"x": 2, "name": "ann"}
    assert runs("runs", "state", "done", "--step", "1", "--json").data == {"x": 1}
    assert runs("runs", "state", "done").out == "x     2\nname  ann\n"
    assert runs("runs", "state", "done", "--key", "name").out == "ann\n"
    assert runs("runs", "state", "done", "--key", "nme").code == 2
    assert runs("runs", "diff", "done", "1", "2", "--json").data == {
        "added": {"name": "ann"}, "removed": {}, "changed": {"x": [1, 2]},
    }  # fmt: skip
    assert [line.split() for line in runs("runs", "diff", "done", "1", "2").out.splitlines()[1:]] == [
        ["+", "name", "ann"], ["~", "x", "1", "2"],
    ]  # fmt: skip
    assert runs("runs", "state", "done", "--step", "9").code == 2


def test_history_names_branches_and_no_inner_node(limpet: Command) -> None:
    """H6: neither what plans the layers of a workflow, nor the name of the end."""
    limpet("run", "flows:twice", "--id", "t")
    for typed in (["a/a", "1"], ["b", "2"]):
        question = next(
            each["id"]
            for each in limpet("runs", "show", "t", "--json").data["questions"]
            if each["node"].startswith(typed[0][0])
        )
        limpet("answer", "t", question, typed[1], "--graph", "flows:twice")
    steps = limpet("runs", "history", "t", "--json").data
    assert [(each["node"], each["branch"]) for each in steps] == [
        (None, None), ("begin", None), ("a", "a"), ("b", "b"), ("join", None),
    ]  # fmt: skip
    assert [each["next"] for each in steps] == ["begin", "join", None, None, None]
    assert (steps[-1]["id"], steps[-1]["status"]) == ("t@4", "completed")
    limpet("run", "flows:flow", "-i", "topic=kelp", "--id", "w")
    steps = limpet("runs", "history", "w", "--json").data
    assert [each["node"] for each in steps] == [None, None, "page", None, "words", None]
    shown = limpet("runs", "history", "w").out
    assert [line.split("  ")[-1].strip() for line in shown.splitlines()[1:3]] == ["next layer", "next layer"]
    for text in (shown, limpet("runs", "history", "t").out, json.dumps(steps)):
        assert "after_layer" not in text
        assert "__end__" not in text


def test_a_step_in_a_branch_is_listed_with_its_branch(limpet: Command, here: Path) -> None:
    (here / "nested.py").write_text(NESTED)
    limpet("run", "nested.py:graph", "--id", "n")
    nodes = [line.split()[1] for line in limpet("runs", "history", "n").out.splitlines()[2:]]
    assert sorted(nodes) == ["begin", "join", "left", "left/left/first", "left/left/second", "right"]


def test_the_state_in_a_branch_is_shown_by_its_name(limpet: Command, here: Path) -> None:
    """H6: and what a step changed there."""
    (here / "nested.py").write_text(NESTED)
    limpet("run", "nested.py:graph", "--id", "n")
    steps = {each["node"]: each for each in limpet("runs", "history", "n", "--json").data}
    place = ["--branch", steps["second"]["branch"], "--json"]
    number = steps["second"]["step"]
    before = limpet("runs", "state", "n", "--step", str(number - 1), *place).data
    after = limpet("runs", "state", "n", "--step", str(number), *place).data
    changes = limpet("runs", "diff", "n", str(number - 1), str(number), *place).data
    assert after == {**before, "b": 2}
    assert changes == {"added": {"b": 2}, "removed": {}, "changed": {}}
    refused = limpet("runs", "state", "n", "--branch", "none")
    assert refused.code == 2
    assert "has no branch 'none'" in refused.err
    assert "limpet runs history n" in refused.err


def test_lists_name_no_inner_node(limpet: Command) -> None:
    limpet("run", "flows:flow", "-i", "topic=kelp", "--id", "q", "--detach")
    limpet("run", "flows:flow", "-i", "topic=kelp", "--id", "w")
    said = [limpet("runs", "list").out, limpet("runs", "list", "--json").out]
    said += [limpet("runs", "show", run_id, *more).out for run_id in "qw" for more in ([], ["--json"])]
    assert not any("after_layer" in text or "__end__" in text for text in said)


def test_watching_a_run_that_has_stopped_ends_at_once(runs: Command) -> None:
    done = runs("runs", "watch", "waits")
    assert done.code == 3
    assert "paused" in done.out
    assert "limpet answer waits yes" in done.err
    done = runs("runs", "watch", "waits", "--json", "--every", "0.05")
    events = [json.loads(line) for line in done.out.splitlines()]
    assert (done.code, events[-1]["type"]) == (3, "pause")
    rest = runs("runs", "watch", "waits", "--json", "--every", "0.05", "--after", events[0]["cursor"])
    assert [json.loads(line) for line in rest.out.splitlines()] == events[1:]
    refused = runs("runs", "watch", "done", "--after", events[0]["cursor"])
    assert (refused.code, "is a cursor of run 'waits'" in refused.err) == (2, True)
    assert json.loads(runs("runs", "watch", "done", "--json").out.splitlines()[-1])["type"] == "complete"


@pytest.mark.parametrize("verb", ["show", "history", "state", "watch", "cancel", "delete"])
def test_a_run_that_isnt_there_is_not_found(runs: Command, verb: str) -> None:
    """H6: 4, and what to look at."""
    done = runs("runs", verb, "nope")
    assert done.code == 4
    assert "limpet runs list" in done.err


def test_a_problem_is_printed_for_programs_with_its_code(runs: Command) -> None:
    done = runs("runs", "show", "nope", "--json")
    assert (done.code, done.data["error"]["code"], done.err) == (4, "run-not-found", "")


def test_text_of_a_run_cant_command_the_terminal(runs: Command) -> None:
    """What a node raised is shown without its control characters."""
    runs("run", "flows:graph", "-i", "topic=\x1b[31mred", "--id", "red")
    assert "\x1b" not in runs("runs", "list").out
    assert "\x1b" not in runs("runs", "show", "red").out


def test_what_is_secret_is_shown_only_if_asked_for(runs: Command) -> None:
    """Also to a user who hasn't the graph's code."""
    done = runs("run", "flows:vault", "-i", "token=sesame", "--id", "v", "--json")
    assert (done.code, done.data["state"]["token"]) == (0, "‹secret›")
    for verb in (
        ["state", "v"],
        ["state", "v", "--json"],
        ["state", "v", "--key", "token"],
        ["diff", "v", "0", "1"],
    ):
        assert "sesame" not in "".join(runs("runs", *verb)[1:])
    assert runs("runs", "state", "v", "--key", "token", "--reveal").out == "sesame\n"
