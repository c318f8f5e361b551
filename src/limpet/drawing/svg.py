"""A figure as one SVG document: no script, no font, no link; light or dark as the reader prefers."""

from __future__ import annotations

from collections.abc import Iterator
from xml.sax.saxutils import escape, quoteattr

from limpet.drawing.figure import (
    BOX_PADDING,
    ICON_WIDTH,
    NAME_FONT_SIZE,
    SMALL_FONT_SIZE,
    Figure,
    PlacedLine,
    PlacedShape,
    figure_of,
)
from limpet.drawing.layout.layout import Point
from limpet.drawing.outline import Outline
from limpet.drawing.palette import ICONS, STYLE
from limpet.drawing.run_marks import RunMarks
from limpet.drawing.text_width import estimated_width, shortened, single_line

PAGE_MARGIN = 24.0
TITLE_HEIGHT = 22.0
MISTAKE_HEIGHT = 17.0
BLOCK_GAP = 10.0
"""The space below the title, and below the mistakes."""

ARROW_LENGTH = 7.0
MAX_MISTAKES = 8
MAX_DESCRIBED_SHAPES = 200


def svg(outline: Outline, run_marks: RunMarks | None = None, style: str = STYLE) -> str:
    """The picture as a standalone document, which browsers show and pages can embed.

    It has the `style` sheet in it, which may be empty where the page has the rules.
    """
    figure = figure_of(outline, run_marks)
    mistakes = _mistakes(outline)
    caption = shortened(_caption(outline, run_marks), 160)
    mistake_widths = (estimated_width(each, SMALL_FONT_SIZE) for each in mistakes)
    content_width = max(figure.width, estimated_width(caption, NAME_FONT_SIZE), *mistake_widths, 0)
    width = content_width + 2 * PAGE_MARGIN
    top = PAGE_MARGIN + TITLE_HEIGHT + BLOCK_GAP
    if mistakes:
        top += MISTAKE_HEIGHT * len(mistakes) + BLOCK_GAP
    height = top + figure.height + PAGE_MARGIN
    size = f'width="{_number(width)}" height="{_number(height)}"'
    view_box = f'viewBox="0 0 {_number(width)} {_number(height)}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="lp" role="img" {size} '
        f"{view_box} aria-label={quoteattr(caption)}>",
        f"<title>{_text(outline.name)}</title>",
        f"<desc>{_text(_description(outline, run_marks))}</desc>",
        f"<style>{style}</style>",
        f'<rect class="lp-page" {size} rx="10"/>',
        *_heading(outline, run_marks),
        *_mistake_lines(mistakes),
        *_figure(figure.moved((width - figure.width) / 2, top)),
        "</svg>\n",
    ]
    return "\n".join(parts)


def _mistakes(outline: Outline) -> list[str]:
    shown = [shortened(f"• {each}", 110) for each in outline.mistakes[:MAX_MISTAKES]]
    more = len(outline.mistakes) - MAX_MISTAKES
    if more > 0:
        shown.append(f"• and {more} more")
    return shown


def _caption(outline: Outline, run_marks: RunMarks | None) -> str:
    name = shortened(outline.name, 60)
    if run_marks is None:
        return name
    return f"{name} {_run_title(run_marks)}"


def _run_title(run_marks: RunMarks) -> str:
    note = ""
    if run_marks.note:
        note = f", {run_marks.note}"
    return f"· run {shortened(run_marks.run_id, 40)}: {run_marks.status}{note}"


def _description(outline: Outline, run_marks: RunMarks | None) -> str:
    """The picture in words, for screen readers."""
    kind = "workflow" if outline.flow else "graph"
    parts = [f"The {kind} {outline.name}, {len(outline.shapes)} shapes."]
    for shape in outline.shapes[:MAX_DESCRIBED_SHAPES]:
        targets = []
        for line in outline.lines:
            if line.source == shape.id:
                label = f"{line.label}: " if line.label else ""
                targets.append(label + _last_name(line.target))
        mark = ""
        if run_marks is not None:
            mark = f" ({run_marks.mark(shape.id).words})"
        leads_to = ""
        if targets:
            leads_to = f" leads to {', '.join(targets)}"
        parts.append(f"{shape.label}{mark}{leads_to}.")
    return " ".join(parts)


def _last_name(shape_id: str) -> str:
    return shape_id.rpartition("/")[2].strip("_")


