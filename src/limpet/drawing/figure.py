"""A figure: every shape of an outline with its place on the page and its texts, at all depths.

A state graph goes from top to bottom, a workflow from left to right, one column for each layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from limpet.drawing.layout.layout import Box, Layout, Link, Rect, Route, Spacing, Span, lay_out
from limpet.drawing.layout.ranked_graph import LabelSize
from limpet.drawing.outline import Line, Outline, Shape
from limpet.drawing.run_marks import Mark, RunMarks
from limpet.drawing.text_width import estimated_width, shortened

NAME_FONT_SIZE = 14.0
SMALL_FONT_SIZE = 11.5

MAX_NAME_LETTERS = 34
MAX_NOTE_LETTERS = 44
MAX_LABEL_LETTERS = 30

NAME_IF_EMPTY = "?"

BOX_PADDING = 16.0
ICON_WIDTH = 20.0
MIN_TEXT_WIDTH = 40.0
NAME_HEIGHT = 36.0
NOTE_HEIGHT = 15.0
LABEL_HEIGHT = 18.0
LABEL_PADDING = 10.0
DOT_SIZE = 16.0
"""The size of the dots that stand for the start and the end."""


class PlacedShape(NamedTuple):
    """A shape in its place, with its texts. Places inside it are relative to the page."""

    shape: Shape
    rect: Rect
    name: str
    notes: tuple[str, ...]
    mark: Mark | None
    inside: Figure | None = None


class PlacedLine(NamedTuple):
    """A line with its route over the page, and whether the run took it."""

    line: Line
    route: Route
    label: str
    taken: bool


class Figure(NamedTuple):
    """Everything on a page, or inside a shape."""

    shapes: tuple[PlacedShape, ...]
    lines: tuple[PlacedLine, ...]
    width: float
    height: float
    sideways: bool

    def moved(self, x: float, y: float) -> Figure:
        """The same figure, moved."""
        shapes = tuple(
            each._replace(rect=each.rect.moved(x, y), inside=each.inside and each.inside.moved(x, y))
            for each in self.shapes
        )
        lines = tuple(each._replace(route=each.route.moved(x, y)) for each in self.lines)
        return self._replace(shapes=shapes, lines=lines)


def figure_of(outline: Outline, run_marks: RunMarks | None = None) -> Figure:
    """Place everything of an outline, with the marks of a run."""
    sized = [_sized(shape, run_marks) for shape in outline.shapes]
    boxes = [Box(each.shape.id, each.rect.width, each.rect.height, each.shape.rank) for each in sized]
    labels = [shortened(line.label, MAX_LABEL_LETTERS) for line in outline.lines]
    links = [
        Link(line.source, line.target, _label_size(label))
        for line, label in zip(outline.lines, labels, strict=True)
    ]
    if outline.flow:
        layout = _sideways_layout(boxes, links)
    else:
        layout = lay_out(boxes, links, _DOWN)
    shapes = tuple(_placed(each, layout.boxes[each.shape.id]) for each in sized)
    lines = tuple(
        PlacedLine(line, route, label, _is_taken(line, run_marks))
        for line, route, label in zip(outline.lines, layout.routes, labels, strict=True)
    )
    return Figure(shapes, lines, layout.width, layout.height, outline.flow)


def _sized(shape: Shape, run_marks: RunMarks | None) -> PlacedShape:
    """A shape with its texts and its size, not yet in its place."""
    mark = None
    if run_marks is not None:
        mark = run_marks.mark(shape.id)
    if shape.kind in ("start", "end"):
        return PlacedShape(shape, Rect(0, 0, DOT_SIZE, DOT_SIZE), "", (), mark)
    name = shortened(shape.label, MAX_NAME_LETTERS) or NAME_IF_EMPTY
    notes = []
    name_width = estimated_width(name, NAME_FONT_SIZE)
    if shape.note:
        notes.append(shortened(shape.note, MAX_NOTE_LETTERS))
    if mark is not None and mark.kind != "idle":
        notes.append(shortened(mark.words, MAX_NOTE_LETTERS))
        name_width += ICON_WIDTH
    note_widths = (estimated_width(note, SMALL_FONT_SIZE) for note in notes)
    width = max(name_width, *note_widths, MIN_TEXT_WIDTH) + 2 * BOX_PADDING
    height = NAME_HEIGHT + NOTE_HEIGHT * len(notes)
    inside = None
    if shape.inside is not None:
        inside = figure_of(shape.inside, run_marks)
        width = max(width, inside.width + 2 * BOX_PADDING)
        height += inside.height + BOX_PADDING
    rect = Rect(0, 0, round(width), round(height))
    return PlacedShape(shape, rect, name, tuple(notes), mark, inside)


def _label_size(label: str) -> LabelSize | None:
    if not label:
        return None
    return LabelSize(estimated_width(label, SMALL_FONT_SIZE) + LABEL_PADDING, LABEL_HEIGHT)


def _sideways_layout(boxes: list[Box], links: list[Link]) -> Layout:
    """A layout from left to right: one from top to bottom, with x and y exchanged before and after."""
    turned_boxes = [box._replace(width=box.height, height=box.width) for box in boxes]
    turned_links = [link._replace(label=link.label and LabelSize(*reversed(link.label))) for link in links]
    layout = lay_out(turned_boxes, turned_links, _SIDEWAYS)
    return Layout(
        {name: _turned_rect(rect) for name, rect in layout.boxes.items()},
        tuple(_turned_route(route) for route in layout.routes),
        layout.height,
        layout.width,
    )


def _turned_rect(rect: Rect) -> Rect:
    return Rect(rect.y, rect.x, rect.height, rect.width)


def _turned_route(route: Route) -> Route:
    points = tuple((y, x) for x, y in route.points)
    return route._replace(points=points, label=route.label and _turned_rect(route.label))


def _row_gap(spans: Sequence[Span], is_small: bool) -> float:
    """The height between two rows. Links that go far to the side get more, so that they don't lie flat."""
    return (18.0 if is_small else 40.0) + min(_widest(spans) * 0.05, 46.0)


def _column_gap(spans: Sequence[Span], is_small: bool) -> float:
    """The width between two columns of a workflow."""
    return 48.0 + min(_widest(spans) * 0.08, 60.0)


def _widest(spans: Sequence[Span]) -> float:
    return max((abs(span.end - span.start) for span in spans), default=0.0)


_DOWN = Spacing(
    box_gap=30,
    lane_gap=18,
    lane_width=10,
    port_gap=18,
    corner_margin=16,
    loop_width=30,
    page_width=640,
    rank_gap=_row_gap,
)
_SIDEWAYS = Spacing(
    box_gap=16,
    lane_gap=10,
    lane_width=6,
    port_gap=9,
    corner_margin=6,
    loop_width=30,
    page_width=640,
    rank_gap=_column_gap,
)


def _placed(sized: PlacedShape, rect: Rect) -> PlacedShape:
    inside = sized.inside
    if inside is not None:
        left = rect.x + (rect.width - inside.width) / 2
        inside = inside.moved(left, rect.bottom - BOX_PADDING - inside.height)
    return sized._replace(rect=rect, inside=inside)


def _is_taken(line: Line, run_marks: RunMarks | None) -> bool:
    """Whether the run took a line. A line that it took before a rollback doesn't count."""
    if run_marks is None:
        return False
    source = run_marks.mark(line.source)
    target = run_marks.mark(line.target)
    if source.kind == "idle" or target.kind == "idle":
        return False
    if (line.source, line.target) in run_marks.taken:
        return True
    return line.kind == "parallel" and source.kind == "done"
