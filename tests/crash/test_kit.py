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
    """H1, H9: a supervisor resumes what was killed; answers and time come in between."""
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


@pytest.mark.parametrize("driver", ["stream", "astream"])
@pytest.mark.parametrize(
    ("build", "answers"),
    [(kit_graphs.parallel, {}), (kit_graphs.asking, REVIEW), (kit_graphs.workflow, {"Approve?": "yes"})],
)
def test_a_run_that_is_streamed_survives(
    crash_matrix: CrashMatrix, build: Any, answers: dict[str, Any], driver: Any
) -> None:
    """H3, H9: what an event has reported doesn't run again."""
    report = crash_matrix(build, answers=answers, driver=driver)
    assert report.killed > report.points // 2
    assert any(note["note"] == "event" for kill in report.kills for note in kill.notes)


@pytest.mark.parametrize("driver", ["sync", "async", "stream", "astream"])
def test_a_workflow_is_resumed_by_any_of_its_checkpoints(crash_matrix: CrashMatrix, driver: Any) -> None:
    """D3, H3: each process takes another one; a graph of another kind is resumed by its newest."""
    assert crash_matrix(kit_graphs.workflow, answers={"Approve?": "yes"}, driver=driver, by="checkpoint").ok
    assert crash_matrix(kit_graphs.cycle, driver=driver, by="checkpoint", point="3:after").killed == 1


def test_each_process_of_a_run_may_be_killed_at_a_point_of_its_own(crash_matrix: CrashMatrix) -> None:
    """H3: one list of points for each run, and the process after the last of them ends it."""
    chains = [["1:before", "2:before", "2:before"], ["effect-clean-1:done", "1:written"], ["2:after"]]
    report = crash_matrix(kit_graphs.linear, chains=chains, level="disk")
    assert (report.points, report.killed, report.killed_processes) == (3, 3, 6)
    assert report.calls == 3
    assert [kill.repeated for kill in report.kills] == [2, 1, 0]
    assert report.repeated_per_kill == 2 / 3


def test_a_chain_ends_with_its_run(crash_matrix: CrashMatrix) -> None:
    """H3: however many points are left."""
    report = crash_matrix(defined_in_this_module, chains=[["1:written"] * 100])
    assert (report.killed_processes, report.repeated_per_kill) == (2, 0)


def test_processes_are_killed_at_random_until_there_were_so_many(crash_matrix: CrashMatrix) -> None:
    """H3: from outside, those of one run until it ends, and then those of others."""
    report = crash_matrix(kit_graphs.cycle, random_kills=12)
    assert report.killed_processes >= 12
    assert 1 < report.killed <= report.points


def test_calls_of_one_matrix_share_the_uninterrupted_run(crash_matrix: CrashMatrix) -> None:
    """H4, invariant 3: so a run by another driver is compared with the same one; not outside of `with`."""
    for driver in ("sync", "async", "stream"):
        crash_matrix(kit_graphs.linear, driver=driver, point="2:after")
    assert len(list(crash_matrix.folder.glob("*uninterrupted*"))) == 2
    alone = CrashMatrix(crash_matrix.folder / "alone")
    for _ in range(2):
        alone(kit_graphs.linear, point="2:after")
    assert len(list(alone.folder.glob("*uninterrupted*"))) == 4


def pids_of(crash_matrix: CrashMatrix) -> list[int]:
    """The ids of all processes of a matrix."""
    return [
        int(line.partition('"pid": ')[2].partition(",")[0])
        for log in crash_matrix.folder.rglob("log")
        for line in log.read_text().splitlines()
        if '"note": "process"' in line
    ]
