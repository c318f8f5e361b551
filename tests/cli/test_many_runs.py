"""`runs list` with filters and pages; `runs retry`, `cancel` and `delete` of one or many. H11."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from limpet import Runs
from limpet.engine.operations import run_query
from support.command_line import Command

ORDERS = """
from pathlib import Path

from limpet import StateGraph


def pay(state):
    with open("paid.txt", "a") as file:
        file.write(f"{state['order']}\\n")
    return {}


def ship(state):
    if not Path("fixed").exists():
        raise ValueError(f"no address of {state['order']}")
    return {"shipped": True}


orders = StateGraph({"order": str, "shipped": bool}, name="orders")
orders.add_node("pay", run=pay).add_node("ship", run=ship)
orders.add_edge("pay", "ship").set_entry_point("pay").set_finish_point("ship")
"""


@pytest.fixture
def failed(limpet: Command, here: Path) -> Command:
    """Three runs that failed, r1 to r3, and one that is queued."""
    (here / "shop.py").write_text(ORDERS)
    sys.modules.pop("shop", None)
    for number in (1, 2, 3):
        tags = ["--tag", "odd", "--tag", f"t{number}"] if number != 2 else []
        assert limpet("run", "shop:orders", "-i", f"order=o{number}", "--id", f"r{number}", *tags).code == 1
    assert limpet("run", "shop:orders", "-i", "order=o4", "--id", "queued", "--detach").code == 0
    return limpet


def listed(done: Any) -> list[str]:
    """The first column of a table."""
    return [line.split()[0] for line in done.out.splitlines()[1:]]


def test_runs_are_listed_by_all_filters(failed: Command) -> None:
    """H11."""
    assert listed(failed("runs", "list")) == ["queued", "r3", "r2", "r1"]
    for words, found in (
        (["--status", "queued"], ["queued"]),
        (["--status", "failed", "--status", "queued", "--since", "2h"], ["queued", "r3", "r2", "r1"]),
        (["--tag", "odd"], ["r3", "r1"]),
        (["--tag", "odd", "--tag", "t3"], ["r3"]),
        (["--error", "ValueError", "--node", "ship"], ["r3", "r2", "r1"]),
        (["--text", "ADDRESS OF o2"], ["r2"]),
        (["--of", "orders", "--created-since", "1d", "--limit", "1"], ["queued"]),
    ):
        assert listed(failed("runs", "list", *words)) == found
    for words in (
        ["--before", "2h"],
        ["--created-before", "2020-01-01"],
        ["--of", "other"],
        ["--error", "KeyError"],
    ):
        done = failed("runs", "list", *words)
        assert (done.code, done.out, "no runs match" in done.err) == (0, "", True)
    bad = failed("runs", "list", "--status", "fialed")
    assert (bad.code, "did you mean 'failed'" in bad.err) == (2, True)
    assert failed("runs", "list", "--since", "yesterday").code == 2
    assert failed("runs", "list", "--after", "r1").code == 2


def test_a_list_names_the_command_for_its_next_page(failed: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """H11."""
    words = ["runs", "list", "--status", "failed", "--tag", "odd", "--limit", "1"]
    first = failed(*words)
    assert listed(first) == ["r3"]
    command = first.err.splitlines()[-1].split()
    assert command[:2] == ["limpet", "runs"]
    second = failed(*command[1:])
    assert (listed(second), second.err) == (["r1"], "")
    page = failed(*words, "--json").data
    assert failed(*words, "--json", "--after", page[-1]["cursor"]).data[0]["run_id"] == "r1"
    monkeypatch.setattr(run_query, "TEXT_SEARCH_BOUND", 2)
    searched = failed("runs", "list", "--text", "address of o1")
    assert (searched.out, "Looked through the errors of 2 runs" in searched.err) == ("", True)
    assert listed(failed(*shlex.split(searched.err.splitlines()[-1])[1:])) == ["r1"]


def test_all_that_match_are_handed_back_with_one_command(failed: Command, here: Path) -> None:
    """H11: a worker finishes them; what had finished isn't done again."""
    command = ["runs", "retry", "--status", "failed", "--of", "orders", "--since", "2h"]
    dry = failed(*command, "--dry-run")
    assert (dry.code, dry.out.splitlines()[-1]) == (0, "3 would be retried; nothing was changed")
    asked = failed(*command)
    assert (asked.code, "this would retry 3 runs: pass --yes" in asked.err) == (2, True)
    assert len(Runs(f"sqlite:///{here}/limpet.db").list("failed")) == 3
    done = failed(*command, "--yes")
    assert done.code == 0
    assert done.out.splitlines()[-1] == "3 retried"
    assert listed(done)[:3] == ["r3", "r2", "r1"]
    assert "limpet worker" in done.err
    (here / "fixed").touch()
    assert failed("worker", "shop:orders", "--once").code == 0
    assert listed(failed("runs", "list", "--status", "completed")) == ["queued", "r3", "r2", "r1"]
    assert sorted((here / "paid.txt").read_text().split()) == ["o1", "o2", "o3", "o4"]
    again = failed(*command, "--yes")
    assert (again.code, again.out) == (0, "no runs match\n")


