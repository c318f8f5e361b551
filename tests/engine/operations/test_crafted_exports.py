"""Exported runs that were changed behind right checksums: refused when they are imported, or as good as any run."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from random import Random
from subprocess import run
from sys import executable
from typing import Any

import pytest

from limpet import DamagedRecord, DefinitionError, LimpetError, MemoryStore, Runs, StoreError
from limpet.journal.encoding.envelope import _zstd
from limpet.journal.run_filter import RunFilter
from support.crafted_exports import (
    Example,
    ask_everything,
    crafted,
    examples,
    places,
    resealed,
    with_frames,
)

CASES = int(os.environ.get("CRAFTED_EXPORTS", "400"))
SEED = int(os.environ.get("CRAFTED_EXPORTS_SEED", "0"))


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> list[Example]:
    return examples(tmp_path_factory.mktemp("exports"))


# A crafted record of a `once()` may say that its function was awaited: what a sync node then gets is never awaited.
@pytest.mark.filterwarnings("ignore:coroutine .*_as_awaitable:RuntimeWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.timeout(max(120, CASES))
def test_what_an_import_accepts_can_be_read_resumed_and_deleted(
    exported: list[Example], tmp_path: Path
) -> None:
    """H5, P5: no crafted file makes any call raise anything but an error of ours, and none that is imported is
    damaged to `verify`.
    """
    file = tmp_path / "crafted.run"
    for seed in range(SEED, SEED + CASES):
        example = exported[seed % len(exported)]
        file.write_bytes(crafted(example.file, Random(seed)))
        problems = ask_everything(example, file)
        assert not problems, f"CRAFTED_EXPORTS_SEED={seed} CRAFTED_EXPORTS=1 repeats it: {problems}"


def test_what_is_exported_is_accepted(exported: list[Example], tmp_path: Path) -> None:
    """P5: of every shape of run, unchanged."""
    file = tmp_path / "sound.run"
    for example in exported:
        file.write_bytes(example.file)
        assert example.made(MemoryStore()).import_run(file) == "r"
        assert ask_everything(example, file) == []


def _record(number: int, place: int, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(opened: dict[str, Any]) -> None:
        opened["records"][number][place] = value

    return change


def _field(name: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(opened: dict[str, Any]) -> None:
        opened["records"][0][4][name] = value

    return change


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_record(1, 1, "1"), "its step"),
        (_record(1, 2, float("nan")), "its time"),
        (_record(1, 2, 1e20), "its time"),
        (_record(1, 3, -1), "its number of crashes"),
        (_record(1, 6, [1, 2]), "its delta"),
        (_record(1, 6, {5: 1}), "its delta"),
        (_field("attempts", "x"), "its attempts"),
        (_field("timers", {"": "soon"}), "its timers"),
        (_field("questions", [{"id": 1, "prompt": "?", "node": "n"}]), "its questions"),
        (_field("phase", "between"), "its phase"),
        (_field("meta", {"secrets": 5}), "its meta"),
        (_field("section", [{}, []]), "opening is missing"),
        (lambda opened: opened.update(note=[]), "its summary"),
        (lambda opened: opened["note"].update(questions=5), "its summary"),
        (lambda opened: opened.update(status="completed"), "its journal ends where"),
        (lambda opened: opened.update(graph="other"), "another graph"),
        (_record(1, 1, 2**80), "its step"),
        (_record(1, 3, 2**80), "its number of crashes"),
        (_field("error", {"type": None}), "its error"),
        (_field("timers", {"": 10**400}), "its timers"),
    ],
)
def test_a_crafted_file_is_refused_with_what_is_wrong(
    exported: list[Example], tmp_path: Path, change: Callable[[dict[str, Any]], None], reason: str
) -> None:
    """H5: and nothing of it is imported, under its own id or another."""
    file = tmp_path / "crafted.run"
    example = exported[0]
    file.write_bytes(resealed(example.file, change))
    for run_id in (None, "other"):
        store = MemoryStore()
        with pytest.raises(StoreError, match=reason) as refused:
            Runs(store).import_(file, run_id)
        assert isinstance(refused.value, DamagedRecord)
        assert store.list(RunFilter()) == []


def test_a_crafted_workflow_is_refused(exported: list[Example], tmp_path: Path) -> None:
    """H5: one whose tasks are described by something else than words, or have returned what no workflow has, or whose
    layer belongs to no node.
    """

    def number_in_a_task(opened: dict[str, Any]) -> None:
        opened["records"][0][5]["dag"]["first"][5] = 1

    def other_source(opened: dict[str, Any]) -> None:
        for container, key in list(places(opened["records"])):
            if key == "source":
                container[key] = "tasks"

    def other_result(opened: dict[str, Any]) -> None:
        # Which record has the pause of `ask` depends on when the tasks end.
        for record, place in list(places(opened["records"][1:])):
            if isinstance(record[place], dict) and "questions" in record[place]:
                record.append({"status": "done"})  # the change of a state

    tasks = exported[-1]
    file = tmp_path / "crafted.run"
    file.write_bytes(resealed(tasks.file, number_in_a_task))
    with pytest.raises(DamagedRecord, match="isn't described as one"):
        tasks.made(MemoryStore()).import_run(file)
    file.write_bytes(resealed(tasks.file, other_result))
    with pytest.raises(DamagedRecord, match="'status' that can't be added"):
        tasks.made(MemoryStore()).import_run(file)
    file.write_bytes(resealed(tasks.file, other_source))
    graph = tasks.made(MemoryStore())
    graph.import_run(file)
    with pytest.raises(DefinitionError, match="branches that node 'tasks' no longer opens"):
        graph.resume("r")


def test_a_map_that_would_be_written_again_as_branches_is_refused(
    exported: list[Example], tmp_path: Path
) -> None:
    """H5: it could be read, and a rollback then wrote a snapshot that couldn't."""
    mapping = exported[2]

    def nameless(opened: dict[str, Any]) -> None:
        for container, key in list(places(opened["records"])):
            if key == "each":
                container[key] = None

    file = tmp_path / "crafted.run"
    file.write_bytes(resealed(mapping.file, nameless))
    with pytest.raises(DamagedRecord, match="what its opening is a map of"):
        mapping.made(MemoryStore()).import_run(file)


