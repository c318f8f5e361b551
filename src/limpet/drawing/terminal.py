"""A graph as text for a terminal: boxes and lines where they fit into its width, else a list of what follows what."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from textwrap import wrap
from typing import Final, NamedTuple

from limpet.drawing.layout.layout import Box, Layout, Link, Point, Rect, Route, Spacing, Span, lay_out
from limpet.drawing.layout.ranked_graph import Tag
from limpet.drawing.outline import Line, Outline, Shape
from limpet.drawing.run_marks import Mark, RunMarks
from limpet.drawing.terminal_canvas import DOWN, LEFT, RIGHT, UP, Canvas, plain
from limpet.drawing.text_width import cell_count, shortened, single_line

WIDTH = 100
"""How many columns there are, unless it is said otherwise."""

SHORTER: Final = (36, 26, 18, 12)
"""How many letters of a name are shown: as many as let the whole fit."""

MOST = 400
"""How many boxes and lines are drawn; a graph of more is listed."""

ASKED = 20
"""How many questions and errors are listed below."""

SIGNS: Final[Mapping[str, str]] = {
    "done": "✓", "running": "▶", "next": "»", "paused": "‖", "failed": "✗", "skipped": "–",
}  # fmt: skip
PLAIN_SIGNS: Final[Mapping[str, str]] = {
    "done": "*", "running": ">", "next": ">", "paused": "=", "failed": "!", "skipped": "-",
}  # fmt: skip
COLOURS: Final[Mapping[str, str]] = {
    "done": "32", "running": "34;1", "next": "34", "paused": "33;1", "failed": "31;1", "skipped": "90", "idle": "90",
}  # fmt: skip


class Style(NamedTuple):
    """How it is written down: in so many columns, with colours or without, in ASCII alone or with lines."""

    width: int = WIDTH
    coloured: bool = False
    ascii_only: bool = False


def text(outline: Outline, run_marks: RunMarks | None = None, style: Style = Style()) -> str:  # noqa: B008  # frozen
    """The picture as lines of text, none of which is wider than the style allows."""
    head = [shortened(_title(outline, run_marks), style.width)]
    body = _drawn(outline, run_marks, style) or _listed(outline, run_marks, style)
    foot = _foot(run_marks, style) if run_marks is not None else []
    wrong = [shortened(f"! {each}", style.width) for each in outline.mistakes]
    if style.ascii_only:
        head, foot, wrong = ([plain(each) for each in lines] for lines in (head, foot, wrong))
    return "\n".join([*head, *wrong, "", *body, *(["", *foot] if foot else [])]).rstrip() + "\n"


def _title(outline: Outline, run_marks: RunMarks | None) -> str:
    if run_marks is None:
        return outline.name
    note = f", {run_marks.note}" if run_marks.note else ""
    return f"{outline.name} · run {run_marks.run_id}: {run_marks.status}{note}"


def _foot(run_marks: RunMarks, style: Style) -> list[str]:
    """What the signs mean, and in full what there wasn't room for in a box: what is asked, and what failed."""
    signs = PLAIN_SIGNS if style.ascii_only else SIGNS
    said = [
        f"{signs[mark.kind]} {place.replace('//', '/')}: {single_line(mark.detail)}"
        for place, mark in run_marks.marks.items()
        if mark.detail and mark.kind in signs
    ]
    rows = [row for each in said[:ASKED] for row in _wrapped(each, "", style.width)]
    return [*_legend(run_marks, style), *rows]


def _legend(run_marks: RunMarks, style: Style) -> list[str]:
    kinds = {mark.kind for mark in run_marks.marks.values()}
    signs = PLAIN_SIGNS if style.ascii_only else SIGNS
    shown = [f"{sign} {kind}" for kind, sign in signs.items() if kind in kinds]
    return ["   ".join(shown)[: style.width]] if shown else []


