"""Encryption at rest: a store like any other, whose inner store never sees what is kept in it."""

from __future__ import annotations

import hmac
import importlib.util
import logging
import os
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from limpet import (
    DamagedRecord,
    ExecutionError,
    KeyMissing,
    RunPaused,
    State,
    StateGraph,
    StoreError,
    StoreUnavailable,
    UsageError,
    once,
    open_store,
    pause,
    supervise,
)
from limpet.journal.run_filter import RunFilter
from limpet.journal.store import Commit, NewRun, Store
from limpet.stores import MemoryStore
from limpet.stores.composite.encrypted import EncryptedStore, Keys
from limpet.stores.composite.tiered import TieredStore
from limpet.stores.sqlite.store import SQLiteStore
from limpet.testing.conformance import ManualClock, StoreConformance
from limpet.testing.conformance.store_calls import ready_runs
from support.damage import changed_at_its_end
from support.redis_servers import redis_server

if importlib.util.find_spec("cryptography") is None and not os.environ.get("CI"):
    pytest.skip("not installed: cryptography", allow_module_level=True)

KEY, OTHER = sha256(b"one").digest(), sha256(b"another").digest()


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
class TestEncryptedStore(StoreConformance):
    """P5, P6."""

    @pytest.fixture
    def store(self, kind: str, tmp_path: Path, clock: ManualClock) -> Iterator[Store]:
        inner: Any = MemoryStore(clock=clock)
        if kind == "sqlite":
            inner = SQLiteStore(tmp_path / "runs.db", level="process", clock=clock)
        store = EncryptedStore(inner, Keys({"k": KEY}))
        yield store
        store.close()

    def reopen(self, store: EncryptedStore) -> Store:
        if not isinstance(store.inner, SQLiteStore):
            pytest.skip("what is in memory can't be opened again")
        store.close()
        inner = SQLiteStore(store.inner.path, level="process", clock=store.inner.clock)
        return EncryptedStore(inner, Keys({"new": OTHER, "k": KEY}, current="new"))

    def damage_document(self, store: EncryptedStore, name: str) -> None:
        found = store.inner.get_document(name)
        assert found is not None
        assert (
            store.inner.put_document(name, changed_at_its_end(found.body), found.version, found.due)
            is not None
        )

    def damage(self, store: EncryptedStore, run_id: str, sequence: int) -> None:
        inner = store.inner
        if isinstance(inner, MemoryStore):
            records = inner._open()[run_id].records
            records[sequence - 1] = records[sequence - 1][:-1] + bytes([records[sequence - 1][-1] ^ 1])
            return
        assert isinstance(inner, SQLiteStore)
        with closing(sqlite3.connect(inner.path)) as connection, connection:
            connection.execute(
                "UPDATE records SET data = CAST('?' || substr(data, 2) AS BLOB) "
                "WHERE id = ? + ((SELECT id FROM runs WHERE run_id = ?) << 32)",
                (sequence, run_id),
            )


@pytest.fixture
def inner() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def store(inner: MemoryStore) -> EncryptedStore:
    return EncryptedStore(inner, Keys({"2026": KEY}))


def stored(inner: MemoryStore, run_id: str = "r") -> list[bytes]:
    return inner._open()[run_id].records


def with_note(inner: MemoryStore, run_id: str, note: bytes) -> None:
    run = inner._open()[run_id]
    run.head = run.head._replace(note=note)


# What the inner store sees

SECRETS = (
    "SecretOfTheState",
    "SecretQuestion",
    "SecretOfTheError",
    "SecretAnswer",
    "SecretMemo",
    "SecretChoice",
)


