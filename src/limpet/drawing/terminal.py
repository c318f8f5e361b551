"""A graph as text for a terminal: boxes and lines where they fit its width, else a list of what follows what."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from textwrap import wrap
from typing import Final, NamedTuple

from limpet.drawing.layout.layout import Box, Layout, Link, Rect, Route, Spacing, Span, lay_out
from limpet.drawing.layout.ranked_graph import LabelSize
from limpet.drawing.outline import Line, Outline, Shape
from limpet.drawing.run_marks import Mark, RunMarks
from limpet.drawing.terminal_canvas import DOWN, LEFT, RIGHT, UP, Canvas, in_ascii
from limpet.drawing.text_width import cell_count, shortened, single_line

DEFAULT_WIDTH = 100
"""How many columns a picture may have if the caller gives no width."""

NAME_LENGTHS: Final = (36, 26, 18, 12)
"""How many letters of a name are shown: the largest number that lets the whole picture fit."""

MAX_DRAWN = 400
"""How many shapes and lines are drawn; a larger graph is listed."""

MAX_DETAILS = 20
"""How many questions and errors are listed below the picture."""

SIGNS: Final[Mapping[str, str]] = {
    "done": "✓",
    "running": "▶",
    "next": "»",
    "paused": "‖",
    "failed": "✗",
    "skipped": "–",
}
ASCII_SIGNS: Final[Mapping[str, str]] = {
    "done": "*",
    "running": ">",
    "next": ">",
    "paused": "=",
    "failed": "!",
    "skipped": "-",
}
COLOUR_CODES: Final[Mapping[str, str]] = {
    "done": "32",
    "running": "34;1",
    "next": "34",
    "paused": "33;1",
    "failed": "31;1",
    "skipped": "90",
    "idle": "90",
}


class Style(NamedTuple):
    """How the picture is written: in how many columns, with or without colours, in ASCII only or with lines."""

    width: int = DEFAULT_WIDTH
    coloured: bool = False
    ascii_only: bool = False

    @property
    def signs(self) -> Mapping[str, str]:
        if self.ascii_only:
            return ASCII_SIGNS
        return SIGNS


_DEFAULT_STYLE: Final = Style()


def text(outline: Outline, run_marks: RunMarks | None = None, style: Style = _DEFAULT_STYLE) -> str:
    """The picture as lines of text, none of which is wider than the style allows."""
    head = [shortened(_title(outline, run_marks), style.width)]
    head += [shortened(f"! {each}", style.width) for each in outline.mistakes]
    body = _drawn_rows(outline, run_marks, style) or _listed_rows(outline, run_marks, style)
    foot = []
    if run_marks is not None:
        foot = [*_legend(run_marks, style), *_details(run_marks, style)]
    if style.ascii_only:
        head = [in_ascii(each) for each in head]
        foot = [in_ascii(each) for each in foot]
    rows = [*head, "", *body]
    if foot:
        rows += ["", *foot]
    return "\n".join(rows).rstrip() + "\n"


def _title(outline: Outline, run_marks: RunMarks | None) -> str:
    if run_marks is None:
        return outline.name
    note = ""
    if run_marks.note:
        note = f", {run_marks.note}"
    return f"{outline.name} · run {run_marks.run_id}: {run_marks.status}{note}"


def _legend(run_marks: RunMarks, style: Style) -> list[str]:
    """What the signs mean."""
    kinds = {mark.kind for mark in run_marks.marks.values()}
    shown = [f"{sign} {kind}" for kind, sign in style.signs.items() if kind in kinds]
    if shown:
        return ["   ".join(shown)[: style.width]]
    return []


def _details(run_marks: RunMarks, style: Style) -> list[str]:
    """Open questions and errors in full, which a box may have to shorten."""
    details = [
        f"{style.signs[mark.kind]} {shape_id.replace('//', '/')}: {single_line(mark.detail)}"
        for shape_id, mark in run_marks.marks.items()
        if mark.detail and mark.kind in style.signs
    ]
    return [row for each in details[:MAX_DETAILS] for row in _wrapped(each, "", style.width)]


def _drawn_rows(outline: Outline, run_marks: RunMarks | None, style: Style) -> list[str]:
    """Boxes and lines; nothing if they don't fit the width, or are too many to follow."""
    if len(outline.shapes) + len(outline.lines) > MAX_DRAWN:
        return []
    # The tightest sheet first: if even that is too wide, the others needn't be laid out.
    sheet = _sheet(outline, run_marks, NAME_LENGTHS[-1], style)
    if sheet.layout.width > style.width:
        return []
    for letters in NAME_LENGTHS[:-1]:
        larger = _sheet(outline, run_marks, letters, style)
        if larger.layout.width <= style.width:
            sheet = larger
            break
    canvas = Canvas(int(sheet.layout.width), int(sheet.layout.height))
    _paint_sheet(canvas, sheet, 0, 0)
    return canvas.render(ascii_only=style.ascii_only, coloured=style.coloured).split("\n")


