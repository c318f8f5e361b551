"""A figure: every shape of an outline with its place on a page and what is written in it, at all depths.

A state graph goes from top to bottom, a workflow from left to right, one column for each layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from limpet.drawing.layout.layout import Box, Link, Rect, Route, Spacing, Span, lay_out
from limpet.drawing.layout.ranked_graph import Tag
from limpet.drawing.outline import Line, Outline, Shape
from limpet.drawing.run_marks import Mark, RunMarks
from limpet.drawing.text_width import estimated_width, shortened

NAME, SMALL = 14.0, 11.5
"""The sizes of letters: of names, and of everything else."""

LONGEST_NAME, LONGEST_NOTE, LONGEST_LABEL = 34, 44, 30
"""How many letters are shown of them."""

NAMELESS = "?"

PAD, ICON = 16.0, 20.0
DOT = 16.0


class Drawn(NamedTuple):
    """A shape in its place, with the lines of text that are in it. `inside` is relative to the page."""

    shape: Shape
    rect: Rect
    name: str
    notes: tuple[str, ...]
    mark: Mark | None
    inside: Figure | None = None


class Traced(NamedTuple):
    """A line with its way over the page."""

    line: Line
    route: Route
    label: str
    taken: bool


class Figure(NamedTuple):
    """All that is on a page, or inside of a shape."""

    shapes: tuple[Drawn, ...]
    lines: tuple[Traced, ...]
    width: float
    height: float
    sideways: bool

    def moved(self, x: float, y: float) -> Figure:
        """The same elsewhere."""
        shapes = tuple(
            each._replace(rect=each.rect.moved(x, y), inside=each.inside and each.inside.moved(x, y))
            for each in self.shapes
        )
        return self._replace(
            shapes=shapes, lines=tuple(each._replace(route=each.route.moved(x, y)) for each in self.lines)
        )


def figure_of(outline: Outline, run_marks: RunMarks | None = None) -> Figure:
    """Find a place for everything in an outline, with how a run stands in it."""
    drawn = [_drawn(shape, run_marks) for shape in outline.shapes]
    boxes = [Box(each.shape.id, each.rect.width, each.rect.height, each.shape.rank) for each in drawn]
    labels = [shortened(line.label, LONGEST_LABEL) for line in outline.lines]
    tags = [Tag(estimated_width(label, SMALL) + 10, 18.0) if label else None for label in labels]
    links = [Link(line.source, line.target, tag) for line, tag in zip(outline.lines, tags, strict=True)]
    if outline.flow:
        boxes = [box._replace(width=box.height, height=box.width) for box in boxes]
        links = [link._replace(label=link.label and Tag(*reversed(link.label))) for link in links]
    made = lay_out(boxes, links, _SIDEWAYS if outline.flow else _DOWN)
    rects, routes, size = made.boxes, list(made.routes), (made.width, made.height)
    if outline.flow:
        rects = {name: _flipped(rect) for name, rect in rects.items()}
        routes, size = [_turned(route) for route in routes], (made.height, made.width)
    shapes = tuple(_placed(each, rects[each.shape.id]) for each in drawn)
    lines = tuple(
        Traced(line, route, label, _taken(line, run_marks))
        for line, route, label in zip(outline.lines, routes, labels, strict=True)
    )
    return Figure(shapes, lines, *size, outline.flow)


def _gap(spans: Sequence[Span], small: bool) -> float:
    """Links that go far to the side get more height, so that they don't lie flat."""
    widest = max((abs(span.end - span.start) for span in spans), default=0.0)
    return (18.0 if small else 40.0) + min(widest * 0.05, 46.0)


def _column_gap(spans: Sequence[Span], small: bool) -> float:
    widest = max((abs(span.end - span.start) for span in spans), default=0.0)
    return 48.0 + min(widest * 0.08, 60.0)


_DOWN = Spacing(apart=30, beside=18, lane=10, port=18, margin=16, loop=30, page=640, gap=_gap)
_SIDEWAYS = Spacing(apart=16, beside=10, lane=6, port=9, margin=6, loop=30, page=640, gap=_column_gap)


def _drawn(shape: Shape, run_marks: RunMarks | None) -> Drawn:
    """A shape with its text and its size, not yet in its place."""
    mark = run_marks.mark(shape.id) if run_marks is not None else None
    if shape.kind in ("start", "end"):
        return Drawn(shape, Rect(0, 0, DOT, DOT), "", (), mark)
    name = shortened(shape.label, LONGEST_NAME) or NAMELESS
    notes = [shortened(shape.note, LONGEST_NOTE)] if shape.note else []
    if mark is not None and mark.kind != "idle":
        notes.append(shortened(mark.words, LONGEST_NOTE))
    inside = figure_of(shape.inside, run_marks) if shape.inside is not None else None
    icon = ICON if mark is not None and mark.kind != "idle" else 0.0
    width = (
        max(estimated_width(name, NAME) + icon, *(estimated_width(note, SMALL) for note in notes), 40.0)
        + 2 * PAD
    )
    height = 36.0 + 15.0 * len(notes)
    if inside is not None:
        width, height = max(width, inside.width + 2 * PAD), height + inside.height + PAD
    return Drawn(shape, Rect(0, 0, round(width), round(height)), name, tuple(notes), mark, inside)


def _placed(drawn: Drawn, rect: Rect) -> Drawn:
    inside = drawn.inside
    if inside is not None:
        left = rect.x + (rect.width - inside.width) / 2
        inside = inside.moved(left, rect.bottom - PAD - inside.height)
    return drawn._replace(rect=rect, inside=inside)


def _flipped(rect: Rect) -> Rect:
    return Rect(rect.y, rect.x, rect.height, rect.width)


def _turned(route: Route) -> Route:
    points = tuple((y, x) for x, y in route.points)
    return route._replace(points=points, label=route.label and _flipped(route.label))


def _taken(line: Line, run_marks: RunMarks | None) -> bool:
    """Whether a run took it. What it took before it was rolled back doesn't count."""
    if run_marks is None or "idle" in (run_marks.mark(line.source).kind, run_marks.mark(line.target).kind):
        return False
    return (line.source, line.target) in run_marks.taken or (
        line.kind == "parallel" and run_marks.mark(line.source).kind == "done"
    )
