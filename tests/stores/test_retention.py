"""How long runs are kept, by status, age and number; and that a fork does without the run it was made from."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from time import monotonic, sleep, time
from typing import Any

import pytest

from limpet import (
    Cleaner,
    DefinitionError,
    Expired,
    MemoryCheckpointer,
    MemoryStore,
    Retention,
    RunNotFound,
    RunPaused,
    StateGraph,
    UsageError,
    Workflow,
    open_store,
)
from limpet.journal.run_filter import RunFilter
from limpet.journal.store import ENDED, STATUSES, NewRun
from limpet.stores.retention import clean_checkpoints, delete_expired, find_expired
from limpet.stores.user_stores.checkpoint_files import CheckpointFiles
from limpet.testing.conformance.store_calls import ManualClock
from support.graphs import asking_workflow

DAY = 86400.0


def left(store: Any) -> set[str]:
    return {head.run_id for head in store.list(RunFilter())}


def fill(store: Any, *runs: tuple[str, str, str]) -> None:
    for run_id, graph, status in runs:
        store.create(NewRun(run_id, graph, [b"1"], status=status, note=b"n"))


# The policy


def test_a_time_is_seconds_a_timedelta_or_a_text() -> None:
    """F14: and is seconds when it is read."""
    policy = Retention(completed="7d", failed=timedelta(hours=1), cancelled=90, paused="1.5h", running="2w")
    times = [policy.age(status) for status in ("completed", "failed", "cancelled", "paused", "running")]
    assert times == [7 * DAY, 3600.0, 90.0, 5400.0, 14 * DAY]
    assert Retention(completed="90s", failed="30m") == Retention(completed=90, failed=1800.0)
    assert (policy.statuses, Retention(newest=3).statuses) == (STATUSES, ENDED)
    with pytest.raises(AttributeError):
        policy.newest = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"completed": -1},
        {"failed": "soon"},
        {"failed": "7"},
        {"paused": True},
        {"completed": float("nan")},
        {"completed": [1]},
        {"newest": -1},
        {"newest": 1.5},
        {"newest": True},
        {"cancelled": timedelta(-1)},
    ],
    ids=str,
)
def test_a_policy_that_makes_no_sense_is_refused(given: dict[str, Any]) -> None:
    """F14: also one that would never let anything go."""
    with pytest.raises(UsageError, match="Retention: "):
        Retention(**given)


def test_each_status_has_its_own_time_and_what_isnt_named_stays() -> None:
    """P7: paused and running runs are deleted only if the policy names them."""
    clock = ManualClock()
    store = MemoryStore(clock)
    fill(store, *((status, "g", status) for status in STATUSES))
    clock.advance(2 * DAY)

    def gone(**policy: Any) -> list[str]:
        return sorted(each.run_id for each in find_expired(store, Retention(**policy), clock=clock))

    assert gone(completed="1d", failed="3d") == ["completed"]
    assert gone(completed="3d") == []
    assert gone(cancelled="1d", failed="1d") == ["cancelled", "failed"]
    assert gone(paused="1d") == ["paused"]
    assert gone(running="1d", paused="2d") == ["paused", "running"]
    assert left(store) == set(STATUSES), "looking changes nothing"
    found = find_expired(store, Retention(failed="1d"), clock=clock)
    assert found == [
        Expired("failed", "g", "failed", found[0].updated, "failed, and unchanged for 2 d; kept for 1 d")
    ]
    assert delete_expired(store, found) == found
    assert left(store) == set(STATUSES) - {"failed"}


def test_the_number_of_ended_runs_kept_of_each_graph_is_limited() -> None:
    """F14: the newest; those that wait or run aren't counted, and graphs don't count each other's."""
    clock = ManualClock()
    store = MemoryStore(clock)
    for number in range(5):
        clock.advance(1)
        fill(store, (f"a{number}", "a", ENDED[number % 3]), (f"b{number}", "b", "completed"))
        fill(store, (f"p{number}", "a", "paused"), (f"r{number}", "a", "running"))
    found = find_expired(store, Retention(newest=2), clock=clock)
    assert sorted(each.run_id for each in found) == ["a0", "a1", "a2", "b0", "b1", "b2"]
    assert {each.reason for each in found if each.graph == "a"} == {
        "not among the 2 newest ended runs of 'a'"
    }
    only = find_expired(store, Retention(newest=4, completed=4), "b", clock)
    assert [(each.run_id, each.reason.split(",")[0]) for each in only] == [("b0", "completed")]
    assert len(delete_expired(store, found)) == 6
    assert find_expired(store, Retention(newest=2), clock=clock) == []


