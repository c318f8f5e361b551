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
    """H1, H3, H9, F12, D4, P1: wherever it is killed, state and counted effects are those of an uninterrupted run."""
    report = crash_matrix(build, answers=answers, driver=driver)
    assert report.ok
    assert report.killed > report.points // 2


def test_a_graph_killed_at_every_point_survives(crash_matrix: CrashMatrix) -> None:
    """H1, H3: at each commit, before it, unheard of, and after; in each call, and after each effect."""
    crash_matrix.every = True
    report = crash_matrix("support.kit_graphs:linear_graph")
    assert report.commits == 4
    assert report.points == 3 * 4 + 3 + 3
    assert report.killed == report.points


@pytest.mark.parametrize(
    ("build", "answers"), [(kit_graphs.parallel, {}), (kit_graphs.asking, REVIEW)], ids=["parallel", "asking"]
)
def test_a_sweep_recovers_it_as_well(crash_matrix: CrashMatrix, build: Any, answers: dict[str, Any]) -> None:
    """H1, H9: a supervisor goes on with what was killed; answers and time come in between."""
    assert crash_matrix(build, answers=answers, by="recover").ok


def test_the_demonstration_survives(crash_matrix: CrashMatrix) -> None:
    """H1: the graph that `limpet demo` kills once."""
    review = f"Publish “{TEXT}”?"
    report = crash_matrix(
        "limpet.cli.demo_graph:graph", {"topic": "kelp"}, answers={review: in_turn("no", "yes")}
    )
    assert report.ok
    assert report.killed > report.points // 2


def defined_in_this_module(store: Any) -> StateGraph:
    graph = StateGraph(name="here").add_node("only", run=kit_graphs.step)
    return graph.set_entry_point("only").set_finish_point("only").compile(store=store)


def test_a_new_python_may_be_started_for_each_process(crash_matrix: CrashMatrix) -> None:
    """For libraries that don't tolerate a fork. The graph may be defined in the module of its test."""
    assert crash_matrix(defined_in_this_module, point="2:written", fresh=True).killed == 1


def test_no_process_survives_the_test(crash_matrix: CrashMatrix) -> None:
    """Neither the processes that were killed, nor those that started them."""
    crash_matrix(kit_graphs.linear, point="2:after")
    pids = pids_of(crash_matrix)
    assert len(pids) == 4
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_several_processes_of_one_run_may_be_killed(crash_matrix: CrashMatrix) -> None:
    """H3: each that resumes the run is killed at the same point, counted from its own start."""
    report = crash_matrix(kit_graphs.linear, point="2:after", kills=3)
    assert (report.ok, report.killed) == (True, 1)
    uninterrupted_runs = 2
    assert len(pids_of(crash_matrix)) > uninterrupted_runs + 2


def pids_of(crash_matrix: CrashMatrix) -> list[int]:
    """The ids of all processes of a matrix."""
    return [
        int(line.partition('"pid": ')[2].partition(",")[0])
        for log in crash_matrix.folder.rglob("log")
        for line in log.read_text().splitlines()
        if '"note": "process"' in line
    ]
