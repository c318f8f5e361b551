"""The hunt finds programs that would lose what they acknowledged, and lets those pass that wouldn't."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from limpet.testing import PowerLossFound, hunt_power_losses
from limpet.testing.power_loss import sqlite_recorder
from limpet.testing.power_loss.disk_operations import Flush, FlushDirectory, Write
from limpet.testing.power_loss.recorder import recording

Acknowledge = Callable[[Any], None]

needs_recorded_sqlite = pytest.mark.skipif(
    sqlite_recorder.why_unavailable() is not None, reason=str(sqlite_recorder.why_unavailable())
)


def save(directory: Path, name: str, data: bytes, *, without: str = "") -> None:
    """Write a file so that it survives a power loss, or leave out one thing that this needs."""
    temporary = directory / f"{name}.new"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT, 0o600)
    os.write(descriptor, data)
    if without != "flush":
        os.fsync(descriptor)
    os.close(descriptor)
    os.replace(temporary, directory / name)
    if without != "flush of the directory":
        flush_directory(directory)


def flush_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def check(directory: Path, acknowledged: list[Any]) -> None:
    for name in acknowledged:
        assert (directory / name).read_bytes() == name.encode() * 300


def test_a_program_that_flushes_all_that_it_acknowledges_passes() -> None:
    def work(directory: Path, acknowledge: Acknowledge) -> None:
        for name in ("one", "two", "three"):
            save(directory, name, name.encode() * 300)
            acknowledge(name)

    report = hunt_power_losses(work, check, work, states=60)
    assert report.states == 60
    assert report.kills > 10
    assert report.findings == []
    assert "0 lost something" in str(report)


@pytest.mark.parametrize("forgotten", ["flush", "flush of the directory"])
def test_a_program_that_forgets_to_flush_is_found(forgotten: str) -> None:
    def work(directory: Path, acknowledge: Acknowledge) -> None:
        save(directory, "one", b"one" * 300, without=forgotten)
        acknowledge("one")

    with pytest.raises(PowerLossFound, match="power was lost after operation") as caught:
        hunt_power_losses(work, check)
    assert caught.value.report.findings


def test_a_program_that_trusts_what_a_killed_one_did_not_flush_is_found() -> None:
    def work(directory: Path, acknowledge: Acknowledge) -> None:
        if not (directory / "one").exists():
            save(directory, "one", b"one" * 300)
        acknowledge("one")

    hunt_power_losses(work, check)
    with pytest.raises(PowerLossFound, match="killed after operation"):
        hunt_power_losses(work, check, work)


def test_a_takeover_that_fails_is_found() -> None:
    def work(directory: Path, acknowledge: Acknowledge) -> None:
        os.close(os.open(directory / "lock", os.O_CREAT | os.O_EXCL | os.O_WRONLY))

    with pytest.raises(PowerLossFound, match="the takeover failed: FileExistsError"):
        hunt_power_losses(work, check, work)


def test_a_write_past_the_recorder_is_an_error(tmp_path: Path) -> None:
    """Else the hunt would check disks without it."""
    with pytest.raises(AssertionError, match="not all that was written to"), recording(tmp_path):
        (tmp_path / "one").write_text("1")


def test_recording_changes_nothing_outside_and_ends() -> None:
    before = [os.open, os.write, os.fsync, os.replace, os.unlink]
    hunt_power_losses(lambda directory, acknowledge: save(directory, "a", b"1"), check)
    assert [os.open, os.write, os.fsync, os.replace, os.unlink] == before


@needs_recorded_sqlite
def test_sqlite_is_recorded_down_to_its_flushes(tmp_path: Path) -> None:
    with recording(tmp_path) as recorder, closing(sqlite3.connect(tmp_path / "a.db")) as connection:
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("CREATE TABLE t (x)")
        kinds = [type(each) for each in recorder.operations]
        assert Write in kinds
        assert FlushDirectory in kinds, "that of its journal's name"
        assert isinstance(recorder.operations[-2], Flush)


@needs_recorded_sqlite
@pytest.mark.parametrize("level", ["FULL", "OFF"])
def test_sqlite_passes_as_far_as_it_flushes(level: str) -> None:
    """The recorder sees what SQLite flushes: without, commits are lost."""

    def work(directory: Path, acknowledge: Acknowledge) -> None:
        with closing(sqlite3.connect(directory / "a.db", isolation_level=None)) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute(f"PRAGMA synchronous = {level}")
            connection.execute("CREATE TABLE IF NOT EXISTS t (x)")
            for number in range(3):
                connection.execute("INSERT INTO t VALUES (?)", (number,))
                acknowledge(number)

    def check_table(directory: Path, acknowledged: list[Any]) -> None:
        with closing(sqlite3.connect(directory / "a.db")) as connection:
            if acknowledged:
                assert len(connection.execute("SELECT x FROM t").fetchall()) >= len(acknowledged)

    if level == "OFF":
        with pytest.raises(PowerLossFound):
            hunt_power_losses(work, check_table, states=150)
    else:
        assert hunt_power_losses(work, check_table, states=150).findings == []