def test_a_run_that_is_held_or_has_changed_stays() -> None:
    """P7, P8: a run that a process resumes is not deleted."""
    clock = ManualClock()
    store = MemoryStore(clock)
    fill(
        store,
        ("held", "g", "paused"),
        ("changed", "g", "paused"),
        ("old", "g", "paused"),
        ("gone", "g", "paused"),
    )
    clock.advance(2 * DAY)
    store.claim("held", "ann", 60)
    policy = Retention(paused="1d")
    found = find_expired(store, policy, clock=clock)
    assert {each.run_id for each in found} == {"changed", "old", "gone"}
    store.release(store.claim("changed", "ann", 60))
    store.delete("gone")
    assert [each.run_id for each in delete_expired(store, found)] == ["old"]
    assert left(store) == {"held", "changed"}


# Where it is given


def flow_of(store: Any, name: str = "w", **options: Any) -> Workflow:
    return Workflow(name, store=store, **options).add_task("a", lambda: 1)


def tidied(graph: Any) -> None:
    graph.compiled().client.upkeep.finish()


def test_a_graph_deletes_its_own_expired_runs_in_the_background(caplog: pytest.LogCaptureFixture) -> None:
    """F14, P7: when a run stops; those of other graphs stay."""
    store = MemoryStore()
    other = flow_of(store, "other")
    for number in range(3):
        other.execute({}, run_id=f"o{number}")
        flow_of(store).execute({}, run_id=f"w{number}")
    caplog.set_level(logging.INFO)
    flow = flow_of(store, retention=Retention(newest=1))
    flow.execute({}, run_id="last")
    tidied(flow)
    assert left(store) == {"o0", "o1", "o2", "last"}
    assert "graph w: deleted 3 expired runs" in caplog.text
    flow.execute({}, run_id="soon after")
    tidied(flow)
    assert "last" in left(store), "it isn't looked for again at once"
    assert [each.run_id for each in flow.cleanup()] == ["last"]


def test_a_store_that_fails_doesnt_keep_a_graph_from_running(caplog: pytest.LogCaptureFixture) -> None:
    """P7: what goes wrong is logged."""

    class Moody(MemoryStore):
        def list(self, which: RunFilter) -> Any:
            raise OSError("not now")

    flow = flow_of(Moody(), retention=Retention(newest=1))
    assert flow.execute({}).results == {"a": 1}
    tidied(flow)
    assert "couldn't delete expired runs; will try again" in caplog.text


def test_cleaning_up_by_hand_says_what_goes_and_why() -> None:
    """F14: a dry run changes nothing."""
    store = MemoryStore()
    flow = flow_of(store, retention=Retention(completed=0))
    asking = asking_workflow("w", store=store)
    with pytest.raises(RunPaused):
        asking.execute({}, run_id="waits")
    flow_of(store).execute({}, run_id="done")
    (would_go,) = flow.cleanup(dry_run=True)
    assert (would_go.run_id, would_go.status) == ("done", "completed")
    assert left(store) == {"waits", "done"}
    assert flow.cleanup() == [would_go]
    assert flow.cleanup(Retention(paused=0), dry_run=True)[0].run_id == "waits"
    assert left(store) == {"waits"}
    with pytest.raises(UsageError, match=r"cleanup\(\) needs a policy"):
        flow_of(store).cleanup()
    with pytest.raises(UsageError, match=r"cleanup\(\) needs a policy"):
        flow.cleanup("7d")  # type: ignore[arg-type]


def test_a_policy_needs_a_store_and_is_one() -> None:
    graph = StateGraph().add_node("a").set_entry_point("a").set_finish_point("a")
    with pytest.raises(DefinitionError, match="retention needs a store"):
        graph.compile(retention=Retention(newest=1))
    with pytest.raises(DefinitionError, match="retention is for a store"):
        graph.compile(checkpointer=MemoryCheckpointer(), retention=Retention(paused=1))
    with pytest.raises(DefinitionError, match="retention must be a Retention"):
        graph.compile(store="memory://", retention=7)  # type: ignore[arg-type]
    graph.compile(store="memory://", retention=Retention(newest=1)).execute({})