def _drawn(outline: Outline, run_marks: RunMarks | None, style: Style) -> list[str]:
    """Boxes and lines; nothing if they don't fit into the width, or are too many to be followed."""
    if len(outline.shapes) + len(outline.lines) > MOST:
        return []
    tightest = _sheet(outline, run_marks, SHORTER[-1], style)
    if tightest.layout.width > style.width:
        return []
    tries = (_sheet(outline, run_marks, letters, style) for letters in SHORTER[:-1])
    sheet = next((each for each in tries if each.layout.width <= style.width), tightest)
    canvas = Canvas(int(sheet.layout.width), int(sheet.layout.height))
    _paint(canvas, sheet, 0, 0)
    return canvas.render(ascii_only=style.ascii_only, coloured=style.coloured).split("\n")


class _Panel(NamedTuple):
    """A shape with the lines of text in it, and the sheet inside of it."""

    shape: Shape
    lines: tuple[str, ...]
    colour: str
    inside: _Sheet | None

    @property
    def size(self) -> tuple[int, int]:
        if self.shape.kind in ("start", "end"):
            return len(self.shape.label), 1
        wide, high = max(map(cell_count, self.lines)) + 4, len(self.lines) + 2
        if self.inside is not None:
            inner = self.inside.layout
            wide, high = max(wide, int(inner.width) + 4), high + int(inner.height)
        return wide | 1, high  # an odd width has a middle, so that lines between boxes can be straight


class _Sheet(NamedTuple):
    """An outline with its layout on the grid."""

    panels: tuple[_Panel, ...]
    lines: tuple[Line, ...]
    labels: tuple[str, ...]
    layout: Layout


def _sheet(outline: Outline, run_marks: RunMarks | None, letters: int, style: Style) -> _Sheet:
    panels = tuple(_panel(shape, run_marks, letters, style) for shape in outline.shapes)
    labels = tuple(shortened(line.label, letters) for line in outline.lines)
    busy = Counter(line.source for line in outline.lines) | Counter(line.target for line in outline.lines)
    boxes = []
    for each in panels:
        wide, high = each.size
        least = 2 * busy[each.shape.id] + 3 if high > 1 else 0  # so that its links don't share a column
        boxes.append(Box(each.shape.id, max(wide, least), high, each.shape.rank))
    links = [
        Link(line.source, line.target, Tag((cell_count(label) + 2) | 1, 1) if label else None)
        for line, label in zip(outline.lines, labels, strict=True)
    ]
    spacing = _GRID._replace(page=style.width)
    return _Sheet(panels, outline.lines, labels, lay_out(boxes, links, spacing))


def _panel(shape: Shape, run_marks: RunMarks | None, letters: int, style: Style) -> _Panel:
    mark = run_marks.mark(shape.id) if run_marks is not None else None
    name = shortened(shape.label, letters) or "?"
    lines = [_signed(name, mark, style)]
    if shape.kind not in ("start", "end"):
        lines += [shortened(each, letters + 6) for each in (shape.note, _more(mark)) if each]
    inside = None if shape.inside is None else _sheet(shape.inside, run_marks, letters, style)
    return _Panel(shape, tuple(lines), "" if mark is None else COLOURS[mark.kind], inside)


def _signed(name: str, mark: Mark | None, style: Style) -> str:
    if mark is None or mark.kind == "idle":
        return name
    sign = (PLAIN_SIGNS if style.ascii_only else SIGNS)[mark.kind]
    return f"{sign} {name} ×{mark.visits}" if mark.visits > 1 and not mark.of else f"{sign} {name}"


def _more(mark: Mark | None) -> str:
    if mark is None:
        return ""
    return f"{mark.visits} of {mark.of} done" if mark.of else mark.detail


