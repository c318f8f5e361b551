"""The statuses that people see: finer than the stored ones, and derived from them."""

from __future__ import annotations

from typing import Any

import pytest

from limpet import Retry, RunInfo, StateGraph, sleep
from limpet.engine.leases.process_identity import this_process
from limpet.engine.operations.run_info import SHOWN_STATUSES

DEAD = "|".join([*this_process().split("|")[:4], "1"])
"""A process of this host that no longer runs: its id now belongs to a process that started at another time."""


def info(status: str, **known: Any) -> RunInfo:
    """What a store knows of a run that has this status."""
    blank = RunInfo("r", "g", status, 1.0, 2.0, (), None, 1, "a", None, None, [], None)
    return blank._replace(**known)


@pytest.mark.parametrize(
    ("known", "shown"),
    [
        (info("running", due=0.0), "queued"),
        (info("running", due=1e11), "sleeping"),
        (info("running", due=1e11, error={"type": "ValueError"}), "retrying"),
        (info("running", due=0.0, holder=this_process()), "running"),
        (info("running", due=0.0, holder="elsewhere|boot|namespace|1|2"), "running"),
        (info("running", due=0.0, holder=DEAD), "abandoned"),
        (info("failed", error={"type": "RunQuarantined"}), "quarantined"),
        (info("failed", error={"type": "ValueError"}), "failed"),
        (info("paused", due=1e11), "paused"),
        (info("completed"), "completed"),
        (info("cancelled"), "cancelled"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_run_is_shown_with_the_finest_status_that_applies(known: RunInfo, shown: str) -> None:
    """H1."""
    assert known.shown_status == shown


def test_each_status_that_is_shown_is_that_of_some_run() -> None:
    """H1: queued, sleeping and retrying runs of a store are shown as such."""
    graph = StateGraph(name="g")
    graph.add_node("wait", _wait_or_fail, retry=Retry(2, backoff=3600, max_delay=3600))
    graph.set_entry_point("wait")
    graph.set_finish_point("wait")
    graph.compile(store="memory://")
    graph.start({"fails": False}, run_id="sleeps")
    graph.start({"fails": True}, run_id="retries")
    graph.recover()
    graph.start({"fails": False}, run_id="waits")
    shown = {each.run_id: each.shown_status for each in graph.runs()}
    assert shown == {"sleeps": "sleeping", "retries": "retrying", "waits": "queued"}
    assert set(shown.values()) <= {each.name for each in SHOWN_STATUSES}


def _wait_or_fail(state: dict[str, Any]) -> None:
    if state["fails"]:
        raise ValueError("busy")
    sleep(3600)
