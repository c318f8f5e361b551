"""The order of the knots in each rank, such that few links cross each other."""

from __future__ import annotations

from bisect import bisect_right, insort
from itertools import pairwise

from limpet.drawing.layout.ranked_graph import Lattice

SWEEPS, PATIENCE, EFFORT = 24, 6, 40_000
"""How often it goes up or down at most, for how long without getting better, and over how many knots in all."""

WORTH_SWITCHING = 900
"""Up to so many knots, neighbours are switched one by one as well: slow, and better."""


def untangle(lattice: Lattice) -> None:
    """Order each rank of the lattice. Goes down and up through the ranks, and keeps the best order it has seen."""
    best, fewest = [list(layer) for layer in lattice.layers], crossings(lattice)
    switching = len(lattice.rank) <= WORTH_SWITCHING
    since = 0
    for sweep in range(min(SWEEPS, max(EFFORT // max(len(lattice.rank), 1), 6))):
        if not fewest or since >= PATIENCE:
            break
        _sweep(lattice, downwards=sweep % 2 == 0, late=sweep % 4 >= 2)
        if switching:
            _switch(lattice)
        found = crossings(lattice)
        since += 1
        if found < fewest:
            best, fewest, since = [list(layer) for layer in lattice.layers], found, 0
    lattice.layers = best


def crossings(lattice: Lattice) -> int:
    """How many pairs of links between neighbouring ranks cross."""
    total = 0
    for upper, lower in pairwise(lattice.layers):
        place = {knot: number for number, knot in enumerate(lower)}
        ends: list[int] = []
        for knot in upper:
            mine = sorted(place[each] for each in lattice.down[knot])
            total += sum(len(ends) - bisect_right(ends, end) for end in mine)
            for end in mine:
                insort(ends, end)
    return total


def _sweep(lattice: Lattice, downwards: bool, late: bool) -> None:
    """Order each rank by where its neighbours in the one before are, on average. `late` turns ties round."""
    layers = lattice.layers if downwards else lattice.layers[::-1]
    sides = lattice.up if downwards else lattice.down
    for before, layer in pairwise(layers):
        place = {knot: number for number, knot in enumerate(before)}
        keys: dict[int, float] = {}
        for number, knot in enumerate(layer):
            near = sides[knot]
            keys[knot] = sum(place[each] for each in near) / len(near) if near else float(number)
        layer[:] = sorted(layer[::-1] if late else layer, key=keys.__getitem__)


def _switch(lattice: Lattice) -> None:
    """Switch neighbours in a rank wherever that takes crossings away, until it doesn't."""
    place = {knot: number for layer in lattice.layers for number, knot in enumerate(layer)}
    for _ in range(4):
        better = False
        for layer in lattice.layers:
            for number in range(len(layer) - 1):
                one, other = layer[number], layer[number + 1]
                if _gain(lattice, place, one, other) > 0:
                    layer[number], layer[number + 1] = other, one
                    place[one], place[other] = number + 1, number
                    better = True
        if not better:
            return


def _gain(lattice: Lattice, place: dict[int, int], left: int, right: int) -> int:
    """How many crossings fewer there are if `left` and `right` change places."""
    gain = 0
    for side in (lattice.up, lattice.down):
        lefts, rights = [place[each] for each in side[left]], [place[each] for each in side[right]]
        for one in lefts:
            for other in rights:
                gain += (one > other) - (one < other)
    return gain
