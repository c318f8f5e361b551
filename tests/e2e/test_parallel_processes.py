"""Runs with branches, and several processes: failures are fixed, questions answered, and each run has one holder."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from limpet.journal.reader import read_progress
from limpet.stores.sqlite.store import SQLiteStore

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs the signals of POSIX")

Actor = Callable[..., Any]
SHORT = 1.0
"""A lease, in seconds, that runs out while a test waits."""

EXECUTE = {"sync": "execute", "async": "aexecute"}
RESUME = {"sync": "resume", "async": "aresume"}
either_driver = pytest.mark.parametrize("driver", ["sync", "async"])


def counted(effects: list[list[str]]) -> dict[str, int]:
    """How often each node ran."""
    return dict(Counter(node for node, *_ in effects if node != "over"))


def since(before: dict[str, int], effects: list[list[str]]) -> dict[str, int]:
    """How often each node ran that has run since."""
    return dict(Counter(counted(effects)) - Counter(before))


def refused(answer: dict[str, Any], holder: Any) -> bool:
    """Whether the answer is a `Conflict` that says who holds the run."""
    return answer["raised"] == "Conflict" and str(holder.pid) in answer["holder"].split("|")


ALL_ONCE = {"open": 1, "north": 1, "north-2": 1, "east": 1, "east-2": 1, "south": 1, "south-2": 1}
IN_ALL = {**ALL_ONCE, "join": 1, "last": 1}


def trails(**by: tuple[int, int]) -> dict[str, Any]:
    """What the fan-in gets of branches, by the processes that ran the two nodes of each."""
    return {branch: [[branch, first], [f"{branch}-2", second]] for branch, (first, second) in by.items()}


@either_driver
def test_only_the_branch_that_failed_and_the_fan_in_run_when_it_is_fixed(
    actor: Actor, effects: Any, tmp_path: Path, driver: str
) -> None:
    """F12, H3, invariant 2: the others are kept, over processes in which it fails again."""
    (tmp_path / "break-east-2").touch()
    first = actor("branches")
    answer = first.ask(EXECUTE[driver], run_id="r")
    assert (answer["raised"], answer["node"]) == ("ExecutionError", "east/east-2")
    assert answer["cause"] == ["RuntimeError", "east-2 is broken"]
    assert answer["state"] == {"trail": [["east", first.pid]], "by": first.pid}
    assert counted(effects()) == ALL_ONCE
    second = actor("branches")
    (info,) = second.ask("runs")["returned"]
    assert (info["status"], info["error"]["node"]) == ("failed", "east/east-2")
    assert second.ask(RESUME[driver], "r")["raised"] == "ExecutionError"
    assert counted(effects()) == {**ALL_ONCE, "east-2": 2}
    (tmp_path / "break-east-2").unlink()
    third = actor("branches")
    state = third.ask(RESUME[driver], "r")["returned"]
    one = first.pid
    assert state["got"] == trails(north=(one, one), east=(one, third.pid), south=(one, one))
    assert counted(effects()) == {**IN_ALL, "east-2": 3}


@either_driver
@pytest.mark.parametrize("fixed", [True, False])
def test_a_failure_in_a_run_that_is_killed_before_it_could_fail_is_tried_again(
    actor: Actor, effects: Any, until: Any, tmp_path: Path, fixed: bool, driver: str
) -> None:
    """F12, H3, invariants 2, 8: one branch has failed, one has ended, and one is under way at the kill."""
    (tmp_path / "break-east").touch()
    (tmp_path / "hold-south").touch()
    dead = actor("branches", lease=60)
    dead.tell(EXECUTE[driver], run_id="r")
    until(lambda: all(each in effects() for each in (["over", "east"], ["over", "north"])))
    until(lambda: "south" in counted(effects()))
    dead.kill()
    before = counted(effects())
    (tmp_path / "gate-south").touch()
    if fixed:
        (tmp_path / "break-east").unlink()
    heir = actor("branches", lease=60)
    answer = heir.ask(RESUME[driver], "r")
    if fixed:
        mine = (heir.pid, heir.pid)
        assert answer["returned"]["got"] == trails(north=(dead.pid, dead.pid), east=mine, south=mine)
        again = {"east": 1, "east-2": 1, "south": 1, "south-2": 1, "join": 1, "last": 1}
        assert since(before, effects()) == again
    else:
        assert (answer["raised"], answer["node"]) == ("ExecutionError", "east/east")
        assert since(before, effects()) == {"east": 1, "south": 1, "south-2": 1}
        assert [info["status"] for info in heir.ask("runs")["returned"]] == ["failed"]


@pytest.fixture
def in_branches(actor: Actor, effects: Any, until: Any, tmp_path: Path) -> Actor:
    """A process that executes a run: "north" has ended, and it is inside "east" and "south-2" now, which wait."""

    def start(run_id: str = "r", driver: str = "sync", **settings: Any) -> Any:
        for node in ("east", "south-2"):
            (tmp_path / f"hold-{node}").touch()
        program = actor("branches", **settings)
        ends = effects().count(["over", "north"])
        program.tell(EXECUTE[driver], run_id=run_id)
        pid = str(program.pid)
        until(lambda: ["east", pid] in effects() and ["south-2", pid] in effects())
        until(lambda: effects().count(["over", "north"]) > ends)
        return program

    return start


def open_gates(folder: Path) -> None:
    for node in ("east", "south-2"):
        (folder / f"gate-{node}").touch()


def close_gates(folder: Path) -> None:
    for node in ("east", "south-2"):
        (folder / f"gate-{node}").unlink()


LEFT = {"east": 1, "east-2": 1, "south-2": 1, "join": 1, "last": 1}
"""What remains to be done when a process was killed there."""


@either_driver
def test_of_two_processes_that_resume_a_run_inside_its_branches_one_succeeds(
    in_branches: Actor, actor: Actor, effects: Any, until: Any, tmp_path: Path, driver: str
) -> None:
    """P8, H1, H3, invariant 5: the other one learns which was first; what had been finished isn't done again."""
    rivals = [actor("branches", lease=60), actor("branches", lease=60)]
    for number in range(3):
        run_id, barrier = f"r{number}", tmp_path / f"barrier{number}"
        dead = in_branches(run_id, driver, lease=60)
        dead.kill()
        before = counted(effects())
        for rival in rivals:
            rival.tell(RESUME[driver], run_id, at=str(barrier))
        barrier.touch()
        until(lambda: any(rival.has_answered for rival in rivals))
        loser, winner = sorted(rivals, key=lambda rival: not rival.has_answered)
        answer = loser.hear()
        assert refused(answer, winner), answer
        open_gates(tmp_path)
        state = winner.hear()["returned"]
        close_gates(tmp_path)
        one, two = dead.pid, winner.pid
        assert state["got"] == trails(north=(one, one), east=(two, two), south=(one, two))
        assert since(before, effects()) == LEFT
        assert loser.ask(RESUME[driver], run_id)["raised"] == "AlreadyCompleted"


