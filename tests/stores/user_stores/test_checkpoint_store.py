"""Objects with five methods as stores, and the errors for those that lack some."""

from __future__ import annotations

import asyncio
import gc
import logging
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest

from limpet import (
    END,
    START,
    AlreadyCompleted,
    CheckpointState,
    CheckpointStore,
    Conflict,
    DamagedRecord,
    ExecutionError,
    MemoryCheckpointer,
    PauseMetadata,
    Retention,
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
from limpet.journal.run_filter import RunFilter
from limpet.journal.store import NewRun
from limpet.stores import opening
from limpet.stores.user_stores.checkpoint_state import KEY
from limpet.stores.user_stores.checkpoint_store import AdaptedStore
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
    assert kept.load("r@3") is state
    assert state.pause_metadata == PauseMetadata("confirm", "Ship app-1.2?")
    assert (state.workflow_name, state.context["status"]) == ("release", "paused")
    assert abs(datetime.now(UTC).replace(tzinfo=None) - state.created_at) < timedelta(minutes=5)
    assert made.resume("r", "yes").results["ship"] == "app-1.2: yes"
    assert calls == ["build"]
    assert made.runs() == kept.list() == []


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
        listed = {head.run_id: (head.status, head.graph) for head in store.list(RunFilter())}
    assert listed == {"a": ("damaged", "g"), "b": ("damaged", "g"), "c": ("running", "g")}
    assert len(caplog.records) == 2
    store.delete("a")
    store.delete("b")
    assert [head.run_id for head in store.list(RunFilter())] == ["c"]


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
    with pytest.raises(UsageError, match=r"in <AdaptedStore of .*> nothing can be posted to a run"):
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
    assert open_store(InMemoryCheckpointStore()).abilities == (
        "memory",
        False,
        False,
        False,
        False,
        False,
        False,
        False,
    )
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


class Remembering(InMemoryCheckpointStore):
    """Remembers what it was asked to do."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, str]] = []

    def save(self, state: CheckpointState) -> None:
        self.calls.append(("save", state.checkpoint_id))
        super().save(state)

    def delete(self, checkpoint_id: str) -> None:
        self.calls.append(("delete", checkpoint_id))
        super().delete(checkpoint_id)


def test_the_checkpoints_that_such_a_store_is_handed_are_true() -> None:
    """P11, P2: inputs, waves, completed waves, context, pause, and the id that events carry."""
    kept = Remembering()
    made = Workflow("release", store=kept)
    made.add_task("build", lambda version, ctx: ctx.add_context(built=version) or f"app-{version}")
    made.add_task("lint", lambda: "clean")
    made.add_task("confirm", lambda build: pause(f"Ship {build}?"), ["build"])
    made.add_task("ship", lambda confirm: confirm, ["confirm"])
    made.add_task("tell", lambda ship: ship, ["ship"])
    inputs = {"version": "1.2", "when": datetime(2026, 1, 2, tzinfo=UTC), "tags": ("a", "b")}
    *_, event = made.stream(inputs, run_id="r")
    (state,) = kept.list("release")
    assert event["checkpoint_id"] == state.checkpoint_id
    assert kept.load(event["checkpoint_id"]) is state
    plain = {"version": "1.2", "when": "2026-01-02T00:00:00+00:00", "tags": ["a", "b"]}
    assert (state.workflow_name, state.workflow_inputs) == ("release", plain)
    assert state.execution_waves == [["build", "lint"], ["confirm"], ["ship"], ["tell"]]
    assert state.completed_waves == 1
    assert state.context["built"] == "1.2"
    assert state.context["results"] == {"build": "app-1.2", "lint": "clean"}
    assert state.pause_metadata == PauseMetadata("confirm", "Ship app-1.2?")
    saved = [event["checkpoint_id"] for event in made.stream(inputs) if event["type"] == "checkpoint_saved"]
    assert set(saved) <= {id for call, id in kept.calls if call == "save"}
    assert made.resume_from_checkpoint(state.checkpoint_id, "yes").results["tell"] == "yes"


def test_a_graph_hands_such_a_store_its_state() -> None:
    """P11: what it started with, the nodes so far, and the state; also after the first record is gone."""
    kept = Remembering()
    graph = StateGraph({"n": int}, name="loop", max_iterations=2000)
    graph.add_node("step", lambda state: {"n": state["n"] + 1})
    graph.add_node("end", lambda state: {"ended": True})
    graph.set_entry_point("step")
    graph.add_edge("step", "step", lambda state: state["n"] < 300)
    graph.add_edge("step", "end")
    graph.set_finish_point("end")
    graph.compile(store=kept, interrupt_before=["end"], keep=2)
    (event,) = graph.invoke({"n": 290, "who": "ann"}, run_id="r")
    (state,) = kept.list()
    assert state.checkpoint_id == event["checkpoint_path"] == "r@10"
    assert state.workflow_inputs == {"n": 290, "who": "ann"}
    assert state.execution_waves == [["step"]] * 10 + [["end"]]
    assert (state.completed_waves, state.context["n"], state.context["who"]) == (10, 300, "ann")
    graph.rollback("r", 5)
    store = open_store(kept)
    store.prune("r", store.head("r").snapshot)
    graph.compile(store=kept, keep=2)
    assert kept.list()[0].workflow_inputs == {"n": 290, "who": "ann"}
    assert graph.resume("r")["n"] == 300


def test_such_a_store_has_one_checkpoint_for_a_run_and_is_asked_to_delete_it_on_completion() -> None:
    """P11, P7: each newer one is saved before the older is deleted; `preserve=True` keeps the last."""
    for preserve in (False, True):
        kept = Remembering()
        flow = Workflow("chain", store=kept, preserve=preserve)
        flow.add_task("a", lambda: 1)
        flow.add_task("b", lambda a: 2, ["a"])
        flow.execute({}, run_id="r")
        assert len(kept.list()) == preserve
        present: set[str] = set()
        for call, id in kept.calls:
            if call == "save":
                present.add(id)
            else:
                present.discard(id)
                assert present or id == kept.calls[-1][1], "the run was nowhere for a moment"
            assert len(present) <= 2
        last = "save" if preserve else "delete"
        assert kept.calls[-1][0] == last or kept.calls[-2][0] == last


def test_a_checkpoint_that_was_left_behind_is_not_another_run() -> None:
    """P11: a process ended after it had saved the newer one and before it deleted the older."""

    class Stubborn(Remembering):
        def delete(self, checkpoint_id: str) -> None:
            raise OSError("not now")

    kept = Stubborn()
    flow = Workflow("ask", store=kept)
    flow.add_task("a", lambda: 1)
    flow.add_task("b", lambda a: pause("b?"), ["a"])
    with pytest.raises(RunPaused):
        flow.execute({}, run_id="r")
    assert len(kept.list()) > 1
    later = Remembering()
    later._checkpoints = dict(reversed(kept._checkpoints.items()))
    again = Workflow("ask", store=later)
    again.add_task("a", lambda: 1)
    again.add_task("b", lambda a: pause("b?"), ["a"])
    assert [info.run_id for info in again.runs()] == ["r"]
    assert again.resume("r", "yes").results == {"a": 1, "b": "yes"}


def test_runs_in_such_a_store_expire_by_policy() -> None:
    """P11, P7: by a Retention, which is asked when a run stops, and by hand."""
    kept = Remembering()
    flow = Workflow("ask", store=kept, retention=Retention(paused=0.0))
    flow.add_task("a", lambda: pause("a?"))
    for run_id in ("r", "s"):
        with pytest.raises(RunPaused):
            flow.execute({}, run_id=run_id)
    expired = {each.run_id for each in flow.cleanup()}
    deadline = monotonic() + 30
    while kept.list() and monotonic() < deadline:
        sleep(0.01)
    assert kept.list() == []
    assert expired <= {"r", "s"}


def test_an_encrypted_run_tells_such_a_store_nothing() -> None:
    """P11: it gets no values, and keeps the run all the same."""
    kept = Remembering()
    flow = Workflow("ask", store=kept, encryption=b"k" * 32)
    flow.add_task("a", lambda word: pause(f"{word}?"))
    with pytest.raises(RunPaused):
        flow.execute({"word": "kelp"}, run_id="r")
    (state,) = kept.list()
    assert (state.workflow_inputs, state.execution_waves) == ({}, [])
    assert "kelp" not in str(state)
    assert flow.resume("r", "yes").results == {"a": "yes"}


def test_a_run_that_an_older_version_saved_under_its_own_id_is_found() -> None:
    """P10, P11: it moves to the checkpoint's id when it is next saved."""
    kept = Remembering()
    flow = Workflow("ask", store=kept)
    flow.add_task("a", lambda: pause("a?"))
    with pytest.raises(RunPaused):
        flow.execute({}, run_id="r")
    (state,) = kept.list()
    old = InMemoryCheckpointStore()
    old.save(CheckpointState("r", "ask", context={KEY: state.context[KEY]}))
    again = Workflow("ask", store=old, preserve=True)
    again.add_task("a", lambda: pause("a?"))
    assert again.resume("r", "yes").results == {"a": "yes"}
    assert [each.checkpoint_id.partition("@")[0] for each in old.list()] == ["r"]
    assert old.load("r") is None


def test_a_run_that_another_object_saved_is_not_created_again() -> None:
    """P11, H10: by whatever id, also one that looks as if it was generated."""
    for run_id in ("r", "r@1", "0" * 32):
        kept = Remembering()
        flow = Workflow("ask", store=kept)
        flow.add_task("a", lambda: 1)
        flow.add_task("b", lambda a: pause("b?"), ["a"])
        with pytest.raises(RunPaused):
            flow.execute({}, run_id=run_id)
        later = Remembering()
        later._checkpoints = dict(kept._checkpoints)
        again = Workflow("ask", store=later)
        again.add_task("a", lambda: 1)
        again.add_task("b", lambda a: pause("b?"), ["a"])
        with pytest.raises(RunExists):
            again.execute({}, run_id=run_id, if_exists="error")
        assert later._checkpoints == kept._checkpoints
        assert again.resume(run_id, "yes").results["b"] == "yes"


class Undeletable(InMemoryCheckpointStore):
    """Refuses to delete while `broken`."""

    broken = True

    def delete(self, checkpoint_id: str) -> None:
        if self.broken:
            raise OSError("read-only")
        super().delete(checkpoint_id)


def straight(store: Any, observers: Any = (), **settings: Any) -> StateGraph:
    graph = StateGraph(name="straight", observers=observers)
    graph.add_node("a", lambda state: {"n": state["n"] + 1}).add_node(
        "b", lambda state: {"n": state["n"] + 1}
    )
    graph.set_entry_point("a").add_edge("a", "b").set_finish_point("b")
    return graph.compile(store=store, **settings)


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_run_that_cannot_be_deleted_on_completion_is_complete_all_the_same(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """P11: it is logged and reported, nothing of the run can be resumed, and a later clean-up deletes it."""
    kept = Undeletable()
    seen: list[Any] = []
    graph = straight(kept, observers=[seen.append])
    if kind == "sync":
        assert graph.execute({"n": 0}, run_id="r") == {"n": 2}
    else:
        assert asyncio.run(graph.aexecute({"n": 0}, run_id="r")) == {"n": 2}
    (failed,) = [event for event in seen if event.type == "checkpoint.fail"]
    assert (failed.data["run_id"], failed.data["node"]) == ("r", "b")
    assert failed.data["error"].startswith("the run is complete, and couldn't be deleted: StoreUnavailable: ")
    assert "read-only" not in failed.data["error"]
    assert "graph.complete" in [event.type for event in seen]
    assert "run r is complete, and couldn't be deleted" in caplog.text
    again = straight(AdaptedStore(kept))
    assert [(info.run_id, info.status) for info in again.runs()] == [("r", "completed")]
    with pytest.raises(AlreadyCompleted):
        again.resume("r")
    with pytest.raises(StoreUnavailable):
        again.cleanup_expired(0)
    kept.broken = False
    assert again.cleanup_expired(0) == 1
    assert again.runs() == kept.list() == []


def test_a_checkpoint_that_could_not_be_deleted_never_takes_the_place_of_a_newer_one() -> None:
    """P11: the run is deleted with all that is left of it, or not at all."""
    for restarted in (False, True):
        kept = Undeletable()
        store = AdaptedStore(kept)
        graph = straight(store, preserve=True)
        graph.execute({"n": 0}, run_id="r")
        assert len(kept.list()) > 1
        if restarted:
            store = AdaptedStore(kept)
            assert [head.status for head in store.list(RunFilter())] == ["completed"]
        with pytest.raises(StoreUnavailable):
            store.delete("r")
        assert [head.status for head in store.list(RunFilter())] == ["completed"]
        kept.broken = False
        store.delete("r")
        assert store.list(RunFilter()) == kept.list() == []


def test_a_run_that_can_be_neither_deleted_nor_saved_is_not_complete() -> None:
    """P11: what is left could be resumed, so that the end must not be reported."""

    class Full(Undeletable):
        def save(self, state: CheckpointState) -> None:
            if state.context["status"] == "completed":
                raise OSError("disk full")
            super().save(state)

    seen: list[Any] = []
    with pytest.raises(ExecutionError, match="Full raised OSError"):
        straight(Full(), observers=[seen.append]).execute({"n": 0}, run_id="r")
    assert "graph.complete" not in [event.type for event in seen]
