"""`limpet schedules`: add, list, show, pause, resume, trigger, delete and sync. H17."""

from __future__ import annotations

import json
import sqlite3
import sys
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from limpet import MemoryStore, Runs, Schedules, loads, supervise
from limpet.cli import noun_arguments
from limpet.cli.commands.schedules import put_declared
from limpet.engine.schedules import schedule
from limpet.testing import FakeClock
from support.command_line import Command
from support.waiting import until

STORE = "sqlite:///limpet.db"

FILE = """
name: letters
nodes:
  - name: send
    set: {sent: true}
schedules:
  - name: nightly
    cron: 30 2 * * *
    timezone: Europe/Berlin
    input: {region: north}
    tags: [post]
    paused: true
  - {name: often, every: 15m, overlap: queue, catch_up: last, priority: 2}
"""


def test_a_schedule_is_added_listed_and_shown(limpet: Command) -> None:
    """H17: with the next times in its zone; values have the types of the graph's schema."""
    added = limpet(
        *("schedules", "add", "nightly", "flows:graph", "--cron", "30 2 * * *"),
        *("--timezone", "Europe/Berlin", "-i", "topic=42", "--tag", "night", "--overlap", "queue"),
    )
    assert added.code == 0, added.err
    assert "limpet worker" in added.err
    assert limpet("schedules", "add", "often", "flows:plain", "--every", "15m", "--paused").code == 0
    listed = limpet("schedules", "list")
    assert [line.split()[:3] for line in listed.out.splitlines()[1:]] == [
        ["nightly", "article", "active"],
        ["often", "plain", "paused"],
    ]
    assert "02:30 CE" in listed.out
    shown = limpet("schedules", "show", "nightly")
    assert '{"topic": "42"}' in shown.out
    assert shown.out.count("02:30 CE") == 6
    data = limpet("schedules", "show", "nightly", "--json").data
    assert (data["when"], data["overlap"], data["tags"]) == ("30 2 * * *", "queue", ["night"])
    assert len(data["next_times"]) == 5
    assert [each["name"] for each in limpet("schedules", "list", "--json").data] == ["nightly", "often"]


def test_a_worker_fires_and_the_firings_are_shown(limpet: Command) -> None:
    """H17: what was fired, what was skipped, and the status of each run."""
    start = (datetime.now(UTC) - timedelta(minutes=90)).isoformat(timespec="seconds")
    limpet(
        "schedules",
        "add",
        "sums",
        "flows:plain",
        "--every",
        "1h",
        "--starts",
        start,
        "--catch-up",
        "last",
        "--overlap",
        "allow",
    )
    limpet("schedules", "trigger", "sums")
    assert "overdue" in limpet("schedules", "list").out
    assert limpet("worker", "flows:plain", "--once").code == 0
    runs = Runs(STORE).list(tag="schedule:sums")
    assert [run.status for run in runs] == ["completed", "completed"]
    shown = limpet("schedules", "show", "sums").out
    assert shown.count("fired") == 4  # the number, the last one, and two firings
    assert "skipped" in shown
    assert all(run.run_id in shown for run in runs)
    assert "-manual" in shown


