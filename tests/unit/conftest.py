"""What all unit tests share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from limpet import MemoryStore
from limpet.engine.node_context.node_context import CURRENT
from support.sections import Via


@pytest.fixture(autouse=True)
def no_node_is_running() -> None:
    """Tests that call nodes by themselves, without a driver, leave the last task behind in their thread."""
    CURRENT.set(None)


@pytest.fixture(params=["sync", "async"])
def via(request: pytest.FixtureRequest) -> Via:
    """Which API runs graphs."""
    return Via(request.param)


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Where runs are kept."""
    return new_store(request.param, tmp_path)


@pytest.fixture(params=["no store", "memory", "sqlite"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    """Where runs are kept, if anywhere, as an option of `compile`."""
    return {} if request.param == "no store" else {"store": new_store(request.param, tmp_path)}


def new_store(kind: str, folder: Path) -> Any:
    return MemoryStore() if kind == "memory" else f"sqlite:///{folder}/runs.db"
