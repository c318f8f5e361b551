"""Encryption as an option: of `compile`, of `open_store`, by the environment, by a URL; what stays plain text."""

from __future__ import annotations

import base64
import importlib.util
import os
import traceback
from collections.abc import Iterator
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any

import pytest

from limpet import (
    Cleaner,
    DamagedRecord,
    DefinitionError,
    ExecutionError,
    MemoryStore,
    RunPaused,
    State,
    StateGraph,
    StoreUnavailable,
    UsageError,
    Workflow,
    once,
    open_store,
    pause,
    secret,
)
from limpet.stores.composite.encrypted import EncryptedStore, Keys
from limpet.stores.composite.keys import read_keys
from limpet.stores.sqlite.store import SQLiteStore
from support.checkpoint_stores import InMemoryCheckpointStore
from support.graphs import count, single
from support.postgres import Server
from support.redis_servers import redis_server

if importlib.util.find_spec("cryptography") is None and not os.environ.get("CI"):
    pytest.skip("not installed: cryptography", allow_module_level=True)

KEY, OTHER, THIRD = (sha256(text).digest() for text in (b"one", b"another", b"a third"))
VARIABLE, OLD = "LIMPET_ENCRYPTION_KEY", "LIMPET_ENCRYPTION_OLD_KEYS"
MARKERS = (
    "MarkState",
    "MarkPrompt",
    "MarkChoice",
    "MarkError",
    "MarkAnswer",
    "MarkConfig",
    "MarkMemo",
    "MarkInput",
)


def tell_all(store: Any, **options: Any) -> None:
    """Runs of both kinds that ask, are answered, fail and complete, with a marker in all that a user gives."""

    def ask(state: State, config: dict[str, Any]) -> dict[str, Any]:
        once("memo", lambda: "MarkMemo")
        return {"answer": pause("MarkPrompt?", choices=["MarkChoice", "MarkAnswer"])}

    def fail(state: State) -> None:
        raise ValueError("MarkError")

    graph = StateGraph({"token": Annotated[str, secret]}, name="clear-graph").add_node("ask", run=ask)
    graph.add_node("fail", run=fail).set_entry_point("ask").add_edge("ask", "fail").set_finish_point("fail")
    graph.compile(store=store, preserve=True, **options)
    for run_id in ("clear-asks", "clear-fails"):
        with pytest.raises(RunPaused):
            graph.execute(
                {"token": "MarkState", "more": "MarkState" * 3000},
                {"c": "MarkConfig"},
                run_id=run_id,
                tags=["clear-tag"],
            )
    with pytest.raises(ExecutionError):
        graph.resume("clear-fails", "MarkAnswer")
    made = Workflow("clear-flow", store=store, preserve=True, secrets=["key"], **options)
    made.add_task("task", lambda key, ctx: ctx.add_message("MarkInput") or key, secret=True)
    assert made.execute({"key": "MarkInput"}).results == {"task": "MarkInput"}
    assert graph.state_at("clear-fails")["answer"] == "MarkAnswer"
    assert {info.run_id for info in graph.runs()} == {"clear-asks", "clear-fails"}


def check(raw: bytes) -> None:
    """Nothing that a user gave can be read, except ids, names and tags."""
    assert [mark for mark in MARKERS if mark.encode() in raw] == []
    for clear in (b"clear-asks", b"clear-graph", b"clear-tag"):
        assert clear in raw
    for key in (KEY, KEY.hex().encode(), base64.b64encode(KEY)):
        assert key not in raw


@pytest.mark.parametrize("target", ["sqlite:///{}/runs.db?level=process", "file://{}/runs"])
def test_nothing_that_a_user_gave_is_in_the_files(target: str, tmp_path: Path) -> None:
    """P5, P6: state, config, prompts, choices, answers, errors, messages and results of `once`."""

    def raw() -> bytes:
        return b"".join(path.read_bytes() for path in sorted(tmp_path.rglob("*")) if path.is_file())

    tell_all(target.format(tmp_path), encryption=KEY)
    check(raw())
    open_store(target.format(tmp_path)).close()
    check(raw())
    (tmp_path / "clear").mkdir()
    tell_all(target.format(tmp_path / "clear"), allow_plain_text_secrets=True)
    assert b"MarkPrompt" in raw(), "without a key it can be read"
    open_store(target.format(tmp_path / "clear")).close()


