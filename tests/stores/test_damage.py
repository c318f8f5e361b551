"""A byte flipped, or a file cut off, anywhere in what a store keeps: noticed and named, or harmless. Promise H5.

A share of all places is tried, always the same ones; `LIMPET_DAMAGE=1` tries all of them.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import pytest

from limpet import LimpetError, MemoryStore, Runs, StateGraph, StoreError
from limpet.errors import CheckpointError
from limpet.journal.store import Store
from limpet.stores.files.store import FileStore
from limpet.stores.sqlite.store import SQLiteStore
from support.damage import RUNS, Answers, answers, fill, flips, wrong
from support.older_runs import exact, example
from support.postgres import Server, needed
from support.redis_servers import redis_server

ALL = bool(os.environ.get("LIMPET_DAMAGE"))
KEY = bytes(range(32))
Open = Callable[[Path], Callable[[], Store]]


def sqlite(folder: Path) -> Callable[[], Store]:
    return lambda: SQLiteStore(folder / "runs.db", level="process")


def encrypted(folder: Path) -> Callable[[], Store]:
    from limpet.stores.composite.encrypted import EncryptedStore, Keys

    return lambda: EncryptedStore(sqlite(folder)(), Keys({"k": KEY}))


def files(folder: Path) -> Callable[[], Store]:
    return lambda: FileStore(folder / "runs", level="process")


class Patient:
    """Runs in a directory, and what is to be heard of them when it is sound. Each trial damages a copy."""

    def __init__(self, opened: Open, folder: Path, verified: bool) -> None:
        self.opened, self.folder, self.verified = opened, folder, verified
        self.whole = folder / "whole"
        self.whole.mkdir()
        with closing(opened(self.whole)()) as store:
            fill(store)
        self.sound = self.ask(self.copy())
        assert not [each for each in self.sound.values() if isinstance(each, LimpetError)]

    def copy(self) -> Path:
        copy = self.folder / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(self.whole, copy)
        return copy

    def ask(self, folder: Path) -> Answers:
        return answers(self.opened(folder))

    def try_with(self, file: Path, content: bytes, caplog: pytest.LogCaptureFixture) -> Answers:
        """The answers if the file has this content; none may be wrong."""
        copy = self.copy()
        (copy / file.relative_to(self.whole)).write_bytes(content)
        caplog.clear()
        found = self.ask(copy)
        assert wrong(found, self.sound, (str(copy),), caplog.text, self.verified) == []
        return found


def noticed(found: Answers, log: str) -> bool:
    return bool(log) or any(
        isinstance(each, LimpetError) or getattr(each, "ok", True) is False for each in found.values()
    )


def places(data: bytes, share: float) -> Iterator[tuple[int, bytes]]:
    """Where to flip: everywhere, but in empty stretches hardly ever."""
    chance = Random(1)
    for place, bad in flips(data, 1, 1.0 if ALL else share):
        if any(data[max(place - 4, 0) : place + 5]) or chance.random() < 0.02:
            yield place, bad


@pytest.mark.parametrize(
    ("opened", "share", "verified"),
    [(sqlite, 0.005, True), (encrypted, 0.003, True), (files, 0.008, False)],
    ids=["sqlite", "encrypted", "files"],
)
def test_a_flipped_byte_never_makes_wrong_data(
    opened: Open, share: float, verified: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """H5: of no store in files. `verify` reports what damage to SQLite's own trees may hide."""
    if opened is encrypted:
        needed("cryptography")
    patient = Patient(opened, tmp_path, verified)
    count = 0
    for file in sorted(path for path in patient.whole.rglob("*") if path.is_file()):
        for _, bad in places(file.read_bytes(), share):
            count += noticed(patient.try_with(file, bad, caplog), caplog.text)
    assert count > 10