@either_driver
@pytest.mark.parametrize("use_once", [False, True])
def test_a_holder_of_branches_that_was_away_too_long_is_refused(
    in_branches: Actor, actor: Actor, effects: Any, tmp_path: Path, use_once: bool, driver: str
) -> None:
    """P8, invariant 5: SIGSTOP past the lease, a takeover, SIGCONT; none of its branches writes any more."""
    zombie = in_branches("r", driver, lease=SHORT)
    zombie.freeze()
    if use_once:
        (tmp_path / "use-once").touch()
    open_gates(tmp_path)
    heir = actor("branches", lease=60)
    state = heir.ask(RESUME[driver], "r", wait=60)["returned"]
    one, two = zombie.pid, heir.pid
    assert state["got"] == trails(north=(one, one), east=(two, two), south=(one, two))
    before = [heir.ask("state_at", "r"), heir.ask("history", "r"), counted(effects())]
    zombie.thaw()
    answer = zombie.hear()
    assert answer["raised"] == "Conflict", answer
    assert [heir.ask("state_at", "r"), heir.ask("history", "r"), counted(effects())] == before


@either_driver
@pytest.mark.parametrize("lease", [SHORT, 60], ids=["heard when renewing", "heard when saving"])
def test_a_cancellation_from_another_process_stops_all_branches(
    in_branches: Actor, actor: Actor, effects: Any, tmp_path: Path, lease: float, driver: str
) -> None:
    """G12, F12: the nodes that were running complete and are kept, nothing new begins, a resume continues there."""
    holder, other = in_branches("r", driver, lease=lease), actor("branches", lease=60)
    before = counted(effects())
    assert other.ask("cancel", "r") == {"returned": None}
    if lease == SHORT:
        assert refused(other.ask("resume", "r", wait=2 * SHORT), holder)
    open_gates(tmp_path)
    answer = holder.hear()
    assert (answer["raised"], answer["run_id"]) == ("RunCancelled", "r")
    assert since(before, effects()) == {}
    (info,) = other.ask("runs", "cancelled")["returned"]
    assert (info["run_id"], info["holder"]) == ("r", None)
    kept = [(step["branch"], step["node"]) for step in other.ask("history", "r")["returned"][1:]]
    assert sorted(kept[1:]) == [
        ("east", "east"), ("north", "north"), ("north", "north-2"), ("south", "south"), ("south", "south-2"),
    ]  # fmt: skip
    state = other.ask(RESUME[driver], "r")["returned"]
    one, two = holder.pid, other.pid
    assert state["got"] == trails(north=(one, one), east=(one, two), south=(one, one))
    assert since(before, effects()) == {"east-2": 1, "join": 1, "last": 1}


