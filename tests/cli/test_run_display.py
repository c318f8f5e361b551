"""What `run`, `resume` and `answer` show: each thing that happens once, and summaries of any state."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from limpet.cli.output import Output
from limpet.cli.run_display import MAX_SHOWN_KEYS, MAX_SHOWN_TEXT
from support.command_line import Command, Done

SHAPES = """
from limpet import Retry, StateGraph, Workflow, pause

tries = []


def flaky(seen):
    tries.append(1)
    if len(tries) % 2:
        raise ValueError("not yet,\\ntry again")
    return "x" * 50_000


def fail(*_):
    raise ValueError("broken\\nin two lines")


now = Retry(attempts=2, backoff=0)

flow = Workflow("digest")
flow.add_task("page", lambda topic: topic * 3)
flow.add_task("flaky", flaky, depends_on={"seen": "page"}, retry=now)
flow.add_task("optional", lambda page: fail(), depends_on=["page"], safe_to_fail=True)
flow.add_task("after", lambda optional: 1, depends_on=["optional"])
flow.add_task("many", lambda page: 1, depends_on=["page"], condition=lambda page: len(page) > 1000)

broken = Workflow("broken")
broken.add_task("first", lambda: 1)
broken.add_task("second", lambda first: fail(), depends_on=["first"], retry=now)

failing = StateGraph(name="failing")
failing.add_node("fail", fail, retry=now)
failing.set_entry_point("fail")
failing.set_finish_point("fail")

branches = StateGraph(name="branches")
branches.add_node("begin", lambda state: {"x": 1})
branches.add_node("good", lambda state: {"y": 1})
branches.add_node("bad", fail)
branches.add_fanin_node("join", lambda state, parallel_results: {})
branches.set_entry_point("begin")
branches.add_parallel_edge("begin", "good", "join")
branches.add_parallel_edge("begin", "bad", "join")
branches.set_finish_point("join")

large = StateGraph(name="large")
large.add_node("fill", lambda state: {"text": "kelp " * 400_000, "rows": list(range(9000)), "n": 0, "none": None})
large.add_node("ask", lambda state: {"verdict": pause("Fine?")})
large.add_node("err", lambda state: fail() if state["verdict"] == "no" else {})
large.set_entry_point("fill")
large.add_edge("fill", "ask")
large.add_edge("ask", "err")
large.set_finish_point("err")

wide = StateGraph(name="wide")
wide.add_node("fill", lambda state: {f"key{n}": n for n in range(500)})
wide.set_entry_point("fill")
wide.set_finish_point("fill")

def talk(state, ctx):
    for text in ("Kelp ", "is\\nan ", "alga."):
        ctx.emit(text)
    ctx.emit({"n": 1})
    for done in (1, 2, 4):
        ctx.progress(done, 4, "reading" if done < 4 else "")

talking = StateGraph(name="talking")
talking.add_node("talk", talk)
talking.set_entry_point("talk")
talking.set_finish_point("talk")

caught = StateGraph(name="caught")
caught.add_node("fetch", fail)
caught.add_node("handle", lambda state, error: {"why": error.message})
caught.set_entry_point("fetch")
caught.add_edge("fetch", "handle")
caught.add_error_edge("fetch", "handle", on=ValueError)
caught.set_finish_point("handle")

nested = StateGraph(name="nested")
nested.add_node("before", lambda state: {})
nested.add_node("inner", caught)
nested.set_entry_point("before")
nested.add_edge("before", "inner")
nested.set_finish_point("inner")

page = StateGraph(name="page")
page.add_node("read", lambda state: {})
page.set_entry_point("read")
page.set_finish_point("read")

book = StateGraph(name="book")
book.add_node("join", lambda state, ctx: ctx.join(ctx.start(page, {})) and None)
book.set_entry_point("join")
book.set_finish_point("join")

loud = StateGraph(name="loud")
loud.add_node("err", lambda state: fail_with("y" * 1_000_000))
loud.set_entry_point("err")
loud.set_finish_point("err")


def fail_with(text):
    raise ValueError(text)
