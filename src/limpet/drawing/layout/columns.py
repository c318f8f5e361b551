"""The horizontal place of each vertex, chosen so that links are straight where they can be.

The method is that of Brandes and Köpf. Each vertex is aligned with the median of its neighbours, from above and from
below, leaning left and leaning right. Each of these four alignments is packed close, and a vertex is placed at the
average of its two middle positions.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from limpet.drawing.layout.ranked_graph import RankedGraph

MinDistance = Callable[[int, int], float]
"""The least distance between the centers of two neighbouring vertices."""


def center_positions(graph: RankedGraph, min_distance: MinDistance) -> list[float]:
    """The x of each vertex's center. Neighbours in a rank keep their order and their least distance."""
    if not graph.layers:
        return []
    conflicts = _conflicts(graph)
    alignments = []
    for from_below in (False, True):
        layers = graph.layers
        if from_below:
            layers = graph.layers[::-1]
        neighbours = graph.down if from_below else graph.up
        for from_right in (False, True):
            ordered = layers
            if from_right:
                ordered = [layer[::-1] for layer in layers]
            positions = _pack(ordered, _block_roots(ordered, neighbours, conflicts), min_distance)
            if from_right:
                positions = [-each for each in positions]
            alignments.append(positions)
    return _balance(graph, alignments)


def _conflicts(graph: RankedGraph) -> set[tuple[int, int]]:
    """Edges that cross the inside of a long link. They give way, so that long links stay straight."""
    found = set()
    for upper, lower in pairwise(graph.layers):
        place = {vertex: number for number, vertex in enumerate(upper)}
        left = 0
        done = 0
        for number, vertex in enumerate(lower):
            inner_above = _dummy_above(graph, vertex)
            if inner_above is None and number < len(lower) - 1:
                continue
            if inner_above is None:
                right = len(upper)
            else:
                right = place[inner_above]
            for each in lower[done : number + 1]:
                for above in graph.up[each]:
                    is_outside = place[above] < left or place[above] > right
                    if is_outside and not (graph.is_dummy(each) and graph.is_dummy(above)):
                        found.add((above, each))
            done = number + 1
            left = right
    return found


def _dummy_above(graph: RankedGraph, vertex: int) -> int | None:
    """The dummy vertex above a dummy vertex, where both belong to the inside of a long link."""
    if not graph.is_dummy(vertex):
        return None
    return next((above for above in graph.up[vertex] if graph.is_dummy(above)), None)


def _block_roots(
    layers: list[list[int]], neighbours: list[list[int]], conflicts: set[tuple[int, int]]
) -> list[int]:
    """Group vertices into blocks that share one x; gives the first vertex of each vertex's block."""
    root = list(range(len(neighbours)))
    place = {vertex: number for layer in layers for number, vertex in enumerate(layer)}
    for layer in layers:
        last_place = -1
        for vertex in layer:
            near = sorted(neighbours[vertex], key=place.__getitem__)
            for median in _medians(near):
                has_conflict = (median, vertex) in conflicts or (vertex, median) in conflicts
                # Two blocks must not cross, so a vertex only joins what lies right of the last one joined.
                if last_place < place[median] and not has_conflict:
                    root[vertex] = root[median]
                    last_place = place[median]
                    break
    return root


def _medians(ordered: list[int]) -> list[int]:
    """The middle item, or both of them where there is an even number."""
    if not ordered:
        return []
    lower = (len(ordered) - 1) // 2
    upper = len(ordered) // 2
    if lower == upper:
        return [ordered[lower]]
    return [ordered[lower], ordered[upper]]


def _pack(layers: list[list[int]], root: list[int], min_distance: MinDistance) -> list[float]:
    """Push each block to the left, then back to the right as far as its right neighbours allow."""
    after: dict[int, dict[int, float]] = {}
    before: dict[int, dict[int, float]] = {}
    for layer in layers:
        for left, right in pairwise(layer):
            left_block = root[left]
            right_block = root[right]
            known = after.setdefault(left_block, {}).get(right_block, 0.0)
            distance = max(min_distance(left, right), known)
            after[left_block][right_block] = distance
            before.setdefault(right_block, {})[left_block] = distance
    blocks = dict.fromkeys(root[vertex] for layer in layers for vertex in layer)
    order = _from_left_to_right(blocks, before, after)
    x: dict[int, float] = {}
    for block in order:
        x[block] = max((x[each] + distance for each, distance in before.get(block, {}).items()), default=0.0)
    for block in reversed(order):
        limit = min((x[each] - distance for each, distance in after.get(block, {}).items()), default=x[block])
        x[block] = max(x[block], limit)
    return [x[root[vertex]] for vertex in range(len(root))]


def _from_left_to_right(
    blocks: dict[int, None], before: dict[int, dict[int, float]], after: dict[int, dict[int, float]]
) -> list[int]:
    """The blocks in an order in which each comes after all blocks that are left of it."""
    unmet = {block: len(before.get(block, ())) for block in blocks}
    order = [block for block in blocks if not unmet[block]]
    for block in order:  # the list grows while the loop reads it
        for other in after.get(block, ()):
            unmet[other] -= 1
            if not unmet[other]:
                order.append(other)
    return order


def _balance(graph: RankedGraph, alignments: list[list[float]]) -> list[float]:
    """Move all four alignments to the narrowest one, then take the average of the two middle positions."""
    extents = [_extent(graph, positions) for positions in alignments]
    left, right = min(extents, key=lambda extent: extent[1] - extent[0])
    for number, (positions, extent) in enumerate(zip(alignments, extents, strict=True)):
        leans_left = number % 2 == 0
        if leans_left:
            shift = left - extent[0]
        else:
            shift = right - extent[1]
        alignments[number] = [x + shift for x in positions]
    balanced = []
    for four in zip(*alignments, strict=True):
        ordered = sorted(four)
        balanced.append((ordered[1] + ordered[2]) / 2)
    return balanced


def _extent(graph: RankedGraph, positions: list[float]) -> tuple[float, float]:
    half_widths = [width / 2 for width in graph.width]
    left = min(x - half for x, half in zip(positions, half_widths, strict=True))
    right = max(x + half for x, half in zip(positions, half_widths, strict=True))
    return left, right
