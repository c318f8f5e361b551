"""kill -9 of runs whose nodes say where to go, and whose errors other nodes handle."""

from __future__ import annotations

from typing import Any

import pytest

from crash.jumping import jumping
from limpet.testing import CrashMatrix

LOG = [
    "plan 1",
    "work: ConnectionError: no route",
    "plan 2",
    "work: ValueError: no number",
    "plan",
    "0",
    "KeyError branch[1]/branch",
    "checked",
    "3",
    "ZeroDivisionError: division by zero",
]


def test_the_graph_goes_where_its_nodes_and_errors_lead() -> None:
    """Goto and error edges, without any kill: so that the crash tests below are about what they say."""
    assert jumping().execute({})["log"] == LOG


@pytest.mark.parametrize(
    ("driver", "points"), [("sync", ["2:before", "1:written", "1:after"]), ("async", ["1:written"])]
)
def test_a_run_killed_between_any_two_commits_goes_where_it_would_have(
    matrix: CrashMatrix, driver: Any, points: list[str]
) -> None:
    """Goto and error edges, invariants 1 to 4: each process makes one commit, and is killed around it."""
    report = matrix(jumping, driver=driver, chains=[[point] * 60 for point in points])
    assert report.killed_processes > 12 * len(points)


def test_a_run_killed_inside_of_any_call_goes_where_it_would_have(matrix: CrashMatrix) -> None:
    """Goto and error edges: the handler that is called again finds the same error."""
    report = matrix(jumping, chains=[["effect-start-1:done", "effect-start-2:done"] * 10])
    assert report.killed_processes > 5