def _heading(outline: Outline, run_marks: RunMarks | None) -> Iterator[str]:
    name = shortened(outline.name, 60)
    yield f'<text class="lp-title" x="{_number(PAGE_MARGIN)}" y="{_number(PAGE_MARGIN + 12)}">{_text(name)}'
    if run_marks is not None:
        yield f'<tspan class="lp-run" dx="5">{_text(_run_title(run_marks))}</tspan>'
    yield "</text>"


def _mistake_lines(mistakes: list[str]) -> Iterator[str]:
    for row, mistake in enumerate(mistakes, 1):
        y = PAGE_MARGIN + TITLE_HEIGHT + MISTAKE_HEIGHT * row
        yield f'<text class="lp-mistake" x="{_number(PAGE_MARGIN)}" y="{_number(y)}">{_text(mistake)}</text>'


def _figure(figure: Figure) -> Iterator[str]:
    for line in figure.lines:
        yield from _line(line, figure.sideways)
    for shape in figure.shapes:
        yield from _shape(shape)
    # Labels come last, so that no line and no shape covers them.
    for line in figure.lines:
        yield from _label(line)


def _line(placed: PlacedLine, sideways: bool) -> Iterator[str]:
    points = placed.route.points
    classes = f"lp-line lp-{placed.line.kind}"
    if placed.taken:
        classes += " lp-taken"
    if placed.route.is_loop:
        yield f'<path class="{classes}" d="{_loop_path(points)}"/>'
        yield _arrow(points[-1], (-1, 0), placed.taken)
        return
    points = _without_passed_points(points)
    direction = _direction(points, sideways)
    end = (points[-1][0] - direction[0] * ARROW_LENGTH, points[-1][1] - direction[1] * ARROW_LENGTH)
    yield f'<path class="{classes}" d="{_curved_path((*points[:-1], end), sideways)}"/>'
    yield _arrow(points[-1], direction, placed.taken)


def _without_passed_points(points: tuple[Point, ...]) -> tuple[Point, ...]:
    """The points without those that lie on a straight piece."""
    kept: list[Point] = []
    for point in points:
        if kept and point == kept[-1]:
            continue
        if len(kept) > 1 and any(kept[-2][axis] == kept[-1][axis] == point[axis] for axis in (0, 1)):
            kept.pop()
        kept.append(point)
    return tuple(kept)


def _direction(points: tuple[Point, ...], sideways: bool) -> tuple[int, int]:
    axis = 0 if sideways else 1
    forward = 1
    if points[-1][axis] < points[0][axis]:
        forward = -1
    if sideways:
        return (forward, 0)
    return (0, forward)


def _curved_path(points: tuple[Point, ...], sideways: bool) -> str:
    """A path that is straight along a rank and curved across a gap."""
    parts = [f"M{_point(points[0])}"]
    start = points[0]
    for end in points[1:]:
        if end == start:
            continue
        if sideways:
            offset = abs(end[1] - start[1])
        else:
            offset = abs(end[0] - start[0])
        if offset < 0.01:
            parts.append(f"L{_point(end)}")
        else:
            middle_x = (start[0] + end[0]) / 2
            middle_y = (start[1] + end[1]) / 2
            if sideways:
                first = (middle_x, start[1])
                second = (middle_x, end[1])
            else:
                first = (start[0], middle_y)
                second = (end[0], middle_y)
            parts.append(f"C{_point(first)} {_point(second)} {_point(end)}")
        start = end
    return "".join(parts)


def _loop_path(points: tuple[Point, ...]) -> str:
    start, out, back, end = points
    far = out[0] + (out[0] - start[0]) / 3
    first = (far, start[1])
    second = (far, back[1])
    return f"M{_point(start)}C{_point(first)} {_point(second)} {_point((end[0] + ARROW_LENGTH, end[1]))}"


def _arrow(tip: Point, direction: tuple[int, int], taken: bool) -> str:
    x, y = tip
    dx, dy = direction
    length = ARROW_LENGTH + 1  # the line ends inside of the arrow, so that no gap shows
    half = ARROW_LENGTH * 0.58
    left = (x - dx * length - dy * half, y - dy * length - dx * half)
    right = (x - dx * length + dy * half, y - dy * length + dx * half)
    classes = "lp-arrow"
    if taken:
        classes = "lp-arrow lp-taken"
    return f'<path class="{classes}" d="M{_point(tip)}L{_point(left)}L{_point(right)}Z"/>'


