"""Verifying a run: which damage is named, what can still be read, and that the report is correct."""

from __future__ import annotations

import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from limpet import (
    DamagedRecord,
    MemoryStore,
    RunNotFound,
    Runs,
    State,
    StateGraph,
    StoreError,
    UsageError,
    open_store,
    pause,
)
from limpet.journal.encoding import codec
from limpet.journal.encoding.user_types import TypeRegistry
from limpet.journal.store import Store, Tail
from support.damage import flipped
from support.graphs import chain, count
from support.redis_servers import redis_server


def line(length: int, store: Any, **settings: Any) -> StateGraph:
    return chain(*[count] * length, name="line").compile(store=store, **settings)


def records_of(store: MemoryStore, run_id: str) -> list[bytes]:
    return store._runs[run_id].records  # type: ignore[index]  # it is open


def readable(graph: StateGraph, run_id: str, most: int) -> list[int]:
    """The steps that `state_at` really gives."""
    steps = []
    for step in range(most + 1):
        with suppress(StoreError, UsageError):
            graph.state_at(run_id, step)
            steps.append(step)
    return steps


@pytest.mark.parametrize("kind", ["memory", "sqlite", "file"])
def test_a_sound_run_has_nothing_amiss(kind: str, tmp_path: Path) -> None:
    """H5: in every store; and it is counted."""
    target = {"memory": "memory://", "sqlite": f"sqlite:///{tmp_path}/r.db", "file": f"file://{tmp_path}/r"}
    store = open_store(target[kind])
    graph = line(3, store, preserve=True)
    graph.execute({}, run_id="r")
    found = graph.verify("r")
    stored = store.read("r", first=1).records
    assert (found.ok, found.restorable, found.steps) == (True, True, [0, 1, 2, 3])
    assert (found.records, found.size) == (len(stored), sum(map(len, stored)))
    assert (found.damaged, found.missing, found.status) == ([], [], "completed")
    assert str(found).startswith("run r: completed; intact\n")
    assert "steps that can be restored: 0–3" in str(found)
    store.close()


def test_each_damaged_record_is_named_and_what_is_said_of_steps_is_so() -> None:
    """H5, H6: every record in turn is damaged; `state_at` agrees with the report on every step."""
    store = MemoryStore()
    graph = line(6, store, preserve=True)
    graph.execute({}, run_id="r")
    graph.rollback("r", 3)
    graph.resume("r")
    records = records_of(store, "r")
    newest = graph.history("r")[-1].step
    for place, whole in enumerate(records.copy()):
        records[place] = whole[:-1] + bytes([whole[-1] ^ 1])
        found = graph.verify("r")
        assert [damage.sequence for damage in found.damaged] == [place + 1]
        assert f"damaged: record {place + 1}: " in str(found)
        assert found.steps == readable(graph, "r", newest)
        assert found.restorable == (place + 1 < store.head("r").snapshot)
        records[place] = whole
    assert graph.verify("r").ok


def test_missing_records_are_named(tmp_path: Path) -> None:
    """H5: those that were deleted, in the middle and at the end."""
    path = tmp_path / "runs.db"
    with closing(open_store(path)) as store:
        graph = line(6, store, preserve=True)
        graph.execute({}, run_id="r")
        newest = store.head("r").sequence
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("DELETE FROM records WHERE id & 0xffffffff IN (3, 4)")
        found = graph.verify("r")
        assert (found.missing, found.damaged, found.records) == ([3, 4], [], newest - 2)
        assert (found.restorable, found.steps) == (False, [0])
        assert "missing: 3–4" in str(found)
        assert "can't be restored" in str(found)


def test_damage_that_the_store_itself_notices_is_named(tmp_path: Path) -> None:
    """H5: a store that refuses a stretch is asked for its parts."""
    with closing(open_store(f"file://{tmp_path}/runs")) as store:
        graph = line(6, store, preserve=True)
        graph.execute({}, run_id="r")
        third = store.read("r", 3, 3).records[0]
        (journal,) = tmp_path.glob("runs/runs/*.log")
        data = bytearray(journal.read_bytes())
        data[data.index(third) + len(third) - 1] ^= 1
        journal.write_bytes(data)
    with closing(open_store(f"file://{tmp_path}/runs")) as store:
        graph = line(6, store, preserve=True)
        found = graph.verify("r")
        assert not found.ok
        assert 3 in [damage.sequence for damage in found.damaged]
        assert found.steps == readable(graph, "r", 6)
        (head,) = tmp_path.glob("runs/runs/*.head")
        head.write_bytes(b"nothing of the kind")
    with closing(open_store(f"file://{tmp_path}/runs")) as store:
        graph = line(6, store, preserve=True)
        found = graph.verify("r")
        assert (found.ok, found.restorable, found.status) == (False, False, None)
        assert found.steps == readable(graph, "r", 6)
        assert [damage.sequence for damage in found.damaged][:2] == [0, 3]
        assert "status unknown; DAMAGED" in str(found)
        (journal,) = tmp_path.glob("runs/runs/*.log")
        journal.unlink()
        found = graph.verify("r")
        assert (found.ok, found.restorable, found.steps, found.status) == (False, False, [], None)


