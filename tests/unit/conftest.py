"""What all unit tests share."""

from __future__ import annotations

import pytest

from holdfast.engine.task import CURRENT


@pytest.fixture(autouse=True)
def no_node_is_running() -> None:
    """Tests that call nodes by themselves, without a driver, leave the last task behind in their thread."""
    CURRENT.set(None)