def tell_secrets(store: Store) -> None:
    """Runs that ask, fail, are answered and complete, with something to hide everywhere."""

    def ask(state: State) -> dict[str, Any]:
        once("memo", lambda: "SecretMemo")
        return {"answer": pause("SecretQuestion?", choices=["SecretChoice", "SecretAnswer"])}

    def fail(state: State) -> None:
        raise ValueError(f"SecretOfTheError {state['answer']}")

    graph = StateGraph(name="clear-graph").add_node(
        "begin", run=lambda state: {"more": "SecretOfTheState" * 2000}
    )
    graph.add_node("ask", run=ask).add_node("fail", run=fail)
    graph.set_entry_point("begin").add_edge("begin", "ask").add_edge("ask", "fail").set_finish_point("fail")
    graph.compile(store=store, preserve=True)
    for run_id in ("clear-asks", "clear-fails"):
        with pytest.raises(RunPaused):
            graph.execute({"given": "SecretOfTheState"}, run_id=run_id, tags=["clear-tag"])
    with pytest.raises(ExecutionError):
        graph.resume("clear-fails", "SecretAnswer")
    infos = {info.run_id: info for info in graph.runs()}
    assert infos["clear-asks"].questions[0].prompt == "SecretQuestion?"
    assert "SecretOfTheError" in (infos["clear-fails"].error or {})["message"]
    assert graph.state_at("clear-fails")["answer"] == "SecretAnswer"
    assert graph.verify("clear-fails").ok


def check_that_nothing_shows(raw: bytes) -> None:
    assert [secret for secret in SECRETS if secret.encode() in raw] == []
    for clear in (b"clear-asks", b"clear-graph", b"clear-tag"):
        assert clear in raw
    assert KEY not in raw


@pytest.mark.parametrize("target", ["sqlite:///{}/runs.db?level=process", "file://{}/runs"])
def test_no_secret_is_in_the_files(target: str, tmp_path: Path) -> None:
    """P6: neither of the state, nor of questions, answers or errors; ids, names and tags are in plain text."""

    def raw() -> bytes:
        return b"".join(path.read_bytes() for path in sorted(tmp_path.rglob("*")) if path.is_file())

    with closing(EncryptedStore(open_store(target.format(tmp_path)), Keys({"k": KEY}))) as store:
        tell_secrets(store)
        check_that_nothing_shows(raw())
    check_that_nothing_shows(raw())


def test_the_search_for_secrets_would_find_them(tmp_path: Path) -> None:
    """P6: without encryption all of them are there."""
    with closing(open_store(f"file://{tmp_path}/runs")) as store:
        tell_secrets(store)
        raw = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
        assert [secret for secret in SECRETS if secret.encode() not in raw] == []


def test_no_secret_is_in_redis(tmp_path: Path) -> None:
    """P6: whatever keys it has."""
    with redis_server(tmp_path) as server, server.client() as client:
        with closing(EncryptedStore(open_store(server.url), Keys({"k": KEY}))) as store:
            tell_secrets(store)
        raw = b""
        for name in client.keys("*"):
            raw += name + (client.dump(name) if client.type(name) == b"zset" else b"")
            raw += b"".join(client.lrange(name, 0, -1)) if client.type(name) == b"list" else b""
            if client.type(name) == b"hash":
                raw += b"".join(part for pair in client.hgetall(name).items() for part in pair)
        check_that_nothing_shows(raw)


def test_the_same_is_never_written_the_same_way(store: EncryptedStore, inner: MemoryStore) -> None:
    """P6: a nonce each time, also when a commit is made again."""
    store.create(NewRun("r", "g", [b"same"] * 50, holder="me", note=b"same"))
    assert store.append([Commit("r", 1, 50, [b"same"] * 50)]) == [None]
    start = len(b"\xc1\x042026") + 8
    assert len({record[start : start + 12] for record in stored(inner)}) == 100
    assert store.read("r", 1).records == [b"same"] * 100


# Places


def test_nothing_can_be_put_in_anothers_place(store: EncryptedStore, inner: MemoryStore) -> None:
    """P6, H5: not in another run, nor under another number, nor a record for a note."""
    for run_id in ("r", "s"):
        store.create(NewRun(run_id, "g", [b"1", b"2"], note=b"note of " + run_id.encode()))
    one, two = stored(inner)
    for records in ([two, one], [one, one], stored(inner, "s")):
        inner._open()["r"].records = records.copy()
        with pytest.raises(
            DamagedRecord, match="of run 'r' is damaged: it was changed, or belongs to another"
        ):
            store.read("r")
    inner._open()["r"].records = [one, inner.head("r").note]
    with pytest.raises(DamagedRecord, match="record 2"):
        store.read("r")
    inner._open()["r"].records = [one, two]
    for note in (inner.head("s").note, one):
        with_note(inner, "r", note)
        with pytest.raises(DamagedRecord, match="the head of run 'r'"):
            store.head("r")


