"""`limits …`: tables, JSON, exit codes."""

from __future__ import annotations

import re
import sqlite3
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from limpet import Limits, RunInfo, open_store
from limpet.cli import project, run_display
from limpet.cli.commands import run
from limpet.cli.run_display import waits_of
from limpet.engine.leases.lease_client import client_for
from limpet.engine.leases.limit_slots import SlotRequest, limits_of
from limpet.engine.leases.limits.awaited_limits import AwaitedLimit
from limpet.engine.leases.limits.document import lane_text
from limpet.graphs.limits import Limit
from limpet.journal.store import Lease, NewRun
from support.command_line import Command


def test_a_limit_is_set_shown_reset_and_deleted(runs: Command, here: Path) -> None:
    """H18: what is set wins over what the code says."""
    store = open_store(f"sqlite:///{here}/limpet.db")
    client = limits_of(client_for(store))
    client.declare([Limit("openai", concurrency=1, rate="60/min")])
    leases = [store.create(NewRun(f"r{number}", "g", [b"x"], holder="h")) for number in range(3)]
    requests = [SlotRequest(lease, "ask#1", ("openai",)) for lease in leases if lease is not None]
    client.acquire(requests, True)
    listed = runs("limits", "list").out.split()
    assert listed == [
        "limit",
        "concurrency",
        "rate",
        "waiting",
        "queues",
        "values",
        "openai",
        "1/1",
        "1",
        "of",
        "60/min",
        "2",
        "code",
    ]
    shown = runs("limits", "show", "openai")
    assert [word in shown.out for word in ("r0", "held", "r1", "r2", "waits")] == [True] * 5
    data = runs("limits", "show", "openai", "--json").data
    assert (data["concurrency"], data["rate"], data["waiting"]) == (1, "60/min", 2)
    assert [each["run_id"] for each in data["held"]] == ["r0"]
    assert [each["run_id"] for each in data["first_in_line"]] == ["r1", "r2"]
    raised = runs(
        "limits", "set", "openai", "--concurrency", "2", "--rate", "none", "--queue", "gpu", "--json"
    ).data
    assert (raised["concurrency"], raised["rate"], raised["queues"]) == (2, None, ["gpu"])
    assert raised["sources"] == {"concurrency": "set", "rate": "set", "queues": "set"}
    assert raised["declared"] == {"concurrency": 1, "rate": "60/min"}
    assert [each["state"] for each in raised["held"]] == ["held", "reserved"]
    assert "code; set: concurrency, rate, queues" in runs("limits", "list").out
    assert runs("limits", "set", "openai", "--reset", "--json").data["concurrency"] == 1
    assert runs("limits", "delete", "openai").code == 0
    assert runs("limits", "list", "--json").data == []
    assert store.list_documents("limit line/") == []


def test_a_long_line_is_shown_by_its_beginning(runs: Command, here: Path) -> None:
    """H18: and how many more wait is said; the calls are shown by step and node."""
    store = open_store(f"sqlite:///{here}/limpet.db")
    client = limits_of(client_for(store))
    client.declare([Limit("openai", concurrency=1)])
    leases = [store.create(NewRun(f"r{number:02}", "g", [b"x"], holder="h")) for number in range(24)]
    client.acquire([SlotRequest(lease, "2/ask", ("openai",)) for lease in leases if lease], True)
    shown = runs("limits", "show", "openai").out
    assert shown.count("step/node") == 2
    assert shown.count("2/ask") == 21
    assert "… and 3 more" in shown
    assert re.search("^waiting +23$", shown, re.M)
    data = runs("limits", "show", "openai", "--json").data
    assert (data["waiting"], len(data["first_in_line"])) == (23, 20)


def test_queued_runs_of_a_graph_and_queue_are_shown_as_one_that_waits(limited: Command, here: Path) -> None:
    """H18: however many there are, as one place in the line is for whichever of them is next."""
    for name in ("first", "second"):
        limited("run", "limited:whole", "--detach", "--id", name, "--queue", "gpu")
    limited("worker", "limited:whole", "--once")
    store = open_store(f"sqlite:///{here}/limpet.db")
    head = store.head("first")
    asked = SlotRequest(
        Lease("first", head.fence + 1, 0.0), "", ("gpus",), is_claimed=False, lane=lane_text(head.lane)
    )
    assert limits_of(client_for(store)).acquire([asked], stands_in_line=True) != [None]
    shown = limited("limits", "show", "gpus").out
    assert "(next run of whole in queue gpu)" in shown
    assert re.search(r"^waiting +1 \(all queued runs of a graph and queue are one\)$", shown, re.M)


