"""Workflows and several processes: asked here and answered there, edited in between, and with a store that fails."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from limpet import Workflow
from limpet.stores.sqlite.store import SQLiteStore

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs the signals of POSIX")

EXECUTE = {"sync": "execute", "async": "aexecute"}
RESUME = {"sync": "resume", "async": "aresume"}
either_driver = pytest.mark.parametrize("driver", ["sync", "async"])


class Desk:
    """Where orders are given: each is carried out by a new process, which ends with its answer."""

    def __init__(self, server: Any, folder: Path, workflow: str, settings: dict[str, Any]) -> None:
        self.server, self.folder, self.workflow, self.settings = server, folder, workflow, settings

    def ask(self, do: str, *args: Any, **kwargs: Any) -> Any:
        self.tell(do, *args, **kwargs)
        return self.hear()

    def tell(self, do: str, *args: Any, refused: tuple[int, int] = (0, 0), **kwargs: Any) -> None:
        order = {"workflow": self.workflow, "settings": self.settings, "refused": refused}
        self.server.tell(folder=str(self.folder), do=do, args=args, kwargs=kwargs, **order)
        self.server.owes += 1

    def hear(self) -> Any:
        """What was returned or raised, or the signal that ended the process."""
        answer = self.server.hear()
        self.server.owes -= 1
        if answer["signal"]:
            return answer
        assert "returned" in answer, answer["raised"]
        return answer["returned"]


@pytest.fixture(scope="module")
def servers(launch_for_module: Callable[..., Any]) -> Callable[[int], Any]:
    """A server for each of those who give orders at the same time."""
    made: dict[int, Any] = {}

    def find(number: int) -> Any:
        if number not in made or made[number].owes:  # a test that failed didn't wait for its answer
            made[number] = launch_for_module("../crash_workflows")
            made[number].owes = 0
        return made[number]

    return find


@pytest.fixture
def desk(servers: Callable[[int], Any], tmp_path: Path) -> Callable[..., Desk]:
    mine: dict[int, Any] = {}

    def open_desk(workflow: str, number: int = 0, folder: Path = tmp_path, **settings: Any) -> Desk:
        if number not in mine:
            mine[number] = servers(number)
        return Desk(mine[number], folder, workflow, settings)

    return open_desk


def counted(effects: list[list[str]]) -> dict[str, int]:
    """How often each task ran."""
    return dict(Counter(name for name, *_ in effects))


def prompts(questions: list[dict[str, Any]]) -> dict[str, str]:
    """The ids of questions, by what they ask."""
    return {question["prompt"]: question["id"] for question in questions}


def kill(pid: str) -> None:
    os.kill(int(pid), signal.SIGKILL)


PRICE, COLOUR = "Which price?", "Which colour?"
ANSWERS = {PRICE: 7, COLOUR: "red"}
ONCE = {"opening": 1, "price": 1, "colour": 1, "slow": 1}


def asked(desk: Desk, driver: str = "sync") -> dict[str, str]:
    answer = desk.ask(EXECUTE[driver], run_id="r")
    assert answer["raised"] == "RunPaused", answer
    return prompts(answer["questions"])


def answers_in(state: dict[str, Any]) -> list[tuple[str, str, Any]]:
    found = [each for each in state["decisions"] if each["kind"] == "answer"]
    return [(each["by"], each["prompt"], each["answer"]) for each in found]


@either_driver
@pytest.mark.parametrize("order", [(PRICE, COLOUR), (COLOUR, PRICE)], ids=["in order", "the other way round"])
@pytest.mark.parametrize("by", ["run", "checkpoint"])
def test_two_prompts_of_a_layer_are_answered_by_two_other_processes(
    desk: Callable[..., Desk], effects: Any, driver: str, order: tuple[str, str], by: str
) -> None:
    """P1, P2, P3, D11: a third one reads them; whichever answers first, the decisions are in the tasks' order."""
    office = desk("asking")
    ids = asked(office, driver)
    assert counted(effects()) == ONCE
    (info,) = office.ask("runs", "paused")["returned"]
    assert prompts(info["questions"]) == ids
    assert [question["node"].split("/")[-1] for question in info["questions"]] == ["price", "colour"]
    checkpoint = office.ask("checkpoint", "r")["returned"]
    told = [(each["task"], each["prompt"], each["answered"]) for each in checkpoint["pauses"]]
    assert told == [("price", PRICE, False), ("colour", COLOUR, False)]
    assert (checkpoint["status"], checkpoint["completed_layers"]) == ("paused", 1)
    assert checkpoint["layers"] == [["opening"], ["price", "colour", "slow"], ["join"]]
    assert checkpoint["state"]["tasks"].keys() == {"opening", "slow"}

    named = "r" if by == "run" else checkpoint["checkpoint_id"]
    first, second = order
    answer = office.ask(RESUME[driver], named, answers={ids[first]: ANSWERS[first]})
    assert answer["raised"] == "RunPaused"
    assert prompts(answer["questions"]) == {second: ids[second]}
    assert "join" not in counted(effects())
    state = office.ask(RESUME[driver], named, response=ANSWERS[second])["returned"]
    assert state["tasks"]["join"]["result"] == [[7, 1], "red", "slow"]
    assert answers_in(state) == [("price", PRICE, 7), ("colour", COLOUR, "red")]
    assert counted(effects()) == {**ONCE, "price": 2, "colour": 2, "join": 1}
    pids = {pid for _, pid in effects()}
    assert len(pids) == 3


