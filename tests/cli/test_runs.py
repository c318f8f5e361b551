"""`runs …` that only read: tables, JSON, exit codes."""

from __future__ import annotations

import pytest

from support.command_line import Command


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
    assert done.err.strip().endswith("limpet answer waits yes --graph GRAPH")
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


def test_watching_a_run_that_has_stopped_ends_at_once(runs: Command) -> None:
    done = runs("runs", "watch", "waits")
    assert done.code == 3
    assert "paused" in done.out
    assert "limpet answer waits yes" in done.err
    assert runs("runs", "watch", "done", "--json").data["status"] == "completed"


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