def test_a_limit_can_be_set_before_any_program_declares_it(limpet: Command, here: Path) -> None:
    """H18."""
    assert limpet("limits", "set", "gpu", "--concurrency", "2", "--store", "sqlite:///limpet.db").code == 0
    assert [info.concurrency for info in Limits(f"sqlite:///{here}/limpet.db").list()] == [2]


def test_the_queues_of_a_limit_are_named_as_those_of_a_worker_and_shown(runs: Command) -> None:
    """H18: with commas, or one by one."""
    for words in (["--queue", "gpu, default"], ["--queue", "gpu", "--queue", "default"]):
        done = runs("limits", "set", "gpus", "--concurrency", "2", *words)
        assert (done.code, done.out) == (0, "gpus: concurrency 0/2, rate none, queues default gpu (set)\n")
    assert "queues" not in runs("limits", "set", "gpus", "--queue", "none").out.partition("(")[0]


def test_a_limit_has_queues_or_none_and_not_both(runs: Command) -> None:
    """H18: `none` in any case takes its queues away, and isn't the name of a queue."""
    runs("limits", "set", "gpus", "--concurrency", "2", "--queue", "gpu")
    refused = runs("limits", "set", "gpus", "--queue", "none,gpu")
    assert (refused.code, "--queue takes names of queues, or none: not both" in refused.err) == (2, True)
    assert runs("limits", "show", "gpus", "--json").data["queues"] == ["gpu"]
    assert runs("limits", "set", "gpus", "--queue", "None", "--json").data["queues"] == []


def test_a_limit_without_values_is_said_to_limit_nothing(runs: Command) -> None:
    """H18: its queues alone don't limit, and it isn't of the code either."""
    nothing = "gpus limits nothing, as it has neither a concurrency nor a rate"
    assert nothing in runs("limits", "set", "gpus", "--queue", "gpu").err
    assert nothing not in runs("limits", "set", "gpus", "--concurrency", "2").err
    assert nothing not in runs("limits", "set", "gpus", "--rate", "5/s", "--concurrency", "none").err
    assert nothing in runs("limits", "set", "gpus", "--reset").err
    assert runs("limits", "list").out.split()[-5:] == ["gpus", "none", "none", "0", "none"]


def test_an_unknown_limit_leads_to_the_list(runs: Command) -> None:
    """H18: as the next command, for people and for programs."""
    missing = runs("limits", "show", "openai")
    assert missing.err.startswith("error: no limit 'openai' in this store")
    assert missing.err.endswith("List the limits with:\n  limpet limits list\n")
    assert runs("limits", "delete", "openai", "--json").data["error"]["next"] == "limpet limits list"


def test_a_limit_that_is_set_under_a_misspelt_name_is_noticed(runs: Command) -> None:
    """H18: it is made, as it may be set before a program declares it."""
    made = runs("limits", "set", "openai", "--concurrency", "1").err
    assert "openai is a new limit, which no program has declared so far" in made
    assert "did you mean" not in made
    assert "new limit" not in runs("limits", "set", "openai", "--concurrency", "2").err
    misspelt = runs("limits", "set", "openaj", "--concurrency", "2")
    assert misspelt.code == 0
    assert (
        "openaj is a new limit, which no program has declared so far; did you mean 'openai'?" in misspelt.err
    )


def test_what_cant_be_a_limit_is_refused(runs: Command) -> None:
    """H18: with the exit codes of all commands."""
    assert runs("limits", "list").err == "no limits\n"
    assert runs("limits", "show", "openai").code == 4
    assert runs("limits", "set", "openai", "--reset").code == 4
    assert runs("limits", "set", "openai").code == 2
    for words in (["--concurrency", "0"], ["--concurrency", "many"], ["--rate", "fast"], ["--queue", "a/b"]):
        assert runs("limits", "set", "openai", *words).code == 2
    for wrong in ("-1", "many"):
        said = f"--concurrency takes a whole number of at least 1, or none, not '{wrong}'"
        assert said in runs("limits", "set", "openai", f"--concurrency={wrong}").err
    assert "a limit must be a text of 1 to 100" in runs("limits", "set", "a/b", "--concurrency", "1").err
    runs("limits", "set", "openai", "--concurrency", "1")
    assert "did you mean 'openai'?" in runs("limits", "delete", "openaj").err


