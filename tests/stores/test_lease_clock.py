"""Leases when the time of day is set: they last as long as they were to, and all else goes by the time of day."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from subprocess import run
from sys import executable
from typing import Any

import pytest

from limpet.errors import Conflict
from limpet.journal.run_filter import LeaseState, RunFilter
from limpet.journal.store import NewRun, Store
from limpet.stores import lease_clock
from limpet.stores.files.store import FileStore
from limpet.stores.memory import MemoryStore
from limpet.stores.sqlite import rows
from limpet.stores.sqlite.store import SQLiteStore
from limpet.testing import FakeClock
from limpet.testing.conformance import ManualClock
from limpet.testing.conformance.store_calls import ready_runs

SHARED: dict[str, Callable[[Path], Any]] = {
    "sqlite": lambda path: SQLiteStore(path / "runs.db"),
    "files": lambda path: FileStore(path / "runs"),
}
DAY = 86400.0


@pytest.fixture(params=[ManualClock, FakeClock])
def clock(request: pytest.FixtureRequest) -> Any:
    return request.param()


@pytest.fixture(params=["memory", "sqlite", "files"])
def store(request: pytest.FixtureRequest, clock: Any, tmp_path: Path) -> Iterator[Store]:
    made: dict[str, Callable[[], Any]] = {
        "memory": lambda: MemoryStore(clock),
        "sqlite": lambda: SQLiteStore(tmp_path / "runs.db", clock=clock),
        "files": lambda: FileStore(tmp_path / "runs", clock=clock),
    }
    with closing(made[request.param]()) as store:
        yield store


def test_a_clock_that_is_set_forward_takes_no_run_from_its_holder(store: Store, clock: Any) -> None:
    """P8: nor is the run listed as free, expired or deleted."""
    lease = store.create(NewRun("r", "g", [b"1"], holder="ann", ttl=10.0, due=0.0))
    assert lease is not None
    clock.set_by(DAY)
    with pytest.raises(Conflict, match=r"held by ann for another 10\.0 s"):
        store.claim("r", "bob", 10.0)
    assert ready_runs(store, ["g"], 10) == []
    assert store.list(RunFilter(lease_states=(LeaseState.FREE, LeaseState.EXPIRED))) == []
    assert store.expire(10.0, ["running"]) == 0
    with pytest.raises(Conflict):
        store.delete("r")
    clock.advance(9.0)
    assert store.renew([lease], 10.0) == [False]
    clock.advance(9.0)
    with pytest.raises(Conflict):
        store.claim("r", "bob", 10.0)
    clock.advance(2.0)
    assert store.claim("r", "bob", 10.0).fence == 2


def test_a_clock_that_is_set_back_keeps_no_run_from_being_claimed(store: Store, clock: Any) -> None:
    """P8, H1: a lease of a crashed process ends when it was to."""
    store.create(NewRun("r", "g", [b"1"], holder="ann", ttl=10.0, due=0.0))
    clock.set_by(-DAY)
    with pytest.raises(Conflict):
        store.claim("r", "bob", 10.0)
    clock.advance(11.0)
    assert [head.run_id for head in ready_runs(store, ["g"], 10)] == ["r"]
    assert store.claim("r", "bob", 10.0).fence == 2


def test_a_due_time_is_a_time_of_day(store: Store, clock: Any) -> None:
    """H9: a run that sleeps until a date wakes at that date."""
    store.create(NewRun("r", "g", [b"1"], due=clock() + 100.0))
    assert ready_runs(store, ["g"], 10) == []
    clock.set_by(100.0)
    assert [head.run_id for head in ready_runs(store, ["g"], 10)] == ["r"]
    clock.set_by(-50.0)
    assert ready_runs(store, ["g"], 10) == []


ELSEWHERE = """
import sys, time

seconds = float(sys.argv[3])
time_of_day = time.time
time.time = lambda: time_of_day() + seconds

from limpet.errors import Conflict
from limpet.stores.files.store import FileStore
from limpet.stores.sqlite.store import SQLiteStore