@either_driver
def test_two_answers_at_the_same_moment_both_count(
    desk: Callable[..., Desk], effects: Any, tmp_path: Path, driver: str
) -> None:
    """P3, P8, D11: two processes answer one question each; a later one waits for the one before."""
    ids = asked(desk("asking"), driver)
    desks = {PRICE: desk("asking", 0), COLOUR: desk("asking", 1)}
    for prompt, each in desks.items():
        given = {ids[prompt]: ANSWERS[prompt]}
        each.tell(RESUME[driver], "r", answers=given, wait=60, at=str(tmp_path / "barrier"))
    (tmp_path / "barrier").touch()
    heard = [each.hear() for each in desks.values()]
    (state,) = [answer["returned"] for answer in heard if "returned" in answer]
    assert [answer["raised"] for answer in heard if "raised" in answer] == ["RunPaused"]
    assert state["tasks"]["join"]["result"] == [[7, 1], "red", "slow"]
    assert answers_in(state) == [("price", PRICE, 7), ("colour", COLOUR, "red")]
    assert counted(effects()) == {**ONCE, "price": 2, "colour": 2, "join": 1}


@either_driver
def test_of_two_answers_to_one_prompt_at_the_same_moment_one_counts(
    desk: Callable[..., Desk], effects: Any, tmp_path: Path, driver: str
) -> None:
    """P3, P8: the other one hears that it was too late, and the other question is still open."""
    ids = asked(desk("asking"), driver)
    desks = {7: desk("asking", 0), 8: desk("asking", 1)}
    for price, each in desks.items():
        each.tell(RESUME[driver], "r", answers={ids[PRICE]: price}, wait=60, at=str(tmp_path / "barrier"))
    (tmp_path / "barrier").touch()
    heard = {price: each.hear() for price, each in desks.items()}
    assert sorted(answer["raised"] for answer in heard.values()) == ["AlreadyAnswered", "RunPaused"], heard
    (won,) = [price for price, answer in heard.items() if answer["raised"] == "RunPaused"]
    state = desk("asking").ask("resume", "r", "blue")["returned"]
    assert state["tasks"]["price"]["result"] == [won, 1]
    assert counted(effects()) == {**ONCE, "price": 2, "colour": 2, "join": 1}