def test_damage_in_redis_is_named(tmp_path: Path) -> None:
    """H5: a record that another program changed, and records that are gone, which the store itself notices."""
    with (
        redis_server(tmp_path) as server,
        server.client() as client,
        closing(open_store(server.url)) as store,
    ):
        graph = line(6, store, preserve=True)
        graph.execute({}, run_id="r")
        third = client.lindex("limpet:journal:r", 2)
        client.lset("limpet:journal:r", 2, third[:-1])
        found = graph.verify("r")
        assert [damage.sequence for damage in found.damaged] == [3]
        assert found.steps == readable(graph, "r", 6) == [0]
        client.rpop("limpet:journal:r")
        found = graph.verify("r")
        assert (found.ok, found.restorable) == (False, False)
        assert "should have" in str(found)


def test_what_can_not_be_checked_is_reported_too() -> None:
    """H5: a record of a newer Limpet, one that doesn't follow, and a head that makes no sense."""
    from limpet.journal.encoding.codec import encode
    from limpet.journal.encoding.envelope import Envelope

    store = MemoryStore()
    graph = line(3, store, preserve=True)
    graph.execute({}, run_id="r")
    records = records_of(store, "r")
    whole = records[1]
    records[1] = Envelope("r").close(2, encode([6, 1, 0.0, 0, ["nowhere"], [1, 1, 0.0, 0, "a", None, {}]]))
    (damage,) = graph.verify("r").damaged
    assert damage.sequence == 2
    assert "doesn't follow" in damage.reason
    records[1] = whole
    run = store._runs["r"]  # type: ignore[index]  # it is open
    run.head = run.head._replace(note=b"\xc1")
    assert [damage.sequence for damage in graph.verify("r").damaged] == [0]


def test_a_purged_run_and_a_paused_one() -> None:
    """H5: that a journal is gone isn't damage; and a run with a question can be verified."""
    graph = line(2, MemoryStore(), keep_result=False)
    graph.execute({}, run_id="r")
    found = graph.verify("r")
    assert (found.ok, found.purged, found.records) == (True, True, 0)
    assert "was deleted when it completed" in str(found)
    asking = StateGraph(name="asks").add_node("ask", run=_ask).set_entry_point("ask").set_finish_point("ask")
    asking.compile(store=MemoryStore()).invoke({}, run_id="q").wait()
    assert asking.verify("q").restorable
    with pytest.raises(RunNotFound):
        graph.verify("missing")


def _ask(state: State) -> dict[str, Any]:
    return {"answer": pause("Go on?")}


def test_looking_changes_nothing(store: Any) -> None:
    """H5."""
    opened: Store = open_store(store)
    graph = line(3, opened, preserve=True)
    graph.execute({}, run_id="r")
    before = opened.read("r", first=1)
    graph.verify("r")
    assert opened.read("r", first=1) == before


def test_a_stop_that_the_journal_knows_nothing_of_is_damage(tmp_path: Path) -> None:
    """H5: the newest record is lost, or the head was edited."""
    from contextlib import closing

    from limpet import pause
    from limpet.journal.store import Commit
    from limpet.stores.memory import MemoryStore

    store = MemoryStore()
    graph = StateGraph(name="asks").add_node("ask", run=lambda state: {"a": pause("Well?")})
    graph.set_entry_point("ask").set_finish_point("ask").compile(store=store)
    graph.invoke({}, run_id="r").wait()
    runs = Runs(store)
    assert runs.verify("r").ok
    runs.export("r", tmp_path / "r.run")
    with closing(MemoryStore()) as other:
        assert Runs(other).import_(tmp_path / "r.run", "s") == "s"
        assert Runs(other).verify("s").ok
    lease = store.claim("r", "other", 10.0)
    assert store.append([Commit("r", lease.fence, store.head("r").sequence, [], status="failed")]) == [None]
    (damage,) = runs.verify("r").damaged
    assert (damage.sequence, "it is 'failed'" in damage.reason) == (0, True)


class TwiceStore(MemoryStore):
    """Has one record twice, as a database whose tree is damaged may."""

    def read(self, run_id: str, first: int | None = None, last: int | None = None) -> Tail:
        tail = super().read(run_id, first, last)
        if not tail.first <= 3 < tail.first + len(tail.records):
            return tail
        at = 4 - tail.first
        return tail._replace(records=[*tail.records[:at], *tail.records[at - 1 :]])


