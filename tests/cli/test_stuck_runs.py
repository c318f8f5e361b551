"""H11: lists of runs and the worker's log say why a run isn't resumed by itself."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from limpet import StateGraph, open_store, pause
from limpet.cli.commands import runs as command
from limpet.cli.values import utc_time
from limpet.engine.leases.process_identity import this_process
from support.command_line import Command

KEYS = {"old": "11" * 32, "new": "22" * 32}
FLOWS = """
from limpet import StateGraph, pause

def crash(state):
    raise SystemExit(1)

known = StateGraph(name="known").add_node("crash", crash).set_entry_point("crash").set_finish_point("crash")
"""


@pytest.fixture
def project(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (here / "flows.py").write_text(FLOWS)
    monkeypatch.setenv("LIMPET_STORE", f"sqlite:///{here}/runs.db")
    return here


def graph(name: str, here: Path, key: str | None = None) -> StateGraph:
    made = StateGraph(name=name).add_node("ask", run=lambda state: {"said": pause("who?")})
    store = open_store(f"sqlite:///{here}/runs.db", encryption=bytes.fromhex(KEYS[key]) if key else False)
    return made.set_entry_point("ask").set_finish_point("ask").compile(store=store)


def test_a_quarantined_run_is_called_so(
    project: Path, limpet: Command, caplog: pytest.LogCaptureFixture
) -> None:
    """H11: in the list, where it is shown, and in the log of each worker that could resume it."""
    limpet("run", "flows:known", "--id", "bad", "--detach")
    for _ in range(4):
        limpet("worker", "flows:known", "--once")
    (line,) = [line for line in limpet("runs", "list").out.splitlines() if line.startswith("bad")]
    assert line.split()[2] == "quarantined"
    assert "its process crashed 3 times in a row at node 'crash'" in line
    shown = limpet("runs", "show", "bad")
    assert re.search(r"^status +quarantined$", shown.out, re.M)
    assert "limpet runs retry bad" in shown.err
    caplog.clear()
    limpet("worker", "flows:known", "--once")
    assert "run bad of known is quarantined: resume it to retry it" in caplog.text


def test_a_process_that_is_alive_is_not_said_to_have_crashed(project: Path, limpet: Command) -> None:
    """H11: it couldn't renew its lease, as its disk is full, say. Of one on another host no more is known."""
    store = open_store(f"sqlite:///{project}/runs.db")
    host, boot, namespace, pid, start, _ = this_process().split("|")
    alive = "|".join([host, boot, namespace, pid, start, "another copy of the library"])
    dead = "|".join([host, boot, namespace, pid, f"{start}0", ""])  # an earlier process of this id
    holders = {"alive": alive, "dead": dead, "far": "elsewhere|boot|namespace|124|456"}
    for run_id, holder in holders.items():
        limpet("run", "flows:known", "--id", run_id, "--detach")
        store.claim(run_id, holder, 0.001)
    lines = {line.split()[0]: line for line in limpet("runs", "list").out.splitlines()}
    assert "its process crashed" in lines["dead"]
    shown = limpet("runs", "show", "dead")
    assert f"process {pid} on {host}, which crashed" in shown.out
    assert "Its process crashed. A worker resumes it" in shown.err
    for run_id in ("alive", "far"):
        since = f"hasn't renewed its lease since {utc_time(store.head(run_id).updated)} UTC"
        assert "abandoned" in lines[run_id]
        assert f"its process {since}" in lines[run_id]
        shown = limpet("runs", "show", run_id)
        assert f", which {since}" in shown.out
        assert f"Its process {since}. A worker resumes it" in shown.err


def test_a_run_whose_key_is_missing_is_listed_with_the_others(
    project: Path,
    limpet: Command,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """H11: the error names the key, whether there is another one or none, and hides no other run."""
    graph("known", project, "old").invoke({}, run_id="asks").wait()
    graph("known", project, "old").start({}, run_id="queued")
    graph("known", project).invoke({}, run_id="plain").wait()
    lines = {line.split()[0]: line for line in limpet("runs", "list").out.splitlines()}
    assert "asks: who?" in lines["plain"]
    for run_id in ("asks", "queued"):
        assert "is encrypted with the key" in lines[run_id]
        assert "the store was opened without a key" in lines[run_id]
    monkeypatch.setenv("LIMPET_ENCRYPTION_KEY", KEYS["new"])
    done = limpet("runs", "list")
    lines = {line.split()[0]: line for line in done.out.splitlines()}
    assert {"asks", "queued", "plain"} <= set(lines)
    for run_id in ("asks", "queued"):
        assert "was encrypted with" in lines[run_id]
    listed = json.loads(limpet("runs", "list", "--json").out)
    assert {each["run_id"]: bool(each["problem"]) for each in listed} == {
        "asks": True,
        "queued": True,
        "plain": True,
    }
    monkeypatch.setenv("LIMPET_GRAPHS", "flows:known")
    limpet("worker", "--once")
    assert "run queued is skipped: the note of run 'queued' was encrypted with the key" in caplog.text


def test_a_run_whose_graph_isnt_known_is_said_to_wait_for_it(
    project: Path,
    limpet: Command,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """H11: if graphs are known here, else when it has waited for long."""
    graph("strange", project).start({}, run_id="lost")
    assert limpet("runs", "list").out.splitlines()[1].split()[2] == "queued"
    monkeypatch.setattr(command, "LONG_IN_QUEUE", -1.0)
    line = limpet("runs", "list").out.splitlines()[1]
    assert line.endswith("for 0 min: is a worker running that has graph 'strange'?")
    monkeypatch.setenv("LIMPET_GRAPHS", "flows:known")
    line = limpet("runs", "list").out.splitlines()[1]
    assert line.endswith("no graph 'strange' among those known here")
    limpet("worker", "--once")
    assert "run lost is skipped: graph 'strange' isn't known to this supervisor" in caplog.text
    monkeypatch.setenv("LIMPET_GRAPHS", "flows:broken")
    assert limpet("runs", "list").code == 0


def test_a_paused_run_whose_graph_isnt_known_is_marked(
    project: Path, limpet: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H11: as one that is queued; what it asks is shown, too."""
    graph("strange", project).invoke({}, run_id="asks").wait()
    graph("strange", project).compile(
        store=open_store(f"sqlite:///{project}/runs.db"), interrupt_before=["ask"]
    ).invoke({}, run_id="stops").wait()
    graph("known", project).invoke({}, run_id="fine").wait()
    monkeypatch.setenv("LIMPET_GRAPHS", "flows:known")
    lines = {line.split()[0]: line for line in limpet("runs", "list").out.splitlines()}
    assert lines["asks"].endswith("asks: who? (no graph 'strange' among those known here)")
    assert lines["stops"].endswith("  no graph 'strange' among those known here")
    assert lines["fine"].endswith("asks: who?")


def test_an_encrypted_store_logs_once_what_it_leaves_out(
    project: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """H11: a worker lists runs all the time."""
    graph("known", project, "old").invoke({}, run_id="asks").wait()
    other = graph("known", project, "new")
    other.invoke({}, run_id="mine").wait()
    for _ in range(5):
        assert [info.run_id for info in other.runs() if not info.problem] == ["mine"]
        assert other.recover() == []
    assert sum("asks" in record.getMessage() for record in caplog.records) <= 1