@either_driver
def test_an_approval_that_was_open_at_a_crash_is_still_open_after_the_resume(
    desk: Callable[..., Desk], effects: Any, until: Any, tmp_path: Path, driver: str
) -> None:
    """D11, D4, P1, H3: its task isn't called again to ask; the sibling that was killed is, and nothing after them."""
    (tmp_path / "hold").touch()
    doomed, office = desk("asking", 0), desk("asking", 1)
    doomed.tell(EXECUTE[driver], run_id="r")
    until(lambda: "slow" in counted(effects()))
    open_now = until(lambda: len(found := office.ask("checkpoint", "r")["returned"]["pauses"]) == 2 and found)
    kill(dict(effects())["slow"])
    assert doomed.hear() == {"signal": signal.SIGKILL}
    plan = office.ask("plan_resume", "r")["returned"]
    assert prompts(plan["questions"]) == {each["prompt"]: each["question_id"] for each in open_now}
    (tmp_path / "gate").touch()
    answer = office.ask(RESUME[driver], "r")
    assert answer["raised"] == "RunPaused"
    ids = prompts(answer["questions"])
    assert ids == {each["prompt"]: each["question_id"] for each in open_now}
    assert counted(effects()) == {**ONCE, "slow": 2}
    assert [info["status"] for info in office.ask("runs")["returned"]] == ["paused"]
    state = office.ask(RESUME[driver], "r", answers={ids[each]: ANSWERS[each] for each in ids})["returned"]
    assert state["tasks"]["join"]["result"] == [[7, 1], "red", "slow"]
    assert counted(effects()) == {"opening": 1, "price": 2, "colour": 2, "slow": 2, "join": 1}


@either_driver
def test_an_answer_survives_a_kill_before_its_task_completes(
    desk: Callable[..., Desk], effects: Any, tmp_path: Path, driver: str
) -> None:
    """P1, P3, D11: the question isn't asked again, and the other one stays open."""
    office = desk("asking")
    ids = asked(office, driver)
    (tmp_path / "die-after-answer").touch()
    assert office.ask(RESUME[driver], "r", answers={ids[PRICE]: 7}) == {"signal": signal.SIGKILL}
    answer = office.ask(RESUME[driver], "r")
    assert answer["raised"] == "RunPaused"
    assert prompts(answer["questions"]) == {COLOUR: ids[COLOUR]}
    state = office.ask(RESUME[driver], "r", "blue")["returned"]
    assert answers_in(state) == [("price", PRICE, 7), ("colour", COLOUR, "blue")]
    assert counted(effects()) == {**ONCE, "price": 3, "colour": 2, "join": 1}


@either_driver
@pytest.mark.parametrize("answer", ["yes", "no"])
def test_a_handler_that_asks_after_a_layer_is_answered_elsewhere(
    desk: Callable[..., Desk], effects: Any, tmp_path: Path, driver: str, answer: str
) -> None:
    """P1, D11: the layer's tasks are kept meanwhile; a kill after the answer doesn't ask again."""
    office = desk("approved")
    ids = asked(office, driver)
    (info,) = office.ask("runs", "paused")["returned"]
    assert prompts(info["questions"]) == ids
    assert office.ask(RESUME[driver], "r")["raised"] == "RunPaused"
    assert counted(effects()) == {"draft": 1, "handler": 1}
    if answer == "yes":
        (tmp_path / "die-after-answer").touch()
        assert office.ask(RESUME[driver], "r", answer) == {"signal": signal.SIGKILL}
        state = office.ask(RESUME[driver], "r")["returned"]
    else:
        state = office.ask(RESUME[driver], "r", answer)["returned"]
    status = "completed" if answer == "yes" else "skipped"
    assert {name: each["status"] for name, each in state["tasks"].items()} == {
        "draft": "completed",
        "send": status,
    }
    assert answers_in(state) == [("after_layer", "Send it?", answer)]
    assert counted(effects())["draft"] == 1
    assert counted(effects()).get("send", 0) == (answer == "yes")


def journal(folder: Path) -> list[Any]:
    """All that the store has, but for leases."""
    with closing(sqlite3.connect(folder / "runs.db")) as db:
        return db.execute("SELECT * FROM records").fetchall()


@pytest.fixture
def killed_in_c(desk: Callable[..., Desk], effects: Any, until: Any, tmp_path: Path) -> Callable[[str], Desk]:
    """A run of the first edition, killed while `c` runs and `d`, in parallel, is done; the second is in place now."""

    def run(driver: str) -> Desk:
        (tmp_path / "hold").touch()
        doomed, office = desk("edited", 0), desk("edited", 1)
        doomed.tell(EXECUTE[driver], run_id="r")
        until(lambda: "c" in counted(effects()))
        until(lambda: "d" in office.ask("plan_resume", "r")["returned"]["kept"])
        kill(dict(effects())["c"])
        assert doomed.hear() == {"signal": signal.SIGKILL}
        (tmp_path / "gate").touch()
        (tmp_path / "second-edition").touch()
        return office

    return run


