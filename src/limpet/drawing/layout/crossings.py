"""The order of the vertices in each rank, chosen so that few links cross.

Where the boxes of each rank keep the order that they were given in, only the links that pass a rank are moved.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from itertools import pairwise

from limpet.drawing.layout.ranked_graph import RankedGraph

MAX_SWEEPS = 24
"""How often the ranks are reordered, at most."""

MIN_SWEEPS = 6
"""How often they are reordered at most, however large the graph is."""

MAX_IDLE_SWEEPS = 6
"""How many sweeps in a row may bring no improvement."""

MAX_ORDERED_VERTICES = 40_000
"""How many vertices all sweeps together may order: a large graph gets fewer sweeps."""

MAX_SWITCHED_VERTICES = 900
"""Up to this size, neighbours are also switched pair by pair, which is slow and gives a better order."""

MAX_SWITCH_ROUNDS = 4


def reduce_crossings(graph: RankedGraph, keep_box_order: bool = False) -> None:
    """Order each rank of the graph: sweep down and up through the ranks, and keep the best order seen."""
    if keep_box_order:
        _restore_box_order(graph)
    best = _copy_of(graph.layers)
    fewest = count_crossings(graph)
    idle_sweeps = 0
    for sweep in range(_sweep_limit(graph)):
        if not fewest or idle_sweeps >= MAX_IDLE_SWEEPS:
            break
        _sweep(graph, downwards=sweep % 2 == 0, reverse_ties=sweep % 4 >= 2)
        if len(graph.rank) <= MAX_SWITCHED_VERTICES:
            _switch_neighbours(graph)
        if keep_box_order:
            _restore_box_order(graph)
        found = count_crossings(graph)
        idle_sweeps += 1
        if found < fewest:
            best = _copy_of(graph.layers)
            fewest = found
            idle_sweeps = 0
    graph.layers = best


def count_crossings(graph: RankedGraph) -> int:
    """How many pairs of edges between neighbouring ranks cross."""
    total = 0
    for upper, lower in pairwise(graph.layers):
        place = {vertex: number for number, vertex in enumerate(lower)}
        ends: list[int] = []
        for vertex in upper:
            own_ends = sorted(place[each] for each in graph.down[vertex])
            total += sum(len(ends) - bisect_right(ends, end) for end in own_ends)
            for end in own_ends:
                insort(ends, end)
    return total


def _restore_box_order(graph: RankedGraph) -> None:
    """Put the boxes of each rank into the order that they were given in. The links that pass it stay in place."""
    for layer in graph.layers:
        boxes = iter(sorted(vertex for vertex in layer if not graph.is_dummy(vertex)))
        layer[:] = [vertex if graph.is_dummy(vertex) else next(boxes) for vertex in layer]


def _copy_of(layers: list[list[int]]) -> list[list[int]]:
    return [list(layer) for layer in layers]


def _sweep_limit(graph: RankedGraph) -> int:
    affordable = MAX_ORDERED_VERTICES // max(len(graph.rank), 1)
    return min(MAX_SWEEPS, max(affordable, MIN_SWEEPS))


def _sweep(graph: RankedGraph, downwards: bool, reverse_ties: bool) -> None:
    """Order each rank by the average place of its vertices' neighbours in the rank before."""
    layers = graph.layers
    neighbours = graph.up
    if not downwards:
        layers = layers[::-1]
        neighbours = graph.down
    for before, layer in pairwise(layers):
        place = {vertex: number for number, vertex in enumerate(before)}
        average: dict[int, float] = {}
        for number, vertex in enumerate(layer):
            near = neighbours[vertex]
            if near:
                average[vertex] = sum(place[each] for each in near) / len(near)
            else:
                average[vertex] = float(number)
        # Sorting is stable, so the order before it decides between equal averages.
        start_order = layer
        if reverse_ties:
            start_order = layer[::-1]
        layer[:] = sorted(start_order, key=average.__getitem__)


def _switch_neighbours(graph: RankedGraph) -> None:
    """Switch neighbours in a rank wherever that removes crossings, until it no longer does."""
    place = {vertex: number for layer in graph.layers for number, vertex in enumerate(layer)}
    for _ in range(MAX_SWITCH_ROUNDS):
        has_improved = False
        for layer in graph.layers:
            for number in range(len(layer) - 1):
                left = layer[number]
                right = layer[number + 1]
                if _crossings_removed(graph, place, left, right) > 0:
                    layer[number] = right
                    layer[number + 1] = left
                    place[left] = number + 1
                    place[right] = number
                    has_improved = True
        if not has_improved:
            return


def _crossings_removed(graph: RankedGraph, place: dict[int, int], left: int, right: int) -> int:
    """How many fewer crossings there are if `left` and `right` change places."""
    removed = 0
    for neighbours in (graph.up, graph.down):
        left_ends = [place[each] for each in neighbours[left]]
        right_ends = [place[each] for each in neighbours[right]]
        for left_end in left_ends:
            for right_end in right_ends:
                removed += (left_end > right_end) - (left_end < right_end)
    return removed
