"""H10: a poster and a holder of one run are killed at random moments. Each post is taken in once, in order.

`POST_KILLS=2000 pytest tests/e2e/test_post_kills.py` hunts for longer, with the random choices of `POST_KILLS_SEED`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import limpet

KILLS = int(os.environ.get("POST_KILLS", "25"))
SEED = int(os.environ.get("POST_KILLS_SEED", "1"))

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform has no fork"),
    pytest.mark.timeout(120 + KILLS),
]


def test_each_post_is_taken_in_once_and_in_order(store_url: str) -> None:
    """H10: a post that was acknowledged is in the journal once, and in the order in which it was posted."""
    paths = [Path(limpet.__file__).parents[1], Path(__file__).parents[1]]
    done = subprocess.run(
        [sys.executable, "-m", "support.post_kills", store_url, str(KILLS), str(SEED)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))},
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert sum(result["killed"].values()) == KILLS
    assert result["posts"] > 2
    print(store_url, result)
