"""Queues, limits and schedules under fire: workers and their store in trouble at random, and all goes well.

In a usual run each store burns for some seconds, with one harm of each kind. `FIRE_MINUTES=5` has it burn for that
long, with harm at random, and `LIMPET_SEED` repeats the choices of an earlier fire.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.fire_checks import check
from support.under_fire import WAIT_BOUND, Fire

MINUTES = float(os.environ.get("FIRE_MINUTES") or 0.0)
SECONDS = MINUTES * 60 or 5.0


@pytest.mark.timeout(SECONDS + 5 * WAIT_BOUND)
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_limits_queues_and_schedules_hold_under_fire(
    kind: str, launch: Callable[..., Any], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """H17, H18: never more live slots than the limit, and none lost; each planned time once; no run starves."""
    url = f"sqlite:///{tmp_path}/runs.db"
    server = None
    if kind == "postgres":
        url, server = request.getfixturevalue("database"), request.getfixturevalue("postgres")
    fire = Fire(tmp_path, url, launch, server)
    fire.burn(SECONDS, pause=1.5 if MINUTES else None)
    drained = fire.drain()
    print({"drained in": round(drained, 1), **check(fire)})
    fire.store.close()
