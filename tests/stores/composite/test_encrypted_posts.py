"""Posts, output and documents of an encrypted store: the inner store has their keys and names, and ciphertext."""

from __future__ import annotations

import importlib.util
import logging
import os
from hashlib import sha256

import pytest

from limpet import DamagedDocument, DamagedRecord, KeyMissing
from limpet.journal.encoding.codec import encode
from limpet.journal.store import Document, NewRun, Output, Post
from limpet.stores import MemoryStore
from limpet.stores.composite.encrypted import EncryptedStore, Keys

if importlib.util.find_spec("cryptography") is None and not os.environ.get("CI"):
    pytest.skip("not installed: cryptography", allow_module_level=True)

KEY, OTHER = sha256(b"one").digest(), sha256(b"another").digest()


@pytest.fixture
def inner() -> MemoryStore:
    inner = MemoryStore()
    for run_id in "rstu":
        inner.create(NewRun(run_id, "g", [], holder="ann"))
    return inner


@pytest.fixture
def store(inner: MemoryStore) -> EncryptedStore:
    return EncryptedStore(inner, Keys({"2026": KEY}))


def fill(store: EncryptedStore) -> None:
    store.post("r", "key", b"secret post")
    store.add_output("r", 1, [b"secret output"], 10)
    store.put_document("name", b"secret document", 0, due=1.0)


def test_the_inner_store_sees_keys_and_names_only(store: EncryptedStore, inner: MemoryStore) -> None:
    """P6: nothing of what is in them."""
    fill(store)
    (post,) = inner.inbox("r")
    (item,) = inner.output("r")
    (document,) = inner.list_documents("na", due=True)
    assert (post.number, post.key, item.number, document.name, document.due) == (1, "key", 1, "name", 1.0)
    assert b"secret" not in post.body + item.body + document.body
    assert list(store.inbox("r")) == [Post(1, "key", b"secret post")]
    assert list(store.output("r")) == [Output(1, b"secret output")]
    assert store.get_document("name") == document._replace(body=b"secret document")


def test_nothing_can_be_put_in_anothers_place(store: EncryptedStore, inner: MemoryStore) -> None:
    """P6: a post to another run or under another key, output of another run, a document of another name."""
    fill(store)
    (post,) = inner.inbox("r")
    (item,) = inner.output("r")
    document = inner.get_document("name")
    assert document is not None
    store.post("s", "other", b"fine")
    inner.post("s", "key", post.body)
    store.post("t", "key", b"fine")
    inner.post("t", "other", inner.inbox("t")[0].body)
    inner.post("u", "key", item.body)
    for run_id, key in (("s", "key"), ("t", "other"), ("u", "key")):
        with pytest.raises(DamagedRecord, match=f"the post '{key}' to run '{run_id}': it was changed"):
            store.inbox(run_id)
    inner.add_output("s", 1, [item.body, post.body], 10)
    store.add_output("s", 1, [b"fine"], 10)
    assert list(store.output("s")) == [Output(3, b"fine")]
    inner.put_document("other", document.body, 0)
    with pytest.raises(DamagedDocument, match="the document 'other' is damaged: it was changed"):
        store.get_document("other")


def test_a_document_that_cannot_be_read_hides_no_other(
    store: EncryptedStore, inner: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    """P6: it is left out of lists, with a warning, however few are asked for."""
    for name in "abcd":
        inner.put_document(name, b"not encrypted", 0, due=0.0)
    EncryptedStore(inner, Keys({"gone": OTHER})).put_document("e", b"", 0, due=0.0)
    version = store.put_document("f", b"fine", 0, due=0.5)
    assert version is not None
    with caplog.at_level(logging.WARNING):
        for due in (False, True):
            assert list(store.list_documents(due=due, limit=1)) == [Document("f", version, b"fine", 0.5)]
    assert caplog.text.count("the key 'gone'") == 1


def test_keys_can_be_changed(store: EncryptedStore, inner: MemoryStore) -> None:
    """P6: those that only read do; without them, the error names what is missing."""
    fill(store)
    later = EncryptedStore(inner, Keys({"new": OTHER, "2026": KEY}, current="new"))
    assert list(later.inbox("r")) == list(store.inbox("r"))
    without = EncryptedStore(inner, Keys({"new": OTHER}))
    for call in (
        lambda: without.inbox("r"),
        lambda: without.output("r"),
        lambda: without.get_document("name"),
    ):
        with pytest.raises(KeyMissing, match="encrypted with the key '2026'"):
            call()


def test_a_request_to_cancel_of_an_older_version_is_taken_in(
    store: EncryptedStore, inner: MemoryStore
) -> None:
    """D10: a migration makes it a post, and has no key."""
    migrated = encode({"kind": "cancel"})
    inner.post("r", "cancel", migrated)
    inner.post("s", "cancel:1", migrated)
    assert list(store.inbox("r")) == [Post(1, "cancel", migrated)]
    with pytest.raises(DamagedRecord, match="it isn't encrypted"):
        store.inbox("s")


def test_heads_that_cannot_be_read_are_left_out(store: EncryptedStore, inner: MemoryStore) -> None:
    """H10: as are those of runs that don't exist."""
    inner.create(NewRun("plain", "g", [], note=b"not encrypted"))
    store.create(NewRun("fine", "g", [], note=b"n"))
    assert list(store.heads(["plain", "fine", "missing"])) == [None, store.head("fine"), None]
