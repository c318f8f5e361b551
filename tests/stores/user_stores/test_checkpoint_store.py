"""Objects with five methods as stores, and the errors for those that lack some."""

from __future__ import annotations

import asyncio
import gc
import logging
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from limpet import (
    END,
    START,
    CheckpointState,
    CheckpointStore,
    Conflict,
    DamagedRecord,
    MemoryCheckpointer,
    PauseMetadata,
    RunExists,
    RunNotFound,
    RunPaused,
    StateGraph,
    StoreUnavailable,
    UsageError,
    Workflow,
    open_store,
    pause,
    register_store,
)
from limpet.journal.store import NewRun, RunFilter
from limpet.stores import opening
from limpet.stores.user_stores.checkpoint_store import KEY, AdaptedStore
from support.checkpoint_stores import InMemoryCheckpointStore, JsonCheckpointStore


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "_names", dict(opening._names))
    monkeypatch.setattr(opening, "_schemes", dict(opening._schemes))


def release(store: Any, calls: list[str], **options: Any) -> Workflow:
    """Builds, asks whether to ship, and ships."""
    made = Workflow("release", store=store, **options)

    def build(version: str) -> str:
        calls.append("build")
        return f"app-{version}"

    def confirm(build: str) -> str:
        return str(pause(f"Ship {build}?"))

    made.add_task("build", build)
    made.add_task("confirm", confirm, ["build"])
    made.add_task("ship", lambda build, confirm: f"{build}: {confirm}", ["build", "confirm"])
    return made


def test_a_store_of_five_methods_keeps_a_run_that_pauses() -> None:
    """P4, D2: one from another library, with another import line; paused and resumed in this process."""
    kept, calls = InMemoryCheckpointStore(), list[str]()
    made = release(kept, calls)
    with pytest.raises(RunPaused):
        made.execute({"version": "1.2"}, run_id="r")
    (state,) = kept.list("release")
    assert kept.load("r") is state
    assert state.pause_metadata == PauseMetadata("confirm", "Ship app-1.2?")
    assert (state.workflow_name, state.context["status"]) == ("release", "paused")
    assert abs(datetime.now(UTC).replace(tzinfo=None) - state.created_at) < timedelta(minutes=5)
    assert made.resume("r", "yes").results["ship"] == "app-1.2: yes"
    assert calls == ["build"]
    assert made.runs()[0].status == "completed"
    assert kept.list()[0].pause_metadata is None


def test_a_run_resumes_from_what_such_a_store_kept(tmp_path: Path) -> None:
    """P4, P1: by other objects than those that began it, as in another process."""
    calls: list[str] = []
    with pytest.raises(RunPaused):
        release(JsonCheckpointStore(tmp_path / "kept.json"), calls).execute({"version": "2"}, run_id="r")
    again = release(JsonCheckpointStore(tmp_path / "kept.json"), calls)
    assert again.checkpoint("r").state.results == {"build": "app-2"}
    assert again.resume("r", "yes").results["ship"] == "app-2: yes"
    assert calls == ["build"]


def test_a_graph_and_its_history_are_kept_too() -> None:
    """P4, F7: with interrupts, forks and the event loop."""
    graph = StateGraph(name="loop")
    graph.add_node("step", lambda state: {"n": state["n"] + 1})
    graph.add_node("end", lambda state: {"ended": True})
    graph.set_entry_point("step")
    graph.add_edge("step", "step", lambda state: state["n"] < 3)
    graph.add_edge("step", "end")
    graph.set_finish_point("end")
    kept = InMemoryCheckpointStore()
    graph.compile(store=kept, interrupt_before=["end"], preserve=True)
    list(graph.stream({"n": 0}, run_id="r"))
    assert kept.list()[0].pause_metadata is not None
    assert asyncio.run(graph.aresume("r"))["ended"]
    assert [graph.state_at("r", step)["n"] for step in (1, 2, 3)] == [1, 2, 3]
    assert graph.fork("r", 1).wait().state["n"] == 3
    assert len(kept.list("loop")) == 2
    assert graph.cleanup_expired(0) == 1
    assert [state.context["status"] for state in kept.list()] == ["paused"]


def test_one_object_is_one_store() -> None:
    """P4, G10: under a name as well, so that two graphs don't write over each other."""
    kept = InMemoryCheckpointStore()
    store = open_store(kept)
    assert isinstance(store, AdaptedStore)
    assert open_store(kept) is store
    register_store("kept", kept)
    register_store("made", lambda: kept)
    opening.register_store_scheme("kept", lambda url: kept)
    assert [open_store(name) for name in ("kept", "made", "kept://")] == [store] * 3
    lease = store.create(NewRun("r", "g", [b"1"], holder="ann"))
    assert lease is not None
    with pytest.raises(Conflict, match="held by ann"):
        open_store(kept).claim("r", "bob", 10)
    store.close()
    assert open_store(kept).head("r").holder == "ann"


def test_another_object_never_gets_the_store_of_one_that_is_gone() -> None:
    """P4."""
    for number in range(50):
        store = open_store(InMemoryCheckpointStore())
        store.create(NewRun(f"r{number}", "g", [b"1"]))
        assert len(store.list(RunFilter())) == 1
        del store
        gc.collect(0)


def test_what_others_keep_there_is_left_alone() -> None:
    """P4."""
    kept = InMemoryCheckpointStore()
    kept.save(CheckpointState("theirs", "other"))
    store = open_store(kept)
    with pytest.raises(RunNotFound):
        store.head("theirs")
    with pytest.raises(RunExists):
        store.create(NewRun("theirs", "g", [b"1"]))
    assert (store.list(RunFilter()), store.expire(0)) == ([], 0)
    assert kept.load("theirs") is not None