def test_nothing_that_a_user_gave_is_in_the_tables(postgres: Server, database: str) -> None:
    """P5, P6: in PostgreSQL."""
    import psycopg

    tell_all(database, encryption=KEY)
    with psycopg.connect(database) as connection:
        tables = [
            row[0]
            for row in connection.execute(
                "SELECT table_name FROM information_schema.tables WHERE table_schema = 'limpet'"
            )
        ]
        raw = b""
        for table in tables:
            for row in connection.execute(f"SELECT * FROM limpet.{table}"):  # type: ignore[call-overload]
                raw += b"|".join(each if isinstance(each, bytes) else str(each).encode() for each in row)
    open_store(database).close()
    assert len(tables) >= 2
    check(raw)


def test_nothing_that_a_user_gave_is_in_the_keys(tmp_path: Path) -> None:
    """P5, P6: in Redis."""
    with redis_server(tmp_path, appendonly="yes") as server:
        tell_all(server.url, encryption=KEY)
        client = server.client()
        raw = b"".join(client.dump(key) + key for key in client.keys("*"))
        parts = [*client.keys("*")]
        for key in client.keys("*"):
            match client.type(key):
                case b"hash":
                    parts += [each for pair in client.hgetall(key).items() for each in pair]
                case b"list":
                    parts += client.lrange(key, 0, -1)
        client.close()
        open_store(server.url).close()
    check(raw + b"|".join(parts))


def test_a_store_of_five_methods_can_be_encrypted() -> None:
    """P4: it stores ciphertext, and the run's place isn't shown."""
    kept = InMemoryCheckpointStore()
    tell_all(kept, encryption=KEY)
    checkpoints = kept.list()
    raw = repr([vars(each) for each in checkpoints]).encode()
    check(raw + b"".join(base64.b64decode(each.context["__limpet__"]) for each in checkpoints))


# How it is given


def graph_of(**options: Any) -> StateGraph:
    return single(count, "a", {"n": int}, "g").compile(preserve=True, **options)


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[str]:
    yield f"sqlite:///{tmp_path}/runs.db?level=process"
    open_store(f"sqlite:///{tmp_path}/runs.db?level=process", encryption=False).close()


@pytest.mark.parametrize(
    "given",
    [
        KEY,
        KEY.hex(),
        KEY.hex().upper(),
        base64.b64encode(KEY).decode(),
        base64.urlsafe_b64encode(KEY).decode(),
        base64.b64encode(KEY).decode().rstrip("="),
        f" {KEY.hex()}\n",
        {"a": KEY},
        {"a": KEY.hex(), "b": OTHER},
        f"a:{KEY.hex()}",
        Keys({"a": KEY}),
    ],
    ids=lambda given: type(given).__name__,
)
def test_a_key_is_given_in_many_ways(given: Any, runs: str) -> None:
    """P5: bytes, hexadecimal, base64, several by id, or Keys; no repr has it."""
    graph = graph_of(store=runs, encryption=given)
    assert graph.execute({"n": 1}, run_id="r")["n"] == 2
    shown = f"{graph!r} {graph.compiled()!r} {graph._options!r} {open_store(runs, given)!r}"
    for key in (KEY.hex(), KEY.hex().upper(), base64.b64encode(KEY).decode()[:-1], repr(KEY)):
        assert key not in shown
    assert open_store(runs, given) is graph.compiled().client.store  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "given",
    [b"short", "short", "", 7, {}, KEY.hex()[:-2], "zz" * 32, {"a": "short"}, {"a": 1}, True, [KEY]],
    ids=repr,
)
def test_an_invalid_key_is_refused_without_being_quoted(given: Any, runs: str) -> None:
    """P6: no part of a mistyped key is in the message, or in its cause."""
    for call in (
        lambda: graph_of(store=runs, encryption=given),
        lambda: open_store(runs, given),
        lambda: Workflow("w", store=runs, encryption=given),
    ):
        with pytest.raises(UsageError) as refused:
            call()
        message_text = "".join(traceback.format_exception_only(refused.value))
        assert "zzzz" not in message_text
        assert KEY.hex()[:8] not in message_text
        assert "32" in message_text