class _Panel(NamedTuple):
    """A shape with its rows of text, and the sheet inside it."""

    shape: Shape
    rows: tuple[str, ...]
    colour: str
    inside: _Sheet | None

    @property
    def is_bare(self) -> bool:
        """Whether it is a word without a box: the start or the end."""
        return self.shape.kind in ("start", "end")

    @property
    def size(self) -> tuple[int, int]:
        if self.is_bare:
            return len(self.shape.label), 1
        width = max(map(cell_count, self.rows)) + 4
        height = len(self.rows) + 2
        if self.inside is not None:
            width = max(width, int(self.inside.layout.width) + 4)
            height += int(self.inside.layout.height)
        return width | 1, height  # an odd width has a middle, so that lines between boxes can be straight


class _Sheet(NamedTuple):
    """An outline with its layout on the grid of cells."""

    panels: tuple[_Panel, ...]
    lines: tuple[Line, ...]
    labels: tuple[str, ...]
    layout: Layout


def _sheet(outline: Outline, run_marks: RunMarks | None, letters: int, style: Style) -> _Sheet:
    panels = tuple(_panel(shape, run_marks, letters, style) for shape in outline.shapes)
    labels = tuple(shortened(line.label, letters) for line in outline.lines)
    leaving = Counter(line.source for line in outline.lines)
    arriving = Counter(line.target for line in outline.lines)
    most_links = leaving | arriving  # the larger of both counts
    boxes = []
    for panel in panels:
        width, height = panel.size
        if not panel.is_bare:
            width = max(width, 2 * most_links[panel.shape.id] + 3)  # so that its links don't share a column
        boxes.append(Box(panel.shape.id, width, height, panel.shape.rank))
    links = [
        Link(line.source, line.target, _label_size(label))
        for line, label in zip(outline.lines, labels, strict=True)
    ]
    layout = lay_out(boxes, links, _GRID._replace(page_width=style.width))
    return _Sheet(panels, outline.lines, labels, layout)


def _label_size(label: str) -> LabelSize | None:
    if not label:
        return None
    return LabelSize((cell_count(label) + 2) | 1, 1)


def _panel(shape: Shape, run_marks: RunMarks | None, letters: int, style: Style) -> _Panel:
    mark = None
    if run_marks is not None:
        mark = run_marks.mark(shape.id)
    name = shortened(shape.label, letters) or "?"
    rows = [_with_sign(name, mark, style)]
    if shape.kind not in ("start", "end"):
        rows += [shortened(each, letters + 6) for each in (shape.note, _mark_detail(mark)) if each]
    colour = ""
    if mark is not None:
        colour = COLOUR_CODES[mark.kind]
    inside = None
    if shape.inside is not None:
        inside = _sheet(shape.inside, run_marks, letters, style)
    return _Panel(shape, tuple(rows), colour, inside)


def _with_sign(name: str, mark: Mark | None, style: Style) -> str:
    if mark is None or mark.kind == "idle":
        return name
    visits = ""
    if mark.visits > 1 and not mark.of:
        visits = f" ×{mark.visits}"
    return f"{style.signs[mark.kind]} {name}{visits}"


def _mark_detail(mark: Mark | None) -> str:
    if mark is None:
        return ""
    if mark.of:
        return f"{mark.visits} of {mark.of} done"
    return mark.detail


def _tracks(spans: Sequence[Span]) -> tuple[list[int], int]:
    """The row of a gap in which each link goes sideways, -1 for a straight one, and how many rows there are.

    No two links share a cell of a row. Of those that go the same way, the one that starts further ahead is above. One
    that ends in the column where another starts is below it: else it would seem to join it.
    """
    rightwards = [number for number, span in enumerate(spans) if span.end > span.start]
    leftwards = [number for number, span in enumerate(spans) if span.end < span.start]
    rightwards.sort(key=lambda number: (-spans[number].start, number))
    leftwards.sort(key=lambda number: (spans[number].start, number))
    rows = [-1] * len(spans)
    unplaced = [*rightwards, *leftwards]
    while unplaced:
        starts = {spans[number].start for number in unplaced}
        free = [number for number in unplaced if spans[number].end not in starts]
        number = (free or unplaced)[0]
        unplaced.remove(number)
        rows[number] = _free_row(number, spans, rows, rightwards if number in rightwards else leftwards)
    return rows, max(rows, default=-1) + 1


