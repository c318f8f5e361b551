"""Results that `once` keeps: when a function runs, and when its result is used again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from limpet import ExecutionError, Retry, State, StateGraph, once
from support.graphs import stored_chain


def test_a_key_of_once_stands_for_one_result_in_one_call() -> None:
    """P1: else the first result would be taken for all of them."""
    graph = stored_chain(lambda state: {"got": [once("llm", str.upper, prompt) for prompt in "ab"]})
    with pytest.raises(ExecutionError, match="has used the key 'llm' before"):
        graph.execute({})


def test_a_key_of_once_is_free_again_when_its_function_raised() -> None:
    """P1, H8: a node may try again by itself; there is no result yet."""
    tries: list[int] = []

    def flaky() -> str:
        tries.append(1)
        if len(tries) < 3:
            raise ConnectionError
        return "got it"

    def node(state: Any) -> dict[str, Any]:
        while True:
            try:
                return {"text": once("call", flaky)}
            except ConnectionError:
                continue

    assert stored_chain(node).execute({}) == {"text": "got it"}
    assert len(tries) == 3


def test_a_fork_and_a_rollback_pay_again() -> None:
    """H6: what was kept belongs to the run, and to what it knew, when it was paid for."""
    paid: list[int] = []

    def price(state: Any) -> dict[str, Any]:
        return {"price": once("quote", lambda: paid.append(state["quantity"]) or 10 * state["quantity"])}

    graph = stored_chain(lambda state: {"quantity": 1}, price)
    graph.execute({}, run_id="r")
    assert graph.fork("r", 1, {"quantity": 7}).result()["price"] == 70
    graph.rollback("r", 1)
    assert graph.resume("r", {"quantity": 3})["price"] == 30
    assert paid == [1, 7, 3]


def test_a_step_saved_while_a_result_is_kept_is_not_lost() -> None:
    """Invariant 1: a once() that isn't awaited ends on its own time, and harms no run."""

    async def slow() -> str:
        await asyncio.sleep(0)
        return "late"

    async def first(state: Any) -> dict[str, Any]:
        state["task"] = 0
        first.task = asyncio.ensure_future(once("k", slow))  # type: ignore[attr-defined]  # kept alive
        return {"v": 1}

    async def later(state: Any) -> dict[str, Any]:
        await asyncio.gather(first.task, return_exceptions=True)  # type: ignore[attr-defined]  # as above
        return {"w": 2}

    graph = stored_chain(first, later, lambda state: {"x": 3}, interval=2)
    final = asyncio.run(graph.aexecute({}, run_id="r"))
    assert graph.state_at("r") == final == {"task": 0, "v": 1, "w": 2, "x": 3}
    assert [step.step for step in graph.history("r")] == [0, 1, 2, 3]


@pytest.mark.parametrize("store", [None, "memory://"])
def test_once_with_an_async_function_can_be_awaited_when_its_result_was_kept(store: str | None) -> None:
    """H8: what it returns is awaited, the first time and when the node runs again."""
    calls: list[int] = []
    attempts: list[int] = []

    async def fetch(value: int) -> int:
        await asyncio.sleep(0)
        calls.append(value)
        return value

    async def node(state: State) -> dict[str, Any]:
        attempts.append(1)
        found = await once("fetch", fetch, 7)
        if len(attempts) == 1:
            raise ValueError
        return {"value": found}

    graph = StateGraph().add_node("only", run=node, retry=Retry(attempts=2, backoff=0))
    graph.set_entry_point("only").set_finish_point("only").compile(store=store)
    assert graph.execute({}) == {"value": 7}
    assert calls == [7]
