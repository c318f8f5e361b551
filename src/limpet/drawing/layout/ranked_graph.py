"""Boxes in ranks, with a dummy vertex in each rank that a long link passes: every edge joins neighbouring ranks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from limpet.drawing.layout.ranks import Arc


class LabelSize(NamedTuple):
    """The size of a link's label."""

    width: float
    height: float


class RankedGraph:
    """The graph that the layout orders and places. Vertices are numbers: first the boxes, then the dummy vertices.

    A dummy vertex is where a link passes a rank. `chains` has the vertices of each arc from top to bottom.
    `label_vertex` is the dummy vertex that holds an arc's label, or None: the one next to the link's source, where a
    reader decides which link to follow.
    """

    def __init__(
        self,
        box_sizes: Sequence[tuple[float, float]],
        ranks: Sequence[int],
        arcs: Sequence[Arc],
        labels: Sequence[LabelSize | None],
        lane_width: float,
    ) -> None:
        self.box_count = len(box_sizes)
        self.width = [width for width, _ in box_sizes]
        self.height = [height for _, height in box_sizes]
        self.rank = list(ranks)
        self.up: list[list[int]] = [[] for _ in box_sizes]
        self.down: list[list[int]] = [[] for _ in box_sizes]
        self.chains: list[list[int]] = []
        self.label_vertex: list[int | None] = []
        for arc, label in zip(arcs, labels, strict=True):
            self._add_chain(arc, label, lane_width)
        self.layers: list[list[int]] = [[] for _ in range(max(self.rank, default=-1) + 1)]
        for vertex in self._depth_first_order():
            self.layers[self.rank[vertex]].append(vertex)

    def is_dummy(self, vertex: int) -> bool:
        """Whether a link passes here, as opposed to a box."""
        return vertex >= self.box_count

    def _add_chain(self, arc: Arc, label: LabelSize | None, lane_width: float) -> None:
        chain = [arc.top]
        passed_ranks = range(self.rank[arc.top] + 1, self.rank[arc.bottom])
        label_rank = None
        if passed_ranks and label is not None:
            label_rank = passed_ranks[-1 if arc.is_reversed else 0]
        self.label_vertex.append(None)
        for rank in passed_ranks:
            vertex = len(self.rank)
            self.rank.append(rank)
            self.up.append([])
            self.down.append([])
            if label is not None and rank == label_rank:
                self.width.append(label.width)
                self.height.append(label.height)
                self.label_vertex[-1] = vertex
            else:
                self.width.append(lane_width)
                self.height.append(0.0)
            chain.append(vertex)
        chain.append(arc.bottom)
        for upper, lower in pairwise(chain):
            self.down[upper].append(lower)
            self.up[lower].append(upper)
        self.chains.append(chain)

    def _depth_first_order(self) -> list[int]:
        """All vertices, depth first from the top: a start order that has few crossings already."""
        seen: dict[int, None] = {}
        boxes_from_top = sorted(range(self.box_count), key=lambda vertex: (self.rank[vertex], vertex))
        for start in boxes_from_top:
            pending = [start]
            while pending:
                vertex = pending.pop()
                if vertex not in seen:
                    seen[vertex] = None
                    pending += [each for each in reversed(self.down[vertex]) if each not in seen]
        return list(seen)