def test_a_schedule_that_a_worker_cannot_fire_is_not_said_to_have_no_worker(
    limpet: Command, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H17: without the package for cron expressions, say; the worker's log has the reason."""
    limpet("schedules", "add", "sums", "flows:plain", "--cron", "* * * * *", "--starts", "2020-01-01T00:00Z")
    alone = limpet("schedules", "list")
    assert "no worker that knows its graph has looked" in alone.out
    assert "No worker that knows graph 'plain' is running" in alone.err
    monkeypatch.setitem(sys.modules, "cronsim", None)
    with supervise(STORE, ["flows:plain"]):
        until(lambda: [each for each in Runs(STORE).workers() if "plain" in each.graphs])
        served = limpet("schedules", "list")
    assert "the worker's log says why" in served.out
    assert "No worker that knows" not in served.err


def test_a_triggered_run_is_shown_until_a_worker_starts_it(limpet: Command) -> None:
    """H17: with the command that starts a worker; then its firing has the time at which it was triggered."""
    limpet("schedules", "add", "sums", "flows:plain", "--every", "1h")
    first, second = (limpet("schedules", "trigger", "sums").out.strip() for _ in range(2))
    shown = limpet("schedules", "show", "sums")
    assert f"{first}, {second}" in shown.out
    assert "limpet worker" in shown.err
    assert limpet("schedules", "show", "sums", "--json").data["triggers"] == [first, second]
    listed = limpet("schedules", "list")
    assert "2 triggered, waiting for a worker" in listed.out
    assert "No worker that knows graph 'plain' is running. Start one" in listed.err
    assert limpet("worker", "flows:plain", "--once").code == 0
    assert limpet("schedules", "show", "sums", "--json").data["triggers"] == []
    shown = limpet("schedules", "show", "sums")
    assert [line.split()[-1] for line in shown.out.splitlines()[-2:]] == ["triggered"] * 2
    assert "limpet worker" not in shown.err
    assert "No worker" not in limpet("schedules", "list").err


def test_pause_resume_trigger_and_delete(limpet: Command) -> None:
    """H17: each says what it did; a name that isn't there ends with 4."""
    limpet("schedules", "add", "sums", "flows:plain", "--every", "1h")
    assert "is paused" in limpet("schedules", "pause", "sums").err
    assert limpet("schedules", "show", "sums", "--json").data["status"] == "paused"
    assert "limpet schedules resume sums" in limpet("schedules", "show", "sums").err
    assert "is active; next: 20" in limpet("schedules", "resume", "sums").err
    triggered = limpet("schedules", "trigger", "sums", "--json").data
    assert triggered["run_id"].startswith("sums:")
    assert triggered["run_id"].endswith("Z-manual")
    assert limpet("schedules", "pause", "sums", "--json").data == {"schedule": "sums", "status": "paused"}
    assert limpet("schedules", "resume", "sums", "--json").data == {"schedule": "sums", "status": "active"}
    deleted = limpet("schedules", "delete", "sums").err
    assert "its runs stay" in deleted
    assert f"run {triggered['run_id']} was triggered, and will not start" in deleted
    limpet("schedules", "add", "sums", "flows:plain", "--every", "1h")
    deleted = limpet("schedules", "delete", "sums", "--json").data
    assert deleted == {"schedule": "sums", "status": "deleted", "not_started": []}
    assert limpet("schedules", "list").err == "no schedules yet\n"
    missing = limpet("schedules", "pause", "sums")
    assert missing.code == 4
    assert missing.err.startswith("error: no schedule 'sums' in this store\nList the schedules with:\n")
    error = limpet("schedules", "show", "sums", "--json").data["error"]
    assert error["next"] == "limpet schedules list"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["sums", "flows:plain"], "one of the arguments --cron --every is required"),
        (["sums", "flows:plain", "--cron", "* * * * *", "--every", "1h"], "not allowed with"),
        (["sums", "flows:plain", "--cron", "99 * * * *"], "wrong minute"),
        (["sums", "flows:plain", "--cron", "99 * * * *"], "minute hour day month weekday"),
        (["sums", "flows:plain", "--cron", "@dayly"], "did you mean '@daily'?"),
        (["sums", "flows:plain", "--every", "1h", "--timezone", ""], 'such as "UTC" or "Europe/Berlin"'),
        (["sums", "flows:plain", "--every", "1h", "--timezone", "Berlin"], "no time zone 'Berlin'"),
        (["a/b", "flows:plain", "--every", "1h"], "the name of a schedule"),
        (["sums", "flows:plain", "--every", "1h", "--overlap", "skp"], "did you mean 'skip'"),
        (["sums", "flows:vault", "--every", "1h", "--store", "memory"], "ends with this command"),
        (["sums", "flows:nothing", "--every", "1h"], "no 'nothing'"),
    ],
)
def test_what_cannot_be_scheduled_is_refused(limpet: Command, arguments: list[str], said: str) -> None:
    """H17: as wrong usage."""
    refused = limpet("schedules", "add", *arguments)
    assert refused.code == 2
    assert said in refused.err


def test_other_values_need_replace(limpet: Command) -> None:
    """H17: the same ones change nothing."""
    words = ("schedules", "add", "sums", "flows:plain", "--every", "1h")
    assert limpet(*words).code == 0
    assert limpet(*words).code == 0
    refused = limpet(*words, "--tag", "x")
    assert refused.code == 2
    assert "exists with other values: tags; --replace gives it the new ones\n" in refused.err
    assert "limpet schedules show sums\n" in refused.err
    error = limpet(*words, "--tag", "x", "--json").data["error"]
    assert error["message"].endswith("--replace gives it the new ones")
    assert error["next"] == "limpet schedules show sums"
    assert limpet(*words, "--tag", "x", "--replace").code == 0


def test_a_worker_puts_the_schedules_of_its_file_into_the_store(limpet: Command, here: Path) -> None:
    """H17: adds, changes, and leaves pauses and schedules that the file no longer has as they are."""
    (here / "letters.yaml").write_text(FILE)
    assert limpet("worker", "letters.yaml", "--once").code == 0
    schedules = Schedules(STORE)
    nightly, often = schedules.list()
    assert (nightly.status, nightly.input, nightly.tags) == ("paused", {"region": "north"}, ("post",))
    assert (often.status, often.overlap, often.catch_up, often.priority) == ("active", "queue", "last", 2)
    schedules.pause("often")
    schedules.resume("nightly")
    (here / "letters.yaml").write_text(FILE.replace("priority: 2", "priority: 3").replace("north", "south"))
    synced = limpet("schedules", "sync", "letters.yaml", "--json").data
    assert [(each["name"], each["status"]) for each in synced] == [("nightly", "active"), ("often", "paused")]
    nightly, often = schedules.list()
    assert (nightly.status, nightly.input) == ("active", {"region": "south"})
    assert (often.status, often.priority) == ("paused", 3)
    (here / "letters.yaml").write_text(FILE.partition("schedules:")[0])
    assert limpet("schedules", "sync", "letters.yaml").err == "no schedules are declared\n"
    assert len(schedules.list()) == 2