def test_every_changed_byte_and_every_cut_is_noticed(store: EncryptedStore, inner: MemoryStore) -> None:
    """H5: as damage of that record, wherever it is, and never as anything else."""
    store.create(NewRun("r", "g", [b"a record"]))
    whole = stored(inner)[0]
    for place in range(len(whole)):
        for data in (whole[:place], whole[:place] + bytes([whole[place] ^ 0x10]) + whole[place + 1 :]):
            stored(inner)[0] = data
            with pytest.raises(DamagedRecord, match="record 1 of run 'r'"):
                store.read("r")
    stored(inner)[0] = whole
    assert store.read("r").records == [b"a record"]


def test_a_run_whose_note_is_damaged_is_listed_as_such_and_not_ready(
    store: EncryptedStore, inner: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    """H5: with a warning; the others are listed."""
    for run_id in ("r", "s"):
        store.create(NewRun(run_id, "g", [b"1"], note=b"SecretNote", due=0.0))
    with_note(inner, "r", inner.head("r").note[:-1])
    with caplog.at_level(logging.WARNING, "limpet.stores"):
        listed = {head.run_id: head.status for head in store.list(RunFilter())}
        assert listed == {"r": "damaged", "s": "running"}
        assert [head.run_id for head in store.list(RunFilter(statuses=("damaged",)))] == ["r"]
        assert [(head.run_id, head.note) for head in ready_runs(store, ["g"], 9)] == [("s", b"SecretNote")]
    assert "'r'" in caplog.text
    assert "SecretNote" not in caplog.text


def test_damage_is_found_by_looking_through_a_run(store: EncryptedStore, inner: MemoryStore) -> None:
    """H5: `verify` names the record, and what is before it can be read."""
    graph = StateGraph(name="g").add_node("a", run=lambda state: {"n": 1}).add_node("b")
    graph.set_entry_point("a").add_edge("a", "b").set_finish_point("b")
    graph.compile(store=store, preserve=True).execute({}, run_id="r")
    stored(inner)[-1] = stored(inner)[-1][:-1]
    found = graph.verify("r")
    assert [damage.sequence for damage in found.damaged] == [len(stored(inner))]
    assert found.steps
    assert [graph.state_at("r", step).run_id for step in found.steps] == ["r"] * len(found.steps)


# Keys


def test_keys_can_be_changed(store: EncryptedStore, inner: MemoryStore) -> None:
    """P6, P10: old runs resume with the new key, and what the old one wrote is still read."""
    store.create(NewRun("r", "g", [b"old"], note=b"old"))
    rotated = EncryptedStore(inner, Keys({"2026": KEY, "2027": OTHER}, current="2027"))
    assert rotated.append([Commit("r", 1, 1, [b"new"])]) == [None]
    assert (rotated.read("r").records, rotated.head("r").note) == ([b"old", b"new"], b"old")
    assert rotated.append([Commit("r", 1, 2, [], note=b"new")]) == [None]
    with pytest.raises(
        StoreUnavailable, match=r"the note of run 'r' was encrypted with the key '2027'.*'2026'"
    ):
        store.head("r")
    without = EncryptedStore(inner, Keys({"2027": OTHER}))
    assert without.head("r").note == b"new"
    with pytest.raises(StoreUnavailable, match="record 1 of run 'r' was encrypted with the key '2026'"):
        without.read("r")
    assert without.read("r", 2).records == [b"new"]


def test_a_wrong_key_is_distinguished_from_damage(store: EncryptedStore, inner: MemoryStore) -> None:
    """H5: the id is right and the key isn't."""
    store.create(NewRun("r", "g", [b"1"], note=b"note"))
    wrong = EncryptedStore(inner, Keys({"2026": OTHER}))
    for call in (lambda: wrong.read("r"), lambda: wrong.head("r"), lambda: wrong.list(RunFilter())):
        with pytest.raises(StoreUnavailable, match="another key than the one that is given as '2026'"):
            call()


def test_a_run_whose_key_is_missing_keeps_no_other_from_being_found(
    store: EncryptedStore, inner: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    """H1, P6: it is left out, with a warning that names the key; and raised if that leaves no run."""
    for number in range(5):
        store.create(NewRun(f"lost-{number}", "g", [b"1"], note=b"SecretNote", due=0.0, priority=1))
    other = EncryptedStore(inner, Keys({"2027": OTHER}))
    assert ready_runs(other, ["g"], 2) == []
    with pytest.raises(KeyMissing, match="'2026'"):
        other.list(RunFilter())
    for number in range(3):
        other.create(NewRun(f"new-{number}", "g", [b"1"], note=b"note", due=0.0))
    with caplog.at_level(logging.WARNING, "limpet.stores"):
        assert {head.run_id for head in other.list(RunFilter())} == {"new-0", "new-1", "new-2"}
        assert [head.run_id for head in ready_runs(other, ["g"], 2)] == ["new-0", "new-1"]
    assert "the note of run 'lost-0' was encrypted with the key '2026'" in caplog.text
    assert "SecretNote" not in caplog.text
    assert len(ready_runs(store, ["g"], 9)) == 5


def test_a_supervisor_lets_runs_be_whose_key_is_missing(store: EncryptedStore, inner: MemoryStore) -> None:
    """H1: it tries each once in a while, and resumes the others; an unreadable run is left unchanged."""
    ran: list[str] = []
    graph = StateGraph({"n": int}, name="g").add_node("a", run=lambda state: ran.append(state.run_id))
    graph.set_entry_point("a").set_finish_point("a")
    graph.compile(store=store, preserve=True).start({"n": 1}, run_id="lost")
    before = inner.head("lost")
    other = EncryptedStore(inner, Keys({"2027": OTHER}))
    graph.compile(store=other, preserve=True).start({"n": 1}, run_id="new")
    supervisor = supervise(other, [graph])
    assert supervisor.drain() == ["new"]
    assert supervisor.drain() == []
    assert ran == ["new"]
    after = inner.head("lost")
    assert (after.crashes, after.status, after.holder) == (before.crashes, before.status, None)
    graph.compile(store=store, preserve=True)
    graph.recover()
    assert ran == ["new", "lost"]


def test_no_key_is_shown(store: EncryptedStore) -> None:
    """P6: neither as it is, nor in hex or as Python writes it."""
    for shown in (repr(store), str(store), repr(store.keys), repr(vars(store.keys)), str(vars(store))):
        assert KEY.hex() not in shown
        assert repr(KEY)[2:-1] not in shown
    assert "'2026'" in repr(store)


@pytest.mark.parametrize(
    ("keys", "current"),
    [
        ({}, None),
        (KEY, None),
        ({"a": KEY[:-1]}, None),
        ({"a": KEY.hex()}, None),
        ({"": KEY}, None),
        ({"a" * 61: KEY}, None),
        ({5: KEY}, None),
        ({"a": KEY, "b": OTHER}, None),
        ({"a": KEY}, "b"),
    ],
)
def test_keys_that_make_no_sense_are_refused_unseen(keys: Any, current: str | None) -> None:
    with pytest.raises(UsageError) as caught:
        Keys(keys, current)
    assert KEY.hex()[:-2] not in str(caught.value)
    assert repr(KEY)[2:-5] not in str(caught.value)


def test_what_is_given_is_a_store_and_keys(inner: MemoryStore) -> None:
    for given in (("memory", Keys({"k": KEY})), (MemoryStore, Keys({"k": KEY})), (inner, {"k": KEY})):
        with pytest.raises(UsageError):
            EncryptedStore(*given)  # type: ignore[arg-type]  # that is the point


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers.aead", None)
    with pytest.raises(StoreUnavailable, match=r"pip install 'limpet\[encryption\]'"):
        Keys({"k": KEY})


# With stores that aren't encrypted


def test_what_isnt_encrypted_is_refused(store: EncryptedStore, inner: MemoryStore) -> None:
    """P6: an attacker who can write to the inner store can't insert a record."""
    inner.create(NewRun("r", "g", [b"plain"], note=b""))
    with pytest.raises(DamagedRecord, match="it isn't encrypted"):
        store.read("r")


def test_without_keys_nothing_is_taken_for_data(store: EncryptedStore, inner: MemoryStore) -> None:
    """H5: a user who forgets them gets an error."""
    graph = StateGraph(name="g").add_node("a", run=lambda state: {"x": pause("?")})
    graph.set_entry_point("a").set_finish_point("a").compile(store=store).invoke({}, run_id="r").wait()
    graph.compile(store=inner)
    for call in (lambda: graph.resume("r", 1), lambda: graph.state_at("r"), lambda: graph.verify("r")):
        with pytest.raises(KeyMissing, match="the store was opened without a key"):
            call()
    (info,) = graph.runs()
    assert "is encrypted with the key '2026', and the store was opened without a key" in (info.problem or "")


def test_runs_are_carried_in_and_out(store: EncryptedStore, inner: MemoryStore, tmp_path: Path) -> None:
    """P5: a plain store becomes an encrypted one by export and import."""
    graph = StateGraph(name="g").add_node("a", run=lambda state: {"x": pause("?")})
    graph.set_entry_point("a").set_finish_point("a").compile(store=MemoryStore()).invoke(
        {}, run_id="r"
    ).wait()
    graph.export_run("r", tmp_path / "r.run")
    graph.compile(store=store, preserve=True).import_run(tmp_path / "r.run")
    assert graph.resume("r", 7) == {"x": 7}
    assert all(record[0] == 0xC1 for record in stored(inner))
    with pytest.raises(StoreError):
        graph.import_run(tmp_path / "nothing")


def test_both_stores_of_a_tiered_one_see_ciphertext() -> None:
    """P5, P6: with the encryption around it."""
    hot, cold = MemoryStore(), MemoryStore()
    store = EncryptedStore(TieredStore(hot, cold), Keys({"k": KEY}))
    store.create(NewRun("r", "g", [b"SecretOfTheState"], holder="me"))
    assert store.append([Commit("r", 1, 1, [b"SecretOfTheState"])]) == [None]
    assert store.read("r").records == [b"SecretOfTheState"] * 2
    for inner in (hot, cold):
        (run,) = inner._open().values()
        assert b"SecretOfTheState" not in b"".join(run.records)


def test_what_is_stored_is_as_the_format_says(store: EncryptedStore, inner: MemoryStore) -> None:
    """P10: taken apart by hand, so that it stays what it is."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    store.create(NewRun("r", "g", [b"whole", b"record"], note=b"note"))
    for place, data, text in (
        (b"record 2 r", stored(inner)[1], b"record"),
        (b"note 0 r", inner.head("r").note, b"note"),
    ):
        check = hmac.digest(KEY, b"limpet key", "sha256")[:4]
        start = b"\xc1\x042026" + check
        start += crc32(start).to_bytes(4, "big")
        assert data.startswith(start)
        nonce, rest = data[len(start) :][:12], data[len(start) + 12 :]
        assert AESGCM(KEY).decrypt(nonce, rest, start + place) == text


def test_a_commit_too_large_to_encrypt_is_refused_alone(
    store: EncryptedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Invariant 1: as the interface says of records that are too large."""
    for run_id in ("r", "s"):
        store.create(NewRun(run_id, "g", [b"1"], holder="me"))
    encrypted = store.keys._writing.cipher

    class Small:
        def encrypt(self, nonce: bytes, text: bytes, place: bytes) -> bytes:
            if len(text) > 5:
                raise OverflowError
            return encrypted.encrypt(nonce, text, place)

    monkeypatch.setattr(store.keys, "_writing", store.keys._writing._replace(cipher=Small()))
    refused, taken = store.append([Commit("r", 1, 1, [b"too large"]), Commit("s", 1, 1, [b"small"])])
    assert isinstance(refused, StoreUnavailable)
    assert taken is None
    assert (store.inner.head("r").sequence, store.inner.head("s").sequence) == (1, 2)