"""


@pytest.fixture
def shapes(limpet: Command, here: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    (here / "shapes.py").write_text(SHAPES)
    monkeypatch.delitem(sys.modules, "shapes", raising=False)
    return limpet


def signs(done: Done, sign: str) -> list[str]:
    return [line.strip() for line in done.err.splitlines() if line.strip().startswith(sign)]


def test_a_task_is_shown_once_with_its_outcome(shapes: Command) -> None:
    """H6: failed, skipped and tried again among them; layers count from 1."""
    done = shapes("run", "shapes:flow", "-i", "topic=kelp", "--id", "r")
    assert done.code == 0
    assert signs(done, "layer")[0] == "layer 1: page"
    assert sorted(signs(done, "✓")) == ["✓ flaky", "✓ page"]
    assert signs(done, "✗") == ["✗ optional: ValueError: broken in two lines"]
    assert signs(done, "↻") == ["↻ flaky: ValueError: not yet, try again (attempt 1, again in 0 s)"]
    assert [line.partition(":")[0] for line in signs(done, "–")] == ["– many", "– after"]


def test_what_nodes_emit_is_shown_in_lines(shapes: Command) -> None:
    """H12: texts of a call are joined, other values have lines of their own, and progress is shown now and then."""
    lines = [
        "· talk: Kelp is",
        "· talk: an alga.",
        '· talk: {"n": 1}',
        "· talk: 1/4 (25%) reading",
        "· talk: 4/4 (100%)",
        "✓ talk",
    ]
    done = shapes("run", "shapes:talking", "--id", "t")
    assert [line.strip() for line in done.err.splitlines() if line.startswith("  ")][: len(lines)] == lines
    watched = shapes("runs", "watch", "t", "--json")
    kinds = [json.loads(line)["type"] for line in watched.out.splitlines()]
    assert kinds == ["start", *["output"] * 4, "progress", "step", "complete"]


@pytest.mark.parametrize(("graph", "place"), [("caught", ""), ("nested", "inner/")])
def test_a_node_whose_error_is_handled_is_shown_as_failed(shapes: Command, graph: str, place: str) -> None:
    """Its step counts as done, but it didn't complete."""
    done = shapes("run", f"shapes:{graph}", "--id", "r")
    assert done.code == 0
    assert signs(done, "✗") == [f"✗ {place}fetch: ValueError: broken in two lines"]
    assert f"✓ {place}fetch" not in signs(done, "✓")
    assert f"✓ {place}handle" in signs(done, "✓")


def watched(command: Command, run_id: str) -> list[str]:
    """What `runs watch` says about each event of a run, after its first."""
    events = command("runs", "watch", run_id, "--json").out.splitlines()
    text = command("runs", "watch", run_id, "--after", json.loads(events[0])["cursor"]).out
    return [line.split("  step ")[1] for line in text.splitlines()]


def test_watching_a_workflow_says_which_tasks_begin_end_and_are_skipped(shapes: Command) -> None:
    """H13: and has no line that says nothing."""
    assert shapes("run", "shapes:flow", "-i", "topic=kelp", "--id", "r").code == 0
    said = [line.partition(": ")[2] for line in watched(shapes, "r")]
    assert said.pop() == ""  # that it is complete
    assert "" not in said
    assert {"page begins", "page", "flaky begins", "flaky", "optional begins"} <= set(said)
    assert "optional failed: broken in two lines" in said
    assert sorted(line.partition(":")[0] for line in said if "skipped" in line) == [
        "after is skipped",
        "many is skipped",
    ]


def test_watching_a_run_says_which_node_failed_where_its_error_is_handled(shapes: Command) -> None:
    """The handler comes next."""
    assert shapes("run", "shapes:caught", "--id", "r").code == 0
    assert watched(shapes, "r")[:3] == [
        "1: fetch",
        "1: fetch failed: broken in two lines; an error edge leads on",
        "2: handle",
    ]


def test_watching_a_run_that_waits_for_a_child_says_so_once(shapes: Command) -> None:
    """H16: however often the child is looked after."""
    assert shapes("run", "shapes:book", "--id", "r").code == 0
    said = [line.partition(": ")[2] for line in watched(shapes, "r")]
    assert sum("waits for the child run" in line for line in said) <= 1
    assert "no message came in time" not in said


def test_layers_are_counted_from_1_wherever_people_see_them(shapes: Command) -> None:
    ran = signs(shapes("run", "shapes:broken"), "layer")
    shown = shapes("graph", "show", "shapes:broken").out.splitlines()[-2:]
    listed = shapes("graph", "draw", "shapes:broken").out
    assert [line.split(":")[0] for line in ran] == ["layer 1", "layer 2"]
    assert [line.split()[:2] for line in shown] == [["1", "first"], ["2", "second"]]
    assert "first" in listed


@pytest.mark.parametrize(
    ("target", "place"), [("shapes:broken", "second"), ("shapes:failing", "fail"), ("shapes:branches", "bad")]
)
def test_a_failure_is_shown_once(shapes: Command, target: str, place: str) -> None:
    """H6: however many attempts it took."""
    done = shapes("run", target, "--id", "r")
    assert done.code == 1
    assert [line.partition(":")[0] for line in signs(done, "✗")] == [f"✗ {place}"]
    assert len(signs(done, "↻")) == (target != "shapes:branches")
    assert done.err.count("error: ValueError: broken") == 1


def test_a_large_state_is_summarised(shapes: Command) -> None:
    """H6: by run, answer and resume alike, which point to the command that prints all of it."""
    for words in (
        ["run", "shapes:large", "--id", "r"],
        ["answer", "r", "no", "--graph", "shapes:large"],
        ["resume", "r", "--graph", "shapes:large"],
    ):
        done = shapes(*words)
        assert len(done.out) < 1000
        assert "… (2,000,000 characters)" in done.out
        assert "[0, 1, 2" in done.out
        assert "limpet runs state r --graph" in done.err
    assert len(shapes("runs", "state", "r").out) > 2_000_000
    assert len(shapes("runs", "state", "r", "--json").data["text"]) == 2_000_000