def _tracks(spans: Sequence[Span]) -> tuple[list[int], int]:
    """The row in a gap in which each link goes sideways, -1 for none, and how many rows there are.

    No two share a piece of a row. Of those that go the same way, the one that starts further ahead is above.
    """
    right = sorted((n for n, s in enumerate(spans) if s.end > s.start), key=lambda n: (-spans[n].start, n))
    left = sorted((n for n, s in enumerate(spans) if s.end < s.start), key=lambda n: (spans[n].start, n))
    found = [-1] * len(spans)
    for group in (right, left):
        for number in group:
            found[number] = _row_for(number, spans, found, group)
    return found, max(found, default=-1) + 1


def _row_for(number: int, spans: Sequence[Span], found: list[int], group: list[int]) -> int:
    def meets(other: int) -> bool:
        (low, high), (first, last) = sorted(spans[number]), sorted(spans[other])
        return low <= last and first <= high

    placed = [other for other, row in enumerate(found) if row >= 0 and meets(other)]
    above = [found[other] for other in placed if other in group or spans[other].start == spans[number].end]
    row, taken = max(above, default=-1) + 1, {found[other] for other in placed}
    while row in taken:
        row += 1
    return row


def _gap(spans: Sequence[Span], small: bool) -> float:
    return _tracks(spans)[1] + (1 if small else 2)


_GRID = Spacing(apart=3, beside=1, lane=1, port=4, margin=2, loop=4, page=WIDTH, gap=_gap, grid=True)


