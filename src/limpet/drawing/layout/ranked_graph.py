"""Boxes in ranks, with a knot in each rank that a long link passes, so that threads join neighbouring ranks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from limpet.drawing.layout.ranks import Arc


class Tag(NamedTuple):
    """How large the label of a link is; a link without one has none."""

    width: float
    height: float


class Lattice:
    """What is ordered and placed: knots by number. The first are the boxes, the others are where links pass a rank.

    `chains` has the knots of each arc from top to bottom; `tagged` is the knot that has the arc's label, if it has
    one: the first after its source, where a reader decides which way to go.
    """

    def __init__(
        self,
        sizes: Sequence[tuple[float, float]],
        rank: Sequence[int],
        arcs: Sequence[Arc],
        tags: Sequence[Tag | None],
        lane: float,
    ) -> None:
        self.boxes = len(sizes)
        self.width = [width for width, _ in sizes]
        self.height = [height for _, height in sizes]
        self.rank = list(rank)
        self.up: list[list[int]] = [[] for _ in sizes]
        self.down: list[list[int]] = [[] for _ in sizes]
        self.chains: list[list[int]] = []
        self.tagged: list[int | None] = []
        for arc, tag in zip(arcs, tags, strict=True):
            self._add(arc, tag, lane)
        self.layers: list[list[int]] = [[] for _ in range(max(self.rank, default=-1) + 1)]
        for knot in self._in_order():
            self.layers[self.rank[knot]].append(knot)

    def inner(self, knot: int) -> bool:
        """Whether it is only where a link passes."""
        return knot >= self.boxes

    def _add(self, arc: Arc, tag: Tag | None, lane: float) -> None:
        chain = [arc.top]
        between = range(self.rank[arc.top] + 1, self.rank[arc.bottom])
        near = between[-1 if arc.turned else 0] if between and tag is not None else None
        self.tagged.append(None)
        for rank in between:
            knot = len(self.rank)
            self.rank.append(rank)
            self.up.append([])
            self.down.append([])
            self.width.append(tag.width if tag is not None and rank == near else lane)
            self.height.append(tag.height if tag is not None and rank == near else 0.0)
            if rank == near:
                self.tagged[-1] = knot
            chain.append(knot)
        chain.append(arc.bottom)
        for upper, lower in pairwise(chain):
            self.down[upper].append(lower)
            self.up[lower].append(upper)
        self.chains.append(chain)

    def _in_order(self) -> list[int]:
        """All knots as they are come to, depth first, from the top: a first order with few crossings."""
        seen: dict[int, None] = {}
        tops = sorted(range(self.boxes), key=lambda knot: (self.rank[knot], knot))
        for start in tops:
            ahead = [start]
            while ahead:
                knot = ahead.pop()
                if knot not in seen:
                    seen[knot] = None
                    ahead += [each for each in reversed(self.down[knot]) if each not in seen]
        return list(seen)
