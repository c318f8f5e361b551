"""`limpet workers`: which workers there are, and which runs have none. H18."""

from __future__ import annotations

from pathlib import Path

import pytest

from limpet import Runs, open_store, supervise
from limpet.engine.supervisor import worker_list
from support.command_line import Command
from support.waiting import until


def test_without_workers_the_list_says_so(limpet: Command, here: Path) -> None:
    """H18: and creates no store."""
    assert limpet("workers", "--store", "sqlite:///limpet.db").code == 6
    assert not (here / "limpet.db").exists()
    limpet("run", "flows:plain")
    done = limpet("workers")
    assert (done.code, "no workers" in done.err) == (0, True)
    assert limpet("workers", "--json").data == {"workers": [], "unserved": []}


def test_workers_and_runs_without_one_are_listed(
    limpet: Command, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H18: for people, for programs, and in the other commands about runs."""
    from flows import plain

    monkeypatch.setattr(worker_list, "RENEWAL_INTERVAL", 0.05)
    limpet("run", "flows:plain", "--detach", "--id", "gpu", "--queue", "gpu")
    limpet("run", "flows:graph", "--detach", "--id", "other", "-i", "topic=kelp")
    store = open_store("sqlite:///limpet.db")
    with supervise(store, [plain], queues=["default"], poll=0.05):
        until(Runs(store).workers)
        done = limpet("workers")
        assert done.code == 0
        lines = done.out.splitlines()
        assert lines[0].split()[:2] == ["worker", "status"]
        assert " live " in lines[1]
        assert " default " in lines[1]
        assert "plain " in lines[1]
        assert "0 of 16" in lines[1]
        assert "no worker serves queue 'gpu'" in done.out
        assert "no worker of queue 'default' knows graph" in done.out
        assert "limpet runs list --unserved" in done.err
        data = limpet("workers", "--json").data
        (worker,) = data["workers"]
        assert (worker["queues"], worker["is_live"], worker["runs"]) == (["default"], True, 0)
        assert {(each["queue"], each["runs"]) for each in data["unserved"]} == {("gpu", 1), ("default", 1)}
        listed = limpet("runs", "list", "--unserved")
        assert "no worker serves queue 'gpu'" in listed.out
        only = limpet("runs", "list", "--unserved", "--queue", "gpu", "--json").data
        assert [info["run_id"] for info in only] == ["gpu"]
        assert only[0]["unserved"] == "no worker serves queue 'gpu'"
        assert "unserved" not in limpet("runs", "list", "--queue", "gpu", "--json").data[0]
        assert limpet("runs", "show", "gpu", "--json").data["unserved"] == only[0]["unserved"]
        more = limpet("runs", "list", "--unserved", "--limit", "1")
        assert "--unserved --limit 1 --after" in more.err
        assert "no worker serves queue 'gpu'" in limpet("runs", "show", "gpu").out
        assert limpet("runs", "cancel", "--unserved", "--queue", "gpu", "--yes", "--json").data["done"] == 1
    assert limpet("workers", "--json").data["workers"] == []
    assert "no worker is running" in limpet("runs", "show", "other").out


def test_a_run_that_needs_no_worker_is_not_unserved(runs: Command) -> None:
    """H18: it has ended, or waits for an answer."""
    assert [runs("runs", "show", name, "--json").data["unserved"] for name in ("done", "waits")] == [
        None,
        None,
    ]
