"""The disk is full, or a stored byte is not what was written."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs the limits of POSIX")

STEPS = 40


def page(number: int) -> str:
    """What a step adds, as the graph makes it."""
    return b64encode(Random(number).randbytes(20_000)).decode()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder on a disk of 4 MB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = shutil.which("mount")
    command = [mount or "", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)]
    if sys.platform != "linux" or mount is None or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("no right to mount a small disk here")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True, capture_output=True)


def acknowledged(effects: list[list[str]]) -> int:
    return max((int(step) for kind, step in effects if kind == "ack"), default=0)


def check_failure(answer: dict[str, Any], effects: list[list[str]]) -> int:
    """The run stopped at once, says where and why, and the last save that was acknowledged was the one before."""
    assert answer["raised"] == "ExecutionError", answer
    saved = acknowledged(effects)
    assert 0 < saved < STEPS
    assert answer["node"] == "grow"
    assert answer["run_id"] == "r"
    assert answer["cause"][0] == "StoreUnavailable"
    assert "runs.db" in answer["cause"][1]
    assert "what was saved before is safe" in answer["text"]
    assert answer["path"] == ["grow"] * (saved + 1)
    assert [step for kind, step in effects if kind == "start"] == [str(n) for n in range(1, saved + 2)]
    return saved


def check_finish(state: dict[str, Any], effects: list[list[str]], saved: int) -> None:
    """Nothing is lost, and nothing that was acknowledged ran again."""
    assert state["pages"] == [page(step) for step in range(1, STEPS + 1)]
    started = [int(step) for kind, step in effects if kind == "start"]
    assert started == [*range(1, saved + 2), *range(saved + 1, STEPS + 1)]


@pytest.mark.parametrize("level", ["process", "disk"])
@pytest.mark.parametrize("where", ["in the same process", "in another process"])
def test_a_full_disk_stops_the_run_and_room_lets_it_resume(
    actor: Callable[..., Any], effects: Any, small_disk: Path, tmp_path: Path, where: str, level: str
) -> None:
    """G9, G6, H3, invariant 1: an `ExecutionError` with node and cause; then a resume finishes the run."""
    (small_disk / "log-folder").write_text(str(tmp_path))
    (small_disk / "fill-at").write_text("10")
    store = f"sqlite:///{small_disk / 'runs.db'}?level={level}"
    process = actor("filling", small_disk, store=store, lease=1)
    saved = check_failure(process.ask("execute", run_id="r"), effects())
    if where == "in another process":
        other = actor("filling", small_disk, store=store)
        assert other.ask("state_at", "r", saved)["returned"]["step"] == saved
    (small_disk / "filler").unlink()
    process = other if where == "in another process" else process
    check_finish(process.ask("resume", "r", wait=30)["returned"], effects(), saved)


def test_a_file_that_may_not_grow_stops_the_run_and_a_new_limit_lets_it_resume(
    actor: Callable[..., Any], effects: Any, tmp_path: Path
) -> None:
    """G9, G6, H3: the same where a quota, not the disk, is the limit."""
    pytest.importorskip("resource")
    (tmp_path / "log-folder").write_text(str(tmp_path))
    process = actor("filling", lease=1)
    process.ask("limit_files", 300_000)
    saved = check_failure(process.ask("execute", run_id="r"), effects())
    process.ask("limit_files", -1)
    check_finish(process.ask("resume", "r", wait=30)["returned"], effects(), saved)


class Journal:
    """The stored records of the one run in a file, as a SQLite shell can change them."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def flip(self, sequence: int, place: int) -> None:
        """Change one bit of one byte of a record."""
        changed = bytearray(self._data(sequence))
        changed[place] ^= 0x10
        self._replace(sequence, bytes(changed))

    def shorten(self, sequence: int) -> None:
        self._replace(sequence, self._data(sequence)[:-1])

    def swap(self, one: int, other: int) -> None:
        first, second = self._data(one), self._data(other)
        self._replace(one, second)
        self._replace(other, first)

    def remove(self, sequence: int) -> None:
        self._do("DELETE FROM records WHERE rowid = ?", self._row(sequence))

    def _data(self, sequence: int) -> bytes:
        return self._do("SELECT data FROM records WHERE rowid = ?", self._row(sequence))[0][0]

    def _replace(self, sequence: int, data: bytes) -> None:
        self._do("UPDATE records SET data = ? WHERE rowid = ?", data, self._row(sequence))

    def _row(self, sequence: int) -> int:
        return self._do("SELECT rowid FROM records ORDER BY rowid")[sequence - 1][0]

    def _do(self, statement: str, *values: object) -> list[Any]:
        with closing(sqlite3.connect(self.file)) as db, db:
            return db.execute(statement, values).fetchall()