def _free_row(number: int, spans: Sequence[Span], rows: list[int], group: list[int]) -> int:
    low, high = sorted(spans[number])
    overlapping = []
    for other, row in enumerate(rows):
        other_low, other_high = sorted(spans[other])
        if row >= 0 and low <= other_high and other_low <= high:
            overlapping.append(other)
    # Below the links that go the same way, and below one that starts where this one ends.
    above = [
        rows[other] for other in overlapping if other in group or spans[other].start == spans[number].end
    ]
    used = {rows[other] for other in overlapping}
    row = max(above, default=-1) + 1
    while row in used:
        row += 1
    return row


def _row_gap(spans: Sequence[Span], is_small: bool) -> float:
    _, row_count = _tracks(spans)
    return row_count + (1 if is_small else 2)


_GRID = Spacing(
    box_gap=3,
    lane_gap=1,
    lane_width=1,
    port_gap=4,
    corner_margin=2,
    loop_width=4,
    page_width=DEFAULT_WIDTH,
    rank_gap=_row_gap,
    on_grid=True,
)


def _paint_sheet(canvas: Canvas, sheet: _Sheet, x: int, y: int) -> None:
    routes = [route.moved(x, y) for route in sheet.layout.routes]
    for panel in sheet.panels:
        _paint_panel(canvas, panel, sheet.layout.boxes[panel.shape.id].moved(x, y))
    _paint_routes(canvas, routes)
    bare_shapes = {panel.shape.id for panel in sheet.panels if panel.is_bare}
    for route, line, label in zip(routes, sheet.lines, sheet.labels, strict=True):
        if route.is_loop:
            _paint_loop(canvas, route)
        else:
            _paint_ends(canvas, route, line.source in bare_shapes)
        if route.label is not None and label:
            _paint_label(canvas, route.label, label, is_centered=not route.is_loop)


def _paint_panel(canvas: Canvas, panel: _Panel, rect: Rect) -> None:
    left, top, width, height = (int(each) for each in rect)
    if panel.is_bare:
        canvas.write(left, top, panel.shape.label, panel.colour)
        return
    canvas.draw_box(left, top, width, height, panel.colour)
    for place, row in enumerate(panel.rows):
        shift = 2
        if panel.inside is None:
            shift = (width - cell_count(row)) // 2
        canvas.write(left + shift, top + 1 + place, row, panel.colour)
    if panel.inside is not None:
        shift = (width - int(panel.inside.layout.width)) // 2
        _paint_sheet(canvas, panel.inside, left + shift, top + 1 + len(panel.rows))


def _paint_routes(canvas: Canvas, routes: list[Route]) -> None:
    """Paint links along the ranks that they pass, and then, gap by gap, those that cross it."""
    gaps: dict[tuple[int, int], list[tuple[Span, bool]]] = {}
    for route in routes:
        if route.is_loop:
            continue
        points = route.points
        if route.is_reversed:
            points = route.points[::-1]
        for place, ((x, top), (end, bottom)) in enumerate(pairwise(points)):
            is_gap = place % 2 == 1
            if is_gap:
                begins_here = place == 1
                gaps.setdefault((int(top), int(bottom)), []).append((Span(x, end), begins_here))
            elif bottom > top:
                _paint_crossing(canvas, Span(x, x), int(top), int(bottom), None)
    for (upper, lower), crossings in gaps.items():
        tracks, _ = _tracks([span for span, _ in crossings])
        # A box above needs one row for the ends of its links before the first of them may go sideways.
        first_row = upper
        if any(begins_here for _, begins_here in crossings):
            first_row = upper + 1
        for (span, _), track in zip(crossings, tracks, strict=True):
            row = first_row + track if track >= 0 else None
            _paint_crossing(canvas, span, upper, lower, row)


