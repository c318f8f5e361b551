"""Pictures of graphs: what is drawn, in each format, whatever the names are."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import limpet
from limpet import (
    END,
    DefinitionError,
    StateGraph,
    UsageError,
    Workflow,
    key_equals,
)
from limpet.drawing.draw import render_picture
from limpet.drawing.mermaid import escaped, mermaid
from limpet.drawing.outline import Line, Outline, Shape, outline_of_graph, outline_of_plan
from limpet.drawing.palette import DARK_MARKS, LIGHT_MARKS, STYLE
from limpet.drawing.run_marks import Mark, RunMarks
from limpet.drawing.svg import svg
from limpet.drawing.terminal import Style, text
from limpet.drawing.text_width import cell_count, shortened, single_line
from support.graphs import chain
from support.pictures import IMAGES, article, nothing, pictures, research, stopped, unfinished, weather

SVG = "{http://www.w3.org/2000/svg}"
LOGOS = {"logo.svg", "logo-small.svg"}


def lines(outline: Outline) -> set[tuple[str, str, str, str]]:
    return {(line.source, line.target, line.label, line.kind) for line in outline.lines}


def row(*names: str) -> StateGraph:
    return chain(*[nothing] * len(names), names=names)


def nested(depth: int = 3) -> StateGraph:
    graph = article()
    for level in range(depth):
        outer = StateGraph(name=f"level {level}").add_node("before", run=nothing)
        outer.add_node("inner", run=graph).set_entry_point("before").add_edge("before", "inner")
        graph = outer.set_finish_point("inner")
    return graph


def test_an_outline_has_the_start_the_end_and_the_names_of_routes() -> None:
    outline = outline_of_graph(article())
    assert [(shape.label, shape.kind) for shape in outline.shapes] == [
        ("start", "start"),
        ("draft", "node"),
        ("review", "node"),
        ("publish", "node"),
        ("end", "end"),
    ]
    assert lines(outline) == {
        ("__start__", "draft", "", "plain"),
        ("draft", "review", "", "plain"),
        ("review", "publish", "yes", "conditional"),
        ("review", "draft", "no", "conditional"),
        ("publish", "__end__", "", "plain"),
    }


def test_conditional_edges_are_labelled_by_their_predicates() -> None:
    def is_large(state: Any) -> bool:
        return True

    graph = row("a", "b")
    for name in ("c", "d", "e"):
        graph.add_node(name, run=nothing).set_finish_point(name)
    graph.add_edge("b", "c", key_equals("size", 1)).add_edge("b", "d", is_large).add_edge(
        "b", "e", lambda state: 1
    )
    found = {line.target: line.label for line in outline_of_graph(graph).lines if line.source == "b"}
    assert found == {
        "c": "key_equals('size', 1)",
        "d": "is_large",
        "e": "if …",
        "__end__": "else",
    }


def test_several_routes_to_one_node_share_a_line_and_a_route_named_like_its_node_has_no_label() -> None:
    graph = row("a", "b")
    graph._draft.edges.clear()
    graph.add_conditional_edges("a", lambda state: 1, {"b": "b", True: "a", None: "a", "stop": END})
    assert {(line.target, line.label) for line in outline_of_graph(graph).lines if line.source == "a"} == {
        ("b", ""),
        ("a", "True or None"),
        ("__end__", "stop"),
    }


def test_a_way_with_a_delay_shows_it() -> None:
    graph = row("a", "b")
    graph._draft.edges.clear()
    graph.add_edge("a", "b", key_equals("size", 1), delay=90).add_edge("a", "b", delay=7200)
    graph.add_conditional_edges("b", lambda state: 1, {"again": "a", "stop": END}, delay=259_200)
    labels = {(line.source, line.target): line.label for line in outline_of_graph(graph).lines}
    assert labels["a", "b"] == "key_equals('size', 1), after 90 s or else, after 2 hours"
    assert labels["b", "a"] == "again, after 3 days"
    graph._draft.edges.clear()
    assert "after 60 s" in graph.add_edge("a", "b", delay=60).draw("text")


def test_a_choice_that_may_lead_anywhere_says_so() -> None:
    def somewhere(state: Any) -> str:
        return "b"

    graph = StateGraph(name="g").add_node("a", run=nothing).add_node("b", run=nothing)
    graph.set_entry_point("a").add_conditional_edges("a", somewhere).set_finish_point("b")
    assert outline_of_graph(graph).shapes[1].note == "somewhere picks any node"


def test_branches_end_at_the_fan_in_and_not_at_the_end() -> None:
    outline = outline_of_graph(research())
    found = lines(outline)
    assert ("plan", "papers", "", "parallel") in found
    assert ("rate", "combine", "", "plain") in found
    assert ("news", "combine", "", "plain") in found
    assert [line.target for line in outline.lines if line.source == "rate"] == ["combine"]
    kinds = {shape.label: shape.kind for shape in outline.shapes}
    assert kinds["combine"] == "fan_in"
    assert {shape.label for shape in outline.shapes if shape.forks} == {"plan", "combine"}


def test_a_map_over_a_graph_is_a_box_with_the_graph_inside() -> None:
    (box,) = (shape for shape in outline_of_graph(research()).shapes if shape.kind == "map")
    assert (box.id, box.label, box.note) == ("combine//page", "page", "for each of pages")
    assert box.inside is not None
    assert [shape.id for shape in box.inside.shapes][1:3] == ["combine//page/load", "combine//page/parse"]


def test_a_map_over_a_node_is_drawn_as_such() -> None:
    graph = row("a", "b").add_node("work", run=nothing)
    graph._draft.edges.clear()
    graph.add_map("a", "work", lambda state: [], "b")
    (work,) = (shape for shape in outline_of_graph(graph).shapes if shape.label == "work")
    assert (work.kind, work.note) == ("map", "for each item")


@pytest.mark.parametrize("make", [article, research, nested, weather, lambda: row("a")])
def test_a_graph_and_its_plan_have_the_same_outline(make: Callable[[], Any]) -> None:
    graph = make()
    assert outline_of_graph(graph) == outline_of_plan(graph.freeze())


def test_interrupts_are_noted() -> None:
    graph = article().compile(
        interrupt_before=["review"], interrupt_after=["review", "draft"], store="memory"
    )
    notes = {shape.label: shape.note for shape in outline_of_plan(graph.compiled().plan).shapes}
    assert notes["review"] == "stops before and after"
    assert notes["draft"] == "stops after"


def test_a_workflow_is_drawn_by_its_tasks_in_layers() -> None:
    """D1."""
    outline = outline_of_graph(weather())
    assert {shape.label: shape.rank for shape in outline.shapes} == {
        "fetch": 0,
        "chart": 1,
        "text": 1,
        "warning": 1,
        "report": 2,
    }
    assert ("warning", "report", "", "optional") in lines(outline)
    assert next(shape.note for shape in outline.shapes if shape.label == "warning") == "if is_stormy"


def test_a_graph_that_is_not_finished_shows_what_is_there_and_its_mistakes() -> None:
    outline = outline_of_graph(unfinished())
    assert [(shape.label, shape.kind) for shape in outline.shapes] == [
        ("draft", "node"),
        ("reveiw", "missing"),
    ]
    assert "an edge from 'draft': there is no node 'reveiw'" in outline.mistakes
    flow = (
        Workflow("w")
        .add_task("a", lambda b: 1, depends_on=["b"])
        .add_task("c", lambda d: 1, depends_on=["d"])
    )
    flow.add_task("d", lambda c: 1, depends_on=["c"])
    drawn = outline_of_graph(flow)
    assert {shape.kind for shape in drawn.shapes} == {"task", "missing"}
    assert any("circle" in each for each in drawn.mistakes)
    for made in (outline, drawn):
        for format in ("svg", "mermaid", "text"):
            assert render_picture(made, None, format)


def test_a_graph_that_contains_itself_is_drawn_once() -> None:
    graph = StateGraph(name="g").add_node("a", run=nothing).set_entry_point("a").set_finish_point("again")
    graph.add_node("again", run=graph).add_edge("a", "again")
    flow = Workflow("w")
    flow.add_task("a", nothing).add_task("again", flow)
    for each in (graph, flow):
        assert "! the" in text(outline_of_graph(each))
        assert "contains itself" in text(outline_of_graph(each))
        ElementTree.fromstring(each._repr_svg_() or "")


@pytest.mark.parametrize("make", [lambda: StateGraph(name="empty"), lambda: Workflow("empty")])
def test_an_empty_graph_can_be_shown(make: Callable[[], Any]) -> None:
    ElementTree.fromstring(make()._repr_svg_())
    assert text(outline_of_graph(make())).startswith("empty\n! ")


GRAPHS: dict[str, Callable[[], Any]] = {
    "article": article,
    "research": research,
    "nested": nested,
    "weather": weather,
    "unfinished": unfinished,
    "one node": lambda: row("only"),
    "long chain": lambda: row(*(f"node {each}" for each in range(40))),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_an_svg_is_well_formed_and_needs_nothing_from_elsewhere(name: str) -> None:
    made = GRAPHS[name]()._repr_svg_()
    root = ElementTree.fromstring(made)
    assert root.tag == f"{SVG}svg"
    assert [child.tag for child in root][:2] == [f"{SVG}title", f"{SVG}desc"]
    assert (root.get("role"), root.get("aria-label")) == ("img", GRAPHS[name]().name)
    assert {element.tag.removeprefix(SVG) for element in root.iter()} <= {
        "svg",
        "title",
        "desc",
        "style",
        "rect",
        "text",
        "tspan",
        "g",
        "path",
        "circle",
    }
    assert made.count("http") == 1, "the name of the format, and no other address"
    assert not re.search(r"url\(|@import|@font-face|<script|<image|href|\bid=|\bon\w+=", made)


@pytest.mark.parametrize("name", GRAPHS)
def test_all_that_is_drawn_lies_on_the_page(name: str) -> None:
    root = ElementTree.fromstring(GRAPHS[name]()._repr_svg_())
    wide = float(root.get("width", "0"))
    high = float(root.get("height", "0"))
    for rect in root.iter(f"{SVG}rect"):
        x = float(rect.get("x", "0"))
        y = float(rect.get("y", "0"))
        assert 0 <= x <= x + float(rect.get("width", "0")) <= wide
        assert 0 <= y <= y + float(rect.get("height", "0")) <= high


def test_an_svg_is_for_light_and_for_dark_pages_with_enough_contrast() -> None:
    assert "@media (prefers-color-scheme:dark)" in STYLE
    for palette in (LIGHT_MARKS, DARK_MARKS):
        for kind, colours in palette.items():
            assert contrast(colours.text, colours.fill) >= 4.5, kind
            assert contrast("#ffffff", colours.badge) >= 3 or kind == "idle", kind


def contrast(one: str, other: str) -> float:
    """As the guidelines for accessible pages count it."""

    def light(colour: str) -> float:
        parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
        red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    low, high = sorted((light(one), light(other)))
    return (high + 0.05) / (low + 0.05)


HOSTILE = (
    '<script>alert("x")</script>',
    "a\nb\tc\x00d\x1b[31m",
    "\u202eright to left\u2066",
    "🎉 fête 日本語 👩‍🔬",
    "x" * 500,
    "]]> --> <!-- & &amp; '\"` #1; {a} [b] (c) |d| %%{init: x}%%",
    "\ud800 lone",
    "end",
    "",
)


def hostile() -> Outline:
    shapes = tuple(Shape(f"s{place}", each, "node", each) for place, each in enumerate(HOSTILE))
    inner = Outline(HOSTILE[0], (Shape("in/x", HOSTILE[5], "map", HOSTILE[2]),), ())
    lines = [Line(f"s{place}", f"s{(place + 1) % len(HOSTILE)}", each) for place, each in enumerate(HOSTILE)]
    whole = (*shapes, Shape("in", HOSTILE[0], "node", inside=inner))
    return Outline(HOSTILE[5], whole, tuple(lines), mistakes=HOSTILE)


HOSTILE_RUN = RunMarks(
    HOSTILE[0],
    HOSTILE[5],
    {f"s{place}": Mark("paused", 0, each) for place, each in enumerate(HOSTILE)},
    note=HOSTILE[1],
)


@pytest.mark.parametrize("run_marks", [None, HOSTILE_RUN])
def test_hostile_names_stay_text(run_marks: RunMarks | None) -> None:
    outline = hostile()
    made = svg(outline, run_marks)
    root = ElementTree.fromstring(made.encode("utf-8"))
    assert root.find(f".//{SVG}script") is None
    flat = mermaid(outline, run_marks)
    for line in flat.splitlines()[1:]:
        assert re.fullmatch(MERMAID_LINE, line), line
    drawn = text(outline, run_marks, Style(120))
    for each in (made, flat, drawn):
        assert not re.search(r"[\x00-\x09\x0b-\x1f\u202e\u2066\ud800]", each)
    assert max(cell_count(line) for line in drawn.splitlines()) <= 120


MERMAID_LINE = (
    r" +(n\d+(\(|\[\[?|\(\(|\(\(\()\"[^\"<>`{}|\n]*(<br/>[^\"<>`{}|\n]*)*\"(\)|\]\]?|\)\)|\)\)\))"
    r"|subgraph n\d+ \[\"[^\"`{}|\n]*\"\]|direction (TB|LR)|end|%% .*"
    r"|n\d+ (-->|-\.->|==>)(\|\"[^\"<>`{}|\n]*\"\|)? n\d+"
    r"|classDef \w+ fill:#\w+,stroke:#\w+,color:#\w+|class [n\d,]+ \w+)"
)


@settings(max_examples=40, deadline=None)
@given(st.text(max_size=60))
def test_any_text_fits_where_it_is_put(given_text: str) -> None:
    assert not set(escaped(given_text)) & set('"<>`{}|\n')
    assert cell_count(shortened(given_text, 12)) <= 12
    assert single_line(single_line(given_text)) == single_line(given_text)
    outline = Outline("g", (Shape("a", given_text, "node"),), (Line("a", "a", given_text),))
    ElementTree.fromstring(svg(outline).encode("utf-8"))
    assert max(cell_count(line) for line in text(outline, None, Style(40)).splitlines()) <= 40


@pytest.mark.parametrize("name", GRAPHS)
def test_mermaid_text_has_only_lines_that_mermaid_knows(name: str) -> None:
    first, *others = mermaid(outline_of_graph(GRAPHS[name]())).splitlines()
    assert first == ("flowchart LR" if name == "weather" else "flowchart TB")
    for line in others:
        assert re.fullmatch(MERMAID_LINE, line), line
    assert sum(line.strip() == "end" for line in others) == sum("subgraph" in line for line in others)


def test_mermaid_of_a_small_graph() -> None:
    assert article().draw("mermaid") == (
        "flowchart TB\n"
        '    n0(("start"))\n'
        '    n1("draft")\n'
        '    n2("review")\n'
        '    n3("publish")\n'
        '    n4((("end")))\n'
        "    n0 --> n1\n"
        "    n1 --> n2\n"
        '    n2 -->|"yes"| n3\n'
        '    n2 -->|"no"| n1\n'
        "    n3 --> n4\n"
    )


ARTICLE = """\
article

   start
     │
     ▼
 ┌───────┐
 │ draft │
 └─┬─────┘
   │   ▲
   │  no
   ▼   │
