"""Pictures of runs: the mark of each node, by the journal alone, and no value of the state."""

from __future__ import annotations

import re
from contextlib import suppress
from html import unescape
from pathlib import Path
from threading import Event, Thread
from time import monotonic
from typing import Any
from xml.etree import ElementTree

import pytest

from limpet import (
    ExecutionError,
    MemoryStore,
    RunNotFound,
    RunPaused,
    RunWaiting,
    State,
    StateGraph,
    Workflow,
    pause,
    receive,
)
from limpet.drawing.draw import outline_for_run
from limpet.drawing.figure import Figure, figure_of
from limpet.drawing.notebook import rows_as_html
from limpet.drawing.run_marks import RunMarks, marks_of_progress, marks_of_stored_run
from support.pictures import article, broken, nothing, research, stopped, weather

SECRET = "swordfish"


def marks_of(graph: Any, run_id: str = "r") -> RunMarks:
    compiled = graph.compiled()
    return marks_of_stored_run(compiled.plan, compiled.need_client("a test").store.read(run_id, first=1))


def words(graph: Any, run_id: str = "r") -> dict[str, str]:
    """The mark of each node that a run has reached, in words, without starts and ends."""
    found = marks_of(graph, run_id)
    return {place: mark.words for place, mark in found.marks.items() if not place.endswith("__")}


def taken(graph: Any, run_id: str = "r") -> set[tuple[str, str]]:
    """The lines that are drawn as taken, at all depths."""
    found = marks_of(graph, run_id)

    def of(figure: Figure) -> set[tuple[str, str]]:
        lines = {(each.line.source, each.line.target) for each in figure.lines if each.taken}
        return lines.union(*(of(each.inside) for each in figure.shapes if each.inside is not None))

    return of(figure_of(outline_for_run(graph.compiled().plan, found), found))


def resumed(graph: Any, *answers: Any, run_id: str = "r") -> Any:
    for answer in answers:
        with suppress(RunPaused, ExecutionError):
            graph.resume(run_id, answer)
    return graph


def test_a_paused_run_shows_what_is_done_and_what_is_asked(store: Any) -> None:
    """P1."""
    graph = article().compile(store=store)
    with pytest.raises(RunPaused):
        graph.execute({}, run_id="r")
    assert words(graph) == {"draft": "done", "review": "paused: Publish it?"}
    assert taken(graph) == {("__start__", "draft"), ("draft", "review")}
    assert marks_of(graph).status == "paused"


def test_visits_are_counted_and_only_the_lines_that_were_taken_are(store: Any) -> None:
    graph = article().compile(store=store, preserve=True)
    with pytest.raises(RunPaused):
        graph.execute({}, run_id="r")
    resumed(graph, "no", "no", "yes")
    assert words(graph) == {"draft": "done ×3", "review": "done ×3", "publish": "done"}
    assert ("review", "draft") in taken(graph)
    straight = resumed(stopped(article(), "r"), "yes")
    assert taken(straight) == {
        ("__start__", "draft"),
        ("draft", "review"),
        ("review", "publish"),
        ("publish", "__end__"),
    }


def test_a_failed_branch_shows_the_type_of_its_error_and_no_more() -> None:
    graph = stopped(research(broken), "r")
    found = words(graph)
    assert found["rate"] == "failed: ValueError"
    assert (found["read"], found["news"]) == ("done", "done")
    assert "combine" not in found
    assert {("plan", "papers"), ("plan", "news"), ("papers", "read"), ("read", "rate")} <= taken(graph)
    assert ("rate", "combine") not in taken(graph)


def test_branches_that_are_over_keep_their_marks_and_lines() -> None:
    """F12."""
    graph = stopped(research(), "r")
    assert words(graph) == {
        "plan": "done",
        "papers": "done",
        "read": "done",
        "rate": "done",
        "news": "done",
        "combine": "done",
        "combine//page": "done",
        "combine//page/load": "done ×3",
        "combine//page/parse": "done ×3",
        "quote": "done",
        "write": "done",
    }
    assert {
        ("rate", "combine"),
        ("news", "combine"),
        ("combine", "combine//page"),
        ("combine//page", "quote"),
        ("combine//page/__start__", "combine//page/load"),
        ("combine//page/parse", "combine//page/__end__"),
    } <= taken(graph)


def asks_for_two(state: Any) -> dict[str, Any]:
    return {"x": pause(f"Take {state['item']}?")} if state["item"] == 2 else {}


