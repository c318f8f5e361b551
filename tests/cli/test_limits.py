"""`limits …`: tables, JSON, exit codes."""

from __future__ import annotations

from pathlib import Path

from limpet import Limits, open_store
from limpet.engine.leases.lease_client import client_for
from limpet.engine.leases.limit_slots import SlotRequest, limits_of
from limpet.graphs.limits import Limit
from limpet.journal.store import NewRun
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


def test_a_limit_can_be_set_before_any_program_declares_it(limpet: Command, here: Path) -> None:
    """H18."""
    assert limpet("limits", "set", "gpu", "--concurrency", "2", "--store", "sqlite:///limpet.db").code == 0
    assert [info.concurrency for info in Limits(f"sqlite:///{here}/limpet.db").list()] == [2]


def test_what_cant_be_a_limit_is_refused(runs: Command) -> None:
    """H18: with the exit codes of all commands."""
    assert runs("limits", "list").err == "no limits\n"
    assert runs("limits", "show", "openai").code == 4
    assert runs("limits", "set", "openai", "--reset").code == 4
    assert runs("limits", "set", "openai").code == 2
    for words in (["--concurrency", "0"], ["--concurrency", "many"], ["--rate", "fast"], ["--queue", "a/b"]):
        assert runs("limits", "set", "openai", *words).code == 2
    runs("limits", "set", "openai", "--concurrency", "1")
    assert "did you mean 'openai'?" in runs("limits", "delete", "openaj").err
