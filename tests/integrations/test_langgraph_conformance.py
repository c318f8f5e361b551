"""H22: the conformance suite that LangGraph publishes for checkpointers, on each of our stores."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

pytest.importorskip("langgraph.checkpoint.conformance")

from langgraph.checkpoint.conformance import checkpointer_test, validate

from limpet.integrations.langgraph import LimpetSaver
from limpet.journal.store import Store

TESTS = {
    "put": 17,
    "put_writes": 10,
    "get_tuple": 10,
    "list": 16,
    "delete_thread": 5,
    "delete_for_runs": 7,
    "copy_thread": 8,
    "prune": 8,
}
"""How many tests each capability has, base and optional."""


def test_the_saver_passes_the_whole_suite_on_each_store(any_store: Store) -> None:
    """H22: all base and optional capabilities, and none is skipped."""

    @checkpointer_test(name="LimpetSaver")
    async def on_store() -> AsyncGenerator[Any, None]:
        yield LimpetSaver(any_store)

    report = asyncio.run(validate(on_store))
    assert [(name, each.failures) for name, each in report.results.items() if each.failures] == []
    assert {name: each.tests_passed for name, each in report.results.items()} == TESTS
    assert report.conformance_level() == "FULL"
