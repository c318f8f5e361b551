"""The example of the README, as a reader would run it: more than once."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_example_can_be_run_twice(tmp_path: Path) -> None:
    """H10: the second time it prints the result that was kept, and drafts nothing."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    example = re.search(r"```python\n(.*?)```", readme, re.DOTALL)
    assert example is not None
    outputs = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", example[1]],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert (done.returncode, done.stderr) == (0, "")
        outputs.append(done.stdout.splitlines())
    first, second = outputs
    assert first[0].startswith("drafting")
    assert second == first[-1:]