def _paint(canvas: Canvas, sheet: _Sheet, x: int, y: int) -> None:
    routes = [route.moved(x, y) for route in sheet.layout.routes]
    for panel in sheet.panels:
        _paint_panel(canvas, panel, sheet.layout.boxes[panel.shape.id].moved(x, y))
    _paint_routes(canvas, routes)
    kinds = {panel.shape.id: panel.shape.kind for panel in sheet.panels}
    for route, line, label in zip(routes, sheet.lines, sheet.labels, strict=True):
        _paint_ends(canvas, route, kinds[line.source] in ("start", "end"))
        if route.label is not None and label:
            room = int(route.label.width) - cell_count(label)
            blank = " " * (0 if route.loop else room // 2)
            canvas.write(int(route.label.x), int(route.label.y), blank + label + " " * (room - room // 2))


def _paint_panel(canvas: Canvas, panel: _Panel, rect: Rect) -> None:
    left, top, width, height = (int(each) for each in rect)
    if panel.shape.kind in ("start", "end"):
        canvas.write(left, top, panel.shape.label, panel.colour)
        return
    canvas.box(left, top, width, height, panel.colour)
    for place, line in enumerate(panel.lines):
        shift = 2 if panel.inside is not None else (width - cell_count(line)) // 2
        canvas.write(left + shift, top + 1 + place, line, panel.colour)
    if panel.inside is not None:
        inner = panel.inside.layout
        shift = (width - int(inner.width)) // 2
        _paint(canvas, panel.inside, left + shift, top + 1 + len(panel.lines))


def _paint_routes(canvas: Canvas, routes: list[Route]) -> None:
    """Links along the ranks that they pass, and then, gap by gap, those that cross it."""
    gaps: dict[tuple[int, int], list[tuple[Span, bool]]] = {}
    for route in routes:
        points = route.points[::-1] if route.turned else route.points
        for place, ((x, top), (end, bottom)) in enumerate(pairwise(points) if not route.loop else ()):
            if place % 2:
                gaps.setdefault((int(top), int(bottom)), []).append((Span(x, end), place == 1))
            elif bottom > top:
                _cross(canvas, Span(x, x), int(top), int(bottom), -1)
    for (upper, lower), found in gaps.items():
        rows, _ = _tracks([span for span, _ in found])
        first = 1 if any(begins for _, begins in found) else 0
        for (span, _), row in zip(found, rows, strict=True):
            _cross(canvas, span, upper, lower, upper + first + row if row >= 0 else -1)


def _cross(canvas: Canvas, span: Span, top: int, bottom: int, track: int) -> None:
    """A link through the gap of rows `top` to `bottom`, which goes sideways in the row `track`."""
    start, end = int(span.start), int(span.end)
    if track < 0:
        canvas.down(start, top, bottom - 1)
    else:
        canvas.down(start, top, track)
        canvas.across(track, min(start, end), max(start, end))
        canvas.down(end, track, bottom - 1)
    canvas.stub(start, top, UP)
    canvas.stub(end, bottom - 1, DOWN)


def _paint_ends(canvas: Canvas, route: Route, bare: bool) -> None:
    """The arrow of a link, and where it leaves its box."""
    if route.loop:
        _paint_loop(canvas, route)
        return
    (x, y), (tip_x, tip_y) = route.points[0], route.points[-1]
    if route.turned:
        canvas.write(int(tip_x), int(tip_y), "▲")
        if not bare:
            canvas.stub(int(x), int(y), UP)
    else:
        canvas.write(int(tip_x), int(tip_y) - 1, "▼")
        if not bare:
            canvas.stub(int(x), int(y) - 1, DOWN)


def _paint_loop(canvas: Canvas, route: Route) -> None:
    corners: list[Point] = list(route.points)
    right, far = int(corners[0][0]), int(corners[1][0])
    lower, upper = int(corners[0][1]), int(corners[2][1])
    canvas.across(lower, right, far)
    canvas.across(upper, right, far)
    canvas.down(far, upper, lower)
    canvas.stub(right - 1, lower, RIGHT)
    canvas.stub(right, lower, LEFT)
    canvas.write(right, upper, "◀")


def _listed(outline: Outline, run_marks: RunMarks | None, style: Style) -> list[str]:
    """What follows what, a line for each shape."""
    lines = list(_list_of(outline, run_marks, style, ""))
    return [plain(each) for each in lines] if style.ascii_only else lines


def _list_of(outline: Outline, run_marks: RunMarks | None, style: Style, indent: str) -> Iterator[str]:
    by_layer = sorted(outline.shapes, key=lambda shape: shape.rank or 0) if outline.flow else outline.shapes
    layer = None
    for shape in by_layer:
        if outline.flow and shape.rank != layer:
            layer = shape.rank
            yield f"{indent}layer {(layer or 0) + 1}"
        inner = f"{indent}  " if outline.flow else indent
        if shape.kind != "end":
            yield from _wrapped(_row(shape, outline, run_marks, style), inner, style.width)
        if shape.inside is not None:
            yield from _list_of(shape.inside, run_marks, style, f"{inner}  ")


def _wrapped(row: str, indent: str, width: int) -> Iterator[str]:
    """A row in as many lines as it takes; what is too long even so is shortened."""
    indent = indent[: max(width - 16, 0)]
    room = width - len(indent)
    for line in wrap(row, room, subsequent_indent="    ", break_on_hyphens=False, break_long_words=False):
        blank = len(line) - len(line.lstrip())
        yield indent + line[:blank] + shortened(line, room - blank)


def _row(shape: Shape, outline: Outline, run_marks: RunMarks | None, style: Style) -> str:
    """A shape, and what follows it; for a task, what it depends on."""
    names = {each.id: single_line(each.label) for each in outline.shapes}
    mark = run_marks.mark(shape.id) if run_marks is not None else None
    about = single_line("; ".join(each for each in (shape.note, _more(mark)) if each))
    said = _signed(names[shape.id], mark, style) + (f" ({about})" if about else "")
    if outline.flow:
        needs = [line for line in outline.lines if line.target == shape.id]
        listed = [names[line.source] + (" if there" if line.kind == "optional" else "") for line in needs]
        return f"{said} {'<-' if style.ascii_only else '←'} {', '.join(listed)}" if listed else said
    ways = [line for line in outline.lines if line.source == shape.id]
    listed = [names[line.target] + (f" [{line.label}]" if line.label else "") for line in ways]
    return f"{said} {'->' if style.ascii_only else '→'} {', '.join(listed)}" if listed else said
