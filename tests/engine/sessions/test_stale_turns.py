"""H18: a turn in the line of a limit that no call needs any more holds up no other call."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import pytest

from limpet import Limit, Limits, StateGraph, supervise
from limpet.engine.leases.lease_client import client_for
from limpet.engine.leases.limit_slots import SlotRequest, limits_of
from limpet.journal.store import Lease, NewRun, Store
from support.graphs import Via
from support.waiting import until


def crashed_in_line(store: Store, graph: StateGraph, run_id: str) -> None:
    """A run that a crashed process has begun: it stood in line for a call that the run doesn't make any more."""
    other = store.create(NewRun("other", "g", [b"x"], holder="another process", ttl=3600.0))
    assert other is not None
    limits = limits_of(client_for(store))
    limits.declare([Limit("api", concurrency=1)])
    holding = SlotRequest(other, "call", ("api",))
    assert limits.acquire([holding], stands_in_line=True) == [None]
    graph.start({}, run_id=run_id)
    (wait,) = limits.acquire([SlotRequest(Lease(run_id, 0, 0.0), "gone", ("api",))], stands_in_line=True)
    assert wait is not None
    limits.release([holding])  # so it is the turn of a call that doesn't exist


def limited(store: Store, calls: Sequence[Any]) -> StateGraph:
    """A node after another, of which one needs a slot. Leases last for ever, as far as tests are concerned."""
    graph = (
        StateGraph({"n": int}, name="limited")
        .add_node("n1", calls[0])
        .add_node("n2", calls[1], limits=["api"])
    )
    graph.set_entry_point("n1").add_edge("n1", "n2").set_finish_point("n2")
    return graph.compile(store=store, preserve=True, lease=3600.0)


@pytest.mark.parametrize("supervised", [False, True])
def test_a_turn_that_no_call_needs_is_given_up_at_once(any_store: Store, via: Via, supervised: bool) -> None:
    """H18: not after the length of a lease; whatever resumes the run."""
    graph = limited(any_store, [lambda state: {"n": 1}, lambda state: {"n": state["n"] + 1}])
    crashed_in_line(any_store, graph, "r")
    if supervised:
        with supervise(any_store, [graph], poll=0.05):
            until(lambda: graph.get("r").status == "completed")
    else:
        assert via.resume(graph, "r")["n"] == 2
    assert graph.state_at("r")["n"] == 2
    (limit,) = Limits(any_store).list()
    assert (limit.held, limit.waiting) == ((), 0)


@pytest.mark.parametrize("supervised", [False, True])
def test_a_turn_that_comes_while_the_run_waits_is_given_up_too(any_store: Store, supervised: bool) -> None:
    """H18: the run stands in line itself, behind the place that no call needs."""
    client = client_for(any_store)
    limits = limits_of(client)
    held: list[SlotRequest] = []

    def block(state: Any) -> dict[str, Any]:
        other = any_store.create(NewRun("other", "g", [b"x"], holder="another process", ttl=3600.0))
        assert other is not None
        held.append(SlotRequest(other, "call", ("api",)))
        limits.declare([Limit("api", concurrency=1)])
        assert limits.acquire(held, stands_in_line=True) == [None]
        lease = Lease("r", any_store.head("r").fence, 0.0)
        (wait,) = limits.acquire([SlotRequest(lease, "gone", ("api",))], stands_in_line=True)
        assert wait is not None
        return {"n": 1}

    graph = limited(any_store, [block, lambda state: {"n": 2}])
    with ExitStack() as stack:
        if supervised:
            stack.enter_context(supervise(any_store, [graph], poll=0.05))
            graph.start({}, run_id="r")
        else:
            thread = threading.Thread(target=graph.execute, args=[{}], kwargs={"run_id": "r"})
            thread.start()
            stack.callback(thread.join)
        until(lambda: held and graph.get("r").info.waits_for == "slot")
        limits.release(held)
        until(lambda: graph.get("r").status == "completed")
    (limit,) = Limits(any_store).list()
    assert (limit.held, limit.waiting) == ((), 0)