┌──────┴──┐
│ review  │
└────┬────┘
     │
    yes
     ▼
┌─────────┐
│ publish │
└────┬────┘
     │
     ▼
    end
"""

ARTICLE_PAUSED = """\
article - run kelp-1: paused

     start
       |
       v
  +---------+
  | * draft |
  +--+------+
     |   ^
     |  no
     v   |
+--------+----+
|  = review   |
| Publish it? |
+------+------+
       |
      yes
       v
  +---------+
  | publish |
  +----+----+
       |
       v
      end

* done   = paused
= review: Publish it?
"""

WEATHER_PAUSED = """\
weather report · run monday: paused

                          ┌─────────┐
                          │ ✓ fetch │
                          └─┬─┬─┬─┬─┘
                            │ │ │ │
     ┌──────────────────────┘ │ │ └──────────────────────┐
     │               ┌────────┘ └───────┐                │
     ▼               ▼                  ▼                ▼
┌─────────┐   ┌─────────────┐   ┌───────────────┐   ┌─────────┐
│ ✓ chart │   │   ‖ text    │   │   – warning   │   │ ✓ radar │
└────┬────┘   │ Which tone? │   │ if is_stormy  │   └────┬────┘
     │        └──────┬──────┘   └───────┬───────┘        │
     │               │                  │                │
     │               └────────┐ ┌───────┘                │
     └──────────────────────┐ │ │ ┌──────────────────────┘
                            ▼ ▼ ▼ ▼
                          ┌─────────┐
                          │ report  │
                          └─────────┘