BEFORE = {"a": 1, "b": 1, "c": 1, "d": 1}


@either_driver
def test_an_edited_workflow_is_refused_with_an_account_and_nothing_changes(
    killed_in_c: Callable[[str], Desk], effects: Any, tmp_path: Path, driver: str
) -> None:
    """D7: the error says what is new, changed and gone; put back as it was, the run resumes."""
    office = killed_in_c(driver)
    stored = journal(tmp_path)
    for named in ("r", "r@1"):
        answer = office.ask(RESUME[driver], named)
        assert answer["raised"] == "WorkflowChanged", answer
        assert all(f"'{name}'" in answer["text"] or f" {name}" in answer["text"] for name in "def")
    assert journal(tmp_path) == stored
    assert counted(effects()) == BEFORE
    (tmp_path / "second-edition").unlink()
    state = office.ask(RESUME[driver], "r")["returned"]
    assert list(state["tasks"]) == ["a", "b", "c", "d", "e"]
    assert counted(effects()) == {**BEFORE, "c": 2, "e": 1}


@either_driver
def test_an_edited_workflow_keeps_what_it_can_where_that_is_wanted(
    killed_in_c: Callable[[str], Desk], desk: Callable[..., Desk], effects: Any, tmp_path: Path, driver: str
) -> None:
    """D7: finished tasks are kept by id, new ones run, vanished ones are dropped with a warning that is logged."""
    office = killed_in_c(driver)
    plan = office.ask("plan_resume", "r")["returned"]
    assert (plan["kept"], plan["layers"]) == (["a", "b"], [["c", "f"], ["e"]])
    assert (plan["new"], list(plan["changed"]), plan["gone"], plan["dropped"]) == (["f"], ["e"], ["d"], ["d"])
    assert counted(effects()) == BEFORE
    heard = desk("edited", on_mismatch="warn").ask(RESUME[driver], "r")
    state = heard["returned"]
    assert list(state["tasks"]) == ["a", "b", "c", "f", "e"]
    assert state["tasks"]["e"]["result"] == ["e", ["c", ["a"]], ["f", ["b"]]]
    assert any("d" in line and "changed" in line for line in heard["warned"])
    assert counted(effects()) == {**BEFORE, "c": 2, "f": 1, "e": 1}


@either_driver
def test_what_a_warned_resume_made_of_a_run_is_what_later_processes_find(
    killed_in_c: Callable[[str], Desk],
    desk: Callable[..., Desk],
    effects: Any,
    until: Any,
    tmp_path: Path,
    driver: str,
) -> None:
    """D7, D4, H3: killed again after the change was taken in, it fits the new code, and not the old any more."""
    office = killed_in_c(driver)
    (tmp_path / "gate").unlink()
    desk("edited", 0, on_mismatch="warn").tell(RESUME[driver], "r")
    until(lambda: counted(effects())["c"] == 2)
    kill([pid for name, pid in effects() if name == "c"][-1])
    assert desk("edited", 0).hear() == {"signal": signal.SIGKILL}
    (tmp_path / "gate").touch()
    (tmp_path / "second-edition").unlink()
    assert office.ask("resume", "r")["raised"] == "WorkflowChanged"
    (tmp_path / "second-edition").touch()
    plan = office.ask("plan_resume", "r")["returned"]
    assert (plan["new"], plan["changed"], plan["gone"]) == ([], {}, [])
    state = office.ask(RESUME[driver], "r")["returned"]
    assert list(state["tasks"]) == ["a", "b", "c", "f", "e"]
    ran = counted(effects())
    # It doesn't depend on c, so it may have been running when the process was killed.
    assert ran.pop("f") in (1, 2)
    assert ran == {**BEFORE, "c": 3, "e": 1}


@either_driver
def test_a_warned_resume_runs_the_layers_that_the_plan_says(
    killed_in_c: Callable[[str], Desk], desk: Callable[..., Desk], driver: str
) -> None:
    """D7: `plan_resume` says what would happen."""
    planned = killed_in_c(driver).ask("plan_resume", "r")["returned"]["layers"]
    state = desk("edited", on_mismatch="warn").ask(RESUME[driver], "r")["returned"]
    ran: dict[int, list[str]] = {}
    for name, record in state["tasks"].items():
        if name not in ("a", "b"):
            ran.setdefault(record["layer"], []).append(name)
    assert list(ran.values()) == planned


