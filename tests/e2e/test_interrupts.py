"""Runs that are interrupted by signal handlers that raise, as Ctrl-C and time limits do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import limpet as library
from support import interrupted_runs
from support.redis_servers import redis_server

COUNT = int(os.environ.get("INTERRUPTS", "0"))
"""Interrupts of each store and shape; by default a few."""
SEED = int(os.environ.get("INTERRUPT_SEED", "0"))
STORES = ("memory", "files", "sqlite", "postgres", "redis")
FEW = 12

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has other signals")


@contextmanager
def store_url(kind: str, folder: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    """A new store of this kind."""
    if kind == "postgres":
        yield request.getfixturevalue("database")
    elif kind == "redis":
        with redis_server(folder / "redis") as server:
            yield server.url
    else:
        yield {
            "memory": "memory://",
            "files": f"file://{folder}/runs?level=process",
            "sqlite": f"sqlite:///{folder}/runs.db",
        }[kind]


def hunt(shape: str, url: str, mode: str, count: int) -> dict[str, Any]:
    """Interrupt runs in a process of their own, and return its report."""
    source = Path(interrupted_runs.__file__)
    path = os.pathsep.join([str(Path(library.__file__).parents[1]), str(source.parents[1])])
    command = [sys.executable, str(source), shape, "--store", url, "--mode", mode]
    command += ["--count", str(count), "--seed", str(SEED)]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    assert done.stdout, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


@pytest.mark.timeout(0 if COUNT else 120)
@pytest.mark.parametrize("kind", STORES)
@pytest.mark.parametrize("shape", interrupted_runs.SHAPES)
def test_an_interrupt_leaves_no_lock_held_and_loses_nothing(
    shape: str, kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """G12: whenever it comes, later saves are made, by other processes too, and the run equals an uncut one."""
    with store_url(kind, tmp_path, request) as url:
        report = hunt(shape, url, "random", COUNT or FEW)
    assert not report["problems"], "\n".join(report["problems"])
    assert report["interrupts"] >= (COUNT or FEW)


@pytest.mark.timeout(0 if COUNT else 120)
@pytest.mark.parametrize("kind", STORES)
@pytest.mark.parametrize("shape", ["loop", "parallel"] if COUNT else ["loop"])
def test_an_interrupt_at_any_point_of_the_code_leaves_no_lock_held(
    shape: str, kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """G12: wherever Python can run a signal handler; by default at some of the points."""
    with store_url(kind, tmp_path, request) as url:
        report = hunt(shape, url, "points", 0 if COUNT else FEW)
    assert not report["problems"], "\n".join(report["problems"])
    assert report["interrupts"] > FEW / 2