✓ done   ‖ paused   – skipped
‖ text: Which tone?
"""

WEATHER_LISTED = """\
weather report · run monday: paused

layer 1
  ✓ fetch
layer 2
  ✓ chart ← fetch
  ‖ text (Which tone?) ← fetch
  – warning (if is_stormy) ← fetch
  ✓ radar ← fetch
layer 3
  report ← chart, text, radar, warning
      if there

✓ done   ‖ paused   – skipped
‖ text: Which tone?
"""

LOOP = """\
tries

 start
   │
   ▼
┌─────┐◀─┐
│ try │  │ again
└──┬──┴──┘
   │
 else
   ▼
  end
"""


LOOP_OF_THREE = """\
agent

          start
            │
            ▼
         ┌─────┐
         │ ask │
         └─┬┬──┘
           ││▲
    ┌──────┘│└──┐
    │       └┐  │
    ▼        │  │
┌───────┐    ▼  │
│ tools │   end │
└───┬───┘       │
    │           │
    └───┐   ┌───┘
        ▼   │
     ┌──────┴──┐
     │ checker │
     └─────────┘
"""


def test_text_of_small_graphs() -> None:
    assert article().draw("text") == ARTICLE
    assert stopped(article(), "kelp-1").draw("text", "kelp-1", ascii=True) == ARTICLE_PAUSED
    flow = stopped(weather(), "monday")
    assert flow.draw("text", "monday") == WEATHER_PAUSED
    assert flow.draw("text", "monday", width=40) == WEATHER_LISTED


def test_text_of_a_node_that_follows_itself() -> None:
    def again(state: Any) -> bool:
        return False

    graph = StateGraph(name="tries").add_node("try", run=nothing).add_edge("try", "try", again)
    assert graph.set_entry_point("try").set_finish_point("try").draw("text") == LOOP


def test_text_of_a_loop_has_its_way_back() -> None:
    """Also where that is the rightmost line of the picture."""
    graph = StateGraph(name="agent")
    for name in ("ask", "tools", "checker"):
        graph.add_node(name, run=nothing)
    graph.add_conditional_edges("ask", lambda state: END, ["tools", END])
    graph.add_edge("tools", "checker").add_edge("checker", "ask").set_entry_point("ask")
    assert graph.draw("text") == LOOP_OF_THREE


@pytest.mark.parametrize("width", [20, 30, 45, 60, 80, 100, 200])
@pytest.mark.parametrize("name", GRAPHS)
def test_text_is_never_wider_than_it_may_be_and_leaves_no_name_out(name: str, width: int) -> None:
    outline = outline_of_graph(GRAPHS[name]())
    for ascii_only in (False, True):
        made = text(outline, None, Style(width, ascii_only=ascii_only))
        assert max(cell_count(line) for line in made.splitlines()) <= width
        assert made.isascii() or not ascii_only
        for shape in outline.shapes:
            assert shortened(shape.label, 8)[:7] in made, shape.label


def test_a_graph_too_large_to_be_followed_is_listed() -> None:
    graph = row(*(f"node {each}" for each in range(300)))
    made = graph.draw("text")
    assert "node 298 → node 299\nnode 299 → end\n" in made
    assert len(made.splitlines()) == 303


def test_colours_are_there_when_they_are_asked_for_and_only_then() -> None:
    run_marks = RunMarks("r", "paused", {"draft": Mark("done", 2), "review": Mark("paused", 0, "Publish?")})
    outline = outline_of_graph(article())
    plain = text(outline, run_marks)
    coloured = text(outline, run_marks, Style(coloured=True))
    assert "\x1b" not in plain
    assert "\x1b[32m" in coloured
    assert "\x1b[33;1m" in coloured
    assert re.sub(r"\x1b\[[\d;]*m", "", coloured) == plain


def test_draw_gives_each_format_and_writes_it_down(tmp_path: Path) -> None:
    graph = article()
    assert graph.draw() == graph.draw("svg")
    for name, format in (("a.svg", "svg"), ("a.mmd", "mermaid"), ("a.txt", "text"), ("a.other", "svg")):
        made = graph.draw(path=tmp_path / name)
        assert made == graph.draw(format)  # type: ignore[arg-type]  # one of the three
        assert (tmp_path / name).read_text(encoding="utf-8") == made
    assert graph.draw("mermaid", path=tmp_path / "b.svg").startswith("flowchart")


def test_draw_says_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"one of svg, mermaid, text, not 'svgg'.*'svg'"):
        article().draw("svgg")  # type: ignore[arg-type]  # that is the point
    with pytest.raises(UsageError, match="needs a store"):
        article().draw(run_id="r")
    with pytest.raises(UsageError, match="can't be written to"):
        article().draw(path=tmp_path / "missing" / "a.svg")
    with pytest.raises(UsageError, match="columns, at least 20"):
        article().draw("text", width=3)
    with pytest.raises(DefinitionError):
        unfinished().draw()


NOT_DRAWN = {"demo.svg", *LOGOS}
"""Pictures of the documentation that don't show a graph; `tests/docs` has the test of the demonstration."""