@pytest.mark.parametrize("own", [False, True])
def test_a_map_shows_how_many_of_its_items_are_done(own: bool) -> None:
    graph = StateGraph(name="g").add_node("list", run=nothing).add_fanin_node("join", run=nothing)
    if own:
        each: Any = StateGraph(name="each").add_node("work", run=asks_for_two)
        each.set_entry_point("work").set_finish_point("work")
        place = "list//each"
        inner = "list//each/work"
    else:
        graph.add_node("work", run=asks_for_two)
        each = place = inner = "work"
    graph.set_entry_point("list").add_map("list", each, lambda state: [1, 2, 3], "join").set_finish_point(
        "join"
    )
    stopped(graph, "r")
    assert words(graph)[place] == "paused, 2 of 3 done"
    if own:
        assert words(graph)[inner] == "paused: Take 2?"
    resumed(graph, 1)
    assert words(graph)[inner] == "done ×3"


def test_graphs_inside_graphs_are_marked_at_every_depth() -> None:
    middle = StateGraph(name="middle").add_node("edit", run=article()).add_node("a", run=nothing)
    middle.set_entry_point("a").add_edge("a", "edit").set_finish_point("edit")
    graph = (
        StateGraph(name="outer").add_node("work", run=middle).set_entry_point("work").set_finish_point("work")
    )
    stopped(graph, "r")
    assert words(graph) == {
        "work": "paused",
        "work/a": "done",
        "work/edit": "paused",
        "work/edit/draft": "done",
        "work/edit/review": "paused: Publish it?",
    }
    resumed(graph, "no", "yes")
    assert words(graph)["work/edit/draft"] == "done ×2"
    assert words(graph)["work"] == "done"
    assert marks_of(graph).marks["work/edit/__end__"].kind == "done"


def test_interrupts_are_shown_as_pauses() -> None:
    """F3."""
    graph = article().compile(store=MemoryStore(), interrupt_before=["review"])
    list(graph.invoke({}, run_id="r"))
    assert words(graph) == {"draft": "done", "review": "paused"}


def test_a_cancelled_run_shows_what_would_be_next() -> None:
    """G12."""
    graph = article().compile(store=MemoryStore())
    run = graph.stream({}, run_id="r")
    next(run)
    run.close()
    assert words(graph) == {"draft": "done", "review": "running"}
    graph.cancel("r")
    assert words(graph) == {"draft": "done", "review": "next"}


def test_a_run_that_was_rolled_back_shows_only_what_still_counts() -> None:
    """H6."""
    graph = stopped(research(broken), "r")
    graph.rollback("r", 0)
    assert words(graph) == {"plan": "paused"}
    assert taken(graph) == {("__start__", "plan")}
    done = stopped(research(), "r")
    step = next(each.step for each in done.history("r") if each.node == "combine")
    done.rollback("r", step)
    found = words(done)
    assert (found["rate"], found["combine"]) == ("done", "done")
    assert "quote" not in found
    assert found["combine//page/load"] == "next"
    assert found["combine//page"] == "next, 0 of 3 done"


def test_branches_that_run_right_now_are_shown_as_running(store: Any) -> None:
    """F12: another thread looks on, as another process could."""
    begun = Event()
    release = Event()

    def slow(state: Any) -> dict[str, Any]:
        begun.set()
        assert release.wait(60)
        return {}

    graph = StateGraph(name="g").add_node("plan", run=nothing).add_node("slow", run=slow)
    graph.add_node("quick", run=nothing).add_node("after", run=nothing).add_edge("quick", "after")
    graph.add_fanin_node("join", run=nothing).set_entry_point("plan").set_finish_point("join")
    graph.add_parallel_edge("plan", "slow", "join").add_parallel_edge("plan", "quick", "join")
    graph.compile(store=store, preserve=True)
    working = Thread(target=graph.execute, args=({},), kwargs={"run_id": "r"})
    working.start()
    try:
        assert begun.wait(60)
        deadline = monotonic() + 60
        while words(graph).get("after") != "done" and monotonic() < deadline:
            release.wait(0.01)
        assert words(graph) == {"plan": "done", "slow": "running", "quick": "done", "after": "done"}
    finally:
        release.set()
        working.join()
    assert words(graph)["join"] == "done"


def test_a_fork_shows_what_it_began_with() -> None:
    """H6."""
    graph = stopped(article(), "r")
    graph.fork("r", new_run_id="f")
    assert words(graph, "f") == {"draft": "done", "review": "paused"}


