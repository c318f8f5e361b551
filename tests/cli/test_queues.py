"""Queues at the command line: `run --queue`, `worker --queue`, `runs list --queue`. H18."""

from __future__ import annotations

import json

import pytest

from support.command_line import Command


def test_workers_execute_the_runs_of_their_queues(limpet: Command) -> None:
    """H18: which can be named in a list, or one by one; without a name, those of all."""
    for run_id, queue in (("a", "gpu"), ("b", "night"), ("c", None), ("d", "idle")):
        words = ["--queue", queue] if queue else []
        assert limpet("run", "flows:plain", "--detach", "--id", run_id, *words).code == 0
    executed = []
    for words in (["--queue", "gpu, default"], ["--queue", "night", "--queue", "gpu"], []):
        done = limpet("worker", "flows:plain", "--once", "--json", *words)
        executed.append(sorted(json.loads(done.out.splitlines()[-1])["runs"]))
    assert executed == [["a", "c"], ["b"], ["d"]]


def test_a_list_has_a_column_of_queues_where_they_differ(limpet: Command) -> None:
    """H18: not where all runs are in the default one; and it can be restricted to one."""
    limpet("run", "flows:plain", "--detach", "--id", "a")
    assert "queue " not in limpet("runs", "list").out
    limpet("run", "flows:plain", "--detach", "--id", "b", "--queue", "gpu")
    listed = limpet("runs", "list").out.splitlines()
    assert "queue" in listed[0]
    assert "gpu" in listed[1]
    assert "default" in listed[2]
    only = limpet("runs", "list", "--queue", "gpu", "--json").data
    assert [(info["run_id"], info["queue"]) for info in only] == [("b", "gpu")]
    assert "gpu" in limpet("runs", "show", "b").out
    assert "\nqueue " not in limpet("runs", "show", "a").out
    assert limpet("runs", "cancel", "--queue", "gpu", "--yes", "--json").data["done"] == 1


def test_a_queue_is_only_for_queued_runs(limpet: Command) -> None:
    """H18: it isn't silently ignored."""
    done = limpet("run", "flows:plain", "--queue", "gpu")
    assert (done.code, "--detach" in done.err) == (2, True)


@pytest.mark.parametrize("wrong", ["", "a,", "a/b", "a:b"])
def test_names_that_are_none_are_refused(limpet: Command, wrong: str) -> None:
    """H18: with what a name looks like."""
    for words in (["worker", "flows:plain", "--once"], ["run", "flows:plain", "--detach"]):
        done = limpet(*words, "--queue", wrong)
        assert (done.code, "the name of a queue must be" in done.err) == (2, True)
