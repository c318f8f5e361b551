"""One writer: two processes want the same run, and exactly one advances it."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs the signals of POSIX")

Actor = Callable[..., Any]
SHORT = 1.0
"""A lease, in seconds, that runs out while a test waits."""

EXECUTE = {"sync": "execute", "async": "aexecute"}
RESUME = {"sync": "resume", "async": "aresume"}
either_driver = pytest.mark.parametrize("driver", ["sync", "async"])


@pytest.fixture
def holding(actor: Actor, effects: Any, until: Any) -> Actor:
    """A process that executes run "r" and is inside `hold` now, waiting for the gate."""

    def start(driver: str = "sync", **settings: Any) -> Any:
        program = actor("gated", **settings)
        program.tell(EXECUTE[driver], run_id="r")
        until(lambda: ["hold", str(program.pid)] in effects())
        return program

    return start


def counted(effects: list[list[str]]) -> dict[str, int]:
    nodes = [node for node, *_ in effects]
    return {node: nodes.count(node) for node in ("first", "hold", "last")}


def is_frozen_between_writes(program: Any, file: Path) -> bool:
    """Stop it, unless it is writing: while it stands still with the write lock, no process can claim its run."""
    program.freeze()
    try:
        with closing(sqlite3.connect(file, timeout=0, isolation_level=None)) as db:
            db.execute("BEGIN IMMEDIATE")
    except sqlite3.OperationalError:
        program.thaw()
        return False
    return True


def assert_refused(answer: dict[str, Any], holder: Any) -> None:
    """The answer is a `Conflict` that says who holds the run, to a person and to a program."""
    assert answer["raised"] == "Conflict", answer
    assert f"process {holder.pid} on " in answer["text"]
    assert str(holder.pid) in answer["holder"].split("|")
    assert answer["until"] > 0


@either_driver
@pytest.mark.parametrize("buried", [True, False], ids=["gone", "zombie"])
def test_a_resume_right_after_a_kill_does_not_wait_for_the_dead_ones_lease(
    holding: Actor, actor: Actor, effects: Any, tmp_path: Path, buried: bool, driver: str
) -> None:
    """H1, G6: the lease has another minute to go, but its holder is known to be dead."""
    dead = holding(driver, lease=60)
    dead.kill(bury=buried)
    (tmp_path / "gate").touch()
    heir = actor("gated", lease=60)
    began = time.monotonic()
    state = heir.ask(RESUME[driver], "r")["returned"]
    assert time.monotonic() - began < 30
    assert state == {
        "first": dead.pid, "held": [[heir.pid, "in place"]], "hold": heir.pid, "last": heir.pid,
    }  # fmt: skip
    assert counted(effects()) == {"first": 1, "hold": 2, "last": 1}


def test_a_run_that_a_process_executes_is_refused_to_others(
    holding: Actor, actor: Actor, effects: Any, tmp_path: Path
) -> None:
    """P8, invariant 5: resume, fork's source aside, is refused while the holder is alive, and nothing changes."""
    holder, other = holding(lease=60), actor("gated", lease=60)
    assert_refused(other.ask("resume", "r"), holder)
    assert_refused(other.ask("resume", "r", wait=0.2), holder)
    assert_refused(other.ask("resume", "r", update={"first": 0}), holder)
    assert_refused(other.ask("rollback", "r", 1), holder)
    (tmp_path / "gate").touch()
    state = holder.hear()["returned"]
    assert (state["first"], state["hold"], state["last"]) == (holder.pid,) * 3
    assert counted(effects()) == {"first": 1, "hold": 1, "last": 1}