def test_a_run_of_which_only_the_newest_steps_are_kept_still_counts_its_visits() -> None:
    def again(state: Any) -> str:
        return "work" if state["n"] < 600 else "stop"

    graph = StateGraph(name="g").add_node("work", run=lambda state: {"n": state["n"] + 1})
    graph.add_node("stop", run=lambda state: {"x": pause("On?")}).set_entry_point("work").set_finish_point(
        "stop"
    )
    graph.add_conditional_edges("work", again, {"work": "work", "stop": "stop"})
    graph.compile(store=MemoryStore(), keep=2)
    with pytest.raises(RunPaused):
        graph.execute({"n": 0}, run_id="r")
    deadline = monotonic() + 60
    while len(graph.history("r")) >= 600:
        assert monotonic() < deadline, "no old step is deleted"
    assert words(graph) == {"work": "done ×600", "stop": "paused: On?"}
    assert {("work", "work"), ("work", "stop")} <= taken(graph)


def test_a_completed_run_whose_journal_was_deleted_says_so() -> None:
    """G8."""
    graph = resumed(article().compile(store=MemoryStore(), keep_result=False))
    with pytest.raises(RunPaused):
        graph.execute({}, run_id="r")
    resumed(graph, "yes")
    found = marks_of(graph)
    assert (found.status, found.marks.keys()) == ("completed", {"__end__"})
    assert "keep_result=True keeps it" in graph.draw("text", "r")


def test_tasks_are_done_skipped_failed_asking_or_added(store: Any) -> None:
    """D2, D4."""
    flow = weather().compile(store=store)
    flow.add_task("maybe", broken_task, depends_on=["fetch"], safe_to_fail=True)
    with pytest.raises(RunPaused):
        flow.execute({}, run_id="r")
    assert words(flow) == {
        "fetch": "done",
        "chart": "done",
        "radar": "done",
        "warning": "skipped",
        "text": "paused: Which tone?",
        "maybe": "failed: ValueError",
    }
    added = {
        each.label for each in outline_for_run(flow.compiled().plan, marks_of(flow)).shapes if each.added
    }
    assert added == {"radar"}
    assert taken(flow) == {("fetch", name) for name in ("chart", "radar", "text", "maybe")}
    resumed(flow, "calm")
    assert words(flow)["report"] == "done"
    assert ("text", "report") in taken(flow)
    assert ("warning", "report") not in taken(flow)


def broken_task(fetch: Any) -> int:
    raise ValueError(SECRET)


def test_what_stops_a_workflow_is_shown_in_a_task_or_between_layers() -> None:
    def fails(a: Any) -> int:
        raise KeyError(SECRET)

    flow = Workflow("w", preserve=True).add_task("a", lambda: 1).add_task("b", fails, depends_on=["a"])
    stopped(flow, "r")
    assert words(flow) == {"a": "done", "b": "failed: KeyError"}
    assert marks_of(flow).note == ""

    def handler(layer: int) -> None:
        if layer == 0:
            pause("Go on?")

    asking = (
        Workflow("w", preserve=True).add_task("a", lambda: 1).add_task("b", lambda a: 1, depends_on=["a"])
    )
    asking.after_layer(handler)
    stopped(asking, "r")
    assert words(asking) == {"a": "done"}
    assert marks_of(asking).note == "paused: Go on?, between layers"
    outer = StateGraph(name="g").add_node("flow", run=asking).set_entry_point("flow").set_finish_point("flow")
    assert words(stopped(outer, "r")) == {"flow": "paused: Go on?", "flow/a": "done"}


def test_a_graph_inside_of_a_task_is_marked_too_even_of_a_task_that_was_added() -> None:
    flow = Workflow("w", preserve=True).add_template("edit", article())

    def plan(ctx: Any) -> int:
        ctx.add_task("edit 1", run="edit", depends_on=["plan"])
        return 1

    flow.add_task("plan", plan)
    stopped(flow, "r")
    assert words(flow) == {
        "plan": "done",
        "edit 1": "paused",
        "edit 1/draft": "done",
        "edit 1/review": "paused: Publish it?",
    }
    resumed(flow, "yes")
    assert words(flow)["edit 1"] == "done"
    assert words(flow)["edit 1/publish"] == "done"


def test_a_workflow_inside_of_a_graph_is_marked() -> None:
    graph = (
        StateGraph(name="g").add_node("flow", run=weather()).set_entry_point("flow").set_finish_point("flow")
    )
    stopped(graph, "r")
    found = words(graph)
    assert (found["flow"], found["flow/fetch"], found["flow/text"]) == (
        "paused",
        "done",
        "paused: Which tone?",
    )


def test_a_run_is_shown_in_the_graph_of_today() -> None:
    store = MemoryStore()
    with pytest.raises(RunPaused):
        article().compile(store=store).execute({}, run_id="r")
    other = StateGraph(name="article").add_node("publish", run=nothing)
    other.set_entry_point("publish").set_finish_point("publish").compile(store=store)
    for format in ("svg", "mermaid", "text"):
        assert "publish" in other.draw(format, "r")  # type: ignore[arg-type]  # one of the three
        assert "draft" not in other.draw(format, "r")  # type: ignore[arg-type]