store = {"sqlite": SQLiteStore, "files": FileStore}[sys.argv[1]](sys.argv[2])
deadline = time.monotonic() + float(sys.argv[4])
while True:
    try:
        print("claimed by fence", store.claim("r", "bob", 60.0).fence)
        break
    except Conflict:
        if time.monotonic() > deadline:
            print("refused")
            break
    time.sleep(0.01)
"""


@pytest.mark.skipif(not lease_clock.this_boot(), reason="the system doesn't identify its boots")
@pytest.mark.parametrize("kind", SHARED)
def test_processes_of_one_computer_agree_whatever_the_time_of_day_is(kind: str, tmp_path: Path) -> None:
    """P8: a process that was started after the time was set measures leases as those before it do."""

    def claim_elsewhere(seconds: float, patience: float) -> str:
        given = [
            kind,
            str(tmp_path / ("runs.db" if kind == "sqlite" else "runs")),
            str(seconds),
            str(patience),
        ]
        return run([executable, "-c", ELSEWHERE, *given], capture_output=True, text=True, check=True).stdout

    with closing(SHARED[kind](tmp_path)) as store:
        store.create(NewRun("r", "g", [b"1"], holder="ann", ttl=60.0))
        assert claim_elsewhere(+DAY, 0.0) == "refused\n"
        short = store.claim("r", "ann", 0.2, instead_of=1)
        assert claim_elsewhere(-DAY, 10.0) == f"claimed by fence {short.fence + 1}\n"
        with pytest.raises(Conflict):
            store.claim("r", "ann", 60.0)


@pytest.mark.skipif(not lease_clock.this_boot(), reason="the system doesn't identify its boots")
def test_a_lease_from_before_a_boot_ends_soon_whatever_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H1: the clock of a computer may be far behind when it is started again."""
    path = tmp_path / "runs.db"
    with closing(SQLiteStore(path)) as store:
        store.create(NewRun("r", "g", [b"1"], holder="ann", ttl=DAY))
        store.create(NewRun("s", "g", [b"1"], holder="ann", ttl=5.0))
        short = store.head("s").lease_until
    monkeypatch.setattr(rows, "this_boot", lambda: "another boot")
    with closing(SQLiteStore(path)) as store:
        until = store.head("r").lease_until
        assert until is not None
        assert until <= time.time() + 61
        assert store.head("s").lease_until == short
    with closing(SQLiteStore(path)) as store:  # the same boot: nothing is shortened again
        lease = store.claim("r", "bob", DAY, instead_of=1)
    with closing(SQLiteStore(path)) as store:
        assert store.head("r").lease_until == lease.until


@pytest.mark.skipif(not lease_clock.this_boot(), reason="the system doesn't identify its boots")
@pytest.mark.parametrize("damage", ["NULL", "'text'", "1e300", "-1e12"])
def test_a_damaged_constant_is_replaced(tmp_path: Path, damage: str) -> None:
    """H5: in a SQLite file as in a directory, where its file may also be empty."""
    with closing(SHARED["sqlite"](tmp_path)) as store:
        store.create(NewRun("r", "g", [b"1"], holder="ann", ttl=60.0))
    with closing(SHARED["files"](tmp_path)) as store:
        store.create(NewRun("r", "g", [b"1"], holder="ann", ttl=60.0))
    with closing(sqlite3.connect(tmp_path / "runs.db")) as connection, connection:
        if damage == "NULL":
            connection.execute("DELETE FROM clocks")
        else:
            connection.execute(f"UPDATE clocks SET ahead = {damage}")
    (file,) = (tmp_path / "runs" / "clocks").iterdir()
    file.write_text(damage.strip("'").replace("NULL", ""))
    for kind in SHARED:
        for _ in range(2):
            with closing(SHARED[kind](tmp_path)) as store, pytest.raises(Conflict, match="for another"):
                store.claim("r", "bob", 10.0)
    assert abs(float(file.read_text()) - lease_clock.ahead_now()) < 60
