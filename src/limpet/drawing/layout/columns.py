"""Where each knot of a lattice is from left to right, so that links are straight where they can be.

This is the method of Brandes and Köpf: knots are aligned with the middle of their neighbours, from above and from
below, leaning left and leaning right; each of the four is packed close, and the middle of the four is taken.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from limpet.drawing.layout.ranked_graph import Lattice

Gap = Callable[[int, int], float]
"""How far apart the middles of two neighbours are at least."""


def middles(lattice: Lattice, gap: Gap) -> list[float]:
    """The middle of each knot. Neighbours in a rank are at least `gap` apart, in the order of the rank."""
    if not lattice.layers:
        return []
    forbidden = _conflicts(lattice)
    found = []
    for upwards in (False, True):
        layers = lattice.layers[::-1] if upwards else lattice.layers
        sides = lattice.down if upwards else lattice.up
        for leftwards in (False, True):
            turned = [layer[::-1] for layer in layers] if leftwards else layers
            at = _packed(turned, *_aligned(turned, sides, forbidden), gap)
            found.append([-each for each in at] if leftwards else at)
    return _balanced(lattice, found)


def _conflicts(lattice: Lattice) -> set[tuple[int, int]]:
    """Threads that cross the inside of a long link. They give way, so that long links stay straight."""
    found = set()
    for upper, lower in pairwise(lattice.layers):
        place = {knot: number for number, knot in enumerate(upper)}
        left, done = 0, 0
        for number, knot in enumerate(lower):
            inside = (
                next((up for up in lattice.up[knot] if lattice.inner(up)), None)
                if lattice.inner(knot)
                else None
            )
            if inside is None and number < len(lower) - 1:
                continue
            right = len(upper) if inside is None else place[inside]
            for each in lower[done : number + 1]:
                for up in lattice.up[each]:
                    outside = place[up] < left or place[up] > right
                    if outside and not (lattice.inner(each) and lattice.inner(up)):
                        found.add((up, each))
            done, left = number + 1, right
    return found


def _aligned(
    layers: list[list[int]], sides: list[list[int]], forbidden: set[tuple[int, int]]
) -> tuple[list[int], list[int]]:
    """The blocks of knots that stand on one line: the root of each knot's block, and the next one in it."""
    root, following = list(range(len(sides))), list(range(len(sides)))
    place = {knot: number for layer in layers for number, knot in enumerate(layer)}
    for layer in layers:
        taken = -1
        for knot in layer:
            near = sorted(sides[knot], key=place.__getitem__)
            for middle in dict.fromkeys(((len(near) - 1) // 2, len(near) // 2)) if near else ():
                other = near[middle]
                allowed = (other, knot) not in forbidden and (knot, other) not in forbidden
                if following[knot] == knot and taken < place[other] and allowed:
                    following[other] = knot
                    following[knot] = root[knot] = root[other]
                    taken = place[other]
    return root, following


def _packed(layers: list[list[int]], root: list[int], following: list[int], gap: Gap) -> list[float]:
    """Where the blocks are when they are pushed to the left, and then back to what holds them from the right."""
    after: dict[int, dict[int, float]] = {}
    before: dict[int, dict[int, float]] = {}
    for layer in layers:
        for left, right in pairwise(layer):
            one, other, least = root[left], root[right], gap(left, right)
            least = max(least, after.setdefault(one, {}).get(other, 0.0))
            after[one][other] = least
            before.setdefault(other, {})[one] = least
    blocks = dict.fromkeys(root[knot] for layer in layers for knot in layer)
    missing = {block: len(before.get(block, ())) for block in blocks}
    order = [block for block in blocks if not missing[block]]
    for block in order:
        for other in after.get(block, ()):
            missing[other] -= 1
            if not missing[other]:
                order.append(other)
    at: dict[int, float] = {}
    for block in order:
        at[block] = max((at[each] + least for each, least in before.get(block, {}).items()), default=0.0)
    for block in reversed(order):
        held = min((at[each] - least for each, least in after.get(block, {}).items()), default=at[block])
        at[block] = max(at[block], held)
    return [at[root[knot]] for knot in range(len(root))]


def _balanced(lattice: Lattice, found: list[list[float]]) -> list[float]:
    """All four side by side with the narrowest, and then the middle of the two middle ones."""

    def edges(at: list[float]) -> tuple[float, float]:
        half = [width / 2 for width in lattice.width]
        return min(x - h for x, h in zip(at, half, strict=True)), max(
            x + h for x, h in zip(at, half, strict=True)
        )

    sides = [edges(at) for at in found]
    low, high = min(sides, key=lambda side: side[1] - side[0])
    for number, (at, side) in enumerate(zip(found, sides, strict=True)):
        shift = low - side[0] if number % 2 == 0 else high - side[1]
        found[number] = [x + shift for x in at]
    balanced = []
    for four in zip(*found, strict=True):
        ordered = sorted(four)
        balanced.append((ordered[1] + ordered[2]) / 2)
    return balanced