def test_two_files_cannot_declare_one_schedule(limpet: Command, here: Path) -> None:
    """H17: each would replace that of the other."""
    (here / "letters.yaml").write_text(FILE)
    (here / "cards.yaml").write_text(FILE.replace("letters", "cards"))
    refused = limpet("schedules", "sync", "letters.yaml", "cards.yaml")
    assert refused.code == 2
    assert "two files declare a schedule 'nightly'" in refused.err


@pytest.mark.parametrize(
    "command", [("worker", "letters.yaml", "--once"), ("schedules", "sync", "letters.yaml")]
)
def test_a_file_does_not_take_over_the_schedule_of_another_graph(
    limpet: Command, here: Path, command: tuple[str, ...]
) -> None:
    """H17: nor is any other of its schedules put into the store; `add --replace` does it on purpose."""
    limpet("schedules", "add", "often", "flows:plain", "--every", "1h")
    (here / "letters.yaml").write_text(FILE)
    refused = limpet(*command)
    assert refused.code == 2
    assert "schedule 'often' in the store is of graph 'plain'" in refused.err
    assert "another name, or delete" in refused.err
    assert [(each.name, each.graph) for each in Schedules(STORE).list()] == [("often", "plain")]
    assert limpet("schedules", "add", "often", "letters.yaml", "--every", "15m", "--replace").code == 0
    assert limpet(*command).code == 0
    assert {each.graph for each in Schedules(STORE).list()} == {"letters"}


def test_a_worker_starts_although_a_schedule_of_its_file_has_ended() -> None:
    """H17: what was put into the store before its end is there as ended; what is new is left out, with a message."""
    clock = FakeClock(datetime(2026, 4, 30, tzinfo=UTC))
    store = MemoryStore(clock=clock)
    text = "nodes: [{name: a}]\nschedules: [{name: spring, every: 1h, ends: 2026-05-01T12:00Z}]"
    said: list[str] = []
    assert [each.status for each in put_declared([loads(text)], store, said.append)] == ["active"]
    clock.skip(days=5)
    supervise(store, [loads(text)]).drain()
    assert [each.status for each in put_declared([loads(text)], store, said.append)] == ["ended"]
    later = text.replace("05-01", "06-01")
    assert [each.status for each in put_declared([loads(later)], store, said.append)] == ["active"]
    assert [each.status for each in put_declared([loads(text)], store, said.append)] == ["ended"]
    assert said == []
    Schedules(store).delete("spring")
    assert put_declared([loads(text)], store, said.append) == []
    assert said == ["left out: schedule 'spring' has no time left: its end is in the past"]


def test_the_command_line_knows_the_policies() -> None:
    """H17: it doesn't import them, so that it answers at once."""
    assert noun_arguments.OVERLAPS == schedule.OVERLAPS
    assert noun_arguments.CATCH_UPS == schedule.CATCH_UPS


def test_json_of_a_schedule_can_be_read_by_any_program(limpet: Command) -> None:
    """H17: times are ISO 8601 with their offset."""
    limpet("schedules", "add", "sums", "flows:plain", "--every", "1h", "--ends", "2030-01-01T00:00Z")
    limpet("schedules", "trigger", "sums")
    limpet("worker", "flows:plain", "--once")
    [found] = json.loads(limpet("schedules", "list", "--json").out)
    [firing] = found["recent"]
    assert firing["outcome"] == "fired"
    assert datetime.fromisoformat(firing["planned"]).utcoffset() == timedelta(0)
    assert datetime.fromisoformat(found["next_time"]).utcoffset() == timedelta(0)
    assert found["ends"] == "2030-01-01T00:00:00+00:00"


def test_a_damaged_schedule_is_repaired(limpet: Command, here: Path) -> None:
    """H17: by the file that declares it, also when a worker starts; by adding it again; or it is deleted."""
    (here / "letters.yaml").write_text(FILE)
    repairs = [
        ("schedules", "sync", "letters.yaml"),
        ("worker", "letters.yaml", "--once"),
        ("schedules", "add", "often", "letters.yaml", "--every", "1h", "--replace"),
        ("schedules", "delete", "often"),
    ]
    assert limpet("schedules", "sync", "letters.yaml").code == 0
    for command in repairs:
        with closing(sqlite3.connect(here / "limpet.db")) as db, db:
            assert db.execute("UPDATE documents SET body = x'00' WHERE name = 'schedule/often'").rowcount == 1
        assert limpet("store", "verify").code == 1
        done = limpet(*command)
        assert done.code == 0, done.err
        assert limpet("store", "verify").code == 0
    assert [each["name"] for each in limpet("schedules", "list", "--json").data] == ["nightly"]
