"""kill -9 of runs whose calls wait for slots of limits: nothing is lost, and no slot stays taken. H18."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from crash.limiting import narrow, tasks
from limpet.testing import CrashMatrix


@pytest.fixture(scope="module")
def at_some(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CrashMatrix]:
    """A matrix that kills at some points; at all, if the environment says so."""
    every = "CRASH_EVERY_POINT" in os.environ
    with CrashMatrix(tmp_path_factory.mktemp("at-some"), every=every) as made:
        yield made


def test_a_run_with_limits_killed_between_any_two_commits_is_the_same(at_some: CrashMatrix) -> None:
    """H18, invariants 1, 2: its calls get their slots, although those of the killed process were never released."""
    assert at_some(narrow).killed >= 5


@pytest.mark.parametrize(("driver", "by"), [("async", "resume"), ("sync", "recover")])
def test_a_run_with_limits_survives_kills_by_each_driver(at_some: CrashMatrix, driver: Any, by: Any) -> None:
    """H18: sync or async, resumed by a user, in place, or by a supervisor, which it leaves while it waits."""
    at_some(narrow, driver=driver, by=by)


def test_a_workflow_with_limits_killed_at_any_moment_is_the_same(matrix: CrashMatrix) -> None:
    """H18: killed from outside, in the middle of a change of a limit, too."""
    assert matrix(tasks, random_kills=6).killed_processes >= 6
