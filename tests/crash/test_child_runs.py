"""kill -9 of runs that start other runs: each child is started once, and its end isn't missed. H16."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from crash.families import LOG, family
from limpet import MemoryStore
from limpet.testing import CrashMatrix, CrashReport, FakeClock

CHAINS = [["3:before"] * 6, ["4:written"] * 5, ["5:after", "2:written"] * 3]
"""Commits of the parent or of a child, whichever comes first in a process."""


@pytest.fixture(scope="module")
def at_some(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CrashMatrix]:
    """A matrix that kills at some points; at all, if the environment says so."""
    every = "CRASH_EVERY_POINT" in os.environ
    with CrashMatrix(tmp_path_factory.mktemp("at-some"), every=every) as made:
        yield made


def test_the_family_does_what_its_text_says() -> None:
    """H16: without any kill, so that the crash tests below are about what they say."""
    clock = FakeClock(1e9, auto=True)
    graph = family().compile(store=MemoryStore(clock=clock))
    assert graph.execute({})["log"] == LOG
    assert clock() == pytest.approx(1e9 + 60)


@pytest.mark.parametrize("driver", ["sync", "async"])
def test_a_family_killed_between_two_commits_ends_as_it_would_have(at_some: CrashMatrix, driver: Any) -> None:
    """H16, invariants 1 to 4: around commits of the parent and of its children, and inside of their nodes."""
    report = at_some(family, driver=driver)
    assert report.killed >= 5
    check_paid(report)


def test_a_family_killed_again_after_a_few_commits_ends_as_it_would_have(at_some: CrashMatrix) -> None:
    """H16, invariants 1 to 4: each process makes a few commits, of the parent or of a child."""
    report = at_some(family, chains=CHAINS)
    assert report.killed_processes >= 9
    check_paid(report)


def test_a_family_killed_at_any_moment_ends_as_it_would_have(at_some: CrashMatrix) -> None:
    """H16: killed from outside, in the middle of a write or of a post, too."""
    report = at_some(family, random_kills=8)
    assert report.killed_processes >= 8
    check_paid(report)


def check_paid(report: CrashReport) -> None:
    """There is one child for each start. It pays again only after a kill between paying and saving.

    Children run at the same time, so one kill may come between for several of them.
    """
    for kill in report.kills:
        paid = Counter(note["key"] for note in kill.notes if note["note"] == "effect")
        assert set(paid) == {"1", "2", "3", "10"}
        assert max(paid.values()) <= 1 + kill.killed