STAGES = 12
BAD, WELL = 4, 8
"""The layer in which the store stops working, and the one in which it works again."""

ANYWHERE = ["a quota", "a table that is gone", "a store that refuses"]
either_kind = pytest.mark.parametrize("kind", ["starved", "starved_graph"])


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder on a disk of 4 MB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = shutil.which("mount")
    command = [mount or "", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)]
    if sys.platform != "linux" or mount is None or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("no right to mount a small disk here")
    (folder / "log-folder").write_text(str(tmp_path))
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True, capture_output=True)


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The folder of a run whose store will be in trouble."""
    trouble: str = request.param
    folder: Path = request.getfixturevalue("small_disk") if trouble == "a full disk" else tmp_path
    (folder / "trouble").write_text(trouble)
    (folder / "trouble-at").write_text(str(BAD))
    return folder


in_trouble = pytest.mark.parametrize(
    ("place", "kind", "driver"),
    [
        (place, kind, "sync" if (row + column) % 2 else "async")
        for row, place in enumerate(["a full disk", *ANYWHERE])
        for column, kind in enumerate(["starved", "starved_graph"])
    ],
    indirect=["place"],
)
"""Every place with every kind, every kind with every driver, and every driver in every place."""


@pytest.fixture(scope="module")
def known_digests() -> dict[str, str]:
    return {}


@pytest.fixture
def whole(
    desk: Callable[..., Desk], known_digests: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], str]:
    """The digest of a run whose store never fails."""

    def digest(kind: str) -> str:
        if kind not in known_digests:
            office = desk(kind, folder=tmp_path_factory.mktemp("whole"))
            known_digests[kind] = office.ask("digested", "execute")["returned"]
        return known_digests[kind]

    return digest


def stage(start: list[str]) -> int:
    """The layer of a task, or the number of a step, from 0."""
    name = start[1]
    return int(name[:-1]) if name[-1] in "ab" else int(name) - 1


def repair(place: Path) -> None:
    """As `crash_workflows` does when a run repairs it itself."""
    match (place / "trouble").read_text():
        case "a full disk":
            (place / "filler").unlink()
        case "a table that is gone":
            with closing(sqlite3.connect(place / "runs.db")) as db:
                db.execute("ALTER TABLE away RENAME TO records")
        case "a store that refuses":
            (place / "refuse").unlink()
    (place / "trouble-at").unlink()


@in_trouble
def test_a_save_that_fails_stops_the_run_before_the_next_layer(
    desk: Callable[..., Desk], effects: Any, whole: Any, place: Path, kind: str, driver: str
) -> None:
    """D6, G9, H3, invariants 1, 2: what was saved is resumed by another process, once the store works again."""
    office = desk(kind, folder=place)
    answer = (
        office.ask("digested", "execute", run_id="r")
        if driver == "sync"
        else office.ask("aexecute", run_id="r")
    )
    assert answer["raised"] == "ExecutionError", answer
    assert answer["cause"][0] == "StoreUnavailable"
    begun = [line for line in effects() if line[0] == "start"]
    last = max(map(stage, begun))
    # A disk that is full may still have room in what SQLite had taken before.
    assert last == BAD or ("full" in (place / "trouble").read_text() and last in (BAD, BAD + 1)), begun
    repair(place)
    before = {name for name, each in office.ask("state_at", "r")["returned"].get("tasks", {}).items() if each}
    assert office.ask("digested", "resume", "r")["returned"] == whole(kind)
    again = [line for line in effects()[len(begun) :] if line[0] == "start"]
    assert not before & {line[1] for line in again}
    assert {stage(line) for line in again} >= set(range(last + 1, STAGES))
    twice = [
        name
        for name, times in Counter(line[1] for line in effects() if line[0] == "start").items()
        if times > 1
    ]
    assert all(stage(["", name]) in (last - 1, last) for name in twice)


def told_of(answer: dict[str, Any], kind: str) -> list[Any]:
    return [event for event in answer["returned"]["told"] if event[0] == kind]


def check_ids(told: list[list[Any]]) -> None:
    """Every id that was reported could be loaded by another process, at that time."""
    ids = [event for event in told if len(event) > 3]
    assert ids
    assert all(event[3] for event in ids), [event for event in ids if not event[3]]


@in_trouble
def test_a_run_that_may_continue_unsaved_is_degraded_until_a_save_works(
    desk: Callable[..., Desk], effects: Any, whole: Any, place: Path, kind: str, driver: str
) -> None:
    """D6: it tells of the failure, names no checkpoint that can't be loaded, and the next save brings all."""
    (place / "works-at").write_text(str(WELL))
    answer = desk(kind, folder=place, on_save_error="continue").ask("watched", driver=driver)
    told, returned = answer["returned"]["told"], answer["returned"]
    assert (returned["error"], returned["status"], returned["digest"]) == (None, "completed", whole(kind))
    check_ids(told)
    assert returned["loads"]
    failed = told_of(answer, "checkpoint_failed")
    assert failed
    assert all("StoreUnavailable" in about and status == "degraded" for _, about, status in failed)
    states = [event[2] for event in told]
    first = states.index("degraded")
    assert set(states[:first]) == {"running"}
    assert states[-2:] != ["degraded", "degraded"]
    assert Counter(line[1] for line in effects() if line[0] == "start").most_common(1)[0][1] == 1
    repaired = desk(kind, folder=place)
    assert repaired.ask("digested", "state_at", "r")["returned"] == whole(kind)
    assert [info["status"] for info in repaired.ask("runs")["returned"]] == ["completed"]


