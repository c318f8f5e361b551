"""Attempts are counted over crashes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs the signals of POSIX")

KEY = "r/2/try"


@pytest.mark.parametrize("script", ["die ok", "raise die ok", "die raise ok", "die die ok"])
def test_an_attempt_that_was_killed_counts(
    actor: Callable[..., Any], effects: Any, tmp_path: Path, script: str
) -> None:
    """H8: each attempt has the next number, wherever it runs, and all of them the same idempotency key."""
    (tmp_path / "attempts").write_text(script)
    kills = script.split().count("die")
    for life in range(kills):
        doomed = actor("trying", lease=60)
        doomed.tell("execute" if life == 0 else "resume", run_id="r")
        assert doomed.wait() == -9
    last = actor("trying", lease=60)
    assert last.ask("resume", run_id="r")["returned"] == {"attempt": len(script.split())}
    assert effects() == [[str(number), KEY] for number in range(1, len(script.split()) + 1)]


@pytest.mark.parametrize("script", ["die raise raise", "raise die raise", "raise raise raise"])
def test_no_more_attempts_than_allowed_over_a_crash(
    actor: Callable[..., Any], effects: Any, tmp_path: Path, script: str
) -> None:
    """H8, G9: three attempts are three, a killed one included; the failure says what the last one raised."""
    (tmp_path / "attempts").write_text(f"{script} ok ok")
    process = actor("trying", lease=60)
    process.tell("execute", run_id="r")
    if "die" in script:
        assert process.wait() == -9
        process = actor("trying", lease=60)
        process.tell("resume", run_id="r")
    answer = process.hear()
    assert (answer["raised"], answer["node"]) == ("ExecutionError", "try")
    assert answer["cause"] == ["ConnectionError", "not now"]
    assert effects() == [["1", KEY], ["2", KEY], ["3", KEY]]
    (info,) = process.ask("runs")["returned"]
    assert (info["status"], info["error"]["type"]) == ("failed", "ConnectionError")


def test_a_resume_that_was_refused_isnt_an_attempt(
    actor: Callable[..., Any], effects: Any, tmp_path: Path
) -> None:
    """H8: the node knows the attempts at it, not the calls that never ran it."""
    (tmp_path / "attempts").write_text("die raise ok ok ok")
    doomed = actor("trying", lease=60)
    doomed.tell("execute", run_id="r")
    assert doomed.wait() == -9
    other = actor("trying", lease=60)
    for _ in range(3):
        assert other.ask("resume", "r", "an answer to no question")["raised"] == "UsageError"
    other.ask("resume", "r")
    assert effects() == [["1", KEY], ["2", KEY], ["3", KEY]]