@pytest.mark.parametrize(("opened", "verified"), [(sqlite, True), (files, False)], ids=["sqlite", "files"])
def test_a_file_that_was_cut_off_never_makes_wrong_data(
    opened: Open, verified: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """H5: what ends where a commit ends, as after a crash, is an earlier moment of the run and nothing else."""
    patient = Patient(opened, tmp_path, verified)
    chance, count = Random(2), 0
    for file in sorted(path for path in patient.whole.rglob("*") if path.is_file()):
        if file.suffix == ".log":
            continue  # the last commit may be half there, as after a crash: see the next test
        data = file.read_bytes()
        sizes = range(len(data)) if ALL else chance.sample(range(len(data)), min(len(data), 8))
        for size in sizes:
            count += noticed(patient.try_with(file, data[:size], caplog), caplog.text)
    assert count >= 6


def test_a_journal_that_was_cut_off_is_an_earlier_moment(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """H5: of a run in files, as after a crash; and a half-written commit is reported."""
    patient = Patient(files, tmp_path, False)
    earlier: dict[str, list[Any]] = {}
    with closing(files(patient.copy())()) as store:
        runs = Runs(store)
        for run_id in RUNS[:3]:
            steps = [each.step for each in runs.history(run_id)]
            earlier[run_id] = [exact(runs.state(run_id, step)) for step in steps]
    chance = Random(3)
    reported = 0
    for journal in patient.whole.rglob("*.log"):
        run_id, data = journal.name.partition(".")[0], journal.read_bytes()
        if run_id not in earlier:
            continue
        for size in range(len(data)) if ALL else chance.sample(range(len(data)), 8):
            copy = patient.copy()
            (copy / journal.relative_to(patient.whole)).write_bytes(data[:size])
            caplog.clear()
            found = patient.ask(copy)[f"state {run_id}"]
            reported += isinstance(found, StoreError) or "cut off" in caplog.text
            assert found in earlier[run_id] or (isinstance(found, StoreError) and run_id in str(found))
    assert reported > 10


def test_a_damaged_log_of_sqlite_is_an_earlier_moment(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """H5: SQLite takes the damaged place for the end of its log. Whatever is then there was there once, whole."""
    path = tmp_path / "runs.db"
    whole, copy = tmp_path / "whole", tmp_path / "copy"
    whole.mkdir()
    with closing(SQLiteStore(path, level="process")) as store:
        fill(store)
        for name in ("runs.db", "runs.db-wal"):
            shutil.copy(tmp_path / name, whole)
    shutil.copytree(whole, copy)
    earlier: dict[str, list[Any]] = {}
    with closing(sqlite(copy)()) as store:
        runs = Runs(store)
        for run_id in RUNS[:3]:
            steps = [each.step for each in runs.history(run_id)]
            earlier[run_id] = [exact(runs.state(run_id, step)) for step in steps]
    log, chance = (whole / "runs.db-wal").read_bytes(), Random(3)
    for place in range(len(log)) if ALL else [*range(0, 56, 7), *chance.sample(range(len(log)), 25)]:
        shutil.rmtree(copy)
        shutil.copytree(whole, copy)
        bad = bytearray(log)
        bad[place] ^= chance.choice([1, 16, 128, 255])
        (copy / "runs.db-wal").write_bytes(bad)
        found = answers(sqlite(copy))
        for run_id, states in earlier.items():
            state = found.get(f"state {run_id}", found.get("open"))
            assert state in states or isinstance(state, StoreError), (place, state)


class Kept:
    """One thing that a server keeps of a run, to be read and replaced."""

    def __init__(self, name: str, get: Callable[[], bytes], put: Callable[[bytes], None]) -> None:
        self.name, self.get, self.put = name, get, put


def check_kept(
    kept: list[Kept],
    opened: Callable[[], Store],
    again: Callable[[], None],
    caplog: pytest.LogCaptureFixture,
    names: tuple[str, ...],
) -> None:
    """Flip bytes of each thing; `again` puts everything back as it was."""
    sound, count, chance = answers(opened), 0, Random(4)
    again()
    for each in kept if ALL else chance.sample(kept, min(len(kept), 25)):
        data = each.get()
        for place in range(len(data)) if ALL else chance.sample(range(len(data)), 1):
            bad = bytearray(data)
            bad[place] ^= chance.choice([1, 16, 128, 255])
            each.put(bytes(bad))
            caplog.clear()
            found = answers(opened)
            assert wrong(found, sound, names, caplog.text) == [], (each.name, place)
            count += noticed(found, caplog.text)
            again()
    assert count > 5


def test_a_flipped_byte_of_a_record_in_postgresql_is_noticed(
    postgres: Server, database: str, caplog: pytest.LogCaptureFixture
) -> None:
    """H5: what the server says was stored is checked."""
    from limpet.stores.postgres.store import PostgresStore

    def opened() -> Store:
        return PostgresStore(database, level="process", connections=2)

    with closing(opened()) as store:
        fill(store)
    with postgres.psycopg.connect(database, autocommit=True) as connection:

        def sql(query: str, *values: Any) -> Any:
            cursor = connection.execute(query, values)
            return cursor.fetchall() if cursor.description else None

        for table in ("runs", "records"):
            sql(f"CREATE TABLE public.{table} AS SELECT * FROM limpet.{table}")
        columns = ", ".join(
            name
            for (name,) in sql(
                "SELECT column_name FROM information_schema.columns WHERE table_schema = 'limpet' "
                "AND table_name = 'runs' ORDER BY ordinal_position"
            )
        )

        def again() -> None:
            sql("DELETE FROM limpet.records")
            sql("DELETE FROM limpet.runs")
            sql("INSERT INTO limpet.records SELECT * FROM public.records")
            sql(
                f"INSERT INTO limpet.runs ({columns}) OVERRIDING SYSTEM VALUE SELECT {columns} FROM public.runs"
            )

        kept = []
        for run, number in sql("SELECT run, sequence FROM public.records ORDER BY 1, 2"):
            place = f"run = {run} AND sequence = {number}"
            kept.append(
                Kept(
                    place,
                    lambda place=place: sql(f"SELECT data FROM public.records WHERE {place}")[0][0],
                    lambda data, place=place: sql(f"UPDATE limpet.records SET data = %s WHERE {place}", data),
                )
            )
        check_kept(kept, opened, again, caplog, ())


def test_a_flipped_byte_of_anything_in_redis_is_noticed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """H5: records, and every field of a head."""
    from limpet.stores.redis.store import RedisStore

    with redis_server(tmp_path) as server, server.client() as client:

        def opened() -> Store:
            return RedisStore(server.url)

        with closing(opened()) as store:
            fill(store)
        dumps = {key: client.dump(key) for key in client.scan_iter()}

        def again() -> None:
            client.flushall()
            for key, value in dumps.items():
                client.restore(key, 0, value)

        kept = []
        for key in sorted(dumps):
            if client.type(key) == b"list":
                for index in range(client.llen(key)):
                    kept.append(
                        Kept(
                            f"{key!r} {index}",
                            lambda key=key, index=index: client.lindex(key, index),
                            lambda data, key=key, index=index: client.lset(key, index, data),
                        )
                    )
            elif client.type(key) == b"hash":
                for field in sorted(client.hgetall(key)):
                    if field == b"last" or not client.hget(key, field):
                        continue  # the token of the last call: it is compared, and means nothing
                    kept.append(
                        Kept(
                            f"{key!r} {field!r}",
                            lambda key=key, field=field: client.hget(key, field),
                            lambda data, key=key, field=field: client.hset(key, field, data),
                        )
                    )
        check_kept(kept, opened, again, caplog, (f":{server.port}",))


def test_a_flipped_byte_of_an_exported_run_is_noticed(tmp_path: Path) -> None:
    """H5: nothing of it is imported."""
    graph = example(MemoryStore(), preserve=True)
    with pytest.raises(LimpetError):
        graph.execute({}, run_id="r")
    path = tmp_path / "r.run"
    graph.export_run("r", path)
    data = path.read_bytes()
    bad = [content for _, content in flips(data, 5, 1.0 if ALL else 0.3)]
    for content in [*bad, *(data[:size] for size in range(0, len(data), 1 if ALL else 11))]:
        path.write_bytes(content)
        with pytest.raises(StoreError, match=r"r\.run"):
            graph.import_run(path, run_id="s")
        assert [run.run_id for run in graph.runs()] == ["r"]


def test_a_flipped_byte_of_a_checkpoint_file_is_noticed(tmp_path: Path) -> None:
    """H5, F10: every one of them."""
    graph = example(None, checkpoint_dir=tmp_path)
    (stop,) = graph.invoke({"seen": []})
    path = Path(stop["checkpoint_path"])
    data = path.read_bytes()
    assert "results" in graph.invoke("yes", checkpoint=path).state
    bad = [content for _, content in flips(data, 6, 1.0 if ALL else 0.01)]
    for content in [*bad, *(data[:size] for size in range(0, len(data), 1 if ALL else 400))]:
        path.write_bytes(content)
        with pytest.raises((CheckpointError, StoreError), match=path.name):
            StateGraph.load_checkpoint(path)
        with pytest.raises((CheckpointError, StoreError), match=path.name):
            graph.invoke("yes", checkpoint=path).result()
