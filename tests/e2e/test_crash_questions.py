"""A question outlives the process that asked it, and the money is taken once, whatever is killed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs the signals of POSIX")

Actor = Callable[..., Any]


def counted(effects: list[list[str]]) -> dict[str, int]:
    nodes = [node for node, *_ in effects]
    return {node: nodes.count(node) for node in ("pay", "charge", "ship")}


@pytest.fixture
def paused(actor: Actor) -> None:
    """Run "r" has asked, and its process has ended."""
    asker = actor("asking")
    answer = asker.ask("execute", run_id="r")
    assert answer["raised"] == "RunPaused"
    assert [question["prompt"] for question in answer["questions"]] == ["Ship it?"]
    asker.popen.stdin.close()
    assert asker.wait() == 0


@pytest.mark.usefixtures("paused")
def test_another_process_sees_the_question_and_answers_it(actor: Actor, effects: Any) -> None:
    """P1, D11, H3: found by its status, read, answered wrongly, answered, and what was paid isn't paid again."""
    other = actor("asking")
    (info,) = other.ask("runs", "paused")["returned"]
    assert (info["run_id"], info["node"], info["holder"]) == ("r", "pay", None)
    (question,) = info["questions"]
    assert (question["prompt"], question["choices"]) == ("Ship it?", ["yes", "no"])
    assert other.ask("resume", "r")["raised"] == "RunPaused"
    for wrong in ("perhaps", True, None):
        answer = other.ask("resume", "r", wrong)
        assert (answer["raised"], answer["question_id"]) == ("AnswerRefused", question["id"])
    assert [info["status"] for info in other.ask("runs")["returned"]] == ["paused"]
    assert other.ask("runs", "paused")["returned"][0]["questions"] == [question]
    assert counted(effects()) == {"pay": 1, "charge": 1, "ship": 0}
    state = other.ask("resume", "r", "yes")["returned"]
    assert state == {
        "receipt": ["receipt", 42], "answer": "yes", "shipped": True, "by": other.pid, "kind": "tuple",
    }  # fmt: skip
    assert counted(effects()) == {"pay": 2, "charge": 1, "ship": 1}
    assert other.ask("runs", "paused") == {"returned": []}


@pytest.mark.usefixtures("paused")
def test_of_two_answers_at_the_same_moment_one_counts(actor: Actor, effects: Any, tmp_path: Path) -> None:
    """P1, P3, P8: the one whose answer is in the state continued with it; the other was refused as too late."""
    rivals = {"yes": actor("asking"), "no": actor("asking")}
    for number in range(5):
        run_id, barrier = f"r{number}", tmp_path / f"barrier{number}"
        assert rivals["yes"].ask("execute", run_id=run_id)["raised"] == "RunPaused"
        before = counted(effects())
        for answer, rival in rivals.items():
            rival.tell("resume", run_id, answer, at=str(barrier))
        barrier.touch()
        heard = {answer: rival.hear() for answer, rival in rivals.items()}
        won = [answer for answer in heard if "returned" in heard[answer]]
        lost = [heard[answer]["raised"] for answer in heard if answer not in won]
        assert len(won) == 1, heard
        assert lost[0] in ("Conflict", "AlreadyCompleted", "AlreadyAnswered", "UsageError")
        state = rivals["yes"].ask("state_at", run_id)["returned"]
        assert state == heard[won[0]]["returned"]
        assert (state["answer"], state["by"]) == (won[0], rivals[won[0]].pid)
        after = counted(effects())
        assert {node: after[node] - before[node] for node in after} == {"pay": 1, "charge": 0, "ship": 1}


@pytest.mark.parametrize("kills", [1, 3])
def test_a_kill_between_the_payment_and_the_question_does_not_pay_twice(
    actor: Actor, effects: Any, tmp_path: Path, kills: int
) -> None:
    """H3, P1: the result of `once` is durable before the node continues."""
    for number in range(kills):
        (tmp_path / "die-after-once").touch()
        doomed = actor("asking", lease=60)
        if number == 0:
            doomed.tell("execute", run_id="r")
        else:
            doomed.tell("resume", "r")
        assert doomed.wait() == -9
        assert counted(effects()) == {"pay": number + 1, "charge": 1, "ship": 0}
    other = actor("asking", lease=60)
    assert other.ask("resume", "r")["raised"] == "RunPaused"
    assert other.ask("resume", "r", "no")["returned"]["shipped"] is False
    assert counted(effects()) == {"pay": kills + 2, "charge": 1, "ship": 1}


@pytest.mark.usefixtures("paused")
def test_an_answer_that_was_given_survives_a_kill(actor: Actor, effects: Any, tmp_path: Path) -> None:
    """P1, D11: the process dies right after `pause` returned the answer; the question isn't asked again."""
    (tmp_path / "die-after-answer").touch()
    doomed = actor("asking", lease=60)
    doomed.tell("resume", "r", "yes")
    assert doomed.wait() == -9
    other = actor("asking", lease=60)
    assert other.ask("runs", "paused") == {"returned": []}
    assert other.ask("resume", "r", "no")["raised"] == "UsageError"
    assert other.ask("resume", "r")["returned"]["answer"] == "yes"
    assert counted(effects()) == {"pay": 3, "charge": 1, "ship": 1}
