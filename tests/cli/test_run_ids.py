"""Ids of runs: any beginning that no other id has is enough, where that can't be the id of another run."""

from __future__ import annotations

import io
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from limpet.cli.run_ids import short_ids, typable
from support.command_line import Command, Done

GENERATED = "4f7c2a90d1e34b58a6c1f0e2d3b4a596"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def at_terminal(runs: Command, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Done]:
    """Call the command line at a terminal, where Enter is typed."""

    def call(*words: str) -> Done:
        monkeypatch.setattr(sys, "stdin", Terminal("\n" * 9))
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
        return runs(*words, "--no-color")

    return call


def test_short_ids_are_beginnings_that_no_other_has() -> None:
    ids = [GENERATED, f"{GENERATED[:20]}0", "order-2026-1", "order-2026-12", "kelp", ""]
    short = short_ids(ids)
    assert short == {
        GENERATED: GENERATED[:21],
        f"{GENERATED[:20]}0": f"{GENERATED[:20]}0",
        "order-2026-1": "order-2026-1",
        "order-2026-12": "order-2026-12",
        "kelp": "kelp",
        "": "",
    }
    assert short_ids(["order-2026-17"]) == {"order-2026-17": "order-2026-17"}, (
        "order-2026-1 may be another run"
    )
    assert short_ids(["order-2026-" + "7" * 40]) == {"order-2026-" + "7" * 40: "order-20"}
    assert short_ids([GENERATED]) == {GENERATED: GENERATED[:8]}
    assert len(set(short_ids([f"{number:032x}" for number in range(300)]).values())) == 300


@pytest.mark.parametrize(
    "words",
    [
        ["runs", "show", "ID"],
        ["runs", "history", "ID"],
        ["runs", "state", "ID"],
        ["runs", "diff", "ID", "0", "1"],
        ["runs", "watch", "ID"],
        ["runs", "export", "ID", "file.run"],
        ["runs", "fork", "ID", "--graph", "flows:graph"],
        ["graph", "draw", "flows:graph", "--run", "ID"],
        ["store", "verify", "ID"],
        ["run", "flows:graph", "--checkpoint", "ID@1"],
    ],
)
def test_a_beginning_is_enough_for_a_command_that_looks(runs: Command, words: list[str]) -> None:
    """H6: of any id."""
    done = runs(*[word.replace("ID", "wai") for word in words])
    assert done.code in (0, 3)
    done = runs(*[word.replace("ID", "waist") for word in words])
    assert (done.code, "did you mean 'waits'?" in done.err) == (4, True)


CHANGES = [
    ["resume", "ID", "--graph", "flows:graph"],
    ["answer", "ID", "yes", "--graph", "flows:graph"],
    ["answer", "ID", "yes", "--detach"],
    ["runs", "rollback", "ID", "0", "--graph", "flows:graph"],
    ["runs", "cancel", "ID"],
    ["runs", "delete", "ID", "--yes"],
]


@pytest.mark.parametrize("words", CHANGES)
def test_a_beginning_is_enough_for_a_person_who_changes_a_run(
    at_terminal: Callable[..., Done], words: list[str]
) -> None:
    """H6: the whole id is said."""
    done = at_terminal(*[word.replace("ID", "wai") for word in words])
    assert done.code in (0, 3)
    assert "run waits" in done.err


@pytest.mark.parametrize("words", CHANGES)
def test_a_script_changes_only_the_run_that_it_names(runs: Command, words: list[str]) -> None:
    """H6: it may name one that is gone, and whose id another id begins with."""
    before = runs("runs", "list", "--json").data
    done = runs(*[word.replace("ID", "wai") for word in words])
    assert (done.code, "'waits' begins so; outside of a terminal, give the whole id" in done.err) == (4, True)
    assert runs("runs", "list", "--json").data == before


@pytest.mark.parametrize("words", CHANGES)
def test_a_script_may_shorten_an_id_that_was_generated(runs: Command, words: list[str]) -> None:
    """None of those is the beginning of another. A few characters may be the id of a run that is gone."""
    runs("run", "flows:graph", "-i", "topic=kelp", "--id", GENERATED)
    gone = runs(*[word.replace("ID", GENERATED[:4]) for word in words])
    assert (gone.code, "give the whole id" in gone.err) == (4, True)
    done = runs(*[word.replace("ID", GENERATED[:8]) for word in words])
    assert done.code in (0, 3)


def test_a_beginning_of_several_ids_is_refused_with_all_of_them(runs: Command) -> None:
    """H6: unless it is the whole id of one."""
    for name in ("kelp", "kelp-1", *(f"wave-{number}" for number in range(9))):
        runs("run", "flows:plain", "--id", name)
    done = runs("runs", "show", "kel")
    assert (done.code, "'kelp-1', 'kelp'" in done.err) == (2, True)
    assert runs("runs", "show", "kelp", "--json").data["run_id"] == "kelp"
    assert "and 4 more" in runs("runs", "show", "wave").err
    assert runs("runs", "show", "").code == 4


def test_a_short_id_in_a_list_can_be_typed(
    limpet: Command, monkeypatch: pytest.MonkeyPatch, at_terminal: Callable[..., Done]
) -> None:
    """H6: whatever the width of the terminal."""
    for _ in range(3):
        limpet("run", "flows:plain")
    for width in ("60", "80", "120"):
        monkeypatch.setenv("COLUMNS", width)
        for line in at_terminal("runs", "list").out.splitlines()[1:]:
            assert limpet("runs", "show", line.split()[0]).code == 0


def test_a_damaged_run_is_named_by_its_id(runs: Command, here: Path) -> None:
    """H5: it can't be read, but it is there."""
    runs("run", "flows:plain", "--id", "broken", "--store", "file://./runs")
    shutil.copytree(here / "runs", here / "copy")  # the store of the first directory is open, and remembers
    store = ["--store", "file://./copy"]
    (head,) = (here / "copy").rglob("broken*.head")
    head.write_bytes(b"nonsense")
    assert runs("runs", "show", "broken", "--json", *store).data["status"] == "damaged"
    assert runs("runs", "show", "bro", "--json", *store).data["status"] == "damaged"


def test_ids_that_a_shell_would_change_arent_offered() -> None:
    assert typable(["kelp-1", "a b", "$(reboot)", "`x`", "-rf", "", "x;y", "海", "a:b", "a/b.c"]) == [
        "kelp-1",
        "a/b.c",
    ]
