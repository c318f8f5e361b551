"""What a command says that can't do what it is to do with a run, whatever the run's status is."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from limpet import open_store
from limpet.engine.operations.run_info import LISTED_STATUSES, SHOWN_STATUSES, THREAD, WAITING
from support.command_line import Command, Done

GRAPHS = """
from limpet import Retry, StateGraph, pause, sleep


def one(name, node, **options):
    graph = StateGraph(name=name).add_node("node", node, **options)
    return graph.set_entry_point("node").set_finish_point("node").compile(preserve=True)


def fail(state):
    raise ValueError("the line is busy")


def leave(state):
    raise SystemExit(1)


plain = one("plain", lambda state: {"x": 1})
asks = one("asks", lambda state: {"said": pause("Ship it?", choices=["yes", "no"])})
sleeps = one("sleeps", lambda state: sleep(3600))
retries = one("retries", fail, retry=Retry(attempts=5, backoff=3600, max_delay=3600))
fails = one("fails", fail)
leaves = one("leaves", leave)
stops = one("stops", fail)
stops.compile(store="sqlite:///limpet.db", interrupt_before=["node"])
"""
NAMES = ("plain", "asks", "sleeps", "retries", "fails", "leaves", "stops")

RETRY, CANCEL, ANSWER, RESUME = ("runs", "retry"), ("runs", "cancel"), ("answer",), ("resume",)
DELETE, ROLLBACK, FORK = ("runs", "delete"), ("runs", "rollback"), ("runs", "fork")
ARGUMENTS = {ANSWER: ["yes"], DELETE: ["--yes"], ROLLBACK: ["9"], FORK: ["--step", "9"]}

REFUSALS = {
    "queued": {RETRY: "worker", ANSWER: "worker"},
    "sleeping": {RETRY: "worker", ANSWER: "worker"},
    "retrying": {RETRY: "worker", ANSWER: "worker"},
    "abandoned": {RETRY: "worker", ANSWER: "worker"},
    "running": {
        RETRY: "runs watch running",
        ANSWER: "runs watch running",
        RESUME: "resume running --wait 60",
        DELETE: "runs cancel running",
    },
    "paused": {RETRY: "answer paused yes", RESUME: "answer paused yes"},
    "interrupted": {RETRY: "answer interrupted", ANSWER: "answer interrupted"},
    "forked": {ANSWER: "resume forked"},
    "completed": {
        RETRY: "runs history completed",
        CANCEL: "runs delete completed",
        ANSWER: "runs state completed",
        RESUME: "runs history completed",
    },
    "failed": {CANCEL: "runs delete failed", ANSWER: "resume failed"},
    "quarantined": {CANCEL: "runs delete quarantined", ANSWER: "resume quarantined"},
    "cancelled": {ANSWER: "runs retry cancelled"},
    "damaged": {
        RETRY: "store verify damaged",
        CANCEL: "store verify damaged",
        ANSWER: "store verify damaged",
        RESUME: "store verify damaged",
    },
}
"""The runs, each with the status that is its id, what can't be done with them, and the command that helps."""


@pytest.fixture
def stored(limpet: Command, here: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Command]:
    (here / "every.py").write_text(GRAPHS)
    monkeypatch.setenv("LIMPET_STORE", "sqlite:///limpet.db")
    monkeypatch.setenv("LIMPET_GRAPHS", ",".join(f"every:{name}" for name in NAMES))
    limpet("run", "every:leaves", "--id", "quarantined", "--detach")
    for _ in range(4):
        limpet("worker", "every:leaves", "--once")
    limpet("run", "every:sleeps", "--id", "sleeping", "--detach")
    limpet("run", "every:retries", "--id", "retrying", "--detach")
    limpet("worker", "--once")
    for name, run_id in (
        ("plain", "completed"),
        ("plain", "damaged"),
        ("asks", "paused"),
        ("stops", "interrupted"),
        ("fails", "failed"),
    ):
        limpet("run", f"every:{name}", "--id", run_id)
    for run_id in ("queued", "cancelled", "running", "abandoned"):
        limpet("run", "every:plain", "--id", run_id, "--detach")
    limpet("runs", "cancel", "cancelled")
    limpet("runs", "fork", "completed", "--step", "0", "--id", "forked")
    _claim_and_damage()
    yield limpet
    sys.modules.pop("every", None)


def test_every_refusal_says_what_is_so_and_what_to_type(stored: Command) -> None:
    """P1: in one sentence each, with the id of the run; the command that is named can be copied."""
    listed = {info["run_id"]: info["shown_status"] for info in stored("runs", "list", "--json").data}
    assert listed == {**{run_id: run_id for run_id in REFUSALS}, "forked": "paused", "interrupted": "paused"}
    known = {*LISTED_STATUSES, *(shown.name for shown in SHOWN_STATUSES)} - {WAITING, THREAD}
    assert set(listed.values()) == known
    for run_id, refused in REFUSALS.items():
        for verb, command in (*refused.items(), (ROLLBACK, None), (FORK, None)):
            done = stored(*verb, run_id, *ARGUMENTS.get(verb, ()))
            _check(done, run_id, command or f"runs history {run_id}")


def test_where_the_place_of_a_graph_isnt_known_its_placeholder_is_explained(
    stored: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LIMPET_GRAPHS")
    explained = "(GRAPH is file.yaml, file.py:attribute or module:attribute):\n  limpet"
    assert f"{explained} worker GRAPH" in stored("runs", "retry", "queued").err
    assert f"{explained} resume forked --graph GRAPH" in stored("answer", "forked", "yes").err


def _check(done: Done, run_id: str, command: str) -> None:
    assert done.code not in (0, None), done
    problem, purpose, typed = [line for line in done.err.splitlines() if "limpet.db: " not in line]
    assert problem.startswith("error: ")
    assert repr(run_id) in problem
    assert purpose.endswith(":")
    assert typed == f"  limpet {command}"


def _claim_and_damage() -> None:
    store = open_store("sqlite:///limpet.db")
    store.claim("running", "elsewhere|boot|namespace|123|456", 60.0)
    store.claim("abandoned", "elsewhere|boot|namespace|124|456", 0.001)
    with closing(sqlite3.connect("limpet.db")) as database, database:
        database.execute("UPDATE runs SET status = 'pausd' WHERE run_id = 'damaged'")