def _label(placed: PlacedLine) -> Iterator[str]:
    rect = placed.route.label
    if rect is None or not placed.label:
        return
    yield (
        f"<g><title>{_text(placed.line.label)}</title>"
        f'<rect class="lp-tag" x="{_number(rect.x)}" y="{_number(rect.y)}" '
        f'width="{_number(rect.width)}" height="{_number(rect.height)}" rx="9"/>'
        f'<text class="lp-label" x="{_number(rect.center_x)}" y="{_number(rect.y + rect.height / 2 + 4)}">'
        f"{_text(placed.label)}</text></g>"
    )


def _shape(placed: PlacedShape) -> Iterator[str]:
    css_class = "lp-unmarked"
    title = placed.shape.label
    if placed.mark is not None:
        css_class = f"lp-{placed.mark.kind}"
        title = f"{placed.shape.label}: {placed.mark.words}"
    yield f'<g class="{css_class}" data-node={quoteattr(single_line(placed.shape.id))}><title>{_text(title)}</title>'
    if placed.shape.kind in ("start", "end"):
        yield from _dot(placed)
    else:
        yield from _box(placed)
        yield from _box_texts(placed)
    if placed.inside is not None:
        yield from _figure(placed.inside)
    yield "</g>"


def _dot(placed: PlacedShape) -> Iterator[str]:
    rect = placed.rect
    x = _number(rect.center_x)
    y = _number(rect.y + rect.height / 2)
    radius = rect.width / 2
    if placed.shape.kind == "end":
        yield f'<circle class="lp-ring" cx="{x}" cy="{y}" r="{_number(radius - 1)}"/>'
        radius -= 3.5
    yield f'<circle class="lp-dot" cx="{x}" cy="{y}" r="{_number(radius - 0.5)}"/>'


def _box(placed: PlacedShape) -> Iterator[str]:
    rect = placed.rect
    shape = placed.shape
    classes = ["lp-group" if placed.inside is not None else "lp-box"]
    if shape.kind == "missing" or shape.added:
        classes.append("lp-dashed")
    if shape.kind == "missing":
        classes.append("lp-missing")
    size = f'width="{_number(rect.width)}" height="{_number(rect.height)}" rx="8"'
    if shape.kind == "map":
        for shift in (6, 3):
            place = f'x="{_number(rect.x + shift)}" y="{_number(rect.y + shift)}"'
            yield f'<rect class="lp-box lp-behind" {place} {size}/>'
    yield f'<rect class="{" ".join(classes)}" x="{_number(rect.x)}" y="{_number(rect.y)}" {size}/>'
    if shape.kind == "fan_in":
        yield _bar(rect.x, rect.right, rect.y)
    if shape.forks:
        yield _bar(rect.x, rect.right, rect.bottom)


def _bar(left: float, right: float, y: float) -> str:
    """The thick line where branches begin or end."""
    return f'<path class="lp-bar" d="M{_point((left + 10, y))}L{_point((right - 10, y))}"/>'


def _box_texts(placed: PlacedShape) -> Iterator[str]:
    rect = placed.rect
    mark = placed.mark
    y = rect.y + 23
    icon_width = 0.0
    if mark is not None and mark.kind in ICONS:
        icon_width = ICON_WIDTH
    if placed.inside is not None:
        # The texts of a group are on the left: lines enter its inside from above, in the middle.
        anchor = " lp-left"
        icon_x = rect.x + BOX_PADDING
        name_x = icon_x + icon_width
        note_x = icon_x
    else:
        anchor = ""
        icon_x = rect.center_x - (estimated_width(placed.name, NAME_FONT_SIZE) + icon_width) / 2
        name_x = rect.center_x + icon_width / 2
        note_x = rect.center_x
    if mark is not None and icon_width:
        yield (
            f'<g transform="translate({_number(icon_x + 7)} {_number(y - 5)})"><circle class="lp-badge" r="7.5"/>'
            f'<path class="lp-sign" d="{ICONS[mark.kind]}"/></g>'
        )
    yield f'<text class="lp-name{anchor}" x="{_number(name_x)}" y="{_number(y)}">{_text(placed.name)}</text>'
    for place, note in enumerate(placed.notes):
        is_last = place == len(placed.notes) - 1
        is_mark = mark is not None and mark.kind != "idle" and is_last
        css_class = "lp-mark" if is_mark else "lp-note"
        note_y = y + 15.5 * (place + 1)
        yield f'<text class="{css_class}{anchor}" x="{_number(note_x)}" y="{_number(note_y)}">{_text(note)}</text>'


def _text(text: str) -> str:
    return escape(single_line(text))


def _point(point: Point) -> str:
    return f"{_number(point[0])} {_number(point[1])}"


def _number(number: float) -> str:
    text = f"{number:.1f}".removesuffix(".0")
    if text == "-0":
        return "0"
    return text
