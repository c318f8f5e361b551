"""Invariant 1: no power loss takes what a store or a file has acknowledged, whatever was killed before it.

`POWER_LOSS_STATES=50000 pytest tests/stores/test_power_loss.py` hunts for longer: as many disks for each case, those
of other seeds (`POWER_LOSS_SEED`).
"""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from limpet import MemoryStore, RunPaused, StateGraph, pause
from limpet.errors import RunNotFound
from limpet.journal.store import COMPLETED, PAUSED, Commit, NewRun, Store
from limpet.stores.files import inbox_file, run_files
from limpet.stores.files.store import FileStore
from limpet.stores.sqlite.store import SQLiteStore
from limpet.stores.user_stores.checkpoint_files import CheckpointFiles, read_checkpoint, write_checkpoint
from limpet.testing import hunt_power_losses
from limpet.testing.power_loss import sqlite_recorder
from limpet.testing.power_loss.run_ledger import check_runs, noting
from limpet.yaml_files.actions.files import write_file

STATES = int(os.environ.get("POWER_LOSS_STATES", "0"))
SEED = int(os.environ.get("POWER_LOSS_SEED", "0"))
LOCKS = ("runs/locks/",)
"""What is in a lock file means nothing to a process that has just started."""

Acknowledge = Callable[[Any], None]

pytestmark = pytest.mark.timeout(0 if STATES else 300)


def files(directory: Path, hours: int = 0) -> Store:
    return FileStore(directory / "runs", clock=clock_in(hours))


def sqlite(directory: Path, hours: int = 0) -> Store:
    return SQLiteStore(directory / "runs.db", clock=clock_in(hours))


def clock_in(hours: int) -> Callable[[], float]:
    """The time this many hours from now, when the leases of a process that was killed have expired."""
    if hours == 0:
        return time.time
    return lambda: time.time() + hours * 3600


stores = pytest.mark.parametrize(
    "opened",
    [
        files,
        pytest.param(
            sqlite,
            marks=pytest.mark.skipif(
                sqlite_recorder.why_unavailable() is not None, reason=str(sqlite_recorder.why_unavailable())
            ),
        ),
    ],
)