def test_the_option_for_code_chooses_runs_too(failed: Command, here: Path) -> None:
    """H11: `--graph` says which graph's runs are meant, by its name or its code; it never widens to all graphs."""
    other = here / "other.yaml"
    other.write_text("name: other\nnodes: [{name: a, run: 'builtins:dict'}]\nedges: [{from: a, to: END}]\n")
    for given in ("other", "other.yaml"):
        for verb in ("list", "retry", "cancel", "delete"):
            done = failed("runs", verb, "--status", "failed", "--graph", given)
            assert (done.code, "no runs match" in done.out + done.err) == (0, True), (done, verb, given)
    for given in ("orders", "shop:orders"):
        assert listed(failed("runs", "list", "--status", "failed", "--graph", given)) == ["r3", "r2", "r1"]
        dry = failed("runs", "delete", "--graph", given, "--text", "address of o2", "--dry-run")
        assert dry.out.splitlines()[-1] == "1 would be deleted; nothing was changed"
    beside = failed("runs", "delete", "r1", "--graph", "other", "--yes")
    assert (beside.code, "give either" in beside.err) == (2, True)
    empty = failed("runs", "delete", "--all", "--store", "", "--yes")
    assert (empty.code, "--store is empty" in empty.err) == (2, True)
    both = failed("runs", "delete", "--graph", "other", "--of", "orders", "--yes")
    assert (both.code, "name one graph" in both.err) == (2, True)
    assert len(Runs(f"sqlite:///{here}/limpet.db").list("failed")) == 3


def test_one_run_is_retried_with_another_value(failed: Command, here: Path) -> None:
    """H11."""
    (here / "fixed").touch()
    done = failed("runs", "retry", "r1", "--set", "order=o9", "--graph", "shop:orders")
    assert (done.code, done.out) == (0, "handed back\n")
    assert failed("runs", "state", "r1", "--key", "order").out == "o9\n"
    assert failed("runs", "retry", "r1", "--json").code == 2
    assert failed("runs", "retry", "r2", "--json").data == {"run_id": "r2", "status": "queued"}
    refused = failed("runs", "retry", "--status", "failed", "--set", "order=o9")
    assert (refused.code, "--of" in refused.err) == (2, True)
    failed("run", "flows:busy", "--id", "busy")
    refused = failed("runs", "retry", "r3", "busy", "--set", "order=o9", "--graph", "shop:orders")
    assert (refused.code, "these runs are of 'busy', 'orders'" in refused.err) == (2, True)
    assert failed("runs", "show", "r3", "--json").data["status"] == "failed"


def test_each_of_several_runs_has_an_outcome(failed: Command) -> None:
    """H11: and the exit code says whether one failed."""
    done = failed("runs", "cancel", "queued", "r1", "nope")
    assert done.code == 1
    rows = {line.split()[0]: line for line in done.out.splitlines()[1:-1]}
    assert rows["queued"].split()[3] == "cancelled"
    assert "skipped" in rows["r1"]
    assert "it has already ended" in rows["r1"]
    assert "failed" in rows["nope"]
    assert done.out.splitlines()[-1] == "1 cancelled, 1 skipped, 1 failed"
    data = failed("runs", "delete", "r1", "nope", "--yes", "--json").data
    assert (data["done"], data["skipped"], data["failed"], data["planned"]) == (1, 0, 1, 0)
    assert [(run["run_id"], run["result"], run["error"]) for run in data["runs"]] == [
        ("r1", "done", None),
        ("nope", "failed", "run-not-found"),
    ]
    assert listed(failed("runs", "list")) == ["queued", "r3", "r2"]


@pytest.mark.parametrize("verb", ["retry", "cancel", "delete"])
def test_no_command_means_all_runs_by_accident(failed: Command, verb: str) -> None:
    """H11."""
    refused = failed("runs", verb, "--yes")
    assert (refused.code, "which runs?" in refused.err) == (2, True)
    assert failed("runs", verb, "r1", "--status", "failed", "--yes").code == 2
    assert failed("runs", verb, "--all", "--status", "failed", "--yes").code == 2
    assert failed("runs", verb, "--all").code == 2  # it can't ask here
    unset = failed("runs", verb, "--status", "failed", "--error", "", "--yes")
    assert (unset.code, "error must be a non-empty str" in unset.err) == (2, True)
    late = failed("runs", verb, "--since", "2 hours", "--yes")
    assert (late.code, "did you mean '2h'" in late.err) == (2, True)
    assert len(failed("runs", verb, "--all", "--dry-run", "--json").data["runs"]) == 4
    assert len(failed("runs", "list", "--status", "failed", "--json").data) == 3


def test_filters_choose_what_is_deleted(failed: Command) -> None:
    """H11."""
    assert (
        failed("runs", "delete", "--tag", "odd", "--limit", "1", "--yes").out.splitlines()[-1] == "1 deleted"
    )
    assert listed(failed("runs", "list")) == ["queued", "r2", "r1"]
    assert failed("runs", "delete", "--all", "--yes").out.splitlines()[-1] == "3 deleted"
    assert failed("runs", "list").out == ""
