"""Child runs and deadlines, with a kill between any two writes to the store: H16, invariants 1 to 4."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parent.parent


def outcomes(folder: Path, way: str) -> list[dict[str, Any]]:
    """What was found after each kill."""
    done = subprocess.run(
        [sys.executable, "-m", "support.child_kills", str(folder), way],
        cwd=TESTS,
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("way", ["execute", "work"])
def test_a_kill_between_any_two_writes_loses_no_child_and_no_end_of_one(way: str, tmp_path: Path) -> None:
    """H16: the run ends with the same result, and with the same two children."""
    found = outcomes(tmp_path, way)
    assert len(found) > 10
    assert found == [{"n": 24, "children": 2, "statuses": ["completed"]}] * len(found)


def test_a_kill_between_any_two_writes_leaves_a_run_that_fails_at_its_deadline(tmp_path: Path) -> None:
    """H16: and that ends, once it has another one, as if nothing had happened."""
    found = outcomes(tmp_path, "miss")
    assert len(found) > 5
    assert found == [{"error": "deadline-passed", "n": 2}] * len(found)