def _paint_crossing(canvas: Canvas, span: Span, top: int, bottom: int, row: int | None) -> None:
    """Paint a link through the gap of rows `top` to `bottom`, which goes sideways in `row` or is straight."""
    start = int(span.start)
    end = int(span.end)
    if row is None:
        canvas.draw_down(start, top, bottom - 1)
    else:
        canvas.draw_down(start, top, row)
        canvas.draw_across(row, min(start, end), max(start, end))
        canvas.draw_down(end, row, bottom - 1)
    canvas.draw_half(start, top, UP)
    canvas.draw_half(end, bottom - 1, DOWN)


def _paint_ends(canvas: Canvas, route: Route, starts_at_word: bool) -> None:
    """Paint the arrow of a link, and the place where it leaves its box; a word has no frame to leave."""
    x, y = (int(each) for each in route.points[0])
    tip_x, tip_y = (int(each) for each in route.points[-1])
    if route.is_reversed:
        canvas.write(tip_x, tip_y, "▲")
        if not starts_at_word:
            canvas.draw_half(x, y, UP)
    else:
        canvas.write(tip_x, tip_y - 1, "▼")
        if not starts_at_word:
            canvas.draw_half(x, y - 1, DOWN)


def _paint_loop(canvas: Canvas, route: Route) -> None:
    right = int(route.points[0][0])
    far = int(route.points[1][0])
    lower = int(route.points[0][1])
    upper = int(route.points[2][1])
    canvas.draw_across(lower, right, far)
    canvas.draw_across(upper, right, far)
    canvas.draw_down(far, upper, lower)
    canvas.draw_half(right - 1, lower, RIGHT)
    canvas.draw_half(right, lower, LEFT)
    canvas.write(right, upper, "◀")


def _paint_label(canvas: Canvas, rect: Rect, label: str, is_centered: bool) -> None:
    room = int(rect.width) - cell_count(label)
    before = room // 2 if is_centered else 0
    after = room - room // 2
    canvas.write(int(rect.x), int(rect.y), " " * before + label + " " * after)


def _listed_rows(outline: Outline, run_marks: RunMarks | None, style: Style) -> list[str]:
    """What follows what, one row for each shape."""
    rows = list(_rows_of(outline, run_marks, style, ""))
    if style.ascii_only:
        return [in_ascii(each) for each in rows]
    return rows


def _rows_of(outline: Outline, run_marks: RunMarks | None, style: Style, indent: str) -> Iterator[str]:
    shapes: Sequence[Shape] = outline.shapes
    shape_indent = indent
    if outline.flow:
        shapes = sorted(shapes, key=lambda shape: shape.rank or 0)
        shape_indent = f"{indent}  "
    layer = None
    for shape in shapes:
        if outline.flow and shape.rank != layer:
            layer = shape.rank
            yield f"{indent}layer {(layer or 0) + 1}"
        if shape.kind != "end":
            yield from _wrapped(_row(shape, outline, run_marks, style), shape_indent, style.width)
        if shape.inside is not None:
            yield from _rows_of(shape.inside, run_marks, style, f"{shape_indent}  ")


def _row(shape: Shape, outline: Outline, run_marks: RunMarks | None, style: Style) -> str:
    """A shape and what follows it; for a task, what it depends on."""
    names = {each.id: single_line(each.label) for each in outline.shapes}
    mark = None
    if run_marks is not None:
        mark = run_marks.mark(shape.id)
    about = single_line("; ".join(each for each in (shape.note, _mark_detail(mark)) if each))
    row = _with_sign(names[shape.id], mark, style)
    if about:
        row += f" ({about})"
    listed = []
    for line in outline.lines:
        if outline.flow and line.target == shape.id:
            listed.append(names[line.source] + (" if there" if line.kind == "optional" else ""))
        elif not outline.flow and line.source == shape.id:
            listed.append(names[line.target] + (f" [{line.label}]" if line.label else ""))
    if not listed:
        return row
    if style.ascii_only:
        arrow = "<-" if outline.flow else "->"
    else:
        arrow = "←" if outline.flow else "→"
    return f"{row} {arrow} {', '.join(listed)}"


def _wrapped(row: str, indent: str, width: int) -> Iterator[str]:
    """A row in as many lines as it takes; a word that is too long even for a line of its own is shortened."""
    indent = indent[: max(width - 16, 0)]
    room = width - len(indent)
    for line in wrap(row, room, subsequent_indent="    ", break_on_hyphens=False, break_long_words=False):
        blanks = len(line) - len(line.lstrip())
        yield indent + line[:blanks] + shortened(line, room - blanks)
