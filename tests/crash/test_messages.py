"""kill -9 of runs that receive messages: each is received once, in order, and none is lost. H16."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from crash.messaging import TALK, chat, tasks, wide
from limpet.testing import CrashMatrix, CrashReport

CONVERSATION = {"user": TALK, "hint": ["never waited for"]}
IN_BRANCHES = {"a": [1, 2, 3], "b": ["x", "y", "z"]}


@pytest.fixture(scope="module")
def everywhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CrashMatrix]:
    """A matrix that kills at every point: inside of each node, and before, in and after each commit."""
    with CrashMatrix(tmp_path_factory.mktemp("everywhere"), every=True) as made:
        yield made


@pytest.fixture(scope="module")
def at_some(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CrashMatrix]:
    """A matrix that kills at some points; at all, if the environment says so."""
    every = "CRASH_EVERY_POINT" in os.environ
    with CrashMatrix(tmp_path_factory.mktemp("at-some"), every=every) as made:
        yield made


def test_a_conversation_killed_between_any_two_commits_is_the_same(everywhere: CrashMatrix) -> None:
    """H16, invariants 1, 2: the taking of a message is saved before `receive` returns, and kept like `once`."""
    report = everywhere(chat, messages=CONVERSATION)
    assert report.killed >= 15
    check_paid(report)


@pytest.mark.parametrize(("driver", "by"), [("async", "resume"), ("stream", "resume"), ("sync", "recover")])
def test_a_conversation_survives_kills_by_each_driver(at_some: CrashMatrix, driver: Any, by: Any) -> None:
    """H16: sync or async, resumed by a user or by a supervisor."""
    check_paid(at_some(chat, messages=CONVERSATION, driver=driver, by=by))


def check_paid(report: CrashReport) -> None:
    """A reply that was saved isn't paid for again: only the kill between paying and saving repeats one."""
    for kill in report.kills:
        paid = Counter(note["key"] for note in kill.notes if note["note"] == "effect")
        assert set(paid) == set(TALK)
        assert paid.total() <= len(TALK) + 1


def test_parallel_receivers_killed_between_any_two_commits_share_the_messages(
    everywhere: CrashMatrix,
) -> None:
    """H16, invariants 2, 5, 8: no message is received twice and none is lost, in branches and inner graphs."""
    assert everywhere(wide, messages=IN_BRANCHES).killed >= 15


def test_tasks_and_async_branches_survive_kills(at_some: CrashMatrix) -> None:
    """H16: the same of tasks, and with nodes on an event loop."""
    at_some(tasks, messages={"a": [1, 2]})
    at_some(wide, messages=IN_BRANCHES, driver="async")


def test_a_conversation_killed_again_and_again_at_any_moment_is_the_same(matrix: CrashMatrix) -> None:
    """H16: killed from outside, in the middle of a write or of a post, too."""
    report = matrix(chat, messages={"user": TALK}, random_kills=8)
    assert report.killed_processes >= 8
    report = matrix(wide, messages=IN_BRANCHES, random_kills=8)
    assert report.killed_processes >= 8
