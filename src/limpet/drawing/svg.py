"""A figure as one SVG: no script, no font, no address; light and dark by what the reader prefers."""

from __future__ import annotations

from collections.abc import Iterator
from xml.sax.saxutils import escape, quoteattr

from limpet.drawing.figure import ICON, NAME, PAD, SMALL, Drawn, Figure, Traced, figure_of
from limpet.drawing.layout.layout import Point
from limpet.drawing.outline import Outline
from limpet.drawing.palette import ICONS, STYLE
from limpet.drawing.run_marks import RunMarks
from limpet.drawing.text_width import estimated_width, shortened, single_line

MARGIN, TITLE, LINE = 24.0, 22.0, 17.0
ARROW = 7.0
MISTAKES = 8
"""How many mistakes are listed."""


def svg(outline: Outline, run_marks: RunMarks | None = None) -> str:
    """The picture as a document of its own, which any browser shows and any page may contain."""
    figure = figure_of(outline, run_marks)
    mistakes = _mistakes(outline)
    caption = shortened(_caption(outline, run_marks), 160)
    wide = (
        max(
            figure.width,
            estimated_width(caption, NAME),
            *(estimated_width(each, SMALL) for each in mistakes),
            0,
        )
        + 2 * MARGIN
    )
    top = MARGIN + TITLE + 10 + (LINE * len(mistakes) + 10 if mistakes else 0)
    high = top + figure.height + MARGIN
    size = f'width="{_n(wide)}" height="{_n(high)}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" class="hf" role="img" {size} '
            f'viewBox="0 0 {_n(wide)} {_n(high)}" aria-label={quoteattr(caption)}>',
            f"<title>{_text(outline.name)}</title>",
            f"<desc>{_text(_described(outline, run_marks))}</desc>",
            f"<style>{STYLE}</style>",
            f'<rect class="hf-page" {size} rx="10"/>',
            *_heading(outline, run_marks),
            *(
                f'<text class="hf-wrong" x="{_n(MARGIN)}" y="{_n(MARGIN + TITLE + LINE * row)}">{_text(each)}</text>'
                for row, each in enumerate(mistakes, 1)
            ),
            *_figure(figure.moved((wide - figure.width) / 2, top)),
            "</svg>\n",
        ]
    )


def _mistakes(outline: Outline) -> list[str]:
    shown = [shortened(f"• {each}", 110) for each in outline.mistakes[:MISTAKES]]
    more = len(outline.mistakes) - MISTAKES
    return [*shown, f"• and {more} more"] if more > 0 else shown


def _caption(outline: Outline, run_marks: RunMarks | None) -> str:
    name = shortened(outline.name, 60)
    return (
        name if run_marks is None else f"{name} · run {shortened(run_marks.run_id, 40)}: {_status(run_marks)}"
    )


def _status(run_marks: RunMarks) -> str:
    return f"{run_marks.status}, {run_marks.note}" if run_marks.note else run_marks.status


def _heading(outline: Outline, run_marks: RunMarks | None) -> Iterator[str]:
    name = shortened(outline.name, 60)
    yield f'<text class="hf-title" x="{_n(MARGIN)}" y="{_n(MARGIN + 12)}">{_text(name)}'
    if run_marks is not None:
        run = f"· run {shortened(run_marks.run_id, 40)}: {_status(run_marks)}"
        yield f'<tspan class="hf-run" dx="5">{_text(run)}</tspan>'
    yield "</text>"


def _described(outline: Outline, run_marks: RunMarks | None) -> str:
    """The picture in words, for those who don't see it."""
    kind = "workflow" if outline.flow else "graph"
    parts = [f"The {kind} {outline.name}, {len(outline.shapes)} shapes."]
    for shape in outline.shapes[:200]:
        following = [f"{line.label}: {_last(line.target)}" if line.label else _last(line.target)
                     for line in outline.lines if line.source == shape.id]  # fmt: skip
        stands = f" ({run_marks.mark(shape.id).words})" if run_marks is not None else ""
        leads = f" leads to {', '.join(following)}" if following else ""
        parts.append(f"{shape.label}{stands}{leads}.")
    return " ".join(parts)


def _last(place: str) -> str:
    return place.rpartition("/")[2].strip("_")


def _figure(figure: Figure) -> Iterator[str]:
    for traced in figure.lines:
        yield from _line(traced, figure.sideways)
    for drawn in figure.shapes:
        yield from _shape(drawn)
    for traced in figure.lines:
        yield from _label(traced)


def _line(traced: Traced, sideways: bool) -> Iterator[str]:
    points = traced.route.points
    classes = f"hf-line hf-{traced.line.kind}{' hf-taken' if traced.taken else ''}"
    if traced.route.loop:
        yield f'<path class="{classes}" d="{_looped(points)}"/>'
        yield _arrow(points[-1], (-1, 0), traced.taken)
        return
    points = _straightened(points)
    ahead = _direction(points, sideways)
    end = (points[-1][0] - ahead[0] * ARROW, points[-1][1] - ahead[1] * ARROW)
    yield f'<path class="{classes}" d="{_curved((*points[:-1], end), sideways)}"/>'
    yield _arrow(points[-1], ahead, traced.taken)


def _straightened(points: tuple[Point, ...]) -> tuple[Point, ...]:
    """Without the points that a straight piece passes."""
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
    forward = 1 if points[-1][axis] >= points[0][axis] else -1
    return (forward, 0) if sideways else (0, forward)


