"""Where boxes and the links between them go on a page: in ranks from top to bottom, with few crossings.

All of it is a pure function of what is given, in the order in which it is given; so the same graph always looks the
same. A label takes part as if it were a small box that its link runs through, so nothing ever lies on it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import floor, sqrt
from typing import NamedTuple

from limpet.drawing.layout.columns import middles
from limpet.drawing.layout.crossings import untangle
from limpet.drawing.layout.ranked_graph import Lattice, Tag
from limpet.drawing.layout.ranks import Arc, downwards, parts, ranks

Point = tuple[float, float]


class Box(NamedTuple):
    """Something that has a place: its name, its size, and the rank it must be in, if it must."""

    name: str
    width: float
    height: float
    rank: int | None = None


class Link(NamedTuple):
    """What joins two boxes, with the size of its label."""

    source: str
    target: str
    label: Tag | None = None


class Span(NamedTuple):
    """Where a link enters the gap between two ranks, and where it leaves it."""

    start: float
    end: float


class Spacing(NamedTuple):
    """The measures of a page.

    `apart` is the space between boxes of a rank, `lane` how wide a passing link is, `beside` the space next to one.
    `gap` is how high the gap between two ranks is: a function of the spans in it, and of whether one of the two has
    nothing but labels. `port` is how far apart links are at a box, `margin` how far they stay away from its corners.
    `loop` is the space that a link from a box to itself takes beside it. Parts that aren't linked go side by side
    up to the width of a `page`, at least. On a `grid`, everything is a whole number.
    """

    apart: float
    beside: float
    lane: float
    port: float
    margin: float
    loop: float
    page: float
    gap: Callable[[Sequence[Span], bool], float]
    grid: bool = False


class Rect(NamedTuple):
    """A place on the page: the upper left corner, and the size."""

    x: float
    y: float
    width: float
    height: float

    @property
    def middle(self) -> float:
        return self.x + self.width / 2

    @property
    def bottom(self) -> float:
        return self.y + self.height

    @property
    def right(self) -> float:
        return self.x + self.width

    def moved(self, x: float, y: float) -> Rect:
        return self._replace(x=self.x + x, y=self.y + y)


class Route(NamedTuple):
    """The way of a link: points from its source to its target, which run straight along a rank and then across a gap,
    by turns. `loop` says that it goes from the right side of a box back to it. `label` is where its label is.
    """

    points: tuple[Point, ...]
    label: Rect | None = None
    loop: bool = False
    turned: bool = False

    def moved(self, x: float, y: float) -> Route:
        shifted = tuple((px + x, py + y) for px, py in self.points)
        return self._replace(points=shifted, label=self.label and self.label.moved(x, y))


class Layout(NamedTuple):
    """Where everything is: boxes by name, routes in the order of the links, and the size of the whole."""

    boxes: Mapping[str, Rect]
    routes: tuple[Route, ...]
    width: float
    height: float


def lay_out(boxes: Sequence[Box], links: Sequence[Link], spacing: Spacing) -> Layout:
    """Find a place for all boxes and links. Parts that aren't linked are put side by side.

    Raises `KeyError` for a link to a box that isn't there.
    """
    number = {box.name: place for place, box in enumerate(boxes)}
    pairs = [(number[link.source], number[link.target]) for link in links]
    fixed = any(box.rank is not None for box in boxes)
    groups = [list(range(len(boxes)))] if fixed and boxes else parts(len(boxes), pairs)
    group_of = {box: place for place, group in enumerate(groups) for box in group}
    inside: list[list[int]] = [[] for _ in groups]
    for place, (source, _) in enumerate(pairs):
        inside[group_of[source]].append(place)
    made = [
        _Part([boxes[each] for each in group], [links[each] for each in mine], spacing).layout()
        for group, mine in zip(groups, inside, strict=True)
    ]
    return _side_by_side(made, inside, len(links), spacing)


def _side_by_side(made: list[Layout], inside: list[list[int]], links: int, spacing: Spacing) -> Layout:
    """Parts in rows, such that the whole is about as wide as a page."""
    room = max(
        spacing.page,
        sqrt(2.2 * sum(each.width * each.height for each in made)),
        *(each.width for each in made),
    )
    boxes: dict[str, Rect] = {}
    routes: list[Route] = [Route(())] * links
    x = y = height = width = 0.0
    between = spacing.apart * 2
    for each, mine in zip(made, inside, strict=True):
        if x and x + each.width > room:
            x, y, height = 0.0, y + height + between, 0.0
        boxes |= {name: rect.moved(x, y) for name, rect in each.boxes.items()}
        for place, route in zip(mine, each.routes, strict=True):
            routes[place] = route.moved(x, y)
        width, height = max(width, x + each.width), max(height, each.height)
        x += each.width + between
    return Layout(boxes, tuple(routes), width, y + height)


class _Part:
    """Boxes that are linked with each other, and how they are laid out, from one step to the next."""

    def __init__(self, boxes: list[Box], links: list[Link], spacing: Spacing) -> None:
        self.boxes, self.links, self.spacing = boxes, links, spacing
        self.number = {box.name: place for place, box in enumerate(boxes)}
        self.plain = [place for place, link in enumerate(links) if link.source != link.target]
        self.loops = [place for place, link in enumerate(links) if link.source == link.target]
        self.arcs, rank = self._ranked()
        tags = [links[place].label for place in self.plain]
        self.lattice = Lattice(self._sizes(), rank, self.arcs, tags, spacing.lane)
        untangle(self.lattice)
        self.x = middles(self.lattice, self._least)
        if spacing.grid:
            width = self.lattice.width
            self.x = [floor(x - width[knot] / 2) + width[knot] / 2 for knot, x in enumerate(self.x)]

    def layout(self) -> Layout:
        tops, heights = self._rows()
        rects = {
            box.name: Rect(
                self.x[place] - box.width / 2, self._top(place, box, tops, heights), box.width, box.height
            )
            for place, box in enumerate(self.boxes)
        }
        routes = [Route(())] * len(self.links)
        for arc, place in enumerate(self.plain):
            routes[place] = self._route(arc, rects, tops, heights)
        used: dict[str, float] = {}
        for place in self.loops:
            link = self.links[place]
            routes[place] = self._loop(link, rects[link.source], used.get(link.source, 0.0))
            used[link.source] = used.get(link.source, 0.0) + self._loop_room(link)
        return self._from_corner(rects, routes)

    def _ranked(self) -> tuple[list[Arc], list[int]]:
        if any(box.rank is not None for box in self.boxes):
            rank = [box.rank or 0 for box in self.boxes]
            arcs = []
            for place in self.plain:
                source, target = (self.number[each] for each in self.links[place][:2])
                turned = rank[source] > rank[target]
                arcs.append(Arc(target, source, 1, True) if turned else Arc(source, target, 1, False))
            return arcs, rank
        pairs = [
            (self.number[link.source], self.number[link.target], 1 if link.label is None else 2)
            for link in (self.links[place] for place in self.plain)
        ]
        arcs = downwards(len(self.boxes), pairs)
        return arcs, ranks(len(self.boxes), arcs)

    def _sizes(self) -> list[tuple[float, float]]:
        room = dict.fromkeys((link.source for link in (self.links[place] for place in self.loops)), 0.0)
        for place in self.loops:
            link = self.links[place]
            room[link.source] += self._loop_room(link)
        return [(box.width + 2 * room.get(box.name, 0.0), box.height) for box in self.boxes]

    def _least(self, left: int, right: int) -> float:
        inner = self.lattice.inner(left) or self.lattice.inner(right)
        between = self.spacing.beside if inner else self.spacing.apart
        return (self.lattice.width[left] + self.lattice.width[right]) / 2 + between

    def _rows(self) -> tuple[list[float], list[float]]:
        """Where each rank begins from above, and how high it is."""
        lattice = self.lattice
        heights = [max((lattice.height[knot] for knot in layer), default=0.0) for layer in lattice.layers]
        self.ports = self._ports()
        tops, y = [], 0.0
        small = [all(lattice.inner(knot) for knot in layer) for layer in lattice.layers]
        for rank, height in enumerate(heights):
            tops.append(y)
            if rank + 1 < len(heights):
                y += height + self.spacing.gap(self._spans(rank), small[rank] or small[rank + 1])
        return tops, heights

    def _ports(self) -> dict[tuple[int, bool, int], float]:
        """Where a link (by arc, and whether that is its upper end) meets a box, from left to right."""
        at_box: dict[tuple[int, bool], list[int]] = {}
        for number, chain in enumerate(self.lattice.chains):
            at_box.setdefault((chain[0], True), []).append(number)
            at_box.setdefault((chain[-1], False), []).append(number)
        ports = {}
        for (box, upper), arcs in at_box.items():
            chains = self.lattice.chains
            towards = {arc: self.x[chains[arc][1] if upper else chains[arc][-2]] for arc in arcs}
            arcs.sort(key=lambda arc: (towards[arc], self.arcs[arc].turned))
            for arc, offset in zip(arcs, self._offsets(box, len(arcs)), strict=True):
                ports[box, upper, arc] = self.x[box] + offset
        return ports

    def _offsets(self, box: int, count: int) -> list[float]:
        room = max(self.boxes[box].width - 2 * self.spacing.margin, 0.0)
        step = min(self.spacing.port, room / (count - 1)) if count > 1 else 0.0
        step = floor(step) if self.spacing.grid and step >= 1 else step
        offsets = [step * (place - (count - 1) / 2) for place in range(count)]
        if not self.spacing.grid:
            return offsets
        half, last = self.boxes[box].width / 2, int(self.boxes[box].width) - 1
        return [min(max(floor(half + each), min(1, last)), max(last - 1, 0)) - half for each in offsets]

    def _spans(self, rank: int) -> list[Span]:
        spans = []
        for arc, chain in enumerate(self.lattice.chains):
            place = rank - self.lattice.rank[chain[0]]
            if 0 <= place < len(chain) - 1:
                spans.append(Span(self._x_of(arc, place), self._x_of(arc, place + 1)))
        return spans

    def _x_of(self, arc: int, place: int) -> float:
        """Where an arc is in the rank of the knot at a place of its chain."""
        chain = self.lattice.chains[arc]
        if place in (0, len(chain) - 1):
            return self.ports[chain[place], place == 0, arc]
        x = self.x[chain[place]]
        return floor(x) if self.spacing.grid else x

    def _top(self, place: int, box: Box, tops: list[float], heights: list[float]) -> float:
        rank = self.lattice.rank[place]
        rest = (heights[rank] - box.height) / 2
        return tops[rank] + (floor(rest) if self.spacing.grid else rest)

    def _route(self, arc: int, rects: Mapping[str, Rect], tops: list[float], heights: list[float]) -> Route:
        chain = self.lattice.chains[arc]
        points: list[Point] = []
        for place, knot in enumerate(chain):
            x, rank = self._x_of(arc, place), self.lattice.rank[knot]
            upper, lower = tops[rank], tops[rank] + heights[rank]
            if place == 0:
                upper = rects[self.boxes[knot].name].bottom
            elif place == len(chain) - 1:
                lower = rects[self.boxes[knot].name].y
            points += [(x, upper), (x, lower)]
        turned = self.arcs[arc].turned
        label, tagged = None, self.lattice.tagged[arc]
        if tagged is not None:
            width, height = self.lattice.width[tagged], self.lattice.height[tagged]
            rank = self.lattice.rank[tagged]
            y = tops[rank] + (heights[rank] - height) / 2
            label = Rect(self.x[tagged] - width / 2, floor(y) if self.spacing.grid else y, width, height)
        return Route(tuple(reversed(points)) if turned else tuple(points), label, turned=turned)

    def _loop_room(self, link: Link) -> float:
        return self.spacing.loop + (link.label.width if link.label is not None else 0.0)

    def _loop(self, link: Link, rect: Rect, used: float) -> Route:
        """A link from a box to itself, around what others have used of the space beside it."""
        loop = self.spacing.loop
        quarter = rect.height / 4
        upper, lower = (rect.y + quarter, rect.bottom - quarter)
        if self.spacing.grid:
            upper, lower = rect.y, rect.bottom - 1
        far = rect.right + used + (loop - 2 if self.spacing.grid else loop * 0.75)
        points = ((rect.right, lower), (far, lower), (far, upper), (rect.right, upper))
        label = None
        if link.label is not None:
            y = rect.y + (rect.height - link.label.height) / 2
            left = rect.right + used + loop
            label = Rect(left, floor(y) if self.spacing.grid else y, link.label.width, link.label.height)
        return Route(points, label, loop=True)

    def _from_corner(self, rects: dict[str, Rect], routes: list[Route]) -> Layout:
        """Everything moved so that it begins in the upper left corner."""
        labels = [route.label for route in routes if route.label is not None]
        xs = [x for route in routes for x, _ in route.points]
        left = min([*(rect.x for rect in rects.values()), *(rect.x for rect in labels), *xs], default=0.0)
        right = max(
            [*(rect.right for rect in rects.values()), *(rect.right for rect in labels), *xs], default=0.0
        )
        bottom = max((rect.bottom for rect in rects.values()), default=0.0)
        return Layout(
            {name: rect.moved(-left, 0) for name, rect in rects.items()},
            tuple(route.moved(-left, 0) for route in routes),
            right - left,
            bottom,
        )