@pytest.fixture
def journal(actor: Callable[..., Any], effects: Any, tmp_path: Path) -> Journal:
    """The journal of a run of which twelve steps are saved and whose process was killed."""
    (tmp_path / "log-folder").write_text(str(tmp_path))
    (tmp_path / "stop-after").write_text("12")
    process = actor("filling", lease=60)
    process.tell("execute", run_id="r")
    assert process.wait() == -9
    (tmp_path / "stop-after").unlink()
    assert acknowledged(effects()) == 12
    return Journal(tmp_path / "runs.db")


DAMAGE = {
    "version": lambda journal: journal.flip(8, 0),
    "flags": lambda journal: journal.flip(8, 1),
    "checksum": lambda journal: journal.flip(8, 3),
    "body": lambda journal: journal.flip(8, 40),
    "last byte": lambda journal: journal.flip(8, -1),
    "shortened": lambda journal: journal.shorten(8),
    "swapped": lambda journal: journal.swap(8, 9),
    "removed": lambda journal: journal.remove(8),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_record_is_named_and_never_returned(
    actor: Callable[..., Any], effects: Any, journal: Journal, damage: str
) -> None:
    """H5: `resume`, and the calls that look at the run, name which record of which run; no node runs."""
    DAMAGE[damage](journal)
    before = effects()
    process = actor("filling", lease=60)
    for order in (("resume", "r"), ("state_at", "r"), ("state_at", "r", 8), ("history", "r")):
        answer = process.ask(*order)
        assert answer["raised"] == "DamagedRecord", (order, answer)
        assert (answer["run_id"], answer["sequence"]) == ("r", 8)
        assert "record 8 of run 'r'" in answer["text"]
    assert effects() == before


@pytest.mark.parametrize("damage", ["body", "shortened", "swapped", "removed"])
def test_the_steps_before_a_damaged_record_can_still_be_read(
    actor: Callable[..., Any], journal: Journal, damage: str
) -> None:
    """H5, H6: record 8 is step 7; whatever it said, the steps up to 5 are whole."""
    DAMAGE[damage](journal)
    process = actor("filling")
    for step in (0, 1, 5):
        answer = process.ask("state_at", "r", step)
        assert "raised" not in answer, answer
        assert len(answer["returned"]["pages"]) == step


def test_a_run_is_forked_from_before_the_damage_and_finished(
    actor: Callable[..., Any], effects: Any, journal: Journal
) -> None:
    """H5, H6: what the error message advises works."""
    journal.flip(8, 40)
    process = actor("filling", lease=60)
    assert "forked" in process.ask("resume", "r")["text"]
    assert "raised" not in process.ask("fork", "r", 5, new_run_id="s")
    state = process.ask("resume", "s")["returned"]
    assert state["pages"] == [page(step) for step in range(1, STEPS + 1)]


def test_damage_does_not_hold_the_run(actor: Callable[..., Any], journal: Journal) -> None:
    """H5, P8: a resume that found damage has released the run; with the byte put right, another resumes it."""
    journal.flip(8, 40)
    first, other = actor("filling", lease=60), actor("filling", lease=60)
    assert first.ask("resume", "r")["raised"] == "DamagedRecord"
    journal.flip(8, 40)
    assert len(other.ask("resume", "r")["returned"]["pages"]) == STEPS