@pytest.mark.parametrize("name", sorted(LOGOS))
def test_a_logo_is_small_and_needs_nothing_from_elsewhere(name: str) -> None:
    text = (IMAGES / name).read_text(encoding="utf-8")
    root = ElementTree.fromstring(text)
    assert {element.tag.removeprefix(SVG) for element in root.iter()} == {"svg", "title", "path"}
    assert len(text) < 3000
    assert text.count("http") == 1, "the name of the format, and no other address"


def test_the_pictures_of_the_documentation_are_current() -> None:
    made = pictures()
    assert {path.name for path in IMAGES.glob("*.svg")} - NOT_DRAWN == made.keys()
    for name, drawn in made.items():
        kept = (IMAGES / name).read_text(encoding="utf-8")
        assert kept == drawn, f"{name} is out of date: PYTHONPATH=src:tests python -m support.pictures"


def test_drawing_is_imported_only_for_a_picture() -> None:
    code = (
        "import sys, limpet; g = limpet.StateGraph().add_node('a').set_entry_point('a').set_finish_point('a');"
        "g.execute({}); assert not [m for m in sys.modules if m.startswith('limpet.drawing')]; g.draw();"
        "assert 'limpet.drawing.svg' in sys.modules"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(limpet.__file__).parents[1])}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)