def test_a_record_that_a_store_has_twice_is_named() -> None:
    """H5: the search for it ends."""
    store = TwiceStore()
    line(4, store, preserve=True).execute({}, run_id="r")
    (damage,) = Runs(store).verify("r").damaged
    assert (damage.sequence, damage.reason) == (3, "the store has it more than once")


@pytest.mark.parametrize("kind", ["sqlite", "file"])
def test_steps_after_lost_oldest_records_can_be_verified_read_and_forked(kind: str, tmp_path: Path) -> None:
    """H5, H6: from the next snapshot on. Only the history of the whole run is refused."""
    path = tmp_path / "runs"
    url = f"sqlite:///{path}" if kind == "sqlite" else f"file://{path}"
    with closing(open_store(url)) as store:
        graph = line(4, store, preserve=True)
        graph.execute({}, run_id="r")
        graph.rollback("r", 2)
        graph.resume("r")
        states = {each.step: graph.state_at("r", each.step) for each in graph.history("r")}
        snapshot = store.head("r").snapshot
        assert snapshot > 4
        first = store.read("r", 1, 1).records[0]
    if kind == "sqlite":
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute(f"DELETE FROM records WHERE id & 0xffffffff < {snapshot}")
    else:
        (journal,) = path.glob("runs/*.log")
        data = journal.read_bytes()
        journal.write_bytes(bytes(data.index(first) + len(first)) + data[data.index(first) + len(first) :])
    with closing(open_store(url)) as store:
        graph = line(4, store, preserve=True)
        found = graph.verify("r")
        lost = [*found.missing, *(damage.sequence for damage in found.damaged)]
        assert sorted(lost) == list(range(1, snapshot))
        assert found.restorable
        assert found.steps == [step for step in states if step > 4] == readable(graph, "r", max(states))
        assert len(found.steps) == 3
        for step in found.steps:
            assert graph.state_at("r", step) == states[step]
            assert graph.fork("r", step).result() == states[max(states)]
        assert graph.state_at("r") == states[max(states)]
        with pytest.raises(DamagedRecord, match="record 1 of run 'r'"):
            graph.history("r")
        with pytest.raises(DamagedRecord, match="record 1 of run 'r'"):
            graph.state_at("r", 1)


def test_a_run_whose_journal_was_deleted_on_completion_has_no_state_to_restore() -> None:
    """H5, H10: that isn't damage."""
    graph = line(3, MemoryStore(), keep_result=False)
    graph.execute({}, run_id="r")
    found = graph.verify("r")
    assert (found.ok, found.purged, found.restorable, found.steps) == (True, True, False, [])


def test_a_head_that_names_another_record_as_the_newest_snapshot_is_damage() -> None:
    """H5: each record can be read, and still the newest state can't be restored: the report says why."""
    store = MemoryStore()
    graph = line(3, store, preserve=True)
    graph.execute({}, run_id="r")
    run = store._runs["r"]  # type: ignore[index]  # it is open
    run.head = run.head._replace(snapshot=2)
    found = graph.verify("r")
    assert (found.ok, found.restorable) == (False, False)
    assert [(damage.sequence, damage.reason) for damage in found.damaged] == [
        (2, "the journal doesn't begin with a snapshot")
    ]
    with pytest.raises(DamagedRecord, match="doesn't begin with a snapshot"):
        graph.state_at("r")


class Kelp(NamedTuple):
    """A value that is only stored while its class is registered."""

    height: int


def test_a_class_that_is_not_registered_is_a_remark_and_no_damage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """H5: what can be checked without the class is, and the report names it. So is a class that can't be restored."""
    registry = TypeRegistry()
    monkeypatch.setattr(codec, "TYPES", registry)
    registry.register(Kelp, name="Kelp")
    store = MemoryStore()
    graph = chain(lambda state: {"kelp": Kelp(3)}, name="line").compile(store=store, preserve=True)
    graph.execute({}, run_id="r")
    assert graph.verify("r").restorable
    monkeypatch.setattr(codec, "TYPES", TypeRegistry())
    found = graph.verify("r")
    remark = "class 'Kelp' is unknown here: the run can't be resumed in this process"
    assert (found.ok, found.restorable, found.steps) == (True, True, [0, 1])
    assert found.remarks == (remark,)
    assert f"intact\n  records: 2, {found.size} bytes\n  {remark}\n" in str(found)
    records = records_of(store, "r")
    whole = records[1]
    records[1] = flipped(whole, len(whole) - 1, 1)
    found = graph.verify("r")
    assert ([damage.sequence for damage in found.damaged], found.steps) == ([2], [])
    records[1] = whole
    changed = TypeRegistry()
    changed.register(Kelp, name="Kelp", to=tuple, restore=lambda stored: stored["length"])
    monkeypatch.setattr(codec, "TYPES", changed)
    found = graph.verify("r")
    assert (found.ok, found.restorable) == (True, True)
    assert "a stored 'Kelp' can't be restored: KeyError: 'length'" in found.remarks[0]
