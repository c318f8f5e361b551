"""The first step of a layout: the direction of each link, and the rank of each box.

Links point downwards. A link that would close a cycle is reversed for the layout only, and drawn as it was given.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

MAX_SHORTENING_ROUNDS = 4
"""How often boxes are moved between ranks to shorten their arcs. Pictures hardly change after the second round."""


class Arc(NamedTuple):
    """A link between two boxes, by their numbers, that points downwards.

    `span` is the least number of ranks that it crosses. `is_reversed` says that its link points the other way.
    """

    top: int
    bottom: int
    span: int
    is_reversed: bool


def acyclic_arcs(box_count: int, links: Sequence[tuple[int, int, int]]) -> list[Arc]:
    """The links (source, target, span) as arcs without a cycle, found by a depth-first walk in the order given."""
    leaving: list[list[int]] = [[] for _ in range(box_count)]
    for number, (source, _, _) in enumerate(links):
        leaving[source].append(number)
    is_reversed = [False] * len(links)
    seen = [False] * box_count
    on_trail = [False] * box_count
    for start in _sources_first(box_count, links):
        if seen[start]:
            continue
        seen[start] = True
        on_trail[start] = True
        # An explicit stack instead of recursion: a graph may be deeper than Python's recursion limit.
        trail = [(start, iter(leaving[start]))]
        while trail:
            box, remaining = trail[-1]
            number = next(remaining, -1)
            if number < 0:
                on_trail[box] = False
                trail.pop()
                continue
            target = links[number][1]
            if on_trail[target]:
                is_reversed[number] = True
            elif not seen[target]:
                seen[target] = True
                on_trail[target] = True
                trail.append((target, iter(leaving[target])))
    return [
        directed_arc(source, target, span, is_reversed[number])
        for number, (source, target, span) in enumerate(links)
    ]


def directed_arc(source: int, target: int, span: int, is_reversed: bool) -> Arc:
    """The arc of a link from `source` to `target`."""
    if is_reversed:
        return Arc(target, source, span, True)
    return Arc(source, target, span, False)


def assign_ranks(box_count: int, arcs: Sequence[Arc]) -> list[int]:
    """The rank of each box, from 0. Each arc crosses at least its span, and the arcs are short in total."""
    above: list[list[Arc]] = [[] for _ in range(box_count)]
    below: list[list[Arc]] = [[] for _ in range(box_count)]
    for arc in arcs:
        above[arc.bottom].append(arc)
        below[arc.top].append(arc)
    order = _topological_order(box_count, above, below)
    rank = [0] * box_count
    for box in order:
        rank[box] = max((rank[arc.top] + arc.span for arc in above[box]), default=0)
    for _ in range(MAX_SHORTENING_ROUNDS):
        if not _shorten_arcs(order, rank, above, below):
            break
    lowest = min(rank, default=0)
    return [each - lowest for each in rank]


def connected_components(box_count: int, links: Iterable[tuple[int, int]]) -> list[list[int]]:
    """The boxes in groups that no link connects, in the order of their first boxes."""
    leader = list(range(box_count))

    def find_leader(box: int) -> int:
        while leader[box] != box:
            leader[box] = leader[leader[box]]
            box = leader[box]
        return box

    for source, target in links:
        first, second = sorted((find_leader(source), find_leader(target)))
        leader[second] = first
    groups: dict[int, list[int]] = {}
    for box in range(box_count):
        groups.setdefault(find_leader(box), []).append(box)
    return list(groups.values())


def _sources_first(box_count: int, links: Sequence[tuple[int, int, int]]) -> list[int]:
    entered = {target for source, target, _ in links if source != target}
    return [
        *(box for box in range(box_count) if box not in entered),
        *(box for box in range(box_count) if box in entered),
    ]


def _topological_order(box_count: int, above: list[list[Arc]], below: list[list[Arc]]) -> list[int]:
    unmet = [len(arcs) for arcs in above]
    order = [box for box in range(box_count) if not unmet[box]]
    for box in order:  # the list grows while the loop reads it
        for arc in below[box]:
            unmet[arc.bottom] -= 1
            if not unmet[arc.bottom]:
                order.append(arc.bottom)
    return order


def _shorten_arcs(order: list[int], rank: list[int], above: list[list[Arc]], below: list[list[Arc]]) -> bool:
    """Move each box towards the side where it has more arcs. Returns whether any box moved."""
    has_moved = False
    for box in reversed(order):
        if len(below[box]) > len(above[box]):
            lowest = min(rank[arc.bottom] - arc.span for arc in below[box])
            has_moved = has_moved or lowest != rank[box]
            rank[box] = lowest
    for box in order:
        if len(above[box]) > len(below[box]):
            highest = max(rank[arc.top] + arc.span for arc in above[box])
            has_moved = has_moved or highest != rank[box]
            rank[box] = highest
    return has_moved
