"""The first half of a layout: which way each link counts, and the rank that each box is in.

A link counts downwards. Those that would close a circle are turned round for the layout, and drawn the way they were.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Arc(NamedTuple):
    """A link between boxes, by their numbers, that counts downwards; `span` is how many ranks it takes at least."""

    top: int
    bottom: int
    span: int
    turned: bool


def downwards(count: int, links: Sequence[tuple[int, int, int]]) -> list[Arc]:
    """The links (from, to, span) as arcs without a circle. They are followed from the first box on, in order."""
    leaving: list[list[int]] = [[] for _ in range(count)]
    for number, (source, _, _) in enumerate(links):
        leaving[source].append(number)
    turned = [False] * len(links)
    seen, open_now = [False] * count, [False] * count
    for start in _sources_first(count, links):
        if seen[start]:
            continue
        seen[start] = open_now[start] = True
        trail = [(start, iter(leaving[start]))]
        while trail:
            here, ahead = trail[-1]
            number = next(ahead, -1)
            if number < 0:
                open_now[here] = False
                trail.pop()
                continue
            target = links[number][1]
            if open_now[target]:
                turned[number] = True
            elif not seen[target]:
                seen[target] = open_now[target] = True
                trail.append((target, iter(leaving[target])))
    return [
        Arc(target, source, span, True) if turned[number] else Arc(source, target, span, False)
        for number, (source, target, span) in enumerate(links)
    ]


def ranks(count: int, arcs: Sequence[Arc]) -> list[int]:
    """A rank for each box, from 0: each arc spans at least what it needs, and in sum they are short."""
    above: list[list[Arc]] = [[] for _ in range(count)]
    below: list[list[Arc]] = [[] for _ in range(count)]
    for arc in arcs:
        above[arc.bottom].append(arc)
        below[arc.top].append(arc)
    order = _topological(count, above, below)
    rank = [0] * count
    for box in order:
        rank[box] = max((rank[arc.top] + arc.span for arc in above[box]), default=0)
    for _ in range(4):
        if not _pulled_together(order, rank, above, below):
            break
    lowest = min(rank, default=0)
    return [each - lowest for each in rank]


def parts(count: int, links: Iterable[tuple[int, int]]) -> list[list[int]]:
    """The boxes in groups that aren't linked with each other, in the order of their first boxes."""
    leader = list(range(count))

    def find(box: int) -> int:
        while leader[box] != box:
            leader[box] = leader[leader[box]]
            box = leader[box]
        return box

    for one, other in links:
        first, second = sorted((find(one), find(other)))
        leader[second] = first
    groups: dict[int, list[int]] = {}
    for box in range(count):
        groups.setdefault(find(box), []).append(box)
    return list(groups.values())


def _sources_first(count: int, links: Sequence[tuple[int, int, int]]) -> list[int]:
    entered = {target for source, target, _ in links if source != target}
    return [
        *(box for box in range(count) if box not in entered),
        *(box for box in range(count) if box in entered),
    ]


def _topological(count: int, above: list[list[Arc]], below: list[list[Arc]]) -> list[int]:
    missing = [len(arcs) for arcs in above]
    order = [box for box in range(count) if not missing[box]]
    for box in order:
        for arc in below[box]:
            missing[arc.bottom] -= 1
            if not missing[arc.bottom]:
                order.append(arc.bottom)
    return order


def _pulled_together(
    order: list[int], rank: list[int], above: list[list[Arc]], below: list[list[Arc]]
) -> bool:
    """Move boxes that have more arcs on one side towards that side. Says whether any was moved."""
    moved = False
    for box in reversed(order):
        if len(below[box]) > len(above[box]):
            lowest = min(rank[arc.bottom] - arc.span for arc in below[box])
            moved, rank[box] = moved or lowest != rank[box], lowest
    for box in order:
        if len(above[box]) > len(below[box]):
            highest = max(rank[arc.top] + arc.span for arc in above[box])
            moved, rank[box] = moved or highest != rank[box], highest
    return moved
