"""The pytest plugin: the fixture `crash_matrix`, and how thorough it is. Installed with Limpet, idle until used."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from limpet.testing.crash.matrix import CrashMatrix


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("limpet")
    group.addoption(
        "--limpet-crash-matrix",
        action="store_true",
        help="crash_matrix kills a process at every commit of a run and between them, not just at a few points",
    )
    group.addoption(
        "--limpet-crash-point",
        metavar="POINT",
        help="crash_matrix kills a process at this point only, such as 17:after, as its report names it",
    )


@pytest.fixture
def crash_matrix(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[CrashMatrix]:
    """Kill real processes that run your graph, and check that each run ends as if it hadn't been killed.

    `crash_matrix(build, input)`, where `build` is a function at the top of a module that makes the graph. A few
    kills by default; with `--limpet-crash-matrix` one at every commit, before, during and after, and in between.
    """
    from limpet.testing.crash.matrix import CrashMatrix

    point: str | None = request.config.getoption("--limpet-crash-point")
    every: bool = request.config.getoption("--limpet-crash-matrix")
    repeat_hint = f", or pytest '{request.node.nodeid}' --limpet-crash-point={{point}}"
    matrix = CrashMatrix(tmp_path / "crash_matrix", every=every, only=point, repeat_hint=repeat_hint)
    with matrix:
        yield matrix