def test_what_was_changed_is_damaged(caplog: pytest.LogCaptureFixture) -> None:
    """P2, P4: never read as something else; the other runs can still be listed."""
    kept = InMemoryCheckpointStore()
    store = open_store(kept)
    for run_id in ("a", "b", "c"):
        store.create(NewRun(run_id, "g", [b"1"]))
    state = kept._checkpoints["a"]
    whole = state.context[KEY]
    for broken in (whole[:-8], whole[:30] + ("A" if whole[30] != "A" else "B") + whole[31:], "", 7, None):
        state.context[KEY] = broken
        with pytest.raises(DamagedRecord):
            store.read("a")
    kept._checkpoints["b"].context[KEY] = kept._checkpoints["c"].context[KEY]
    with pytest.raises(DamagedRecord, match="that of run 'c'"):
        store.head("b")
    with caplog.at_level(logging.WARNING, "limpet.stores"):
        assert [head.run_id for head in store.list(RunFilter())] == ["c"]
    assert len(caplog.records) == 2


def test_what_the_object_raises_is_an_error_of_a_store() -> None:
    """P4, G9: that names the object, and not what may be in its message."""

    class Broken(InMemoryCheckpointStore):
        broken = False

        def save(self, state: CheckpointState) -> None:
            if self.broken:
                raise OSError("no way to db://me:secret@host")
            super().save(state)

    kept, calls = Broken(), list[str]()
    made = release(kept, calls)
    with pytest.raises(RunPaused):
        made.execute({"version": "1"}, run_id="r")
    kept.broken = True
    with pytest.raises(StoreUnavailable, match=r"Broken raised OSError") as caught:
        made.resume("r", "yes")
    assert "secret" not in str(caught.value)
    kept.broken = False
    assert made.resume("r", "yes").results["ship"] == "app-1: yes"


def test_a_checkpointer_isnt_a_store_and_the_error_says_what_to_do() -> None:
    """F11: two methods are for `checkpointer=`."""
    graph = StateGraph(name="g").add_node("a", lambda state: {"a": 1})
    graph.add_edge(START, "a").add_edge("a", END)
    with pytest.raises(UsageError, match=r"compile\(checkpointer=…\)"):
        graph.compile(store=MemoryCheckpointer())
    with pytest.raises(UsageError, match=r"compile\(checkpointer=…\)"):
        Workflow(store=MemoryCheckpointer()).add_task("a", lambda: 1).execute({})
    graph.compile(checkpointer=MemoryCheckpointer(), interrupt_before=["a"])
    (event,) = graph.stream({})
    assert graph.stream(None, checkpoint=event["checkpoint_path"]).result()["a"] == 1


def test_what_cannot_be_a_store_is_refused() -> None:
    """P4: with the reason."""

    class Waiting(InMemoryCheckpointStore):
        async def save(self, state: CheckpointState) -> None: ...  # type: ignore[override]

    class Boasting(InMemoryCheckpointStore):
        level = "forever"

    class Half(CheckpointStore):
        def save(self, state: CheckpointState) -> None: ...

    with pytest.raises(UsageError, match=r"can't be async: save of .*Waiting"):
        open_store(Waiting())
    with pytest.raises(UsageError, match="not 'forever'"):
        open_store(Boasting())
    with pytest.raises(UsageError, match="not"):
        open_store(InMemoryCheckpointStore)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="abstract"):
        Half()  # type: ignore[abstract]


def test_what_takes_leases_says_so(tmp_path: Path) -> None:
    """P4, P8: a request to a run that another process has could undo what that one saves."""
    here = release(JsonCheckpointStore(tmp_path / "kept.json"), [])
    there = release(JsonCheckpointStore(tmp_path / "kept.json"), [])
    run = here.stream({"version": "1"}, run_id="r")
    next(run)
    with pytest.raises(Conflict, match=r"in another process, and <AdaptedStore of .*> has no leases"):
        there.cancel("r")
    assert [event["type"] for event in run][-1] != "error"
    assert run.status == "paused"
    there.cancel("r")
    assert here.runs()[0].status == "cancelled"
    for call in (here.start, here.recover):
        with pytest.raises(UsageError, match="can't keep two processes apart, so "):
            call()
    assert len(here.runs()) == 1


def test_a_run_can_be_cancelled_by_another_workflow_of_the_process() -> None:
    """P4, G5: whose lease is of another length, so that the request goes by way of the store."""
    kept = InMemoryCheckpointStore()
    run = release(kept, []).stream({"version": "1"}, run_id="r")
    next(run)
    other = release(kept, [], lease=5.0)
    other.cancel("r")
    assert [event["type"] for event in run][-1] == "cancelled"
    assert other.runs()[0].status == "cancelled"


def test_such_a_store_promises_what_it_can_keep(tmp_path: Path) -> None:
    """P4, P8: nothing about other processes, and the level that the object names."""
    assert open_store(InMemoryCheckpointStore()).abilities == ("memory", False, False, False, False, False)
    assert open_store(JsonCheckpointStore(tmp_path / "kept.json")).abilities.level == "process"


@pytest.mark.filterwarnings("ignore:datetime.datetime.utcnow:DeprecationWarning")
def test_the_objects_own_cleanup_understands_our_times() -> None:
    """P4, P7: should its owner call it."""
    kept = InMemoryCheckpointStore()
    store = open_store(kept)
    store.create(NewRun("r", "g", [b"1"]))
    assert kept.cleanup_expired() == 0
    assert kept.cleanup_expired(-1) == 1
    with pytest.raises(RunNotFound):
        store.head("r")
