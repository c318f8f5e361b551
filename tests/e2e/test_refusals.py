"""A full or read-only disk gives a clear error and nothing half-written, and the run can be resumed afterwards.

The same for servers is in `test_postgres_errors.py` and `tests/stores/redis/test_redis_failures.py`.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from limpet import ExecutionError, State, StateGraph, StoreUnavailable, open_store
from support.postgres import needed

KINDS = ("sqlite", "file")
FULL = "no room to grow|disk is full"
READ_ONLY = "read-only|can't be written to|can't be opened"


class Disk:
    """A small disk of this test's own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def fill(self) -> None:
        """Leave no room on it."""
        for size in (1 << 16, 1 << 12, 1):
            with open(self.folder / "ballast", "ab", buffering=0) as ballast:
                try:
                    while True:
                        ballast.write(b"x" * size)
                except OSError:
                    continue

    def empty(self) -> None:
        (self.folder / "ballast").unlink()

    def mount(self, mode: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{mode}", str(self.folder)], check=True, capture_output=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = shutil.which("mount")
    command = [mount or "", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)]
    if sys.platform != "linux" or mount is None or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("no right to mount a small disk here")
    yield Disk(folder)
    subprocess.run(["umount", "--lazy", str(folder)], check=True, capture_output=True)


def store_on(disk: Disk, kind: str) -> str:
    return f"sqlite:///{disk.folder}/runs.db" if kind == "sqlite" else f"file://{disk.folder}/runs"


def counting(
    ran: list[str], before: Callable[[str], None] = lambda node: None, **settings: Any
) -> StateGraph:
    """a → b → c, each of which adds 20 KB that can't be compressed; `before` is called in each."""

    def work(state: State, node: str) -> dict[str, Any]:
        before(node)
        ran.append(node)
        return {node: Random(node).randbytes(20_000)}

    graph = StateGraph(name="counting")
    for name in "abc":
        graph.add_node(name, run=work)
    graph.add_edge("a", "b").add_edge("b", "c").set_entry_point("a").set_finish_point("c")
    return graph.compile(**settings)


@pytest.mark.parametrize("kind", KINDS)
def test_a_full_disk_stops_the_run_and_with_room_it_resumes(kind: str, disk: Disk) -> None:
    """G9: what was saved before is whole, and what wasn't runs again."""
    ran: list[str] = []
    full = [True]

    def fill(node: str) -> None:
        if node == "b" and full[0]:
            disk.fill()

    store = open_store(store_on(disk, kind))
    graph = counting(ran, fill, store=store, preserve=True)
    try:
        with pytest.raises(ExecutionError, match=FULL) as caught:
            graph.execute({}, run_id="r")
        assert isinstance(caught.value.__cause__, StoreUnavailable)
        assert str(disk.folder) in str(caught.value)
        verified = graph.verify("r")
        assert (verified.ok, verified.steps) == (True, [0, 1]), str(verified)
        full[0] = False
        disk.empty()
        assert set(graph.resume("r")) == {"a", "b", "c"}
        assert ran == ["a", "b", "b", "c"]
        assert graph.verify("r").ok
    finally:
        store.close()


@pytest.mark.parametrize("kind", KINDS)
def test_no_run_begins_on_a_full_disk(kind: str, disk: Disk) -> None:
    """G9: there is then no such run, and no node of it ran."""
    ran: list[str] = []
    store = open_store(store_on(disk, kind))
    graph = counting(ran, store=store)
    try:
        disk.fill()
        with pytest.raises(StoreUnavailable, match=FULL):
            graph.execute({"large": "ü" * 100_000}, run_id="r")
        disk.empty()
        assert (graph.runs(), ran) == ([], [])
        graph.execute({}, run_id="r")
        assert ran == ["a", "b", "c"]
    finally:
        store.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_store_on_a_read_only_disk_says_so(kind: str, disk: Disk) -> None:
    """G9: when it is opened or when it is written to, and the run that is in it is untouched."""
    ran: list[str] = []
    store = open_store(store_on(disk, kind))
    list(counting(ran, store=store, interrupt_before=["b"]).invoke({}, run_id="r"))
    store.close()
    disk.mount("ro")
    try:
        with pytest.raises(StoreUnavailable, match=READ_ONLY) as caught:
            _resume_there(ran, store_on(disk, kind))
        assert str(disk.folder) in str(caught.value)
    finally:
        disk.mount("rw")
    store = open_store(store_on(disk, kind))
    graph = counting(ran, store=store, preserve=True)
    assert set(graph.resume("r")) == {"a", "b", "c"}
    assert (ran, graph.verify("r").ok) == (["a", "b", "c"], True)
    store.close()


def _resume_there(ran: list[str], url: str) -> None:
    store = open_store(url)
    try:
        counting(ran, store=store).resume("r")
    finally:
        store.close()


@pytest.mark.parametrize("trouble", ["full", "ro"])
def test_a_checkpoint_that_cannot_be_written_yields_no_path(trouble: str, disk: Disk) -> None:
    """F8, G9: the event is an error, nothing half-written is left, and the next try works."""
    ran: list[str] = []
    folder = disk.folder / "checkpoints"
    folder.mkdir()
    graph = counting(ran, interrupt_before=["b"], checkpoint_dir=folder)
    disk.fill() if trouble == "full" else disk.mount("ro")
    try:
        (event,) = graph.invoke({})
        assert event["type"] == "error"
        assert "checkpoint_path" not in event
        assert ("disk is full" if trouble == "full" else "read-only") in event["error"]
        with pytest.raises(StoreUnavailable, match=r"disk is full|read-only"):
            graph.save_checkpoint(folder / "by-hand.pkl", {"x": "y" * 100_000}, "b")
        assert list(folder.iterdir()) == []
    finally:
        disk.empty() if trouble == "full" else disk.mount("rw")
    (stop,) = graph.invoke({})
    (final,) = graph.invoke(None, checkpoint=stop["checkpoint_path"])
    assert (final["type"], ran) == ("final", ["a", "a", "b", "c"])


def test_an_embedded_server_that_cannot_have_its_directory_says_so(disk: Disk) -> None:
    """P5: and leaves nothing there."""
    needed("limpet.stores.postgres.embedded")
    disk.mount("ro")
    try:
        with pytest.raises(StoreUnavailable, match="pg") as caught:
            open_store(f"postgresql+embedded:///{disk.folder}/pg")
        assert "read-only" in str(caught.value).lower()
    finally:
        disk.mount("rw")
    assert list(disk.folder.iterdir()) == []
