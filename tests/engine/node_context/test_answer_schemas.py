"""Answers come back as what the schema of their question names, in any process, each time they are read."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from datetime import date
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, Field

import limpet as limpet_package
from limpet import AnswerRefused, NodeContext, RunPaused, StateGraph, pause
from limpet.engine.node_context.answer_schemas import why_unfit
from support.graphs import Crash, crash_once, single


class Verdict(BaseModel):
    model_config = ConfigDict(extra="forbid")

    approved: bool
    until: date | None = None
    marks: list[int] = Field(default=[], max_length=2)
    weight: float = Field(1.0, gt=0, lt=10)


@dataclass
class Size:
    width: int
    height: int = 1


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


def asking(schema: Any, seen: list[Any]) -> StateGraph:
    def ask(ctx: NodeContext) -> dict[str, Any]:
        seen.append(ctx.pause("What?", schema=schema))
        return {"again": pause("More?", schema=bool)}

    return single(ask, "ask", name="ask").compile(store="memory://")


@pytest.mark.parametrize(
    ("schema", "answer", "returned"),
    [
        (int, 5, 5),
        (float, 5, 5.0),
        (float, 5.5, 5.5),
        (list, [1], [1]),
        (list, (1, 2), [1, 2]),
        (Verdict, {"approved": True, "until": "2027-01-02"}, Verdict(approved=True, until=date(2027, 1, 2))),
        (Verdict, Verdict(approved=True, until=date(2027, 1, 2)), Verdict(approved=True, until=date(2027, 1, 2))),
        (Size, {"width": 3}, Size(3)),
        (Size, Size(3, 4), Size(3, 4)),
        (Colour, "red", Colour.RED),
        (Colour, Colour.BLUE, Colour.BLUE),
    ],
)  # fmt: skip
def test_pause_returns_what_its_schema_names(schema: Any, answer: Any, returned: Any) -> None:
    """H14: each time the node runs, by resume, by its async form, and by a handle."""
    for give in ("resume", "aresume", "handle"):
        seen: list[Any] = []
        graph = asking(schema, seen)
        run = graph.invoke({}).wait()
        if give == "handle":
            graph.get(run.id).answer(answer)
            graph.recover()
        elif give == "resume":
            with pytest.raises(RunPaused, match=r"More\?"):
                graph.resume(run.id, answer)
        else:
            with pytest.raises(RunPaused, match=r"More\?"):
                asyncio.run(graph.aresume(run.id, answer))
        assert graph.resume(run.id, True)["again"] is True
        assert seen == [returned] * 2
        assert {type(each) for each in seen} == {type(returned)}


@pytest.mark.parametrize(
    ("schema", "answer", "why"),
    [
        (int, True, "not of type integer"),
        (Verdict, {"approved": "yes"}, "the answer.approved is 'yes', not of type boolean"),
        (Verdict, {"approved": True, "aproved": True}, "which isn't expected; did you mean 'approved'"),
        (Verdict, {"approved": True, "marks": [1, 2, 3]}, "the answer.marks has more than 2 items"),
        (Verdict, {"approved": True, "weight": 0}, "the answer.weight is 0, not above 0"),
        (Verdict, {"approved": True, "weight": 10}, "the answer.weight is 10, not below 10"),
        (Size, {"height": 3}, "the answer has no 'width'"),
        (Colour, "green", "not one of"),
        (Colour, Size(1), "is {'width': 1, 'height': 1}, not"),
    ],
)
def test_a_wrong_answer_is_refused_when_it_is_given(schema: Any, answer: Any, why: str) -> None:
    """H14: by a handle as by a resume, and the run stays as it is."""
    graph = asking(schema, [])
    run = graph.invoke({}).wait()
    for give in (graph.get(run.id).answer, lambda value: graph.resume(run.id, value)):
        with pytest.raises(AnswerRefused) as caught:
            give(answer)
        assert why in caught.value.reason
    assert graph.get(run.id).status == "paused"


class Sum(BaseModel):
    left: Sum | Product | int


class Product(BaseModel):
    left: Sum | Product | int


@pytest.mark.parametrize(("innermost", "fits"), [(1, True), ("x", False)])
def test_alternatives_inside_of_alternatives_are_tried_once_each(innermost: Any, fits: bool) -> None:
    """H19: a small answer to a type that contains itself twice would keep a thread busy for ever."""
    answer = innermost
    for _ in range(100):
        answer = {"left": answer}
    assert (why_unfit(answer, Sum.model_json_schema()) == "") is fits


def test_an_answer_to_older_code_that_does_not_fit_the_newer_is_asked_for_again() -> None:
    """H14: what `pause(schema=int)` returns is an int, whatever was stored."""
    store: Any = asking(str, []).compiled().need_client("test").store
    older = single(lambda: {"n": pause("N?", schema=str)}, name="g").compile(store=store)
    older.invoke({}, run_id="r").wait()
    older.get("r").answer("five")
    newer = single(lambda: {"n": pause("N?", schema=int)}, name="g").compile(store=store)
    with pytest.raises(
        RunPaused, match="the last answer was refused: the answer is 'five', not of type integer"
    ):
        newer.resume("r")
    assert newer.resume("r", 5) == {"n": 5}


def test_after_a_crash_the_answer_is_still_an_instance() -> None:
    """H14: the answer is stored as data, and read again."""
    seen: list[Any] = []

    @crash_once
    def crash(state: Any) -> None: ...

    def ask() -> dict[str, Any]:
        seen.append(pause("What?", schema=Verdict))
        crash({})
        return {"approved": seen[-1].approved}

    graph = single(ask, name="g").compile(store="memory://")
    graph.invoke({}, run_id="r").wait()
    with pytest.raises(Crash):
        graph.resume("r", {"approved": True})
    assert graph.resume("r") == {"approved": True}
    assert seen == [Verdict(approved=True)] * 2


PROGRAM = """
from pydantic import BaseModel
from limpet import END, START, StateGraph, pause

class Verdict(BaseModel):
    approved: bool
    marks: list[int] = []

def ask(state):
    verdict = pause("Good?", schema=Verdict)
    return {"kind": type(verdict).__name__, "marks": sum(verdict.marks)}

graph = StateGraph(name="review").add_node("ask", ask).add_edge(START, "ask").add_edge("ask", END)
"""


def test_an_answer_in_json_from_the_command_line_is_an_instance_in_the_node(tmp_path: Path) -> None:
    """H14: in another process, which refuses what doesn't fit."""
    (tmp_path / "review.py").write_text(PROGRAM, encoding="utf-8")

    def limpet(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "limpet", *words]
        # The code that is tested here, whichever is installed.
        environment = {**os.environ, "PYTHONPATH": str(Path(limpet_package.__file__).parents[1])}
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
        )

    limpet("run", "review.py:graph", "--store", "runs.db", "--id", "r")
    answer = ("answer", "r", "--store", "runs.db", "--graph", "review.py:graph")
    refused = limpet(*answer, '{"approved": 3}')
    assert "not of type boolean" in refused.stderr, refused
    done = limpet(*answer, '{"approved": true, "marks": [2, 3]}', "--json")
    assert done.returncode == 0, done
    assert json.loads(done.stdout)["state"] == {"kind": "Verdict", "marks": 5}
