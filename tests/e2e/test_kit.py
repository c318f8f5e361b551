"""The crash-test kit on a graph of each kind, and on the demonstration: what users' graphs have to pass, ours do."""

from __future__ import annotations

import os
from typing import Any

import pytest

from limpet import StateGraph
from limpet.testing import UNANSWERED, CrashMatrix, in_turn
from support import kit_graphs

TEXT = "Kelp grows half a metre a day. It lives on rocks in cold water. It is eaten, and it shelters limpets."
REVIEW = {"Publish?": in_turn("no", "yes"), "When?": UNANSWERED}


@pytest.mark.parametrize(
    ("build", "driver", "answers"),
    [
        (kit_graphs.linear, "async", {}),
        (kit_graphs.cycle, "sync", {}),
        (kit_graphs.parallel, "sync", {}),
        (kit_graphs.parallel, "async", {}),
        (kit_graphs.mapped, "sync", {}),
        (kit_graphs.workflow, "sync", {"Approve?": "yes"}),
        (kit_graphs.workflow, "async", {"Approve?": "yes"}),
        (kit_graphs.asking, "sync", REVIEW),
        (kit_graphs.asking, "async", REVIEW),
    ],
)
def test_a_graph_of_each_kind_survives(
    crash_matrix: CrashMatrix, build: Any, driver: Any, answers: dict[str, Any]
) -> None:
    """H1, H3, H9, F12, D4, P1: final state and counted effects are those of an uncut run, wherever it is killed."""
    account = crash_matrix(build, answers=answers, driver=driver)
    assert account.ok
    assert account.killed > account.points // 2


def test_a_graph_killed_at_every_point_survives(crash_matrix: CrashMatrix) -> None:
    """H1, H3: at each commit, before it, unheard of, and after; in each call, and after each effect."""
    crash_matrix.every = True
    account = crash_matrix("support.kit_graphs:linear_graph")
    assert account.commits == 4
    assert account.points == 3 * 4 + 3 + 3
    assert account.killed == account.points


@pytest.mark.parametrize(
    ("build", "answers"), [(kit_graphs.parallel, {}), (kit_graphs.asking, REVIEW)], ids=["parallel", "asking"]
)
def test_a_sweep_recovers_it_as_well(crash_matrix: CrashMatrix, build: Any, answers: dict[str, Any]) -> None:
    """H1, H9: a supervisor goes on with what was killed; answers and time come in between."""
    assert crash_matrix(build, answers=answers, by="recover").ok


def test_the_demonstration_survives(crash_matrix: CrashMatrix) -> None:
    """H1: the graph that `limpet demo` kills once."""
    review = f"Publish “{TEXT}”?"
    account = crash_matrix(
        "limpet.cli.demo_graph:graph", {"topic": "kelp"}, answers={review: in_turn("no", "yes")}
    )
    assert account.ok
    assert account.killed > account.points // 2


def beside_its_test(store: Any) -> StateGraph:
    graph = StateGraph(name="here").add_node("only", run=kit_graphs.step)
    return graph.set_entry_point("only").set_finish_point("only").compile(store=store)


def test_a_process_may_be_started_anew_for_each_life(crash_matrix: CrashMatrix) -> None:
    """For libraries that can't bear a fork, and where there is none. A graph may be defined beside its test."""
    assert crash_matrix(beside_its_test, point="2:written", fresh=True).killed == 1


def test_no_process_is_left_behind(crash_matrix: CrashMatrix) -> None:
    """Neither of those that were killed, nor of those that began them."""
    crash_matrix(kit_graphs.linear, point="2:after")
    pids = [
        int(line.partition('"pid": ')[2].partition(",")[0])
        for log in crash_matrix.folder.rglob("log")
        for line in log.read_text().splitlines()
        if '"note": "life"' in line
    ]
    assert len(pids) == 4
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
