"""Large bodies are stored in fewer bytes and come back exactly: D9 and P9."""

from __future__ import annotations

import random
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from threading import Barrier

import pytest

from limpet import END, START, StateGraph
from limpet.errors import DamagedRecord, UnsupportedFormat, UsageError
from limpet.journal.encoding import envelope
from limpet.journal.encoding.codec import encode
from limpet.journal.encoding.envelope import COMPRESSED, MIN_COMPRESSED_SIZE, VERSION, Envelope
from limpet.stores.sqlite.store import SQLiteStore

ENVELOPE = Envelope("run-1")
HEAD = 6
ZSTD = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"


def text(size: int) -> bytes:
    """As many bytes of what a model might have answered."""
    answers = [{"id": n, "role": "assistant", "content": f"Rock {n * n}."} for n in range(size // 32 + 1)]
    return encode(answers)[:size]


def noise(size: int) -> bytes:
    """As many bytes that nothing can be left out of."""
    return random.Random(size).randbytes(size)


def record(flags: int, body: bytes, sequence: int = 7) -> bytes:
    """A record of the first version, made by hand, with a checksum that is right."""
    place = struct.pack(">QBB", sequence, 1, flags)
    checksum = zlib.crc32(body, zlib.crc32(place, zlib.crc32(b"run-1")))
    return struct.pack(">BBI", 1, flags, checksum) + body


@pytest.fixture
def no_zstd(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As if zstd weren't installed."""
    package, _, module = ZSTD.partition(".")
    monkeypatch.delattr(__import__(package), module, raising=False)
    monkeypatch.setitem(sys.modules, ZSTD, None)
    envelope._zstd.cache_clear()
    yield
    envelope._zstd.cache_clear()


@pytest.mark.parametrize("make", [text, noise])
def test_bodies_of_every_size_around_the_threshold_come_back(make: Callable[[int], bytes]) -> None:
    """D9: smaller, as large, larger, and much larger."""
    for size in [
        *range(MIN_COMPRESSED_SIZE - 40, MIN_COMPRESSED_SIZE + 40),
        10 * MIN_COMPRESSED_SIZE,
        1_000_003,
    ]:
        body = make(size)
        assert ENVELOPE.open(7, ENVELOPE.close(7, body)) == body


def test_large_bodies_are_compressed_and_small_ones_are_not() -> None:
    """D9, P9: from the threshold on, and the flag says so."""
    small, large = (
        ENVELOPE.close(7, text(MIN_COMPRESSED_SIZE - 1)),
        ENVELOPE.close(7, text(MIN_COMPRESSED_SIZE)),
    )
    assert (small[1], len(small)) == (0, HEAD + MIN_COMPRESSED_SIZE - 1)
    assert large[1] == COMPRESSED
    assert len(large) < MIN_COMPRESSED_SIZE / 2


@pytest.mark.parametrize("size", [MIN_COMPRESSED_SIZE, 100_000])
def test_what_compression_does_not_make_smaller_is_stored_as_it_is(size: int) -> None:
    """P9: nothing is decompressed in vain."""
    assert ENVELOPE.close(7, noise(size)) == record(0, noise(size))


def test_a_saving_that_is_not_worth_it_is_left() -> None:
    """P9: a few percent don't pay for reading them."""
    hardly = noise(95_000) + bytes(5_000)
    clearly = noise(80_000) + bytes(20_000)
    assert ENVELOPE.close(7, hardly)[1] == 0
    assert ENVELOPE.close(7, clearly)[1] == COMPRESSED


def test_large_records_from_before_compression_can_be_read() -> None:
    """D9, P10: the same version without the flag, however large."""
    body = text(10 * MIN_COMPRESSED_SIZE)
    assert ENVELOPE.open(7, record(0, body)) == body


def test_a_kept_compressed_record_can_be_read() -> None:
    """P10: written once, read by every later version."""
    kept = "01015f539e7a28b52ffd6000104d000010656c0100fb50efb0"
    assert ENVELOPE.open(7, bytes.fromhex(kept)) == b"el" * 2176


def test_every_flipped_byte_of_a_compressed_record_is_detected() -> None:
    """H5: each byte, the flag among them, to each other value."""
    whole = ENVELOPE.close(7, b"kelp and eel " * MIN_COMPRESSED_SIZE)
    assert whole[1] == COMPRESSED
    for place, byte in enumerate(whole):
        for flip in range(1, 256):
            with pytest.raises(DamagedRecord):
                ENVELOPE.open(7, whole[:place] + bytes([byte ^ flip]) + whole[place + 1 :])


def test_every_truncation_of_a_compressed_record_is_detected() -> None:
    """H5: from the last byte to nothing at all."""
    whole = ENVELOPE.close(7, b"kelp and eel " * MIN_COMPRESSED_SIZE)
    for length in range(len(whole)):
        with pytest.raises(DamagedRecord):
            ENVELOPE.open(7, whole[:length])


def test_a_body_that_does_not_decompress_is_damage_even_with_a_right_checksum() -> None:
    """H5: whatever is there instead of a frame, nothing but a store error comes out."""
    frame = ENVELOPE.close(7, text(MIN_COMPRESSED_SIZE))[HEAD:]
    for wrong in [b"", b"no frame", frame[:-1], frame + b"more", frame[1:], frame[:4] + b"\xff" * 20]:
        with pytest.raises(DamagedRecord, match=r"record 7 .* it can't be decompressed"):
            ENVELOPE.open(7, record(COMPRESSED, wrong))


def test_damaged_frames_raise_nothing_but_store_errors() -> None:
    """H5: a thousand frames with random bytes in them, each under a right checksum."""
    chance = random.Random(9)
    frame = ENVELOPE.close(7, text(MIN_COMPRESSED_SIZE))[HEAD:]
    for _ in range(1000):
        wrong = bytearray(frame)
        for _ in range(chance.randint(1, 4)):
            wrong[chance.randrange(len(wrong))] = chance.randrange(256)
        with suppress(DamagedRecord):
            ENVELOPE.open(7, record(COMPRESSED, bytes(wrong)))


@pytest.mark.usefixtures("no_zstd")
def test_without_zstd_large_bodies_are_stored_as_they_are() -> None:
    """D9: nothing but the bytes is lost."""
    whole = ENVELOPE.close(7, text(MIN_COMPRESSED_SIZE))
    assert whole == record(0, text(MIN_COMPRESSED_SIZE))
    assert ENVELOPE.open(7, whole) == text(MIN_COMPRESSED_SIZE)


def test_without_zstd_a_compressed_record_says_what_to_install(request: pytest.FixtureRequest) -> None:
    """D9: the record isn't damaged, and the message gives the way out."""
    whole = ENVELOPE.close(7, text(MIN_COMPRESSED_SIZE))
    request.getfixturevalue("no_zstd")
    with pytest.raises(UnsupportedFormat, match=f"record 7 of run 'run-1' is compressed.*{ZSTD}"):
        ENVELOPE.open(7, whole)
    with pytest.raises(DamagedRecord):
        ENVELOPE.open(7, whole[:-1])


def test_threads_may_seal_at_once() -> None:
    """P9: each gets its own records back, through one seal."""
    together = Barrier(8)

    def seal(thread: int) -> bool:
        together.wait(10)
        bodies = [text(MIN_COMPRESSED_SIZE + 997 * n) + bytes([thread, n]) for n in range(40)]
        records = [ENVELOPE.close(n, body) for n, body in enumerate(bodies)]
        return all(r[1] for r in records) and [ENVELOPE.open(n, r) for n, r in enumerate(records)] == bodies

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(seal, range(8)))


def test_zstd_is_imported_with_the_first_large_body() -> None:
    """D9: a program without large values doesn't wait for it."""
    script = (
        "import sys, limpet\n"
        "from limpet.journal.encoding.envelope import Envelope\n"
        f"Envelope('r').close(1, bytes({MIN_COMPRESSED_SIZE - 1})); print({ZSTD!r} in sys.modules)\n"
        f"Envelope('r').close(1, bytes({MIN_COMPRESSED_SIZE})); print({ZSTD!r} in sys.modules)"
    )
    folder = Path(sys.modules["limpet.errors"].__file__ or "").parent.parent
    ran = subprocess.run(
        [sys.executable, "-c", script], cwd=folder, capture_output=True, text=True, check=True
    )
    assert ran.stdout.split() == ["False", "True"]


def test_a_large_value_of_a_run_takes_less_room_in_sqlite_and_comes_back_exactly(tmp_path: Path) -> None:
    """D9, P9: in the file it is a fraction, in the state it is all there."""
    document = {"pages": [f"Page {n}: kelp holds fast to rock, and eels pass by." for n in range(5000)]}
    noisy = noise(20_000)
    graph = StateGraph(name="reader")
    graph.add_node("read", run=lambda state: {"document": document, "noise": noisy})
    graph.add_node("close", run=lambda state: {"done": True})
    graph.add_edge(START, "read")
    graph.add_edge("read", "close")
    graph.add_edge("close", END)
    run = graph.compile(store=f"sqlite:///{tmp_path}/runs.db", preserve=True)
    run.execute({}, run_id="r")

    assert run.state_at("r", 1) == {"document": document, "noise": noisy}
    with closing(SQLiteStore(tmp_path / "runs.db")) as store:
        records = store.read("r", first=1).records
    assert sum(map(len, records)) < len(encode(document)) / 2
    assert [record[:2] for record in records if record[1]] == [bytes([VERSION, COMPRESSED])]


# What unpacks to too much


def bomb(size: int) -> bytes:
    """A few kilobytes that unpack to this many."""
    compressor = envelope._zstd().ZstdCompressor(level=1)  # type: ignore[union-attr]  # it is installed here
    chunk = bytes(2**24)
    frame = b"".join(compressor.compress(chunk[: size - done]) for done in range(0, size, len(chunk)))
    return frame + compressor.flush()


def test_a_record_unpacks_up_to_a_limit_and_no_further(monkeypatch: pytest.MonkeyPatch) -> None:
    """H5: a frame that is one byte too large is refused, with how to allow it; one at the limit isn't."""
    monkeypatch.setenv("LIMPET_MAX_UNPACKED", "100000")
    assert ENVELOPE.open(7, record(COMPRESSED, bomb(100_000))) == bytes(100_000)
    with pytest.raises(UnsupportedFormat, match="LIMPET_MAX_UNPACKED") as refused:
        ENVELOPE.open(7, record(COMPRESSED, bomb(100_001)))
    assert "record 7 of run 'run-1' unpacks to more than 100,000 bytes" in str(refused.value)
    monkeypatch.setenv("LIMPET_MAX_UNPACKED", "100001")
    assert len(ENVELOPE.open(7, record(COMPRESSED, bomb(100_001)))) == 100_001


def test_what_is_written_can_be_read_whatever_the_limit_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """D9: a body above the limit is stored uncompressed."""
    monkeypatch.setenv("LIMPET_MAX_UNPACKED", "50000")
    for size in (50_000, 50_001):
        stored = ENVELOPE.close(7, text(size))
        assert stored[1] == (COMPRESSED if size == 50_000 else 0)
        assert ENVELOPE.open(7, stored) == text(size)


@pytest.mark.parametrize("given", ["much", "-1", "1e9", "9" * 5000])
def test_a_limit_that_is_no_number_of_bytes_is_refused(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """H5: with the name of the variable."""
    monkeypatch.setenv("LIMPET_MAX_UNPACKED", given)
    with pytest.raises(UsageError, match="LIMPET_MAX_UNPACKED is a number of bytes"):
        ENVELOPE.open(7, record(COMPRESSED, bomb(10)))


def test_what_follows_a_frame_is_damage() -> None:
    """H5: a second frame isn't unpacked, nor is a frame that was cut."""
    for body in (bomb(10) + bomb(10), bomb(10) + b"more", bomb(100_000)[:-1]):
        with pytest.raises(DamagedRecord, match="can't be decompressed"):
            ENVELOPE.open(7, record(COMPRESSED, body))