@either_driver
def test_a_run_that_was_killed_inside_its_branches_is_cancelled_at_once(
    in_branches: Actor, actor: Actor, effects: Any, tmp_path: Path, driver: str
) -> None:
    """G12, H3: no holder has to wake up for it, and what its branches had saved can still be resumed."""
    dead = in_branches("r", driver, lease=60)
    dead.kill()
    before = counted(effects())
    other = actor("branches", lease=60)
    assert other.ask("cancel", "r") == {"returned": None}
    assert [info["status"] for info in other.ask("runs")["returned"]] == ["cancelled"]
    open_gates(tmp_path)
    state = other.ask(RESUME[driver], "r")["returned"]
    one, two = dead.pid, other.pid
    assert state["got"] == trails(north=(one, one), east=(two, two), south=(one, two))
    assert since(before, effects()) == LEFT


PROMPTS = ["Which price?", "Which colour?", "Which first name?"]


def prompts(questions: list[dict[str, Any]]) -> dict[str, str]:
    """The ids of questions, by what they ask."""
    return {question["prompt"]: question["id"] for question in questions}


@pytest.fixture
def asked(actor: Actor) -> Callable[..., dict[str, str]]:
    """A run whose branches have asked, and whose process has ended: the ids of the questions."""

    def start(driver: str = "sync") -> dict[str, str]:
        asker = actor("asked")
        answer = asker.ask(EXECUTE[driver], run_id="r")
        assert answer["raised"] == "RunPaused"
        asker.popen.stdin.close()
        assert asker.wait() == 0
        return prompts(answer["questions"])

    return start


@either_driver
def test_questions_of_three_branches_are_answered_out_of_order_by_several_processes(
    actor: Actor, effects: Any, asked: Any, driver: str
) -> None:
    """P1, P3, F12, D11: another process lists them, two more answer some; each answer arrives where it belongs."""
    ids = asked(driver)
    assert list(ids) == PROMPTS
    assert len(set(ids.values())) == 3
    lister = actor("asked")
    (info,) = lister.ask("runs", "paused")["returned"]
    assert prompts(info["questions"]) == ids
    nodes = ["price/price", "colour/colour", "name/name"]
    assert [question["node"] for question in info["questions"]] == nodes
    assert lister.ask("resume", "r")["raised"] == "RunPaused"
    assert lister.ask("resume", "r", "red")["raised"] == "UsageError"
    wrong = {ids["Which first name?"]: "Ada", ids["Which colour?"]: "green"}
    answer = lister.ask("resume", "r", answers=wrong)
    assert (answer["raised"], answer["question_id"]) == ("AnswerRefused", ids["Which colour?"])
    once_each = {"price": 1, "quote": 1, "colour": 1, "name": 1, "slow": 1}
    assert counted(effects()) == once_each

    one, two = actor("asked"), actor("asked")
    answer = one.ask(RESUME[driver], "r", answers={ids["Which first name?"]: "Ada"})
    assert answer["raised"] == "RunPaused"
    left = prompts(answer["questions"])
    assert list(left) == ["Which price?", "Which colour?", "And which last name, Ada?"]
    assert {prompt: left[prompt] for prompt in PROMPTS[:2]} == {prompt: ids[prompt] for prompt in PROMPTS[:2]}
    assert counted(effects()) == {**once_each, "name": 2}

    given = {ids["Which colour?"]: "blue", ids["Which price?"]: 7}
    answer = two.ask(RESUME[driver], "r", answers=given)
    assert answer["raised"] == "RunPaused"
    assert list(prompts(answer["questions"])) == ["And which last name, Ada?"]
    assert two.ask("resume", "r", answers=given)["raised"] == "AlreadyAnswered"
    (info,) = lister.ask("runs", "paused")["returned"]
    assert prompts(info["questions"]) == prompts(answer["questions"])

    state = one.ask(RESUME[driver], "r", "Lovelace")["returned"]
    assert state == {
        "price": [[["quote", 42], 7], one.pid],
        "colour": ["blue", one.pid],
        "name": [["Ada", "Lovelace"], one.pid],
        "slow": [None, one.pid],
    }
    assert counted(effects()) == {"price": 2, "quote": 1, "colour": 2, "name": 3, "slow": 1, "join": 1}