@pytest.mark.parametrize("stopped", ["crashed", "paused"])
def test_of_two_processes_that_resume_at_the_same_moment_one_succeeds(
    actor: Actor, effects: Any, until: Any, tmp_path: Path, stopped: str
) -> None:
    """P8, H1, invariant 5: the other one learns which was first, and the node runs once more."""
    settings = {"interrupt_before": ["hold"]} if stopped == "paused" else {}
    rivals = [actor("gated", lease=60), actor("gated", lease=60)]
    for number in range(5):
        run_id, barrier = f"r{number}", tmp_path / f"barrier{number}"
        first = actor("gated", lease=60, **settings)
        if stopped == "paused":
            assert first.ask("execute", run_id=run_id)["raised"] == "RunPaused"
        else:
            first.tell("execute", run_id=run_id)
            until(lambda pid=str(first.pid): ["hold", pid] in effects())
            first.kill()
        before = counted(effects())
        for rival in rivals:
            rival.tell("resume", run_id, at=str(barrier))
        barrier.touch()
        until(lambda: any(rival.has_answered for rival in rivals))
        loser, winner = sorted(rivals, key=lambda rival: not rival.has_answered)
        assert_refused(loser.hear(), winner)
        (tmp_path / "gate").touch()
        state = winner.hear()["returned"]
        (tmp_path / "gate").unlink()
        assert (state["hold"], state["last"]) == (winner.pid, winner.pid)
        after = counted(effects())
        assert {node: after[node] - before[node] for node in after} == {"first": 0, "hold": 1, "last": 1}
        assert loser.ask("resume", run_id)["raised"] == "AlreadyCompleted"


@pytest.mark.parametrize(
    ("driver", "heir_is", "use_once"),
    [
        pytest.param("sync", "finished", False, id="its commit, afterwards"),
        pytest.param("async", "under way", False, id="its commit, meanwhile, async"),
        pytest.param("sync", "under way", True, id="its once, meanwhile"),
        pytest.param("async", "finished", True, id="its once, afterwards, async"),
    ],
)
def test_a_holder_that_was_away_too_long_is_refused(
    holding: Actor,
    actor: Actor,
    effects: Any,
    until: Any,
    tmp_path: Path,
    driver: str,
    heir_is: str,
    use_once: bool,
) -> None:
    """P8, invariant 5: SIGSTOP past the lease, a takeover, SIGCONT; what the heir wrote stays as it is."""
    if use_once:
        (tmp_path / "use-once").touch()
    if heir_is == "under way":
        (tmp_path / "gate2-needed").touch()
    zombie = holding(driver, lease=SHORT)
    until(lambda: is_frozen_between_writes(zombie, tmp_path / "runs.db"))
    (tmp_path / "gate").touch()
    heir = actor("gated", lease=60)
    heir.tell("resume", "r", wait=60)
    if heir_is == "finished":
        heir.hear()
    else:
        until(lambda: ["last", str(heir.pid)] in effects())
    witness = actor("gated")
    before = [witness.ask("state_at", "r"), witness.ask("history", "r")]
    assert before[0]["returned"]["hold"] == heir.pid
    zombie.thaw()
    answer = zombie.hear()
    assert answer["raised"] == "Conflict", answer
    assert "fence 1" in answer["text"]
    if heir_is == "under way":
        assert str(heir.pid) in answer["holder"].split("|")
    assert [witness.ask("state_at", "r"), witness.ask("history", "r")] == before
    if heir_is == "under way":
        (tmp_path / "gate2").touch()
        heir.hear()
    state = witness.ask("state_at", "r")["returned"]
    assert state == {
        "first": zombie.pid, "held": [[heir.pid, "in place"]], "hold": heir.pid, "last": heir.pid,
    }  # fmt: skip
    (info,) = witness.ask("runs")["returned"]
    assert (info["status"], info["holder"]) == ("completed", None)
    assert counted(effects()) == {"first": 1, "hold": 2, "last": 1}


