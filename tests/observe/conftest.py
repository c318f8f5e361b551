"""What tests of observers share."""

from __future__ import annotations

import pytest

from support.telemetry import Telemetry, in_memory


@pytest.fixture
def telemetry() -> Telemetry:
    """Telemetry of one test."""
    return in_memory()
