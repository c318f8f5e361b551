"""H19: errors as problem details with stable codes."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from limpet import (
    AlreadyAnswered,
    AnswerRefused,
    Conflict,
    DamagedRecord,
    DefinitionError,
    LimpetError,
    RunCancelled,
    RunNotFound,
    RunPaused,
    ScheduleNotFound,
    StoreUnavailable,
    UsageError,
    errors,
)
from limpet.frontends import problems
from limpet.frontends.problems import LONGEST_DETAIL, TITLES, internal_problem, problem_details, status_of
from support.http_api import api, plain


@pytest.mark.parametrize(
    ("problem", "status"),
    [
        (RunNotFound("r"), 404),
        (ScheduleNotFound("s"), 404),
        (Conflict("r", "held"), 409),
        (errors.RunExists("r"), 409),
        (RunPaused("r", "it asks"), 409),
        (RunCancelled("r", "r"), 409),
        (errors.DeadlinePassed("too late", "r"), 409),
        (AlreadyAnswered("r", [], "none"), 409),
        (AnswerRefused("q", "wrong"), 422),
        (errors.UnstorableValue("a", "an object"), 422),
        (UsageError("wrong"), 400),
        (DefinitionError("wrong"), 409),
        (StoreUnavailable("down"), 503),
        (errors.KeyMissing("k"), 503),
        (errors.TooLarge("large"), 413),
        (errors.UnsupportedFormat("newer"), 501),
        (DamagedRecord("r", 1, "broken"), 500),
        (LimpetError("other"), 500),
    ],
)
def test_each_error_has_a_status_and_its_code(problem: LimpetError, status: int) -> None:
    """H19: as data that says what happened, and what to do."""
    details = problem_details(problem)
    assert (details["status"], details["code"]) == (status, problem.code)
    assert details["title"] == TITLES[status]
    assert details["detail"] == problem.message
    assert details.get("advice", "") == problem.advice
    assert details["type"] == "about:blank"


def test_errors_that_are_no_fault_of_the_server_are_no_500() -> None:
    """H19: of all errors there are, only damage and what has no class of its own."""
    kinds = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, LimpetError)]
    found = {kind.__name__ for kind in kinds if status_of(kind.__new__(kind)) == 500}
    assert found == {
        "CheckpointError",
        "DamagedCheckpoint",
        "DamagedDocument",
        "DamagedRecord",
        "ForbiddenType",
        "LimpetError",
        "StoreError",
    }


def test_the_codes_of_the_server_are_in_the_reference() -> None:
    """H19: each with its status."""
    library = Path(problems.__file__).parents[1]
    folders = (library / "frontends", library / "server")
    sources = "".join(path.read_text() for folder in folders for path in folder.rglob("*.py"))
    used = set(re.findall(r'HttpProblem\(\s*(\d+),\s*"([a-z-]+)"', sources))
    used |= {("403", "has-secrets"), ("500", "internal")}
    page = (Path(__file__).parents[2] / "docs" / "reference" / "errors.md").read_text(encoding="utf-8")
    section = page.partition("## Over HTTP")[2].partition("\n## ")[0]
    listed = re.findall(r"^\| ([a-z-]+) \| ([\d, ]+) \|", section, flags=re.M)
    assert {(status, code) for code, given in listed for status in given.split(", ")} == used | {
        ("405", "no-route")
    }


def test_a_problem_is_not_longer_than_is_read() -> None:
    """H19: it may quote what was sent."""
    assert len(problem_details(UsageError("x" * 10**6))["detail"]) == LONGEST_DETAIL


def test_an_unexpected_error_says_nothing_of_itself(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H19: the log has it."""

    def fail(*_: object) -> None:
        raise RuntimeError("the inside of the server")

    with api() as client:
        monkeypatch.setattr("limpet.runs.Runs.get", fail)
        answer = client.get("/api/v1/runs/r")
        assert answer.json() == internal_problem()
        assert answer.status_code == 500
    assert "the inside of the server" in caplog.text


def test_problems_name_their_run_and_what_to_do() -> None:
    """H19: for a program, too."""
    with api(plain(lambda state: 1 // 0)) as client:
        client.run_until_it_stops("r")
        problem = client.act("/runs/r/answer", 400, value=1)
        assert (problem["code"], problem["next"]) == ("usage", "retry")
        assert client.read("/runs/none", 404)["run_id"] == "none"
        assert client.get("/nothing").json()["code"] == "no-route"
