"""The layout of pictures: nothing lies on anything else, whatever the graph looks like."""

from __future__ import annotations

import random
from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from limpet.drawing.layout.crossings import count_crossings, reduce_crossings
from limpet.drawing.layout.layout import Box, Layout, Link, Rect, Spacing, lay_out
from limpet.drawing.layout.ranked_graph import LabelSize, RankedGraph
from limpet.drawing.layout.ranks import acyclic_arcs, assign_ranks, connected_components

PAGE = Spacing(
    box_gap=30,
    lane_gap=18,
    lane_width=10,
    port_gap=18,
    corner_margin=16,
    loop_width=30,
    page_width=640,
    rank_gap=lambda spans, small: 40.0,
)
GRID = Spacing(
    box_gap=3,
    lane_gap=2,
    lane_width=1,
    port_gap=4,
    corner_margin=2,
    loop_width=4,
    page_width=80,
    rank_gap=lambda spans, small: len(spans) + 2,
    on_grid=True,
)
NEAR = 1e-6


@st.composite
def graphs(draw: st.DrawFn, most: int = 9) -> tuple[list[Box], list[Link]]:
    count = draw(st.integers(1, most))
    odd = st.integers(1, 40).map(lambda half: 2 * half + 3)
    boxes = [Box(f"b{each}", draw(odd), draw(st.integers(1, 60))) for each in range(count)]
    ends = st.integers(0, count - 1).map(lambda each: f"b{each}")
    tags = st.none() | st.builds(LabelSize, odd, st.just(1))
    return boxes, draw(st.lists(st.builds(Link, ends, ends, tags), max_size=2 * most))


def any_graph(count: int, links: int, seed: int = 7) -> tuple[list[Box], list[Link]]:
    chance = random.Random(seed)
    boxes = [Box(f"b{each}", chance.randint(50, 150), chance.choice((36, 51))) for each in range(count)]
    made = [
        Link(
            f"b{chance.randrange(count)}",
            f"b{chance.randrange(count)}",
            LabelSize(chance.randint(20, 80), 18) if chance.random() < 0.3 else None,
        )
        for _ in range(links)
    ]
    return boxes, made


def lie_apart(one: Rect, other: Rect) -> bool:
    return (
        one.right <= other.x + NEAR
        or other.right <= one.x + NEAR
        or one.bottom <= other.y + NEAR
        or other.bottom <= one.y + NEAR
    )


def check(boxes: list[Box], links: list[Link], layout: Layout) -> None:
    """All that has to hold of a layout."""
    assert layout.boxes.keys() == {box.name for box in boxes}
    assert len(layout.routes) == len(links)
    assert all((layout.boxes[box.name].width, layout.boxes[box.name].height) == box[1:3] for box in boxes)
    labels = [route.label for route in layout.routes if route.label is not None]
    assert len(labels) == sum(link.label is not None for link in links)
    for one, other in combinations([*layout.boxes.values(), *labels], 2):
        assert lie_apart(one, other), (one, other)
    for rect in [*layout.boxes.values(), *labels]:
        assert rect.x >= -NEAR
        assert rect.y >= -NEAR
        assert rect.right <= layout.width + NEAR
        assert rect.bottom <= layout.height + NEAR
    every = 1 + len(links) // 60
    for link, route in [*zip(links, layout.routes, strict=True)][::every]:
        check_route(link, route.points, layout)


def check_route(link: Link, points: tuple[tuple[float, float], ...], layout: Layout) -> None:
    source = layout.boxes[link.source]
    target = layout.boxes[link.target]
    for (x, y), rect in ((points[0], source), (points[-1], target)):
        assert rect.x - NEAR <= x <= rect.right + NEAR
        assert min(abs(y - rect.y), abs(y - rect.bottom), abs(x - rect.right)) < 1 + NEAR
    if link.source == link.target:
        return
    for (x, y), (end, lower) in pairwise(points):
        low, high = sorted((y, lower))
        for name, rect in layout.boxes.items():
            is_beside = max(x, end) <= rect.x + NEAR or min(x, end) >= rect.right - NEAR
            above_or_below = high <= rect.y + NEAR or low >= rect.bottom - NEAR
            assert is_beside or above_or_below, (link, name)


@settings(max_examples=60, deadline=None)
@given(graphs())
def test_nothing_overlaps_and_every_link_ends_at_its_boxes(graph: tuple[list[Box], list[Link]]) -> None:
    check(*graph, lay_out(*graph, PAGE))


@settings(max_examples=60, deadline=None)
@given(graphs())
def test_on_a_grid_everything_is_in_whole_cells_and_nothing_overlaps(
    graph: tuple[list[Box], list[Link]],
) -> None:
    layout = lay_out(*graph, GRID)
    assert layout.boxes.keys() == {box.name for box in graph[0]}
    labels = [route.label for route in layout.routes if route.label is not None]
    for one, other in combinations([*layout.boxes.values(), *labels], 2):
        assert lie_apart(one, other), (one, other)
    numbers = [
        *(number for rect in [*layout.boxes.values(), *labels] for number in rect),
        *(number for route in layout.routes for point in route.points for number in point),
    ]
    assert all(number == int(number) for number in numbers)
    cells = [x for route in layout.routes for x, _ in route.points]
    assert all(0 <= x < layout.width for x in cells)  # a line fills the cell that a point of it names


@settings(max_examples=40, deadline=None)
@given(graphs())
def test_the_same_graph_always_looks_the_same(graph: tuple[list[Box], list[Link]]) -> None:
    assert lay_out(*graph, PAGE) == lay_out(list(graph[0]), list(graph[1]), PAGE)


