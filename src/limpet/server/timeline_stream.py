"""The timeline of a run as server-sent events: what changed since a version, and what the store knows of the run.

However much happens in the run, a client gets a few messages a second.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

from starlette.concurrency import run_in_threadpool

from limpet.engine.following.follow import watched
from limpet.engine.leases.lease_client import LeaseClient
from limpet.errors import LimpetError
from limpet.frontends.problems import problem_details
from limpet.journal.store import ENDED, RUNNING
from limpet.server.event_stream import KEEP_ALIVE, NOTHING_NEW, message
from limpet.server.timeline import Timelines

GATHERED: Final = 0.25
"""Seconds between two messages, at least."""

LOOKED_AGAIN: Final = 3.0
"""Seconds after which a running run is looked at again, though its head is the same: leases expire by themselves."""

Changes = Callable[[str], dict[str, Any]]
"""Gives what changed in the timeline since a version."""


async def timeline_stream(
    timelines: Timelines, client: LeaseClient, run_id: str, changes: Changes, version: str
) -> AsyncIterator[bytes]:
    """What changes in a timeline after a version, until the run ends."""
    known_run: dict[str, Any] = {}
    known_problem: str | None = None
    promised_more = False
    silence = 0.0
    try:
        with timelines.following(run_id), watched(client, run_id) as run:
            while True:
                seen = run.version
                found = await run_in_threadpool(changes, version)
                is_known = found["run"] == known_run and found["problem"] == known_problem
                # The last message says that there is no more.
                has_all = promised_more and not found["more"]
                if found["rows"] or found["reset"] or has_all or not is_known:
                    version = found["version"]
                    promised_more = found["more"]
                    known_run = found["run"]
                    known_problem = found["problem"]
                    silence = 0.0
                    yield message("timeline", found, version)
                if found["more"]:
                    continue
                if known_run["stored_status"] in ENDED:
                    break
                await asyncio.sleep(GATHERED)
                patience = KEEP_ALIVE
                if known_run["stored_status"] == RUNNING:
                    patience = LOOKED_AGAIN
                await run.await_change(seen, patience)
                if run.version != seen:
                    continue
                silence += patience
                if silence >= KEEP_ALIVE:
                    silence = 0.0
                    yield NOTHING_NEW
        yield message("end", {})
    except LimpetError as problem:
        yield message("problem", problem_details(problem))