def test_a_parent_of_another_type_is_refused(exported: list[Example], tmp_path: Path) -> None:
    """H5, D12: also an empty one, which JSON couldn't express when runs are flattened."""
    file = tmp_path / "crafted.run"
    file.write_bytes(resealed(exported[0].file, lambda opened: opened.update(parent=b"")))
    with pytest.raises(StoreError, match="a field that is a str holds something else"):
        Runs(MemoryStore()).import_(file)


def test_a_priority_that_no_store_can_hold_is_refused(tmp_path: Path) -> None:
    """P5: by a start as by an import, before the store is asked."""
    from support.graphs import chain, count

    graph = chain(count).compile(store=f"sqlite:///{tmp_path}/runs.db")
    with pytest.raises(LimpetError, match="64 bits"):
        graph.start({}, priority=2**80)


BOMB = """
import resource, sys
from limpet import Runs, UnsupportedFormat

resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30))
try:
    Runs("memory://").import_(sys.argv[1])
except UnsupportedFormat as refused:
    print(refused)
"""


def test_a_small_file_that_unpacks_to_gigabytes_is_refused(exported: list[Example], tmp_path: Path) -> None:
    """H5: within a gigabyte of memory, and all of its records count together."""
    file = tmp_path / "bomb.run"
    zstd = _zstd()
    assert zstd is not None
    compressor = zstd.ZstdCompressor(level=1)
    chunk = bytes(2**26)
    frames = {
        "one": [b"".join(compressor.compress(chunk) for _ in range(48)) + compressor.flush()],
        "several": [compressor.compress(bytes(2**25), compressor.FLUSH_FRAME)] * 4,
    }
    for bodies in frames.values():
        file.write_bytes(with_frames(exported[0].file, bodies))
        assert file.stat().st_size < 200_000
        done = run([executable, "-c", BOMB, str(file)], capture_output=True, text=True)
        assert "unpacks to more than" in done.stdout, done.stderr[-500:]
        assert "LIMPET_MAX_UNPACKED" in done.stdout
