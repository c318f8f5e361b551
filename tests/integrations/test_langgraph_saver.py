"""H22: `LimpetSaver` keeps what LangGraph's own saver keeps, exactly, and stores little of it."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("langgraph")

from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.base.id import uuid6
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from limpet import MemoryStore, Runs, StateGraph, UsageError, open_store
from limpet.integrations.langgraph import LimpetSaver
from limpet.integrations.langgraph.thread_names import run_id_of
from limpet.journal import snapshots
from limpet.journal.store import Store
from limpet.journal.threads.records import read_thread
from support.langgraph_threads import SavedThread


def records_of(store: Store, thread: str = "t") -> list[tuple[int, Any]]:
    return list(read_thread(store.read(run_id_of(thread), first=1)))


def shown(found: CheckpointTuple | None) -> Any:
    """A checkpoint with the types of all its values."""
    if found is None:
        return None
    config, checkpoint, metadata, parent, writes = found
    configurable = dict(config["configurable"])
    configurable.setdefault("checkpoint_ns", "")
    return [typed(each) for each in (configurable, dict(checkpoint), dict(metadata), parent, writes)]


def typed(value: Any) -> Any:
    """A value in which 1, True and 1.0 differ."""
    if isinstance(value, dict):
        return [("dict", typed(key), typed(each)) for key, each in sorted(value.items(), key=repr)]
    if isinstance(value, (list, tuple)):
        return [type(value).__name__, *(typed(each) for each in value)]
    return (type(value).__name__, repr(value))


ITEMS: list[Any] = [1, True, 1.0, None, "text", b"bytes", [1], {"a": 1}, {"a": True}, (1, 2), "x" * 60, -0.0]


def grown(value: Any, choose: random.Random) -> Any:
    """A value that somehow follows from another."""
    item = choose.choice(ITEMS)
    match choose.randrange(7):
        case 0 if isinstance(value, list) and value:
            place = choose.randrange(len(value))
            return [*value[:place], item, *value[place + 1 :]]
        case 1 if isinstance(value, list) and value:
            return value[1:]
        case 2 if isinstance(value, dict):
            return {**value, choose.choice("abc"): choose.choice([item, [item], [item, "y" * 70]])}
        case 3:
            return choose.choice([[], {}, item, list(range(choose.randrange(200))), [item, item]])
        case 4 if isinstance(value, dict) and value:
            return dict(list(value.items())[1:])
        case _ if isinstance(value, list):
            return [*value, *choose.sample(ITEMS, choose.randrange(3))]
        case _:
            return [item]


@pytest.mark.parametrize("seed", range(4))
def test_what_is_read_is_what_langgraphs_own_saver_reads(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """H22: whatever changed or was forked, whole checkpoints or not, for a process that knows nothing of it, too."""
    choose = random.Random(seed)
    if seed % 2:
        monkeypatch.setattr(snapshots, "MIN_WEIGHT", 1)
        monkeypatch.setattr(snapshots, "SNAPSHOT_FACTOR", 1)
    store = MemoryStore()
    theirs = SavedThread(InMemorySaver())
    ours = SavedThread(LimpetSaver(store))
    ours.saver.get_next_version = theirs.saver.get_next_version  # type: ignore[method-assign]  # the same texts
    channels: dict[str, Any] = {"a": [], "b": {}}
    saved: list[Any] = []
    for _ in range(30):
        changed = {name for name in "abc" if choose.random() < 0.6}
        channels = {**channels, **{name: grown(channels.get(name), choose) for name in changed}}
        if choose.random() < 0.1:
            channels.pop(choose.choice("abc"), None)
        changed &= channels.keys()
        config = theirs.save(channels, changed)
        theirs_id = config["configurable"]["checkpoint_id"]
        ours.versions = theirs.versions
        _put_the_same(ours, theirs, theirs_id, changed)
        saved.append((config, channels))
        for task in choose.sample(["t1", "t2", "t3"], choose.randrange(3)):
            at = choose.choice(saved)[0]
            writes = [(name, channels[name]) for name in channels] + [("__interrupt__", choose.random())]
            some = writes[: choose.randrange(1, 5)]
            for each in (theirs, ours):
                each.saver.put_writes(at, some, task, f"path {task}")
        if choose.random() < 0.15:  # a fork: the values of an older checkpoint, and its versions
            config, channels = choose.choice(saved)
            found = theirs.saver.get_tuple(config)
            assert found is not None
            for each in (theirs, ours):
                each.config = config
                each.versions = dict(found.checkpoint["channel_versions"])
        if choose.random() < 0.2:
            ours.saver = LimpetSaver(store)
        assert_equal(theirs, ours)
    assert store.head(run_id_of("t")).snapshot > 1 or not seed % 2


def _put_the_same(ours: SavedThread, theirs: SavedThread, id: str, changed: set[str]) -> None:
    """Save the checkpoint that the other saver has got."""
    found = theirs.saver.get_tuple(theirs.config)
    assert found is not None
    parent = found.parent_config or {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    new = {name: found.checkpoint["channel_versions"][name] for name in changed}
    ours.config = ours.saver.put(parent, found.checkpoint, found.metadata, new)
    assert ours.config["configurable"]["checkpoint_id"] == id


def assert_equal(theirs: SavedThread, ours: SavedThread) -> None:
    newest: Any = {"configurable": {"thread_id": "t"}}
    assert shown(ours.saver.get_tuple(newest)) == shown(theirs.saver.get_tuple(newest))
    listed = [shown(each) for each in ours.saver.list(newest)]
    assert listed == [shown(each) for each in theirs.saver.list(newest)]


def test_only_what_changed_is_stored() -> None:
    """H22, P6: the new items of a list, the new entries of a dict, and of an unchanged channel nothing."""
    store = MemoryStore()
    thread = SavedThread(LimpetSaver(store))
    items = [HumanMessage("a" * 1000, id="1")]
    table = {"k1": "v" * 1000}
    thread.save({"items": items, "table": table, "still": "s" * 1000})
    thread.save(
        {"items": [*items, AIMessage("b" * 1000, id="2")], "table": {**table, "k2": 1}, "still": "s" * 1000},
        {"items", "table"},
    )
    _, record = records_of(store)[-1]
    assert sorted(record.changes) == ["items", "table"]
    assert record.changes["items"][1][0] == [0, 1]
    assert record.changes["table"][1] == [[0, 1], ["k2", b"\x01"]]
    assert sum(map(len, store.read(run_id_of("t"), first=2).records)) < 2000


def test_what_a_task_wrote_isnt_stored_again_in_the_next_checkpoint() -> None:
    """H22, P6: LangGraph gives each update twice."""
    store = MemoryStore()
    thread = SavedThread(LimpetSaver(store))
    thread.save({"items": []})
    answer = AIMessage("b" * 1000, id="2")
    thread.saver.put_writes(thread.config, [("items", [answer])], "task")
    thread.save({"items": [answer]})
    assert sum(map(len, store.read(run_id_of("t"), first=1).records)) < 2500
    assert thread.values() == {"items": [answer]}


def test_an_object_that_was_changed_in_place_is_stored() -> None:
    """H22, P7: values are compared by what is stored of them."""
    thread = SavedThread(LimpetSaver(MemoryStore()))
    messages = [HumanMessage("one", id="1"), AIMessage("two", id="2")]
    thread.save({"messages": messages})
    before = thread.config
    messages[0].content = "changed"
    thread.save({"messages": messages})
    assert [each.content for each in thread.values()["messages"]] == ["changed", "two"]
    after = thread.config
    thread.config = before
    assert [each.content for each in thread.values()["messages"]] == ["one", "two"]
    thread.config = after
    messages[1].content = "again"
    thread.save({"messages": messages}, set())  # a node that returns nothing: no new version
    assert [each.content for each in thread.values()["messages"]] == ["changed", "again"]
    thread.config = before
    thread.values()["messages"].clear()
    assert len(thread.values()["messages"]) == 2  # each reader gets objects of its own


def test_superseded_values_are_left_behind_by_a_whole_checkpoint(tmp_path: Path) -> None:
    """H22, P6: so what a restore reads is bounded, and older checkpoints are still there."""
    store = open_store(f"sqlite:///{tmp_path}/runs.db?level=process")
    thread = SavedThread(LimpetSaver(store))
    configs = [
        thread.save({"page": f"{number} " + "x" * 2000, "kept": ["k"]}, {"page"}) for number in range(80)
    ]
    head = store.head(run_id_of("t"))
    assert head.snapshot > 1
    assert sum(map(len, store.read(run_id_of("t")).records)) < 80 * 2000
    again = SavedThread(LimpetSaver(store))
    assert again.values()["page"].startswith("79 ")
    again.config = configs[3]
    assert again.values() == {"page": "3 " + "x" * 2000, "kept": ["k"]}
    again.config = configs[-1]
    again.save({"page": "80", "kept": ["k"]}, {"page"})
    assert (
        thread.saver.get_tuple({"configurable": {"thread_id": "t"}}).checkpoint["channel_values"]["page"]
        == "80"
    )  # type: ignore[union-attr]


class Reversing:
    """A cipher that never gives the same twice."""

    def __init__(self) -> None:
        self.count = 0

    def encrypt(self, plaintext: bytes) -> tuple[str, bytes]:
        self.count += 1
        return "reversing", self.count.to_bytes(4, "big") + plaintext[::-1]

    def decrypt(self, ciphername: str, ciphertext: bytes) -> bytes:
        assert ciphername == "reversing"
        return ciphertext[4:][::-1]


def test_langgraphs_own_encryption_stores_what_changed_too() -> None:
    """H22: although what it encrypts twice differs; and nothing of it is stored in plain text."""
    store = MemoryStore()
    serializer = EncryptedSerializer(Reversing(), JsonPlusSerializer())
    thread = SavedThread(LimpetSaver(store, serde=serializer))
    items: list[Any] = []
    for number in range(20):
        items = [*items, HumanMessage(f"{number} confidential " + "z" * 500, id=str(number))]
        thread.save({"items": items})
    records = store.read(run_id_of("t"), first=1).records
    assert sum(map(len, records)) < 20 * 1500
    assert not any(b"confidential" in record for record in records)
    fresh = SavedThread(LimpetSaver(store, serde=serializer))
    assert fresh.values()["items"] == items
    fresh.config = thread.config
    fresh.save({"items": items})
    assert fresh.values()["items"] == items


def test_a_copy_with_another_allow_list_sees_the_same_threads() -> None:
    """H22: LangGraph asks for one when it compiles a graph, and its serializer decides what is restored."""
    strict = LimpetSaver(MemoryStore(), serde=JsonPlusSerializer(allowed_msgpack_modules=None))
    thread = SavedThread(strict)
    thread.save({"x": 1})
    copy = strict.with_allowlist([("fractions", "Fraction")])
    assert copy is not strict
    assert copy.serde is not strict.serde
    assert SavedThread(copy).values() == {"x": 1}


def test_threads_have_ids_that_cant_be_confused() -> None:
    """H22: any text is a thread's id and a namespace's name; the runs are readable and have valid ids."""
    pairs = [
        ("customer-7", ""),
        ("customer-7", "child:1"),
        ("customer-7|child", "1"),
        ("customer-7|child:1", ""),
        ("customer-7%7Cchild:1", ""),
        ("", ""),
        ("a/b", ""),
        ("a b\n", ""),
        ("Ünï", "ns|inner:2"),
        ("\udc80", ""),
        ("x" * 500, "y" * 500),
        ("x" * 499, "y" * 500),
        ("x" * 500, "y" * 499),
    ]
    ids = [run_id_of(*each) for each in pairs]
    assert len(set(ids)) == len(ids)
    assert all(each.isprintable() and len(each) <= 200 and "/" not in each for each in ids)
    assert ids[:2] == ["langgraph:customer-7", "langgraph:customer-7|child:1"]
    saver = LimpetSaver(MemoryStore())
    for thread, namespace in pairs:
        if thread != "\udc80":  # which no UTF-8 has
            SavedThread(saver, thread, namespace).save({"me": [thread, namespace]})
    for thread, namespace in pairs:
        if thread != "\udc80":
            assert SavedThread(saver, thread, namespace).values() == {"me": [thread, namespace]}
    assert len(list(saver.list(None))) == len(pairs) - 1
    saver.delete_thread("customer-7")
    assert SavedThread(saver, "customer-7|child").saver.get_tuple(
        {"configurable": {"thread_id": "customer-7|child", "checkpoint_ns": "1"}}
    )
    assert len(list(saver.list(None))) == len(pairs) - 3


def test_a_config_without_a_thread_is_refused() -> None:
    """H22."""
    saver = LimpetSaver(MemoryStore())
    with pytest.raises(UsageError, match="the config has none"):
        saver.get_tuple({"configurable": {}})
    with pytest.raises(UsageError, match="checkpoint_id"):
        saver.put_writes({"configurable": {"thread_id": "t"}}, [("a", 1)], "task")
    with pytest.raises(UsageError, match="'keep_latest' or 'delete'"):
        saver.prune(["t"], strategy="all")


def test_savers_of_several_threads_lose_nothing(tmp_path: Path) -> None:
    """H22: each adds to the newest, and tries again where another was quicker."""
    store_url = f"sqlite:///{tmp_path}/runs.db?level=process"
    savers = [LimpetSaver(open_store(store_url)), LimpetSaver(store_url), LimpetSaver(store_url)]
    config: Any = SavedThread(savers[0]).save({"x": []})

    def write(saver: LimpetSaver, name: str) -> None:
        for number in range(8):
            saver.put_writes(config, [("x", f"{name} {number}")], f"{name}.{number}")

    threads = [
        threading.Thread(target=write, args=(saver, f"{index}{letter}"))
        for index, saver in enumerate(savers)
        for letter in "ab"
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    found = savers[0].get_tuple(config)
    assert found is not None
    assert found.pending_writes is not None
    assert sorted(value for _, _, value in found.pending_writes) == sorted(
        f"{index}{letter} {number}" for index in range(3) for letter in "ab" for number in range(8)
    )


def test_writes_may_come_before_their_checkpoint() -> None:
    """H22: LangGraph saves both in threads of its own."""
    store = MemoryStore()
    saver = LimpetSaver(store)
    thread = SavedThread(saver)
    id = str(uuid6())
    early: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": "", "checkpoint_id": id}}
    saver.put_writes(early, [("x", 1)], "task")
    assert saver.get_tuple({"configurable": {"thread_id": "t"}}) is None
    assert saver.get_tuple(early) is None
    thread.save({"x": 0})
    found = saver.get_tuple(thread.config)
    assert found is not None
    assert found.pending_writes == []
    checkpoint: Any = {**found.checkpoint, "id": id}
    saver.put(thread.config, checkpoint, found.metadata, {})
    for each in (saver, LimpetSaver(store)):
        found = each.get_tuple(early)
        assert found is None or found.pending_writes == [("task", "x", 1)]


def test_a_thread_that_was_deleted_and_made_again_is_another(any_store: Store) -> None:
    """H22: what a process knows of a thread is never relied on."""
    knows = SavedThread(LimpetSaver(any_store))
    knows.save({"x": ["old"]})
    knows.saver.get_tuple(knows.config)
    LimpetSaver(any_store).delete_thread("t")
    other = SavedThread(LimpetSaver(any_store))
    other.save({"x": ["new"]})
    assert knows.saver.get_tuple({"configurable": {"thread_id": "t"}}) == other.saver.get_tuple(other.config)
    knows.config = other.config
    knows.save({"x": ["new", "newer"]})
    assert SavedThread(LimpetSaver(any_store)).values() == {"x": ["new", "newer"]}
    assert Runs(any_store).verify(run_id_of("t")).ok


def test_threads_are_copied_pruned_and_cleared_of_runs(any_store: Store) -> None:
    """H22: and what stays is exactly what it was, also in a process that knows nothing of it."""
    thread = SavedThread(LimpetSaver(any_store), "from")
    SavedThread(thread.saver, "to").save({"kept": True})
    for number in range(4):
        thread.save({"items": list(range(number))}, run_id=f"run {number % 2}")
        thread.saver.put_writes(thread.config, [("items", "w" * 100)], f"task {number}", "path")
    thread.saver.copy_thread("from", "to")
    originals = [shown(each)[1:3] for each in thread.saver.list({"configurable": {"thread_id": "from"}})]
    copies = [shown(each)[1:3] for each in LimpetSaver(any_store).list({"configurable": {"thread_id": "to"}})]
    assert copies[: len(originals)] == originals
    assert len(copies) == len(originals) + 1
    before = shown(thread.saver.get_tuple(thread.config))
    thread.saver.delete_for_runs(["run 0"])
    assert [
        each.metadata.get("run_id") for each in thread.saver.list({"configurable": {"thread_id": "from"}})
    ] == [
        "run 1",
        "run 1",
    ]
    thread.saver.prune(["from"])
    assert shown(thread.saver.get_tuple(thread.config)) == before
    assert [shown(each) for each in LimpetSaver(any_store).list({"configurable": {"thread_id": "from"}})] == [
        before
    ]
    thread.save({"items": [9]})
    assert SavedThread(LimpetSaver(any_store), "from").values() == {"items": [9]}
    other = SavedThread(LimpetSaver(any_store), "from")
    other.config = thread.saver.get_tuple(thread.config).config
    thread.saver.delete_for_runs(["run 1", "None"])
    assert not [*LimpetSaver(any_store).list({"configurable": {"thread_id": "from"}})]
    # The thread stays, so a process that saves at this moment isn't deleted with it.
    assert Runs(any_store).get(run_id_of("from")).info.reason == "a thread of LangGraph, 0 checkpoints"
    thread.saver.delete_for_runs(["run 1", "None"])
    other.save({"items": [10]})
    assert SavedThread(LimpetSaver(any_store), "from").values() == {"items": [10]}


def test_what_follows_from_a_deleted_thread_isnt_mixed_into_the_one_made_after_it(any_store: Store) -> None:
    """H22: a process that has a thread in mind saves, after another one has deleted it and made it again."""
    first = SavedThread(LimpetSaver(any_store))
    items = [f"the first thread, item {number}" * 3 for number in range(40)]
    first.save({"items": items[:1], "who": "first"})
    first.save({"items": items[:2], "who": "first"})
    second = SavedThread(LimpetSaver(any_store))
    second.saver.delete_thread("t")
    second.save({"items": ["the second thread"], "who": "second"})
    second.save({"items": ["the second thread", "its item"], "who": "second"})
    first.saver.put_writes(first.config, [("items", items[:3])], "task")
    first.save({"items": items[:3], "who": "first"})
    reader = SavedThread(LimpetSaver(any_store))
    assert reader.values() == {"items": ["the second thread", "its item"], "who": "second"}
    assert not reader.saver.get_tuple(reader.config).pending_writes
    second.save({"items": ["the second thread", "its item", "another"], "who": "second"})
    assert reader.values() == {"items": ["the second thread", "its item", "another"], "who": "second"}
    # As soon as the first process looks, it knows the thread that there is.
    assert first.saver.get_tuple({"configurable": {"thread_id": "t"}}) == reader.saver.get_tuple(
        {"configurable": {"thread_id": "t"}}
    )
    assert Runs(any_store).verify(run_id_of("t")).ok


def test_async_calls_dont_block_the_event_loop() -> None:
    """H22, B2: a store that takes its time keeps no other task from running."""

    async def run() -> Iterator[Any]:
        store = MemoryStore()
        saver = LimpetSaver(store)
        began = threading.Event()
        proceed = threading.Event()
        append = store.create

        def slow(run: Any) -> Any:
            began.set()
            assert proceed.wait(30)
            return append(run)

        store.create = slow  # type: ignore[method-assign]
        checkpoint: Any = {
            "v": 4,
            "ts": "",
            "id": "1",
            "channel_values": {"x": 1},
            "channel_versions": {"x": 1},
            "versions_seen": {},
            "updated_channels": None,
        }
        config: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
        saving = asyncio.ensure_future(saver.aput(config, checkpoint, {}, {"x": 1}))
        await asyncio.to_thread(began.wait, 30)
        assert not saving.done()  # and this runs meanwhile
        proceed.set()
        return [await saving, await saver.aget_tuple(config), [each async for each in saver.alist(None)]]  # type: ignore[return-value]

    config, found, listed = asyncio.run(run())
    assert config["configurable"]["checkpoint_id"] == "1"
    assert listed == [found]


def test_a_run_of_ours_with_the_id_of_a_thread_is_left_alone() -> None:
    """H22."""
    store = MemoryStore()
    graph = (
        StateGraph(name="g").add_node("a", run=lambda state: {}).set_entry_point("a").set_finish_point("a")
    )
    graph.compile(store=store).execute({"x": 1}, run_id=run_id_of("t"))
    thread = SavedThread(LimpetSaver(store))
    with pytest.raises(UsageError, match="isn't a thread of LangGraph"):
        thread.saver.delete_thread("t")
    with pytest.raises(UsageError, match="isn't a thread of LangGraph"):
        thread.save({"x": 2})
    with pytest.raises(UsageError, match="isn't a thread of LangGraph"):
        thread.saver.get_tuple({"configurable": {"thread_id": "t"}})
    assert graph.state_at(run_id_of("t"))["x"] == 1


def test_a_store_of_whole_checkpoints_is_refused() -> None:
    """H22: it can't add to what it has."""

    class Five:
        def save(self, *args: Any, **more: Any) -> Any: ...
        def load(self, *args: Any, **more: Any) -> Any: ...
        def delete(self, *args: Any, **more: Any) -> Any: ...
        def list(self, *args: Any, **more: Any) -> Any: ...
        def cleanup_expired(self, *args: Any, **more: Any) -> Any: ...

    with pytest.raises(UsageError, match="whole checkpoints only"):
        LimpetSaver(Five())
