"""Where boxes and the links between them go on a page: in ranks from top to bottom, with few crossings.

The steps are those of a layered layout: break cycles, assign ranks (`ranks`), order each rank (`crossings`), find the
horizontal places (`columns`), and route the links, here.

The layout is a pure function of its input and of the order of that input, so the same graph always looks the same. A
label takes part as if it were a small box that its link passes through, so nothing ever covers it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import floor, sqrt
from typing import NamedTuple

from limpet.drawing.layout.columns import center_positions
from limpet.drawing.layout.crossings import reduce_crossings
from limpet.drawing.layout.ranked_graph import LabelSize, RankedGraph
from limpet.drawing.layout.ranks import Arc, acyclic_arcs, assign_ranks, connected_components, directed_arc

Point = tuple[float, float]

PAGE_PROPORTION = 2.2
"""How much wider than high a page of unconnected components is, about."""


class Box(NamedTuple):
    """A box to place: its name, its size, and its rank where that is given."""

    name: str
    width: float
    height: float
    rank: int | None = None


class Link(NamedTuple):
    """A connection of two boxes, by their names, with the size of its label."""

    source: str
    target: str
    label: LabelSize | None = None


class Span(NamedTuple):
    """Where a link enters the gap between two ranks, and where it leaves it."""

    start: float
    end: float


class Spacing(NamedTuple):
    """The measures of a page.

    `box_gap` is the space between boxes of a rank, `lane_width` the width of a passing link, and `lane_gap` the space
    next to one. `port_gap` is the distance of links at a box, and `corner_margin` their distance from its corners.
    `loop_width` is the space beside a box for a link to itself. Unconnected components go side by side up to at least
    `page_width`. `rank_gap` gives the height of the gap between two ranks: a function of the spans in it, and of
    whether one of the two ranks has nothing but labels. `on_grid` makes every number a whole one.
    """

    box_gap: float
    lane_gap: float
    lane_width: float
    port_gap: float
    corner_margin: float
    loop_width: float
    page_width: float
    rank_gap: Callable[[Sequence[Span], bool], float]
    on_grid: bool = False

    def snap(self, number: float) -> float:
        """The number itself, or on a grid the whole number below it."""
        if self.on_grid:
            return floor(number)
        return number


class Rect(NamedTuple):
    """A place on the page: the upper left corner, and the size."""

    x: float
    y: float
    width: float
    height: float

    @property
    def center_x(self) -> float:
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
    """The way of a link from its source to its target, and the place of its label.

    The pieces between the points alternate: straight along a rank, then across a gap. A loop leads from the right
    side of a box back to it. A reversed route leads upwards.
    """

    points: tuple[Point, ...]
    label: Rect | None = None
    is_loop: bool = False
    is_reversed: bool = False

    def moved(self, x: float, y: float) -> Route:
        points = tuple((point_x + x, point_y + y) for point_x, point_y in self.points)
        return self._replace(points=points, label=self.label and self.label.moved(x, y))


class Layout(NamedTuple):
    """The place of each box by its name, the route of each link in the order given, and the size of the whole."""

    boxes: Mapping[str, Rect]
    routes: tuple[Route, ...]
    width: float
    height: float


def has_given_ranks(boxes: Sequence[Box]) -> bool:
    """Whether the ranks of boxes are given. Then those of a rank also keep the order that they are given in."""
    return any(box.rank is not None for box in boxes)


def lay_out(boxes: Sequence[Box], links: Sequence[Link], spacing: Spacing) -> Layout:
    """Place all boxes and links. Unconnected components go side by side.

    Raises `KeyError` for a link to a box that doesn't exist.
    """
    number_of = {box.name: number for number, box in enumerate(boxes)}
    ends = [(number_of[link.source], number_of[link.target]) for link in links]
    if has_given_ranks(boxes):
        groups = [list(range(len(boxes)))]
    else:
        groups = connected_components(len(boxes), ends)
    group_of = {box: number for number, group in enumerate(groups) for box in group}
    links_of_group: list[list[int]] = [[] for _ in groups]
    for number, (source, _) in enumerate(ends):
        links_of_group[group_of[source]].append(number)
    layouts = [
        _ComponentLayout(
            [boxes[each] for each in group], [links[each] for each in own_links], spacing
        ).layout()
        for group, own_links in zip(groups, links_of_group, strict=True)
    ]
    return _side_by_side(layouts, links_of_group, len(links), spacing)


def _side_by_side(
    layouts: list[Layout], links_of_group: list[list[int]], link_count: int, spacing: Spacing
) -> Layout:
    """Components in rows, such that the whole is about as wide as a page."""
    area = sum(each.width * each.height for each in layouts)
    page_width = max(
        spacing.page_width,
        sqrt(PAGE_PROPORTION * area),
        *(each.width for each in layouts),
    )
    boxes: dict[str, Rect] = {}
    routes: list[Route] = [Route(())] * link_count
    x = 0.0
    y = 0.0
    row_height = 0.0
    total_width = 0.0
    gap = spacing.box_gap * 2
    for layout, own_links in zip(layouts, links_of_group, strict=True):
        if x and x + layout.width > page_width:
            x = 0.0
            y += row_height + gap
            row_height = 0.0
        boxes |= {name: rect.moved(x, y) for name, rect in layout.boxes.items()}
        for link, route in zip(own_links, layout.routes, strict=True):
            routes[link] = route.moved(x, y)
        total_width = max(total_width, x + layout.width)
        row_height = max(row_height, layout.height)
        x += layout.width + gap
    return Layout(boxes, tuple(routes), total_width, y + row_height)


class _Rows(NamedTuple):
    """Where each rank begins from above, and how high it is."""

    tops: list[float]
    heights: list[float]


class _ComponentLayout:
    """The layout of boxes that links connect. Links of a box to itself are placed last, beside the box."""

    def __init__(self, boxes: list[Box], links: list[Link], spacing: Spacing) -> None:
        self.boxes = boxes
        self.links = links
        self.spacing = spacing
        self.number_of = {box.name: number for number, box in enumerate(boxes)}
        self.plain_links = [number for number, link in enumerate(links) if link.source != link.target]
        self.loop_links = [number for number, link in enumerate(links) if link.source == link.target]
        self.arcs, ranks = self._arcs_and_ranks()
        labels = [links[number].label for number in self.plain_links]
        self.graph = RankedGraph(self._box_sizes(), ranks, self.arcs, labels, spacing.lane_width)
        reduce_crossings(self.graph, keep_box_order=has_given_ranks(boxes))
        self.x = center_positions(self.graph, self._min_distance)
        if spacing.on_grid:
            # The left edge is what lies on a cell; the center of an even width lies between two.
            width = self.graph.width
            self.x = [floor(x - width[vertex] / 2) + width[vertex] / 2 for vertex, x in enumerate(self.x)]
        self.ports = self._ports()
        if spacing.on_grid:
            self._separate_ports()

    def layout(self) -> Layout:
        rows = self._rows()
        rects = {box.name: self._rect(number, box, rows) for number, box in enumerate(self.boxes)}
        routes = [Route(())] * len(self.links)
        for arc, link in enumerate(self.plain_links):
            routes[link] = self._route(arc, rects, rows)
        used_width: dict[str, float] = {}
        for number in self.loop_links:
            link_to_self = self.links[number]
            name = link_to_self.source
            used = used_width.get(name, 0.0)
            routes[number] = self._loop_route(link_to_self, rects[name], used)
            used_width[name] = used + self._loop_space(link_to_self)
        return _moved_to_corner(rects, routes, 1.0 if self.spacing.on_grid else 0.0)

    def _arcs_and_ranks(self) -> tuple[list[Arc], list[int]]:
        ends = [self._ends(self.links[number]) for number in self.plain_links]
        if has_given_ranks(self.boxes):
            ranks = [box.rank or 0 for box in self.boxes]
            arcs = [directed_arc(source, target, 1, ranks[source] > ranks[target]) for source, target in ends]
            return arcs, ranks
        spans = [1 if self.links[number].label is None else 2 for number in self.plain_links]
        links = [(source, target, span) for (source, target), span in zip(ends, spans, strict=True)]
        arcs = acyclic_arcs(len(self.boxes), links)
        return arcs, assign_ranks(len(self.boxes), arcs)

    def _ends(self, link: Link) -> tuple[int, int]:
        return self.number_of[link.source], self.number_of[link.target]

    def _box_sizes(self) -> list[tuple[float, float]]:
        """The sizes of boxes with the space for their loops, which is added on both sides to keep boxes centered."""
        loop_space: dict[str, float] = {}
        for number in self.loop_links:
            link = self.links[number]
            loop_space[link.source] = loop_space.get(link.source, 0.0) + self._loop_space(link)
        return [(box.width + 2 * loop_space.get(box.name, 0.0), box.height) for box in self.boxes]

    def _min_distance(self, left: int, right: int) -> float:
        graph = self.graph
        has_lane = graph.is_dummy(left) or graph.is_dummy(right)
        gap = self.spacing.box_gap
        if has_lane:
            gap = self.spacing.lane_gap
        return (graph.width[left] + graph.width[right]) / 2 + gap

    def _rows(self) -> _Rows:
        graph = self.graph
        heights = [max((graph.height[vertex] for vertex in layer), default=0.0) for layer in graph.layers]
        has_labels_only = [all(graph.is_dummy(vertex) for vertex in layer) for layer in graph.layers]
        tops = []
        y = 0.0
        for rank, height in enumerate(heights):
            tops.append(y)
            if rank + 1 < len(heights):
                is_small = has_labels_only[rank] or has_labels_only[rank + 1]
                y += height + self.spacing.rank_gap(self._spans(rank), is_small)
        return _Rows(tops, heights)

    def _ports(self) -> dict[tuple[int, bool, int], float]:
        """The x at which a link meets a box, by the box, whether the box is the link's upper end, and the arc."""
        chains = self.graph.chains
        arcs_at_box: dict[tuple[int, bool], list[int]] = {}
        for arc, chain in enumerate(chains):
            arcs_at_box.setdefault((chain[0], True), []).append(arc)
            arcs_at_box.setdefault((chain[-1], False), []).append(arc)
        ports = {}
        for (box, is_upper), arcs in arcs_at_box.items():
            next_place = 1 if is_upper else -2
            # Links leave a box in the order of where they lead, so that they don't cross right below it.
            arcs.sort(key=lambda arc: (self.x[chains[arc][next_place]], self.arcs[arc].is_reversed))
            for arc, offset in zip(arcs, self._port_offsets(box, len(arcs)), strict=True):
                ports[box, is_upper, arc] = self.x[box] + offset
        return ports

    def _port_offsets(self, box: int, count: int) -> list[float]:
        """How far from the box's center its links meet it."""
        width = self.boxes[box].width
        room = max(width - 2 * self.spacing.corner_margin, 0.0)
        step = 0.0
        if count > 1:
            step = min(self.spacing.port_gap, room / (count - 1))
        if self.spacing.on_grid and step >= 1:
            step = floor(step)
        offsets = [step * (place - (count - 1) / 2) for place in range(count)]
        if not self.spacing.on_grid:
            return offsets
        half = width / 2
        last = int(width) - 1
        first_column = min(1, last)
        last_column = max(last - 1, 0)
        return [min(max(floor(half + each), first_column), last_column) - half for each in offsets]

    def _separate_ports(self) -> None:
        """Move the ends of links off the columns in which others start, in the same gap: they would seem to join."""
        chains = self.graph.chains
        starts: dict[int, dict[float, int]] = {}
        for arc, chain in enumerate(chains):
            for place, rank in enumerate(range(self.graph.rank[chain[0]], self.graph.rank[chain[-1]])):
                starts.setdefault(rank, {})[self._x_of(arc, place)] = arc
        taken = {(box, column) for (box, is_upper, _), column in self.ports.items() if not is_upper}
        for arc, chain in enumerate(chains):
            box = chain[-1]
            key = (box, False, arc)
            started = starts[self.graph.rank[box] - 1]
            if started.get(self.ports[key], arc) == arc:
                continue
            own_start = self._x_of(arc, len(chain) - 2)
            step = 1 if own_start > self.ports[key] else -1
            for column in (self.ports[key] + step, self.ports[key] - step):
                is_inside = abs(column + 0.5 - self.x[box]) <= self.boxes[box].width / 2 - 1
                if is_inside and column not in started and (box, column) not in taken:
                    self.ports[key] = column
                    taken.add((box, column))
                    break

    def _spans(self, rank: int) -> list[Span]:
        """The spans of all links that cross the gap below a rank."""
        spans = []
        for arc, chain in enumerate(self.graph.chains):
            place = rank - self.graph.rank[chain[0]]
            if 0 <= place < len(chain) - 1:
                spans.append(Span(self._x_of(arc, place), self._x_of(arc, place + 1)))
        return spans

    def _x_of(self, arc: int, place: int) -> float:
        """Where an arc is in the rank of the vertex at this place of its chain."""
        chain = self.graph.chains[arc]
        is_upper_end = place == 0
        if is_upper_end or place == len(chain) - 1:
            return self.ports[chain[place], is_upper_end, arc]
        return self.spacing.snap(self.x[chain[place]])

    def _rect(self, number: int, box: Box, rows: _Rows) -> Rect:
        rank = self.graph.rank[number]
        top = rows.tops[rank] + self.spacing.snap((rows.heights[rank] - box.height) / 2)
        return Rect(self.x[number] - box.width / 2, top, box.width, box.height)

    def _route(self, arc: int, rects: Mapping[str, Rect], rows: _Rows) -> Route:
        chain = self.graph.chains[arc]
        points: list[Point] = []
        for place, vertex in enumerate(chain):
            x = self._x_of(arc, place)
            rank = self.graph.rank[vertex]
            upper = rows.tops[rank]
            lower = rows.tops[rank] + rows.heights[rank]
            if place == 0:
                upper = rects[self.boxes[vertex].name].bottom
            elif place == len(chain) - 1:
                lower = rects[self.boxes[vertex].name].y
            points += [(x, upper), (x, lower)]
        is_reversed = self.arcs[arc].is_reversed
        if is_reversed:
            points.reverse()
        return Route(tuple(points), self._label_rect(arc, rows), is_reversed=is_reversed)

    def _label_rect(self, arc: int, rows: _Rows) -> Rect | None:
        vertex = self.graph.label_vertex[arc]
        if vertex is None:
            return None
        width = self.graph.width[vertex]
        height = self.graph.height[vertex]
        rank = self.graph.rank[vertex]
        y = self.spacing.snap(rows.tops[rank] + (rows.heights[rank] - height) / 2)
        return Rect(self.x[vertex] - width / 2, y, width, height)

    def _loop_space(self, link: Link) -> float:
        label_width = 0.0
        if link.label is not None:
            label_width = link.label.width
        return self.spacing.loop_width + label_width

    def _loop_route(self, link: Link, rect: Rect, used_width: float) -> Route:
        """A link from a box to itself, outside of the space that other loops use beside the box."""
        loop_width = self.spacing.loop_width
        if self.spacing.on_grid:
            upper = rect.y
            lower = rect.bottom - 1
            far = rect.right + used_width + (loop_width - 2)
        else:
            quarter = rect.height / 4
            upper = rect.y + quarter
            lower = rect.bottom - quarter
            far = rect.right + used_width + loop_width * 0.75
        points = ((rect.right, lower), (far, lower), (far, upper), (rect.right, upper))
        label = None
        if link.label is not None:
            y = self.spacing.snap(rect.y + (rect.height - link.label.height) / 2)
            label = Rect(rect.right + used_width + loop_width, y, link.label.width, link.label.height)
        return Route(points, label, is_loop=True)


def _moved_to_corner(rects: dict[str, Rect], routes: list[Route], line_width: float) -> Layout:
    """The layout with everything moved so that it begins in the upper left corner.

    `line_width` is how far a line reaches to the right of its points: on a grid, it fills the cells that they name.
    """
    labels = [route.label for route in routes if route.label is not None]
    placed = [*rects.values(), *labels]
    point_xs = [x for route in routes for x, _ in route.points]
    left = min([*(rect.x for rect in placed), *point_xs], default=0.0)
    right = max([*(rect.right for rect in placed), *(x + line_width for x in point_xs)], default=0.0)
    bottom = max((rect.bottom for rect in rects.values()), default=0.0)
    return Layout(
        {name: rect.moved(-left, 0) for name, rect in rects.items()},
        tuple(route.moved(-left, 0) for route in routes),
        right - left,
        bottom,
    )