def test_a_picture_is_the_same_in_every_process() -> None:
    code = "from support.pictures import research; print(research().draw())"
    folders = [str(Path(limpet.__file__).parents[1]), str(Path(__file__).parents[1])]
    made = set()
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(folders), "PYTHONHASHSEED": seed}
        done = subprocess.run([sys.executable, "-c", code], check=True, env=environment, capture_output=True)
        made.add(done.stdout)
    assert len(made) == 1


SWAPPED = """\
swap

      ┌───┐   ┌───┐
      │ a │   │ b │
      └─┬─┘   └─┬─┘
        │       │
        └───────┼──┐
     ┌──────────┘  │
     ▼             ▼
┌─────────┐   ┌─────────┐
│ after_b │   │ after_a │
└─────────┘   └─────────┘
"""


def test_the_tasks_of_a_layer_are_drawn_in_the_order_of_declaration() -> None:
    """H13: though lines cross then, none seems to join another."""
    flow = Workflow("swap").add_task("a", nothing).add_task("b", nothing)
    flow.add_task("after_b", nothing, ["b"]).add_task("after_a", nothing, ["a"])
    assert flow.draw("text").rstrip() == SWAPPED.rstrip()
    names = {}
    for each in ElementTree.fromstring(flow.draw("svg")).iter(SVG + "text"):
        names[each.text] = float(each.get("y") or 0)
    assert names["after_b"] < names["after_a"]


@settings(max_examples=20, deadline=None)
@given(st.permutations(range(4)))
def test_every_line_of_a_picture_leads_from_one_task_to_one_other(order: list[int]) -> None:
    """H13: no two lines share a piece of a column, so that a reader can follow each."""
    flow = Workflow("f")
    for number in range(4):
        flow.add_task(f"from{number}", nothing)
    for number in order:
        flow.add_task(f"to{number}", nothing, [f"from{number}"])
    picture = flow.draw("text")
    assert not {"┤", "├", "┴"} & set(picture)
    assert picture.count("┬") == 4