def test_a_program_gets_the_whole_state(shapes: Command) -> None:
    done = shapes("run", "shapes:large", "--json")
    assert len(done.data["state"]["text"]) == 2_000_000


def test_a_workflow_is_summarised_by_its_tasks(shapes: Command) -> None:
    done = shapes("run", "shapes:flow", "-i", "topic=kelp", "--id", "r")
    lines = {line.split()[1]: line.split()[0] for line in done.out.splitlines()[3:]}
    assert lines == {"page": "✓", "flaky": "✓", "optional": "✗", "after": "–", "many": "–"}
    assert "kelpkelpkelp" in done.out
    assert "(50,000 characters)" in done.out
    assert '"timestamp"' not in done.out
    assert len(done.out) < 1000


def test_many_keys_are_counted(shapes: Command) -> None:
    done = shapes("run", "shapes:wide", "--id", "r")
    assert len(done.out.splitlines()) == 2 + MAX_SHOWN_KEYS + 1
    assert f"and {500 - MAX_SHOWN_KEYS} more" in done.out


def test_a_small_state_is_shown_as_it_is(shapes: Command) -> None:
    done = shapes("run", "flows:plain", "--id", "r")
    assert done.out == "run     r\nstatus  completed\n  x     2\n  name  ann\n"
    assert "runs state" not in done.err


def test_a_long_error_is_cut(shapes: Command) -> None:
    """The command that prints all of it is named."""
    done = shapes("run", "shapes:loud", "--id", "r")
    assert max(map(len, done.err.splitlines())) < 2 * MAX_SHOWN_TEXT
    assert "limpet runs show r" in done.err
    assert len(shapes("runs", "show", "r").out) > 1_000_000


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def at_terminal(limpet: Command, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Done]:
    """Call the command line at a terminal where this is typed."""

    def call(*words: str, typed: str) -> Done:
        monkeypatch.setattr(sys, "stdin", Terminal(typed))
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
        return limpet(*words, "--no-color")

    return call


@pytest.mark.parametrize(
    ("typed", "code", "status"),
    [
        ("yes\n", 0, "completed"),
        ("perhaps\nyes\n", 0, "completed"),
        ("no\nyes\n", 0, "completed"),
        ("\n", 3, "paused"),
        ("", 3, "paused"),
        ("no\n\n", 3, "paused"),
    ],
)
def test_a_paused_run_can_be_answered_at_the_terminal(
    at_terminal: Callable[..., Done], limpet: Command, typed: str, code: int, status: str
) -> None:
    """P1: an answer that is refused can be given again; Enter leaves the run paused."""
    done = at_terminal("run", "flows:graph", "-i", "topic=kelp", "--id", "r", typed=typed)
    assert done.code == code
    assert "Answer here, or press Enter to leave it:" in done.out
    assert limpet("runs", "show", "r", "--json").data["status"] == status
    assert ("refused the answer" in done.err) == ("perhaps" in typed)


def test_a_paused_run_is_left_by_ctrl_c(limpet: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """P1: as by Enter; it is paused, and nothing is lost."""

    def interrupt(prompt: str) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(Output, "interactive", True)
    monkeypatch.setattr("builtins.input", interrupt)
    assert limpet("run", "flows:graph", "-i", "topic=kelp", "--id", "r").code == 3
    assert limpet("runs", "show", "r", "--json").data["status"] == "paused"


def test_several_questions_are_asked_one_after_the_other(at_terminal: Callable[..., Done]) -> None:
    """P3: those that are left open are asked again."""
    done = at_terminal("run", "flows:twice", "--id", "r", typed="\nfive\n7\n")
    assert (done.code, done.out.count("Answer a/a here"), done.out.count("Answer b/b here")) == (0, 1, 1)
    assert done.out.count("Answer here") == 1


def test_a_run_that_waits_for_an_approval_can_be_resumed_at_the_terminal(
    at_terminal: Callable[..., Done], here: Path
) -> None:
    (here / "gate.py").write_text(
        "from limpet import StateGraph\n"
        "graph = StateGraph(name='gate').add_node('go', lambda state: {'went': True})\n"
        "graph.set_entry_point('go').set_finish_point('go')\n"
        "graph.compile(store='sqlite:///limpet.db', interrupt_before=['go'])\n"
    )
    assert at_terminal("run", "gate.py:graph", typed="n\n").code == 3
    done = at_terminal("run", "gate.py:graph", typed="y\n")
    assert (done.code, "Resume it here? [y/N]" in done.out) == (0, True)


def test_a_program_isnt_asked(at_terminal: Callable[..., Done], limpet: Command) -> None:
    """H6: nor a script, whose input comes from elsewhere."""
    done = at_terminal("run", "flows:graph", "-i", "topic=kelp", "--json", typed="yes\n")
    assert (done.code, done.data["status"]) == (3, "paused")


def test_a_question_in_a_pipe_is_only_shown(limpet: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("yes\n"))
    done = limpet("run", "flows:graph", "-i", "topic=kelp", "--id", "r")
    assert (done.code, "Answer here" in done.out) == (3, False)
