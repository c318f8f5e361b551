"""Damage is detected and named, never returned as data: promises H5 and P10."""

from __future__ import annotations

import struct
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from limpet.errors import DamagedRecord, UnsupportedFormat
from limpet.journal.encoding.codec import encode
from limpet.journal.encoding.envelope import VERSION, Envelope

BODY = encode({"text": "the fox", "n": [1, 2.5, None, (True,)], "raw": b"\0" * 8})
SEAL = Envelope("run-1")
RECORD = SEAL.close(7, BODY)

bodies = st.binary(max_size=200)
run_ids = st.text(st.characters(exclude_categories=()), max_size=12)
sequences = st.integers(0, 2**63)


def record(version: int, flags: int, body: bytes, sequence: int = 7, run_id: str = "run-1") -> bytes:
    """A record of any version and flags, with a checksum that is right."""
    place = struct.pack(">QBB", sequence, version, flags)
    checksum = zlib.crc32(body, zlib.crc32(place, zlib.crc32(run_id.encode())))
    return struct.pack(">BBI", version, flags, checksum) + body


def damaged(data: bytes, sequence: int = 7, seal: Envelope = SEAL) -> bool:
    try:
        seal.open(sequence, data)
    except DamagedRecord as error:
        return (error.run_id, error.sequence) == (seal.run_id, sequence)
    return False


@given(run_ids, sequences, bodies)
def test_what_was_closed_opens_to_the_same_body(run_id: str, sequence: int, body: bytes) -> None:
    """H5: undamaged records come back whole, from a seal of another process too."""
    assert Envelope(run_id).open(sequence, Envelope(run_id).close(sequence, body)) == body


def test_every_flipped_byte_of_a_record_is_detected() -> None:
    """H5: each of its bytes, changed to each other value: version, flags, checksum and body alike."""
    for place, byte in enumerate(RECORD):
        for other in range(256):
            if other != byte:
                assert damaged(RECORD[:place] + bytes([other]) + RECORD[place + 1 :])


def test_every_truncation_of_a_record_is_detected() -> None:
    """H5: from the last byte to nothing at all."""
    assert all(damaged(RECORD[:length]) for length in range(len(RECORD)))


@settings(deadline=None)
@given(bodies, st.data())
def test_damage_anywhere_is_detected(body: bytes, data: st.DataObject) -> None:
    """H5: flipped bits, cut ends and added bytes, in records of any content."""
    sealed = SEAL.close(3, body)
    place = data.draw(st.integers(0, len(sealed) - 1))
    flip = data.draw(st.integers(1, 255))
    assert damaged(sealed[:place] + bytes([sealed[place] ^ flip]) + sealed[place + 1 :], 3)
    assert damaged(sealed[:place], 3)
    assert damaged(sealed + bytes([flip]), 3)


@given(bodies, sequences, sequences)
def test_a_record_in_another_place_of_its_run_is_damage(body: bytes, one: int, other: int) -> None:
    """H5: swapped or repeated records are noticed."""
    if one != other:
        assert damaged(SEAL.close(one, body), other)


def test_a_record_of_another_run_is_damage() -> None:
    """H5: files or rows that were mixed up are noticed."""
    assert all(damaged(RECORD, seal=Envelope(f"run-{number}")) for number in range(2, 1000))


def test_damage_is_named() -> None:
    """H5: the message says which record of which run."""
    with pytest.raises(DamagedRecord, match="record 7 of run 'run-1' is damaged: its checksum"):
        SEAL.open(7, RECORD[:-1])
    with pytest.raises(DamagedRecord, match="it has 3 bytes"):
        SEAL.open(7, RECORD[:3])


@pytest.mark.parametrize("version", [0, VERSION + 1, 255])
def test_a_whole_record_of_another_version_is_unsupported_not_damaged(version: int) -> None:
    """P10: a newer Limpet wrote it, and the message says so."""
    with pytest.raises(UnsupportedFormat, match=f"format version {version}: a newer Limpet wrote it"):
        SEAL.open(7, record(version, 0, BODY))


@pytest.mark.parametrize("bit", range(1, 8))
def test_a_flag_that_this_version_does_not_know_is_unsupported(bit: int) -> None:
    """P10: an encrypted body isn't handed out as if it were plain."""
    with pytest.raises(UnsupportedFormat, match="unknown flags"):
        SEAL.open(7, record(VERSION, 1 << bit, BODY))


def test_records_of_every_version_so_far_can_be_read() -> None:
    """P10: one for each version there was. Add to this list, never change it."""
    kept = {1: "0100561f4e07626f6479"}
    assert list(kept) == list(range(1, VERSION + 1))
    assert all(SEAL.open(7, bytes.fromhex(data)) == b"body" for data in kept.values())