LIMITED = """
from limpet import Limit, StateGraph

asks = StateGraph({"n": int}, name="asks")
asks.add_node("ask", lambda state: {"n": 1}, limits=[Limit("openai", concurrency=1)])
asks.set_entry_point("ask").set_finish_point("ask")

whole = StateGraph({"n": int}, name="whole")
whole.add_node("work", lambda state: {"n": 1})
whole.set_entry_point("work").set_finish_point("work").compile(limits=[Limit("jobs", rate="1/h")])
"""


def test_a_limit_of_the_projects_graphs_is_not_said_to_be_new(limpet: Command, here: Path) -> None:
    """H18: no run has declared it in the store so far; limits of nodes count, and those of whole runs."""
    (here / "limited.py").write_text(LIMITED)
    (here / "pyproject.toml").write_text(
        '[tool.limpet]\nstore = "sqlite:///limpet.db"\ngraphs = ["limited:asks", "limited:whole"]\n'
    )
    sys.modules.pop("limited", None)
    for name in ("openai", "jobs"):
        assert "new limit" not in limpet("limits", "set", name, "--concurrency", "1").err
    misspelt = limpet("limits", "set", "openaj", "--concurrency", "1").err
    assert "openaj is a new limit, which no program has declared so far; did you mean 'openai'?" in misspelt
    (here / "limited.py").write_text("broken")
    sys.modules.pop("limited", None)
    done = limpet("limits", "set", "unknown", "--concurrency", "1")
    assert (done.code, "unknown is a new limit" in done.err) == (0, True)


@pytest.fixture
def limited(limpet: Command, here: Path) -> Command:
    """A project of graphs with limits, in whose store another run has the only slot of each limit."""
    (here / "limited.py").write_text(LIMITED)
    (here / "pyproject.toml").write_text(
        '[tool.limpet]\nstore = "sqlite:///limpet.db"\ngraphs = ["limited:asks", "limited:whole"]\n'
    )
    sys.modules.pop("limited", None)
    store = open_store(f"sqlite:///{here}/limpet.db")
    client = limits_of(client_for(store))
    limits = (
        Limit("openai", concurrency=1),
        Limit("gpus", concurrency=1, queues=["gpu"]),
        Limit("jobs", rate="1/h"),
    )
    client.declare(limits)
    lease = store.create(NewRun("other", "g", [b"x"], holder="h", ttl=1000.0))
    assert lease is not None
    names = tuple(limit.name for limit in limits)
    assert client.acquire([SlotRequest(lease, "", names)], stands_in_line=False) == [None]
    return limpet


def test_a_graph_is_shown_with_its_limits(limited: Command) -> None:
    """H18: those of its nodes, and those of whole runs."""
    assert "limits: openai" in limited("graph", "show", "limited:asks").out
    assert "jobs" in limited("graph", "show", "limited:whole").out
    data = limited("graph", "show", "limited:whole", "--json").data
    assert (data["queue"], data["limits"]) == (None, ["jobs"])


def test_a_run_that_waits_for_a_slot_says_of_which_limit_and_its_place(limited: Command, here: Path) -> None:
    """H18: how many slots are taken, and how many calls are before it."""
    for name in ("first", "second"):
        assert limited("run", "limited:asks", "--detach", "--id", name).code == 0
        assert limited("worker", "--once").code == 0
    shown = [limited("runs", "show", name).out for name in ("first", "second")]
    assert "a slot of the limit openai (1/1), at ask" in shown[0]
    assert "a slot of the limit openai (1/1, 1 before it), at ask" in shown[1]
    assert "waits for a slot of the limit openai, at ask" in limited("runs", "list").out
    data = limited("runs", "show", "second", "--json").data
    assert data["limits"] == [
        {
            "limit": "openai",
            "node": "ask",
            "concurrency": 1,
            "held": 1,
            "rate": None,
            "begun": 0,
            "is_full": True,
            "before": 1,
            "problem": "",
        }
    ]
    Limits(f"sqlite:///{here}/limpet.db").delete("openai")
    assert "a slot of the limit openai, at ask" in limited("runs", "show", "first").out