@pytest.mark.parametrize(("count", "links"), [(1, 0), (1, 2), (2, 5), (60, 90), (300, 420)])
def test_graphs_of_any_size_are_laid_out(count: int, links: int) -> None:
    graph = any_graph(count, links)
    check(*graph, lay_out(*graph, PAGE))


def test_nothing_at_all_has_a_layout_too() -> None:
    assert lay_out([], [], PAGE) == Layout({}, (), 0.0, 0.0)


def test_a_chain_goes_straight_down() -> None:
    boxes = [Box(name, width, 30) for name, width in (("a", 40), ("b", 90), ("c", 60))]
    layout = lay_out(boxes, [Link("a", "b"), Link("b", "c")], PAGE)
    assert len({rect.center_x for rect in layout.boxes.values()}) == 1
    assert layout.boxes["a"].y < layout.boxes["b"].y < layout.boxes["c"].y
    assert all(len({x for x, _ in route.points}) == 1 for route in layout.routes)


def test_a_link_back_is_drawn_upwards() -> None:
    boxes = [Box(name, 40, 30) for name in "abc"]
    layout = lay_out(boxes, [Link("a", "b"), Link("b", "c"), Link("c", "a")], PAGE)
    assert [route.is_reversed for route in layout.routes] == [False, False, True]
    assert layout.routes[2].points[0][1] > layout.routes[2].points[-1][1]


def test_a_box_that_is_linked_to_itself_has_a_loop_beside_it() -> None:
    layout = lay_out([Box("a", 40, 30)], [Link("a", "a", LabelSize(20, 10))], PAGE)
    (route,) = layout.routes
    assert route.is_loop
    assert max(x for x, _ in route.points) > layout.boxes["a"].right
    assert route.label is not None
    assert route.label.x >= layout.boxes["a"].right


def test_unconnected_components_stand_side_by_side() -> None:
    layout = lay_out([Box(name, 40, 30) for name in "abcd"], [Link("a", "b"), Link("c", "d")], PAGE)
    assert layout.boxes["a"].y == layout.boxes["c"].y
    assert layout.boxes["c"].x > layout.boxes["b"].right
    assert connected_components(4, [(0, 2)]) == [[0, 2], [1], [3]]


def test_ranks_that_are_given_are_kept() -> None:
    boxes = [Box("a", 40, 30, 0), Box("b", 40, 30, 2), Box("c", 40, 30, 1)]
    layout = lay_out(boxes, [Link("a", "b")], PAGE)
    assert layout.boxes["a"].y < layout.boxes["c"].y < layout.boxes["b"].y


@settings(max_examples=60, deadline=None)
@given(graphs())
def test_ranks_go_downwards_and_leave_room_for_labels(graph: tuple[list[Box], list[Link]]) -> None:
    boxes, links = graph
    number = {box.name: place for place, box in enumerate(boxes)}
    pairs = [
        (number[link.source], number[link.target], 1 if link.label is None else 2)
        for link in links
        if link.source != link.target
    ]
    arcs = acyclic_arcs(len(boxes), pairs)
    rank = assign_ranks(len(boxes), arcs)
    assert min(rank) == 0
    assert all(rank[arc.bottom] - rank[arc.top] >= arc.span for arc in arcs)
    assert [(a.bottom, a.top) if a.is_reversed else (a.top, a.bottom) for a in arcs] == [
        pair[:2] for pair in pairs
    ]


@settings(max_examples=40, deadline=None)
@given(st.randoms(use_true_random=False))
def test_ordering_never_adds_crossings_and_counts_them_right(chance: random.Random) -> None:
    count = 12
    pairs = sorted({(chance.randrange(0, 6), chance.randrange(6, 12), 1) for _ in range(14)})
    graph = RankedGraph(
        [(1, 1)] * count, [0] * 6 + [1] * 6, acyclic_arcs(count, pairs), [None] * len(pairs), lane_width=1
    )
    before = count_crossings(graph)
    assert before == sum(
        (graph.layers[0].index(a) - graph.layers[0].index(c))
        * (graph.layers[1].index(b) - graph.layers[1].index(d))
        < 0
        for (a, b, _), (c, d, _) in combinations(pairs, 2)
    )
    reduce_crossings(graph)
    assert count_crossings(graph) <= before
    assert sorted(graph.layers[0]) == list(range(6))


def test_crossings_that_can_be_avoided_are() -> None:
    pairs = [(0, 5, 1), (1, 4, 1), (2, 3, 1)]
    graph = RankedGraph([(1, 1)] * 6, [0, 0, 0, 1, 1, 1], acyclic_arcs(6, pairs), [None] * 3, lane_width=1)
    reduce_crossings(graph)
    assert count_crossings(graph) == 0


@settings(max_examples=40, deadline=None)
@given(graphs(), st.randoms(use_true_random=False))
def test_boxes_with_given_ranks_keep_their_order_in_each(
    graph: tuple[list[Box], list[Link]], chance: random.Random
) -> None:
    """H13: the tasks of a workflow, in the order of declaration."""
    boxes = [box._replace(rank=chance.randrange(3)) for box in graph[0]]
    rank_of = {box.name: box.rank or 0 for box in boxes}
    links = [link for link in graph[1] if rank_of[link.source] < rank_of[link.target]]
    for spacing in (PAGE, GRID):
        layout = lay_out(boxes, links, spacing)
        for rank in range(3):
            row = [layout.boxes[box.name].x for box in boxes if box.rank == rank]
            assert row == sorted(row)
