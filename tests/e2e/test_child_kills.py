"""Child runs and deadlines, with a kill between any two writes to the store: H16, invariants 1 to 4.

On SQLite that is before each write. `CHILD_KILLS=all` has it so on all stores, on which it is else before some.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parent.parent


EACH = 1
SOME = 7
"""How far apart the writes are before which a process is killed."""
OTHERS = [("files", "execute"), ("postgres", "work"), ("redis", "execute"), ("files", "miss")]
if os.environ.get("CHILD_KILLS") == "all":
    SOME = EACH
    OTHERS = [*product(["files", "postgres", "redis"], ["execute", "work", "miss"])]
ENDS = {
    "execute": {"n": 24, "children": 2, "statuses": ["completed"]},
    "work": {"n": 24, "children": 2, "statuses": ["completed"]},
    "miss": {"error": "deadline-passed", "n": 2},
}
"""How a run ends that is executed by its caller, by workers, or that misses its deadline and gets another one."""


def outcomes(url: str, way: str, step: int) -> list[dict[str, Any]]:
    """What was found after each kill."""
    done = subprocess.run(
        [sys.executable, "-m", "support.child_kills", url, way, str(step)],
        cwd=TESTS,
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def sqlite_url(folder: Path) -> str:
    return f"sqlite:///{folder / 'runs.db'}?level=process"


@pytest.mark.parametrize("way", ["execute", "work"])
def test_a_kill_between_any_two_writes_loses_no_child_and_no_end_of_one(way: str, tmp_path: Path) -> None:
    """H16: the run ends with the same result, and with the same two children."""
    found = outcomes(sqlite_url(tmp_path), way, EACH)
    assert len(found) > 10
    assert found == [ENDS[way]] * len(found)


def test_a_kill_between_any_two_writes_leaves_a_run_that_fails_at_its_deadline(tmp_path: Path) -> None:
    """H16: and that ends, once it has another one, as if nothing had happened."""
    found = outcomes(sqlite_url(tmp_path), "miss", EACH)
    assert len(found) > 5
    assert found == [ENDS["miss"]] * len(found)


@pytest.mark.parametrize(("store_url", "way"), OTHERS, indirect=["store_url"])
def test_no_store_loses_a_child_or_a_deadline_when_a_process_is_killed(store_url: str, way: str) -> None:
    """H16: on stores with other locks, transactions and clocks."""
    found = outcomes(store_url, way, SOME)
    assert len(found) > 1
    assert found == [ENDS[way]] * len(found)
