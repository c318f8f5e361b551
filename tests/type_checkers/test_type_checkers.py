"""The examples here, as mypy and pyright see them, in their strict modes."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
EXAMPLES = HERE / "examples"
MISTAKES = "mistakes.py"


def lines_with_errors(checker: str) -> dict[str, set[int]]:
    """The lines that a type checker refuses, by the names of the files."""
    if checker == "mypy":
        return _mypy()
    if find_spec("pyright") is None and not os.environ.get("CI"):
        pytest.skip("pyright isn't installed: make test installs it, from the registry of packages")
    return _pyright()


def _mypy() -> dict[str, set[int]]:
    # In the root, with the settings and the cache of `make lint`: the library itself isn't checked again.
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--no-error-summary",
        str(EXAMPLES.relative_to(ROOT)),
    ]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "MYPYPATH": "src"}, capture_output=True, text=True, timeout=110
    )
    found: dict[str, set[int]] = defaultdict(set)
    for line in done.stdout.splitlines():
        place = re.match(r"(.+\.py):(\d+): error: ", line)
        if place:
            found[Path(place[1]).name].add(int(place[2]))
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return found


def _pyright() -> dict[str, set[int]]:
    command = [
        sys.executable,
        "-m",
        "pyright",
        "-p",
        str(HERE),
        "--pythonpath",
        sys.executable,
        "--outputjson",
    ]
    environment = {**os.environ, "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=110)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["summary"]["filesAnalyzed"] == len(list(EXAMPLES.glob("*.py")))
    found: dict[str, set[int]] = defaultdict(set)
    for each in report["generalDiagnostics"]:
        if each["severity"] == "error":
            found[Path(each["file"]).name].add(each["range"]["start"]["line"] + 1)
    return found


@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_typed_code_passes_and_each_mistake_is_found(checker: str) -> None:
    """H14: `StateGraph[S]`, `State[S]`, the answers of `pause`, and tasks that depend on functions."""
    lines = (EXAMPLES / MISTAKES).read_text(encoding="utf-8").splitlines()
    wrong = {number for number, line in enumerate(lines, 1) if line.endswith("# wrong")}
    assert len(wrong) == 14
    assert lines_with_errors(checker) == {MISTAKES: wrong}


def test_the_typed_code_runs() -> None:
    """H14: and has the types that the checkers found."""
    spec = spec_from_file_location("states", EXAMPLES / "states.py")
    assert spec is not None
    assert spec.loader is not None
    states = module_from_spec(spec)
    sys.modules["states"] = states  # where postponed annotations are looked up
    try:
        spec.loader.exec_module(states)
        assert (states.typed_dict(), states.data_class()) == (4, 4)
        assert asyncio.run(states.model()) == states.Order(item="nets", count=4)
        assert states.untyped() == {"topic": "kelp"}
        assert states.final_state().model == states.Review("kelp", 4, ["graded"])
    finally:
        del sys.modules["states"]
    spec = spec_from_file_location("workflows", EXAMPLES / "workflows.py")
    assert spec is not None
    assert spec.loader is not None
    workflows = module_from_spec(spec)
    spec.loader.exec_module(workflows)
    assert workflows.run().results["report"] == "2 words, the longest is grows"