@in_trouble
def test_a_run_that_ends_unsaved_returns_its_state_and_can_be_resumed(
    desk: Callable[..., Desk], effects: Any, whole: Any, place: Path, kind: str, driver: str
) -> None:
    """D6, H3: it is degraded to its end; another process continues from what was saved, when there is room."""
    answer = desk(kind, folder=place, on_save_error="continue").ask("watched", driver=driver)
    returned = answer["returned"]
    assert (returned["error"], returned["status"], returned["digest"]) == (None, "degraded", whole(kind))
    assert told_of(answer, "workflow_complete") or told_of(answer, "final")
    check_ids([event for event in returned["told"] if event[0] not in ("final", "workflow_complete")])
    begun = len(effects())
    repair(place)
    office = desk(kind, folder=place)
    assert [info["status"] for info in office.ask("runs")["returned"]] == ["running"]
    assert office.ask("digested", "resume", "r", wait=30)["returned"] == whole(kind)
    again = {stage(line) for line in effects()[begun:] if line[0] == "start"}
    assert min(again) in (BAD, BAD + 1, BAD + 2)


@either_kind
def test_a_state_that_was_not_saved_names_no_checkpoint_that_can_not_be_loaded(
    desk: Callable[..., Desk], tmp_path: Path, kind: str
) -> None:
    """D6: the final state's id, and those of the events, wherever saves begin and cease to fail."""
    for start in (1, 2, 6):
        for length in (1, 3, 1000):
            folder = tmp_path / f"{start}-{length}"
            folder.mkdir()
            office = desk(kind, folder=folder, on_save_error="continue")
            office.tell("watched", refused=(start, start + length))
            answer = office.hear()
            assert answer["returned"]["error"] is None
            assert answer["returned"]["loads"], (start, length)
            assert all(event[3] for event in answer["returned"]["told"] if len(event) > 3), (start, length)
            assert told_of(answer, "checkpoint_failed")
            assert (answer["returned"]["status"] == "completed") == (length < 1000)


@either_driver
@either_kind
def test_a_store_that_fails_at_any_save_stops_the_run_where_it_can_be_resumed(
    desk: Callable[..., Desk], whole: Any, tmp_path: Path, effects: Any, kind: str, driver: str
) -> None:
    """D6, G9, H3: whichever save it is, the next process continues and nothing that was saved is done again."""
    for number in (1, 2, 3, 7, 12):
        folder = tmp_path / str(number)
        folder.mkdir()
        office = desk(kind, folder=folder)
        assert (
            office.ask(EXECUTE[driver], run_id="r", refused=(number, number + 1000))["raised"]
            == "ExecutionError"
        )
        assert office.ask("digested", "resume", "r")["returned"] == whole(kind)
        lines = [line.split() for line in (folder / "effects").read_text().splitlines()]
        starts = Counter(line[1] for line in lines if line[0] == "start")
        assert sum(starts.values()) - len(starts) <= 2
        keys = {(line[1], line[2]) for line in lines if line[0] == "start"}
        assert len(keys) == len(starts), "a task has one idempotency key, whichever process runs it"