def test_the_key_of_the_environment_encrypts_every_store_that_outlasts_the_process(
    runs: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """P5: named by text or given as an object, also the default one; not those in memory."""
    monkeypatch.setenv(VARIABLE, KEY.hex())
    store = open_store(runs)
    assert isinstance(store, EncryptedStore)
    assert open_store(runs) is store
    assert open_store(store) is store
    assert isinstance(open_store("memory://"), MemoryStore)
    with closing(SQLiteStore(tmp_path / "o.db", level="process")) as made:
        assert isinstance(open_store(made), EncryptedStore)
        assert open_store(made, encryption=False) is made
    monkeypatch.setenv("LIMPET_STORE", runs)
    graph = graph_of()
    assert graph.execute({"n": 1}, run_id="r")["n"] == 2
    assert isinstance(graph.compiled().client.store, EncryptedStore)  # type: ignore[union-attr]
    assert Cleaner(runs, max_age_hours=0).clean() == 1
    monkeypatch.delenv(VARIABLE)
    assert not isinstance(open_store(runs), EncryptedStore)


def test_a_url_can_insist_on_encryption(runs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """P5: the key isn't in the URL, and without one nothing is opened."""
    with pytest.raises(UsageError, match=f"{VARIABLE}, which isn't set"):
        open_store(f"encrypted+{runs}")
    monkeypatch.setenv(VARIABLE, KEY.hex())
    store = open_store(f"encrypted+{runs}")
    assert store is open_store(runs)
    monkeypatch.setenv("LIMPET_STORE", f"encrypted+{runs}")
    assert open_store("env") is store
    with pytest.raises(UsageError, match="already encrypted"):
        open_store(f"encrypted+{runs}", KEY)


def test_keys_are_changed_by_the_environment(runs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """P5: the old ones read, the new one writes; ids are made if none are given."""
    monkeypatch.setenv(VARIABLE, KEY.hex())
    graph_of(store=runs).execute({"n": 1}, run_id="first")
    monkeypatch.setenv(VARIABLE, OTHER.hex())
    with pytest.raises(StoreUnavailable, match="isn't among those given"):
        graph_of(store=runs).state_at("first")
    monkeypatch.setenv(OLD, f"{KEY.hex()}, mine:{THIRD.hex()}")
    graph = graph_of(store=runs)
    assert graph.state_at("first")["n"] == 2
    graph.execute({"n": 5}, run_id="second")
    monkeypatch.delenv(OLD)
    newest = graph_of(store=runs)
    assert newest.state_at("second")["n"] == 6
    with pytest.raises(StoreUnavailable):
        newest.state_at("first")


@pytest.mark.parametrize(
    ("current", "old", "message"),
    [
        ("", KEY.hex(), f"{OLD} is set, but {VARIABLE}"),
        (f"{KEY.hex()} {OTHER.hex()}", "", "has one key"),
        ("nonsense", "", "isn't a key"),
        (f"a:{KEY.hex()}", f"a:{OTHER.hex()}", "two keys have the id 'a'"),
    ],
)
def test_an_environment_that_makes_no_sense_is_refused(
    current: str, old: str, message: str, runs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P5: rather than taken for one without a key."""
    monkeypatch.setenv(VARIABLE, current)
    monkeypatch.setenv(OLD, old)
    with pytest.raises(UsageError, match=message) as refused:
        open_store(runs)
    assert "nonsense" not in str(refused.value)
    assert KEY.hex() not in str(refused.value)


def test_what_was_stored_in_plain_text_isnt_mistaken_for_encrypted(runs: str) -> None:
    """H5: the message says how it comes in."""
    graph_of(store=runs).execute({"n": 1}, run_id="r")
    with pytest.raises(DamagedRecord, match=r"it isn't encrypted.*Export runs"):
        graph_of(store=runs, encryption=KEY).state_at("r")


def test_encryption_is_for_stores(tmp_path: Path) -> None:
    """F8: checkpoint files are for other programs to read."""
    with pytest.raises(DefinitionError, match="isn't encrypted"):
        graph_of(checkpoint_dir=tmp_path, encryption=KEY)
    with pytest.raises(DefinitionError, match="encryption needs a store"):
        graph_of(encryption=KEY)


def test_the_store_of_a_checkpoint_config_is_encrypted_as_compile_says(
    runs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G5, P5: by the key of the environment, by another, or not."""
    monkeypatch.setenv(VARIABLE, KEY.hex())
    graph = StateGraph({"n": int}, name="g", checkpoint={"store": runs, "interval": 1, "preserve": True})
    graph.add_node("a").set_entry_point("a").set_finish_point("a")
    stores = [
        graph.compile(**given).compiled().client.store
        for given in ({}, {"encryption": OTHER}, {"encryption": False})
    ]  # type: ignore[union-attr, arg-type]
    assert [getattr(store, "keys", None) and repr(store.keys) for store in stores] == [  # type: ignore[attr-defined]
        repr(read_keys(KEY)),
        repr(read_keys(OTHER)),
        None,
    ]


def test_equal_keys_are_distinguished_from_others() -> None:
    """P6: by a mark that isn't the key."""
    one = read_keys({"a": KEY})
    assert one.mark == Keys({"a": KEY}).mark
    assert one.mark != read_keys({"a": OTHER}).mark
    assert KEY not in repr(one.mark).encode()
    assert KEY.hex() not in repr(one.mark)