def test_a_run_that_is_not_there_is_not_drawn() -> None:
    with pytest.raises(RunNotFound):
        article().compile(store=MemoryStore()).draw(run_id="missing")


def test_no_value_of_the_state_and_no_text_of_an_error_is_in_a_picture() -> None:
    graph = research(broken).compile(store=MemoryStore())
    run = graph.invoke({"token": SECRET, SECRET: 1}, run_id="r")
    run.wait()
    shown = [graph.draw(format, "r") for format in ("svg", "mermaid", "text")]  # type: ignore[arg-type]
    shown += [graph.runs()._repr_html_(), graph._repr_svg_() or "", graph._repr_html_() or ""]
    # Below the picture of a run, a notebook has its error and its state.
    shown += re.findall("<svg.*?</svg>", run._repr_html_() or "", re.DOTALL)
    assert len(shown) == 7
    assert all(len(each) > 100 and SECRET not in each for each in shown)


def test_a_notebook_shows_a_graph_a_run_and_a_list_of_runs() -> None:
    graph = article().compile(store=MemoryStore())
    ElementTree.fromstring(graph._repr_svg_() or "")
    run = graph.invoke({}, run_id="r")
    assert run._repr_html_() == "<pre>&lt;Run r not begun&gt;</pre>"
    assert graph.runs() == []
    run.wait()
    shown = run._repr_html_() or ""
    assert "paused: Publish it?" in shown
    assert "review asks: Publish it?" in shown
    ElementTree.fromstring(shown)
    table = graph.runs()._repr_html_()  # type: ignore[attr-defined]  # a list that a notebook shows
    ElementTree.fromstring(f"<div>{table}</div>")
    assert "<td" in table
    assert "Publish it?" in table
    assert "… and 3 more" in rows_as_html([("<b>",)] * 103, ("run",))
    assert "<b>" not in rows_as_html([("<b>",)], ("run",))


def test_a_run_without_a_store_is_shown_by_what_is_known_of_it() -> None:
    run = research(broken).invoke({})
    run.wait()
    assert "failed: ValueError" in (run._repr_html_() or "")
    done = research().invoke({})
    done.wait()
    session = done._slot.session
    assert session is not None
    found = marks_of_progress(session.compiled.plan, session.progress, "completed")
    assert {place for place, mark in found.marks.items() if mark.kind == "done"} >= {
        "plan",
        "papers",
        "read",
        "rate",
        "news",
        "combine",
        "combine//page",
        "quote",
        "write",
        "__end__",
    }


async def an_async_run() -> str:
    run = article().compile(store=MemoryStore()).ainvoke({})
    await run.wait()
    return run._repr_html_() or ""


def test_an_async_run_is_shown_as_well() -> None:
    """H7."""
    import asyncio

    assert "paused: Publish it?" in asyncio.run(an_async_run())


def test_a_notebook_never_sees_an_exception(tmp_path: Path) -> None:
    graph = article().compile(store=f"sqlite:///{tmp_path}/runs.db")
    run = graph.invoke({}, run_id="r")
    run.wait()
    graph._draft.edges.append(None)  # type: ignore[arg-type]  # not something a user can add
    assert graph._repr_svg_() is None
    compiled = graph._compiled
    assert compiled is not None
    assert compiled.client is not None
    compiled.client.store.delete("r")
    shown = run._repr_html_() or ""
    assert "run 'r'" in unescape(shown), "it says that the run isn't in the store any more"


def test_a_picture_leaves_a_run_as_it_is() -> None:
    store = MemoryStore()
    graph = article().compile(store=store)
    with pytest.raises(RunPaused):
        graph.execute(State({"a": 1}), run_id="r")
    before = store.read("r", first=1)
    for format in ("svg", "mermaid", "text"):
        assert graph.draw(format, "r") == graph.draw(format, "r")  # type: ignore[arg-type]  # one of the three
    assert store.read("r", first=1) == before


def test_a_node_that_waits_for_a_message_is_marked_with_its_name() -> None:
    """H16, H10: a picture says what the run waits for."""
    graph = StateGraph(name="waits").add_node("take", run=lambda state: {"n": receive("note")})
    graph.set_entry_point("take").set_finish_point("take").compile(store=MemoryStore())
    with pytest.raises(RunWaiting):
        graph.execute(run_id="r")
    assert "waits for the message" in graph.draw("svg", "r")