@either_driver
def test_answers_to_different_branches_at_the_same_moment_all_count(
    actor: Actor, effects: Any, asked: Any, tmp_path: Path, driver: str
) -> None:
    """P3, P8, D11: three processes answer one question each; a later one waits for the one before."""
    ids = asked(driver)
    answers = {"Which price?": 7, "Which colour?": "red", "Which first name?": "Ada"}
    rivals = {prompt: actor("asked", lease=60) for prompt in answers}
    for prompt, rival in rivals.items():
        given = {ids[prompt]: answers[prompt]}
        rival.tell(RESUME[driver], "r", answers=given, wait=60, at=str(tmp_path / "barrier"))
    (tmp_path / "barrier").touch()
    heard = [rival.hear() for rival in rivals.values()]
    assert [answer["raised"] for answer in heard] == ["RunPaused"] * 3, heard
    last = actor("asked")
    state = last.ask(RESUME[driver], "r", "Lovelace")["returned"]
    assert (state["price"][0], state["colour"][0]) == ([["quote", 42], 7], "red")
    assert state["name"][0] == ["Ada", "Lovelace"]
    assert counted(effects()) == {"price": 2, "quote": 1, "colour": 2, "name": 3, "slow": 1, "join": 1}


@either_driver
def test_questions_survive_a_kill_while_another_branch_runs(
    actor: Actor, effects: Any, until: Any, tmp_path: Path, driver: str
) -> None:
    """P1, P3, H3, D11: who has asked isn't called again to ask, and can be answered before the others are done."""
    (tmp_path / "hold").touch()
    dead = actor("asked", lease=60)
    dead.tell(EXECUTE[driver], run_id="r")
    until(lambda: "slow" in counted(effects()))
    store = SQLiteStore(tmp_path / "runs.db")
    questions = until(lambda: len(found := read_progress(store.read("r")).open_questions()) == 3 and found)
    dead.kill()
    store.close()
    ids = {question.prompt: question.id for question in questions}
    assert list(ids) == PROMPTS
    (tmp_path / "gate").touch()
    other = actor("asked", lease=60)
    answer = other.ask(RESUME[driver], "r", answers={ids["Which colour?"]: "red"})
    assert answer["raised"] == "RunPaused"
    assert list(prompts(answer["questions"])) == ["Which price?", "Which first name?"]
    assert counted(effects()) == {"price": 1, "quote": 1, "colour": 2, "name": 1, "slow": 2}
    answer = other.ask(RESUME[driver], "r", answers={ids["Which price?"]: 7, ids["Which first name?"]: "Ada"})
    assert answer["raised"] == "RunPaused"
    state = other.ask(RESUME[driver], "r", "Lovelace")["returned"]
    assert (state["colour"][0], state["name"][0]) == ("red", ["Ada", "Lovelace"])
    assert counted(effects()) == {"price": 2, "quote": 1, "colour": 2, "name": 3, "slow": 2, "join": 1}


@either_driver
def test_an_answer_that_was_given_to_a_branch_survives_a_kill(
    actor: Actor, effects: Any, asked: Any, tmp_path: Path, driver: str
) -> None:
    """P1, P3, D11: the process dies right after `pause` returned it; the question isn't asked again."""
    ids = asked(driver)
    (tmp_path / "die-after-answer").touch()
    doomed = actor("asked", lease=60)
    doomed.tell(RESUME[driver], "r", answers={ids["Which first name?"]: "Ada"})
    assert doomed.wait() == -9
    other = actor("asked", lease=60)
    assert other.ask("runs", "paused") == {"returned": []}
    answer = other.ask(RESUME[driver], "r")
    assert answer["raised"] == "RunPaused"
    left = prompts(answer["questions"])
    assert list(left) == ["Which price?", "Which colour?", "And which last name, Ada?"]
    assert counted(effects()) == {"price": 1, "quote": 1, "colour": 1, "name": 3, "slow": 1}
    given = {
        ids["Which price?"]: 7,
        ids["Which colour?"]: "red",
        left["And which last name, Ada?"]: "Lovelace",
    }
    state = other.ask(RESUME[driver], "r", answers=given)["returned"]
    assert [state[branch][0] for branch in ("colour", "name")] == ["red", ["Ada", "Lovelace"]]
    assert counted(effects()) == {"price": 2, "quote": 1, "colour": 2, "name": 4, "slow": 1, "join": 1}