@either_driver
@pytest.mark.parametrize("ending", ["failed", "cancelled"])
def test_a_holder_keeps_its_lease_through_a_node_that_takes_longer(
    holding: Actor, actor: Actor, effects: Any, tmp_path: Path, ending: str, driver: str
) -> None:
    """P8, H1: a sync node blocks for three leases; others are refused until it ends, and then one continues."""
    holder, other, third = holding(driver, lease=SHORT), actor("gated", lease=60), actor("gated")
    began = time.monotonic()
    while time.monotonic() - began < 3 * SHORT:
        assert_refused(other.ask("resume", "r", wait=SHORT / 4), holder)
    other.tell(RESUME[driver], "r", wait=60)
    if ending == "failed":
        (tmp_path / "fail").touch()
        answer = holder.hear()
        assert (answer["raised"], answer["node"]) == ("ExecutionError", "hold")
        assert answer["cause"] == ["RuntimeError", "told to fail"]
        assert not other.has_answered
        (tmp_path / "gate").touch()
    else:
        assert third.ask("cancel", "r") == {"returned": None}
        (tmp_path / "gate").touch()
        assert holder.hear()["raised"] == "RunCancelled"
    state = other.hear()["returned"]
    held = other.pid if ending == "failed" else holder.pid
    assert (state["first"], state["hold"], state["last"]) == (holder.pid, held, other.pid)
    assert counted(effects()) == {"first": 1, "hold": 2 if ending == "failed" else 1, "last": 1}


@pytest.mark.parametrize("preserve", [True, False])
def test_a_waiting_process_hears_that_the_run_was_completed_meanwhile(
    holding: Actor, actor: Actor, effects: Any, tmp_path: Path, preserve: bool
) -> None:
    """G8, P8: also where the journal went with the completion; nothing runs past the exit."""
    holder, other = holding(lease=60, preserve=preserve), actor("gated", preserve=preserve)
    assert_refused(other.ask("resume", "r"), holder)
    other.tell("resume", "r", wait=60)
    (tmp_path / "gate").touch()
    assert holder.hear()["returned"]["last"] == holder.pid
    answer = other.hear()
    assert (answer["raised"], answer["run_id"]) == ("AlreadyCompleted", "r")
    assert counted(effects()) == {"first": 1, "hold": 1, "last": 1}


@either_driver
@pytest.mark.parametrize("lease", [SHORT, 60], ids=["heard when renewing", "heard when saving"])
def test_a_cancellation_from_another_process_stops_the_run_between_nodes(
    holding: Actor, actor: Actor, effects: Any, tmp_path: Path, lease: float, driver: str
) -> None:
    """G12: the node that was running completes and its result is kept; a resume continues after it."""
    holder, other = holding(driver, lease=lease), actor("gated", lease=60)
    assert other.ask("cancel", "r") == {"returned": None}
    if lease == SHORT:
        assert_refused(other.ask("resume", "r", wait=2 * SHORT), holder)
    (tmp_path / "gate").touch()
    answer = holder.hear()
    assert (answer["raised"], answer["run_id"]) == ("RunCancelled", "r")
    (info,) = other.ask("runs", "cancelled")["returned"]
    assert (info["run_id"], info["step"], info["node"], info["holder"]) == ("r", 2, "last", None)
    state = other.ask("state_at", "r")["returned"]
    assert state == {"first": holder.pid, "held": [[holder.pid, "in place"]], "hold": holder.pid}
    assert counted(effects()) == {"first": 1, "hold": 1, "last": 0}
    assert other.ask("cancel", "r") == {"returned": None}
    assert other.ask("resume", "r")["returned"] == {**state, "last": other.pid}
    assert counted(effects()) == {"first": 1, "hold": 1, "last": 1}


@pytest.mark.parametrize("stopped", ["crashed", "paused"])
def test_a_run_that_no_process_executes_is_cancelled_at_once(
    holding: Actor, actor: Actor, effects: Any, tmp_path: Path, stopped: str
) -> None:
    """G12, P1: no holder has to wake up for it, and what was saved can still be resumed."""
    if stopped == "paused":
        assert actor("gated", interrupt_before=["hold"]).ask("execute", run_id="r")["raised"] == "RunPaused"
    else:
        holding(lease=60).kill()
    other = actor("gated")
    assert other.ask("cancel", "r") == {"returned": None}
    assert [info["status"] for info in other.ask("runs")["returned"]] == ["cancelled"]
    (tmp_path / "gate").touch()
    assert other.ask("resume", "r")["returned"]["last"] == other.pid
    assert counted(effects())["first"] == 1