@pytest.fixture(autouse=True)
def early_rewrites(monkeypatch: pytest.MonkeyPatch) -> None:
    """Journals are rewritten when they are small, so that it happens here."""
    monkeypatch.setattr(run_files, "MIN_REWRITE_SIZE", 3000)
    monkeypatch.setattr(inbox_file, "MIN_REWRITE_SIZE", 2000)


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Each frame that is cut off is logged."""
    caplog.set_level("ERROR", "limpet.stores")


@stores
def test_a_store_keeps_what_it_has_acknowledged(opened: Callable[..., Store]) -> None:
    """Invariant 1, H5: every call that changes a run, of one process and of one that takes over from it."""

    def work(directory: Path, acknowledge: Acknowledge) -> None:
        with closing(noting(opened(directory), acknowledge)) as store:
            store.create(NewRun("r", "g", [b"1" * 100], holder="a"))
            landed(store, Commit("r", 1, 1, [b"2" * 30]))
            store.create(NewRun("s", "g", [b"1" * 100], holder="a"))
            landed(store, Commit("r", 1, 2, [b"3" * 3000]), Commit("s", 1, 1, [b"2" * 20]))
            landed(store, Commit("r", 1, 3, [b"4" * 700, b"5" * 500], snapshot=5, note=b"note"))
            store.prune("r", 5)
            landed(store, Commit("s", 1, 2, [b"3"], status=COMPLETED, purge=True))
            landed(store, Commit("r", 1, 5, [b"6" * 30_000]))
            store.create(NewRun("t", "g", [b"1" * 900], holder="a"))
            landed(store, Commit("s", 1, 3, [b"4" * 500]))
            store.delete("s")
            landed(store, Commit("r", 1, 6, [b"7" * 70], status=PAUSED), Commit("t", 1, 1, [b"2" * 2000]))

    def takeover(directory: Path, acknowledge: Acknowledge) -> None:
        with closing(noting(opened(directory), acknowledge)) as store:
            for run_id in ("r", "s"):
                try:
                    head = store.head(run_id)
                except RunNotFound:
                    store.create(NewRun(run_id, "g", [b"another"], holder="b"))
                    landed(store, Commit(run_id, 1, 1, [b"!" * 900]))
                else:
                    lease = store.claim(run_id, "b", 60.0, instead_of=head.fence)
                    landed(store, Commit(run_id, lease.fence, head.sequence, [b"!" * 900]))
            store.expire(1e9)  # removes what the killed process left
            with suppress(RunNotFound):  # as one does that shares a lease: without a claim
                head = store.head("t")
                landed(store, Commit("t", head.fence, head.sequence, [b"?" * 1200]))

    def check(directory: Path, acknowledged: list[Any]) -> None:
        with closing(opened(directory)) as store:
            check_runs(store, acknowledged)

    hunt(work, check, takeover, {files: 1000, sqlite: 1200}[opened])


@stores
def test_a_post_is_kept_until_a_commit_takes_it_in(opened: Callable[..., Store]) -> None:
    """Invariant 1, H10: none that was acknowledged is lost, doubled, or taken in without its commit."""

    def work(directory: Path, acknowledge: Acknowledge) -> None:
        with closing(noting(opened(directory), acknowledge)) as store:
            store.create(NewRun("r", "g", [b"1" * 100], holder="a"))
            store.post("r", "first", b"1" * 900)
            store.post("r", "second", b"2" * 2500)
            landed(store, Commit("r", 1, 1, [b"2" * 30], takes=1, ignores_posts=True))
            store.add_output("r", 1, [b"item" * 200], 2)
            landed(store, Commit("r", 1, 2, [b"3" * 30], takes=2))
            store.post("r", "third", b"3" * 50)  # rewrites the inbox
            store.add_output("r", 1, [b"another" * 10, b"more"], 2)
            landed(store, Commit("r", 1, 3, [b"4" * 700], snapshot=4, ignores_posts=True))
            store.prune("r", 4)
            store.post("r", "fourth", b"4" * 700)
            landed(store, Commit("r", 1, 4, [b"5"], status=PAUSED, takes=4))

    def takeover(directory: Path, acknowledge: Acknowledge) -> None:
        with closing(noting(opened(directory), acknowledge)) as store, suppress(RunNotFound):
            for key in ("first", "second", "fifth"):
                store.post("r", key, b"again" * 100)
            head = store.head("r")
            lease = store.claim("r", "b", 60.0, instead_of=head.fence)
            store.add_output("r", lease.fence, [b"after all"], 2)
            landed(store, Commit("r", lease.fence, head.sequence, [b"!" * 900], takes=head.posted))
            store.post("r", "sixth", b"6" * 300)

    def check(directory: Path, acknowledged: list[Any]) -> None:
        with closing(opened(directory)) as store:
            check_runs(store, acknowledged)

    hunt(work, check, takeover, {files: 400, sqlite: 200}[opened])


@stores
def test_a_document_is_the_old_one_or_the_new_one(opened: Callable[..., Store]) -> None:
    """Invariant 1, H17: the new one once it was written; and no version is given twice."""

    def work(directory: Path, acknowledge: Acknowledge) -> None:
        with closing(opened(directory)) as store:
            for number in range(3):
                for name in ("a", "b"):
                    found = store.get_document(name)
                    body = b"%d" % number * 900
                    acknowledge(("begun", name, body, 0))
                    version = store.put_document(name, body, 0 if found is None else found.version)
                    acknowledge(("done", name, body, version))
            found = store.get_document("b")
            assert found is not None
            acknowledge(("begun", "b", None, 0))
            assert store.delete_document("b", found.version)
            acknowledge(("done", "b", None, 0))

    def check(directory: Path, acknowledged: list[Any]) -> None:
        allowed: dict[str, set[bytes | None]] = {"a": {None}, "b": {None}}
        newest = 0
        for what, name, body, version in acknowledged:
            if what == "done":
                allowed[name] = set()
            allowed[name].add(body)
            newest = max(newest, version)
        with closing(opened(directory)) as store:
            listed = {document.name: document for document in store.list_documents()}
            for name, bodies in allowed.items():
                found = store.get_document(name)
                assert listed.get(name) == found
                assert (None if found is None else found.body) in bodies
            version = store.put_document("c", b"", 0)
            assert version is not None
            assert version > newest

    hunt(work, check, work, {files: 400, sqlite: 200}[opened])


@stores
def test_a_run_can_be_verified_and_resumed(opened: Callable[..., Store]) -> None:
    """Invariants 1 and 2: with steps of 30 KB, and a question; it ends as a run does that nothing happened to."""

    def work(directory: Path, acknowledge: Acknowledge) -> None:
        with closing(noting(opened(directory), acknowledge)) as store:
            with pytest.raises(RunPaused):
                survey(store).execute({"n": 0}, run_id="r")
            survey(store).resume("r", "yes")

    def takeover(directory: Path, acknowledge: Acknowledge) -> None:
        with closing(noting(opened(directory, hours=1), acknowledge)) as store:
            try:
                finish(store)
            except RunNotFound:
                with pytest.raises(RunPaused):
                    survey(store).execute({"n": 0}, run_id="r")

    def check(directory: Path, acknowledged: list[Any]) -> None:
        with closing(opened(directory, hours=2)) as store:
            graph = survey(store)
            check_runs(store, acknowledged, advance=False)
            if not graph.runs():
                return
            verified = graph.verify("r")
            assert verified.ok, str(verified)
            assert verified.restorable
            assert len(graph.history("r")) >= 1
            assert graph.state_at("r", 0) == {"n": 0}
            assert finish(store) == expected

    with closing(MemoryStore()) as memory:
        with pytest.raises(RunPaused):
            survey(memory).execute({"n": 0}, run_id="r")
        expected = survey(memory).resume("r", "yes")
    hunt(work, check, takeover, {files: 400, sqlite: 500}[opened])


def test_a_checkpoint_file_survives_once_its_path_is_known(tmp_path: Path) -> None:
    """F10: its content, its name, and the directories that were made for it."""

    def work(directory: Path, acknowledge: Acknowledge) -> None:
        checkpoints = CheckpointFiles(directory / "of" / "june")
        for number in range(3):
            path = checkpoints.save({"n": number, "text": "kelp" * 400}, f"node{number}", {})
            acknowledge((os.path.relpath(path, directory), number))

    def check(directory: Path, acknowledged: list[Any]) -> None:
        for path, number in acknowledged:
            assert read_checkpoint(directory / path)["state"] == {"n": number, "text": "kelp" * 400}

    hunt(work, check, work, 250)


def test_a_file_that_is_replaced_is_the_old_one_or_the_new_one() -> None:
    """F10, G9: checkpoints by path, exported runs and `file.write`: one of them, and the new one once it is done."""
    memory = MemoryStore()
    graph = StateGraph(name="g").add_node("a").set_entry_point("a").set_finish_point("a")
    graph.compile(store=memory, preserve=True)
    for run_id in ("0", "1"):
        graph.execute({"n": run_id * 2000}, run_id=run_id)

    def work(directory: Path, acknowledge: Acknowledge) -> None:
        for number in range(2):
            acknowledge(("begun", number))
            write_checkpoint(directory / "new" / "a.pkl", {"n": [number] * 500}, "a", None)
            graph.export_run(str(number), directory / "a.run")
            write_file(None, str(directory / "also" / "a.txt"), f"{number}" * 1500)
            acknowledge(("done", number))

    def check(directory: Path, acknowledged: list[Any]) -> None:
        allowed = set[int]()
        is_done = False
        for what, number in acknowledged:
            if what == "done":
                allowed = set()
                is_done = True
            allowed.add(number)
        found: dict[str, Any] = {}
        if (directory / "new" / "a.pkl").exists():
            found["checkpoint"] = pickle.loads((directory / "new" / "a.pkl").read_bytes())["state"]["n"][0]
        if (directory / "a.run").exists():
            with closing(MemoryStore()) as other:
                graph.compile(store=other, preserve=True)
                found["run"] = int(graph.import_run(directory / "a.run"))
                graph.compile(store=memory, preserve=True)
        if (directory / "also" / "a.txt").exists():
            text = (directory / "also" / "a.txt").read_text()
            assert text == text[:1] * 1500
            found["text"] = int(text[0])
        assert not is_done or len(found) == 3, f"only {sorted(found)} survived"
        assert set(found.values()) <= allowed, f"{found} where {allowed} was allowed"

    hunt(work, check, work, 250)


def hunt(work: Any, check: Any, takeover: Any, states: int) -> None:
    wanted = STATES or states
    report = hunt_power_losses(work, check, takeover, states=wanted, seed=SEED, ignore=LOCKS)
    assert report.states >= min(wanted, states)
    assert report.kills > 20
    if STATES:
        print(report)


def landed(store: Store, *commits: Commit) -> None:
    assert store.append(commits) == [None] * len(commits)


def survey(store: Store) -> StateGraph:
    graph = StateGraph(name="survey")
    graph.add_node("dive", run=lambda state: {"n": state["n"] + 1, "log": "kelp" * 8000})
    graph.add_node("count", run=lambda state: {"n": state["n"] + 1, "more": list(range(9000))})
    graph.add_node("ask", run=lambda state: {"answer": pause("Enough?"), "n": state["n"] + 1})
    graph.add_edge("dive", "count").add_edge("count", "ask")
    graph.set_entry_point("dive").set_finish_point("ask")
    return graph.compile(store=store, preserve=True)


def finish(store: Store) -> Any:
    """The state of the run once it is complete, resumed and answered as far as it needs to be."""
    graph = survey(store)
    status = store.head("r").status
    if status == COMPLETED:
        return graph.state_at("r")
    if status != PAUSED:
        try:
            return graph.resume("r")
        except RunPaused:
            pass  # it asks; otherwise it was answered before
    return graph.resume("r", "yes")
