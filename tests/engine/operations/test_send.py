"""Messages to runs from outside: where they are kept, and how they fare when a run is changed. H16."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import pytest

from limpet import (
    AlreadyCompleted,
    MemoryStore,
    RunHandle,
    RunNotFound,
    Runs,
    RunWaiting,
    State,
    StateGraph,
    UnstorableValue,
    UsageError,
    Workflow,
    WrongGraph,
    append,
    receive,
)
from limpet.stores.sqlite.store import SQLiteStore
from support.checkpoint_stores import InMemoryCheckpointStore
from support.graphs import chain, fan, loop, single

LOG = {"log": Annotated[list, append]}


def take(state: State) -> dict[str, Any]:
    return {"log": [receive("a")]}


def chat(store: Any, times: int = 100, **options: Any) -> StateGraph:
    """A loop that receives a message at each step."""

    def step(state: State) -> dict[str, Any]:
        return {"n": state.get("n", 0) + 1, "last": receive("a")}

    return loop(times, step, max_iterations=10_000).compile(store=store, preserve=True, **options)


def started(graph: Any, *values: Any, run_id: str = "r") -> RunHandle[Any]:
    handle: RunHandle[Any] = graph.start(run_id=run_id)
    for value in values:
        handle.send("a", value)
    return handle


def until_it_waits(graph: Any, run_id: str = "r") -> None:
    with pytest.raises(RunWaiting):
        graph.resume(run_id)


def received(graph: Any, run_id: str = "r", *more: Any) -> list[Any]:
    """All that is in the log once the run, which needs this many `more` messages, is complete."""
    for value in more:
        graph.send(run_id, "a", value)
    log: list[Any] = graph.resume(run_id)["log"]
    return log


# Fork and rollback


def test_a_rollback_lets_messages_wait_again_in_order() -> None:
    """H16: those that were received after the step, those that came after it, and those that never were received."""
    graph = chain(take, take, take, schema=LOG).compile(store=MemoryStore(), preserve=True)
    handle = started(graph, 1, 2, 3, 4)
    graph.resume("r")
    handle.rollback(1)
    assert handle.info.messages == {"a": 3}
    assert received(graph) == [1, 2, 3]
    handle.rollback(0)
    assert handle.info.messages == {"a": 4}
    assert received(graph) == [1, 2, 3]


def test_a_rollback_gives_back_what_an_unfinished_node_has_received() -> None:
    """H16: the node starts over, and so do its messages; those in the inbox come after them."""

    def take_two(state: State) -> dict[str, Any]:
        return {"log": [receive("a"), receive("a")]}

    graph = chain(take, take_two, schema=LOG).compile(store=MemoryStore(), preserve=True)
    handle = started(graph, 1, 2)
    until_it_waits(graph)
    handle.send("a", 3)
    handle.rollback(1)
    assert (handle.info.messages, handle.info.waits) == ({"a": 1}, [])
    assert received(graph) == [1, 2, 3]


def test_a_fork_has_its_own_copy_of_the_messages() -> None:
    """H16: what was received by its step stays received; the rest waits, also of its inbox."""
    graph = chain(take, take, take, schema=LOG).compile(store=MemoryStore(), preserve=True)
    handle = started(graph, 1, 2)
    until_it_waits(graph)
    handle.send("a", 3)
    for step, expected in ((0, {"a": 3}), (1, {"a": 2}), (None, {"a": 1})):
        forked = handle.fork(step)
        assert forked.info.messages == expected
        assert received(graph, forked.id) == [1, 2, 3]
    assert received(graph) == [1, 2, 3]


def test_a_fork_of_a_fork_receives_in_order() -> None:
    """H16: copied messages come before those that are sent to the fork."""
    graph = chain(take, take, take, schema=LOG).compile(store=MemoryStore(), preserve=True)
    handle = started(graph, 1, 2)
    until_it_waits(graph)
    first = handle.fork(0)
    first.send("a", 3)
    second = first.fork()
    assert received(graph, second.id) == [1, 2, 3]
    second.rollback(0)
    assert received(graph, second.id) == [1, 2, 3]


def test_a_branch_that_is_forked_receives_the_same_again() -> None:
    """H16: what branches under way have received is given back, in order."""

    def take_two(state: State) -> dict[str, Any]:
        return {"log": [receive("a"), receive("b")]}

    def join(state: State, parallel_results: Any) -> dict[str, Any]:
        return {"log": sorted((each for result in parallel_results for each in result["log"]), key=str)}

    graph = fan({"one": take_two, "two": take_two}, join, schema=LOG)
    graph.compile(store=MemoryStore(), preserve=True)
    handle = started(graph, 1, 2)
    until_it_waits(graph)
    forked = handle.fork()
    assert forked.info.messages == {"a": 2}
    for value in "xy":
        forked.send("b", value)
    assert graph.resume(forked.id)["log"] == [1, 2, "x", "y"]


def test_a_task_that_starts_over_gives_back_what_it_had_received() -> None:
    """H16, G5: a workflow that has changed loses no message."""
    store = MemoryStore()
    before = Workflow("flow").add_task("take", lambda: [receive("a"), receive("b")])
    before.compile(store=store, preserve=True)
    started(before, 1)
    until_it_waits(before)
    after = Workflow("flow").add_task("late", lambda: "late")
    after.add_task("take", lambda late: [receive("a"), receive("b")], ["late"])
    after.compile(store=store, preserve=True, on_mismatch="warn")
    after.send("r", "b", 2)
    assert after.resume("r").results["take"] == [1, 2]


# Where messages are kept


def test_messages_that_wait_survive_the_deletion_of_old_checkpoints() -> None:
    """H16: `keep` deletes records, and a snapshot has what still waits."""
    store = MemoryStore()
    graph = chat(store, times=40, keep=3)
    handle = started(graph, *range(30))
    handle.send("other", "kept")
    until_it_waits(graph)
    assert Runs(store, [graph]).prune_checkpoints("r", 2) > 0
    for value in range(10):
        handle.send("a", value)
    assert graph.resume("r")["n"] == 40
    assert handle.info.messages == {"other": 1}
    assert handle.verify().ok


def test_the_journal_of_a_long_conversation_is_bounded_by_what_waits(tmp_path: Path) -> None:
    """H16: what was received leaves nothing in a snapshot."""
    store = SQLiteStore(tmp_path / "runs.db", level="process")
    graph = chat(store, times=1000, keep=5)
    handle = started(graph)
    sizes = []
    for _ in range(6):
        for value in range(100):
            handle.send("a", value)
        until_it_waits(graph)
        graph.compiled().need_client("test").upkeep.finish()  # deletes what is no longer kept
        sizes.append(sum(map(len, store.read("r", first=1).records)))
    assert max(sizes[2:]) <= 1.5 * sizes[1]
    store.close()


@pytest.mark.parametrize("runs_first", [True, False])
def test_messages_are_exported_with_their_run(tmp_path: Path, runs_first: bool) -> None:
    """H16: those that it has taken in, those in its inbox, and what it waits for; the run stays as it is."""
    graph = chain(take, take, take, schema=LOG).compile(store=MemoryStore(), preserve=True)
    handle = started(graph, 1)
    if runs_first:
        until_it_waits(graph)
    handle.send("a", 2)
    handle.send("b", "never")
    handle.export(tmp_path / "run")
    assert handle.info.inbox == (2 if runs_first else 3)
    other = chain(take, take, take, schema=LOG).compile(store=MemoryStore(), preserve=True)
    imported = Runs(other.compiled().need_client("test").store, [other]).import_(tmp_path / "run", "copy")
    assert other.get(imported).verify().ok
    assert received(other, imported, 3) == [1, 2, 3]
    assert other.get(imported).info.messages == {"b": 1}


def test_a_run_that_waits_is_imported_as_one_that_waits(tmp_path: Path) -> None:
    """H16: a message makes it due, as in the store that it comes from."""
    graph = single(take, "take", LOG).compile(store=MemoryStore())
    started(graph)
    until_it_waits(graph)
    graph.get("r").export(tmp_path / "run")
    runs = Runs(MemoryStore())
    runs.import_(tmp_path / "run")
    assert runs.get("r").shown_status == "waiting"
    runs.send("r", "a", 1)
    assert runs.get("r").info.due is not None


def test_a_state_saved_by_hand_keeps_the_messages() -> None:
    """H16: `state.checkpoint` sets the run to a state; what waits for it waits still."""
    graph = chain(take, take, take, schema=LOG).compile(store=MemoryStore(), preserve=True)
    handle = started(graph, 1)
    until_it_waits(graph)
    handle.send("b", 2)
    with pytest.raises(RunWaiting):
        graph.resume("r")
    handle.state.checkpoint(graph.compiled().need_client("test").store)
    assert handle.info.messages == {"b": 1}


# What is refused


def test_what_cannot_be_sent_is_refused() -> None:
    """H16: and nothing is posted."""
    graph = chat(MemoryStore())
    with pytest.raises(RunNotFound):
        graph.send("nothing", "a", 1)
    handle = started(graph)
    with pytest.raises(UnstorableValue):
        handle.send("a", object())
    other = StateGraph(name="other").add_node("only").set_entry_point("only").set_finish_point("only")
    other.compile(store=graph.compiled().need_client("test").store)
    with pytest.raises(WrongGraph):
        other.send("r", "a", 1)
    assert handle.info.inbox == 0


def test_a_message_that_is_sent_again_after_the_end_has_no_effect(store_url: str) -> None:
    """H16: its key is known for as long as the run is kept; what is new to a completed run is refused."""
    graph = chat(store_url, times=1)
    handle = started(graph)
    assert handle.send("a", 1, key="event 1")
    assert graph.resume("r")["last"] == 1
    assert not handle.send("a", 1, key="event 1")
    for key in (None, "event 2"):
        with pytest.raises(AlreadyCompleted, match="is complete, and takes in nothing more"):
            handle.send("a", 2, key=key)
    assert handle.info.inbox == 0


def test_a_store_of_five_methods_says_that_it_takes_no_messages() -> None:
    """H16: a declared ability is missing, so sending and receiving are refused with a reason."""
    graph = single(take, "take", LOG).compile(store=InMemoryCheckpointStore())
    with pytest.raises(Exception, match=r"receive\(\): nothing can be sent to runs in this store"):
        graph.execute(run_id="r")
    with pytest.raises(UsageError, match="nothing can be sent to runs in"):
        graph.send("r", "a", 1)


def test_messages_wait_for_a_run_in_another_process(store_url: str) -> None:
    """H16: in every store. One sends, another executes, a third looks; then the run is deleted with its messages."""
    graph = chain(take, take, schema=LOG).compile(store=store_url, preserve=True)
    graph.start(run_id="r")
    sender = Runs(store_url)
    assert sender.send("r", "a", 1, key="k")
    assert not sender.send("r", "a", "again", key="k")
    until_it_waits(graph)
    assert [wait.name for wait in sender.get("r").info.waits] == ["a"]
    assert [info.run_id for info in sender.list(status="waiting")] == ["r"]
    sender.send("r", "a", 2)
    sender.send("r", "b", "kept")
    assert graph.resume("r")["log"] == [1, 2]
    assert sender.get("r").info.messages == {"b": 1}
    graph.rollback("r", 1)
    assert graph.resume("r")["log"] == [1, 2]
    sender.delete("r")
    with pytest.raises(RunNotFound):
        sender.send("r", "a", 3)
