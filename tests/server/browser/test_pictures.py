"""Pictures of graphs that a reader opens by themselves, outside of the page."""

from __future__ import annotations

from typing import Any

from support.browser import Visitor

FILLS = "() => [...document.querySelectorAll('rect')].map((shape) => getComputedStyle(shape).fill)"


def test_a_picture_has_its_colours_where_it_is_opened_by_itself(
    samples: Any, serve: Any, visitor: Visitor
) -> None:
    """H20: its styles are all that the browser takes from it."""
    server = serve(samples.store, samples.graphs.values())
    page = visitor.open(server)
    answer = page.goto(f"{server.address}/api/v1/graphs/research/picture?run_id=rocks-5")
    assert answer is not None
    assert answer.headers["content-type"] == "image/svg+xml"
    fills = page.evaluate(FILLS)
    assert len(set(fills)) > 2  # those of the page, and of nodes with different marks
    assert "rgb(0, 0, 0)" not in fills  # as shapes without styles have