@pytest.mark.parametrize(("graph", "limit"), [("asks", "openai"), ("whole", "jobs")])
def test_a_run_that_waits_here_for_a_slot_says_so(
    limited: Command, here: Path, monkeypatch: pytest.MonkeyPatch, graph: str, limit: str
) -> None:
    """H18: else nothing would be seen of it."""
    monkeypatch.setattr(run_display, "LIMIT_NOTICE_INTERVAL", 0.05)
    looks = 0
    looked_twice = threading.Event()

    def counted(info: RunInfo, limits: Sequence[AwaitedLimit]) -> str | None:
        nonlocal looks
        looks += 1
        if looks > 1:  # so what was found at first has been told
            looked_twice.set()
        return waits_of(info, limits)

    monkeypatch.setattr(run, "waits_of", counted)

    def lift() -> None:
        assert looked_twice.wait(60)
        Limits(f"sqlite:///{here}/limpet.db").delete(limit)

    with ThreadPoolExecutor(1) as pool:
        lifted = pool.submit(lift)
        done = limited("run", f"limited:{graph}", "--id", "r")
        lifted.result()
    assert done.code == 0
    assert f"  … waits for a slot of the limit {limit} (" in done.err


def test_a_queued_run_says_which_limit_is_full(limited: Command, here: Path) -> None:
    """H18: that of its queue, and that of its graph as far as the graph is known here."""
    limited("run", "limited:asks", "--detach", "--id", "in queue", "--queue", "gpu")
    limited("run", "limited:asks", "--detach", "--id", "free")
    limited("run", "limited:whole", "--detach", "--id", "whole", "--queue", "gpu")
    assert "a slot of the limit gpus (1/1)" in limited("runs", "show", "in queue").out
    assert "a slot of" not in limited("runs", "show", "free").out
    assert limited("runs", "show", "free", "--json").data["limits"] == []
    both = limited("runs", "show", "whole").out
    assert "a slot of the limit gpus (1/1); a slot of the limit jobs (1 of 1/hour)" in both
    data = limited("runs", "show", "whole", "--json").data["limits"]
    assert [(each["limit"], each["node"], each["before"]) for each in data] == [
        ("gpus", "", None),
        ("jobs", "", None),
    ]
    Limits(f"sqlite:///{here}/limpet.db").set("gpus", concurrency=2)
    assert "a slot of" not in limited("runs", "show", "in queue").out
    (here / "pyproject.toml").write_text('[tool.limpet]\nstore = "sqlite:///limpet.db"\n')
    project._settings.cache_clear()
    assert "a slot of" not in limited("runs", "show", "whole").out
    store = open_store(f"sqlite:///{here}/limpet.db")
    head = store.head("whole")
    claim = Lease("whole", head.fence + 1, 0.0)
    asked = SlotRequest(claim, "", ("jobs",), is_claimed=False, lane=lane_text(head.lane))
    assert limits_of(client_for(store)).acquire([asked], stands_in_line=True) != [None]
    assert "a slot of the limit jobs (1 of 1/hour)" in limited("runs", "show", "whole").out


def test_a_damaged_limit_is_reported_and_repaired(limited: Command, here: Path) -> None:
    """H18: a queued run says what it waits for, `verify` finds it; `set` and `delete` repair it."""
    for repair in (["set", "openai", "--concurrency", "3"], ["delete", "openai"]):
        assert limited("limits", "set", "openai", "--concurrency", "2").code == 0
        with closing(sqlite3.connect(here / "limpet.db")) as db, db:
            db.execute("UPDATE documents SET body = x'00' WHERE name = 'limit/openai'")
        assert limited("run", "limited:asks", "--detach", "--id", repair[0]).code == 0
        assert limited("worker", "--once").code == 0
        assert "a slot of the limit openai (it is damaged: " in limited("runs", "show", repair[0]).out
        assert "openai" not in limited("limits", "list").out
        shown = limited("limits", "show", "openai")
        assert (shown.code, "limpet limits delete openai" in shown.err) == (6, True)
        assert damaged_documents(limited) == ["limit/openai"]
        assert limited("limits", *repair).code == 0
        assert damaged_documents(limited) == []


def test_a_damaged_limit_that_is_set_again_is_not_said_to_be_new(limited: Command, here: Path) -> None:
    """H18: although lists leave it out."""
    assert "spare is a new limit" in limited("limits", "set", "spare", "--concurrency", "2").err
    with closing(sqlite3.connect(here / "limpet.db")) as db, db:
        db.execute("UPDATE documents SET body = x'00' WHERE name = 'limit/spare'")
    repaired = limited("limits", "set", "spare", "--concurrency", "3")
    assert (repaired.code, "new limit" in repaired.err) == (0, False)


def damaged_documents(limited: Command) -> list[str]:
    found = limited("store", "verify", "--json").data
    return [each["document"] for each in found if "document" in each]