def test_a_cleaner_goes_by_a_policy() -> None:
    """F14, P7: of one graph, or of all; in the background, also after a failure."""
    failed = threading.Event()

    class Moody(MemoryStore):
        def list(self, which: RunFilter) -> Any:
            if not failed.is_set():
                failed.set()
                raise OSError("not now")
            return super().list(which)

    store = Moody()
    fill(store, ("a", "a", "completed"), ("b", "b", "completed"), ("c", "a", "failed"), ("d", "a", "paused"))
    with Cleaner(store, retention=Retention(completed=0), graph="a", every=0.01):
        # The first to list the runs must be the cleaner.
        assert failed.wait(30)
        deadline = monotonic() + 30
        while "a" in left(store) and monotonic() < deadline:
            sleep(0.005)
    assert left(store) == {"b", "c", "d"}
    assert Cleaner(store, retention=Retention(completed=0, failed=0)).clean() == 2
    for wrong in (
        {"retention": 3},
        {"graph": "a"},
        {"retention": Retention(newest=1), "keep_runs": 3},
        {"retention": Retention(newest=1), "statuses": "paused"},
    ):
        with pytest.raises(UsageError, match="a Cleaner can't work like this"):
            Cleaner(store, **wrong)  # type: ignore[arg-type]


def test_runs_of_an_encrypted_store_go_without_their_keys() -> None:
    """F14: also those whose note can't be read any more."""
    encryption = pytest.importorskip("limpet.stores.composite.encrypted")
    pytest.importorskip("cryptography")
    inner = MemoryStore()
    lost = encryption.EncryptedStore(inner, encryption.Keys({"lost": b"1" * 32}))
    fill(lost, ("r", "g", "failed"))
    store = encryption.EncryptedStore(inner, encryption.Keys({"new": b"2" * 32}))
    assert Cleaner(store, retention=Retention(failed=0)).clean() == 1
    fill(lost, ("s", "g", "failed"))
    assert Cleaner(store, keep_runs=0).clean() == 1
    assert left(inner) == set()


# Forks


@pytest.fixture(params=["memory", "sqlite", "files"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    urls = {"memory": "memory://", "sqlite": f"sqlite:///{tmp_path}/r.db?level=process"}
    opened = open_store(urls.get(request.param, f"file://{tmp_path}/runs?level=process"))
    yield opened
    opened.close()


@pytest.mark.parametrize("how", ["deleted", "expired", "by policy", "pruned"])
def test_a_fork_does_without_the_run_that_it_was_made_from(how: str, store: Any) -> None:
    """H6, F14: whatever becomes of the base, the fork's steps can be read, verified, forked and resumed."""
    graph = StateGraph({"n": int, "big": str}, name="g")
    graph.add_node("add", run=lambda state: {"n": state["n"] + 1, "big": str(state["n"]) * 2000})
    graph.set_entry_point("add").add_edge("add", "add", lambda state: state["n"] < 40).set_finish_point("add")
    graph.compile(store=store, preserve=True)
    graph.execute({"n": 0}, run_id="base")
    fork = graph.fork("base", 10, {"n": 30}, new_run_id="fork")
    match how:
        case "deleted":
            store.delete("base")
        case "expired":
            assert store.expire(0) == 1
        case "by policy":
            assert [each.run_id for each in graph.cleanup(Retention(completed=0))] == ["base"]
        case "pruned":
            store.prune("base", before=10**6)
    if how != "pruned":
        with pytest.raises(RunNotFound):
            graph.state_at("base")
    assert graph.state_at("fork")["n"] == 30
    assert fork.result()["n"] == 40
    assert graph.verify("fork").ok
    assert graph.history("fork")[0].step == 10
    assert graph.state_at("fork", 10)["big"] == "9" * 2000
    assert graph.fork("fork", 15, new_run_id="again").result()["n"] == 40
    assert {info.run_id: info.forked_from for info in graph.runs()}["fork"] == "base@10"


# Checkpoint files


def test_old_checkpoint_files_go_by_age_and_number(tmp_path: Path) -> None:
    """F14: those that a run has named; other files stay."""
    now = int(time() * 1000)
    days = [0, 1, 2, 9, 10]
    for age in days:
        (tmp_path / f"review_{now - age * 86_400_000}.pkl").write_bytes(b"")
    for other in ("mine.pkl", "review_5.pkl", f"review_{now - 10**10}.txt"):
        (tmp_path / other).write_bytes(b"")
    written = CheckpointFiles(tmp_path).save({"a": 1}, "review", {})

    def names(gone: list[str]) -> list[int]:
        return sorted(round((now - int(Path(each).stem.split("_")[1])) / 86_400_000) for each in gone)

    assert names(clean_checkpoints(tmp_path, older_than="7d", dry_run=True)) == [9, 10]
    assert len(list(tmp_path.iterdir())) == 9
    assert names(clean_checkpoints(tmp_path, older_than=timedelta(days=9))) == [9, 10]
    assert names(clean_checkpoints(tmp_path, newest=2)) == [1, 2]
    assert Path(written).exists()
    assert clean_checkpoints(tmp_path / "nothing there", newest=0) == []
    with pytest.raises(UsageError):
        clean_checkpoints(tmp_path)