def _curved(points: tuple[Point, ...], sideways: bool) -> str:
    """Straight along a rank, and smooth across a gap."""
    parts = [f"M{_p(points[0])}"]
    here = points[0]
    for point in points[1:]:
        aside = abs(point[1] - here[1]) if sideways else abs(point[0] - here[0])
        if point == here:
            continue
        if aside < 0.01:
            parts.append(f"L{_p(point)}")
        else:
            half = ((here[0] + point[0]) / 2, (here[1] + point[1]) / 2)
            first = (half[0], here[1]) if sideways else (here[0], half[1])
            second = (half[0], point[1]) if sideways else (point[0], half[1])
            parts.append(f"C{_p(first)} {_p(second)} {_p(point)}")
        here = point
    return "".join(parts)


def _looped(points: tuple[Point, ...]) -> str:
    start, out, back, end = points
    far = out[0] + (out[0] - start[0]) / 3
    return f"M{_p(start)}C{_p((far, start[1]))} {_p((far, back[1]))} {_p((end[0] + ARROW, end[1]))}"


def _arrow(tip: Point, ahead: tuple[int, int], taken: bool) -> str:
    x, y = tip
    dx, dy = ahead
    half = ARROW * 0.58
    left = (x - dx * (ARROW + 1) - dy * half, y - dy * (ARROW + 1) - dx * half)
    right = (x - dx * (ARROW + 1) + dy * half, y - dy * (ARROW + 1) + dx * half)
    return f'<path class="hf-arrow{" hf-taken" if taken else ""}" d="M{_p(tip)}L{_p(left)}L{_p(right)}Z"/>'


def _label(traced: Traced) -> Iterator[str]:
    rect = traced.route.label
    if rect is None or not traced.label:
        return
    yield (
        f'<g><title>{_text(traced.line.label)}</title><rect class="hf-tag" x="{_n(rect.x)}" y="{_n(rect.y)}" '
        f'width="{_n(rect.width)}" height="{_n(rect.height)}" rx="9"/>'
        f'<text class="hf-label" x="{_n(rect.middle)}" y="{_n(rect.y + rect.height / 2 + 4)}">'
        f"{_text(traced.label)}</text></g>"
    )


def _shape(drawn: Drawn) -> Iterator[str]:
    mark = drawn.mark
    kind = f"hf-{mark.kind}" if mark is not None else "hf-plain-node"
    title = drawn.shape.label if mark is None else f"{drawn.shape.label}: {mark.words}"
    yield f'<g class="{kind}"><title>{_text(title)}</title>'
    if drawn.shape.kind in ("start", "end"):
        yield from _dot(drawn)
    else:
        yield from _box(drawn)
        yield from _lettering(drawn)
    if drawn.inside is not None:
        yield from _figure(drawn.inside)
    yield "</g>"


def _dot(drawn: Drawn) -> Iterator[str]:
    rect = drawn.rect
    x, y, radius = rect.middle, rect.y + rect.height / 2, rect.width / 2
    if drawn.shape.kind == "end":
        yield f'<circle class="hf-ring" cx="{_n(x)}" cy="{_n(y)}" r="{_n(radius - 1)}"/>'
        radius -= 3.5
    yield f'<circle class="hf-dot" cx="{_n(x)}" cy="{_n(y)}" r="{_n(radius - 0.5)}"/>'


def _box(drawn: Drawn) -> Iterator[str]:
    rect, shape = drawn.rect, drawn.shape
    classes = ["hf-group" if drawn.inside is not None else "hf-box"]
    if shape.kind == "missing" or shape.added:
        classes.append("hf-dashed")
    if shape.kind == "missing":
        classes.append("hf-missing")
    size = f'width="{_n(rect.width)}" height="{_n(rect.height)}" rx="8"'
    if shape.kind == "map":
        for shift in (6, 3):
            yield f'<rect class="hf-box hf-behind" x="{_n(rect.x + shift)}" y="{_n(rect.y + shift)}" {size}/>'
    yield f'<rect class="{" ".join(classes)}" x="{_n(rect.x)}" y="{_n(rect.y)}" {size}/>'
    for wanted, y in ((shape.kind == "fan_in", rect.y), (shape.forks, rect.bottom)):
        if wanted:
            yield f'<path class="hf-bar" d="M{_p((rect.x + 10, y))}L{_p((rect.right - 10, y))}"/>'


def _lettering(drawn: Drawn) -> Iterator[str]:
    rect, mark = drawn.rect, drawn.mark
    y = rect.y + 23
    icon = ICON if mark is not None and mark.kind in ICONS else 0.0
    group = drawn.inside is not None
    wide = estimated_width(drawn.name, NAME)
    x = rect.x + PAD if group else rect.middle - (wide + icon) / 2
    if mark is not None and icon:
        yield (
            f'<g transform="translate({_n(x + 7)} {_n(y - 5)})"><circle class="hf-badge" r="7.5"/>'
            f'<path class="hf-sign" d="{ICONS[mark.kind]}"/></g>'
        )
    anchor, at = ("hf-left", x + icon) if group else ("", rect.middle + icon / 2)
    name = f"hf-name {anchor}".rstrip()
    yield f'<text class="{name}" x="{_n(at)}" y="{_n(y)}">{_text(drawn.name)}</text>'
    at = x if group else rect.middle
    for place, note in enumerate(drawn.notes):
        says = mark is not None and place == len(drawn.notes) - 1 and mark.kind != "idle"
        classes = " ".join(each for each in ("hf-said" if says else "hf-note", anchor) if each)
        yield f'<text class="{classes}" x="{_n(at)}" y="{_n(y + 15.5 * (place + 1))}">{_text(note)}</text>'


def _text(text: str) -> str:
    return escape(single_line(text))


def _p(point: Point) -> str:
    return f"{_n(point[0])} {_n(point[1])}"


def _n(number: float) -> str:
    text = f"{number:.1f}".removesuffix(".0")
    return "0" if text == "-0" else text