@pytest.mark.parametrize("place", ["a file that is gone"], indirect=True)
@either_driver
def test_a_file_that_was_moved_away_is_noticed(desk: Callable[..., Desk], place: Path, driver: str) -> None:
    """D6: what is written to a file that no process can find any more isn't saved, and no id says it is."""
    (place / "works-at").write_text(str(WELL))
    answer = desk("starved", folder=place, on_save_error="continue").ask("watched", driver=driver)
    check_ids(answer["returned"]["told"])


def test_a_pause_that_can_not_be_saved_fails_the_run(desk: Callable[..., Desk], tmp_path: Path) -> None:
    """D6, D11, P1: a question that isn't stored can't be answered."""
    office = desk("asking", on_save_error="continue")
    answer = office.ask("execute", run_id="r", refused=(3, 1000))
    assert answer["raised"] == "ExecutionError"
    assert asked_again(office) == {PRICE, COLOUR}


def asked_again(office: Desk) -> set[str]:
    answer = office.ask("resume", "r")
    assert answer["raised"] == "RunPaused"
    return set(prompts(answer["questions"]))


def test_the_journal_of_a_long_run_does_not_grow_with_it(desk: Callable[..., Desk], tmp_path: Path) -> None:
    """D5: with what is superseded gone, 160 layers take no more room than 80; without retention they do."""
    sizes: dict[Any, list[list[int]]] = {}
    for keep in (5, None):
        folder = tmp_path / str(keep)
        folder.mkdir()
        sizes[keep] = desk("edited", folder=folder).ask("long_run", layers=160, keep=keep)["returned"]
    kept, all_of_it = sizes[5], sizes[None]
    assert len(kept) == len(all_of_it) == 160
    for what in (0, 1):
        early, late = max(each[what] for each in kept[:80]), max(each[what] for each in kept[80:])
        assert late <= 1.5 * early
        assert late < all_of_it[-1][what] / 2


class SlowPruning(SQLiteStore):
    """A store that takes as long to drop records as the test says."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.go, self.began, self.gave_up = threading.Event(), threading.Event(), False

    def prune(self, run_id: str, before: int) -> int:
        self.began.set()
        self.gave_up = not self.go.wait(1) or self.gave_up
        return super().prune(run_id, before)


def long_flow(store: SQLiteStore, layers: int = 60) -> Workflow:
    flow = Workflow("long")

    def turn(ctx: Any, layer: int) -> int:
        ctx.add_context(page=os.urandom(10_000))
        return layer

    for layer in range(layers):
        flow.add_task(f"t{layer}", turn, [f"t{layer - 1}"] if layer else [], arguments={"layer": layer})
    return flow.compile(store=store, preserve=True, keep=2)


@either_driver
def test_a_run_does_not_wait_for_old_records_to_go(tmp_path: Path, driver: str) -> None:
    """D5: the store is still at it when the run completes."""
    store = SlowPruning(tmp_path / "runs.db")
    try:
        flow = long_flow(store)
        state = flow.execute() if driver == "sync" else asyncio.run(flow.aexecute())
        assert len(state.tasks) == 60
        assert store.began.is_set()
        assert not store.gave_up, "the run waited for it"
    finally:
        store.go.set()


class NoPruning(SQLiteStore):
    """A store that can't drop records."""

    def prune(self, run_id: str, before: int) -> int:
        raise OSError("not now")


@either_driver
def test_records_that_can_not_be_dropped_stay_and_do_no_harm(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, driver: str
) -> None:
    """D5: that is logged, and the run completes."""
    flow = long_flow(NoPruning(tmp_path / "runs.db"))
    state = flow.execute() if driver == "sync" else asyncio.run(flow.aexecute())
    assert len(state.tasks) == 60
    flow.compiled().need_client("test").upkeep.finish()
    assert "couldn't delete old checkpoints" in caplog.text
